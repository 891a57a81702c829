"""The sender: transmissions, retransmissions, and the timer of the connection."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.path import is_dropped
from tcpdelay.sim.records import (
    COLLAPSED,
    CWR,
    DISORDER,
    EVER_RETRANSMITTED,
    FOUND_LOST,
    LOSS,
    MARKED_LOST,
    MASK,
    NO_TIMER,
    OPEN,
    PROBE_TIMER,
    RECOVERY,
    REORDERING_TIMER,
    RETRANSMISSION_TIMER,
    RETRANSMITTED,
    RING,
    SACKED,
    Connection,
    Segment,
    WireRecord,
    clear_timer,
    in_flight,
    in_reduction,
    set_timer,
    ticks_now,
    to_ticks,
)
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.tcp.receiver import send
from tcpdelay.sim.tcp.recovery import (
    begin_episode,
    detect_losses,
    enter_recovery,
    mark_lost,
    reduce_window,
    save_threshold,
)
from tcpdelay.sim.tcp.window import LOST_ON_PATH, PROBE, REORDERING, SENT, SENT_AGAIN, TIMEOUT, note, validate_window
from tcpdelay.sim.writes import message_end, written_at

LARGEST_FLIGHT = RING // 2
"""Largest number of outstanding segments; it takes the place of the receive window."""


@kernel()
def _transmit(c: Connection, wire: WireRecord, number: int) -> None:
    """Transmit a segment."""
    segment = wire.segments[number & MASK]
    segment.sent = segment.gone = c.now
    segment.state &= ~FOUND_LOST
    c.segments_sent += 1
    c.last_send = ticks_now(c)
    segment.delivered = c.delivered
    note(c, wire, SENT_AGAIN if segment.state & EVER_RETRANSMITTED else SENT, segment.start, segment.end)
    if is_dropped(c, wire, segment.end - segment.start):
        c.segments_lost += 1
        note(c, wire, LOST_ON_PATH, segment.start, segment.end)
    else:
        segment.gone = send(c, wire, number)


@kernel()
def send_new(c: Connection, wire: WireRecord, probe: bool) -> int:
    """Send the new data that the window allows, or one segment as a `probe`; return their number (`tcp_write_xmit`)."""
    sent = 0
    while c.snd_nxt < c.written and (probe or in_flight(c) < c.snd_cwnd) and c.packets_out < LARGEST_FLIGHT:
        if control.is_paced(c):
            break
        segment = wire.segments[c.next_segment & MASK]
        segment.start = c.snd_nxt
        segment.end = min(c.snd_nxt + c.mss, c.written)
        if not c.coalescing:
            segment.end = min(segment.end, message_end(c, wire, c.packets_sent))
        segment.state = 0
        segment.received = 0
        if in_flight(c) == 0:
            control.on_idle(c, wire)
        control.on_send(c, wire, c.next_segment)
        outstanding = c.packets_out
        c.snd_nxt = segment.end
        c.next_segment += 1
        c.packets_out += 1
        while c.packets_sent < c.packets_written and message_end(c, wire, c.packets_sent) <= c.snd_nxt:
            waited = c.now - written_at(c, wire, c.packets_sent)
            wire.delays[1, c.packets_sent % wire.delays.shape[1]] = waited
            c.packets_sent += 1
        _transmit(c, wire, c.next_segment - 1)
        if outstanding == 0 or c.timer_kind == PROBE_TIMER:
            rearm_retransmission_timer(c, wire)
        sent += 1
        if probe:
            break
    # Without data to send the kernel does not come here (`tcp_push_pending_frames`).
    limited = in_flight(c) >= c.snd_cwnd
    if sent or (limited and c.snd_nxt < c.written):
        validate_window(c, limited)
    if sent:
        if in_reduction(c):
            c.prr_out += sent
        if not probe:
            schedule_probe(c, wire, False)
    return sent


@kernel()
def _is_in_host_queue(c: Connection, segment: Segment) -> bool:
    """Return whether the last copy of a segment is still in the sender's host (`skb_still_in_host_queue`)."""
    return bool(min(segment.gone, segment.sent + c.host_delay) > c.now)


