"""The published chain as a profile of `DelayModel`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import SECONDS_PER_UPDATE
from tcpdelay.chain.published.transitions import (
    BACKLOG_PER_LOAD,
    Parameters,
    backlogged_phase,
    parameters,
    phase_count,
    phase_kinds,
    published_transitions,
    start_phase,
)
from tcpdelay.chain.solver.state_space import (
    HEAD_OF_LINE,
    NO_PACKETS,
    QUEUED,
    Phases,
    Rows,
    Transitions,
    packets_leaving,
)
from tcpdelay.chain.solver.stationary import (
    BYTES_PER_PHASE,
    NarrowSolution,
    RequestedFigures,
    after_timeout,
    backlogged_time,
    solve_narrow,
    sum_up,
    updates_per_sweep,
)
from tcpdelay.chain.solver.sweeps import copy, scale, total
from tcpdelay.chain.solver.tail import geometric_groups, within_bound
from tcpdelay.compiling.compilation import kernel
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import NewReno2008
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD

SUMMATION_NOISE = 1e-17
"""Weight below which an entry of the lattice is a rounding residue of rises and falls that cancel."""
SECONDS_PER_PHASE = 1e-6
"""Time in which a phase is made [s]."""
BYTES_PER_SLOT = 24
"""Memory of a delay, its weight and its place in a lattice [bytes]."""
SAME_LATTICE = 1e-9
"""Distance, in packet intervals, below which the two lattices coincide."""


@kernel()
def delay_lattices(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64], load: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of the delays L + k/f and L + RTT + (k - load)/f, for k = 0, 1, ...; not normalised."""
    queued = np.zeros(rows[0].bound + 1)
    delivered_late = np.zeros(rows[0].bound + load + DUPLICATE_THRESHOLD + 2)
    for phase in range(phases.size - 1):
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            chance, pattern = transitions.probability[event], transitions.pattern[event]
            if chance <= 0.0 or pattern == NO_PACKETS:
                continue
            for cell in range(rows.offset[phase], rows.offset[phase + 1]):
                weight = probability[cell] * chance
                if weight == 0.0:
                    continue
                backlog = rows.low[phase] + cell - rows.offset[phase]
                packets = packets_leaving(transitions, event, backlog)
                if pattern == QUEUED:
                    queued[backlog] += weight * packets
                elif packets > 0:
                    latest = backlog + DUPLICATE_THRESHOLD + load
                    delivered_late[latest + 1] -= weight
                    delivered_late[latest - packets + 1] += weight
    height = 0.0
    for place in range(delivered_late.size):
        height += delivered_late[place]
        delivered_late[place] = height if height > SUMMATION_NOISE else 0.0
    return queued, delivered_late


@kernel()
def spread_lattice(weights: NDArray[np.float64], beyond: NDArray[np.float64], ratio: float) -> NDArray[np.float64]:
    """Return the weights of a lattice with `beyond`, the delays at the bound, spread by `geometric_groups`."""
    means, shares = geometric_groups(0, ratio)
    spread = np.zeros(weights.size + int(means[-1]) + 2)
    copy(weights, spread[: weights.size])
    for place in range(beyond.size):
        if beyond[place] > 0.0:
            for group in range(means.size):
                # Two neighbouring delays of the lattice have the mean of the group.
                behind = int(means[group])
                upper = means[group] - behind
                spread[place + behind] += beyond[place] * shares[group] * (1.0 - upper)
                spread[place + behind + 1] += beyond[place] * shares[group] * upper
    return spread


