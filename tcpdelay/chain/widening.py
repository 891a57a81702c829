"""From a chain's solution to the first guess for one with a wider bound: backlogs decay geometrically.

Beyond the longest shift a chain looks the same at every backlog, so that the probability of a backlog b tends to
v eta^b, v being one number for each phase (Neuts 1981, chapter 3; Takahashi 1981).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.build import Rows
from tcpdelay.chain.transitions import Phases

UNDISTURBED = 0.6
"""Share of the bound up to which backlogs are taken as they are; what is cut off piles up beyond."""
COMPARED = 0.2
"""Share of the bound that is compared with the same share before it."""
FASTEST_DECAY = 1e-3


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
