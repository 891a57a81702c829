"""The path and the receiver: what is lost, when packets are read, which acknowledgements come back.

Delays are constant, so what is sent first arrives first. The receiver's part of a segment can therefore be worked out
the moment it is sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tcpdelay.sim.records import COLLAPSED, RING

ALWAYS = 1 << 60
_MASK = RING - 1


@njit(cache=True)
def segments_until_loss(random: Any, loss: float) -> int:
    """Return how many segments pass until one is lost, that one included."""
    if loss <= 0.0:
        return ALWAYS
    return 1 + int(min(np.log(1.0 - random.random()) / np.log1p(-loss), ALWAYS))


@njit(cache=True)
def is_lost(c: Any, random: Any) -> bool:
    """Whether the segment that is sent now is lost.

    With `loss_burst` above 1 losses follow netem's Gilbert model: from the good state the bad one is entered with a
    probability that makes the share of lost segments `loss`, and left with probability 1 / loss_burst.
    """
    if c.loss_burst <= 1.0:
        c.until_loss -= 1
        if c.until_loss > 0:
            return False
        c.until_loss = segments_until_loss(random, c.loss)
        return True
    leave = 1.0 / c.loss_burst
    lost = c.in_burst == 1
    if lost:
        c.in_burst = 0 if random.random() < leave else 1
    elif random.random() < leave * c.loss / (1.0 - c.loss):
        c.in_burst = 1
    return bool(lost)


@njit(cache=True)
def deliver(c: Any, wire: Any, number: int) -> None:
    """Let the segment of that number, sent now, reach the receiver, and the acknowledgement of it come back."""
    segments = wire.segments
    fresh = not segments[number & _MASK].received
    segments[number & _MASK].received = 1
    following = number + 1
    while following < c.next_segment and segments[following & _MASK].flags & COLLAPSED:
        fresh = fresh or not segments[following & _MASK].received
        segments[following & _MASK].received = 1
        following += 1
    if fresh and number <= c.rcv_segment < following:
        while c.rcv_segment < c.next_segment and segments[c.rcv_segment & _MASK].received:
            c.rcv_nxt = max(c.rcv_nxt, segments[c.rcv_segment & _MASK].end)
            c.rcv_segment += 1
        read = c.now + c.one_way_delay
        while c.packets_read < c.packets_written and (c.packets_read + 1) * c.packet_size <= c.rcv_nxt:
            wire.delays[0, c.packets_read % wire.delays.shape[1]] = read - c.packets_read * c.interval
            c.packets_read += 1
    answer = wire.acknowledgements[c.next_ack & _MASK]
    answer.arrival = c.now + c.rtt
    answer.acknowledged = c.rcv_nxt
    answer.segment = number
    c.next_ack += 1
