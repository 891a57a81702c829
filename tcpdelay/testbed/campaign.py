"""A campaign: its specification, a TOML file in which a list of values stands for several experiments, and its run.

A session runs experiments side by side in its own directory. A capture is written as soon as its experiment is
finished. Finished captures are not made again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay import __version__
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.capture.flow_capture import (
    NOT_READ,
    SAMPLE_FIELDS,
    SUFFIX,
    CaptureFile,
    FlowCapture,
    FlowRun,
    WrittenMessages,
    read_capture,
    write_capture,
    write_captures,
)
from tcpdelay.declare import (
    InvalidValueError,
    Quantity,
    choice,
    content,
    declarations,
    described,
    flag,
    fraction,
    in_seconds,
    instance_of,
    read,
    require_keys,
    whole_number,
)
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.source_settings import MAX_SEED, SourceSettings
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.tcp.constants import RTO_MIN
from tcpdelay.statistics import BATCHES, quantile_interval
from tcpdelay.store import UNFINISHED, locked, read_toml
from tcpdelay.testbed.backends import (
    Backend,
    BackendName,
    HostBackend,
    SessionFailedError,
    UmlBackend,
    VirtualTimeBackend,
)
from tcpdelay.testbed.experiment import MAX_DURATION, Experiment
from tcpdelay.testbed.experiment_run import Plan
from tcpdelay.testbed.flows import FlowRecord, first_messages, message_file, read_records, write_messages
from tcpdelay.testbed.quic_program import PROGRAMS, QuicBuildError, build_quic_program, quic_problems
from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL, check_version
from tcpdelay.testbed.workplaces import workplace

# Specifications; a list of values stands for several experiments.

MAX_EXPERIMENTS = 10_000


@described
class Precision:
    """The precision up to which an experiment is prolonged."""

    half_width: float = fraction(
        "Largest half width of the 95 % interval of the 95th percentile, relative to the percentile.",
        low_excluded=True,
        unit="",
        allowed="lie between 0 and 1",
    )
    utilization: float = fraction(
        "Largest connection utilization at which the precision is required.",
        low_excluded=True,
        unit="",
        allowed="lie between 0 and 1",
    )
    # A round is at most as long as all earlier rounds, and no round may exceed an experiment's longest duration.
    max_duration: float = in_seconds(
        "Total time of all runs after which an experiment is not prolonged.", 0, 2 * MAX_DURATION, low_excluded=True
    )


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,60}", name):
        raise InvalidValueError("name", name, "be up to 61 letters, digits, dots and hyphens")
    return name


def _different(name: str, one: str, several: str, checked: Callable[[Any], Any], given: Any) -> tuple[Any, ...]:
    """Return the values of a key that takes one value or several different values."""
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if not values or any(values.count(value) > 1 for value in values):
        raise InvalidValueError(name, values, f"be a {one} or a list of different {several}")
    return tuple(checked(value) for value in values)


_TICK: Quantity = whole_number("", 100, 1000)


@described
class Specification:
    """A campaign: its experiments, backend and precision."""

    name: str = content("Name of the campaign: letters, digits, dots and hyphens.", _checked_name, "str")
    experiments: tuple[Experiment, ...] = content("The experiments; no two are equal.", tuple, "tuple of Experiment")
    backend: BackendName = choice(
        "The kernel that runs TCP: a guest in virtual time, a guest in real time, or the kernel of this machine.",
        default="uml-virtual",
    )
    hz: tuple[int, ...] = content(
        "Timer interrupts per second of the kernels in virtual time, 100 to 1000.",
        partial(_different, "hz", "whole number", "whole numbers", partial(_TICK.require, "hz")),
        "tuple of int",
        details="Every experiment runs on each kernel.",
        default=(250,),
    )
    seed: int = whole_number("Seed of all random numbers.", 0, MAX_SEED, default=1)
    side_by_side: int = whole_number("Number of experiments that share a guest.", 1, 64, default=8)
    pcap: bool = flag("Whether to keep packet traces of both ends.", default=False)
    precision: Precision | None = content(
        "The required precision; without it, no experiment is prolonged.",
        instance_of("precision", Precision),
        "Precision",
        default=None,
    )
    kernel: tuple[str, ...] = content(
        'Versions of Linux of the kernels in virtual time, such as "7.3".',
        partial(_different, "kernel", "version of Linux", "versions of Linux", check_version),
        "tuple of str",
        details="Every experiment runs on each version.",
        default=(DEFAULT_KERNEL,),
    )
    qlog: bool = flag("Whether to keep the qlogs of both ends of QUIC.", default=False)


def read_specification(file: str | os.PathLike[str]) -> Specification:
    """Read a specification."""
    path = Path(file)
    content = read_toml(path)
    try:
        return _specification(content, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _specification(table: dict[str, Any], folder: Path) -> Specification:
    require_keys(table, sorted(["source", *declarations(Specification)]), "key of a specification")
    given = {"name": None, **table}
    source = SourceSettings.from_table(given.pop("source"), folder) if "source" in given else None
    given["experiments"] = _experiments(given.get("experiments"), source, folder)
    if "precision" in given:
        given["precision"] = _precision(given["precision"])
    specification = read(Specification, given)
    if specification.backend != "uml-virtual" and "kernel" in table:
        raise ValueError(f"kernel is for the backend 'uml-virtual', not {specification.backend!r}")
    return specification


def _precision(table: object) -> Precision:
    names = declarations(Precision)
    if not isinstance(table, dict) or sorted(table) != sorted(names):
        raise InvalidValueError("precision", table, f"have the keys {', '.join(names)}")
    try:
        return read(Precision, table)
    except ValueError as error:
        raise ValueError(f"precision.{error}") from None


def _experiments(tables: object, source: SourceSettings | None, folder: Path) -> list[Experiment]:
    if not isinstance(tables, list) or not tables:
        raise ValueError("there must be at least one table [[experiments]]")
    experiments: dict[Experiment, int] = {}
    for number, table in enumerate(tables, start=1):
        try:
            for combination in _combinations(table, folder):
                if source is not None and not {"source", "application"} & combination.keys():
                    combination["source"] = source
                experiment = Experiment.from_table(combination)
                if experiment in experiments:
                    raise ValueError(
                        f"{experiment.name!r} is already requested by experiments {experiments[experiment]}"
                    )
                experiments[experiment] = number
        except ValueError as error:
            raise ValueError(f"experiments {number}: {error}") from None
    for name, count in Counter(experiment.name for experiment in experiments).items():
        if count > 1:
            raise ValueError(
                f"{count} experiments differ only in settings that names do not show and would be named {name!r}"
            )
    return list(experiments)


def _combinations(table: object, folder: Path) -> list[dict[str, Any]]:
    if not isinstance(table, dict):
        raise ValueError(f"a table of settings is expected, got {table!r}")
    choices = []
    for name, value in table.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ValueError(f"{name} is an empty list")
        choices.append([(name, _value(name, choice, folder)) for choice in values])
    count = math.prod(map(len, choices))
    if count > MAX_EXPERIMENTS:
        raise ValueError(f"the lists span {count} experiments; at most {MAX_EXPERIMENTS} are allowed")
    return [dict(combination) for combination in itertools.product(*choices)]


def _value(name: str, value: Any, folder: Path) -> Any:
    """Return the value of a setting, from a text with a unit or a plain value; the table of a source is read."""
    if name == "source":
        return SourceSettings.from_table(value, folder)
    declaration = declarations(Experiment).get(name)
    return value if declaration is None else declaration.read(name, value)


def shortened(specification: Specification, duration: float) -> Specification:
    """Return the specification with all experiments limited to `duration` [s], and without a required precision."""
    experiments = tuple(
        replace(experiment, duration=min(duration, experiment.duration)) for experiment in specification.experiments
    )
    return replace(specification, experiments=experiments, precision=None)


# The run of a campaign.

MICROSECOND = 1000
KERNEL_NAMES = {"cwnd": "snd_cwnd", "ssthresh": "snd_ssthresh", "retransmits": "total_retrans"}
"""Names of samples in a session, by their names in a capture, where the two differ."""
ENDS = ("sender", "receiver")
LOWEST_BITRATE = 1000.0
"""Bitrate below which a source takes no noticeable share of the fair TCP rate [bit/s]."""


def flow_run(
    record: FlowRecord, origin: dict[str, Any], stalls: Sequence[int], messages: WrittenMessages | None = None
) -> FlowRun:
    """Return a measured flow in microseconds since the start of writing; `origin` has the first fields of the run."""
    written = np.array(record.written, np.int64)
    read = np.array(record.read, np.int64)

    def since_start(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return (times - record.started + MICROSECOND // 2) // MICROSECOND

    # Runs that prolong an experiment add only delays; their samples would double the size of a capture.
    sampled = SAMPLE_FIELDS if origin["run"] == 0 else ()
    samples = {name: np.array(record.samples[KERNEL_NAMES.get(name, name)], np.int64) for name in sampled}
    if samples:
        samples["time"] = since_start(samples["time"])
    pairs = np.array(stalls, np.int64).reshape(-1, 2)
    return FlowRun(
        **origin,
        flow=record.flow,
        tool=__version__,
        counters=record.counters,
        packets=record.packets,
        written=since_start(written),
        delay=np.where(read < 0, NOT_READ, (read - written + MICROSECOND // 2) // MICROSECOND),
        samples=samples,
        stall_time=since_start(pairs[:, 0]),
        stall_length=pairs[:, 1] // MICROSECOND,
        epoch=record.epoch,
        messages=messages,
    )


def _messages_of(record: FlowRecord, experiment: Experiment, directory: Path, index: int) -> WrittenMessages | None:
    """Return the sizes and kinds of the messages that a flow has written; None without a source."""
    if experiment.source is None:
        return None
    written = first_messages(message_file(directory, index, record.flow), len(record.written))
    return WrittenMessages(
        written["size"].astype(np.int64), written["kind"].astype(np.int64), experiment.source.source.kinds
    )


def _mean_flow(source: Source) -> Flow:
    """Return the flow with the bitrate of a source, for its share of the fair TCP rate."""
    return Flow.from_bitrate(max(source.mean_bitrate, LOWEST_BITRATE))


@dataclass(frozen=True)
class Target:
    """A planned capture: an experiment, and the backend that runs it."""

    experiment: Experiment
    backend: Backend

    @property
    def name(self) -> str:
        """Name of the capture."""
        return f"{self.experiment.name}-{self.backend.label}"


@dataclass(frozen=True)
class Progress:
    """The progress of a campaign."""

    round: int  # 0 while every experiment runs for the first time, then the number of the round that prolongs some
    done: float  # Number of finished runs of this round; a running experiment counts with its finished share
    total: int  # Number of runs of this round


def targets_of(specification: Specification) -> list[Target]:
    """Return the captures of a specification in order."""
    backends: list[Backend]
    if specification.backend == "uml-virtual":
        backends = [VirtualTimeBackend(hz, kernel) for kernel in specification.kernel for hz in specification.hz]
    else:
        backends = [UmlBackend() if specification.backend == "uml" else HostBackend()]
    return [Target(experiment, backend) for backend in backends for experiment in specification.experiments]


def run_campaign(
    specification: Specification,
    output: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Path]:
    """Make the captures of a specification that do not exist yet.

    Parameters
    ----------
    specification : Specification
        The specification.
    output : Path
        Directory of the captures, which is made if it does not exist; or a set of captures, a file ending in .parquet.
        Until a run has ended, the new captures of a set are in a directory beside it, by the same name.
    on_progress : callable
        Called a few times a second with the progress.

    Returns
    -------
    list of Path
        All captures of the specification, in its order; or the set.

    Raises
    ------
    ValueError
        If an existing capture has other settings or is damaged, if another run uses the directory, or if the backend
        does not work here; the message is one line.
    SessionFailedError
        If a session failed; finished captures are kept.
    """
    targets = targets_of(specification)
    for backend in {target.backend.label: target.backend for target in targets}.values():
        for problem in backend.problems():
            raise ValueError(f"backend {specification.backend!r} does not work here: {problem}")
    for problem in quic_problems(specification.experiments):
        raise ValueError(problem)
    quic_programs = _quic_programs(specification.experiments)
    folder = output.with_suffix("") if output.suffix == SUFFIX else output
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "another run writes its captures there"), workplace() as place:
        for unfinished in folder.glob(UNFINISHED):
            unfinished.unlink()
        earlier = CaptureFile(output) if folder != output and output.exists() else None
        captures = {target.name: _existing(target, folder, earlier) for target in targets}
        campaign = _Campaign(specification, folder, place, captures, on_progress, quic_programs)
        number = 0
        while True:
            due = [target for target in targets if campaign.is_due(target, number)]
            if not due:
                break
            campaign.run_round(number, due)
            number += 1
        if folder != output:
            _add_to_set(output, earlier, folder)
            return [output]
    return [output / f"{target.name}{SUFFIX}" for target in targets]


def _add_to_set(output: Path, earlier: CaptureFile | None, folder: Path) -> None:
    """Move the captures of a folder into a set; the folder goes unless it holds packet traces."""
    added = {file.name.removesuffix(SUFFIX): file for file in folder.glob(f"*{SUFFIX}")}
    if added:
        kept = dict.fromkeys(earlier.names, earlier) if earlier else {}
        files = kept | {name: CaptureFile(file) for name, file in added.items()}
        write_captures(output, (files[name].read(name) for name in sorted(files)))
    for file in added.values():
        file.unlink()
    with suppress(OSError):
        folder.rmdir()


def _quic_programs(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Return the paths of the programs that experiments need, by implementation; what is missing is built."""
    needed = {each.implementation for each in experiments if each.application == "quic"} & PROGRAMS.keys()
    try:
        return {name: str(build_quic_program(name)) for name in sorted(needed)}
    except QuicBuildError as error:
        raise ValueError(str(error)) from error


