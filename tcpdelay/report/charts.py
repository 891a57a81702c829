"""Charts of delay distributions and guidelines.

Axes count in seconds and fractions, and their ticks carry the unit. Curves are named where they run, not in a legend.
The colours are those of Okabe and Ito, which people with any colour vision can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tcpdelay.report.chart_labels import (
    DASHED,
    DOTTED,
    fraction_axis,
    linear_time_axis,
    mark,
    message,
    names_of_parts,
    note,
    round_ticks,
    tidy,
    time_axis,
)
from tcpdelay.report.loss_curve import LossCurve, loss_curve
from tcpdelay.report.phrases import NEVER, quantile_name
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.units import format_fraction, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.advice.guideline import Guideline
    from tcpdelay.distribution import DelayDistribution

Kind = Literal["both", "cdf", "density", "survival"]

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SMALLEST_SURVIVAL = 1e-4
SHOWN_SHARE = 0.999
"""Share of the packets whose delays the linear charts reach up to."""
MOST_STEMS = 150
"""Number of distinct delays up to which each is drawn; more are counted in bins."""
BINS = 60
LINE_WIDTH, STEM_WIDTH = 1.8, 4.5
_SMALLEST_TIME = 1e-4
"""What stands for a delay of 0 on a logarithmic axis [s]."""
_BELOW_AXIS = 1e-12
_STEPS: Literal["steps-post"] = "steps-post"
_CYCLE = (BLUE, ORANGE, GREEN, PURPLE)


def plot_distribution(
    distribution: DelayDistribution,
    ax: Axes | None = None,
    *,
    thresholds: Mapping[str, float] | Sequence[float] = (),
    kind: Kind = "both",
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw a delay distribution.

    Parameters
    ----------
    distribution : DelayDistribution
        The delays.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.
    thresholds : mapping of str to float, or sequence of float
        Delays [s] to mark, with names if any.
    kind : {"both", "cdf", "density", "survival"}
        Probabilities and their sum up to each delay; one of these; or the share of packets later than each delay on a
        logarithmic scale, which shows the tail.
    label : str, optional
        Name of the curve.
    color : str, optional
        Its colour; by default one that no earlier curve in the axes has.

    Returns
    -------
    Axes
        Delays in seconds against shares as fractions.

    Raises
    ------
    ValueError
        If `kind` is none of the four.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from tcpdelay.models.predict import predict_delay
    >>> d = predict_delay(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> ax = plot_distribution(d, Figure().subplots(), thresholds={"limit": 0.200}, kind="survival")
    >>> ax.get_yscale()
    'log'
    """
    if kind not in get_args(Kind):
        raise InvalidValueError("kind", kind, f"be one of {', '.join(get_args(Kind))}")
    ax = current_axes() if ax is None else ax
    if not np.isfinite(distribution.values[0]):
        return message(ax, NEVER)
    drawn_before = sum(line.get_drawstyle() == _STEPS for line in ax.lines)
    limits_before = [ax.get_xlim()[1]] if ax.has_data() else []
    color = color or _CYCLE[drawn_before % len(_CYCLE)]
    tidy(ax)
    linear_time_axis(ax.xaxis)
    ax.set_xlabel("delay")
    draw = _draw_survival if kind == "survival" else _draw_shares
    named = _named(thresholds)
    marked = max([_SMALLEST_TIME, *(delay for _, delay in named if math.isfinite(delay))])
    farthest = max(marked, draw(distribution, ax, kind, label, color, marked))
    ax.set_xlim(0.0, max([1.06 * farthest, *limits_before]))
    mark(ax, named)
    return ax


