"""A link: delay, losses, and a rate with a queue before it, in one direction or in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tcpdelay.testbed.trace_schedule import Schedule

QueueKind = Literal["fifo", "codel", "fq_codel", "red", "pie", "cake", "dualpi2", "policer"]


@dataclass(frozen=True)
class Link:
    """One direction of an emulated path.

    Attributes
    ----------
    delay : float
        Constant delay [s], 0 to 274.
    loss : float
        Probability that a packet is dropped, 0 to 1.
    loss_burst : float
        Mean number of packets dropped in a row, 1 or more; above 1 the losses follow a Gilbert model.
    jitter : float
        Largest additional delay [s]; each is drawn uniformly from 0 to this, so packets may overtake each other.
    reordering : float
        Share of the packets that pass without the delay, and so overtake the packets in flight.
    bad_time, bad_loss : float
        Losses in time, as in `tcpdelay.Path`: mean duration of the bad state [s], and probability of a loss in it.
    rate : float, optional
        Rate of a bottleneck [bit/s]; None: no limit.
    queue : {"fifo", "codel", "fq_codel", "red", "pie", "cake", "dualpi2", "policer"}
        Queue before the bottleneck; a policer has none, and drops what exceeds its token bucket.
    queue_packets, queue_bytes : int, optional
        Limit of the queue. A fifo has one of the two; the other queues may have a limit in packets.
    queue_target : float, optional
        Queueing delay at which the queue aims [s]; None: the default of the kernel, or of the authors of RED.
    ecn : bool
        Whether the queue marks packets of connections with ECN in place of a drop. fq_codel, cake and dualpi2
        always do.
    l4s : bool
        Whether dualpi2 takes ECT(0) for L4S too. The kernel's dctcp sends ECT(0).
    burst : int, optional
        Token bucket of the rate [bytes]; None: one packet.
    peak_rate : float, optional
        Rate at which the bytes of the token bucket leave [bit/s]; None: they leave at once.
    trace : Schedule, optional
        What the bottleneck carries over time, in place of a rate; the queue is then a fifo with a limit in packets.
    """

    delay: float
    loss: float = 0.0
    loss_burst: float = 1.0
    jitter: float = 0.0
    rate: float | None = None
    queue: QueueKind = "fifo"
    queue_packets: int | None = None
    queue_bytes: int | None = None
    queue_target: float | None = None
    ecn: bool = False
    l4s: bool = False
    burst: int | None = None
    peak_rate: float | None = None
    reordering: float = 0.0
    bad_time: float = 0.0
    bad_loss: float = 1.0
    trace: Schedule | None = None

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Link:
        """Return the link whose fields are in a table, as `dataclasses.asdict` makes it."""
        trace = table["trace"]
        return cls(**table | {"trace": trace if trace is None else Schedule(**trace)})


@dataclass(frozen=True)
class DuplexLink:
    """A link in both directions, between two hosts or routers.

    Attributes
    ----------
    first, second : str
        Names of its ends.
    forward, backward : Link
        The way from the first to the second end, and the way back.
    name : str
        Name in the counts of packets; empty for the only link of a network.
    """

    first: str
    second: str
    forward: Link
    backward: Link
    name: str = ""
