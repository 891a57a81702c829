"""Who puts the packets of one application on its connections, and puts them in order again at the other end.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010: packet splitting and parallel connections.

What a dispatcher does with a packet that is due, over connections of whatever kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import LOSS, NEVER, uniform
from tcpdelay.models.simulator.window import in_flight
from tcpdelay.network.linux import write_pieces
from tcpdelay.network.literature.classic import write_segments
from tcpdelay.network.literature.min_buf import is_blocked
from tcpdelay.network.records import LINUX, WRITES, count_read

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


@kernel()
def member(d: Any, place: int) -> int:
    """Return the number of the flow of a connection."""
    return int(d.leader if place == 0 else d.first_member + place - 1)


@kernel()
def is_talking(d: Any, flow: Any, now: int) -> bool:
    """Whether a packet is written at that time, or the application is silent; draws how long it is either."""
    if not d.suppressing:
        return True
    while d.phase_end <= now:
        d.talking = 1 - d.talking
        mean = d.mean_talk if d.talking else d.mean_silence
        d.phase_end += max(round(-mean * np.log(1.0 - uniform(flow.next_double, flow.random_state))), 1)
    return bool(d.talking)


@kernel()
def take_turns(d: Any) -> int:
    """Return the next connection, one after another."""
    place = d.next_connection
    d.next_connection = (place + 1) % d.connections
    return int(place)


@kernel()
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


@kernel()
def is_full(d: Any, flow: Any) -> bool:
    """Whether no more packets can be kept account of, in all or of one flow."""
    return bool(d.accepted - d.released >= UNREAD or flow.packets_written - flow.packets_read >= WRITES)


@kernel()
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


@kernel()
def discard(d: Any, leader: Any, samples: Any, now: int) -> None:
    """Note that the next packet is not written at all: it counts as lost, and nobody waits for it."""
    if leader.count_from <= now < leader.count_until:
        leader.offered += 1
        leader.lost += 1
    if d.accepted - d.released < UNREAD:
        d.read[d.accepted % UNREAD] = DISCARDED
        d.accepted += 1
        release(d, leader, samples)


@kernel()
def collect(d: Any, leader: Any, flow: Any, samples: Any) -> None:
    """Take what the connection of a flow has read in this step, and let the application have what is in order."""
    for row in range(samples.completed):
        slot = d.oldest[flow.member] % UNREAD
        completion = samples.completions[row]
        d.sent[slot], d.arrived[slot], d.read[slot] = completion[0], completion[1], completion[2]
        d.oldest[flow.member] = d.following[slot]
    samples.completed = 0
    release(d, leader, samples)


@kernel()
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


NOBODY = -1


@kernel()
def dispatch(d: Any, flows: Any, connections: Any, wires: Any, link: Any, samples: Any) -> int:
    """Write the packet that is due, if any; return the number of the flow that it was written to, or `NOBODY`."""
    leader = flows[d.leader]
    now = leader.due_write
    if now == NEVER:
        return NOBODY
    leader.due_write = NEVER
    talking = is_talking(d, leader, now)
    if not talking and d.keepalive_size == 0:
        return NOBODY
    number = member(d, _least_loaded(d, flows, connections) if d.intelligent else take_turns(d))
    flow = flows[number]
    if flow.kind == LINUX:
        c = connections.linux[number]
        if talking:
            held = -(-(c.written - c.snd_una) // flow.message) * -(-flow.message // c.mss)
            blocked = is_blocked(flow, held, -(-flow.message // c.mss), c.snd_cwnd, c.sacked_out)
            if blocked or _is_hopeless(d, flow, _delay_over_linux(c, flow.message)):
                discard(d, leader, samples, now)
                return NOBODY
            accept(d, leader, flow, now, c.written + flow.message)
        size, pieces = (flow.message, d.pieces) if talking else (d.keepalive_size, 1)
        write_pieces(flow, c, wires[number], link, samples, now, size, pieces)
    else:
        s = connections.classic[number]
        if talking:
            blocked = is_blocked(flow, s.written - s.snd_una, d.pieces, int(s.cwnd), 0)
            if blocked or _is_hopeless(d, flow, _delay_over_classic(s, d.pieces)):
                discard(d, leader, samples, now)
                return NOBODY
            accept(d, leader, flow, now, s.written + d.pieces)
        write_segments(flow, s, wires[number], link, samples, now, d.pieces if talking else 1)
    return number


@kernel()
def _least_loaded(d: Any, flows: Any, connections: Any) -> int:
    """Return the connection to use: outside a timeout rather than in one, then the one with the smallest send queue.

    The queue is all that is not acknowledged, sent or not, as the kernel tells it (ioctl SIOCOUTQ).
    """
    best, least, best_waits = 0, NEVER, True
    for place in range(d.connections):
        number = member(d, place)
        if flows[number].kind == LINUX:
            c = connections.linux[number]
            waits, load = c.ca_state == LOSS, c.written - c.snd_una
        else:
            s = connections.classic[number]
            waits, load = s.backoff > 0, s.written - s.snd_una
        if (waits, load) < (best_waits, least):
            best, least, best_waits = place, load, waits
    return best


@kernel()
def _is_hopeless(d: Any, flow: Any, delay: int) -> bool:
    """Whether a packet that is likely to be so late [us] is not worth writing, or cannot be kept account of."""
    return bool(delay > d.discard_after or is_full(d, flow))


@kernel()
def _delay_over_linux(c: Any, size: int) -> int:
    unsent = -(-(c.written + size - c.snd_nxt) // c.mss)
    return int(expected_delay(unsent, c.snd_cwnd, in_flight(c), c.srtt >> 3))


@kernel()
def _delay_over_classic(s: Any, segments: int) -> int:
    window = min(int(s.cwnd), s.receiver_window)
    round_trip = (s.srtt >> 3) * s.tick
    return int(expected_delay(s.written + segments - s.snd_nxt, window, s.snd_nxt - s.snd_una, round_trip))
