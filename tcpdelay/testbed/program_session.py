"""A session of programs in a guest: command lines on the hosts of a network, and what they leave behind."""

from __future__ import annotations

import json
import math
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
from tcpdelay.testbed.link import DuplexLink, Link
from tcpdelay.testbed.network import Network, Node, PacketTraces, kernel_counters
from tcpdelay.testbed.program_output import OutputFiles, Stream, read_available
from tcpdelay.testbed.topology import Program, Topology

PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRATCH = "scratch"
WRITABLE = Path("/run", SCRATCH)
"""Where programs may write: in the guest's memory, as sockets and locks do not work in the host's files."""
PACKETS = "packets"
RESULT = "result.json"
HEAD_START = 1.0
"""Time after which a program without a port is ready [s]."""
LISTEN_INTERVAL = 0.01
"""Time between two looks whether a program listens [s]."""
LISTENING = {"tcp": "0A", "udp": "07"}
"""States in /proc/net of a TCP socket that listens, and of a UDP socket that is bound (include/net/tcp_states.h)."""
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
    topology : Topology
        Programs, hosts and links.
    longest : float
        Longest time, from a second after the start [s].
    confinement : Confinement
        The user as whom the programs run.
    sysctls : dict
        Settings of the kernel at all hosts.
    environment : dict
        Further variables of the programs' environment.
    working_directory : str, optional
        Directory in which the programs start; by default the one in which they may write.
    linger : float, optional
        Time for the servers to end after the clients [s]; None: until the longest time is over.
    seed : int
        Seed of the guest's randomness, 0 or more.
    """

    file: ClassVar[str] = "programs.json"

    topology: Topology
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
        topology = content.pop("topology")
        links = [
            DuplexLink(**link | {way: Link.from_table(link[way]) for way in ("forward", "backward")})
            for link in topology.pop("links")
        ]
        programs = [Program(**program) for program in topology.pop("programs")]
        confinement = Confinement(**content.pop("confinement"))
        return cls(topology=Topology(programs, links, **topology), confinement=confinement, **content)

    def is_finished(self, directory: Path) -> bool:
        """Return whether the session in a directory has handed over its results."""
        return (directory / RESULT).exists()


def run_program_session(plan: ProgramPlan, directory: Path) -> None:
    """Run the programs of a plan in this guest, and hand over their results in a directory.

    The session ends when all programs have ended, some time after the clients have ended, or when the duration is over.
    """
    wake_exactly()
    _mount_devices()
    forbid_namespaces()
    WRITABLE.mkdir()
    mount("tmpfs", str(WRITABLE), "tmpfs", "mode=1777,size=80%")
    network = Network(plan.topology.links, SYSCTLS | plan.sysctls, traced=True, seed=plan.seed)
    _name_addresses(network.addresses)
    traces = PacketTraces(network, directory / PACKETS)
    programs = _Programs(plan, network, directory)
    (directory / "progress").write_text(f"{BEGUN:.6f}", encoding="ascii")
    statuses, ended = programs.watch_all()
    programs.stop()
    traces.stop()
    _hand_over_files(directory / SCRATCH)
    result = {
        "status": statuses,
        "ended": ended,
        "counters": {host: kernel_counters(network.nodes[host]) for host in network.addresses},
        "packets": network.packet_counts(),
        "addresses": network.addresses,
        "clients": [program.name for program in plan.topology.clients],
    }
    # Written last and atomically: without this file, the session counts as unfinished.
    unfinished = directory / f"{RESULT}.part"
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(directory / RESULT)
    network.close()


class _Programs:
    """The programs of a session, and what they write."""

    def __init__(self, plan: ProgramPlan, network: Network, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._hosts = {program.name: network.nodes[program.host] for program in plan.topology.programs}
        # All times count from here: a client without a port to wait for starts now.
        self._begin = time.monotonic() + HEAD_START
        self._waiting = list(plan.topology.programs)
        self._ready: dict[str, float] = {}
        self._clients = [program.name for program in plan.topology.clients]
        self._files = OutputFiles(directory)
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, float] = {}
        self._pipes: dict[int, tuple[str, Stream]] = {}
        self._deaths: dict[int, str] = {}
        self._poll = select.poll()
        scratch = str(WRITABLE)
        self._environment = {"PATH": PROGRAM_PATH, "HOME": scratch, "TMPDIR": scratch, "SCRATCH": scratch}
        self._environment |= {"LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", **plan.environment}
        for host, address in network.addresses.items():
            self._environment[f"{host.upper().replace('-', '_')}_ADDRESS"] = address

    def _start(self, program: Program) -> None:
        """Start a program on its host."""
        self._files.open(program.name)
        with self._hosts[program.name].entered():
            process = subprocess.Popen(
                self._plan.confinement.command([*LINE_BUFFERED, *program.command]),
                cwd=self._plan.working_directory or WRITABLE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=self._plan.confinement.hide(self._directory),
            )
        self._programs[program.name] = process
        if program.port is None:
            self._ready[program.name] = time.monotonic() + HEAD_START
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for stream in streams:
            pipe = getattr(process, stream)
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = (program.name, stream)
            self._poll.register(pipe, select.POLLIN)
        death = os.pidfd_open(process.pid)
        self._deaths[death] = program.name
        self._poll.register(death, select.POLLIN)

    def _start_due(self) -> float:
        """Start the programs whose time has come, and return the time at which to look again; infinite if all run."""
        now, again = time.monotonic(), math.inf
        for program in self._plan.topology.programs:
            if program.port is not None and program.name in self._programs and program.name not in self._ready:
                if program.name in self._ended or _listens(self._hosts[program.name], program.port):
                    self._ready[program.name] = now
                else:
                    again = min(again, now + LISTEN_INTERVAL)
        for program in list(self._waiting):
            if not all(other in self._ready for other in program.after):
                continue
            first = self._begin - HEAD_START
            due = max((self._ready[other] for other in program.after), default=first) + program.start
            if due <= now:
                self._waiting.remove(program)
                self._start(program)
                # Others may wait for this program.
                again = now
            else:
                again = min(again, due)
        return again

    def _watch(self, until: float) -> None:
        """Keep what the programs write, until a time on the monotonic clock or the end of a program."""
        while (left := until - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in self._poll.poll(1e3 * left)]
            for descriptor in ready:
                if descriptor in self._pipes:
                    self._keep(descriptor)
            gone = [descriptor for descriptor in ready if descriptor in self._deaths]
            for descriptor in gone:
                name = self._deaths.pop(descriptor)
                self._forget(descriptor)
                self._programs[name].wait()
                self._ended[name] = time.monotonic() - self._begin
            if gone:
                return

    def watch_all(self) -> tuple[dict[str, int | None], dict[str, float]]:
        """Run the programs until the session is over; return their statuses and the times of their ends."""
        longest, linger = self._plan.longest, self._plan.linger
        while self._waiting or len(self._ended) < len(self._programs):
            again = self._start_due()
            elapsed = time.monotonic() - self._begin
            if elapsed >= longest:
                break
            (self._directory / "progress").write_text(f"{max(elapsed / longest, BEGUN):.6f}", encoding="ascii")
            stop = longest
            if linger is not None and all(client in self._ended for client in self._clients):
                stop = min(longest, max(self._ended[client] for client in self._clients) + linger)
                if elapsed >= stop:
                    break
            self._watch(until=min(again, self._begin + min(elapsed + PROGRESS_INTERVAL, stop)))
        names = [program.name for program in self._plan.topology.programs]
        return {name: self._programs[name].poll() if name in self._programs else None for name in names}, self._ended

    def stop(self) -> None:
        """End the programs and all that they have started, and keep the rest of what they have written."""
        deadline = time.monotonic() + GRACE
        for program in self._programs.values():
            _signal_group(program, signal.SIGTERM)
        while (now := time.monotonic()) < deadline and len(self._ended) < len(self._programs):
            self._watch(until=min(now + POLL_INTERVAL, deadline))
        for program in self._programs.values():
            _signal_group(program, signal.SIGKILL)
        if self._plan.confinement.user:
            # Some may have left the group of the program that started them.
            subprocess.run(self._plan.confinement.command(["/bin/sh", "-c", "kill -KILL -- -1"]), check=False)
        for program in self._programs.values():
            program.wait()
        for descriptor in list(self._pipes):
            self._keep(descriptor)
        self._files.close(time.monotonic() - self._begin)

    def _keep(self, descriptor: int) -> None:
        end, stream = self._pipes[descriptor]
        while data := read_available(descriptor):
            self._files.add(time.monotonic() - self._begin, end, stream, data)
        if data is not None:
            del self._pipes[descriptor]
            self._poll.unregister(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _listens(host: Node, port: int) -> bool:
    """Return whether a socket of a host listens on a TCP port, or is bound to a UDP port."""
    with host.entered():
        for protocol, state in LISTENING.items():
            sockets = Path("/proc/thread-self/net", protocol).read_text(encoding="ascii").splitlines()[1:]
            for local, found in ((words[1], words[3]) for words in map(str.split, sockets)):
                if found == state and int(local.partition(":")[2], 16) == port:
                    return True
    return False


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


def _name_addresses(addresses: dict[str, str]) -> None:
    """Let programs find the hosts by their names."""
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
