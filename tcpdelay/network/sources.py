"""The sources that share a link: constant bit rate, sections, bulk, files one after another, web users."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from tcpdelay.network.bottleneck import SharedPath, check_range
from tcpdelay.network.dispatching import MOST_CONNECTIONS
from tcpdelay.network.literature.min_buf import MinBuf, check_min_buf
from tcpdelay.network.stacks import Classic, Scp, TimeLined, Udp
from tcpdelay.scenario.fields import InvalidValueError, require_flag
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack

Opener = Literal["receiver", "sender"]
Scheduling = Literal["blind", "intelligent"]

IP_HEADER, UDP_HEADER, TCP_HEADER, TIMESTAMPS = 20, 8, 20, 12
SCP_HEADER = 4
"""The number of the packet, in a datagram."""
LARGEST_MESSAGE = 1_000_000
MOST_PIECES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What every source has.

    Parameters
    ----------
    path : SharedPath
        Its way over the shared link.
    stack : Linux, Classic, Scp or Udp
        What carries it; datagrams carry a constant bit rate only, and `Scp` that or a bulk source.
    start, stop : float
        When it begins and when it writes its last [s], 0 or more; `stop` is infinite by default.
    header : int, optional
        Bytes of all headers that the link sends with each packet, 0 to 1000; by default those from IP on.
    ecn : bool
        Whether the queue may mark its packets, and the sender heeds that.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    kinds: ClassVar[tuple[type[Stack], ...]] = (Linux, Classic)

    path: SharedPath
    stack: Stack
    start: float = 0.0
    stop: float = math.inf
    header: int | None = None
    ecn: bool = False

    def __post_init__(self) -> None:
        time_lined = isinstance(self.stack, TimeLined)
        if not isinstance(self.stack, self.kinds) or (time_lined and TimeLined not in self.kinds):
            names = " or ".join(kind.__name__ for kind in self.kinds)
            raise InvalidValueError("stack", self.stack, f"be {names} in a {type(self).__name__}")
        check_range("start", self.start, 0, 1e7, "s")
        if not self.stop > self.start:
            raise InvalidValueError("stop", self.stop, f"be later than start, {self.start:g} s")
        if self.ecn and isinstance(self.stack, Scp):
            raise InvalidValueError("ecn", self.ecn, "be False with Scp, which knows no marks")
        if self.header is not None:
            check_range("header", self.header, 0, 1000, "bytes")

    @property
    def header_size(self) -> int:
        """Bytes of headers per packet."""
        if self.header is not None:
            return self.header
        if isinstance(self.stack, Udp):
            return IP_HEADER + UDP_HEADER
        if isinstance(self.stack, Scp):
            return IP_HEADER + UDP_HEADER + SCP_HEADER
        return IP_HEADER + TCP_HEADER + (TIMESTAMPS if isinstance(self.stack, Linux) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRate(Source):
    """A packet of fixed size per interval; its other parameters are those of `Source`.

    Parameters
    ----------
    flow : Flow
        The packets. With `Classic` each must fit a segment, and is sent in one of its own.
    pieces : int
        Writes of equal size that each packet is split into, all at once, 1 to 64; it is read with the last of them.
        With `Classic` each piece is a segment.
    connections : int
        Connections that carry one packet each in turn, 1 to 64. Packets are read in the order of writing.
    scheduling : {"blind", "intelligent"}
        Whether connections are used one after another; or each packet goes to the one outside a timeout that has the
        fewest bytes not acknowledged.
    discard_after : float, optional
        Playout delay [s], 0 to 60: a packet that is likely to be read later is not written, and lost. What is likely
        says `tcpdelay.network.dispatching.expected_delay`.
    min_buf : MinBuf, optional
        A send buffer that follows the window: a packet that it has no room for is not written, and lost.
    talk, silence : float, optional
        Mean length of talk and of silence [s], 0.001 to 1000, both exponentially distributed; packets are written in
        talk only. By default there is no silence.
    keepalive_size : int, optional
        Bytes that are written in silence in place of a packet, 1 to its size, so that the window stays in use; they
        count as nothing. By default nothing is written. With `Classic` it must be the size of a piece.
    forging : bool
        Whether the receiver is that of TCP-RC (McCreary et al. 2005), which forges a packet that others have overtaken
        by three mean times between arrivals, and goes on; those count as lost. Only with a `Classic` that acknowledges
        at once.

    References
    ----------
    Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
    Transactions on Networking, 2010: splitting and parallel connections.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> ConstantRate(flow=Flow(174, 0.020), path=SharedPath(0.05), stack=Stack.linux()).header_size
    52
    """

    kinds: ClassVar[tuple[type[Stack], ...]] = (Linux, Classic, Udp, Scp, TimeLined)

    flow: Flow
    pieces: int = 1
    connections: int = 1
    scheduling: Scheduling = "blind"
    discard_after: float | None = None
    min_buf: MinBuf | None = None
    talk: float | None = None
    silence: float | None = None
    keepalive_size: int | None = None
    forging: bool = False

    def __post_init__(self) -> None:
        # `super()` does not find its class in one with slots.
        Source.__post_init__(self)
        size = self.flow.packet_size
        largest = self.stack.mss if isinstance(self.stack, Classic) else LARGEST_MESSAGE
        check_range("packet_size", size, 1, largest, "bytes")
        check_range("pieces", self.pieces, 1, min(MOST_PIECES, size), "writes")
        check_range("connections", self.connections, 1, MOST_CONNECTIONS, "connections")
        if self.scheduling not in get_args(Scheduling):
            raise InvalidValueError("scheduling", self.scheduling, "be 'blind' or 'intelligent'")
        if self.discard_after is not None:
            check_range("discard_after", self.discard_after, 0, 60, "s")
        check_min_buf(self.min_buf)
        if (self.talk is None) != (self.silence is None):
            raise ValueError(f"talk and silence must be given together, got {self.talk!r} and {self.silence!r}")
        for name, mean in (("talk", self.talk), ("silence", self.silence)):
            if mean is not None:
                check_range(name, mean, 0.001, 1000, "s")
        self._check_keepalive()
        require_flag("forging", self.forging)
        if self.forging and not (type(self.stack) is Classic and self.stack.ack_delay == 0 and not self.dispatched):
            raise InvalidValueError("forging", self.stack, "be False but with plain Classic and an ack_delay of 0")
        if self.dispatched and type(self.stack) not in (Linux, Classic):
            raise InvalidValueError(
                "stack", self.stack, "be Linux or Classic where packets are split, spread, discarded or suppressed"
            )

    def _check_keepalive(self) -> None:
        if self.keepalive_size is None:
            return
        if self.silence is None:
            raise InvalidValueError("keepalive_size", self.keepalive_size, "be left out without talk and silence")
        check_range("keepalive_size", self.keepalive_size, 1, self.flow.packet_size, "bytes")
        piece = -(-self.flow.packet_size // self.pieces)
        if isinstance(self.stack, Classic) and self.keepalive_size != piece:
            raise InvalidValueError("keepalive_size", self.keepalive_size, f"be a piece's with Classic, {piece} bytes")

    @property
    def dispatched(self) -> bool:
        """Whether the application does more than write each packet to its connection."""
        gives_up = self.min_buf is not None or self.discard_after is not None
        return self.pieces > 1 or self.connections > 1 or gives_up or self.silence is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections(Source):
    """Much data at regular intervals, as of a stored film; its other parameters are those of `Source`.

    A section is written at once and sent in packets of a segment each, the last one filled up. They count as messages.

    Parameters
    ----------
    size : int
        Size of a section [bytes], 1 to 1e8.
    interval : float
        Time between two sections [s], 0.001 to 1e5.

    Examples
    --------
    >>> from tcpdelay.network.stacks import TimeLined
    >>> Sections(path=SharedPath(0.05), stack=TimeLined(deadline=5.0), size=700_000, interval=5.0).packets
    480
    """

    kinds: ClassVar[tuple[type[Stack], ...]] = (Classic, TimeLined)

    size: int
    interval: float

    def __post_init__(self) -> None:
        Source.__post_init__(self)
        check_range("size", self.size, 1, 1e8, "bytes")
        check_range("interval", self.interval, 0.001, 1e5, "s")

    @property
    def packets(self) -> int:
        """Packets of a section."""
        return -(-self.size // self.stack.mss)  # type: ignore[attr-defined,no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk(Source):
    """A source that always has data and writes whenever the send buffer takes a packet; see also `Source`.

    Parameters
    ----------
    packet_size : int, optional
        Bytes of a write, 500 to 65 495; a full segment by default, and always with `Classic`.
    send_buffer : int, optional
        Bytes written that are not acknowledged yet, at most, 1000 to 4 MiB. By default Linux makes it twice the
        window, and `Classic` has room for two receiver windows. `Scp` has none: a packet is written as it is sent.
        With `Linux` the source waits for `poll` before each packet, which takes a third of the buffer to be free.
    min_buf : MinBuf, optional
        A limit of the send buffer that follows the window; then `send_buffer` is as large as can be by default.
    notsent_lowat : int, optional
        TCP_NOTSENT_LOWAT, with `Linux` only [bytes], 1 to 4 MiB: `poll` also takes less than half of this to be unsent.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> Bulk(path=SharedPath(0.05), stack=Stack.linux(), min_buf=MinBuf(1, 3)).min_buf
    MinBuf(multiple=1, extra=3)
    """

    kinds: ClassVar[tuple[type[Stack], ...]] = (Linux, Classic, Scp)

    packet_size: int | None = None
    send_buffer: int | None = None
    min_buf: MinBuf | None = None
    notsent_lowat: int | None = None

    def __post_init__(self) -> None:
        Source.__post_init__(self)
        if self.packet_size is not None:
            check_range("packet_size", self.packet_size, 500, 65_495, "bytes")
            if isinstance(self.stack, Classic) and self.packet_size != self.stack.mss:
                raise InvalidValueError(
                    "packet_size", self.packet_size, f"be the segment's with Classic, {self.stack.mss} bytes"
                )
        if isinstance(self.stack, Scp) and (self.send_buffer, self.min_buf) != (None, None):
            raise ValueError("send_buffer and min_buf must be None with Scp, which has no send buffer")
        if self.send_buffer is not None:
            check_range("send_buffer", self.send_buffer, 1000, 4 << 20, "bytes")
        check_min_buf(self.min_buf)
        if self.notsent_lowat is not None:
            check_range("notsent_lowat", self.notsent_lowat, 1, 4 << 20, "bytes")
            if not isinstance(self.stack, Linux) or self.min_buf is not None:
                raise InvalidValueError(
                    "notsent_lowat", self.notsent_lowat, "be left out without Linux and with min_buf"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers(Source):
    """Files, one after another, each over a connection of its own; a delay is that of a whole file. See also `Source`.

    Opening a connection takes packets over the link and back, of headers only, and then the file follows.

    Parameters
    ----------
    mean_size : int
        Mean size of a file [bytes], 1 to 1e6.
    shape : float, optional
        Shape of a Pareto distribution of the sizes, above 1 to 10; all are of one size by default.
    largest_size : float
        Where that distribution is cut [bytes], 1 to 2e6.
    mean_pause : float
        Mean of the exponentially distributed pause between two files [s], 0 to 1e5; none by default.
    opened_by : {"receiver", "sender"}
        Who asks for a connection: the receiver, which is answered over the link, or the sender, whose request and whose
        confirmation cross it.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> Transfers(path=SharedPath(0.05), stack=Stack.linux()).mean_size
    20000
    """

    mean_size: int = 20_000
    shape: float | None = None
    largest_size: float = 1_000_000
    mean_pause: float = 0.0
    opened_by: Opener = "receiver"

    def __post_init__(self) -> None:
        Source.__post_init__(self)
        check_range("mean_size", self.mean_size, 1, 1e6, "bytes")
        check_range("largest_size", self.largest_size, 1, 2e6, "bytes")
        check_range("mean_pause", self.mean_pause, 0, 1e5, "s")
        if self.opened_by not in get_args(Opener):
            raise InvalidValueError("opened_by", self.opened_by, "be 'receiver' or 'sender'")
        if self.shape is not None and not 1 < self.shape <= 10:
            raise InvalidValueError("shape", self.shape, "be above 1 and at most 10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Web(Transfers):
    """A web user: files of Pareto-distributed size, and pauses to read them; parameters are those of `Transfers`.

    References
    ----------
    Crovella, Bestavros, "Self-Similarity in World Wide Web Traffic", IEEE/ACM Transactions on Networking, 1997.
    """

    mean_size: int = 12_000
    shape: float | None = 1.2
    mean_pause: float = 1.0
