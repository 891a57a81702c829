"""The edge of what works: the loss, or the round-trip time, at which a flow first misses its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import TooLargeError
from tcpdelay.models.solver.narrow import RequestedFigures
from tcpdelay.questions.region.cells import for_each_line
from tcpdelay.questions.region.question import Question, losses, question, round_trip_times
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.scenario.target import Target

Searched = Literal["loss", "rtt"]

DEFAULT_TOLERANCE = 0.01
NOISE = 1e-8
"""Rounding of a delay that lies on the threshold [s]."""
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 1e-9, 1.0


@dataclass(frozen=True)
class WorkingBoundary:
    """Where a flow first misses its target, for each of several round-trip times, or losses.

    Parameters
    ----------
    flow, stack, target
        What was asked.
    searched : {"loss", "rtt"}
        What grows until the target is missed.
    at : ndarray
        The values of the other: round-trip times [s], or losses.
    works_up_to : ndarray
        Largest value found below which all that was tried works [fraction, or s]; NaN where not even the smallest does.
    fails_from : ndarray
        Smallest value found that fails; NaN where none of those tried does.
    tolerance : float
        The largest relative distance of the two, where both are.
    """

    flow: Flow
    stack: Stack
    target: Target
    searched: Searched
    at: NDArray[np.float64]
    works_up_to: NDArray[np.float64]
    fails_from: NDArray[np.float64]
    tolerance: float

    def path(self, point: int, value: float) -> Path:
        """Return the path at one of the points, and at a `value` of what is searched."""
        return _path(self.searched, float(self.at[point]), value)


def working_boundary(
    flow: Flow | str,
    stack: Stack | None = None,
    *,
    rtt: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    threshold: float | None = None,
    quantile: float | None = None,
    searched: Searched = "loss",
    tolerance: float = DEFAULT_TOLERANCE,
    on_progress: Callable[[int, int], None] | None = None,
) -> WorkingBoundary:
    """Find the largest loss at which a flow works for each round-trip time, or the other way round.

    A quantile moves in steps, and may fall back where a rounding inside the chain changes. So the boundary is the first
    failure: the grid of what is searched is gone through upwards to the first value that fails, and the gap to the one
    before it is bisected in equal ratios. What works again beyond the first failure does not count, and what fails
    between two values of the grid that work goes unseen.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of one of `tcpdelay.scenario.applications`, which brings its threshold and quantile along.
    stack : Stack, optional
        Its TCP; by default that of a current Linux kernel.
    rtt : array_like, optional
        Round-trip times [s], ascending; by default 40 from 10 ms to 400 ms.
    loss : array_like, optional
        Losses, ascending fractions above 0 and below 1; by default 40 from 0.1 % to 10 %.
    threshold : float, optional
        Largest delay of any use [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    searched : {"loss", "rtt"}
        Which of the two is searched; the other gives the points.
    tolerance : float
        Relative distance, 1e-9 to 1, down to which the two sides of the boundary are brought together.
    on_progress : callable, optional
        Called with the number of points done, and of all.

    Returns
    -------
    WorkingBoundary
        Both sides of the boundary at each point.

    Raises
    ------
    ValueError
        If an argument is none of these or lies outside its range.

    Examples
    --------
    >>> edge = working_boundary("voip", rtt=[0.1, 0.2])
    >>> edge.works_up_to.round(3), bool((edge.fails_from <= 1.01 * edge.works_up_to).all())
    (array([0.058, 0.007]), True)
    """
    if searched not in get_args(Searched):
        raise ValueError(f"searched must be one of {', '.join(map(repr, get_args(Searched)))}, got {searched!r}")
    if not SMALLEST_TOLERANCE <= tolerance <= LARGEST_TOLERANCE:
        raise ValueError(
            f"tolerance must lie between {SMALLEST_TOLERANCE:g} and {LARGEST_TOLERANCE:g}, got {tolerance}"
        )
    asked = question(flow, stack, threshold, quantile)
    rtts, lost = round_trip_times(rtt), losses(loss)
    points, grid = (rtts, lost) if searched == "loss" else (lost, rtts)
    sides = np.empty((points.size, 2))

    def search(point: int) -> None:
        sides[point] = _first_failure(_works_at(asked, searched, float(points[point])), grid, tolerance)

    for_each_line(search, points.size, on_progress)
    return WorkingBoundary(asked.flow, asked.stack, asked.target, searched, points, sides[:, 0], sides[:, 1], tolerance)


def _path(searched: Searched, point: float, value: float) -> Path:
    return Path(point, value) if searched == "loss" else Path(value, point)


def _works_at(asked: Question, searched: Searched, point: float) -> Callable[[float], bool]:
    """Return what says whether the flow works at one value of what is searched."""
    limit, quantile = asked.target.limit + NOISE, asked.target.quantile
    wanted = RequestedFigures(np.array([quantile]), np.empty(0), limit, quantile)

    def works(value: float) -> bool:
        try:
            found = DelayModel(asked.flow, _path(searched, point, value), asked.stack).summary_up_to(wanted)
            return bool(found.quantiles[0] <= limit)
        except TooLargeError:
            # What cannot be computed is not promised.
            return False

    return works


def _first_failure(works: Callable[[float], bool], grid: NDArray[np.float64], tolerance: float) -> tuple[float, float]:
    """Return both sides of the first failure: what works and what fails; NaN for what the grid does not reach."""
    inside = np.nan
    for value in grid.tolist():
        if not works(value):
            break
        inside = value
    else:
        return inside, np.nan
    outside = value
    while outside > inside * (1 + tolerance):
        middle = float(np.sqrt(inside * outside))
        if works(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside
