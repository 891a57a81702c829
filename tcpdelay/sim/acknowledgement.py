"""What an acknowledgement does to the sender (`tcp_ack` and `tcp_fastretrans_alert` of net/ipv4/tcp_input.c)."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.clock import ticks_now, to_ticks
from tcpdelay.sim.records import (
    COLLAPSED,
    CWR,
    DISORDER,
    EVER_RETRANSMITTED,
    INFINITE_SSTHRESH,
    LOSS,
    MARKED_LOST,
    OPEN,
    RECOVERY,
    RETRANSMITTED,
    RING,
    SACKED,
)
from tcpdelay.sim.recovery import enter_recovery, identify_losses, note_delivery, reduce_window
from tcpdelay.sim.sender import rearm_retransmission_timer, retransmit_lost, schedule_probe, send_new
from tcpdelay.sim.window import grow_window, in_reduction

_MASK = RING - 1
MILLISECOND = 1000
NOTHING, LOST, NEW = range(3)
"""What an acknowledgement in recovery lets leave first: nothing, retransmissions, new data."""


@njit(cache=True)
def on_acknowledgement(c: Any, wire: Any, acknowledged: int, number: int) -> None:
    """Answer an acknowledgement of the stream up to `acknowledged`, sent for the segment of that number."""
    advanced = acknowledged > c.snd_una
    delivered_before, lost_before = c.delivered, c.lost
    if advanced:
        c.snd_una = acknowledged
        c.retransmits = 0
    if c.packets_out == 0:
        return
    sacked, original, sack_rtt = _take_sack(c, wire.segments, number)
    removed, original_removed, rtt = _take_cumulative(c, wire.segments)
    original = original or original_removed
    sampled = _take_rtt(c, removed, rtt, sack_rtt)
    # A SACK alone restarts the timer only if its segment was sent after the head was: else the timeout would recede.
    later = sampled and sack_rtt >= 0 and sack_rtt > c.now - wire.segments[c.first_segment & _MASK].sent
    restart_timer = removed > 0 or later
    if c.tlp_high_seq and c.snd_una >= c.tlp_high_seq:
        c.tlp_high_seq = 0
    leave = NOTHING
    if sacked or removed == 0 or c.ca_state != OPEN:
        leave, waits = _alert(c, wire, advanced, sacked, original)
        restart_timer = restart_timer and not waits
    if restart_timer and not schedule_probe(c, wire.segments, True):
        rearm_retransmission_timer(c, wire.segments)
    delivered = c.delivered - delivered_before
    if in_reduction(c):
        reduce_window(c, delivered, c.lost - lost_before, advanced)
    elif removed:
        grow_window(c, delivered)
        c.snd_cwnd_stamp = ticks_now(c)
    if leave == NEW:
        send_new(c, wire, False)
        if c.snd_nxt <= c.high_seq:
            c.frto = 0
            leave = LOST
    if leave == LOST:
        retransmit_lost(c, wire)
    send_new(c, wire, False)


@njit(cache=True)
def _take_sack(c: Any, segments: Any, number: int) -> tuple[bool, bool, int]:
    """Mark the segment that the acknowledgement answers, if it is beyond the cumulative one.

    Returns whether it is newly marked, whether it is an original from before recovery, and its RTT [us] or -1.
    """
    segment = segments[number & _MASK]
    if number < c.first_segment or segment.end <= c.snd_una or segment.flags & (SACKED | COLLAPSED):
        return False, False, -1
    note_delivery(c, segment)
    original, rtt = False, -1
    if not segment.flags & EVER_RETRANSMITTED:
        original = segment.end <= c.high_seq
        rtt = c.now - segment.sent
    if segment.flags & RETRANSMITTED:
        c.retrans_out -= 1
    if segment.flags & MARKED_LOST:
        c.lost_out -= 1
    segment.flags = segment.flags & ~(MARKED_LOST | RETRANSMITTED) | SACKED
    c.sacked_out += 1
    c.delivered += 1
    return True, original, rtt


@njit(cache=True)
def _take_cumulative(c: Any, segments: Any) -> tuple[int, bool, int]:
    """Remove what is acknowledged (`tcp_clean_rtx_queue`).

    Returns the segments removed, whether an original from before recovery is among them, and the RTT [us] or -1.
    """
    removed, original, first_sent, ambiguous = 0, False, -1, False
    while c.first_segment < c.next_segment:
        segment = segments[c.first_segment & _MASK]
        if segment.flags & COLLAPSED:
            c.first_segment += 1
            continue
        if segment.end > c.snd_una:
            break
        if segment.flags & EVER_RETRANSMITTED:
            ambiguous = True
        elif not segment.flags & SACKED:
            original = original or segment.end <= c.high_seq
            if first_sent < 0:
                first_sent = segment.sent
        if segment.flags & RETRANSMITTED:
            c.retrans_out -= 1
        if segment.flags & MARKED_LOST:
            c.lost_out -= 1
        if segment.flags & SACKED:
            c.sacked_out -= 1
        else:
            c.delivered += 1
            note_delivery(c, segment)
        c.packets_out -= 1
        c.first_segment += 1
        removed += 1
    return removed, original, c.now - first_sent if first_sent >= 0 and not ambiguous else -1


@njit(cache=True)
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
            # A sudden fall of the RTT is to raise the deviation but little.
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
    c.rto = to_ticks(c, (c.srtt >> 3) + c.rttvar)


@njit(cache=True)
def _take_rtt(c: Any, removed: int, rtt: int, sack_rtt: int) -> bool:
    """Time the segments that were acknowledged; whether there was a sample."""
    sample = rtt if rtt >= 0 else sack_rtt
    if sample < 0:
        if removed == 0:
            return False
        # Retransmissions are timed by the echoed timestamp, in milliseconds.
        sample = c.rtt // MILLISECOND * MILLISECOND
    update_estimate(c, sample)
    return True


@njit(cache=True)
def _alert(c: Any, wire: Any, advanced: bool, sacked: bool, original: bool) -> tuple[int, bool]:
    """Go through the states of recovery (`tcp_fastretrans_alert`).

    Returns what is to leave first, and whether the reordering timer has been set.
    """
    if in_reduction(c) and c.snd_una >= c.high_seq:
        if c.undo_marker and c.snd_ssthresh < INFINITE_SSTHRESH:
            c.snd_cwnd = c.snd_ssthresh
            c.snd_cwnd_stamp = ticks_now(c)
        c.ca_state = OPEN
    if c.ca_state == RECOVERY:
        return LOST, identify_losses(c, wire.segments)
    leave = NOTHING
    was_loss = c.ca_state == LOSS
    if was_loss:
        leave = _after_timeout(c, wire, advanced, sacked, original)
    retransmitted = c.retrans_out
    waits = identify_losses(c, wire.segments)
    if was_loss and c.ca_state == LOSS and c.retrans_out >= retransmitted:
        return leave, waits
    if c.lost_out:
        enter_recovery(c)
        return LOST, waits
    _open_or_disorder(c, wire.segments)
    return NOTHING, waits


@njit(cache=True)
def _after_timeout(c: Any, wire: Any, advanced: bool, sacked: bool, original: bool) -> int:
    """Tell a spurious timeout from a real one and go on (`tcp_process_loss`, F-RTO of RFC 5682)."""
    recovered = c.snd_una >= c.high_seq
    if c.frto:
        if original:
            _undo_timeout(c, wire.segments)
            return NOTHING
        if c.snd_nxt > c.high_seq:
            if sacked or not advanced:
                c.frto = 0
        elif advanced and not recovered:
            c.high_seq = c.snd_nxt
            if c.snd_nxt < c.written:
                return NEW
            c.frto = 0
    if recovered:
        c.ca_state = OPEN
        return NOTHING
    return LOST


@njit(cache=True)
def _undo_timeout(c: Any, segments: Any) -> None:
    """Take a timeout back that was spurious (`tcp_try_undo_loss`)."""
    for number in range(c.first_segment, c.next_segment):
        segment = segments[number & _MASK]
        if segment.flags & MARKED_LOST:
            segment.flags &= ~MARKED_LOST
            c.lost_out -= 1
    c.snd_cwnd = max(c.snd_cwnd, c.prior_cwnd)
    c.undo_marker = 0
    c.ca_state = OPEN


@njit(cache=True)
def _open_or_disorder(c: Any, segments: Any) -> None:
    """Be open if nothing is amiss, else in disorder (`tcp_try_keep_open`)."""
    head_repeated = c.packets_out > 0 and segments[c.first_segment & _MASK].flags & EVER_RETRANSMITTED
    amiss = c.sacked_out or c.lost_out or c.retrans_out or head_repeated
    state = DISORDER if amiss else OPEN
    if c.ca_state not in (CWR, state):
        c.ca_state = state
        c.high_seq = c.snd_nxt
