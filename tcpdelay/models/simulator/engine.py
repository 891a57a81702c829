"""The start of a connection, and the event loop, which processes writes, ACKs and timers in the order of time."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from tcpdelay.models import tcp
from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.simulator.acknowledgement import on_acknowledgement, update_estimate
from tcpdelay.models.simulator.bbr import start as start_bbr
from tcpdelay.models.simulator.delivery_rate import check_application_limited
from tcpdelay.models.simulator.path import (
    drop_tail_settings,
    is_reordering,
    loss_settings,
    next_arrival,
    path_settings,
    take_arrival,
)
from tcpdelay.models.simulator.receiver import expect_after_idle, on_receiver_timer
from tcpdelay.models.simulator.records import CONNECTION, MASK, MOST_EVENTS, NEVER, OPEN, WIRE, Rules, Wire
from tcpdelay.models.simulator.sender import on_pacing_timer, on_timer, send_new
from tcpdelay.models.simulator.window import ACKNOWLEDGED, SENT, in_slow_start, note_at, restart_after_idle
from tcpdelay.models.simulator.writes import WriteSchedule, resume_writing, write_next
from tcpdelay.models.stopping import give_up_if_stopped
from tcpdelay.models.tcp import SECOND
from tcpdelay.scenario.kernels import COMPRESSION_PERCENT, COMPRESSION_SLACK, DELAYED_ACK_BELOW_TIMEOUT
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Linux

TIE_BREAK = 1
"""Time by which the round-trip time is longer unless exact ties are requested [us]."""
ALL_RULES = Rules()


def new_connection(
    source: Source | None,
    path: Path,
    stack: Linux,
    seed: int,
    rules: Rules = ALL_RULES,
    exact_ties: bool = False,
    wire_type: np.dtype[Any] = WIRE,
) -> tuple[Any, Wire]:
    """Return a connection before its first write, and the record of its segments and ACKs in transit.

    Parameters
    ----------
    source, path, stack : Source, Path, Linux
        The scenario. The messages of a source other than a `Flow` come from a `WriteSchedule`, and without a source
        from the caller.
    seed : int
        Seed of all random numbers, 0 or more.
    rules : Rules
        The kernel's rules that the simulation follows.
    exact_ties : bool
        Whether times are exact to the microsecond; `simulate` explains this.
    wire_type : dtype
        Type of the record of segments and ACKs: `WIRE`, or one with other sizes.

    Examples
    --------
    >>> connection, _ = new_connection(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Linux(), seed=1)
    >>> int(connection.interval), int(connection.rtt)
    (20000, 100001)
    """
    random = np.random.default_rng(seed)
    wire = Wire(random, wire_type)
    (connection,) = records(1, CONNECTION)
    tick = SECOND // stack.hz if rules.ticks else 1
    rtt = round(path.rtt * SECOND)
    # The kernel keeps the smallest timeout in ticks (tcp_rto_min_us).
    rto_min = tcp.to_ticks(round(stack.rto_min * SECOND), tick) * tick
    bbr = stack.congestion_control == "bbr"
    settings = rules.switches() | {
        "mss": stack.mss,
        "exact_ties": int(exact_ties),
        "delayed_ack": int(stack.delayed_ack),
        "delack_max": _longest_ack_delay(stack, rto_min, tick),
        "tick": tick,
        # The flow begins at a random time within a tick. The tick 0 never occurs, because 0 means "unset".
        "tick_phase": SECOND * SECOND // tick * tick + int(random.integers(tick)),
        "rto_min": rto_min,
        "rto_max": round(stack.rto_max * SECOND) // tick,
        "cubic": int(stack.congestion_control == "cubic"),
        "bbr": int(bbr),
        # BBR keeps its window while the application does not fill it (tcp_slow_start_after_idle_check).
        "window_validation": int(stack.window_validation and not bbr),
        "leaping": int(not bbr and isinstance(source, Flow)),
        # The handshake delivers the first segment.
        "delivered": int(bbr),
        # In the testbed the whole path delay is spent in a queue of the sender's host.
        "host_delay": NEVER if exact_ties else 0,
        "snd_cwnd": tcp.INITIAL_WINDOW,
        "snd_ssthresh": tcp.INFINITE_THRESHOLD,
        "min_rtt": NEVER,
        "reo_wnd_steps": 1,
        "undo_retrans": -1,
        "timer_at": NEVER,
        "pacing_at": NEVER,
        "receiver_timer": NEVER,
        "delayed_ack_at": NEVER,
        "compressed_at": NEVER,
        "read_at": NEVER,
        "merging_at": NEVER,
        "compressed_rcv_nxt": -1,
        "rcv_mss": min(tcp.INITIAL_RECEIVE_MSS, stack.mss),
        # The receiver sends no data, so it knows only the RTT sample of the handshake.
        "receiver_rto": -(-(rtt + max(2 * rtt, rto_min)) // tick),
        "rto": -(-round(tcp.FIRST_TIMEOUT * SECOND) // tick),
        **_constant_rate(source),
        **_path_settings(path, stack, wire, exact_ties),
    }
    for name, value in settings.items():
        connection[name] = value
    if bbr:
        start_bbr(connection)
    return connection, wire


def _path_settings(path: Path, stack: Linux, wire: Wire, exact_ties: bool = False) -> dict[str, float]:
    """Return the fields of a connection that describe its path."""
    rtt = round(path.rtt * SECOND) + (0 if exact_ties else TIE_BREAK)
    return {
        "rtt": rtt,
        "deferred": int(is_reordering(path)),
        "compression_delay": _compression_delay(stack.kernel, rtt),
        **path_settings(path),
        **drop_tail_settings(path),
        **loss_settings(wire.record, path.loss, path.loss_burst, path.bad_time, path.bad_loss),
    }


def change_path(connection: Any, wire: Wire, path: Path, stack: Linux) -> None:
    """Put a connection on another path. Segments that are in the network arrive as they would have.

    Parameters
    ----------
    connection : record
        The connection, without exact ties.
    wire : Wire
        Its segments and ACKs in transit.
    path : Path
        The path from now on.
    stack : Linux
        The stack of the connection.

    Examples
    --------
    >>> connection, wire = new_connection(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Linux(), seed=1)
    >>> change_path(connection, wire, Path(rtt=0.060, loss=0.0), Linux())
    >>> int(connection.one_way_delay), float(connection.loss)
    (30000, 0.0)
    """
    # A path that has been able to reorder segments may still have some in transit.
    deferred = int(connection.deferred)
    for name, value in _path_settings(path, stack, wire).items():
        connection[name] = value
    connection.deferred = max(deferred, int(connection.deferred))


def _longest_ack_delay(stack: Linux, rto_min: int, tick: int) -> int:
    """Return the longest delay of an ACK [ticks]: TCP_DELACK_MAX_US, and by the minimum timeout (`tcp_delack_max`)."""
    longest = min(tcp.to_ticks(round(stack.delack_max * SECOND), tick), SECOND // tick // tcp.DELAYED_ACKS_PUSHED)
    if DELAYED_ACK_BELOW_TIMEOUT.holds(stack.kernel):
        longest = min(longest, max(rto_min // tick, tcp.TIMEOUT_MIN_TICKS) - 1)
    return longest


def _compression_delay(kernel: str, rtt: int) -> int:
    """Return the delay of a compressed SACK [us]: a share of the RTT [us], and the slack (`__tcp_ack_snd_check`)."""
    share = COMPRESSION_PERCENT.value(kernel) * rtt // 100
    return min(tcp.COMPRESSION_DELAY, share) + COMPRESSION_SLACK.value(kernel)


def _constant_rate(source: Source | None) -> dict[str, int]:
    """Return size and interval of a constant-rate flow as fields of a connection; nothing for any other source."""
    if not isinstance(source, Flow):
        return {}
    return {"packet_size": source.packet_size, "interval": round(source.interval * SECOND), "messages_known": NEVER}


EVENTS_PER_CALL = 20_000
"""Most events that one call of the compiled code processes: some milliseconds, with large windows some tenths of a
second."""
SHORTEST_LEAP = 4
"""Fewest packets that one leap skips: a shorter leap takes longer than the events that it saves."""
SETTLING_SAMPLES = 64
"""Samples of a constant round-trip time after which the smoothed RTT no longer changes."""


def advance(
    connection: Any, wire: Wire, packets: int, schedule: WriteSchedule | None = None, ends: float = math.inf
) -> None:
    """Simulate until a number of packets have been read, or fewer if the source or the time ends or messages pile up.

    Parameters
    ----------
    connection : record
        The connection.
    wire : Wire
        Its segments and ACKs in transit, and the buffer of the delays.
    packets : int
        Number of packets since the start of the connection; at most `KEPT` more than have been read so far.
    schedule : WriteSchedule, optional
        The messages of a source; none for a constant rate.
    ends : float
        Processor time of this thread at which the simulation ends [s].
    """
    # The call between two looks at the clock lets an interrupt through.
    while connection.packets_read < packets and time.thread_time() < ends:
        give_up_if_stopped()
        if schedule is not None:
            packets = min(packets, schedule.fill(connection, wire))
        _advance(connection, wire.record, packets, EVENTS_PER_CALL)


def compile_loop(connection: Any, wire: Wire) -> None:
    """Compile the event loop without processing an event, so that its time does not count."""
    _advance(connection, wire.record, 0, 0)


@kernel(nogil=True)
def _advance(c: Any, wire: Any, packets: int, events: int) -> None:
    """Process events until a number of packets have been read, but at most a number of events."""
    while c.packets_read < packets and c.packets_written < c.messages_known and events > 0:
        events -= 1
        process_next(c, wire, packets)


@kernel()
def next_event(c: Any, wire: Any) -> int:
    """Return the time of the next event [us], or `NEVER`."""
    ahead = 0 if c.deferred or c.receiver_timer == NEVER else c.one_way_delay
    arrival = wire.acknowledgements[c.first_ack & MASK].arrival if c.first_ack < c.next_ack else NEVER
    received = min(c.receiver_timer - ahead, next_arrival(c, wire))
    return int(min(min(received, c.pacing_at), min(c.timer_at, min(arrival, c.next_write))))


@kernel()
def process_next(c: Any, wire: Any, packets: int) -> None:
    """Process the next event; where nothing happens until a loss, at most a number of packets are read."""
    # Unless arrivals are deferred, the receiver processes a segment when it is sent: the receiver's clock is ahead.
    ahead = 0 if c.deferred else c.one_way_delay
    acknowledgement = wire.acknowledgements[c.first_ack & MASK]
    arrival = acknowledgement.arrival if c.first_ack < c.next_ack else NEVER
    received = min(c.receiver_timer - ahead, next_arrival(c, wire))
    if min(received, c.pacing_at) <= min(c.timer_at, arrival, c.next_write):
        c.now = min(received, c.pacing_at)
        if c.now < received:
            on_pacing_timer(c, wire)
        elif received == c.receiver_timer - ahead:
            on_receiver_timer(c, wire)
        else:
            take_arrival(c, wire)
    elif c.timer_at <= arrival and c.timer_at <= c.next_write:
        c.now = c.timer_at
        on_timer(c, wire)
    elif arrival < c.next_write:
        c.now = arrival
        c.first_ack += 1
        on_acknowledgement(c, wire, acknowledgement)
        if c.write_blocked:
            resume_writing(c, wire)
    else:
        if c.leaping and _is_quiet(c, wire):
            _leap(c, wire, min(c.until_loss - 1, packets - c.packets_read - 1))
        c.now = c.next_write
        restart_after_idle(c)
        expect_after_idle(c)
        if c.bbr:
            check_application_limited(c)
        write_next(c, wire)
        send_new(c, wire, False)


@kernel()
def _is_quiet(c: Any, wire: Any) -> bool:
    """Return whether every interval up to the next loss will be like the last interval.

    This holds if the window neither limits the sender nor changes, and if one packet per interval, in a segment of its
    own, has been sent for a whole round-trip time.
    """
    if (
        c.until_loss <= SHORTEST_LEAP
        or c.loss_burst > 1.0
        or c.bad_time > 0.0
        or c.correlated
        or c.ca_state != OPEN
        or c.is_cwnd_limited
    ):
        return False
    if c.sacked_out or c.lost_out or c.retrans_out or c.tlp_high_seq or c.packet_size > c.mss or c.snd_nxt < c.written:
        return False
    if c.deferred or c.ack_loss > 0.0 or c.receiver_timer != NEVER or not c.application_limited_rule:
        return False
    if c.packets_out + 1 >= c.snd_cwnd:
        return False
    if in_slow_start(c) and c.snd_cwnd < 2 * c.max_packets_out:
        return False
    if c.packets_out != c.next_ack - c.first_ack or c.packets_out != c.rtt // c.interval:
        return False
    for place in range(c.packets_out):
        segment = wire.segments[(c.next_segment - 1 - place) & MASK]
        if segment.sent != c.next_write - (place + 1) * c.interval or segment.end - segment.start != c.packet_size:
            return False
    return True


@kernel()
def _leap(c: Any, wire: Any, packets: int) -> None:
    """Advance the state by a number of packets whose delay is the network's delay only."""
    if packets < SHORTEST_LEAP:
        return
    for number in range(c.packets_read, c.packets_read + packets):
        wire.delays[0, number % wire.delays.shape[1]] = c.one_way_delay
        wire.delays[1, number % wire.delays.shape[1]] = 0
    if c.tracing:
        _note_leap(c, wire, packets)
    time, size = packets * c.interval, packets * c.packet_size
    for _ in range(min(packets, SETTLING_SAMPLES)):
        update_estimate(c, c.rtt)
    if c.cubic_epoch and c.packets_out == 0:
        c.cubic_epoch += time // c.tick
    for number in range(c.first_segment, c.next_segment):
        segment = wire.segments[number & MASK]
        segment.start += size
        segment.end += size
        segment.sent += time
        segment.delivered += packets
    for number in range(c.first_ack, c.next_ack):
        acknowledgement = wire.acknowledgements[number & MASK]
        acknowledgement.arrival += time
        acknowledgement.acknowledged += size
        acknowledgement.echo += time
    c.now += time
    c.next_write += time
    c.timer_at += time
    c.rack_mstamp += time
    c.last_send += time // c.tick
    c.snd_cwnd_stamp += time // c.tick
    c.packets_written += packets
    c.packets_sent += packets
    c.packets_read += packets
    c.written += size
    c.snd_nxt += size
    c.snd_una += size
    c.rcv_nxt += size
    c.rcv_wup += size
    c.ts_recent += time
    c.last_ack_arrival += time
    c.lrcvtime += time // c.tick
    c.delivered += packets
    c.rack_last_delivered += packets
    c.rack_end_seq += size
    c.cwnd_usage_seq += size
    c.high_seq += size
    c.rtt_seq += size
    c.until_loss -= packets
    c.segments_sent += packets
    c.acks_sent += packets
    c.skipped += packets


@kernel()
def _note_leap(c: Any, wire: Any, packets: int) -> None:
    """Add the segments and ACKs that a leap skips to the packet trace, in the order of time."""
    acknowledged = wire.acknowledgements[c.first_ack & MASK].arrival if c.packets_out else c.next_write + c.rtt
    for number in range(packets):
        if c.events >= MOST_EVENTS:
            return
        start, later = c.snd_nxt + number * c.packet_size, number * c.interval
        note_at(c, wire, SENT, c.next_write + later, start, start + c.packet_size)
        oldest = c.snd_una + number * c.packet_size
        note_at(c, wire, ACKNOWLEDGED, acknowledged + later, oldest, oldest + c.packet_size)
