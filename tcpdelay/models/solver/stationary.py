"""The stationary distribution: accelerated block Gauss-Seidel, and a sparse direct solution if it does not converge.

The phases are ordered so that a run of successes only moves forward. One sweep carries all probability that stands at
the *feedback* cells (where losses lead back to) along every forward path, exactly, and returns what flows back:
y -> T y with T stochastic. The fixed point of T gives the visits of all cells and, scaled, the stationary
distribution. After a sweep the residual pi Q - pi is the change of y exactly, so that it costs nothing to state. Slow
modes that live in the phases are removed by aggregation and disaggregation (Koury, McAllister, Stewart 1984), and so
are those of the backlog.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from tcpdelay.models.budget import SECONDS_PER_UPDATE, SLICE, Budget
from tcpdelay.models.compilation import allocation_free, kernel
from tcpdelay.models.solver.aggregation import MAX_SWEEPS as MAX_SWEEPS_OF_PHASES
from tcpdelay.models.solver.aggregation import aggregate, correct_backlog, settle
from tcpdelay.models.solver.measures import probability_at_bound
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions, compressed_rows, list_states, number_states
from tcpdelay.models.solver.sweeps import copy, extrapolate, new_history, remember, scale, sweep, total

TOLERANCE = 1e-13
"""Change per sweep, relative to the probability that flows back, at which the iteration stops.

Where losses are rare most visits are to states without one, and |pi Q - pi| alone would stop too early for the others.
"""
ACCEPTED_RESIDUAL = 1e-13
"""Largest sum of |pi Q - pi| that counts as solved."""
MAX_SWEEPS = 1000
ROUGH = 1e-5
"""Change per sweep at which it is known how much is cut off at the bound."""
SWEEPS_PER_EXTRAPOLATION = 3
FIRST_CORRECTION = 16
"""Sweep from which the phases are corrected by aggregation; quickly mixing chains are done before."""


NEAR = 1e-3
"""Change in the first sweep up to which the iteration begins near its end, as it does with a wider bound.

The backlog is then corrected from the first sweep on.
"""
SWEEPS_PER_REVIEW = 20
SLOW = 0.01
"""Progress in that many sweeps from which on the backlog is corrected as well: near saturation it wanders for long."""
FEWEST_SWEEPS_OF_PHASES = 100
"""Sweeps over the chain of phases that one correction may take in any case."""
SWEEPS_PER_CALL = 60
"""Sweeps that one call of the solver makes at least: fewer would not converge."""
UPDATES_PER_CELL = 3
"""Time in which a sweep moves, compares and scales a cell, in updates: in addition to the updates of its events."""
UPDATES_PER_MOVE = 2
"""Time of a move in the chain of phases, in updates of cells: neighbouring cells are added together."""
FINEST_CORRECTION = 1e-14
"""Smallest relative change to which the chain of phases is iterated."""


class Solution(NamedTuple):
    """Probability of every cell, the residual sum |pi Q - pi| and the number of sweeps."""

    probability: NDArray[np.float64]
    residual: float
    sweeps: int


@kernel()
def feedback_phases(phases: Phases, transitions: Transitions, start: int) -> NDArray[np.bool_]:
    """Phases that a phase behind them in the order leads back to: between sweeps all probability stands there."""
    feedback = np.zeros(phases.size - 1, np.bool_)
    feedback[start] = True
    for phase in range(phases.size - 1):
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            if transitions.probability[event] > 0.0:
                for target in (transitions.target[event], transitions.target_when_empty[event]):
                    if target < phase:
                        feedback[target] = True
    return feedback


@kernel()
def _feedback_spans(feedback: NDArray[np.bool_], rows: Rows) -> NDArray[np.int64]:
    """First cell, end cell and place among the packed feedback cells of every feedback phase with any cell."""
    spans = np.zeros((feedback.size, 3), np.int64)
    filled, place = 0, 0
    for phase in range(feedback.size):
        begin, end = rows.offset[phase], rows.offset[phase + 1]
        if feedback[phase] and begin < end:
            spans[filled, 0], spans[filled, 1], spans[filled, 2] = begin, end, place
            place += end - begin
            filled += 1
    return spans[:filled]


@allocation_free()
def _pack(spans: NDArray[np.int64], cells: NDArray[np.float64], packed: NDArray[np.float64]) -> None:
    """Copy the feedback cells side by side."""
    for span in range(spans.shape[0]):
        begin, end, place = spans[span, 0], spans[span, 1], spans[span, 2]
        copy(cells[begin:end], packed[place : place + end - begin])


@allocation_free()
def _unpack(spans: NDArray[np.int64], packed: NDArray[np.float64], cells: NDArray[np.float64]) -> None:
    """Copy the feedback cells back to where they stand."""
    for span in range(spans.shape[0]):
        begin, end, place = spans[span, 0], spans[span, 1], spans[span, 2]
        copy(packed[place : place + end - begin], cells[begin:end])


@allocation_free(frozenset({"reassoc"}))
def _distance(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Sum of the differences' sizes."""
    result = 0.0
    for i in range(left.size):
        result += abs(left[i] - right[i])
    return result


