"""Delays of a simulation of any length in bounded memory: a histogram per batch, exact to the microsecond."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval, student

MOST_BATCHES = 64
FEWEST_BATCHES = 20
MICROSECONDS = 1e6


class Batches:
    """Histograms of consecutive batches of equally many packets; once there are too many, neighbours are merged."""

    def __init__(self) -> None:
        self._histograms: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._pending: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._merged = 1

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add the delays [us] of one chunk of packets; all chunks should be of one length."""
        self._pending.append(np.unique(delays, return_counts=True))
        if len(self._pending) == self._merged:
            self._histograms.append(_merge(self._pending))
            self._pending = []
        if len(self._histograms) == MOST_BATCHES:
            pairs = zip(self._histograms[::2], self._histograms[1::2], strict=True)
            self._histograms = [_merge(list(pair)) for pair in pairs]
            self._merged *= 2

    def histogram(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all delays [us], ascending, and how often each occurred."""
        return _merge([*self._histograms, *self._pending])

    @property
    def enough(self) -> bool:
        """Whether there are batches enough for a confidence interval."""
        return len(self._histograms) >= FEWEST_BATCHES

    def mean(self) -> Interval:
        """Return the mean delay [s] and its 95 % interval."""
        counts = np.array([float(count.sum()) for _, count in self._histograms])
        means = np.array([float(value @ count) for value, count in self._histograms]) / counts / MICROSECONDS
        value, half_width = student(counts, means)
        return Interval(value, value - half_width, value + half_width)

    def quantile(self, probability: float) -> Interval:
        """Return a quantile of the delay [s] and its 95 % interval."""
        values, counts = self.histogram()
        reached = np.cumsum(counts) / counts.sum()

        def at(share: float) -> int:
            return int(values[min(int(np.searchsorted(reached, share - 1e-12)), values.size - 1)])

        middle = at(probability)
        sizes = np.array([float(count.sum()) for _, count in self._histograms])
        below = np.array([float(count[value <= middle].sum()) for value, count in self._histograms]) / sizes
        _, half_width = student(sizes, below)
        ends = (middle, at(max(probability - half_width, 0.0)), at(min(probability + half_width, 1.0)))
        return Interval(*(end / MICROSECONDS for end in ends))


def _merge(
    histograms: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    values, places = np.unique(np.concatenate([value for value, _ in histograms]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, places, np.concatenate([count for _, count in histograms]))
    return values, counts
