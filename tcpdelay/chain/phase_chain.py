"""The chain of the phases alone, with the backlog summed out: its drift and its help to the solver."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.acceleration import extrapolate, new_history, remember
from tcpdelay.chain.build import ROW, Rows
from tcpdelay.chain.sweep import copy, scale, sweep, total
from tcpdelay.chain.transitions import PHASE, TRANSITION, Phases, Transitions

MAX_SWEEPS = 20_000
TOLERANCE = 1e-14


@njit(cache=True)
def aggregate(
    phases: Phases, transitions: Transitions, rows: Rows, visits: NDArray[np.float64]
) -> tuple[Phases, Transitions, Rows]:
    """Sum the backlog out, its distribution within each phase being that of `visits`.

    Each event becomes two, for the case that it leaves packets and that it leaves none. A phase without visits is
    taken as backlogged.
    """
    count, events = phases.size - 1, transitions.size
    merged: Transitions = np.zeros(2 * events, TRANSITION)
    merged_phases: Phases = np.zeros(count + 1, PHASE)
    merged_rows: Rows = np.zeros(count + 1, ROW)
    for phase in range(count):
        cells = visits[rows.offset[phase] : rows.offset[phase + 1]]
        merged_phases[phase + 1].first_transition = 2 * phases.first_transition[phase + 1]
        merged_rows[phase + 1].offset = merged_rows[phase].offset + (cells.size > 0)
        if cells.size == 0:
            merged_rows[phase].low, merged_rows[phase].high = 1, 0
            continue
        sum_of_cells = total(cells)
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            emptied = min(max(1 - transitions.shift[event] - rows.low[phase], 0), cells.size)
            if transitions.target[event] == transitions.target_when_empty[event]:
                share = 0.0
            elif sum_of_cells > 0:
                share = min(total(cells[:emptied]) / sum_of_cells, 1.0)
            else:
                share = 1.0 if emptied == cells.size else 0.0
            for half in range(2):
                target = transitions.target_when_empty[event] if half else transitions.target[event]
                merged.target[2 * event + half] = merged.target_when_empty[2 * event + half] = target
                merged.probability[2 * event + half] = transitions.probability[event] * (share if half else 1 - share)
    return merged_phases, merged, merged_rows


@njit(cache=True)
def settle(
    phases: Phases, transitions: Transitions, rows: Rows, inflow: NDArray[np.float64], tolerance: float
) -> NDArray[np.float64]:
    """Iterate `inflow` of a chain of phases until it changes by at most `tolerance` of itself; return the last visits.

    `inflow` is scaled to a sum of 1.
    """
    visits, before = np.zeros(inflow.size), np.zeros(inflow.size)
    scale(inflow, 1 / total(inflow))
    copy(inflow, before)
    history = new_history(inflow.size)
    stored = -1
    for _ in range(MAX_SWEEPS):
        scale(visits, 0.0)
        sweep(phases, transitions, rows, inflow, visits)
        scale(inflow, 1 / total(inflow))
        moved = 0.0
        for i in range(inflow.size):
            moved += abs(inflow[i] - before[i])
        if moved <= tolerance:
            break
        stored = remember(history, stored, before, inflow)
        extrapolate(history, stored, before)
        copy(before, inflow)
    return visits


@njit(cache=True)
def backlog_drift(phases: Phases, transitions: Transitions, start: int) -> float:
    """Mean change of a backlog that never runs dry, in packets per second.

    The backlog of a chain whose phases do not depend on it stays finite if and only if this drift is negative (Loynes
    1962; Neuts 1981, theorem 3.1.1). `start` is a phase with a backlog.
    """
    count = phases.size - 1
    busy: Rows = np.zeros(count + 1, ROW)
    always_busy = transitions.copy()
    for phase in range(count + 1):
        busy[phase].low = busy[phase].high = busy[phase].bound = 1
        busy[phase].offset = phase
    for event in range(transitions.size):
        always_busy[event].target_when_empty = transitions[event].target
        always_busy[event].shift = 0
    inflow = np.zeros(count)
    inflow[start] = 1.0
    visits = settle(phases, always_busy, busy, inflow, TOLERANCE)
    packets, time = 0.0, 0.0
    for phase in range(count):
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            share = visits[phase] * transitions.probability[event]
            packets += share * transitions.shift[event]
            time += share * transitions.duration[event]
    return packets / time
