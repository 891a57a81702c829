"""PIE (RFC 8033), and DualPI2 (RFC 9332): queues with a proportional integral controller."""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.queues.waiting import DISCARDED, ECT_1, FULL_PACKET, NOBODY, append, conclude, mark, take_first
from tcpdelay.sim.records import uniform

# PIE: packets that arrive are dropped with a probability that a proportional integral controller sets (RFC 8033).
#
# The rules are those of Linux (net/sched/sch_pie.c) with its defaults: no byte mode, and the queueing delay from the
# time stamps of packets. The kernel's integers are numbers from 0 to 1 here.

ALPHA, BETA = 0.125, 1.25
"""Gains of the controller [1/s] (RFC 8033, 4.2; `pie_params_init`: 2/16 and 20/16)."""
MAX_BURST = 150_000_000
"""Time without drops after an idle time [ns] (RFC 8033, 4.4)."""
HIGH_DELAY = 250_000_000
"""Queueing delay above which the probability grows faster [ns]."""
_NANOSECOND = 1e-9
_NO_TIME = -1


def start_pie(link: Any) -> None:
    """Set the variables of PIE on a link that is all zero; it has been idle for long before the sources begin."""
    link.burst_allowance, link.dq_tstamp = MAX_BURST, _NO_TIME


@kernel()
def enqueue_pie(link: Any, slot: int, now: int) -> None:
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
def _drops_early(link: Any) -> bool:
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
def dequeue_pie(link: Any, now: int) -> int:
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
def _update(link: Any, now: int) -> None:
    """Make the updates of the probability that are due; nothing that they use has changed since they were due."""
    while link.next_update <= now:
        link.next_update += link.interval
        _calculate_probability(link)


@kernel()
def _calculate_probability(link: Any) -> None:
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


def start_dualpi2(link: Any) -> None:
    """Set the variables of DualPI2 on a link that is all zero."""
    _reset_credit(link)
    link.next_update = link.interval


@kernel()
def _reset_credit(link: Any) -> None:
    """Let the L4S queue go first (`dualpi2_reset_c_protection`)."""
    link.credit = FULL_PACKET * (CLASSIC_SHARE - L4S_SHARE)


@kernel()
def enqueue_dualpi2(link: Any, slot: int, now: int) -> None:
    """Put a packet into its queue, unless the limit is exceeded (`dualpi2_enqueue_skb`)."""
    _update_coupled(link, now)
    if link.queued >= link.capacity:
        conclude(link, slot, DISCARDED)
    else:
        append(link, _queue_of(link, slot), slot)


@kernel()
def _queue_of(link: Any, slot: int) -> int:
    """Return the number of the queue of a packet (`dualpi2_skb_classify`)."""
    return L4S if link.packets[slot].ecn == ECT_1 else CLASSIC


@kernel()
def dequeue_dualpi2(link: Any, now: int) -> int:
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
def _choose_queue(link: Any) -> tuple[int, int]:
    """Return the queue that sends next, and the credit of the other queue per byte (`dequeue_packet`).

    While both queues hold packets, they take turns so that each has its share of the bytes.
    """
    classic = link.queues[CLASSIC].first_slot != NOBODY
    l4s = link.queues[L4S].first_slot != NOBODY
    if l4s and not (classic and link.credit > 0):
        return L4S, CLASSIC_SHARE if classic else 0
    return CLASSIC, -L4S_SHARE if l4s else 0


@kernel()
def _must_drop(link: Any, slot: int) -> bool:
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
def _squared(link: Any) -> bool:
    """Draw with the square of the probability (`dualpi2_roll`, twice)."""
    if uniform(link.next_double, link.random_state) >= link.prob:
        return False
    return bool(uniform(link.next_double, link.random_state) < link.prob)


@kernel()
def _delay(link: Any, number: int, now: int) -> int:
    """Return for how long the first packet of a queue has waited [ns] (`get_queue_delays`)."""
    slot = link.queues[number].first_slot
    return 0 if slot == NOBODY else int(now - link.packets[slot].enqueued)


@kernel()
def _update_coupled(link: Any, now: int) -> None:
    """Make the updates of the probability that are due, as the queues were then (`calculate_probability`).

    With the longer delay d of both queues and the delay d' at the last update, p += alpha (d - target) + beta (d - d').
    """
    while link.next_update <= now:
        delay = max(_delay(link, CLASSIC, link.next_update), _delay(link, L4S, link.next_update))
        step = 2.0**-38 * (DUALPI2_ALPHA * (delay - link.target) + DUALPI2_BETA * (delay - link.qdelay_old))
        link.prob = min(max(link.prob + step, 0.0), 1.0)
        link.qdelay_old = delay
        link.next_update += link.interval
