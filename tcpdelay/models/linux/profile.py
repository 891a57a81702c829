"""The chain of a Linux kernel as a profile of `DelayModel`, and the bounds of its backlogs and delays."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.budget import SECONDS_PER_UPDATE
from tcpdelay.models.compilation import compiled_elsewhere, interpreted, kernel
from tcpdelay.models.linux.delays import cost_of_bins, delay_bins, filled_bins, sums
from tcpdelay.models.linux.parameters import LinuxParameters, linux_parameters
from tcpdelay.models.linux.phases import KIND_NAMES, Layout, Sending, backlogged_phase, start_phase
from tcpdelay.models.linux.rounds import LARGEST_PER_ROOT_LOSS, START_RATIO
from tcpdelay.models.linux.rtt_probes import with_rtt_probes
from tcpdelay.models.linux.transitions import linux_transitions
from tcpdelay.models.solver.aggregation import backlog_drift
from tcpdelay.models.solver.measures import after_timeout
from tcpdelay.models.solver.narrow import RequestedFigures, solve_narrow, sum_up
from tcpdelay.models.solver.profile import BYTES_PER_CELL, BYTES_PER_PHASE
from tcpdelay.models.solver.state_space import Phases, Rows, Transitions, reachable_rows
from tcpdelay.models.solver.stationary import MAX_SWEEPS, solve_by_sweeps, updates_per_sweep
from tcpdelay.models.solver.widening import tail_decay
from tcpdelay.models.tcp import CUBIC_BETA, CUBIC_C, CUBIC_SCALE
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

LOADS_OF_BACKLOG = 2
"""Round-trip times whose packets fit into the first bound of the backlog."""
TIMEOUTS_OF_BACKLOG = 1.5
"""The same in multiples of the longest timeout."""
SPARE_BACKLOG = 6
"""Packets that the first bound of the backlog has in addition."""
REPAIRS_BEYOND = 8
"""Round-trip times by which a delay may exceed the largest backlog."""
TIMEOUTS_BEYOND = 4
"""The same in multiples of the first timeout."""


@kernel()
def first_bound(p: LinuxParameters) -> int:
    """Return the first bound of the backlog [packets]."""
    last_timeout = min(p.timeout * 2.0 ** (p.backoffs - 1), p.longest_timeout)
    return int(LOADS_OF_BACKLOG * p.load + TIMEOUTS_OF_BACKLOG * last_timeout) + SPARE_BACKLOG


@kernel()
def beyond_backlog(p: LinuxParameters) -> int:
    """Return the largest difference between a delay and the largest backlog [slots]."""
    beyond = REPAIRS_BEYOND * (p.load + 1) + TIMEOUTS_BEYOND * p.timeout
    if p.followed_losses:
        beyond += p.timeout * 2.0**p.backoffs
    return int(beyond)


PHASES_PER_WINDOW = 20
"""Approximate number of phases per window."""
SECONDS_PER_WINDOW, SECONDS_PER_SEGMENT, SECONDS_PER_ROUND = 2e-5, 6e-8, 5e-6
"""Times in which phases are made: for each window and each loss burst that is followed from it, for each segment of
the flight in addition, and for each of CUBIC's rounds [s]."""
MOST_WINDOWS = 5_000
"""Largest window whose phases are made within seconds. Up to it, the drift shows whether TCP carries the flow."""


@kernel(nogil=True, joins=True)
def _summed_up(p: LinuxParameters, forward_delay: float, figures: RequestedFigures, result: NDArray[np.float64]) -> int:
    """Solve the chain within its first bound: see `Profile.sum_up`."""
    phases, transitions, sending, layout = linux_transitions(p)
    # Durations are in slots here. The sign of the drift does not depend on the unit.
    outcome, rows, probability, cut = solve_narrow(
        phases, transitions, start_phase(p, layout), backlogged_phase(layout), first_bound(p), True
    )
    values = weights = probability
    if probability.size > 0:
        bins = delay_bins(p, phases, sending, rows, probability, beyond_backlog(p))
        values, weights = filled_bins(with_rtt_probes(p, bins) if p.bbr else bins)
        for i in range(values.size):
            values[i] = forward_delay + values[i] * p.interval
    return sum_up(outcome, values, weights, cut, True, figures, result)


