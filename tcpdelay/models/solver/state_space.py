"""The form every chain profile is written in: phases that move a backlog up and down.

A *phase* is everything in a state but its backlog, here (congestion window, recovery phase). From a phase, each event
leads to another phase and changes the backlog b by a fixed number of packets, the same for every b, cut at 0 and at
the largest backlog: b' = min(max(b + shift, 0), bound). The state space is thus a band matrix per event, and a solver
can move whole rows of backlogs at once instead of single states.

Functions find the states that can be reached, number them, and make the sparse transition matrix.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel, records

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


@kernel()
def round_half_up(packets: float) -> int:
    """Round to the nearest whole number, ties upwards, whatever the last bit of a decimal input says."""
    return math.floor(packets + 0.5 + _TIE * max(1.0, abs(packets)))


@kernel()
def landing(transitions: Transitions, event: int, backlog: int, bound: int) -> tuple[int, int]:
    """Phase and backlog that the transition `event` leads to from `backlog` packets."""
    after = min(max(backlog + transitions.shift[event], 0), bound)
    if after == 0:
        return int(transitions.target_when_empty[event]), after
    return int(transitions.target[event]), after


@kernel()
def packets_leaving(transitions: Transitions, event: int, backlog: int) -> int:
    """Return the number of application packets whose delay the transition `event` counts."""
    if backlog == 0:
        return int(transitions.packets_when_empty[event])
    return int(min(backlog, transitions.packets[event]))


ROW = np.dtype([("low", np.int64), ("high", np.int64), ("offset", np.int64), ("bound", np.int64)], align=True)

Rows: TypeAlias = Records
"""Where the backlogs `low` to `high` of each phase stand in one array of all cells, from `offset` on.

A phase that cannot be reached has `low` above `high` and no cells. `bound` is the largest backlog of the chain, the
same in all; one more record closes the array.
"""


@kernel()
def reachable_rows(phases: Phases, transitions: Transitions, start: int, bound: int) -> Rows:
    """Smallest interval of backlogs per phase that holds every state reachable from (`start`, empty backlog)."""
    count = phases.size - 1
    rows: Rows = records(count + 1, ROW)
    low, high, offset = rows.low, rows.high, rows.offset
    for phase in range(count + 1):
        low[phase], high[phase], rows[phase].bound = bound + 1, -1, bound
    low[start] = high[start] = 0
    changed = True
    while changed:
        changed = False
        for phase in range(count):
            if low[phase] > high[phase]:
                continue
            for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
                if transitions.probability[event] <= 0.0:
                    continue
                # The landing place moves with the backlog, so the ends of the interval land at its ends; only the
                # step from an empty to a non-empty backlog changes the phase.
                shift = transitions.shift[event]
                if low[phase] + shift <= 0:
                    empty = transitions.target_when_empty[event]
                    if low[empty] > 0 or high[empty] < 0:
                        low[empty] = 0
                        high[empty] = max(high[empty], 0)
                        changed = True
                if high[phase] + shift > 0:
                    target = transitions.target[event]
                    lowest = min(max(low[phase] + shift, 1), bound)
                    highest = min(high[phase] + shift, bound)
                    if lowest < low[target] or highest > high[target]:
                        low[target] = min(low[target], lowest)
                        high[target] = max(high[target], highest)
                        changed = True
    for phase in range(count):
        offset[phase + 1] = offset[phase] + max(high[phase] - low[phase] + 1, 0)
    return rows


@kernel()
def number_states(phases: Phases, transitions: Transitions, rows: Rows, start: int) -> NDArray[np.int64]:
    """Return the number of each cell's state, or -1 for a cell that no path from the start leads to.

    States are numbered by phase, then backlog.
    """
    cells = rows.offset[-1]
    number = np.full(cells, -1)
    waiting_phase = np.empty(cells, np.int64)
    waiting_backlog = np.empty(cells, np.int64)
    waiting_phase[0], waiting_backlog[0] = start, 0
    number[rows.offset[start] - rows.low[start]] = 0
    waiting = 1
    while waiting > 0:
        waiting -= 1
        phase, backlog = waiting_phase[waiting], waiting_backlog[waiting]
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            if transitions.probability[event] <= 0.0:
                continue
            target, after = landing(transitions, event, backlog, rows[0].bound)
            cell = rows.offset[target] + after - rows.low[target]
            if number[cell] < 0:
                number[cell] = 0
                waiting_phase[waiting], waiting_backlog[waiting] = target, after
                waiting += 1
    states = 0
    for cell in range(cells):
        if number[cell] == 0:
            number[cell] = states
            states += 1
    return number


@kernel()
def list_states(phases: Phases, rows: Rows, number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Phase and backlog of every state, in the order of their numbers."""
    states = 0
    for cell in range(number.size):
        states += number[cell] >= 0
    phase_of = np.empty(states, np.int64)
    backlog_of = np.empty(states, np.int64)
    for phase in range(phases.size - 1):
        for cell in range(rows.offset[phase], rows.offset[phase + 1]):
            if number[cell] >= 0:
                phase_of[number[cell]] = phase
                backlog_of[number[cell]] = rows.low[phase] + cell - rows.offset[phase]
    return phase_of, backlog_of


@kernel()
def compressed_rows(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    number: NDArray[np.int64],
    phase_of: NDArray[np.int64],
    backlog_of: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Probabilities, column numbers and row pointers of the transition matrix in compressed-sparse-row form.

    Events that lead to the same state share one entry; the columns of a row ascend.
    """
    states = phase_of.size
    entries = 0
    for state in range(states):
        phase = phase_of[state]
        entries += phases.first_transition[phase + 1] - phases.first_transition[phase]
    probability = np.empty(entries)
    column = np.empty(entries, np.int64)
    pointer = np.zeros(states + 1, np.int64)
    filled = 0
    for state in range(states):
        phase, begin = phase_of[state], filled
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            chance = transitions.probability[event]
            if chance <= 0.0:
                continue
            target, after = landing(transitions, event, backlog_of[state], rows[0].bound)
            to = number[rows.offset[target] + after - rows.low[target]]
            place = begin
            while place < filled and column[place] < to:
                place += 1
            if place < filled and column[place] == to:
                probability[place] += chance
                continue
            for moved in range(filled, place, -1):
                column[moved], probability[moved] = column[moved - 1], probability[moved - 1]
            column[place], probability[place] = to, chance
            filled += 1
        pointer[state + 1] = filled
    return probability[:filled], column[:filled], pointer
