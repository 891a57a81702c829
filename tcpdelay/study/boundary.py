"""The boundary of the working region: where a flow first misses its target as loss or round-trip time grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.ask import Model, Requested, solved_once
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.declare import InvalidValueError, as_numbers, is_number
from tcpdelay.drawing import drawn
from tcpdelay.models.predict import COMPARED_PACKETS, AnsweredBy, model_to_compare, predict, simulator, supports
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.scenario import Scenario, Target, checked_arguments, source_of, target_of
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import DEFAULT_STACK, Quic, Stack, StackName, checked_profile
from tcpdelay.study.execution import work_out
from tcpdelay.study.grid import Question, losses, question, round_trip_times
from tcpdelay.study.largest import Edge, largest_or_none, model_of, nothing_meets
from tcpdelay.study.search import (
    MAX_RTT,
    RELATIVE_TOLERANCE,
    Axis,
    at_rtt,
    average_flow,
    edge_of,
    edges_within_error,
    excess_lateness,
    loss_axis,
    narrowed,
)
from tcpdelay.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Searched = Literal["loss", "rtt"]

DEFAULT_TOLERANCE = 0.01
GOLDEN_SECTION = (math.sqrt(5) - 1) / 2
"""Share of all points by which the search steps from one point to the next."""
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 1e-9, 1.0


@dataclass(frozen=True)
class WorkingBoundary:
    """Where a flow first misses its target, for each of several round-trip times or losses."""

    # flow, stack, target: The question.
    flow: Source
    stack: Stack
    target: Target
    searched: Searched  # The parameter that grows until the target is missed
    at: NDArray[np.float64]  # The values of the other parameter, one for each point: round-trip times [s], or losses
    # Largest value found up to which all tried values work [fraction or s]; NaN where the smallest value fails.
    works_up_to: NDArray[np.float64]
    # Smallest value found that fails [fraction or s]; NaN where all tried values work.
    fails_from: NDArray[np.float64]
    tolerance: float  # Largest relative distance between the two sides, where both exist
    # certain_up_to, impossible_from: The range in which the expected error of the predictions places the edge, as of
    # `tcpdelay.largest_loss` [fraction or s]; NaN where the range of the search has no such value.
    certain_up_to: NDArray[np.float64]
    impossible_from: NDArray[np.float64]
    # The points whose edge is simulated: all of them, or the points at which the chain is too large.
    simulated: NDArray[np.bool_]

    @property
    def method(self) -> AnsweredBy:
        """The model that answered at most of the points: "chain" or "simulation"."""
        return "simulation" if 2 * np.count_nonzero(self.simulated) > self.simulated.size else "chain"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the boundary into the given axes, by default the current axes of pyplot; the flow works below it."""
        name = f"works below, {format_time(self.target.limit)}"
        axes: Axes = drawn("region_charts.plot_boundaries", {name: self}, ax)
        return axes

    def _repr_html_(self) -> str:
        """Return both sides of the boundary as a table for notebooks."""
        return str(drawn("region_charts.boundary_html", self))

    def path(self, point: int, value: float) -> Path:
        """Return the path at a point, with a `value` of the searched parameter."""
        return _path(self.searched, float(self.at[point]), value)


