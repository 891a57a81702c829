"""One Gauss-Seidel sweep: probability carried forward through all phases, whole rows of backlogs at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.build import Rows
from tcpdelay.chain.compilation import allocation_free
from tcpdelay.chain.transitions import Phases, Transitions

NEGLIGIBLE = 1e-60
"""Probability below which a cell is taken as 0: far below rounding, and far from slow denormal numbers."""


@allocation_free(frozenset({"reassoc"}))
def total(values: NDArray[np.float64]) -> float:
    """Sum of `values`."""
    result = 0.0
    for i in range(values.size):
        result += values[i]
    return result


@allocation_free()
def copy(values: NDArray[np.float64], into: NDArray[np.float64]) -> None:
    """Copy `values` to `into`."""
    for i in range(values.size):
        into[i] = values[i]


@allocation_free()
def scale(values: NDArray[np.float64], factor: float) -> None:
    """Multiply `values` by `factor`."""
    for i in range(values.size):
        values[i] *= factor


@allocation_free(frozenset({"contract"}))
def add_scaled(values: NDArray[np.float64], factor: float, into: NDArray[np.float64]) -> None:
    """Add `factor` times `values` to `into`."""
    for i in range(values.size):
        into[i] += factor * values[i]


@allocation_free(frozenset({"reassoc"}))
def _take(inflow: NDArray[np.float64], visits: NDArray[np.float64]) -> float:
    """Move a row's inflow to its visits; return the sum of their sizes."""
    size = 0.0
    for i in range(inflow.size):
        value = inflow[i]
        kept = value if abs(value) > NEGLIGIBLE else 0.0
        inflow[i] = 0.0
        visits[i] = kept
        size += abs(kept)
    return size


@allocation_free()
def _circulate(
    visits: NDArray[np.float64],
    low: int,
    bound: int,
    shift: int,
    chance: float,
    leaving: float,
    stays_busy: bool,
    stays_empty: bool,
) -> None:
    """Add to a row what one event of its own phase sends around within it, self-loops eliminated by division.

    `chance` and `leaving` are the probabilities of that event and of all others, `stays_busy` and `stays_empty` say
    whether the event keeps the phase if it leaves packets, or none.
    """
    high = low + visits.size - 1
    if shift == 0:
        for i in range(visits.size):
            if stays_busy if low + i > 0 else stays_empty:
                visits[i] /= leaving
    elif shift > 0 and stays_busy:
        for backlog in range(low, high):
            after = min(backlog + shift, bound)
            if after <= high:
                visits[after - low] += chance * visits[backlog - low]
        if high == bound:
            visits[high - low] /= leaving
    elif shift < 0:
        for backlog in range(high, max(low, 1) - 1, -1):
            after = max(backlog + shift, 0)
            if stays_busy if after > 0 else stays_empty:
                visits[after - low] += chance * visits[backlog - low]
        if low == 0 and stays_empty:
            visits[0] /= leaving


@allocation_free()
def sweep(
    phases: Phases, transitions: Transitions, rows: Rows, inflow: NDArray[np.float64], visits: NDArray[np.float64]
) -> None:
    """Carry the probability in `inflow` forward through all phases; what flows back is left in `inflow`.

    `visits` receives how often each cell is visited on the way. At most one event of a phase may lead back to it.
    """
    bound = rows[0].bound
    for phase in range(phases.size - 1):
        begin, end, low, high = rows.offset[phase], rows.offset[phase + 1], rows.low[phase], rows.high[phase]
        if begin == end:
            continue
        row = visits[begin:end]
        if _take(inflow[begin:end], row) == 0.0:
            continue
        first_event, last_event = phases.first_transition[phase], phases.first_transition[phase + 1]
        for event in range(first_event, last_event):
            busy, empty = transitions.target[event], transitions.target_when_empty[event]
            chance = transitions.probability[event]
            if chance > 0.0 and (busy == phase or empty == phase):
                # The sum over the other events keeps its digits where 1 - chance would lose them.
                leaving = 0.0
                for other in range(first_event, last_event):
                    leaving += transitions.probability[other] if other != event else 0.0
                shift = transitions.shift[event]
                _circulate(row, low, bound, shift, chance, leaving, busy == phase, empty == phase)
        for event in range(first_event, last_event):
            chance, shift = transitions.probability[event], transitions.shift[event]
            if chance <= 0.0:
                continue
            busy, empty = transitions.target[event], transitions.target_when_empty[event]
            first_busy = max(low, 1 - shift)
            if first_busy > low and empty != phase:
                emptied = row[: min(first_busy, high + 1) - low]
                inflow[rows.offset[empty] - rows.low[empty]] += chance * total(emptied)
            if first_busy <= high and busy != phase:
                first_cut = max(min(high, bound - shift) + 1, first_busy)
                zero = rows.offset[busy] - rows.low[busy]
                landing = inflow[zero + first_busy + shift : zero + first_cut + shift]
                add_scaled(row[first_busy - low : first_cut - low], chance, landing)
                if first_cut <= high:
                    inflow[zero + bound] += chance * total(row[first_cut - low :])
