"""The writes of a source: their times, and the ends of their messages in the stream.

The writes of a constant-rate flow follow from interval and size, unless they are late. Those of any other source are
in a ring, which Python fills while the compiled code reads it, so that memory does not grow with the length of a
simulation.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Array
from tcpdelay.scenario.source import MESSAGE, Source, is_exact
from tcpdelay.sim.records import Connection, Rings, Wire, WireRecord, WrittenMessage
from tcpdelay.sim.tcp.constants import NEVER, SECOND

_NO_MESSAGES: NDArray[np.void] = np.empty(0, MESSAGE)
WITH_EARLIER = -1
"""In place of a time: the message is written together with the message before it."""


Message = TypeVar("Message", bound=WrittenMessage)


class Messages(Protocol[Message]):
    """A record with the ring of the messages of a connection."""

    @property
    def messages(self) -> Array[Message]:
        """Ring of messages, as many as a power of two."""
        ...


class Writer(Protocol):
    """A connection of TCP or QUIC, as its application sees it."""

    now: int
    next_write: int
    packets_written: int
    packets_read: int
    messages_known: int
    scheduled: int
    packet_size: int
    interval: int

    def __getitem__(self, name: str) -> Any: ...
    def __setitem__(self, name: str, value: int) -> None: ...


@kernel()
def message_record(wire: Messages[Message], number: int) -> Message:
    """Return the record of a message; the ring has a power of two of them."""
    return wire.messages[number & (wire.messages.shape[0] - 1)]


@kernel()
def written_at(c: Writer, wire: Messages[Message], number: int) -> int:
    """Return the time of a message's write [us]."""
    if c.scheduled:
        return int(message_record(wire, number).written)
    return int(number * c.interval)


@kernel()
def message_end(c: Writer, wire: Messages[Message], number: int) -> int:
    """Return the position in the stream at which a message ends [bytes]."""
    if c.scheduled:
        return int(message_record(wire, number).end)
    return int((number + 1) * c.packet_size)


@kernel()
def ends_message(c: Connection, wire: WireRecord, position: int) -> bool:
    """Return whether a message ends at a position in the stream up to which the receiver has read."""
    if not c.scheduled:
        return bool(position % c.packet_size == 0)
    number = c.packets_read - 1
    while number >= 0 and message_record(wire, number).end > position:
        number -= 1
    return bool(number >= 0 and message_record(wire, number).end == position)


@kernel()
def _has_room(c: Connection, end: int) -> bool:
    """Return whether the send buffer takes a message that ends at a position in the stream; if empty, of any size."""
    return bool(c.written == c.snd_una or end - c.snd_una <= c.send_buffer)


@kernel()
def _goes_along(c: Connection, wire: WireRecord) -> bool:
    """Return whether the next message is written together with the last."""
    number = c.packets_written
    return bool(number < c.messages_known and message_record(wire, number).written == WITH_EARLIER)


@kernel()
def write_next(c: Connection, wire: WireRecord) -> None:
    """Put the message that is due in the send buffer; if it is full, drop the message or let it wait."""
    end = message_end(c, wire, c.packets_written)
    if c.send_buffer:
        end -= c.bytes_dropped
        if not _has_room(c, end):
            if not c.drops_when_full:
                c.next_write, c.write_blocked = NEVER, 1
                return
            c.bytes_dropped += end - c.written
            end = c.written
            _mark_dropped(c, wire)
        message_record(wire, c.packets_written).end = end
    c.written = end
    if c.scheduled:
        message_record(wire, c.packets_written).held = end - c.snd_una
    if c.answered and message_record(wire, c.packets_written).written == WITH_EARLIER:
        message_record(wire, c.packets_written).written = c.now
    c.packets_written += 1
    if c.answered:
        c.next_write = c.now if _goes_along(c, wire) else NEVER
        return
    # A message that is due already has waited for room behind another.
    due = written_at(c, wire, c.packets_written) if c.packets_written < c.messages_known else NEVER
    c.next_write = max(due, c.now)


@kernel()
def write_after_read(c: Connection, wire: WireRecord, now: int) -> None:
    """Let the next message be written a pause after the time `now` [us], at which all written messages are read."""
    c.last_read = now
    if c.next_write == NEVER and c.packets_read == c.packets_written and c.packets_written < c.messages_known:
        message = message_record(wire, c.packets_written)
        message.written += now
        c.next_write = message.written


@kernel()
def awaits_more(c: Connection, wire: WireRecord) -> bool:
    """Return whether the receiver waits for more writes before it answers."""
    return bool(c.packets_read < c.packets_written or _goes_along(c, wire))


@kernel()
def _mark_dropped(c: Connection, wire: WireRecord) -> None:
    """Make the message that is due one without bytes, which is read with the message before, at a negative delay."""
    message_record(wire, c.packets_written).written = NEVER
    if c.packets_read == c.packets_written:
        # The message before has been read.
        wire.delays[0, c.packets_read % wire.delays.shape[1]] = -NEVER
        c.packets_read += 1


