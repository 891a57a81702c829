"""The backends that run sessions: this machine's kernel, or a User-Mode Linux guest in real or in virtual time.

The kernel of this machine needs root and the module sch_netem. Guests need neither. This module is also the program
that runs a session: in a child process on this machine, or as the first process of a guest.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.stack import is_at_least
from tcpdelay.testbed.event_loop import die_with_parent, fix_addresses, mount, power_off
from tcpdelay.testbed.virtual_kernel import (
    ANY_SIZE_OF_REGISTERS_SINCE,
    DEFAULT_KERNEL,
    check_version,
    find_kernel,
)

if TYPE_CHECKING:
    from tcpdelay.testbed.experiment_run import Plan
    from tcpdelay.testbed.program_session import ProgramPlan

BackendName = Literal["uml-virtual", "uml", "host"]

OnProgress = Callable[[float], None]
POLL_INTERVAL = 0.2
HERE = "/proc/self/cwd"
"""Path of the session's directory for the guest's kernel: its working directory on the host.

With this path, the command line is the same for every session. The command line feeds the guest's entropy.
"""
PLAN, CONSOLE, REFUSED = "plan", "console.log", "refused"
"""Files of a session: its plan, the output of a guest's kernel, and the setting that a guest's kernel refused."""
MEMORY = "1G"
TERMINATION_TIME = 5.0
INIT = """#!/bin/sh
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} \\
  {python} -m tcpdelay.testbed.backends guest {directory}
"""
VIRTUAL_TIME_START = 1_700_000_000_000_000_000
"""Calendar time at the start of a run in virtual time [ns since 1970]; a repeated run needs the same time."""
PREBUILT_HZ, BUILT_HZ = 100, 250
"""Timer interrupts per second of Debian's kernel, and of the built kernel that takes its place [1/s]."""
CONSOLE_TAIL = 3
GRACE = 120.0
"""Time for boot, connections and shutdown, beyond the plan's duration [s]."""
SILENCE = 300.0
"""Time without progress after which a guest in virtual time is stopped [s]."""


class SessionFailedError(RuntimeError):
    """A session did not finish its plan; the message holds the reason."""


def write_plan(plan: Plan | ProgramPlan, directory: Path) -> None:
    """Write the plan of a session into its directory, which only this user may enter."""
    (directory / PLAN).write_bytes(pickle.dumps(plan))


def run_plan(place: str) -> None:
    """Run the session whose plan is in a directory."""
    directory = Path(place)
    plan: Plan | ProgramPlan = pickle.loads((directory / PLAN).read_bytes())
    plan.run(directory)


def session_progress(directory: Path) -> float:
    """Return the finished share of the session in a directory, 0 to 1."""
    try:
        return float((directory / "progress").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0


class HostBackend:
    """Network namespaces on this machine; a child process holds them, so they end with this process."""

    name: BackendName = "host"
    real_time = True  # Whether a second of the experiment takes a second

    def problems(self) -> list[str]:
        """Return the reasons why the backend cannot run here: no root, or a kernel without netem."""
        if os.uname().sysname != "Linux":
            return ["network namespaces exist on Linux only"]
        if os.geteuid() != 0:
            return ["only root may make network namespaces; run as root, or use a User-Mode Linux guest"]
        check = subprocess.run(
            [sys.executable, "-m", "tcpdelay.testbed.backends"], capture_output=True, text=True, check=False
        )
        return [] if check.returncode == 0 else [check.stderr.strip().splitlines()[-1]]

    def hz(self) -> int:
        """Return the timer interrupts per second from the kernel's configuration; 0 if it cannot be read."""
        try:
            for line in Path(f"/boot/config-{platform.release()}").read_text(encoding="utf-8").splitlines():
                if line.startswith("CONFIG_HZ="):
                    return int(line.removeprefix("CONFIG_HZ="))
        except OSError:
            return 0
        return 0

    @property
    def label(self) -> str:
        """The kernel in the names of captures: its tick."""
        return f"hz{self.hz()}"

    def kernel(self, directory: Path) -> str:
        """Return the release of this machine's kernel."""
        return platform.release()

    def run(self, plan: Plan, directory: Path, core: int, on_progress: OnProgress) -> None:
        """Run the plan in a child process, and wait for its end."""
        write_plan(plan, directory)
        command = [sys.executable, "-m", "tcpdelay.testbed.backends", str(directory)]
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


def write_init(directory: Path) -> None:
    """Write the script that is the guest's first process, for a session in `directory`."""
    # The guest sees the host's files, so it runs the same interpreter and package.
    package = Path(__file__).resolve().parents[2]
    script = directory / "init"
    script.write_text(
        INIT.format(path=shlex.quote(str(package)), python=shlex.quote(sys.executable), directory=HERE),
        encoding="utf-8",
    )
    script.chmod(0o755)


def start_guest(kernel: Path, directory: Path, arguments: list[str], core: int) -> subprocess.Popen[bytes]:
    """Boot a guest."""
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
        # On SIGTERM the kernel ends its own processes. On SIGKILL it would leave them behind.
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
    """End a guest and all its processes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(TERMINATION_TIME)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # A crashed guest leaves processes behind in its process group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def fits_processor(release: str, processors: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether a User-Mode Linux of this release, as Debian builds it, runs programs on this processor.

    Before 6.13 its floating-point registers have no room for the tiles of AMX, and the first program of a guest fails.
    """
    with suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)", processors.read_text(encoding="ascii"), re.MULTILINE)
        if flags is not None and "amx_tile" in flags[1].split():
            return is_at_least(".".join(re.findall(r"\d+", release)[:2]), ANY_SIZE_OF_REGISTERS_SINCE)
    return True


