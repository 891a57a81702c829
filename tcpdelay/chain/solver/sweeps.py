"""A Gauss-Seidel sweep over whole rows of backlogs, and Anderson acceleration of the iteration of such sweeps.

Sources: Anderson, "Iterative Procedures for Nonlinear Integral Equations", J. ACM 12 (1965); Walker and Ni, "Anderson
Acceleration for Fixed-Point Iterations", SIAM J. Numer. Anal. 49 (2011), equation 3.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions
from tcpdelay.compiling.compilation import allocation_free, kernel

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
def _visits(arrivals: float, leaving: float) -> float:
    """Return how often a cell is visited, given how often it is reached and the probability of leaving it.

    A cell that is never left is visited for ever. An exception in its place would leave the arrays of the kernels that
    called this one in memory, as Numba does with every exception.
    """
    if leaving > 0.0:
        return arrivals / leaving
    return math.inf if arrivals > 0.0 else 0.0


# If the ratio r is above 0, the cell at the bound B holds the backlogs B, B + 1 and so on. A share (1 - r) r^k of
# its probability belongs to the backlog B + k. After an event that takes s packets away, a share r^s of the probability
# is still at the bound, and the rest is in the cells below. An event that adds packets leaves all of it at the bound.


@kernel()
def backlogs_beyond(rows: Rows) -> NDArray[np.float64]:
    """Return the share (1 - r) r^k of each backlog B + k in the cell at the bound B, for k < B; empty if r is 0."""
    ratio = rows[0].ratio
    shares = np.empty(rows[0].bound if ratio > 0.0 else 0)
    share = 1.0 - ratio
    for k in range(shares.size):
        shares[k] = share
        share *= ratio
    return shares


@allocation_free()
def beyond_after(ratio: float, bound: int, shift: int) -> tuple[int, float, float]:
    """Return where the backlogs beyond the bound are after a negative `shift`.

    They are the smallest backlog above 0 that is reached, the share of the backlogs that do not fall below it, and the
    share that stays beyond the bound.
    """
    lowest = max(bound + shift, 1)
    return lowest, ratio ** (lowest - bound - shift), ratio ** (-shift)


@allocation_free()
def _leaving(
    transitions: Transitions, first_event: int, last_event: int, phase: int, backlog: int, bound: int, ratio: float
) -> float:
    """Return the probability that an event leads from a cell to another one; exactly 1 if no event stays in the cell.

    The sum over the events that leave keeps its digits where 1 minus the others would lose them.
    """
    leaving, stays = 0.0, False
    for event in range(first_event, last_event):
        chance, shift = transitions.probability[event], transitions.shift[event]
        busy = transitions.target[event]
        if ratio > 0.0 and backlog == bound and shift < 0:
            left = 1.0 - ratio ** (-shift) if busy == phase else 1.0
        else:
            after = min(max(backlog + shift, 0), bound)
            target = busy if after > 0 else transitions.target_when_empty[event]
            left = 0.0 if target == phase and after == backlog else 1.0
        stays |= left < 1.0 and chance > 0.0
        leaving += chance * left
    return leaving if stays else 1.0


@allocation_free()
def _circulate(
    transitions: Transitions,
    first_event: int,
    last_event: int,
    phase: int,
    visits: NDArray[np.float64],
    low: int,
    bound: int,
    ratio: float,
    beyond: NDArray[np.float64],
) -> None:
    """Add to a row what the events that lead back to its phase send around within it.

    These events may all shorten the backlog, or all lengthen it: so each cell is complete before it is passed on. Loops
    within a cell are eliminated by division.
    """
    first, last, rising = last_event, first_event, False
    for event in range(first_event, last_event):
        own = transitions.target[event] == phase or transitions.target_when_empty[event] == phase
        if own and transitions.probability[event] > 0.0:
            first, last = min(first, event), event + 1
            rising |= transitions.shift[event] > 0
    if first >= last:
        return
    at_zero = _leaving(transitions, first_event, last_event, phase, 0, bound, ratio)
    at_bound = _leaving(transitions, first_event, last_event, phase, bound, bound, ratio)
    # A backlog that no shift empties and none lengthens beyond the bound, if there is one.
    between = _leaving(transitions, first_event, last_event, phase, min(1, bound - 1), bound, ratio)
    for cell in range(visits.size):
        backlog = low + cell if rising else low + visits.size - 1 - cell
        if visits[backlog - low] == 0.0:
            continue
        leaving = at_zero if backlog == 0 else at_bound if backlog == bound else between
        value = visits[backlog - low] = _visits(visits[backlog - low], leaving)
        for event in range(first, last):
            chance, shift = transitions.probability[event], transitions.shift[event]
            busy, empty = transitions.target[event], transitions.target_when_empty[event]
            if ratio > 0.0 and backlog == bound and shift < 0:
                lowest, not_below, _ = beyond_after(ratio, bound, shift)
                if busy == phase:
                    add_scaled(beyond[: bound - lowest], chance * value * not_below, visits[lowest - low : bound - low])
                if empty == phase and not_below < 1.0:
                    visits[0] += chance * value * (1.0 - not_below)
                continue
            after = min(max(backlog + shift, 0), bound)
            if after != backlog and (busy if after > 0 else empty) == phase:
                visits[after - low] += chance * value


@allocation_free()
def sweep(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    beyond: NDArray[np.float64],
    inflow: NDArray[np.float64],
    visits: NDArray[np.float64],
) -> None:
    """Carry the probability in `inflow` forward through all phases; what flows back is left in `inflow`.

    `visits` receives how often each cell is visited on the way.
    `beyond` is that of `backlogs_beyond`.
    """
    bound, ratio = rows[0].bound, rows[0].ratio
    for phase in range(phases.size - 1):
        begin, end, low, high = rows.offset[phase], rows.offset[phase + 1], rows.low[phase], rows.high[phase]
        if begin == end:
            continue
        row = visits[begin:end]
        if _take(inflow[begin:end], row) == 0.0:
            continue
        first_event, last_event = phases.first_transition[phase], phases.first_transition[phase + 1]
        _circulate(transitions, first_event, last_event, phase, row, low, bound, ratio, beyond)
        for event in range(first_event, last_event):
            chance, shift = transitions.probability[event], transitions.shift[event]
            if chance <= 0.0:
                continue
            busy, empty = transitions.target[event], transitions.target_when_empty[event]
            last = high
            if ratio > 0.0 and high == bound and shift < 0:
                last = high - 1
                top = chance * row[high - low]
                lowest, not_below, stay = beyond_after(ratio, bound, shift)
                if empty != phase and not_below < 1.0:
                    inflow[rows.offset[empty] - rows.low[empty]] += top * (1.0 - not_below)
                if busy != phase:
                    zero = rows.offset[busy] - rows.low[busy]
                    add_scaled(beyond[: bound - lowest], top * not_below, inflow[zero + lowest : zero + bound])
                    inflow[zero + bound] += top * stay
            first_busy = max(low, 1 - shift)
            if first_busy > low and empty != phase:
                emptied = row[: min(first_busy, last + 1) - low]
                inflow[rows.offset[empty] - rows.low[empty]] += chance * total(emptied)
            if first_busy <= last and busy != phase:
                first_cut = max(min(last, bound - shift) + 1, first_busy)
                zero = rows.offset[busy] - rows.low[busy]
                landing = inflow[zero + first_busy + shift : zero + first_cut + shift]
                add_scaled(row[first_busy - low : first_cut - low], chance, landing)
                if first_cut <= last:
                    inflow[zero + bound] += chance * total(row[first_cut - low : last + 1 - low])


WINDOW = 4
"""Number of past steps the extrapolation looks back on."""
DEPENDENT = 1e-12
"""Share of a step's squared length below which what others do not explain of it is rounding."""

