"""Directories that one process at a time writes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
