"""What a TCP profile gives the solver: phases and transitions, and how delays follow from their probabilities."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.solver.narrow import RequestedFigures
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions

BYTES_PER_CELL = 60
"""Measured peak of memory per cell: visits, inflow and the acceleration's history."""
BYTES_PER_PHASE = 600
"""Memory per phase with its transitions."""
NEGLIGIBLE_LOSS = 1e-15
"""Loss below which the chains lose no packet: the difference to no loss is below rounding."""


class Profile(Protocol):
    """One scenario in the form that `DelayModel` solves."""

    @property
    def load(self) -> float:
        """Packets written per round-trip time."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether nothing is ever lost."""
        ...

    @property
    def grows(self) -> bool:
        """Whether the bound of the backlog grows until what is cut off is negligible."""
        ...

    @property
    def first_bound(self) -> int:
        """Bound of the backlog to begin with [packets]."""
        ...

    @property
    def least_memory(self) -> float:
        """Memory that the chain takes at least [bytes]."""
        ...

    @property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions."""
        ...

    @property
    def start(self) -> int:
        """The phase in which the chain starts."""
        ...

    @property
    def backlogged(self) -> int:
        """A phase with a backlog."""
        ...

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights, which sum to 1; empty if no packet ever arrives."""
        ...

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the mean delay beyond the one-way delay [s]: backlog, head-of-line blocking, timeouts."""
        ...

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64]) -> int:
        """Solve a chain with losses within its first bound, and sum up the delays, in one compiled call.

        `result` receives the quantiles, the late fractions, the mean [s] and the probability at the bound. The method
        returns the outcome: LEFT where a wider bound, or a direct solution, is needed.
        """
        ...
