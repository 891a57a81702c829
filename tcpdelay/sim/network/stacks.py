"""The settings of the transports beside the usual TCP of Linux: DCTCP, the older literature's TCP, SCP, and UDP."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Self

from tcpdelay.declare import Quantity, choice, described, flag, in_bytes, in_seconds, like, number, quantity
from tcpdelay.scenario.path import SMALLEST_PACKET
from tcpdelay.scenario.stack import DELAYED_ACK, HZ, MSS, Stack

Recovery = Literal["reno", "newreno", "sack"]

LARGEST_CLASSIC_WINDOW = 2000
SETTINGS_OF_2008: dict[str, Any] = {
    "mss": 1448,
    "receiver_window": 1000,
    "initial_window": 3,
    "limited_transmit": True,
    "tick": 0.004,
    "rto_min": 0.2,
    "first_timeout": 3.0,
}
LARGEST_SEGMENT = 65_495
LARGEST_DATAGRAM = 65_507
LEAST_DEADLINE, LARGEST_DEADLINE = 0.001, 1e5


_segments = partial(quantity, low=1, unit="segments", kind="count")
SEGMENT_SIZE: Quantity = in_bytes("Size of a segment.", SMALLEST_PACKET, LARGEST_SEGMENT, example="1460B")
MINIMUM_TIMEOUT: Quantity = in_seconds("Minimum retransmission timeout.", 0.001, 120, example="1s")
FIRST_TIMEOUT: Quantity = in_seconds(
    "Retransmission timeout before the round-trip time is measured.", 0.001, 120, example="3s"
)


@described
class Classic(Stack):
    """The TCP of the literature up to 2008, by default with the slow timers of its early years.

    While the window, which counts segments, is open, each write leaves at once as a segment. Bytes that wait for the
    window are sent in full segments. With an `ack_delay`, the receiver waits for a second segment; at 0 it acknowledges
    each segment at once. 4.3BSD has a `tick` of 0.5 s. `of_2008` returns the settings of a stack of 2008.

    Examples
    --------
    >>> Classic(recovery="sack").mss
    1460
    """

    recovery: Recovery = choice("How lost segments are repaired.", default="newreno")
    mss: int = like(SEGMENT_SIZE, default=1460)
    receiver_window: int = _segments(
        "Largest number of outstanding segments.", high=LARGEST_CLASSIC_WINDOW, example="64", default=64
    )
    initial_window: int = _segments("Initial congestion window.", high=10, example="2", default=2)
    limited_transmit: bool = flag(
        "Send a new segment on each of the first two duplicate ACKs (RFC 3042).", default=False
    )
    tick: float = in_seconds("Granularity of all timers.", 0.001, 1, example="100ms", default=0.1)
    rto_min: float = like(MINIMUM_TIMEOUT, default=1.0)
    first_timeout: float = like(FIRST_TIMEOUT, default=3.0)
    ack_delay: float = in_seconds(
        "Longest delay of an acknowledgement by the receiver.", 0, 1, example="200ms", default=0.0
    )
    byte_counting: bool = flag(
        "Let the window grow by acknowledged bytes (RFC 3465).",
        details="The window counts segments of any size, and grows by the acknowledged bytes in full segments. An "
        "ACK of n segments of b bytes counts as n b / `mss` ACKs; in slow start as at most 2, after a timeout as "
        "at most 1. The window therefore grows slowly where packets are smaller than `mss`.",
        default=False,
    )
    window_validation: bool = flag(
        "Reduce the window after idle time, and let only a full window grow (RFC 2861).",
        details="The window grows only if it was full before the ACK. It is halved, down to one segment, for each "
        "retransmission timeout in which no segment was sent or outstanding.",
        default=False,
    )

    @classmethod
    def of_2008(cls, **changes: Any) -> Self:
        """Return the stack of a host of 2008, with all options that Brosh et al. recommend for low delays.

        Linux 2.6 has a tick of 4 ms, a minimum timeout of 200 ms, a first timeout of 3 s, limited transmit, and an
        initial window of 4380 bytes (RFC 3390), which are three segments. The receiver window is so large that it never
        limits the sender. Byte counting and window validation are off.

        Parameters
        ----------
        **changes
            Settings that differ, such as `recovery` or `mss`.

        References
        ----------
        Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
        Transactions on Networking, 2010, sections IV and VI.

        Examples
        --------
        >>> Classic.of_2008(recovery="sack").rto_min
        0.2
        """
        return cls(**(SETTINGS_OF_2008 | changes))


@described
class TimeLined(Classic):
    """Time-lined TCP: Reno that gives up data older than a deadline; see also `Classic`.

    It carries `Sections`, or a `ConstantRate`, where each message, such as a frame of a video, is a section. When the
    deadline of a section has passed, the sender goes on with the next section, and its next segment informs the
    receiver. The receiver then skips what is missing, and reports the gap; a message with a gap is lost. A message that
    was sent in time and arrives late is read. A receiver that plays a section at a fixed time after its write gains
    little from packets sent later than this time less the path's delay.

    References
    ----------
    Mukherjee, Brecht, "Time-lined TCP for the TCP-friendly delivery of streaming media", ICNP 2000.

    Examples
    --------
    >>> TimeLined(deadline=0.15).recovery
    'reno'
    """

    recovery: Literal["reno"] = choice("How lost segments are repaired.", default="reno")
    deadline: float = in_seconds(
        "Time after its write until which a section may be sent.",
        LEAST_DEADLINE,
        LARGEST_DEADLINE,
        example="5s",
        default=5.0,
    )


@described
class Dctcp(Stack):
    """The TCP of Linux with DCTCP, whose window shrinks in proportion to the share of marked segments (RFC 8257).

    It grows as Reno does. It needs marks, so its sources have `ecn` or `l4s`. The receiver reports each mark exactly.

    References
    ----------
    RFC 8257 (DCTCP), RFC 9331 (L4S; DCTCP meets its requirements on marks, and not those on fallback and on fairness
    between different round-trip times).

    Examples
    --------
    >>> Dctcp(delayed_ack=True).mss
    1448
    """

    delayed_ack: bool = like(DELAYED_ACK, default=False)
    hz: int = like(HZ, default=250)
    mss: int = like(MSS, default=1448)


@described
class Udp(Stack):
    """UDP: no acknowledgements and no retransmissions.

    A message larger than a datagram is sent in several datagrams, all at once. It is lost if too many of them are lost,
    and read when the last that it needs arrives.

    Examples
    --------
    >>> Udp().largest_payload
    1472
    """

    largest_payload: int = in_bytes(
        "Largest payload of a datagram.",
        SMALLEST_PACKET,
        LARGEST_DATAGRAM,
        details="The default is that of an MTU of 1500 bytes.",
        example="1472B",
        default=1472,
    )
    parity: int = quantity(
        "Parity datagrams that are sent after each message.",
        0,
        255,
        "datagrams",
        "count",
        details="With an erasure code (RFC 5510), the receiver recovers a message of n datagrams from any n of "
        "the n + `parity` datagrams.",
        example="2",
        default=0,
    )


@described
class Scp(Stack):
    """The Streaming Control Protocol: datagrams behind a window that follows the rate of their acknowledgements.

    Every packet is acknowledged, and no packet is sent again. In the steady state the window is W_l = r T_brtt + W_D,
    where r is the rate of the acknowledgements and T_brtt the smallest round-trip time measured, so that W_D packets
    stay queued at the bottleneck. Packets of a constant bit rate wait until the window allows them. The packets of a
    bulk source have the size `mss` unless the source sets it; by default a datagram carries 1472 bytes with the header
    of SCP, as in the paper. A reset, the first one `reset_interval` after time 0, discards all estimates, ignores all
    outstanding packets and begins slow start, as after a change of the network interface.

    References
    ----------
    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.

    Examples
    --------
    >>> Scp().backlog
    3.0
    """

    mss: int = like(SEGMENT_SIZE, default=1468)
    backlog: float = number(
        "Window beyond the bandwidth-delay product.",
        0.1,
        100,
        "packets",
        details="W_D of the paper.",
        example="3",
        default=3.0,
    )
    rate_gain: float = number(
        "Weight of the latest rate of acknowledgements in their mean rate.",
        1e-3,
        1,
        "of the new rate",
        details="A low-pass filter of r, for which the paper prints no coefficient.",
        example="0.25",
        default=0.25,
    )
    rto_min: float = like(MINIMUM_TIMEOUT, default=1.0)
    first_timeout: float = like(FIRST_TIMEOUT, default=3.0)
    reset_interval: float | None = in_seconds(
        "Time between two resets of the connection.", 0.001, 1e7, example="60s", default=None
    )
