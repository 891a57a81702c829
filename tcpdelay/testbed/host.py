"""The backend that uses this machine's own kernel; needs root and its module sch_netem."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

from tcpdelay.testbed.backends import BackendName, OnProgress, SessionFailedError, session_progress
from tcpdelay.testbed.guest import PLAN
from tcpdelay.testbed.session import Plan
from tcpdelay.testbed.system_calls import die_with_parent

POLL_INTERVAL = 0.2


class HostBackend:
    """Network namespaces on this machine, in a process of their own that takes them along when it ends."""

    name: BackendName = "host"
    real_time = True

    def problems(self) -> list[str]:
        """Return what stands in the way: no root, or a kernel without netem."""
        if os.uname().sysname != "Linux":
            return ["network namespaces exist on Linux only"]
        if os.geteuid() != 0:
            return ["only root may make network namespaces; run as root, or use a User-Mode Linux guest"]
        check = subprocess.run(
            [sys.executable, "-m", "tcpdelay.testbed.host"], capture_output=True, text=True, check=False
        )
        return [] if check.returncode == 0 else [check.stderr.strip().splitlines()[-1]]

    def hz(self) -> int:
        """Return the kernel's tick as its configuration tells, 0 if there is none to read."""
        try:
            for line in Path(f"/boot/config-{platform.release()}").read_text(encoding="utf-8").splitlines():
                if line.startswith("CONFIG_HZ="):
                    return int(line.removeprefix("CONFIG_HZ="))
        except OSError:
            return 0
        return 0

    def kernel(self, directory: Path) -> str:
        """Return the release of this machine's kernel."""
        return platform.release()

    def run(self, plan: Plan, directory: Path, core: int, on_progress: OnProgress) -> None:
        """Run the plan in a child process, and wait for its end."""
        plan.write(directory / PLAN)
        command = [sys.executable, "-m", "tcpdelay.testbed.host", str(directory)]
        errors = directory / "error"
        with errors.open("wb") as stderr:
            child = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        try:
            while child.poll() is None:
                on_progress(session_progress(directory))
                time.sleep(POLL_INTERVAL)
        finally:
            child.kill()
            child.wait()
        if child.returncode != 0:
            lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise SessionFailedError(f"the session failed: {lines[-1] if lines else f'status {child.returncode}'}")


def _main(arguments: list[str]) -> int:
    """Run the session in a directory, or, without one, try whether the kernel has what a session needs."""
    from pyroute2 import NetlinkError

    from tcpdelay.testbed.experiment import Experiment
    from tcpdelay.testbed.network import Network
    from tcpdelay.testbed.session import run_session

    if arguments:
        directory = Path(arguments[0])
        run_session(Plan.read(directory / PLAN), directory)
        return 0
    try:
        Network.build(Experiment(rtt=0.01)).close()
    except (OSError, NetlinkError) as error:
        missing = (
            f"this kernel refuses a namespace with veth and netem ({error}); the module sch_netem is often missing"
        )
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
