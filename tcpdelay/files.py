"""Files that are there in whole or not at all, whatever ends the process or the machine.

Directories that one process at a time writes to.

TOML files, with all that can be wrong with one said in a line.
"""

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
"""Names of what a killed process leaves behind, for `Path.glob`."""


@contextmanager
def written_durably(path: Path) -> Iterator[Path]:
    """Give a name beside a file to write to; the file is replaced by that once it is on the disk.

    Parameters
    ----------
    path : Path
        The file. If the block fails, it stays as it is.

    Yields
    ------
    Path
        Where to write.

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
    # Windows opens no directories, and keeps their entries by itself.
    if sys.platform == "win32":
        return
    entry = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


@contextmanager
def locked(directory: Path, complaint: str) -> Iterator[None]:
    """Keep other processes from locking a directory; the lock ends with the process at the latest.

    Parameters
    ----------
    directory : Path
        The directory, which exists.
    complaint : str
        What to say behind its name if another process has locked it.

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
        # Directories cannot be opened there, nor files be locked for advice alone.
        yield
        return
    import fcntl

    lock = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{directory}: {complaint}") from None
        yield
    finally:
        os.close(lock)


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

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
