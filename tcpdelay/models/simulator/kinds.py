"""The delays of each kind of message, such as key frames and other frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.simulator.batches import SUBBATCHES, UNKNOWN, Batches, merge
from tcpdelay.models.tcp import SECOND

SMALLEST_BATCH = 4 * SUBBATCHES
"""Smallest number of messages of a kind that form a batch."""


@dataclass(frozen=True, repr=False)
class DelaysOfKind(DelayDistribution):
    """Simulated delays of the messages of one kind.

    Attributes
    ----------
    mean_interval, quantile_interval : Interval
        Mean delay and requested quantile [s] with their 95 % intervals; NaN if the delays are correlated over the whole
        simulation, or the messages are too few.
    probability : float
        Probability of the requested quantile.
    """

    method: str = "simulation"
    mean_interval: Interval = UNKNOWN
    quantile_interval: Interval = UNKNOWN
    probability: float = 0.95


class _KindBatches:
    """The delays of one kind in batches of equal size."""

    def __init__(self) -> None:
        self._batches, self._waiting, self._size = Batches(), np.empty(0, np.int64), 0
        self.count = 0

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add delays [us]."""
        self.count += delays.size
        self._waiting = np.concatenate([self._waiting, delays])
        if not self._size and self._waiting.size >= SMALLEST_BATCH:
            # Somewhat less than the first messages, so that about as many batches fill as there are chunks.
            self._size = max(3 * self._waiting.size // 4, SMALLEST_BATCH)
        while self._size and self._waiting.size >= self._size:
            self._batches.add(self._waiting[: self._size])
            self._waiting = self._waiting[self._size :]

    def delays(self, one_way_delay: float, probability: float) -> DelaysOfKind:
        """Return the distribution of the delays, and the intervals of its mean and of a quantile."""
        values, counts = merge([self._batches.histogram(), np.unique(self._waiting, return_counts=True)])
        enough = self._batches.enough
        return DelaysOfKind(
            np.asarray(values / SECOND, np.float64),
            counts / counts.sum(),
            one_way_delay,
            packets=self.count,
            mean_interval=self._batches.mean() if enough else UNKNOWN,
            quantile_interval=self._batches.quantile(probability) if enough else UNKNOWN,
            probability=probability,
        )


class KindsInBatches:
    """The delays of all kinds of messages of a source.

    Parameters
    ----------
    kinds : tuple of str
        The kinds; nothing is kept of a single kind.

    Examples
    --------
    >>> kinds = KindsInBatches(("other frame", "key frame"))
    >>> kinds.add(np.array([60_000, 50_000, 50_000]), np.array([1, 0, 0]))
    >>> {kind: (delays.packets, delays.mean) for kind, delays in kinds.delays(0.05, 0.95).items()}
    {'other frame': (2, 0.05), 'key frame': (1, 0.06)}
    """

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self._of_kind = {kind: _KindBatches() for kind in kinds} if len(kinds) > 1 else {}

    def add(self, delays: NDArray[np.int64], kinds: NDArray[np.integer]) -> None:
        """Add the delays [us] of messages, given the number of the kind of each."""
        for number, batches in enumerate(self._of_kind.values()):
            batches.add(delays[kinds == number])

    def delays(self, one_way_delay: float, probability: float) -> Mapping[str, DelaysOfKind]:
        """Return the delays by kind, of the kinds that occurred."""
        return {
            kind: batches.delays(one_way_delay, probability) for kind, batches in self._of_kind.items() if batches.count
        }
