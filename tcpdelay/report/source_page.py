"""The charts of a report on a source whose rate is not constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tcpdelay.report.html import Chart, chart, charts
from tcpdelay.report.source_content import explanation
from tcpdelay.units import format_rate, format_time

if TYPE_CHECKING:
    from tcpdelay.advice.source_guideline import SourceFindings

SHOWN_MESSAGES = 600
"""Mean number of messages that the chart of the source shows."""
SHORTEST, LONGEST = 0.5, 60.0
"""Shortest and longest time that the chart of the source shows [s]."""


def source_charts(found: SourceFindings) -> dict[str, list[Chart]]:
    """Return the charts of each section: the sizes of the messages, and the charts that every report has."""
    source = found.source
    duration = min(max(SHOWN_MESSAGES / source.message_rate, SHORTEST), LONGEST)
    sent = {
        "source": [
            chart(
                "source-chart",
                "Size of each message",
                f"The messages of the first {format_time(duration)}: {format_rate(source.mean_bitrate)} in the mean, "
                f"{format_rate(source.peak_bitrate)} in the busiest second.",
                lambda ax: source.plot(ax, duration=duration),
            )
        ],
    }
    return sent | charts(found, explanation(found), "messages")
