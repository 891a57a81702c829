"""Connections and the event loop, which processes writes, ACKs and timers in the order of time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.compiling.record_types import Array, Record, record_type
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import COMPRESSION_PERCENT, COMPRESSION_SLACK, DELAYED_ACK_BELOW_TIMEOUT, Linux
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.connections import Engine
from tcpdelay.sim.path import drop_tail_settings, is_reordering, loss_settings, next_arrival, path_settings
from tcpdelay.sim.records import MASK, WIRE, Connection, Rules, Wire, WireRecord
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.acknowledgement import is_undisturbed, on_acknowledgement, pass_undisturbed
from tcpdelay.sim.tcp.constants import NEVER, SECOND
from tcpdelay.sim.tcp.receiver import expect_after_idle, on_receiver_timer, take_arrival
from tcpdelay.sim.tcp.sender import on_pacing_timer, on_timer, send_new
from tcpdelay.sim.tcp.window import restart_after_idle
from tcpdelay.sim.writes import constant_rate, message_record, resume_writing, write_next

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
    wire_type: np.dtype[np.void] = WIRE,
) -> tuple[Connection, Wire[WireRecord]]:
    """Return a connection before its first write, and the record of its segments and ACKs in transit."""
    random = np.random.default_rng(seed)
    wire: Wire[WireRecord] = Wire(random, wire_type)
    connection: Connection = records(1, control.CONNECTION)[0]
    tick = SECOND // stack.hz if rules.ticks else 1
    rtt = round(path.rtt * SECOND)
    # The kernel keeps the smallest timeout in ticks (tcp_rto_min_us).
    rto_min = tcp.to_ticks(round(stack.rto_min * SECOND), tick) * tick
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
        "control": control.number_of(stack.congestion_control),
        "window_validation": int(stack.window_validation),
        "leaping": 1,
        # In earlier captures the whole path delay was spent in a queue of the sender's host, unless there was jitter.
        "host_delay": NEVER if exact_ties and not is_reordering(path) else 0,
        "snd_cwnd": tcp.INITIAL_WINDOW,
        "snd_ssthresh": tcp.INFINITE_THRESHOLD,
        "min_rtt": NEVER,
        "reo_wnd_steps": 1,
        "reordering_distance": tcp.DUPLICATE_THRESHOLD,
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
        **constant_rate(source),
        **_path_settings(path, stack, wire, exact_ties),
    }
    for name, value in settings.items():
        connection[name] = value
    control.start(connection)
    return connection, wire


def _path_settings(path: Path, stack: Linux, wire: Wire[WireRecord], exact_ties: bool = False) -> dict[str, float]:
    """Return the fields of a connection that describe its path."""
    rtt = round(path.rtt * SECOND) + (0 if exact_ties else TIE_BREAK)
    return {
        "rtt": rtt,
        "deferred": int(is_reordering(path)),
        "compression_delay": _compression_delay(stack.kernel, rtt),
        **path_settings(path, wire.record, wire.random),
        **drop_tail_settings(path),
        **loss_settings(wire.record, path.loss, path),
    }


def change_path(connection: Connection, wire: Wire[WireRecord], path: Path, stack: Linux) -> None:
    """Put a connection on another path. Segments that are in the network arrive as they would have."""
    # A path that has been able to reorder segments may still have some in transit.
    deferred = int(connection.deferred)
    for name, value in _path_settings(path, stack, wire).items():
        connection[name] = value
    connection.deferred = max(deferred, int(connection.deferred))
    if not connection.correlated:
        # Only a path with correlated losses ends the round whose rest is lost.
        connection.rest_lost = 0


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


WORK_OF_SEGMENT = 4
"""Work of sending a segment, in units of `SECONDS_PER_WORK`; the event that sends it is counted separately."""
SCANNED_PER_WORK = 128
"""Segments in flight that an event looks through in a unit of work, while some are lost or SACKed."""


@kernel(nogil=True)
def _advance(c: Connection, wire: WireRecord, packets: int, most: int) -> int:
    """Process events until a number of packets have been read, or `most` work is done; return the work."""
    work = 0
    while c.packets_read < packets and c.packets_written < c.messages_known and work < most:
        sent, skipped = c.segments_sent, c.skipped
        process_next(c, wire, packets)
        # In undisturbed time a segment, with its ACK, takes a unit.
        skipped = c.skipped - skipped
        work += 1 + WORK_OF_SEGMENT * (c.segments_sent - sent - skipped) + skipped
        if c.lost_out or c.sacked_out:
            work += (c.next_segment - c.first_segment) // SCANNED_PER_WORK
    return int(work)


@kernel()
def next_event(c: Connection, wire: WireRecord) -> int:
    """Return the time of the next event [us], or `NEVER`."""
    ahead = 0 if c.deferred or c.receiver_timer == NEVER else c.one_way_delay
    arrival = wire.acknowledgements[c.first_ack & MASK].arrival if c.first_ack < c.next_ack else NEVER
    received = min(c.receiver_timer - ahead, next_arrival(c, wire))
    return int(min(min(received, c.pacing_at), min(c.timer_at, min(arrival, c.next_write))))


@kernel()
def process_next(c: Connection, wire: WireRecord, packets: int) -> None:
    """Process the next event, or undisturbed time, in which at most a number of packets are read."""
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
        if c.leaping and is_undisturbed(c, wire) and pass_undisturbed(c, wire, packets - 1):
            return
        c.now = c.next_write
        restart_after_idle(c)
        expect_after_idle(c)
        control.on_write(c)
        write_next(c, wire)
        send_new(c, wire, False)


# The transport of a run; see `tcpdelay.sim.connections`.

CONNECTION_TIME = 1200.0
"""Age up to which the packets of a BBR connection count by default [s]."""
SHORTEST_CONNECTION, LONGEST_CONNECTION = 60.0, 1e6
"""Bounds of this age [s]."""
TCP: Engine[Connection, WireRecord] = Engine(
    new_connection,
    _advance,
    (
        "segments_sent",
        "segments_lost",
        "segments_retransmitted",
        "recoveries",
        "timeouts",
        "probes",
        "reordering_timeouts",
        "undone",
        "dsack_dups",
        "paws_discards",
        "acks_sent",
        "acks_lost",
    ),
    has_ticks=True,
    work_of_connection=40_000,  # its record has megabytes
)


# A simulated connection that advances with a clock, whose writes become known only when they happen.

MOST_WRITES = 1 << 12
"""Capacity of the ring of writes; one of them less may wait to be read."""
LIVE_WIRE = record_type(WireRecord, delays=(3, MOST_WRITES), messages=MOST_WRITES, events=1)
"""A record like `WIRE` with shorter rings, because hundreds of connections are in memory; without a packet trace."""


class Readable(Record):
    """What the receiver can read from a time on."""

    time: int  # In microseconds
    position: int  # In the stream: up to here [bytes]


READABLE = record_type(Readable)
READABLE_PER_CALL = 512
"""Most changes of the readable position in one call of the compiled code."""


class Progress(NamedTuple):
    """The state of a connection at a time."""

    # Times [us], and positions in the stream up to which the receiver can read from then on [bytes]. Times may lie in
    # the future: unless segments can overtake each other, they are known when a segment is sent.
    readable: list[tuple[int, int]]
    next_event: int  # Time of the next event [us], `NEVER` if only a write is an event
    unacknowledged: int  # Bytes written that are not acknowledged
    unsent: int  # Bytes written that have not been sent yet
    window: int  # Congestion window [segments]
    unread: int  # Writes whose last byte has not arrived


class LiveConnection:
    """A simulated connection of Linux, from one write to the next."""

    def __init__(self, path: Path, stack: Linux, seed: int) -> None:
        self._stack = stack
        self._state, self._wire = new_connection(None, path, stack, seed, wire_type=LIVE_WIRE)
        self._state.scheduled, self._state.next_write = 1, NEVER
        self._readable = records(READABLE_PER_CALL, READABLE)

    def advance(self, now: int, size: int = 0) -> Progress:
        """Advance to a time, and write there."""
        readable: list[tuple[int, int]] = []
        while True:
            count, *state = _advance_to(self._state, self._wire.record, self._readable, now, size)
            readable += self._readable[:count].tolist()
            if count < READABLE_PER_CALL:
                return Progress(readable, *map(int, state))
            size = 0

    def change_path(self, path: Path) -> None:
        """Continue on another path, from the time of the last call of `advance` on."""
        change_path(self._state, self._wire, path, self._stack)


@kernel()
def _advance_to(
    c: Connection, wire: WireRecord, readable: Array[Readable], now: int, size: int
) -> tuple[int, int, int, int, int, int]:
    """Process events up to a write of `size` bytes or until `readable` is full; return its length and `Progress`."""
    if size:
        message = message_record(wire, c.messages_known)
        message.written, message.end = now, c.written + size
        c.messages_known += 1
        c.next_write = now
    count = 0
    while count < readable.shape[0] and next_event(c, wire) <= now:
        before = c.rcv_nxt
        process_next(c, wire, 0)
        if c.rcv_nxt > before:
            entry = readable[count]
            # Unless arrivals are deferred, the receiver processes a segment when it is sent.
            entry.time = c.now if c.deferred else c.now + c.one_way_delay
            entry.position = c.rcv_nxt
            count += 1
    unread = c.packets_written - c.packets_read
    return count, next_event(c, wire), c.written - c.snd_una, c.written - c.snd_nxt, c.snd_cwnd, unread
