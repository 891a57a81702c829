"""Charts of delay distributions, of guidelines and of sources.

The axes are in seconds and fractions, and the tick labels have units. The name of a curve is beside the curve; there is
no legend. The colours are from Okabe and Ito; people with any colour vision can distinguish them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Annotation
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.stack import transport_name
from tcpdelay.units import (
    NEVER_SETTLES,
    NOT_CARRIED,
    NOT_SETTLED,
    format_fraction,
    format_rate,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from tcpdelay.advice.judged_delays import JudgedDelays, LossCurve
    from tcpdelay.delays import DelayDistribution

# Axes and labels: round ticks with units, and labels that do not overlap.

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


# The charts: of distributions, of guidelines and of sources.

Kind = Literal["both", "cdf", "density", "survival"]

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SMALLEST_SURVIVAL = 1e-4
SHOWN_SHARE = 0.999
"""Share of the packets whose delays a linear chart contains."""
MOST_STEMS = 150
"""Largest number of delays that are drawn one by one; more delays are drawn as a histogram."""
BINS = 60
LINE_WIDTH, STEM_WIDTH = 1.8, 4.5
SMALLEST_TIME = 1e-4
"""Smallest delay on a logarithmic axis [s]; shorter delays are drawn at this delay."""
_BELOW_AXIS = 1e-12
_STEPS: Literal["steps-post"] = "steps-post"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE)
"""Colours of several curves, in this order."""


def plot_distribution(
    distribution: DelayDistribution,
    ax: Axes | None = None,
    *,
    thresholds: Mapping[str, float] | Sequence[float] = (),
    kind: Kind = "both",
    label: str | None = None,
    color: str | None = None,
    counted: str = "packets",
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
        "density": the probability of each delay. "cdf": the probability up to each delay. "both": density and cdf.
        "survival": the share of packets later than each delay, on a logarithmic scale, which shows the tail.
    label : str, optional
        Name of the curve.
    color : str, optional
        Colour of the curve; by default, the next colour that no curve in the axes has.
    counted : str
        What the shares are shares of: "packets", or for example "messages" or "exchanges".

    Returns
    -------
    Axes
        Delays in seconds against shares as fractions.

    Raises
    ------
    ValueError
        If `kind` is not one of these four words.

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
    ax = current_axes(ax)
    if not np.isfinite(distribution.values[0]):
        return message(ax, NOT_CARRIED)
    drawn_before = sum(line.get_drawstyle() == _STEPS for line in ax.lines)
    limits_before = [ax.get_xlim()[1]] if ax.has_data() else []
    color = color or CYCLE[drawn_before % len(CYCLE)]
    tidy(ax)
    linear_time_axis(ax.xaxis)
    ax.set_xlabel("delay")
    ax.set_ylabel(f"{counted} later than that" if kind == "survival" else f"share of {counted}")
    draw = _draw_survival if kind == "survival" else _draw_shares
    named = _named(thresholds)
    marked = max([SMALLEST_TIME, *(delay for _, delay in named if math.isfinite(delay))])
    farthest, names = draw(distribution, ax, kind, label, color, marked)
    ax.set_xlim(0.0, max([1.06 * max(marked, farthest), *limits_before]))
    mark(ax, named)
    # A name must not lie on a curve or a mark, so it is written last.
    for text, points, its_color in names:
        note_where_free(ax, text, points, its_color)
    if distribution.unsettled_note:
        ax.set_title(distribution.unsettled_note, fontsize=LABEL_SIZE, loc="left", wrap=True)
    return ax


Name = tuple[str, list[tuple[float, float]], str]
"""The name of a curve, points at which it may stand, the best first, and its colour."""
SHARES_ALONG = (0.42, 0.6, 0.3, 0.75, 0.5, 0.2, 0.85, 0.1, 0.05, 0.02)
"""Places of a name, as shares of the range of delays, in the order in which they are tried."""
HEIGHTS_ABOVE = (0.0, 0.1, 0.2)
"""Heights of the name of the bars, as shares of the packets."""


def _draw_survival(
    distribution: DelayDistribution, ax: Axes, kind: Kind, label: str | None, color: str, marked: float
) -> tuple[float, list[Name]]:
    """Draw P(delay > d), and return the delay [s] at which the curve leaves the chart, and the curve's name."""
    delays = distribution.values[np.isfinite(distribution.values)]
    later = distribution.late_fraction(delays)
    shown = int(np.count_nonzero(later >= SMALLEST_SURVIVAL)) + 1
    steps = [0.0, *delays, 2 * max(delays[-1], marked)]
    # A share of 0 has no logarithm; without this minimum, the last step would be missing.
    shares = np.maximum([1.0, *later, later[-1]], _BELOW_AXIS)
    ax.plot(steps, shares, color=color, drawstyle=_STEPS, linewidth=LINE_WIDTH)
    ax.set_yscale("log")
    ax.set_ylim(SMALLEST_SURVIVAL, 1.0)
    fraction_axis(ax.yaxis)
    names: list[Name] = []
    if label:
        # The curve does not fall below the share of packets that never arrive.
        lowest = max(SMALLEST_SURVIVAL, float(later[-1]))
        heights = [lowest**share for share in SHARES_ALONG]
        names.append((label, [(distribution.quantile(1 - height), height) for height in heights], color))
    return float(delays[:shown][-1]), names


