"""The two ends of a QUIC connection: packets, streams, acknowledgements, and loss detection (RFC 9002, 5 and 6)."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import uniform
from tcpdelay.sim.congestion import of_quic as control
from tcpdelay.sim.path import leave_transit, next_arrival
from tcpdelay.sim.quic.connection import (
    ACKNOWLEDGED,
    DATAGRAMS,
    GROUPS,
    IN_FLIGHT,
    LOST,
    NEVER_ARRIVES,
    NEVER_READ,
    NONE,
    ONE_STREAM,
    Acknowledgement,
    Connection,
    Packet,
    Stream,
    WireRecord,
    packet_record,
    stream_record,
)
from tcpdelay.sim.quic.pacer import set_rate
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.writes import message_end, message_record, written_at

# The sender's streams: what waits to be sent, new or lost, and which part of it goes into the next packet.
#
# Streams that wait are served in turn, one frame each (RFC 9000, 2.3 leaves the order to the implementation).


@kernel()
def stream_of(c: Connection, wire: WireRecord, message: int) -> int:
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
def put_message(c: Connection, wire: WireRecord) -> None:
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
def activate(c: Connection, wire: WireRecord, number: int, first: bool) -> None:
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
def fill_packet(c: Connection, wire: WireRecord, packet: Packet, room: int) -> int:
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
def _next_size(c: Connection, wire: WireRecord, stream: Stream) -> int:
    """Return the number of bytes of the first range of a stream that waits: a lost one, or all that is new."""
    if stream.lost != NONE:
        piece = wire.pieces[stream.lost]
        return int(piece.end - piece.start)
    size = stream.end - stream.unsent
    return int(min(size, c.datagram_payload) if c.delivery == DATAGRAMS else size)


@kernel()
def _take(c: Connection, wire: WireRecord, packet: Packet, number: int, size: int) -> int:
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
def put_lost(c: Connection, wire: WireRecord, number: int, start: int, end: int) -> None:
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
def send(c: Connection, wire: WireRecord) -> None:
    """Send what waits, as far as the window and the pacer allow."""
    c.application_limited = 0
    while c.waiting > 0:
        room = control.allowed_size(c)
        if room <= 0 or control.must_wait(c):
            return
        if not send_packet(c, wire, room, False):
            return
    c.application_limited = 1


@kernel()
def write(c: Connection, wire: WireRecord) -> None:
    """Put the message that is due on its stream, and send what may leave.

    The end of its own stream is a packet without data if the library has taken the close after all data have left.
    """
    control.on_write(c)
    put_message(c, wire)
    send(c, wire)
    number = c.packets_written - 1
    if c.delivery != GROUPS or c.group != 1 or c.waiting > 0:
        return
    size = message_end(c, wire, number) - (message_end(c, wire, number - 1) if number else 0)
    if size > c.buffered_write and control.allowed_size(c) > 0 and not control.must_wait(c):
        send_packet(c, wire, c.datagram_size, True)


@kernel()
def send_packet(c: Connection, wire: WireRecord, largest: int, probe: bool) -> bool:
    """Send a packet of at most a size [bytes]; return whether there was anything to send. A probe may be empty."""
    packet = packet_record(wire, c.next_packet)
    packet.frames = 0
    used = fill_packet(c, wire, packet, largest - c.packet_overhead)
    if packet.frames == 0 and not probe:
        return False
    c.next_packet += 1
    packet.length = c.packet_overhead + used + (1 if probe else 0)
    packet.sent, packet.state, packet.rank = c.now, IN_FLIGHT, 0
    control.on_send(c, wire, packet)
    c.in_flight += packet.length
    c.eliciting += 1
    c.last_sent = c.now
    c.packets_sent += 1
    if c.next_packet - c.first_packet >= wire.packets.shape[0]:
        c.failed = 1
    return True


# The receiver: which messages it can read, and when it acknowledges (RFC 9000, 2.2 and 13.2).


@kernel()
def take_arrival(c: Connection, wire: WireRecord) -> None:
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
def acknowledge(c: Connection, wire: WireRecord) -> None:
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
def _take_frame(c: Connection, wire: WireRecord, start: int, end: int, number: int, now: int) -> bool:
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
def _read(c: Connection, wire: WireRecord, stream: Stream, start: int, end: int, now: int) -> bool:
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
def finish(c: Connection, wire: WireRecord, number: int, delay: int) -> None:
    """Note the delay of a message [us], and go on to the first whose delay is not known."""
    message_record(wire, number).done = 1
    wire.delays[0, number & (wire.delays.shape[1] - 1)] = delay
    wire.completed[c.completions & (wire.completed.shape[0] - 1)] = number
    c.completions += 1
    while c.packets_read < c.packets_written and message_record(wire, c.packets_read).done:
        c.packets_read += 1


@kernel()
def insert_range(c: Connection, wire: WireRecord, start: int, end: int) -> int:
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


# Loss detection: the RTT, the thresholds of packets and time, and the probe timeout (RFC 9002, 5 and 6).

PACKET_THRESHOLD = 3
"""Packets beyond a lost one that are acknowledged first (RFC 9002, 6.1.1, kPacketThreshold)."""
TIME_THRESHOLD = 9 / 8
"""Time after which a packet is lost, in round-trip times (RFC 9002, 6.1.2, kTimeThreshold)."""
GRANULARITY = 1000
"""Granularity of timers [us] (RFC 9002, 6.1.2, kGranularity)."""
PERSISTENT = 3
"""Duration of persistent congestion, in probe timeouts (RFC 9002, 7.6.1)."""
SKIPPED, COUNTED = -1, -2
"""In place of the number of frames of a packet that is skipped, and of one that the window has grown with."""
MOST_DOUBLINGS = 20
"""Most doublings of the probe timeout: the timer must fit into a whole number."""
LONGEST_TIMEOUT = 60_000_000
"""Longest probe timeout [us] of all implementations; it is quic-go's (sent_packet_handler.go, maxPTODuration)."""


