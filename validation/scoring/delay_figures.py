"""Figures of delays: whole distributions, the 95th percentile by loss, and the packets after a single loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoring.figures import COLORS, INK, model_names, with_ends
from tcpdelay.capture.flow_capture import FlowCapture
from tcpdelay.report.charts import (
    LABEL_SIZE,
    LINE_WIDTH,
    SMALLEST_SURVIVAL,
    fraction_axis,
    linear_time_axis,
    round_ticks,
    tidy,
    time_axis,
)
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.study.validation.captures import MeasuredDelay, delays_by_run
from tcpdelay.study.validation.predictions import SIMULATOR, Score, simulated_flow, simulated_runs
from tcpdelay.units import format_fraction, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PROBABILITIES = (0.1, 0.5, 0.9)
"""Quantiles of the delay of each packet after a loss."""
SLACK = 0.002
"""Delay beyond the network's delay from which a packet counts as late [s]: more than the noise of real time."""
QUIET_TIME = 1.0
"""A loss is isolated if no packet was late for this time plus a round-trip time before it [s]."""
LONGEST_PATTERN, SHORTEST_PATTERN = 64, 12
"""Largest and smallest number of packets in the pattern after a loss."""
ROUND_TRIPS = 4
"""Length of the pattern after a loss in round-trip times, within these numbers of packets."""
FEWEST_LOSSES = 20
Case = tuple[float, float, int]
MODEL_LINES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = {"reno": "o", "cubic": "s"}
OVERLAYS = (
    (0.020, 0.01, 174),
    (0.100, 0.01, 174),
    (0.300, 0.01, 174),
    (0.100, 0.05, 174),
    (0.100, 0.01, 1448),
    (0.020, 0.05, 1448),
)
"""Round-trip time [s], loss and packet size [bytes] of the cases whose whole distributions are drawn."""
INTERVAL = 0.020
"""Time between two packets of the flows that are drawn [s]."""
SHAPE_PROBABILITIES = np.concatenate([np.linspace(0.002, 0.988, 200), 1 - np.geomspace(0.01, 1e-4, 60)])
"""Quantiles through which measured distributions are drawn."""
RIGHT_END = 0.9985
"""Quantile up to which distributions are drawn."""
_STEPS: Literal["steps-post"] = "steps-post"
RECOVERIES = (
    (0.020, 0.01, 174),
    (0.300, 0.01, 174),
    (0.020, 0.01, 1448),
    (0.100, 0.01, 1448),
)
"""Round-trip time [s], loss and packet size [bytes] of the cases that are drawn: small and large round-trip times."""
CONTROL = "cubic"
_SHIFT = 0.16
"""Half the horizontal distance between measured and simulated points [packets]."""
_AXIS_HEIGHT = 1.35
"""Height of the axis relative to the largest delay, which leaves space for the legend."""


def delays_after_loss(sequences: Sequence[NDArray[np.float64]], flow: Flow, path: Path) -> NDArray[np.float64]:
    """Return quantiles of the delays [s] of the packets from an isolated loss on, shape (3, n); n is 0 with few losses.

    Delays do not show which packets were lost. Therefore a loss is isolated if no packet was late for some time before.
    Further losses within the pattern are not removed; they increase the distance between its quantiles.
    """
    quiet = math.ceil((QUIET_TIME + path.rtt) / flow.interval)
    length = min(max(SHORTEST_PATTERN, 1 + math.ceil(ROUND_TRIPS * path.rtt / flow.interval)), LONGEST_PATTERN)
    patterns = []
    for delays in sequences:
        late = delays > path.forward_delay + SLACK
        before = np.concatenate([[0], np.cumsum(late)])
        places = np.arange(quiet, max(quiet, delays.size - length + 1))
        losses = places[late[places] & (before[places] == before[places - quiet])]
        patterns.append(delays[losses[:, None] + np.arange(length)])
    found = np.concatenate(patterns) if patterns else np.empty((0, length))
    if found.shape[0] < FEWEST_LOSSES:
        return np.empty((len(PROBABILITIES), 0))
    return np.asarray(np.quantile(found, PROBABILITIES, axis=0, method="inverted_cdf"), np.float64)


def overlay_cases(scores: Sequence[Score]) -> list[tuple[Case, list[Score]]]:
    """Return the measured cases of `OVERLAYS` with their scores."""
    cases = []
    for case in OVERLAYS:
        own = [
            score
            for score in scores
            if (score.measured.experiment.rtt, score.measured.experiment.loss, score.measured.experiment.packet_size)
            == case
            and score.measured.experiment.interval == INTERVAL
        ]
        if own:
            cases.append((case, own))
    return cases


def draw_overlays(figure: Figure, cases: Sequence[tuple[Case, list[Score]]]) -> None:
    """Draw the share of packets later than each delay, measured and predicted, with one panel for each case."""
    panels = figure.subplots(math.ceil(len(cases) / 2), 2, squeeze=False).flat
    for ax, ((rtt, loss, size), scores) in zip(panels, cases, strict=False):
        tidy(ax)
        linear_time_axis(ax.xaxis)
        ax.set_yscale("log")
        ax.set_ylim(SMALLEST_SURVIVAL, 1.0)
        fraction_axis(ax.yaxis)
        ends = []
        for capture in {score.measured.name: score.measured for score in scores}.values():
            control = capture.experiment.congestion_control
            style: Any = "solid" if control == "reno" else "dotted"
            ax.plot(
                capture.distribution.quantile(SHAPE_PROBABILITIES),
                1 - SHAPE_PROBABILITIES,
                color=INK,
                linewidth=1.2,
                linestyle=style,
                label=f"measured, {control}",
            )
            ends.append(capture.distribution.quantile(RIGHT_END))
        for number, model in enumerate(model_names(scores)):
            # A model that does not distinguish congestion controls gives the same prediction twice.
            distinct = {id(score.prediction): score.prediction.distribution for score in scores if score.model == model}
            known = [one for one in distinct.values() if one is not None and one.sustainable]
            for place, distribution in enumerate(known):
                delays = distribution.values[np.isfinite(distribution.values)]
                later = np.maximum(distribution.late_fraction(delays), SMALLEST_SURVIVAL / 10)
                steps, name = ([0.0, *delays], [1.0, *later]), "" if place else model
                ax.plot(*steps, color=COLORS[number], drawstyle=_STEPS, linewidth=1.2, label=name)
                ends.append(distribution.quantile(RIGHT_END))
        finite = [end for end in ends if math.isfinite(end)]
        ax.set_xlim(0.0, 1.1 * max(finite, default=1.0))
        ax.set_title(f"{size} B, RTT {format_time(rtt)}, loss {format_fraction(loss)}", fontsize=LABEL_SIZE)
        ax.set_xlabel("delay")
        ax.set_ylabel("later than that")
        ax.legend(loc="upper right")
    for ax in panels:
        ax.set_axis_off()


def draw_by_loss(figure: Figure, scores: Sequence[Score]) -> None:
    """Draw the 95th percentile by loss, with one colour for each round-trip time: points measured, lines predicted."""
    ax = figure.subplots()
    tidy(ax)
    captures = list({score.measured.name: score.measured for score in scores if score.measured.sustainable}.values())
    rtts = sorted({score.measured.experiment.rtt for score in scores})
    delays: list[float] = []
    for place, rtt in enumerate(rtts):
        color = COLORS[place % len(COLORS)]
        for control, marker in MARKERS.items():
            own = [
                capture
                for capture in captures
                if capture.experiment.rtt == rtt and capture.experiment.congestion_control == control
            ]
            _errorbars(ax, own, color, marker)
            delays += [capture.p95.value for capture in own]
        for number, model in enumerate(model_names(scores)):
            style: Any = MODEL_LINES[number % len(MODEL_LINES)]
            for line in _lines([one for one in scores if one.model == model and one.measured.experiment.rtt == rtt]):
                delays += [delay for _, delay in line]
                ax.plot(*zip(*line, strict=True), color=color, linestyle=style, linewidth=LINE_WIDTH)
        ax.plot([], [], color=color, linewidth=LINE_WIDTH, label=f"RTT {format_time(rtt)}")
    for control, marker in MARKERS.items():
        ax.plot([], [], color=INK, marker=marker, markersize=4, linestyle="none", label=f"measured, {control}")
    for number, model in enumerate(model_names(scores)):
        named: Any = MODEL_LINES[number % len(MODEL_LINES)]
        ax.plot([], [], color=INK, linestyle=named, label=model)
    losses = [score.measured.experiment.loss for score in scores]
    low, high = min(losses) / 1.2, max(losses) * 1.2
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    bottom, top = min(delays, default=0.01) / 1.3, max(delays, default=1.0) * 1.3
    ax.set_ylim(bottom, top)
    round_ticks(ax.xaxis, low, high)
    round_ticks(ax.yaxis, bottom, top)
    fraction_axis(ax.xaxis)
    time_axis(ax.yaxis)
    ax.set_xlabel("loss")
    ax.set_ylabel("95th percentile delay")
    figure.legend(loc="outside right upper")


