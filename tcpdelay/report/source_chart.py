"""The chart of a source: the size of each message over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from tcpdelay.report.chart_labels import linear_time_axis, message, note_where_free, tidy
from tcpdelay.report.charts import BLUE, CYCLE, ORANGE, current_axes
from tcpdelay.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, *CYCLE)
"""Colours of the kinds of messages."""


def plot_messages(
    messages: NDArray[np.void], kinds: tuple[str, ...], duration: float, mean_bitrate: float, ax: Axes | None = None
) -> Axes:
    """Draw the size of each message as a line at the time of its write, with the name of its kind at the largest.

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
    ax = current_axes() if ax is None else ax
    if not messages.size:
        return message(ax, "no message in this time")
    tidy(ax)
    linear_time_axis(ax.xaxis)
    ax.yaxis.set_major_formatter(EngFormatter("B"))
    ax.set_xlabel("time of the write")
    ax.set_ylabel("size")
    ax.set_title(f"mean {format_rate(mean_bitrate)}")
    ax.set_xlim(0.0, duration)
    ax.set_ylim(0.0, 1.15 * messages["size"].max())
    shown = np.unique(messages["kind"])
    for kind in shown:
        part = messages[messages["kind"] == kind]
        ax.vlines(part["time"], 0, part["size"], color=COLOURS[kind % len(COLOURS)], linewidth=1.0)
    if shown.size > 1:
        for kind in shown:
            part = messages[messages["kind"] == kind]
            largest = part[np.argsort(part["size"])[::-1][:20]]
            points = [(float(each["time"]), float(each["size"])) for each in largest]
            note_where_free(ax, kinds[kind], points, COLOURS[kind % len(COLOURS)])
    return ax