class UmlBackend:
    """A guest in real time, of Debian's package user-mode-linux.

    Where that kernel does not run on the processor, it is the kernel that tcpdelay builds for guests in virtual time.
    """

    name: BackendName = "uml"
    real_time = True
    patience = SILENCE

    def problems(self) -> list[str]:
        """Return the packages that are missing to run here."""
        if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
            return ["User-Mode Linux runs on Linux on x86-64 only"]
        missing = []
        if self._kernel() is None:
            missing.append(self._remedy())
        if shutil.which("insmod", path="/sbin:/usr/sbin") is None:
            missing.append("the program insmod is missing; run: sudo apt-get install kmod")
        return missing

    @cached_property
    def _needs_built(self) -> bool:
        """Whether Debian's kernel is there, but does not run on this processor."""
        found = shutil.which("linux.uml")
        if found is None:
            return False
        return not fits_processor(
            subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        )

    def _kernel(self) -> Path | None:
        if self._needs_built:
            return find_kernel(BUILT_HZ, DEFAULT_KERNEL)
        found = shutil.which("linux.uml")
        return Path(found) if found else None

    def _remedy(self) -> str:
        if not self._needs_built:
            return "the program linux.uml is missing; run: sudo apt-get install user-mode-linux"
        reason = "Debian's User-Mode Linux before 6.13 runs no programs on a processor with AMX"
        return f"{reason}; run: tcpdelay testbed build-kernel --hz {BUILT_HZ}"

    def _arguments(self, plan: Plan | ProgramPlan) -> list[str]:
        return []

    def hz(self) -> int:
        """Return the tick of the guest's kernel."""
        return BUILT_HZ if self._needs_built else PREBUILT_HZ

    @property
    def label(self) -> str:
        """The tick of the guest's kernel."""
        return f"hz{self.hz()}"

    def kernel(self, directory: Path) -> str:
        """Return the guest's kernel release."""
        return (directory / "kernel").read_text(encoding="ascii")

    def run(self, plan: Plan | ProgramPlan, directory: Path, core: int, on_progress: OnProgress) -> None:
        """Boot a guest that runs the plan, and wait for its end."""
        kernel = self._kernel()
        if kernel is None:
            raise SessionFailedError(self._remedy())
        write_plan(plan, directory)
        guest = start_guest(kernel, directory, self._arguments(plan), core)
        try:
            self._wait(guest, plan, directory, on_progress)
        finally:
            stop_guest(guest)
        refused = directory / REFUSED
        if refused.exists():
            raise InvalidValueError(*json.loads(refused.read_text(encoding="utf-8")))
        error = directory / "error"
        if error.exists():
            raise SessionFailedError(f"the guest failed: {error.read_text(encoding='utf-8').strip().splitlines()[-1]}")
        if not plan.is_finished(directory):
            how = signal.Signals(-guest.returncode).name if guest.returncode < 0 else f"status {guest.returncode}"
            done = session_progress(directory)
            raise SessionFailedError(f"the guest ended with {how} at {done:.0%} of its run; {_console(directory)}")

    def _wait(
        self, guest: subprocess.Popen[bytes], plan: Plan | ProgramPlan, directory: Path, on_progress: OnProgress
    ) -> None:
        # The first progress is the end of the boot.
        allowed = plan.duration + GRACE if self.real_time else SILENCE
        done = 0.0
        deadline = time.monotonic() + allowed
        while guest.poll() is None:
            now = session_progress(directory)
            if now > done and not self.real_time:
                deadline = time.monotonic() + self.patience
            done = now
            on_progress(done)
            if time.monotonic() > deadline and done > 0 and not self.real_time:
                stood = f"virtual time stood still for {self.patience:g} s at {done:.0%} of the run"
                raise SessionFailedError(f"{stood}; a program computes for long, or waits without sleeping")
            if time.monotonic() > deadline:
                raise SessionFailedError(f"the guest was given up at {done:.0%} of its run; {_console(directory)}")
            time.sleep(POLL_INTERVAL)
        # A guest that a signal ended is told about by its caller, whether it had booted or not.
        if guest.returncode >= 0 and not (directory / "kernel").exists():
            raise SessionFailedError(f"the guest did not boot; {_console(directory)}")