def _draw_shares(
    distribution: DelayDistribution, ax: Axes, kind: Kind, label: str | None, color: str, marked: float
) -> tuple[float, list[Name]]:
    """Draw density, cdf or both, and return the delay [s] up to which nearly all packets arrive, and the names."""
    finite = np.isfinite(distribution.values)
    values, weights = distribution.values[finite], distribution.weights[finite]
    reached = np.cumsum(weights)
    farthest = float(values[min(int(np.searchsorted(reached, SHOWN_SHARE)), values.size - 1)])
    highest_before = [ax.get_ylim()[1]] if ax.has_data() else []
    density_color = ORANGE if kind == "both" and color != ORANGE else color
    fraction_axis(ax.yaxis)
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
    places = [float(values[0] + share * (farthest - values[0])) for share in SHARES_ALONG]
    along = [(place, distribution.cdf(place)) for place in places]
    if kind == "both":
        below = [(place, height) for height in HEIGHTS_ABOVE for place in places]
        return farthest, [(label or "arrived by then", along, color), ("with this delay", below, density_color)]
    if not label:
        return farthest, []
    return farthest, [(label, along if kind == "cdf" else [(distribution.quantile(0.5), highest)], color)]


def current_axes(ax: Axes | None) -> Axes:
    """Return the axes to draw on, by default the current axes of pyplot."""
    from matplotlib.axes import Axes

    if isinstance(ax, Axes):
        return ax
    if ax is not None:
        raise InvalidValueError("ax", ax, "be Axes of Matplotlib")
    from matplotlib import pyplot

    return pyplot.gca()


def _named(thresholds: Mapping[str, float] | Sequence[float]) -> list[tuple[str, float]]:
    """Return the thresholds [s] with the text of their marks."""
    if isinstance(thresholds, Mapping):
        return [(f"{name} {format_time(delay)}", float(delay)) for name, delay in thresholds.items()]
    return [(format_time(delay), float(delay)) for delay in thresholds]


# The charts of a guideline: the parts of the mean delay, and the delay as a function of the loss.


def plot_delay_parts(guideline: JudgedDelays, ax: Axes | None = None) -> Axes:
    """Draw the parts of the mean delay as one bar."""
    ax = current_axes(ax)
    if not math.isfinite(guideline.mean):
        # Imported here, because it imports the models.
        from tcpdelay.report.phrases import cannot_carry

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


def plot_later(guideline: JudgedDelays, ax: Axes | None = None) -> Axes:
    """Draw the share of packets or messages later than each delay: one curve for each kind."""
    ax, marks = current_axes(ax), {"limit": guideline.target.limit}
    for kind, delays in (guideline.by_kind or {"": guideline.distribution}).items():
        plot_distribution(delays, ax, thresholds=marks, kind="survival", label=kind or None)
    ax.set_ylabel(f"{guideline.messages} later than that")
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


# The chart of a source: the size of each message over time.

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
    """Draw the size of each message as a line at the time of its write, in the colour of its kind."""
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
