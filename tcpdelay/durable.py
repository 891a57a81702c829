"""Files that are there in whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
