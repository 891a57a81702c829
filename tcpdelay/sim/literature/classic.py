"""The TCP of the literature up to 2008: Reno, NewReno or SACK, with its receivers and that of TCP-RC."""

from __future__ import annotations

import dataclasses

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import record_type
from tcpdelay.declare import InvalidValueError
from tcpdelay.sim.literature.timelined import (
    SEQ_UPDATE_OPTION,
    ClassicConnection,
    abandon,
    assemble,
    discard_obsolete,
    release,
    repair_with,
)
from tcpdelay.sim.network.bottleneck import DROPPED, SharedPath
from tcpdelay.sim.network.dispatching import expected_delay
from tcpdelay.sim.network.linux import has_room
from tcpdelay.sim.network.stacks import Classic, Recovery, TimeLined
from tcpdelay.sim.network.transport import (
    BULK,
    CONSTANT_RATE,
    DISPATCHED,
    IN_TIMEOUT,
    IP_HEADER,
    TCP_HEADER,
    TRANSFERS,
    FlowRecord,
    Samples,
    Transport,
    add_return_jitter,
    cross,
    finish_transfer,
    is_write_due,
    message_end,
    note_lost,
    note_read,
    note_write,
    wake,
)
from tcpdelay.sim.network.waiting import Link
from tcpdelay.sim.records import KEPT, MASK, WireRecord
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD, NEVER, SECOND

# The receivers of the classic TCP: the normal receiver waits for missing segments, the one of TCP-RC forges them.
#
# TCP-RC does not wait for a lost packet. It sends the duplicate acknowledgements that reduce the sender's window, hands
# a forged packet to the application, and goes on with the next one. (McCreary, Li, Watterson, Lowenthal, "TCP-RC: a
# receiver-centered TCP protocol for delay-sensitive applications", MMCN 2005.)

GAPS_WAITED = 3
"""Mean times between two arrivals after which TCP-RC declares a packet missing that later packets have overtaken."""
ACKNOWLEDGEMENTS = 4
"""Acknowledgements in all that ask for a missing packet, after which the sender takes it for lost."""
GAIN = 0.0625
"""Weight of the latest time between two arrivals in their mean."""


@kernel()
def receive(
    flow: FlowRecord, s: ClassicConnection, wire: WireRecord, samples: Samples, number: int, arrival: int
) -> None:
    """Process the arrival of a segment: read the segments in order, and acknowledge."""
    while s.forge_at < arrival:
        forge_missing(flow, s, wire, samples)
    in_order = number == s.rcv_nxt == s.highest
    s.highest = max(s.highest, number + 1)
    if number >= s.rcv_nxt and not wire.segments[number & MASK].received:
        wire.segments[number & MASK].received = 1
        flow.arrived[number & MASK] = arrival
        if flow.receiver_forges:
            note_gap(s, arrival)
    awaited = s.rcv_nxt
    if s.lifetime:
        _skip_obsolete(flow, s, wire, samples, arrival)
    _read(flow, s, wire, samples, arrival)
    if not flow.receiver_forges:
        acknowledge(flow, s, wire, number, arrival, in_order)
        return
    _acknowledge_and_count(flow, s, wire, number, arrival)
    if s.rcv_nxt > awaited or s.forge_at == NEVER:
        set_forging_timer(flow, s, wire, arrival)


@kernel()
def _skip_obsolete(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, samples: Samples, now: int) -> None:
    """Go on at the `seq_update` of Time-lined TCP: read what has arrived before it; the rest is a gap."""
    while s.rcv_nxt < s.first_live:
        if wire.segments[s.rcv_nxt & MASK].received:
            _read_segment(flow, s, wire, samples, now)
        else:
            s.rcv_nxt += 1
    _read_to(flow, s, wire, samples, now, s.live_from, False)


@kernel()
def _read(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, samples: Samples, now: int) -> None:
    """Read the segments that are in order."""
    while s.rcv_nxt < s.snd_max and wire.segments[s.rcv_nxt & MASK].received:
        _read_segment(flow, s, wire, samples, now)


@kernel()
def _read_segment(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, samples: Samples, now: int) -> None:
    """Read the next segment, and what is missing in the stream before it as a gap."""
    segment = wire.segments[s.rcv_nxt & MASK]
    _read_to(flow, s, wire, samples, now, segment.start, False)
    _read_to(flow, s, wire, samples, now, segment.end, True)
    s.rcv_nxt += 1


