"""The interface between a TCP profile and the solver: phases, transitions, and delays from probabilities."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.solver.narrow import RequestedFigures
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions

BYTES_PER_CELL = 60
"""Measured peak memory per cell, for visits, inflow and the history of the acceleration [bytes]."""
BYTES_PER_PHASE = 600
"""Memory per phase with its transitions [bytes]."""
NEGLIGIBLE_LOSS = 1e-15
"""Loss probability below which the chains lose no packet: the effect of the loss is below rounding."""


class Profile(Protocol):
    """One scenario in the form that `DelayModel` solves."""

    @property
    def load(self) -> float:
        """Packets written per round-trip time."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether no packet is ever lost."""
        ...

    @property
    def grows(self) -> bool:
        """Whether the bound of the backlog grows until the probability at the bound is negligible."""
        ...

    @property
    def first_bound(self) -> int:
        """First bound of the backlog [packets]."""
        ...

    @property
    def least_memory(self) -> float:
        """Minimum memory of the chain [bytes]."""
        ...

    @property
    def least_seconds(self) -> float:
        """Estimated time in which the phases are made [s]."""
        ...

    @property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions, with durations in seconds."""
        ...

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each phase: a word in lower case, without spaces."""
        ...

    @property
    def start(self) -> int:
        """The phase in which the chain starts."""
        ...

    @property
    def backlogged(self) -> int:
        """A phase with a backlog."""
        ...

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return the estimated time [s] and memory [bytes] that `delays` takes."""
        ...

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights, which sum to 1; empty if no packet ever arrives."""
        ...

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        ...

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time with packets in the send buffer."""
        ...

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64]) -> int:
        """Solve a chain with losses within its first bound, and compute the requested figures, in one compiled call.

        `result` receives the quantiles [s], the late fractions, the mean [s] and the probability at the bound. The
        method returns the outcome. It is LEFT if the chain needs a wider bound or a direct solution.
        """
        ...