@kernel()
def _correct_phases(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    visits: NDArray[np.float64],
    feedback: NDArray[np.bool_],
    inflow: NDArray[np.float64],
    tolerance: float,
    most: int,
) -> int:
    """Scale the inflow of each phase in `feedback` to what the chain of phases alone says that it should be.

    Return the number of sweeps over the chain of phases, at most `most`.
    """
    now = np.zeros(phases.size - 1)
    for phase in range(phases.size - 1):
        if feedback[phase]:
            now[phase] = total(inflow[rows.offset[phase] : rows.offset[phase + 1]])
    if not total(now) > 0.0:
        return 0
    scale(now, 1 / total(now))
    balanced = now.copy()
    _, sweeps = settle(aggregate(phases, transitions, rows, visits), balanced, tolerance, most)
    for phase in range(phases.size - 1):
        if now[phase] > 0 and balanced[phase] > 0:
            scale(inflow[rows.offset[phase] : rows.offset[phase + 1]], balanced[phase] / now[phase])
    return sweeps


@allocation_free()
def _normalise(values: NDArray[np.float64]) -> bool:
    """Scale `values` to a sum of 1; say whether they have a sum to scale."""
    size = total(values)
    if not 0.0 < size < math.inf:
        return False
    scale(values, 1 / size)
    return True


@kernel(nogil=True)
def iterate_sweeps(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    start: int,
    max_sweeps: int,
    inflow: NDArray[np.float64],
    largest_cut: float,
    tolerance: float,
    most_updates: float,
) -> tuple[NDArray[np.float64], float, int, float]:
    """Probability of every cell, residual, sweeps and updates, after at most `max_sweeps` from `inflow` on.

    It ends once a sweep changes what flows back by at most `tolerance` of it, or after `most_updates` of numbers.
    `inflow` is left where the iteration ends, so that it can go on from there. It ends early where more than
    `largest_cut` turns out to stand at the bound.
    """
    visits = np.zeros(rows.offset[-1])
    feedback = feedback_phases(phases, transitions, start)
    spans = _feedback_spans(feedback, rows)
    last = spans.shape[0] - 1
    size = spans[last, 2] + spans[last, 1] - spans[last, 0]
    before, after = np.zeros(size), np.zeros(size)
    history = new_history(size)
    stored = -1

    _pack(spans, inflow, before)
    _normalise(before)
    _unpack(spans, before, inflow)
    residual, sweeps, looked = np.inf, 0, False
    moved_at_review, backlog_wanders = np.inf, False
    updates, updates_of_sweep = 0.0, updates_per_sweep(phases, transitions, rows)
    while sweeps < max_sweeps and updates < most_updates:
        sweep(phases, transitions, rows, inflow, visits)
        sweeps += 1
        updates += updates_of_sweep
        _pack(spans, inflow, after)
        # Rounding lets the sum drift; the iteration must not follow it.
        if not _normalise(after):
            return visits, np.inf, sweeps, updates
        moved = _distance(after, before)
        residual = moved / total(visits)
        if moved <= tolerance:
            break
        if moved <= ROUGH and not looked:
            looked = True
            if probability_at_bound(phases, rows, visits) > largest_cut * total(visits):
                break
        if sweeps == 1:
            backlog_wanders = moved <= NEAR
        if sweeps >= FIRST_CORRECTION:
            if sweeps == FIRST_CORRECTION:
                stored = -1
            if sweeps % SWEEPS_PER_REVIEW == 0 and not backlog_wanders:
                backlog_wanders = moved > SLOW * moved_at_review
                moved_at_review = moved
                stored = -1 if backlog_wanders else stored
            most = FEWEST_SWEEPS_OF_PHASES + int(
                min((most_updates - updates) / transitions.size, MAX_SWEEPS_OF_PHASES - FEWEST_SWEEPS_OF_PHASES)
            )
            corrected = _correct_phases(
                phases, transitions, rows, visits, feedback, inflow, max(0.1 * moved, FINEST_CORRECTION), most
            )
            updates += UPDATES_PER_MOVE * corrected * transitions.size
        if backlog_wanders:
            correct_backlog(phases, transitions, rows, visits, feedback, inflow)
        if backlog_wanders or sweeps >= FIRST_CORRECTION:
            _pack(spans, inflow, after)
            if not _normalise(after):
                return visits, np.inf, sweeps, updates
        stored = remember(history, stored, before, after)
        if sweeps % SWEEPS_PER_EXTRAPOLATION == 1:
            extrapolate(history, stored, before)
        _unpack(spans, before, inflow)
    scale(visits, 1 / total(visits))
    return visits, residual, sweeps, updates