@checked_arguments
def working_boundary(
    flow: Source | str,
    stack: Stack | StackName | None = None,
    *,
    rtt: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    limit: float | None = None,
    quantile: float | None = None,
    target: Target | None = None,
    searched: Searched = "loss",
    tolerance: float = DEFAULT_TOLERANCE,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
) -> WorkingBoundary:
    """Find the largest loss at which a flow works for each round-trip time, or the longest such time for each loss.

    A quantile of the delay grows in steps, and may fall a little where a rounding inside the chain changes. Therefore
    the boundary is the first failure: the search tries the values of the searched parameter upwards until one fails,
    and narrows the gap below it by a secant method over the share of late packets. Values beyond the first failure that
    work again do not count. A failure between two tried values that work is not found.

    Parameters
    ----------
    flow, stack, rtt, limit, quantile, target
        As for `working_region`.
    loss : array_like, optional
        Losses, ascending fractions above 0 and below 1; by default 40 from 0.1 % to 10 %.
    searched : {"loss", "rtt"}
        The parameter that is searched; the other parameter gives the points.
    tolerance : float
        Relative distance between the two sides of the boundary at which the search ends, 1e-9 to 1.
    on_progress : callable, optional
        Called with the number of points done, and the number of all points. The points are done in the order of
        `scattered`.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain. It is the simulator at points where the chain is too large, and everywhere if
        the chain refuses the source. The search by simulation begins at the edge that the chain finds for a flow with
        the same mean rate, and its tolerance is one percent.
    max_seconds : float
        Processor time that the chain may take for each value that is tried [s], 0.01 to 1e6, by an estimate that does
        not depend on the machine. Where it needs more, it is too large.
    max_memory : float, optional
        Memory that the chain may take for each value [bytes], 2**20 to 2**50; by default 1 GiB.

    Returns
    -------
    WorkingBoundary
        Both sides of the boundary at each point.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or outside its range.

    Examples
    --------
    >>> edge = working_boundary("voip", rtt=[0.1, 0.2])
    >>> edge.works_up_to.round(3), bool((edge.fails_from <= 1.01 * edge.works_up_to).all())
    (array([0.061, 0.007]), True)
    """
    if not is_number(tolerance) or not SMALLEST_TOLERANCE <= tolerance <= LARGEST_TOLERANCE:
        raise InvalidValueError("tolerance", tolerance, f"lie between {SMALLEST_TOLERANCE:g} and {LARGEST_TOLERANCE:g}")
    asked = question(flow, stack, limit, quantile, max_seconds, max_memory, target)
    rtts, lost = round_trip_times(rtt), losses(loss)
    points, grid = (rtts, lost) if searched == "loss" else (lost, rtts)
    order = scattered(points.size)
    path = _path(searched, float(points[0]), float(grid[0]))
    model = model_to_compare(Scenario(asked.flow, path, asked.stack), method, solved=False)
    with solved_once():
        search = _BoundarySearch(asked, searched, points[order], grid, tolerance, model, method, copy_context())
        results = work_out(search, on_progress=on_progress)
    found = np.empty_like(results.values)
    found[order] = results.values
    simulated = found["simulated"]
    return WorkingBoundary(
        asked.flow,
        asked.stack,
        asked.target,
        searched,
        points,
        found["works_up_to"],
        found["fails_from"],
        max(tolerance, RELATIVE_TOLERANCE) if simulated.any() else tolerance,
        found["certain_up_to"],
        found["impossible_from"],
        simulated,
    )


def scattered(size: int) -> NDArray[np.int64]:
    """Return the numbers from 0 to below `size` in an order in which any first part is spread over all of them.

    Neighbouring points take about as long, and distant points do not. In this order the points that are done take as
    long as the points that are left, on average, so that the remaining time can be estimated.
    """
    # Fractional parts of multiples of the golden section are spread evenly from the first on; these are their ranks.
    return np.argsort(np.argsort(GOLDEN_SECTION * np.arange(size) % 1))


def _path(searched: Searched, point: float, value: float) -> Path:
    return Path(point, value) if searched == "loss" else Path(value, point)


@dataclass(frozen=True)
class _BoundarySearch:
    """The searches at all points."""

    asked: Question
    searched: Searched
    points: NDArray[np.float64]
    grid: NDArray[np.float64]
    tolerance: float
    model: AnsweredBy | Model
    method: AnsweredBy
    context: Context  # Of the caller: the threads share what has been solved
    row_type = np.dtype(
        [
            *((name, np.float64) for name in ("works_up_to", "fails_from", "certain_up_to", "impossible_from")),
            ("simulated", np.bool_),
        ]
    )

    @property
    def size(self) -> int:
        """Number of points."""
        return self.points.size

    def fill(self, row: Any, number: int) -> str:
        """Write both sides of the boundary at one point to `row`."""
        return self.context.copy().run(self._fill, row, number)

    def _fill(self, row: Any, number: int) -> str:
        asked, point = self.asked, float(self.points[number])
        whole = Requested(target=asked.target, max_seconds=asked.max_seconds, max_memory=asked.max_memory)
        requested = replace(whole, precision="decision")
        averaged, too_large = average_flow(asked.flow), set[float]()
        # Where no chain knows QUIC, the search by simulation begins at the edge of TCP.
        unknown = self.model != "chain" and isinstance(asked.stack, Quic)
        chained = DEFAULT_STACK if unknown else asked.stack

        def excess(value: float) -> float | None:
            scenario = Scenario(averaged, _path(self.searched, point, value), chained, asked.target)
            answer = predict(scenario, requested, "chain")
            if answer.status == "too large" and not supports(scenario, "simulation").refused:
                too_large.add(value)
            return excess_lateness(answer, asked.target)

        inside, outside = first_failure(excess, self.grid, self.tolerance)
        lowest, highest = float(self.grid[0]), float(self.grid[-1])

        def place(value: float) -> tuple[Source, Path]:
            return asked.flow, _path(self.searched, point, value)

        axis = Axis(self.searched, place, lowest, highest, asked.flow)
        model = self.model
        if self.method == "auto" and outside in too_large:
            model = simulator(COMPARED_PACKETS)
        if model != "chain":
            found = edge_of(axis, asked.stack, whole, np.fmax(inside, lowest), model)
            inside, outside = np.array([found.inside, found.outside], np.float64)
        edge = np.fmax(inside, lowest)
        # NumPy turns None into NaN.
        within = np.array(edges_within_error(axis, asked.stack, whole, edge, model, self.method == "auto"), np.float64)
        row["simulated"] = model != "chain"
        row["works_up_to"], row["fails_from"] = inside, outside
        # Each search has a tolerance; NaN stays NaN.
        row["certain_up_to"], row["impossible_from"] = np.minimum(within[0], inside), np.maximum(within[1], outside)
        return ""


