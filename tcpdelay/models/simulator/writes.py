"""The writes of a source in a simulated connection: their times, and the ends of their messages in the stream.

The writes of a constant-rate flow follow from interval and size. Those of any other source are in a ring, which Python
fills while the compiled code reads it, so that memory does not grow with the length of a simulation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import NEVER, Wire
from tcpdelay.models.tcp import SECOND
from tcpdelay.scenario.sources.message_stream import MESSAGE, Source

_NO_MESSAGES: NDArray[np.void] = np.empty(0, MESSAGE)


@kernel()
def message_record(wire: Any, number: int) -> Any:
    """Return the record of a message; the ring has a power of two of them."""
    return wire.messages[number & (wire.messages.shape[0] - 1)]


@kernel()
def written_at(c: Any, wire: Any, number: int) -> int:
    """Return the time of a message's write [us]."""
    if c.scheduled:
        return int(message_record(wire, number).written)
    return int(number * c.interval)


@kernel()
def message_end(c: Any, wire: Any, number: int) -> int:
    """Return the position in the stream at which a message ends [bytes]."""
    if c.scheduled:
        return int(message_record(wire, number).end)
    return int((number + 1) * c.packet_size)


@kernel()
def ends_message(c: Any, wire: Any, position: int) -> bool:
    """Return whether a message ends at a position in the stream up to which the receiver has read."""
    if not c.scheduled:
        return bool(position % c.packet_size == 0)
    number = c.packets_read - 1
    while number >= 0 and message_record(wire, number).end > position:
        number -= 1
    return bool(number >= 0 and message_record(wire, number).end == position)


@kernel()
def _has_room(c: Any, end: int) -> bool:
    """Return whether the send buffer takes a message that ends at a position in the stream.

    The buffer holds the bytes that are written and not acknowledged. If it is empty, it takes a message of any size.
    """
    return bool(c.written == c.snd_una or end - c.snd_una <= c.send_buffer)


@kernel()
def write_next(c: Any, wire: Any) -> None:
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
    c.packets_written += 1
    # A message that is due already has waited for room behind another.
    due = written_at(c, wire, c.packets_written) if c.packets_written < c.messages_known else NEVER
    c.next_write = max(due, c.now)


@kernel()
def _mark_dropped(c: Any, wire: Any) -> None:
    """Make the message that is due one without bytes, which is read with the message before, at a negative delay."""
    message_record(wire, c.packets_written).written = NEVER
    if c.packets_read == c.packets_written:
        # The message before has been read.
        wire.delays[0, c.packets_read % wire.delays.shape[1]] = -NEVER
        c.packets_read += 1


@kernel()
def resume_writing(c: Any, wire: Any) -> None:
    """Let the message that waits for room be written now if an ACK has made room."""
    if _has_room(c, message_end(c, wire, c.packets_written)):
        c.next_write, c.write_blocked = c.now, 0


class WriteSchedule:
    """The messages of a source, for the connections of a simulation in turn.

    A connection after the first begins with the messages that the connection before has not written; it writes the
    first of them at the time 0.

    Parameters
    ----------
    source : Source
        The source.
    seed : int
        Seed of the messages, 0 or more.
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

    def begin(self, connection: Any, earlier: Any = None) -> None:
        """Begin with a new connection, in place of an earlier connection if there is one."""
        connection.scheduled, connection.messages_known, connection.next_write = 1, 0, NEVER
        if earlier is not None:
            known = self.numbered(int(earlier.packets_written), int(earlier.messages_known))
            self._unwritten, self._origin = known, None
        self._given, self._first, self._end, self._count = [], 0, 0, NEVER

    def fill(self, connection: Any, wire: Wire) -> int:
        """Give a connection that has written all messages it knows the next messages.

        Returns
        -------
        int
            Largest number of messages that the connection can read: all messages of a source that has ended, those
            that it has read if more wait than the ring holds, and else `NEVER`.
        """
        known = int(connection.messages_known)
        if connection.packets_written < known:
            return self._count
        block = self._unwritten if self._unwritten.size else next(self._blocks, _NO_MESSAGES)
        if not block.size:
            connection.messages_known, self._count = NEVER, known
            return self._count
        # The receiver may still ask for the end of the last message that it has read.
        if known + block.size > connection.packets_read - 1 + wire.record.messages.size:
            self._unwritten, self.backlogged = block, True
            return int(connection.packets_read)
        self._unwritten = _NO_MESSAGES
        if self._origin is None:
            self._origin = float(block["time"][0])
        places = np.arange(known, known + block.size) % wire.record.messages.size
        ends = self._end + np.cumsum(block["size"])
        wire.record.messages["written"][places] = np.rint((block["time"] - self._origin) * SECOND)
        wire.record.messages["end"][places] = ends
        self._end = int(ends[-1])
        self._given.append(block)
        connection.messages_known = known + block.size
        connection.next_write = max(wire.record.messages[places[0]].written, connection.now)
        return self._count

    def numbered(self, first: int, following: int) -> NDArray[np.void]:
        """Return the messages from number `first` of the connection to before `following`, and forget earlier ones."""
        known = np.concatenate([_NO_MESSAGES, *self._given])[first - self._first :]
        self._given, self._first = [known], first
        return known[: following - first]
