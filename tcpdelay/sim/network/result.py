"""The results of a simulation of several flows: delays and counts of each flow, and statistics of the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tcpdelay.declare import InvalidValueError, is_number
from tcpdelay.delays import UNKNOWN, DelayDistribution
from tcpdelay.sim.batches import Batches, Histogram, merge, read_within, tail_delays, to_digits
from tcpdelay.sim.network.transport import DELAY_BITS, KIND_BITS, Samples
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.statistics import Interval, independent_block, merged, student

MOST_VALUES = 1 << 17
"""Largest number of different delays in one slice that are kept to the microsecond; more are rounded."""
_DELAY_MASK = (1 << DELAY_BITS) - 1


class Slices(Batches):
    """Batches that are slices of time, and differ in size; an estimate has its value also without an interval."""

    def __init__(self, histograms: list[Histogram]) -> None:
        super().__init__()
        self._histograms, self._means_per_histogram = histograms, 1
        self._means = [float(values @ counts) / counts.sum() for values, counts in histograms]

    def _interval(self, estimate: Callable[[list[Histogram]], Interval]) -> Interval:
        """Return an estimate with its interval, whose ends are NaN if all slices are correlated."""
        if self._independent() is None and self._histograms:
            return estimate(self._histograms)._replace(low=np.nan, high=np.nan)
        return super()._interval(estimate)


class SlicedDelays:
    """The delays of all flows as histograms of consecutive slices of time, in bounded memory."""

    def __init__(self) -> None:
        self._slices: list[Histogram] = []
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def take(self, samples: Samples) -> None:
        """Add the delays that the compiled code has counted to the current slice, and empty its record."""
        keys, counts = np.unique(samples.keys[: samples.used], return_counts=True)
        self._keys, self._counts = merge([(self._keys, self._counts), (keys, counts)])
        if self._keys.size > MOST_VALUES:
            self._keys, self._counts = merge([(rounded(self._keys), self._counts)])
        samples.used = 0

    @property
    def current_slice(self) -> Histogram:
        """Keys of the delays in the current slice, each with flow and kind above the delay, and their counts."""
        return self._keys, self._counts

    def end_slice(self) -> None:
        """End the current slice, and begin a new one."""
        self._slices.append((self._keys, self._counts))
        self._keys, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def _slices_of(self, number: int, kind: int | None = None) -> list[Histogram]:
        """Return the histograms of the delays [us] of a flow, of all kinds or one, in all slices; they may be empty."""
        first, kinds = (0, 1 << KIND_BITS) if kind is None else (kind, 1)
        first += number << KIND_BITS
        result = []
        for keys, counts in self._slices:
            low, high = np.searchsorted(keys, [first << DELAY_BITS, (first + kinds) << DELAY_BITS])
            histogram = keys[low:high] & _DELAY_MASK, counts[low:high]
            several = low < high and keys[low] >> DELAY_BITS < keys[high - 1] >> DELAY_BITS
            result.append(merge([histogram]) if several else histogram)
        return result

    def of(self, number: int, kind: int | None = None) -> Slices:
        """Return the slices in which a flow has delays, of all kinds of messages or of one."""
        return Slices([histogram for histogram in self._slices_of(number, kind) if histogram[0].size])

    def late_errors(self, number: int, lost: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return delays [s] of a flow, ascending, and half the 95 % interval of the share of packets lost or later."""
        slices = self._slices_of(number)
        sizes = np.array([counts.sum() for _, counts in slices], np.float64)
        sizes += lost
        delays = tail_delays(merge(slices))
        late = sizes[:, None] - read_within(slices, delays)
        some = sizes > 0
        return delays / SECOND, np.array([_share_error(late[some, place], sizes[some]) for place in range(delays.size)])


