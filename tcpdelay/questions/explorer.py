"""Predictions on a grid of bitrates, round-trip times and losses for the explorer's page, and between its points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.interface import Answer, Requested
from tcpdelay.models.predict import chain_model
from tcpdelay.models.validity import LINUX_RANGE
from tcpdelay.quality.voice import best_playout_delay
from tcpdelay.questions.execution import Progress, processes
from tcpdelay.questions.grid import Dimension, Grid, Meaning, Variables, evaluate
from tcpdelay.questions.quantities import at_bitrate
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import DEFAULT_STACK, Linux

BITRATE_SPAN = 4.0
"""Factor between the bitrate of the application and the ends of the range: beyond it is another application."""


@dataclass(frozen=True)
class GridSize:
    """Numbers of points along each quantity, over the range in which the chain of Linux has been checked.

    Parameters
    ----------
    rtts, losses : int
        Round-trip times from 5 to 400 ms and losses from 0.01 to 10 %, at least 2 of each.
    bitrates : int
        Bitrates from a quarter to four times that of the application; odd, so that its own is among them, from 3 on.

    Raises
    ------
    ValueError
        If there are too few of one, or the number of bitrates is even.

    Examples
    --------
    >>> grid = GridSize(rtts=3, losses=4, bitrates=3)
    >>> grid.loss.round(4).tolist(), grid.bitrate(64_000).round().tolist()
    ([0.0001, 0.001, 0.01, 0.1], [16000.0, 64000.0, 256000.0])
    """

    rtts: int
    losses: int
    bitrates: int

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
    def loss(self) -> NDArray[np.float64]:
        """Losses, as fractions, ascending."""
        return np.geomspace(*LINUX_RANGE.loss, self.losses)

    def bitrate(self, of_application: float) -> NDArray[np.float64]:
        """Return the bitrates [bit/s], ascending, around that of an application."""
        return of_application * np.geomspace(1 / BITRATE_SPAN, BITRATE_SPAN, self.bitrates)


FINE = GridSize(rtts=24, losses=31, bitrates=9)
"""The losses lie closest, as a quantile jumps where more than its share is lost."""
COARSE = GridSize(rtts=9, losses=10, bitrates=5)


_BODY = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
_TAIL = (0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.998, 0.999)
PROBABILITIES = np.array([*_BODY, *_TAIL])
"""Probabilities whose quantiles are kept; those of all presets' targets are among them."""
SMALLEST_HEADROOM = 1.1
"""Rate that TCP could carry over the rate that is sent, below which the chain takes too long for a whole grid."""
CODECS = {"voip": "g711"}
"""Codecs of the presets whose calls can be rated: for Opus at 24 kbit/s or PCM no planning values are published."""

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

