"""Axes and labels of charts: round ticks with units, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Annotation
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from tcpdelay.units import format_fraction, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Align = Literal["left", "center", "right"]

LABEL_SIZE = 10.0
DASHED, DOTTED = (0, (4, 2)), (0, (1, 2))
MOST_TICKS = 6
_LINE_HEIGHT = 1.35 * LABEL_SIZE
_LEADER = 10.0
"""Length of a leader to the first line of names [points]."""
_CHARACTER_WIDTH = 0.56 * LABEL_SIZE


def tidy(ax: Axes) -> None:
    """Remove the frame's top and right sides, which have no scale, and set the size of the labels."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=LABEL_SIZE)
    ax.xaxis.label.set_fontsize(LABEL_SIZE)
    ax.yaxis.label.set_fontsize(LABEL_SIZE)


def message(ax: Axes, text: str) -> Axes:
    """Write `text` instead of a chart that cannot be drawn."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center")
    return ax


def linear_time_axis(axis: Axis) -> None:
    """Give an axis in seconds few ticks, each with its unit."""
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(EngFormatter("s"))


def fraction_axis(axis: Axis) -> None:
    """Label an axis of fractions in percent."""
    axis.set_major_formatter(FuncFormatter(lambda fraction, _: format_fraction(fraction)))
    axis.set_minor_locator(NullLocator())


def time_axis(axis: Axis) -> None:
    """Label a logarithmic axis in seconds, with a suitable unit at each tick."""
    axis.set_major_formatter(FuncFormatter(lambda delay, _: format_time(delay)))
    axis.set_minor_locator(NullLocator())


def round_ticks(axis: Axis, low: float, high: float) -> None:
    """Put the ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, or at fewer values on a long axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= MOST_TICKS:
            break
    axis.set_major_locator(FixedLocator(ticks))


def note(ax: Axes, text: str, xy: tuple[float, float], offset: tuple[float, float], align: Align, color: str) -> None:
    """Write `text` at `offset` [points] from a data point; above the point, or below it for a negative offset."""
    ax.annotate(
        text,
        xy,
        offset,
        textcoords="offset points",
        ha=align,
        va="top" if offset[1] < 0 else "bottom",
        fontsize=LABEL_SIZE,
        color=color,
    )


def note_where_free(ax: Axes, text: str, points: Iterable[tuple[float, float]], color: str) -> None:
    """Write `text` beside one of several data points: where it covers no line, bar or other note, or the fewest.

    The first of the points that is good enough counts. All else must be drawn before, and the limits of the axes set.
    """
    drawn = _drawn(ax)
    best: tuple[int, tuple[float, float], tuple[float, float], Align] | None = None
    for point in points:
        for offset, align in _SIDES:
            covered = _covered(ax, drawn, _box(ax, text, point, offset, align))
            if best is None or covered < best[0]:
                best = covered, point, offset, align
        if best is not None and best[0] == 0:
            break
    if best is not None:
        note(ax, text, *best[1:], color)


_SIDES: tuple[tuple[tuple[float, float], Align], ...] = (
    ((7, -7), "left"),
    ((-7, 7), "right"),
    ((-7, -7), "right"),
    ((7, 7), "left"),
    ((0, 9), "center"),
    ((0, -9), "center"),
    ((9, -24), "left"),
    ((-9, 24), "right"),
    ((-9, -24), "right"),
    ((9, 24), "left"),
    ((-9, -40), "right"),
    ((9, 40), "left"),
    ((0, 24), "center"),
    ((0, -24), "center"),
)
"""Offsets of a note from its point [points]: below or above, at its right or left, and farther away."""
_SAMPLES = 2.0
"""Distance of the points at which a line is sampled [points]."""
_CLEARANCE = 3.0
"""Free space around a note [points]."""


def _drawn(ax: Axes) -> NDArray[np.float64]:
    """Return points of all lines and outlines of bars, in points from the lower left corner of the axes."""
    pieces = []
    for line in ax.lines:
        x, y = np.asarray(line.get_xdata(), np.float64), np.asarray(line.get_ydata(), np.float64)
        if line.get_drawstyle() == "steps-post":
            x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
        pieces.append(line.get_transform().transform(np.column_stack([x, y])))
    for collection in ax.collections:
        if isinstance(collection, LineCollection):
            pieces += [ax.transData.transform(segment) for segment in collection.get_segments()]
    for patch in ax.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            corners = np.column_stack([np.repeat(edges, 2)[1:-1], np.repeat(values, 2)])
            pieces.append(ax.transData.transform(corners))
    sampled = [_sampled(_in_points(ax, piece)) for piece in pieces]
    return np.concatenate([np.empty((0, 2)), *sampled])


