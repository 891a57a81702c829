"""The sender and the receiver of QUIC: packets, streams, and acknowledgements."""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.path import leave_transit, next_arrival
from tcpdelay.sim.quic.congestion import limited_by_application, must_wait, note_sending, restart_if_idle, spend
from tcpdelay.sim.quic.implementations import FULL, OVERSHOOT, WHOLE
from tcpdelay.sim.quic.records import (
    DATAGRAMS,
    GROUPS,
    IN_FLIGHT,
    LOST,
    NONE,
    ONE_STREAM,
    packet_record,
    stream_record,
)
from tcpdelay.sim.records import NEVER, uniform
from tcpdelay.sim.writes import message_end, message_record, written_at

# The sender's streams: what waits to be sent, new or lost, and which part of it goes into the next packet.
#
# Streams that wait are served in turn, one frame each (RFC 9000, 2.3 leaves the order to the implementation).


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


# The sender: packets, as far as the congestion window and the pacer allow, and the probes of a timeout.


@kernel()
def send(c: Any, wire: Any) -> None:
    """Send what waits, as far as the window and the pacer allow."""
    c.application_limited = 0
    while c.waiting > 0:
        room = _room(c)
        if room <= 0 or must_wait(c):
            return
        if not send_packet(c, wire, room, False):
            return
    c.application_limited = 1


@kernel()
def write(c: Any, wire: Any) -> None:
    """Put the message that is due on its stream, and send what may leave.

    The end of its own stream is a packet without data if the library has taken the close after all data have left.
    """
    if c.bbr:
        limited_by_application(c)
    put_message(c, wire)
    send(c, wire)
    number = c.packets_written - 1
    if c.delivery != GROUPS or c.group != 1 or c.waiting > 0:
        return
    size = message_end(c, wire, number) - (message_end(c, wire, number - 1) if number else 0)
    if size > c.buffered_write and _room(c) > 0 and not must_wait(c):
        send_packet(c, wire, c.datagram_size, True)


@kernel()
def _room(c: Any) -> int:
    """Return the size up to which the congestion window allows a packet [bytes], 0 if it allows none."""
    if c.bbr:
        return int(c.datagram_size if c.eliciting < c.snd_cwnd else 0)
    left = c.congestion_window - c.in_flight
    if c.window_rule == OVERSHOOT:
        return int(c.datagram_size if left > 0 else 0)
    if c.window_rule == WHOLE:
        needed = min(c.packet_overhead + c.frame_overhead + c.waiting, c.datagram_size)
        return int(c.datagram_size if left >= needed else 0)
    if c.window_rule == FULL:
        return int(c.datagram_size if left > c.datagram_size else 0)
    return int(min(left, c.datagram_size))


@kernel()
def send_packet(c: Any, wire: Any, largest: int, probe: bool) -> bool:
    """Send a packet of at most a size [bytes]; return whether there was anything to send. A probe may be empty."""
    packet = packet_record(wire, c.next_packet)
    packet.frames = 0
    used = fill_packet(c, wire, packet, largest - c.packet_overhead)
    if packet.frames == 0 and not probe:
        return False
    c.next_packet += 1
    packet.length = c.packet_overhead + used + (1 if probe else 0)
    packet.sent, packet.state, packet.rank = c.now, IN_FLIGHT, 0
    if c.bbr:
        note_sending(c, wire, packet)
    c.in_flight += packet.length
    c.eliciting += 1
    c.last_sent = c.now
    c.packets_sent += 1
    restart_if_idle(c)
    spend(c, packet.length)
    if c.next_packet - c.first_packet >= wire.packets.shape[0]:
        c.failed = 1
    return True


# The receiver: which messages it can read, and when it acknowledges (RFC 9000, 2.2 and 13.2).


@kernel()
def take_arrival(c: Any, wire: Any) -> None:
    """Take the packet that arrives now: read what is complete, and acknowledge by the rules."""
    number, now = leave_transit(c, wire).segment, c.now
    packet = packet_record(wire, number)
    if c.next_packet - number > wire.packets.shape[0]:
        c.failed = 1
        return
    c.received += 1
    packet.rank = c.received
    if packet.state == LOST:
        c.spurious_losses += 1
    ended = False
    for frame in range(packet.frames):
        ended |= _take_frame(c, wire, packet.start[frame], packet.end[frame], packet.stream[frame], now)
    beside_gap = number != c.largest_received + 1
    if number > c.largest_received:
        c.largest_received, c.largest_received_at = number, now
    c.unacknowledged += 1
    if c.unacknowledged >= c.ack_every or (c.acks_gaps and beside_gap) or (c.acks_stream_ends and ended):
        c.ack_due = 1
    if c.ack_due:
        if not (c.acks_together and next_arrival(c, wire) == now):
            acknowledge(c, wire)
    elif c.receiver_timer == NEVER:
        c.receiver_timer = now + c.ack_delay


