"""Appending the chain's events, whose shifts of the backlog are whole packets."""

from __future__ import annotations

import math

from numba import njit

from tcpdelay.chain.linux.detection import SAME_TIME
from tcpdelay.chain.linux.layout import REPAIR_AGAIN, REPAIR_MORE, Layout, repair_phase
from tcpdelay.chain.transitions import Transitions


@njit(cache=True)
def put(t: Transitions, row: int, target: int, when_empty: int, shift: float, chance: float, duration: float) -> int:
    """Append an event; a shift between two whole numbers becomes two events with the same mean."""
    if chance <= 0.0:
        return row
    low = math.floor(shift + SAME_TIME)
    part = shift - low
    for step in range(2):
        share = part if step else 1 - part
        if share > SAME_TIME:
            t.target[row] = target
            t.target_when_empty[row] = when_empty
            t.shift[row] = low + step
            t.probability[row] = chance * share
            t.duration[row] = duration
            row += 1
    return row


@njit(cache=True)
def put_repeat(t: Transitions, row: int, phase: int, shift: float, sent: float, chance: float) -> int:
    """Append an event that stays in its phase; its duration makes up for the shift being whole."""
    if chance <= 0.0:
        return row
    whole = math.floor(shift + 0.5)
    t.target[row] = t.target_when_empty[row] = phase
    t.shift[row] = whole
    t.probability[row] = chance
    t.duration[row] = max(whole + sent, 0.0)
    return row + 1


@njit(cache=True)
def put_outcomes(
    t: Transitions,
    row: int,
    layout: Layout,
    repeated_loss: float,
    without_tell: float,
    more: float,
    share: float,
    reduced: int,
    clean: int,
    shift: float,
    duration: float,
) -> int:
    """Append what follows the detection of a loss: a timeout, a retransmission lost, more losses, or none of these.

    `share` is the chance of all of it.
    """
    again = repair_phase(layout, reduced, REPAIR_AGAIN)
    several = repair_phase(layout, reduced, REPAIR_MORE)
    row = put(t, row, 0, 0, shift, share * (repeated_loss * without_tell), duration)
    row = put(t, row, again, again, shift, share * (repeated_loss * (1 - without_tell)), duration)
    row = put(t, row, several, several, shift, share * ((1 - repeated_loss) * more), duration)
    return put(t, row, clean, clean, shift, share * ((1 - repeated_loss) * (1 - more)), duration)
