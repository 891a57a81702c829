"""The models that are compared with captures, and their predictions; each prediction is computed once."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.declare import FORMATS
from tcpdelay.delays import DelayDistribution, UnsettledWarning
from tcpdelay.models.predict import chain_model, predict, supports
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import (
    TIME_BASED_RECOVERY,
    CongestionControl,
    KnownStack,
    Linux,
    Quic,
    QuicControl,
    Stack,
    kernel_of_release,
)
from tcpdelay.sim.engine import CONNECTION_TIME, SHORTEST_CONNECTION
from tcpdelay.sim.records import Rules
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.captures import QUANTILES, VIRTUAL_TIME, WARM_UP, MeasuredDelay
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.units import format_fraction, format_time

PACKETS = 400_000
"""Number of packets or messages in the simulation of a capture, over all its runs."""
FEWEST_PACKETS = 1_000
"""Smallest number of packets in the simulation of one connection in one run."""
SIMULATED_CAPTURES = 20
"""Simulations of the length of a capture, between whose lowest and highest values a capture is by chance."""
MOST_MESSAGES = 50_000
"""Largest number of messages of each of these simulations, which together take about a second."""
CONTROL_OVER_QUIC: Mapping[str, QuicControl] = {"reno": "newreno", "cubic": "cubic"}
"""The congestion control of `Stack.quic` by the word of an experiment over QUIC."""
SMALLEST_RESERVE = 0.002
"""Smallest spare capacity of TCP, relative to the flow's rate, with which the chain is solved.