SMALLEST_CHANGE = 0.5
"""Factor of the sum of all entries beyond which an extrapolation is not trusted."""


class History(NamedTuple):
    """The last steps of the iterates and of their residuals, and the scalar products of the latter."""

    iterate_steps: NDArray[np.float64]
    residual_steps: NDArray[np.float64]
    last_iterate: NDArray[np.float64]
    last_residual: NDArray[np.float64]
    residual: NDArray[np.float64]
    products: NDArray[np.float64]


@kernel()
def new_history(size: int) -> History:
    """Return an empty history for vectors of `size` entries."""
    return History(
        np.zeros((WINDOW, size)),
        np.zeros((WINDOW, size)),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros((WINDOW, WINDOW)),
    )


@allocation_free(frozenset({"reassoc", "contract"}))
def _product(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    result = 0.0
    for i in range(left.size):
        result += left[i] * right[i]
    return result


@allocation_free()
def remember(history: History, stored: int, before: NDArray[np.float64], after: NDArray[np.float64]) -> int:
    """Add the step from `before` to `after` to the history and make `after` the next iterate, in `before`.

    `stored` is the number of steps in the history, -1 at the start or after a change of the mapping; the new number is
    returned.
    """
    for i in range(before.size):
        history.residual[i] = after[i] - before[i]
    if stored >= 0:
        newest = stored % WINDOW
        for i in range(before.size):
            history.iterate_steps[newest, i] = after[i] - history.last_iterate[i]
            history.residual_steps[newest, i] = history.residual[i] - history.last_residual[i]
        for i in range(min(stored + 1, WINDOW)):
            product = _product(history.residual_steps[newest], history.residual_steps[i])
            history.products[newest, i] = history.products[i, newest] = product
    for i in range(before.size):
        history.last_iterate[i] = before[i] = after[i]
        history.last_residual[i] = history.residual[i]
    return stored + 1


@allocation_free()
def _solve_in_place(system: NDArray[np.float64], right: NDArray[np.float64]) -> None:
    """Replace `right` by the solution of a small symmetric system with ones on its diagonal.

    Directions that depend on earlier ones, to rounding, get no weight. (LAPACK would do the same; compiling the call to
    it takes longer than the whole solver.)
    """
    n = right.size
    for k in range(n):
        if system[k, k] <= DEPENDENT:
            for j in range(n):
                system[k, j] = system[j, k] = 0.0
            system[k, k] = 1.0
            right[k] = 0.0
        for i in range(k + 1, n):
            factor = system[i, k] / system[k, k]
            for j in range(k, n):
                system[i, j] -= factor * system[k, j]
            right[i] -= factor * right[k]
    for k in range(n - 1, -1, -1):
        for j in range(k + 1, n):
            right[k] -= system[k, j] * right[j]
        right[k] /= system[k, k]


@kernel()
def extrapolate(history: History, stored: int, iterate: NDArray[np.float64]) -> None:
    """Move the newest iterate to where the remembered steps would make its residual smallest, and no entry negative."""
    used = min(stored, WINDOW)
    if used < 1:
        return
    system, weights, length = np.zeros((used, used)), np.zeros(used), np.zeros(used)
    for i in range(used):
        length[i] = math.sqrt(history.products[i, i])
    for i in range(used):
        if length[i] > 0.0:
            weights[i] = _product(history.residual_steps[i], history.residual) / length[i]
            for j in range(used):
                if length[j] > 0.0:
                    system[i, j] = history.products[i, j] / length[i] / length[j]
    _solve_in_place(system, weights)
    for i in range(used):
        if length[i] > 0.0:
            add_scaled(history.iterate_steps[i], -weights[i] / length[i], iterate)
    before, after = 0.0, 0.0
    for i in range(iterate.size):
        iterate[i] = max(iterate[i], 0.0)
        before += history.last_iterate[i]
        after += iterate[i]
    if not SMALLEST_CHANGE < after / before < 1 / SMALLEST_CHANGE:
        # Steps that nearly cancel lead astray.
        copy(history.last_iterate, iterate)
