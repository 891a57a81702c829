"""Bins of delays: 1/32 of a slot each, with its weight and its mean, so that delays of one value keep it exactly.

Which packets leave when the window opens, and how old they are, for a whole row of backlogs at once.

A backlog that lasts for the whole phase only shifts the ages; backlogs that are gone after the same opening are alike
from then on. So the ages at each opening are sums over the row, and what follows once nothing is left is followed once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import allocation_free, kernel
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters

BINS_PER_SLOT = 32
MEAN_REPAIR_ONLY = 1e-8
"""Probability of a packet below which its further repairs count with their mean only."""
NEGLIGIBLE = 1e-10
"""Probability of a state, or of a whole phase, below which its packets are left out, and so it is for single delays."""
WEIGHT, REMAINDER = range(2)
"""Of a bin: the sum of the weights, and of weight times delay beyond the bin's whole slots."""
EXTRA = BINS_PER_SLOT
"""Beside the bins of the first slot: the slots up to the longest delay (WEIGHT), and the sum of ages (REMAINDER)."""


@kernel()
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
    only_timeout: float,
    timeout: float,
) -> None:
    """Add a packet that waits for a repair: one try, or two or three, or a timeout, or two."""
    if weight < MEAN_REPAIR_ONLY:
        further = (1 - only_timeout) * again * (1 + repeated_loss) + only_timeout * timeout * (1 + 2 * repeated_loss)
        add(bins, age, left + repeated_loss * further, weight)
        return
    found = weight * repeated_loss * (1 - only_timeout)
    timed_out = weight * repeated_loss * only_timeout
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
    only_timeout: float,
    timeout: float,
) -> None:
    """Move the packets that wait for a repair to `bins`, each with the tries that the repair takes."""
    for place in range(BINS_PER_SLOT):
        for slot in range(int(waiting[WEIGHT, EXTRA, 0])):
            weight = waiting[WEIGHT, place, slot]
            if weight > 0.0:
                left = slot + waiting[REMAINDER, place, slot] / weight
                add_repaired(bins, 0.0, left, weight, repeated_loss, again, only_timeout, timeout)
                waiting[WEIGHT, place, slot] = waiting[REMAINDER, place, slot] = 0.0
    waiting[WEIGHT, EXTRA, 0] = 0.0


class Workspace(NamedTuple):
    """Arrays that every phase fills in anew.

    Attributes
    ----------
    times, shares : float array
        When the window opens in a phase [slots], and the share of its packets that leaves then.
    up_to : float array
        Sums of the probabilities of the backlogs up to each.
    row, single : float array
        Packets that leave at one time by age in whole slots; and the same for one packet that has not waited.
    later : float array
        Packets that leave after the backlog has once been gone, by opening and by age in whole slots.
    drained : float array
        Probability that nothing is left to send, by openings gone and by those of them that were not used.
    """

    times: NDArray[np.float64]
    shares: NDArray[np.float64]
    up_to: NDArray[np.float64]
    row: NDArray[np.float64]
    single: NDArray[np.float64]
    later: NDArray[np.float64]
    drained: NDArray[np.float64]


@kernel()
def new_workspace(openings: int, time: int, backlogs: int) -> Workspace:
    """Return a workspace for phases of at most `openings` openings, `time` slots and `backlogs` backlogs."""
    return Workspace(
        np.empty(openings),
        np.empty(openings),
        np.empty(backlogs + 1),
        np.empty(backlogs + time),
        np.empty(1),
        np.empty((openings, time)),
        np.empty((openings + 1, openings + 2)),
    )


class Leaving(NamedTuple):
    """What the packets that leave in a phase wait for beside their age.

    Attributes
    ----------
    blocked : bool
        Whether a loss has happened at the beginning; otherwise the phase ends with its first loss.
    duration : float
        How long the phase lasts: until the loss ahead is repaired [slots].
    own_wait : float
        How long a packet that is lost itself waits [slots].
    again : float
        How long a further repair takes [slots].
    step : float
        Time between openings [slots].
    """

    blocked: bool
    duration: float
    own_wait: float
    again: float
    step: float


@allocation_free(frozenset({"reassoc", "contract"}))
def _packets_and_ages(row: NDArray[np.float64]) -> tuple[float, float]:
    """Return the sums of packets, and of packets times age in whole slots."""
    packets = ages = 0.0
    for i in range(row.size):
        packets += row[i]
        ages += row[i] * i
    return packets, ages


