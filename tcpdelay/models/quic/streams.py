"""The sender's streams: what waits to be sent, new or lost, and which part of it goes into the next packet.

Streams that wait are served in turn, one frame each (RFC 9000, 2.3 leaves the order to the implementation).
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.quic.records import DATAGRAMS, NONE, ONE_STREAM, stream_record
from tcpdelay.models.simulator.writes import message_end, message_record, written_at


@kernel()
def stream_of(c: Any, wire: Any, message: int) -> int:
    """Return the number of the stream that carries a message; it is the number of the stream's first message."""
    if c.delivery == ONE_STREAM:
        return 0
    if c.group > 0:
        return int(message - message % c.group)
    number = message
    while number > 0 and not message_record(wire, number).begins_group:
        number -= 1
    return int(number)


@kernel()
def put_message(c: Any, wire: Any) -> None:
    """Put the message that is due on its stream."""
    number = c.packets_written
    message = message_record(wire, number)
    start, end = c.written, message_end(c, wire, number)
    message.missing, message.done = end - start, 0
    following = stream_of(c, wire, number)
    stream = stream_record(wire, following)
    if following == number:
        stream.unsent, stream.lost, stream.active = start, NONE, 0
        stream.unread = stream.untransmitted = number
    stream.end, stream.last = end, number
    c.written = end
    c.waiting += end - start
    c.packets_written += 1
    activate(c, wire, following, False)


@kernel()
def activate(c: Any, wire: Any, number: int, first: bool) -> None:
    """Let a stream wait to be served: before all others, or behind them; if it waits already, at its place."""
    stream = stream_record(wire, number)
    if stream.active:
        return
    stream.active = 1
    if first:
        c.active_first -= 1
        wire.active[c.active_first & (wire.active.shape[0] - 1)] = number
    else:
        wire.active[c.active_next & (wire.active.shape[0] - 1)] = number
        c.active_next += 1


@kernel()
def fill_packet(c: Any, wire: Any, packet: Any, room: int) -> int:
    """Put frames of the waiting streams into a packet with room for a number of bytes; return the bytes used."""
    used = 0
    waiting = c.active_next - c.active_first
    most = min(packet.start.shape[0], c.datagrams_per_packet) if c.delivery == DATAGRAMS else packet.start.shape[0]
    while waiting > 0 and packet.frames < most:
        number = wire.active[c.active_first & (wire.active.shape[0] - 1)]
        stream = stream_record(wire, number)
        space = room - used - c.frame_overhead
        size = _next_size(c, wire, stream)
        if space <= 0 or (c.delivery == DATAGRAMS and size > space):
            return int(used)
        waiting -= 1
        c.active_first += 1
        stream.active = 0
        used += c.frame_overhead + _take(c, wire, packet, number, min(size, space))
        if stream.lost != NONE or stream.unsent < stream.end:
            activate(c, wire, number, c.delivery == DATAGRAMS)
            if c.delivery == DATAGRAMS:
                waiting += 1
    return int(used)


@kernel()
def _next_size(c: Any, wire: Any, stream: Any) -> int:
    """Return the number of bytes of the first range of a stream that waits: a lost one, or all that is new."""
    if stream.lost != NONE:
        piece = wire.pieces[stream.lost]
        return int(piece.end - piece.start)
    size = stream.end - stream.unsent
    return int(min(size, c.datagram_payload) if c.delivery == DATAGRAMS else size)


@kernel()
def _take(c: Any, wire: Any, packet: Any, number: int, size: int) -> int:
    """Move the first bytes of a stream into a packet; return their number."""
    stream = stream_record(wire, number)
    if stream.lost != NONE:
        index = stream.lost
        piece = wire.pieces[index]
        start = piece.start
        piece.start += size
        if piece.start == piece.end:
            stream.lost = piece.following
            piece.following, c.free_piece = c.free_piece, index
    else:
        start = stream.unsent
        stream.unsent += size
        while stream.untransmitted <= stream.last and message_end(c, wire, stream.untransmitted) <= stream.unsent:
            waited = c.now - written_at(c, wire, stream.untransmitted)
            wire.delays[1, stream.untransmitted & (wire.delays.shape[1] - 1)] = waited
            stream.untransmitted += 1
    packet.start[packet.frames], packet.end[packet.frames] = start, start + size
    packet.stream[packet.frames] = number
    packet.frames += 1
    c.waiting -= size
    return int(size)


@kernel()
def put_lost(c: Any, wire: Any, number: int, start: int, end: int) -> None:
    """Put a lost range back on its stream, in the order of positions."""
    if c.free_piece != NONE:
        index = c.free_piece
        c.free_piece = wire.pieces[index].following
    elif c.pieces_used < wire.pieces.shape[0]:
        index = c.pieces_used
        c.pieces_used += 1
    else:
        c.failed = 1
        return
    stream = stream_record(wire, number)
    piece = wire.pieces[index]
    piece.start, piece.end = start, end
    before, following = NONE, stream.lost
    while following != NONE and wire.pieces[following].start < start:
        before, following = following, wire.pieces[following].following
    piece.following = following
    if before == NONE:
        stream.lost = index
    else:
        wire.pieces[before].following = index
    c.waiting += end - start
    activate(c, wire, number, c.lost_first == 1)
