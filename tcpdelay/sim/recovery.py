"""Loss recovery: RACK finds what is lost (RFC 8985), proportional rate reduction says what may be sent (RFC 6937)."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.clock import set_timer, to_ticks
from tcpdelay.sim.records import (
    COLLAPSED,
    EVER_RETRANSMITTED,
    MARKED_LOST,
    RECOVERY,
    REORDERING_TIMER,
    RETRANSMITTED,
    RING,
    SACKED,
)
from tcpdelay.sim.trace import IN_RECOVERY, note
from tcpdelay.sim.undo import any_retransmitted, begin_episode, save_threshold
from tcpdelay.sim.window import in_flight, in_reduction, reduced_threshold

DUPLICATE_THRESHOLD = 3
"""SACKed segments from which on RACK waits for no reordering (sysctl tcp_reordering)."""
SHORTEST_TIMEOUT = 2000
"""What the reordering timer adds to its time [us] (TCP_TIMEOUT_MIN_US)."""
_MASK = RING - 1


@njit(cache=True)
def reordering_window(c: Any) -> int:
    """Return how long RACK waits for a segment that others have overtaken [us] (`tcp_rack_reo_wnd`)."""
    if not c.reordering_window:
        return 0
    if not c.reord_seen and (c.ca_state >= RECOVERY or c.sacked_out >= DUPLICATE_THRESHOLD):
        return 0
    return int(min((c.min_rtt >> 2) * c.reo_wnd_steps, c.srtt >> 3))


@njit(cache=True)
def mark_lost(c: Any, segment: Any) -> None:
    """Take a segment, or its retransmission, for lost (`tcp_mark_skb_lost`)."""
    if segment.flags & MARKED_LOST:
        if segment.flags & RETRANSMITTED:
            segment.flags &= ~RETRANSMITTED
            c.retrans_out -= 1
    elif not segment.flags & SACKED:
        segment.flags |= MARKED_LOST
        c.lost_out += 1
    c.lost += 1


@njit(cache=True)
def note_delivery(c: Any, segment: Any) -> None:
    """Let RACK know that a segment has arrived (`tcp_rack_advance`)."""
    c.delivered_at_sending = max(c.delivered_at_sending, segment.delivered)
    rtt = c.now - segment.sent
    if rtt < c.min_rtt and segment.flags & EVER_RETRANSMITTED:
        # Too early for the retransmission: this is the original.
        return
    c.rack_advanced = 1
    c.rack_rtt = rtt
    if segment.sent > c.rack_mstamp or (segment.sent == c.rack_mstamp and segment.end > c.rack_end_seq):
        c.rack_mstamp = segment.sent
        c.rack_end_seq = segment.end


@njit(cache=True)
def detect_losses(c: Any, wire: Any) -> int:
    """Mark what was sent before the latest segment delivered and is overdue; return the longest wait for others [us].

    A segment is overdue once RACK's RTT and the reordering window have passed since it was sent
    (`tcp_rack_detect_loss`).
    """
    window = reordering_window(c)
    longest = 0
    for number in range(c.first_segment, c.next_segment):
        segment = wire.segments[number & _MASK]
        waits_for_retransmission = segment.flags & (MARKED_LOST | RETRANSMITTED) == MARKED_LOST
        if segment.flags & (SACKED | COLLAPSED) or waits_for_retransmission:
            continue
        if segment.flags & RETRANSMITTED and not c.retransmissions_found_lost_by_rack:
            continue
        if segment.sent > c.rack_mstamp or (segment.sent == c.rack_mstamp and segment.end >= c.rack_end_seq):
            continue
        remaining = c.rack_rtt + window - (c.now - segment.sent)
        if remaining <= 0:
            mark_lost(c, segment)
        else:
            longest = max(longest, remaining)
    return longest


@njit(cache=True)
def mark_by_threshold(c: Any, wire: Any) -> None:
    """Mark what three SACKed segments lie beyond (`tcp_mark_head_lost`, RFC 6675); the rule that RACK replaced."""
    beyond = c.sacked_out
    for number in range(c.first_segment, c.next_segment):
        if beyond < DUPLICATE_THRESHOLD:
            break
        segment = wire.segments[number & _MASK]
        if segment.flags & SACKED:
            beyond -= 1
        elif not segment.flags & (MARKED_LOST | COLLAPSED):
            mark_lost(c, segment)


@njit(cache=True)
def identify_losses(c: Any, wire: Any) -> bool:
    """Look for losses after an acknowledgement; whether a timer has been set to look again (`tcp_rack_mark_lost`)."""
    if not c.packets_out:
        return False
    if not c.rack:
        mark_by_threshold(c, wire)
        return False
    if not c.rack_advanced:
        return False
    c.rack_advanced = 0
    wait = detect_losses(c, wire)
    if wait:
        set_timer(c, REORDERING_TIMER, to_ticks(c, wait + SHORTEST_TIMEOUT))
    return wait > 0


@njit(cache=True)
def begin_reduction(c: Any) -> None:
    """Begin to reduce the window, for all that has been sent until now (`tcp_init_cwnd_reduction`)."""
    c.high_seq = c.snd_nxt
    c.tlp_high_seq = 0
    c.snd_cwnd_cnt = 0
    c.prior_cwnd = c.snd_cwnd
    c.prr_delivered = 0
    c.prr_out = 0
    c.snd_ssthresh = reduced_threshold(c)


@njit(cache=True)
def enter_recovery(c: Any, wire: Any) -> None:
    """Begin to repair: one reduction of the window for all losses up to what has been sent (`tcp_enter_recovery`)."""
    if not any_retransmitted(c, wire):
        c.retrans_stamp = 0
    c.prior_ssthresh = 0
    begin_episode(c)
    if not in_reduction(c):
        save_threshold(c)
        begin_reduction(c)
    c.ca_state = RECOVERY
    c.recoveries += 1
    note(c, wire, IN_RECOVERY, c.snd_una, c.snd_nxt)


@njit(cache=True)
def reduce_window(c: Any, delivered: int, lost: int, advanced: bool) -> None:
    """Set the window to what may be sent in answer to an acknowledgement (`tcp_cwnd_reduction`, RFC 6937).

    Parameters
    ----------
    c : record
        The connection.
    delivered, lost : int
        Segments that the acknowledgement delivers, and that it shows to be lost.
    advanced : bool
        Whether the cumulative acknowledgement moves.
    """
    if delivered <= 0:
        return
    if not c.proportional_reduction:
        c.snd_cwnd = max(c.snd_ssthresh, in_flight(c) + (0 if c.prr_out else 1))
        return
    room = c.snd_ssthresh - in_flight(c)
    c.prr_delivered += delivered
    if room < 0:
        count = (c.snd_ssthresh * c.prr_delivered + c.prior_cwnd - 1) // c.prior_cwnd - c.prr_out
    else:
        count = max(c.prr_delivered - c.prr_out, delivered)
        if advanced and lost == 0:
            count += 1
        count = min(room, count)
    c.snd_cwnd = in_flight(c) + max(count, 0 if c.prr_out else 1)
