"""Disciplines of managed queues: CoDel (RFC 8289), FQ-CoDel (RFC 8290), CAKE, PIE (RFC 8033), DualPI2 (RFC 9332)."""

from __future__ import annotations

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import uniform
from tcpdelay.sim.network.waiting import (
    DECAYING,
    DISCARDED,
    ECT_1,
    FULL_PACKET,
    NEW,
    NOBODY,
    OLD,
    Link,
    Queue,
    append,
    conclude,
    delist,
    enlist,
    longest_queue,
    mark,
    queue_of,
    take_first,
)

# CoDel (RFC 8289): it drops packets once each packet of an interval has waited longer than the target, until one has
# not.
#
# The rules are those of Linux (include/net/codel_impl.h); the names of functions and variables are the kernel's.

INTERVALS = 16
"""If CoDel drops again within this time after `drop_next`, it begins with its last rate [intervals]."""


@kernel()
def newton_step(queue: Queue) -> None:
    """Improve x, the reciprocal of the square root of `count`: x' = x / 2 (3 - count x^2) (`codel_Newton_step`).

    The first steps do not reach the root, so the first drops come at other times than the square root gives.
    """
    queue.rec_inv_sqrt *= 0.5 * (3.0 - queue.count * queue.rec_inv_sqrt**2)
    if queue.rec_inv_sqrt <= 0.0:
        # A count that has grown by many drops at once is too far for the step.
        queue.rec_inv_sqrt = 1.0 / np.sqrt(queue.count)


@kernel()
def control_law(link: Link, queue: Queue, time: int) -> int:
    """Return when the next packet is dropped: time + interval / sqrt(count) (`codel_control_law`)."""
    return int(time + link.interval * queue.rec_inv_sqrt)


@kernel()
def should_drop(link: Link, queue: Queue, slot: int, now: int) -> bool:
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
def dequeue_codel(link: Link, number: int, now: int) -> int:
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
# (`tcpdelay.sim.network.waiting.queue_of`).

DROP_BATCH = 64
"""Largest number of packets that are dropped at once when the queue is full (`drop_batch_size`)."""


@kernel()
def enqueue_fq_codel(link: Link, slot: int) -> None:
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
def _drop_from_longest(link: Link) -> None:
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
def dequeue_fq_codel(link: Link, now: int) -> int:
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
# Only the hash that chooses the queue of a connection is another one (`tcpdelay.sim.network.waiting.queue_of`).
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


