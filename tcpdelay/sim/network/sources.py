"""The sources that share a link: messages of an application, sections, bulk data, file transfers, and web users."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tcpdelay.argument_types import check_field_types
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import TYPICAL_WRITE_JITTER
from tcpdelay.scenario.sources.message_stream import Source as MessageSource
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network.bottleneck import SharedPath, check_range
from tcpdelay.sim.network.dispatching import MOST_CONNECTIONS
from tcpdelay.sim.network.linux import MinBuf
from tcpdelay.sim.network.stacks import LARGEST_DEADLINE, LEAST_DEADLINE, Dctcp
from tcpdelay.sim.network.transport import Feature, Transport, segment_size
from tcpdelay.sim.network.transports import stacks_with, transport_of

Opener = Literal["receiver", "sender"]
Scheduling = Literal["blind", "intelligent"]

LARGEST_MESSAGE = 1_000_000
MOST_PIECES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The parameters that all sources have.

    Parameters
    ----------
    path : SharedPath
        Path of its packets over the shared link.
    stack : Stack
        Settings of the transport that carries it: `Linux`, `Dctcp`, `Classic`, `TimeLined`, `Scp`, `Udp`, or a stack
        given to `tcpdelay.sim.network.transports.register`. `Udp` and `TimeLined` do not carry bulk data, and `Udp`,
        `TimeLined` and `Scp` do not carry transfers.
    start, stop : float
        Time of the first write, and time after which nothing is written [s], 0 or more; `stop` is infinite by default.
    header : int, optional
        Bytes of all headers of a packet on the link, 0 to 1000; by default the headers from IP on.
    ecn : bool
        Whether the queue may mark its packets instead of dropping them, and the sender reduces its window then.
    l4s : bool
        Whether its packets are those of an L4S sender (ECT(1)): `ecn`, and "dualpi2" puts them into its L4S queue.
        `Dctcp` and `Udp` have it.
    forging : bool
        Whether the receiver is that of TCP-RC (McCreary et al. 2005). When later segments have overtaken a segment by
        three mean times between arrivals, it hands a forged segment to the application and goes on; each message with
        a byte of the segment counts as lost. Only with a `Classic` that acknowledges at once, and a single connection.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.
    """

    feature: ClassVar[Feature | None] = None
    """What a transport must be able to carry."""

    path: SharedPath
    stack: Stack
    start: float = 0.0
    stop: float = math.inf
    header: int | None = None
    ecn: bool = False
    l4s: bool = False
    forging: bool = False

    def __post_init__(self) -> None:
        check_field_types(self)
        transport = transport_of(self.stack)
        if transport is None or (self.feature is not None and self.feature not in transport.features):
            names = " or ".join(stacks_with(self.feature))
            raise InvalidValueError(f"stack of {type(self).__name__}", self.stack, f"be {names}")
        check_range("start", self.start, 0, 1e7, "s")
        if not self.stop > self.start:
            raise InvalidValueError("stop", self.stop, f"be later than start, {self.start:g} s")
        flags: tuple[Feature, ...] = ("ecn", "l4s")
        for name in flags:
            if getattr(self, name) and not self.supports(name):
                raise InvalidValueError(name, getattr(self, name), f"be False with {type(self.stack).__name__}")
        if isinstance(self.stack, Dctcp) and not (self.ecn or self.l4s):
            raise InvalidValueError("ecn", self.ecn, "be True with Dctcp, unless l4s is")
        if self.header is not None:
            check_range("header", self.header, 0, 1000, "bytes")
        if self.forging and not (self.supports("forging") and getattr(self.stack, "ack_delay", 0.0) == 0):
            self._refuse_forging()

    def _refuse_forging(self) -> None:
        """Raise the InvalidValueError of a source that is carried in a way in which no receiver forges."""
        names = " or ".join(stacks_with("forging"))
        hint = f"it needs a single connection of {names} with an ack_delay of 0, and has {self.stack!r}"
        raise InvalidValueError("forging", self.forging, "be False", hint)

    @property
    def header_size(self) -> int:
        """Bytes of headers per packet."""
        return self.transport.header if self.header is None else self.header

    @property
    def transport(self) -> Transport:
        """Implementation of the stack."""
        transport = transport_of(self.stack)
        assert transport is not None
        return transport

    def supports(self, feature: Feature) -> bool:
        """Return whether the transport has a feature."""
        return feature in self.transport.features


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRate(Source):
    """The messages of an application, at a constant rate or as of a video, speech or a trace; see also `Source`.

    A packet of a `Flow` is a message. A message is sent in as many segments or datagrams as it needs.

    Parameters
    ----------
    flow : Flow, Video, Speech, Utterances, Messages, Trace or another source
        The messages, from the time `start` on. With a source that is no `Flow`, or with a `write_jitter` above 1 ms,
        the parameters below, except `deadlines`, have no meaning, and are refused; `Scp` then refuses the source. With
        any of these parameters, and with `Scp`, a `write_jitter` up to 1 ms is ignored.
    pieces : int
        Number of writes of equal size into which each packet is split, 1 to 64. All pieces are written at once, and
        the packet is read with its last piece.
    connections : int
        Number of parallel connections, 1 to 64. Each packet is written to one of them; the packets are read in the
        order of writing.
    scheduling : {"blind", "intelligent"}
        How the connection of a packet is chosen. "blind": the connections take turns. "intelligent": the connection
        with the fewest bytes not acknowledged; a connection in a timeout is used only if all are.
    discard_after : float, optional
        Playout delay [s], 0 to 60. A packet with a larger expected delay (see
        `tcpdelay.sim.network.dispatching.expected_delay`) is not written, and counts as lost. A connection without
        unacknowledged data gets the packet in any case: its window and its round-trip time change only if it sends.
    min_buf : MinBuf, optional
        Limit of the send buffer that follows the window. A packet is not written, and counts as lost, if no segment
        fits. The rest of a packet of several segments follows as the buffer drains.
    talk, silence : float, optional
        Mean lengths of talk and of silence [s], 0.001 to 1000, both exponentially distributed. Packets are written
        during talk only. By default there is no silence.
    keepalive_size : int, optional
        Bytes written in place of a packet during silence, 1 to the packet's size, so that the window stays in use; they
        are not counted as messages. By default nothing is written.
    deadlines : mapping of str to float, optional
        Time after its write until which a message of a kind may be sent [s], 0.001 to 1e5, by the kinds of `flow`, with
        `TimeLined` only. The deadline of the stack applies to other kinds.

    Raises
    ------
    InvalidValueError
        If a value is out of its range, or cannot be combined with the source or the stack; a ValueError.

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

    feature: ClassVar[Feature | None] = "constant rate"

    flow: Flow | MessageSource
    pieces: int = 1
    connections: int = 1
    scheduling: Scheduling = "blind"
    discard_after: float | None = None
    min_buf: MinBuf | None = None
    talk: float | None = None
    silence: float | None = None
    keepalive_size: int | None = None
    deadlines: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # `super()` without arguments does not work in a dataclass with slots.
        Source.__post_init__(self)
        pieces = MOST_PIECES
        if isinstance(self.flow, Flow):
            check_range("packet_size", self.flow.packet_size, 1, LARGEST_MESSAGE, "bytes")
            pieces = min(pieces, self.flow.packet_size)
        check_range("pieces", self.pieces, 1, pieces, "writes")
        check_range("connections", self.connections, 1, MOST_CONNECTIONS, "connections")
        if self.discard_after is not None:
            check_range("discard_after", self.discard_after, 0, 60, "s")
        self._check_deadlines(self.flow.kinds)
        if (self.talk is None) != (self.silence is None):
            raise InvalidValueError("talk and silence", (self.talk, self.silence), "be given together")
        for name, mean in (("talk", self.talk), ("silence", self.silence)):
            if mean is not None:
                check_range(name, mean, 0.001, 1000, "s")
        if not self.written_exactly:
            self._check_messages()
            return
        assert isinstance(self.flow, Flow)
        self._check_keepalive(self.flow.packet_size)
        if self.forging and self.dispatched:
            self._refuse_forging()
        if self.dispatched and not self.supports("dispatching"):
            names = " or ".join(stacks_with("dispatching"))
            allowed = f"be {names} where packets are split, discarded, suppressed or use parallel connections"
            raise InvalidValueError("stack", self.stack, allowed)

    def _check_deadlines(self, kinds: tuple[str, ...]) -> None:
        """Raise InvalidValueError if a deadline is given for no kind of the messages, or is out of its range."""
        if self.deadlines and not self.supports("deadlines"):
            raise InvalidValueError("stack", self.stack, f"be {' or '.join(stacks_with('deadlines'))} with deadlines")
        for kind, deadline in self.deadlines.items():
            if kind not in kinds:
                raise InvalidValueError("deadlines", kind, f"have only the kinds {', '.join(kinds)}")
            check_range(f"deadlines[{kind!r}]", deadline, LEAST_DEADLINE, LARGEST_DEADLINE, "s")

    def _check_messages(self) -> None:
        """Raise InvalidValueError if a source whose writes are a schedule cannot be carried in this way."""
        usual = f"a write_jitter above {TYPICAL_WRITE_JITTER:g} s"
        if not self.supports("messages"):
            what = usual if isinstance(self.flow, Flow) else "a source that is no Flow"
            raise InvalidValueError("stack", self.stack, f"be {' or '.join(stacks_with('messages'))} with {what}")
        if self.dispatched or self.keepalive_size is not None:
            flow = f"not have {usual}" if isinstance(self.flow, Flow) else "be a Flow"
            allowed = f"{flow} where packets are split, discarded, suppressed or use parallel connections"
            raise InvalidValueError("flow", self.flow, allowed)

    def _check_keepalive(self, packet_size: int) -> None:
        """Raise InvalidValueError if `keepalive_size` is given and out of its range."""
        if self.keepalive_size is None:
            return
        if self.silence is None:
            raise InvalidValueError("keepalive_size", self.keepalive_size, "go with talk and silence")
        check_range("keepalive_size", self.keepalive_size, 1, packet_size, "bytes")

    @property
    def written_exactly(self) -> bool:
        """Whether packets are written exactly on time: a lateness up to the usual one is ignored where it must be."""
        if not isinstance(self.flow, Flow) or self.flow.write_jitter > TYPICAL_WRITE_JITTER:
            return False
        ignored = self.dispatched or self.keepalive_size is not None or not self.supports("messages")
        return ignored or self.flow.write_jitter == 0

    @property
    def dispatched(self) -> bool:
        """Whether packets are split, discarded or suppressed, or use parallel connections."""
        discards = self.min_buf is not None or self.discard_after is not None
        return self.pieces > 1 or self.connections > 1 or discards or self.silence is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections(Source):
    """A large section of data per interval, such as a part of a stored film; see also `Source`.

    A section is written at once and sent in packets of one full segment each; the last packet is padded. Each packet
    counts as a message.

    Parameters
    ----------
    size : int
        Size of a section [bytes], 1 to 1e8.
    interval : float
        Time between two sections [s], 0.001 to 1e5.

    Examples
    --------
    >>> from tcpdelay.sim.network.stacks import TimeLined
    >>> Sections(path=SharedPath(0.05), stack=TimeLined(deadline=5.0), size=700_000, interval=5.0).packets
    480
    """

    feature: ClassVar[Feature | None] = "sections"

    size: int
    interval: float

    def __post_init__(self) -> None:
        Source.__post_init__(self)
        check_range("size", self.size, 1, 1e8, "bytes")
        check_range("interval", self.interval, 0.001, 1e5, "s")

    @property
    def packets(self) -> int:
        """Packets of a section."""
        return -(-self.size // segment_size(self.stack))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk(Source):
    """A source that always has data and writes when the send buffer accepts a packet; see also `Source`.

    Parameters
    ----------
    packet_size : int, optional
        Bytes of a write, 500 to 65 495; a full segment by default.
    send_buffer : int, optional
        Size of the send buffer [bytes], 1000 to 4 MiB: the largest amount written and not acknowledged. By default
        `Linux` makes it twice the window, and `Classic` two receiver windows. `Scp` has no send buffer: a packet is
        written when it is sent. With `Linux` the source waits for `poll` before each packet, which reports room while a
        third of the buffer is free.
    min_buf : MinBuf, optional
        Limit of the send buffer that follows the window; `send_buffer` is then as large as possible by default.
    notsent_lowat : int, optional
        TCP_NOTSENT_LOWAT [bytes], 1 to 4 MiB, with `Linux` only: `poll` also requires that less than half of this is
        unsent.
    wake_up : float
        Time until the process of the source is scheduled and writes, after the send buffer has room [s], 0 to 1.

    Examples
    --------
    >>> from tcpdelay.sim.network.linux import MinBuf
    >>> from tcpdelay.scenario.stack import Stack
    >>> Bulk(path=SharedPath(0.05), stack=Stack.linux(), min_buf=MinBuf(1, 3)).min_buf
    MinBuf(extra=3)
    """

    feature: ClassVar[Feature | None] = "bulk"

    packet_size: int | None = None
    send_buffer: int | None = None
    min_buf: MinBuf | None = None
    notsent_lowat: int | None = None
    wake_up: float = 0.0

    def __post_init__(self) -> None:
        Source.__post_init__(self)
        if self.packet_size is not None:
            check_range("packet_size", self.packet_size, 500, 65_495, "bytes")
        check_range("wake_up", self.wake_up, 0, 1, "s")
        for name, absent in (("send_buffer", None), ("min_buf", None), ("wake_up", 0.0)):
            if getattr(self, name) != absent and not self.supports("send buffer"):
                allowed = f"be {absent} with {type(self.stack).__name__}, which has no send buffer"
                raise InvalidValueError(name, getattr(self, name), allowed)
        if self.send_buffer is not None:
            check_range("send_buffer", self.send_buffer, 1000, 4 << 20, "bytes")
        if self.notsent_lowat is not None:
            check_range("notsent_lowat", self.notsent_lowat, 1, 4 << 20, "bytes")
            if not self.supports("notsent_lowat") or self.min_buf is not None:
                names = " or ".join(stacks_with("notsent_lowat"))
                raise InvalidValueError("notsent_lowat", self.notsent_lowat, f"go with {names} and without min_buf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers(Source):
    """Files, one after another, each over a new connection; a delay is that of a whole file. See also `Source`.

    The packets of the handshake, which consist of headers only, cross the link before the file.

    Parameters
    ----------
    mean_size : int
        Mean size of a file [bytes], 1 to 1e6.
    shape : float, optional
        Shape of the Pareto distribution of the sizes, above 1 to 10; by default all files have the mean size.
    largest_size : float
        Upper limit of this distribution [bytes], 1 to 2e6.
    mean_pause : float
        Mean of the exponentially distributed pause between two files [s], 0 to 1e5; no pause by default.
    opened_by : {"receiver", "sender"}
        Which host opens the connection. If the receiver does, the sender's SYN-ACK crosses the link; if the sender
        does, its SYN and its ACK cross the link.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> Transfers(path=SharedPath(0.05), stack=Stack.linux()).mean_size
    20000
    """

    feature: ClassVar[Feature | None] = "transfers"

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
        if self.shape is not None and not 1 < self.shape <= 10:
            raise InvalidValueError("shape", self.shape, "be above 1 and at most 10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Web(Transfers):
    """A web user: files of Pareto-distributed size, with pauses to read them; it has the parameters of `Transfers`.

    References
    ----------
    Crovella, Bestavros, "Self-Similarity in World Wide Web Traffic", IEEE/ACM Transactions on Networking, 1997.
    """

    mean_size: int = 12_000
    shape: float | None = 1.2
    mean_pause: float = 1.0


def checked_sources(name: str, sources: object) -> tuple[Source, ...]:
    """Return the sources of a simulation; raise InvalidValueError if an argument is not several sources."""
    given = tuple(sources) if isinstance(sources, Collection) else (None,)
    if not all(isinstance(source, Source) for source in given):
        raise InvalidValueError(name, sources, "be a list of sources, such as ConstantRate(...) or Bulk(...)")
    return given