@kernel()
def _read_to(
    flow: FlowRecord, s: ClassicConnection, wire: WireRecord, samples: Samples, now: int, position: int, arrived: bool
) -> None:
    """Read the stream up to a position, or pass over a gap that has not arrived; a message with a gap is lost."""
    last = s.rcv_nxt & MASK
    while s.read_to < position:
        end = message_end(flow)
        passed = min(end, position) - s.read_to
        s.read_to += passed
        if not arrived:
            s.gap += passed
        if s.read_to < end:
            return
        flow.connection_read = end
        if s.gap:
            note_lost(flow, s.gap)
        else:
            note_read(flow, samples, wire.segments[last].sent, flow.arrived[last], now)
        s.gap = 0
        if flow.application == TRANSFERS:
            finish_transfer(flow, now)


@kernel()
def acknowledge(
    flow: FlowRecord, s: ClassicConnection, wire: WireRecord, number: int, arrival: int, in_order: bool
) -> None:
    """Acknowledge a segment that arrives.

    A queued, delayed acknowledgement is withdrawn if another segment arrives before its timer would send it: the sender
    cannot have received it when it sent this segment.
    """
    second = flow.ack_held > arrival
    if second:
        s.next_ack -= 1
        flow.last_return = flow.return_before
    flow.ack_held = delay = 0
    if flow.ack_delay and in_order and not second:
        delay = flow.ack_delay
        flow.ack_held = arrival + delay
        flow.return_before = flow.last_return
    acknowledgement = wire.acknowledgements[s.next_ack & MASK]
    acknowledgement.arrival = arrival + delay + flow.return_delay
    acknowledgement.acknowledged = s.rcv_nxt
    acknowledgement.segment = number
    s.next_ack += 1
    add_return_jitter(flow, wire, s.next_ack - 1, s.next_ack)


@kernel()
def note_gap(s: ClassicConnection, arrival: int) -> None:
    """Update the mean time between two arrivals; the packet has not arrived before."""
    if s.last_arrival >= 0:
        gap = float(arrival - s.last_arrival)
        s.mean_gap = s.mean_gap + GAIN * (gap - s.mean_gap) if s.mean_gap > 0.0 else gap
    s.last_arrival = arrival


@kernel()
def _acknowledge_and_count(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, number: int, time: int) -> None:
    """Acknowledge at once, and count the duplicate acknowledgements of the same packet."""
    s.duplicates = s.duplicates + 1 if s.acknowledged == s.rcv_nxt else 0
    s.acknowledged = s.rcv_nxt
    acknowledge(flow, s, wire, number, time, False)


@kernel()
def set_forging_timer(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, now: int) -> None:
    """Start the timer of TCP-RC if a packet has overtaken the next one; it runs from the first such arrival."""
    s.forge_at = NEVER
    if s.rcv_nxt >= s.highest or s.mean_gap <= 0.0:
        return
    overtaken = NEVER
    for number in range(s.rcv_nxt + 1, s.highest):
        if wire.segments[number & MASK].received:
            overtaken = min(overtaken, flow.arrived[number & MASK])
    s.forge_at = max(overtaken + round(GAPS_WAITED * s.mean_gap), now)


@kernel()
def forge_missing(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, samples: Samples) -> None:
    """Declare the next packet missing: hand a forged packet to the application in its place, and read on behind it."""
    now = s.forge_at
    # Complete the acknowledgements that ask for it, so that the sender reduces its window.
    missing = s.rcv_nxt
    while s.acknowledged != missing or s.duplicates < ACKNOWLEDGEMENTS - 1:
        _acknowledge_and_count(flow, s, wire, s.highest - 1, now)
    _read_to(flow, s, wire, samples, now, wire.segments[missing & MASK].end, False)
    s.rcv_nxt += 1
    _read(flow, s, wire, samples, now)
    # The forged packet is acknowledged as well.
    _acknowledge_and_count(flow, s, wire, s.highest - 1, now)
    set_forging_timer(flow, s, wire, now)


# The TCP of the literature up to 2008: Reno, NewReno or SACK, with three duplicate ACKs and a window of segments.
#
# TCP is a byte stream. The Nagle algorithm is off, so while the window is open, each write leaves at once as a segment.
# Bytes that wait for the window are assembled into full segments [3]. The window counts segments of any size.
#
# A retransmission has the boundaries of the first transmission. Stacks differ here: 4.4BSD sends up to a full segment
# from the first missing byte on, while Linux 2.6 joins at most one following segment to a segment of less than half the
# MSS, and only if neither is in page fragments, as they are with a network card that gathers (`tcp_retransmit_skb` in
# net/ipv4/tcp_output.c). The published model of 2008 does not join segments.
#
# Names follow RFC 6582.
#
# References:
# [1] Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988; Stevens, "TCP/IP Illustrated", volume 2: Reno.
# [2] RFC 6582 (NewReno), RFC 2018 and RFC 3517 (SACK), RFC 3042 (limited transmit), RFC 3168 (ECN), RFC 3465 (byte
#     counting), RFC 2861 (window validation).
# [3] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
#     Transactions on Networking, 2010: packet assembly; byte counting and window validation with small packets.

