"""The link with a managed queue: packets that arrive wait, and when the link is free it takes the next packet.

Linux has the queue behind a token bucket (net/sched/sch_tbf.c). The bucket takes a packet from the queue when it has
sent the packet before, and holds this packet until it has the tokens for it. So CoDel decides about a packet when the
packet before has left. CAKE shapes by itself: it lets a packet leave when its turn comes, and then waits for as long as
the link takes for it.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.network.bottleneck import (
    CAKE,
    CODEL,
    DUALPI2,
    FQ_CODEL,
    NANOSECONDS,
    NANOSECONDS_PER_MICROSECOND,
    PIE,
    Bottleneck,
)
from tcpdelay.sim.queues.codel import (
    dequeue_cake,
    dequeue_codel,
    dequeue_fq_codel,
    enqueue_cake,
    enqueue_fq_codel,
    start_cake,
)
from tcpdelay.sim.queues.pie import (
    dequeue_dualpi2,
    dequeue_pie,
    enqueue_dualpi2,
    enqueue_pie,
    start_dualpi2,
    start_pie,
)
from tcpdelay.sim.queues.waiting import DISCARDED, NOBODY, append, conclude, empty_queues, next_departure, take_slot
from tcpdelay.sim.records import NEVER


def prepare_managed_link(link: Any, bottleneck: Bottleneck) -> None:
    """Set the fields of the record of a link that only managed links use."""
    empty_queues(link)
    link.managed, link.next_service = 1, NEVER
    link.target = round(bottleneck.queue_target * NANOSECONDS)
    link.interval = round(bottleneck.queue_interval * NANOSECONDS)
    link.quantum, link.queues_used = bottleneck.quantum, bottleneck.flows
    if link.discipline == PIE:
        start_pie(link)
    elif link.discipline == CAKE:
        start_cake(link, link.target)
    elif link.discipline == DUALPI2:
        start_dualpi2(link)


@kernel()
def wait(link: Any, flow: Any, now: int, length: int, segment: int, following: int) -> bool:
    """Let a packet of a flow arrive at the queue; return False if it is dropped, because no slot is free."""
    link.offered += 1
    slot = take_slot(link)
    if slot == NOBODY:
        link.dropped += 1
        return False
    time = (now + flow.access_delay) * NANOSECONDS_PER_MICROSECOND
    packet = link.packets[slot]
    packet.flow, packet.transfer, packet.sent = flow.number, flow.transfers, now
    packet.segment, packet.following = segment, following
    packet.length, packet.enqueued = length, time
    packet.ecn, packet.marked = flow.ecn, 0
    if link.discipline == CODEL and link.queued >= link.capacity:
        conclude(link, slot, DISCARDED)
    elif link.discipline == CODEL:
        append(link, 0, slot)
    elif link.discipline == FQ_CODEL:
        enqueue_fq_codel(link, slot)
    elif link.discipline == PIE:
        enqueue_pie(link, slot, time)
    elif link.discipline == DUALPI2:
        enqueue_dualpi2(link, slot, time)
    else:
        enqueue_cake(link, slot, time)
    if link.next_service == NEVER and link.queued > 0:
        link.next_service = max(time, link.virtual_finish) if link.discipline == CAKE else time
    return True


@kernel()
def serve(link: Any) -> None:
    """Take the next packet from the queue at `link.next_service`, and note when the link is free again."""
    now = link.next_service
    # The packet that has left counted as queued while the token bucket held it.
    if link.service_length:
        link.queued -= 1
        link.queued_bytes -= link.service_length
        link.service_length = 0
    if link.discipline == FQ_CODEL:
        slot = dequeue_fq_codel(link, now)
    elif link.discipline == CODEL:
        slot = dequeue_codel(link, 0, now)
    elif link.discipline == PIE:
        slot = dequeue_pie(link, now)
    elif link.discipline == DUALPI2:
        slot = dequeue_dualpi2(link, now)
    else:
        slot = dequeue_cake(link, now)
    if slot == NOBODY:
        link.next_service = NEVER
        return
    length = link.packets[slot].length
    free = next_departure(link, now, length)
    departure = free
    if link.discipline == CAKE:
        departure = now
        link.next_service = free if link.queued else NEVER
    else:
        link.queued += 1
        link.queued_bytes += length
        link.service_length = length
        link.next_service = free
    link.carried_bytes += length
    link.busy += round(length * link.nanoseconds_per_byte)
    link.sojourn += departure - link.packets[slot].enqueued
    conclude(link, slot, departure)


@kernel()
def service_time(link: Any) -> int:
    """Return when the link takes the next packet [us], or `NEVER`; a packet that arrives then is in time."""
    return int(link.next_service // NANOSECONDS_PER_MICROSECOND if link.next_service < NEVER else NEVER)
