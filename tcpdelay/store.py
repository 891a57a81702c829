"""Files that are written completely or not at all, locks on directories, and TOML files."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UNFINISHED = ".tcpdelay-*.part"
"""Pattern of the files that a killed process leaves behind, for `Path.glob`."""
LONGEST_MESSAGE = 300
"""Largest number of characters of a message of Arrow; some repeat a whole row."""


def unfinished_path(path: Path) -> Path:
    """Return a new name beside a file, for its content until it is complete; it matches `UNFINISHED`."""
    return path.with_name(f".tcpdelay-{secrets.token_hex(8)}.part")


@contextmanager
def written_durably(path: Path) -> Iterator[Path]:
    """Provide the path of a temporary file, which is on the disk before it replaces a file when the block ends."""
    unfinished = unfinished_path(path)
    try:
        yield unfinished
        with unfinished.open("rb+") as written:
            os.fsync(written.fileno())
        unfinished.replace(path)
        _sync_directory(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    # Windows cannot open a directory, and writes its entries by itself.
    if sys.platform == "win32":
        return
    entry = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


@contextmanager
def locked(directory: Path, complaint: str) -> Iterator[None]:
    """Lock a directory against other processes until the block or the process ends.

    On Windows, this does nothing.
    """
    if sys.platform == "win32":
        # Windows cannot open a directory.
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


def error_in_words(error: OSError, folder: Path | None = None) -> str:
    """Return the file that an error names, and the system's reason without its number.

    `folder` takes the place of a file without a name, or of an unfinished file, whose name says nothing to the user.
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOENT and error.filename is None and _is_working_folder_removed():
        return "the working directory has been removed; change to another one"
    named = error.filename is not None and not Path(os.fsdecode(error.filename)).match(UNFINISHED)
    file = error.filename if named else folder
    return reason if file is None else f"{os.fsdecode(file)!r}: {reason}"


def _is_working_folder_removed() -> bool:
    """Return whether the working directory of this process no longer exists."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def one_line(error: Exception | str) -> str:
    """Return the message of an error in one line: the message of the system if there is one."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return textwrap.shorten(str(error), LONGEST_MESSAGE, placeholder=" ...")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        with path.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no TOML: {error}") from None