LARGEST_STEP, LARGEST_STEP_AFTER_TIMEOUT = 2.0, 1.0
"""L of RFC 3465: largest growth of the window per acknowledgement in slow start [full segments]."""


@kernel()
def counted_segments(s: ClassicConnection, acknowledged: int) -> float:
    """Return by how many segments an acknowledgement of so many bytes lets the window grow; 1 without byte counting."""
    if not s.byte_counting:
        return 1.0
    segments = acknowledged / s.mss
    if s.cwnd < s.ssthresh:
        segments = min(segments, LARGEST_STEP_AFTER_TIMEOUT if s.timeouts else LARGEST_STEP)
    return float(segments)


@kernel()
def may_grow(s: ClassicConnection, outstanding: int) -> bool:
    """Return whether the window may grow: with window validation only if it was full before the acknowledgement."""
    return bool(not s.window_validation or outstanding >= min(int(s.cwnd), s.receiver_window))


@kernel()
def restart_after_idle(s: ClassicConnection) -> None:
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


@kernel()
def next_time(flow: FlowRecord, s: ClassicConnection, wire: WireRecord) -> int:
    """Return when the next event of the connection is due."""
    arrival = wire.acknowledgements[s.first_ack & MASK].arrival if s.first_ack < s.next_ack else NEVER
    timer = min(s.timer_at, min(s.expires_at, s.forge_at))
    return int(min(min(arrival, timer), flow.next_write))


@kernel()
def step(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples) -> int:
    """Process the next event: a timer, an acknowledgement or a write; return when the following one is due."""
    acknowledgement = wire.acknowledgements[s.first_ack & MASK]
    arrival = acknowledgement.arrival if s.first_ack < s.next_ack else NEVER
    other = min(min(arrival, s.timer_at), flow.next_write)
    awake = flow.wake_up == 0
    if s.expires_at < NEVER and s.expires_at <= other:
        s.now = s.expires_at
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
        awake = True
        if is_write_due(flow, link):
            for _ in range(flow.section):
                _write(flow, s)
    if flow.application == BULK and flow.first_write <= s.now < flow.stop:
        sacked_out = count_sacked(s, wire) if flow.buffer_windows else 0
        while awake and is_writable(flow, s, sacked_out):
            _write(flow, s)
        if not awake and is_writable(flow, s, sacked_out):
            wake(flow, s.now)
    transmit(flow, s, wire, link, samples)
    return int(next_time(flow, s, wire))


@kernel()
def end(flow: FlowRecord, s: ClassicConnection) -> None:
    """Add the counts of a closed connection to the counts of the flow."""
    flow.retransmissions += s.segments_retransmitted
    flow.timeouts += s.timeouts


