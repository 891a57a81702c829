"""How the sender processes an ACK (`tcp_ack` and `tcp_fastretrans_alert` of net/ipv4/tcp_input.c).

An ACK marks segments of the retransmission queue as SACKed, removes acknowledged segments from the queue, and drives
the state of recovery.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
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
    in_reduction,
    ticks_now,
    to_ticks,
)
from tcpdelay.sim.tcp import bbr
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.pacing import begin_sample, end_sample, take_delivery
from tcpdelay.sim.tcp.recovery import (
    adapt_reordering_window,
    any_retransmitted,
    begin_reduction,
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
from tcpdelay.sim.tcp.sender import rearm_retransmission_timer, retransmit_lost, schedule_probe, send_new
from tcpdelay.sim.tcp.window import (
    ACKNOWLEDGED,
    NEWLY_SACKED,
    UNDONE,
    grow_window,
    note,
    note_rtt,
)


@kernel()
def take_all_sacks(c: Any, wire: Any, arrivals: int) -> tuple[bool, bool, int, int]:
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
def take_sack(c: Any, wire: Any, number: int) -> tuple[bool, bool, int, int]:
    """Mark the segment that the ACK reports as SACKed, if it is beyond the cumulative acknowledgement.

    Returns whether it is newly marked, whether it is an original from before recovery, and, twice, its RTT [us] or -1.
    """
    segment = wire.segments[number & MASK]
    if number < c.first_segment or segment.end <= c.snd_una or segment.state & (SACKED | COLLAPSED):
        return False, False, -1, -1
    note(c, wire, NEWLY_SACKED, segment.start, segment.end)
    c.delivered_at_sending = max(c.delivered_at_sending, segment.delivered)
    note_delivery(c, segment)
    if c.bbr:
        take_delivery(c, wire, number)
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
def take_cumulative(c: Any, wire: Any, prior_fack: int, echo: int) -> tuple[int, bool, int, int]:
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
            if c.bbr:
                take_delivery(c, wire, c.first_segment)
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
def on_acknowledgement(c: Any, wire: Any, answer: Any) -> None:
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
        if duplicate:
            _alert(c, wire, prior_snd_una, False, False, answer.echo)
        if c.tlp_high_seq:
            _take_probe(c, wire, answer.acknowledged, probe_duplicated, True)
        return
    if c.bbr:
        begin_sample(c)
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
    if c.bbr:
        # The ACK of a single small segment may have been delayed (FLAG_ACK_MAYBE_DELAYED).
        alone = removed == 1 and rtt >= 0 and advance < c.mss and not (sacked or duplicate or sacked_out)
        c.rs_ack_delayed = alone and c.rs_prior_delivered + 1 == c.delivered
        end_sample(c, delivered, c.lost - lost_before)
        bbr.control(c, wire)
    elif in_reduction(c):
        reduce_window(c, delivered, c.lost - lost_before, advanced)
    elif removed or (sacked and c.reordering_distance > tcp.DUPLICATE_THRESHOLD):
        # Where much is reordered, SACKs let the window grow too (`tcp_may_raise_cwnd`).
        grow_window(c, delivered)
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
def update_estimate(c: Any, sample: int) -> None:
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
def _take_rtt(c: Any, removed: int, rtt: int, sack_rtt: int, latest: int, echo: int) -> bool:
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
    note_rtt(c, latest)
    return True


@kernel()
def _alert(c: Any, wire: Any, prior_snd_una: int, sacked: bool, original: bool, echo: int) -> tuple[int, bool]:
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
        if (c.undo_marker or c.ca_state == CWR) and c.snd_ssthresh < tcp.INFINITE_THRESHOLD and not c.bbr:
            c.snd_cwnd = c.snd_ssthresh
            c.snd_cwnd_stamp = ticks_now(c)
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
def _after_timeout(c: Any, wire: Any, advanced: bool, sacked: bool, original: bool, echo: int) -> int:
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
def _take_probe(c: Any, wire: Any, acknowledged: int, duplicated: bool, pure: bool) -> None:
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
        if not c.bbr:
            c.snd_cwnd = c.snd_ssthresh
            c.snd_cwnd_stamp = ticks_now(c)
        _keep_open(c, wire)
    elif pure:
        c.tlp_high_seq = 0


@kernel()
def _end_recovery(c: Any, wire: Any, echo: int) -> None:
    """Undo a needless reduction; otherwise count one recovery less until the reordering window is reset."""
    if c.undo_marker and (c.undo_retrans == 0 or is_original(c, echo)):
        undo_reduction(c, wire, False)
    elif c.reo_wnd_persist:
        c.reo_wnd_persist -= 1


@kernel()
def _open_or_disorder(c: Any, wire: Any) -> None:
    """Enter the state Open or Disorder, unless a reduction is in progress (`tcp_try_to_open`)."""
    if not any_retransmitted(c, wire):
        c.retrans_stamp = 0
    if c.ca_state != CWR:
        _keep_open(c, wire)


@kernel()
def _keep_open(c: Any, wire: Any) -> None:
    """Enter the state Disorder if losses, SACKs or retransmissions remain, else Open (`tcp_try_keep_open`)."""
    amiss = c.sacked_out or c.lost_out or any_retransmitted(c, wire)
    state = DISORDER if amiss else OPEN
    if c.ca_state != state:
        c.ca_state = state
        c.high_seq = c.snd_nxt
