"""A session of programs in a guest: two command lines at the two ends of a network, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tcpdelay.testbed.event_loop import MS_BIND, mount, wake_exactly
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.network import Network, Node, PacketTraces, kernel_counters

End = Literal["client", "server"]

PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRATCH = "scratch"
PACKETS = "packets"
RESULT = "result.json"
HEAD_START = 1.0
"""Time from the start of the server to the start of the client [s]."""
GRACE = 5.0
"""Time between SIGTERM and SIGKILL at the end of a session [s]."""
POLL_INTERVAL = 0.1
HOSTS = Path("/etc/hosts")


@dataclass(frozen=True)
class ProgramPlan:
    """The plan of a session of programs.

    Attributes
    ----------
    experiment : Experiment
        Path, stack and duration; the application of the experiment does not run.
    client, server : list of str
        The command lines.
    seed : int
        Seed of the guest's randomness, 0 or more.
    """

    file: ClassVar[str] = "programs.json"

    experiment: Experiment
    client: list[str]
    server: list[str]
    seed: int = 0

    @property
    def duration(self) -> float:
        """Longest time of the session [s]."""
        return HEAD_START + self.experiment.duration + GRACE

    def write(self, file: Path) -> None:
        """Write the plan to a file."""
        experiment = json.loads(self.experiment.to_json())
        content = {"experiment": experiment, "client": self.client, "server": self.server, "seed": self.seed}
        file.write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> ProgramPlan:
        """Return the plan in a file that `write` has written."""
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return cls(**content | {"experiment": Experiment.from_table(content["experiment"])})

    def is_finished(self, directory: Path) -> bool:
        """Return whether the session in a directory has handed over its results."""
        return (directory / RESULT).exists()


def run_program_session(plan: ProgramPlan, directory: Path) -> None:
    """Run the programs of a plan in this guest, and hand over their results in a directory.

    The session ends when both programs have ended, or when the duration is over.
    """
    wake_exactly()
    _mount_devices()
    network = Network.build(plan.experiment, traced=True)
    ends: dict[End, Node] = {"client": network.sender, "server": network.receiver}
    addresses = {"client": network.sender_address, "server": network.receiver_address}
    _name_addresses(directory / "hosts", addresses)
    scratch = directory / SCRATCH
    scratch.mkdir()
    environment = {"PATH": PROGRAM_PATH, "HOME": str(scratch), "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8"}
    environment |= {f"{end.upper()}_ADDRESS": address for end, address in addresses.items()}
    programs: dict[End, subprocess.Popen[bytes]] = {}

    def start(end: End, command: list[str]) -> None:
        out, err = (directory / f"{end}.stdout").open("wb"), (directory / f"{end}.stderr").open("wb")
        with out, err, ends[end].entered():
            control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
            control.write_text(plan.experiment.congestion_control, encoding="ascii")
            programs[end] = subprocess.Popen(
                command,
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    traces = PacketTraces(network, directory / PACKETS)
    start("server", plan.server)
    time.sleep(HEAD_START)
    begin = time.monotonic()
    start("client", plan.client)
    ended: dict[End, float] = {}
    while len(ended) < len(programs) and (elapsed := time.monotonic() - begin) < plan.experiment.duration:
        (directory / "progress").write_text(f"{elapsed / plan.experiment.duration:.4f}", encoding="ascii")
        time.sleep(POLL_INTERVAL)
        for end, program in programs.items():
            if end not in ended and program.poll() is not None:
                ended[end] = time.monotonic() - begin
    statuses = {end: program.poll() for end, program in programs.items()}
    _stop(list(programs.values()))
    traces.stop()
    counters = {end: kernel_counters(node) for end, node in ends.items()}
    result = {"status": statuses, "ended": ended, "counters": counters, "packets": network.packet_counts()}
    # Written last and atomically: without this file, the session counts as unfinished.
    unfinished = directory / f"{RESULT}.part"
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(directory / RESULT)
    network.close()


def _mount_devices() -> None:
    """Mount the guest's own devices, terminals and shared memory over those of the host."""
    mount("devtmpfs", "/dev", "devtmpfs")
    for directory, kind in (("pts", "devpts"), ("shm", "tmpfs")):
        place = Path("/dev", directory)
        place.mkdir(exist_ok=True)
        mount(kind, str(place), kind)


def _name_addresses(file: Path, addresses: dict[str, str]) -> None:
    """Let programs find the ends by the names `client` and `server`."""
    if HOSTS.exists():
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        file.write_text("\n".join(lines) + "\n", encoding="ascii")
        mount(str(file), str(HOSTS), "none", flags=MS_BIND)


def _stop(programs: list[subprocess.Popen[bytes]]) -> None:
    """End programs and the programs that they have started."""
    deadline = time.monotonic() + GRACE
    for program in programs:
        _signal_group(program, signal.SIGTERM)
    while time.monotonic() < deadline and any(program.poll() is None for program in programs):
        time.sleep(POLL_INTERVAL)
    for program in programs:
        _signal_group(program, signal.SIGKILL)
        program.wait()


def _signal_group(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        return
