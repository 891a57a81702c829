"""From a chain's solution to the first guess for one with a wider bound: backlogs decay geometrically.

Beyond the longest shift a chain looks the same at every backlog, so that the probability of a backlog b tends to
v eta^b, v being one number for each phase (Neuts 1981, chapter 3; Takahashi 1981).

The share of late packets where the backlog is cut off: what is beyond falls geometrically.

Beyond the longest shift a chain looks the same at every backlog, so that the probability of a backlog tends to a
geometric one (Neuts 1981, chapter 3; Takahashi 1981). A packet is sent with those behind it that were written since,
one per interval, so that its delay is its backlog, in intervals, and tends to a geometric one as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.models.solver.state_space import Phases, Rows

if TYPE_CHECKING:
    from tcpdelay.distribution import DelayDistribution


UNDISTURBED = 0.6
"""Share of the bound up to which backlogs are taken as they are; what is cut off piles up beyond."""
COMPARED = 0.2
"""Share of the bound that is compared with the same share before it."""
FASTEST_DECAY = 1e-3
UNDISTURBED_DELAYS = 0.7
"""Share of the delay at the bound up to which delays are taken as they are."""


@njit(cache=True)
def decay(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Return the factor by which a backlog of one packet more is less likely, or 1 where there is none."""
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


@njit(cache=True)
def widen(rows: Rows, inflow: NDArray[np.float64], wider: Rows, factor: float) -> NDArray[np.float64]:
    """Return the inflow of a chain with a wider bound, beyond what is undisturbed falling by `factor` a packet."""
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


def doublings(cut: float, factor: float, bound: int, wanted: float) -> int:
    """Return by how many doublings of the bound what is cut off falls from `cut` to `wanted`; at least one."""
    if factor >= 1.0:
        return 1
    wider = bound + math.log(wanted / cut) / math.log(factor)
    return max(math.ceil(math.log2(wider / bound)), 1)


def late_share(distribution: DelayDistribution, limit: float, bound: float) -> float:
    """Return P(delay > limit) as it would be without the bound of the backlog.

    Parameters
    ----------
    distribution : DelayDistribution
        The delays with backlogs up to the bound.
    limit : float
        Delay [s] in question.
    bound : float
        Time [s] that the largest backlog stands for. Delays up to 0.7 of it are taken as they are. Beyond, their
        probabilities fall by the ratio of the shares of delays from 0.5 to 0.7 of it and from 0.3 to 0.5 of it.

    Returns
    -------
    float
        The share, 0 to 1; that of the distribution itself where its delays do not fall.

    Examples
    --------
    Delays that halve every tenth of a second, cut off after one second:

    >>> import numpy as np
    >>> from tcpdelay.distribution import DelayDistribution
    >>> delays, shares = np.arange(0.05, 1.0, 0.1), 0.5 ** np.arange(1.0, 11.0)
    >>> cut = DelayDistribution(delays, shares / shares.sum(), one_way_delay=0.0)
    >>> [round(late_share(cut, limit, bound=1.0) / 0.5 ** (10 * limit), 3) for limit in (0.4, 2.0)]
    [1.0, 1.0]
    """
    one_way = distribution.one_way_delay
    end, span = one_way + UNDISTURBED_DELAYS * bound, COMPARED * bound
    beyond_start, beyond_middle, beyond_end = (
        distribution.late_fraction(delay) for delay in (end - 2 * span, end - span, end)
    )
    earlier, later = beyond_start - beyond_middle, beyond_middle - beyond_end
    if not 0 < later < earlier:
        return distribution.late_fraction(limit)
    ratio = later / earlier
    tail = later * ratio / (1 - ratio)
    if limit >= end:
        beyond = tail * ratio ** ((limit - end) / span)
    else:
        beyond = distribution.late_fraction(limit) - beyond_end + tail
    return float(beyond / (1 - beyond_end + tail))
