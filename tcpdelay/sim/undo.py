"""What was not lost but late: reordering that has been seen, and reductions of the window that are taken back."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.clock import ticks_now
from tcpdelay.sim.records import (
    EVER_RETRANSMITTED,
    INFINITE_SSTHRESH,
    MARKED_LOST,
    RETRANSMITTED,
    RING,
    SACKED,
)
from tcpdelay.sim.window import in_reduction

_MASK = RING - 1
MILLISECOND = 1000
"""Step of the timestamps [us]."""
RECOVERIES_TO_PERSIST = 16
"""Recoveries for which a widened reordering window lasts (TCP_RACK_RECOVERY_THRESH)."""
WIDEST_WINDOW_STEPS = 255


@njit(cache=True)
def save_threshold(c: Any) -> None:
    """Keep the threshold before a reduction, at least three quarters of the window (`tcp_current_ssthresh`)."""
    saved = c.snd_ssthresh
    if not in_reduction(c):
        saved = max(saved, (c.snd_cwnd >> 1) + (c.snd_cwnd >> 2))
    c.prior_ssthresh = min(saved, INFINITE_SSTHRESH)


@njit(cache=True)
def begin_episode(c: Any) -> None:
    """Note what a reduction that begins now would have to disprove (`tcp_init_undo`)."""
    c.undo_marker = max(c.snd_una, 1)
    under_way = c.retrans_out + (1 if c.tlp_high_seq and c.tlp_retrans else 0)
    c.undo_retrans = under_way if under_way else -1


@njit(cache=True)
def any_retransmitted(c: Any, wire: Any) -> bool:
    """Whether a retransmission is under way (`tcp_any_retrans_done`)."""
    if c.packets_out == 0:
        return False
    return bool(c.retrans_out or wire.segments[c.first_segment & _MASK].flags & EVER_RETRANSMITTED)


@njit(cache=True)
def is_original(c: Any, echo: int) -> bool:
    """Whether the echoed timestamp is older than the first retransmission: the original came (RFC 3522)."""
    return bool(c.retrans_stamp == 0 or echo // MILLISECOND < c.retrans_stamp // MILLISECOND)


@njit(cache=True)
def all_retransmissions_needless(c: Any) -> bool:
    """Whether D-SACKs have reported every retransmission as needless."""
    return bool(c.undo_marker and c.undo_retrans == 0)


@njit(cache=True)
def undo_reduction(c: Any, wire: Any, unmark: bool) -> None:
    """Take the reduction of the window back, and what is marked lost too if so asked (`tcp_undo_cwnd_reduction`)."""
    if unmark:
        for number in range(c.first_segment, c.next_segment):
            segment = wire.segments[number & _MASK]
            if segment.flags & MARKED_LOST:
                segment.flags &= ~MARKED_LOST
                c.lost_out -= 1
    if c.prior_ssthresh:
        c.snd_cwnd = max(c.snd_cwnd, c.prior_cwnd)
        c.snd_ssthresh = max(c.snd_ssthresh, c.prior_ssthresh)
    c.snd_cwnd_stamp = ticks_now(c)
    c.undo_marker = 0
    c.rack_advanced = 1
    c.undone += 1


@njit(cache=True)
def take_duplicate(c: Any, wire: Any, number: int, acknowledged: int) -> bool:
    """Note that a segment has arrived twice; whether it was one sent again (`tcp_check_dsack`, `tcp_sacktag_one`)."""
    segment = wire.segments[number & _MASK]
    c.dsack_dups += 1
    if c.dsack_dups > c.segments_retransmitted:
        return False
    if c.reord_seen and c.tlp_high_seq != segment.end:
        c.rack_dsack_seen = 1
    c.delivered += 1
    counts = c.undo_marker and c.undo_retrans > 0 and segment.end > c.undo_marker
    if number >= c.first_segment:
        if segment.flags & (RETRANSMITTED | EVER_RETRANSMITTED):
            if counts:
                c.undo_retrans -= 1
            if segment.flags & SACKED:
                note_reordering(c, number)
        if segment.flags & RETRANSMITTED:
            segment.flags &= ~RETRANSMITTED
            c.retrans_out -= 1
    elif counts and segment.end <= acknowledged:
        c.undo_retrans -= 1
    return True


@njit(cache=True)
def note_reordering(c: Any, number: int) -> None:
    """Note that a segment came after one beyond it, or twice itself (`tcp_check_sack_reordering`)."""
    if c.sacked_out and number <= c.highest_sacked:
        c.reord_seen += 1


@njit(cache=True)
def adapt_reordering_window(c: Any, delivered_at_sending: int) -> None:
    """Widen RACK's window when retransmissions were needless, and narrow it again later (`tcp_rack_update_reo_wnd`).

    Parameters
    ----------
    c : record
        The connection.
    delivered_at_sending : int
        Segments that had been delivered when the latest segment delivered was sent; nothing is done if there is none.
    """
    if not delivered_at_sending:
        return
    if delivered_at_sending < c.rack_last_delivered:
        c.rack_dsack_seen = 0
    if c.rack_dsack_seen:
        c.reo_wnd_steps = min(WIDEST_WINDOW_STEPS, c.reo_wnd_steps + 1)
        c.rack_dsack_seen = 0
        c.rack_last_delivered = c.delivered
        c.reo_wnd_persist = RECOVERIES_TO_PERSIST
    elif c.reo_wnd_persist == 0:
        c.reo_wnd_steps = 1
