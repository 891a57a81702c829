"""Small chains, solved and summed up in one compiled call, within the first bound of the backlog.

For these chains Python would take as long as the solver, and keep other threads from working. Most backlogs stay within
the first bound. Where a backlog does not, `DelayModel` widens the bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import CUMULATION_NOISE
from tcpdelay.models.compilation import kernel
from tcpdelay.models.solver.aggregation import backlog_drift
from tcpdelay.models.solver.measures import probability_at_bound
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions, reachable_rows
from tcpdelay.models.solver.stationary import ACCEPTED_RESIDUAL, MAX_SWEEPS, TOLERANCE, from_start, iterate_sweeps

LEFT, CARRIED, NOT_CARRIED = range(3)
"""Outcome of a small chain: left to `DelayModel`, or solved; if solved, whether TCP carries the flow."""
NEGLIGIBLE_TRUNCATION = 1e-6
"""Probability at the bound below which the bound does not change the delays."""
WORTH_FINISHING = 2e-6
"""Probability at the bound above which a solution need not be exact: the bound has to grow anyway."""
CELLS_WORTH_A_LOOK = 5_000
"""Number of cells from which the drift of the backlog costs less than a solution, so that it is computed first."""
LARGEST_CELLS = 100_000
"""Largest number of cells of a small chain."""


class RequestedFigures(NamedTuple):
    """Which figures of the delays are requested.

    Attributes
    ----------
    shares, limits : float array
        The probabilities of the quantiles, and the delays [s] of the late fractions.
    limit, share : float
        The target: this share of the packets within this limit [s]. Where the target is missed for certain, lower
        bounds of the delays suffice. With an infinite limit they never do.
    """

    shares: NDArray[np.float64]
    limits: NDArray[np.float64]
    limit: float
    share: float


@kernel(joins=True)
def solve_narrow(
    phases: Phases, transitions: Transitions, start: int, backlogged: int, bound: int, grows: bool
) -> tuple[int, Rows, NDArray[np.float64], float]:
    """Return the outcome of a chain, its rows, the probability of every cell, and the probability at the bound.

    A chain whose bound `grows` is solved even if the probability at the bound is not negligible: the solution may
    suffice to see that a target is missed. If TCP does not carry the flow, such a chain has no solution.
    """
    nothing = np.zeros(0)
    rows = reachable_rows(phases, transitions, start, bound)
    if rows["offset"][-1] > LARGEST_CELLS:
        return LEFT, rows, nothing, 0.0
    if grows and rows["offset"][-1] > CELLS_WORTH_A_LOOK and backlog_drift(phases, transitions, backlogged) >= 0:
        return NOT_CARRIED, rows, nothing, 0.0
    inflow = from_start(rows, start)
    largest_cut = WORTH_FINISHING if grows else np.inf
    probability, residual, _, _ = iterate_sweeps(
        phases, transitions, rows, start, MAX_SWEEPS, inflow, largest_cut, TOLERANCE, np.inf
    )
    cut = probability_at_bound(phases, rows, probability)
    carried = cut < NEGLIGIBLE_TRUNCATION or backlog_drift(phases, transitions, backlogged) < 0
    if grows and not carried:
        return NOT_CARRIED, rows, nothing, cut
    if residual > ACCEPTED_RESIDUAL and cut > largest_cut:
        probability, residual, _, _ = iterate_sweeps(
            phases, transitions, rows, start, MAX_SWEEPS, inflow, np.inf, TOLERANCE, np.inf
        )
        # A rough solution has already told that the bound has to grow.
        cut = max(probability_at_bound(phases, rows, probability), NEGLIGIBLE_TRUNCATION)
    if residual > ACCEPTED_RESIDUAL:
        return LEFT, rows, nothing, cut
    return CARRIED if carried else NOT_CARRIED, rows, probability, cut


@kernel()
def _place_of(up_to: NDArray[np.float64], share: float) -> int:
    """Return the first index at which the cumulative weights reach a share."""
    place = 0
    while place < up_to.size - 1 and up_to[place] < share - CUMULATION_NOISE:
        place += 1
    return place


@kernel()
def sum_up(
    outcome: int,
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    cut: float,
    grows: bool,
    figures: RequestedFigures,
    result: NDArray[np.float64],
) -> int:
    """Write quantiles, late fractions, mean and the probability at the bound to `result`; return the outcome.

    The figures are those of a `DelayDistribution` of the same ascending delays and weights. Without any delay no packet
    ever arrives.
    """
    quantiles, late = result[: figures.shares.size], result[figures.shares.size : -2]
    if outcome == LEFT:
        return LEFT
    if values.size == 0:
        quantiles[:] = np.inf
        late[:] = 1.0
        result[-2], result[-1] = np.inf, 0.0
        return NOT_CARRIED
    up_to, so_far = np.empty(weights.size), 0.0
    for place in range(weights.size):
        so_far += weights[place]
        up_to[place] = so_far
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
    mean = 0.0
    for place in range(values.size):
        mean += values[place] * weights[place]
    result[-2], result[-1] = mean, cut
    return outcome