def _in_points(ax: Axes, display: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return display coordinates as points from the lower left corner of the axes."""
    shares: NDArray[np.float64] = ax.transAxes.inverted().transform(display)
    return shares * _size(ax)


def _sampled(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points along a line in equal distances."""
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2:
        return corners
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
    places = np.linspace(0.0, along[-1], min(int(along[-1] / _SAMPLES) + 2, _MOST_SAMPLES))
    return np.column_stack([np.interp(places, along, corners[:, i]) for i in (0, 1)])


_MOST_SAMPLES = 20_000

Box = tuple[float, float, float, float]
"""Left, right, lower and upper end [points]."""


def _box(ax: Axes, text: str, xy: tuple[float, float], offset: tuple[float, float], align: Align) -> Box:
    """Return the space that a note takes."""
    x, y = _in_points(ax, ax.transData.transform(np.array([xy])))[0] + offset
    length = _drawn_length(text)
    left = x - {"left": 0.0, "center": 0.5, "right": 1.0}[align] * length
    lower = y - _LINE_HEIGHT if offset[1] < 0 else y
    return left, left + length, lower, lower + _LINE_HEIGHT


@cache
def _drawn_length(text: str) -> float:
    """Return the length of a text in matplotlib's own font [points], which is wider than the fonts of most pages."""
    return float(TextPath((0, 0), text, size=LABEL_SIZE).get_extents().width)


def _covered(ax: Axes, drawn: NDArray[np.float64], box: Box) -> int:
    """Return how much a note covers: points of lines, and all of `_MOST_SAMPLES` for a note or an end of the axes."""
    left, right, lower, upper = box
    width, height = _size(ax)
    x, y = drawn.T
    inside = (x > left - _CLEARANCE) & (x < right + _CLEARANCE) & (y > lower - _CLEARANCE) & (y < upper + _CLEARANCE)
    others = [
        _box(ax, other.get_text(), other.xy, other.xyann, other.get_horizontalalignment())
        for other in ax.texts
        if isinstance(other, Annotation) and other.xycoords == "data"
    ]
    hidden = sum(a < right and left < b and c < upper and lower < d for a, b, c, d in others)
    hidden += left < 0 or right > width or lower < 0 or upper > height
    return int(np.count_nonzero(inside)) + _MOST_SAMPLES * hidden


def _size(ax: Axes) -> NDArray[np.float64]:
    """Return width and height of the axes [points]."""
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    return 72 * figure.get_size_inches() * ax.get_position().size


def mark(ax: Axes, named: Sequence[tuple[str, float]]) -> None:
    """Draw a dashed vertical line at each finite place, with its name above the axes."""
    shown = [(text, place) for text, place in named if math.isfinite(place)]
    for _, place in shown:
        ax.axvline(place, color=ax.xaxis.label.get_color(), linewidth=1.0, linestyle=DASHED)
    names_above(ax, shown)


def names_above(ax: Axes, named: Sequence[tuple[str, float]]) -> None:
    """Write each name above the axes at its place, on several lines if names would overlap."""
    width, taken = float(_size(ax)[0]), _Lines()
    for text, place in named:
        x, length = width * _share_of_axis(ax, place), _length(text)
        align: Align = "left" if x < length / 2 else "right" if x > width - length / 2 else "center"
        start = x - {"left": 0.0, "center": length / 2, "right": length}[align]
        _write_outside(ax, text, place, 4.0 + taken.put(start, length) * _LINE_HEIGHT, align, leader=False)


def names_of_parts(ax: Axes, parts: Sequence[tuple[str, float, float]]) -> None:
    """Name the parts of a horizontal bar, given from left to right as name, start and end.

    A name that is shorter than its part is directly above the part. Every other name has a leader to its part. The name
    ends at the leader, and names further right are higher, so that no leader crosses a name. A name without enough
    space at the left starts at a leader below the bar.
    """
    width, above, below = float(_size(ax)[0]), _Lines(), _Lines()
    with_leader = []
    for text, start, end in parts:
        x, length = width * _share_of_axis(ax, (start + end) / 2), _length(text)
        if length <= width * (_share_of_axis(ax, end) - _share_of_axis(ax, start)):
            above.put(x - length / 2, length)
            _write_outside(ax, text, (start + end) / 2, 4.0, "center", leader=False)
        else:
            with_leader.append((text, (start + end) / 2, x, length))
    line = 0
    for text, place, x, length in with_leader:
        if x >= length:
            line = above.put(x - length, length, line)
            _write_outside(ax, text, place, _LEADER + line * _LINE_HEIGHT, "right", leader=True)
            line += 1
    line = 0
    for text, place, x, length in reversed(with_leader):
        if x < length:
            line = below.put(x, length, line)
            _write_outside(ax, text, place, -_LEADER - line * _LINE_HEIGHT, "left", leader=True)
            line += 1
    ax.xaxis.labelpad = 4.0 + (_LEADER + len(below.spans) * _LINE_HEIGHT if below.spans else 0.0)


class _Lines:
    """Lines of text, with the occupied spans of each line [points]."""

    def __init__(self) -> None:
        self.spans: list[list[tuple[float, float]]] = []

    def put(self, start: float, length: float, lowest: int = 0) -> int:
        """Occupy a span on the first line, `lowest` or above, where it is free, and return the line's number."""
        end, line = start + length, lowest
        while line < len(self.spans) and any(start < high and low < end for low, high in self.spans[line]):
            line += 1
        self.spans += [[] for _ in range(line + 1 - len(self.spans))]
        self.spans[line].append((start, end))
        return line


def _share_of_axis(ax: Axes, place: float) -> float:
    """Return the position of an x value, from 0 at the left end of the axis to 1 at the right end."""
    return float(ax.transAxes.inverted().transform(ax.transData.transform((place, 1.0)))[0])


def _length(text: str) -> float:
    """Return the approximate length of a text [points]."""
    return _CHARACTER_WIDTH * len(text) + 8


def _write_outside(ax: Axes, text: str, place: float, height: float, align: Align, leader: bool) -> None:
    """Write a text `height` points above the axes, or below the axes for a negative height."""
    ax.annotate(
        text,
        (place, 1.0 if height > 0 else 0.0),
        (0.0, height),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        ha=align,
        va="bottom" if height > 0 else "top",
        fontsize=LABEL_SIZE,
        arrowprops=_leader(ax, align) if leader else None,
    )


def _leader(ax: Axes, align: Align) -> dict[str, object]:
    """Return the properties of a leader from a text to its place."""
    color = ax.xaxis.label.get_color()
    return {"arrowstyle": "-", "linewidth": 0.8, "color": color, "relpos": (float(align == "right"), 0.5), "shrinkB": 0}