@kernel()
def _collapse(c: Connection, wire: WireRecord, number: int) -> None:
    """Collapse the small segments that follow a segment into its retransmission (`tcp_retrans_try_collapse`).

    The retransmission becomes a full segment at most. A segment that is SACKed, or still has a copy in the host, is not
    collapsed (`tcp_can_collapse`).
    """
    if not c.collapsing:
        return
    head = wire.segments[number & MASK]
    for following in range(number + 1, c.next_segment):
        segment = wire.segments[following & MASK]
        if segment.state & COLLAPSED:
            continue
        if segment.state & SACKED or _is_in_host_queue(c, segment) or segment.end - head.start > c.mss:
            break
        if segment.state & MARKED_LOST:
            c.lost_out -= 1
        if segment.state & RETRANSMITTED:
            c.retrans_out -= 1
        c.packets_out -= 1
        head.state |= segment.state & EVER_RETRANSMITTED
        head.end = segment.end
        segment.state = COLLAPSED


@kernel()
def _send_again(c: Connection, wire: WireRecord, number: int) -> bool:
    """Send a segment again unless it is still in the host; return whether it was sent (`__tcp_retransmit_skb`)."""
    segment = wire.segments[number & MASK]
    if _is_in_host_queue(c, segment):
        return False
    _collapse(c, wire, number)
    segment.state |= EVER_RETRANSMITTED
    c.segments_retransmitted += 1
    # In the kernel CUBIC learns of idle time here too, which matters only after rare timeouts.
    if in_flight(c) == 0 and control.sets_window(c):
        control.on_idle(c, wire)
    control.on_send(c, wire, number)
    _transmit(c, wire, number)
    return True


@kernel()
def _retransmit(c: Connection, wire: WireRecord, number: int) -> bool:
    """Retransmit a lost segment; return whether it was sent (`tcp_retransmit_skb`)."""
    sent = _send_again(c, wire, number)
    if sent:
        wire.segments[number & MASK].state |= RETRANSMITTED
        c.retrans_out += 1
    if c.retrans_stamp == 0:
        c.retrans_stamp = wire.segments[number & MASK].sent
    c.undo_retrans = max(c.undo_retrans, 0) + 1
    return sent


@kernel()
def retransmit_lost(c: Connection, wire: WireRecord) -> None:
    """Retransmit the segments marked as lost, as far as the window allows (`tcp_xmit_retransmit_queue`)."""
    head_sent = False
    for number in range(c.first_segment, c.next_segment):
        if in_flight(c) >= c.snd_cwnd or c.retrans_out >= c.lost_out or control.is_paced(c):
            break
        flags = wire.segments[number & MASK].state
        if not flags & MARKED_LOST or flags & (SACKED | RETRANSMITTED | COLLAPSED):
            continue
        if not _retransmit(c, wire, number):
            break
        if in_reduction(c):
            c.prr_out += 1
        if number == c.first_segment and c.timer_kind != REORDERING_TIMER:
            head_sent = True
    if head_sent:
        set_timer(c, RETRANSMISSION_TIMER, c.rto)


@kernel()
def _until_timeout(c: Connection, wire: WireRecord) -> int:
    """Return the time [us] until the retransmission timeout of the oldest segment (`tcp_rto_delta_us`)."""
    return int(wire.segments[c.first_segment & MASK].sent + c.rto * c.tick - c.now)


@kernel()
def rearm_retransmission_timer(c: Connection, wire: WireRecord) -> None:
    """Restart the retransmission timer, or stop it if no segment is outstanding (`tcp_rearm_rto`)."""
    if c.packets_out == 0:
        clear_timer(c)
        return
    ticks = c.rto
    if c.timer_kind == REORDERING_TIMER or c.timer_kind == PROBE_TIMER:
        ticks = to_ticks(c, max(_until_timeout(c, wire), 1))
    set_timer(c, RETRANSMISSION_TIMER, ticks)


@kernel()
def schedule_probe(c: Connection, wire: WireRecord, advancing: bool) -> bool:
    """Set the timer of a tail loss probe; return whether it is set (`tcp_schedule_loss_probe`, RFC 8985)."""
    if not c.tail_loss_probe or c.packets_out == 0 or (c.ca_state != OPEN and c.ca_state != CWR):
        return False
    ticks = to_ticks(c, tcp.SECOND)
    if c.srtt:
        # `srtt` is eight times the smoothed RTT, so a quarter of it is two round-trip times (tcp.PROBE_ROUND_TRIPS).
        ticks = to_ticks(c, (c.srtt >> 2) + (c.rto_min if c.packets_out == 1 else tcp.TIMER_SLACK))
    until_timeout = c.rto * c.tick if advancing else _until_timeout(c, wire)
    if until_timeout > 0:
        ticks = min(ticks, to_ticks(c, until_timeout))
    set_timer(c, PROBE_TIMER, ticks)
    return True


