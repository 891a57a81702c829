"""The interpolation between the points of the explorer's grid, and its accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.questions.explorer import CELL, PROBABILITIES, Surfaces, predict_places
from tcpdelay.scenario.fields import InvalidValueError

SMALLEST_SHARE = 1e-6
"""Smallest late fraction and headroom that are interpolated: 0 has no logarithm."""


class Knots(NamedTuple):
    """Figures that are interpolated linearly in the logarithms of bitrate, round-trip time and loss.

    Attributes
    ----------
    headroom, late_fraction : ndarray
        Logarithms of headroom and late fraction.
    delays : ndarray
        Logarithms of mean and quantiles times the reserve, 1 - 1/headroom: near the capacity, delays grow in proportion
        to 1/reserve.
    mos, expected_error : ndarray
        Score and expected error themselves.
    """

    headroom: NDArray[np.float64]
    delays: NDArray[np.float64]
    late_fraction: NDArray[np.float64]
    mos: NDArray[np.float64]
    expected_error: NDArray[np.float64]


def reserve(headroom: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unused share of the capacity; NaN if the flow needs all of it.

    Examples
    --------
    >>> reserve(np.array([1.0, 2.0, 4.0])).tolist()
    [nan, 0.5, 0.75]
    """
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
    """Return the predictions at places between the points of the grid, without the chain.

    Parameters
    ----------
    surfaces : Surfaces
        Predictions on a grid.
    places : ndarray, shape (n, 3)
        Bitrates [bit/s], round-trip times [s] and losses, within the grid's range.

    Returns
    -------
    ndarray of CELL, shape (n,)
        Predictions; a figure is NaN if it is unknown at all surrounding points of the grid.

    Examples
    --------
    >>> from tcpdelay.questions.explorer import GridSize, compute_surfaces
    >>> from tcpdelay.scenario.applications import application
    >>> surfaces = compute_surfaces(application("voip"), GridSize(rtts=2, losses=2, bitrates=3))
    >>> on_grid = np.array([[69_600, 0.005, 0.0001]])
    >>> float(interpolated(surfaces, on_grid)["mean"][0] / surfaces.cells["mean"][1, 0, 0])
    1.0
    """
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
    """Differences between interpolated and exact predictions at random points.

    Parameters
    ----------
    points : int
        Number of points at which both the page and the chain have delays.
    quantile, mean : tuple of float
        Median and 90 % quantile of the absolute relative difference in the target's quantile and in the mean.
    late_fraction : tuple of float
        Median and 90 % quantile of the absolute difference in the late fraction.
    wrong : int
        Number of points at which the page's verdict is wrong.
    unsettled : int
        Number of points at which the page reports that interpolation does not settle the verdict.
    """

    points: int
    quantile: tuple[float, float]
    mean: tuple[float, float]
    late_fraction: tuple[float, float]
    wrong: int
    unsettled: int


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
    """Compare interpolated predictions with the chain's at random points; each call takes the same points.

    Parameters
    ----------
    surfaces : Surfaces
        Predictions on a grid.
    points : int
        Number of points, 1 or more.
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
    >>> from tcpdelay.questions.explorer import GridSize, compute_surfaces
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
