"""The receiver: it puts segments in order, reads packets, and sends ACKs (net/ipv4/tcp_input.c)."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import uniform
from tcpdelay.sim.path import depart, leave_transit
from tcpdelay.sim.records import COLLAPSED, MASK, Acknowledgement, Connection, WireRecord, fires_at, ticks_at
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.writes import awaits_more, ends_message, message_end, message_record, write_after_read, written_at

EVERYTHING = -1
"""Value in place of a segment's number: the ACK reports all segments that have arrived."""
NO_SEGMENT = -1
"""Value in place of a segment's number: the ACK reports no duplicate."""
SHORTEST_FULL_SEGMENT, TCP_HEADER, HEADER_WITH_TIMESTAMP = 88, 20, 32
"""Smallest segment size (TCP_MIN_MSS), and a TCP header without and with timestamps [bytes] (tcp_measure_rcv_mss)."""


@kernel()
def arrive(c: Connection, wire: WireRecord, number: int, following: int, sent: int, arrival: int) -> None:
    """Process a segment that arrives: put it in order, read the packets that are complete, and send an ACK if due."""
    if c.ts_recent // tcp.MILLISECOND - sent // tcp.MILLISECOND > tcp.PAWS_WINDOW:
        _discard(c, wire, number, arrival)
        return
    c.arrivals += 1
    holes = c.out_of_order > 0
    fresh, duplicate = False, NO_SEGMENT
    for other in range(max(number, c.rcv_segment), following):
        segment = wire.segments[other & MASK]
        if segment.received:
            duplicate = other
        else:
            fresh = True
            segment.received = c.arrivals
            c.out_of_order += 1
    if number < c.rcv_segment:
        # The part that was in order already; a retransmission with several segments may have new data beyond it.
        duplicate = min(following, c.rcv_segment) - 1
    if not fresh:
        # The sender has sent an old segment again: it lacks ACKs.
        begin_quick_acks(c, tcp.QUICK_ACKS)
    if wire.segments[number & MASK].start <= c.rcv_wup <= _start(c, wire, following) and sent >= c.ts_recent:
        # `tcp_replace_ts_recent`: so does the needless copy of the last segment that was acknowledged (`tcp_sequence`).
        c.ts_recent = sent
    in_order = fresh and number <= c.rcv_segment
    if in_order:
        while c.rcv_segment < c.next_segment and wire.segments[c.rcv_segment & MASK].received:
            c.rcv_segment += 1
            c.out_of_order -= 1
        c.rcv_nxt = _start(c, wire, c.rcv_segment)
        while c.packets_read < c.packets_written and message_end(c, wire, c.packets_read) <= c.rcv_nxt:
            delay = arrival - written_at(c, wire, c.packets_read)
            wire.delays[0, c.packets_read % wire.delays.shape[1]] = delay
            if c.scheduled:
                wire.delays[2, c.packets_read % wire.delays.shape[1]] = message_record(wire, c.packets_read).held
            c.packets_read += 1
            if c.answered:
                write_after_read(c, wire, arrival)
    if c.answered and in_order and not holes and c.rcv_nxt - c.rcv_wup <= c.mss and awaits_more(c, wire):
        # The ACK waits for the answer (`inet_csk_in_pingpong_mode`), but not for long.
        c.receiver_timer = c.delayed_ack_at = min(c.delayed_ack_at, arrival + tcp.SECOND // tcp.DELAYED_ACKS_MIN)
        return
    if c.delayed_ack:
        if in_order:
            _note_data(c, wire, number, following, arrival)
        if not _is_due(c, in_order, holes, arrival):
            return
    elif fresh and not in_order and not c.quick and not _is_sack_due(c, arrival):
        return
    if c.merging_at == arrival:
        _add_to_acknowledgement(c, wire, number, duplicate)
    else:
        alone = c.delayed_ack or c.quick > 0
        acknowledge(c, wire, number, duplicate, arrival)
        if in_order and not holes and not alone:
            c.merging_at = arrival


@kernel()
def _discard(c: Connection, wire: WireRecord, number: int, arrival: int) -> None:
    """Discard a segment with an old timestamp (`tcp_paws_discard`), and answer at once (`tcp_send_dupack`).

    After a retransmission with a newer timestamp has filled a hole, originals that are still in the network are
    discarded, and must be sent again. The ACK of data that is in order already has a D-SACK.
    """
    c.paws_discards += 1
    duplicate = NO_SEGMENT
    if wire.segments[number & MASK].start < c.rcv_nxt:
        begin_quick_acks(c, tcp.QUICK_ACKS)
        duplicate = number
    acknowledge(c, wire, EVERYTHING, duplicate, arrival)


@kernel()
def expect_after_idle(c: Connection) -> None:
    """Let the receiver acknowledge the segments of a write after idle time one by one.

    The idle time is longer than the receiver's timeout (`tcp_event_data_recv`, `tcp_incr_quickack`). With delayed ACKs
    the receiver measures this time itself.
    """
    idle = ticks_at(c, c.now) - c.last_send
    if not c.delayed_ack and c.packets_out == 0 and c.last_send and idle > c.receiver_rto:
        c.quick = tcp.QUICK_ACKS


@kernel()
def begin_quick_acks(c: Connection, count: int) -> None:
    """Delay none of the next `count` ACKs (`tcp_enter_quickack_mode`)."""
    c.quick = max(c.quick, count)
    c.ato = _shortest_delay(c)


@kernel()
def _start(c: Connection, wire: WireRecord, number: int) -> int:
    """Return the position in the stream at which a segment begins, sent already or next to be sent."""
    return int(wire.segments[number & MASK].start if number < c.next_segment else c.snd_nxt)


@kernel()
def acknowledge(c: Connection, wire: WireRecord, number: int, duplicate: int, sending: int) -> None:
    """Send an ACK. It may be lost; the next ACK then reports everything."""
    if c.compressed_at != NEVER:
        # The ACK reports the segments whose SACK has been waiting too.
        c.unreported = 1
    c.rcv_wup = c.rcv_nxt
    c.receiver_timer = c.delayed_ack_at = c.compressed_at = c.read_at = NEVER
    c.pushed = c.ack_now = 0
    if c.quick > 0:
        c.quick -= 1
        if c.quick == 0:
            c.ato = _shortest_delay(c)
    c.merging_at = NEVER
    c.acks_sent += 1
    if c.ack_loss > 0.0 and uniform(wire.next_double, wire.random_state) < c.ack_loss:
        c.acks_lost += 1
        c.unreported = 1
        return
    answer = wire.acknowledgements[c.next_ack & MASK]
    answer.arrival = sending + c.rtt - c.one_way_delay
    if not c.exact_ties:
        answer.arrival = max(answer.arrival, c.last_ack_arrival + 1)
        c.last_ack_arrival = answer.arrival
    answer.segment = EVERYTHING if c.unreported else number
    _report(c, answer, duplicate)
    c.unreported = 0
    c.next_ack += 1


@kernel()
def _add_to_acknowledgement(c: Connection, wire: WireRecord, number: int, duplicate: int) -> None:
    """Let the last ACK report another segment of its instant: the application acknowledges what it reads at once.

    It reads after all segments of an instant have arrived, and sets TCP_QUICKACK (`tcp_cleanup_rbuf`). A segment that
    is out of order or a duplicate is acknowledged before, together with all earlier segments.
    """
    c.rcv_wup = c.rcv_nxt
    if number >= c.rcv_segment or duplicate != NO_SEGMENT:
        c.merging_at = NEVER
    if c.unreported:
        # The ACK is lost.
        return
    answer = wire.acknowledgements[(c.next_ack - 1) & MASK]
    if answer.segment != EVERYTHING:
        answer.segment = number
    _report(c, answer, duplicate)


@kernel()
def _report(c: Connection, answer: Acknowledgement, duplicate: int) -> None:
    """Write what has arrived into an ACK."""
    answer.acknowledged = c.rcv_nxt
    answer.arrivals = c.arrivals
    answer.duplicate = duplicate
    answer.echo = c.ts_recent


@kernel()
def on_receiver_timer(c: Connection, wire: WireRecord) -> None:
    """Send the ACK that has been delayed until now (`tcp_delack_timer_handler`)."""
    sending = c.receiver_timer
    if c.delayed_ack_at == sending:
        c.ato = min(2 * c.ato, c.receiver_rto)
    acknowledge(c, wire, EVERYTHING, NO_SEGMENT, sending)


@kernel()
def _shortest_delay(c: Connection) -> int:
    """Return the shortest delay of an ACK [ticks] (TCP_DELACK_MIN)."""
    return int(tcp.SECOND // c.tick // tcp.DELAYED_ACKS_MIN)


@kernel()
def _note_data(c: Connection, wire: WireRecord, number: int, following: int, arrival: int) -> None:
    """Record the size of a segment in order, whether it ends a write, and the gap before it (`tcp_event_data_recv`)."""
    pushes = False
    for other in range(number, following):
        pushes = pushes or ends_message(c, wire, _start(c, wire, other + 1))
    size = _start(c, wire, following) - wire.segments[number & MASK].start
    _measure_receive_mss(c, size, pushes)
    now, shortest = ticks_at(c, arrival), _shortest_delay(c)
    gap = now - c.lrcvtime
    c.lrcvtime = now
    if c.ato == 0:
        c.quick = tcp.QUICK_ACKS
        c.ato = shortest
    elif gap <= shortest // 2:
        c.ato = (c.ato >> 1) + shortest // 2
    elif gap < c.ato:
        c.ato = min((c.ato >> 1) + gap, c.receiver_rto)
    elif gap > c.receiver_rto:
        c.quick = tcp.QUICK_ACKS
    if c.rcv_room > 0 and size >= c.rcv_mss:
        # A full segment lets the receive window grow, which the sender learns at once (`tcp_grow_window`).
        c.rcv_room -= 2 * c.mss
        c.quick |= 1


@kernel()
def _measure_receive_mss(c: Connection, size: int, pushes: bool) -> None:
    """Estimate the size of full segments, and record whether a segment counts as pushed (`tcp_measure_rcv_mss`).

    A segment that is smaller than a full segment, or ends a write, counts as pushed: it is acknowledged once it is
    read. Therefore the ACKs of small packets are hardly ever delayed.
    """
    last, c.last_seg_size = c.last_seg_size, 0
    if size >= c.rcv_mss:
        c.rcv_mss = min(size, c.mss)
        if pushes:
            c.pushed = 1
        return
    length = size + HEADER_WITH_TIMESTAMP
    if length >= tcp.INITIAL_RECEIVE_MSS + TCP_HEADER or (length >= SHORTEST_FULL_SEGMENT + TCP_HEADER and not pushes):
        c.last_seg_size = size
        if size == last:
            c.rcv_mss = size
            return
    c.pushed = 1


@kernel()
def _is_due(c: Connection, in_order: bool, holes: bool, arrival: int) -> bool:
    """Return whether a segment is acknowledged at once; if not, schedule its ACK (`__tcp_ack_snd_check`)."""
    filled = in_order and holes and c.out_of_order == 0
    if filled or c.quick > 0 or c.ack_now:
        return True
    if c.out_of_order:
        return _is_sack_due(c, arrival)
    if c.pushed or c.rcv_nxt - c.rcv_wup > c.rcv_mss:
        # The application empties the buffer after all segments of this instant have arrived (`tcp_cleanup_rbuf`).
        # Until then not even two full segments are acknowledged, because unread data would reduce the receive window.
        c.receiver_timer = c.read_at = arrival
        return False
    return _delay(c, arrival)


@kernel()
def _is_sack_due(c: Connection, arrival: int) -> bool:
    """Return whether a SACK is sent at once; otherwise it is compressed with the SACKs of the next millisecond."""
    if c.compressed_rcv_nxt != c.rcv_nxt:
        c.compressed_rcv_nxt = c.rcv_nxt
        c.dup_ack_counter = 0
    if c.dup_ack_counter < tcp.UNCOMPRESSED_SACKS:
        c.dup_ack_counter += 1
        return True
    if c.compressed_at == NEVER:
        c.compressed_at = arrival + c.compression_delay
        _set_timer(c)
    return False


@kernel()
def _set_timer(c: Connection) -> None:
    """Let the receiver's timer fire at the earliest of its three deadlines."""
    c.receiver_timer = min(c.read_at, min(c.compressed_at, c.delayed_ack_at))


@kernel()
def _delay(c: Connection, arrival: int) -> bool:
    """Delay the ACK; return whether to send it at once, as a delayed ACK is about to leave (`tcp_send_delayed_ack`)."""
    now, shortest = ticks_at(c, arrival), _shortest_delay(c)
    delay = c.ato
    if delay > shortest:
        longest = tcp.SECOND // c.tick // tcp.DELAYED_ACKS_MAX
        longest = min(longest, max(c.rtt // c.tick, shortest))
        delay = min(delay, longest)
    delay = min(delay, c.delack_max)
    timeout = now + delay
    if c.delayed_ack_at != NEVER:
        if c.delayed_ack_timeout <= now + (delay >> 2):
            return True
        timeout = min(timeout, c.delayed_ack_timeout)
    c.delayed_ack_timeout = timeout
    c.delayed_ack_at = fires_at(c, now, timeout - now)
    _set_timer(c)
    return False


@kernel()
def beyond(c: Connection, wire: WireRecord, number: int) -> int:
    """Return the number after the last segment that a transmission carries: it includes collapsed segments."""
    following = number + 1
    while following < c.next_segment and wire.segments[following & MASK].state & COLLAPSED:
        following += 1
    return int(following)


@kernel()
def send(c: Connection, wire: WireRecord, number: int) -> int:
    """Deliver a segment that is sent now and not lost; return when it arrives [us].

    The receiver processes it at once, unless arrivals are `deferred`: then the event loop delivers it later.
    """
    following = beyond(c, wire, number)
    if c.deferred:
        return depart(c, wire, number, following)
    arrival = c.now + c.one_way_delay
    arrive(c, wire, number, following, c.now, arrival)
    return int(arrival)


@kernel()
def take_arrival(c: Connection, wire: WireRecord) -> None:
    """Deliver the next segment in transit."""
    segment = leave_transit(c, wire)
    arrive(c, wire, segment.segment, segment.following, segment.sent, segment.arrival)
