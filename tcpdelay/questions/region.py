"""Working regions: delays over ranges of round-trip time and loss, and the boundary of what works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay import __version__
from tcpdelay.models.accuracy import expected_error_map
from tcpdelay.models.interface import Answer, Requested
from tcpdelay.models.predict import predict
from tcpdelay.models.throughput import utilization_map
from tcpdelay.quality.voice import Codec, best_playout_delay, codec_named, voice_mos
from tcpdelay.questions.execution import MOST_USEFUL_THREADS, Progress, processors, threads
from tcpdelay.questions.grid import Grid, Meaning, Variables, evaluate
from tcpdelay.questions.schedule import work_out
from tcpdelay.scenario.applications import APPLICATIONS
from tcpdelay.scenario.fields import InvalidValueError, bounds, is_number
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_STACK, KnownStack, Stack, checked_profile
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target

if TYPE_CHECKING:
    import xarray as xr

Beyond = Literal["bound", "exact"]
Searched = Literal["loss", "rtt"]

SHORTEST_RTT, LONGEST_RTT = 0.010, 0.400
LOWEST_LOSS, HIGHEST_LOSS = 0.001, 0.10
"""Range of round-trip times [s] and losses where none are given."""
DEFAULT_POINTS = 40
LARGEST_REGION = 1_000_000
"""Most cells of a region."""
DEFAULT_TOLERANCE = 0.01
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 1e-9, 1.0


@dataclass(frozen=True)
class Question:
    """A flow, its TCP and the target that decides what works, all checked."""

    flow: Flow
    stack: KnownStack
    target: Target


def question(flow: Flow | str, stack: Stack | None, threshold: float | None, quantile: float | None) -> Question:
    """Return the question with its defaults filled in: those of the application, or 95 % within 200 ms.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of one of `tcpdelay.scenario.applications`.
    stack : Stack, optional
        Its TCP; by default that of `tcpdelay.predict_delay`.
    threshold, quantile : float, optional
        Largest delay [s], above 0, and the share of the packets that must arrive by then, above 0 and below 1.

    Returns
    -------
    Question
        Flow, stack and target.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or outside its range.

    Examples
    --------
    >>> question("voip", None, None, 0.99).target
    Target(limit=0.2, quantile=0.99)
    """
    target = Target(DEFAULT_LIMIT)
    preset = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    if preset is not None:
        flow, target = preset.flow, preset.target
    if not isinstance(flow, Flow):
        raise InvalidValueError("flow", flow, f"be a Flow or one of {', '.join(APPLICATIONS)}")
    limit = target.limit if threshold is None else threshold
    if not (is_number(limit) and 0 < limit < float("inf")):
        raise InvalidValueError("threshold", limit, "be a number of seconds above 0")
    share = target.quantile if quantile is None else quantile
    return Question(flow, DEFAULT_STACK if stack is None else checked_profile(stack), Target(limit, share))


def round_trip_times(rtt: ArrayLike | None) -> NDArray[np.float64]:
    """Return round-trip times [s], ascending; by default 40 from 10 ms to 400 ms, in equal ratios.

    Raises
    ------
    ValueError
        If a value is no number from 1e-6 to 60 s, or the values do not ascend.

    Examples
    --------
    >>> round_trip_times([0.05, 0.1])
    array([0.05, 0.1 ])
    """
    if rtt is None:
        return np.geomspace(SHORTEST_RTT, LONGEST_RTT, DEFAULT_POINTS)
    return _ascending("rtt", rtt, *bounds(Path, "rtt"), "s")


def losses(loss: ArrayLike | None, *, allow_zero: bool = False) -> NDArray[np.float64]:
    """Return losses, ascending; by default 40 from 0.1 % to 10 %, in equal ratios.

    Raises
    ------
    ValueError
        If a value is no fraction above 0 (with `allow_zero`, from 0 on) and below 1, or the values do not ascend.

    Examples
    --------
    >>> losses(0.02)
    array([0.02])
    """
    if loss is None:
        return np.geomspace(LOWEST_LOSS, HIGHEST_LOSS, DEFAULT_POINTS)
    smallest = 0.0 if allow_zero else float(np.nextafter(0, 1))
    return _ascending("loss", loss, smallest, float(np.nextafter(1, 0)), "")


def _ascending(name: str, values: ArrayLike, low: float, high: float, unit: str) -> NDArray[np.float64]:
    """Return a number or a list of ascending numbers of a range as an array."""
    try:
        array = np.atleast_1d(np.asarray(values, np.float64))
    except (TypeError, ValueError):
        raise InvalidValueError(name, values, "be a number or a list of at least one number") from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidValueError(name, values, "be a number or a list of at least one number")
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        allowed = (
            f"between {low:g} and {high:g} {unit}"
            if unit
            else f"fractions {'from' if low == 0 else 'above'} 0 and below 1"
        )
        raise InvalidValueError(name, array[outside][0], f"be {allowed}")
    if not np.all(np.diff(array) > 0):
        raise InvalidValueError(name, array, "ascend")
    return array


CELL = np.dtype(
    [
        ("p50", np.float64),
        ("p95", np.float64),
        ("p99", np.float64),
        ("quantile", np.float64),
        ("mean", np.float64),
        ("late_fraction", np.float64),
        ("unplayed", np.float64),
        ("playout_delay", np.float64),
        ("sustainable", np.bool_),
        ("works", np.bool_),
        ("accuracy", np.int8),
    ]
)
ACCURACIES = ("exact", "lower_bound", "unsustainable", "not_computed")
"""What the figures of a cell are, by number."""
NOT_COMPUTED = ACCURACIES.index("not_computed")
_ACCURACY_OF_STATUS = {"exact": 0, "bound": 1, "not carried": 2}
_ERRORS = ("median", "mean", "p90")


def _fill_cell(
    target: Target, playout_delay: float, best: Codec | None, row: Any, answer: Answer, values: Mapping[str, Any]
) -> None:
    """Write an answer to a cell; with a codec, packets are played at the time at which its rating is best."""
    row["p50"], row["p95"], row["p99"], row["quantile"] = answer.quantiles.tolist()
    row["mean"], (row["late_fraction"], unplayed) = answer.mean, answer.late_fractions.tolist()
    if best is None:
        row["unplayed"], row["playout_delay"] = unplayed, playout_delay
    else:
        call = best_playout_delay(answer.require(), best)
        row["unplayed"], row["playout_delay"] = call.late_fraction, call.playout_delay
    row["sustainable"], row["works"] = answer.sustainable, answer.meets(target)
    row["accuracy"] = _ACCURACY_OF_STATUS[answer.status]


def working_region(
    flow: Flow | str,
    stack: Stack | None = None,
    *,
    rtt: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    threshold: float | None = None,
    quantile: float | None = None,
    codec: str | None = "g711",
    playout_delay: float | Literal["threshold", "best"] = "threshold",
    beyond: Beyond = "bound",
    on_progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Predict the delay at every round-trip time and loss of a range, and say where the flow works.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of one of `tcpdelay.scenario.applications`, which brings its threshold and quantile along.
    stack : Stack, optional
        Its TCP; by default that of a current Linux kernel.
    rtt : array_like, optional
        Round-trip times [s], ascending; by default 40 from 10 ms to 400 ms. The one-way delay is half of each.
    loss : array_like, optional
        Losses, ascending fractions from 0 to below 1; by default 40 from 0.1 % to 10 %.
    threshold : float, optional
        Latest useful arrival [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    codec : str, optional
        Codec of `tcpdelay.quality` by which a call is rated; None leaves that out.
    playout_delay : float or {"threshold", "best"}
        Time from write to playout of the call that is rated [s], above 0; "best" is that with the best rating in each
        cell, as of `tcpdelay.quality.voice.best_playout_delay`, and takes two to four times as long.
    beyond : {"bound", "exact"}
        "bound" spends no more on a cell that misses the target than it takes to say so: its delays may then be lower
        bounds. "exact" takes ten times as long and more.
    on_progress : callable, optional
        Called with the number of round-trip times done, and of all.

    Returns
    -------
    xarray.Dataset
        Over rtt and loss: p50, p95, p99, the chosen quantile and the mean delay [s], infinite where TCP cannot carry
        the flow; late_fraction at the threshold; mos and playout_delay [s] of the call; utilization, sustainable,
        works; median, mean and 90 % quantile of the expected relative error of the 95th percentile; and accuracy, which
        marks exact cells (0), lower bounds (1), where a score is an upper bound, flows that TCP cannot carry (2) and
        chains too large to compute (3, all NaN).

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or outside its range.

    Examples
    --------
    >>> region = working_region("voip", rtt=[0.05, 0.15], loss=[0.001, 0.02])
    >>> region.works.values
    array([[ True,  True],
           [ True, False]])
    >>> round(float(region.p95.sel(rtt=0.05, loss=0.02)), 3), region.p95.units
    (0.055, 's')
    """
    if beyond not in get_args(Beyond):
        raise InvalidValueError("beyond", beyond, f"be one of {', '.join(map(repr, get_args(Beyond)))}")
    asked = question(flow, stack, threshold, quantile)
    rtts, lost = round_trip_times(rtt), losses(loss, allow_zero=True)
    if rtts.size * lost.size > LARGEST_REGION:
        raise ValueError(
            f"rtt and loss must make at most {LARGEST_REGION} cells, got {rtts.size} x {lost.size} of them"
        )
    wait = _playout_delay(playout_delay, asked.target.limit)
    rated = None if codec is None else codec_named(codec)
    cells = _cells(asked, rtts, lost, beyond, wait, rated, on_progress)
    # Its import costs more than a small region.
    import xarray as xr

    computed = np.where(cells.accuracy == NOT_COMPUTED, np.nan, 1.0)
    variables: dict[str, Any] = {
        name: cells[name].variable for name in CELL.names or () if name not in ("unplayed", "playout_delay", "accuracy")
    }
    utilization = utilization_map(asked.flow, rtts, lost, asked.stack)
    variables["utilization"] = (DIMENSIONS, utilization, _share("rate of the flow over the fair TCP rate"))
    meanings = {
        "long_name": "what the delays are",
        "flag_values": np.arange(len(ACCURACIES), dtype=np.int8),
        "flag_meanings": " ".join(ACCURACIES),
    }
    variables["accuracy"] = (DIMENSIONS, cells.accuracy.values, meanings)
    if rated is not None:
        when = f"after {wait:g} s" if wait is not None else "when its rating is best"
        name = f"mean opinion score of a call with {codec} that plays out {when}, by the E-model"
        scores = voice_mos(
            np.nan_to_num(cells.playout_delay.values, nan=0.0, posinf=np.inf) + rated.delay,
            np.nan_to_num(cells.unplayed.values, nan=1.0),
            rated,
        )
        variables["mos"] = (DIMENSIONS, scores * computed, {"long_name": name, "units": "1"})
        variables["playout_delay"] = cells.playout_delay.variable
    errors = expected_error_map(asked.flow, rtts, lost, asked.stack, cells.sustainable.values)
    for i, statistic in enumerate(_ERRORS):
        text = f"{statistic} of the expected relative error of the 95th percentile"
        variables[f"expected_error_{statistic}"] = (DIMENSIONS, errors[..., i] * computed, _share(text))
    return xr.Dataset(
        variables,
        coords={
            "rtt": ("rtt", rtts, {"long_name": "round-trip time", "units": "s"}),
            "loss": ("loss", lost, _share("probability that a data segment is lost")),
        },
        attrs=_attributes(asked, codec, playout_delay, beyond),
    )


