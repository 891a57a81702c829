"""The chain of a Linux kernel as a profile of `DelayModel`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.build import Rows
from tcpdelay.chain.delays import after_timeout
from tcpdelay.chain.linux.delays import delay_bins, filled_bins, sums
from tcpdelay.chain.linux.layout import OPEN, SMALLEST_WINDOW, Layout, open_phase, round_phase
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.transitions import linux_transitions
from tcpdelay.chain.profile import BYTES_PER_CELL, BYTES_PER_PHASE
from tcpdelay.chain.transitions import Phases, Transitions
from tcpdelay.scenario import Flow, Linux, Path

LOADS_OF_BACKLOG = 2
TIMEOUTS_OF_BACKLOG = 1.5
"""The bound of the backlog to begin with: packets of so many round-trip times, and of so many of the last timeout."""
SPARE_BACKLOG = 6
REPAIRS_BEYOND = 8
"""Round-trip times that a delay may last beyond the largest backlog and timeout."""
TIMEOUTS_BEYOND = 4
PHASES_PER_WINDOW = 20
"""Phases per window, about."""
MOST_WINDOWS = 5_000
"""Windows up to which the phases are made in seconds, so that the drift can say whether TCP carries the flow."""


class LinuxProfile:
    """The chain of a Linux kernel for one scenario; a `Profile`."""

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        self._parameters = p = linux_parameters(flow, path, stack)
        self._forward_delay = path.forward_delay
        self.load = p.load
        self.lossless = p.loss == 0
        self.grows = True
        last_timeout = p.timeout * 2 ** (p.backoffs - 1)
        self.first_bound = int(LOADS_OF_BACKLOG * p.load + TIMEOUTS_OF_BACKLOG * last_timeout) + SPARE_BACKLOG
        backlogs = self.first_bound * BYTES_PER_CELL if p.largest_window > MOST_WINDOWS else BYTES_PER_PHASE
        self.least_memory = float(PHASES_PER_WINDOW * p.largest_window * backlogs)

    @cached_property
    def _made(self) -> tuple[Phases, Transitions, Any, Layout]:
        phases, transitions, sending, layout = linux_transitions(self._parameters)
        transitions["duration"] *= self._parameters.interval
        return phases, transitions, sending, layout

    @property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions."""
        return self._made[0], self._made[1]

    @property
    def start(self) -> int:
        """An open window that no longer grows."""
        return open_phase(self._made[3], self._parameters.flight + 2, OPEN)

    @property
    def backlogged(self) -> int:
        """The round with the smallest window."""
        layout = self._made[3]
        return round_phase(layout, layout.after_repair[SMALLEST_WINDOW])

    def _bins(self, rows: Rows, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        p, (phases, _, sending, _) = self._parameters, self._made
        beyond = REPAIRS_BEYOND * (p.load + 1) + TIMEOUTS_BEYOND * p.timeout
        if p.followed_losses:
            beyond += p.timeout * 2**p.backoffs
        return delay_bins(p, phases, sending, rows, probability, int(beyond))

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        values, weights = filled_bins(self._bins(rows, probability))
        return self._forward_delay + values * self._parameters.interval, weights

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay beyond the one-way delay [s]."""
        interval = self._parameters.interval
        weight, delay, age = sums(self._bins(rows, probability))
        after_timeouts = after_timeout(*self.structure, rows, probability)
        timeouts = min(sums(self._bins(rows, after_timeouts))[2], age)
        return (age - timeouts) / weight * interval, (delay - age) / weight * interval, timeouts / weight * interval
