"""A session of confined programs in a guest: command lines on the hosts of a network, and their output."""

from __future__ import annotations

import errno
import json
import math
import os
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from tcpdelay.testbed.event_loop import MS_BIND, moment_of, mount, sleep_until, unmount, unshare_mounts, wake_exactly
from tcpdelay.testbed.network import Network, Node, PacketTraces, kernel_counters
from tcpdelay.testbed.topology import Program, Topology

# Programs in a guest that cannot write to the host's files: no privileges, and no way to the session's directory.
#
# The guest sees the host's files through a mount whose superblock is read-only. Only the root of the guest could mount
# them writable. The programs are an ordinary user there, for good.

NOBODY = 65534
"""User and group without rights (`nobody` and `nogroup` in Debian)."""
SYSCTLS = {
    # A server on port 80 needs no root then, and neither does ping.
    "net.ipv4.ip_unprivileged_port_start": "0",
    "net.ipv4.ping_group_range": "0 2147483647",
}
NO_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


@dataclass(frozen=True)
class Confinement:
    """The user as whom programs run in a guest."""

    # user, group: Numbers of the user and of the group; 0: the programs are trusted, and keep all rights in the
    # guest.
    user: int
    group: int
    groups: list[int]  # Further groups
    # Whether the programs may read all files that the guest may read. The files of the host's root belong to the
    # guest's root, whose rights the programs do not have.
    reads_all: bool

    @classmethod
    def of_caller(cls) -> Confinement:
        """Return the user of this process; for root, a user who may read what root may read, and nothing else."""
        if os.getuid() == 0:
            return cls(NOBODY, NOBODY, [], reads_all=True)
        return cls(os.getuid(), os.getgid() or NOBODY, [group for group in os.getgroups() if group], reads_all=False)

    @classmethod
    def none(cls) -> Confinement:
        """Return the root of the guest, for programs that change their network and that their user trusts."""
        return cls(0, 0, [], reads_all=True)

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command line that runs a program as this user, without a way to gain privileges."""
        if self.user == 0:
            return list(program)
        kept = ",+dac_read_search" if self.reads_all else ""
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        capabilities = [f"--{kind}=-all{kept}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
        user = [f"--reuid={self.user}", f"--regid={self.group}", groups]
        return ["/usr/bin/setpriv", *user, *capabilities, "--no-new-privs", "--", *program]

    def hide(self, directory: Path) -> Callable[[], None]:
        """Return a function that takes a mounted directory out of the sight of this process and of its children."""

        def hidden() -> None:
            unshare_mounts()
            unmount(str(directory))

        return hidden


def forbid_namespaces() -> None:
    """Let nobody in this guest be root in a namespace of users, which would reach more of the kernel."""
    if NO_NAMESPACES.exists():
        NO_NAMESPACES.write_text("0", encoding="ascii")


# The output of programs: kept byte by byte, and line by line with the time at which each line was written.

Stream = Literal["stdout", "stderr"]

LINES = "output.jsonl"
PIECE = 65536


@dataclass(frozen=True)
class Line:
    """One line that a program has written."""

    time: float  # Time since the start of the client [s]; negative for a server that writes before
    end: str  # Name of the program: "client" or "server" in a run of two programs
    stream: Stream  # Where it has written
    text: str  # The line, without its end


class OutputFiles:
    """Keeps what programs write in a directory: a file for each stream, and one file with the lines of all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lines = (directory / LINES).open("w", encoding="utf-8")
        self._streams: dict[tuple[str, Stream], BinaryIO] = {}
        self._begun: dict[tuple[str, Stream], bytes] = {}

    def open(self, end: str) -> None:
        """Make the files of a program."""
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for stream in streams:
            self._streams[end, stream] = (self._directory / f"{end}.{stream}").open("wb", buffering=0)
            self._begun[end, stream] = b""

    def add(self, time: float, end: str, stream: Stream, data: bytes) -> None:
        """Keep what a program has written; `time` is that of the lines that end here."""
        self._streams[end, stream].write(data)
        # A progress display ends its lines with a carriage return.
        *whole, begun = (self._begun[end, stream] + data).replace(b"\r", b"\n").split(b"\n")
        if len(begun) > PIECE:
            whole, begun = [*whole, begun], b""
        self._begun[end, stream] = begun
        self._write(time, end, stream, whole)

    def close(self, time: float) -> None:
        """Keep the last lines, which may lack an end, and close the files."""
        for (end, stream), begun in self._begun.items():
            self._write(time, end, stream, [begun])
        self._lines.close()
        for file in self._streams.values():
            file.close()

    def _write(self, time: float, end: str, stream: Stream, lines: list[bytes]) -> None:
        for text in filter(None, lines):
            row = [round(time, 6), end, stream, text.decode(errors="replace")]
            self._lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._lines.flush()


class LineReader:
    """Reads the lines of a run in a directory while they are written."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / LINES
        self._position = 0

    def new(self) -> Iterator[Line]:
        """Yield the lines that have been written since the last call."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._position)
            for row in file:
                # The guest may be in the middle of a line.
                if row.endswith(b"\n"):
                    self._position += len(row)
                    yield Line(*json.loads(row))