@kernel()
def timer_at(c: Connection) -> int:
    """Return when the timer of loss detection fires [us] (RFC 9002, A.8)."""
    if c.loss_time != NEVER:
        return int(c.loss_time)
    if c.eliciting == 0:
        return NEVER
    period = probe_timeout(c) * (1 << min(c.probe_count, MOST_DOUBLINGS))
    return int(c.last_sent + min(period, LONGEST_TIMEOUT))


@kernel()
def probe_timeout(c: Connection) -> int:
    """Return the probe timeout without back-off [us] (RFC 9002, 6.2.1)."""
    return int(c.smoothed_rtt + max(4 * c.rtt_variation, GRANULARITY) + c.max_ack_delay)


@kernel()
def update_rtt(c: Connection, sample: int, ack_delay: int) -> None:
    """Take a sample of the RTT into the estimate [us] (RFC 9002, 5.3)."""
    c.smallest_rtt = min(c.smallest_rtt, sample)
    delay = min(ack_delay, c.max_ack_delay)
    # aioquic asks for a longer sample than this. A measured one is longer than the smallest by some microseconds.
    adjusted = float(sample - delay if sample >= c.smallest_rtt + delay else sample)
    c.latest_rtt = adjusted if c.adjusts_latest else float(sample)
    centre = float(c.smallest_rtt) if c.variation_from_smallest else c.smoothed_rtt
    c.rtt_variation = 0.75 * c.rtt_variation + 0.25 * abs(centre - adjusted)
    c.smoothed_rtt = 0.875 * c.smoothed_rtt + 0.125 * adjusted


@kernel()
def on_acknowledgement(c: Connection, wire: WireRecord, ack: Acknowledgement) -> None:
    """Process an ACK (RFC 9002, A.7)."""
    newest, in_flight = -1, c.in_flight
    for number in range(c.first_packet, ack.largest + 1):
        packet = packet_record(wire, number)
        if packet.state == IN_FLIGHT and 0 < packet.rank <= ack.rank:
            newest = number
    if newest < 0:
        return
    c.largest_acknowledged = max(c.largest_acknowledged, ack.largest)
    first, lost_before = c.first_packet, c.declared_lost
    control.before_ack(c)
    for number in range(first, newest + 1):
        packet = packet_record(wire, number)
        if packet.state == IN_FLIGHT and 0 < packet.rank <= ack.rank:
            _leave_flight(c, packet, ACKNOWLEDGED)
            control.on_delivery(c, packet)
    if c.grows_first:
        _grow_with(c, wire, first, newest, in_flight)
    if newest == ack.largest:
        sample = c.now - packet_record(wire, newest).sent
        update_rtt(c, sample, ack.delay)
        c.rs_rtt = max(sample - ack.delay, 1)
        set_rate(c)
    # By RFC 9002 the window is reduced before it grows, so that packets of the lost flight do not enlarge it.
    detect_lost(c, wire)
    _grow_with(c, wire, first, newest, in_flight)
    control.after_ack(c, wire, c.declared_lost - lost_before)
    c.last_acknowledged = c.now
    c.probe_count = 0
    _forget(c, wire)


