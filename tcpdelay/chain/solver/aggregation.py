"""Smaller chains that help the solver: elimination, corrections of slow modes, and the tail of the backlog."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions
from tcpdelay.chain.solver.sweeps import (
    NEGLIGIBLE,
    beyond_after,
    copy,
    extrapolate,
    new_history,
    remember,
    scale,
    total,
)
from tcpdelay.compiling.compilation import allocation_free, kernel
from tcpdelay.declare import InvalidValueError

# Grassmann-Taksar-Heyman elimination: the stationary distribution of a small chain without subtractions.
#
# Source: Grassmann, Taksar, Heyman, "Regenerative Analysis and Steady State Distributions for Markov Chains",
# Operations Research 33 (1985).

LARGEST_DENSE_CHAIN = 5000
"""Largest number of states that `gth_solve` accepts."""


@kernel()
def eliminate(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the stationary distribution of `matrix`, which is overwritten."""
    n = matrix.shape[0]
    # Fold the last state into the other states, until one state is left.
    for last in range(n - 1, 0, -1):
        leaves = 0.0
        for j in range(last):
            leaves += matrix[last, j]
        for i in range(last):
            rate = matrix[i, last] / leaves
            if rate != 0.0:
                matrix[i, last] = rate
                for j in range(last):
                    matrix[i, j] += rate * matrix[last, j]
    # Unfold the states in reverse order.
    probability = np.zeros(n)
    probability[0] = 1.0
    for state in range(1, n):
        for i in range(state):
            probability[state] += probability[i] * matrix[i, state]
    total = 0.0
    for state in range(n):
        total += probability[state]
    for state in range(n):
        probability[state] /= total
    return probability