def first_failure(
    excess: Callable[[float], float | None], grid: NDArray[np.float64], tolerance: float
) -> tuple[float, float]:
    """Return the largest value found below the first failure, and the smallest value found that fails."""
    found: dict[float, float | None] = {}
    inside = np.nan
    for value in grid.tolist():
        known = found[value] = excess(value)
        if known is None or known > 0:
            break
        inside = value
    else:
        return inside, np.nan
    return (inside, value) if np.isnan(inside) else narrowed(excess, found, inside, value, tolerance)


# The largest loss with which a target is met, at each of several round-trip times.

POINTS = 12
SHORTEST_RTT = 0.010
FARTHEST_SHARE = 0.9
"""One-way delay at the longest default round-trip time, as a share of the limit."""


@dataclass(frozen=True)
class Frontier:
    """The edge of the working region in the plane of round-trip time and loss.

    Parameters
    ----------
    rtts : tuple of float
        Round-trip times [s].
    edges : tuple of Edge or None
        The largest loss at each round-trip time; None where no loss meets the target.
    target : Target
        The demand on the delay.
    """

    rtts: tuple[float, ...]
    edges: tuple[Edge | None, ...]
    target: Target

    @property
    def method(self) -> str:
        """Name of the model that answered: "chain" or "simulation"."""
        return next(edge.method for edge in self.edges if edge is not None)

    @property
    def losses(self) -> tuple[float, ...]:
        """The largest losses, fractions; 0 where no loss meets the target."""
        return tuple(0.0 if edge is None else edge.value for edge in self.edges)


@checked_arguments
def loss_rtt_frontier(
    flow: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    rtts: Sequence[float] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Frontier:
    """Return the largest loss that meets a target at each of several round-trip times.

    Parameters
    ----------
    flow, stack, target, method
        As for `largest_loss`.
    path : Path
        The path. Its loss is not used, and its round-trip time only for the share that a given one-way delay has in it.
    rtts : sequence of float, optional
        Round-trip times [s], 1e-6 to 60, at least one; by default twelve, from 10 ms to the round-trip time whose
        one-way delay is nine tenths of the limit.
    on_progress : callable, optional
        Called after each round-trip time with the number of round-trip times done and the number of all.

    Returns
    -------
    Frontier
        The losses, each with a relative tolerance of one percent.

    Raises
    ------
    ValueError
        If a value is out of range, or no loss meets the target at any of the round-trip times.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> path = Path(rtt=0.100, loss=0.02)
    >>> found = loss_rtt_frontier(Flow(174, 0.020), path, Stack.linux(), Target(0.2), rtts=(0.05, 0.1, 0.2, 0.5))
    >>> found.losses[0] > found.losses[1] > found.losses[2] > found.losses[3]
    True
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    chosen = _default_rtts(path, target) if rtts is None else tuple(np.atleast_1d(as_numbers("rtts", rtts)).tolist())
    if not chosen:
        raise InvalidValueError("rtts", chosen, "hold at least one round-trip time")
    edges: list[Edge | None] = []
    axes = [loss_axis(source, at_rtt(path, rtt)) for rtt in chosen]
    for done, axis in enumerate(axes, 1):
        edges.append(largest_or_none(axis, stack, target, method))
        if on_progress is not None:
            on_progress(done, len(chosen))
    if not any(edges):
        raise ValueError(nothing_meets(axes[0], stack, target, model_of(axes[0], stack, target, method)))
    return Frontier(chosen, tuple(edges), target)


def _default_rtts(path: Path, target: Target) -> tuple[float, ...]:
    """Return round-trip times in equal ratios [s]."""
    share = checked_path(path).forward_delay / path.rtt
    longest = min(MAX_RTT, FARTHEST_SHARE * target.limit / share if share > 0 else math.inf)
    shortest = min(SHORTEST_RTT, longest / 2)
    return tuple(float(f"{rtt:.3g}") for rtt in np.geomspace(shortest, longest, POINTS))
