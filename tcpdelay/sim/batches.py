"""Delays of a simulation of any length in bounded memory: a histogram per batch."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval, student

MOST_BATCHES = 64
FEWEST_BATCHES = 20
MICROSECONDS = 1e6
MOST_VALUES = 65_536
"""Different delays of a batch up to which all are kept to the microsecond."""

DIGITS = 12
"""Binary digits of a delay that are kept at least where not all are: it is known to 0.02 %."""

Histogram: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class Batches:
    """Histograms of consecutive batches of equally many packets; once there are too many, neighbours are merged.

    Delays are exact to the microsecond; in batches of more than `MOST_VALUES` different ones, `to_digits` rounds them.
    """

    def __init__(self) -> None:
        self._histograms: list[Histogram] = []
        self._pending: list[Histogram] = []
        self._merged = 1

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add the delays [us] of one chunk of packets; all chunks should be of one length."""
        self._pending.append(np.unique(delays, return_counts=True))
        if len(self._pending) == self._merged:
            self._histograms.append(_bounded(merge(self._pending)))
            self._pending = []
        if len(self._histograms) == MOST_BATCHES:
            pairs = zip(self._histograms[::2], self._histograms[1::2], strict=True)
            self._histograms = [_bounded(merge(list(pair))) for pair in pairs]
            self._merged *= 2

    def histogram(self) -> Histogram:
        """Return all delays [us], ascending, and how often each occurred."""
        return merge([*self._histograms, *self._pending])

    @property
    def enough(self) -> bool:
        """Whether there are batches enough for a confidence interval."""
        return len(self._histograms) >= FEWEST_BATCHES

    def mean(self) -> Interval:
        """Return the mean delay [s] and its 95 % interval."""
        return mean_of(self._histograms)

    def quantile(self, probability: float) -> Interval:
        """Return a quantile of the delay [s] and its 95 % interval."""
        return quantile_of(self._histograms, self.histogram(), probability)


def _bounded(histogram: Histogram) -> Histogram:
    """Return a histogram that has not too many values, rounded if need be."""
    values, counts = histogram
    return histogram if values.size <= MOST_VALUES else merge([(to_digits(values), counts)])


def to_digits(delays: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return delays, whole and not negative, rounded to `DIGITS` binary digits.

    Examples
    --------
    >>> to_digits(np.array([4095, 4099, 1_000_001])).tolist()
    [4095, 4100, 999936]
    """
    _, digits = np.frexp(delays.astype(np.float64))
    step = np.int64(1) << np.maximum(digits.astype(np.int64) - DIGITS, 0)
    result: NDArray[np.int64] = (delays + step // 2) // step * step
    return result


def mean_of(batches: list[Histogram]) -> Interval:
    """Return the mean [s] of batches of delays [us] and its 95 % interval."""
    counts = np.array([float(count.sum()) for _, count in batches])
    means = np.array([float(value @ count) for value, count in batches]) / counts / MICROSECONDS
    value, half_width = student(counts, means)
    return Interval(value, value - half_width, value + half_width)


def quantile_of(batches: list[Histogram], together: Histogram, probability: float) -> Interval:
    """Return a quantile [s] of the delays [us] in all of `together` and its 95 % interval, known from the batches."""
    values, counts = together
    reached = np.cumsum(counts) / counts.sum()

    def at(share: float) -> int:
        return int(values[min(int(np.searchsorted(reached, share - 1e-12)), values.size - 1)])

    middle = at(probability)
    sizes = np.array([float(count.sum()) for _, count in batches])
    below = np.array([float(count[value <= middle].sum()) for value, count in batches]) / sizes
    _, half_width = student(sizes, below)
    ends = (middle, at(max(probability - half_width, 0.0)), at(min(probability + half_width, 1.0)))
    return Interval(*(end / MICROSECONDS for end in ends))


def merge(histograms: list[Histogram]) -> Histogram:
    """Return one histogram of all: values, ascending, and how often each occurred."""
    if not histograms:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    values, places = np.unique(np.concatenate([value for value, _ in histograms]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, places, np.concatenate([count for _, count in histograms]))
    return values, counts