DIMENSIONS = ("rtt", "loss")


def _playout_delay(given: float | str, limit: float) -> float | None:
    """Return the time from write to playout [s], or None for the best one."""
    if given in ("threshold", "best"):
        return limit if given == "threshold" else None
    if isinstance(given, str) or not 0 < given < float("inf"):
        raise InvalidValueError("playout_delay", given, "be a number of seconds above 0, 'threshold' or 'best'")
    return float(given)


def _cells(
    asked: Question,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    beyond: Beyond,
    playout_delay: float | None,
    rated: Codec | None,
    on_progress: Callable[[int, int], None] | None,
) -> xr.Dataset:
    """Return the figures of `CELL` at every round-trip time and loss."""
    target = asked.target
    limit, share = target.limit, target.quantile
    best = rated if playout_delay is None else None
    played = limit if playout_delay is None else playout_delay
    requested = Requested(
        (0.5, 0.95, 0.99, share), (limit, played), beyond, target, distribution=best is not None
    )  # fmt: skip
    meanings = {
        "p50": Meaning("s", "median delay"),
        "p95": Meaning("s", "95th percentile of the delay"),
        "p99": Meaning("s", "99th percentile of the delay"),
        "quantile": Meaning("s", f"delay within which a share of {share:g} of the packets arrives"),
        "mean": Meaning("s", "mean delay"),
        "late_fraction": Meaning("1", f"share of the packets later than {limit:g} s"),
        "unplayed": Meaning("1", "share of the packets of the call that are not played"),
        "playout_delay": Meaning("s", "time from write to playout of the call"),
        "sustainable": Meaning(None, "whether TCP can carry the flow at all"),
        "works": Meaning(None, f"whether {share:g} of the packets arrive within {limit:g} s"),
        "accuracy": Meaning(None, "what the delays are"),
    }
    start = Scenario(asked.flow, Path(float(rtt[0]), float(loss[0])), asked.stack, target)
    cells = evaluate(
        Grid.around(start, rtt=rtt, loss=loss),
        requested,
        threads(min(processors(), MOST_USEFUL_THREADS)),
        variables=Variables(CELL, partial(_fill_cell, target, played, best), meanings),
        on_progress=_by_line(on_progress, loss.size),
    )
    cells["accuracy"] = cells.accuracy.where(cells.refused == 0, NOT_COMPUTED)
    return cells