def _lines(scores: Sequence[Score]) -> list[tuple[tuple[float, float], ...]]:
    """Return a model's predictions by loss, one line for each congestion control; equal lines appear once."""
    controls: dict[str, set[tuple[float, float]]] = {}
    for score in scores:
        if math.isfinite(delay := score.predicted("p95")):
            experiment = score.measured.experiment
            controls.setdefault(experiment.congestion_control, set()).add((experiment.loss, delay))
    return sorted({tuple(sorted(line)) for line in controls.values()})


def _errorbars(ax: Axes, captures: Sequence[MeasuredDelay], color: str, marker: str) -> None:
    losses = [capture.experiment.loss for capture in captures]
    delays, ends = with_ends([capture.p95 for capture in captures])
    ax.errorbar(losses, delays, yerr=ends, fmt=marker, markersize=4, color=color, mfc="none")


def is_stream(capture: MeasuredDelay, size: int) -> bool:
    """Return whether a capture has packets of this size [bytes] every 20 ms."""
    return capture.flow.packet_size == size and capture.flow.interval == INTERVAL


@dataclass(frozen=True)
class Recovery:
    """The delays after an isolated loss in one capture, measured and simulated, as `delays_after_loss` returns them."""

    capture: MeasuredDelay
    measured: NDArray[np.float64]
    simulated: NDArray[np.float64]


def recovery(capture: FlowCapture, numbers: MeasuredDelay) -> Recovery | None:
    """Return the delays after an isolated loss; None if there are too few losses or nothing to simulate."""
    simulated = simulated_flow(numbers)
    if simulated is None:
        return None
    sequences, _ = delays_by_run(capture, numbers.experiment)
    carried = [run for run in simulated_runs(simulated) if np.isfinite(run).any()]
    found = Recovery(
        numbers,
        delays_after_loss(sequences, numbers.experiment.flow, numbers.experiment.path),
        delays_after_loss(carried, simulated.flow, simulated.path),
    )
    return found if found.measured.size and found.simulated.size else None


def recovery_cases(measured: Sequence[MeasuredDelay], read: Callable[[MeasuredDelay], FlowCapture]) -> list[Recovery]:
    """Return the measured cases of `RECOVERIES`; `read` returns a capture with its single delays."""
    cases: dict[Case, Recovery] = {}
    for capture in measured:
        experiment = capture.experiment
        case = (experiment.rtt, experiment.loss, experiment.packet_size)
        drawn = experiment.interval == INTERVAL and experiment.congestion_control == CONTROL
        if drawn and case in RECOVERIES and case not in cases:
            found = recovery(read(capture), capture)
            if found is not None:
                cases[case] = found
    return [cases[case] for case in RECOVERIES if case in cases]


def draw_recoveries(figure: Figure, cases: Sequence[Recovery]) -> None:
    """Draw the delay of each packet after an isolated loss, measured and simulated, with one panel for each case."""
    rows = -(-len(cases) // 2)
    panels = figure.subplots(rows, 2, squeeze=False).flat
    for ax, case in zip(panels, cases, strict=False):
        tidy(ax)
        linear_time_axis(ax.yaxis)
        experiment = case.capture.experiment
        series = (
            (case.measured, INK, "o", f"measured, {experiment.congestion_control}", -_SHIFT),
            (case.simulated, COLORS[1], "s", SIMULATOR.name, _SHIFT),
        )
        for (low, middle, high), color, marker, label, shift in series:
            places = np.arange(middle.size) + shift
            ends = [middle - low, high - middle]
            ax.errorbar(
                places, middle, yerr=ends, fmt=marker, markersize=3, mfc="none", linewidth=0.8, color=color, label=label
            )
        ax.set_ylim(0.0, _AXIS_HEIGHT * max(case.measured.max(), case.simulated.max()))
        ax.xaxis.get_major_locator().set_params(integer=True)
        title = (
            f"{experiment.packet_size} B, RTT {format_time(experiment.rtt)}, loss {format_fraction(experiment.loss)}"
        )
        ax.set_title(title, fontsize=LABEL_SIZE)
        ax.set_xlabel("packets after the lost one")
        ax.set_ylabel("delay")
        ax.legend(loc="upper right")
    for ax in panels:
        ax.set_axis_off()
