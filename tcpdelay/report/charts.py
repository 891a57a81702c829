"""Charts of delay distributions.

The axes are in seconds and fractions, and the tick labels have units. The name of a curve is beside the curve; there is
no legend. The colours are from Okabe and Ito; people with any colour vision can distinguish them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tcpdelay.declare import InvalidValueError
from tcpdelay.report.chart_labels import (
    LABEL_SIZE,
    fraction_axis,
    linear_time_axis,
    mark,
    message,
    note_where_free,
    tidy,
)
from tcpdelay.units import NOT_CARRIED, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.scenario.target import Target


class Delays(Protocol):
    """Delays [s] with their probabilities, such as a `DelayDistribution`."""

    @property
    def values(self) -> NDArray[np.float64]:
        """The delays [s], ascending."""
        ...

    @property
    def weights(self) -> NDArray[np.float64]:
        """Their probabilities."""
        ...

    @property
    def mean(self) -> float:
        """The mean delay [s]."""
        ...

    @property
    def jitter(self) -> float:
        """The standard deviation of the delay [s]."""
        ...

    @property
    def sustainable(self) -> bool:
        """Whether TCP can carry the flow."""
        ...

    @property
    def unsettled_note(self) -> str:
        """That the delays depend on the length of the simulation; empty if they do not."""
        ...

    def quantile(self, probability: float) -> float:
        """Return the quantile of a probability [s]."""
        ...

    def known_quantile(self, probability: float) -> float:
        """Return the quantile of a probability [s]; NaN if it rests on too few packets."""
        ...

    def late_fraction(self, playout_delay: Any) -> Any:
        """Return the share of packets later than each delay [s]."""
        ...

    def cdf(self, delay: Any) -> Any:
        """Return the share of packets up to each delay [s]."""
        ...

    @property
    def ended_note(self) -> str:
        """That a clock has ended the simulation; empty if not."""
        ...


@runtime_checkable
class Boundary(Protocol):
    """The boundary of a working region: a `tcpdelay.study.boundary.WorkingBoundary`."""

    @property
    def target(self) -> Target:
        """The demand on the delay."""
        ...

    @property
    def searched(self) -> Literal["loss", "rtt"]:
        """The parameter that grows until the target is missed."""
        ...

    @property
    def at(self) -> NDArray[np.float64]:
        """The values of the other parameter [s or fraction]."""
        ...

    @property
    def works_up_to(self) -> NDArray[np.float64]:
        """Largest value that works at each point; NaN if there is none."""
        ...

    @property
    def certain_up_to(self) -> NDArray[np.float64]:
        """Largest value at each point that works whatever the expected error; NaN if there is none."""
        ...

    @property
    def impossible_from(self) -> NDArray[np.float64]:
        """Smallest value at each point that fails whatever the expected error; NaN if there is none."""
        ...

    @property
    def fails_from(self) -> NDArray[np.float64]:
        """Smallest value that fails at each point; NaN if there is none."""
        ...


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
    distribution: Delays,
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
    distribution: Delays, ax: Axes, kind: Kind, label: str | None, color: str, marked: float
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
    distribution: Delays, ax: Axes, kind: Kind, label: str | None, color: str, marked: float
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