def _draw_survival(
    distribution: DelayDistribution, ax: Axes, kind: Kind, label: str | None, color: str, marked: float
) -> float:
    """Draw P(delay > d) and return the largest delay [s] at which it has something to show."""
    delays = distribution.values[np.isfinite(distribution.values)]
    later = distribution.late_fraction(delays)
    shown = int(np.count_nonzero(later >= SMALLEST_SURVIVAL)) + 1
    steps = [0.0, *delays, 2 * max(delays[-1], marked)]
    # A share of 0 has no logarithm, and would leave the last step out.
    shares = np.maximum([1.0, *later, later[-1]], _BELOW_AXIS)
    ax.plot(steps, shares, color=color, drawstyle=_STEPS, linewidth=LINE_WIDTH)
    ax.set_yscale("log")
    ax.set_ylim(SMALLEST_SURVIVAL, 1.0)
    fraction_axis(ax.yaxis)
    ax.set_ylabel("packets later than that")
    if label:
        # Packets that never arrive keep the curve from falling further.
        halfway = math.sqrt(max(SMALLEST_SURVIVAL, float(later[-1])))
        note(ax, label, (distribution.quantile(1 - halfway), halfway), (6, 5), "left", color)
    return float(delays[:shown][-1])


def _draw_shares(
    distribution: DelayDistribution, ax: Axes, kind: Kind, label: str | None, color: str, marked: float
) -> float:
    """Draw probabilities, their sum or both, and return the largest delay [s] at which there is much to show."""
    finite = np.isfinite(distribution.values)
    values, weights = distribution.values[finite], distribution.weights[finite]
    reached = np.cumsum(weights)
    farthest = float(values[min(int(np.searchsorted(reached, SHOWN_SHARE)), values.size - 1)])
    highest_before = [ax.get_ylim()[1]] if ax.has_data() else []
    density_color = ORANGE if kind == "both" and color != ORANGE else color
    fraction_axis(ax.yaxis)
    ax.set_ylabel("share of packets")
    highest = 1.0
    if kind != "cdf":
        if values.size <= MOST_STEMS:
            shares = weights
            ax.vlines(values, 0.0, shares, color=density_color, linewidth=STEM_WIDTH)
        else:
            shares, edges = np.histogram(values, bins=BINS, range=(float(values[0]), farthest), weights=weights)
            ax.stairs(shares, edges, color=density_color, fill=True)
        highest = 1.0 if kind == "both" else float(shares.max())
    ax.set_ylim(0.0, max([1.04 * highest, *highest_before]))
    if kind != "density":
        steps = [0.0, *values, 2 * max(values[-1], marked)]
        ax.plot(steps, [0.0, *reached, reached[-1]], color=color, drawstyle=_STEPS, linewidth=LINE_WIDTH)
    middle = float(values[0] + 0.42 * (farthest - values[0]))
    if kind == "both":
        note(ax, label or "arrived by then", (middle, distribution.cdf(middle)), (6, -5), "left", color)
        note(ax, "share with this delay", (middle, 0.0), (6, 5), "left", density_color)
    elif label and kind == "cdf":
        note(ax, label, (middle, distribution.cdf(middle)), (6, -5), "left", color)
    elif label:
        note(ax, label, (distribution.quantile(0.5), highest), (12, -5), "left", color)
    return farthest


def plot_delay_parts(guideline: Guideline, ax: Axes | None = None) -> Axes:
    """Draw where the mean delay comes from, as one bar.

    Parameters
    ----------
    guideline : Guideline
        The findings.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.

    Returns
    -------
    Axes
        The mean delay [s] in its parts.
    """
    ax = current_axes() if ax is None else ax
    if not math.isfinite(guideline.distribution.mean):
        return message(ax, NEVER)
    parts = guideline.parts
    named = [
        ("network", parts.network, BLUE),
        ("backlog", parts.backlog, ORANGE),
        ("head of line", parts.head_of_line, GREEN),
        ("timeouts", parts.timeouts, PURPLE),
    ]
    tidy(ax)
    ax.set_xlabel(f"mean delay, {format_time(guideline.distribution.mean)} in all")
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])
    start, labels = 0.0, []
    for name, delay, color in named:
        if delay <= 0:
            continue
        ax.barh(0.0, delay, left=start, height=1.0, color=color, linewidth=0)
        labels.append((f"{name} {format_time(delay)}", start, start + delay))
        start += delay
    ax.set_xlim(0.0, start or _SMALLEST_TIME)
    ax.set_ylim(-0.5, 0.5)
    names_of_parts(ax, labels)
    return ax


