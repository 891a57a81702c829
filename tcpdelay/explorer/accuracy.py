"""How far the explorer's interpolated predictions are from the chain's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.explorer.interpolation import interpolated
from tcpdelay.explorer.surfaces import PROBABILITIES, Surfaces, predict_in_processes

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
        As in `tcpdelay.explorer.surfaces.predict_in_processes`.

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
    >>> from tcpdelay.applications import application
    >>> from tcpdelay.explorer import Grid, compute_surfaces
    >>> surfaces = compute_surfaces(application("voip"), Grid(rtts=2, losses=2, bitrates=3))
    >>> measure_accuracy(surfaces, points=5).points
    5
    """
    if points < 1:
        raise ValueError(f"points must be 1 or more, got {points}")
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
