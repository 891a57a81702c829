"""Bins of delays: 1/32 of a slot each, with its weight and its mean, so that delays of one value keep it exactly."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.compilation import allocation_free

BINS_PER_SLOT = 32
SELDOM = 1e-8
"""Probability below which a packet's further repairs count with their mean only."""
NEGLIGIBLE = 1e-10
"""Probability of a state, or of a whole phase, below which its packets are left out, and so it is for single delays."""
WEIGHT, REMAINDER = range(2)
"""Of a bin: the sum of the weights, and of weight times delay beyond the bin's whole slots."""
EXTRA = BINS_PER_SLOT
"""Beside the bins of the first slot: the slots up to the longest delay (WEIGHT), and the sum of ages (REMAINDER)."""


@njit(cache=True)
def new_bins(slots: int) -> NDArray[np.float64]:
    """Return empty bins for delays up to that many slots."""
    return np.zeros((2, BINS_PER_SLOT + 1, slots + 1))


@allocation_free()
def add(bins: NDArray[np.float64], age: float, left: float, weight: float) -> None:
    """Add packets of one age and wait for a repair, unless they are negligible."""
    if weight < NEGLIGIBLE:
        return
    delay = age + left
    slot = min(int(delay), bins.shape[2] - 1)
    part = delay - slot
    place = min(int(part * BINS_PER_SLOT), BINS_PER_SLOT - 1)
    bins[WEIGHT, place, slot] += weight
    bins[REMAINDER, place, slot] += weight * part
    bins[WEIGHT, EXTRA, 0] = max(bins[WEIGHT, EXTRA, 0], slot + 1.0)
    bins[REMAINDER, EXTRA, 0] += weight * age


@allocation_free()
def add_row(bins: NDArray[np.float64], delay: float, weight: float, row: NDArray[np.float64]) -> None:
    """Add packets by their age in whole slots, `delay` being what the first of them have; no ages are summed."""
    last = bins.shape[2] - 1
    slot = min(int(delay), last)
    part = delay - slot
    place = min(int(part * BINS_PER_SLOT), BINS_PER_SLOT - 1)
    within = min(row.size, last - slot + 1)
    weights, remainders = bins[WEIGHT, place, slot : slot + within], bins[REMAINDER, place, slot : slot + within]
    for i in range(within):
        this = weight * row[i]
        weights[i] += this
        remainders[i] += this * part
    for i in range(within, row.size):
        bins[WEIGHT, place, last] += weight * row[i]
        bins[REMAINDER, place, last] += weight * row[i] * (part + slot + i - last)
    bins[WEIGHT, EXTRA, 0] = max(bins[WEIGHT, EXTRA, 0], float(slot + within))


@allocation_free()
def add_shifted(pattern: NDArray[np.float64], probability: NDArray[np.float64], bins: NDArray[np.float64]) -> float:
    """Add a pattern once for each state, shifted by one slot more each time; return its packets, and empty it.

    Ages are not added.
    """
    packets = 0.0
    for place in range(BINS_PER_SLOT):
        for slot in range(int(pattern[WEIGHT, EXTRA, 0])):
            weight = pattern[WEIGHT, place, slot]
            if weight > 0.0:
                packets += weight
                add_row(bins, slot + pattern[REMAINDER, place, slot] / weight, weight, probability)
                pattern[WEIGHT, place, slot] = pattern[REMAINDER, place, slot] = 0.0
    pattern[WEIGHT, EXTRA, 0] = 0.0
    return packets


@allocation_free()
def add_repaired(
    bins: NDArray[np.float64],
    age: float,
    left: float,
    weight: float,
    repeated_loss: float,
    again: float,
    without_tell: float,
    timeout: float,
) -> None:
    """Add a packet that waits for a repair: one try, or two or three, or a timeout, or two."""
    if weight < SELDOM:
        further = (1 - without_tell) * again * (1 + repeated_loss) + without_tell * timeout * (1 + 2 * repeated_loss)
        add(bins, age, left + repeated_loss * further, weight)
        return
    found = weight * repeated_loss * (1 - without_tell)
    timed_out = weight * repeated_loss * without_tell
    add(bins, age, left, weight * (1 - repeated_loss))
    add(bins, age, left + again, found * (1 - repeated_loss))
    add(bins, age, left + 2 * again, found * repeated_loss)
    add(bins, age, left + timeout, timed_out * (1 - repeated_loss))
    add(bins, age, left + 3 * timeout, timed_out * repeated_loss)


@allocation_free()
def add_tries(
    waiting: NDArray[np.float64],
    bins: NDArray[np.float64],
    repeated_loss: float,
    again: float,
    without_tell: float,
    timeout: float,
) -> None:
    """Move the packets that wait for a repair to `bins`, each with the tries that the repair takes."""
    for place in range(BINS_PER_SLOT):
        for slot in range(int(waiting[WEIGHT, EXTRA, 0])):
            weight = waiting[WEIGHT, place, slot]
            if weight > 0.0:
                left = slot + waiting[REMAINDER, place, slot] / weight
                add_repaired(bins, 0.0, left, weight, repeated_loss, again, without_tell, timeout)
                waiting[WEIGHT, place, slot] = waiting[REMAINDER, place, slot] = 0.0
    waiting[WEIGHT, EXTRA, 0] = 0.0
