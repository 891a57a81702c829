"""The TCP of the literature before 2005: Reno, NewReno or SACK, with segments of one size and three duplicate ACKs.

Each message of a constant bit rate, and each message of a bulk source, is a segment. Names follow RFC 6582.

References
----------
.. [1] Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988; Stevens, "TCP/IP Illustrated", volume 2: Reno.
.. [2] RFC 6582 (NewReno), RFC 2018 and RFC 3517 (SACK), RFC 3042 (limited transmit), RFC 3168 (ECN), RFC 3465 (byte
   counting), RFC 2861 (window validation).
.. [3] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010: what byte counting and window validation do to small packets.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import MASK, NEVER
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD, SECOND
from tcpdelay.network.bottleneck import DROPPED, SharedPath
from tcpdelay.network.dispatching import expected_delay
from tcpdelay.network.literature.classic_receiver import forge_missing, receive
from tcpdelay.network.literature.timelined import abandon, arm, expire, release, repair_with
from tcpdelay.network.records import BULK, CONSTANT_RATE, DISPATCHED, cross, is_write_due, note_write
from tcpdelay.network.send_buffer import has_room
from tcpdelay.network.stacks import Classic, Recovery, TimeLined
from tcpdelay.network.transport import IN_TIMEOUT, IP_HEADER, TCP_HEADER, Transport

LARGEST_STEP, LARGEST_STEP_AFTER_TIMEOUT = 2.0, 1.0
"""L of RFC 3465: largest growth of the window per acknowledgement in slow start [full segments]."""


@kernel()
def counted_segments(s: Any, newly: int) -> float:
    """Return the growth that an acknowledgement of `newly` segments allows: one segment, more with byte counting."""
    if not s.byte_counting:
        return 1.0
    segments = newly * s.segment_size / s.mss
    if s.cwnd < s.ssthresh:
        segments = min(segments, LARGEST_STEP_AFTER_TIMEOUT if s.timeouts else LARGEST_STEP)
    return float(segments)


@kernel()
def may_grow(s: Any, outstanding: int) -> bool:
    """Return whether the window may grow: with window validation only if it was full before the acknowledgement."""
    return bool(not s.window_validation or outstanding >= min(int(s.cwnd), s.receiver_window))


@kernel()
def restart_after_idle(s: Any) -> None:
    """Halve the window for each timeout of idle time, before a new segment is sent (RFC 2861, section 3.1)."""
    if not s.window_validation or s.snd_max > s.snd_una or s.snd_max == 0:
        return
    timeouts = (s.now - s.last_sent) // (s.rto * s.tick)
    if timeouts < 1:
        return
    s.ssthresh = max(s.ssthresh, 0.75 * s.cwnd)
    s.cwnd = max(s.cwnd / 2.0 ** min(timeouts, 64), 1.0)


RENO, NEWRENO, SACK = range(3)
"""Ways to repair several losses of one window."""
VARIANTS: dict[Recovery, int] = {"reno": RENO, "newreno": NEWRENO, "sack": SACK}
LARGEST_BACKOFF = 6
"""Doublings of the retransmission timeout."""
NOT_TIMED = -1
"""Value in place of a segment's number: no round-trip time is being measured."""
SACKED, RETRANSMITTED = 1, 2
"""Flags of a segment."""

