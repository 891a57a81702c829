"""CoDel (RFC 8289), FQ-CoDel (RFC 8290) and CAKE."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.queues.waiting import (
    DECAYING,
    DISCARDED,
    FULL_PACKET,
    NEW,
    NOBODY,
    OLD,
    append,
    conclude,
    delist,
    enlist,
    longest_queue,
    mark,
    queue_of,
    take_first,
)
from tcpdelay.sim.records import uniform

# CoDel: packets are dropped while each packet of the last interval has waited longer than the target (RFC 8289).
#
# The rules are those of Linux (include/net/codel_impl.h); the names of functions and variables are the kernel's.

INTERVALS = 16
"""Time since the last drop within which the rate of drops starts where it ended [intervals]."""


@kernel()
def newton_step(queue: Any) -> None:
    """Improve x, the reciprocal of the square root of `count`: x' = x / 2 (3 - count x^2) (`codel_Newton_step`).

    The first steps are far from the root, and so are the times between the first drops.
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
    """Return the next packet of a queue, after the drops that are due, or `NOBODY` (`codel_dequeue`)."""
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


# FQ-CoDel: a queue with CoDel for each flow; the queues take turns, and flows that begin to send go first (RFC 8290).
#
# The rules are those of Linux (net/sched/sch_fq_codel.c), except for the hash that chooses the queue of a connection
# (`tcpdelay.sim.queues.waiting.queue_of`).

DROP_BATCH = 64
"""Largest number of packets that are dropped at once when the queue is full (`drop_batch_size`)."""


@kernel()
def enqueue_fq_codel(link: Any, slot: int) -> None:
    """Put a packet into the queue of its flow; if the limit is exceeded, shorten the longest (`fq_codel_enqueue`)."""
    number = queue_of(link, slot)
    queue = link.queues[number]
    append(link, number, slot)
    if not queue.listed:
        queue.listed = 1
        queue.deficit = link.quantum
        enlist(link, NEW, number)
    if link.queued > link.capacity:
        _drop_from_longest(link)


@kernel()
def _drop_from_longest(link: Any) -> None:
    """Drop up to half of the bytes of the longest queue, from its head (`fq_codel_drop`)."""
    number = longest_queue(link)
    queue = link.queues[number]
    rest = queue.backlog - (queue.backlog >> 1)
    for _ in range(DROP_BATCH):
        conclude(link, take_first(link, number), DISCARDED)
        queue.count += 1
        if queue.backlog <= rest:
            return


@kernel()
def dequeue_fq_codel(link: Any, now: int) -> int:
    """Return the next packet, or `NOBODY`: deficit round robin over the queues (`fq_codel_dequeue`)."""
    while True:
        which = NEW if link.first_listed[NEW] != NOBODY else OLD
        number = link.first_listed[which]
        if number == NOBODY:
            return NOBODY
        queue = link.queues[number]
        if queue.deficit <= 0:
            queue.deficit += link.quantum
            delist(link, which, number)
            enlist(link, OLD, number)
            continue
        slot = dequeue_codel(link, number, now)
        if slot != NOBODY:
            queue.deficit -= link.packets[slot].length
            return slot
        # A new flow that is empty passes the old ones once, so that it cannot come first again at once.
        delist(link, which, number)
        if which == NEW and link.first_listed[OLD] != NOBODY:
            enlist(link, OLD, number)
        else:
            queue.listed = 0


# CAKE with one class of traffic: a queue with COBALT for each flow, in turns, behind a shaper of its own.
#
# The rules are those of Linux (net/sched/sch_cake.c) with its defaults, for packets without DSCP between two hosts.
# Only the hash that chooses the queue of a connection is another one (`tcpdelay.sim.queues.waiting.queue_of`).
#
# References:
# [1] Høiland-Jørgensen, Täht, Morton, "Piece of CAKE: A Comprehensive Queue Management Solution for Home Gateways",
#    IEEE LANMAN 2018.

UNLISTED, SPARSE, SPARSE_WAIT, BULK, DECAYED = range(5)
"""States of a queue (CAKE_SET_NONE, CAKE_SET_SPARSE, CAKE_SET_SPARSE_WAIT, CAKE_SET_BULK, CAKE_SET_DECAYING)."""
SMALLEST_QUANTUM = 300
P_INC, P_DEC = 1 / 256, 1 / 4096
"""Steps of the drop probability of BLUE (`cake_set_rate`)."""
DEFAULT_LIMIT = (4 << 20) // 2304
"""Full packets in the 4 MiB of memory that may wait (`cake_reconfigure`); the kernel counts 2304 bytes for each."""


