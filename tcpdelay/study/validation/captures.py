"""Figures of captures of the testbed: delays with confidence intervals, losses, and whether TCP carried the flow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.capture.flow_capture import (
    MICROSECONDS,
    SUFFIX,
    CaptureFile,
    FlowCapture,
    FlowRun,
    capture_files,
)
from tcpdelay.declare import declarations
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Bottleneck, Path
from tcpdelay.scenario.scenario import constant_rate
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.source_settings import TraceFile
from tcpdelay.scenario.stack import LOSS_BASED_CONTROLS, Stack
from tcpdelay.statistics import BATCHES, Interval, mean_interval, quantile_interval
from tcpdelay.testbed.backends import VIRTUAL_TIME_START
from tcpdelay.testbed.experiment import Experiment

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PLAYOUT_DELAYS = (0.150, 0.200, 0.400)
VIRTUAL_TIME = "uml-virtual"

WARM_UP = 10.0
"""Time at the start of a run that is left out [s]: delays are not stationary during the first slow start."""
LARGEST_WARM_UP_SHARE = 0.1
"""Largest share of a run that is left out at its start. Half of that time is left out at its end."""
MOST_UNREAD = 0.01
"""Largest share of unread packets at the end of a run with which a flow counts as carried."""
WRITE_DELAY = 1e-3
"""Largest time by which a guest in virtual time writes a message late [s]."""


@dataclass(frozen=True)
class MeasuredDelay:
    """Figures of one capture, or of one kind of its messages; times in s."""

    # name, collection: Name of the capture, and name of its directory.
    name: str
    collection: str
    experiment: Experiment  # Settings of the experiment
    source: Source  # The measured source, as an input of the models
    # backend, kernel: Backend of the testbed ("uml-virtual" for virtual time), and release of the kernel.
    backend: str
    kernel: str
    hz: int  # Timer interrupts per second of the kernel
    runs: int  # Number of independent runs
    offered: int  # Number of packets written in all runs
    # Share of packets that were not read when their run ended, without the packets at both ends of each run.
    unread: float
    # mean, p50, p95, p99: Delay with its 95 % confidence interval; infinite where packets were not read.
    mean: Interval
    p50: Interval
    p95: Interval
    p99: Interval
    late: dict[float, Interval]  # Share of packets later than each of `PLAYOUT_DELAYS`
    # Share of data packets that the path dropped, at random or at the bottleneck; NaN if losses were not counted.
    loss: float
    rtt: float  # Mean of the round-trip times that TCP reported; NaN without samples
    # Whether TCP carried the flow: nearly all packets were read, and the backlog was empty at some time in the second
    # half of most runs.
    sustainable: bool
    growth: float  # Growth of the median delay from the first to the last quarter of the runs, per second [s/s]
    distribution: DelayDistribution  # All delays; the delay of an unread packet is infinite
    sizes: tuple[int, ...]  # Number of packets written, for each flow and run
    # Time from a tick of the kernel's clock to the first write [s], for each flow and run; None in real time.
    phases: tuple[float | None, ...]
    retransmitted: int = 0  # Number of retransmissions of the sender's host (RetransSegs)
    spurious: int = 0  # Number of segments that the receiver reported to have received twice (D-SACK, TCPDSACKRecv)
    kind: str = ""  # The kind of the messages that are counted; empty if all messages are counted
    # The figures of each kind of messages; empty if there is only one kind.
    by_kind: Mapping[str, MeasuredDelay] = field(default_factory=dict)

    @property
    def flow(self) -> Flow:
        """The measured flow, as an input of the models; raises InvalidValueError if the rate is not constant."""
        return constant_rate(self.source)

    @property
    def words(self) -> str:
        """Kind of the source and of the counted messages, such as "video, key frame"; empty for a constant rate."""
        settings = self.experiment.source
        return ", ".join(part for part in (settings.kind, self.kind) if part) if settings is not None else ""

    @property
    def path(self) -> Path:
        """The path for the models: the configured path, or, behind a router, the measured path.

        Behind a router, the queue adds to the round-trip time and causes the losses, so both come from the capture. The
        queue is on the way to the receiver, so that the way back takes half the configured round-trip time.
        """
        if not self.experiment.routed or not (self.rtt > 0 and self.loss < 1):
            return self.experiment.path
        bottleneck: Bottleneck = "bytes" if self.experiment.queue_bytes is not None else "packets"
        forward = max(0.0, self.rtt - self.experiment.rtt / 2)
        return Path(self.rtt, self.loss, "correlated", bottleneck, forward)

    @property
    def utilization(self) -> float:
        """The flow's rate over the fair TCP rate, as in `tcpdelay.accuracy.throughput.connection_utilization`."""
        return connection_utilization(self.source, self.path, Stack.newreno_2008())

    @property
    def default_settings(self) -> bool:
        """Whether a single source was measured with random loss and the default stack, in virtual time."""
        return self.backend == VIRTUAL_TIME and self.experiment == self.plain_experiment

    @property
    def plain(self) -> bool:
        """Whether this is a single constant-bit-rate flow with random loss and the default stack, in virtual time."""
        return self.experiment.source is None and self.default_settings

    @property
    def plain_experiment(self) -> Experiment:
        """The experiment with the same source and path, but one connection, independent losses and the default stack.

        The congestion control is that of this experiment if it is based on losses, else CUBIC.
        """
        experiment = self.experiment
        control, default = experiment.congestion_control, declarations(Experiment)["congestion_control"].default
        return Experiment(
            application="cbr" if experiment.source is None else "source",
            source=experiment.source,
            packet_size=experiment.packet_size,
            interval=experiment.interval,
            rtt=experiment.rtt,
            loss=experiment.loss,
            congestion_control=control if control in LOSS_BASED_CONTROLS else default,
            duration=experiment.duration,
        )


