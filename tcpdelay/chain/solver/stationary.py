"""The stationary distribution of a chain and its figures: iteration, and small chains."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import SECONDS_PER_UPDATE, SLICE, Budget
from tcpdelay.chain.solver.aggregation import MAX_SWEEPS as MAX_SWEEPS_OF_PHASES
from tcpdelay.chain.solver.aggregation import aggregate, backlog_drift, correct_backlog, settle
from tcpdelay.chain.solver.state_space import (
    PHASE,
    ROW,
    Phases,
    Rows,
    Transitions,
    compressed_rows,
    list_states,
    number_states,
    reachable_rows,
)
from tcpdelay.chain.solver.sweeps import (
    add_scaled,
    backlogs_beyond,
    copy,
    extrapolate,
    new_history,
    remember,
    scale,
    sweep,
    total,
)
from tcpdelay.compiling.compilation import allocation_free, kernel, records
from tcpdelay.delays import CUMULATION_NOISE

# Figures of a stationary distribution: time with a backlog, probability at the bound, backlogs after timeouts.

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
    beyond = backlogs_beyond(followed_rows)
    first, end = rows.offset[first_backoff], rows.offset[first_backoff + 1]
    copy(probability[first:end], inflow[first:end])
    begun = left = total(inflow)
    for _ in range(MAX_FOLLOWED_SWEEPS):
        scale(visits, 0.0)
        sweep(followed_phases, followed, followed_rows, beyond, inflow, visits)
        add_scaled(visits[: sum_of_visits.size], 1.0, sum_of_visits)
        before, left = left, total(inflow)
        if left <= EPISODES_LEFT * begun:
            break
    if left > 0.0:
        add_scaled(visits[: sum_of_visits.size], left / (before - left), sum_of_visits)
    return sum_of_visits


# The stationary distribution: accelerated block Gauss-Seidel, and a sparse direct solution if it does not converge.
#
# The phases are ordered so that a run of successes only moves forward. One sweep carries all probability that stands at
# the *feedback* cells (where losses lead back to) along every forward path, exactly, and returns what flows back:
# y -> T y with T stochastic. The fixed point of T gives the visits of all cells and, scaled, the stationary
# distribution. After a sweep the residual pi Q - pi is the change of y exactly, so that it costs nothing to state. Slow
# modes that live in the phases are removed by aggregation and disaggregation (Koury, McAllister, Stewart 1984), and so
# are those of the backlog.

TOLERANCE = 1e-13
"""Change per sweep, relative to the probability that flows back, at which the iteration stops.

Where losses are rare most visits are to states without one, and |pi Q - pi| alone would stop too early for the others.
"""
ACCEPTED_RESIDUAL = 1e-13
"""Largest sum of |pi Q - pi| that counts as solved."""
MAX_SWEEPS = 1000
"""Largest number of sweeps of one solution."""
ROUGH = 1e-5
"""Change per sweep at which it is known how much is cut off at the bound."""
SWEEPS_PER_EXTRAPOLATION = 3
"""Sweeps from one extrapolation to the next."""
FIRST_CORRECTION = 16
"""Sweep from which the phases are corrected by aggregation; quickly mixing chains are done before."""


NEAR = 1e-3
"""Change in the first sweep up to which the iteration begins near its end, as it does with a wider bound.

The backlog is then corrected from the first sweep on.
"""
SWEEPS_PER_REVIEW = 20
"""Sweeps after which the progress is looked at."""
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
    """Solve the chain of phases, and scale the inflow of the `feedback` phases to its result; return its sweeps."""
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
    beyond = backlogs_beyond(rows)
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
        sweep(phases, transitions, rows, beyond, inflow, visits)
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
    """Return the stationary distribution over all cells, or the nearest found within `max_sweeps` from `inflow`.

    It may end early, with a large residual, where more than `largest_cut` is cut off at the bound.
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
    """Return what `solve_by_sweeps` returns, in calls that let an interrupt through, as long as the budget allows."""
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
"""Steps of iterative refinement of a direct solution."""
LARGEST_CHAIN = 20_000
"""Largest number of states of a direct solution."""
SECONDS_PER_STATE = 1e-4
"""Time that a state takes in a direct solution [s]."""


def solve_directly(phases: Phases, transitions: Transitions, rows: Rows, start: int) -> Solution:
    """Return the stationary distribution by sparse LU factorisation with iterative refinement.

    Chains of more than 20 000 states are refused: their factors take minutes, or do not fit into memory.

    One balance equation is replaced by the condition that the probabilities sum to 1. The factorisation is SciPy's
    SuperLU, which is slow beside the sweeps but needs no convergence.
    """
    # Imported here: it takes a third of a second, and hardly any chain needs it.
    import scipy.sparse.linalg

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


# Small chains, solved and summed up in one compiled call, within the first bound of the backlog.
#
# For these chains Python would take as long as the solver, and keep other threads from working. Most backlogs stay
# within the first bound. Where a backlog does not, `SolvedChain` widens the bound.


class NarrowSolution(NamedTuple):
    """A small chain within its first bound."""

    outcome: int
    # values, weights: Ascending delays [s] and their weights; empty if no packet ever arrives.
    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    drift: float  # `backlog_drift` [packets/s]; NaN if it is not known


