"""Figures of a stationary distribution: time with a backlog, probability at the bound, backlogs after timeouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.solver.state_space import PHASE, ROW, Phases, Rows, Transitions
from tcpdelay.models.solver.sweeps import add_scaled, copy, scale, sweep, total

EPISODES_LEFT = 1e-9
"""Share of the backlogs after a timeout below which a geometric series replaces further sweeps."""
MAX_FOLLOWED_SWEEPS = 2000
"""Largest number of sweeps in which the backlogs after a timeout are followed."""


@kernel()
def backlogged_time(phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Return the share of time in states with a backlog: sum of pi q t over b > 0 / sum of pi q t over all b."""
    backlogged, time = 0.0, 0.0
    for phase in range(phases.size - 1):
        cells = probability[rows.offset[phase] : rows.offset[phase + 1]]
        if cells.size == 0:
            continue
        duration = 0.0
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            duration += transitions.probability[event] * transitions.duration[event]
        busy = total(cells[1:] if rows.low[phase] == 0 else cells)
        backlogged += busy * duration
        time += total(cells) * duration
    return backlogged / time


@kernel()
def probability_at_bound(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Return the probability of the states whose backlog is at the bound, where it is cut off."""
    cut = 0.0
    for phase in range(phases.size - 1):
        if rows.offset[phase] < rows.offset[phase + 1] and rows.high[phase] == rows[0].bound:
            cut += probability[rows.offset[phase + 1] - 1]
    return cut


@kernel()
def after_timeout(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the part of the probability of each cell that belongs to a backlog after a timeout.

    From each first back-off on, the probability is followed until the backlog is empty or the next first back-off.
    """
    count = phases.size - 1
    sink = count
    first_backoff = 0
    followed_phases: Phases = records(count + 2, PHASE)
    followed = transitions.copy()
    followed_rows: Rows = records(count + 2, ROW)
    for phase in range(count + 1):
        followed_phases[phase], followed_rows[phase] = phases[phase], rows[phase]
    for event in range(transitions.size):
        if followed[event].target == first_backoff:
            followed[event].target = sink
        followed[event].target_when_empty = sink
    followed_phases[sink + 1].first_transition = phases[count].first_transition
    followed_rows[sink].low, followed_rows[sink].high = 0, rows[0].bound
    followed_rows[sink + 1].offset = cells = rows[count].offset + rows[0].bound + 1

    inflow, visits = np.zeros(cells), np.zeros(cells)
    sum_of_visits = np.zeros(rows.offset[count])
    first, end = rows.offset[first_backoff], rows.offset[first_backoff + 1]
    copy(probability[first:end], inflow[first:end])
    begun = left = total(inflow)
    for _ in range(MAX_FOLLOWED_SWEEPS):
        scale(visits, 0.0)
        sweep(followed_phases, followed, followed_rows, inflow, visits)
        add_scaled(visits[: sum_of_visits.size], 1.0, sum_of_visits)
        before, left = left, total(inflow)
        if left <= EPISODES_LEFT * begun:
            break
    if left > 0.0:
        add_scaled(visits[: sum_of_visits.size], left / (before - left), sum_of_visits)
    return sum_of_visits