With less, delays are minutes long and depend on the last digits of the spare capacity, and a solution takes half a
minute.
"""


@dataclass(frozen=True)
class SimulatedFlow:
    """The inputs of the simulation of a capture."""

    flow: Flow  # Packet size and interval
    path: Path  # The network
    stack: Linux  # The kernel's TCP, as in the capture
    rules: Rules  # The rules of the kernel that the simulated sender follows
    connections: int  # Number of independent connections that carry the packets in turn
    packets: tuple[int, ...]  # Number of packets of each run
    # Time from a tick of the kernel's clock to the first write [s], for each run; None if it is unknown.
    phases: tuple[float | None, ...]
    seeds: tuple[int, ...]  # Seed of each run, derived from the capture's name
    # Whether each run ends with its last write, like a capture: packets that are unread at that time are never read.
    ends: bool = False
    # Age that the connections reach in the capture [s]; only the delays of BBR depend on it.
    connection_time: float = CONNECTION_TIME


def not_simulated(experiment: Experiment, behind_router: bool = False) -> str:
    """Return in a few words why the simulator cannot simulate an experiment; an empty string if it can.

    With `behind_router`, a single flow may stand for one that shares a queue with others.
    """
    reasons = {
        "no TCP": experiment.application == "udp",
        "a source that fills its window": experiment.application == "adaptive",
        "a queue shared with other flows": experiment.routed and not behind_router,
        "writes at the same instant": experiment.pieces > 1,
        "connections chosen by their state": experiment.connections > 1 and experiment.scheduling != "blind",
        f"congestion control {experiment.congestion_control}": experiment.congestion_control
        not in get_args(CongestionControl),
        "Nagle's algorithm": not experiment.nodelay,
        "recovery without SACK": not experiment.sack,
        "a setting of RACK between on and off": experiment.recovery not in (0, 1),
        "a setting of early retransmission between on and off": experiment.early_retrans not in (0, 3),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


@dataclass(frozen=True)
class SimulatedMessages:
    """The inputs of the simulation of a capture of messages."""

    source: Source  # The source of the messages
    # path, stack: As for `SimulatedFlow`, or the implementation and delivery of QUIC.
    path: Path
    stack: Linux | Quic
    rules: Rules  # As for `SimulatedFlow`; for QUIC, which has no rules of a kernel, the default
    # Seed of the simulation, derived from the capture's name. The simulated messages differ from the captured ones.
    seed: int


def simulated_flow(capture: MeasuredDelay) -> SimulatedFlow | None:
    """Return the inputs of the simulation of a capture of a flow; None if the capture is not simulated as a flow."""
    experiment = capture.experiment
    if not_simulated(experiment) or experiment.source is not None or experiment.application == "quic":
        return None
    packets = [max(PACKETS * size // sum(capture.sizes), FEWEST_PACKETS) for size in capture.sizes]
    if experiment.congestion_control == "bbr":
        # Delays depend on the age of the connection: whole connections are simulated.
        packets = [-(-count // size) * size for count, size in zip(packets, capture.sizes, strict=True)]
    return SimulatedFlow(
        flow=capture.flow,
        path=_path(capture),
        stack=_simulated_stack(capture),
        rules=_rules(capture),
        connections=experiment.connections,
        packets=tuple(packets),
        phases=capture.phases,
        seeds=tuple(_seed(f"{capture.name}/{run}") for run in range(len(capture.phases))),
        connection_time=experiment.duration,
    )


def simulated_messages(capture: MeasuredDelay) -> SimulatedMessages | None:
    """Return the inputs of the simulation of a capture of messages or of QUIC; None for others, or if not simulated."""
    experiment = capture.experiment
    quic = experiment.application == "quic"
    if not_simulated(experiment) or not (quic or experiment.source is not None):
        return None
    rules = Rules() if quic else _rules(capture)
    return SimulatedMessages(capture.source, _path(capture), _stack(capture), rules, _seed(capture.name))


def captured_scenario(capture: MeasuredDelay) -> Scenario | None:
    """Return source, path and stack of a capture as its user would describe them; None if no scenario does."""
    experiment = capture.experiment
    parts = experiment.connections > 1
    if not_simulated(experiment, behind_router=True) or experiment.ecn or parts or _rules(capture) != Rules():
        return None
    # Independent losses are the better input for a path whose losses somebody has measured.
    path = replace(capture.path, loss_pattern="random") if experiment.routed else _path(capture)
    return Scenario(capture.source, path, _stack(capture))


def _stack(capture: MeasuredDelay) -> Linux | Quic:
    experiment = capture.experiment
    if experiment.application == "quic":
        control = CONTROL_OVER_QUIC[experiment.congestion_control]
        return Stack.quic(experiment.implementation, control, experiment.delivery, group=experiment.group)
    return _simulated_stack(capture)


def _simulated_stack(capture: MeasuredDelay) -> Linux:
    experiment = capture.experiment
    return Stack.linux(
        congestion_control=cast(CongestionControl, experiment.congestion_control),
        delayed_ack=experiment.delayed_ack,
        window_validation=experiment.slow_start_after_idle,
        hz=capture.hz,
        rto_min=_rto_min(experiment),
        kernel=kernel_of_release(capture.kernel),
    )


def _rto_min(experiment: Experiment) -> float:
    """Return the smallest timeout of an experiment beyond the round-trip time [s]."""
    return Stack.linux().rto_min if experiment.rto_min is None else experiment.rto_min


def _rules(capture: MeasuredDelay) -> Rules:
    experiment = capture.experiment
    rack = experiment.recovery == 1 or TIME_BASED_RECOVERY.holds(kernel_of_release(capture.kernel))
    return Rules(rack=rack, tail_loss_probe=experiment.early_retrans == 3)


def _path(capture: MeasuredDelay) -> Path:
    """Return the path of a capture; in real time with the measured round-trip time, to which the machine adds."""
    experiment = capture.experiment
    path = experiment.lossy_path
    return path if capture.backend == VIRTUAL_TIME or not capture.rtt > 0 else replace(path, rtt=capture.rtt)


def simulate_flow(simulated: SimulatedFlow) -> DelayDistribution:
    """Simulate every run of a capture."""
    runs, path = simulated_runs(simulated), simulated.path
    if 2 * sum(bool(np.isfinite(run).any()) for run in runs) < len(runs):
        return DelayDistribution.unsustainable(path.forward_delay)
    return DelayDistribution.from_samples(np.concatenate(runs), path.forward_delay, "simulation")


def simulated_runs(simulated: SimulatedFlow) -> list[NDArray[np.float64]]:
    """Return the simulated delays [s] of each run in the order of writing; infinite if TCP cannot carry the flow."""
    return [_simulated_run(simulated, number) for number in range(len(simulated.phases))]


def _simulated_run(simulated: SimulatedFlow, number: int) -> NDArray[np.float64]:
    flow, count, phase = simulated.flow, simulated.connections, simulated.phases[number]
    share = replace(flow, interval=flow.interval * count)
    packets = max(simulated.packets[number] // count, FEWEST_PACKETS)
    parts = []
    for connection in range(count):
        simulation = simulate(
            share,
            simulated.path,
            simulated.stack,
            packets=packets,
            seed=_seed(f"{simulated.seeds[number]}/{connection}"),
            rules=simulated.rules,
            # Only in virtual time do an ACK and a write often fall into the same microsecond.
            exact_ties=phase is not None,
            tick_offset=None if phase is None else (phase + connection * flow.interval) % (1 / simulated.stack.hz),
            trace=True,
            connection_time=max(simulated.connection_time, SHORTEST_CONNECTION),
        )
        parts.append(simulation.read_after if simulation.sustainable else np.full(packets, np.inf))
    delays = np.stack(parts, axis=1).ravel()
    written = np.arange(delays.size) * flow.interval
    if count > 1:
        # The application reads the packets of all connections in order.
        delays = np.asarray(np.maximum.accumulate(written + delays) - written, np.float64)
    if simulated.ends:
        counted = written < written[-1] - WARM_UP / 2
        delays = np.where(written + delays > written[-1], np.inf, delays)[counted]
    return delays


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for a flow on a path."""

    # The delays; None if the chain was not solved, because TCP has nearly no spare capacity for the flow, or the
    # chain is too large.
    distribution: DelayDistribution | None

    @property
    def sustainable(self) -> bool:
        """Whether TCP can carry the flow; True if the chain was not solved."""
        return self.distribution is None or self.distribution.sustainable

    def quantile(self, probability: float) -> float:
        """Return the quantile [s]; NaN where the chain was not solved."""
        return float("nan") if self.distribution is None else self.distribution.quantile(probability)

    @property
    def mean(self) -> float:
        """Mean delay [s]; NaN where the chain was not solved."""
        return float("nan") if self.distribution is None else self.distribution.mean

    def late_fraction(self, playout_delay: float) -> float:
        """Return the share of packets later than `playout_delay` [s]; NaN where the chain was not solved."""
        return float("nan") if self.distribution is None else self.distribution.late_fraction(playout_delay)

    def of_kind(self, kind: str) -> Prediction | None:
        """Return the prediction for one kind of messages; None if the model does not know it."""
        by_kind: Mapping[str, DelayDistribution] = getattr(self.distribution, "by_kind", {})
        return Prediction(by_kind[kind]) if kind in by_kind else None