def read_available(descriptor: int) -> bytes | None:
    """Return what can be read at once from a pipe that does not block; empty at its end, None if nothing is there."""
    try:
        return os.read(descriptor, PIECE)
    except BlockingIOError:
        return None


# A session of programs in a guest: command lines on the hosts of a network, and what they leave behind.

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
COPY_SIZE = 1 << 20
"""Bytes that are copied at once."""


@dataclass(frozen=True)
class ProgramPlan:
    """The plan of a session of programs."""

    topology: Topology  # Programs, hosts and links
    longest: float  # Longest time, from a second after the start [s]
    confinement: Confinement  # The user as whom the programs run
    sysctls: dict[str, str] = field(default_factory=dict)  # Settings of the kernel at all hosts
    environment: dict[str, str] = field(default_factory=dict)  # Further variables of the programs' environment
    # Directory in which the programs start; by default the one in which they may write.
    working_directory: str | None = None
    # Time for the servers to end after the clients [s]; None: until the longest time is over.
    linger: float | None = None
    seed: int = 0  # Seed of the guest's randomness, 0 or more

    @property
    def duration(self) -> float:
        """Longest time of the session [s]."""
        return HEAD_START + self.longest + GRACE

    def run(self, directory: Path) -> None:
        """Run the session in this guest, and hand over its results in a directory."""
        run_program_session(self, directory)

    def is_finished(self, directory: Path) -> bool:
        """Return whether the session in a directory has handed over its results."""
        return (directory / RESULT).exists()


def run_program_session(plan: ProgramPlan, directory: Path) -> None:
    """Run the programs of a plan in this guest."""
    wake_exactly()
    _mount_devices()
    forbid_namespaces()
    WRITABLE.mkdir()
    mount("tmpfs", str(WRITABLE), "tmpfs", "mode=1777,size=80%")
    network = Network(plan.topology.links, SYSCTLS | plan.sysctls, seed=plan.seed)
    _name_addresses(network.addresses)
    traces = PacketTraces(network, directory / PACKETS)
    sleep_until(moment_of(plan.seed, time.monotonic_ns()))
    programs = _Programs(plan, network, directory)
    (directory / "progress").write_text(f"{BEGUN:.6f}", encoding="ascii")
    statuses, ended = programs.watch_all()
    programs.stop()
    traces.stop()
    # The patience with a standstill begins anew: the files may be hundreds of megabytes.
    (directory / "progress").write_text("1", encoding="ascii")
    left_out = hand_over_files(WRITABLE, directory / SCRATCH)
    result = {
        "status": statuses,
        "ended": ended,
        "counters": {host: kernel_counters(network.nodes[host]) for host in network.addresses},
        "packets": network.packet_counts(),
        "addresses": network.addresses,
        "clients": [program.name for program in plan.topology.clients],
        "left_out": left_out,
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


class FileCopies:
    """Copies files one after the other, as `shutil.copyfile`, but fills no holes and repeats no hard links.

    A program may leave a file of terabytes, or thousands of names of one file, in a few kilobytes.
    """

    def __init__(self) -> None:
        self._copied: dict[tuple[int, int], str] = {}

    def __call__(self, source: str, target: str) -> str:
        """Copy a file, and return the target."""
        with Path(source).open("rb") as read:
            status = os.fstat(read.fileno())
            first = self._copied.setdefault((status.st_dev, status.st_ino), target)
            if first != target:
                os.link(first, target)
                return target
            with Path(target).open("wb") as written:
                try:
                    # Fails at once if this system has no files of this size.
                    written.truncate(status.st_size)
                    for begin, end in _stretches_of_data(read.fileno(), status.st_size):
                        read.seek(begin)
                        written.seek(begin)
                        while begin < end and (data := read.read(min(end - begin, COPY_SIZE))):
                            begin += written.write(data)
                    written.flush()
                except OSError:
                    del self._copied[status.st_dev, status.st_ino]
                    Path(target).unlink()
                    raise
        return target


def _stretches_of_data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what is no hole in a file."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            # The rest is a hole.
            return
        end = os.lseek(file, begin, os.SEEK_HOLE)
        yield begin, end


def hand_over_files(source: Path, target: Path) -> list[str]:
    """Copy what programs have left in a directory, except sockets and the like; return what could not be copied."""

    def special(folder: str, names: list[str]) -> list[str]:
        kinds = {name: (Path(folder) / name).lstat().st_mode for name in names}
        return [
            name for name, mode in kinds.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
        ]

    left_out = []
    try:
        shutil.copytree(source, target, symlinks=True, ignore=special, copy_function=FileCopies())
    except shutil.Error as error:
        left_out = [f"{Path(file).relative_to(source)}: {reason}" for file, _, reason in error.args[0]]
    # Directories within directories may be deeper than Python copies.
    except RecursionError:
        left_out = ["directories within more than some hundred others"]
    # The directory was open to all users of the guest.
    target.chmod(0o755)
    return left_out


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
