"""The directories in which sessions run; nothing is left of them and of their guests, however a run ends.

Beside each run there is a process that does nothing but wait for the end of the run. If the run is killed, this process
removes its directory and guests. If both are killed, the next run does so.

This module runs as a program, so it imports nothing of the package.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KILL_INTERVAL = 0.02
"""Time between two looks at the processes that were killed [s]."""


def guests_of(directory: Path) -> list[int]:
    """Return the processes whose working directory is `directory` or below it; each guest has such a directory."""
    processes = []
    # /proc shows paths without symbolic links.
    directory = directory.resolve()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                # The kernel appends a remark to the path of a removed directory.
                place = Path(str((entry / "cwd").readlink()).removesuffix(" (deleted)"))
                if place.is_relative_to(directory):
                    processes.append(int(entry.name))
    return processes


def parent_of_workplaces() -> Path:
    """Return the directory of this user in which sessions run."""
    return Path(tempfile.gettempdir(), f"tcpdelay-testbed-{os.getuid()}")


@contextmanager
def workplace() -> Iterator[Path]:
    """Provide an empty directory for sessions, locked while in use, and remove it at the end."""
    parent = _own_parent()
    gate = os.open(parent, os.O_RDONLY)
    try:
        # The gate admits one run at a time: until a new directory is locked, another run would remove it as a leftover.
        fcntl.flock(gate, fcntl.LOCK_EX)
        remove_leftovers()
        directory = parent / f"run-{secrets.token_hex(4)}"
        keeper = _start_keeper(directory)
        directory.mkdir(mode=0o700)
        lock = os.open(directory, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(gate)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
        keeper.communicate()


def _start_keeper(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process, in a session of its own, that removes a directory and its guests when its input ends."""
    return subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__)), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _remove(directory: Path) -> None:
    """End all guests of a directory, and remove the directory."""
    while processes := guests_of(directory):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(KILL_INTERVAL)
    shutil.rmtree(directory, ignore_errors=True)


def remove_leftovers() -> list[Path]:
    """End the guests of killed runs, remove the directories of these runs, and return the directories."""
    removed = []
    parent = _own_parent()
    for directory in sorted(parent.glob("run-*")):
        lock = None
        with suppress(OSError):
            lock = os.open(directory, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(directory)
            removed.append(directory)
        if lock is not None:
            os.close(lock)
    return removed


def _own_parent() -> Path:
    parent = parent_of_workplaces()
    parent.mkdir(mode=0o700, exist_ok=True)
    # All users may write to the parent directory, so another user could have made this directory first.
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user; set TMPDIR to a directory of yours")
    return parent


if __name__ == "__main__":
    sys.stdin.read()
    _remove(Path(sys.argv[1]))
