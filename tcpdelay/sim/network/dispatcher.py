"""Who puts the packets of one application on its connections, and puts them in order again at the other end.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010: packet splitting and parallel connections.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tcpdelay.sim.network.records import WRITES, count_read
from tcpdelay.sim.records import NEVER
from tcpdelay.sim.uniform import uniform

MOST_CONNECTIONS = 64
UNREAD = 1 << 14
"""Packets between write and read in order that there is room for."""
DISCARDED = -1
"""In place of the time at which a packet is read."""

_INTEGERS = (
    "leader first_member connections pieces intelligent discard_after keepalive_size suppressing talking phase_end "
    "next_connection accepted released last_read"
)
DISPATCHER = np.dtype(
    [(name, np.float64) for name in ("mean_talk", "mean_silence")]
    + [(name, np.int64) for name in _INTEGERS.split()]
    + [(name, np.int64, MOST_CONNECTIONS) for name in ("oldest", "newest")]
    + [(name, np.int64, UNREAD) for name in ("written", "sent", "arrived", "read", "following")]
)
"""What divides an application's packets among the flows of its connections; all times are microseconds.

The first connection is that of the flow `leader`, which keeps the application's clock and counts its packets; the
others belong to the flows from `first_member` on. Packets are numbered in the order of writing: `accepted` have been
written or discarded, `released` of them read in order or passed over. Of each, at its number modulo `UNREAD`, there is
the time of its write, first transmission, arrival and read (`NEVER` if that is to come, `DISCARDED`), and the number of
the packet that follows it on its connection. Of each connection, `oldest` is the first of its packets that is unread.
"""


@njit(cache=True)
def member(d: Any, place: int) -> int:
    """Return the number of the flow of a connection."""
    return int(d.leader if place == 0 else d.first_member + place - 1)


@njit(cache=True)
def is_talking(d: Any, flow: Any, now: int) -> bool:
    """Whether a packet is written at that time, or the application is silent; draws how long it is either."""
    if not d.suppressing:
        return True
    while d.phase_end <= now:
        d.talking = 1 - d.talking
        mean = d.mean_talk if d.talking else d.mean_silence
        d.phase_end += max(round(-mean * np.log(1.0 - uniform(flow.next_double, flow.random_state))), 1)
    return bool(d.talking)


@njit(cache=True)
def take_turns(d: Any) -> int:
    """Return the next connection, one after another."""
    place = d.next_connection
    d.next_connection = (place + 1) % d.connections
    return int(place)


@njit(cache=True)
def expected_delay(unsent: int, window: int, in_flight: int, round_trip: int) -> int:
    """Return how late a packet is likely to be read [us], by what the sender knows as it is written.

    What does not fit the window now leaves at the rate of a window per round trip, and is under way for half of one.

    Parameters
    ----------
    unsent : int
        Segments not sent yet, those of this packet included.
    window, in_flight : int
        Congestion window and what is under way [segments].
    round_trip : int
        Smoothed round-trip time [us]; 0 before there is one.
    """
    waiting = max(unsent - max(window - in_flight, 0), 0)
    return int(waiting * round_trip // window + round_trip // 2)


@njit(cache=True)
def is_full(d: Any, flow: Any) -> bool:
    """Whether no more packets can be kept account of, in all or of one flow."""
    return bool(d.accepted - d.released >= UNREAD or flow.packets_written - flow.packets_read >= WRITES)


@njit(cache=True)
def accept(d: Any, leader: Any, flow: Any, now: int, end: int) -> None:
    """Note that the next packet is written to the connection of a flow, in whose stream it ends there."""
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
    if leader.count_from <= now < leader.count_until:
        leader.offered += 1


@njit(cache=True)
def discard(d: Any, leader: Any, samples: Any, now: int) -> None:
    """Note that the next packet is not written at all: it counts as lost, and nobody waits for it."""
    if leader.count_from <= now < leader.count_until:
        leader.offered += 1
        leader.lost += 1
    if d.accepted - d.released < UNREAD:
        d.read[d.accepted % UNREAD] = DISCARDED
        d.accepted += 1
        release(d, leader, samples)


@njit(cache=True)
def collect(d: Any, leader: Any, flow: Any, samples: Any) -> None:
    """Take what the connection of a flow has read in this step, and let the application have what is in order."""
    for row in range(samples.completed):
        slot = d.oldest[flow.member] % UNREAD
        completion = samples.completions[row]
        d.sent[slot], d.arrived[slot], d.read[slot] = completion[0], completion[1], completion[2]
        d.oldest[flow.member] = d.following[slot]
    samples.completed = 0
    release(d, leader, samples)


@njit(cache=True)
def release(d: Any, leader: Any, samples: Any) -> None:
    """Let the application read all packets before which none is missing."""
    while d.released < d.accepted:
        slot = d.released % UNREAD
        if d.read[slot] == NEVER:
            return
        d.released += 1
        if d.read[slot] != DISCARDED:
            d.last_read = max(d.last_read, d.read[slot])
            count_read(leader, samples, d.written[slot], d.sent[slot], d.arrived[slot], d.last_read)
