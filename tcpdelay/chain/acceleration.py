"""Anderson acceleration of a fixed-point iteration.

Sources: Anderson, "Iterative Procedures for Nonlinear Integral Equations", J. ACM 12 (1965); Walker and Ni, "Anderson
Acceleration for Fixed-Point Iterations", SIAM J. Numer. Anal. 49 (2011), equation 3.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.compilation import allocation_free
from tcpdelay.chain.sweep import add_scaled, copy

WINDOW = 4
"""Number of past steps the extrapolation looks back on."""
DEPENDENT = 1e-12
"""Share of a step's squared length below which what others do not explain of it is rounding."""

SMALLEST_CHANGE = 0.5
"""Factor of the sum of all entries beyond which an extrapolation is not trusted."""


class History(NamedTuple):
    """The last steps of the iterates and of their residuals, and the scalar products of the latter."""

    iterate_steps: NDArray[np.float64]
    residual_steps: NDArray[np.float64]
    last_iterate: NDArray[np.float64]
    last_residual: NDArray[np.float64]
    residual: NDArray[np.float64]
    products: NDArray[np.float64]


@njit(cache=True)
def new_history(size: int) -> History:
    """Return an empty history for vectors of `size` entries."""
    return History(
        np.zeros((WINDOW, size)),
        np.zeros((WINDOW, size)),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros((WINDOW, WINDOW)),
    )


@allocation_free(frozenset({"reassoc", "contract"}))
def _product(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    result = 0.0
    for i in range(left.size):
        result += left[i] * right[i]
    return result


@allocation_free()
def remember(history: History, stored: int, before: NDArray[np.float64], after: NDArray[np.float64]) -> int:
    """Add the step from `before` to `after` to the history and make `after` the next iterate, in `before`.

    `stored` is the number of steps in the history, -1 at the start or after a change of the mapping; the new number is
    returned.
    """
    for i in range(before.size):
        history.residual[i] = after[i] - before[i]
    if stored >= 0:
        newest = stored % WINDOW
        for i in range(before.size):
            history.iterate_steps[newest, i] = after[i] - history.last_iterate[i]
            history.residual_steps[newest, i] = history.residual[i] - history.last_residual[i]
        for i in range(min(stored + 1, WINDOW)):
            product = _product(history.residual_steps[newest], history.residual_steps[i])
            history.products[newest, i] = history.products[i, newest] = product
    for i in range(before.size):
        history.last_iterate[i] = before[i] = after[i]
        history.last_residual[i] = history.residual[i]
    return stored + 1


@allocation_free()
def _solve_in_place(system: NDArray[np.float64], right: NDArray[np.float64]) -> None:
    """Replace `right` by the solution of a small symmetric system with ones on its diagonal.

    Directions that depend on earlier ones, to rounding, get no weight. (LAPACK would do the same; compiling the call to
    it takes longer than the whole solver.)
    """
    n = right.size
    for k in range(n):
        if system[k, k] <= DEPENDENT:
            for j in range(n):
                system[k, j] = system[j, k] = 0.0
            system[k, k] = 1.0
            right[k] = 0.0
        for i in range(k + 1, n):
            factor = system[i, k] / system[k, k]
            for j in range(k, n):
                system[i, j] -= factor * system[k, j]
            right[i] -= factor * right[k]
    for k in range(n - 1, -1, -1):
        for j in range(k + 1, n):
            right[k] -= system[k, j] * right[j]
        right[k] /= system[k, k]


@njit(cache=True)
def extrapolate(history: History, stored: int, iterate: NDArray[np.float64]) -> None:
    """Move the newest iterate to where the remembered steps would make its residual smallest, and no entry negative."""
    used = min(stored, WINDOW)
    if used < 1:
        return
    system, weights, length = np.zeros((used, used)), np.zeros(used), np.zeros(used)
    for i in range(used):
        length[i] = math.sqrt(history.products[i, i])
    for i in range(used):
        if length[i] > 0.0:
            weights[i] = _product(history.residual_steps[i], history.residual) / length[i]
            for j in range(used):
                if length[j] > 0.0:
                    system[i, j] = history.products[i, j] / length[i] / length[j]
    _solve_in_place(system, weights)
    for i in range(used):
        if length[i] > 0.0:
            add_scaled(history.iterate_steps[i], -weights[i] / length[i], iterate)
    before, after = 0.0, 0.0
    for i in range(iterate.size):
        iterate[i] = max(iterate[i], 0.0)
        before += history.last_iterate[i]
        after += iterate[i]
    if not SMALLEST_CHANGE < after / before < 1 / SMALLEST_CHANGE:
        # Steps that nearly cancel lead astray.
        copy(history.last_iterate, iterate)