Headroom is the rate that TCP could carry over the rate that is sent. Where it is 1 or less, the backlog grows for ever
and delays [s] are infinite. NaN marks figures that are not computed or have no meaning for the application.
"""


@dataclass(frozen=True)
class Surfaces:
    """Predictions for one application on a grid.

    Parameters
    ----------
    application : Application
        Whose packets and target.
    bitrate, rtt, loss : ndarray
        The grid's bitrates [bit/s], round-trip times [s] and losses, ascending.
    cells : ndarray of CELL, shape (bitrates, rtts, losses)
        The predictions.
    """

    application: Application
    bitrate: NDArray[np.float64]
    rtt: NDArray[np.float64]
    loss: NDArray[np.float64]
    cells: NDArray[np.void]


_MEANINGS = {
    "headroom": Meaning("1", "rate that TCP could carry over the rate that is sent"),
    "mean": Meaning("s", "mean delay"),
    "quantiles": Meaning("s", "delay within which a share of the packets arrives"),
    "late_fraction": Meaning("1", "share of the packets later than the application's limit"),
    "mos": Meaning("1", "mean opinion score of a call at its best playout delay"),
    "expected_error": Meaning("1", "median of the expected relative error of the 95th percentile"),
}


def _prepare(row: Any, scenario: Scenario) -> bool:
    """Write the headroom, and return whether the delays are to be computed."""
    for name in CELL.names or ():
        row[name] = np.nan
    capacity = chain_model(isinstance(scenario.stack, Linux)).capacity(scenario)
    row["headroom"] = headroom = max(capacity / scenario.flow.packet_rate, 0.0)
    return not 1 < headroom < SMALLEST_HEADROOM


def _fill(application: Application, row: Any, answer: Answer, values: Mapping[str, Any]) -> None:
    """Write an answer to a cell."""
    if not answer.sustainable and row["headroom"] > 1:
        # The backlog does not fit into a chain; it is not known to grow for ever.
        return
    delays = answer.require()
    row["mean"], row["quantiles"], row["late_fraction"] = answer.mean, answer.quantiles, answer.late_fractions[0]
    if application.name in CODECS:
        row["mos"] = best_playout_delay(delays, CODECS[application.name]).mos
    row["expected_error"] = np.nan if delays.expected_error is None else delays.expected_error.median


def _scenario(application: Application, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario of an application at another bitrate.

    Its packets grow with the bitrate up to one segment; beyond it they become more frequent.
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

    def report(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(progress.done, progress.total)

    found = evaluate(
        grid,
        Requested(probabilities, (application.target.limit,)),
        processes(workers),
        variables=Variables(CELL, partial(_fill, application), _MEANINGS, dimensions, _prepare),
        on_progress=report,
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
    """Return the predictions of the chain of Linux for an application at other bitrates.

    Parameters
    ----------
    application : Application
        A preset; its packets grow with the bitrate up to one segment, beyond it they become more frequent.
    places : ndarray, shape (n, 3)
        Bitrates [bit/s] and round-trip times [s], above 0, and losses, 0 to below 1.
    processes : int
        Number of processes that work, from 1 on; with 1, this process works alone. A script that asks for more has to
        guard what it starts (``if __name__ == "__main__"``), as the `multiprocessing` module says.
    on_progress : callable, optional
        Called with the number of places done, and of all.

    Returns
    -------
    ndarray of CELL, shape (n,)
        The predictions. Delays are missing where headroom is between 1 and `SMALLEST_HEADROOM`, and all figures where
        the chain is too large.

    Raises
    ------
    ValueError
        If `processes` is below 1.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> places = np.array([[69_600, 0.100, 0.02], [69_600, 0.100, 0.05]])
    >>> predict_places(application("voip"), places)["mean"].round(3).tolist()
    [0.063, 0.085]
    """
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
    """Predict an application's delays on a grid; processes and progress are as in `predict_places`.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> surfaces = compute_surfaces(application("voip"), GridSize(rtts=2, losses=2, bitrates=3))
    >>> surfaces.cells.shape, bool((surfaces.cells["headroom"][:, 0, 0] > 1).all())
    ((3, 2, 2), True)
    """
    bitrate = size.bitrate(application.flow.bitrate)
    axes = {"bitrate": bitrate, "rtt": size.rtt, "loss": size.loss}
    grid = Grid(
        {name: tuple(values.tolist()) for name, values in axes.items()},
        partial(_scenario, application),
        meanings={"bitrate": Meaning("bit/s", "bits of the application per second")},
    )
    cells = _predicted(application, grid, processes, on_progress)
    return Surfaces(application, bitrate, size.rtt, size.loss, cells)


SMALLEST_SHARE = 1e-6
"""Late fractions count as this one at least, as 0 has no logarithm."""


class Knots(NamedTuple):
    """What is interpolated linearly in the logarithms of bitrate, round-trip time and loss.

    Attributes
    ----------
    headroom, late_fraction : ndarray
        Logarithms.
    delays : ndarray
        Logarithms of mean and quantiles, each times the share of the capacity that is left, 1 - 1/headroom: close to
        the capacity delays grow as its inverse does.
    mos, expected_error : ndarray
        As they are.
    """

    headroom: NDArray[np.float64]
    delays: NDArray[np.float64]
    late_fraction: NDArray[np.float64]
    mos: NDArray[np.float64]
    expected_error: NDArray[np.float64]


def reserve(headroom: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the capacity that is left; NaN where none is.

    Examples
    --------
    >>> reserve(np.array([1.0, 2.0, 4.0])).tolist()
    [nan, 0.5, 0.75]
    """
    carried = np.where(headroom > 1, headroom, np.nan)
    return 1 - 1 / carried


def knots(surfaces: Surfaces) -> Knots:
    """Return what is interpolated; NaN where nothing is known."""
    cells = surfaces.cells
    delays = np.concatenate([cells["mean"][..., np.newaxis], cells["quantiles"]], axis=-1)
    return Knots(
        headroom=np.log(np.maximum(cells["headroom"], SMALLEST_SHARE)),
        # Infinite delays stand where there is no reserve, and become NaN with it.
        delays=np.log(delays * reserve(cells["headroom"])[..., np.newaxis]),
        late_fraction=np.log(np.maximum(cells["late_fraction"], SMALLEST_SHARE)),
        mos=cells["mos"],
        expected_error=cells["expected_error"],
    )


def interpolated(surfaces: Surfaces, places: NDArray[np.float64]) -> NDArray[np.void]:
    """Return the predictions at places within the grid, without asking the chain.

    Parameters
    ----------
    surfaces : Surfaces
        Predictions on a grid.
    places : ndarray, shape (n, 3)
        Bitrates [bit/s], round-trip times [s] and losses, within the grid's range.

    Returns
    -------
    ndarray of CELL, shape (n,)
        Predictions; what no surrounding point of the grid knows is NaN.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> surfaces = compute_surfaces(application("voip"), GridSize(rtts=2, losses=2, bitrates=3))
    >>> on_grid = np.array([[69_600, 0.005, 0.0001]])
    >>> float(interpolated(surfaces, on_grid)["mean"][0] / surfaces.cells["mean"][1, 0, 0])
    1.0
    """
    corners, weights = _corners(surfaces, places)
    known = Knots(*(_weighted(values, corners, weights) for values in knots(surfaces)))
    cells = np.full(len(places), np.nan, CELL)
    cells["headroom"] = np.exp(known.headroom)
    endless = cells["headroom"] <= 1
    delays = np.exp(known.delays) / reserve(cells["headroom"])[:, np.newaxis]
    delays[endless] = np.inf
    cells["mean"], cells["quantiles"] = delays[:, 0], delays[:, 1:]
    cells["late_fraction"] = np.where(endless, 1.0, np.exp(known.late_fraction))
    # Calls that never work have the lowest score; that of others is not known.
    cells["mos"] = np.where(endless & ~np.isnan(known.mos), 1.0, known.mos)
    cells["expected_error"] = known.expected_error
    return cells


