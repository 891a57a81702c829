"""A session of programs in a guest: two command lines at the two ends of a network, and what they leave behind."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import stat
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tcpdelay.testbed.confinement import SYSCTLS, Confinement, forbid_namespaces
from tcpdelay.testbed.event_loop import MS_BIND, mount, wake_exactly
from tcpdelay.testbed.link import Link
from tcpdelay.testbed.network import Network, PacketTraces, kernel_counters
from tcpdelay.testbed.program_output import End, OutputFiles, Stream, read_available

PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRATCH = "scratch"
WRITABLE = Path("/run", SCRATCH)
"""Where programs may write: in the guest's memory, as sockets and locks do not work in the host's files."""
PACKETS = "packets"
RESULT = "result.json"
HEAD_START = 1.0
"""Time from the start of the server to the start of the client [s]."""
GRACE = 5.0
"""Time between SIGTERM and SIGKILL at the end of a session [s]."""
POLL_INTERVAL = 0.1
PROGRESS_INTERVAL = 1.0
"""Time between two reports of progress [s]. Each report ends a sleep of the guest."""
BEGUN = 1e-6
"""Finished share of a session whose programs are about to start."""
LINE_BUFFERED = ("/usr/bin/stdbuf", "-oL")
"""Makes programs that use the C library write each line at once, as on a terminal."""
HOSTS = Path("/etc/hosts")


@dataclass(frozen=True)
class ProgramPlan:
    """The plan of a session of programs.

    Attributes
    ----------
    client, server : list of str
        The command lines.
    forward, backward : Link
        The way from the client to the server, and the way back.
    longest : float
        Longest time from the start of the client [s].
    confinement : Confinement
        The user as whom the programs run.
    sysctls : dict
        Settings of the kernel at both ends.
    environment : dict
        Further variables of the programs' environment.
    working_directory : str, optional
        Directory in which the programs start; by default the one in which they may write.
    linger : float, optional
        Time for the server to end after the client [s]; None: until the longest time is over.
    seed : int
        Seed of the guest's randomness, 0 or more.
    """

    file: ClassVar[str] = "programs.json"

    client: list[str]
    server: list[str]
    forward: Link
    backward: Link
    longest: float
    confinement: Confinement
    sysctls: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    working_directory: str | None = None
    linger: float | None = None
    seed: int = 0

    @property
    def duration(self) -> float:
        """Longest time of the session [s]."""
        return HEAD_START + self.longest + GRACE

    def write(self, file: Path) -> None:
        """Write the plan to a file."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> ProgramPlan:
        """Return the plan in a file that `write` has written."""
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        parts = {"forward": Link, "backward": Link, "confinement": Confinement}
        return cls(**content | {name: part(**content[name]) for name, part in parts.items()})

    def is_finished(self, directory: Path) -> bool:
        """Return whether the session in a directory has handed over its results."""
        return (directory / RESULT).exists()


def run_program_session(plan: ProgramPlan, directory: Path) -> None:
    """Run the programs of a plan in this guest, and hand over their results in a directory.

    The session ends when both programs have ended, some time after the client has ended, or when the duration is over.
    """
    wake_exactly()
    _mount_devices()
    forbid_namespaces()
    WRITABLE.mkdir()
    mount("tmpfs", str(WRITABLE), "tmpfs", "mode=1777,size=80%")
    network = Network.join(plan.forward, plan.backward, SYSCTLS | plan.sysctls, traced=True)
    _name_addresses({"client": network.sender_address, "server": network.receiver_address})
    traces = PacketTraces(network, directory / PACKETS)
    programs = _Programs(plan, network, directory)
    (directory / "progress").write_text(f"{BEGUN:.6f}", encoding="ascii")
    programs.start("server", plan.server)
    programs.watch(until=programs.begin)
    programs.start("client", plan.client)
    statuses, ended = programs.watch_all()
    programs.stop()
    traces.stop()
    counters = {end: kernel_counters(node) for end, node in programs.ends.items()}
    _hand_over_files(directory / SCRATCH)
    result = {"status": statuses, "ended": ended, "counters": counters, "packets": network.packet_counts()}
    # Written last and atomically: without this file, the session counts as unfinished.
    unfinished = directory / f"{RESULT}.part"
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(directory / RESULT)
    network.close()