NOT_SOLVED = Prediction(None)


@dataclass(frozen=True)
class ScoredModel:
    """A model that is compared with captures."""

    name: str  # Name in tables and files
    title: str  # What the model is, in a few words
    # Returns everything in a capture that the model's prediction depends on; None if the model cannot describe the
    # capture.
    question: Callable[[MeasuredDelay], Hashable | None]
    answer: Callable[[Any], Prediction]  # Returns the prediction for a question


def chain(name: str, title: str, stack: Callable[[MeasuredDelay], KnownStack], routed: bool = True) -> ScoredModel:
    """Return a chain as a model to compare with captures of the default stack in virtual time."""

    def question(capture: MeasuredDelay) -> Scenario | None:
        described = capture.default_settings or (routed and capture.experiment.routed)
        scenario = Scenario(capture.source, capture.path, stack(capture))
        # If the chain refuses a field of the path, the capture is listed as not solved. If the chain refuses the
        # source, the capture is left out.
        known = isinstance(capture.source, Flow) or not supports(scenario).refused
        return scenario if described and known else None

    return ScoredModel(name, title, question, solve)


def solve(scenario: Scenario) -> Prediction:
    """Return the chain's prediction; the chain is not solved if TCP cannot carry the flow or it would take too long."""
    rate = scenario.source.message_rate
    try:
        capacity = chain_model(scenario).capacity(scenario)
    except ValueError:
        return NOT_SOLVED
    # The capacity takes little time to compute. If the rate exceeds it, the backlog has no bound.
    if capacity <= rate:
        return Prediction(DelayDistribution.unsustainable(scenario.path.forward_delay))
    if capacity - rate < SMALLEST_RESERVE * rate:
        return NOT_SOLVED
    return Prediction(predict(scenario, method="chain").distribution)


