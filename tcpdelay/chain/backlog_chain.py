"""The chain of the backlog alone, in a few bins, with the phases summed out: its help to the solver near saturation."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.build import Rows
from tcpdelay.chain.gth import eliminate
from tcpdelay.chain.sweep import scale, total
from tcpdelay.chain.transitions import Phases, Transitions

BINS = 64
LARGEST_FACTOR = 10.0
"""Most that one correction may change a bin; the profile need not be settled yet."""
LARGEST_DISTANCE = 0.9
"""Total variation distance beyond which the bins' chain is not believed: the profile within the bins is not settled."""
DOWNWARD_FLOW = 1e-15
"""Least share of a bin that flows to the one below it, so that no bin is a trap before it is well visited."""
VISITED = 1e-30


@njit(cache=True)
def bin_width(bound: int) -> int:
    """Return the number of backlogs per bin."""
    return bound // BINS + 1


@njit(cache=True)
def _flows(
    phases: Phases, transitions: Transitions, rows: Rows, visits: NDArray[np.float64], width: int
) -> NDArray[np.float64]:
    """Probability that moves from each bin of backlogs to each other one."""
    bound = rows[0].bound
    last_bin = bound // width
    flow = np.zeros((last_bin + 1, last_bin + 1))
    for phase in range(phases.size - 1):
        low, high = rows.low[phase], rows.high[phase]
        row = visits[rows.offset[phase] : rows.offset[phase + 1]]
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            chance, shift = transitions.probability[event], transitions.shift[event]
            backlog = low if chance > 0.0 else high + 1
            while backlog <= high:
                # The longest run of backlogs that stay in one bin and land in one bin.
                source = backlog // width
                target = min(max(backlog + shift, 0), bound) // width
                end = min(high, (source + 1) * width - 1)
                if target < last_bin:
                    end = min(end, (target + 1) * width - 1 - shift)
                flow[source, target] += chance * total(row[backlog - low : end + 1 - low])
                backlog = end + 1
    return flow


@njit(cache=True)
def correct_backlog(
    phases: Phases, transitions: Transitions, rows: Rows, visits: NDArray[np.float64], inflow: NDArray[np.float64]
) -> None:
    """Scale the inflow of each bin of backlogs to what the chain of the bins alone says that it should be."""
    width = bin_width(rows[0].bound)
    flow = _flows(phases, transitions, rows, visits, width)
    bins = flow.shape[0]
    visited = np.zeros(bins)
    for i in range(bins):
        visited[i] = total(flow[i])
        below = max(i - 1, 0)
        if visited[i] > 0.0:
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
            wanted = balanced[i] * sum_visited / visited[i]
            factor[i] = min(max(wanted, 1 / LARGEST_FACTOR), LARGEST_FACTOR)
    for phase in range(phases.size - 1):
        for cell in range(rows.offset[phase], rows.offset[phase + 1]):
            if inflow[cell] != 0.0:
                inflow[cell] *= factor[(rows.low[phase] + cell - rows.offset[phase]) // width]
