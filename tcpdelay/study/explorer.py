"""Predictions for the page of the explorer: the grid and its edges, the interpolation between, and its accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.validity import LINUX_RANGE
from tcpdelay.ask import Answer, Requested
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import chain_model, predict
from tcpdelay.quality.voice import best_playout_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Application, Scenario
from tcpdelay.scenario.stack import DEFAULT_STACK
from tcpdelay.study import execution
from tcpdelay.study.boundary import DEFAULT_TOLERANCE, first_failure
from tcpdelay.study.execution import counts_of
from tcpdelay.study.grid import Dimension, Grid, Meaning, Variables, evaluate
from tcpdelay.study.search import at_bitrate, excess_lateness

BITRATE_SPAN = 4.0
"""Largest ratio between a bitrate of the grid and the bitrate of the application."""

EDGES_PER_RTT = 3
"""Round-trip times with an edge for each of the grid: the edge of the loss falls and rises in steps."""
JUST_BELOW = 1e-6


@dataclass(frozen=True)
class GridSize:
    """Numbers of points along each quantity, over the range in which the chain of Linux has been checked."""

    rtts: int  # 2 or more
    losses: int  # 2 or more
    bitrates: int  # An odd number, 3 or more: the bitrate of the application is the middle one

    def __post_init__(self) -> None:
        for name, least in (("rtts", 2), ("losses", 2), ("bitrates", 3)):
            if getattr(self, name) < least:
                raise InvalidValueError(name, getattr(self, name), f"be {least} or more")
        if self.bitrates % 2 == 0:
            raise InvalidValueError("bitrates", self.bitrates, "be odd")

    @property
    def rtt(self) -> NDArray[np.float64]:
        """Round-trip times [s], ascending."""
        return np.geomspace(*LINUX_RANGE.rtt, self.rtts)

    @property
    def edge_rtt(self) -> NDArray[np.float64]:
        """Round-trip times [s] of the edges, ascending.

        The last but one is just below the last, at which packets may arrive exactly at the limit.
        """
        times = np.geomspace(*LINUX_RANGE.rtt, EDGES_PER_RTT * (self.rtts - 1) + 1)
        return np.insert(times, -1, times[-1] * (1 - JUST_BELOW))

    @property
    def loss(self) -> NDArray[np.float64]:
        """Losses, as fractions, ascending."""
        return np.geomspace(*LINUX_RANGE.loss, self.losses)

    def bitrate(self, of_application: float) -> NDArray[np.float64]:
        """Return the bitrates [bit/s], ascending, around the bitrate of an application."""
        return of_application * np.geomspace(1 / BITRATE_SPAN, BITRATE_SPAN, self.bitrates)


FINE = GridSize(rtts=24, losses=31, bitrates=9)
"""Most points are losses: a quantile of the delay jumps where a larger share of the packets is lost."""
COARSE = GridSize(rtts=9, losses=10, bitrates=5)


_BODY = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
_TAIL = (0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.998, 0.999)
PROBABILITIES = np.array([*_BODY, *_TAIL])
"""Probabilities of the quantiles in a cell; they include the probabilities of all presets' targets."""
SMALLEST_HEADROOM = 1.1
"""Smallest headroom above 1 for which the chain is solved; with less, it takes too long for a whole grid."""
CODECS = {"voip": "g711"}
"""Codecs of the presets whose calls can be rated. No planning values are published for Opus at 24 kbit/s and PCM."""

CELL = np.dtype(
    [
        ("headroom", np.float64),
        ("mean", np.float64),
        ("quantiles", np.float64, PROBABILITIES.shape),
        ("late_fraction", np.float64),
        ("mos", np.float64),
        ("expected_error", np.float64),
    ]
)
"""One prediction.

Headroom is the rate that TCP can carry, divided by the rate of the flow. With a headroom of 1 or less, the backlog
grows without bound and delays [s] are infinite. NaN marks figures that are not computed, or that the application lacks.
"""


