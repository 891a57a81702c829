"""CoDel: packets are dropped while each packet of the last interval has waited longer than the target (RFC 8289).

The rules are those of Linux (include/net/codel_impl.h); the names of functions and variables are the kernel's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.network.queues.waiting import DISCARDED, FULL_PACKET, NOBODY, conclude, mark, take_first

INTERVALS = 16
"""Time since the last drop within which the rate of drops starts where it ended [intervals]."""


@kernel()
def newton_step(queue: Any) -> None:
    """Improve the reciprocal of the square root of `count` by one Newton step (`codel_Newton_step`).

    With x for the reciprocal: x' = x / 2 (3 - count x^2). The first steps are far from the root, and so are the times
    between the first drops.
    """
    queue.rec_inv_sqrt *= 0.5 * (3.0 - queue.count * queue.rec_inv_sqrt**2)
    if queue.rec_inv_sqrt <= 0.0:
        # A count that has grown by many drops at once is too far for the step.
        queue.rec_inv_sqrt = 1.0 / np.sqrt(queue.count)


@kernel()
def control_law(link: Any, queue: Any, time: int) -> int:
    """Return when the next packet is dropped: time + interval / sqrt(count) (`codel_control_law`)."""
    return int(time + link.interval * queue.rec_inv_sqrt)


@kernel()
def should_drop(link: Any, queue: Any, slot: int, now: int) -> bool:
    """Return whether packets have waited longer than the target for an interval (`codel_should_drop`)."""
    if slot == NOBODY:
        queue.first_above_time = 0
        return False
    if now - link.packets[slot].enqueued < link.target or link.queued_bytes <= FULL_PACKET:
        queue.first_above_time = 0
        return False
    if queue.first_above_time == 0:
        queue.first_above_time = now + link.interval
        return False
    return bool(now > queue.first_above_time)


@kernel()
def dequeue_codel(link: Any, number: int, now: int) -> int:
    """Return the next packet of a queue, after the drops that are due, or `NOBODY` (`codel_dequeue`).

    Parameters
    ----------
    link : record
        The link.
    number : int
        Number of the queue.
    now : int
        Time [ns].
    """
    queue = link.queues[number]
    slot = take_first(link, number)
    if slot == NOBODY:
        queue.dropping = 0
        return NOBODY
    drop = should_drop(link, queue, slot, now)
    if queue.dropping and not drop:
        queue.dropping = 0
    elif queue.dropping:
        while queue.dropping and now >= queue.drop_next:
            queue.count += 1
            newton_step(queue)
            if mark(link, slot):
                queue.drop_next = control_law(link, queue, queue.drop_next)
                return slot
            conclude(link, slot, DISCARDED)
            slot = take_first(link, number)
            if should_drop(link, queue, slot, now):
                queue.drop_next = control_law(link, queue, queue.drop_next)
            else:
                queue.dropping = 0
    elif drop:
        if not mark(link, slot):
            conclude(link, slot, DISCARDED)
            slot = take_first(link, number)
            should_drop(link, queue, slot, now)
        queue.dropping = 1
        # If the last drops are recent, their rate is a good start.
        delta = queue.count - queue.lastcount
        if delta > 1 and now - queue.drop_next < INTERVALS * link.interval:
            queue.count = delta
            newton_step(queue)
        else:
            queue.count = 1
            queue.rec_inv_sqrt = 1.0
        queue.lastcount = queue.count
        queue.drop_next = control_law(link, queue, now)
    return slot
