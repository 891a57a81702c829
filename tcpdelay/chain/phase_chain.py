"""The chain of the phases alone, with the backlog summed out: its drift and its help to the solver."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.acceleration import extrapolate, new_history, remember
from tcpdelay.chain.build import Rows
from tcpdelay.chain.sweep import copy, scale, sweep, total
from tcpdelay.chain.transitions import Phases, Transitions

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
    count, events = phases.window.size, transitions.shift.size
    nothing = np.zeros(2 * events, np.int64)
    merged = Transitions(
        np.zeros(2 * events, np.int64),
        np.zeros(2 * events, np.int64),
        nothing,
        np.zeros(2 * events),
        np.zeros(2 * events),
        nothing,
        nothing,
        nothing,
    )
    low, high = np.ones(count, np.int64), np.zeros(count, np.int64)
    offset = np.zeros(count + 1, np.int64)
    for phase in range(count):
        cells = visits[rows.offset[phase] : rows.offset[phase + 1]]
        offset[phase + 1] = offset[phase] + (cells.size > 0)
        if cells.size == 0:
            continue
        low[phase] = 0
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
    first = np.empty_like(phases.first_transition)
    for phase in range(count + 1):
        first[phase] = 2 * phases.first_transition[phase]
    return Phases(phases.window, phases.recovery, first), merged, Rows(low, high, offset, 0)


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
    count = phases.window.size
    busy = Rows(np.ones(count, np.int64), np.ones(count, np.int64), np.arange(count + 1), 1)
    always_busy = Transitions(
        transitions.target,
        transitions.target,
        np.zeros_like(transitions.shift),
        transitions.probability,
        transitions.duration,
        transitions.packets,
        transitions.packets_when_empty,
        transitions.pattern,
    )
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
