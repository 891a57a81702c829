"""The record of a link, the packets that wait at a managed link, and the token buckets of a link."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import Generator
from tcpdelay.compiling.record_types import Array, Record, Truncated, record_type

# The packets that wait at a managed link: one queue or one queue per flow, and the lists of queues that take turns.
#
# A managed link decides about a packet when it leaves the queue, so its departure is not known when it arrives. The
# packet waits in a slot of `link.packets`. Its outcome, a departure or a drop, is put on a list for the engine.

NOBODY = -1
"""In place of the number of a slot or a queue: there is none."""
DISCARDED = -1
"""In place of the departure of a packet: it was dropped."""
NOT_ECT, ECT_0, ECT_1 = range(3)
"""What a packet says about its sender: no ECN, ECN of RFC 3168, or L4S (RFC 9331)."""
SLOTS = 1 << 14
"""Number of packets that can wait, leave, or have an outcome that the engine has not processed."""
LARGEST_LIMIT = 10_240
"""Largest limit of the queue [packets]: the default of FQ-CoDel (RFC 8290, 5.2.2)."""
MOST_QUEUES = 1024
"""Largest number of queues: the default of FQ-CoDel (RFC 8290, 5.2.4)."""
FULL_PACKET = 1514
"""Size of a full packet on Ethernet [bytes] (`psched_mtu`)."""
TRANSFER_STEP = 97
"""Distance between the queues of two successive transfers of a flow."""
NEW, OLD, DECAYING = range(3)
"""Lists of queues: of flows that have begun to send, of flows that keep sending, and, with CAKE, of flows that have
stopped."""
LINK_RING = 1 << 16
"""Largest number of packets whose departures are kept."""


class Packet(Record):
    """A packet at the link."""

    flow: int  # Number of its flow
    segment: int  # This field and those up to `transfer`: what the flow's transport needs to know the packet again
    following: int
    sent: int  # In microseconds
    transfer: int  # Number of the transfer
    length: int  # On the link [bytes]
    enqueued: int  # When it was put in the queue [ns]
    ecn: int  # That of its flow
    marked: int  # Whether it has been marked
    departure: int  # In nanoseconds, or `DISCARDED`
    next_slot: int


class Queue(Record):
    """A queue, with the variables of its CoDel or COBALT as in the kernel (`struct codel_vars`, `cobalt_vars`)."""

    rec_inv_sqrt: float
    p_drop: float
    first_slot: int  # Its first packet
    last_slot: int  # Its last packet
    backlog: int  # Its bytes
    listed: int
    deficit: int
    next_queue: int  # Its place in the lists
    count: int
    lastcount: int
    dropping: int
    first_above_time: int
    drop_next: int
    blue_timer: int


class Link(Generator):
    """The link: its settings, the packets in the queue, and the counts. Times are nanoseconds."""

    nanoseconds_per_byte: float
    min_th: float
    max_th: float
    max_p: float
    w_q: float
    avg: float
    mean_packet_size: float
    threshold: float
    # Token buckets
    burst_time: float
    peak_nanoseconds_per_byte: float  # 0 without a peak rate
    peak_burst_time: float
    # PIE and DualPI2
    prob: float
    accu_prob: float
    # Queue without a manager, and counts
    discipline: int
    in_bytes: int
    capacity: int
    gentle: int
    last_departure: int
    first: int
    next: int
    queued: int
    queued_bytes: int
    marked: int
    count: int
    offered: int
    dropped: int
    marks: int
    carried_bytes: int
    busy: int
    sojourn: int
    # Token buckets
    virtual_finish: Truncated
    peak_finish: Truncated
    # Managed queue
    managed: int
    next_service: int
    service_length: int
    free_slot: int
    first_outcome: int
    last_outcome: int
    target: int
    interval: int
    quantum: int
    queues_used: int
    mtu_time: int
    bulk_flows: int
    qdelay: int
    qdelay_old: int
    burst_allowance: int
    dq_tstamp: int
    next_update: int
    credit: int
    # Trace of the link: its kind, the addresses of its arrays, and the place in it
    trace_kind: int
    trace_times: int
    trace_rates: int
    trace_delays: int
    trace_length: int
    trace_period: int
    trace_place: int
    opportunity_left: int
    added_delay: int
    departures: Annotated[Array[int], LINK_RING]
    sizes: Annotated[Array[int], LINK_RING]
    first_listed: Annotated[Array[int], 3]
    last_listed: Annotated[Array[int], 3]
    packets: Annotated[Array[Packet], SLOTS]
    queues: Annotated[Array[Queue], MOST_QUEUES]


PACKET = record_type(Packet)
LINK = record_type(Link)


def empty_queues(link: Link) -> None:
    """Set the fields of a link of type `LINK`, all zero, to a link whose queues are empty."""
    link.packets["next_slot"] = np.arange(1, SLOTS + 1)
    link.packets["next_slot"][-1] = NOBODY
    link.queues["first_slot"] = link.queues["last_slot"] = NOBODY
    link.first_listed[:] = link.last_listed[:] = NOBODY
    link.first_outcome = link.last_outcome = NOBODY


@kernel()
def take_slot(link: Link) -> int:
    """Return a free slot, or `NOBODY`."""
    slot = link.free_slot
    if slot != NOBODY:
        link.free_slot = link.packets[slot].next_slot
    return int(slot)


@kernel()
def queue_of(link: Link, slot: int) -> int:
    """Return the number of the queue of a packet's connection; each transfer of a flow has a new one.

    Flows share a queue only if there are many; the kernel's hash of addresses and ports lets two share one by chance.
    """
    packet = link.packets[slot]
    return int((packet.flow + TRANSFER_STEP * packet.transfer) % link.queues_used)


@kernel()
def append(link: Link, number: int, slot: int) -> None:
    """Put a packet at the end of a queue."""
    queue, packet = link.queues[number], link.packets[slot]
    packet.next_slot = NOBODY
    if queue.first_slot == NOBODY:
        queue.first_slot = slot
    else:
        link.packets[queue.last_slot].next_slot = slot
    queue.last_slot = slot
    queue.backlog += packet.length
    link.queued += 1
    link.queued_bytes += packet.length


@kernel()
def take_first(link: Link, number: int) -> int:
    """Remove the first packet of a queue; return its slot, or `NOBODY` if the queue is empty."""
    queue = link.queues[number]
    slot = queue.first_slot
    if slot == NOBODY:
        return NOBODY
    packet = link.packets[slot]
    queue.first_slot = packet.next_slot
    queue.backlog -= packet.length
    link.queued -= 1
    link.queued_bytes -= packet.length
    return int(slot)


@kernel()
def conclude(link: Link, slot: int, departure: int) -> None:
    """Put the outcome of a packet on the list for the engine: its departure [ns] or `DISCARDED`."""
    packet = link.packets[slot]
    packet.departure = departure
    packet.next_slot = NOBODY
    if departure == DISCARDED:
        link.dropped += 1
    if link.first_outcome == NOBODY:
        link.first_outcome = slot
    else:
        link.packets[link.last_outcome].next_slot = slot
    link.last_outcome = slot


@kernel()
def take_outcome(link: Link) -> int:
    """Remove the first outcome from its list; return its slot, which is free from the next packet on."""
    slot = link.first_outcome
    packet = link.packets[slot]
    link.first_outcome = packet.next_slot
    packet.next_slot = link.free_slot
    link.free_slot = slot
    return int(slot)


@kernel()
def mark(link: Link, slot: int) -> bool:
    """Mark a packet if its sender understands marks (`INET_ECN_set_ce`); return whether it is marked.

    A packet that two rules of DualPI2 mark counts twice, as in the kernel's counts.
    """
    packet = link.packets[slot]
    if packet.ecn == NOT_ECT:
        return False
    packet.marked = 1
    link.marks += 1
    return True


@kernel()
def enlist(link: Link, which: int, number: int) -> None:
    """Put a queue at the end of a list."""
    link.queues[number].next_queue = NOBODY
    if link.first_listed[which] == NOBODY:
        link.first_listed[which] = number
    else:
        link.queues[link.last_listed[which]].next_queue = number
    link.last_listed[which] = number


@kernel()
def delist(link: Link, which: int, number: int) -> None:
    """Remove a queue from a list."""
    before, at = NOBODY, link.first_listed[which]
    while at != number:
        before, at = at, link.queues[at].next_queue
    following = link.queues[number].next_queue
    if before == NOBODY:
        link.first_listed[which] = following
    else:
        link.queues[before].next_queue = following
    if link.last_listed[which] == number:
        link.last_listed[which] = before


@kernel()
def longest_queue(link: Link) -> int:
    """Return the number of the queue with the most bytes."""
    longest = 0
    for number in range(1, link.queues_used):
        if link.queues[number].backlog > link.queues[longest].backlog:
            longest = number
    return longest


# The token buckets of a link: the rate with its burst, the peak rate, and the policer.
#
# A bucket of `burst` bytes fills at a rate. A packet needs tokens for all its bytes. If they are not there, a link lets
# the packet wait (`tbf_dequeue` of Linux, net/sched/sch_tbf.c), and a policer drops it (`tcf_police_act`,
# act_police.c). The record of a link has a time for each bucket (`virtual_finish`): the tokens at a time t are what
# arrives from then to t, and at most the whole bucket.


@kernel()
def next_departure(link: Link, time: int, size: int) -> int:
    """Return when a packet of `size` bytes that is first in the queue at a time [ns] has left, and take its tokens."""
    service = round(size * link.nanoseconds_per_byte)
    link.virtual_finish = max(link.virtual_finish, time - link.burst_time) + service
    departure = max(int(link.virtual_finish), time)
    if link.peak_nanoseconds_per_byte:
        peak_service = round(size * link.peak_nanoseconds_per_byte)
        link.peak_finish = max(link.peak_finish, time - link.peak_burst_time) + peak_service
        departure = max(departure, int(link.peak_finish))
        # A packet takes both kinds of tokens when it leaves. The bucket that it did not wait for fills up till then.
        link.virtual_finish = max(link.virtual_finish, departure - link.burst_time + service)
        link.peak_finish = max(link.peak_finish, departure - link.peak_burst_time + peak_service)
    return departure


@kernel()
def conforms(link: Link, time: int, size: int) -> bool:
    """Return whether a policer lets a packet pass at a time [ns], and take its tokens if so."""
    finish = max(link.virtual_finish, time - link.burst_time) + round(size * link.nanoseconds_per_byte)
    if finish > time:
        return False
    link.virtual_finish = finish
    return True
