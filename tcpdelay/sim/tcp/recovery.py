"""Loss recovery: RACK finds lost segments (RFC 8985), and proportional rate reduction limits sending (RFC 6937).

After reordering RACK waits longer. A reduction of the window that turns out to be needless is undone.
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.records import (
    COLLAPSED,
    CWR,
    EVER_RETRANSMITTED,
    FOUND_LOST,
    MARKED_LOST,
    MASK,
    RECOVERY,
    REORDERING_TIMER,
    RETRANSMITTED,
    SACKED,
    Connection,
    Segment,
    WireRecord,
    in_flight,
    in_reduction,
    set_timer,
    ticks_now,
    to_ticks,
)
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.window import IN_RECOVERY, note


@kernel()
def save_threshold(c: Connection) -> None:
    """Save the threshold before a reduction, or three quarters of the window if larger (`tcp_current_ssthresh`)."""
    saved = c.snd_ssthresh
    if not in_reduction(c):
        saved = max(saved, (c.snd_cwnd >> 1) + (c.snd_cwnd >> 2))
    c.prior_ssthresh = min(saved, tcp.INFINITE_THRESHOLD)


@kernel()
def begin_episode(c: Connection) -> None:
    """Record the state that decides later whether a reduction that begins now was needless (`tcp_init_undo`)."""
    c.undo_marker = max(c.snd_una, 1)
    under_way = c.retrans_out + (1 if c.tlp_high_seq and c.tlp_retrans else 0)
    c.undo_retrans = under_way if under_way else -1


@kernel()
def any_retransmitted(c: Connection, wire: WireRecord) -> bool:
    """Return whether a retransmission is outstanding (`tcp_any_retrans_done`)."""
    if c.packets_out == 0:
        return False
    return bool(c.retrans_out or wire.segments[c.first_segment & MASK].state & EVER_RETRANSMITTED)


@kernel()
def is_original(c: Connection, echo: int) -> bool:
    """Return whether the echoed timestamp is older than the first retransmission: the original arrived (RFC 3522)."""
    return bool(c.retrans_stamp == 0 or echo // tcp.MILLISECOND < c.retrans_stamp // tcp.MILLISECOND)


@kernel()
def undo_reduction(c: Connection, wire: WireRecord, unmark: bool) -> None:
    """Undo the reduction of the window, and with `unmark` the loss marks too (`tcp_undo_cwnd_reduction`)."""
    if unmark:
        for number in range(c.first_segment, c.next_segment):
            segment = wire.segments[number & MASK]
            if segment.state & MARKED_LOST:
                segment.state &= ~MARKED_LOST
                c.lost_out -= 1
    if c.prior_ssthresh:
        control.on_undo(c)
        c.snd_ssthresh = max(c.snd_ssthresh, c.prior_ssthresh)
    c.snd_cwnd_stamp = ticks_now(c)
    c.undo_marker = 0
    c.rack_advanced = 1
    c.undone += 1


@kernel()
def undo_by_duplicates(c: Connection, wire: WireRecord) -> bool:
    """Undo a reduction if D-SACKs report every retransmission as needless; return whether it is undone.

    The longer wait for reordered segments then lasts for a recovery more (`tcp_try_undo_dsack`).
    """
    if not c.undo_marker or c.undo_retrans:
        return False
    c.reo_wnd_persist = min(tcp.REORDERING_RECOVERIES, c.reo_wnd_persist + 1)
    undo_reduction(c, wire, False)
    return True


@kernel()
def take_duplicate(c: Connection, wire: WireRecord, number: int, acknowledged: int) -> bool:
    """Process a D-SACK; return whether it reports a retransmission (`tcp_check_dsack`, `tcp_sacktag_one`)."""
    segment = wire.segments[number & MASK]
    c.dsack_dups += 1
    if c.dsack_dups > c.segments_retransmitted:
        return False
    if c.reord_seen and c.tlp_high_seq != segment.end:
        c.rack_dsack_seen = 1
    c.delivered += 1
    counts = c.undo_marker and c.undo_retrans > 0 and segment.end > c.undo_marker
    if number >= c.first_segment:
        if segment.state & (RETRANSMITTED | EVER_RETRANSMITTED):
            if counts:
                c.undo_retrans -= 1
            if segment.state & SACKED:
                c.reord = min(c.reord, segment.start)
        if segment.state & RETRANSMITTED:
            segment.state &= ~RETRANSMITTED
            c.retrans_out -= 1
    elif counts and segment.end <= acknowledged:
        c.undo_retrans -= 1
    return True


@kernel()
def note_reordering(c: Connection, wire: WireRecord, low: int) -> None:
    """Record reordering if data beyond the position `low` was delivered before (`tcp_check_sack_reordering`).

    Its distance is counted in full segments, so small segments must be overtaken by many others to reach it.
    """
    beyond = int(wire.segments[c.highest_sacked & MASK].end if c.sacked_out else c.snd_una)
    if low >= beyond:
        return
    if beyond - low > c.reordering_distance * c.mss:
        c.reordering_distance = min(-((low - beyond) // c.mss), tcp.LARGEST_REORDERING)
    c.reord_seen += 1


@kernel()
def adapt_reordering_window(c: Connection, delivered_at_sending: int) -> None:
    """Widen RACK's reordering window after needless retransmissions, and reset it later (`tcp_rack_update_reo_wnd`)."""
    if not delivered_at_sending:
        return
    if delivered_at_sending < c.rack_last_delivered:
        c.rack_dsack_seen = 0
    if c.rack_dsack_seen:
        c.reo_wnd_steps = min(tcp.LARGEST_REORDERING_STEPS, c.reo_wnd_steps + 1)
        c.rack_dsack_seen = 0
        c.rack_last_delivered = c.delivered
        c.reo_wnd_persist = tcp.REORDERING_RECOVERIES
    elif c.reo_wnd_persist == 0:
        c.reo_wnd_steps = 1