class VirtualTimeBackend(UmlBackend):
    """A guest whose clock jumps to the next event whenever all its processes sleep.

    It is stopped after `patience` seconds without progress. If it `charges_work`, computation takes as long in virtual
    time as on this machine, and runs are not repeatable.
    """

    name: BackendName = "uml-virtual"
    real_time = False

    def __init__(
        self, hz: int, kernel: str = DEFAULT_KERNEL, *, patience: float = SILENCE, charges_work: bool = False
    ) -> None:
        check_version(kernel)
        self.patience = patience
        self._hz = hz
        self._version = kernel
        self._charges_work = charges_work

    def _kernel(self) -> Path | None:
        return find_kernel(self._hz, self._version)

    def _remedy(self) -> str:
        version, option = "", ""
        if self._version != DEFAULT_KERNEL:
            version, option = f" of Linux {self._version}", f" --kernel {self._version}"
        remedy = f"tcpdelay testbed build-kernel{option} --hz {self._hz}"
        return f"no kernel{version} with virtual time at {self._hz} Hz; run: {remedy}"

    @property
    def label(self) -> str:
        """The kernel's tick, and its version if that is not the default one."""
        return super().label if self._version == DEFAULT_KERNEL else f"{super().label}-linux{self._version}"

    def _arguments(self, plan: Plan | ProgramPlan) -> list[str]:
        # A seed of 0 would select the host's entropy.
        mode = "time-travel" if self._charges_work else "time-travel=inf-cpu"
        return [mode, f"time-travel-start={VIRTUAL_TIME_START}", f"rngseed={plan.seed + 1}"]

    def hz(self) -> int:
        """Return the kernel's tick."""
        return self._hz


Backend = HostBackend | UmlBackend
"""A kernel that can run sessions."""


def _console(directory: Path) -> str:
    text = (directory / CONSOLE).read_text(encoding="utf-8", errors="replace")
    # The pattern matches the control sequences of a terminal.
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).splitlines() if line.strip()]
    return "its console ends with: " + " | ".join(lines[-CONSOLE_TAIL:]) if lines else "its console is empty"


def kernel_refusal(error: Exception) -> str:
    """Return what the kernel refused, from an error of the system or of netlink: its number and its text."""
    reason = error.args[1] if len(error.args) > 1 else error
    return f"this kernel refuses a namespace with veth and netem ({reason}); the module sch_netem is often missing"


# The program that runs a session. As the first process of a guest, it mounts the file systems, and halts the guest at
# the end.

WORK_DIRECTORY = Path("/mnt")
DISCIPLINES = ("netem", "tbf", "codel", "fq_codel", "red", "pie", "cake", "dualpi2")
POLICER = ("sch_ingress", "cls_matchall", "act_police")
MODULES = (
    "drivers/net/veth",
    *(f"net/sched/sch_{discipline}" for discipline in DISCIPLINES),
    *(f"net/sched/{part}" for part in POLICER),
)
CONGESTION_CONTROLS = ("tcp_bbr", "tcp_vegas", "tcp_westwood", "tcp_dctcp")
TCP_MEMORY = "65536 131072 262144"
"""Memory of all TCP sockets [pages] (sysctl net.ipv4.tcp_mem): many flows exhaust the default of a small guest."""


def run_guest(shared: str) -> None:
    """Run the plan in a directory of the host, and halt the guest; `error` or `refused` there says why it failed."""
    try:
        mount("proc", "/proc", "proc")
        mount("sysfs", "/sys", "sysfs")
        mount("tmpfs", "/run", "tmpfs")
        mount("none", str(WORK_DIRECTORY), "hostfs", shared)
        try:
            _prepare_kernel()
            # Imported here, because the import reads /proc; both, so that all guests read the same files before a run.
            from tcpdelay.testbed import experiment_run, program_session  # noqa: F401

            run_plan(str(WORK_DIRECTORY))
        except InvalidValueError as error:
            setting = [error.name, error.value, error.allowed]
            (WORK_DIRECTORY / REFUSED).write_text(json.dumps(setting), encoding="utf-8")
        except BaseException:
            (WORK_DIRECTORY / "error").write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        power_off()


def _prepare_kernel() -> None:
    Path("/proc/sys/net/ipv4/tcp_mem").write_text(TCP_MEMORY, encoding="ascii")
    (WORK_DIRECTORY / "kernel").write_text(os.uname().release, encoding="ascii")
    modules = Path("/usr/lib/uml/modules", os.uname().release, "kernel")
    # A kernel without this directory, such as the kernel for virtual time, has no modules: everything is built in.
    for module in (*MODULES, *(f"net/ipv4/{control}" for control in CONGESTION_CONTROLS)):
        with suppress(FileNotFoundError):
            file = (modules / module).with_suffix(".ko").resolve(strict=True)
            subprocess.run(["/sbin/insmod", file], check=True, capture_output=True)


def _main(arguments: list[str]) -> int:
    """Run the session in a directory, as a guest or not; without a directory, test if the kernel supports sessions."""
    if arguments:
        run = run_guest if arguments[0] == "guest" else run_plan
        run(arguments[-1])
        return 0
    from pyroute2 import NetlinkError

    from tcpdelay.testbed.experiment import Experiment
    from tcpdelay.testbed.network import Network

    try:
        Network.build(Experiment(rtt=0.01)).close()
    except (OSError, NetlinkError) as error:
        print(kernel_refusal(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