@dataclass(frozen=True)
class Surfaces:
    """Predictions for one application on a grid."""

    application: Application  # The application, with its packets and target
    # bitrate, rtt, loss: The grid's bitrates [bit/s], round-trip times [s] and losses, ascending.
    bitrate: NDArray[np.float64]
    rtt: NDArray[np.float64]
    loss: NDArray[np.float64]
    cells: NDArray[np.void]  # The predictions
    edge_rtt: NDArray[np.float64]  # Round-trip times [s] at which the edges of the loss are known, ascending
    # The largest loss found that works at each bitrate of the grid and each of these times, and the smallest that
    # fails; 0 and infinite where all, or none, of the losses fail. Shape (bitrates, times, 2).
    edges: NDArray[np.float64]


_MEANINGS = {
    "headroom": Meaning("1", "rate that TCP could carry over the rate that is sent"),
    "mean": Meaning("s", "mean delay"),
    "quantiles": Meaning("s", "delay within which a share of the packets arrives"),
    "late_fraction": Meaning("1", "share of the packets later than the application's limit"),
    "mos": Meaning("1", "mean opinion score of a call at its best playout delay"),
    "expected_error": Meaning("1", "median of the expected relative error of the 95th percentile"),
    "works": Meaning("1", "largest loss found that works"),
    "fails": Meaning("1", "smallest loss found that fails"),
}


def _prepare(row: Any, scenario: Scenario) -> bool:
    """Write the headroom to a cell, and return whether to compute the delays."""
    for name in CELL.names or ():
        row[name] = np.nan
    capacity = chain_model(scenario).capacity(scenario)
    row["headroom"] = headroom = max(capacity / scenario.flow.packet_rate, 0.0)
    return not 1 < headroom < SMALLEST_HEADROOM


def _fill(application: Application, row: Any, answer: Answer, values: Mapping[str, Any]) -> None:
    """Write an answer to a cell."""
    if not answer.sustainable and row["headroom"] > 1:
        # The backlog does not fit into a chain, but it may be finite.
        return
    delays = answer.require()
    row["mean"], row["quantiles"], row["late_fraction"] = answer.mean, answer.quantiles, answer.late_fractions[0]
    if application.name in CODECS:
        row["mos"] = best_playout_delay(delays, CODECS[application.name]).mos
    row["expected_error"] = np.nan if delays.expected_error is None else delays.expected_error.median


