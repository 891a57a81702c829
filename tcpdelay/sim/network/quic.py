"""QUIC on a shared link: sender and receiver of `tcpdelay.sim.quic`."""

from __future__ import annotations

from typing import Annotated

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Array, record_type
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Quic
from tcpdelay.sim.network.bottleneck import DROPPED, WAITING, SharedPath
from tcpdelay.sim.network.transport import (
    IP_HEADER,
    SCHEDULED,
    UDP_HEADER,
    UNREAD,
    FlowRecord,
    Samples,
    Transport,
    add_return_jitter,
    count_lost,
    count_offered,
    count_read,
    cross_or_wait,
    is_write_due,
    leave,
    note_write,
)
from tcpdelay.sim.network.waiting import Link
from tcpdelay.sim.network.waiting import Packet as LinkPacket
from tcpdelay.sim.path import Transit, put_in_transit
from tcpdelay.sim.quic.connection import (
    CONNECTION,
    NEVER_READ,
    Acknowledgement,
    Connection,
    Message,
    Packet,
    Piece,
    Stream,
    WireRecord,
    is_backlogged,
    packet_record,
)
from tcpdelay.sim.quic.engine import new_connection, next_event, process
from tcpdelay.sim.quic.sender import SKIPPED, drop, write
from tcpdelay.sim.records import RING
from tcpdelay.sim.records import WireRecord as TcpWire
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.writes import message_record


class State(WireRecord, Connection):
    """A connection and its rings in one record: as many ACKs as the link keeps for a flow, as many messages as a flow.

    The rings come first. If the fields of `CONNECTION` did, Numba would take this record for a `CONNECTION` with more
    fields, and would call kernels that were compiled for the other.
    """

    packets: Annotated[Array[Packet], RING]
    acknowledgements: Annotated[Array[Acknowledgement], RING]
    transit: Annotated[Array[Transit], RING]
    streams: Annotated[Array[Stream], UNREAD]
    active: Annotated[Array[int], UNREAD]
    pieces: Annotated[Array[Piece], RING]
    range_start: Annotated[Array[int], RING // 2]
    range_end: Annotated[Array[int], RING // 2]
    messages: Annotated[Array[Message], UNREAD]
    delays: Annotated[Array[int], (2, UNREAD)]
    completed: Annotated[Array[int], UNREAD]


STATE = record_type(State)


@kernel()
def next_time(flow: FlowRecord, c: State, wire: TcpWire) -> int:
    """Return when the next event of the connection is due."""
    return int(min(next_event(c, c), flow.next_write))


@kernel()
def step(flow: FlowRecord, c: State, wire: TcpWire, link: Link, samples: Samples) -> int:
    """Process the next event, and count the messages that are complete; return when the following event is due."""
    due, first_new_ack = next_event(c, c), c.next_ack
    if due <= flow.next_write:
        process(c, c, due)
    else:
        c.now = flow.next_write
        if is_write_due(flow, link):
            _write(flow, c)
    while c.first_uncrossed < c.next_packet:
        packet = packet_record(c, c.first_uncrossed)
        c.first_uncrossed += 1
        if packet.frames != SKIPPED:
            arrival = cross_or_wait(flow, link, c.now, packet.length, c.first_uncrossed - 1, 0)
            if arrival != WAITING:
                _take_from_link(c, c.first_uncrossed - 1, arrival)
    add_return_jitter(flow, c, first_new_ack, c.next_ack)
    for place in range(c.completions):
        _count(flow, c, samples, c.completed[place])
    c.completions = 0
    flow.packets_read = c.packets_read
    return int(min(next_event(c, c), flow.next_write))


@kernel()
def deliver(flow: FlowRecord, c: State, wire: TcpWire, link: Link, samples: Samples, packet: LinkPacket) -> int:
    """Note when a packet that leaves a managed queue arrives, or that it is dropped; return the next event."""
    _take_from_link(c, packet.segment, leave(flow, link, packet))
    return int(next_time(flow, c, wire))


@kernel()
def _take_from_link(c: State, number: int, arrival: int) -> None:
    """Put a packet that leaves the link in transit until it arrives [us], unless the link drops it."""
    if arrival == DROPPED:
        drop(c, c, packet_record(c, number))
    else:
        put_in_transit(c, c, number, number + 1, arrival)


@kernel()
def _write(flow: FlowRecord, c: State) -> None:
    """Write the message that is due; if too much waits, the message is lost."""
    if is_backlogged(c, c):
        flow.overflows += 1
        count_offered(flow, c.now, flow.kind)
        count_lost(flow, c.now, flow.kind, 0)
        return
    note_write(flow, c.now)
    message = message_record(c, c.packets_written)
    message.written, message.end = c.now, c.written + flow.message
    write(c, c)


@kernel()
def _count(flow: FlowRecord, c: State, samples: Samples, number: int) -> None:
    """Count a message that is read, or lost, by its number."""
    written = message_record(c, number).written
    size, kind = flow.message, 0
    if flow.application == SCHEDULED:
        unread = flow.unread[number % UNREAD]
        size, kind = unread.length, unread.kind
    place = number & (c.delays.shape[1] - 1)
    if c.delays[0, place] >= NEVER_READ:
        count_lost(flow, written, kind, 0)
    else:
        read = written + c.delays[0, place]
        count_read(flow, samples, size, kind, written, written + c.delays[1, place], read, read)


@kernel()
def end(flow: FlowRecord, c: State) -> None:
    """Add the counts of a closed connection to the counts of the flow."""
    flow.retransmissions += c.declared_lost
    flow.timeouts += c.probe_timeouts


def prepare(stack: Quic, shared: SharedPath, flow: FlowRecord, connection: State, phase: int) -> None:
    """Prepare a connection: the shared link, and not the connection, delays and loses its packets."""
    path = Path(rtt=max(shared.there + shared.back, 1e-6), loss=0.0, one_way_delay=shared.there)
    prepared, _ = new_connection(Flow(1, 1.0, write_jitter=0.0), path, stack, 0)
    settings = {name: prepared[name] for name in CONNECTION.names or ()}
    for name, value in (settings | {"scheduled": 1, "next_write": NEVER}).items():
        connection[name] = value
    connection.next_double, connection.random_state = flow.next_double, flow.random_state


TRANSPORT = Transport(
    state=STATE,
    header=IP_HEADER + UDP_HEADER,
    features=frozenset({"constant rate", "messages"}),
    prepare=prepare,
    next_time=next_time,
    step=step,
    deliver=deliver,
    end=end,
)
