"""Predictions between the points of a grid, by the same rules as in the explorer's page."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.explorer.surfaces import CELL, Surfaces

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
    >>> from tcpdelay.applications import application
    >>> from tcpdelay.explorer import Grid, compute_surfaces
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