_GROUPS = {
    "scenario": "variant segment_size mss receiver_window limited_transmit byte_counting window_validation tick "
    "tick_phase rto_min",
    "sender": "now written snd_una snd_nxt snd_max last_sent dupacks recover in_recovery ecn_recover",
    "estimator": "srtt rttvar rto backoff timed timed_at timer_at",
    "path": "first_ack next_ack",
    "deadlines": "lifetime expires_at expired first_live skipped written_off",
    "receiver": "rcv_nxt highest",
    "TCP-RC": "forge_at last_arrival acknowledged duplicates",
    "counts": "segments_retransmitted recoveries timeouts",
}
CLASSIC = np.dtype(
    [("cwnd", np.float64), ("ssthresh", np.float64), ("mean_gap", np.float64)]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection. Sequence numbers count segments from zero, and the estimator counts ticks of the timers' clock."""


@kernel()
def next_time(flow: Any, s: Any, wire: Any) -> int:
    """Return when the next event of the connection is due."""
    arrival = wire.acknowledgements[s.first_ack & MASK].arrival if s.first_ack < s.next_ack else NEVER
    timer = min(s.timer_at, min(s.expires_at, s.forge_at))
    return int(min(min(arrival, timer), flow.next_write))


@kernel()
def step(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> int:
    """Process the next event: a timer, an acknowledgement or a write; return when the following one is due."""
    acknowledgement = wire.acknowledgements[s.first_ack & MASK]
    arrival = acknowledgement.arrival if s.first_ack < s.next_ack else NEVER
    other = min(min(arrival, s.timer_at), flow.next_write)
    if s.expires_at < NEVER and s.expires_at <= other:
        s.now = s.expires_at
        expire(flow, s, wire)
    elif s.forge_at < NEVER and s.forge_at <= other:
        s.now = s.forge_at
        forge_missing(flow, s, wire, samples)
    elif s.timer_at <= arrival and s.timer_at <= flow.next_write:
        s.now = s.timer_at
        _time_out(flow, s, wire)
    elif arrival < flow.next_write:
        s.now = arrival
        s.first_ack += 1
        number, acknowledged = acknowledgement.segment, acknowledgement.acknowledged
        if flow.ecn and number >= s.snd_una and flow.marked[number & MASK]:
            heed_mark(s)
        if acknowledged > s.snd_una:
            on_new_acknowledgement(flow, s, wire, link, samples, acknowledged)
        elif acknowledged == s.snd_una < s.snd_max:
            on_duplicate_acknowledgement(flow, s, wire, link, samples, number)
    else:
        s.now = flow.next_write
        if is_write_due(flow, link):
            for _ in range(flow.section):
                _write(flow, s)
            arm(s)
    if flow.application == BULK and flow.first_write <= s.now < flow.stop:
        sacked_out = count_sacked(s, wire) if flow.buffer_windows else 0
        while is_writable(flow, s, sacked_out):
            _write(flow, s)
    transmit(flow, s, wire, link, samples)
    return int(next_time(flow, s, wire))


@kernel()
def end(flow: Any, s: Any) -> None:
    """Add the counts of a closed connection to the counts of the flow."""
    flow.retransmissions += s.segments_retransmitted
    flow.timeouts += s.timeouts


@kernel()
def begin(flow: Any, s: Any) -> None:
    """Start a connection; its handshake has measured the round-trip time."""
    s.now = flow.next_write
    flow.ack_held = flow.last_return = 0
    update_estimate(s, flow.round_trip // s.tick)


@kernel()
def update_estimate(s: Any, elapsed: int) -> None:
    """Update the estimated RTT [1/8 tick], its deviation [1/4 tick] and the timeout [ticks] (`tcp_xmit_timer`)."""
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
    """Return the current tick of the sender's clock at a time [us]."""
    return int((time + s.tick_phase) // s.tick)


@kernel()
def _set_timer(s: Any) -> None:
    """Start the retransmission timer; it fires at a tick, up to one tick earlier than the timeout."""
    s.timer_at = NEVER
    if s.snd_max > s.snd_una:
        s.timer_at = (ticks_at(s, s.now) + (s.rto << s.backoff)) * s.tick - s.tick_phase


@kernel()
def _write(flow: Any, s: Any) -> None:
    """Write a message."""
    note_write(flow, s.now)
    s.written += -(-flow.message // s.segment_size)


@kernel()
def is_writable(flow: Any, s: Any, sacked_out: int) -> bool:
    """Return whether the send buffer accepts another packet of a bulk source, given the number of SACKed segments.

    Without SACK, duplicate acknowledgements enlarge the window itself, so `sacked_out` is 0.
    """
    held = s.written - s.snd_una
    if (held + 1) * s.segment_size > flow.send_buffer:
        return False
    return bool(has_room(flow, held, int(s.cwnd), sacked_out))


@kernel()
def send_queue(flow: Any, s: Any) -> int:
    """Return the segments that are not acknowledged, plus `IN_TIMEOUT` during a timeout."""
    return int(s.written - s.snd_una + (IN_TIMEOUT if s.backoff > 0 else 0))


@kernel()
def delay_of_next(flow: Any, s: Any) -> int:
    """Return the expected delay of the next message [us], or `NEVER` if the send buffer has no room for it."""
    if not has_room(flow, s.written - s.snd_una, int(s.cwnd), 0):
        return NEVER
    window = min(int(s.cwnd), s.receiver_window)
    round_trip = (s.srtt >> 3) * s.tick
    return int(expected_delay(s.written + flow.pieces - s.snd_nxt, window, s.snd_nxt - s.snd_una, round_trip))


@kernel()
def write(flow: Any, s: Any, wire: Any, time: int, size: int, pieces: int) -> int:
    """Write one segment per piece; return the number of the segment after the last one."""
    s.now = time
    s.written += pieces
    return int(s.written)


@kernel()
def count_sacked(s: Any, wire: Any) -> int:
    """Return the number of outstanding segments that SACKs have reported."""
    count = 0
    for number in range(s.snd_una, s.snd_max):
        count += wire.segments[number & MASK].state & SACKED
    return count


@kernel()
def _half_of_flight(s: Any) -> float:
    """Return the slow-start threshold after a loss: half of the segments in flight, but at least two."""
    return float(max(min(s.cwnd, float(s.snd_max - s.snd_una)) / 2.0, 2.0))


@kernel()
def heed_mark(s: Any) -> None:
    """Halve the window for an ECN mark, once per round trip."""
    if s.in_recovery or s.snd_una <= s.ecn_recover:
        return
    s.ssthresh = s.cwnd = _half_of_flight(s)
    s.ecn_recover = s.snd_max


@kernel()
def on_new_acknowledgement(flow: Any, s: Any, wire: Any, link: Any, samples: Any, acknowledged: int) -> None:
    """Process an acknowledgement of new data."""
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
            _grow(s, counted_segments(s, newly))
    elif acknowledged > s.recover or s.variant == RENO:
        s.in_recovery = 0
        s.cwnd = s.ssthresh
    elif s.variant == NEWRENO:
        # A partial acknowledgement: the first segment that it does not cover is lost as well.
        _transmit(flow, s, wire, link, samples, s.snd_una)
        s.cwnd = max(s.cwnd - newly + 1.0, 1.0)
    _set_timer(s)


@kernel()
def _grow(s: Any, segments: float) -> None:
    """Let the window grow: in slow start by `segments`, then by one segment per window of them."""
    s.cwnd = min(s.cwnd + (segments if s.cwnd < s.ssthresh else segments / s.cwnd), float(s.receiver_window))


@kernel()
def on_duplicate_acknowledgement(flow: Any, s: Any, wire: Any, link: Any, samples: Any, number: int) -> None:
    """Process a duplicate acknowledgement; the third in a row starts a recovery."""
    s.dupacks += 1
    if s.variant == SACK and s.snd_una <= number:
        wire.segments[number & MASK].state |= SACKED
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
            wire.segments[other & MASK].state &= ~RETRANSMITTED
    else:
        s.cwnd += DUPLICATE_THRESHOLD
    number = repair_with(s)
    if number < s.written:
        s.snd_nxt = max(s.snd_nxt, number + 1)
        _transmit(flow, s, wire, link, samples, number)
    _set_timer(s)


@kernel()
def _time_out(flow: Any, s: Any, wire: Any) -> None:
    """Process a retransmission timeout: start again at the first segment that is not acknowledged."""
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
        wire.segments[number & MASK].state = 0
    _set_timer(s)


@kernel()
def transmit(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Send the segments that the window allows."""
    if s.in_recovery and s.variant == SACK:
        _fill_pipe(flow, s, wire, link, samples)
        return
    if s.snd_nxt < s.written:
        restart_after_idle(s)
    window = min(int(s.cwnd), s.receiver_window)
    if s.limited_transmit and not s.in_recovery and s.dupacks < DUPLICATE_THRESHOLD:
        window = min(window + s.dupacks, s.receiver_window)
    while s.snd_nxt < s.written and s.snd_nxt < s.snd_una + s.written_off + window:
        s.snd_nxt += 1
        _transmit(flow, s, wire, link, samples, s.snd_nxt - 1)


@kernel()
def _fill_pipe(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Send in a SACK recovery, as long as the pipe has room: first the lost segments, then new data.

    The pipe is the one of RFC 3517, except that a segment counts as lost as soon as a later segment is SACKed, because
    the path keeps the order of segments.
    """
    pipe, end_of_lost = 0, s.snd_una
    for number in range(s.snd_max - 1, s.snd_una - 1, -1):
        flags = wire.segments[number & MASK].state
        if flags & SACKED:
            end_of_lost = max(end_of_lost, number)
        elif flags & RETRANSMITTED or end_of_lost == s.snd_una:
            pipe += 1
    for number in range(s.snd_una, end_of_lost):
        if pipe >= int(s.cwnd):
            return
        if not wire.segments[number & MASK].state & (SACKED | RETRANSMITTED):
            _transmit(flow, s, wire, link, samples, number)
            pipe += 1
    s.snd_nxt = max(s.snd_nxt, s.snd_max)
    while pipe < int(s.cwnd) and s.snd_nxt < min(s.written, s.snd_una + s.receiver_window):
        s.snd_nxt += 1
        _transmit(flow, s, wire, link, samples, s.snd_nxt - 1)
        pipe += 1


@kernel()
def _transmit(flow: Any, s: Any, wire: Any, link: Any, samples: Any, number: int) -> None:
    """Send a segment, and let the receiver process it if it arrives."""
    segment = wire.segments[number & MASK]
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
        flow.marked[number & MASK] = link.marked
        receive(flow, s, wire, samples, number, arrival)


def prepare(stack: Classic, path: SharedPath, flow: Any, connection: Any, phase: int) -> None:
    """Prepare a connection; the send buffer of a bulk source holds two receiver windows by default."""
    tick = round(stack.tick * SECOND)
    constant_rate = flow.application in (CONSTANT_RATE, DISPATCHED)
    flow.ack_delay = round(stack.ack_delay * SECOND)
    flow.first_timeout = round(stack.first_timeout * SECOND)
    if flow.application == BULK and not flow.send_buffer:
        flow.send_buffer = 2 * stack.receiver_window * stack.mss
    settings: dict[str, float] = {
        "variant": VARIANTS[stack.recovery],
        "segment_size": -(-flow.message // flow.pieces) if constant_rate else stack.mss,
        "receiver_window": stack.receiver_window,
        "mss": stack.mss,
        "limited_transmit": int(stack.limited_transmit),
        "byte_counting": int(stack.byte_counting),
        "window_validation": int(stack.window_validation),
        "tick": tick,
        "tick_phase": phase % tick,
        "rto_min": max(-(-round(stack.rto_min * SECOND) // tick), 1),
        "rto": max(-(-round(stack.first_timeout * SECOND) // tick), 1),
        "cwnd": stack.initial_window,
        "ssthresh": stack.receiver_window,
        "recover": -1,
        "ecn_recover": -1,
        "timed": NOT_TIMED,
        "timer_at": NEVER,
        "lifetime": round(stack.deadline * SECOND) if isinstance(stack, TimeLined) else 0,
        "expires_at": NEVER,
        "forge_at": NEVER,
        "last_arrival": -1,
    }
    for name, value in settings.items():
        connection[name] = value


TRANSPORT = Transport(
    state=CLASSIC,
    header=IP_HEADER + TCP_HEADER,
    features=frozenset(
        {"constant rate", "sections", "bulk", "transfers", "dispatching", "ecn", "send buffer", "forging"}
    ),
    prepare=prepare,
    next_time=next_time,
    step=step,
    begin=begin,
    end=end,
    send_queue=send_queue,
    delay_of_next=delay_of_next,
    write=write,
    transmit=transmit,
    segment_per_write=True,
)
TIME_LINED = dataclasses.replace(TRANSPORT, features=frozenset({"constant rate", "sections", "ecn"}))
"""Time-lined TCP: the same kernels, with a lifetime of sections."""
