"""The charts of a report on a source whose rate is not constant."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import TYPE_CHECKING

from tcpdelay.report.charts import plot_distribution
from tcpdelay.report.guideline_charts import plot_delay_parts, plot_quantile_against_loss
from tcpdelay.report.html import BAR_HEIGHT, PART_HEIGHT, Chart, chart
from tcpdelay.report.source_content import explanation
from tcpdelay.units import format_fraction, format_rate, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.advice.source_guideline import SourceFindings

SHOWN_MESSAGES = 600
"""Mean number of messages that the chart of the source shows."""
SHORTEST, LONGEST = 0.5, 60.0
"""Shortest and longest time that it shows [s]."""


def source_charts(found: SourceFindings) -> dict[str, list[Chart]]:
    """Return the charts of each section, without charts of delays that never settle."""
    source, target = found.source, found.target
    duration = min(max(SHOWN_MESSAGES / source.message_rate, SHORTEST), LONGEST)
    quantile = quantile_name(target.quantile)
    drawn = {
        "source": [
            chart(
                "source-chart",
                "Size of each message",
                f"The messages of the first {format_time(duration)}: {format_rate(source.mean_bitrate)} in the mean, "
                f"{format_rate(source.peak_bitrate)} in the busiest second.",
                lambda ax: source.plot(ax, duration=duration),
            )
        ],
        "margins": [
            chart(
                "loss-chart",
                f"{quantile} delay against loss",
                f"The {quantile} delay rises with the loss. {' '.join(explanation(found))}".replace("`", ""),
                lambda ax: plot_quantile_against_loss(found, ax),
            )
        ],
    }
    if not math.isfinite(found.mean):
        return drawn
    parts = found.parts
    drawn["delays"] = [
        chart(
            "shares-chart",
            "Distribution of the delay",
            f"Half of the messages arrive within {format_time(found.quantile_of(0.5))}, "
            f"{format_fraction(target.quantile)} within {format_time(found.quantile)}.",
            lambda ax: plot_distribution(found.distribution, ax, thresholds={"limit": target.limit}),
        ),
        chart(
            "survival-chart",
            "Messages that come later, by kind" if found.by_kind else "Messages that come later",
            f"{format_fraction(found.late_fraction)} of the messages come later than {format_time(target.limit)}.",
            lambda ax: plot_kinds(found, ax),
        ),
    ]
    drawn["parts"] = [
        chart(
            "parts-chart",
            "Parts of the mean delay",
            f"Network {format_time(parts.network)}, backlog {format_time(parts.backlog)}, "
            f"head of line {format_time(parts.head_of_line)}.",
            lambda ax: plot_delay_parts(found, ax),
            height=BAR_HEIGHT + PART_HEIGHT * sum(delay > 0 for delay in astuple(parts)),
        )
    ]
    return drawn


def plot_kinds(found: SourceFindings, ax: Axes | None = None) -> Axes:
    """Draw the share of messages later than each delay: one curve for each kind of message.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from tcpdelay import Path, Speech, guideline
    >>> ax = plot_kinds(guideline(Speech(174, 0.020), Path(rtt=0.100, loss=0.02)), Figure().subplots())
    >>> ax.get_ylabel()
    'messages later than that'
    """
    curves = found.by_kind or {"": found.distribution}
    for kind, delays in curves.items():
        ax = plot_distribution(
            delays, ax, thresholds={"limit": found.target.limit}, kind="survival", label=kind or None
        )
    assert ax is not None
    ax.set_ylabel("messages later than that")
    return ax
