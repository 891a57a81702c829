"""Runs of unmodified programs over emulated paths, and their packet traces as pcapng files."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpkt import pcapng

from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.declare import InvalidValueError, documented, meaning
from tcpdelay.testbed.backends import UmlBackend
from tcpdelay.testbed.network import ECN, SNAP_LENGTH
from tcpdelay.testbed.program_session import (
    LINES,
    PACKETS,
    PROGRAM_PATH,
    RESULT,
    SCRATCH,
    Confinement,
    FileCopies,
    Line,
    LineReader,
    ProgramPlan,
)
from tcpdelay.testbed.topology import CLIENT, SERVER, EmulatedPath, Topology, two_hosts
from tcpdelay.testbed.workplaces import workplace

# Packet traces of the testbed as pcapng files: tcpdump writes pcap only.

ETHERNET = 1
"""Type of the link layer (LINKTYPE_ETHERNET of libpcap)."""
NANOSECONDS = b"\x09"
"""Unit of the times: 10^-9 s (pcapng, if_tsresol)."""


def write_pcapng(trace: Path, file: Path, interface: str, system: str) -> None:
    """Write a packet trace as a pcapng file, with times in nanoseconds (draft-ietf-opsawg-pcapng, section 4)."""
    section = pcapng.SectionHeaderBlockLE(opts=_options({pcapng.PCAPNG_OPT_SHB_OS: system.encode()}))
    named = {pcapng.PCAPNG_OPT_IF_NAME: interface.encode(), pcapng.PCAPNG_OPT_IF_TSRESOL: NANOSECONDS}
    device = pcapng.InterfaceDescriptionBlockLE(linktype=ETHERNET, snaplen=SNAP_LENGTH, opts=_options(named))
    head = struct.Struct("<7I")
    with file.open("wb") as out:
        out.write(bytes(section) + bytes(device))
        for packet in CaptureFile(trace):
            captured = len(packet.data)
            padding = -captured % 4
            size = head.size + captured + padding + 4
            # dpkt would write the captured length as the length on the wire.
            out.write(
                head.pack(pcapng.PCAPNG_BT_EPB, size, 0, *divmod(packet.time, 2**32), captured, packet.wire_length)
            )
            out.write(packet.data + bytes(padding) + size.to_bytes(4, "little"))


def _options(values: dict[int, bytes]) -> list[pcapng.PcapngOptionLE]:
    given = [pcapng.PcapngOptionLE(code=code, data=data) for code, data in values.items()]
    return [*given, pcapng.PcapngOptionLE(code=pcapng.PCAPNG_OPT_ENDOFOPT)]


# Runs of unmodified programs over emulated paths, in a User-Mode Linux guest.

SHORTEST, LONGEST = 0.1, 86_400.0
"""Bounds of the duration of a run [s]."""
CONGESTION_CONTROL = "net.ipv4.tcp_congestion_control"


@documented()
class ProgramRun:
    """What a run of programs left behind."""

    directory: Path = meaning(
        "Directory with the results: `NAME.stdout` and `NAME.stderr` of each program, `HOST.pcapng` of each host, the "
        "lines of all output with their times in `output.jsonl`, the directory `scratch`, into which all programs "
        'wrote, and `result.json`. In a run of two programs, "client" and "server" are the programs and the hosts.'
    )
    status: dict[str, int | None] = meaning(
        "Exit status of each program by name; negative: the number of the signal that ended it; None: it still ran at "
        "the end of the duration, or had not started."
    )
    ended: dict[str, float] = meaning(
        "Time at which a program ended, since the start of the client [s]; without programs that did not end."
    )
    counters: dict[str, dict[str, int]] = meaning(
        "The kernel's TCP counters at each host that are not zero, as in `nstat`."
    )
    packets: dict[str, int] = meaning(
        'Numbers of packets that each queue has sent, dropped and marked, by names such as "data_dropped": "data" and '
        '"bottleneck" are on the way from the client to the server, "ack" and "bottleneck_back" on the way back. In a '
        'topology, the name of the link is in front, such as "laptop-router_data_dropped".'
    )
    addresses: dict[str, str] = meaning("Address of each host.", default_factory=dict)
    clients: list[str] = meaning("The programs for which no other waited.", default_factory=lambda: [CLIENT])
    left_out: list[str] = meaning(
        "Files of the programs that could not be copied, each with the reason; `scratch` lacks them.",
        default_factory=list,
    )

    @property
    def traces(self) -> tuple[Path, ...]:
        """The packet traces of all hosts, in the format pcapng: first the client's, then the server's."""
        return tuple(self.trace(host) for host in self.addresses)

    def trace(self, host: str) -> Path:
        """Return the packet trace of a host, in the format pcapng."""
        return self.directory / f"{host}.pcapng"

    def output(self, program: str) -> str:
        """Return what a program has written to its standard output."""
        return (self.directory / f"{program}.stdout").read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[Line]:
        """Return the lines that all programs have written, with their times."""
        return list(LineReader(self.directory).new())


def run_programs(
    client: Sequence[str],
    server: Sequence[str],
    path: EmulatedPath,
    directory: Path,
    backend: UmlBackend,
    **settings: Any,
) -> ProgramRun:
    """Run two programs of this machine in a guest, at the two ends of an emulated path, and trace the packets.

    The server starts a second before the client. The names of the hosts are `client` and `server`.

    Parameters
    ----------
    client, server : sequence of str
        Command lines: the program, then its arguments. `["sh", "-c", "..."]` runs several programs at one end.
    path : EmulatedPath
        Round-trip time, losses, rate and queue.
    directory, backend, **settings
        The arguments of `run_topology`.

    Returns
    -------
    ProgramRun
        The results; a program that failed is no error.

    Raises
    ------
    ValueError, SessionFailedError
        As `run_topology`.
    """
    for name, command in ((CLIENT, client), (SERVER, server)):
        if isinstance(command, str):
            raise InvalidValueError(name, command, "begin with a program, in a list of words")
    return run_topology(two_hosts(client, server, path), directory, backend, **settings)


def run_topology(
    topology: Topology,
    directory: Path,
    backend: UmlBackend,
    *,
    duration: float = 60.0,
    seed: int = 0,
    congestion_control: str = "cubic",
    sysctls: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    working_directory: Path | None = None,
    linger: float | None = None,
    trusted: bool = False,
    on_progress: Callable[[float], None] = lambda share: None,
    on_line: Callable[[Line], None] = lambda line: None,
) -> ProgramRun:
    """Run programs of this machine in a guest, on the hosts of a topology, and trace the packets.

    The run ends when all programs have ended, or when the duration is over; programs that still run then get SIGTERM,
    and SIGKILL five seconds later. All times count from a second after the start of the first program.

    In the guest, the programs find the hosts by their names, or in variables of their environment such as
    `SERVER_ADDRESS`. They see this machine's files, but cannot change them. They may write
    into one directory in the memory of the guest: `SCRATCH` in their environment, which is also their home and their
    directory for temporary files. They have no privileges in the guest, and no network to the outside.

    Parameters
    ----------
    topology : Topology
        Programs, hosts and links; `read_topology` reads one from a TOML file.
    directory : Path
        Directory for the results; it must be new or empty.
    backend : UmlBackend
        The guest: `VirtualTimeBackend(250)` for virtual time, `UmlBackend()` for real time.
    duration : float
        Longest time [s], 0.1 to 86 400.
    seed : int
        Seed of the losses, jitter and reordering of the links, and of all other randomness of a guest in virtual time;
        0 or more.
    congestion_control : str
        Default congestion control of all hosts: reno, cubic, bbr, vegas or westwood.
    sysctls : mapping, optional
        Further settings of the kernel at all hosts, such as `{"net.ipv4.tcp_sack": "0"}`.
    environment : mapping, optional
        Further variables of the environment of the programs.
    working_directory : Path, optional
        Directory in which the programs start; by default the one into which they may write.
    linger : float, optional
        Time that the servers have to end when all clients have ended [s]; by default, the rest of the duration.
    trusted : bool
        Whether the programs are the root of the guest, for example to change addresses and queues. They could then
        write to this machine's files.
    on_progress : callable
        Called a few times a second with the share of the duration that is over, 0 to 1.
    on_line : callable
        Called with each line that a program writes, while the programs run.

    Returns
    -------
    ProgramRun
        The results; a program that failed is no error.

    Raises
    ------
    ValueError
        If a program does not exist, the directory is not empty, or the backend does not work here.
    SessionFailedError
        If the guest did not finish, for example because a program waited busily, which stops virtual time.
    OSError
        If a result cannot be written, for example because the disk is full; it names the file, and no result is kept.
    """
    search = dict(environment or {}).get("PATH", PROGRAM_PATH)
    for program in topology.programs:
        if not program.command or shutil.which(program.command[0], path=search) is None:
            raise InvalidValueError(program.name, program.command, f"begin with a program, by its path or in {search}")
    if not SHORTEST <= duration <= LONGEST:
        raise InvalidValueError("duration", duration, f"lie between {SHORTEST:g} and {LONGEST:g} s")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidValueError("directory", str(directory), "be a new or an empty directory")
    for problem in backend.problems():
        raise ValueError(f"backend {backend.name!r} does not work here: {problem}")
    defaults = {CONGESTION_CONTROL: congestion_control, **({ECN: "1"} if topology.ecn else {})}
    plan = ProgramPlan(
        topology,
        duration,
        Confinement.none() if trusted else Confinement.of_caller(),
        {**defaults, **(sysctls or {})},
        dict(environment or {}),
        None if working_directory is None else str(working_directory.resolve()),
        linger,
        seed,
    )
    # A guest uses one processor. Processes that run side by side mostly get different ones.
    cores = sorted(os.sched_getaffinity(0))
    core = cores[os.getpid() % len(cores)]
    with workplace() as place:
        lines = LineReader(place)

        def follow(share: float) -> None:
            for line in lines.new():
                on_line(line)
            on_progress(share)

        with _results_in(directory):
            try:
                backend.run(plan, place, core, follow)
            finally:
                follow(1.0)
            hand_over(topology, place, directory, f"Linux {backend.kernel(place)}, {backend.hz()} Hz")
    return read_program_run(directory)


@contextmanager
def _results_in(directory: Path) -> Iterator[None]:
    """Make a directory for results before the work, and leave it without results if the work fails."""
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if made:
            with suppress(OSError):
                directory.rmdir()
        raise


def hand_over(topology: Topology, place: Path, directory: Path, kernel: str) -> None:
    """Move the results of a session into the directory of a run."""
    for host in dict.fromkeys(program.host for program in topology.programs):
        trace = directory / f"{host}.pcapng"
        with _naming(trace):
            write_pcapng(place / f"{PACKETS}.{host}.pcap", trace, host, kernel)
    outputs = [f"{program.name}.{stream}" for program in topology.programs for stream in ("stdout", "stderr")]
    for left in (*outputs, LINES, SCRATCH, RESULT):
        # A program that never started has written nothing.
        if (place / left).exists():
            with _naming(directory / left):
                # Another file system takes copies.
                shutil.move(place / left, directory / left, copy_function=FileCopies())


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name a file, or the file below this folder, in an error of the system that says nothing or the source."""
    try:
        yield
    except shutil.Error as error:
        # Errors in a folder are triples of the source, the file and the text of the system's error.
        _, copied, text = error.args[0][0]
        number = re.match(r"\[Errno (\d+)\]", text)
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), copied) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def read_program_run(directory: Path) -> ProgramRun:
    """Return the run whose results are in a directory."""
    content = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    return ProgramRun(directory, **content)
