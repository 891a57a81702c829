"""Two rules for windows that the classic sender may follow: byte counting and window validation.

References
----------
.. [1] RFC 3465: byte counting. RFC 2861: window validation.
.. [2] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010: what they do to small packets.

The TCP of the older literature: Reno, NewReno or SACK, in segments of one size, with three duplicate ACKs.

Each message of a constant bit rate, and each of a bulk source, is a segment of its own. Names follow RFC 6582.

References
----------
.. [1] Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988; Stevens, "TCP/IP Illustrated", volume 2: Reno.
.. [2] RFC 6582 (NewReno), RFC 2018 and RFC 3517 (SACK), RFC 3042 (limited transmit), RFC 3168 (ECN).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import NEVER, RING
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD
from tcpdelay.network.bottleneck import DROPPED
from tcpdelay.network.literature.min_buf import classic_admits
from tcpdelay.network.literature.tcp_rc import acknowledge, declare_missing, note_gap, set_forging_timer
from tcpdelay.network.literature.timelined import abandon, arm, expire, release, repair_with, skip
from tcpdelay.network.records import (
    BULK,
    DISPATCHED,
    TRANSFERS,
    cross,
    finish_transfer,
    is_write_due,
    message_end,
    note_lost,
    note_read,
    note_write,
)
from tcpdelay.network.result import answer

LARGEST_STEP, LARGEST_STEP_AFTER_TIMEOUT = 2.0, 1.0
"""L of RFC 3465: full segments by which an acknowledgement opens the window at most in slow start."""


@kernel()
def counted(s: Any, newly: int) -> float:
    """Return for how many segments an acknowledgement of so many counts: one, or their bytes in full segments."""
    if not s.byte_counting:
        return 1.0
    segments = newly * s.segment_size / s.mss
    if s.cwnd < s.ssthresh:
        segments = min(segments, LARGEST_STEP_AFTER_TIMEOUT if s.timeouts else LARGEST_STEP)
    return float(segments)


@kernel()
def may_grow(s: Any, outstanding: int) -> bool:
    """Whether the window was full before an acknowledgement, so that it is known to be safe."""
    return bool(not s.window_validation or outstanding >= min(int(s.cwnd), s.receiver_window))


@kernel()
def restart_after_idle(s: Any) -> None:
    """Halve the window for each timeout in which nothing was sent, before a new segment (RFC 2861, section 3.1)."""
    if not s.window_validation or s.snd_max > s.snd_una or s.snd_max == 0:
        return
    timeouts = (s.now - s.last_sent) // (s.rto * s.tick)
    if timeouts < 1:
        return
    s.ssthresh = max(s.ssthresh, 0.75 * s.cwnd)
    s.cwnd = max(s.cwnd / 2.0 ** min(timeouts, 64), 1.0)


RENO, NEWRENO, SACK = range(3)
LARGEST_BACKOFF = 6
"""Doublings of the retransmission timeout."""
NOT_TIMED = -1
SACKED, RETRANSMITTED = 1, 2
_MASK = RING - 1

_GROUPS = {
    "scenario": "variant segment_size mss receiver_window limited_transmit byte_counting window_validation tick "
    "tick_phase rto_min",
    "sender": "now written snd_una snd_nxt snd_max last_sent dupacks recover in_recovery ecn_recover",
    "estimator": "srtt rttvar rto backoff timed timed_at timer_at",
    "path": "first_ack next_ack",
    "deadlines": "lifetime expires_at expired live skipped given_up",
    "receiver": "rcv_nxt highest",
    "forging receiver": "forge_at last_arrival acknowledged duplicates",
    "counts": "segments_retransmitted recoveries timeouts",
}
CLASSIC = np.dtype(
    [("cwnd", np.float64), ("ssthresh", np.float64), ("mean_gap", np.float64)]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection; sequence numbers count segments, from zero, and the estimator works in ticks."""


@kernel()
def next_time(flow: Any, s: Any, wire: Any) -> int:
    """Return when something happens next, in the order of which all flows are advanced."""
    arrival = wire.acknowledgements[s.first_ack & _MASK].arrival if s.first_ack < s.next_ack else NEVER
    timer = min(s.timer_at, min(s.expires_at, s.forge_at))
    return int(min(min(arrival, timer), flow.next_write))