def _corners(
    surfaces: Surfaces, places: NDArray[np.float64]
) -> tuple[list[tuple[NDArray[np.int64], ...]], list[NDArray[np.float64]]]:
    """Return the eight points of the grid around each place, and their weights."""
    below, shares = [], []
    for axis, values in zip((surfaces.bitrate, surfaces.rtt, surfaces.loss), places.T, strict=True):
        place = np.interp(np.log(values), np.log(axis), np.arange(axis.size))
        below.append(np.minimum(place.astype(np.int64), axis.size - 2))
        shares.append(place - below[-1])
    corners, weights = [], []
    for upper in itertools.product((0, 1), repeat=3):
        corners.append(tuple(first + step for first, step in zip(below, upper, strict=True)))
        weights.append(
            np.prod([share if step else 1 - share for share, step in zip(shares, upper, strict=True)], axis=0)
        )
    return corners, weights


def _weighted(
    values: NDArray[np.float64], corners: list[tuple[NDArray[np.int64], ...]], weights: list[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the weighted means over those corners that are known; NaN where none is."""
    around = np.stack([values[corner] for corner in corners])
    shares = np.stack(weights).reshape(len(weights), -1, *[1] * (around.ndim - 2))
    shares = np.where(np.isnan(around), 0.0, shares)
    sums = shares.sum(axis=0)
    return np.where(sums > 0, np.nansum(shares * around, axis=0), np.nan) / np.where(sums > 0, sums, 1.0)


POINTS = 500
SEED = 1
SHARES = (0.5, 0.9)


@dataclass(frozen=True)
class Accuracy:
    """Differences between interpolated and exact predictions at random points.

    Parameters
    ----------
    points : int
        Points at which both the page and the chain have delays.
    quantile, mean : tuple of float
        Median and 90 % quantile of the relative difference, without its sign, of the target's quantile and of the mean.
    late_fraction : tuple of float
        The same of the late fraction, as differences.
    wrong : int
        Points at which the page's verdict is wrong.
    unsettled : int
        Points at which the page says that interpolation does not settle the verdict.
    """

    points: int
    quantile: tuple[float, float]
    mean: tuple[float, float]
    late_fraction: tuple[float, float]
    wrong: int
    unsettled: int


def random_places(surfaces: Surfaces, points: int, seed: int = SEED) -> NDArray[np.float64]:
    """Return rows of bitrate [bit/s], round-trip time [s] and loss, uniform in their logarithms over the grid."""
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
    """Compare interpolated predictions with the chain's at random points, which are the same each time.

    Parameters
    ----------
    surfaces : Surfaces
        Predictions on a grid.
    points : int
        Number of points, from 1 on.
    processes, on_progress
        As in `predict_places`.

    Returns
    -------
    Accuracy
        The differences.

    Raises
    ------
    ValueError
        If `points` is below 1.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> surfaces = compute_surfaces(application("voip"), GridSize(rtts=2, losses=2, bitrates=3))
    >>> measure_accuracy(surfaces, points=5).points
    5
    """
    if points < 1:
        raise InvalidValueError("points", points, "be 1 or more")
    target = surfaces.application.target
    places = random_places(surfaces, points)
    exact = predict_places(surfaces.application, places, processes, on_progress)
    guessed = interpolated(surfaces, places)
    place = int(np.flatnonzero(np.isclose(PROBABILITIES, target.quantile))[0])
    quantile, exact_quantile = guessed["quantiles"][:, place], exact["quantiles"][:, place]
    known = ~np.isnan(exact_quantile) & ~np.isnan(quantile)
    in_time, works = (np.array([*map(target.is_met_by, delays.tolist())]) for delays in (quantile, exact_quantile))
    few_late = np.array([*map(target.allows, guessed["late_fraction"].tolist())])
    settled = known & (in_time == few_late)
    finite = known & np.isfinite(exact_quantile) & np.isfinite(quantile)
    return Accuracy(
        points=int(known.sum()),
        quantile=_spread(quantile[finite] / exact_quantile[finite] - 1),
        mean=_spread(guessed["mean"][finite] / exact["mean"][finite] - 1),
        late_fraction=_spread((guessed["late_fraction"] - exact["late_fraction"])[known]),
        wrong=int(np.sum(settled & (in_time != works))),
        unsettled=int(np.sum(known & ~settled)),
    )


def _spread(differences: NDArray[np.float64]) -> tuple[float, float]:
    median, most = np.quantile(np.abs(differences), SHARES) if differences.size else (np.nan, np.nan)
    return float(median), float(most)
