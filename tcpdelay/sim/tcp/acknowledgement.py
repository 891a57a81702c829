"""How the sender processes an ACK (`tcp_ack` and `tcp_fastretrans_alert` of net/ipv4/tcp_input.c).

An ACK marks segments of the retransmission queue as SACKed, removes acknowledged segments from the queue, and drives
the state of recovery.
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.path import is_dropped, next_arrival
from tcpdelay.sim.records import (
    COLLAPSED,
    CWR,
    DISORDER,
    EVER_RETRANSMITTED,
    LOSS,
    MARKED_LOST,
    MASK,
    OPEN,
    RECOVERY,
    RETRANSMITTED,
    SACKED,
    Acknowledgement,
    Connection,
    WireRecord,
    in_reduction,
    ticks_at,
    ticks_now,
    to_ticks,
)
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.tcp.receiver import EVERYTHING, NO_SEGMENT, send, take_arrival
from tcpdelay.sim.tcp.recovery import (
    adapt_reordering_window,
    any_retransmitted,
    begin_reduction,
    end_reduction,
    enter_recovery,
    identify_losses,
    is_original,
    note_delivery,
    note_reordering,
    reduce_window,
    take_duplicate,
    undo_by_duplicates,
    undo_reduction,
)
from tcpdelay.sim.tcp.sender import (
    LARGEST_FLIGHT,
    rearm_retransmission_timer,
    retransmit_lost,
    schedule_probe,
    send_new,
)
from tcpdelay.sim.tcp.window import ACKNOWLEDGED, LOST_ON_PATH, NEWLY_SACKED, SENT, UNDONE, note, validate_window
from tcpdelay.sim.writes import message_end, message_record, write_next, written_at


@kernel()
def take_all_sacks(c: Connection, wire: WireRecord, arrivals: int) -> tuple[bool, bool, int, int]:
    """Mark all segments that were among the first `arrivals` to arrive.

    Returns whether a segment is newly marked, whether an original from before recovery is among them, and the longest
    and the shortest of their RTTs [us], or -1.
    """
    sacked, original, first_rtt, last_rtt = False, False, -1, -1
    for number in range(c.first_segment, c.next_segment):
        if 0 < wire.segments[number & MASK].received <= arrivals:
            marked, original_too, rtt, _ = take_sack(c, wire, number)
            sacked = sacked or marked
            original = original or original_too
            if rtt >= 0:
                last_rtt = rtt
                if first_rtt < 0:
                    first_rtt = rtt
    return sacked, original, first_rtt, last_rtt


@kernel()
def take_sack(c: Connection, wire: WireRecord, number: int) -> tuple[bool, bool, int, int]:
    """Mark the segment that the ACK reports as SACKed, if it is beyond the cumulative acknowledgement.

    Returns whether it is newly marked, whether it is an original from before recovery, and, twice, its RTT [us] or -1.
    """
    segment = wire.segments[number & MASK]
    if number < c.first_segment or segment.end <= c.snd_una or segment.state & (SACKED | COLLAPSED):
        return False, False, -1, -1
    note(c, wire, NEWLY_SACKED, segment.start, segment.end)
    c.delivered_at_sending = max(c.delivered_at_sending, segment.delivered)
    note_delivery(c, segment)
    control.on_delivery(c, wire, number)
    original, rtt = False, -1
    if not segment.state & EVER_RETRANSMITTED:
        original = segment.end <= c.high_seq
        rtt = c.now - segment.sent
        if c.sacked_out and number <= c.highest_sacked:
            c.reord = min(c.reord, segment.start)
    if segment.state & MARKED_LOST:
        c.lost_out -= 1
        # A segment that does not count as lost keeps its retransmission in `retrans_out`.
        if segment.state & RETRANSMITTED:
            c.retrans_out -= 1
            segment.state &= ~RETRANSMITTED
    segment.state = segment.state & ~MARKED_LOST | SACKED
    c.highest_sacked = max(c.highest_sacked, number) if c.sacked_out else number
    c.sacked_out += 1
    c.delivered += 1
    return True, original, rtt, rtt


@kernel()
def take_cumulative(c: Connection, wire: WireRecord, prior_fack: int, echo: int) -> tuple[int, bool, int, int]:
    """Remove acknowledged segments from the retransmission queue (`tcp_clean_rtx_queue`).

    A segment before `prior_fack`, the segment after the highest that earlier ACKs have SACKed, was reordered unless it
    was retransmitted. RACK does not learn from a segment whose echoed timestamp is older than its last retransmission
    (`tcp_skb_spurious_retrans`). Returns the number of segments removed, whether an original from before recovery is
    among them, and the RTTs [us] of the first and of the last segment, or -1.
    """
    removed, original, first_sent, last_sent, ambiguous, reord = 0, False, -1, -1, False, c.snd_nxt
    while c.first_segment < c.next_segment:
        segment = wire.segments[c.first_segment & MASK]
        if segment.state & COLLAPSED:
            c.first_segment += 1
            continue
        if segment.end > c.snd_una:
            break
        if segment.state & EVER_RETRANSMITTED:
            ambiguous = True
        elif not segment.state & SACKED:
            original = original or segment.end <= c.high_seq
            if c.first_segment < prior_fack:
                reord = min(reord, segment.start)
            last_sent = segment.sent
            if first_sent < 0:
                first_sent = segment.sent
        if segment.state & RETRANSMITTED:
            c.retrans_out -= 1
        if segment.state & MARKED_LOST:
            c.lost_out -= 1
        if segment.state & SACKED:
            c.sacked_out -= 1
        else:
            c.delivered += 1
            c.delivered_at_sending = max(c.delivered_at_sending, segment.delivered)
            if not segment.state & EVER_RETRANSMITTED or echo // tcp.MILLISECOND >= segment.sent // tcp.MILLISECOND:
                note_delivery(c, segment)
            control.on_delivery(c, wire, c.first_segment)
        c.packets_out -= 1
        c.first_segment += 1
        removed += 1
    if removed:
        note_reordering(c, wire, reord)
    if c.packets_out == 0:
        # A segment that was sent again twice while it did not count as lost is counted twice in `retrans_out`.
        c.retrans_out = 0
    if first_sent < 0 or ambiguous:
        return removed, original, -1, -1
    return removed, original, c.now - first_sent, c.now - last_sent


NOTHING, LOST, NEW = range(3)
"""Segments that an ACK in recovery releases first: none, retransmissions, or new data."""


@kernel()
def on_acknowledgement(c: Connection, wire: WireRecord, answer: Acknowledgement) -> None:
    """Process an ACK, a record of type `ACKNOWLEDGEMENT`, that arrives now."""
    advance = answer.acknowledged - c.snd_una
    advanced = advance > 0
    delivered_before, lost_before, undone_before = c.delivered, c.lost, c.undone
    c.delivered_at_sending = 0
    c.reord = c.snd_nxt
    prior_snd_una = c.snd_una
    duplicate = probe_duplicated = False
    if answer.duplicate >= 0:
        probe_duplicated = c.tlp_high_seq > 0 and wire.segments[answer.duplicate & MASK].end == c.tlp_high_seq
        duplicate = take_duplicate(c, wire, answer.duplicate, c.snd_una)
    if advanced:
        note(c, wire, ACKNOWLEDGED, c.snd_una, answer.acknowledged)
        c.snd_una = answer.acknowledged
        c.retransmits = 0
    if c.packets_out == 0:
        control.on_arrival(c, False)
        if duplicate:
            _alert(c, wire, prior_snd_una, False, False, answer.echo)
        if c.tlp_high_seq:
            _take_probe(c, wire, answer.acknowledged, probe_duplicated, True)
        return
    control.before_ack(c)
    prior_fack = c.highest_sacked + 1 if c.sacked_out else c.first_segment
    if answer.segment >= 0:
        sacked, original, sack_rtt, latest = take_sack(c, wire, answer.segment)
    else:
        sacked, original, sack_rtt, latest = take_all_sacks(c, wire, answer.arrivals)
    if c.ca_state != LOSS or c.undo_marker:
        note_reordering(c, wire, c.reord)
    sacked_out = c.sacked_out
    removed, original_removed, rtt, latest_removed = take_cumulative(c, wire, prior_fack, answer.echo)
    original = original or original_removed
    sampled = _take_rtt(c, removed, rtt, sack_rtt, latest if sack_rtt >= 0 else latest_removed, answer.echo)
    if c.reord_seen:
        adapt_reordering_window(c, c.delivered_at_sending)
    # A receiver that has held data back, or lets its window grow, reports another window.
    control.on_arrival(c, advanced and not (sacked_out or duplicate or c.rcv_room > 0))
    # A SACK alone restarts the timer only if its segment was sent after the head of the queue; otherwise each SACK
    # would postpone the timeout.
    later = sampled and sack_rtt >= 0 and sack_rtt > c.now - wire.segments[c.first_segment & MASK].sent
    restart_timer = removed > 0 or later
    if c.tlp_high_seq:
        _take_probe(c, wire, answer.acknowledged, probe_duplicated, not (advanced or sacked))
    leave = NOTHING
    if sacked or duplicate or removed == 0 or c.ca_state != OPEN:
        leave, waits = _alert(c, wire, prior_snd_una, sacked, original, answer.echo)
        restart_timer = restart_timer and not waits
    if restart_timer and not schedule_probe(c, wire, True):
        rearm_retransmission_timer(c, wire)
    delivered = c.delivered - delivered_before
    if control.sets_window(c):
        # The ACK of a single small segment may have been delayed (FLAG_ACK_MAYBE_DELAYED).
        alone = removed == 1 and rtt >= 0 and advance < c.mss and not (sacked or duplicate or sacked_out)
        control.set_window(c, wire, delivered, c.lost - lost_before, alone)
    elif in_reduction(c):
        reduce_window(c, delivered, c.lost - lost_before, advanced)
    elif removed or (sacked and c.reordering_distance > tcp.DUPLICATE_THRESHOLD):
        # Where much is reordered, SACKs let the window grow too (`tcp_may_raise_cwnd`).
        control.on_ack(c, delivered)
        c.snd_cwnd_stamp = ticks_now(c)
    if c.undone > undone_before:
        note(c, wire, UNDONE, c.snd_una, c.snd_nxt)
    if leave == NEW:
        send_new(c, wire, False)
        if c.snd_nxt <= c.high_seq:
            c.frto = 0
            leave = LOST
    if leave == LOST:
        retransmit_lost(c, wire)
    send_new(c, wire, False)


@kernel()
def update_estimate(c: Connection, sample: int) -> None:
    """Update RTT estimate and timeout with a sample [us] (`tcp_rtt_estimator`, RFC 6298)."""
    c.min_rtt = min(c.min_rtt, sample)
    error = sample
    if c.srtt == 0:
        c.srtt = 8 * sample
        c.mdev = 2 * sample
        c.rttvar = c.mdev_max = max(c.mdev, c.rto_min)
        c.rtt_seq = c.snd_nxt
    else:
        error -= c.srtt >> 3
        c.srtt += error
        if error < 0:
            # A sudden fall of the RTT must not raise the deviation much.
            error = -error - (c.mdev >> 2)
            if error > 0:
                error >>= 3
        else:
            error -= c.mdev >> 2
        c.mdev += error
        if c.mdev > c.mdev_max:
            c.mdev_max = c.mdev
            c.rttvar = max(c.rttvar, c.mdev_max)
        if c.snd_una > c.rtt_seq:
            if c.mdev_max < c.rttvar:
                c.rttvar -= (c.rttvar - c.mdev_max) >> 2
            c.rtt_seq = c.snd_nxt
            c.mdev_max = c.rto_min
    c.rto = min(to_ticks(c, (c.srtt >> 3) + c.rttvar), c.rto_max)


@kernel()
def _take_rtt(c: Connection, removed: int, rtt: int, sack_rtt: int, latest: int, echo: int) -> bool:
    """Update the RTT estimate; return whether the ACK gives a sample (`tcp_ack_update_rtt`).

    The smoothed RTT uses the first acknowledged segment, which includes the delay of a delayed ACK. The smallest RTT
    uses the last acknowledged segment.
    """
    sample = rtt if rtt >= 0 else sack_rtt
    c.rs_rtt = latest
    if sample < 0:
        if removed == 0:
            return False
        # The echoed timestamp, in milliseconds, gives the RTT of a retransmission.
        elapsed = c.now // tcp.MILLISECOND - echo // tcp.MILLISECOND
        sample = latest = c.rs_rtt = max(elapsed, 1) * tcp.MILLISECOND
    c.min_rtt = min(c.min_rtt, latest)
    update_estimate(c, sample)
    control.on_rtt(c, latest)
    return True


@kernel()
def _alert(
    c: Connection, wire: WireRecord, prior_snd_una: int, sacked: bool, original: bool, echo: int
) -> tuple[int, bool]:
    """Update the state of recovery (`tcp_fastretrans_alert`).

    Returns the segments to send first (`NOTHING`, `LOST` or `NEW`), and whether the reordering timer has been set.
    """
    advanced = c.snd_una > prior_snd_una
    if c.ca_state == OPEN:
        c.retrans_stamp = 0
    elif in_reduction(c) and c.snd_una >= c.high_seq + (1 if c.ca_state == CWR else 0):
        # The receiver learns of a reduction after marks from the next segment, so CWR lasts until it is acknowledged.
        if c.ca_state == RECOVERY:
            _end_recovery(c, wire, echo)
        end_reduction(c)
        c.ca_state = OPEN
    if c.ca_state == RECOVERY:
        if advanced and c.undo_marker and is_original(c, echo):
            # A late original filled the hole, not its retransmission.
            note_reordering(c, wire, prior_snd_una)
            if c.retrans_out:
                return NOTHING, False
            if not any_retransmitted(c, wire):
                c.retrans_stamp = 0
            undo_reduction(c, wire, True)
            _keep_open(c, wire)
        if undo_by_duplicates(c, wire):
            _open_or_disorder(c, wire)
        waits = identify_losses(c, wire)
        if c.ca_state == RECOVERY:
            return LOST, waits
        if not c.lost_out:
            return NOTHING, waits
        enter_recovery(c, wire)
        return LOST, waits
    leave = NOTHING
    was_loss = c.ca_state == LOSS
    if was_loss:
        leave = _after_timeout(c, wire, advanced, sacked, original, echo)
    elif c.ca_state <= DISORDER:
        undo_by_duplicates(c, wire)
    retransmitted = c.retrans_out
    waits = identify_losses(c, wire)
    if was_loss and c.ca_state == LOSS and c.retrans_out >= retransmitted:
        return leave, waits
    if c.lost_out:
        enter_recovery(c, wire)
        return LOST, waits
    _open_or_disorder(c, wire)
    return NOTHING, waits


@kernel()
def _after_timeout(c: Connection, wire: WireRecord, advanced: bool, sacked: bool, original: bool, echo: int) -> int:
    """Decide whether a timeout was spurious; return the segments to send first (`tcp_process_loss`, RFC 5682)."""
    recovered = c.snd_una >= c.high_seq
    may_undo = c.undo_marker and (c.undo_retrans == 0 or is_original(c, echo))
    if (advanced and may_undo) or (c.frto and original):
        undo_reduction(c, wire, True)
        c.retransmits = 0
        c.ca_state = OPEN
        return NOTHING
    if c.frto:
        if c.snd_nxt > c.high_seq:
            if sacked or not advanced:
                c.frto = 0
        elif advanced and not recovered:
            c.high_seq = c.snd_nxt
            if c.snd_nxt < c.written:
                return NEW
            c.frto = 0
    if recovered:
        _end_recovery(c, wire, echo)
        c.ca_state = OPEN
        return NOTHING
    return LOST


@kernel()
def _take_probe(c: Connection, wire: WireRecord, acknowledged: int, duplicated: bool, pure: bool) -> None:
    """Decide from an ACK whether the tail loss probe has repaired a loss (`tcp_process_tlp_ack`, RFC 8985).

    If no D-SACK reports that both copies arrived, the window is reduced when data beyond the probe is acknowledged.
    """
    if acknowledged < c.tlp_high_seq:
        return
    if not c.tlp_retrans or duplicated:
        c.tlp_high_seq = 0
    elif acknowledged > c.tlp_high_seq:
        begin_reduction(c)
        c.ca_state = CWR
        end_reduction(c)
        _keep_open(c, wire)
    elif pure:
        c.tlp_high_seq = 0


@kernel()
def _end_recovery(c: Connection, wire: WireRecord, echo: int) -> None:
    """Undo a needless reduction; otherwise count one recovery less until the reordering window is reset."""
    if c.undo_marker and (c.undo_retrans == 0 or is_original(c, echo)):
        undo_reduction(c, wire, False)
    elif c.reo_wnd_persist:
        c.reo_wnd_persist -= 1


@kernel()
def _open_or_disorder(c: Connection, wire: WireRecord) -> None:
    """Enter the state Open or Disorder, unless a reduction is in progress (`tcp_try_to_open`)."""
    if not any_retransmitted(c, wire):
        c.retrans_stamp = 0
    if c.ca_state != CWR:
        _keep_open(c, wire)


@kernel()
def _keep_open(c: Connection, wire: WireRecord) -> None:
    """Enter the state Disorder if losses, SACKs or retransmissions remain, else Open (`tcp_try_keep_open`)."""
    amiss = c.sacked_out or c.lost_out or any_retransmitted(c, wire)
    state = DISORDER if amiss else OPEN
    if c.ca_state != state:
        c.ca_state = state
        c.high_seq = c.snd_nxt


# Undisturbed time: nothing is lost, held back or out of order; only writes, arrivals and their ACKs happen.
#
# Each message leaves whole when it is written, and each ACK acknowledges what comes next. These functions do what
# `send_new`, `arrive` and `on_acknowledgement` do then, and leave the same state behind, several times as fast: they
# need not ask what else could happen.

FEWEST_SEGMENTS = 4
"""Fewest segments before the next loss for which it pays to ask whether the time until then is undisturbed."""
ROUNDING = 16
"""Longest time by which rounding delays an ACK, or shortens the smoothed RTT [us]."""
NO_EVENT, ACKNOWLEDGEMENT_TAKEN, MESSAGE_SENT = range(3)
"""The last event."""


@kernel()
def is_undisturbed(c: Connection, wire: WireRecord) -> bool:
    """Return whether nothing but writes, arrivals and their ACKs can happen before the next loss."""
    if (c.until_loss <= FEWEST_SEGMENTS and not _is_bursty(c)) or c.correlated or c.ack_loss > 0.0:
        return False
    if c.deferred and (c.reordering > 0.0 or c.tabled or not c.in_order):
        return False
    if c.delayed_ack or control.sets_window(c) or c.answered or c.send_buffer or not c.tail_loss_probe:
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
def _is_all_in_turn(c: Connection, wire: WireRecord) -> bool:
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
def _is_bursty(c: Connection) -> bool:
    """Return whether each segment draws whether it is lost; else the number of segments until then is known."""
    return bool(c.bad_time > 0.0 or c.loss_burst > 1.0)


@kernel()
def pass_undisturbed(c: Connection, wire: WireRecord, packets: int) -> bool:
    """Process events up to the next loss, or to what is no longer undisturbed; return whether there were any.

    None is processed once `packets` are read.
    """
    any_event, timed, last = False, c.now, NO_EVENT
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
def _may_send(c: Connection, wire: WireRecord) -> bool:
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
def _send_message(c: Connection, wire: WireRecord) -> bool:
    """Write the next message and send its segments; return whether one is lost."""
    c.now = c.next_write
    if c.packets_out == 0:
        control.on_idle(c, wire)
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
def _read_message(c: Connection, wire: WireRecord, number: int, waited: int) -> None:
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
def _take_acknowledgement(c: Connection, wire: WireRecord, answer: Acknowledgement) -> None:
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
    control.on_rtt(c, c.now - latest.sent)
    if c.reord_seen:
        adapt_reordering_window(c, latest.delivered)
    control.on_arrival(c, True)
    control.on_ack(c, removed)
    c.snd_cwnd_stamp = ticks_now(c)
