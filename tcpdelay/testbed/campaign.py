"""Runs a specification: sessions of experiments side by side, captures written as they finish, nothing done twice."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from tcpdelay.capture.flow_capture import FlowCapture, FlowRun, read_capture, write_capture
from tcpdelay.confidence import BATCHES, quantile_interval
from tcpdelay.files import UNFINISHED, locked
from tcpdelay.models.tcp import RTO_MIN
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.scenario.stack import Stack
from tcpdelay.testbed.backends import Backend, SessionFailedError
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.flow_runs import Origin, flow_run
from tcpdelay.testbed.handover import read_records
from tcpdelay.testbed.host import HostBackend
from tcpdelay.testbed.session import Plan
from tcpdelay.testbed.specification import Specification
from tcpdelay.testbed.uml import UmlBackend, VirtualTimeBackend
from tcpdelay.testbed.workplaces import workplace

TRACES = ("sender", "receiver")


@dataclass(frozen=True)
class Target:
    """A capture to be made: an experiment on a kernel with a certain tick."""

    experiment: Experiment
    backend: Backend

    @property
    def name(self) -> str:
        """Name of the capture."""
        return f"{self.experiment.name}-hz{self.backend.hz()}"


@dataclass(frozen=True)
class Progress:
    """How far a campaign is.

    Attributes
    ----------
    round : int
        0 while every experiment runs for the first time, then the number of times that some were prolonged.
    done, total : float
        Runs of experiments of this round that are done, fractions included, and in all.
    """

    round: int
    done: float
    total: int


def targets_of(specification: Specification) -> list[Target]:
    """Return the captures that a specification asks for, in order."""
    backends: list[Backend]
    if specification.backend == "uml-virtual":
        backends = [VirtualTimeBackend(hz) for hz in specification.hz]
    else:
        backends = [UmlBackend() if specification.backend == "uml" else HostBackend()]
    return [Target(experiment, backend) for backend in backends for experiment in specification.experiments]


def run_campaign(
    specification: Specification,
    output: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Path]:
    """Make the captures of a specification that are not there yet.

    Parameters
    ----------
    specification : Specification
        What to capture.
    output : Path
        Directory of the captures; made if it does not exist.
    on_progress : callable
        Called a few times a second with how far the campaign is.

    Returns
    -------
    list of Path
        All captures of the specification, in its order.

    Raises
    ------
    ValueError
        If a capture of that name in the directory is of something else or damaged, another run uses the directory,
        or the backend does not work here; the message is one line.
    SessionFailedError
        If a guest failed; what was captured before is kept.
    """
    targets = targets_of(specification)
    for backend in {target.backend.hz(): target.backend for target in targets}.values():
        for problem in backend.problems():
            raise ValueError(f"backend {specification.backend!r} does not work here: {problem}")
    output.mkdir(parents=True, exist_ok=True)
    with locked(output, "another run writes its captures there"), workplace() as place:
        for unfinished in output.glob(UNFINISHED):
            unfinished.unlink()
        captures = {target.name: _existing(target, output) for target in targets}
        campaign = _Campaign(specification, output, place, captures, on_progress)
        number = 0
        while True:
            due = [target for target in targets if campaign.is_due(target, number)]
            if not due:
                break
            campaign.run_round(number, due)
            number += 1
    return [output / f"{target.name}.parquet" for target in targets]


def _existing(target: Target, output: Path) -> FlowCapture | None:
    file = output / f"{target.name}.parquet"
    if not file.exists():
        return None
    capture = read_capture(file)
    if capture.settings != json.loads(target.experiment.to_json()):
        raise ValueError(f"{file}: is a capture of other settings; remove it or choose another directory")
    if any(run.backend != target.backend.name for run in capture.runs):
        raise ValueError(f"{file}: is a capture of another backend; remove it or choose another directory")
    return capture


class _Campaign:
    """The rounds of a campaign: the first runs every experiment, each further one prolongs those not precise yet."""

    def __init__(
        self,
        specification: Specification,
        output: Path,
        place: Path,
        captures: dict[str, FlowCapture | None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._specification = specification
        self._output = output
        self._place = place
        self._captures = captures
        self._on_progress = on_progress

    def is_due(self, target: Target, number: int) -> bool:
        """Whether a round of that number is to run an experiment, as its earlier runs tell."""
        if number == 0:
            return True
        precision = self._specification.precision
        capture = self._captures[target.name]
        experiment = target.experiment
        if precision is None or capture is None or experiment.application != "cbr":
            return False
        if 2**number * experiment.duration > precision.max_duration:
            return False
        stack = Stack.newreno_2008(initial_timeout=experiment.rtt + RTO_MIN)
        if connection_utilization(experiment.flow, experiment.path, stack) > precision.utilization:
            return False
        earlier = [run for run in capture.runs if run.run < number]
        delays = [run.delays for run in earlier]
        if len({run.run for run in earlier}) < number or sum(part.size for part in delays) < BATCHES:
            return False
        measured = quantile_interval(delays, 0.95)
        # A flow that TCP cannot carry does not become better known.
        return math.isfinite(measured.value) and measured.relative_half_width > precision.half_width

    def run_round(self, number: int, due: Sequence[Target]) -> None:
        """Run the sessions of a round of which a capture is missing."""
        batches = [batch for batch in self._batches(due) if any(self._is_missing(target, number) for target in batch)]
        total = sum(len(batch) for batch in batches)
        shares = dict.fromkeys(range(len(batches)), 0.0)
        cores = sorted(os.sched_getaffinity(0))
        # In real time, guests beside one another would disturb each other.
        workers = len(cores) if not due[0].backend.real_time else 1
        stop = Event()

        def show(index: int, share: float) -> None:
            if stop.is_set():
                raise SessionFailedError("interrupted")
            shares[index] = share * len(batches[index])
            self._on_progress(Progress(number, sum(shares.values()), total))

        free_cores = cores[:]

        def work(index: int) -> None:
            core = free_cores.pop()
            try:
                if not stop.is_set():
                    self._run_batch(number, batches[index], core, lambda share: show(index, share))
            finally:
                free_cores.append(core)

        pool = ThreadPoolExecutor(workers)
        futures: set[Future[None]] = {pool.submit(work, index) for index in range(len(batches))}
        try:
            while futures:
                finished, futures = wait(futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _batches(self, due: Sequence[Target]) -> list[list[Target]]:
        """Return the sessions of a round, which depend on the specification alone: a resumed run repeats them."""
        size = self._specification.side_by_side
        by_backend: dict[int, list[Target]] = {}
        for target in due:
            by_backend.setdefault(target.backend.hz(), []).append(target)
        return [group[start : start + size] for group in by_backend.values() for start in range(0, len(group), size)]

    def _is_missing(self, target: Target, number: int) -> bool:
        capture = self._captures[target.name]
        return capture is None or all(run.run != number for run in capture.runs)

    def _run_batch(self, number: int, batch: Sequence[Target], core: int, on_progress: Callable[[float], None]) -> None:
        label = json.dumps([self._specification.seed, number, [target.name for target in batch]])
        seed = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big") >> 1
        # Each round doubles what has been measured so far.
        factor = 2 ** max(number - 1, 0)
        experiments = [replace(target.experiment, duration=target.experiment.duration * factor) for target in batch]
        backend = batch[0].backend
        plan = Plan(experiments, seed, backend.real_time, self._specification.pcap)
        directory = self._place / hashlib.sha256(label.encode()).hexdigest()[:16]
        directory.mkdir()
        recorded = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            backend.run(plan, directory, core, on_progress)
        finally:
            for index, target in enumerate(batch):
                records = read_records(directory, index)
                if records and self._is_missing(target, number):
                    origin = Origin(number, backend.name, seed, backend.hz(), backend.kernel(directory), recorded)
                    stalls = json.loads((directory / "stalls").read_text(encoding="ascii"))
                    runs = [flow_run(record, origin, stalls) for record in records]
                    self._keep(target, runs)
                    self._keep_traces(directory, index, target, number)
            shutil.rmtree(directory)

    def _keep(self, target: Target, runs: list[FlowRun]) -> None:
        earlier = self._captures[target.name]
        settings = json.loads(target.experiment.to_json())
        capture = FlowCapture(target.name, settings, [*(earlier.runs if earlier else []), *runs])
        write_capture(self._output / f"{target.name}.parquet", capture)
        self._captures[target.name] = capture

    def _keep_traces(self, directory: Path, index: int, target: Target, number: int) -> None:
        for end in TRACES:
            trace = directory / f"{index}.{end}.pcap"
            if trace.exists():
                shutil.move(trace, self._output / f"{target.name}.run{number}.{end}.pcap")
