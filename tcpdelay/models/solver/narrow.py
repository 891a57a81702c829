"""A chain within its first bound of the backlog, solved and summed up without a return to Python in between.

For chains so small that Python would take as long as the solver, and keep other threads from working. The first bound
holds the backlog of most of them; the rest is left to `DelayModel`, which widens the bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.distribution import CUMULATION_NOISE
from tcpdelay.models.solver.aggregation import backlog_drift
from tcpdelay.models.solver.measures import probability_at_bound
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions, reachable_rows
from tcpdelay.models.solver.stationary import ACCEPTED_RESIDUAL, MAX_SWEEPS, TOLERANCE, from_start, iterate_sweeps

LEFT, CARRIED, NOT_CARRIED = range(3)
"""What became of a chain: left to others, or solved; and whether TCP carries the flow."""
NEGLIGIBLE_TRUNCATION = 1e-6
"""Probability at the bound below which a backlog counts as not cut off."""
WORTH_FINISHING = 2e-6
"""Probability at the bound beyond which a solution in passing need not be exact."""
CELLS_WORTH_A_LOOK = 5_000
"""Cells from which on the backlog's drift is looked at before the chain is solved: it costs less, then."""
LARGEST_CELLS = 100_000
"""Cells up to which a chain counts as small."""


class Wanted(NamedTuple):
    """What is asked of the delays.

    Attributes
    ----------
    shares, limits : float array
        The probabilities of the quantiles, and the delays [s] of the late fractions.
    limit, share : float
        The target: this share of the packets within this limit [s]. Where it is missed for certain, lower bounds of the
        delays will do; with a limit of infinity they never do.
    """

    shares: NDArray[np.float64]
    limits: NDArray[np.float64]
    limit: float
    share: float


@njit(cache=True)
def solve_narrow(
    phases: Phases, transitions: Transitions, start: int, backlogged: int, bound: int, grows: bool
) -> tuple[int, Rows, NDArray[np.float64], float]:
    """Return what became of a chain, its rows, the probability of every cell, and how much stands at the bound.

    Where the bound `grows` and more is cut off than is negligible, it is solved all the same, as that may suffice to
    see that a target is missed; but a backlog without end has no solution then.
    """
    nothing = np.zeros(0)
    rows = reachable_rows(phases, transitions, start, bound)
    if rows.offset[-1] > LARGEST_CELLS:
        return LEFT, rows, nothing, 0.0
    if grows and rows.offset[-1] > CELLS_WORTH_A_LOOK and backlog_drift(phases, transitions, backlogged) >= 0:
        return NOT_CARRIED, rows, nothing, 0.0
    inflow = from_start(rows, start)
    largest_cut = WORTH_FINISHING if grows else np.inf
    probability, residual, _ = iterate_sweeps(
        phases, transitions, rows, start, MAX_SWEEPS, inflow, largest_cut, TOLERANCE
    )
    cut = probability_at_bound(phases, rows, probability)
    carried = cut < NEGLIGIBLE_TRUNCATION or backlog_drift(phases, transitions, backlogged) < 0
    if grows and not carried:
        return NOT_CARRIED, rows, nothing, cut
    if residual > ACCEPTED_RESIDUAL and cut > largest_cut:
        probability, residual, _ = iterate_sweeps(
            phases, transitions, rows, start, MAX_SWEEPS, inflow, np.inf, TOLERANCE
        )
        # A rough solution has already told that the bound has to grow.
        cut = max(probability_at_bound(phases, rows, probability), NEGLIGIBLE_TRUNCATION)
    if residual > ACCEPTED_RESIDUAL:
        return LEFT, rows, nothing, cut
    return CARRIED if carried else NOT_CARRIED, rows, probability, cut


@njit(cache=True)
def _place_of(up_to: NDArray[np.float64], share: float) -> int:
    """Return the first place up to which the weights reach a share."""
    return min(int(np.searchsorted(up_to, share - CUMULATION_NOISE)), up_to.size - 1)


@njit(cache=True)
def sum_up(
    outcome: int,
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    cut: float,
    grows: bool,
    wanted: Wanted,
    result: NDArray[np.float64],
) -> int:
    """Write quantiles, late fractions, mean and what is cut off to `result`; return what became of the chain.

    As `DelayDistribution` says them, of ascending delays and their weights; without any, nothing ever arrives.
    """
    quantiles, late = result[: wanted.shares.size], result[wanted.shares.size : -2]
    if outcome == LEFT:
        return LEFT
    if values.size == 0:
        quantiles[:] = np.inf
        late[:] = 1.0
        result[-2], result[-1] = np.inf, 0.0
        return NOT_CARRIED
    up_to = np.cumsum(weights)
    if grows and cut >= NEGLIGIBLE_TRUNCATION and values[_place_of(up_to, wanted.share)] <= wanted.limit:
        return LEFT
    for i in range(wanted.shares.size):
        quantiles[i] = values[_place_of(up_to, wanted.shares[i])]
    for i in range(wanted.limits.size):
        beyond = 0.0
        place = values.size - 1
        # From the top, which keeps the digits.
        while place >= 0 and values[place] > wanted.limits[i] + CUMULATION_NOISE * abs(wanted.limits[i]):
            beyond += weights[place]
            place -= 1
        late[i] = min(beyond, 1.0)
    mean = 0.0
    for place in range(values.size):
        mean += values[place] * weights[place]
    result[-2], result[-1] = mean, cut
    return outcome
