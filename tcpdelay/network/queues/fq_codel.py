"""FQ-CoDel: a queue with CoDel for each flow; the queues take turns, and flows that begin to send go first (RFC 8290).

The rules are those of Linux (net/sched/sch_fq_codel.c), except for the hash that chooses the queue of a connection
(`tcpdelay.network.queues.waiting.queue_of`).
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.network.queues.codel import dequeue_codel
from tcpdelay.network.queues.waiting import (
    DISCARDED,
    NEW,
    NOBODY,
    OLD,
    append,
    conclude,
    delist,
    enlist,
    longest_queue,
    queue_of,
    take_first,
)

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