def _published(capture: MeasuredDelay) -> KnownStack:
    return Stack.newreno_2008(backlog_bound="grow")


def _published_with_timeout_of_linux(capture: MeasuredDelay) -> KnownStack:
    timeout = capture.path.rtt + Stack.linux().rto_min
    return Stack.newreno_2008(initial_timeout=timeout, limited_transmit=True, backlog_bound="grow")


def _linux(capture: MeasuredDelay) -> KnownStack:
    control = cast(CongestionControl, capture.experiment.congestion_control)
    kernel = kernel_of_release(capture.kernel)
    return Stack.linux(control, hz=capture.hz, rto_min=_rto_min(capture.experiment), kernel=kernel)


def _simulate(simulated: SimulatedFlow | SimulatedMessages) -> Prediction:
    if isinstance(simulated, SimulatedFlow):
        return Prediction(simulate_flow(simulated))
    source, path, stack = simulated.source, simulated.path, simulated.stack
    return Prediction(simulate(source, path, stack, packets=PACKETS, seed=simulated.seed, rules=simulated.rules))


PUBLISHED = chain("newreno_2008", "published chain with a growing bound, first timeout of 4 RTT", _published)
PUBLISHED_LINUX_TIMEOUT = chain(
    "newreno_2008-rto",
    "published chain with a growing bound, first timeout of RTT + 200 ms, limited transmit",
    _published_with_timeout_of_linux,
)
LINUX = chain("linux", "chain of current Linux, of the capture's congestion control", _linux, routed=False)
SIMULATOR = ScoredModel(
    "simulator",
    "Linux TCP simulated ACK by ACK, of the capture's congestion control; QUIC packet by packet",
    lambda capture: simulated_flow(capture) or simulated_messages(capture),
    _simulate,
)
MODELS = (PUBLISHED, PUBLISHED_LINUX_TIMEOUT, LINUX, SIMULATOR)


class Predictions:
    """The models' predictions, each computed once."""

    def __init__(self, models: Sequence[ScoredModel] = MODELS) -> None:
        self.models = {model.name: model for model in models}
        self._known: dict[tuple[str, Hashable], Prediction] = {}

    def of(self, name: str, capture: MeasuredDelay) -> Prediction | None:
        """Return the prediction of the model `name` for a capture; None if the model cannot predict the capture.

        If `capture` has the figures of one kind of messages, the prediction is for messages of this kind.
        """
        model = self.models[name]
        question = model.question(capture)
        if question is None:
            return None
        if (name, question) not in self._known:
            self._known[name, question] = model.answer(question)
        predicted = self._known[name, question]
        return predicted.of_kind(capture.kind) if capture.kind else predicted


# Scores of predictions: errors, errors relative to the uncertainty of the measurement, and groups of captures.

QUANTITIES = ("p50", "p95", "p99", "mean")
HALF_WIDTH = 2.09
"""Half the interval of a mean, in standard errors: Student's quantile for 20 batches."""
SAME_DELAY = 0.001
"""Delays that differ by less than this count as the same delay where shares of packets are compared [s].

Delays have a few typical values. Without this tolerance, a shift of a typical value by a microsecond would count as a
large difference.
"""
RTT_GROUPS = (0.050, 0.160)
UTILIZATION_BANDS = (0.1, 1 / 3, 2 / 3, 0.9)
_Grouping = tuple[str, Callable[[MeasuredDelay], tuple[float, str]]]


