"""The delays of a simulation in batches of packets and by kind of message, and whether they have settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import SIMULATED_RATE_ERROR, simulator_error
from tcpdelay.delays import ENDLESS, UNKNOWN, DelayDistribution, ExpectedError, Spread
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target
from tcpdelay.sim.quic.connection import NEVER_READ
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.statistics import CONFIDENCE, Interval, independent_block, merged, student, student_quantile

# The delays of a simulation in batches of packets: their distribution, its error, and whether they have settled.
#
# Delays are kept in one histogram per batch, so memory does not grow with the length of a simulation.

SUBBATCHES = 4
"""Equal parts of a chunk of packets whose mean delays show whether the delays have settled."""
FEWEST_SHARES = 16
"""Smallest number of chunks from which the share that TCP carries is estimated: fewer may be one long episode."""
FEWEST_SHARE_BLOCKS = 8
"""Number of blocks to which the chunks are merged if their times are correlated."""
CERTAIN = 0.999
"""Confidence of the interval that decides whether a backlog grows for ever; it is looked at many times in a run."""
LARGEST_HALF_WIDTH = 1.0
"""Largest half width of a quantile's interval with which the delays count as settled, relative to the quantile."""
LARGEST_SHARE_HALF_WIDTH = 0.5
"""The same for the share of packets later than the quantile: twice the spread of 16 independent backlogs."""
MOST_BATCHES = 64
"""Number of batches at which neighbouring batches are merged."""
FEWEST_BATCHES = 20
"""Smallest number of batches for a confidence interval."""
CELLS_PER_VALUE = 8
"""Cells of an array over the whole range of delays, for each delay given, up to which it replaces sorting."""
MOST_VALUES = 65_536
"""Largest number of different delays in a batch that are kept to the microsecond."""
DIGITS = 12
"""Binary digits of a rounded delay; the rounding error is at most 0.02 %."""

TAIL_DELAYS = 256
"""Largest number of delays at which the error of the share of later packets is kept."""

PARTS = 4
"""Parts of each chunk of a simulation that ends with a decision, so that there are soon enough."""
FEWEST_ALLOWED = 1000
"""Late packets that a target allows from which on it can be decided: they come in bursts."""

Histogram: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
Found = TypeVar("Found")
Result = TypeVar("Result", bound=DelayDistribution)


