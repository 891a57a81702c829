"""Figures of delays: whole distributions, and the 95th percentile by loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tcpdelay.report.chart_labels import LABEL_SIZE, fraction_axis, linear_time_axis, round_ticks, tidy, time_axis
from tcpdelay.report.charts import LINE_WIDTH, SMALLEST_SURVIVAL
from tcpdelay.units import format_fraction, format_time
from tcpdelay.validation.chart_parts import COLORS, INK, model_names, with_ends
from tcpdelay.validation.measured import MeasuredDelay
from tcpdelay.validation.scores import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def overlay_cases(scores: Sequence[Score]) -> list[tuple[Case, list[Score]]]:
    """Return the scores of each of `OVERLAYS` that was measured."""
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
    """Draw the share of packets later than each delay, measured and predicted, a panel per case."""
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
            # A model that does not tell congestion controls apart says the same twice.
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
    """Draw the 95th percentile against the loss, a colour per round-trip time: points measured, lines predicted."""
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


def _lines(scores: Sequence[Score]) -> set[tuple[tuple[float, float], ...]]:
    """Return a model's predictions by loss for each congestion control; one line where they are the same for all."""
    controls: dict[str, set[tuple[float, float]]] = {}
    for score in scores:
        if math.isfinite(delay := score.predicted("p95")):
            experiment = score.measured.experiment
            controls.setdefault(experiment.congestion_control, set()).add((experiment.loss, delay))
    return {tuple(sorted(line)) for line in controls.values()}


def _errorbars(ax: Axes, captures: Sequence[MeasuredDelay], color: str, marker: str) -> None:
    losses = [capture.experiment.loss for capture in captures]
    delays, ends = with_ends([capture.p95 for capture in captures])
    ax.errorbar(losses, delays, yerr=ends, fmt=marker, markersize=4, color=color, mfc="none")


def is_stream(capture: MeasuredDelay, size: int) -> bool:
    """Say whether a capture is of that packet size [bytes] every 20 ms."""
    return capture.flow.packet_size == size and capture.flow.interval == INTERVAL