@kernel()
def resume_writing(c: Connection, wire: WireRecord) -> None:
    """Let the message that waits for room be written now if an ACK has made room."""
    if _has_room(c, message_end(c, wire, c.packets_written)):
        c.next_write, c.write_blocked = c.now, 0


def constant_rate(source: Source | None) -> dict[str, int]:
    """Return size and interval of a flow with exact writes as fields of a connection; nothing for any other source."""
    if not is_exact(source):
        return {}
    return {"packet_size": source.packet_size, "interval": round(source.interval * SECOND), "messages_known": NEVER}


class WriteSchedule:
    """The messages of a source, for the connections of a simulation in turn.

    A connection after the first begins with the messages that the connection before has not written; it writes the
    first of them at the time 0.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self._blocks = source.blocks(seed)
        self._unwritten = _NO_MESSAGES
        self._given: list[NDArray[np.void]] = []
        self._first = self._end = 0
        self._count = NEVER
        self._origin: float | None = 0.0
        self.backlogged = False
        """Whether more messages wait to be read than the ring holds."""

    def begin(self, connection: Writer, earlier: Writer | None = None) -> None:
        """Begin with a new connection, in place of an earlier connection if there is one."""
        connection.scheduled, connection.messages_known, connection.next_write = 1, 0, NEVER
        if earlier is not None:
            known = self.numbered(int(earlier.packets_written), int(earlier.messages_known))
            self._unwritten, self._origin = known, None
        self._given, self._first, self._end, self._count = [], 0, 0, NEVER

    def fill(self, connection: Writer, wire: Wire[Rings]) -> int:
        """Give a connection that has written all messages it knows the next messages."""
        known = int(connection.messages_known)
        if connection.packets_written < known:
            return self._count
        block = self._unwritten if self._unwritten.size else next(self._blocks, _NO_MESSAGES)
        if not block.size:
            connection.messages_known, self._count = NEVER, known
            return self._count
        ring = wire.messages
        # The receiver may still ask for the end of the last message that it has read.
        if known + block.size > connection.packets_read - 1 + ring.size:
            self._unwritten, self.backlogged = block, True
            return int(connection.packets_read)
        self._unwritten = _NO_MESSAGES
        ends = self._end + np.cumsum(block["size"])
        start = known % ring.size
        before_wrap = ring.size - start
        for name, values in {"written": self._written(block), "end": ends, **self._marks(block)}.items():
            field = ring[name]
            field[start : start + block.size] = values[:before_wrap]
            field[: max(block.size - before_wrap, 0)] = values[before_wrap:]
        self._end = int(ends[-1])
        self._given.append(block)
        connection.messages_known = known + block.size
        connection.next_write = max(self._next_write(connection, ring[start]), connection.now)
        return self._count

    def _marks(self, block: NDArray[np.void]) -> dict[str, NDArray[np.bool_]]:
        """Return further fields of the messages of a block, by name."""
        return {}

    def _written(self, block: NDArray[np.void]) -> NDArray[np.float64]:
        """Return the times of the writes of messages [us]."""
        if self._origin is None:
            self._origin = float(block["time"][0])
        return np.rint((block["time"] - self._origin) * SECOND)

    def _next_write(self, connection: Writer, message: np.void) -> int:
        """Return the time [us] at which a connection writes its next message, whose record is `message`."""
        return int(message["written"])

    def numbered(self, first: int, following: int) -> NDArray[np.void]:
        """Return the messages from number `first` of the connection to before `following`, and forget earlier ones."""
        while self._given and self._first + self._given[0].size <= first:
            self._first += self._given.pop(0).size
        known = np.concatenate([_NO_MESSAGES, *self._given]) if following > first else _NO_MESSAGES
        return known[first - self._first : following - self._first]


class AnsweredSchedule(WriteSchedule):
    """Messages that each wait until the message before them is read and answered.

    The field `time` of a message is the pause from the read of the message before to its write [s]. A message of kind 1
    is written together with the message before.
    """

    def begin(self, connection: Writer, earlier: Writer | None = None) -> None:
        """Begin with a new connection, in place of an earlier connection if there is one."""
        super().begin(connection, earlier)
        connection["answered"] = 1

    def _written(self, block: NDArray[np.void]) -> NDArray[np.float64]:
        return np.where(block["kind"] == 1, WITH_EARLIER, np.rint(block["time"] * SECOND))

    def _next_write(self, connection: Writer, message: np.void) -> int:
        if message["written"] == WITH_EARLIER:
            return int(connection.now)
        if connection.packets_read < connection.packets_written:
            return NEVER
        message["written"] += connection["last_read"]
        return int(message["written"])
