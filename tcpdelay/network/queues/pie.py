"""PIE: packets that arrive are dropped with a probability that a proportional integral controller sets (RFC 8033).

The rules are those of Linux (net/sched/sch_pie.c) with its defaults: no byte mode, and the queueing delay from the time
stamps of packets. The kernel's integers are numbers from 0 to 1 here.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import uniform
from tcpdelay.network.queues.waiting import DISCARDED, FULL_PACKET, NOBODY, append, conclude, mark, take_first

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
    """Update the probability (`pie_calculate_probability`).

    With the queueing delay d and the delay d' at the last update:

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
