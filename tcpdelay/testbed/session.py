"""Runs a plan of experiments side by side, on this kernel, and hands over what it measures."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpdelay.testbed.event_loop import EventLoop
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.handover import write_records
from tcpdelay.testbed.measurement import NANOSECONDS, Measurement
from tcpdelay.testbed.system_calls import wake_exactly

HEARTBEAT = 10_000_000
STALL = 5_000_000
"""Lateness from which on a heartbeat is a stall [ns]."""
LEAD = NANOSECONDS // 2
LONGEST_OPENING = 120 * NANOSECONDS
PROGRESS_STEPS = 200


@dataclass(frozen=True)
class Plan:
    """What one session runs: experiments side by side, and the seed of what their applications draw.

    Attributes
    ----------
    experiments : list of Experiment
        The experiments, each on a network of its own.
    seed : int
        Seed, 0 or more.
    heartbeat : bool
        Whether to watch for stalls; in virtual time there are none.
    pcap : bool
        Whether to trace the packets at both ends.
    """

    experiments: list[Experiment]
    seed: int = 0
    heartbeat: bool = True
    pcap: bool = False

    def write(self, file: Path) -> None:
        """Write the plan where a session finds it."""
        tables = [json.loads(experiment.to_json()) for experiment in self.experiments]
        content = {"experiments": tables, "seed": self.seed, "heartbeat": self.heartbeat, "pcap": self.pcap}
        file.write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Plan:
        """Return the plan that `write` has written."""
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        experiments = [Experiment.from_table(table) for table in content["experiments"]]
        return cls(experiments, content["seed"], content["heartbeat"], content["pcap"])


def run_session(plan: Plan, directory: Path) -> None:
    """Run the experiments of a plan side by side; needs root in the namespace that it runs in.

    Parameters
    ----------
    plan : Plan
        What to run.
    directory : Path
        Where to hand over the flows; "progress" in it holds the done part of the run, 0 to 1, and "stalls" the
        times [ns, monotonic clock] and lengths [ns] of stalls.

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
            trace = directory / str(number) if plan.pcap else None
            running[number] = Measurement(loop, experiment, plan.seed, trace)
        for measurement in running.values():
            measurement.open()
        _wait_until_ready(loop, list(running.values()))
        first = time.monotonic_ns() + LEAD
        stalls = _watch_stalls(loop, first) if plan.heartbeat else array("q")
        for number, measurement in running.items():
            interval = plan.experiments[number].interval * NANOSECONDS
            # Flows that all write at one instant would wait for one another.
            measurement.start(first + round(interval * number / len(running)))
        _report_progress(loop, plan, directory, first)
        while running:
            loop.run(lambda: any(measurement.finished for measurement in running.values()))
            for number in [number for number, measurement in running.items() if measurement.finished]:
                (directory / "stalls").write_text(json.dumps(stalls.tolist()), encoding="ascii")
                records = running[number].records()
                # Traces are finished before the flows are handed over, and so belong to them.
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
    """Return a growing list of (time, length) of the moments in which nothing ran although a timer was due."""
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
    duration = max(experiment.duration for experiment in plan.experiments) * NANOSECONDS
    file = directory / "progress"

    def report(_: int) -> None:
        file.write_text(f"{min((time.monotonic_ns() - first) / duration, 1.0):.4f}", encoding="ascii")

    loop.every(max(round(duration / PROGRESS_STEPS), NANOSECONDS // 5), first, report)
