"""The start of a QUIC connection, and the event loop, which processes writes, ACKs and timers in the order of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.scenario.media import KEY_FRAME
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import Delivery, Quic
from tcpdelay.sim.congestion.newreno import UNLIMITED
from tcpdelay.sim.congestion.of_quic import number_of, start
from tcpdelay.sim.connections import Engine
from tcpdelay.sim.engine import TIE_BREAK
from tcpdelay.sim.path import depart, drop_tail_settings, is_dropped, loss_settings, next_arrival, path_settings
from tcpdelay.sim.quic.connection import (
    CONNECTION,
    DATAGRAMS,
    GROUPS,
    IMPLEMENTATIONS,
    NONE,
    ONE_STREAM,
    WIRE,
    Connection,
    WireRecord,
    is_backlogged,
    packet_record,
)
from tcpdelay.sim.quic.sender import (
    SKIPPED,
    acknowledge,
    drop,
    on_acknowledgement,
    on_timer,
    send,
    take_arrival,
    timer_at,
    write,
)
from tcpdelay.sim.records import Wire
from tcpdelay.sim.tcp.constants import INFINITE_THRESHOLD, MILLISECOND, NEVER, SECOND
from tcpdelay.sim.writes import WriteSchedule, constant_rate, written_at

_DELIVERIES: dict[Delivery, int] = {
    "stream": ONE_STREAM,
    "stream_per_message": GROUPS,
    "stream_per_group": GROUPS,
    "datagram": DATAGRAMS,
}


def new_connection(source: Source, path: Path, stack: Quic, seed: int) -> tuple[Connection, Wire[WireRecord]]:
    """Return a connection before its first write, after a handshake that has measured the RTT once, and its rings.

    ACKs of the handshake are not delayed (RFC 9002, 5.3), so that this sample is the RTT of the path.
    """
    wire: Wire[WireRecord] = Wire(np.random.default_rng(seed), WIRE)
    connection: Connection = records(1, CONNECTION)[0]
    rules = IMPLEMENTATIONS[stack.implementation]
    group = 1 if stack.delivery in ("stream_per_message", "datagram") else stack.group
    if KEY_FRAME in source.kinds and stack.delivery == "stream_per_group":
        group = 0
    rtt = round(path.rtt * SECOND) + TIE_BREAK
    settings = rules.settings(stack.max_ack_delay) | {
        "mss": rules.datagram_size,
        "datagram_payload": rules.payload,
        "rtt": rtt,
        "delivery": _DELIVERIES[stack.delivery],
        "group": group,
        "control": number_of(stack),
        # For BBR: the granularity of its clock of seconds; and the handshake delivers the first packet.
        "tick": MILLISECOND,
        "tick_phase": SECOND * SECOND,
        "snd_cwnd": rules.initial_window,
        "snd_ssthresh": INFINITE_THRESHOLD,
        "delivered": 1,
        "srtt": 8 * rtt,
        "min_rtt": rtt,
        "congestion_window": rules.initial_window * rules.datagram_size,
        "slow_start_threshold": UNLIMITED,
        "tokens": rules.pacing_burst * rules.datagram_size,
        "smallest_rtt": rtt,
        "latest_rtt": rtt,
        "smoothed_rtt": rtt,
        "rtt_variation": rtt / 2,
        "recovery_start": -1,
        "largest_acknowledged": -1,
        "largest_received": -1,
        "loss_time": NEVER,
        "pacing_at": NEVER,
        "receiver_timer": NEVER,
        "free_piece": NONE,
        **path_settings(path, wire.record, wire.random),
        **drop_tail_settings(path),
        **loss_settings(wire.record, path.loss, path),
        **constant_rate(source),
    }
    for name, value in settings.items():
        connection[name] = value
    start(connection)
    return connection, wire


class QuicSchedule(WriteSchedule):
    """The messages of a source, and for a video also which of them begin a group of pictures."""

    def __init__(self, source: Source, seed: int) -> None:
        super().__init__(source, seed)
        self._key_frame = source.kinds.index(KEY_FRAME) if KEY_FRAME in source.kinds else None

    def _marks(self, block: NDArray[np.void]) -> dict[str, NDArray[np.bool_]]:
        return {} if self._key_frame is None else {"begins_group": block["kind"] == self._key_frame}


WORK_OF_EVENT, WORK_OF_PACKET = 2, 4
"""Work of an event, and of sending a packet, in units of `SECONDS_PER_WORK`."""


@kernel()
def cross(c: Connection, wire: WireRecord) -> None:
    """Let the packets that have just been sent cross the path: each is dropped, or in transit until it arrives."""
    while c.first_uncrossed < c.next_packet:
        number = c.first_uncrossed
        packet = packet_record(wire, number)
        c.first_uncrossed += 1
        if packet.frames == SKIPPED:
            continue
        if is_dropped(c, wire, packet.length):
            drop(c, wire, packet)
        else:
            depart(c, wire, number, number + 1)
    if c.next_transit - c.first_transit >= wire.transit.shape[0] // 2:
        c.failed = 1


@kernel()
def next_event(c: Connection, wire: WireRecord) -> int:
    """Return when the next event is due besides the next write [us]."""
    acknowledged = NEVER
    if c.first_ack < c.next_ack:
        acknowledged = wire.acknowledgements[c.first_ack & (wire.acknowledgements.shape[0] - 1)].arrival
    return int(min(next_arrival(c, wire), c.receiver_timer, acknowledged, timer_at(c), c.pacing_at))


@kernel()
def process(c: Connection, wire: WireRecord, now: int) -> None:
    """Process the event that is due at a time [us]; what the sender then sends has yet to cross the path."""
    c.now = now
    if now == next_arrival(c, wire):
        take_arrival(c, wire)
        return
    if now == c.receiver_timer:
        acknowledge(c, wire)
        return
    acknowledgement = wire.acknowledgements[c.first_ack & (wire.acknowledgements.shape[0] - 1)]
    if c.first_ack < c.next_ack and now == acknowledgement.arrival:
        c.first_ack += 1
        on_acknowledgement(c, wire, acknowledgement)
    elif now == c.pacing_at:
        c.pacing_at = NEVER
    else:
        on_timer(c, wire)
    send(c, wire)


@kernel(nogil=True)
def _advance(c: Connection, wire: WireRecord, messages: int, most: int) -> int:
    """Process events until the delays of a number of messages are known, or `most` work is done; return the work."""
    work = 0
    while c.packets_read < messages and c.packets_written < c.messages_known and work < most:
        if is_backlogged(c, wire):
            return int(work)
        sent = c.packets_sent
        due = next_event(c, wire)
        if due <= c.next_write:
            process(c, wire, due)
        else:
            c.now = c.next_write
            write(c, wire)
            next_write = written_at(c, wire, c.packets_written) if c.packets_written < c.messages_known else NEVER
            c.next_write = max(next_write, c.now)
        cross(c, wire)
        work += WORK_OF_EVENT + WORK_OF_PACKET * (c.packets_sent - sent)
    return int(work)


QUIC: Engine[Connection, WireRecord] = Engine(
    new_connection,
    _advance,
    (
        "packets_sent",
        "packets_lost",
        "declared_lost",
        "spurious_losses",
        "reductions",
        "probe_timeouts",
        "acks_sent",
        "acks_lost",
    ),
    QuicSchedule,
    is_backlogged,
)
