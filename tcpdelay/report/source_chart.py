"""The chart of a source: the size of each message over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from tcpdelay.report.chart_labels import LABEL_SIZE, linear_time_axis, message, tidy
from tcpdelay.report.charts import BLUE, CYCLE, ORANGE, current_axes
from tcpdelay.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, *CYCLE)
"""Colours of the kinds of messages."""
HEIGHT = 1.25
"""Height of the chart relative to the largest message."""
NAME_WIDTH = 0.25
"""Distance of the names of two kinds, as a share of the chart's width."""
MOST_NAMES = 4
"""Number of names that fit into the chart's width."""


def plot_messages(
    messages: NDArray[np.void], kinds: tuple[str, ...], duration: float, mean_bitrate: float, ax: Axes | None = None
) -> Axes:
    """Draw the size of each message as a line at the time of its write, in the colour of its kind.

    Parameters
    ----------
    messages : structured array
        The messages, as `tcpdelay.scenario.sources.message_stream.Source.messages` returns them.
    kinds : tuple of str
        Names of the kinds of messages.
    duration : float
        End of the time axis [s], above 0.
    mean_bitrate : float
        Mean bitrate of the source [bit/s], for the title.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.

    Returns
    -------
    Axes
        Times in seconds against sizes in bytes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from tcpdelay.scenario.sources.video import Video
    >>> ax = Video(2_500_000).plot(Figure().subplots(), duration=5)
    >>> ax.get_title()
    'mean 2.5 Mbit/s'
    """
    ax = current_axes(ax)
    if not messages.size:
        return message(ax, "no message in this time")
    tidy(ax)
    linear_time_axis(ax.xaxis)
    ax.yaxis.set_major_formatter(EngFormatter("B"))
    ax.set_xlabel("time of the write")
    ax.set_ylabel("size")
    ax.set_title(f"mean {format_rate(mean_bitrate)}")
    ax.set_xlim(0.0, duration)
    ax.set_ylim(0.0, HEIGHT * messages["size"].max())
    shown = np.unique(messages["kind"])
    for place, kind in enumerate(shown):
        part = messages[messages["kind"] == kind]
        colour = COLOURS[kind % len(COLOURS)]
        ax.vlines(part["time"], 0, part["size"], color=colour, linewidth=1.0)
        if shown.size > 1 and place < MOST_NAMES:
            # Above the largest message, where no line is.
            name = kinds[kind] if place < MOST_NAMES - 1 or shown.size == MOST_NAMES else "and others"
            across = 0.02 + NAME_WIDTH * place
            ax.text(across, 0.98, name, transform=ax.transAxes, va="top", fontsize=LABEL_SIZE, color=colour)
    return ax
