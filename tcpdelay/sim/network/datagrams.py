"""UDP: a message is read when enough of its datagrams have arrived; a datagram that is lost is never sent again."""

from __future__ import annotations

from typing import Annotated

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Array, Record, record_type
from tcpdelay.sim.network.bottleneck import DROPPED, WAITING, SharedPath
from tcpdelay.sim.network.stacks import Udp
from tcpdelay.sim.network.transport import (
    IP_HEADER,
    UDP_HEADER,
    FlowRecord,
    Samples,
    Transport,
    cross_or_wait,
    is_write_due,
    leave,
    note_lost,
    note_read,
    note_write,
)
from tcpdelay.sim.network.waiting import Link, Packet
from tcpdelay.sim.records import WireRecord

PENDING = 1 << 14
"""Largest number of messages whose datagrams wait in a managed queue: more than packets can."""


class Datagrams(Record):
    """A connection."""

    largest_payload: int  # Of a datagram [bytes]
    parity: int  # Parity datagrams of a message
    # By message, at its number modulo `PENDING`
    unknown: Annotated[Array[int], PENDING]  # Its datagrams whose fate is unknown
    missing: Annotated[Array[int], PENDING]  # Datagrams that it still needs
    arrived: Annotated[Array[int], PENDING]  # Time at which the last of these has arrived [us]
    sent_at: Annotated[Array[int], PENDING]  # Time of its write [us]


@kernel()
def next_time(flow: FlowRecord, connection: Datagrams, wire: WireRecord) -> int:
    """Return when the application writes next."""
    return int(flow.next_write)


@kernel()
def step(flow: FlowRecord, connection: Datagrams, wire: WireRecord, link: Link, samples: Samples) -> int:
    """Send the message that is due in datagrams; return when the application writes the next message."""
    now = flow.next_write
    if is_write_due(flow, link):
        number = flow.packets_written
        note_write(flow, now)
        rest = flow.message
        required = -(-flow.message // connection.largest_payload)
        datagrams, place = required + connection.parity, number % PENDING
        connection.unknown[place], connection.missing[place] = datagrams, required
        connection.sent_at[place] = now
        for datagram in range(datagrams):
            # A parity datagram is as large as the largest datagram of the message.
            size = min(rest if datagram < required else flow.message, connection.largest_payload)
            rest -= size
            arrival = cross_or_wait(flow, link, now, size, number, 0)
            if arrival != WAITING:
                _note_datagram(connection, number, arrival)
        _count_messages(flow, connection, samples)
    return int(flow.next_write)


@kernel()
def deliver(
    flow: FlowRecord, connection: Datagrams, wire: WireRecord, link: Link, samples: Samples, packet: Packet
) -> int:
    """Note when a datagram that leaves a managed queue arrives, or that it is dropped; return the next event."""
    _note_datagram(connection, packet.segment, leave(flow, link, packet))
    _count_messages(flow, connection, samples)
    return int(flow.next_write)


@kernel()
def _note_datagram(connection: Datagrams, number: int, arrival: int) -> None:
    """Note the fate of a datagram of a message: its arrival [us], or `DROPPED`."""
    place = number % PENDING
    connection.unknown[place] -= 1
    if arrival != DROPPED and connection.missing[place] > 0:
        connection.missing[place] -= 1
        connection.arrived[place] = arrival


@kernel()
def _count_messages(flow: FlowRecord, connection: Datagrams, samples: Samples) -> None:
    """Count the messages as read or lost, in the order of writing, up to the first with a datagram of unknown fate."""
    while flow.packets_read < flow.packets_written and connection.unknown[flow.packets_read % PENDING] == 0:
        place = flow.packets_read % PENDING
        if connection.missing[place] > 0:
            note_lost(flow, 0)
        else:
            note_read(flow, samples, connection.sent_at[place], connection.arrived[place], connection.arrived[place])


def prepare(stack: Udp, path: SharedPath, flow: FlowRecord, connection: Datagrams, phase: int) -> None:
    """Set the fields of a connection."""
    connection.largest_payload, connection.parity = stack.largest_payload, stack.parity


TRANSPORT = Transport(
    state=record_type(Datagrams),
    header=IP_HEADER + UDP_HEADER,
    features=frozenset({"constant rate", "messages", "ecn", "l4s"}),
    prepare=prepare,
    next_time=next_time,
    step=step,
    deliver=deliver,
)
