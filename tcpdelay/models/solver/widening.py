"""How the probability of a backlog decays beyond the bound: a guess for a wider bound, and the share of late packets.

Beyond the longest shift the transitions are the same at every backlog b. The probability of a backlog therefore tends
to v eta^b, with one number v for each phase (Neuts 1981, chapter 3; Takahashi 1981). When a packet is sent, the packets
behind it were written at one per interval since; its delay, in intervals, is its backlog. The delay therefore has a
geometric tail as well.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel
from tcpdelay.models.solver.aggregation import growth
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions

if TYPE_CHECKING:
    from tcpdelay.distribution import DelayDistribution


UNDISTURBED = 0.6
"""Share of the bound up to which the bound does not disturb the backlogs: probability cut off piles up beyond."""
COMPARED = 0.2
"""Share of the bound over which the decay is measured, against an equal share before it."""
FASTEST_DECAY = 1e-3
"""Smallest ratio that counts as measured."""
EIGENVECTOR_TOLERANCE = 1e-10
FIRST_EXPONENT, SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-3, 1e-9, 5.0
"""Values of -log eta at which the search for eta begins, and at which it ends with eta = 1 or 0."""
SMALLEST_FACTOR = 1e-30
"""Smallest factor of a sweep at which the search goes on; below it, probabilities become too small for floats."""
EXPONENT_TOLERANCE = 1e-6
UNDISTURBED_DELAYS = 0.7
"""Share of the delay at the bound up to which delays are taken as they are."""


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


def tail_decay(phases: Phases, transitions: Transitions, start: int) -> float:
    """Return the ratio of the probabilities of backlogs b + 1 and b far in the tail, from the transitions alone.

    It is the eta < 1 for which v eta^b is in balance with one v for each phase: neither grows nor shrinks in a sweep
    through the phases. (Neuts 1981, chapter 3.) The backlog has to drift downwards; `start` is a phase with a backlog.
    """
    from scipy.optimize import brentq

    inflow = np.zeros(phases.size - 1)
    inflow[start] = 1.0

    # Remembered, because the guess that each evaluation leaves would move the next one a little.
    @functools.cache
    def factor(exponent: float) -> float:
        return growth(phases, transitions, math.exp(-exponent), inflow, EIGENVECTOR_TOLERANCE)

    def excess(exponent: float) -> float:
        return min(factor(exponent), 2.0) - 1

    below = FIRST_EXPONENT
    while excess(below) >= 0 and below > SMALLEST_EXPONENT:
        below /= 2
    if below <= SMALLEST_EXPONENT:
        return 1.0
    while below < LARGEST_EXPONENT and not excess(2 * below) >= 0:
        below *= 2
        # The factor is not a number if the probabilities have become too small.
        if not factor(below) >= SMALLEST_FACTOR:
            return 0.0
    if below >= LARGEST_EXPONENT:
        return 0.0
    return math.exp(-brentq(excess, below, 2 * below, rtol=EXPONENT_TOLERANCE))


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
    return result


def doublings(cut: float, factor: float, bound: int, goal: float) -> int:
    """Return how often the bound must double until the probability cut off falls to `goal`; at least once."""
    if factor >= 1.0:
        return 1
    wider = bound + math.log(goal / cut) / math.log(factor)
    return max(math.ceil(math.log2(wider / bound)), 1)


def late_share(distribution: DelayDistribution, limit: float, bound: int, interval: float, ratio: float) -> float:
    """Return P(delay > limit) as it would be without the bound of the backlog.

    Parameters
    ----------
    distribution : DelayDistribution
        The delays with backlogs up to the bound.
    limit : float
        Delay [s] in question.
    bound : int
        Largest backlog [packets]. Delays up to 0.7 of the time that it stands for are taken as they are.
    interval : float
        Interval between packets [s].
    ratio : float
        Ratio of the probabilities of delays of one more packet and of one less, beyond; at most 1.

    Returns
    -------
    float
        The share, 0 to 1.

    Examples
    --------
    Delays that halve every tenth of a second, cut off after one second:

    >>> import numpy as np
    >>> from tcpdelay.distribution import DelayDistribution
    >>> delays, shares = np.arange(0.05, 1.0, 0.1), 0.5 ** np.arange(1.0, 11.0)
    >>> cut = DelayDistribution(delays, shares / shares.sum(), one_way_delay=0.0)
    >>> [round(late_share(cut, limit, 10, interval=0.1, ratio=0.5) / 0.5 ** (10 * limit), 3) for limit in (0.4, 2)]
    [1.0, 1.0]
    """
    if ratio >= 1:
        return 1.0
    end, span = distribution.one_way_delay + UNDISTURBED_DELAYS * bound * interval, COMPARED * bound * interval
    beyond_end = distribution.late_fraction(end)
    fallen = ratio ** (span / interval)
    tail = (distribution.late_fraction(end - span) - beyond_end) * fallen / (1 - fallen)
    if limit >= end:
        beyond = tail * ratio ** ((limit - end) / interval)
    else:
        beyond = distribution.late_fraction(limit) - beyond_end + tail
    return float(beyond / (1 - beyond_end + tail))
