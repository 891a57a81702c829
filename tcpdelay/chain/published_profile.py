"""The published chain as a profile of `DelayModel`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.build import Rows
from tcpdelay.chain.delays import delay_lattices, mean_delay_parts, merge_lattices
from tcpdelay.chain.newreno_2008 import (
    BACKLOG_PER_LOAD,
    backlogged_phase,
    parameters,
    phase_count,
    published_transitions,
    start_phase,
)
from tcpdelay.chain.profile import BYTES_PER_PHASE
from tcpdelay.chain.transitions import Phases, Transitions
from tcpdelay.scenario import Flow, NewReno2008, Path


class PublishedProfile:
    """The chain of Brosh et al. (2010) for one scenario; a `Profile`."""

    def __init__(self, flow: Flow, path: Path, stack: NewReno2008) -> None:
        self._parameters = parameters(flow, path, stack)
        self._path, self._interval = path, flow.interval
        self.load: int = self._parameters.load
        self.lossless = self._parameters.loss == 0
        self.grows = stack.backlog_bound == "grow"
        self.first_bound = BACKLOG_PER_LOAD * self.load
        self.least_memory = float(phase_count(self.load) * BYTES_PER_PHASE)
        self.start: int = start_phase(self.load)
        self.backlogged: int = backlogged_phase(self.load)

    @cached_property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions."""
        return published_transitions(self._parameters)

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        queued, late = delay_lattices(*self.structure, rows, probability, self.load)
        return merge_lattices(queued, late, self._path.forward_delay, self._path.rtt, self._interval, self.load)

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay beyond the one-way delay [s]."""
        return mean_delay_parts(*self.structure, rows, probability, self._path.rtt, self._interval)