LEFT, CARRIED, NOT_CARRIED = range(3)
"""Outcome of a small chain: left to `SolvedChain`, or solved; if solved, whether TCP carries the flow."""
NEGLIGIBLE_TRUNCATION = 1e-6
"""Probability at the bound below which the bound does not change the delays."""
WORTH_FINISHING = 2e-6
"""Probability at the bound above which a solution need not be exact: the bound has to grow anyway."""
LARGEST_CELLS = 100_000
"""Largest number of cells of a small chain."""


class RequestedFigures(NamedTuple):
    """Which figures of the delays are requested."""

    # shares, limits: The probabilities of the quantiles, and the delays [s] of the late fractions.
    shares: NDArray[np.float64]
    limits: NDArray[np.float64]
    # limit, share: The target: this share of the packets within this limit [s]. Where the target is missed for
    # certain, lower bounds of the delays suffice. With an infinite limit they never do.
    limit: float
    share: float


@kernel(joins=True)
def solve_narrow(
    phases: Phases,
    transitions: Transitions,
    start: int,
    backlogged: int,
    bound: int,
    grows: bool,
    limit: float,
    most_updates: float,
) -> tuple[int, Rows, NDArray[np.float64], float, float]:
    """Return the outcome of a chain, its rows, the probability of every cell, that at the bound, and `backlog_drift`.

    A chain whose bound `grows` is solved even if the probability at the bound is not negligible, unless the `limit` of
    the target is infinite: the solution may suffice to see that a target is missed. If TCP does not carry the flow,
    such a chain has no solution. A chain that takes more updates than allowed is left.
    """
    nothing = np.zeros(0)
    rows = reachable_rows(phases, transitions, start, bound)
    if rows["offset"][-1] > LARGEST_CELLS:
        return LEFT, rows, nothing, 0.0, np.nan
    drift = backlog_drift(phases, transitions, backlogged)
    if grows and drift >= 0:
        return NOT_CARRIED, rows, nothing, 0.0, drift
    inflow = from_start(rows, start)
    largest_cut = WORTH_FINISHING if grows else np.inf
    probability, residual, _, _ = iterate_sweeps(
        phases, transitions, rows, start, MAX_SWEEPS, inflow, largest_cut, TOLERANCE, most_updates
    )
    cut = probability_at_bound(phases, rows, probability)
    if residual > ACCEPTED_RESIDUAL and cut > largest_cut and limit < np.inf:
        probability, residual, _, _ = iterate_sweeps(
            phases, transitions, rows, start, MAX_SWEEPS, inflow, np.inf, TOLERANCE, most_updates
        )
        # A rough solution has already told that the bound has to grow.
        cut = max(probability_at_bound(phases, rows, probability), NEGLIGIBLE_TRUNCATION)
    if residual > ACCEPTED_RESIDUAL or (grows and cut >= NEGLIGIBLE_TRUNCATION and limit == np.inf):
        return LEFT, rows, nothing, cut, drift
    return CARRIED if drift < 0 else NOT_CARRIED, rows, probability, cut, drift


@kernel()
def _place_of(up_to: NDArray[np.float64], share: float) -> int:
    """Return the first index at which the cumulative weights reach a share."""
    place = 0
    while place < up_to.size - 1 and up_to[place] < share - CUMULATION_NOISE:
        place += 1
    return place


@kernel(joins=True)
def sum_up(
    outcome: int,
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    cut: float,
    grows: bool,
    figures: RequestedFigures,
    result: NDArray[np.float64],
) -> int:
    """Write quantiles, late fractions, mean and the probability at the bound to `result`; return the outcome."""
    quantiles, late = result[: figures.shares.size], result[figures.shares.size : -2]
    if outcome == LEFT:
        return LEFT
    if values.size == 0:
        quantiles[:] = np.inf
        late[:] = 1.0
        result[-2], result[-1] = np.inf, 0.0
        return NOT_CARRIED
    up_to = np.cumsum(weights)
    if grows and cut >= NEGLIGIBLE_TRUNCATION and values[_place_of(up_to, figures.share)] <= figures.limit:
        return LEFT
    for i in range(figures.shares.size):
        quantiles[i] = values[_place_of(up_to, figures.shares[i])]
    for i in range(figures.limits.size):
        beyond = 0.0
        place = values.size - 1
        # From the top, which keeps the digits.
        while place >= 0 and values[place] > figures.limits[i] + CUMULATION_NOISE * abs(figures.limits[i]):
            beyond += weights[place]
            place -= 1
        late[i] = min(beyond, 1.0)
    # In plain Python, loops over all delays would take longer than the solution.
    result[-2], result[-1] = (values * weights).sum(), cut
    return outcome


# What chains and solver agree on.

BYTES_PER_CELL = 60
"""Measured peak memory per cell, for visits, inflow and the history of the acceleration [bytes]."""
BYTES_PER_PHASE = 600
"""Memory per phase with its transitions [bytes]."""
NEGLIGIBLE_LOSS = 1e-15
"""Loss probability below which the chains lose no packet: the effect of the loss is below rounding."""