def start_cake(link: Link, default_target: int) -> None:
    """Adapt target, interval and quantum of a link to its rate (`cake_set_rate`)."""
    link.mtu_time = int(FULL_PACKET * link.nanoseconds_per_byte)
    link.target = max(link.mtu_time * 3 // 2, default_target)
    link.interval = max(link.interval + link.target - default_target, 2 * link.target)
    bytes_per_second = int(1e9 / link.nanoseconds_per_byte)
    link.quantum = max(min(bytes_per_second >> 12, FULL_PACKET), SMALLEST_QUANTUM)


@kernel()
def enqueue_cake(link: Link, slot: int, now: int) -> None:
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
def _quantum(link: Link) -> int:
    """Return the bytes of a turn: the quantum over the busy flows between both hosts (`cake_get_flow_quantum`)."""
    return int(link.quantum / max(link.bulk_flows, 1) + uniform(link.next_double, link.random_state))


@kernel()
def dequeue_cake(link: Link, now: int) -> int:
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
def _control(link: Link, queue: Queue, time: int) -> int:
    """Return time + interval / sqrt(count) (`cobalt_control`)."""
    return int(time + link.interval * queue.rec_inv_sqrt)


@kernel()
def _count_to(link: Link, queue: Queue, count: int) -> None:
    """Change the count, and move `drop_next` on (`cobalt_invsqrt`); the kernel's reciprocals are exact to rounding.

    The reciprocal is 0 until the count first changes. So the first signal of a queue comes without waiting an interval.
    """
    queue.count = count
    queue.rec_inv_sqrt = 1.0 / np.sqrt(max(count, 1))
    queue.drop_next = _control(link, queue, queue.drop_next)


@kernel()
def _note_overflow(link: Link, queue: Queue, now: int) -> None:
    """Let BLUE drop more, and CoDel at once, as the queue has overflown (`cobalt_queue_full`)."""
    if now - queue.blue_timer > link.target:
        queue.p_drop = min(queue.p_drop + P_INC, 1.0)
        queue.blue_timer = now
    queue.dropping = 1
    queue.drop_next = now
    queue.count = max(queue.count, 1)


@kernel()
def _note_empty(link: Link, queue: Queue, now: int) -> None:
    """Let BLUE and CoDel drop less, as the queue is empty (`cobalt_queue_empty`)."""
    if queue.p_drop > 0.0 and now - queue.blue_timer > link.target:
        queue.p_drop = max(queue.p_drop - P_DEC, 0.0)
        queue.blue_timer = now
    queue.dropping = 0
    if queue.count and now >= queue.drop_next:
        _count_to(link, queue, queue.count - 1)


@kernel()
def _should_drop(link: Link, queue: Queue, slot: int, now: int) -> bool:
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


# PIE: packets that arrive are dropped with a probability that a proportional integral controller sets (RFC 8033).
#
# The rules are those of Linux (net/sched/sch_pie.c) with its defaults: no byte mode, and the queueing delay from the
# time stamps of packets. The kernel's integers are numbers from 0 to 1 here. Unlike Linux by default, packets with ECN
# are marked, and updates are due exactly every interval, not at ticks.

ALPHA, BETA = 0.125, 1.25
"""Gains of the controller [1/s] (RFC 8033, 4.2; `pie_params_init`: 2/16 and 20/16)."""
MAX_BURST = 150_000_000
"""Time without drops after an idle time [ns] (RFC 8033, 4.4)."""
HIGH_DELAY = 250_000_000
"""Queueing delay above which the probability grows faster [ns]."""
_NANOSECOND = 1e-9
_NO_TIME = -1


def start_pie(link: Link) -> None:
    """Set the variables of PIE on a link that is all zero; it has been idle for long before the sources begin."""
    link.burst_allowance, link.dq_tstamp = MAX_BURST, _NO_TIME


@kernel()
def enqueue_pie(link: Link, slot: int, now: int) -> None:
    """Put a packet into the queue, mark it or drop it (`pie_qdisc_enqueue`)."""
    _update(link, now)
    full = link.queued >= link.capacity
    if not full:
        passes = not _drops_early(link)
        if not passes and link.prob <= 0.1:
            passes = mark(link, slot)
        if passes:
            append(link, 0, slot)
            return
    link.accu_prob = 0.0
    conclude(link, slot, DISCARDED)


@kernel()
def _drops_early(link: Link) -> bool:
    """Draw whether a packet that arrives is dropped early (`pie_drop_early`)."""
    if link.burst_allowance > 0:
        return False
    if link.qdelay < link.target // 2 and link.prob < 0.2:
        return False
    if link.queued_bytes < 2 * FULL_PACKET:
        return False
    # Derandomisation: neither two drops in close succession nor a long time without any.
    link.accu_prob = 0.0 if link.prob == 0.0 else link.accu_prob + link.prob
    if link.accu_prob < 0.85:
        return False
    if link.accu_prob >= 8.5:
        return True
    if uniform(link.next_double, link.random_state) < link.prob:
        link.accu_prob = 0.0
        return True
    return False


@kernel()
def dequeue_pie(link: Link, now: int) -> int:
    """Return the next packet, or `NOBODY`, and note its queueing delay (`pie_process_dequeue`)."""
    _update(link, now)
    slot = take_first(link, 0)
    if slot == NOBODY:
        return NOBODY
    link.qdelay = now - link.packets[slot].enqueued if link.queued_bytes else 0
    passed = now - link.dq_tstamp if link.dq_tstamp != _NO_TIME else 0
    link.dq_tstamp = now
    link.burst_allowance = max(link.burst_allowance - passed, 0)
    return slot


@kernel()
def _update(link: Link, now: int) -> None:
    """Make up for the updates of the probability that are due: what they use changes only with packets."""
    while link.next_update <= now:
        link.next_update += link.interval
        _calculate_probability(link)


@kernel()
def _calculate_probability(link: Link) -> None:
    """Update the probability by the queueing delay d and the delay d' at the last update (`pie_calculate_probability`).

    p += alpha (d - target) + beta (d - d').
    """
    delay, before = link.qdelay, link.qdelay_old
    waits_briefly = delay == 0 and link.queued_bytes != 0
    # The smaller the probability, the smaller the steps (RFC 8033, 4.2).
    scale = 1.0
    if link.prob < 0.1:
        scale = 0.5
        power = 0.01
        while link.prob < power and power > 0.5e-6:
            scale /= 4.0
            power /= 10.0
    step = scale * _NANOSECOND * (ALPHA * (delay - link.target) + BETA * (delay - before))
    if step > 0.02 and link.prob >= 0.1:
        step = 0.02
    if delay > HIGH_DELAY:
        step += 0.02
    saturated = link.prob + step > 1.0
    link.prob = min(max(link.prob + step, 0.0), 1.0)
    if delay == 0 and before == 0 and not waits_briefly and not saturated:
        link.prob -= link.prob / 64.0
    if delay < link.target // 2 and before < link.target // 2 and link.prob == 0.0:
        link.burst_allowance, link.accu_prob, link.dq_tstamp = MAX_BURST, 0.0, _NO_TIME
    link.qdelay_old = delay


# DualPI2: a queue for L4S that marks early and goes first, beside a queue for other packets with PI2 (RFC 9332).
#
# The probability p of a proportional integral controller follows the longer delay of both queues. Packets of the other
# queue are dropped or marked with p^2, and L4S packets are marked with 2 p, because the rate of a scalable sender is in
# proportion to 1 / p, and that of Reno to 1 / sqrt(p). So both share the link. The rules are those of Linux
# (net/sched/sch_dualpi2.c) with its defaults; the kernel's integers are numbers from 0 to 1 here.
#
# References:
# [1] De Schepper, Bondarenko, Tsang, Briscoe, "PI2: A Linearized AQM for both Classic and Scalable TCP", ACM CoNEXT
#    2016.

CLASSIC, L4S = range(2)
"""Numbers of the queues."""
DUALPI2_ALPHA, DUALPI2_BETA = 44, 879
"""Gains of the controller [2^-38 per ns]: 0.16 and 3.2 per second (`dualpi2_scale_alpha_beta` of 41 and 819)."""
COUPLING = 2
"""Ratio of the probability of L4S marks to p (`coupling_factor`; k in RFC 9332)."""
STEP_THRESHOLD = 1_000_000
"""Sojourn time above which all L4S packets are marked [ns]."""
CLASSIC_SHARE, L4S_SHARE = 10, 90
"""Shares of the link if both queues hold packets [%] (`c_protection_wc`, `c_protection_wl`)."""


def start_dualpi2(link: Link) -> None:
    """Set the variables of DualPI2 on a link that is all zero."""
    _reset_credit(link)
    link.next_update = link.interval


@kernel()
def _reset_credit(link: Link) -> None:
    """Let the L4S queue go first (`dualpi2_reset_c_protection`)."""
    link.credit = FULL_PACKET * (CLASSIC_SHARE - L4S_SHARE)


@kernel()
def enqueue_dualpi2(link: Link, slot: int, now: int) -> None:
    """Put a packet into its queue, unless the limit is exceeded (`dualpi2_enqueue_skb`)."""
    _update_coupled(link, now)
    if link.queued >= link.capacity:
        conclude(link, slot, DISCARDED)
    else:
        append(link, _queue_of(link, slot), slot)


@kernel()
def _queue_of(link: Link, slot: int) -> int:
    """Return the number of the queue of a packet (`dualpi2_skb_classify`)."""
    return L4S if link.packets[slot].ecn == ECT_1 else CLASSIC


@kernel()
def dequeue_dualpi2(link: Link, now: int) -> int:
    """Return the next packet, after the drops that are due, or `NOBODY` (`__dualpi2_qdisc_dequeue`)."""
    _update_coupled(link, now)
    while True:
        number, credit = _choose_queue(link)
        slot = take_first(link, number)
        if slot == NOBODY:
            _reset_credit(link)
            return NOBODY
        if _must_drop(link, slot):
            conclude(link, slot, DISCARDED)
            continue
        if number == L4S and now - link.packets[slot].enqueued > STEP_THRESHOLD:
            mark(link, slot)
        link.credit += credit * link.packets[slot].length
        return int(slot)


@kernel()
def _choose_queue(link: Link) -> tuple[int, int]:
    """Return the queue that sends next, and the credit of the other queue per byte (`dequeue_packet`).

    While both queues hold packets, they take turns so that each has its share of the bytes.
    """
    classic = link.queues[CLASSIC].first_slot != NOBODY
    l4s = link.queues[L4S].first_slot != NOBODY
    if l4s and not (classic and link.credit > 0):
        return L4S, CLASSIC_SHARE if classic else 0
    return CLASSIC, -L4S_SHARE if l4s else 0


@kernel()
def _must_drop(link: Link, slot: int) -> bool:
    """Return whether a packet is dropped as it leaves; it may be marked instead (`must_drop`)."""
    if link.queued_bytes < 2 * FULL_PACKET:
        return False
    scaled = COUPLING * link.prob
    overload = scaled > 1.0
    if _queue_of(link, slot) == L4S:
        if overload and _squared(link):
            return True
        if overload or uniform(link.next_double, link.random_state) < scaled:
            mark(link, slot)
        return False
    return _squared(link) and (overload or not mark(link, slot))


@kernel()
def _squared(link: Link) -> bool:
    """Draw with the square of the probability (`dualpi2_roll`, twice)."""
    if uniform(link.next_double, link.random_state) >= link.prob:
        return False
    return bool(uniform(link.next_double, link.random_state) < link.prob)


@kernel()
def _delay(link: Link, number: int, now: int) -> int:
    """Return for how long the first packet of a queue has waited [ns] (`get_queue_delays`)."""
    slot = link.queues[number].first_slot
    return 0 if slot == NOBODY else int(now - link.packets[slot].enqueued)


@kernel()
def _update_coupled(link: Link, now: int) -> None:
    """Make the updates of the probability that are due, as the queues were then (`calculate_probability`).

    With the longer delay d of both queues and the delay d' at the last update, p += alpha (d - target) + beta (d - d').
    """
    while link.next_update <= now:
        delay = max(_delay(link, CLASSIC, link.next_update), _delay(link, L4S, link.next_update))
        step = 2.0**-38 * (DUALPI2_ALPHA * (delay - link.target) + DUALPI2_BETA * (delay - link.qdelay_old))
        link.prob = min(max(link.prob + step, 0.0), 1.0)
        link.qdelay_old = delay
        link.next_update += link.interval
