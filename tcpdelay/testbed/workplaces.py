"""Directories in which sessions run, and what is done about those that a killed run left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tcpdelay.testbed.guest_process import guests_of


def parent_of_workplaces() -> Path:
    """Return the directory of this user in which sessions run."""
    return Path(tempfile.gettempdir(), f"tcpdelay-testbed-{os.getuid()}")


@contextmanager
def workplace() -> Iterator[Path]:
    """Provide an empty directory for sessions, locked while in use, and remove it at the end.

    Raises
    ------
    OSError
        If the directory cannot be made, or belongs to somebody else.
    """
    parent = _own_parent()
    gate = os.open(parent, os.O_RDONLY)
    try:
        # One run at a time: until it is locked, a new directory looks like a leftover.
        fcntl.flock(gate, fcntl.LOCK_EX)
        remove_leftovers()
        directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
        lock = os.open(directory, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(gate)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def remove_leftovers() -> list[Path]:
    """End the guests of runs that were killed, remove their directories, and return these."""
    removed = []
    parent = _own_parent()
    for directory in sorted(parent.glob("run-*")):
        lock = None
        with suppress(OSError):
            lock = os.open(directory, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for process in guests_of(directory):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
        if lock is not None:
            os.close(lock)
    return removed


def _own_parent() -> Path:
    parent = parent_of_workplaces()
    parent.mkdir(mode=0o700, exist_ok=True)
    # In a directory that everybody may write to, somebody else could have made it first.
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user; set TMPDIR to a directory of yours")
    return parent