@allocation_free()
def _add_leaving(
    p: LinuxParameters,
    x: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    row: NDArray[np.float64],
    age: float,
    time: float,
    place: int,
    share: float,
) -> None:
    """Add the packets that leave at one time, by their age in whole slots; `place` openings have gone before.

    Of those that wait for a repair, `waiting` receives when its first try is done.
    """
    packets, ages = _packets_and_ages(row)
    packets *= share
    if packets < NEGLIGIBLE:
        return
    bins[REMAINDER, EXTRA, 0] += ages * share + packets * age
    if not x.blocked:
        add_row(bins, age, share * (1 - p.loss), row)
        add_row(waiting, age + x.own_wait, share * p.loss, row)
        return
    # Each of the segments that have left since, too, may be lost.
    left = max(x.duration - time, 0.0)
    rest = share
    for behind in range(place + 1):
        later = x.again - behind * x.step
        if later <= left or packets * p.loss < NEGLIGIBLE:
            break
        add_row(waiting, age + later, rest * p.loss, row)
        rest *= 1 - p.loss
    add_row(waiting, age + left, rest, row)


@allocation_free()
def _add_drained(
    p: LinuxParameters,
    x: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    count: int,
    phase: float,
    begin: int,
    credit: int,
    weight: float,
    workspace: Workspace,
) -> None:
    """Follow a flow with nothing left to send after `begin` openings, until that is so again after another one.

    `credit` of the openings have not been used. The packets are added to `later` by opening and age, those that leave
    when they are written to `bins`; the weight to `drained` by opening and credit.
    """
    times, shares = workspace.times, workspace.shares
    latest = math.floor(times[begin - 1] + phase + SAME_TIME) if begin > 0 else 0
    sent = float(latest)
    workspace.single[0] = weight
    for place in range(begin, count):
        time = times[place]
        while credit > 0 and sent + 1 - phase <= time + SAME_TIME:
            # The window stands open: the packet leaves when it is written.
            sent += 1.0
            credit -= 1
            _add_leaving(p, x, bins, waiting, workspace.single, 0.0, sent - phase, place, shares[place])
        latest = math.floor(time + phase + SAME_TIME)
        if latest <= sent + SAME_TIME:
            workspace.drained[place + 1, credit + 1] += weight
            return
        until = min(float(latest), sent + p.packets_per_segment)
        number = math.floor(sent + SAME_TIME) + 1
        while number <= until + SAME_TIME:
            workspace.later[place, latest - number] += weight
            number += 1
        sent = until
        if sent >= latest - SAME_TIME:
            workspace.drained[place + 1, credit] += weight
            return


@allocation_free()
def add_openings(
    p: LinuxParameters,
    x: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    workspace: Workspace,
    low: int,
    high: int,
    count: int,
    phase: float,
) -> None:
    """Add the packets that leave at the openings of a phase with backlogs from `low` to `high`.

    `phase` is the time since the last write. Backlogs that last are followed together; those that are gone after the
    same opening are alike from then on.
    """
    if count == 0:
        return
    per_segment = p.packets_per_segment
    times, up_to, row, later, drained = (
        workspace.times,
        workspace.up_to,
        workspace.row,
        workspace.later,
        workspace.drained,
    )
    written = math.floor(times[count - 1] + phase + SAME_TIME)
    for place in range(count):
        for age in range(written + 1):
            later[place, age] = 0.0
        for credit in range(place + 2):
            drained[place + 1, credit] = 0.0
    if low == 0:
        _add_drained(p, x, bins, waiting, count, phase, 0, 0, up_to[1], workspace)
    gone = max(low - 1, 0)
    for place in range(count):
        time = times[place]
        latest = math.floor(time + phase + SAME_TIME)
        filled = latest + 1
        for age in range(filled):
            row[age] = later[place, age]
        if gone < high:
            first = math.floor(place * per_segment + SAME_TIME) + 1
            last = math.floor((place + 1) * per_segment + SAME_TIME)
            if first <= last:
                end = high + latest - first + 1
                for age in range(filled, end):
                    row[age] = 0.0
                for age in range(max(gone + 1 + latest - last, 0), end):
                    until = min(age + last - latest, high)
                    after = max(age + first - latest - 1, gone)
                    row[age] += up_to[until - low + 1] - up_to[after - low + 1]
                filled = max(filled, end)
            now_gone = min(math.floor((place + 1) * per_segment - latest + SAME_TIME), high)
            if now_gone > gone:
                drained[place + 1, 0] += up_to[now_gone - low + 1] - up_to[gone - low + 1]
                gone = now_gone
        age_part = max(time + phase - latest, 0.0)
        _add_leaving(p, x, bins, waiting, row[:filled], age_part, time, place, workspace.shares[place])
        for credit in range(place + 2):
            weight = drained[place + 1, credit]
            if weight > NEGLIGIBLE:
                _add_drained(p, x, bins, waiting, count, phase, place + 1, credit, weight, workspace)
