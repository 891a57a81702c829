"""The sources that share a link: messages of an application, sections, bulk data, file transfers, and web users.

The list of transports, by the stack that they implement, is also here. No other module outside
`tcpdelay.sim.literature` names the transports of the literature. A transport that is not listed is added with
`register`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, field
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from tcpdelay.declare import (
    Content,
    InvalidValueError,
    Quantity,
    choice,
    content,
    declarations,
    described,
    flag,
    in_bytes,
    in_seconds,
    instance_of,
    like,
    number,
    quantity,
)
from tcpdelay.scenario.source import BLOCK, TYPICAL_WRITE_JITTER, Flow
from tcpdelay.scenario.source import Source as MessageSource
from tcpdelay.scenario.stack import Linux, Quic, Stack
from tcpdelay.sim.literature import classic, scp
from tcpdelay.sim.network import datagrams, linux, quic
from tcpdelay.sim.network.bottleneck import SharedPath
from tcpdelay.sim.network.dispatching import MOST_CONNECTIONS
from tcpdelay.sim.network.linux import MinBuf
from tcpdelay.sim.network.stacks import Classic, Dctcp, Scp, TimeLined, Udp
from tcpdelay.sim.network.transport import AHEAD, Feature, FlowRecord, Transport, segment_size
from tcpdelay.sim.tcp.constants import NEVER, SECOND

# The transports, by the stack that they implement.

TRANSPORTS: dict[type, Transport] = {
    Linux: linux.TRANSPORT,
    Dctcp: linux.DCTCP,
    Quic: quic.TRANSPORT,
    Classic: classic.TRANSPORT,
    TimeLined: classic.TIME_LINED,
    Scp: scp.TRANSPORT,
    Udp: datagrams.TRANSPORT,
}


def register(stack: type[Stack], transport: Transport) -> None:
    """Let a transport carry the flows whose `Source` has a `stack` of this class."""
    TRANSPORTS[stack] = transport


def transport_of(stack: object) -> Transport | None:
    """Return the transport that implements a stack, or None if there is none."""
    return TRANSPORTS.get(type(stack))


def stacks_with(feature: Feature | None) -> list[str]:
    """Return the names of the stacks whose transports have a feature; of all stacks if it is None."""
    return [
        stack.__name__ for stack, transport in TRANSPORTS.items() if feature is None or feature in transport.features
    ]


# The sources.

Opener = Literal["receiver", "sender"]
Scheduling = Literal["blind", "intelligent"]

LARGEST_MESSAGE = 1_000_000
MOST_PIECES = 64
_count = partial(quantity, kind="count", low=1)
_MIN_BUF: Content = content(
    "Limit of the send buffer that follows the window.",
    instance_of("min_buf", MinBuf),
    "MinBuf",
    details="A packet of a constant rate is not written, and counts as lost, if no segment fits; the rest of a packet "
    "of several segments follows as the buffer drains.",
)
_FILE_SIZE: Quantity = in_bytes("Mean size of a file.", 1, 1e6)
_SHAPE: Quantity = number(
    "Shape of the Pareto distribution of the sizes; without it all files have the mean size.",
    1,
    10,
    "",
    low_excluded=True,
    allowed="be above 1 and at most 10",
)
_PAUSE: Quantity = in_seconds("Mean of the exponentially distributed pause between two files.", 0, 1e5)
_state = partial(
    in_seconds,
    low=0.001,
    high=1000,
    details="Exponentially distributed. Packets are written during talk only; by default there is no silence.",
)


@described
class Source:
    """The parameters that all sources have."""

    feature: ClassVar[Feature | None] = None
    """What a transport must be able to carry."""

    _: KW_ONLY
    path: SharedPath = content(
        "Path of its packets over the shared link.", instance_of("path", SharedPath), "SharedPath"
    )
    stack: Stack = content(
        "Settings of the transport that carries it: `Linux`, `Dctcp`, `Classic`, `TimeLined`, `Scp`, "
        "`Udp`, or a stack given to `tcpdelay.sim.network.sources.register`.",
        instance_of("stack", Stack),
        "Stack",
        details="`Udp` and `TimeLined` do not carry bulk data, and `Udp`, `TimeLined` and `Scp` do not carry "
        "transfers.",
    )
    start: float = in_seconds("Time of the first write.", 0, 1e7, default=0.0)
    stop: float = in_seconds(
        "Time after which nothing is written.",
        0,
        math.inf,
        allowed="be a number of seconds later than start",
        default=math.inf,
    )
    header: int | None = in_bytes(
        "Bytes of all headers of a packet on the link; by default the headers from IP on.", 0, 1000, default=None
    )
    ecn: bool = flag(
        "Whether the queue may mark its packets instead of dropping them, and the sender reduces its window then.",
        default=False,
    )
    l4s: bool = flag(
        "Whether its packets are those of an L4S sender (ECT(1)): `ecn`, and dualpi2 puts them into its L4S queue.",
        details="`Dctcp` and `Udp` have it.",
        default=False,
    )
    forging: bool = flag(
        "Whether the receiver is that of TCP-RC (McCreary et al. 2005).",
        details="When later segments have overtaken a segment by three mean times between arrivals, it hands a "
        "forged segment to the application and goes on; each message with a byte of the segment counts as lost. "
        "Only with a `Classic` that acknowledges at once, and a single connection.",
        default=False,
    )

    def __post_init__(self) -> None:
        transport = transport_of(self.stack)
        if transport is None or (self.feature is not None and self.feature not in transport.features):
            names = " or ".join(stacks_with(self.feature))
            raise InvalidValueError(f"stack of {type(self).__name__}", self.stack, f"be {names}")
        if not self.stop > self.start:
            raise InvalidValueError("stop", self.stop, f"be later than start, {self.start:g} s")
        flags: tuple[Feature, ...] = ("ecn", "l4s")
        for name in flags:
            if getattr(self, name) and not self.supports(name):
                raise InvalidValueError(name, getattr(self, name), f"be False with {type(self.stack).__name__}")
        if isinstance(self.stack, Dctcp) and not (self.ecn or self.l4s):
            raise InvalidValueError("ecn", self.ecn, "be True with Dctcp, unless l4s is")
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


@described
class ConstantRate(Source):
    """The messages of an application, at a constant rate or as of a video, speech or a trace; see also `Source`.

    A packet of a `Flow` is a message. A message is sent in as many segments or datagrams as it needs.

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

    _: KW_ONLY
    flow: MessageSource = content(
        "The messages, from the time `start` on.",
        instance_of("flow", MessageSource),
        "Flow, Video, Speech, Utterances, Messages, Trace or another source",
        details="With a source that is no `Flow`, or with a `write_jitter` above 1 ms, the parameters below, "
        "except `deadlines`, have no meaning, and are refused; `Scp` then refuses the source. With any of these "
        "parameters, and with `Scp`, a `write_jitter` up to 1 ms is ignored.",
    )
    pieces: int = _count(
        "Number of writes of equal size into which each packet is split.",
        details="All pieces are written at once, and the packet is read with its last piece.",
        high=MOST_PIECES,
        unit="writes",
        default=1,
    )
    connections: int = _count(
        "Number of parallel connections.",
        details="Each packet is written to one of them; the packets are read in the order of writing.",
        high=MOST_CONNECTIONS,
        unit="connections",
        default=1,
    )
    scheduling: Scheduling = choice(
        "How the connection of a packet is chosen.",
        details='"blind": the connections take turns. "intelligent": the connection with the fewest bytes not '
        "acknowledged; a connection in a timeout is used only if all are.",
        default="blind",
    )
    discard_after: float | None = in_seconds(
        "Playout delay: a packet with a larger expected delay is not written, and counts as lost.",
        0,
        60,
        details="See `tcpdelay.sim.network.dispatching.expected_delay`. A connection without unacknowledged "
        "data gets the packet in any case: its window and its round-trip time change only if it sends.",
        default=None,
    )
    min_buf: MinBuf | None = like(_MIN_BUF, default=None)
    talk: float | None = _state("Mean length of talk.", default=None)
    silence: float | None = _state("Mean length of silence.", default=None)
    keepalive_size: int | None = in_bytes(
        "Bytes written in place of a packet during silence, up to the packet's size, so that the window stays in use.",
        1,
        LARGEST_MESSAGE,
        details="They are not counted as messages. Without it nothing is written.",
        default=None,
    )
    deadlines: Mapping[str, float] = content(
        "Time after its write until which a message of a kind may be sent, by the kinds of `flow`.",
        instance_of("deadlines", Mapping),
        "mapping of str to float",
        details="In seconds, 0.001 to 1e5, with `TimeLined` only. The deadline of the stack applies to other kinds.",
        default=field(default_factory=dict),
    )

    def __post_init__(self) -> None:
        # `super()` without arguments does not work in a dataclass with slots.
        Source.__post_init__(self)
        if isinstance(self.flow, Flow):
            size = self.flow.packet_size
            in_bytes("", 1, LARGEST_MESSAGE).require("packet_size", size)
            _count(meaning="", high=min(MOST_PIECES, size), unit="writes").require("pieces", self.pieces)
        self._check_deadlines(self.flow.kinds)
        if (self.talk is None) != (self.silence is None):
            raise InvalidValueError("talk and silence", (self.talk, self.silence), "be given together")
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
            declarations(TimeLined)["deadline"].require(f"deadlines[{kind!r}]", deadline)

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
        in_bytes("", 1, packet_size).require("keepalive_size", self.keepalive_size)

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


