"""The way back: when acknowledgements reach the sender, and those of the classic receiver.

Delays of all flows, as histograms of consecutive slices of time.

What a simulation of several flows answers: delays and counts of each flow, and how the queue fared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import RING, uniform
from tcpdelay.models.simulator.simulation import Histogram, mean_of, merge, quantile_of, to_digits
from tcpdelay.network.records import DELAY_BITS

_MASK = RING - 1


@kernel()
def spread(flow: Any, wire: Any, first: int, following: int) -> None:
    """Delay acknowledgements from number `first` to before `following` at random, and keep their order."""
    if flow.return_jitter == 0:
        return
    for number in range(first, following):
        acknowledgement = wire.acknowledgements[number & _MASK]
        wait = int(uniform(flow.next_double, flow.random_state) * (flow.return_jitter + 1))
        flow.last_return = max(flow.last_return, acknowledgement.arrival + wait)
        acknowledgement.arrival = flow.last_return


@kernel()
def answer(flow: Any, s: Any, wire: Any, number: int, arrival: int, in_order: bool) -> None:
    """Acknowledge a segment that arrives at a time.

    A delayed acknowledgement stands in the queue with the time at which its timer would send it. Should another segment
    arrive before, it is taken back: it cannot have reached the sender, as that segment was sent in ignorance of it.

    Parameters
    ----------
    flow, s, wire : record
        The flow, its connection, and what is under way.
    number, arrival : int
        The segment and when it arrives [us].
    in_order : bool
        Whether it is the next one, and no later one has arrived before it.
    """
    second = flow.ack_held > arrival
    if second:
        s.next_ack -= 1
        flow.last_return = flow.return_before
    flow.ack_held = wait = 0
    if flow.ack_delay and in_order and not second:
        wait = flow.ack_delay
        flow.ack_held = arrival + wait
        flow.return_before = flow.last_return
    acknowledgement = wire.acknowledgements[s.next_ack & _MASK]
    acknowledgement.arrival = arrival + wait + flow.return_delay
    acknowledgement.acknowledged = s.rcv_nxt
    acknowledgement.segment = number
    s.next_ack += 1
    spread(flow, wire, s.next_ack - 1, s.next_ack)


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


@dataclass(frozen=True)
class FlowResult:
    """One flow.

    Attributes
    ----------
    name : str
        The kind of its source and of what carries it.
    delays : DelayDistribution or None
        Delays of its messages from write to in-order read, of those that were delivered; None if none was. A message is
        a packet, or a whole file.
    mean_interval, p95_interval : Interval
        Mean and 95th percentile of the delays [s] with their 95 % intervals.
    sender_delay, network_delay, receiver_delay : float
        Parts of the mean delay [s]: from the write to the first transmission of its last byte, from there to its first
        arrival, retransmissions included, and from there to the read, behind others that were lost.
    offered, delivered, lost, unfinished : int
        Messages written in the time that counts; of them those read, those lost for good, and those still under way
        when the simulation ended. The first is the sum of the other three.
    throughput : float
        Bits of messages read per second, in the time that counts.
    sustainable : bool
        Whether the delays come down again and again; False where the flow offers more than it gets through, so that its
        backlog grows.
    segments_sent, segments_lost, segments_dropped, segments_carried : int
        Packets on the link and before it, in all the time: sent, lost at random, dropped by the queue, and carried.
    retransmissions, timeouts, marks : int
        Segments sent again, retransmission timeouts, and packets that the queue marked, in all the time.
    """

    name: str
    delays: DelayDistribution | None = field(repr=False)
    mean_interval: Interval
    p95_interval: Interval
    sender_delay: float
    network_delay: float
    receiver_delay: float
    offered: int
    delivered: int
    lost: int
    unfinished: int
    throughput: float
    sustainable: bool
    segments_sent: int
    segments_lost: int
    segments_dropped: int
    segments_carried: int
    retransmissions: int
    timeouts: int
    marks: int

    @property
    def delivered_fraction(self) -> float:
        """Share of the messages offered that were read; nan if none was offered."""
        return self.delivered / self.offered if self.offered else float("nan")

    def late_fraction(self, playout_delay: float) -> float:
        """Return the share of the messages offered that are not read within a playout delay [s]; nan if none was."""
        on_time = 0.0 if self.delays is None else self.delivered * self.delays.cdf(playout_delay)
        return 1 - on_time / self.offered if self.offered else float("nan")


@dataclass(frozen=True)
class QueueStatistics:
    """The shared link, in the time that counts.

    Attributes
    ----------
    mean_length : float
        Packets queued or being sent, averaged over time.
    mean_sojourn : float
        Time from arrival until the last bit has left, averaged over the packets [s].
    utilization : float
        Share of the time in which the link sends.
    offered, dropped, marked : int
        Packets that arrived, and of them those dropped and those marked.
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
    """All flows of a simulation, in the order of their sources, and the queue.

    Attributes
    ----------
    flows : tuple of FlowResult
        The flows.
    queue : QueueStatistics
        The shared link.
    duration, warm_up : float
        What was simulated [s], and the part at its beginning that does not count.
    seed : int
        Seed of all that is drawn at random.
    """

    flows: tuple[FlowResult, ...]
    queue: QueueStatistics
    duration: float
    warm_up: float
    seed: int

    @property
    def fairness(self) -> float:
        """Jain's index of the throughputs: 1 if all are equal, 1 / n if one flow has everything; nan if none has any.

        References
        ----------
        Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
        """
        rates = [flow.throughput for flow in self.flows]
        squares = len(rates) * sum(rate**2 for rate in rates)
        return sum(rates) ** 2 / squares if squares else float("nan")
