"""What a simulation of several flows answers: delays and counts of each flow, and how the queue fared."""

from __future__ import annotations

from dataclasses import dataclass, field

from tcpdelay.confidence import Interval
from tcpdelay.distribution import DelayDistribution


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