@described
class Sections(Source):
    """A large section of data per interval, such as a part of a stored film; see also `Source`.

    A section is written at once and sent in packets of one full segment each; the last packet is padded. Each packet
    counts as a message.

    Examples
    --------
    >>> from tcpdelay.sim.network.stacks import TimeLined
    >>> Sections(path=SharedPath(0.05), stack=TimeLined(deadline=5.0), size=700_000, interval=5.0).packets
    480
    """

    feature: ClassVar[Feature | None] = "sections"

    _: KW_ONLY
    size: int = in_bytes("Size of a section.", 1, 1e8)
    interval: float = in_seconds("Time between two sections.", 0.001, 1e5)

    @property
    def packets(self) -> int:
        """Packets of a section."""
        return -(-self.size // segment_size(self.stack))


@described
class Bulk(Source):
    """A source that always has data and writes when the send buffer accepts a packet; see also `Source`.

    Examples
    --------
    >>> from tcpdelay.sim.network.linux import MinBuf
    >>> from tcpdelay.scenario.stack import Stack
    >>> Bulk(path=SharedPath(0.05), stack=Stack.linux(), min_buf=MinBuf(1, 3)).min_buf
    MinBuf(extra=3)
    """

    feature: ClassVar[Feature | None] = "bulk"

    _: KW_ONLY
    packet_size: int | None = in_bytes("Bytes of a write; a full segment by default.", 500, 65_495, default=None)
    send_buffer: int | None = in_bytes(
        "Size of the send buffer: the largest amount written and not acknowledged.",
        1000,
        4 << 20,
        details="By default `Linux` makes it twice the window, `Classic` two receiver windows, and with "
        "`min_buf` it is as large as possible. `Scp` has no send buffer: a packet is written when it is sent. "
        "With `Linux` the source waits for `poll` before each packet, which reports room while a third of the "
        "buffer is free.",
        default=None,
    )
    min_buf: MinBuf | None = like(_MIN_BUF, default=None)
    notsent_lowat: int | None = in_bytes(
        "TCP_NOTSENT_LOWAT, with `Linux` only: `poll` also requires that less than half of this is unsent.",
        1,
        4 << 20,
        default=None,
    )
    wake_up: float = in_seconds(
        "Time until the process of the source is scheduled and writes, after the send buffer has room.",
        0,
        1,
        default=0.0,
    )

    def __post_init__(self) -> None:
        Source.__post_init__(self)
        for name, absent in (("send_buffer", None), ("min_buf", None), ("wake_up", 0.0)):
            if getattr(self, name) != absent and not self.supports("send buffer"):
                allowed = f"be {absent} with {type(self.stack).__name__}, which has no send buffer"
                raise InvalidValueError(name, getattr(self, name), allowed)
        followed = self.supports("notsent_lowat") and self.min_buf is None
        if self.notsent_lowat is not None and not followed:
            names = " or ".join(stacks_with("notsent_lowat"))
            raise InvalidValueError("notsent_lowat", self.notsent_lowat, f"go with {names} and without min_buf")


@described
class Transfers(Source):
    """Files, one after another, each over a new connection; a delay is that of a whole file. See also `Source`.

    The packets of the handshake, which consist of headers only, cross the link before the file.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> Transfers(path=SharedPath(0.05), stack=Stack.linux()).mean_size
    20000
    """

    feature: ClassVar[Feature | None] = "transfers"

    _: KW_ONLY
    mean_size: int = like(_FILE_SIZE, default=20_000)
    shape: float | None = like(_SHAPE, default=None)
    largest_size: float = number("Upper limit of this distribution.", 1, 2e6, "bytes", default=1_000_000)
    mean_pause: float = like(_PAUSE, default=0.0)
    opened_by: Opener = choice(
        "Which host opens the connection.",
        details="If the receiver does, the sender's SYN-ACK crosses the link; if the sender does, its SYN and its "
        "ACK cross the link.",
        default="receiver",
    )


@described
class Web(Transfers):
    """A web user: files of Pareto-distributed size, with pauses to read them; it has the parameters of `Transfers`.

    References
    ----------
    Crovella, Bestavros, "Self-Similarity in World Wide Web Traffic", IEEE/ACM Transactions on Networking, 1997.
    """

    _: KW_ONLY
    mean_size: int = like(_FILE_SIZE, default=12_000)
    shape: float | None = like(_SHAPE, default=1.2)
    mean_pause: float = like(_PAUSE, default=1.0)


def checked_sources(name: str, sources: object) -> tuple[Source, ...]:
    """Return the sources of a simulation; raise InvalidValueError if an argument is not several sources."""
    given = tuple(sources) if isinstance(sources, Collection) else (None,)
    if not all(isinstance(source, Source) for source in given):
        raise InvalidValueError(name, sources, "be a list of sources, such as ConstantRate(...) or Bulk(...)")
    return given


# The messages of a source on a shared link, which become known to the compiled code piece by piece.


class MessageSchedule:
    """The schedule of a flow, always between one and two blocks of messages ahead, so that memory stays bounded."""

    def __init__(self, source: MessageSource, seed: int, flow: FlowRecord) -> None:
        self._source, self._flow = source, flow
        self._blocks, self._ended = source.blocks(seed), False
        self.fill()
        flow.next_write = flow.schedule[0].written if flow.messages_known else NEVER

    def fill(self) -> int:
        """Schedule further messages; return the time by the link's clock up to which all messages are known [us]."""
        flow = self._flow
        while not self._ended and flow.messages_known - flow.messages_taken <= BLOCK:
            self._append()
        if self._ended:
            return NEVER
        last = int(flow.schedule[(flow.messages_known - 1) % AHEAD].written)
        if last == flow.schedule[flow.messages_taken % AHEAD].written:
            raise InvalidValueError("flow", self._source, f"write at most {BLOCK} messages in a microsecond")
        return last + int(flow.access_delay)

    def _append(self) -> None:
        """Append a block of messages that are written before the flow stops."""
        flow = self._flow
        block = next(self._blocks, None)
        if block is None:
            self._ended = True
            return
        written = flow.first_write + np.rint(block["time"] * SECOND).astype(np.int64)
        count = int(np.searchsorted(written, flow.stop))
        self._ended = count < block.size
        places = np.arange(flow.messages_known, flow.messages_known + count) % AHEAD
        values = {"written": written, "length": block["size"], "kind": block["kind"]}
        for name, of_block in values.items():
            flow.schedule[name][places] = of_block[:count]
        flow.messages_known += count
