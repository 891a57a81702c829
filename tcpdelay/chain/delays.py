"""From the stationary distribution to delays: how many packets leave at each transition, and how late they are.

All delays lie on two lattices: L + k/f for packets that only waited in the send buffer, and L + RTT + k/f for those
that waited for a retransmission as well. A transition that delivers n packets in a row adds one weight to n
neighbouring places, which is kept as a rise and a fall and summed up at the end.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.build import ROW, Rows
from tcpdelay.chain.sweep import add_scaled, copy, scale, sweep, total
from tcpdelay.chain.transitions import (
    HEAD_OF_LINE,
    NO_PACKETS,
    PHASE,
    QUEUED,
    Phases,
    Transitions,
    packets_leaving,
)

DUPLICATE_ACKS = 3
SUMMATION_NOISE = 1e-17
"""Weight below which an entry is left over from rises and falls that cancel."""
SAME_LATTICE = 1e-9
"""Distance, in packet intervals, at which the two lattices count as one."""
EPISODES_LEFT = 1e-9
"""Share of the backlogged episodes after a timeout that is followed no further; their rest is a geometric series."""
MAX_FOLLOWED_SWEEPS = 2000


@njit(cache=True)
def delay_lattices(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64], load: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of the delays L + k/f, and of L + RTT + (k - load)/f, for k = 0, 1, ...; not normalised."""
    queued = np.zeros(rows[0].bound + 1)
    delivered_late = np.zeros(rows[0].bound + load + DUPLICATE_ACKS + 2)
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
                    latest = backlog + DUPLICATE_ACKS + load
                    delivered_late[latest + 1] -= weight
                    delivered_late[latest - packets + 1] += weight
    height = 0.0
    for place in range(delivered_late.size):
        height += delivered_late[place]
        delivered_late[place] = height if height > SUMMATION_NOISE else 0.0
    return queued, delivered_late


@njit(cache=True)
def merge_lattices(
    queued: NDArray[np.float64],
    delivered_late: NDArray[np.float64],
    one_way_delay: float,
    rtt: float,
    interval: float,
    load: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ascending delays [s] and their weights, which sum to 1."""
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


@njit(cache=True)
def backlogged_time(phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Share of time in states with a backlog: the sum of pi q t over b > 0, over that of all states."""
    backlogged, time = 0.0, 0.0
    for phase in range(phases.size - 1):
        cells = probability[rows.offset[phase] : rows.offset[phase + 1]]
        if cells.size == 0:
            continue
        duration = 0.0
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            duration += transitions.probability[event] * transitions.duration[event]
        busy = total(cells[1:] if rows.low[phase] == 0 else cells)
        backlogged += busy * duration
        time += total(cells) * duration
    return backlogged / time


@njit(cache=True)
def probability_at_bound(phases: Phases, rows: Rows, probability: NDArray[np.float64]) -> float:
    """Probability of the states whose backlog is cut off at the bound."""
    cut = 0.0
    for phase in range(phases.size - 1):
        if rows.offset[phase] < rows.offset[phase + 1] and rows.high[phase] == rows[0].bound:
            cut += probability[rows.offset[phase + 1] - 1]
    return cut


@njit(cache=True)
def _packet_intervals_waited(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Sum over all packets: their number, the backlog met, those delivered late, and 3 - i over the latter."""
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
                if pattern == HEAD_OF_LINE:
                    late += weight
                    behind += weight * (DUPLICATE_ACKS - (packets - 1) / 2)
    return packets_sum, waited, late, behind


@njit(cache=True)
def after_timeout(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Part of each cell's probability that belongs to a backlog which began, or grew, with a timeout.

    From each first back-off on, the probability is followed until the backlog is gone.
    """
    count = phases.size - 1
    sink = count
    first_backoff = 0
    followed_phases: Phases = np.zeros(count + 2, PHASE)
    followed = transitions.copy()
    followed_rows: Rows = np.zeros(count + 2, ROW)
    for phase in range(count + 1):
        followed_phases[phase], followed_rows[phase] = phases[phase], rows[phase]
    for event in range(transitions.size):
        if followed[event].target == first_backoff:
            followed[event].target = sink
        followed[event].target_when_empty = sink
    followed_phases[sink + 1].first_transition = phases[count].first_transition
    followed_rows[sink].low, followed_rows[sink].high = 0, rows[0].bound
    followed_rows[sink + 1].offset = cells = rows[count].offset + rows[0].bound + 1

    inflow, visits = np.zeros(cells), np.zeros(cells)
    sum_of_visits = np.zeros(rows.offset[count])
    first, end = rows.offset[first_backoff], rows.offset[first_backoff + 1]
    copy(probability[first:end], inflow[first:end])
    begun = left = total(inflow)
    for _ in range(MAX_FOLLOWED_SWEEPS):
        scale(visits, 0.0)
        sweep(followed_phases, followed, followed_rows, inflow, visits)
        add_scaled(visits[: sum_of_visits.size], 1.0, sum_of_visits)
        before, left = left, total(inflow)
        if left <= EPISODES_LEFT * begun:
            break
    if left > 0.0:
        add_scaled(visits[: sum_of_visits.size], left / (before - left), sum_of_visits)
    return sum_of_visits


@njit(cache=True)
def mean_delay_parts(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64], rtt: float, interval: float
) -> tuple[float, float, float]:
    """Mean delay beyond the one-way delay [s]: backlog, head-of-line blocking, and backlog that follows a timeout."""
    packets, waited, late, behind = _packet_intervals_waited(phases, transitions, rows, probability)
    labelled = after_timeout(phases, transitions, rows, probability)
    _, waitedafter_timeout, _, _ = _packet_intervals_waited(phases, transitions, rows, labelled)
    head_of_line = (late * rtt + behind * interval) / packets
    timeouts = min(waitedafter_timeout, waited) * interval / packets
    return waited * interval / packets - timeouts, head_of_line, timeouts
