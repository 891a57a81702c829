"""What carries a flow, beside the TCP of Linux: the TCP of the older literature, and datagrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tcpdelay.network.bottleneck import SMALLEST_PACKET, check_range
from tcpdelay.scenario.fields import InvalidValueError, require_flag
from tcpdelay.scenario.stack import Stack

Recovery = Literal["reno", "newreno", "sack"]

LARGEST_CLASSIC_WINDOW = 2000


@dataclass(frozen=True, slots=True)
class Classic(Stack):
    """The TCP of the literature before 2005: segments of one size, each with one packet of the application.

    Parameters
    ----------
    recovery : {"reno", "newreno", "sack"}
        How lost segments are repaired after three duplicate ACKs.
    mss : int
        Size of a segment [bytes], 40 to 65 495.
    receiver_window : int
        Segments that may be outstanding, 1 to 2000.
    initial_window : int
        Segments that may be outstanding at the beginning, 1 to 10.
    limited_transmit : bool
        RFC 3042: the first two duplicate ACKs each release a new segment.
    tick : float
        Granularity of all timers [s], 0.001 to 1; 0.5 in 4.3BSD.
    rto_min : float
        Smallest retransmission timeout [s], 0.001 to 120.
    first_timeout : float
        Retransmission timeout before there is an estimate [s], 0.001 to 120.
    ack_delay : float
        How long the receiver waits for a second segment to acknowledge [s], 0 to 1; at 0 it acknowledges each.
    byte_counting : bool
        RFC 3465: an acknowledgement of n segments of b bytes opens the window, which counts segments of whatever size,
        as n b / `mss` acknowledgements would, in slow start as 2 at most, or 1 once there has been a timeout. So it
        opens slowly where the application's packets are smaller than `mss`.
    window_validation : bool
        RFC 2861: the window grows only if it was full before the acknowledgement, and is halved, down to one segment,
        for each retransmission timeout in which nothing was sent and nothing was outstanding.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Examples
    --------
    >>> Classic(recovery="sack").mss
    1460
    """

    recovery: Recovery = "newreno"
    mss: int = 1460
    receiver_window: int = 64
    initial_window: int = 2
    limited_transmit: bool = False
    tick: float = 0.1
    rto_min: float = 1.0
    first_timeout: float = 3.0
    ack_delay: float = 0.0
    byte_counting: bool = False
    window_validation: bool = False

    def __post_init__(self) -> None:
        require_flag("byte_counting", self.byte_counting)
        require_flag("window_validation", self.window_validation)
        if self.recovery not in get_args(Recovery):
            raise InvalidValueError("recovery", self.recovery, "be 'reno', 'newreno' or 'sack'")
        check_range("mss", self.mss, SMALLEST_PACKET, 65_495, "bytes")
        check_range("receiver_window", self.receiver_window, 1, LARGEST_CLASSIC_WINDOW, "segments")
        check_range("initial_window", self.initial_window, 1, 10, "segments")
        check_range("tick", self.tick, 0.001, 1, "s")
        check_range("rto_min", self.rto_min, 0.001, 120, "s")
        check_range("first_timeout", self.first_timeout, 0.001, 120, "s")
        check_range("ack_delay", self.ack_delay, 0, 1, "s")


@dataclass(frozen=True, slots=True)
class TimeLined(Classic):
    """Time-lined TCP: Reno that gives up what is older than a deadline. Its other parameters are those of `Classic`.

    It carries `Sections`, or a `ConstantRate`, each packet of which is a section. When the deadline of a section has
    passed, the sender moves on to the next, and lets the receiver know with the next segment; a packet that this one
    then skips is lost. One that was sent in time, and arrives late, is read.

    Parameters
    ----------
    recovery : {"reno"}
        How lost segments are repaired, as published.
    deadline : float
        How long after its write a section may be sent [s], 0.001 to 1e5; a receiver that plays it after a fixed time
        gains little from what is sent later than the path's delay before that.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    Mukherjee, Brecht, "Time-lined TCP for the TCP-friendly delivery of streaming media", ICNP 2000.

    Examples
    --------
    >>> TimeLined(deadline=0.15).recovery
    'reno'
    """

    recovery: Recovery = "reno"
    deadline: float = 5.0

    def __post_init__(self) -> None:
        # `super()` does not find its class in one with slots.
        Classic.__post_init__(self)
        if self.recovery != "reno":
            raise ValueError(f"recovery of TimeLined must be 'reno', got {self.recovery!r}")
        check_range("deadline", self.deadline, 0.001, 1e5, "s")


@dataclass(frozen=True, slots=True)
class Udp(Stack):
    """Datagrams: nothing is acknowledged and nothing sent again."""


@dataclass(frozen=True, slots=True)
class Scp(Stack):
    """The Streaming Control Protocol: datagrams behind a window that follows the rate of their acknowledgements.

    Every packet is acknowledged and none is sent again. In the steady state the window is W_l = r T_brtt + W_D, with r
    the rate of the acknowledgements and T_brtt the smallest round-trip time seen, so W_D packets stay queued at the
    bottleneck. Packets that a constant bit rate has to spare wait for the window.

    Parameters
    ----------
    mss : int
        Size of a bulk source's packets where it names none [bytes], 40 to 65 495.
    backlog : float
        W_D, what the window has beyond the bandwidth-delay product [packets], 0.1 to 100.
    rate_gain : float
        Weight of the rate in the last round trip in r, above 0 to 1; the paper's filter is not known.
    rto_min : float
        Smallest timeout [s], 0.001 to 120.
    first_timeout : float
        Timeout before there is an estimate [s], 0.001 to 120.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.

    Examples
    --------
    >>> Scp().backlog
    3.0
    """

    mss: int = 1460
    backlog: float = 3.0
    rate_gain: float = 0.25
    rto_min: float = 1.0
    first_timeout: float = 3.0

    def __post_init__(self) -> None:
        check_range("mss", self.mss, SMALLEST_PACKET, 65_495, "bytes")
        check_range("backlog", self.backlog, 0.1, 100, "packets")
        check_range("rate_gain", self.rate_gain, 1e-3, 1, "of the new rate")
        check_range("rto_min", self.rto_min, 0.001, 120, "s")
        check_range("first_timeout", self.first_timeout, 0.001, 120, "s")
