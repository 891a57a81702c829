"""The packets that wait at a managed link, and the token buckets of a link."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.compiling.compilation import kernel

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

_PACKET_FIELDS = "flow segment following sent transfer length enqueued ecn marked departure next_slot"
_QUEUE_FIELDS = (
    "first_slot last_slot backlog listed deficit next_queue count lastcount dropping first_above_time drop_next "
    "blue_timer"
)
PACKET = np.dtype([(name, np.int64) for name in _PACKET_FIELDS.split()])
"""A packet at the link: the number of its flow, what the flow's transport needs to know it again (`segment`,
`following`, the time `sent` [us], the number of the `transfer`), its `length` on the link [bytes], the time at which it
was `enqueued` [ns], the `ecn` of its flow, whether it has been `marked`, and its `departure` [ns] or `DISCARDED`."""
QUEUE = np.dtype(
    [("rec_inv_sqrt", np.float64), ("p_drop", np.float64)] + [(name, np.int64) for name in _QUEUE_FIELDS.split()]
)
"""A queue: its first and last packet, its bytes, its place in the lists, and the variables of its CoDel or COBALT,
named as in the kernel (`struct codel_vars`, `struct cobalt_vars`)."""

LINK_FLOATS = "prob accu_prob"
LINK_INTEGERS = (
    "managed next_service service_length free_slot first_outcome last_outcome target interval quantum queues_used "
    "mtu_time bulk_flows qdelay qdelay_old burst_allowance dq_tstamp next_update "
    "credit"
)
LINK_ARRAYS = [
    ("first_listed", np.int64, 3),
    ("last_listed", np.int64, 3),
    ("packets", PACKET, SLOTS),
    ("queues", QUEUE, MOST_QUEUES),
]
"""Fields of the record of a link that only managed links use. Times are nanoseconds; `managed` is 0 or 1."""


def empty_queues(link: Any) -> None:
    """Set the fields of a link of type `LINK`, all zero, to a link whose queues are empty."""
    link.packets["next_slot"] = np.arange(1, SLOTS + 1)
    link.packets["next_slot"][-1] = NOBODY
    link.queues["first_slot"] = link.queues["last_slot"] = NOBODY
    link.first_listed[:] = link.last_listed[:] = NOBODY
    link.first_outcome = link.last_outcome = NOBODY


@kernel()
def take_slot(link: Any) -> int:
    """Return a free slot, or `NOBODY`."""
    slot = link.free_slot
    if slot != NOBODY:
        link.free_slot = link.packets[slot].next_slot
    return int(slot)


@kernel()
def queue_of(link: Any, slot: int) -> int:
    """Return the number of the queue of a packet's connection; each transfer of a flow has a new one.

    Flows share a queue only if there are many; the kernel's hash of addresses and ports lets two share one by chance.
    """
    packet = link.packets[slot]
    return int((packet.flow + TRANSFER_STEP * packet.transfer) % link.queues_used)


@kernel()
def append(link: Any, number: int, slot: int) -> None:
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
def take_first(link: Any, number: int) -> int:
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
def conclude(link: Any, slot: int, departure: int) -> None:
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
def take_outcome(link: Any) -> int:
    """Remove the first outcome from its list; return its slot, which is free from the next packet on."""
    slot = link.first_outcome
    packet = link.packets[slot]
    link.first_outcome = packet.next_slot
    packet.next_slot = link.free_slot
    link.free_slot = slot
    return int(slot)


@kernel()
def mark(link: Any, slot: int) -> bool:
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
def enlist(link: Any, which: int, number: int) -> None:
    """Put a queue at the end of a list."""
    link.queues[number].next_queue = NOBODY
    if link.first_listed[which] == NOBODY:
        link.first_listed[which] = number
    else:
        link.queues[link.last_listed[which]].next_queue = number
    link.last_listed[which] = number


@kernel()
def delist(link: Any, which: int, number: int) -> None:
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
def longest_queue(link: Any) -> int:
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

BUCKET_FLOATS = "burst_time peak_nanoseconds_per_byte peak_burst_time"
BUCKET_INTEGERS = "virtual_finish peak_finish"
"""Fields of the record of a link. Times are nanoseconds; without a peak rate its time per byte is 0."""


@kernel()
def next_departure(link: Any, time: int, size: int) -> int:
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
def conforms(link: Any, time: int, size: int) -> bool:
    """Return whether a policer lets a packet pass at a time [ns], and take its tokens if so."""
    finish = max(link.virtual_finish, time - link.burst_time) + round(size * link.nanoseconds_per_byte)
    if finish > time:
        return False
    link.virtual_finish = finish
    return True