@kernel()
def updates_per_sweep(phases: Phases, transitions: Transitions, rows: Rows) -> float:
    """Return how many numbers a sweep adds: one for each cell and event."""
    updates = 0.0
    for phase in range(phases.size - 1):
        events = phases.first_transition[phase + 1] - phases.first_transition[phase]
        updates += float(events * (rows.offset[phase + 1] - rows.offset[phase]))
    return updates


@kernel()
def from_start(rows: Rows, start: int) -> NDArray[np.float64]:
    """Return the inflow with which an iteration from nowhere begins: all at the start, without a backlog."""
    inflow = np.zeros(rows.offset[-1])
    inflow[rows.offset[start] - rows.low[start]] = 1.0
    return inflow


def solve_by_sweeps(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    start: int,
    max_sweeps: int,
    inflow: NDArray[np.float64] | None = None,
    largest_cut: float = np.inf,
    tolerance: float = TOLERANCE,
) -> Solution:
    """Return the stationary distribution over all cells, or the nearest found within `max_sweeps`.

    The iteration begins with `inflow`, which it changes, or else at the start. It may end early, with a large residual,
    where more than `largest_cut` is cut off at the bound.
    """
    begun = from_start(rows, start) if inflow is None else inflow
    # The kernel returns a plain tuple: making a named one, it would crash on an interrupt that came meanwhile.
    found = iterate_sweeps(phases, transitions, rows, start, max_sweeps, begun, largest_cut, tolerance, np.inf)
    return Solution(*found[:3])


def solve_within(
    budget: Budget,
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    start: int,
    inflow: NDArray[np.float64],
    largest_cut: float = np.inf,
    tolerance: float = TOLERANCE,
) -> Solution:
    """Return what `solve_by_sweeps` returns, in calls that let an interrupt through, as long as the budget allows.

    Raises
    ------
    TooLargeError
        If the iteration takes more time than is left.
    ArithmeticError
        If the chain never leaves one of its states.
    """
    of_sweep, of_cells, done = updates_per_sweep(phases, transitions, rows), UPDATES_PER_CELL * inflow.size, 0
    while True:
        # What is left limits a call as well: sixty sweeps of a large chain take a minute.
        most = min(max(SLICE / SECONDS_PER_UPDATE, SWEEPS_PER_CALL * of_sweep), budget.left() / SECONDS_PER_UPDATE + 1)
        # The kernel returns a plain tuple: making a named one, it would crash on an interrupt that came meanwhile.
        probability, residual, sweeps, updates = iterate_sweeps(
            phases, transitions, rows, start, MAX_SWEEPS - done, inflow, largest_cut, tolerance, most
        )
        done += sweeps
        if residual == math.inf and not math.isfinite(total(probability)):
            raise ArithmeticError("the chain never leaves one of its states; please report the scenario")
        budget.spend((updates + of_cells * sweeps) * SECONDS_PER_UPDATE)
        if updates < most or done >= MAX_SWEEPS:
            return Solution(probability, residual, done)


REFINEMENTS = 2
LARGEST_CHAIN = 20_000
SECONDS_PER_STATE = 1e-4
"""Time that a state takes in a direct solution [s]."""


def solve_directly(phases: Phases, transitions: Transitions, rows: Rows, start: int) -> Solution:
    """Return the stationary distribution by sparse LU factorisation with iterative refinement.

    Chains of more than 20 000 states are refused: their factors take minutes, or do not fit into memory.

    One balance equation is replaced by the condition that the probabilities sum to 1. The factorisation is SciPy's
    SuperLU, which is slow beside the sweeps but needs no convergence.
    """
    number = number_states(phases, transitions, rows, start)
    phase_of, backlog_of = list_states(phases, rows, number)
    states = phase_of.size
    if states > LARGEST_CHAIN:
        raise ArithmeticError(
            f"the chain of {states} states did not converge, and is too large to be solved directly; "
            "please report the scenario"
        )
    entries = compressed_rows(phases, transitions, rows, number, phase_of, backlog_of)
    matrix = scipy.sparse.csr_array(entries, shape=(states, states))
    balance = (matrix.T - scipy.sparse.eye_array(states)).tolil()
    balance[states - 1, :] = 1.0
    system = balance.tocsc()
    right = np.zeros(states)
    right[states - 1] = 1.0
    factors = scipy.sparse.linalg.splu(system)
    probability = factors.solve(right)
    for _ in range(REFINEMENTS):
        probability += factors.solve(right - system @ probability)
    probability = np.maximum(probability, 0.0)
    probability /= probability.sum()
    cells = np.zeros(number.size)
    cells[number >= 0] = probability
    return Solution(cells, float(np.abs(probability @ matrix - probability).sum()), 0)
