"""Backlogs beyond the bound of a chain: the ratio of their probabilities, and the delays that they add."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.solver.aggregation import growth
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions
from tcpdelay.compiling.compilation import kernel

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
FIRST_EXPONENT, SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-3, 1e-9, 5.0
"""Values of -log eta at which the search for eta begins, and at which it ends with eta = 1 or 0."""
EXPONENT_TOLERANCE = 1e-6
STEEPEST_GROWTH = 10.0
"""Growth in one sweep beyond which only its sign counts."""
SMALLEST_GROWTH = 1e-300
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
LEFT_OUT = 1e-17
"""Share of the backlogs beyond the bound that the last group may stand for."""


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
    """Return the probability of every cell, but 0 for the cells that stand for backlogs beyond the bound."""
    within = probability.copy()
    for phase in range(phases.size - 1):
        if rows.offset[phase] < rows.offset[phase + 1] and rows.high[phase] == rows[0].bound:
            within[rows.offset[phase + 1] - 1] = 0.0
    return within


@kernel()
def tail_error(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Return by how much the mean backlog may be wrong because backlogs beyond the bound are taken to be geometric.

    The upper half of the backlogs below the bound B is compared with what the probability beyond B lets expect there.
    Their relative difference is that of the probability beyond B at most, as long as it falls with growing B.
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
        return 0.0
    # The sum of r^-k for k from 1 to the number of backlogs in the upper half, with all digits where r is nearly 1.
    expected = beyond * math.expm1(-half * math.log(ratio))
    excess = beyond * ratio / (1.0 - ratio)
    return float(abs(upper / expected - 1.0) * excess / (backlog + excess))