class Batches:
    """Histograms of consecutive batches of packets, all of one size, which doubles at `MOST_BATCHES` batches.

    The differences between the batches give the statistics: the intervals, and whether the delays have settled.
    """

    def __init__(self) -> None:
        self._histograms: list[Histogram] = []
        self._pending: list[Histogram] = []
        self._too_short: list[Histogram] = []
        self._merged = 1
        self._means: list[float] = []
        self._means_per_histogram = SUBBATCHES
        self._known: dict[str, Any] = {}  # What follows from the packets so far, until there are more

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add the delays [us] of a chunk of packets; a chunk of fewer than `SUBBATCHES` packets is only counted."""
        self._known = {}
        if delays.size < SUBBATCHES:
            self._too_short.append(np.unique(delays, return_counts=True))
            return
        sums, sizes = part_sums(delays, SUBBATCHES)
        self._means += (sums / sizes).tolist()
        self._pending.append(np.unique(delays, return_counts=True))
        if len(self._pending) == self._merged:
            self._histograms.append(_bounded(merge(self._pending)))
            self._pending = []
        if len(self._histograms) == MOST_BATCHES:
            pairs = zip(self._histograms[::2], self._histograms[1::2], strict=True)
            self._histograms = [_bounded(merge(list(pair))) for pair in pairs]
            self._merged *= 2

    def histogram(self) -> Histogram:
        """Return all delays [us], ascending, and the number of packets with each delay."""
        return self._once("together", lambda: merge([*self._histograms, *self._pending, *self._too_short]))

    @property
    def enough(self) -> bool:
        """Whether there are enough batches for a confidence interval."""
        return len(self._histograms) >= FEWEST_BATCHES

    def mean(self) -> Interval:
        """Return the mean delay [s] and its 95 % interval; NaN if all batches are correlated."""
        return self._interval(mean_of)

    def quantile(self, probability: float) -> Interval:
        """Return a quantile of the delay [s] and its 95 % interval; NaN if all batches are correlated."""
        return self._interval(lambda batches: quantile_of(batches, self.histogram(), probability))

    def _interval(self, estimate: Callable[[list[Histogram]], Interval]) -> Interval:
        """Return an estimate with its interval."""
        batches = self._independent()
        return UNKNOWN if batches is None else estimate(batches)

    def delays(
        self, kind: type[Result], one_way_delay: float, probability: float, fewest: int = FEWEST_BATCHES, **more: Any
    ) -> Result:
        """Return the distribution of all delays, with the intervals of mean and quantile if `fewest` batches are full.

        `more` are further fields of the result.
        """
        values, counts = self.histogram()
        mean, quantile = UNKNOWN, UNKNOWN
        if len(self._histograms) >= fewest:
            # A datagram that is lost never arrives.
            mean = ENDLESS if values[-1] >= NEVER_READ else self.mean()
            quantile = self.quantile(probability)
            quantile = ENDLESS if quantile.value >= NEVER_READ / SECOND else quantile
        return kind(
            np.where(values >= NEVER_READ, np.inf, values / SECOND),
            counts / counts.sum(),
            one_way_delay,
            method="simulation",
            packets=int(counts.sum()),
            mean_interval=mean,
            quantile_interval=quantile,
            probability=probability,
            **more,
        )

    def is_settled(self, probability: float) -> bool:
        """Return whether the delays have settled, by the rule of `is_settled`."""
        return is_settled(self._independent(), self.histogram(), probability)

    def late_errors(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return delays [s], ascending, and half the 95 % interval of the share of packets later than each."""
        batches = self._independent()
        if batches is None:
            return np.empty(0), np.empty(0)
        delays = tail_delays(self.histogram())
        sizes = np.array([float(count.sum()) for _, count in batches])
        late = 1 - read_within(batches, delays) / sizes[:, None]
        # `student` of each column.
        spread = sizes @ (late - sizes @ late / sizes.sum()) ** 2 / sizes.sum() / (sizes.size - 1)
        return delays / SECOND, student_quantile(sizes.size - 1, CONFIDENCE) * np.sqrt(spread)

    def _independent(self) -> list[Histogram] | None:
        """Return the histograms of the shortest batches with independent means; None if there are none."""
        size = self._means_per_histogram * self._merged
        return self._once("batches", lambda: independent_batches(self._histograms, np.array(self._means), size))

    def _once(self, name: str, find: Callable[[], Found]) -> Found:
        """Return what is found, which is kept until there are more packets."""
        if name not in self._known:
            self._known[name] = find()
        return cast(Found, self._known[name])