@kernel()
def begin(flow: FlowRecord, s: ClassicConnection) -> None:
    """Start a connection; its handshake has measured the round-trip time."""
    s.now = flow.next_write
    flow.ack_held = flow.last_return = flow.connection_read = 0
    update_estimate(s, flow.round_trip // s.tick)


@kernel()
def update_estimate(s: ClassicConnection, elapsed: int) -> None:
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
def ticks_at(s: ClassicConnection, time: int) -> int:
    """Return the current tick of the sender's clock at a time [us]."""
    return int((time + s.tick_phase) // s.tick)


@kernel()
def _set_timer(s: ClassicConnection) -> None:
    """Start the retransmission timer; it fires at a tick, up to one tick earlier than the timeout."""
    s.timer_at = NEVER
    if s.snd_max > s.snd_una:
        s.timer_at = (ticks_at(s, s.now) + (s.rto << s.backoff)) * s.tick - s.tick_phase


@kernel()
def _write(flow: FlowRecord, s: ClassicConnection) -> None:
    """Write a message."""
    note_write(flow, s.now)
    s.written += flow.message


@kernel()
def has_data(s: ClassicConnection, number: int) -> bool:
    """Return whether there is data for a segment: it was sent before, or bytes wait to be assembled."""
    return bool(number < s.snd_max or s.assembled < s.written)


@kernel()
def unsent_segments(s: ClassicConnection, further: int) -> int:
    """Return the segments that wait to be sent, or sent again, with so many further bytes."""
    return int(s.snd_max - s.snd_nxt - (s.assembled - s.written - further) // s.mss)


@kernel()
def is_writable(flow: FlowRecord, s: ClassicConnection, sacked_out: int) -> bool:
    """Return whether the send buffer accepts another packet of a bulk source; `sacked_out` is 0 without SACK."""
    if s.written - s.acknowledged_to + flow.message > flow.send_buffer:
        return False
    return bool(has_room(flow, s.snd_nxt - s.snd_una + unsent_segments(s, 0), int(s.cwnd), sacked_out))


@kernel()
def send_queue(flow: FlowRecord, s: ClassicConnection) -> int:
    """Return the bytes that are not acknowledged, plus `IN_TIMEOUT` during a timeout."""
    return int(s.written - s.acknowledged_to + (IN_TIMEOUT if s.backoff > 0 else 0))


@kernel()
def delay_of_next(flow: FlowRecord, s: ClassicConnection) -> int:
    """Return the expected delay of the next message [us], or `NEVER` if the send buffer has no room for it."""
    in_flight = s.snd_nxt - s.snd_una
    if not has_room(flow, in_flight + unsent_segments(s, 0), int(s.cwnd), 0):
        return NEVER
    window = min(int(s.cwnd), s.receiver_window)
    round_trip = (s.srtt >> 3) * s.tick
    return int(expected_delay(unsent_segments(s, flow.message), window, in_flight, round_trip))


@kernel()
def write(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, time: int, size: int, pieces: int) -> int:
    """Let `transmit` write `size` bytes in pieces of nearly equal size; return where they end in the stream."""
    s.now = time
    s.unwritten, s.pieces = size, pieces
    return int(s.written + size)


@kernel()
def count_sacked(s: ClassicConnection, wire: WireRecord) -> int:
    """Return the number of outstanding segments that SACKs have reported."""
    count = 0
    for number in range(s.snd_una, s.snd_max):
        count += wire.segments[number & MASK].state & SACKED
    return count


@kernel()
def _half_of_flight(s: ClassicConnection) -> float:
    """Return the slow-start threshold after a loss: half of the segments in flight, but at least two."""
    return float(max(min(s.cwnd, float(s.snd_max - s.snd_una)) / 2.0, 2.0))


@kernel()
def heed_mark(s: ClassicConnection) -> None:
    """Halve the window for an ECN mark, once per round trip."""
    if s.in_recovery or s.snd_una <= s.ecn_recover:
        return
    s.ssthresh = s.cwnd = _half_of_flight(s)
    s.ecn_recover = s.snd_max


@kernel()
def on_new_acknowledgement(
    flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples, acknowledged: int
) -> None:
    """Process an acknowledgement of new data."""
    newly, outstanding = acknowledged - s.snd_una, s.snd_max - s.snd_una
    s.acknowledged_to = wire.segments[(acknowledged - 1) & MASK].end
    bytes_acknowledged = s.acknowledged_to - wire.segments[s.snd_una & MASK].start
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
            _grow(s, counted_segments(s, bytes_acknowledged))
    elif acknowledged > s.recover or s.variant == RENO:
        s.in_recovery = 0
        s.cwnd = s.ssthresh
    elif s.variant == NEWRENO:
        # A partial acknowledgement: the first segment that it does not cover is lost as well.
        _transmit(flow, s, wire, link, samples, s.snd_una)
        s.cwnd = max(s.cwnd - newly + 1.0, 1.0)
    _set_timer(s)


@kernel()
def _grow(s: ClassicConnection, segments: float) -> None:
    """Let the window grow: in slow start by `segments`, then by one segment per window of them."""
    s.cwnd = min(s.cwnd + (segments if s.cwnd < s.ssthresh else segments / s.cwnd), float(s.receiver_window))


@kernel()
def on_duplicate_acknowledgement(
    flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples, number: int
) -> None:
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
    number = repair_with(flow, s, wire)
    if has_data(s, number):
        s.snd_nxt = max(s.snd_nxt, number + 1)
        _transmit(flow, s, wire, link, samples, number)
    _set_timer(s)


@kernel()
def _time_out(flow: FlowRecord, s: ClassicConnection, wire: WireRecord) -> None:
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
def transmit(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Send the segments that the window allows, after each piece that a dispatcher has written."""
    while s.pieces > 1:
        _write_piece(s)
        _send_allowed(flow, s, wire, link, samples)
    if s.pieces:
        _write_piece(s)
    _send_allowed(flow, s, wire, link, samples)


@kernel()
def _write_piece(s: ClassicConnection) -> None:
    """Write one of the pieces that are left."""
    size = -(-s.unwritten // s.pieces)
    s.written += size
    s.unwritten -= size
    s.pieces -= 1


@kernel()
def _send_allowed(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Send the segments that the window allows."""
    if s.in_recovery and s.variant == SACK:
        _fill_pipe(flow, s, wire, link, samples)
        return
    if s.lifetime:
        discard_obsolete(flow, s, wire)
    if has_data(s, s.snd_nxt):
        restart_after_idle(s)
    window = min(int(s.cwnd), s.receiver_window)
    if s.limited_transmit and not s.in_recovery and s.dupacks < DUPLICATE_THRESHOLD:
        window = min(window + s.dupacks, s.receiver_window)
    while has_data(s, s.snd_nxt) and s.snd_nxt < s.snd_una + s.written_off + window:
        s.snd_nxt += 1
        _transmit(flow, s, wire, link, samples, s.snd_nxt - 1)
        if s.lifetime:
            discard_obsolete(flow, s, wire)


@kernel()
def _fill_pipe(flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Send in a SACK recovery, as long as the pipe has room: first the lost segments, then new data (RFC 3517).

    A segment counts as lost as soon as a later segment is SACKed, because the path keeps the order of segments.
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
    while pipe < int(s.cwnd) and has_data(s, s.snd_nxt) and s.snd_nxt < s.snd_una + s.receiver_window:
        s.snd_nxt += 1
        _transmit(flow, s, wire, link, samples, s.snd_nxt - 1)
        pipe += 1


@kernel()
def _transmit(
    flow: FlowRecord, s: ClassicConnection, wire: WireRecord, link: Link, samples: Samples, number: int
) -> None:
    """Send a segment, if new with the next bytes of the stream up to the MSS, and let the receiver process it."""
    segment = wire.segments[number & MASK]
    outstanding = s.snd_max > s.snd_una
    s.last_sent = s.now
    if number >= s.snd_max:
        s.snd_max = number + 1
        segment.sent = s.now
        segment.start = s.assembled
        segment.end = assemble(flow, s, number) if s.lifetime else min(s.assembled + s.mss, s.written)
        s.assembled = segment.end
        segment.state = segment.received = 0
        if s.timed == NOT_TIMED:
            s.timed, s.timed_at = number, ticks_at(s, s.now)
    else:
        s.segments_retransmitted += 1
        segment.state |= RETRANSMITTED
        if not segment.received:
            segment.start = max(segment.start, s.live_from)
        if s.timed == number:
            s.timed = NOT_TIMED
    if not outstanding:
        _set_timer(s)
    arrival = cross(flow, link, s.now, segment.end - segment.start)
    if arrival != DROPPED:
        flow.marked[number & MASK] = link.marked
        receive(flow, s, wire, samples, number, arrival)


def prepare(stack: Classic, path: SharedPath, flow: FlowRecord, connection: ClassicConnection, phase: int) -> None:
    """Prepare a connection; the send buffer of a bulk source holds two receiver windows by default."""
    tick = round(stack.tick * SECOND)
    # All messages read at one time are segments of a window that waited, and of a window that is sent.
    largest_read = 2 * stack.receiver_window * stack.mss
    if flow.application in (CONSTANT_RATE, DISPATCHED) and largest_read > KEPT * flow.message:
        smallest = -(-largest_read // KEPT)
        raise InvalidValueError("packet_size", int(flow.message), f"be at least {smallest} bytes with this window")
    flow.ack_delay = round(stack.ack_delay * SECOND)
    flow.first_timeout = round(stack.first_timeout * SECOND)
    if flow.application == BULK and not flow.send_buffer:
        flow.send_buffer = max(2 * stack.receiver_window * stack.mss, flow.message)
    settings: dict[str, float] = {
        "variant": VARIANTS[stack.recovery],
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
    state=record_type(ClassicConnection),
    header=IP_HEADER + TCP_HEADER,
    features=frozenset(
        {"constant rate", "messages", "sections", "bulk", "transfers", "dispatching", "ecn", "send buffer", "forging"}
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
)
TIME_LINED = dataclasses.replace(
    TRANSPORT,
    header=TRANSPORT.header + SEQ_UPDATE_OPTION,
    features=frozenset({"constant rate", "messages", "sections", "deadlines", "ecn"}),
)
"""Time-lined TCP: the same kernels, with a lifetime of sections."""