def measure(capture: FlowCapture, collection: str = "") -> MeasuredDelay:
    """Return the figures of a capture."""
    try:
        experiment = Experiment.from_table(capture.settings)
    except TypeError as error:
        raise ValueError(f"its settings are damaged: {error}") from None
    source = _source(capture, experiment)
    sequences, durations = delays_by_run(capture, experiment)
    delays = np.concatenate(sequences)
    unread = float(np.mean(np.isinf(delays)))
    first = capture.runs[0]
    measured = MeasuredDelay(
        name=capture.name,
        collection=collection,
        experiment=experiment,
        source=source,
        backend=first.backend,
        kernel=first.kernel,
        hz=first.hz,
        runs=len(sequences),
        offered=capture.offered,
        unread=unread,
        loss=_path_loss(capture.runs),
        rtt=_mean_rtt(capture.runs),
        sustainable=unread <= MOST_UNREAD and _ran_dry(sequences, experiment.rtt + 1 / source.message_rate),
        growth=float(np.mean([_growth(*run) for run in zip(sequences, durations, strict=True)])),
        sizes=tuple(run.written.size for run in capture.runs),
        phases=tuple(_phase(run) for run in capture.runs),
        retransmitted=_counted(capture.runs, "RetransSegs"),
        spurious=_counted(capture.runs, "TCPDSACKRecv"),
        **_figures(sequences, capture.path.forward_delay),
    )
    return replace(measured, by_kind=dict(_kinds(measured, capture)))


def _figures(sequences: Sequence[NDArray[np.float64]], forward_delay: float) -> dict[str, Any]:
    """Return the figures of `MeasuredDelay` that follow from the delays [s] of each run."""
    delays = np.concatenate(sequences)
    read = bool(np.isfinite(delays).all())
    late = {limit: mean_interval([np.where(part > limit, 1.0, 0.0) for part in sequences]) for limit in PLAYOUT_DELAYS}
    return {
        "mean": mean_interval(sequences) if read else Interval(np.inf, np.inf, np.inf),
        **{name: quantile_interval(sequences, probability) for name, probability in QUANTILES.items()},
        "late": {limit: _share(interval) for limit, interval in late.items()},
        "distribution": DelayDistribution.from_samples(delays, forward_delay),
    }


def _kinds(measured: MeasuredDelay, capture: FlowCapture) -> Iterator[tuple[str, MeasuredDelay]]:
    """Yield each kind of messages and its figures; kinds with fewer messages than batches are left out."""
    messages = capture.runs[0].messages
    kinds = () if messages is None else messages.kinds
    for number, kind in enumerate(kinds if len(kinds) > 1 else ()):
        sequences, _ = delays_by_run(capture, measured.experiment, number)
        if sum(part.size for part in sequences) >= BATCHES:
            yield kind, replace(measured, kind=kind, **_figures(sequences, capture.path.forward_delay))


def _source(capture: FlowCapture, experiment: Experiment) -> Source:
    """Return the source of a capture; of a trace, one period of the messages in the capture."""
    if experiment.source is None:
        return experiment.flow
    content = experiment.source.content
    if not isinstance(content, TraceFile):
        return content
    written = capture.trace()
    period = content.period or experiment.duration
    first = slice(int(np.searchsorted(written.times, period - WRITE_DELAY)))
    labels = np.array(written.kinds)[written.labels.codes[first]]
    return Trace(written.times[first], written.sizes[first], period, labels)


def _phase(run: FlowRun) -> float | None:
    """Return the time from a tick to the first write [s]; the ticks of a guest in virtual time begin with its clock."""
    if run.backend != VIRTUAL_TIME or run.hz == 0:
        return None
    return ((run.epoch - VIRTUAL_TIME_START) / 1e9) % (1 / run.hz)


def _share(share: Interval) -> Interval:
    """Return the interval of a share, cut off at 0 and 1."""
    return Interval(share.value, max(share.low, 0.0), min(share.high, 1.0))