class _Programs:
    """The programs of a session, and what they write.

    Attributes
    ----------
    ends : dict
        The namespaces of the programs.
    begin : float
        Start of the client, on the monotonic clock [s].
    """

    def __init__(self, plan: ProgramPlan, network: Network, directory: Path) -> None:
        self.ends = {"client": network.sender, "server": network.receiver}
        self.begin = time.monotonic() + HEAD_START
        self._plan = plan
        self._directory = directory
        self._files = OutputFiles(directory)
        self._programs: dict[End, subprocess.Popen[bytes]] = {}
        self._ended: dict[End, float] = {}
        self._pipes: dict[int, tuple[End, Stream]] = {}
        self._deaths: dict[int, End] = {}
        self._poll = select.poll()
        scratch = str(WRITABLE)
        self._environment = {"PATH": PROGRAM_PATH, "HOME": scratch, "TMPDIR": scratch, "SCRATCH": scratch}
        self._environment |= {"LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", **plan.environment}
        self._environment |= {"CLIENT_ADDRESS": network.sender_address, "SERVER_ADDRESS": network.receiver_address}

    def start(self, end: End, command: list[str]) -> None:
        """Start a program at one end."""
        self._files.open(end)
        with self.ends[end].entered():
            program = subprocess.Popen(
                self._plan.confinement.command([*LINE_BUFFERED, *command]),
                cwd=self._plan.working_directory or WRITABLE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=self._plan.confinement.hide(self._directory),
            )
        self._programs[end] = program
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for stream in streams:
            pipe = getattr(program, stream)
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = (end, stream)
            self._poll.register(pipe, select.POLLIN)
        death = os.pidfd_open(program.pid)
        self._deaths[death] = end
        self._poll.register(death, select.POLLIN)

    def watch(self, until: float) -> None:
        """Keep what the programs write, until a time on the monotonic clock or the end of a program."""
        while (left := until - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in self._poll.poll(1e3 * left)]
            for descriptor in ready:
                if descriptor in self._pipes:
                    self._keep(descriptor)
            gone = [descriptor for descriptor in ready if descriptor in self._deaths]
            for descriptor in gone:
                end = self._deaths.pop(descriptor)
                self._forget(descriptor)
                self._programs[end].wait()
                self._ended[end] = time.monotonic() - self.begin
            if gone and time.monotonic() >= self.begin:
                return

    def watch_all(self) -> tuple[dict[End, int | None], dict[End, float]]:
        """Keep what the programs write until the session is over; return their statuses and the times of their ends."""
        longest = self._plan.longest
        while len(self._ended) < len(self._programs) and (elapsed := time.monotonic() - self.begin) < longest:
            (self._directory / "progress").write_text(f"{elapsed / longest:.6f}", encoding="ascii")
            stop = longest
            if "client" in self._ended and self._plan.linger is not None:
                stop = min(longest, self._ended["client"] + self._plan.linger)
                if elapsed >= stop:
                    break
            self.watch(until=self.begin + min(elapsed + PROGRESS_INTERVAL, stop))
        return {end: program.poll() for end, program in self._programs.items()}, self._ended

    def stop(self) -> None:
        """End the programs and all that they have started, and keep the rest of what they have written."""
        deadline = time.monotonic() + GRACE
        for program in self._programs.values():
            _signal_group(program, signal.SIGTERM)
        while (now := time.monotonic()) < deadline and len(self._ended) < len(self._programs):
            self.watch(until=min(now + POLL_INTERVAL, deadline))
        for program in self._programs.values():
            _signal_group(program, signal.SIGKILL)
        if self._plan.confinement.user:
            # Some may have left the group of the program that started them.
            subprocess.run(self._plan.confinement.command(["/bin/sh", "-c", "kill -KILL -- -1"]), check=False)
        for program in self._programs.values():
            program.wait()
        for descriptor in list(self._pipes):
            self._keep(descriptor)
        self._files.close(time.monotonic() - self.begin)

    def _keep(self, descriptor: int) -> None:
        end, stream = self._pipes[descriptor]
        while data := read_available(descriptor):
            self._files.add(time.monotonic() - self.begin, end, stream, data)
        if data is not None:
            del self._pipes[descriptor]
            self._poll.unregister(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _hand_over_files(directory: Path) -> None:
    """Copy what the programs have left in their directory, except sockets and the like."""

    def special(folder: str, names: list[str]) -> list[str]:
        kinds = {name: (Path(folder) / name).lstat().st_mode for name in names}
        return [
            name for name, mode in kinds.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
        ]

    shutil.copytree(WRITABLE, directory, symlinks=True, ignore=special, copy_function=shutil.copyfile)
    # The directory was open to all users of the guest.
    directory.chmod(0o755)


def _mount_devices() -> None:
    """Mount the guest's own devices, terminals and shared memory over those of the host."""
    # Debian's guest has mounted them at its boot (CONFIG_DEVTMPFS_MOUNT).
    if not os.path.ismount("/dev"):
        mount("devtmpfs", "/dev", "devtmpfs")
    for directory, kind in (("pts", "devpts"), ("shm", "tmpfs")):
        place = Path("/dev", directory)
        place.mkdir(exist_ok=True)
        mount(kind, str(place), kind)


def _name_addresses(addresses: dict[End, str]) -> None:
    """Let programs find the ends by the names `client` and `server`."""
    if HOSTS.exists():
        file = Path("/run/hosts")
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        file.write_text("\n".join(lines) + "\n", encoding="ascii")
        mount(str(file), str(HOSTS), "none", flags=MS_BIND)


def _signal_group(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        return
