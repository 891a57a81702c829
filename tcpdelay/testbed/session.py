"""A session: run the experiments of a plan side by side on this kernel, and hand over their flows."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tcpdelay.testbed.event_loop import NANOSECONDS, EventLoop, wake_exactly
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.experiment_run import Measurement
from tcpdelay.testbed.flow_log import is_handed_over, write_records
from tcpdelay.testbed.message_source import message_file

HEARTBEAT = 10_000_000
STALL = 5_000_000
"""Delay from which a heartbeat counts as a stall [ns]."""
LEAD = NANOSECONDS // 2
LONGEST_OPENING = 120 * NANOSECONDS
PROGRESS_STEPS = 200


@dataclass(frozen=True)
class Plan:
    """The plan of a session: experiments that run side by side, and the seed of their applications.

    Attributes
    ----------
    experiments : list of Experiment
        The experiments, each on a network of its own.
    seed : int
        Seed, 0 or more.
    heartbeat : bool
        Whether to watch for stalls; there are no stalls in virtual time.
    pcap : bool
        Whether to trace the packets at both ends.
    qlog : bool
        Whether both ends of QUIC log their events.
    quic_program : str, optional
        Path of the program of quic-go; needed by experiments with this implementation.
    """

    file: ClassVar[str] = "plan.json"

    experiments: list[Experiment]
    seed: int = 0
    heartbeat: bool = True
    pcap: bool = False
    qlog: bool = False
    quic_program: str | None = None

    @property
    def duration(self) -> float:
        """Time during which packets are written, of the longest experiment [s]."""
        return max(experiment.duration for experiment in self.experiments)

    def is_finished(self, directory: Path) -> bool:
        """Return whether the flows of all experiments have been handed over in a directory."""
        return all(is_handed_over(directory, number) for number in range(len(self.experiments)))

    def write(self, file: Path) -> None:
        """Write the plan to a file."""
        tables = [json.loads(experiment.to_json()) for experiment in self.experiments]
        content = {"experiments": tables, **{name: getattr(self, name) for name in _PLAN_SETTINGS}}
        file.write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Plan:
        """Return the plan in a file that `write` has written."""
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        experiments = [Experiment.from_table(table) for table in content.pop("experiments")]
        return cls(experiments, **content)


_PLAN_SETTINGS = ("seed", "heartbeat", "pcap", "qlog", "quic_program")


def run_session(plan: Plan, directory: Path) -> None:
    """Run the experiments of a plan side by side; needs root in its namespace.

    Parameters
    ----------
    plan : Plan
        The plan.
    directory : Path
        Directory in which the messages of sources and the measured flows are handed over. Its file "progress" holds
        the finished share of the run, 0 to 1; its file "stalls" holds the times [ns, monotonic clock] and lengths [ns]
        of stalls.

    Raises
    ------
    TimeoutError
        If the connections of an experiment are not established within two minutes.
    """
    wake_exactly()
    loop = EventLoop()
    running: dict[int, Measurement] = {}
    try:
        for number, experiment in enumerate(plan.experiments):
            place = directory / str(number)
            flows = range(experiment.flows if experiment.messages is not None else 0)
            messages = [message_file(directory, number, flow) for flow in flows]
            running[number] = Measurement(
                loop,
                experiment,
                plan.seed,
                messages,
                place if plan.pcap else None,
                None if plan.quic_program is None else Path(plan.quic_program),
                place if plan.qlog else None,
            )
        for measurement in running.values():
            measurement.open()
        _wait_until_ready(loop, list(running.values()))
        first = time.monotonic_ns() + LEAD
        stalls = _watch_stalls(loop, first) if plan.heartbeat else array("q")
        for number, measurement in running.items():
            interval = plan.experiments[number].interval * NANOSECONDS
            # Experiments start at different times: flows that write at the same instant would wait for each other.
            measurement.start(first + round(interval * number / len(running)))
        _report_progress(loop, plan, directory, first)
        while running:
            loop.run(lambda: any(measurement.finished for measurement in running.values()))
            for number in [number for number, measurement in running.items() if measurement.finished]:
                (directory / "stalls").write_text(json.dumps(stalls.tolist()), encoding="ascii")
                records = running[number].records()
                # Closing completes the traces, so it comes before the flows are handed over.
                running.pop(number).close()
                write_records(directory, number, records)
    finally:
        for measurement in running.values():
            measurement.close()
        loop.close()


def _wait_until_ready(loop: EventLoop, measurements: list[Measurement]) -> None:
    deadline = time.monotonic_ns() + LONGEST_OPENING
    loop.at(deadline, lambda: None)
    loop.run(lambda: all(measurement.ready for measurement in measurements) or time.monotonic_ns() >= deadline)
    if not all(measurement.ready for measurement in measurements):
        raise TimeoutError("the connections of an experiment were not established within two minutes")


def _watch_stalls(loop: EventLoop, first: int) -> array[int]:
    """Return a growing array of the time and length of each stall: nothing ran although a timer was due."""
    stalls = array("q")
    due = first

    def beat(expirations: int) -> None:
        nonlocal due
        now = time.monotonic_ns()
        if now - due > STALL:
            stalls.extend((due, now - due))
        due += expirations * HEARTBEAT

    loop.every(HEARTBEAT, due, beat)
    return stalls


def _report_progress(loop: EventLoop, plan: Plan, directory: Path, first: int) -> None:
    duration = plan.duration * NANOSECONDS
    file = directory / "progress"

    def report(_: int) -> None:
        file.write_text(f"{min((time.monotonic_ns() - first) / duration, 1.0):.4f}", encoding="ascii")

    loop.every(max(round(duration / PROGRESS_STEPS), NANOSECONDS // 5), first, report)