@dataclass(frozen=True)
class Score:
    """One model's prediction of one capture."""

    measured: MeasuredDelay  # The capture
    model: str  # Name of the model
    prediction: Prediction

    def measurement(self, quantity: str) -> Interval:
        """Return a measured quantity of `QUANTITIES` [s] with its interval."""
        interval: Interval = getattr(self.measured, quantity)
        return interval

    def predicted(self, quantity: str) -> float:
        """Return a predicted quantity of `QUANTITIES` [s]; infinite if not carried, NaN if not solved."""
        return self.prediction.mean if quantity == "mean" else self.prediction.quantile(QUANTILES[quantity])

    def error(self, quantity: str) -> float:
        """Return the prediction's relative error, predicted / measured - 1; NaN if a value is unknown."""
        return relative_error(self.predicted(quantity), self.measurement(quantity).value)

    def error_beyond_interval(self, quantity: str) -> float:
        """Return the relative distance from the nearest end of the measurement's interval; 0 inside the interval."""
        return error_beyond(self.predicted(quantity), self.measurement(quantity))

    def inside_interval(self, quantity: str) -> bool:
        """Return whether the prediction is within the measurement's interval, or less than `SAME_DELAY` from it."""
        interval = self.measurement(quantity)
        return interval.low - SAME_DELAY <= self.predicted(quantity) <= interval.high + SAME_DELAY

    @property
    def standard_errors_apart(self) -> float:
        """Predicted minus measured mean delay, in standard errors of the measurement; NaN if a value is unknown."""
        half_width = (self.measured.mean.high - self.measured.mean.low) / 2
        if not 0 < half_width < math.inf:
            return float("nan")
        return (self.predicted("mean") - self.measured.mean.value) * HALF_WIDTH / half_width

    @cached_property
    def mean_distance(self) -> float:
        """Mean distance between the quantiles of both distributions (Wasserstein-1), over the measured mean delay.

        Infinite if the model predicts that TCP cannot carry the flow; NaN if a distribution is unknown.
        """
        if self.prediction.distribution is None:
            return float("nan")
        return mean_distance(self.prediction.distribution, self.measured.distribution)

    @cached_property
    def largest_gap(self) -> float:
        """Largest difference in the share of packets read in time (Kolmogorov-Smirnov); NaN if unknown."""
        if self.prediction.distribution is None:
            return float("nan")
        return largest_gap(self.prediction.distribution, self.measured.distribution)

    @property
    def sustainable_call_right(self) -> bool:
        """Whether the model predicts correctly if TCP carries the flow."""
        return self.prediction.sustainable == self.measured.sustainable

    @property
    def comparable(self) -> bool:
        """Whether delays can be compared: the utilization is below 0.9, and TCP carried the flow."""
        return self.measured.utilization < LARGEST_SUSTAINABLE_UTILIZATION and self.measured.sustainable


def range_by_chance(
    scenario: Scenario, messages: int, losses: tuple[float, float], probability: float
) -> Interval | None:
    """Return the median of a quantile in simulations as long as a capture, and the lowest and the highest [s].

    Simulations have no more than `MOST_MESSAGES`: chance has a smaller effect on a longer capture.

    Each simulation has another loss of the interval in which the captured one probably is. None where the simulator
    does not support the scenario, or the capture is too short.
    """
    stack = scenario.stack
    if messages < FEWEST_PACKETS or supports(scenario, "simulation").refused or not isinstance(stack, Linux | Quic):
        return None
    quantiles, packets = [], min(messages, MOST_MESSAGES)
    with warnings.catch_warnings():
        # A short simulation need not settle, and neither has the capture.
        warnings.simplefilter("ignore", UnsettledWarning)
        for seed, loss in enumerate(np.linspace(*losses, SIMULATED_CAPTURES).tolist()):
            path = replace(scenario.path, loss=loss)
            found = simulate(scenario.source, path, stack, packets=packets, seed=seed)
            quantiles.append(found.quantile(probability))
    return Interval(float(np.median(quantiles)), min(quantiles), max(quantiles))


def relative_error(predicted: float, measured: float) -> float:
    """Return predicted / measured - 1; NaN if the measured value is not finite or not positive."""
    if not (math.isfinite(measured) and measured > 0):
        return float("nan")
    return predicted / measured - 1