@kernel()
def step(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Let the next thing happen: a timer, an acknowledgement or a write; parameters as for `linux.step`."""
    acknowledgement = wire.acknowledgements[s.first_ack & _MASK]
    arrival = acknowledgement.arrival if s.first_ack < s.next_ack else NEVER
    other = min(min(arrival, s.timer_at), flow.next_write)
    if s.expires_at < NEVER and s.expires_at <= other:
        s.now = s.expires_at
        expire(flow, s, wire)
    elif s.forge_at < NEVER and s.forge_at <= other:
        s.now = s.forge_at
        _forge(flow, s, wire, samples)
    elif s.timer_at <= arrival and s.timer_at <= flow.next_write:
        s.now = s.timer_at
        _time_out(flow, s, wire)
    elif arrival < flow.next_write:
        s.now = arrival
        s.first_ack += 1
        number, acknowledged = acknowledgement.segment, acknowledgement.acknowledged
        if flow.ecn and number >= s.snd_una and flow.marked[number & _MASK]:
            _heed_mark(s)
        if acknowledged > s.snd_una:
            _advance(flow, s, wire, link, samples, acknowledged)
        elif acknowledged == s.snd_una < s.snd_max:
            _count_duplicate(flow, s, wire, link, samples, number)
    else:
        s.now = flow.next_write
        if is_write_due(flow, link):
            for _ in range(flow.section):
                _write(flow, s)
            arm(s)
    if flow.application == BULK and flow.first_write <= s.now < flow.stop:
        sacked_out = _sacked_out(s, wire) if flow.min_buf_multiple else 0
        while classic_admits(flow, s, sacked_out):
            _write(flow, s)
    _send(flow, s, wire, link, samples)


@kernel()
def count_up(flow: Any, s: Any) -> None:
    """Add to the flow's counts those of a connection that is given up."""
    flow.retransmissions += s.segments_retransmitted
    flow.timeouts += s.timeouts


@kernel()
def begin(flow: Any, s: Any) -> None:
    """Begin a connection whose handshake has timed the path."""
    s.now = flow.next_write
    flow.ack_held = flow.last_return = 0
    update_estimate(s, flow.round_trip // s.tick)


@kernel()
def update_estimate(s: Any, elapsed: int) -> None:
    """Update RTT estimate, in eighths of a tick, its deviation, in quarters, and the timeout (`tcp_xmit_timer`)."""
    if s.srtt == 0:
        s.srtt = max(elapsed, 1) << 3
        s.rttvar = max(elapsed, 1) << 1
    else:
        error = elapsed - (s.srtt >> 3)
        s.srtt = max(s.srtt + error, 1)
        s.rttvar = max(s.rttvar + abs(error) - (s.rttvar >> 2), 1)
    s.rto = max((s.srtt >> 3) + s.rttvar, s.rto_min)


@kernel()
def ticks_at(s: Any, time: int) -> int:
    """Return the tick of the sender's clock that has begun last at a time [us]."""
    return int((time + s.tick_phase) // s.tick)


@kernel()
def _set_timer(s: Any) -> None:
    """Let the retransmission timer fire; it does so with a tick, up to one tick earlier than the timeout says."""
    s.timer_at = NEVER
    if s.snd_max > s.snd_una:
        s.timer_at = (ticks_at(s, s.now) + (s.rto << s.backoff)) * s.tick - s.tick_phase


@kernel()
def _write(flow: Any, s: Any) -> None:
    note_write(flow, s.now)
    s.written += -(-flow.message // s.segment_size)


@kernel()
def write_segments(flow: Any, s: Any, wire: Any, link: Any, samples: Any, now: int, segments: int) -> None:
    """Write so many segments at a time [us], and send what the window allows."""
    s.now = now
    s.written += segments
    _send(flow, s, wire, link, samples)


@kernel()
def _sacked_out(s: Any, wire: Any) -> int:
    """Return how many segments SACKs have reported."""
    count = 0
    for number in range(s.snd_una, s.snd_max):
        count += wire.segments[number & _MASK].state & SACKED
    return count


@kernel()
def _half_of_flight(s: Any) -> float:
    return float(max(min(s.cwnd, float(s.snd_max - s.snd_una)) / 2.0, 2.0))


@kernel()
def _heed_mark(s: Any) -> None:
    """Halve the window, once per round trip."""
    if s.in_recovery or s.snd_una <= s.ecn_recover:
        return
    s.ssthresh = s.cwnd = _half_of_flight(s)
    s.ecn_recover = s.snd_max


@kernel()
def _advance(flow: Any, s: Any, wire: Any, link: Any, samples: Any, acknowledged: int) -> None:
    """Take an acknowledgement of new data."""
    newly, outstanding = acknowledged - s.snd_una, s.snd_max - s.snd_una
    if s.timed != NOT_TIMED and acknowledged > s.timed:
        update_estimate(s, ticks_at(s, s.now) - s.timed_at)
        s.timed = NOT_TIMED
        s.backoff = 0
    release(s, wire, acknowledged)
    s.snd_una = acknowledged
    s.snd_nxt = max(s.snd_nxt, acknowledged)
    s.dupacks = 0
    if not s.in_recovery:
        if may_grow(s, outstanding):
            _grow(s, counted(s, newly))
    elif acknowledged > s.recover or s.variant == RENO:
        s.in_recovery = 0
        s.cwnd = s.ssthresh
    elif s.variant == NEWRENO:
        # A partial acknowledgement: the next hole is lost too.
        _transmit(flow, s, wire, link, samples, s.snd_una)
        s.cwnd = max(s.cwnd - newly + 1.0, 1.0)
    _set_timer(s)


@kernel()
def _grow(s: Any, segments: float) -> None:
    """Open the window by so many segments, or by one per window of them."""
    s.cwnd = min(s.cwnd + (segments if s.cwnd < s.ssthresh else segments / s.cwnd), float(s.receiver_window))


@kernel()
def _count_duplicate(flow: Any, s: Any, wire: Any, link: Any, samples: Any, number: int) -> None:
    """Take a duplicate acknowledgement; the third in a row begins a recovery."""
    s.dupacks += 1
    if s.variant == SACK and s.snd_una <= number:
        wire.segments[number & _MASK].state |= SACKED
    if s.in_recovery:
        if s.variant != SACK:
            s.cwnd += 1.0
        return
    if s.dupacks != DUPLICATE_THRESHOLD or s.snd_una <= s.recover:
        return
    s.recoveries += 1
    s.in_recovery = 1
    s.recover = s.snd_max - 1
    s.ssthresh = s.cwnd = _half_of_flight(s)
    s.timed = NOT_TIMED
    if s.variant == SACK:
        for other in range(s.snd_una, s.snd_max):
            wire.segments[other & _MASK].state &= ~RETRANSMITTED
    else:
        s.cwnd += DUPLICATE_THRESHOLD
    number = repair_with(s)
    if number < s.written:
        s.snd_nxt = max(s.snd_nxt, number + 1)
        _transmit(flow, s, wire, link, samples, number)
    _set_timer(s)


@kernel()
def _time_out(flow: Any, s: Any, wire: Any) -> None:
    """Begin anew at the first segment that is not acknowledged."""
    s.timeouts += 1
    s.ssthresh = _half_of_flight(s)
    s.cwnd = 1.0
    abandon(s)
    s.snd_nxt = s.snd_una
    s.recover = s.snd_max - 1
    s.in_recovery = s.dupacks = 0
    s.timed = NOT_TIMED
    s.backoff = min(s.backoff + 1, LARGEST_BACKOFF)
    for number in range(s.snd_una, s.snd_max):
        wire.segments[number & _MASK].state = 0
    _set_timer(s)


@kernel()
def _send(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Send what the window allows."""
    if s.in_recovery and s.variant == SACK:
        _fill_pipe(flow, s, wire, link, samples)
        return
    if s.snd_nxt < s.written:
        restart_after_idle(s)
    window = min(int(s.cwnd), s.receiver_window)
    if s.limited_transmit and not s.in_recovery and s.dupacks < DUPLICATE_THRESHOLD:
        window = min(window + s.dupacks, s.receiver_window)
    while s.snd_nxt < s.written and s.snd_nxt < s.snd_una + s.given_up + window:
        s.snd_nxt += 1
        _transmit(flow, s, wire, link, samples, s.snd_nxt - 1)


@kernel()
def _fill_pipe(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Send in a SACK recovery: first what is lost, then new data, as long as the pipe has room.

    The pipe is that of RFC 3517, but whatever is overtaken by a SACKed segment counts as lost, as on a path that keeps
    the order it is.
    """
    pipe, end_of_lost = 0, s.snd_una
    for number in range(s.snd_max - 1, s.snd_una - 1, -1):
        flags = wire.segments[number & _MASK].state
        if flags & SACKED:
            end_of_lost = max(end_of_lost, number)
        elif flags & RETRANSMITTED or end_of_lost == s.snd_una:
            pipe += 1
    for number in range(s.snd_una, end_of_lost):
        if pipe >= int(s.cwnd):
            return
        if not wire.segments[number & _MASK].state & (SACKED | RETRANSMITTED):
            _transmit(flow, s, wire, link, samples, number)
            pipe += 1
    s.snd_nxt = max(s.snd_nxt, s.snd_max)
    while pipe < int(s.cwnd) and s.snd_nxt < min(s.written, s.snd_una + s.receiver_window):
        s.snd_nxt += 1
        _transmit(flow, s, wire, link, samples, s.snd_nxt - 1)
        pipe += 1


@kernel()
def _transmit(flow: Any, s: Any, wire: Any, link: Any, samples: Any, number: int) -> None:
    """Send a segment, and let the receiver have it if it gets through."""
    segment = wire.segments[number & _MASK]
    outstanding = s.snd_max > s.snd_una
    s.last_sent = s.now
    if number >= s.snd_max:
        s.snd_max = number + 1
        segment.sent = s.now
        segment.start = number + s.skipped
        segment.state = segment.received = 0
        if s.timed == NOT_TIMED:
            s.timed, s.timed_at = number, ticks_at(s, s.now)
    else:
        s.segments_retransmitted += 1
        segment.state |= RETRANSMITTED
        if s.timed == number:
            s.timed = NOT_TIMED
    if not outstanding:
        _set_timer(s)
    arrival = cross(flow, link, s.now, s.segment_size)
    if arrival != DROPPED:
        flow.marked[number & _MASK] = link.marked
        _arrive(flow, s, wire, samples, number, arrival)


@kernel()
def _ends_message(flow: Any, s: Any) -> bool:
    """Whether the segment that has just been read is the last one of a message."""
    if flow.application == TRANSFERS:
        return bool(s.rcv_nxt == s.written)
    return bool(flow.application != DISPATCHED or s.rcv_nxt == message_end(flow))


@kernel()
def _arrive(flow: Any, s: Any, wire: Any, samples: Any, number: int, arrival: int) -> None:
    """Let a segment reach the receiver, which reads what is in order and acknowledges."""
    while s.forge_at < arrival:
        _forge(flow, s, wire, samples)
    in_order = number == s.rcv_nxt == s.highest
    s.highest = max(s.highest, number + 1)
    if number >= s.rcv_nxt and not wire.segments[number & _MASK].received:
        wire.segments[number & _MASK].received = 1
        flow.arrived[number & _MASK] = arrival
        if flow.forging:
            note_gap(s, arrival)
    skip(flow, s, wire)
    awaited = s.rcv_nxt
    _read(flow, s, wire, samples, arrival)
    if not flow.forging:
        answer(flow, s, wire, number, arrival, in_order)
        return
    acknowledge(flow, s, wire, number, arrival)
    if s.rcv_nxt > awaited or s.forge_at == NEVER:
        set_forging_timer(flow, s, wire, arrival)


@kernel()
def _forge(flow: Any, s: Any, wire: Any, samples: Any) -> None:
    """Let the application have a forged packet in place of one that is missing, and read on behind it."""
    now = s.forge_at
    declare_missing(flow, s, wire)
    note_lost(flow)
    _read(flow, s, wire, samples, now)
    set_forging_timer(flow, s, wire, now)


@kernel()
def _read(flow: Any, s: Any, wire: Any, samples: Any, now: int) -> None:
    """Read what is in order."""
    while s.rcv_nxt < s.snd_max and wire.segments[s.rcv_nxt & _MASK].received:
        last = s.rcv_nxt & _MASK
        s.rcv_nxt += 1
        if _ends_message(flow, s):
            note_read(flow, samples, wire.segments[last].sent, flow.arrived[last], now)
            if flow.application == TRANSFERS:
                finish_transfer(flow, now)
