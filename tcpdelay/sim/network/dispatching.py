"""Dispatchers: an application that writes its packets over several connections, or decides which packets to write.

A dispatcher splits packets into pieces, distributes them over parallel connections, discards packets that would be
late, and suppresses silence. At the receiver it puts the packets of all connections in order again. It calls the
transport only through the interface of `tcpdelay.sim.network.transport`.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010: packet splitting and parallel connections.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import uniform
from tcpdelay.compiling.record_types import Array, Record, record_type
from tcpdelay.sim.network.transport import (
    IN_TIMEOUT,
    UNREAD,
    WRITES,
    Carrier,
    FlowRecord,
    Samples,
    call_for_effect,
    call_for_number,
    count_lost,
    count_offered,
    count_read,
)
from tcpdelay.sim.network.waiting import Link
from tcpdelay.sim.records import WireRecord
from tcpdelay.sim.tcp.constants import NEVER

MOST_CONNECTIONS = 64
DISCARDED = -1
"""Stored as the read time of a packet that is not written."""
NOBODY = -1
"""Returned in place of the number of a flow."""


class Dispatcher(Record):
    """A dispatcher; all times are microseconds. Packets are numbered in the order of writing."""

    mean_talk: float
    mean_silence: float
    leader: int  # Flow of the first connection: it keeps the application's clock, and counts the packets
    first_member: int  # From this flow on: those of the further connections
    connections: int
    intelligent: int
    discard_after: int
    keepalive_size: int
    suppressing: int
    talking: int
    phase_end: int
    next_connection: int
    accepted: int  # Packets that have been written or discarded
    released: int  # How many of these have been read in order or skipped
    overflows: int  # Packets that were not written because the backlog is longer than the records
    last_read: int
    # By connection: the first and the last packet on it that is not read
    oldest: Annotated[Array[int], MOST_CONNECTIONS]
    newest: Annotated[Array[int], MOST_CONNECTIONS]
    # By packet, at its number modulo `UNREAD`: the times of its write, first transmission, arrival and read (`NEVER`
    # before it is read, `DISCARDED` if it is not written)
    written: Annotated[Array[int], UNREAD]
    sent: Annotated[Array[int], UNREAD]
    arrived: Annotated[Array[int], UNREAD]
    read: Annotated[Array[int], UNREAD]
    following: Annotated[Array[int], UNREAD]  # Number of the next packet on the same connection


DISPATCHER = record_type(Dispatcher)


@kernel()
def member(d: Dispatcher, place: int) -> int:
    """Return the number of the flow of a connection."""
    return int(d.leader if place == 0 else d.first_member + place - 1)


@kernel()
def is_talking(d: Dispatcher, flow: FlowRecord, now: int) -> bool:
    """Return whether the application talks at a time; the lengths of talk and silence are drawn at random."""
    if not d.suppressing:
        return True
    while d.phase_end <= now:
        d.talking = 1 - d.talking
        mean = d.mean_talk if d.talking else d.mean_silence
        d.phase_end += max(round(-mean * np.log(1.0 - uniform(flow.next_double, flow.random_state))), 1)
    return bool(d.talking)


@kernel()
def take_turns(d: Dispatcher) -> int:
    """Return the next connection in turn."""
    place = d.next_connection
    d.next_connection = (place + 1) % d.connections
    return int(place)


@kernel()
def expected_delay(unsent: int, window: int, in_flight: int, round_trip: int) -> int:
    """Return the expected delay of a packet [us], from the state of the sender when the packet is written [segments].

    Segments that do not fit the window now are sent at the rate of one window per round trip, and then take half a
    round trip to arrive. `unsent` includes the segments of this packet; `round_trip` is 0 before the first measurement:

        delay = max(unsent - max(window - in_flight, 0), 0) * round_trip / window + round_trip / 2
    """
    waiting = max(unsent - max(window - in_flight, 0), 0)
    return int(waiting * round_trip // window + round_trip // 2)


@kernel()
def is_full(d: Dispatcher, flow: FlowRecord) -> bool:
    """Return whether the dispatcher or the flow cannot keep the record of another packet."""
    return bool(d.accepted - d.released >= UNREAD or flow.packets_written - flow.packets_read >= WRITES)


@kernel()
def accept(d: Dispatcher, leader: FlowRecord, flow: FlowRecord, now: int, end: int) -> None:
    """Record that the next packet is written to the connection of a flow, in whose stream it ends at `end`."""
    slot = d.accepted % UNREAD
    d.written[slot], d.read[slot] = now, NEVER
    if flow.packets_read == flow.packets_written:
        d.oldest[flow.member] = d.accepted
    else:
        d.following[d.newest[flow.member] % UNREAD] = d.accepted
    d.newest[flow.member] = d.accepted
    d.accepted += 1
    flow.writes[flow.packets_written % WRITES] = end
    flow.packets_written += 1
    count_offered(leader, now, 0)


@kernel()
def discard(d: Dispatcher, leader: FlowRecord, samples: Samples, now: int) -> None:
    """Record that the next packet is not written: it counts as lost, and no later packet waits for it."""
    count_offered(leader, now, 0)
    count_lost(leader, now, 0, 0)
    if d.accepted - d.released < UNREAD:
        d.read[d.accepted % UNREAD] = DISCARDED
        d.accepted += 1
        release(d, leader, samples)


@kernel()
def collect(d: Dispatcher, leader: FlowRecord, flow: FlowRecord, samples: Samples) -> None:
    """Record the packets that a connection has read in this event, and release the packets that are in order."""
    for row in range(samples.completed):
        slot = d.oldest[flow.member] % UNREAD
        completion = samples.completions[row]
        d.sent[slot], d.arrived[slot], d.read[slot] = completion[0], completion[1], completion[2]
        d.oldest[flow.member] = d.following[slot]
    samples.completed = 0
    release(d, leader, samples)


@kernel()
def release(d: Dispatcher, leader: FlowRecord, samples: Samples) -> None:
    """Let the application read the packets up to the first that is still missing."""
    while d.released < d.accepted:
        slot = d.released % UNREAD
        if d.read[slot] == NEVER:
            return
        d.released += 1
        if d.read[slot] != DISCARDED:
            d.last_read = max(d.last_read, d.read[slot])
            times = d.written[slot], d.sent[slot], d.arrived[slot]
            count_read(leader, samples, leader.message, 0, *times, d.last_read)


@kernel()
def least_loaded(d: Dispatcher, flows: Array[FlowRecord], carriers: Array[Carrier]) -> int:
    """Return the connection with the smallest send queue (ioctl SIOCOUTQ); one in a timeout is used only if all are."""
    best, smallest = 0, NEVER
    for place in range(d.connections):
        number = member(d, place)
        carrier = carriers[number]
        queue = call_for_number(carrier.send_queue, flows[number], carrier.connection, ())
        if queue < smallest:
            best, smallest = place, queue
    return best


@kernel()
def dispatch(
    d: Dispatcher,
    flows: Array[FlowRecord],
    carriers: Array[Carrier],
    wires: Array[WireRecord],
    link: Link,
    samples: Samples,
) -> int:
    """Write the packet that is due, if any; return the number of the flow that it was written to, or `NOBODY`."""
    leader = flows[d.leader]
    now = leader.due_write
    if now == NEVER:
        return NOBODY
    leader.due_write = NEVER
    talking = is_talking(d, leader, now)
    if not talking and d.keepalive_size == 0:
        return NOBODY
    number = member(d, least_loaded(d, flows, carriers) if d.intelligent else take_turns(d))
    flow, carrier = flows[number], carriers[number]
    size, pieces = d.keepalive_size, 1
    if talking:
        size, pieces = flow.message, flow.pieces
        delay = call_for_number(carrier.delay_of_next, flow, carrier.connection, ())
        # Only sending changes the window and the measured round-trip time of an idle connection.
        idle = call_for_number(carrier.send_queue, flow, carrier.connection, ()) % IN_TIMEOUT == 0
        full = is_full(d, flow)
        d.overflows += full
        if delay == NEVER or (delay > d.discard_after and not idle) or full:
            discard(d, leader, samples, now)
            return NOBODY
    end = call_for_number(carrier.write, flow, carrier.connection, (wires[number], now, size, pieces))
    if talking:
        accept(d, leader, flow, now, end)
    call_for_effect(carrier.transmit, flow, carrier.connection, (wires[number], link, samples))
    return number
