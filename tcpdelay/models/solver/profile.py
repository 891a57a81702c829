"""What a TCP profile adds to the solver: its phases and transitions, and what they mean for delays."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.solver.narrow import Wanted
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions

BYTES_PER_CELL = 60
"""Measured peak per cell: visits, inflow and the acceleration's history."""
BYTES_PER_PHASE = 600
NEGLIGIBLE_LOSS = 1e-15
"""Loss of a packet below which none is lost: it would change no delay's probability by more than rounding does."""


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

    def sum_up(self, wanted: Wanted, result: NDArray[np.float64]) -> int:
        """Solve the chain within its first bound, and sum up the delays, without Python in between.

        Of a chain with losses. `result` receives the quantiles, the late fractions, the mean [s] and the probability at
        the bound. Returned is what became of the chain: LEFT where more than that bound, or a direct solution, is
        needed.
        """
        ...
