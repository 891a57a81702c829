"""Which packets leave when the window opens, and how old they are, for a whole row of backlogs at once.

A backlog that lasts for the whole phase only shifts the ages; backlogs that are gone after the same opening are alike
from then on. So the ages at each opening are sums over the row, and what follows once nothing is left is followed once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.compilation import allocation_free
from tcpdelay.chain.linux.bins import EXTRA, NEGLIGIBLE, REMAINDER, add_row
from tcpdelay.chain.linux.detection import SAME_TIME


class Room(NamedTuple):
    """Arrays that the phases fill in one after the other.

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


@njit(cache=True)
def new_room(openings: int, time: int, backlogs: int) -> Room:
    """Return room for phases with so many openings, as long as that [slots] at most, and with so many backlogs."""
    return Room(
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
    p: Any,
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
    p: Any,
    x: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    count: int,
    phase: float,
    begin: int,
    credit: int,
    weight: float,
    room: Room,
) -> None:
    """Follow a flow with nothing left to send after `begin` openings, until that is so again after another one.

    `credit` of the openings have not been used. The packets are added to `later` by opening and age, those that leave
    when they are written to `bins`; the weight to `drained` by opening and credit.
    """
    times, shares = room.times, room.shares
    latest = math.floor(times[begin - 1] + phase + SAME_TIME) if begin > 0 else 0
    sent = float(latest)
    room.single[0] = weight
    for place in range(begin, count):
        time = times[place]
        while credit > 0 and sent + 1 - phase <= time + SAME_TIME:
            # The window stands open: the packet leaves when it is written.
            sent += 1.0
            credit -= 1
            _add_leaving(p, x, bins, waiting, room.single, 0.0, sent - phase, place, shares[place])
        latest = math.floor(time + phase + SAME_TIME)
        if latest <= sent + SAME_TIME:
            room.drained[place + 1, credit + 1] += weight
            return
        until = min(float(latest), sent + p.packets_per_segment)
        number = math.floor(sent + SAME_TIME) + 1
        while number <= until + SAME_TIME:
            room.later[place, latest - number] += weight
            number += 1
        sent = until
        if sent >= latest - SAME_TIME:
            room.drained[place + 1, credit] += weight
            return


@allocation_free()
def add_openings(
    p: Any,
    x: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    room: Room,
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
    times, up_to, row, later, drained = room.times, room.up_to, room.row, room.later, room.drained
    written = math.floor(times[count - 1] + phase + SAME_TIME)
    for place in range(count):
        for age in range(written + 1):
            later[place, age] = 0.0
        for credit in range(place + 2):
            drained[place + 1, credit] = 0.0
    if low == 0:
        _add_drained(p, x, bins, waiting, count, phase, 0, 0, up_to[1], room)
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
        _add_leaving(p, x, bins, waiting, row[:filled], age_part, time, place, room.shares[place])
        for credit in range(place + 2):
            weight = drained[place + 1, credit]
            if weight > NEGLIGIBLE:
                _add_drained(p, x, bins, waiting, count, phase, place + 1, credit, weight, room)