@kernel()
def acknowledge(c: Any, wire: Any) -> None:
    """Send an ACK of all packets that have arrived."""
    c.receiver_timer, c.unacknowledged, c.ack_due = NEVER, 0, 0
    c.acks_sent += 1
    if c.ack_loss > 0.0 and uniform(wire.next_double, wire.random_state) < c.ack_loss:
        c.acks_lost += 1
        return
    acknowledgement = wire.acknowledgements[c.next_ack & (wire.acknowledgements.shape[0] - 1)]
    acknowledgement.arrival = c.now + c.rtt - c.one_way_delay
    acknowledgement.rank, acknowledgement.largest = c.received, c.largest_received
    acknowledgement.delay = c.now - c.largest_received_at
    c.next_ack += 1
    if c.next_ack - c.first_ack >= wire.acknowledgements.shape[0]:
        c.failed = 1


@kernel()
def _take_frame(c: Any, wire: Any, start: int, end: int, number: int, now: int) -> bool:
    """Take a range of a stream; return whether a stream has ended with it."""
    if c.delivery == DATAGRAMS:
        message = message_record(wire, number)
        message.missing -= end - start
        if message.missing == 0:
            finish(c, wire, number, now - written_at(c, wire, number))
        return False
    covered = insert_range(c, wire, start, end)
    if c.failed:
        return False
    return _read(c, wire, stream_record(wire, number), wire.range_start[covered], wire.range_end[covered], now)


@kernel()
def _read(c: Any, wire: Any, stream: Any, start: int, end: int, now: int) -> bool:
    """Read what is complete of a stream, within a range that the receiver has; return whether that ends the stream."""
    first = stream.unread
    while stream.unread <= stream.last:
        number = stream.unread
        begin = message_end(c, wire, number - 1) if number else 0
        if begin < start or message_end(c, wire, number) > end:
            return False
        finish(c, wire, number, now - written_at(c, wire, number))
        stream.unread += 1
    # Data that arrive again after the end of their stream are ignored.
    if stream.unread == first or c.delivery == ONE_STREAM:
        return False
    return bool(c.group == 1 or stream.last < c.packets_written - 1)


@kernel()
def finish(c: Any, wire: Any, number: int, delay: int) -> None:
    """Note the delay of a message [us], and go on to the first whose delay is not known."""
    message_record(wire, number).done = 1
    wire.delays[0, number & (wire.delays.shape[1] - 1)] = delay
    wire.completed[c.completions & (wire.completed.shape[0] - 1)] = number
    c.completions += 1
    while c.packets_read < c.packets_written and message_record(wire, c.packets_read).done:
        c.packets_read += 1


@kernel()
def insert_range(c: Any, wire: Any, start: int, end: int) -> int:
    """Add a range to the disjoint, ascending ranges of positions that the receiver has; return its index."""
    after = c.ranges
    while after > 0 and wire.range_start[after - 1] > end:
        after -= 1
    first = after
    while first > 0 and wire.range_end[first - 1] >= start:
        first -= 1
    if first == after:
        if c.ranges == wire.range_start.shape[0]:
            c.failed = 1
            return 0
        for index in range(c.ranges, first, -1):
            wire.range_start[index], wire.range_end[index] = wire.range_start[index - 1], wire.range_end[index - 1]
        wire.range_start[first], wire.range_end[first] = start, end
        c.ranges += 1
        return int(first)
    wire.range_start[first] = min(wire.range_start[first], start)
    wire.range_end[first] = max(wire.range_end[after - 1], end)
    merged = after - first - 1
    if merged:
        for index in range(after, c.ranges):
            wire.range_start[index - merged] = wire.range_start[index]
            wire.range_end[index - merged] = wire.range_end[index]
        c.ranges -= merged
    return int(first)