def part_sums(values: NDArray[Any], parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sums of consecutive parts of equal size, the first ones longer by a value if need be; and sizes."""
    numbers, (size, longer) = np.arange(parts), divmod(values.size, parts)
    starts = numbers * size + np.minimum(numbers, longer)
    return np.add.reduceat(values, starts, dtype=np.int64), np.diff(starts, append=values.size)


class LateShare:
    """The share of packets later than a limit, in consecutive parts of a simulation that ends with a decision."""

    def __init__(self, target: Target) -> None:
        self._limit, self._allowed = round(target.latest * SECOND), 1 - target.quantile
        self._sizes: list[int] = []
        self._late: list[int] = []
        self._means: list[float] = []

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add the delays [us] of a chunk of packets; a chunk too small for `PARTS` batches does not count."""
        if delays.size >= PARTS * SUBBATCHES:
            late, sizes = part_sums(delays > self._limit, PARTS)
            sums, of = part_sums(delays, PARTS * SUBBATCHES)
            self._late, self._sizes = [*self._late, *late], [*self._sizes, *sizes]
            self._means += (sums / of).tolist()

    @property
    def is_decided(self) -> bool:
        """Whether it is certain on which side of the allowed share the share of late packets is."""
        if len(self._sizes) < FEWEST_BATCHES or self._allowed * sum(self._sizes) < FEWEST_ALLOWED:
            return False
        block = independent_block(np.array(self._means))
        if block is None:
            return False
        starts = _batch_starts(len(self._sizes), -(-block // SUBBATCHES))
        sizes, late = np.add.reduceat(self._sizes, starts), np.add.reduceat(self._late, starts)
        share, half_width = student(sizes, late / sizes, CERTAIN)
        return abs(share - self._allowed) > half_width


def tail_delays(together: Histogram) -> NDArray[np.int64]:
    """Return at most `TAIL_DELAYS` of a histogram's delays [us], ascending, with the shortest and the longest."""
    values, _ = together
    if not values.size:
        return values
    return values[np.unique(np.linspace(0, values.size - 1, TAIL_DELAYS).astype(np.int64))]


def read_within(histograms: Sequence[Histogram], delays: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many packets of each histogram are read within each delay [us]."""
    return np.array(
        [
            np.concatenate([[0.0], np.cumsum(counts)])[np.searchsorted(values, delays, "right")]
            for values, counts in histograms
        ]
    )


def independent_batches(
    histograms: Sequence[Histogram], means: NDArray[np.float64], means_per_histogram: int
) -> list[Histogram] | None:
    """Merge consecutive histograms to the shortest batches with independent means.

    >>> delays = [(np.array([level]), np.array([10])) for level in np.random.default_rng(1).integers(1000, size=64)]
    >>> means = np.array([float(values[0]) for values, _ in delays])
    >>> len(independent_batches(delays, means, 1)), independent_batches(delays, means.cumsum(), 1)
    (64, None)
    """
    block = independent_block(means)
    if block is None:
        return None
    ends = pairwise([*_batch_starts(len(histograms), -(-block // means_per_histogram)), len(histograms)])
    return [merge(list(histograms[start:end])) if end - start > 1 else histograms[start] for start, end in ends]


def _batch_starts(count: int, size: int) -> list[int]:
    """Return where batches of `size` consecutive parts begin; the first one also takes the parts that are left over."""
    return [0, *range(count % size + size, count, size)]


def is_settled(batches: list[Histogram] | None, together: Histogram, probability: float) -> bool:
    """Return whether delays have settled, given a quantile: it is known to 100 %, or the share of later packets is.

    The interval of a quantile is wide without any backlog where no packet has a delay near the quantile, such as the
    95 % quantile with one loss in 20 packets. Then the share of later packets is the same in each batch.
    """
    if batches is None:
        return False
    found = quantile_of(batches, together, probability)
    half_width = share_within(batches, round(found.value * SECOND))[1]
    within = found.high - found.low <= 2 * LARGEST_HALF_WIDTH * found.value
    return within or half_width <= LARGEST_SHARE_HALF_WIDTH * (1 - probability)


def _bounded(histogram: Histogram) -> Histogram:
    """Return a histogram of at most `MOST_VALUES` different delays; more are rounded."""
    values, counts = histogram
    return histogram if values.size <= MOST_VALUES else merge([(to_digits(values), counts)])


def to_digits(delays: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return delays, whole numbers from 0, rounded to `DIGITS` binary digits.

    >>> to_digits(np.array([4095, 4099, 1_000_001])).tolist()
    [4095, 4100, 999936]
    """
    _, digits = np.frexp(delays.astype(np.float64))
    step = np.int64(1) << np.maximum(digits.astype(np.int64) - DIGITS, 0)
    result: NDArray[np.int64] = (delays + step // 2) // step * step
    return result


def carried_share(written_per_read: Sequence[float]) -> Interval:
    """Return the share of the flow's rate that TCP carries, and a confidence interval of this share.

    >>> [round(share, 3) for share in carried_share([1.10, 1.09, 1.11, 1.10] * 4)]
    [0.909, 0.903, 0.958]
    """
    # Packets are written at a constant rate: this is also the time in which a packet is read, in intervals.
    time, half_width = _certain_mean(np.array(written_per_read, np.float64))
    # A trace may have ended before its messages are read; then nothing is written meanwhile, and the share is infinite.
    high, value, low = (
        rate / each if each > 0 else np.inf
        for rate, each in ((1 + SIMULATED_RATE_ERROR, time - half_width), (1, time), (1, time + half_width))
    )
    return Interval(value, low, high)


def read_share(read_per_written: Sequence[float]) -> Interval:
    """Return the same share as `carried_share` from equal parts of the time."""
    share, half_width = _certain_mean(np.array(read_per_written, np.float64))
    return Interval(share, max(share - half_width, 0.0), share + half_width)


def _certain_mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of values in the order of time, and half the width of its 99.9 % interval by batch means."""
    blocks = merged(values, independent_block(values, FEWEST_SHARE_BLOCKS) or values.size // FEWEST_SHARE_BLOCKS)
    return student(np.ones(blocks.size), blocks, CERTAIN)


def mean_of(batches: list[Histogram]) -> Interval:
    """Return the mean [s] of the delays [us] in batches, and its 95 % interval."""
    counts = np.array([float(count.sum()) for _, count in batches])
    means = np.array([float(value @ count) for value, count in batches]) / counts / SECOND
    value, half_width = student(counts, means)
    return Interval(value, value - half_width, value + half_width)


def quantile_of(batches: list[Histogram], together: Histogram, probability: float) -> Interval:
    """Return a quantile [s] of the delays [us] in `together`, and its 95 % interval from the spread of the batches."""
    values, counts = together
    reached = np.cumsum(counts) / counts.sum()

    def at(share: float) -> int:
        return int(values[min(int(np.searchsorted(reached, share - 1e-12)), values.size - 1)])

    middle = at(probability)
    _, half_width = share_within(batches, middle)
    ends = (middle, at(max(probability - half_width, 0.0)), at(min(probability + half_width, 1.0)))
    return Interval(*(end / SECOND for end in ends))


def share_within(batches: list[Histogram], delay: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the share of the packets that are read within a delay [us], and half its interval, by default of 95 %."""
    sizes = np.array([float(count.sum()) for _, count in batches])
    within = [float(count[: np.searchsorted(value, delay, "right")].sum()) for value, count in batches]
    shares = np.array(within) / sizes
    return student(sizes, shares, confidence)


_EMPTY = np.empty(0, np.int64)


def merge(histograms: list[Histogram]) -> Histogram:
    """Return the sum of histograms, each in any order: the values, ascending, and their counts."""
    values, counts = (np.concatenate(both) for both in zip((_EMPTY, _EMPTY), *histograms, strict=True))
    if not values.size:
        return values, counts
    lowest = int(values.min())
    size = int(values.max()) - lowest + 1
    if size <= CELLS_PER_VALUE * values.size:
        cells = np.zeros(size, np.int64)
        np.add.at(cells, values - lowest, counts)
        (found,) = np.nonzero(cells)
        return found + lowest, cells[found]
    # A stable sort merges parts that are sorted already.
    order = np.argsort(values, kind="stable")
    values = values[order]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    return values[starts], np.add.reduceat(counts[order], starts)


HALF_WIDTH_OF_ERROR = 0.3
"""Half width of a quantile's interval by default, relative to the error in captures with such backlogs.

It makes the expected error at most 3 % larger. Near the capacity, where the error in captures is 54 %, an interval of
2 % would take a hundred million packets.
"""
NO_ERROR = ExpectedError(0.0, 0.0, 0.0, Spread(0.0, 0.0, 0.0), 0, "")


def wide_enough(least: float, captured: ExpectedError | None, path: Path, delays: Histogram) -> float:
    """Return the half width by default of a quantile's interval, relative to the quantile, for such delays [us].

    `captured` is the simulator's error in captures of the same kind; None if it is not known.
    """
    values, counts = delays
    arrived = values < NEVER_READ
    if captured is None or not arrived.any():
        return least
    mean = float(np.average(values[arrived], weights=counts[arrived])) / SECOND
    known = simulator_error(NO_ERROR, (mean - path.forward_delay) / path.rtt, captured)
    return max(least, HALF_WIDTH_OF_ERROR * known.p90)


class Sought(NamedTuple):
    """What a simulation is to find, and when it is known well enough."""

    quantile: float
    # Returns the largest half width of the quantile's interval, relative to it, for such delays; None: all packets
    # count.
    half_width: Callable[[Histogram], float] | None
    decided: Target | None  # The target whose decision suffices

    def is_precise(self, batches: Batches) -> bool:
        """Return whether the quantile's interval is narrow enough."""
        if self.half_width is None or not batches.enough:
            return False
        return batches.quantile(self.quantile).relative_half_width <= self.half_width(batches.histogram())


SMALLEST_BATCH = 4 * SUBBATCHES
"""Smallest number of messages of a kind that form a batch."""


class KindBatches(Batches):
    """Batches of the messages of one kind, of equal size although chunks have different numbers of them."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting, self._size = np.empty(0, np.int64), 0

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add delays [us]."""
        self._waiting = np.concatenate([self._waiting, delays])
        if not self._size and self._waiting.size >= SMALLEST_BATCH:
            # Somewhat less than the first messages, so that about as many batches fill as there are chunks.
            self._size = max(3 * self._waiting.size // 4, SMALLEST_BATCH)
        while self._size and self._waiting.size >= self._size:
            super().add(self._waiting[: self._size])
            self._waiting = self._waiting[self._size :]
        self._too_short, self._known = [np.unique(self._waiting, return_counts=True)], {}