def plot_quantile_against_loss(guideline: Guideline, ax: Axes | None = None) -> Axes:
    """Draw the target's quantile against the loss, with the limit, the scenario and the edge of what works.

    Parameters
    ----------
    guideline : Guideline
        The findings; the chain is solved anew for some thirty losses.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.

    Returns
    -------
    Axes
        Delays [s] against losses as fractions, both logarithmic.
    """
    ax = current_axes() if ax is None else ax
    curve, target, here = loss_curve(guideline), guideline.target, guideline.path.loss
    tidy(ax)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.plot(curve.loss, np.maximum(curve.quantile, _SMALLEST_TIME), color=BLUE, linewidth=LINE_WIDTH)
    ax.axhline(target.limit, color=ORANGE, linewidth=1.2, linestyle=DASHED)
    ax.set_xlim(curve.lowest, curve.highest)
    shown = [delay for delay in (*curve.quantile, target.limit, guideline.quantile) if math.isfinite(delay)]
    bottom, top = max(min(shown), _SMALLEST_TIME) / 1.7, max(shown) * 1.35
    ax.set_ylim(bottom, top)
    round_ticks(ax.xaxis, curve.lowest, curve.highest)
    round_ticks(ax.yaxis, bottom, top)
    fraction_axis(ax.xaxis)
    time_axis(ax.yaxis)
    ax.set_xlabel("loss")
    ax.set_ylabel(f"{quantile_name(target.quantile)} delay")
    # The delay rises with the loss, so that one side of the limit's right end is free.
    side = -3 if max(shown) > target.limit or math.isinf(guideline.quantile) else 3
    note(ax, f"limit {format_time(target.limit)}", (curve.highest, target.limit), (-2, side), "right", ORANGE)
    marks = []
    edge = next(margin for margin in guideline.margins if margin.quantity == "loss")
    if edge.edge is not None and not edge.at_least and edge.edge <= curve.highest:
        marks.append((f"works up to {format_fraction(edge.edge)}", edge.edge))
    if curve.critical is not None:
        ax.axvspan(curve.critical, curve.highest, color=PURPLE, alpha=0.25, linewidth=0)
        marks.append((f"TCP cannot carry it from {format_fraction(curve.critical)}", curve.critical))
    if math.isinf(guideline.quantile):
        marks.append((f"here: {format_fraction(here)}, never settles", here))
    else:
        _draw_scenario(guideline, ax, curve)
    mark(ax, marks)
    return ax


def _draw_scenario(guideline: Guideline, ax: Axes, curve: LossCurve) -> None:
    """Mark the scenario's own loss and quantile; beyond the computed curve, join it by a dotted line."""
    loss, quantile = max(guideline.path.loss, curve.lowest), max(guideline.quantile, _SMALLEST_TIME)
    if curve.loss.size and loss > curve.loss[-1]:
        joint = ([curve.loss[-1], loss], [curve.quantile[-1], quantile])
        ax.plot(*joint, color=BLUE, linewidth=LINE_WIDTH, linestyle=DOTTED)
    ax.plot([loss], [quantile], marker="o", markersize=7, color=BLUE, clip_on=False)
    text = f"here: {format_fraction(guideline.path.loss)}, {format_time(guideline.quantile)}"
    if loss > math.sqrt(curve.lowest * curve.highest):
        note(ax, text, (loss, quantile), (-7, 7), "right", BLUE)
    else:
        note(ax, text, (loss, quantile), (7, -7), "left", BLUE)


def current_axes() -> Axes:
    """Return the axes that pyplot draws on now."""
    from matplotlib import pyplot

    return pyplot.gca()


def _named(thresholds: Mapping[str, float] | Sequence[float]) -> list[tuple[str, float]]:
    if isinstance(thresholds, Mapping):
        return [(f"{name} {format_time(delay)}", float(delay)) for name, delay in thresholds.items()]
    return [(format_time(delay), float(delay)) for delay in thresholds]