@kernel()
def _grow_with(c: Connection, wire: WireRecord, first: int, newest: int, in_flight: int) -> None:
    """Let the window grow with the packets in a range that have been acknowledged, once with each."""
    for number in range(first, newest + 1):
        packet = packet_record(wire, number)
        if packet.state == ACKNOWLEDGED and packet.frames >= 0:
            control.on_ack(c, packet.sent, packet.length, in_flight)
            packet.frames = COUNTED


@kernel()
def _leave_flight(c: Connection, packet: Packet, state: int) -> None:
    """Take a packet out of the flight."""
    packet.state = state
    c.in_flight -= packet.length
    c.eliciting -= 1


@kernel()
def _forget(c: Connection, wire: WireRecord) -> None:
    """Move on to the first packet that is neither acknowledged nor lost."""
    while c.first_packet < c.next_packet and packet_record(wire, c.first_packet).state != IN_FLIGHT:
        c.first_packet += 1


@kernel()
def detect_lost(c: Connection, wire: WireRecord) -> None:
    """Find the packets that are lost by now, and set the timer for the next (RFC 9002, A.10)."""
    delay = max(int(TIME_THRESHOLD * max(c.latest_rtt, c.smoothed_rtt)), GRANULARITY)
    c.loss_time = NEVER
    latest_lost, run_start, previous, persistent = -1, NEVER, -1, False
    longest = PERSISTENT * probe_timeout(c)
    for number in range(c.first_packet, c.largest_acknowledged + 1):
        packet = packet_record(wire, number)
        if packet.state != IN_FLIGHT:
            continue
        if packet.sent > c.now - delay and c.largest_acknowledged - number < PACKET_THRESHOLD:
            c.loss_time = min(c.loss_time, packet.sent + delay)
            continue
        if number != previous + 1:
            run_start = NEVER
        previous = number
        run_start = min(run_start, packet.sent)
        persistent |= packet.sent - run_start > longest
        declare_lost(c, wire, packet)
        latest_lost = packet.sent
    if latest_lost >= 0:
        control.reduce(c, latest_lost)
        if persistent and c.persistent_congestion:
            control.on_persistent_congestion(c, wire)
        set_rate(c)


@kernel()
def declare_lost(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Take a packet for lost: its streams send its data again, its datagrams are given up.

    A later ACK of it changes nothing: the window stays reduced (RFC 9002, 7.3.2, allows to undo this), as in aioquic
    and in quic-go, which only logs such a loss.
    """
    _leave_flight(c, packet, LOST)
    c.declared_lost += 1
    c.lost += 1
    if packet.rank > 0:
        c.spurious_losses += 1
    if c.delivery == DATAGRAMS:
        _give_up(c, wire, packet)
        return
    for frame in range(packet.frames):
        put_lost(c, wire, packet.stream[frame], packet.start[frame], packet.end[frame])


@kernel()
def drop(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Note that the path drops a packet, before the sender knows, or after it has taken the packet for lost."""
    c.packets_lost += 1
    packet.rank = NEVER_ARRIVES
    if c.delivery == DATAGRAMS and packet.state == LOST:
        _give_up(c, wire, packet)


@kernel()
def _give_up(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Give up the messages of a packet whose datagrams never arrive."""
    if packet.rank != NEVER_ARRIVES:
        return
    for frame in range(packet.frames):
        number = packet.stream[frame]
        if not message_record(wire, number).done:
            finish(c, wire, number, NEVER_READ)


@kernel()
def on_timer(c: Connection, wire: WireRecord) -> None:
    """Process the timer of loss detection (RFC 9002, A.9).

    A probe carries the oldest data in flight, whose packet then counts as lost, but not as a sign of congestion, as
    aioquic and quic-go have it.
    """
    if c.loss_time != NEVER:
        detect_lost(c, wire)
        _forget(c, wire)
        return
    c.probe_count += 1
    c.probe_timeouts += 1
    if c.skips_at_probe:
        packet = packet_record(wire, c.next_packet)
        packet.state, packet.rank, packet.frames = LOST, 0, SKIPPED
        c.next_packet += 1
    for _ in range(c.probes):
        _forget(c, wire)
        if c.probes_with_data and c.first_packet < c.next_packet:
            declare_lost(c, wire, packet_record(wire, c.first_packet))
        send_packet(c, wire, c.datagram_size, True)
    _forget(c, wire)
