"""What is written when: constant bit rate, as much as the buffer takes, and transfers over connections of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tcpdelay.sim.network.queue import DROPPED
from tcpdelay.sim.network.records import ANSWERED, BUSY, CONNECTING, CONSTANT_RATE, DISPATCHED, OPENED, TRANSFERS, cross
from tcpdelay.sim.records import NEVER
from tcpdelay.sim.uniform import uniform

MOST_DOUBLINGS = 6


@njit(cache=True)
def is_write_due(flow: Any, link: Any) -> bool:
    """Do what the application has to do at `flow.next_write`; whether it writes a message then."""
    now = flow.next_write
    flow.next_write = NEVER
    if flow.application == CONSTANT_RATE or flow.application == DISPATCHED:
        if now + flow.interval < flow.stop:
            flow.next_write = now + flow.interval
        flow.due_write = now
        return bool(flow.application == CONSTANT_RATE)
    if flow.application == TRANSFERS:
        if flow.stage < OPENED:
            if now < flow.stop:
                _connect(flow, link, now)
            return False
        flow.stage = BUSY
        flow.message = draw_size(flow)
        return True
    return False


@njit(cache=True)
def _connect(flow: Any, link: Any, now: int) -> None:
    """Send what opens a connection over the link, again after a timeout if that is lost.

    If the receiver opens it, that is the answer to its request; once the way back is over too, the connection is open.
    The sender has two packets to send, its request, and what confirms the receiver's answer and lets it accept.
    """
    arrival = cross(flow, link, now, 0)
    if arrival == DROPPED:
        flow.next_write = now + (flow.first_timeout << min(flow.attempts, MOST_DOUBLINGS))
        flow.attempts += 1
        return
    flow.attempts = 0
    if flow.stage == ANSWERED:
        flow.stage = OPENED
        flow.next_write = arrival
        return
    flow.stage = ANSWERED if flow.opened_by_sender else OPENED
    flow.next_write = arrival + flow.return_delay
    flow.round_trip = flow.next_write - now


@njit(cache=True)
def finish_transfer(flow: Any, read: int) -> None:
    """Note that a transfer has been read, and ask for the next one after a pause."""
    flow.transfers += 1
    flow.stage = CONNECTING
    pause = 0
    if flow.mean_pause > 0.0:
        pause = round(-flow.mean_pause * np.log(1.0 - uniform(flow.next_double, flow.random_state)))
    flow.next_write = read + pause + (0 if flow.opened_by_sender else flow.return_delay)


@njit(cache=True)
def draw_size(flow: Any) -> int:
    """Return the size of the next transfer [bytes]: fixed, or Pareto with an upper end."""
    if flow.shape <= 0.0:
        return int(flow.mean_size)
    smallest = flow.mean_size * (flow.shape - 1.0) / flow.shape
    size = smallest * (1.0 - uniform(flow.next_double, flow.random_state)) ** (-1.0 / flow.shape)
    return int(max(round(min(size, flow.largest_size)), 1))
