"""Runs of unmodified programs over an emulated path, in a User-Mode Linux guest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.testbed.backends import UmlBackend
from tcpdelay.testbed.confinement import Confinement
from tcpdelay.testbed.emulated_path import EmulatedPath
from tcpdelay.testbed.packet_files import write_pcapng
from tcpdelay.testbed.program_output import LINES, End, Line, LineReader
from tcpdelay.testbed.program_session import PACKETS, PROGRAM_PATH, RESULT, SCRATCH, ProgramPlan
from tcpdelay.testbed.workplaces import workplace

SHORTEST, LONGEST = 0.1, 86_400.0
"""Bounds of the duration of a run [s]."""
ECN = "net.ipv4.tcp_ecn"
_TRACED: dict[End, str] = {"client": "sender", "server": "receiver"}
_PREPARED = ("client.stdout", "client.stderr", "server.stdout", "server.stderr", LINES, SCRATCH, RESULT)


@dataclass(frozen=True)
class ProgramRun:
    """What a run of two programs left behind.

    Attributes
    ----------
    directory : Path
        Directory with the results: `client.stdout`, `client.stderr` and `client.pcapng`, the same three files of the
        server, the lines of all output with their times in `output.jsonl`, the directory `scratch`, into which both
        programs wrote, and `result.json`.
    status : dict
        Exit status of the program at either end, "client" and "server"; negative: the number of the signal that ended
        it; None: it still ran at the end of the duration.
    ended : dict
        Time since the start of the client at which a program ended [s]; without programs that did not end.
    counters : dict
        The kernel's TCP counters at either end that are not zero, as in `nstat`.
    packets : dict
        Numbers of packets that each queue has sent and dropped, by names such as "data_dropped": "data" and
        "bottleneck" are on the way from the client to the server, "ack" and "bottleneck_back" on the way back.
    """

    directory: Path
    status: dict[End, int | None]
    ended: dict[End, float]
    counters: dict[End, dict[str, int]]
    packets: dict[str, int]

    @property
    def traces(self) -> tuple[Path, Path]:
        """The packet traces of the client and of the server, in the format pcapng."""
        return self.directory / "client.pcapng", self.directory / "server.pcapng"

    def output(self, end: End) -> str:
        """Return what the program at one end has written to its standard output."""
        return (self.directory / f"{end}.stdout").read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[Line]:
        """Return the lines that both programs have written, with their times."""
        return list(LineReader(self.directory).new())


def run_programs(
    client: Sequence[str],
    server: Sequence[str],
    path: EmulatedPath,
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
    """Run two programs of this machine in a guest, at the two ends of an emulated path, and trace the packets.

    The server starts a second before the client. The run ends when both programs have ended, or when the duration is
    over; programs that still run then get SIGTERM, and SIGKILL five seconds later.

    In the guest, the programs find the ends by the names `client` and `server`, or in the variables `CLIENT_ADDRESS`
    and `SERVER_ADDRESS` of their environment. They see this machine's files, but cannot change them. They may write
    into one directory in the memory of the guest: `SCRATCH` in their environment, which is also their home and their
    directory for temporary files. They have no privileges in the guest, and no network to the outside.

    Parameters
    ----------
    client, server : sequence of str
        Command lines: the program, then its arguments. `["sh", "-c", "..."]` runs several programs at one end.
    path : EmulatedPath
        Round-trip time, losses, rate and queue.
    directory : Path
        Directory for the results; it must be new or empty.
    backend : UmlBackend
        The guest: `VirtualTimeBackend(250)` for virtual time, `UmlBackend()` for real time.
    duration : float
        Longest time from the start of the client [s], 0.1 to 86 400.
    seed : int
        Seed of the guest's randomness, in virtual time, 0 or more. In virtual time the same seed gives the same run.
    congestion_control : str
        Default congestion control of both ends: reno, cubic, bbr, vegas or westwood.
    sysctls : mapping, optional
        Further settings of the kernel at both ends, such as `{"net.ipv4.tcp_sack": "0"}`.
    environment : mapping, optional
        Further variables of the environment of the programs.
    working_directory : Path, optional
        Directory in which the programs start; by default the one into which they may write.
    linger : float, optional
        Time that the server has to end when the client has ended [s]; by default, the rest of the duration.
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
    """
    search = dict(environment or {}).get("PATH", PROGRAM_PATH)
    for name, command in (("client", client), ("server", server)):
        if isinstance(command, str) or not command or shutil.which(command[0], path=search) is None:
            raise InvalidValueError(name, command, f"begin with a program, by its path or in {search}")
    if not SHORTEST <= duration <= LONGEST:
        raise InvalidValueError("duration", duration, f"lie between {SHORTEST:g} and {LONGEST:g} s")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidValueError("directory", str(directory), "be a new or an empty directory")
    for problem in backend.problems():
        raise ValueError(f"backend {backend.name!r} does not work here: {problem}")
    plan = ProgramPlan(
        list(client),
        list(server),
        path.forward,
        path.backward,
        duration,
        Confinement.none() if trusted else Confinement.of_caller(),
        {"net.ipv4.tcp_congestion_control": congestion_control, **({ECN: "1"} if path.ecn else {}), **(sysctls or {})},
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

        try:
            backend.run(plan, place, core, follow)
        finally:
            follow(1.0)
        directory.mkdir(parents=True, exist_ok=True)
        kernel = f"Linux {backend.kernel(place)}, {backend.hz()} Hz"
        for end, traced in _TRACED.items():
            write_pcapng(place / f"{PACKETS}.{traced}.pcap", directory / f"{end}.pcapng", end, kernel)
        for left in _PREPARED:
            shutil.move(place / left, directory / left)
    return read_program_run(directory)


def read_program_run(directory: Path) -> ProgramRun:
    """Return the run whose results are in a directory."""
    content = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    return ProgramRun(directory, **content)