@kernel()
def reordering_window(c: Connection) -> int:
    """Return how long RACK waits for a segment that later segments have overtaken [us] (`tcp_rack_reo_wnd`)."""
    if not c.reordering_window:
        return 0
    if not c.reord_seen and (c.ca_state >= RECOVERY or c.sacked_out >= tcp.DUPLICATE_THRESHOLD):
        return 0
    return int(min(c.min_rtt // tcp.REORDERING_SHARE * c.reo_wnd_steps, c.srtt >> 3))


@kernel()
def mark_lost(c: Connection, segment: Segment) -> None:
    """Mark a segment, or its retransmission, as lost (`tcp_mark_skb_lost`)."""
    if segment.state & MARKED_LOST:
        if segment.state & RETRANSMITTED:
            segment.state &= ~RETRANSMITTED
            c.retrans_out -= 1
    elif not segment.state & SACKED:
        segment.state |= MARKED_LOST
        c.lost_out += 1
    c.lost += 1


@kernel()
def note_delivery(c: Connection, segment: Segment) -> None:
    """Update RACK with a segment that has arrived (`tcp_rack_advance`)."""
    rtt = c.now - segment.sent
    if rtt < c.min_rtt and segment.state & EVER_RETRANSMITTED:
        # The ACK is too early for the retransmission: the original has arrived.
        return
    c.rack_advanced = 1
    c.rack_rtt = rtt
    if segment.sent > c.rack_mstamp or (segment.sent == c.rack_mstamp and segment.end > c.rack_end_seq):
        c.rack_mstamp = segment.sent
        c.rack_end_seq = segment.end


@kernel()
def detect_losses(c: Connection, wire: WireRecord) -> int:
    """Mark overdue segments as lost; return the longest time [us] until another segment is overdue, or 0.

    A segment is overdue if it was sent before the latest delivered segment, and RACK's RTT and the reordering window
    have passed since it was sent (`tcp_rack_detect_loss`). RACK looks at it only once after each transmission. If a
    timeout was undone since then, a retransmission that is found lost keeps its mark, and only a timeout repeats it.
    """
    window = reordering_window(c)
    longest = 0
    for number in range(c.first_segment, c.next_segment):
        segment = wire.segments[number & MASK]
        waits_for_retransmission = segment.state & (MARKED_LOST | RETRANSMITTED) == MARKED_LOST
        if segment.state & (SACKED | COLLAPSED | FOUND_LOST) or waits_for_retransmission:
            continue
        if segment.state & RETRANSMITTED and not c.retransmissions_found_lost_by_rack:
            continue
        if segment.sent > c.rack_mstamp or (segment.sent == c.rack_mstamp and segment.end >= c.rack_end_seq):
            continue
        remaining = c.rack_rtt + window - (c.now - segment.sent)
        if remaining <= 0:
            mark_lost(c, segment)
            segment.state |= FOUND_LOST
        else:
            longest = max(longest, remaining)
    return longest


@kernel()
def mark_by_threshold(c: Connection, wire: WireRecord) -> None:
    """Mark segments with three SACKed segments beyond them as lost, as before RACK (`tcp_mark_head_lost`, RFC 6675)."""
    beyond = c.sacked_out
    for number in range(c.first_segment, c.next_segment):
        if beyond < tcp.DUPLICATE_THRESHOLD:
            break
        segment = wire.segments[number & MASK]
        if segment.state & SACKED:
            beyond -= 1
        elif not segment.state & (MARKED_LOST | COLLAPSED):
            mark_lost(c, segment)


@kernel()
def identify_losses(c: Connection, wire: WireRecord) -> bool:
    """Look for losses after an ACK; return whether the reordering timer has been set (`tcp_rack_mark_lost`)."""
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
        set_timer(c, REORDERING_TIMER, to_ticks(c, wait + tcp.TIMER_SLACK))
    return wait > 0


@kernel()
def begin_reduction(c: Connection) -> None:
    """Begin a reduction of the window, which covers all data sent so far (`tcp_init_cwnd_reduction`)."""
    c.high_seq = c.snd_nxt
    c.tlp_high_seq = 0
    c.snd_cwnd_cnt = 0
    c.prior_cwnd = c.snd_cwnd
    c.prr_delivered = 0
    c.prr_out = 0
    c.snd_ssthresh = control.on_loss(c)


@kernel()
def end_reduction(c: Connection) -> None:
    """End a reduction, unless it is undone, with a window at the threshold (`tcp_end_cwnd_reduction`)."""
    if control.sets_window(c):
        return
    if (c.undo_marker or c.ca_state == CWR) and c.snd_ssthresh < tcp.INFINITE_THRESHOLD:
        c.snd_cwnd = c.snd_ssthresh
        c.snd_cwnd_stamp = ticks_now(c)
    control.on_reduction_end(c)


@kernel()
def enter_recovery(c: Connection, wire: WireRecord) -> None:
    """Begin a recovery: one reduction of the window for all losses of data sent so far (`tcp_enter_recovery`)."""
    if not any_retransmitted(c, wire):
        c.retrans_stamp = 0
    c.prior_ssthresh = 0
    begin_episode(c)
    if not in_reduction(c):
        save_threshold(c)
        begin_reduction(c)
    control.on_recovery(c)
    c.ca_state = RECOVERY
    c.recoveries += 1
    note(c, wire, IN_RECOVERY, c.snd_una, c.snd_nxt)


@kernel()
def reduce_window(c: Connection, delivered: int, lost: int, advanced: bool) -> None:
    """Set the window so that it allows as much as PRR lets an ACK release (`tcp_cwnd_reduction`, RFC 6937)."""
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
