"""Predictions between the points of a grid, by the same rules as in the explorer's page.

How far the explorer's interpolated predictions are from the chain's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.questions.explorer.surfaces import CELL, PROBABILITIES, Surfaces, predict_in_processes
from tcpdelay.scenario.fields import InvalidValueError

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
    >>> from tcpdelay.questions.explorer.surfaces import Grid, compute_surfaces
    >>> surfaces = compute_surfaces(application("voip"), Grid(rtts=2, losses=2, bitrates=3))
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
        Points that both know the delays of.
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
    """Compare interpolated predictions with the chain's at random points, the same ones each time.

    Parameters
    ----------
    surfaces : Surfaces
        Predictions on a grid.
    points : int
        Number of points, from 1 on.
    processes, on_progress
        As in `tcpdelay.questions.explorer.surfaces.predict_in_processes`.

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
    >>> from tcpdelay.questions.explorer.surfaces import Grid, compute_surfaces
    >>> surfaces = compute_surfaces(application("voip"), Grid(rtts=2, losses=2, bitrates=3))
    >>> measure_accuracy(surfaces, points=5).points
    5
    """
    if points < 1:
        raise InvalidValueError("points", points, "be 1 or more")
    target = surfaces.application.target
    places = random_places(surfaces, points)
    exact = predict_in_processes(surfaces.application, places, processes, on_progress)
    guessed = interpolated(surfaces, places)
    place = int(np.flatnonzero(np.isclose(PROBABILITIES, target.quantile))[0])
    quantile, exact_quantile = guessed["quantiles"][:, place], exact["quantiles"][:, place]
    known = ~np.isnan(exact_quantile) & ~np.isnan(quantile)
    in_time, seldom_late = quantile <= target.limit, guessed["late_fraction"] <= 1 - target.quantile
    settled = known & (in_time == seldom_late)
    finite = known & np.isfinite(exact_quantile) & np.isfinite(quantile)
    return Accuracy(
        points=int(known.sum()),
        quantile=_spread(quantile[finite] / exact_quantile[finite] - 1),
        mean=_spread(guessed["mean"][finite] / exact["mean"][finite] - 1),
        late_fraction=_spread((guessed["late_fraction"] - exact["late_fraction"])[known]),
        wrong=int(np.sum(settled & (in_time != (exact_quantile <= target.limit)))),
        unsettled=int(np.sum(known & ~settled)),
    )


def _spread(differences: NDArray[np.float64]) -> tuple[float, float]:
    median, most = np.quantile(np.abs(differences), SHARES) if differences.size else (np.nan, np.nan)
    return float(median), float(most)
