"""Two clocks made one: offset and skew from the smallest delays of both directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.trace import Integers

SHORTEST = 10.0
"""Span of the samples below which no skew is looked for [s]."""
MAX_SKEW = 1e-3
"""Largest skew that is believed; quartz clocks keep within a fifth of a thousandth."""
_FEWEST = 20


@dataclass(frozen=True)
class ClockFit:
    """How the receiver's clock differs from the sender's.

    Attributes
    ----------
    origin : int
        Time of the sender's clock at which the offset holds [ns].
    offset : float
        What the receiver's clock shows more than the sender's [s].
    skew : float
        What it gains per second; 0 where that could not be told.
    residual : float
        By how much the two directions disagree about the offset over the capture [s]: half of the change that the
        fitted lines of both leave together. A steady difference of the two directions' delays does not show in it.
    forward_base, backward_base : float
        Smallest delays of the two directions [s], equal by assumption unless the clocks were said to be one.
    """

    origin: int
    offset: float
    skew: float
    residual: float
    forward_base: float
    backward_base: float

    def to_sender(self, times: Integers) -> Integers:
        """Return times of the receiver's clock [ns] in the sender's."""
        since = times - self.origin - round(self.offset * 1e9)
        corrected = since - np.rint(since * (self.skew / (1 + self.skew))).astype(np.int64)
        return np.asarray(self.origin + corrected, np.int64)


def lower_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return intercept and slope of the line below all points with the smallest sum of distances to them.

    That is the edge of the lower convex hull above or below the mean of `x`: Moon, Skelly and Towsley, "Estimation and
    removal of clock skew from network delay measurements", INFOCOM 1999, doi 10.1109/INFCOM.1999.749287.

    Parameters
    ----------
    x, y : ndarray
        The points, by ascending `x`, at least one.

    Returns
    -------
    tuple of float
        Height of the line at x = 0, and its slope; 0 where all `x` are the same.

    Examples
    --------
    >>> lower_line(np.array([0.0, 1, 2, 3]), np.array([1.0, 2.5, 2, 2.5]))
    (1.0, 0.5)
    """
    hull = _lower_hull(x, y)
    middle = x.mean()
    right = min(max(int(np.searchsorted(x[hull], middle, side="right")), 1), len(hull) - 1)
    if len(hull) == 1:
        return float(y[hull[0]]), 0.0
    a, b = hull[right - 1], hull[right]
    slope = float((y[b] - y[a]) / (x[b] - x[a]))
    return float(y[a] - slope * x[a]), slope


def _lower_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Return the lower convex hull by Andrew's monotone chain, among the points that may belong to it."""
    # Of points above one another only the lowest can; in long captures the lowest of each of many spans keeps it short.
    spans = np.minimum(((x - x[0]) * (50_000 / max(float(x[-1] - x[0]), 1e-9))).astype(np.int64), 49_999)
    order = np.lexsort((y, spans))
    candidates = np.sort(order[np.concatenate([[True], np.diff(spans[order]) > 0])])
    hull: list[int] = []
    for i in candidates.tolist():
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        if hull and x[hull[-1]] == x[i]:
            if y[i] >= y[hull[-1]]:
                continue
            hull.pop()
        hull.append(i)
    return hull


def fit_clocks(
    forward: tuple[Integers, Integers], backward: tuple[Integers, Integers], same_clock: bool = False
) -> ClockFit:
    """Return how the receiver's clock differs from the sender's.

    Parameters
    ----------
    forward : tuple of ndarray
        Times of packets at the sender, by its clock, ascending, and at the receiver, by that one's clock [ns].
    backward : tuple of ndarray
        The same of packets from the receiver to the sender: at the sender, and at the receiver [ns].
    same_clock : bool
        Whether both times come from one clock; then nothing is fitted.

    Returns
    -------
    ClockFit
        The difference under which the smallest delays of both directions are equal, and constant in time.

    Raises
    ------
    ValueError
        If a direction has no packet that is in both captures.
    """
    for direction, (times, _) in (("data", forward), ("acknowledgements", backward)):
        if not times.size:
            raise ValueError(f"the captures share no {direction} by which their clocks could be compared")
    origin = int(min(forward[0][0], backward[0][0]))
    x_forward, x_backward = (forward[0] - origin) / 1e9, (backward[0] - origin) / 1e9
    y_forward, y_backward = (forward[1] - forward[0]) / 1e9, (backward[0] - backward[1]) / 1e9
    if same_clock:
        return ClockFit(origin, 0.0, 0.0, 0.0, float(y_forward.min()), float(y_backward.min()))
    skew = residual = 0.0
    span = min(float(np.ptp(x_forward)), float(np.ptp(x_backward)))
    if span >= SHORTEST and min(x_forward.size, x_backward.size) >= _FEWEST:
        (_, rising), (_, falling) = lower_line(x_forward, y_forward), lower_line(x_backward, y_backward)
        skew = (rising - falling) / 2
        residual = abs(rising + falling) * span / 2
        # One clock is then set, not slow.
        if abs(skew) > MAX_SKEW:
            skew = 0.0
    low_forward = float((y_forward - skew * x_forward).min())
    low_backward = float((y_backward + skew * x_backward).min())
    base = (low_forward + low_backward) / 2
    return ClockFit(origin, (low_forward - low_backward) / 2, skew, residual, base, base)