def start_cake(link: Any, default_target: int) -> None:
    """Adapt target, interval and quantum of a link to its rate (`cake_set_rate`)."""
    link.mtu_time = int(FULL_PACKET * link.nanoseconds_per_byte)
    link.target = max(link.mtu_time * 3 // 2, default_target)
    link.interval = max(link.interval + link.target - default_target, 2 * link.target)
    bytes_per_second = int(1e9 / link.nanoseconds_per_byte)
    link.quantum = max(min(bytes_per_second >> 12, FULL_PACKET), SMALLEST_QUANTUM)


@kernel()
def enqueue_cake(link: Any, slot: int, now: int) -> None:
    """Put a packet into the queue of its flow; if the limit is exceeded, shorten the longest (`cake_enqueue`)."""
    number = queue_of(link, slot)
    queue = link.queues[number]
    append(link, number, slot)
    if queue.listed in (UNLISTED, DECAYED):
        if queue.listed == DECAYED:
            delist(link, DECAYING, number)
        enlist(link, NEW, number)
        queue.listed = SPARSE
        queue.deficit = _quantum(link)
    elif queue.listed == SPARSE_WAIT:
        queue.listed = BULK
        link.bulk_flows += 1
    while link.queued > link.capacity:
        longest = longest_queue(link)
        conclude(link, take_first(link, longest), DISCARDED)
        _note_overflow(link, link.queues[longest], now)


@kernel()
def _quantum(link: Any) -> int:
    """Return the bytes of a turn: the quantum over the busy flows between both hosts (`cake_get_flow_quantum`)."""
    return int(link.quantum / max(link.bulk_flows, 1) + uniform(link.next_double, link.random_state))


@kernel()
def dequeue_cake(link: Any, now: int) -> int:
    """Return the next packet, or `NOBODY`: deficit round robin over the queues (`cake_dequeue`)."""
    first = True
    while link.queued > 0:
        # Choose a queue. Queues that decay are looked at once per packet.
        which = DECAYING
        if not first or link.first_listed[DECAYING] == NOBODY:
            which = NEW
            if link.first_listed[NEW] == NOBODY:
                which = OLD if link.first_listed[OLD] != NOBODY else DECAYING
        first = False
        number = link.first_listed[which]
        queue = link.queues[number]
        if queue.deficit <= 0:
            if queue.listed == SPARSE and queue.first_slot != NOBODY:
                queue.listed = BULK
                link.bulk_flows += 1
            elif queue.listed == SPARSE:
                queue.listed = SPARSE_WAIT
            queue.deficit += _quantum(link)
            delist(link, which, number)
            enlist(link, OLD, number)
            continue
        # Take a packet of this queue; the last one is never dropped.
        slot = take_first(link, number)
        while slot != NOBODY and _should_drop(link, queue, slot, now) and queue.first_slot != NOBODY:
            conclude(link, slot, DISCARDED)
            slot = take_first(link, number)
        if slot != NOBODY:
            queue.deficit -= link.packets[slot].length
            return slot
        # The queue is empty: it stays listed until its COBALT is at rest.
        _note_empty(link, queue, now)
        delist(link, which, number)
        if queue.listed == BULK:
            link.bulk_flows -= 1
        queue.listed = UNLISTED
        if queue.p_drop > 0.0 or queue.count or now < queue.drop_next:
            queue.listed = DECAYED
            enlist(link, DECAYING, number)
    return NOBODY


@kernel()
def _control(link: Any, queue: Any, time: int) -> int:
    """Return time + interval / sqrt(count) (`cobalt_control`)."""
    return int(time + link.interval * queue.rec_inv_sqrt)


@kernel()
def _count_to(link: Any, queue: Any, count: int) -> None:
    """Change the count, and move `drop_next` on (`cobalt_invsqrt`); the kernel's reciprocals are exact to rounding.

    The reciprocal is 0 until the count first changes. So the first signal of a queue comes without waiting an interval.
    """
    queue.count = count
    queue.rec_inv_sqrt = 1.0 / np.sqrt(max(count, 1))
    queue.drop_next = _control(link, queue, queue.drop_next)


@kernel()
def _note_overflow(link: Any, queue: Any, now: int) -> None:
    """Let BLUE drop more, and CoDel at once, as the queue has overflown (`cobalt_queue_full`)."""
    if now - queue.blue_timer > link.target:
        queue.p_drop = min(queue.p_drop + P_INC, 1.0)
        queue.blue_timer = now
    queue.dropping = 1
    queue.drop_next = now
    queue.count = max(queue.count, 1)


@kernel()
def _note_empty(link: Any, queue: Any, now: int) -> None:
    """Let BLUE and CoDel drop less, as the queue is empty (`cobalt_queue_empty`)."""
    if queue.p_drop > 0.0 and now - queue.blue_timer > link.target:
        queue.p_drop = max(queue.p_drop - P_DEC, 0.0)
        queue.blue_timer = now
    queue.dropping = 0
    if queue.count and now >= queue.drop_next:
        _count_to(link, queue, queue.count - 1)


@kernel()
def _should_drop(link: Any, queue: Any, slot: int, now: int) -> bool:
    """Return whether a packet is dropped as it leaves; it may be marked instead (`cobalt_should_drop`)."""
    sojourn = now - link.packets[slot].enqueued
    due = queue.count > 0 and now >= queue.drop_next
    beyond = now - queue.drop_next
    # CoDel, simplified: the signals begin an interval after the sojourn time has exceeded the target.
    if sojourn > link.target and sojourn > 4 * link.mtu_time:
        if not queue.dropping:
            queue.dropping = 1
            queue.drop_next = _control(link, queue, now)
        queue.count = max(queue.count, 1)
    else:
        queue.dropping = 0
    drop = False
    if due and queue.dropping:
        drop = not mark(link, slot)
        _count_to(link, queue, queue.count + 1)
        beyond = now - queue.drop_next
    else:
        while due:
            _count_to(link, queue, queue.count - 1)
            beyond = now - queue.drop_next
            due = queue.count > 0 and beyond >= 0
    # BLUE: drops without regard to marks.
    if queue.p_drop > 0.0:
        drop |= uniform(link.next_double, link.random_state) < queue.p_drop
    # `drop_next` is a timeout of the activity, too.
    if queue.count == 0:
        queue.drop_next = now + link.interval
    elif beyond > 0 and not drop:
        queue.drop_next = now
    return drop
