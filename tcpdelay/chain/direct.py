"""The direct solution of a chain: what is fallen back on where the iteration does not converge."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from tcpdelay.chain.build import Rows, compressed_rows, list_states, number_states
from tcpdelay.chain.stationary import Solution
from tcpdelay.chain.transitions import Phases, Transitions

REFINEMENTS = 2
LARGEST_CHAIN = 20_000


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
