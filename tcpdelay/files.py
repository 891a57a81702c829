"""Files that exist as a whole or not at all, directories that one process at a time writes to, and TOML files."""

from __future__ import annotations

import os
import secrets
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UNFINISHED = ".*.part"
"""Pattern of the files that a killed process leaves behind, for `Path.glob`."""


@contextmanager
def written_durably(path: Path) -> Iterator[Path]:
    """Provide a temporary file that replaces a file once it has been written and is on the disk.

    Parameters
    ----------
    path : Path
        The file; it stays as it is if the block fails.

    Yields
    ------
    Path
        Name of the temporary file, in the same folder.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     with written_durably(Path(directory, "result")) as unfinished:
    ...         _ = unfinished.write_text("all of it")
    ...     [file.name for file in Path(directory).iterdir()]
    ['result']
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield unfinished
        with unfinished.open("rb+") as written:
            os.fsync(written.fileno())
        unfinished.replace(path)
        _sync_directory(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    # Windows opens no directories, and writes their entries by itself.
    if sys.platform == "win32":
        return
    entry = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


@contextmanager
def locked(directory: Path, complaint: str) -> Iterator[None]:
    """Keep other processes from locking a directory, until the block or the process ends.

    Parameters
    ----------
    directory : Path
        The directory, which exists.
    complaint : str
        What the error says after the directory's name.

    Raises
    ------
    ValueError
        If another process has locked it.

    Examples
    --------
    >>> with locked(Path("."), "is in use"):
    ...     pass
    """
    if sys.platform == "win32":
        # Windows opens no directories.
        yield
        return
    from filelock import lock_descriptor

    lock = os.open(directory, os.O_RDONLY)
    try:
        if not lock_descriptor(lock, blocking=False):
            raise ValueError(f"{directory}: {complaint}")
        yield
    finally:
        os.close(lock)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises
    ------
    ValueError
        If it cannot be read or is no TOML; the message names the file.

    Examples
    --------
    >>> read_toml(Path("nowhere.toml"))
    Traceback (most recent call last):
    ValueError: nowhere.toml: cannot be read: No such file or directory
    """
    try:
        with path.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no TOML: {error}") from None
