"""The common form of all chains: phases, and events that change the phase and the backlog.

A *phase* is a state without its backlog, here (congestion window, recovery phase). Each event of a phase leads to a
phase and changes the backlog b by a fixed number of packets, within 0 and the largest backlog:
b' = min(max(b + shift, 0), bound). The shift is the same for every b. So each event is a band matrix, and a solver can
move a whole row of backlogs at once instead of single states.

The functions find the reachable states, number them, and make the sparse transition matrix.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.compiling.record_types import Array, Column, Record, record_type

NO_PACKETS, QUEUED, HEAD_OF_LINE = 0, 1, 2
"""Delay patterns of a transition: no packet leaves; each delay is L + b/f; delay i is L + RTT + (b + 3 - i)/f."""

_TIE = 1e-9
"""Relative width within which a number of packets counts as a rounding tie, so that 0.29 s / 0.02 s = 14.5."""


class PhaseFields:
    """Fields of a phase."""

    window: Column[int]
    recovery: Column[int]
    first_transition: Column[int]


class Phase(PhaseFields, Record):
    """A phase of a chain."""


class Phases(PhaseFields, Array[Phase]):
    """The phases of a chain, in the order in which consecutive successes visit them.

    The transitions of phase i begin at its `first_transition` and end before the `first_transition` of phase i + 1. An
    additional record closes the array.
    """


class TransitionFields:
    """Fields of a transition."""

    target: Column[int]  # Next phase if packets remain in the backlog
    target_when_empty: Column[int]  # Next phase if none remain
    shift: Column[int]
    probability: Column[float]
    duration: Column[float]
    packets: Column[int]  # Largest number of packets that leave
    packets_when_empty: Column[int]  # Their number if the backlog was empty before
    pattern: Column[int]  # Their delay pattern


class Transition(TransitionFields, Record):
    """An event of a phase."""


class Transitions(TransitionFields, Array[Transition]):
    """The events of all phases, one record per event."""


PHASE = record_type(Phase, align=True)
TRANSITION = record_type(Transition, align=True)


@kernel()
def round_half_up(packets: float) -> int:
    """Round to the nearest whole number, ties upwards. Rounding errors of decimal inputs do not matter."""
    return math.floor(packets + 0.5 + _TIE * max(1.0, abs(packets)))


@kernel()
def landing(transitions: Transitions, event: int, backlog: int, bound: int) -> tuple[int, int]:
    """Return the phase and the backlog to which the transition `event` leads from `backlog` packets."""
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


class RowFields:
    """Fields of a row."""

    low: Column[int]
    high: Column[int]
    offset: Column[int]
    bound: Column[int]
    ratio: Column[float]


class Row(RowFields, Record):
    """The range of backlogs of a phase."""


class Rows(RowFields, Array[Row]):
    """The range of backlogs of each phase, from `low` to `high`, and its first cell `offset` in the array of all cells.

    A phase that cannot be reached has `low` above `high` and no cells. `bound` is the largest backlog of the chain, the
    same in all records. An additional record closes the array.

    If `ratio` is 0, no backlog is larger than the bound. If it is above 0, the cell at the bound has the probability of
    all backlogs from the bound on together; each of them is `ratio` times as probable as the one before.
    """


ROW = record_type(Row, align=True)


@kernel()
def reachable_rows(phases: Phases, transitions: Transitions, start: int, bound: int) -> Rows:
    """Return the smallest range of backlogs per phase with all states reachable from `start` with an empty backlog."""
    return rows_with_tail(phases, transitions, start, bound, 0.0)


@kernel()
def rows_with_tail(phases: Phases, transitions: Transitions, start: int, bound: int, ratio: float) -> Rows:
    """Return `reachable_rows`; if `ratio` is above 0, a cell at the bound holds all larger backlogs as well."""
    count = phases.size - 1
    rows: Rows = records(count + 1, ROW)
    low, high, offset = rows.low, rows.high, rows.offset
    for phase in range(count + 1):
        low[phase], high[phase], rows[phase].bound, rows[phase].ratio = bound + 1, -1, bound, ratio
    low[start] = high[start] = 0
    # Phases whose range has grown since its ends were followed.
    grown = np.zeros(count, np.bool_)
    grown[start] = True
    changed = True
    while changed:
        changed = False
        for phase in range(count):
            if not grown[phase]:
                continue
            grown[phase] = False
            for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
                if transitions.probability[event] <= 0.0:
                    continue
                # The new backlog rises with the old backlog, so the ends of a range lead to the ends of a range. The
                # next phase differs only between an empty and a non-empty new backlog.
                shift = transitions.shift[event]
                if low[phase] + shift <= 0:
                    empty = transitions.target_when_empty[event]
                    if low[empty] > 0 or high[empty] < 0:
                        low[empty] = 0
                        high[empty] = max(high[empty], 0)
                        grown[empty] = changed = True
                endless = ratio > 0.0 and high[phase] == bound
                if endless or high[phase] + shift > 0:
                    target = transitions.target[event]
                    lowest = min(max(low[phase] + shift, 1), bound)
                    highest = bound if endless else min(high[phase] + shift, bound)
                    if lowest < low[target] or highest > high[target]:
                        low[target] = min(low[target], lowest)
                        high[target] = max(high[target], highest)
                        grown[target] = changed = True
    for phase in range(count):
        offset[phase + 1] = offset[phase] + max(high[phase] - low[phase] + 1, 0)
    return rows


@kernel()
def number_states(phases: Phases, transitions: Transitions, rows: Rows, start: int) -> NDArray[np.int64]:
    """Return the number of the state of each cell, by phase and backlog; -1 if the cell cannot be reached."""
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


def list_states(phases: Phases, rows: Rows, number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the phase and the backlog of each state, in the order of their numbers."""
    sizes = np.diff(rows["offset"])
    phase_of = np.repeat(np.arange(phases.size - 1), sizes)
    backlog_of = np.arange(number.size) - np.repeat(rows["offset"][:-1] - rows["low"][:-1], sizes)
    return phase_of[number >= 0], backlog_of[number >= 0]


@kernel()
def compressed_rows(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    number: NDArray[np.int64],
    phase_of: NDArray[np.int64],
    backlog_of: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the transition matrix in compressed-sparse-row form: probabilities, ascending columns and row pointers."""
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