@kernel()
def on_pacing_timer(c: Connection, wire: WireRecord) -> None:
    """Send what pacing has held back (`tcp_tsq_write`)."""
    c.pacing_at = NEVER
    retransmit_lost(c, wire)
    send_new(c, wire, False)


@kernel()
def on_timer(c: Connection, wire: WireRecord) -> None:
    """Process the expiry of the sender's timer."""
    c.timer_at = NEVER
    if c.timer_kind == REORDERING_TIMER:
        c.reordering_timeouts += 1
        note(c, wire, REORDERING, c.snd_una, c.snd_nxt)
        before = in_flight(c)
        detect_losses(c, wire)
        if in_flight(c) != before:
            if c.ca_state != RECOVERY:
                enter_recovery(c, wire)
                if not control.sets_window(c):
                    reduce_window(c, 1, 0, False)
            retransmit_lost(c, wire)
        if c.timer_kind != RETRANSMISSION_TIMER:
            rearm_retransmission_timer(c, wire)
    elif c.timer_kind == PROBE_TIMER:
        if c.tlp_high_seq == 0:
            _probe(c, wire)
        rearm_retransmission_timer(c, wire)
    elif c.timer_kind == RETRANSMISSION_TIMER and c.packets_out:
        note(c, wire, TIMEOUT, c.snd_una, c.snd_nxt)
        _time_out(c, wire)
        _retransmit(c, wire, c.first_segment)
        c.retransmits += 1
        c.rto = min(2 * c.rto, c.rto_max)
        set_timer(c, RETRANSMISSION_TIMER, c.rto)


@kernel()
def _probe(c: Connection, wire: WireRecord) -> None:
    """Send a new segment beyond the window, or the last segment again (`tcp_send_loss_probe`).

    If the last segment is still in the host, no probe is sent, and the caller starts the retransmission timer.
    """
    c.tlp_retrans = 0
    note(c, wire, PROBE, c.snd_una, c.snd_nxt)
    if c.snd_nxt < c.written:
        if not send_new(c, wire, True):
            return
    else:
        last = c.next_segment - 1
        while wire.segments[last & MASK].state & COLLAPSED:
            last -= 1
        if not _send_again(c, wire, last):
            return
        c.tlp_retrans = 1
    c.probes += 1
    c.tlp_high_seq = c.snd_nxt
    c.timer_kind = NO_TIMER


@kernel()
def _time_out(c: Connection, wire: WireRecord) -> None:
    """Mark overdue segments as lost, and begin again with a window of one segment (`tcp_enter_loss`)."""
    c.timeouts += 1
    may_be_spurious = c.ca_state < RECOVERY or c.retransmits > 0
    for number in range(c.first_segment, c.next_segment):
        segment = wire.segments[number & MASK]
        if segment.state & COLLAPSED:
            continue
        if number == c.first_segment or c.rack_rtt <= c.now - segment.sent:
            mark_lost(c, segment)
    first = c.ca_state <= DISORDER or c.high_seq <= c.snd_una or (c.ca_state == LOSS and c.retransmits == 0)
    if first:
        save_threshold(c)
        c.prior_cwnd = c.snd_cwnd
        c.snd_ssthresh = control.on_loss(c)
        begin_episode(c)
    c.snd_cwnd = in_flight(c) + 1
    c.snd_cwnd_cnt = 0
    c.snd_cwnd_stamp = ticks_now(c)
    if c.ca_state <= DISORDER and c.sacked_out >= tcp.DUPLICATE_THRESHOLD:
        # The segments beyond were SACKed, and it was a loss all the same: less is reordered than it seemed.
        c.reordering_distance = min(c.reordering_distance, tcp.DUPLICATE_THRESHOLD)
    c.ca_state = LOSS
    control.on_timeout(c, wire, first)
    c.high_seq = c.snd_nxt
    c.tlp_high_seq = 0
    c.frto = c.f_rto and may_be_spurious
