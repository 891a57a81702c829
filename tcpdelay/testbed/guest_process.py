"""The process of a User-Mode Linux guest: its command line, and its end whatever happens to this process."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tcpdelay.testbed.system_calls import die_with_parent, fix_addresses

HERE = "/proc/self/cwd"
"""The session's directory, as the guest's kernel finds it on the host: the directory that it was started in.

Named so, it is the same for every session, and the command line, which feeds the guest's entropy, is too.
"""
CONSOLE = "console.log"
MEMORY = "1G"
TERMINATION_TIME = 5.0
INIT = """#!/bin/sh
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} \\
  {python} -m tcpdelay.testbed.guest {directory}
"""


def write_init(directory: Path) -> None:
    """Write the script that is the guest's first process, for a session in `directory`."""
    # The guest has the host's files, so it runs this very interpreter and package.
    package = Path(__file__).resolve().parents[2]
    script = directory / "init"
    script.write_text(
        INIT.format(path=shlex.quote(str(package)), python=shlex.quote(sys.executable), directory=HERE),
        encoding="utf-8",
    )
    script.chmod(0o755)


def start_guest(kernel: Path, directory: Path, arguments: list[str], core: int) -> subprocess.Popen[bytes]:
    """Boot a guest.

    Parameters
    ----------
    kernel : Path
        A User-Mode Linux binary.
    directory : Path
        The session's directory.
    arguments : list of str
        Further arguments of the kernel.
    core : int
        The processor to pin the guest to: spread over several it is many times slower.

    Returns
    -------
    Popen
        The guest. It ends with this process, or rather with the thread that called.
    """
    write_init(directory)
    command = [
        str(kernel),
        f"mem={MEMORY}",
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={HERE}/init"),
        *("uml_dir=./", "umid=guest"),
        *("random.trust_cpu=on", "quiet", "panic=1", "con0=fd:0,fd:1", "con=null", "ssl=null"),
        *arguments,
    ]
    parent = os.getpid()

    def prepare() -> None:
        # The kernel ends its own processes when it is asked to terminate; killed outright it would leave them behind.
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        fix_addresses()
        os.sched_setaffinity(0, {core})

    with (directory / CONSOLE).open("wb") as console:
        return subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,
        )


def stop_guest(process: subprocess.Popen[bytes]) -> None:
    """End a guest and all processes of it, if it still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(TERMINATION_TIME)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # What a guest leaves behind when it dies unasked is in its process group.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def guests_of(directory: Path) -> list[int]:
    """Return the processes that work in `directory` or below it, as guests do in their session's."""
    processes = []
    # As /proc shows it: without symbolic links.
    directory = directory.resolve()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                # A directory that is gone is shown with a remark behind its name.
                place = Path(str((entry / "cwd").readlink()).removesuffix(" (deleted)"))
                if place.is_relative_to(directory):
                    processes.append(int(entry.name))
    return processes
