"""The two backends that need neither root nor netem on this machine: a User-Mode Linux guest."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tcpdelay.testbed.backends import BackendName, OnProgress, SessionFailedError, session_progress
from tcpdelay.testbed.guest import PLAN
from tcpdelay.testbed.guest_process import CONSOLE, start_guest, stop_guest
from tcpdelay.testbed.handover import is_handed_over
from tcpdelay.testbed.session import Plan
from tcpdelay.testbed.virtual_kernel import find_kernel

PREBUILT_HZ = 100
POLL_INTERVAL = 0.2
CONSOLE_TAIL = 3
GRACE = 120.0
"""Time that boot, connections and the way down may take, beyond the plan's duration [s]."""
START = 1_700_000_000_000_000_000
"""Where the calendar of virtual time begins [ns since 1970]; like the seed, it must not change from run to run."""
SILENCE = 300.0
"""Time without progress after which a guest in virtual time is given up [s]."""


class UmlBackend:
    """A guest of Debian's package user-mode-linux, in real time."""

    name: BackendName = "uml"
    real_time = True

    def problems(self) -> list[str]:
        """Return what is missing to run here."""
        if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
            return ["User-Mode Linux runs on Linux on x86-64 only"]
        missing = []
        if self._kernel() is None:
            missing.append(self._remedy())
        if shutil.which("insmod", path="/sbin:/usr/sbin") is None:
            missing.append("the program insmod is missing; run: sudo apt-get install kmod")
        return missing

    def _kernel(self) -> Path | None:
        found = shutil.which("linux.uml")
        return Path(found) if found else None

    def _remedy(self) -> str:
        return "the program linux.uml is missing; run: sudo apt-get install user-mode-linux"

    def _arguments(self, plan: Plan) -> list[str]:
        return []

    def hz(self) -> int:
        """Return the tick of Debian's guest kernel."""
        return PREBUILT_HZ

    def kernel(self, directory: Path) -> str:
        """Return the guest's kernel release."""
        return (directory / "kernel").read_text(encoding="ascii")

    def run(self, plan: Plan, directory: Path, core: int, on_progress: OnProgress) -> None:
        """Boot a guest that runs the plan, and wait for its end."""
        kernel = self._kernel()
        if kernel is None:
            raise SessionFailedError(self._remedy())
        plan.write(directory / PLAN)
        guest = start_guest(kernel, directory, self._arguments(plan), core)
        try:
            self._wait(guest, plan, directory, on_progress)
        finally:
            stop_guest(guest)
        error = directory / "error"
        if error.exists():
            raise SessionFailedError(f"the guest failed: {error.read_text(encoding='utf-8').strip().splitlines()[-1]}")
        if not all(is_handed_over(directory, number) for number in range(len(plan.experiments))):
            how = signal.Signals(-guest.returncode).name if guest.returncode < 0 else f"status {guest.returncode}"
            done = session_progress(directory)
            raise SessionFailedError(f"the guest ended with {how} at {done:.0%} of its run; {_console(directory)}")

    def _wait(self, guest: subprocess.Popen[bytes], plan: Plan, directory: Path, on_progress: OnProgress) -> None:
        longest = max(experiment.duration for experiment in plan.experiments)
        allowed = longest + GRACE if self.real_time else SILENCE
        done = 0.0
        deadline = time.monotonic() + allowed
        while guest.poll() is None:
            now = session_progress(directory)
            if now > done and not self.real_time:
                deadline = time.monotonic() + SILENCE
            done = now
            on_progress(done)
            if time.monotonic() > deadline:
                raise SessionFailedError(f"the guest was given up at {done:.0%} of its run; {_console(directory)}")
            time.sleep(POLL_INTERVAL)
        if not (directory / "kernel").exists():
            raise SessionFailedError(f"the guest did not boot; {_console(directory)}")


class VirtualTimeBackend(UmlBackend):
    """A guest whose time jumps to the next event whenever all its processes sleep.

    Parameters
    ----------
    hz : int
        Timer interrupts per second of the kernel, as it was built.
    """

    name: BackendName = "uml-virtual"
    real_time = False

    def __init__(self, hz: int) -> None:
        self._hz = hz

    def _kernel(self) -> Path | None:
        return find_kernel(self._hz)

    def _remedy(self) -> str:
        return f"no kernel with virtual time at {self._hz} Hz; run: tcpdelay testbed build-kernel --hz {self._hz}"

    def _arguments(self, plan: Plan) -> list[str]:
        # Zero would mean the host's entropy.
        return ["time-travel=inf-cpu", f"time-travel-start={START}", f"rngseed={plan.seed + 1}"]

    def hz(self) -> int:
        """Return the kernel's tick."""
        return self._hz


def _console(directory: Path) -> str:
    text = (directory / CONSOLE).read_text(encoding="utf-8", errors="replace")
    # Without the control sequences of a terminal.
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).splitlines() if line.strip()]
    return "its console ends with: " + " | ".join(lines[-CONSOLE_TAIL:]) if lines else "its console is empty"
