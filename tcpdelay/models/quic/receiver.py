"""The receiver: which messages it can read, and when it acknowledges (RFC 9000, 2.2 and 13.2)."""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.quic.records import DATAGRAMS, LOST, ONE_STREAM, packet_record, stream_record
from tcpdelay.models.simulator.path import leave_transit, next_arrival
from tcpdelay.models.simulator.records import NEVER, uniform
from tcpdelay.models.simulator.writes import message_end, message_record, written_at


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
    """Add a range of positions to those that the receiver has; return the index of the range that then holds it.

    The ranges are disjoint, not adjacent, and ascending.
    """
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