def _share_error(counts: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Return half the 95 % interval of a share from counts in consecutive slices; NaN if all slices are correlated."""
    block = independent_block(counts / sizes)
    if block is None:
        return float("nan")
    weights = merged(sizes, block)
    return student(weights, merged(counts, block) / weights)[1]


def rounded(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return keys with their delays rounded by `to_digits`; flows and kinds are kept."""
    delays = keys & _DELAY_MASK
    return keys - delays + to_digits(delays)


@dataclass(frozen=True)
class OfferedMessages:
    """How many of some messages are delivered, and how late.

    Attributes
    ----------
    offered, delivered : int
        Messages written in the time that counts, and the number of these that were read.
    delays : DelayDistribution or None
        Delays of the delivered messages from the write to the in-order read of the last byte; None if no message was
        delivered. A message is a packet, or a whole file.
    """

    offered: int
    delivered: int
    delays: DelayDistribution | None = field(repr=False)

    @property
    def mean_interval(self) -> Interval:
        """Mean of the delays [s] with its 95 % interval, whose ends are NaN if it is not known."""
        return UNKNOWN if self.delays is None else self.delays.mean_interval

    @property
    def quantile_interval(self) -> Interval:
        """The requested quantile of the delays [s] with its 95 % interval, whose ends are NaN if it is not known."""
        return UNKNOWN if self.delays is None else self.delays.quantile_interval

    @property
    def delivered_fraction(self) -> float:
        """Share of the messages offered that were read; nan if none was offered."""
        return self.delivered / self.offered if self.offered else float("nan")

    @property
    def all_delays(self) -> DelayDistribution | None:
        """Delays of all messages offered, infinite if a message was not read; None if no message was delivered."""
        if self.delays is None or self.delivered == self.offered:
            return self.delays
        share = self.delivered_fraction
        values = np.append(self.delays.values, np.inf)
        return replace(self.delays, values=values, weights=np.append(share * self.delays.weights, 1 - share))

    def late_fraction(self, playout_delay: float) -> float:
        """Return the share of the offered messages not read within a playout delay [s]; nan if none is offered."""
        on_time = 0.0 if self.delays is None else self.delivered * self.delays.cdf(playout_delay)
        return 1 - on_time / self.offered if self.offered else float("nan")


@dataclass(frozen=True)
class MessageResult(OfferedMessages):
    """What becomes of the messages of a flow, or of one kind of them; see also `OfferedMessages`.

    Attributes
    ----------
    lost, unfinished : int
        Messages that were lost, and that were in transit when the simulation ended:
        `offered` = `delivered` + `lost` + `unfinished`.
    gap_bytes : int
        Bytes of the lost messages that have not arrived, as the receiver of `TimeLined` reports them, and the bytes
        that the receiver of TCP-RC has forged; 0 with other receivers.
    """

    lost: int
    unfinished: int
    gap_bytes: int

    @property
    def p95_interval(self) -> Interval:
        """95th percentile of the delays [s] with its 95 % interval; see `mean_interval`."""
        return self.quantile_interval


@dataclass(frozen=True)
class FlowResult(MessageResult):
    """The results of one flow; see also `MessageResult`.

    Attributes
    ----------
    name : str
        The classes of its source and of its stack.
    sender_delay, network_delay, receiver_delay : float
        Parts of the mean delay [s]: from the write to the first transmission of the message's last byte; from there
        to its first arrival, including retransmissions; and from there to the read, which waits for lost packets.
    throughput : float
        Bits of messages read per second, in the time that counts.
    sustainable : bool
        False where it is certain that the flow offers more than it can send, so that its backlog grows.
    settled : bool
        False if the delays depend on the length of the simulation: they are correlated over the whole simulation,
        neither the 95th percentile nor the share of later packets is known well enough, or the backlog was longer than
        the simulator can record. `delays` and those of each kind then say so too.
    late_errors : tuple of ndarray
        Delays [s], ascending, and half the 95 % interval of the share of packets lost or later than each; NaN where
        this share depends on the length of the simulation.
    by_kind : mapping of str to MessageResult
        The messages by kind, such as "key frame", of a source with several kinds.
    carried : Interval
        Rate that is read or given up, relative to the rate of a source of constant rate, with the interval of
        `tcpdelay.sim.batches.carried_share`; NaN for other sources.
    segments_sent, segments_lost, segments_dropped, segments_carried : int
        Packets sent, lost at random, dropped by the queue, and carried by the link, over the whole simulation.
    retransmissions, timeouts, marks : int
        Segments sent again, retransmission timeouts, and packets marked by the queue, over the whole simulation.
    """

    name: str
    sender_delay: float
    network_delay: float
    receiver_delay: float
    throughput: float
    sustainable: bool
    settled: bool
    carried: Interval
    segments_sent: int
    segments_lost: int
    segments_dropped: int
    segments_carried: int
    retransmissions: int
    timeouts: int
    marks: int
    late_errors: tuple[NDArray[np.float64], NDArray[np.float64]] = field(
        default_factory=lambda: (np.empty(0), np.empty(0)), repr=False, compare=False
    )
    by_kind: Mapping[str, MessageResult] = field(default_factory=dict, repr=False)

    def late_error(self, playout_delay: float) -> float:
        """Return half the 95 % interval of `late_fraction`; NaN if this share depends on the length of the simulation.

        It is 0 if no packet is read within the playout delay [s].
        """
        if not is_number(playout_delay):
            raise InvalidValueError("playout_delay", playout_delay, "be a number of seconds")
        delays, errors = self.late_errors
        none_read = not delays.size or playout_delay < delays[0]
        return 0.0 if none_read else float(np.interp(playout_delay, delays, errors))


@dataclass(frozen=True)
class QueueStatistics:
    """Statistics of the shared link, over the time that counts.

    Attributes
    ----------
    mean_length : float
        Mean number of packets queued or being sent, over time.
    mean_sojourn : float
        Mean time from a packet's arrival until its last bit has left [s].
    utilization : float
        Share of the time during which the link sends.
    offered, dropped, marked : int
        Packets that arrived at the queue, packets dropped, and packets marked.
    """

    mean_length: float
    mean_sojourn: float
    utilization: float
    offered: int
    dropped: int
    marked: int

    @property
    def loss_fraction(self) -> float:
        """Share of the packets that were dropped; nan if none arrived."""
        return self.dropped / self.offered if self.offered else float("nan")


@dataclass(frozen=True)
class NetworkResult:
    """The results of a simulation: all flows, in the order of their sources, and the queue.

    Attributes
    ----------
    flows : tuple of FlowResult
        The flows.
    queue : QueueStatistics
        Statistics of the shared link.
    duration, warm_up : float
        Simulated time [s], and the time at its beginning that does not count [s].
    seed : int
        Seed of all random numbers.
    """

    flows: tuple[FlowResult, ...]
    queue: QueueStatistics
    duration: float
    warm_up: float
    seed: int

    @property
    def fairness(self) -> float:
        """Jain's index of the throughputs: 1 if they are equal, 1 / n if only one of n flows sends; nan if none sends.

        References
        ----------
        Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
        """
        rates = [flow.throughput for flow in self.flows]
        squares = len(rates) * sum(rate**2 for rate in rates)
        return sum(rates) ** 2 / squares if squares else float("nan")
