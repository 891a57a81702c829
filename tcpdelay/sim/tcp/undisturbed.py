"""Undisturbed time: nothing is lost, held back or out of order; only writes, arrivals and their ACKs happen.

Each message leaves whole when it is written, and each ACK acknowledges what comes next. These functions do what
`send_new`, `arrive` and `on_acknowledgement` do then, and leave the same state behind, several times as fast: they need
not ask what else could happen.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.path import is_dropped, next_arrival, send, take_arrival
from tcpdelay.sim.records import MASK, NEVER, OPEN, ticks_at, ticks_now, to_ticks
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.acknowledgement import update_estimate
from tcpdelay.sim.tcp.receiver import EVERYTHING, NO_SEGMENT
from tcpdelay.sim.tcp.recovery import adapt_reordering_window, note_delivery
from tcpdelay.sim.tcp.sender import LARGEST_FLIGHT, rearm_retransmission_timer, schedule_probe
from tcpdelay.sim.tcp.window import ACKNOWLEDGED, LOST_ON_PATH, SENT, grow_window, note, note_rtt, validate_window
from tcpdelay.sim.writes import message_end, message_record, write_next, written_at

FEWEST_SEGMENTS = 4
"""Fewest segments before the next loss for which it pays to ask whether the time until then is undisturbed."""
ROUNDING = 16
"""Longest time by which rounding delays an ACK, or shortens the smoothed RTT [us]."""
NOTHING, ACKNOWLEDGEMENT_TAKEN, MESSAGE_SENT = range(3)
"""The last event."""


@kernel()
def is_undisturbed(c: Any, wire: Any) -> bool:
    """Return whether nothing but writes, arrivals and their ACKs can happen before the next loss."""
    if (c.until_loss <= FEWEST_SEGMENTS and not _is_bursty(c)) or c.correlated or c.ack_loss > 0.0:
        return False
    if c.deferred and (c.reordering > 0.0 or c.tabled or not c.in_order):
        return False
    if c.delayed_ack or c.bbr or c.answered or c.send_buffer or not c.tail_loss_probe:
        return False
    if c.ca_state != OPEN or c.sacked_out or c.lost_out or c.retrans_out or c.tlp_high_seq or c.snd_nxt < c.written:
        return False
    if c.quick or c.unreported or c.out_of_order or c.receiver_timer != NEVER or c.packets_out + 1 >= c.snd_cwnd:
        return False
    # The earliest timers, which start anew with each write and ACK: that of the probe, and the timeout.
    probe = to_ticks(c, min(c.srtt >> 2, 2 * c.rtt) + tcp.TIMER_SLACK)
    timeout = min(c.rto, to_ticks(c, c.rtt + c.rto_min))
    return (min(probe, timeout) - 1) * c.tick > c.rtt + c.jitter + ROUNDING and _is_all_in_turn(c, wire)


@kernel()
def _is_all_in_turn(c: Any, wire: Any) -> bool:
    """Return whether ACKs and segments on their way follow one another, and all segments in flight are among them."""
    acknowledged = c.snd_una
    for number in range(c.first_ack, c.next_ack):
        answer = wire.acknowledgements[number & MASK]
        if answer.acknowledged <= acknowledged or answer.duplicate != NO_SEGMENT or answer.segment == EVERYTHING:
            return False
        acknowledged = answer.acknowledged
        if wire.segments[answer.segment & MASK].end > acknowledged:
            return False
    arriving = c.rcv_segment
    for place in range(c.first_transit, c.next_transit):
        segment = wire.transit[place & (wire.transit.shape[0] - 1)]
        if segment.segment != arriving or segment.following != arriving + 1:
            return False
        arriving += 1
    for number in range(c.first_segment, c.next_segment):
        if wire.segments[number & MASK].state:
            return False
    return bool(acknowledged == c.rcv_nxt and arriving == c.next_segment)


@kernel()
def _is_bursty(c: Any) -> bool:
    """Return whether each segment draws whether it is lost; else the number of segments until then is known."""
    return bool(c.bad_time > 0.0 or c.loss_burst > 1.0)


@kernel()
def pass_undisturbed(c: Any, wire: Any, packets: int) -> bool:
    """Process events up to the next loss, or to what is no longer undisturbed; return whether there were any.

    None is processed once `packets` are read.
    """
    any_event, timed, last = False, c.now, NOTHING
    while c.packets_read < packets:
        arrival = next_arrival(c, wire)
        acknowledged = wire.acknowledgements[c.first_ack & MASK].arrival if c.first_ack < c.next_ack else NEVER
        lost = False
        if arrival <= min(acknowledged, c.next_write):
            c.now = arrival
            take_arrival(c, wire)
        elif acknowledged < c.next_write:
            _take_acknowledgement(c, wire, wire.acknowledgements[c.first_ack & MASK])
            timed, last = acknowledged, ACKNOWLEDGEMENT_TAKEN
        elif _may_send(c, wire):
            lost = _send_message(c, wire)
            timed, last = c.now, MESSAGE_SENT
        else:
            break
        any_event = True
        if lost:
            break
    # Each write and ACK starts the sender's timer anew, so that only the last has to.
    now, c.now = c.now, timed
    if last == MESSAGE_SENT:
        schedule_probe(c, wire, False)
    elif last == ACKNOWLEDGEMENT_TAKEN and not schedule_probe(c, wire, True):
        rearm_retransmission_timer(c, wire)
    c.now = now
    return any_event


@kernel()
def _may_send(c: Any, wire: Any) -> bool:
    """Return whether the next message leaves whole, none of it is known to be lost, and its ACK is its own."""
    if c.packets_written + 1 >= c.messages_known:
        return False
    size = message_end(c, wire, c.packets_written) - c.written
    segments = 1 if size <= c.mss else -(-size // c.mss)
    if (c.until_loss <= segments and not _is_bursty(c)) or c.packets_out + segments >= min(c.snd_cwnd, LARGEST_FLIGHT):
        return False
    if c.packets_out == 0 and ticks_at(c, c.next_write) - c.last_send > min(c.rto, c.receiver_rto):
        # The window is validated after idle time.
        return False
    return bool(c.merging_at != c.next_write + c.one_way_delay)


@kernel()
def _send_message(c: Any, wire: Any) -> bool:
    """Write the next message and send its segments; return whether one is lost."""
    c.now = c.next_write
    if c.packets_out == 0 and c.cubic and c.cubic_epoch:
        now = ticks_now(c)
        c.cubic_epoch = min(c.cubic_epoch + max(now - c.last_send, 0), now)
    number, before, lost = c.packets_written, c.next_segment, False
    bursty = _is_bursty(c)
    waited = c.now - written_at(c, wire, number)
    write_next(c, wire)
    c.last_send = ticks_now(c)
    wire.delays[1, number % wire.delays.shape[1]] = waited
    c.packets_sent += 1
    while c.snd_nxt < c.written:
        segment = wire.segments[c.next_segment & MASK]
        segment.start = c.snd_nxt
        segment.end = c.snd_nxt = min(c.snd_nxt + c.mss, c.written)
        segment.sent = segment.gone = c.now
        segment.delivered, segment.state, segment.received = c.delivered, 0, 0
        c.next_segment += 1
        c.packets_out += 1
        note(c, wire, SENT, segment.start, segment.end)
        if bursty and is_dropped(c, wire, segment.end - segment.start):
            c.segments_lost += 1
            note(c, wire, LOST_ON_PATH, segment.start, segment.end)
            lost = True
        elif bursty or c.deferred:
            segment.gone = send(c, wire, c.next_segment - 1)
        else:
            c.arrivals += 1
            segment.gone, segment.received = c.now + c.one_way_delay, c.arrivals
    segments = c.next_segment - before
    c.segments_sent += segments
    c.skipped += segments
    if not bursty:
        c.until_loss -= segments
        if not c.deferred:
            _read_message(c, wire, number, waited)
    validate_window(c, False)
    return lost


@kernel()
def _read_message(c: Any, wire: Any, number: int, waited: int) -> None:
    """Read the message that has been sent now, all of which arrives at one instant, and send its ACK."""
    place = number % wire.delays.shape[1]
    wire.delays[0, place] = waited + c.one_way_delay
    if c.scheduled:
        wire.delays[2, place] = message_record(wire, number).held
    c.packets_read += 1
    c.rcv_segment = c.next_segment
    c.rcv_nxt = c.rcv_wup = c.snd_nxt
    c.ts_recent = c.now
    c.merging_at = c.now + c.one_way_delay
    answer = wire.acknowledgements[c.next_ack & MASK]
    answer.arrival = c.now + c.rtt
    if not c.exact_ties:
        answer.arrival = max(answer.arrival, c.last_ack_arrival + 1)
        c.last_ack_arrival = answer.arrival
    answer.acknowledged, answer.arrivals, answer.echo = c.rcv_nxt, c.arrivals, c.ts_recent
    answer.segment, answer.duplicate = c.next_segment - 1, NO_SEGMENT
    c.next_ack += 1
    c.acks_sent += 1


@kernel()
def _take_acknowledgement(c: Any, wire: Any, answer: Any) -> None:
    """Process the next ACK, which acknowledges the oldest segments, each sent once."""
    c.now = answer.arrival
    c.first_ack += 1
    note(c, wire, ACKNOWLEDGED, c.snd_una, answer.acknowledged)
    c.snd_una = answer.acknowledged
    c.retransmits = 0
    first, sent = c.first_segment, wire.segments[c.first_segment & MASK].sent
    while c.first_segment < c.next_segment and wire.segments[c.first_segment & MASK].end <= c.snd_una:
        c.first_segment += 1
    removed, latest = c.first_segment - first, wire.segments[(c.first_segment - 1) & MASK]
    c.packets_out -= removed
    c.delivered += removed
    note_delivery(c, latest)
    c.min_rtt = min(c.min_rtt, c.now - latest.sent)
    update_estimate(c, c.now - sent)
    note_rtt(c, c.now - latest.sent)
    if c.reord_seen:
        adapt_reordering_window(c, latest.delivered)
    grow_window(c, removed)
    c.snd_cwnd_stamp = ticks_now(c)