def seconds_of_phases(p: LinuxParameters) -> float:
    """Return the estimated time in which phases and transitions are made [s].

    Examples
    --------
    >>> p = linux_parameters(*EXAMPLE)
    >>> p.largest_window, round(1000 * seconds_of_phases(p), 1)
    (9, 1.2)
    """
    window = float(p.largest_window)
    seconds = window * (SECONDS_PER_WINDOW * (1 + p.followed_losses) + SECONDS_PER_SEGMENT * p.flight)
    if p.cubic:
        # CUBIC grows by a segment in two rounds at least, and is back at the window before after a time K (RFC 9438,
        # 4.2): whichever takes fewer rounds, from each reduced window with rounds of its own.
        highest = min(window, LARGEST_PER_ROOT_LOSS / math.sqrt(p.loss)) if p.loss > 0 else window
        regained = (window * (1 - CUBIC_BETA / CUBIC_SCALE) / CUBIC_C) ** (1 / 3) / (p.load * p.interval)
        starts = 1 + math.log(max(highest, 1.0), START_RATIO)
        seconds += SECONDS_PER_ROUND * starts * 2 * min(window, regained)
    return seconds


EXAMPLE = Flow(packet_size=174, interval=0.020), Path(rtt=0.100, loss=0.02), Linux()
"""A scenario for which kernels are called so that they are compiled."""


def compile_transitions() -> None:
    """Compile the kernels that make the phases and transitions of a chain, and that need nothing else."""
    phases, transitions, _, layout = linux_transitions(linux_parameters(*EXAMPLE))
    backlog_drift(phases, transitions, backlogged_phase(layout))
    tail_decay(phases, transitions, backlogged_phase(layout))


def compile_kernels() -> None:
    """Compile the large kernels of the chain, and meanwhile run `compile_transitions` in a second process."""
    p = linux_parameters(*EXAMPLE)
    with interpreted():
        phases, transitions, sending, layout = linux_transitions(p)
        start, beyond = start_phase(p, layout), beyond_backlog(p)
        rows = reachable_rows(phases, transitions, start, first_bound(p))
        solution = solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS)
    with compiled_elsewhere(compile_transitions):
        filled_bins(delay_bins(p, phases, sending, rows, solution.probability, beyond))
        cost_of_bins(p, phases, sending, rows, solution.probability, beyond)
        updates_per_sweep(phases, transitions, rows)
        solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS)


class LinuxProfile:
    """The chain of a Linux kernel for one scenario; a `Profile`."""

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        self.parameters = p = linux_parameters(flow, path, stack)
        self._forward_delay = path.forward_delay
        self.load = p.load
        self.lossless = p.loss == 0
        self.grows = True
        self.first_bound = first_bound(p)
        backlogs = self.first_bound * BYTES_PER_CELL if p.largest_window > MOST_WINDOWS else BYTES_PER_PHASE
        self.least_memory = float(PHASES_PER_WINDOW * p.largest_window * backlogs)
        self.least_seconds = seconds_of_phases(p)

    @cached_property
    def _made(self) -> tuple[Phases, Transitions, Sending, Layout]:
        """Phases, transitions with durations in seconds, `SENDING` records and layout."""
        phases, transitions, sending, layout = linux_transitions(self.parameters)
        transitions["duration"] *= self.parameters.interval
        return phases, transitions, sending, layout

    @property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions, with durations in seconds."""
        return self._made[0], self._made[1]

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each phase: see `KIND_NAMES`."""
        names: NDArray[np.str_] = np.array(KIND_NAMES)[self._made[2]["kind"]]
        return names

    @property
    def start(self) -> int:
        """The phase in which the chain starts: an open window that no longer grows."""
        return start_phase(self.parameters, self._made[3])

    @property
    def backlogged(self) -> int:
        """A phase with a backlog: the round with the smallest window."""
        return backlogged_phase(self._made[3])

    def bins(self, rows: Rows, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bins of all delays without the one-way delay, not normalised."""
        p, (phases, _, sending, _) = self.parameters, self._made
        bins = delay_bins(p, phases, sending, rows, probability, beyond_backlog(p))
        return with_rtt_probes(p, bins) if p.bbr else bins

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return the estimated time [s] and memory [bytes] that `delays` takes."""
        p, (phases, _, sending, _) = self.parameters, self._made
        updates, memory = cost_of_bins(p, phases, sending, rows, probability, beyond_backlog(p))
        return updates * SECONDS_PER_UPDATE, memory

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        values, weights = filled_bins(self.bins(rows, probability))
        return self._forward_delay + values * self.parameters.interval, weights

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        interval = self.parameters.interval
        weight, delay, age, _ = sums(self.bins(rows, probability))
        after_timeouts = after_timeout(*self.structure, rows, probability)
        timeouts = min(sums(self.bins(rows, after_timeouts))[2], age)
        return (age - timeouts) / weight * interval, (delay - age) / weight * interval, timeouts / weight * interval

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time with packets in the send buffer."""
        weight, _, _, backlogged = sums(self.bins(rows, probability))
        return backlogged / weight

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64]) -> int:
        """Solve the chain within its first bound and compute the requested figures."""
        return int(_summed_up(self.parameters, self._forward_delay, figures, result))
