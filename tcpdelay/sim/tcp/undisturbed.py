"""Undisturbed time: nothing is lost, held back or out of order, so that only writes and their ACKs happen.

Each message leaves whole when it is written, and each ACK acknowledges the next message. These functions do what
`send_new`, `arrive` and `on_acknowledgement` do then, and leave the same state behind, several times as fast: they need
not ask what else could happen.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.records import MASK, NEVER, OPEN, ticks_at, ticks_now, to_ticks
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.acknowledgement import update_estimate
from tcpdelay.sim.tcp.receiver import EVERYTHING, NO_SEGMENT
from tcpdelay.sim.tcp.recovery import adapt_reordering_window, note_delivery
from tcpdelay.sim.tcp.sender import LARGEST_FLIGHT, rearm_retransmission_timer, schedule_probe
from tcpdelay.sim.tcp.window import ACKNOWLEDGED, SENT, grow_window, note, note_rtt, validate_window
from tcpdelay.sim.writes import message_end, message_record, write_next, written_at

FEWEST_SEGMENTS = 4
"""Fewest segments before the next loss for which it pays to ask whether the time until then is undisturbed."""
ROUNDING = 16
"""Longest time by which rounding delays an ACK, or shortens the smoothed RTT [us]."""
NOTHING, ACKNOWLEDGEMENT_TAKEN, MESSAGE_SENT = range(3)
"""The last event."""


@kernel()
def is_undisturbed(c: Any, wire: Any) -> bool:
    """Return whether nothing but writes and their ACKs can happen before the next loss."""
    if c.until_loss <= FEWEST_SEGMENTS or c.loss_burst > 1.0 or c.bad_time > 0.0 or c.correlated or c.ack_loss > 0.0:
        return False
    if c.deferred or c.delayed_ack or c.bbr or c.answered or c.send_buffer or not c.tail_loss_probe:
        return False
    if c.ca_state != OPEN or c.sacked_out or c.lost_out or c.retrans_out or c.tlp_high_seq or c.snd_nxt < c.written:
        return False
    if c.quick or c.unreported or c.out_of_order or c.receiver_timer != NEVER or c.rcv_segment < c.next_segment:
        return False
    if c.packets_out + 1 >= c.snd_cwnd:
        return False
    # The earliest timers, which start anew with each write and ACK: that of the probe, and the timeout.
    probe = to_ticks(c, min(c.srtt >> 2, 2 * c.rtt) + tcp.TIMER_SLACK)
    timeout = min(c.rto, to_ticks(c, c.rtt + c.rto_min))
    return (min(probe, timeout) - 1) * c.tick > c.rtt + ROUNDING and _are_acknowledged_in_turn(c, wire)


@kernel()
def _are_acknowledged_in_turn(c: Any, wire: Any) -> bool:
    """Return whether the ACKs on their way acknowledge all segments in flight, and report nothing beyond."""
    acknowledged = c.snd_una
    for number in range(c.first_ack, c.next_ack):
        answer = wire.acknowledgements[number & MASK]
        if answer.acknowledged <= acknowledged or answer.duplicate != NO_SEGMENT or answer.segment == EVERYTHING:
            return False
        acknowledged = answer.acknowledged
        if wire.segments[answer.segment & MASK].end > acknowledged:
            return False
    for number in range(c.first_segment, c.next_segment):
        if wire.segments[number & MASK].state:
            return False
    return bool(acknowledged == c.snd_nxt)


@kernel()
def pass_undisturbed(c: Any, wire: Any, packets: int) -> bool:
    """Process writes and ACKs up to the next loss, or to what is no longer undisturbed; return whether there were any.

    No message is written once `packets` are read.
    """
    last = NOTHING
    while c.packets_read < packets and c.packets_written + 1 < c.messages_known:
        while c.first_ack < c.next_ack and wire.acknowledgements[c.first_ack & MASK].arrival < c.next_write:
            _take_acknowledgement(c, wire, wire.acknowledgements[c.first_ack & MASK])
            last = ACKNOWLEDGEMENT_TAKEN
        segments = -(-(message_end(c, wire, c.packets_written) - c.written) // c.mss)
        in_flight = c.packets_out + segments
        if c.until_loss <= segments or in_flight >= min(c.snd_cwnd, LARGEST_FLIGHT):
            break
        if c.packets_out == 0 and ticks_at(c, c.next_write) - c.last_send > min(c.rto, c.receiver_rto):
            # The window is validated after idle time.
            break
        if c.merging_at == c.next_write + c.one_way_delay:
            # The ACK of the message before acknowledges this one too.
            break
        _send_message(c, wire, segments)
        last = MESSAGE_SENT
    if last == MESSAGE_SENT:
        schedule_probe(c, wire, False)
    elif last == ACKNOWLEDGEMENT_TAKEN and not schedule_probe(c, wire, True):
        rearm_retransmission_timer(c, wire)
    return bool(last != NOTHING)


@kernel()
def _send_message(c: Any, wire: Any, segments: int) -> None:
    """Write the next message, send it in a number of segments, read it, and send its ACK."""
    c.now = c.next_write
    if c.packets_out == 0 and c.cubic and c.cubic_epoch:
        now = ticks_now(c)
        c.cubic_epoch = min(c.cubic_epoch + max(now - c.last_send, 0), now)
    number = c.packets_written
    due, arrival = written_at(c, wire, number), c.now + c.one_way_delay
    write_next(c, wire)
    c.last_send = ticks_now(c)
    while c.snd_nxt < c.written:
        segment = wire.segments[c.next_segment & MASK]
        segment.start = c.snd_nxt
        segment.end = c.snd_nxt = min(c.snd_nxt + c.mss, c.written)
        segment.sent, segment.gone = c.now, arrival
        segment.delivered, segment.state = c.delivered, 0
        c.arrivals += 1
        segment.received = c.arrivals
        c.next_segment += 1
        c.packets_out += 1
        note(c, wire, SENT, segment.start, segment.end)
    c.until_loss -= segments
    c.segments_sent += segments
    c.skipped += segments
    place = number % wire.delays.shape[1]
    wire.delays[0, place] = arrival - due
    wire.delays[1, place] = c.now - due
    if c.scheduled:
        wire.delays[2, place] = message_record(wire, number).held
    c.packets_sent += 1
    c.packets_read += 1
    c.rcv_segment = c.next_segment
    c.rcv_nxt = c.rcv_wup = c.snd_nxt
    c.ts_recent = c.now
    c.merging_at = arrival
    answer = wire.acknowledgements[c.next_ack & MASK]
    answer.arrival = c.now + c.rtt
    if not c.exact_ties:
        answer.arrival = max(answer.arrival, c.last_ack_arrival + 1)
        c.last_ack_arrival = answer.arrival
    answer.acknowledged, answer.arrivals, answer.echo = c.rcv_nxt, c.arrivals, c.ts_recent
    answer.segment, answer.duplicate = c.next_segment - 1, NO_SEGMENT
    c.next_ack += 1
    c.acks_sent += 1
    validate_window(c, False)


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
