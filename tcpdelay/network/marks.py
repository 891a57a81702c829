"""How the sender and the receiver of Linux respond to marks: ECN (RFC 3168), and DCTCP (RFC 8257).

The sender learns of each mark with the ACK of its segment. Without DCTCP it reduces its window once per round trip, as
the kernel does whose receiver repeats a mark until it hears of the reduction.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.dctcp import update_alpha
from tcpdelay.models.simulator.receiver import EVERYTHING, NO_SEGMENT, acknowledge, begin_quick_acks
from tcpdelay.models.simulator.records import COLLAPSED, CWR, MASK, NEVER, OPEN, SACKED
from tcpdelay.models.simulator.recovery import begin_reduction

QUICK_ACKS_AFTER_MARK = 2
"""ACKs that are not delayed after the first mark (`tcp_data_ecn_check`)."""


@kernel()
def heed_marks(flow: Any, c: Any, wire: Any, answer: Any) -> None:
    """Reduce the window if an ACK newly acknowledges marked segments, once per round trip (`tcp_enter_cwr`)."""
    delivered = marked = 0
    number = c.first_segment
    while number < c.next_segment and wire.segments[number & MASK].end <= answer.acknowledged:
        if not wire.segments[number & MASK].state & (SACKED | COLLAPSED):
            delivered += 1
            marked += flow.marked[number & MASK]
        number += 1
    # Beyond the cumulative acknowledgement: the segment that the ACK reports.
    if answer.segment >= number and not wire.segments[answer.segment & MASK].state & (SACKED | COLLAPSED):
        delivered += 1
        marked += flow.marked[answer.segment & MASK]
    if c.dctcp:
        c.delivered_ce += marked
        update_alpha(c, answer.acknowledged, c.delivered + delivered)
    if c.ca_state == CWR and answer.acknowledged > c.high_seq and marked:
        # This ACK ends a reduction and begins the next one.
        c.snd_cwnd = c.snd_ssthresh
        c.ca_state = OPEN
    if not marked or c.ca_state >= CWR:
        return
    begin_reduction(c)
    c.undo_marker = 0
    c.ca_state = CWR
    c.cwr_segment = c.next_segment


@kernel()
def note_mark(c: Any, wire: Any, number: int, marked: int, arrival: int) -> None:
    """Let the receiver note whether a segment that arrives is marked, and report it soon.

    The first segment that was sent after a reduction is acknowledged at once (`tcp_ecn_accept_cwr`). With DCTCP so is a
    segment when marks begin or end, and the ACK that has been delayed goes before it (`dctcp_ece_ack_update`).
    Otherwise a few ACKs after the first mark are not delayed.
    """
    if number == c.cwr_segment:
        c.ack_now = 1
        if not c.dctcp:
            c.ce_state = 0
    if c.dctcp and c.ce_state != marked:
        if c.delayed_ack_at != NEVER:
            acknowledge(c, wire, EVERYTHING, NO_SEGMENT, arrival)
        c.ack_now = 1
        c.ce_state = marked
    elif marked and not c.ce_state:
        begin_quick_acks(c, QUICK_ACKS_AFTER_MARK)
        c.ce_state = 1
