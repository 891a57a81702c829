"""The way back: when acknowledgements reach the sender, and those of the classic receiver."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.records import RING
from tcpdelay.sim.uniform import uniform

_MASK = RING - 1


@njit(cache=True)
def spread(flow: Any, wire: Any, first: int, following: int) -> None:
    """Delay acknowledgements from number `first` to before `following` at random, and keep their order."""
    if flow.return_jitter == 0:
        return
    for number in range(first, following):
        acknowledgement = wire.acknowledgements[number & _MASK]
        wait = int(uniform(flow.next_double, flow.random_state) * (flow.return_jitter + 1))
        flow.last_return = max(flow.last_return, acknowledgement.arrival + wait)
        acknowledgement.arrival = flow.last_return


@njit(cache=True)
def answer(flow: Any, s: Any, wire: Any, number: int, arrival: int, in_order: bool) -> None:
    """Acknowledge a segment that arrives at a time.

    A delayed acknowledgement stands in the queue with the time at which its timer would send it. Should another segment
    arrive before, it is taken back: it cannot have reached the sender, as that segment was sent in ignorance of it.

    Parameters
    ----------
    flow, s, wire : record
        The flow, its connection, and what is under way.
    number, arrival : int
        The segment and when it arrives [us].
    in_order : bool
        Whether it is the next one, and no later one has arrived before it.
    """
    second = flow.ack_held > arrival
    if second:
        s.next_ack -= 1
        flow.last_return = flow.return_before
    flow.ack_held = wait = 0
    if flow.ack_delay and in_order and not second:
        wait = flow.ack_delay
        flow.ack_held = arrival + wait
        flow.return_before = flow.last_return
    acknowledgement = wire.acknowledgements[s.next_ack & _MASK]
    acknowledgement.arrival = arrival + wait + flow.return_delay
    acknowledgement.acknowledged = s.rcv_nxt
    acknowledgement.segment = number
    s.next_ack += 1
    spread(flow, wire, s.next_ack - 1, s.next_ack)