def _scenario(application: Application, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario of an application at another bitrate.

    Packets grow with the bitrate up to one segment; at higher bitrates they become more frequent.
    """
    flow = at_bitrate(application.flow, values["bitrate"], DEFAULT_STACK.mss)
    return Scenario(flow, Path(values["rtt"], values["loss"]), DEFAULT_STACK, application.target)


def _scenario_at_place(application: Application, places: NDArray[np.float64], values: Mapping[str, Any]) -> Scenario:
    return _scenario(application, dict(zip(("bitrate", "rtt", "loss"), places[values["place"]].tolist(), strict=True)))


def _predicted(
    application: Application, grid: Grid, workers: int, on_progress: Callable[[int, int], None] | None
) -> NDArray[np.void]:
    """Return the predictions at all points of a grid."""
    probabilities = tuple(PROBABILITIES.tolist())
    dimensions = {"quantiles": Dimension("quantile", probabilities, Meaning("1", "share of the packets"))}

    found = evaluate(
        grid,
        Requested(probabilities, (application.target.limit,)),
        execution.processes(workers),
        variables=Variables(CELL, partial(_fill, application), _MEANINGS, dimensions, _prepare),
        on_progress=counts_of(on_progress),
    )
    cells = np.empty(grid.shape, CELL)
    for name in CELL.names or ():
        cells[name] = found[name].values
    return cells


def predict_places(
    application: Application,
    places: NDArray[np.float64],
    processes: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.void]:
    """Return the predictions of the chain of Linux for an application at other bitrates."""
    grid = Grid(
        {"place": tuple(range(len(places)))},
        partial(_scenario_at_place, application, places),
        meanings={"place": Meaning("1", "number of the place")},
    )
    return _predicted(application, grid, processes, on_progress)


def compute_surfaces(
    application: Application,
    size: GridSize,
    processes: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> Surfaces:
    """Predict the delays of an application on a grid; `processes` and `on_progress` are as in `predict_places`."""
    bitrate = size.bitrate(application.flow.bitrate)
    axes = {"bitrate": bitrate, "rtt": size.rtt, "loss": size.loss}
    grid = Grid(
        {name: tuple(values.tolist()) for name, values in axes.items()},
        partial(_scenario, application),
        meanings={"bitrate": Meaning("bit/s", "bits of the application per second")},
    )
    cells = _predicted(application, grid, processes, on_progress)
    searched = {"bitrate": bitrate, "rtt": size.edge_rtt, "loss": size.loss[:1]}
    found = evaluate(
        replace(grid, axes={name: tuple(values.tolist()) for name, values in searched.items()}),
        executor=execution.processes(processes),
        variables=Variables(EDGE, _fill_nothing, _MEANINGS, prepare=partial(_search_edge, size.loss)),
        on_progress=counts_of(on_progress),
    )
    works, fails = found.works.values[..., 0], found.fails.values[..., 0]
    edges = np.stack([np.nan_to_num(works, nan=0.0), np.nan_to_num(fails, nan=np.inf)], axis=-1)
    return Surfaces(application, bitrate, size.rtt, size.loss, cells, size.edge_rtt, edges)


EDGE_SECONDS = 1.0
"""Processor time that the chain may take at each loss that a search for an edge tries [s]."""
EDGE = np.dtype([("works", np.float64), ("fails", np.float64)])
"""Both sides of an edge of the loss; NaN where no loss works, or none fails."""


def _search_edge(losses: NDArray[np.float64], row: Any, scenario: Scenario) -> bool:
    """Write both sides of the edge at a bitrate and a round-trip time to a row; return that it needs no prediction."""
    target = scenario.target
    assert target is not None
    requested, known = Requested(target=target, precision="decision", max_seconds=EDGE_SECONDS), set[float]()

    def excess(loss: float) -> float | None:
        at = replace(scenario, path=replace(scenario.path, loss=loss))
        answer = predict(at, requested, "chain")
        if answer.answered:
            known.add(loss)
        return excess_lateness(answer, target)

    row["works"], fails = first_failure(excess, losses, DEFAULT_TOLERANCE)
    if not np.isnan(fails) and fails not in known:
        # A chain that is too large does not say that the flow fails; one at a higher loss may.
        higher = losses[losses > fails].tolist()
        fails = next((loss for loss in higher if (excess(loss) or 0.0) > 0 and loss in known), np.nan)
    row["fails"] = fails
    return False


def _fill_nothing(row: Any, answer: Answer, values: Mapping[str, Any]) -> None:
    """Write nothing: an edge has no further figures."""


# The range of the edge between the points of the explorer's grid.

ON_POINT = 1e-9
"""Share of the distance between two points of an axis up to which a value counts as one of the points."""
FURTHER = 1
"""Round-trip times on both sides of those around a place whose edges count too."""


def edge_range(surfaces: Surfaces, places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the range of the largest loss that works at the bitrate and round-trip time of each place: shape (n, 2).

    It reaches over the exact edges at the points around, and at the next round-trip times: between points the edge may
    leave the range of those beside it. At a point it is the exact edge.
    """
    around = product(_around(surfaces.bitrate, places[:, 0]), _around(surfaces.edge_rtt, places[:, 1], FURTHER))
    corners = [surfaces.edges[rate, rtt] for rate, rtt in around]
    return np.stack([np.min(corners, axis=0)[:, 0], np.max(corners, axis=0)[:, 1]], axis=-1)


def _around(axis: NDArray[np.float64], values: NDArray[np.float64], further: int = 0) -> list[NDArray[np.int64]]:
    """Return the numbers of the points below and above each value, and of `further` points on both sides of them.

    If a value is one of the points, all are its number.
    """
    numbers = np.interp(np.log(values), np.log(axis), np.arange(axis.size))
    low, high = np.floor(numbers + ON_POINT).astype(np.int64), np.ceil(numbers - ON_POINT).astype(np.int64)
    more = further * (high > low)
    first, last = np.maximum(low - more, 0), np.minimum(high + more, axis.size - 1)
    return [np.minimum(first + step, last) for step in range(2 + 2 * further)]


WORKS, FAILS, UNSETTLED = 1, 0, -1


def verdicts(surfaces: Surfaces, places: NDArray[np.float64], guessed: NDArray[np.void]) -> NDArray[np.int8]:
    """Return the page's verdict at each place: `WORKS`, `FAILS`, or `UNSETTLED` within the range of the edge.

    `guessed` are the interpolated predictions there. Where these contradict the edges, the verdict is not settled.
    """
    target = surfaces.application.target
    place = int(np.flatnonzero(np.isclose(PROBABILITIES, target.quantile))[0])
    in_time = guessed["quantiles"][:, place] <= target.latest
    late = ~np.isnan(guessed["quantiles"][:, place]) & ~in_time
    few, edge, loss = target.allows(guessed["late_fraction"]), edge_range(surfaces, places), places[:, 2]
    works, fails = in_time & few & (loss <= edge[:, 0]), late & ~few & (loss >= edge[:, 1])
    return np.select([works, fails], [WORKS, FAILS], UNSETTLED).astype(np.int8)


# The interpolation between the points of the explorer's grid, and its accuracy.

SMALLEST_SHARE = 1e-6
"""Smallest late fraction and headroom that are interpolated: 0 has no logarithm."""


class Knots(NamedTuple):
    """Figures that are interpolated linearly in the logarithms of bitrate, round-trip time and loss."""

    # headroom, late_fraction: Logarithms of headroom and late fraction.
    headroom: NDArray[np.float64]
    # Logarithms of mean and quantiles times the reserve, 1 - 1/headroom: near the capacity, delays grow in proportion
    # to 1/reserve.
    delays: NDArray[np.float64]
    late_fraction: NDArray[np.float64]
    # mos, expected_error: Score and expected error themselves.
    mos: NDArray[np.float64]
    expected_error: NDArray[np.float64]


def reserve(headroom: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unused share of the capacity; NaN if the flow needs all of it."""
    return 1 - 1 / np.where(headroom > 1, headroom, np.nan)


def knots(surfaces: Surfaces) -> Knots:
    """Return the figures that are interpolated; NaN where they are unknown."""
    cells = surfaces.cells
    delays = np.concatenate([cells["mean"][..., np.newaxis], cells["quantiles"]], axis=-1)
    return Knots(
        headroom=np.log(np.maximum(cells["headroom"], SMALLEST_SHARE)),
        # Delays are infinite where there is no reserve; times a reserve of NaN, they are NaN.
        delays=np.log(delays * reserve(cells["headroom"])[..., np.newaxis]),
        late_fraction=np.log(np.maximum(cells["late_fraction"], SMALLEST_SHARE)),
        mos=cells["mos"],
        expected_error=cells["expected_error"],
    )


def interpolated(surfaces: Surfaces, places: NDArray[np.float64]) -> NDArray[np.void]:
    """Return the predictions at places between the points of the grid, without the chain."""
    known = Knots(*(_interpolate(surfaces, values, places) for values in knots(surfaces)))
    cells = np.full(len(places), np.nan, CELL)
    cells["headroom"] = np.exp(known.headroom)
    endless = cells["headroom"] <= 1
    delays = np.exp(known.delays) / reserve(cells["headroom"])[:, np.newaxis]
    delays[endless] = np.inf
    cells["mean"], cells["quantiles"] = delays[:, 0], delays[:, 1:]
    cells["late_fraction"] = np.where(endless, 1.0, np.exp(known.late_fraction))
    # A call that TCP cannot carry has the lowest score; without a codec, there is no score.
    cells["mos"] = np.where(endless & ~np.isnan(known.mos), 1.0, known.mos)
    cells["expected_error"] = known.expected_error
    return cells


def _interpolate(surfaces: Surfaces, values: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of the known values around each place, weighted linearly in the logarithms; NaN without any."""
    # Imported when needed: SciPy's interpolation takes a while to load.
    from scipy.interpolate import RegularGridInterpolator

    axes = [np.log(axis) for axis in (surfaces.bitrate, surfaces.rtt, surfaces.loss)]
    known = ~np.isnan(values)
    weights, sums = (
        RegularGridInterpolator(axes, each, bounds_error=False, fill_value=None)(np.log(places))
        for each in (known.astype(np.float64), np.where(known, values, 0.0))
    )
    return np.where(weights > 0, sums, np.nan) / np.where(weights > 0, weights, 1.0)


POINTS = 500
SEED = 1
SHARES = (0.5, 0.9)


@dataclass(frozen=True)
class Accuracy:
    """Differences between interpolated and exact predictions at random points."""

    points: int  # Number of points at which both the page and the chain have delays
    # quantile, mean: Median and 90 % quantile of the absolute relative difference in the target's quantile and in the
    # mean.
    quantile: tuple[float, float]
    mean: tuple[float, float]
    late_fraction: tuple[float, float]  # Median and 90 % quantile of the absolute difference in the late fraction
    wrong: int  # Number of points at which the page's verdict is wrong
    unsettled: int  # Number of points at which the page reports that interpolation does not settle the verdict


def random_places(surfaces: Surfaces, points: int, seed: int = SEED) -> NDArray[np.float64]:
    """Return random rows of bitrate [bit/s], round-trip time [s] and loss, uniform in the logarithm over the grid."""
    shares = np.random.default_rng(seed).random((points, 3))
    axes = np.log([[axis[0], axis[-1]] for axis in (surfaces.bitrate, surfaces.rtt, surfaces.loss)])
    places: NDArray[np.float64] = np.exp(axes[:, 0] + shares * (axes[:, 1] - axes[:, 0]))
    return places


def measure_accuracy(
    surfaces: Surfaces,
    points: int = POINTS,
    processes: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> Accuracy:
    """Compare interpolated predictions with the chain's at random points; each call takes the same points."""
    if points < 1:
        raise InvalidValueError("points", points, "be 1 or more")
    target = surfaces.application.target
    places = random_places(surfaces, points)
    exact = predict_places(surfaces.application, places, processes, on_progress)
    guessed = interpolated(surfaces, places)
    place = int(np.flatnonzero(np.isclose(PROBABILITIES, target.quantile))[0])
    quantile, exact_quantile = guessed["quantiles"][:, place], exact["quantiles"][:, place]
    known = ~np.isnan(exact_quantile) & ~np.isnan(quantile)
    verdict, works = verdicts(surfaces, places, guessed), exact_quantile <= target.latest
    settled = known & (verdict != UNSETTLED)
    finite = known & np.isfinite(exact_quantile) & np.isfinite(quantile)
    return Accuracy(
        points=int(known.sum()),
        quantile=_spread(quantile[finite] / exact_quantile[finite] - 1),
        mean=_spread(guessed["mean"][finite] / exact["mean"][finite] - 1),
        late_fraction=_spread((guessed["late_fraction"] - exact["late_fraction"])[known]),
        wrong=int(np.sum(settled & ((verdict == WORKS) != works))),
        unsettled=int(np.sum(known & ~settled)),
    )


def _spread(differences: NDArray[np.float64]) -> tuple[float, float]:
    median, most = np.quantile(np.abs(differences), SHARES) if differences.size else (np.nan, np.nan)
    return float(median), float(most)