def _by_line(on_progress: Callable[[int, int], None] | None, columns: int) -> Callable[[Progress], None] | None:
    """Return what reports progress in round-trip times, each of so many losses."""
    if on_progress is None:
        return None
    reported = 0

    def report(progress: Progress) -> None:
        nonlocal reported
        if progress.done // columns > reported:
            reported = progress.done // columns
            on_progress(reported, progress.total // columns)

    return report


def _share(name: str) -> dict[str, Any]:
    return {"long_name": name, "units": "1"}


def _attributes(asked: Question, codec: str | None, playout_delay: float | str, beyond: Beyond) -> dict[str, Any]:
    """Return what was asked, as netCDF can hold it."""
    return {
        "title": "Predicted delay, from write to in-order read, of a constant-bit-rate flow over TCP",
        "source": f"tcpdelay {__version__}",
        "flow": repr(asked.flow),
        "packet_size": asked.flow.packet_size,
        "interval": asked.flow.interval,
        "stack": repr(asked.stack),
        "threshold": asked.target.limit,
        "quantile": asked.target.quantile,
        "codec": codec or "none",
        "playout_delay": playout_delay,
        "beyond": beyond,
        "comment": "delays in s; where accuracy is lower_bound, delays and late fraction are at least what is given",
    }


@dataclass(frozen=True)
class WorkingBoundary:
    """Where a flow first misses its target, for each of several round-trip times, or losses.

    Parameters
    ----------
    flow, stack, target
        The question.
    searched : {"loss", "rtt"}
        The parameter that grows until the target is missed.
    at : ndarray
        The values of the other parameter: round-trip times [s], or losses.
    works_up_to : ndarray
        Largest value found up to which all tried values work [fraction, or s]; NaN where the smallest value fails.
    fails_from : ndarray
        Smallest value found that fails; NaN where all tried values work.
    tolerance : float
        Largest relative distance of the two sides, where both exist.
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
        """Return the path at a point, with a `value` of the searched parameter."""
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
    failure: the values of the searched parameter are tried upwards until one fails, and the gap below it is bisected in
    equal ratios. Values beyond the first failure that work again do not count. A failure between two tried values that
    work is not found.

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
        Latest useful arrival [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    searched : {"loss", "rtt"}
        The parameter that is searched; the other parameter gives the points.
    tolerance : float
        Relative distance of the two sides of the boundary at which the search ends, 1e-9 to 1.
    on_progress : callable, optional
        Called with the number of points done, and of all.

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
    (array([0.058, 0.007]), True)
    """
    if searched not in get_args(Searched):
        raise InvalidValueError("searched", searched, f"be one of {', '.join(map(repr, get_args(Searched)))}")
    if not SMALLEST_TOLERANCE <= tolerance <= LARGEST_TOLERANCE:
        raise InvalidValueError("tolerance", tolerance, f"lie between {SMALLEST_TOLERANCE:g} and {LARGEST_TOLERANCE:g}")
    asked = question(flow, stack, threshold, quantile)
    rtts, lost = round_trip_times(rtt), losses(loss)
    points, grid = (rtts, lost) if searched == "loss" else (lost, rtts)
    results = work_out(_BoundarySearch(asked, searched, points, grid, tolerance), on_progress=on_progress)
    works, fails = results.values["works_up_to"], results.values["fails_from"]
    return WorkingBoundary(asked.flow, asked.stack, asked.target, searched, points, works, fails, tolerance)


def _path(searched: Searched, point: float, value: float) -> Path:
    return Path(point, value) if searched == "loss" else Path(value, point)


@dataclass(frozen=True)
class _BoundarySearch:
    """A search at each point."""

    asked: Question
    searched: Searched
    points: NDArray[np.float64]
    grid: NDArray[np.float64]
    tolerance: float
    row_type = np.dtype([("works_up_to", np.float64), ("fails_from", np.float64)])

    @property
    def size(self) -> int:
        """Number of points."""
        return self.points.size

    def fill(self, row: Any, number: int) -> str:
        """Write both sides of the boundary at one point to `row`."""
        asked, point = self.asked, float(self.points[number])
        requested = Requested((asked.target.quantile,), (), "bound", asked.target, distribution=False)

        def works(value: float) -> bool:
            scenario = Scenario(asked.flow, _path(self.searched, point, value), asked.stack, asked.target)
            return predict(scenario, requested, "chain").meets(asked.target)

        row["works_up_to"], row["fails_from"] = first_failure(works, self.grid, self.tolerance)
        return ""


def first_failure(works: Callable[[float], bool], grid: NDArray[np.float64], tolerance: float) -> tuple[float, float]:
    """Return the largest value below the first failure that works, and the smallest one found that fails.

    Parameters
    ----------
    works : callable
        Says whether a value works.
    grid : ndarray
        Ascending values, which are tried up to the first failure.
    tolerance : float
        Relative distance of the two returned values at which the bisection ends.

    Returns
    -------
    tuple of float
        Both values; NaN for a side that the grid does not reach.

    Examples
    --------
    >>> inside, outside = first_failure(lambda loss: loss < 0.03, np.array([0.01, 0.02, 0.05]), 0.01)
    >>> round(inside, 3), round(outside, 3)
    (0.03, 0.03)
    """
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
