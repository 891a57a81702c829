"""Delays of all flows, as histograms of consecutive slices of time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.sim.batches import Histogram, mean_of, merge, quantile_of, to_digits
from tcpdelay.sim.network.records import DELAY_BITS

MOST_VALUES = 1 << 17
"""Different delays of all flows in one slice that are kept to the microsecond; of more, only some digits are."""
_DELAY_MASK = (1 << DELAY_BITS) - 1
UNKNOWN = Interval(np.nan, np.nan, np.nan)


class SlicedDelays:
    """Collects delays slice by slice, in memory that does not grow with the time."""

    def __init__(self) -> None:
        self._slices: list[Histogram] = []
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def take(self, samples: Any) -> None:
        """Take the delays out of the compiled code's record."""
        keys, counts = np.unique(samples.keys[: samples.used], return_counts=True)
        self._keys, self._counts = merge([(self._keys, self._counts), (keys, counts)])
        if self._keys.size > MOST_VALUES:
            self._keys, self._counts = merge([(rounded(self._keys), self._counts)])
        samples.used = 0

    def end_slice(self) -> None:
        """Begin a new slice."""
        self._slices.append((self._keys, self._counts))
        self._keys, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def _of(self, number: int) -> list[Histogram]:
        """Return the histogram of each slice in which a flow has delays [us]."""
        result = []
        for keys, counts in self._slices:
            low, high = np.searchsorted(keys, [number << DELAY_BITS, (number + 1) << DELAY_BITS])
            if low < high:
                result.append((keys[low:high] - (number << DELAY_BITS), counts[low:high]))
        return result

    def histogram(self, number: int) -> Histogram:
        """Return the delays [us] of a flow, ascending, and how often each occurred."""
        return merge(self._of(number))

    def mean(self, number: int) -> Interval:
        """Return the mean delay [s] of a flow with its 95 % interval; nan where it is not known."""
        parts = self._of(number)
        if len(parts) < 2:
            return UNKNOWN
        return mean_of(parts)

    def quantile(self, number: int, probability: float) -> Interval:
        """Return a quantile of the delay [s] of a flow with its 95 % interval; nan where it is not known."""
        parts = self._of(number)
        if len(parts) < 2:
            return UNKNOWN
        return quantile_of(parts, merge(parts), probability)

    def grows(self, number: int) -> bool:
        """Return whether the delays of a flow grow all the time: none of the second half is below the first's median.

        A backlog that comes and goes is smaller at some time of the second half than it was half of the time before.
        """
        parts = self._of(number)
        if len(parts) < 2:
            return False
        first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        values, counts = merge(first)
        median = values[np.searchsorted(np.cumsum(counts), counts.sum() / 2)]
        return bool(min(int(values[0]) for values, _ in second) > median)


def rounded(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return delays with their flows' numbers above them, each delay rounded as `to_digits` does.

    Examples
    --------
    >>> (rounded(np.array([4099, 7 << DELAY_BITS | 4099])) & _DELAY_MASK).tolist()
    [4100, 4100]
    """
    delays = keys & _DELAY_MASK
    return keys - delays + to_digits(delays)