def gth_solve(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the stationary distribution of an irreducible transition matrix of up to 5000 states.

    Every operation adds, multiplies or divides positive numbers. So the relative error of each probability, however
    small, is of the order of the rounding unit times the number of states.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square, got shape {matrix.shape}")
    if matrix.shape[0] > LARGEST_DENSE_CHAIN:
        raise InvalidValueError("matrix", matrix.shape[0], f"have at most {LARGEST_DENSE_CHAIN} rows")
    probability: NDArray[np.float64] = eliminate(np.array(matrix, np.float64))
    return probability


# Two smaller chains that correct slow modes of the iteration: a chain of the phases, and a chain of the backlog.
#
# The chain of the phases sums over the backlog. It also gives the drift of the backlog. The chain of the backlog sums
# over the phases and has few bins of backlogs. It speeds up the iteration near saturation.

MAX_SWEEPS = 20_000
"""Largest number of sweeps over a chain of phases."""
GROWTH_SWEEPS = 500
"""Sweeps after which the growth of a geometric backlog is taken as it is."""
TOLERANCE = 1e-14
"""Change per sweep at which the chain of phases for the drift has settled."""


class PhaseChain(NamedTuple):
    """A Markov chain of phases without the moves that stay in a phase."""

    first: NDArray[np.int64]  # First move of each phase. The last entry is the number of moves.
    # target, chance: The phase that a move leads to, and the probability of the move.
    target: NDArray[np.int64]
    chance: NDArray[np.float64]
    leaving: NDArray[np.float64]  # Probability that a phase is left; exactly 1 if no move stays in the phase


@kernel()
def _new_chain(phases: int, moves: int) -> PhaseChain:
    return PhaseChain(
        np.zeros(phases + 1, np.int64), np.empty(moves, np.int64), np.empty(moves, np.float64), np.zeros(phases)
    )


@allocation_free()
def _add_move(chain: PhaseChain, phase: int, filled: int, target: int, chance: float) -> int:
    """Append a move of `phase`, or add it to the last move if both have the same target; return the number of moves."""
    if chance <= 0.0 or target == phase:
        return filled
    chain.leaving[phase] += chance
    if filled > chain.first[phase] and chain.target[filled - 1] == target:
        chain.chance[filled - 1] += chance
        return filled
    chain.target[filled], chain.chance[filled] = target, chance
    return filled + 1


@allocation_free()
def _close(chain: PhaseChain, phase: int, filled: int, stays: bool) -> None:
    """Close the list of moves of a phase. If no move `stays` in the phase, it is left with probability 1."""
    chain.first[phase + 1] = filled
    if not stays or chain.leaving[phase] <= 0.0:
        chain.leaving[phase] = 1.0


@kernel()
def aggregate(phases: Phases, transitions: Transitions, rows: Rows, visits: NDArray[np.float64]) -> PhaseChain:
    """Return the chain of the phases, with the backlogs of `visits`: two moves per event, to a backlog and to none."""
    count = phases.size - 1
    chain = _new_chain(count, 2 * transitions.size)
    bound, ratio = rows[0].bound, rows[0].ratio
    filled = 0
    for phase in range(count):
        cells = visits[rows.offset[phase] : rows.offset[phase + 1]]
        stays = False
        if cells.size > 0:
            sum_of_cells = total(cells)
            for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
                busy, empty = transitions.target[event], transitions.target_when_empty[event]
                chance = transitions.probability[event]
                stays |= busy == phase or empty == phase
                if busy == empty:
                    filled = _add_move(chain, phase, filled, busy, chance)
                    continue
                shift = transitions.shift[event]
                emptied = min(max(1 - shift - rows.low[phase], 0), cells.size)
                if sum_of_cells > 0:
                    empty_now = total(cells[:emptied])
                    if ratio > 0.0 and emptied == cells.size and rows.high[phase] == bound:
                        _, not_below, _ = beyond_after(ratio, bound, shift)
                        empty_now -= cells[-1] * not_below
                    share = min(empty_now / sum_of_cells, 1.0)
                else:
                    share = 1.0 if emptied == cells.size else 0.0
                filled = _add_move(chain, phase, filled, busy, chance * (1 - share))
                filled = _add_move(chain, phase, filled, empty, chance * share)
        _close(chain, phase, filled, stays)
    return chain


@kernel()
def _busy_chain(phases: Phases, transitions: Transitions, exponent: float) -> PhaseChain:
    """Return the chain of the phases for a backlog that never empties, each event weighted by e^(`exponent` shift)."""
    count = phases.size - 1
    chain = _new_chain(count, transitions.size)
    filled = 0
    for phase in range(count):
        stays, gained = False, 0.0
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            target, chance = transitions.target[event], transitions.probability[event]
            weighted = chance if exponent == 0.0 else chance * math.exp(exponent * transitions.shift[event])
            stays |= target == phase
            gained += weighted - chance
            filled = _add_move(chain, phase, filled, target, weighted)
        _close(chain, phase, filled, stays)
        if stays:
            chain.leaving[phase] -= gained
    return chain


@allocation_free()
def _sweep_phases(chain: PhaseChain, inflow: NDArray[np.float64], visits: NDArray[np.float64]) -> None:
    """Carry `inflow` forward through all phases and count the `visits`; flow to earlier phases stays in `inflow`."""
    for phase in range(visits.size):
        value = inflow[phase]
        inflow[phase] = 0.0
        if value <= NEGLIGIBLE:
            visits[phase] = 0.0
            continue
        value /= chain.leaving[phase]
        visits[phase] = value
        if chain.first[phase] == chain.first[phase + 1]:
            # The phase is never left.
            inflow[phase] = value
        for move in range(chain.first[phase], chain.first[phase + 1]):
            inflow[chain.target[move]] += chain.chance[move] * value


@kernel()
def _fed_back(chain: PhaseChain, inflow: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the phases in which flow is left after a sweep, to earlier phases, or from which it begins."""
    is_fed = inflow > 0.0
    for phase in range(inflow.size):
        for move in range(chain.first[phase], chain.first[phase + 1]):
            is_fed[chain.target[move]] |= chain.target[move] < phase
        # What a phase holds that is never left.
        is_fed[phase] |= chain.first[phase] == chain.first[phase + 1]
    return np.nonzero(is_fed)[0]


@kernel()
def settle(
    chain: PhaseChain, inflow: NDArray[np.float64], tolerance: float, most: int
) -> tuple[NDArray[np.float64], int]:
    """Iterate `inflow` until it changes by at most `tolerance`, in at most `most` sweeps; return visits and sweeps."""
    visits, places = np.zeros(inflow.size), _fed_back(chain, inflow)
    scale(inflow, 1 / total(inflow))
    before, after = inflow[places], np.empty(places.size)
    history = new_history(places.size)
    stored, sweeps = -1, 0
    while sweeps < most:
        sweeps += 1
        _sweep_phases(chain, inflow, visits)
        for i in range(places.size):
            after[i] = inflow[places[i]]
        scale(after, 1 / total(after))
        moved = 0.0
        for i in range(places.size):
            moved += abs(after[i] - before[i])
        settled = moved <= tolerance
        if not settled:
            stored = remember(history, stored, before, after)
            extrapolate(history, stored, before)
        for i in range(places.size):
            inflow[places[i]] = after[i] if settled else before[i]
        if settled:
            break
    return visits, sweeps


@kernel(nogil=True)
def backlog_drift(phases: Phases, transitions: Transitions, start: int) -> float:
    """Return the mean change of a backlog that is never empty, in packets per second.

    The backlog of a chain whose phases do not depend on it stays finite if and only if this drift is negative (Loynes
    1962; Neuts 1981, theorem 3.1.1). `start` is a phase with a backlog. The drift is infinite where a phase that is
    never left is visited: with long windows and many losses a recovery may never end, to rounding, so that no packet
    behind it is ever delivered.
    """
    inflow = np.zeros(phases.size - 1)
    inflow[start] = 1.0
    drift, _ = drift_after(phases, transitions, inflow, MAX_SWEEPS)
    return drift


@kernel(nogil=True)
def drift_after(phases: Phases, transitions: Transitions, inflow: NDArray[np.float64], most: int) -> tuple[float, int]:
    """Return the drift of `backlog_drift` after at most `most` sweeps, and the sweeps; `inflow` is left at their end.

    With fewer sweeps than `most` the drift has settled.
    """
    chain = _busy_chain(phases, transitions, 0.0)
    visits, sweeps = settle(chain, inflow, TOLERANCE, most)
    packets, time = 0.0, 0.0
    for phase in range(visits.size):
        if visits[phase] == 0.0:
            continue
        if chain.first[phase] == chain.first[phase + 1]:
            return np.inf, sweeps
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            share = visits[phase] * transitions.probability[event]
            packets += share * transitions.shift[event]
            time += share * transitions.duration[event]
    return packets / time, sweeps


@kernel(nogil=True)
def growth(
    phases: Phases, transitions: Transitions, exponent: float, inflow: NDArray[np.float64], tolerance: float
) -> float:
    """Return the factor by which backlogs b of probability v e^(-exponent b) grow in one sweep through the phases.

    v is the dominant eigenvector of the sweep. `inflow` is the first guess of v, and holds v afterwards. It is found by
    power iteration: an extrapolation may lead to another eigenvector. The factor is infinite where a phase repeats
    itself faster than it is left.
    """
    chain = _busy_chain(phases, transitions, exponent)
    for phase in range(phases.size - 1):
        if chain.leaving[phase] <= 0.0:
            return np.inf
    visits, before = np.zeros(inflow.size), np.zeros(inflow.size)
    factor = np.inf
    for _ in range(GROWTH_SWEEPS):
        copy(inflow, before)
        _sweep_phases(chain, inflow, visits)
        factor = total(inflow)
        if not 0.0 < factor < np.inf:
            break
        scale(inflow, 1 / factor)
        moved = 0.0
        for i in range(inflow.size):
            moved += abs(inflow[i] - before[i])
            # The mean of two iterates also settles where the phases alternate.
            inflow[i] = (inflow[i] + before[i]) / 2
        if moved <= tolerance:
            break
    return factor


BINS = 16
"""Largest number of bins of backlogs."""
LARGEST_FACTOR = 10.0
"""Largest factor by which one correction may change a bin, as the profile within the bins may not have settled."""
LARGEST_DISTANCE = 0.9
"""Total variation distance above which there is no correction: the profile within the bins has not settled."""
DOWNWARD_FLOW = 1e-15
"""Smallest share of a bin that flows to the bin below it, so that no bin with few visits is a trap."""
VISITED = 1e-30
"""Share of all visits above which a bin is corrected."""


@kernel()
def bin_width(bound: int) -> int:
    """Return the number of backlogs per bin."""
    return bound // BINS + 1


@kernel()
def bin_flows(
    phases: Phases, transitions: Transitions, rows: Rows, visits: NDArray[np.float64], width: int
) -> NDArray[np.float64]:
    """Return the probability that flows from each bin of backlogs to each bin."""
    bound, ratio = rows[0].bound, rows[0].ratio
    last_bin = bound // width
    flow = np.zeros((last_bin + 1, last_bin + 1))
    inside = np.zeros(last_bin + 1)
    # A longer shift leads to the same end of the backlogs; some shift by billions, which empties any backlog.
    chance_of_shift = np.zeros(2 * bound + 1)
    for phase in range(phases.size - 1):
        low, high = rows.low[phase], rows.high[phase]
        row = visits[rows.offset[phase] : rows.offset[phase + 1]]
        if row.size == 0:
            continue
        endless = ratio > 0.0 and high == bound
        if endless:
            row = row[:-1]
        for source in range(low // width, high // width + 1):
            inside[source] = total(row[max(source * width - low, 0) : (source + 1) * width - low])
        events = range(phases.first_transition[phase], phases.first_transition[phase + 1])
        top = visits[rows.offset[phase + 1] - 1] if endless else 0.0
        # Many events of a phase add the same number of packets to the backlog.
        for event in events:
            shift, chance = transitions.shift[event], transitions.probability[event]
            chance_of_shift[bound + min(max(shift, -bound), bound)] += chance
            if top > 0.0 and chance > 0.0:
                _add_flow_from_beyond(chance * top, ratio, bound, shift, width, flow)
        for event in events:
            shift = min(max(transitions.shift[event], -bound), bound)
            chance = chance_of_shift[bound + shift]
            chance_of_shift[bound + shift] = 0.0
            if chance > 0.0 and row.size > 0:
                _add_flow(row, low, inside, chance, shift, width, flow)
    return flow


@allocation_free()
def _add_flow_from_beyond(
    value: float, ratio: float, bound: int, shift: int, width: int, flow: NDArray[np.float64]
) -> None:
    """Add to the `flow` between bins what moves by `shift` packets from the backlogs beyond the bound."""
    last_bin = flow.shape[0] - 1
    if shift >= 0:
        flow[last_bin, last_bin] += value
        return
    lowest, left, _ = beyond_after(ratio, bound, shift)
    flow[last_bin, 0] += value * (1.0 - left)
    for target in range(lowest // width, last_bin):
        above = ratio ** ((target + 1) * width - bound - shift)
        flow[last_bin, target] += value * (left - above)
        left = above
    flow[last_bin, last_bin] += value * left


@allocation_free()
def _add_flow(
    row: NDArray[np.float64],
    low: int,
    inside: NDArray[np.float64],
    chance: float,
    shift: int,
    width: int,
    flow: NDArray[np.float64],
) -> None:
    """Add to the `flow` between bins what moves by `shift` packets from a row of backlogs, `low` and more."""
    last_bin = flow.shape[0] - 1
    bins, further = shift // width, shift % width
    for source in range(low // width, (low + row.size - 1) // width + 1):
        begin = source * width - low
        split = begin + width - further
        if 2 * further <= width:
            over = total(row[max(split, 0) : max(begin + width, 0)])
            under = inside[source] - over
        else:
            under = total(row[max(begin, 0) : max(split, 0)])
            over = inside[source] - under
        target = source + bins
        flow[source, min(max(target, 0), last_bin)] += chance * under
        flow[source, min(max(target + 1, 0), last_bin)] += chance * over


@kernel()
def correct_backlog(
    phases: Phases,
    transitions: Transitions,
    rows: Rows,
    visits: NDArray[np.float64],
    feedback: NDArray[np.bool_],
    inflow: NDArray[np.float64],
) -> None:
    """Scale the inflow of each bin of backlogs to the stationary distribution of the chain of the bins."""
    width = bin_width(rows[0].bound)
    flow = bin_flows(phases, transitions, rows, visits, width)
    bins = flow.shape[0]
    visited = np.zeros(bins)
    for i in range(bins):
        visited[i] = total(flow[i])
        below = max(i - 1, 0)
        # The shares of a bin with hardly any visits are noise, and the inverse of a denormal number is infinite.
        if visited[i] > NEGLIGIBLE:
            scale(flow[i], 1 / visited[i])
            flow[i, below] += DOWNWARD_FLOW
        else:
            flow[i, below] = 1.0
    balanced = eliminate(flow)
    factor = np.ones(bins)
    sum_visited = total(visited)
    apart = 0.0
    for i in range(bins):
        apart += abs(balanced[i] - visited[i] / sum_visited) / 2
    if apart > LARGEST_DISTANCE:
        return
    for i in range(bins):
        if visited[i] > VISITED * sum_visited:
            correction = balanced[i] * sum_visited / visited[i]
            factor[i] = min(max(correction, 1 / LARGEST_FACTOR), LARGEST_FACTOR)
    for phase in range(phases.size - 1):
        if feedback[phase]:
            row = inflow[rows.offset[phase] : rows.offset[phase + 1]]
            for i in range(bins):
                begin = i * width - rows.low[phase]
                scale(row[max(begin, 0) : max(begin + width, 0)], factor[i])


# Backlogs beyond the bound of a chain: the ratio of their probabilities, and the delays that they add.
#
# Beyond the longest shift the transitions are the same at every backlog b. The probability of a backlog therefore tends
# to v eta^b, with one number v for each phase (Neuts 1981, chapter 3; Takahashi 1981). When a packet is sent, the
# packets behind it were written at one per interval since; its delay, in intervals, is its backlog. The delay therefore
# has a geometric tail as well.

UNDISTURBED = 0.6
"""Share of the bound up to which the bound does not disturb the backlogs: probability cut off piles up beyond."""
COMPARED = 0.2
"""Share of the bound over which the decay is measured, against an equal share before it."""
FASTEST_DECAY = 1e-3
"""Smallest ratio that counts as measured."""
EIGENVECTOR_TOLERANCE = 1e-10
"""Change per sweep at which the growth of a geometric backlog has settled."""
FIRST_EXPONENT, SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-3, 1e-9, 5.0
"""Values of -log eta at which the search for eta begins, and at which it ends with eta = 1 or 0."""
EXPONENT_TOLERANCE = 1e-6
"""Relative change of -log eta at which the search for eta ends."""
STEEPEST_GROWTH = 10.0
"""Growth in one sweep beyond which only its sign counts."""
SMALLEST_GROWTH = 1e-300
"""Smallest growth whose logarithm is taken."""
MOST_STEPS = 60
"""Steps of the search for eta: each one at least halves an end of the interval, or its value."""


@kernel()
def decay(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Return the ratio of the probabilities of backlogs b + 1 and b in the tail; 1 where the tail is empty."""
    bound = rows[0].bound
    end = int(UNDISTURBED * bound)
    length = max(int(COMPARED * bound), 1)
    upper = lower = 0.0
    for phase in range(phases.size - 1):
        zero = rows.offset[phase] - rows.low[phase]
        for backlog in range(max(end - 2 * length + 1, rows.low[phase]), min(end, rows.high[phase]) + 1):
            if backlog > end - length:
                upper += probability[zero + backlog]
            else:
                lower += probability[zero + backlog]
    if not lower > 0.0:
        return 1.0
    return float(max(min((upper / lower) ** (1 / length), 1.0), FASTEST_DECAY))


def tail_decay(phases: Phases, transitions: Transitions, start: int, guess: float = 1 - FIRST_EXPONENT) -> float:
    """Return the ratio of the probabilities of backlogs b + 1 and b far in the tail, from the transitions alone.

    It is the eta < 1 for which v eta^b is in balance with one v for each phase: neither grows nor shrinks in a sweep
    through the phases. (Neuts 1981, chapter 3.) The backlog has to drift downwards; `start` is a phase with a backlog.
    The search begins near a `guess` of the ratio.

    With t = -log eta, log(growth) / t rises nearly linearly with t, from the drift below 0: regula falsi finds its
    root in a few steps. Where one end of the interval stays, its value is halved (Illinois algorithm).
    """
    inflow = np.zeros(phases.size - 1)
    inflow[start] = 1.0

    def excess(exponent: float) -> float:
        last = inflow.copy()
        factor = growth(phases, transitions, exponent, last, EIGENVECTOR_TOLERANCE)
        if not factor < STEEPEST_GROWTH:
            # Far beyond the root the numbers overflow, and the eigenvector is lost.
            return math.log(STEEPEST_GROWTH) / exponent
        if factor > 0:
            inflow[:] = last
        return math.log(max(factor, SMALLEST_GROWTH)) / exponent

    below = above = min(max(-math.log(guess), SMALLEST_EXPONENT), LARGEST_EXPONENT / 2)
    at_below = at_above = excess(below)
    if at_below >= 0:
        while at_below >= 0:
            above, at_above = below, at_below
            if below <= SMALLEST_EXPONENT:
                return math.exp(-SMALLEST_EXPONENT)
            below /= 2
            at_below = excess(below)
    else:
        while at_above < 0:
            below, at_below = above, at_above
            if above >= LARGEST_EXPONENT:
                return 0.0
            above *= 2
            at_above = excess(above)
    side = 0
    exponent = before = below
    for _ in range(MOST_STEPS):
        exponent = below - at_below * (above - below) / (at_above - at_below)
        if abs(exponent - before) <= EXPONENT_TOLERANCE * exponent:
            break
        before, found = exponent, excess(exponent)
        if found < 0:
            below, at_below = exponent, found
            at_above /= 2 if side < 0 else 1
            side = -1
        else:
            above, at_above = exponent, found
            at_below /= 2 if side > 0 else 1
            side = 1
    return math.exp(-exponent)


@kernel()
def widen(rows: Rows, inflow: NDArray[np.float64], wider: Rows, factor: float) -> NDArray[np.float64]:
    """Return the inflow of a chain with a wider bound; where the old bound disturbs it, `factor` per packet."""
    result = np.zeros(wider.offset[-1])
    end = int(UNDISTURBED * rows[0].bound)
    for phase in range(rows.size - 1):
        zero = rows.offset[phase] - rows.low[phase]
        into = wider.offset[phase] - wider.low[phase]
        value = 0.0
        for backlog in range(wider.low[phase], wider.high[phase] + 1):
            if rows.low[phase] <= backlog <= rows.high[phase] and (backlog <= end or rows.low[phase] > end):
                value = inflow[zero + backlog]
            else:
                value *= factor
            result[into + backlog] = value
        if wider[0].ratio > 0.0 and wider.high[phase] == wider[0].bound:
            result[wider.offset[phase + 1] - 1] /= 1.0 - wider[0].ratio
    return result


def doublings(cut: float, factor: float, bound: int, goal: float) -> int:
    """Return how often the bound must double until the probability cut off falls to `goal`; at least once."""
    if factor >= 1.0:
        return 1
    wider = bound + math.log(goal / cut) / math.log(factor)
    return max(math.ceil(math.log2(wider / bound)), 1)


SINGLE_BACKLOGS = 2048
"""Backlogs beyond the bound that have delays of their own. Longer backlogs are put into groups."""
BACKLOGS_PER_GROUP = 1 / 1024
"""Backlogs of a group, relative to the smallest of them."""
LEFT_OUT = 1e-12
"""Largest share of the backlogs beyond the bound in the last group, which has no upper end: no quantile changes."""


@kernel()
def geometric_groups(first: int, ratio: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of each group of the numbers n >= `first` of probability (1 - r) r^(n - first), and its share.

    The shares sum to 1, and the mean of all numbers is exact.
    """
    most = int(math.log(LEFT_OUT) / math.log(ratio)) + 1
    means, shares = np.empty(1), np.empty(1)
    groups, begin = 0, 0
    while True:
        if groups == means.size:
            means, shares = np.concatenate((means, np.empty(groups))), np.concatenate((shares, np.empty(groups)))
        size = max(int((first + begin) * BACKLOGS_PER_GROUP), 1)
        left = ratio**begin
        if begin + size >= most:
            means[groups], shares[groups] = first + begin + ratio / (1.0 - ratio), left
            return means[: groups + 1], shares[: groups + 1]
        # 1 - r^size, with all its digits also where the ratio is nearly 1.
        within = -math.expm1(size * math.log(ratio))
        means[groups] = first + begin + ratio / (1.0 - ratio) - size * (1.0 - within) / within
        shares[groups] = left * within
        groups += 1
        begin += size


@kernel()
def within_bound(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of all cells, with 0 in the cells at the bound, which hold all larger backlogs."""
    within = probability.copy()
    for phase in range(phases.size - 1):
        if rows.offset[phase] < rows.offset[phase + 1] and rows.high[phase] == rows[0].bound:
            within[rows.offset[phase + 1] - 1] = 0.0
    return within


@kernel()
def tail_errors(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
    """Return how wrong backlogs beyond the bound B may be because they are taken to be geometric.

    The first figure is the relative error of the probability of large backlogs, the second that of the mean backlog.
    The upper half of the backlogs below B is compared with what the probability beyond B lets expect there. Their
    relative difference is that of the probability beyond B at most, as long as it falls with growing B.
    """
    bound, ratio = rows[0].bound, rows[0].ratio
    half = bound - bound // 2
    beyond, upper, backlog = 0.0, 0.0, 0.0
    for phase in range(phases.size - 1):
        zero = rows.offset[phase] - rows.low[phase]
        for b in range(rows.low[phase], rows.high[phase] + 1):
            chance = probability[zero + b]
            backlog += b * chance
            if b == bound:
                beyond += chance
            elif b >= bound - half:
                upper += chance
    if not beyond > 0.0:
        return 0.0, 0.0
    # The sum of r^-k for k from 1 to the number of backlogs in the upper half, with all digits where r is nearly 1.
    expected = beyond * math.expm1(-half * math.log(ratio))
    excess = beyond * ratio / (1.0 - ratio)
    error = abs(upper / expected - 1.0)
    return error, error * excess / (backlog + excess)
