"""What a dispatcher does with a packet that is due, over connections of whatever kind."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.network.admission import is_blocked
from tcpdelay.sim.network.classic import write_segments
from tcpdelay.sim.network.dispatcher import (
    accept,
    discard,
    expected_delay,
    is_full,
    is_talking,
    member,
    take_turns,
)
from tcpdelay.sim.network.linux import write_pieces
from tcpdelay.sim.network.records import LINUX
from tcpdelay.sim.records import LOSS, NEVER
from tcpdelay.sim.window import in_flight

NOBODY = -1


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def _is_hopeless(d: Any, flow: Any, delay: int) -> bool:
    """Whether a packet that is likely to be so late [us] is not worth writing, or cannot be kept account of."""
    return bool(delay > d.discard_after or is_full(d, flow))


@njit(cache=True)
def _delay_over_linux(c: Any, size: int) -> int:
    unsent = -(-(c.written + size - c.snd_nxt) // c.mss)
    return int(expected_delay(unsent, c.snd_cwnd, in_flight(c), c.srtt >> 3))


@njit(cache=True)
def _delay_over_classic(s: Any, segments: int) -> int:
    window = min(int(s.cwnd), s.receiver_window)
    round_trip = (s.srtt >> 3) * s.tick
    return int(expected_delay(s.written + segments - s.snd_nxt, window, s.snd_nxt - s.snd_una, round_trip))
