"""Runs of unmodified programs over an emulated path, in a User-Mode Linux guest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.testbed.backends import SessionFailedError, UmlBackend
from tcpdelay.testbed.campaign import workplace
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.program_session import PACKETS, PROGRAM_PATH, RESULT, SCRATCH, End, ProgramPlan

_RESULTS = (".stdout", ".stderr", ".pcap")


@dataclass(frozen=True)
class ProgramRun:
    """What a run of two programs left behind.

    Attributes
    ----------
    directory : Path
        Directory with `client.stdout`, `client.stderr`, the same two files of the server, the packet traces, the
        directory `scratch` in which both programs ran, and `result.json`.
    status : dict
        Exit status of the program at either end, "client" and "server"; negative: the number of the signal that ended
        it; None: it still ran at the end of the duration.
    ended : dict
        Time since the start of the client at which a program ended [s]; without programs that did not end.
    counters : dict
        The kernel's TCP counters at either end that are not zero, as in `nstat`.
    packets : dict
        Numbers of packets that each queue has sent and dropped, by names such as "data_dropped".
    """

    directory: Path
    status: dict[End, int | None]
    ended: dict[End, float]
    counters: dict[End, dict[str, int]]
    packets: dict[str, int]

    @property
    def traces(self) -> tuple[Path, Path]:
        """The packet traces of the client and of the server."""
        return self.directory / f"{PACKETS}.sender.pcap", self.directory / f"{PACKETS}.receiver.pcap"


def run_programs(
    client: Sequence[str],
    server: Sequence[str],
    experiment: Experiment,
    directory: Path,
    backend: UmlBackend,
    *,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda share: None,
) -> ProgramRun:
    """Run two programs of this machine in a guest, at the two ends of an emulated path, and trace the packets.

    The server starts a second before the client. The run ends when both programs have ended, or when the duration of
    the experiment is over; programs that still run then get SIGTERM, and SIGKILL five seconds later.

    In the guest, the programs find the ends by the names `client` and `server`, or in the variables `CLIENT_ADDRESS`
    and `SERVER_ADDRESS` of their environment. They see this machine's files read-only. They write into their working
    directory, which is also their home and their directory for temporary files. They are root in the guest, so run
    only programs that you trust.

    Parameters
    ----------
    client, server : sequence of str
        Command lines: the program, then its arguments. `["sh", "-c", "..."]` runs several programs at one end. The
        losses of the path are on the way from the client to the server.
    experiment : Experiment
        Path, stack and duration. Its application does not run. Its congestion control is the default of both ends;
        socket buffers and acknowledgements are those of the programs.
    directory : Path
        Directory for the results; it must be new or empty.
    backend : UmlBackend
        The guest: `VirtualTimeBackend(250)` for virtual time, `UmlBackend()` for real time.
    seed : int
        Seed of the guest's randomness, in virtual time, 0 or more.
    on_progress : callable
        Called a few times a second with the share of the duration that is over, 0 to 1.

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
    for name, command in (("client", client), ("server", server)):
        if isinstance(command, str) or not command or shutil.which(command[0], path=PROGRAM_PATH) is None:
            raise InvalidValueError(name, command, f"begin with a program, by its path or in {PROGRAM_PATH}")
    if directory.exists() and any(directory.iterdir()):
        raise InvalidValueError("directory", str(directory), "be a new or an empty directory")
    for problem in backend.problems():
        raise ValueError(f"backend {backend.name!r} does not work here: {problem}")
    plan = ProgramPlan(experiment, list(client), list(server), seed)
    # A guest uses one processor. Processes that run side by side mostly get different ones.
    cores = sorted(os.sched_getaffinity(0))
    core = cores[os.getpid() % len(cores)]
    with workplace() as place:
        try:
            backend.run(plan, place, core, on_progress)
        except SessionFailedError as error:
            hint = "" if backend.real_time else "; a program that waits without sleeping stops virtual time"
            raise SessionFailedError(f"{error}{hint}") from error
        directory.mkdir(parents=True, exist_ok=True)
        for left in (SCRATCH, RESULT, *(file.name for file in place.iterdir() if file.suffix in _RESULTS)):
            shutil.move(place / left, directory / left)
    return read_program_run(directory)


def read_program_run(directory: Path) -> ProgramRun:
    """Return the run whose results are in a directory."""
    content = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    return ProgramRun(directory, **content)