def delays_by_run(
    capture: FlowCapture, experiment: Experiment, kind: int | None = None
) -> tuple[list[NDArray[np.float64]], list[float]]:
    """Return the delays [s] of each run without its two ends, and the time for which the run wrote packets [s].

    The delays are in the order of writing, with all flows of a run together. A run can be longer than the experiment's
    `duration`, which is the duration of the first run. If the number of a `kind` is given, only its messages count.
    """
    warm_up = min(WARM_UP, LARGEST_WARM_UP_SHARE * experiment.duration)
    written: dict[int, list[NDArray[np.int64]]] = {}
    delays: dict[int, list[NDArray[np.float64]]] = {}
    durations: dict[int, float] = {}
    for run in capture.runs:
        longest = durations.get(run.run, experiment.duration)
        durations[run.run] = max(longest, float(run.written.max(initial=0)) / MICROSECONDS)
    for run, part in zip(capture.runs, capture.delays(), strict=True):
        # Packets that were written last may not have been read before the run ended.
        last = (durations[run.run] - warm_up / 2) * MICROSECONDS
        kept = (run.written >= warm_up * MICROSECONDS) & (run.written <= last)
        if kind is not None and run.messages is not None:
            kept &= run.messages.kind_numbers == kind
        written.setdefault(run.run, []).append(run.written[kept])
        delays.setdefault(run.run, []).append(part[kept])
    sequences, lengths = [], []
    for number, parts in delays.items():
        order = np.argsort(np.concatenate(written[number]), kind="stable")
        if order.size:
            sequences.append(np.concatenate(parts)[order])
            lengths.append(durations[number])
    return sequences, lengths


def _path_loss(runs: Sequence[FlowRun]) -> float:
    """Return the share of packets dropped on the way to the receiver; the flows of a run report the same counts."""
    counts = list({run.run: run.packets for run in runs}.values())
    kept, counted = 1.0, False
    for queue in ("data", "bottleneck"):
        dropped = sum(count.get(f"{queue}_dropped", 0) for count in counts)
        total = dropped + sum(count.get(f"{queue}_sent", 0) for count in counts)
        if total:
            kept *= 1 - dropped / total
            counted = True
    return 1 - kept if counted else float("nan")


def _counted(runs: Sequence[FlowRun], counter: str) -> int:
    """Return a counter of the sender's host over all runs; the flows of a run report the same counts."""
    return sum({run.run: run.counters.get(counter, 0) for run in runs}.values())


def _mean_rtt(runs: Sequence[FlowRun]) -> float:
    samples = np.concatenate([run.samples.get("rtt", np.empty(0, np.int64)) for run in runs])
    samples = samples[samples > 0]
    return float(samples.mean()) / MICROSECONDS if samples.size else float("nan")


def _ran_dry(sequences: Sequence[NDArray[np.float64]], slack: float) -> bool:
    """Return whether the send buffer was empty at some time in the second half of most runs.

    A packet that finds the buffer empty takes longer than the fastest packet by one round-trip time at most, for its
    retransmission. `slack` is the round-trip time plus one interval of the flow [s].
    """
    dry = sum(bool(each[each.size // 2 :].min() <= each.min() + slack) for each in sequences)
    return 2 * dry >= len(sequences)


def _growth(sequence: NDArray[np.float64], duration: float) -> float:
    quarter = max(1, sequence.size // 4)
    first, last = float(np.median(sequence[:quarter])), float(np.median(sequence[-quarter:]))
    if not np.isfinite(last):
        return float("inf")
    return (last - first) / (0.75 * duration)


_WRITTEN = "name a folder or a set to which 'tcpdelay testbed run' wrote captures"


def measure_all(
    place: str | os.PathLike[str],
    on_broken: Callable[[str], None],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[MeasuredDelay]:
    """Measure every capture of a set, or of the sets and captures in a directory and in its subdirectories."""
    root = FilePath(place)
    if not root.exists():
        raise ValueError(f"{str(root)!r} does not exist; {_WRITTEN}")
    if not (files := capture_files(root)):
        raise ValueError(f"{str(root)!r} holds no capture, that is, no file ending in {SUFFIX}; {_WRITTEN}")
    found: list[tuple[CaptureFile, str]] = []
    measured, broken = [], []
    for file in files:
        try:
            opened = CaptureFile(file)
        except ValueError as error:
            broken.append(str(error))
            continue
        found += [(opened, name) for name in opened.names]
    for done, (opened, name) in enumerate(found):
        on_progress(done, len(found))
        try:
            capture = opened.read(name)
        except ValueError as error:
            broken.append(str(error))
            continue
        try:
            measured.append(measure(capture, _collection(opened, root)))
        except ValueError as error:
            place = f"{opened.path}: {name}" if opened.is_set else opened.path
            broken.append(f"{place}: cannot be used: {error}")
    if not measured:
        first = broken[0].removeprefix(f"{root}{os.sep}")
        raise ValueError(
            f"{str(root)!r} holds no capture that can be used among {len(files)} files, the first of which is {first}; "
            f"{_WRITTEN}"
        )
    for message in broken:
        on_broken(message)
    return measured


def _collection(file: CaptureFile, root: FilePath) -> str:
    """Return the name of a set, or of the folder in which single captures are."""
    if file.is_set:
        return file.path.name.removesuffix(SUFFIX)
    return "" if file.path.parent == root else file.path.parent.name
