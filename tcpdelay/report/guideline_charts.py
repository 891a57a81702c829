"""Charts of a guideline: the parts of the mean delay, and the delay as a function of the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tcpdelay.report.chart_labels import (
    DASHED,
    DOTTED,
    fraction_axis,
    mark,
    message,
    names_of_parts,
    note_where_free,
    round_ticks,
    tidy,
    time_axis,
)
from tcpdelay.report.charts import (
    BLUE,
    GREEN,
    LINE_WIDTH,
    ORANGE,
    PURPLE,
    SMALLEST_TIME,
    current_axes,
    plot_distribution,
)
from tcpdelay.report.phrases import cannot_carry
from tcpdelay.scenario.stack import transport_name
from tcpdelay.units import NEVER_SETTLES, NOT_SETTLED, format_fraction, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.advice.judged_delays import JudgedDelays, LossCurve


def plot_delay_parts(guideline: JudgedDelays, ax: Axes | None = None) -> Axes:
    """Draw the parts of the mean delay as one bar."""
    ax = current_axes(ax)
    if not math.isfinite(guideline.mean):
        endless = f"{NEVER_SETTLES}: {cannot_carry(guideline.stack)}"
        return message(ax, endless if guideline.answer.answered else NOT_SETTLED)
    parts = guideline.parts
    named = [
        ("network", parts.network, BLUE),
        ("backlog", parts.backlog, ORANGE),
        ("head of line", parts.head_of_line, GREEN),
        ("timeouts", parts.timeouts, PURPLE),
    ]
    tidy(ax)
    ax.set_xlabel(f"mean delay, {format_time(guideline.mean)} in all")
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
    ax.set_xlim(0.0, start or SMALLEST_TIME)
    ax.set_ylim(-0.5, 0.5)
    names_of_parts(ax, labels)
    return ax


def plot_later(guideline: JudgedDelays, messages: str, ax: Axes | None = None) -> Axes:
    """Draw the share of packets or messages later than each delay: one curve for each kind.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from tcpdelay import Path, Speech, guideline
    >>> ax = plot_later(guideline(Speech(174, 0.020), Path(rtt=0.100, loss=0.02)), "messages", Figure().subplots())
    >>> ax.get_ylabel()
    'messages later than that'
    """
    ax, marks = current_axes(ax), {"limit": guideline.target.limit}
    for kind, delays in (guideline.by_kind or {"": guideline.distribution}).items():
        plot_distribution(delays, ax, thresholds=marks, kind="survival", label=kind or None)
    ax.set_ylabel(f"{messages} later than that")
    return ax


def plot_quantile_against_loss(guideline: JudgedDelays, ax: Axes | None = None) -> Axes:
    """Draw the target's quantile against the loss, with the limit, the scenario and the largest loss that works."""
    ax = current_axes(ax)
    curve, target, here = guideline.loss_curve, guideline.target, guideline.path.loss
    tidy(ax)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.plot(curve.loss, np.maximum(curve.quantile, SMALLEST_TIME), color=BLUE, linewidth=LINE_WIDTH)
    ax.axhline(target.limit, color=ORANGE, linewidth=1.2, linestyle=DASHED)
    ax.set_xlim(curve.lowest, curve.highest)
    shown = [delay for delay in (*curve.quantile, target.limit, guideline.quantile) if math.isfinite(delay)]
    bottom, top = max(min(shown), SMALLEST_TIME) / 1.7, max(shown) * 1.35
    ax.set_ylim(bottom, top)
    round_ticks(ax.xaxis, curve.lowest, curve.highest)
    round_ticks(ax.yaxis, bottom, top)
    fraction_axis(ax.xaxis)
    time_axis(ax.yaxis)
    ax.set_xlabel("loss")
    ax.set_ylabel(f"{quantile_name(target.quantile)} delay")
    marks = []
    edge = next(margin for margin in guideline.margins if margin.quantity == "loss")
    if edge.edge is not None and not edge.at_least and edge.edge <= curve.highest:
        marks.append((f"works up to {format_fraction(edge.edge)}", edge.edge))
    if curve.critical is not None:
        ax.axvspan(curve.critical, curve.highest, color=PURPLE, alpha=0.25, linewidth=0)
        marks.append(
            (
                f"{transport_name(guideline.stack)} cannot carry it from {format_fraction(curve.critical)}",
                curve.critical,
            )
        )
    if math.isfinite(guideline.quantile):
        mark(ax, marks)
        _draw_scenario(guideline, ax, curve)
    else:
        words = NEVER_SETTLES if guideline.answer.answered else NOT_SETTLED
        mark(ax, [*marks, (f"here: {format_fraction(here)}, {words}", here)])
    ends = [curve.highest, curve.lowest, math.sqrt(curve.lowest * curve.highest)]
    note_where_free(ax, f"limit {format_time(target.limit)}", [(loss, target.limit) for loss in ends], ORANGE)
    return ax


def _draw_scenario(guideline: JudgedDelays, ax: Axes, curve: LossCurve) -> None:
    """Mark the scenario's own loss and quantile; a dotted line connects a point beyond the curve's end to the curve."""
    loss, quantile = max(guideline.path.loss, curve.lowest), max(guideline.quantile, SMALLEST_TIME)
    if curve.loss.size and loss > curve.loss[-1]:
        joint = ([curve.loss[-1], loss], [curve.quantile[-1], quantile])
        ax.plot(*joint, color=BLUE, linewidth=LINE_WIDTH, linestyle=DOTTED)
    ax.plot([loss], [quantile], marker="o", markersize=7, color=BLUE, clip_on=False)
    text = f"here: {format_fraction(guideline.path.loss)}, {format_time(guideline.quantile)}"
    note_where_free(ax, text, [(loss, quantile)], BLUE)