@kernel()
def merge_lattices(
    queued: NDArray[np.float64],
    delivered_late: NDArray[np.float64],
    one_way_delay: float,
    rtt: float,
    interval: float,
    load: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the two lattices: return ascending delays [s] and their weights, which sum to 1."""
    values = np.empty(queued.size + delivered_late.size)
    weights = np.empty(values.size)
    apart = rtt / interval - load
    if abs(apart) <= SAME_LATTICE * max(1.0, load):
        apart = 0.0
    i, j, filled = 0, 0, 0
    while i < queued.size or j < delivered_late.size:
        late = j + apart
        if j == delivered_late.size or (i < queued.size and i < late):
            value, weight = i * interval, queued[i]
            i += 1
        elif i < queued.size and i == late:
            value, weight = i * interval, queued[i] + delivered_late[j]
            i += 1
            j += 1
        else:
            value, weight = late * interval, delivered_late[j]
            j += 1
        if weight > 0.0:
            values[filled], weights[filled] = one_way_delay + value, weight
            filled += 1
    if filled > 0:
        scale(weights[:filled], 1 / total(weights[:filled]))
    return values[:filled], weights[:filled]


@kernel()
def _packet_intervals_waited(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Return sums over all packets, each weighted with the probability of its transition.

    The sums are the number of packets, the backlog b that they meet, the number of packets delivered after a fast
    retransmit, and the term 3 - i of the delays of these packets.
    """
    bound, ratio = rows[0].bound, rows[0].ratio
    packets_sum, waited, late, behind = 0.0, 0.0, 0.0, 0.0
    for phase in range(phases.size - 1):
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            chance, pattern = transitions.probability[event], transitions.pattern[event]
            if chance <= 0.0 or pattern == NO_PACKETS:
                continue
            for cell in range(rows.offset[phase], rows.offset[phase + 1]):
                backlog = rows.low[phase] + cell - rows.offset[phase]
                packets = packets_leaving(transitions, event, backlog)
                weight = probability[cell] * chance * packets
                packets_sum += weight
                waited += weight * backlog
                if backlog == bound:
                    waited += weight * ratio / (1.0 - ratio)
                if pattern == HEAD_OF_LINE:
                    late += weight
                    behind += weight * (DUPLICATE_THRESHOLD - (packets - 1) / 2)
    return packets_sum, waited, late, behind


@kernel()
def mean_delay_parts(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64], rtt: float, interval: float
) -> tuple[float, float, float]:
    """Return the parts of the mean delay [s]: the backlog, head-of-line blocking, and the backlog after a timeout."""
    packets, waited, late, behind = _packet_intervals_waited(phases, transitions, rows, probability)
    labelled = after_timeout(phases, transitions, rows, probability)
    _, waited_after_timeout, _, _ = _packet_intervals_waited(phases, transitions, rows, labelled)
    head_of_line = (late * rtt + behind * interval) / packets
    timeouts = min(waited_after_timeout, waited) * interval / packets
    return waited * interval / packets - timeouts, head_of_line, timeouts


@kernel(nogil=True, joins=True)
def _summed_up(
    p: Parameters,
    forward_delay: float,
    grows: bool,
    figures: RequestedFigures,
    result: NDArray[np.float64],
    most_updates: float,
) -> tuple[int, NDArray[np.float64], NDArray[np.float64], float]:
    """Solve the chain within its first bound: see `Profile.sum_up`."""
    phases, transitions = published_transitions(p)
    start, backlogged, bound = start_phase(p.load), backlogged_phase(p.load), BACKLOG_PER_LOAD * p.load
    outcome, rows, probability, cut, drift = solve_narrow(
        phases, transitions, start, backlogged, bound, grows, figures.limit, most_updates
    )
    values = weights = probability
    if probability.size > 0:
        queued, late = delay_lattices(phases, transitions, rows, probability, p.load)
        values, weights = merge_lattices(queued, late, forward_delay, p.rtt, p.interval, p.load)
    return sum_up(outcome, values, weights, cut, grows, figures, result), values, weights, drift


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
        self.least_seconds = phase_count(self.load) * SECONDS_PER_PHASE
        self.start: int = start_phase(self.load)
        self.backlogged: int = backlogged_phase(self.load)

    @cached_property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions."""
        return published_transitions(self._parameters)

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each phase."""
        return np.array(phase_kinds(self.load))

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return the estimated time [s] and memory [bytes] that `delays` takes: both lattices, and their union."""
        slots = 2 * int(rows["bound"][0]) + self.load
        return updates_per_sweep(*self.structure, rows) * SECONDS_PER_UPDATE, float(BYTES_PER_SLOT * slots)

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        ratio = float(rows["ratio"][0])
        if ratio > 0:
            within = within_bound(self.structure[0], rows, probability)
            below = delay_lattices(*self.structure, rows, within, self.load)
            beyond = delay_lattices(*self.structure, rows, probability - within, self.load)
            queued, late = (spread_lattice(*both, ratio) for both in zip(below, beyond, strict=True))
        else:
            queued, late = delay_lattices(*self.structure, rows, probability, self.load)
        return merge_lattices(queued, late, self._path.forward_delay, self._path.rtt, self._interval, self.load)

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        return mean_delay_parts(*self.structure, rows, probability, self._path.rtt, self._interval)

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time in states with a backlog."""
        return backlogged_time(*self.structure, rows, probability)

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64], most_updates: float) -> NarrowSolution:
        """Solve the chain within its first bound and compute the requested figures."""
        forward_delay = self._path.forward_delay
        return NarrowSolution(*_summed_up(self._parameters, forward_delay, self.grows, figures, result, most_updates))
