"""Grassmann-Taksar-Heyman elimination: the stationary distribution of a small chain without subtractions.

Source: Grassmann, Taksar, Heyman, "Regenerative Analysis and Steady State Distributions for Markov Chains", Operations
Research 33 (1985).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel
from tcpdelay.scenario.fields import InvalidValueError

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
    """Return the stationary distribution of an irreducible transition matrix.

    Every operation adds, multiplies or divides positive numbers. So the relative error of each probability, however
    small, is of the order of the rounding unit times the number of states.

    Parameters
    ----------
    matrix : ndarray, shape (n, n)
        Transition matrix whose rows sum to 1; n from 1 to 5000 (the work grows with n cubed).

    Returns
    -------
    ndarray, shape (n,)
        Stationary probabilities, summing to 1.

    Raises
    ------
    ValueError
        If `matrix` is not square, or larger than 5000.

    Examples
    --------
    >>> gth_solve(np.array([[0.9, 0.1], [0.3, 0.7]])).round(12).tolist()
    [0.75, 0.25]
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square, got shape {matrix.shape}")
    if matrix.shape[0] > LARGEST_DENSE_CHAIN:
        raise InvalidValueError("matrix", matrix.shape[0], f"have at most {LARGEST_DENSE_CHAIN} rows")
    probability: NDArray[np.float64] = eliminate(np.array(matrix, np.float64))
    return probability
