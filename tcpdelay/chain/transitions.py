"""The form every chain profile is written in: phases that move a backlog up and down.

A *phase* is everything in a state but its backlog, here (congestion window, recovery phase). From a phase, each event
leads to another phase and changes the backlog b by a fixed number of packets, the same for every b, cut at 0 and at
the largest backlog: b' = min(max(b + shift, 0), bound). The state space is thus a band matrix per event, and a solver
can move whole rows of backlogs at once instead of single states.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numba import njit

NO_PACKETS, QUEUED, HEAD_OF_LINE = 0, 1, 2
"""Delay patterns of a transition: nothing leaves; every packet L + b/f; packet i waits L + RTT + (b + 3 - i)/f."""

_TIE = 1e-9
"""Relative width within which a number of packets counts as lying on a rounding tie, so that 0.29 s / 0.02 s = 14.5."""


PHASE = np.dtype([("window", np.int64), ("recovery", np.int64), ("first_transition", np.int64)], align=True)
TRANSITION = np.dtype(
    [
        ("target", np.int64),
        ("target_when_empty", np.int64),
        ("shift", np.int64),
        ("probability", np.float64),
        ("duration", np.float64),
        ("packets", np.int64),
        ("packets_when_empty", np.int64),
        ("pattern", np.int64),
    ],
    align=True,
)

Records: TypeAlias = Any
"""Structured array. In kernels its fields are attributes, which type checkers cannot know; elsewhere they are items."""
Phases: TypeAlias = Records
"""The phases of a chain, in the order in which an uninterrupted run of successes visits them.

What phase i can turn into are the transitions from its `first_transition` up to that of phase i + 1; one more record
closes the array.
"""
Transitions: TypeAlias = Records
"""What can happen in each phase; one record an event.

`target` is the next phase while packets remain in the backlog, `target_when_empty` if none do. `packets` is the
largest number of packets that leave, `packets_when_empty` their number if the backlog is empty, and `pattern` says how
late they are.
"""


@njit(cache=True)
def round_half_up(packets: float) -> int:
    """Round to the nearest whole number, ties upwards, whatever the last bit of a decimal input says."""
    return math.floor(packets + 0.5 + _TIE * max(1.0, abs(packets)))


@njit(cache=True)
def landing(transitions: Transitions, event: int, backlog: int, bound: int) -> tuple[int, int]:
    """Phase and backlog that the transition `event` leads to from `backlog` packets."""
    after = min(max(backlog + transitions.shift[event], 0), bound)
    if after == 0:
        return int(transitions.target_when_empty[event]), after
    return int(transitions.target[event]), after


@njit(cache=True)
def packets_leaving(transitions: Transitions, event: int, backlog: int) -> int:
    """Return the number of application packets whose delay the transition `event` counts."""
    if backlog == 0:
        return int(transitions.packets_when_empty[event])
    return int(min(backlog, transitions.packets[event]))
