"""The published chain as a profile of `DelayModel`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.build import Rows
from tcpdelay.chain.delays import delay_lattices, mean_delay_parts, merge_lattices
from tcpdelay.chain.narrow import Wanted, solve_narrow, sum_up
from tcpdelay.chain.newreno_2008 import (
    BACKLOG_PER_LOAD,
    Parameters,
    backlogged_phase,
    parameters,
    phase_count,
    published_transitions,
    start_phase,
)
from tcpdelay.chain.profile import BYTES_PER_PHASE
from tcpdelay.chain.transitions import Phases, Transitions
from tcpdelay.scenario import Flow, NewReno2008, Path


@njit(cache=True, nogil=True)
def _summed_up(p: Parameters, forward_delay: float, grows: bool, wanted: Wanted, result: NDArray[np.float64]) -> int:
    """Solve the chain within its first bound: see `Profile.sum_up`."""
    phases, transitions = published_transitions(p)
    outcome, rows, probability, cut = solve_narrow(
        phases, transitions, start_phase(p.load), backlogged_phase(p.load), BACKLOG_PER_LOAD * p.load, grows
    )
    values = weights = probability
    if probability.size > 0:
        queued, late = delay_lattices(phases, transitions, rows, probability, p.load)
        values, weights = merge_lattices(queued, late, forward_delay, p.rtt, p.interval, p.load)
    return sum_up(outcome, values, weights, cut, grows, wanted, result)


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

    def sum_up(self, wanted: Wanted, result: NDArray[np.float64]) -> int:
        """Solve the chain within its first bound and sum up the delays."""
        return int(_summed_up(self._parameters, self._path.forward_delay, self.grows, wanted, result))