def error_beyond(predicted: float, measured: Interval) -> float:
    """Return the distance of a prediction from an interval, relative to the measured value, with its sign."""
    if not (math.isfinite(measured.value) and measured.value > 0) or math.isnan(predicted):
        return float("nan")
    if measured.low <= predicted <= measured.high:
        return 0.0
    nearest = measured.low if predicted < measured.low else measured.high
    return (predicted - nearest) / measured.value


def mean_distance(predicted: DelayDistribution, measured: DelayDistribution) -> float:
    """Return the mean distance between the quantiles of two distributions, relative to the measured mean."""
    if not (math.isfinite(measured.mean) and measured.mean > 0):
        return float("nan")
    if not math.isfinite(predicted.mean):
        return float("inf")
    places = np.minimum(np.concatenate([np.cumsum(one.weights)[:-1] for one in (predicted, measured)]), 1.0)
    edges = np.concatenate([[0.0], np.sort(places), [1.0]])
    middles = (edges[1:] + edges[:-1]) / 2
    distances = np.abs(predicted.quantile(middles) - measured.quantile(middles))
    return float(np.diff(edges) @ distances) / measured.mean


def largest_gap(one: DelayDistribution, other: DelayDistribution, same: float = SAME_DELAY) -> float:
    """Return the largest difference of two cumulative distributions, with a tolerance for shifted delays."""

    def excess(upper: DelayDistribution, lower: DelayDistribution) -> float:
        delays = upper.values[np.isfinite(upper.values)]
        if not delays.size:
            return 0.0
        return float(np.max(np.cumsum(upper.weights)[: delays.size] - lower.cdf(delays + same)))

    return max(excess(one, other), excess(other, one), 0.0)


def predictable(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return the captures with losses: without losses, the delay is the network's delay."""
    return [capture for capture in measured if capture.experiment.loss > 0 or capture.experiment.routed]


def score(
    measured: Sequence[MeasuredDelay],
    predictions: Predictions,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:
    """Return the score of each model for each capture that the model can predict."""
    scores = []
    for done, capture in enumerate(measured):
        on_progress(done, len(measured))
        for part in (capture, *capture.by_kind.values()):
            for name in predictions.models:
                prediction = predictions.of(name, part)
                if prediction is not None:
                    scores.append(Score(part, name, prediction))
    return scores


def rtt_group(rtt: float) -> tuple[int, str]:
    """Return the rank and the name of the group of round-trip times that `rtt` [s] belongs to."""
    low, high = (format_time(edge) for edge in RTT_GROUPS)
    if rtt < RTT_GROUPS[0]:
        return 0, f"below {low}"
    return (1, f"{low} to {high}") if rtt <= RTT_GROUPS[1] else (2, f"above {high}")


def _utilization_band(measured: MeasuredDelay) -> tuple[float, str]:
    below = 0.0
    for place, edge in enumerate(UTILIZATION_BANDS):
        if measured.utilization < edge:
            return place, f"{below:.2g} to {edge:.2g}"
        below = edge
    return len(UTILIZATION_BANDS), f"{below:.2g} and more"


GROUPINGS: Sequence[_Grouping] = (
    ("RTT", lambda measured: rtt_group(measured.path.rtt)),
    ("loss", lambda measured: (measured.experiment.loss, format_fraction(measured.experiment.loss))),
    ("messages", lambda measured: (0, measured.words)),
    ("packet size", lambda measured: (measured.source.mean_size, f"{measured.source.mean_size:.0f} B")),
    ("interval", lambda measured: (1 / measured.source.message_rate, format_time(1 / measured.source.message_rate))),
    ("utilization", _utilization_band),
    ("HZ", lambda measured: (measured.hz, str(measured.hz))),
    ("congestion control", lambda measured: (0, measured.experiment.congestion_control)),
)
"""The groupings of errors: each returns the rank and the name of a capture's group."""


def difference(experiment: Experiment, default: Experiment) -> str:
    """Return in words the settings of an experiment that differ from the settings of a default experiment."""
    changed = []
    for field in fields(Experiment):
        value = getattr(experiment, field.name)
        if value != getattr(default, field.name):
            shown = FORMATS["flag"](value) if isinstance(value, bool) else value
            changed.append(f"{field.name} {shown}")
    return ", ".join(changed)