def _existing(target: Target, folder: Path, earlier: CaptureFile | None) -> FlowCapture | None:
    """Return the capture of a target that is in the folder or in the set; None if there is none yet."""
    file = folder / f"{target.name}{SUFFIX}"
    if file.exists():
        capture = read_capture(file)
    elif earlier is not None and target.name in earlier.names:
        capture, file = earlier.read(target.name), earlier.path
    else:
        return None
    # A capture of an older version lacks newer settings, which have their defaults.
    defaults = {field.name: field.default for field in fields(Experiment)}
    settings, expected = capture.settings, json.loads(target.experiment.to_json())
    if any(settings.get(name, defaults.get(name)) != expected.get(name) for name in expected | settings):
        raise ValueError(f"{file}: {target.name} is a capture of other settings; remove it or choose another place")
    if any(run.backend != target.backend.name for run in capture.runs):
        raise ValueError(f"{file}: {target.name} is a capture of another backend; remove it or choose another place")
    return capture


@dataclass(eq=False)
class _Campaign:
    """The rounds of a campaign: the first round runs every experiment, later rounds prolong imprecise captures."""

    specification: Specification
    output: Path
    place: Path
    captures: dict[str, FlowCapture | None]
    on_progress: Callable[[Progress], None]
    quic_programs: dict[str, str]

    def is_due(self, target: Target, number: int) -> bool:
        """Return whether the round `number` runs an experiment; this depends on its earlier runs."""
        if number == 0:
            return True
        precision = self.specification.precision
        capture = self.captures[target.name]
        experiment = target.experiment
        if precision is None or capture is None or experiment.application not in ("cbr", "source", "quic"):
            return False
        if 2**number * experiment.duration > precision.max_duration:
            return False
        stack = Stack.newreno_2008(initial_timeout=experiment.rtt + RTO_MIN)
        flow = experiment.flow if experiment.source is None else _mean_flow(experiment.source.source)
        if connection_utilization(flow, experiment.path, stack) > precision.utilization:
            return False
        earlier = [run for run in capture.runs if run.run < number]
        delays = [run.delays for run in earlier]
        if len({run.run for run in earlier}) < number or sum(part.size for part in delays) < BATCHES:
            return False
        measured = quantile_interval(delays, 0.95)
        # Longer runs do not make the delays of a flow that TCP cannot carry more precise.
        return math.isfinite(measured.value) and measured.relative_half_width > precision.half_width

    def run_round(self, number: int, due: Sequence[Target]) -> None:
        """Run the sessions of a round that have missing captures."""
        batches = [batch for batch in self._batches(due) if any(self._is_missing(target, number) for target in batch)]
        total = sum(len(batch) for batch in batches)
        shares = dict.fromkeys(range(len(batches)), 0.0)
        cores = sorted(os.sched_getaffinity(0))
        # In real time, parallel sessions would disturb each other.
        workers = len(cores) if not due[0].backend.real_time else 1
        stop = Event()

        def show(index: int, share: float) -> None:
            if stop.is_set():
                raise SessionFailedError("interrupted")
            shares[index] = share * len(batches[index])
            self.on_progress(Progress(number, sum(shares.values()), total))

        def work(index: int) -> None:
            core = cores.pop()
            try:
                if not stop.is_set():
                    self._run_batch(number, batches[index], core, lambda share: show(index, share))
            finally:
                cores.append(core)

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
        """Return the sessions of a round. A resumed run has the same sessions."""
        size = self.specification.side_by_side
        by_backend: dict[str, list[Target]] = {}
        for target in due:
            by_backend.setdefault(target.backend.label, []).append(target)
        return [group[start : start + size] for group in by_backend.values() for start in range(0, len(group), size)]

    def _is_missing(self, target: Target, number: int) -> bool:
        capture = self.captures[target.name]
        return capture is None or all(run.run != number for run in capture.runs)

    def _run_batch(self, number: int, batch: Sequence[Target], core: int, on_progress: Callable[[float], None]) -> None:
        label = json.dumps([self.specification.seed, number, [target.name for target in batch]])
        seed = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big") >> 1
        # Each round doubles the measured time.
        factor = 2 ** max(number - 1, 0)
        experiments = [replace(target.experiment, duration=target.experiment.duration * factor) for target in batch]
        backend = batch[0].backend
        specification = self.specification
        plan = Plan(experiments, seed, backend.real_time, specification.pcap, specification.qlog, self.quic_programs)
        directory = self.place / hashlib.sha256(label.encode()).hexdigest()[:16]
        directory.mkdir()
        for index, experiment in enumerate(experiments):
            if (settings := experiment.messages) is not None:
                for flow in range(experiment.flows):
                    seed_of_flow = settings.seed + number * experiment.flows + flow
                    file = message_file(directory, index, flow)
                    write_messages(file, settings.source, seed_of_flow, experiment.duration)
        recorded = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            backend.run(plan, directory, core, on_progress)
        finally:
            for index, target in enumerate(batch):
                records = read_records(directory, index)
                if records and self._is_missing(target, number):
                    origin = {"run": number, "backend": backend.name, "seed": seed, "recorded": recorded}
                    origin |= {"hz": backend.hz(), "kernel": backend.kernel(directory)}
                    stalls = json.loads((directory / "stalls").read_text(encoding="ascii"))
                    runs = [
                        flow_run(record, origin, stalls, _messages_of(record, target.experiment, directory, index))
                        for record in records
                    ]
                    self._keep(target, runs)
                    self._keep_traces(directory, index, target, number)
            shutil.rmtree(directory)

    def _keep(self, target: Target, runs: list[FlowRun]) -> None:
        earlier = self.captures[target.name]
        settings = json.loads(target.experiment.to_json())
        capture = FlowCapture(target.name, settings, [*(earlier.runs if earlier else []), *runs])
        write_capture(self.output / f"{target.name}{SUFFIX}", capture)
        self.captures[target.name] = capture

    def _keep_traces(self, directory: Path, index: int, target: Target, number: int) -> None:
        for end in ENDS:
            trace = directory / f"{index}.{end}.pcap"
            if trace.exists():
                shutil.move(trace, self.output / f"{target.name}.run{number}.{end}.pcap")
            for flow in range(target.experiment.flows):
                qlog = directory / f"{index}.{flow}.{end}.qlog"
                if qlog.exists():
                    shutil.move(qlog, self.output / f"{target.name}.run{number}.flow{flow}.{end}.qlog")
