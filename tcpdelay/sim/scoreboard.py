"""The retransmission queue: what an acknowledgement marks in it as SACKed, and what it removes from it."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.records import (
    COLLAPSED,
    EVER_RETRANSMITTED,
    MARKED_LOST,
    RETRANSMITTED,
    RING,
    SACKED,
)
from tcpdelay.sim.recovery import note_delivery
from tcpdelay.sim.trace import NEWLY_SACKED, note
from tcpdelay.sim.undo import note_reordering

_MASK = RING - 1


@njit(cache=True)
def take_all_sacks(c: Any, wire: Any, arrivals: int) -> tuple[bool, bool, int, int]:
    """Mark whatever was among that many first arrivals; as `take_sack`, with the longest RTT and the shortest."""
    sacked, original, first_rtt, last_rtt = False, False, -1, -1
    for number in range(c.first_segment, c.next_segment):
        if 0 < wire.segments[number & _MASK].received <= arrivals:
            marked, original_too, rtt, _ = take_sack(c, wire, number)
            sacked = sacked or marked
            original = original or original_too
            if rtt >= 0:
                last_rtt = rtt
                if first_rtt < 0:
                    first_rtt = rtt
    return sacked, original, first_rtt, last_rtt


@njit(cache=True)
def take_sack(c: Any, wire: Any, number: int) -> tuple[bool, bool, int, int]:
    """Mark the segment that the acknowledgement answers, if it is beyond the cumulative one.

    Returns whether it is newly marked, whether it is an original from before recovery, and, twice, its RTT [us] or -1.
    """
    segment = wire.segments[number & _MASK]
    if number < c.first_segment or segment.end <= c.snd_una or segment.flags & (SACKED | COLLAPSED):
        return False, False, -1, -1
    note(c, wire, NEWLY_SACKED, segment.start, segment.end)
    note_delivery(c, segment)
    original, rtt = False, -1
    if not segment.flags & EVER_RETRANSMITTED:
        original = segment.end <= c.high_seq
        rtt = c.now - segment.sent
        note_reordering(c, number)
    if segment.flags & MARKED_LOST:
        c.lost_out -= 1
        # If it does not count as lost any more, its retransmission is believed to be under way still.
        if segment.flags & RETRANSMITTED:
            c.retrans_out -= 1
            segment.flags &= ~RETRANSMITTED
    segment.flags = segment.flags & ~MARKED_LOST | SACKED
    c.highest_sacked = max(c.highest_sacked, number) if c.sacked_out else number
    c.sacked_out += 1
    c.delivered += 1
    return True, original, rtt, rtt


@njit(cache=True)
def take_cumulative(c: Any, wire: Any) -> tuple[int, bool, int, int]:
    """Remove what is acknowledged (`tcp_clean_rtx_queue`).

    Returns the segments removed, whether an original from before recovery is among them, and the RTT [us] of the first
    segment and of the last, or -1.
    """
    removed, original, first_sent, last_sent, ambiguous = 0, False, -1, -1, False
    while c.first_segment < c.next_segment:
        segment = wire.segments[c.first_segment & _MASK]
        if segment.flags & COLLAPSED:
            c.first_segment += 1
            continue
        if segment.end > c.snd_una:
            break
        if segment.flags & EVER_RETRANSMITTED:
            ambiguous = True
        elif not segment.flags & SACKED:
            original = original or segment.end <= c.high_seq
            note_reordering(c, c.first_segment)
            last_sent = segment.sent
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
    if c.packets_out == 0:
        # A segment sent again twice while it did not count as lost has been counted twice.
        c.retrans_out = 0
    if first_sent < 0 or ambiguous:
        return removed, original, -1, -1
    return removed, original, c.now - first_sent, c.now - last_sent
