"""From the stationary distribution to delays: ages of packets, losses they wait for, and jitter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tcpdelay.ask import SIMULATED, UnsupportedError, refused_lateness
from tcpdelay.chain.linux.bursts import own_wait, repair_times, times_after_rest
from tcpdelay.chain.linux.departures import (
    BINS_PER_SLOT,
    EXTRA,
    NEGLIGIBLE,
    REMAINDER,
    WEIGHT,
    Leaving,
    Workspace,
    add_open_phase,
    add_openings,
    add_shifted,
    add_tries,
    bin_of,
    new_bins,
    new_workspace,
)
from tcpdelay.chain.linux.detection import detection_wait, timeout_chance
from tcpdelay.chain.linux.losses import open_window
from tcpdelay.chain.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.chain.linux.phases import (
    LOST,
    LOST_OPEN,
    LOST_TWO,
    OPEN,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    REPAIR_OPEN,
    ROUND,
    TIMEOUT,
    PhaseSending,
    Sending,
    clock_of,
)
from tcpdelay.chain.linux.windows import SMALL_PACKETS, ack_offsets, ack_time, reduced_window
from tcpdelay.chain.solver.aggregation import SINGLE_BACKLOGS, geometric_groups
from tcpdelay.chain.solver.state_space import Phases, Rows
from tcpdelay.chain.solver.sweeps import total
from tcpdelay.compiling.compilation import allocation_free, kernel
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

# From the stationary distribution to delays: the packets of each phase, their ages, and the losses they wait for.
#
# When a packet leaves, it has waited in the send buffer: this is its age. The receiver reads it on arrival, unless its
# own segment or an earlier segment is lost. In this case it reads the packet once all these segments are repaired. So
#
#     delay = one-way delay + age + time from departure to the end of the repair.
#
# Packets with the same distribution of further repairs are first collected by the time at which the first
# retransmission has arrived. The further retransmissions are then added for all of these packets at once.

WRITE_PHASES = 4
"""Number of times of the writes, relative to the rounds, over which the delays are averaged."""
SINGLE_WRITE_PHASE = 1e-5
"""Probability of a phase below which the mean time of the writes suffices."""
LARGEST_ACK_OFFSET = 0.5
"""Time from a write to the ACKs below which the chain keeps it [slots].

An ACK that arrives shortly before a write finds no packet. Whether this packet waits for a whole slot depends on ACKs
of retransmissions, which arrive between the other ACKs. The chain does not follow them.
"""
NUMBER = 8
"""Memory of a number [bytes]."""
UPDATES_OF_REPAIR, UPDATES_IN_ROW = 10, 0.3
"""Time that a packet takes whose repair is followed, and time that a number takes that is added with the other numbers
of a row, in updates of a single number."""
LATENESS_NODES = (0.138, 0.529)
"""The smaller and the larger half of the difference of two latenesses, in the mean, without its sign [write jitter].

The difference of two times that are uniform between 0 and 1 has the density 1 - |x|. |x| has the median 1 - sqrt(1/2);
below and above it, its means are 0.138 and 0.529.
"""
NEGLIGIBLE_BACKLOG = 1e-12
"""Probability of the smallest and of the largest backlogs of a phase below which their packets are left out.

A chain may have thousands of phases, and near the capacity thousands of backlogs of this kind in each of them.
"""
BACKLOGS_PER_PATTERN = 64
"""Number of backlogs that outlast a phase from which on one of them serves as a pattern for all."""


@allocation_free()
def _without_ends(probability: NDArray[np.float64]) -> tuple[int, int]:
    """Return begin and end of the probabilities without negligible ones at both ends."""
    first, end = 0, probability.size
    while first < end - 1 and probability[first] < NEGLIGIBLE_BACKLOG:
        first += 1
    while end > first + 1 and probability[end - 1] < NEGLIGIBLE_BACKLOG:
        end -= 1
    return first, end


@allocation_free()
def _sum_up(probability: NDArray[np.float64], up_to: NDArray[np.float64]) -> tuple[int, int, float]:
    """Cumulate the probabilities without negligible ones at both ends; return their begin, their end and their sum."""
    first, end = _without_ends(probability)
    up_to[0] = 0.0
    for cell in range(first, end):
        up_to[cell - first + 1] = up_to[cell - first] + probability[cell]
    return first, end, up_to[end - first]


@allocation_free()
def times_after_loss(p: LinuxParameters, s: PhaseSending, count: int, times: NDArray[np.float64]) -> None:
    """Write the times at which ACKs release segments after a loss in a round, compressed into its phase [slots]."""
    small, others = p.packets_per_segment >= SMALL_PACKETS, count - s.run
    # The ACKs of the run: the first and the last ones, or where segments are large, those in the middle.
    first, last = s.run, count
    if s.in_run == 1:
        first, last = s.run // 2, s.run // 2 + others
    middle = others // 2
    time = 0.0
    for place in range(count):
        follows_closely = place < first or place >= last
        if s.in_run == 0 and not small:
            follows_closely = middle <= place < middle + s.run
        time += s.spacing_in_run if follows_closely else s.spacing_after_run
        times[place] = time
    if count and times[count - 1] > s.duration:
        shrink = s.duration / times[count - 1]
        for place in range(count):
            times[place] *= shrink


@allocation_free()
def _phase_times(p: LinuxParameters, s: PhaseSending, phase: float, offset: float, times: NDArray[np.float64]) -> None:
    """Write the times at which ACKs release segments in a phase that begins `phase` slots after the last write [slots].

    An ACK arrives a whole number of round-trip times after a write: it acknowledges a segment that left with a write,
    or with an earlier ACK of this kind. So all ACKs arrive at the same time after a write, the `offset`, or before it
    if this is below 0. PRR rounds the number of segments up (RFC 6937, 3): of the ACKs, a segment leaves with the last
    one before its evenly spaced time.
    """
    count = math.ceil(s.openings - SAME_TIME)
    if s.kind == LOST and s.place > 0:
        times_after_rest(p, s, count, times)
    elif s.kind == LOST:
        times_after_loss(p, s, count, times)
    else:
        clock = clock_of(s)
        for place in range(count):
            times[place] = ack_time(clock, place + 1)
    # Larger packets wait for many rounds. Each recovery adds ACKs at times of its own to these rounds.
    if p.packets_per_segment < SMALL_PACKETS or offset >= LARGEST_ACK_OFFSET:
        return
    for place in range(count):
        times[place] = max(math.floor(times[place] + phase - offset + SAME_TIME) + offset - phase, 0.0)


@kernel()
def _ack_offsets(p: LinuxParameters, sending: Sending, rows: Rows) -> NDArray[np.float64]:
    """Return `ack_offsets` by number of round-trip times, for the phases of small packets with any cell."""
    if p.packets_per_segment < SMALL_PACKETS:
        return np.zeros((sending.round_trips.max() + 1, 3))
    offsets = np.full((sending.round_trips.max() + 1, 3), np.nan)
    for phase in range(sending.size):
        number = sending.round_trips[phase]
        if math.isnan(offsets[number, 0]) and rows.offset[phase] < rows.offset[phase + 1]:
            offsets[number, 0], offsets[number, 1], offsets[number, 2] = ack_offsets(p, number)
    return offsets


@allocation_free()
def _set_openings(
    p: LinuxParameters,
    s: PhaseSending,
    count: int,
    case: int,
    phases: int,
    offsets: NDArray[np.float64],
    workspace: Workspace,
) -> float:
    """Write the times and shares of the ACKs of a phase for one case, and return the time from the last write to it."""
    early = case >= phases
    phase = (case % phases + 0.5) / phases
    if s.kind == REPAIR_OPEN:
        phase = s.wait - math.ceil(s.wait - SAME_TIME) + 1
    alive = (offsets[0] if early else 1 - offsets[0]) / phases
    for place in range(count):
        workspace.shares[place] = alive * min(s.openings - place, 1.0)
        if s.kind in (ROUND, REPAIR, REPAIR_OPEN):
            alive *= 1 - p.loss
    _phase_times(p, s, phase, offsets[1] if early else offsets[2], workspace.times)
    return float(phase)


@allocation_free()
def _add_phase(
    p: LinuxParameters,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    window: int,
    s: PhaseSending,
    probability: NDArray[np.float64],
    low: int,
    offsets: NDArray[np.float64],
    workspace: Workspace,
) -> None:
    """Add the packets that leave in a phase in which the window limits the sender.

    If many backlogs, from `low` on, last for the whole phase, only one of them is followed. Its delays are collected in
    a pattern and then shifted for each of these backlogs.
    """
    load = p.load
    interrupted = s.kind in (ROUND, REPAIR, REPAIR_OPEN)
    step = load / max(window, 1)
    between = s.spacing_after_run if s.spacing_after_run > 0 else s.spacing_in_run
    own = load + detection_wait(p, 0, between, between) if interrupted else 0.0
    leaving = Leaving(
        not interrupted, s.duration, load + step, step, 0, 0.0, s.written_later, s.written_first, s.fading
    )
    if s.kind == LOST and s.place > 0:
        duration, repairing = repair_times(p, s, window)
        leaving = Leaving(
            True, duration, load + step, step, s.lost - 1, repairing, s.written_later, s.written_first, s.fading
        )
    count = math.ceil(s.openings - SAME_TIME)
    first, end, weight = _sum_up(probability, workspace.up_to)
    phases = 1 if weight < SINGLE_WRITE_PHASE or s.kind == REPAIR_OPEN else WRITE_PHASES
    for place in range(count):
        workspace.own_waits[place] = own_wait(p, s, place + 1) if interrupted and p.rest_lost else own
    cases = 2 * phases if offsets[0] > 0.0 else phases
    lowest, highest = low + first, low + end - 1
    lasting = max(math.ceil(s.openings * p.packets_per_segment) + 1, lowest)
    if highest < lasting + BACKLOGS_PER_PATTERN or s.fading > 0.0:
        lasting = highest + 1
    if lowest < lasting:
        for case in range(cases):
            phase = _set_openings(p, s, count, case, phases, offsets, workspace)
            add_openings(p, leaving, bins, waiting, workspace, lowest, lasting - 1, count, phase)
    if lasting <= highest:
        pattern, pattern_waiting = workspace.pattern, workspace.pattern_waiting
        workspace.up_to[1] = 1.0
        for case in range(cases):
            phase = _set_openings(p, s, count, case, phases, offsets, workspace)
            add_openings(p, leaving, pattern, pattern_waiting, workspace, lasting, lasting, count, phase)
        row = probability[lasting - low : end]
        states = backlogs = 0.0
        for cell in range(row.size):
            states += row[cell]
            backlogs += row[cell] * cell
        packets = add_shifted(pattern, row, bins) + add_shifted(pattern_waiting, row, waiting)
        bins[REMAINDER, EXTRA, 0] += pattern[REMAINDER, EXTRA, 0] * states + packets * backlogs
        bins[REMAINDER, EXTRA, 1] += pattern[REMAINDER, EXTRA, 1] * row[0] + packets * (states - row[0])
        pattern[REMAINDER, EXTRA, 0] = pattern[REMAINDER, EXTRA, 1] = 0.0


@kernel()
def _is_open(kind: int, window: int, needed: float) -> bool:
    """Return whether the window is open in a phase of this kind; `needed` is the smallest open window."""
    return kind in (OPEN, LOST_OPEN, LOST_TWO) or (kind == REPAIR_OPEN and window >= needed)


@kernel()
def _by_repair(
    p: LinuxParameters, phases: Phases, sending: Sending, rows: Rows, needed: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group the phases in which the window limits the sender by the distribution of their further repairs.

    Return where each group begins in the list of phases, two groups for each window, and the list.
    """
    count = phases.size - 1
    group = np.full(count, -1)
    begins = np.zeros(2 * p.largest_window + 3, np.int64)
    for phase in range(count):
        kind, window = sending.kind[phase], phases.window[phase]
        if rows.offset[phase] == rows.offset[phase + 1] or kind == TIMEOUT or _is_open(kind, window, needed):
            continue
        group[phase] = 2 * window + (kind in (REPAIR_MORE, REPAIR_AGAIN))
        begins[group[phase] + 1] += 1
    for place in range(1, begins.size):
        begins[place] += begins[place - 1]
    ends = begins.copy()
    listed = np.zeros(begins[-1], np.int64)
    for phase in range(count):
        if group[phase] >= 0:
            listed[ends[group[phase]]] = phase
            ends[group[phase]] += 1
    return begins, listed


@kernel()
def _extent(p: LinuxParameters, phases: Phases, sending: Sending, rows: Rows, beyond: int) -> tuple[int, int, int, int]:
    """Return the most ACKs of a phase, the most slots of one, the largest backlog, and the slots of a pattern."""
    openings, time, highest = 0, 0.0, 0
    for phase in range(phases.size - 1):
        if rows.offset[phase] == rows.offset[phase + 1]:
            continue
        count = math.ceil(sending.openings[phase])
        openings, highest = max(openings, count), max(highest, rows.high[phase])
        time = max(time, count * max(sending.spacing_in_run[phase], sending.spacing_after_run[phase]))
    # A pattern serves for backlogs that outlast a phase: see `_add_phase`. Small backlogs need none.
    most = 0
    if highest > BACKLOGS_PER_PATTERN:
        most = int(min(openings * max(p.packets_per_segment, 1.0), highest)) + beyond
    return openings, int(time) + 3, highest, most


@kernel()
def _cost_of_phase(
    p: LinuxParameters,
    s: PhaseSending,
    window: int,
    probability: NDArray[np.float64],
    low: int,
    weight: float,
    are_early: bool,
) -> tuple[float, float]:
    """Return how many numbers `_add_phase` adds, roughly, and the longest of the delays [slots]."""
    count = float(math.ceil(s.openings - SAME_TIME))
    time = min(count * max(s.spacing_in_run, s.spacing_after_run), max(s.duration, p.load)) + 1
    first, end = _without_ends(probability)
    lowest, highest = float(low + first), float(low + end - 1)
    lasting = max(count * p.packets_per_segment + 1, lowest)
    shifted = 0.0
    if highest >= lasting + BACKLOGS_PER_PATTERN and s.fading == 0.0:
        shifted, highest = highest - lasting, lasting
    interrupted = s.kind in (ROUND, REPAIR, REPAIR_OPEN)
    # Each segment that left within a round-trip time before may be lost as well.
    ends = 2.0 if interrupted or weight * p.loss < NEGLIGIBLE else 1 + min(count, float(window)) / 2
    phases = 1.0 if weight < SINGLE_WRITE_PHASE or s.kind == REPAIR_OPEN else float(WRITE_PHASES)
    phases *= 2 if are_early else 1
    row = min(highest - lowest + 1, count * p.packets_per_segment) + time
    # If ACKs come faster than packets, those after the backlog find no packet, and packets leave one by one.
    used = count if count <= time else min(count, (highest + time) / p.packets_per_segment + 1)
    updates = phases * ((used * row + time) * (1 + ends) * UPDATES_IN_ROW + count * (row * UPDATES_IN_ROW + count))
    if shifted > 0.0:
        entries = min(BINS_PER_SLOT * (lasting + time), phases * ends * count * max(p.packets_per_segment, 1.0))
        updates += BINS_PER_SLOT * (lasting + time) + entries * shifted * UPDATES_IN_ROW
    return updates, highest + shifted + time


@kernel()
def _cost_of_open_phase(s: PhaseSending) -> float:
    """Return how many numbers `add_open_phase` adds, roughly."""
    updates = UPDATES_OF_REPAIR * (s.openings + 1)
    if s.kind == LOST_OPEN:
        # For each earlier packet, the packets behind it are counted.
        updates += s.openings**2
    elif s.kind == LOST_TWO:
        updates += s.openings * s.lost
    return float(updates)


@kernel()
def cost_of_bins(
    p: LinuxParameters, phases: Phases, sending: Sending, rows: Rows, probability: NDArray[np.float64], beyond: int
) -> tuple[float, float]:
    """Return how many numbers `delay_bins` adds, roughly, and how much memory it takes [bytes]."""
    openings, time, _, most = _extent(p, phases, sending, rows, beyond)
    offsets = _ack_offsets(p, sending, rows)
    slots = 2.0 * (rows[0].bound + beyond + most)
    memory = NUMBER * (2 * (BINS_PER_SLOT + 1) * slots + float(openings + 2) * (time + openings))
    updates, needed = memory / NUMBER + 2 * probability.size, open_window(p).needed
    # The longest delays of the packets of each window that wait for further retransmissions.
    waiting = np.zeros(p.largest_window + 1)
    for phase in range(phases.size - 1):
        begin, end = rows.offset[phase], rows.offset[phase + 1]
        kind, window = sending.kind[phase], phases.window[phase]
        if begin == end or kind == TIMEOUT:
            continue
        weight = total(probability[begin:end])
        if weight <= NEGLIGIBLE:
            continue
        if _is_open(kind, window, needed):
            updates += _cost_of_open_phase(sending[phase])
            continue
        are_early = offsets[sending.round_trips[phase], 0] > 0.0
        of_phase, longest = _cost_of_phase(
            p, sending[phase], window, probability[begin:end], rows.low[phase], weight, are_early
        )
        updates += of_phase
        waiting[window] = max(waiting[window], longest)
    return updates + UPDATES_OF_REPAIR * BINS_PER_SLOT * total(waiting), memory


@kernel(nogil=True)
def delay_bins(
    p: LinuxParameters, phases: Phases, sending: Sending, rows: Rows, probability: NDArray[np.float64], beyond: int
) -> NDArray[np.float64]:
    """Return the bins of all delays that losses cause, without the one-way delay, not normalised."""
    bins = new_bins(rows[0].bound + beyond)
    waiting = new_bins(rows[0].bound + beyond)
    o = open_window(p)
    begins, listed = _by_repair(p, phases, sending, rows, o.needed)
    openings, time, highest, most = _extent(p, phases, sending, rows, beyond)
    for phase in range(phases.size - 1):
        begin, end = rows.offset[phase], rows.offset[phase + 1]
        if begin == end:
            continue
        kind, window = sending.kind[phase], phases.window[phase]
        if _is_open(kind, window, o.needed):
            weight = total(probability[begin:end])
            if weight > NEGLIGIBLE:
                add_open_phase(p, o, bins, window, sending[phase], weight)
    workspace, offsets = new_workspace(openings + 1, time, highest + 2, most), _ack_offsets(p, sending, rows)
    for group in range(begins.size - 1):
        window, in_repair = group // 2, group % 2 == 1
        for place in range(begins[group], begins[group + 1]):
            phase = listed[place]
            begin, end = rows.offset[phase], rows.offset[phase + 1]
            if total(probability[begin:end]) > NEGLIGIBLE:
                _add_phase(
                    p, bins, waiting, window, sending[phase], probability[begin:end], rows.low[phase],
                    offsets[sending.round_trips[phase]], workspace,
                )  # fmt: skip
        if waiting[WEIGHT, EXTRA, 0] > 0.0:
            in_flight, reduced = (window - 1, window) if in_repair else (window - 2, reduced_window(p, window))
            again = p.load + p.load / max(window, 1)
            add_tries(waiting, bins, p.repeated_loss, again, timeout_chance(p, in_flight, reduced), p.timeout)
    return bins if p.write_jitter == 0 else _with_lateness(p, bins)


@kernel()
def _with_lateness(p: LinuxParameters, bins: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bins of delays with the difference of two latenesses of writes.

    A packet that waits is read when an ACK, a SACK or a repair comes, whose time depends on the lateness of an earlier
    write. The packet's own lateness is subtracted from it. A packet that waits for nothing has no such difference.
    """
    slots, parts = int(bins[WEIGHT, EXTRA, 0]), 2 * len(LATENESS_NODES)
    found = new_bins(slots + int(p.write_jitter) + 1)
    last, longest = found.shape[2] - 1, 0
    for slot in range(slots):
        for place in range(BINS_PER_SLOT):
            weight = bins[WEIGHT, place, slot] / parts
            if weight < NEGLIGIBLE:
                continue
            delay = slot + bins[REMAINDER, place, slot] / bins[WEIGHT, place, slot]
            for node in LATENESS_NODES:
                difference = node * p.write_jitter if delay > node * p.write_jitter else 0.0
                for late in (delay - difference, delay + difference):
                    whole = min(int(late), last)
                    part = late - whole
                    at = bin_of(whole, part)
                    found[WEIGHT, at, whole] += weight
                    found[REMAINDER, at, whole] += weight * part
                    longest = max(longest, whole + 1)
    found[WEIGHT, EXTRA, 0] = longest
    found[REMAINDER, EXTRA, 0], found[REMAINDER, EXTRA, 1] = bins[REMAINDER, EXTRA, 0], bins[REMAINDER, EXTRA, 1]
    return found


@kernel()
def _filled(bins: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return the mean delay of each bin with packets, ascending [slots], its weight, and the sum of the weights."""
    slots = int(bins[WEIGHT, EXTRA, 0])
    values, weights = np.empty(BINS_PER_SLOT * slots), np.empty(BINS_PER_SLOT * slots)
    whole, filled = 0.0, 0
    for slot in range(slots):
        for place in range(BINS_PER_SLOT):
            weight = bins[WEIGHT, place, slot]
            if weight > 0.0:
                whole += weight
                value = slot + bins[REMAINDER, place, slot] / weight
                if filled and value <= values[filled - 1] + SAME_TIME:
                    # Rounding has put equal delays on both sides of a bin's edge.
                    weights[filled - 1] += weight
                    continue
                values[filled], weights[filled] = value, weight
                filled += 1
    return values[:filled], weights[:filled], whole


@kernel()
def filled_bins(bins: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean delay of each bin with packets, ascending [slots], and its share of the packets."""
    values, weights, whole = _filled(bins)
    return values, weights / whole


@kernel()
def beyond_bound(
    p: LinuxParameters, phases: Phases, sending: Sending, rows: Rows, probability: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the probabilities of the cells at the bound whose packets wait for earlier packets; 0 elsewhere."""
    beyond = np.zeros(probability.size)
    needed = open_window(p).needed
    for phase in range(phases.size - 1):
        end = rows.offset[phase + 1]
        is_open = _is_open(sending.kind[phase], phases.window[phase], needed)
        if rows.offset[phase] < end and rows.high[phase] == rows[0].bound and not is_open:
            beyond[end - 1] = probability[end - 1]
    return beyond


@kernel()
def bins_with_tail(
    bins: NDArray[np.float64], beyond: NDArray[np.float64], whole: float, ratio: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what `filled_bins` returns, with the delays of backlogs beyond the bound B.

    `beyond`, times `whole`, has the delays of the packets that meet these backlogs as if each backlog was B. A share
    (1 - r) r^k of the packets meets the backlog B + k, and has a delay that is longer by k slots.
    """
    slots = int(beyond[WEIGHT, EXTRA, 0])
    every = max(int(bins[WEIGHT, EXTRA, 0]), slots + SINGLE_BACKLOGS)
    spread = new_bins(every)
    spread[WEIGHT, EXTRA, 0] = every
    weight_left, remainder_left = 0.0, 0.0
    for place in range(BINS_PER_SLOT):
        weight, remainder = 0.0, 0.0
        for slot in range(every):
            weight *= ratio
            remainder *= ratio
            if slot < slots:
                weight += whole * (1.0 - ratio) * beyond[WEIGHT, place, slot]
                remainder += whole * (1.0 - ratio) * beyond[REMAINDER, place, slot]
            spread[WEIGHT, place, slot] = weight
            spread[REMAINDER, place, slot] = remainder
            if slot < bins.shape[2]:
                spread[WEIGHT, place, slot] += bins[WEIGHT, place, slot]
                spread[REMAINDER, place, slot] += bins[REMAINDER, place, slot]
        weight_left += weight * ratio / (1.0 - ratio)
        remainder_left += remainder * ratio / (1.0 - ratio)
    values, weights, counted = _filled(spread)
    if weight_left > 0.0:
        longer, shares = geometric_groups(every, ratio)
        values = np.concatenate((values, longer + remainder_left / weight_left))
        weights = np.concatenate((weights, weight_left * shares))
    return values, weights / (counted + weight_left)


@allocation_free()
def sums(bins: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return the sums of weight, weight times delay, weight times age, and the time with a backlog [slots]."""
    weight = delay = 0.0
    for slot in range(int(bins[WEIGHT, EXTRA, 0])):
        for place in range(BINS_PER_SLOT):
            weight += bins[WEIGHT, place, slot]
            delay += bins[WEIGHT, place, slot] * slot + bins[REMAINDER, place, slot]
    return weight, delay, bins[REMAINDER, EXTRA, 0], bins[REMAINDER, EXTRA, 1]


# Jitter below the packet interval, as a mean of chains with a constant round-trip time each.
#
# Each segment takes an additional time that is uniform from 0 to the jitter J. With J up to the packet interval,
# packets that leave with their writes do not overtake each other. A packet that waits for nothing takes
#
#     one-way delay + U,
#
# and a packet that waits for an ACK, or for a repair, meets the additional delays of two segments: U' of the segment
# that triggers the ACK, and U of its own segment, or of the retransmission. U' lengthens the round-trip time of the
# wait, so
#
#     delay = D(RTT + U') + U,
#
# where D(R) is the delay of the chain with the constant round-trip time R. The expectation over U' is the sum over the
# nodes of Gauss's quadrature: with two nodes it is exact for a D that is a polynomial of third degree in R.

NODES = (0.5 - math.sqrt(1 / 12), 0.5 + math.sqrt(1 / 12))
"""Nodes of the Gauss-Legendre quadrature with two points on the interval from 0 to 1; their weights are equal."""
STEPS_OF_JITTER, STEPS_OF_DELAY = 128, 512
"""Number of delays that are distinguished within the jitter, and within a delay itself: the larger step counts."""
NEGLIGIBLE_SPREAD = 1e-13
"""Density, as a weight per jitter, below which there are no delays: the rounding error of sums."""


JITTER_FIELDS = frozenset({"jitter", "in_order"})
"""Fields of a path that only the mean of chains takes into account. Segments of packets that leave with their writes
keep their order in any case, because the jitter is no longer than the interval."""


def jitter_refusals(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error for each field of a scenario with jitter that the chain refuses because of the jitter.

    The retransmission timeout is the smoothed RTT plus the larger of RTO_MIN and four mean deviations of the RTT
    (`tcp_rtt_estimator`, `tcp_set_rto`; RFC 6298, 2.3). The mean deviation is J / 4, so RTO_MIN holds while J is below.
    """
    if path.jitter == 0:
        return
    longest = min((flow.interval, "the interval"), (stack.rto_min, "the minimum retransmission timeout"))
    if path.jitter > longest[0]:
        yield UnsupportedError(
            "jitter", path.jitter, f"be at most {longest[0]:g} s, {longest[1]}, in the chain", SIMULATED
        )
    where = "in the chain with jitter"
    if path.jitter_distribution != "uniform":
        yield UnsupportedError("jitter_distribution", path.jitter_distribution, "be 'uniform' in the chain", SIMULATED)
    if path.jitter_correlation > 0:
        yield UnsupportedError("jitter_correlation", path.jitter_correlation, "be 0 in the chain", SIMULATED)
    yield from refused_lateness(flow, where)
    if flow.packet_size > stack.mss:
        yield UnsupportedError("packet_size", flow.packet_size, f"be at most {stack.mss} bytes {where}", SIMULATED)
    if path.loss_pattern != "random":
        yield UnsupportedError("loss_pattern", path.loss_pattern, f"be 'random' {where}", SIMULATED)
    if path.loss_burst > 1:
        yield UnsupportedError("loss_burst", path.loss_burst, f"be 1 {where}", SIMULATED)


def constant_paths(path: Path) -> tuple[Path, ...]:
    """Return paths without jitter, equally probable, whose round-trip times have the distribution of RTT + U'."""
    if path.jitter == 0:
        return (path,)
    forward = path.forward_delay
    return tuple(path.without_jitter(rtt=path.rtt + node * path.jitter, one_way_delay=forward) for node in NODES)


def with_jitter(
    distributions: Sequence[DelayDistribution], jitter: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of equally probable distributions, each delay with a uniform additional delay U.

    The sum of a delay v and U has the density 1 / J from v to v + J. So the density of the mixture is constant between
    two neighbouring ends v or v + J. Each such piece is cut into equal parts, and a part is one delay at its middle,
    which keeps the mean.
    """
    starts = np.concatenate([one.values for one in distributions])
    weights = np.concatenate([one.weights for one in distributions]) / len(distributions)
    ends = np.concatenate([starts, starts + jitter])
    order = np.argsort(ends, kind="stable")
    ends, weight_per_jitter = ends[order], np.cumsum(np.concatenate([weights, -weights])[order])[:-1]
    filled = weight_per_jitter > NEGLIGIBLE_SPREAD
    begins, lengths = ends[:-1][filled], np.diff(ends)[filled]
    step = np.maximum(jitter / STEPS_OF_JITTER, begins / STEPS_OF_DELAY)
    parts = np.ceil(lengths / step).clip(1).astype(np.int64)
    first = np.cumsum(parts) - parts
    place = np.arange(parts.sum()) - np.repeat(first, parts)
    values = np.repeat(begins, parts) + (place + 0.5) * np.repeat(lengths / parts, parts)
    masses = np.repeat(weight_per_jitter[filled] * lengths / parts, parts)
    # Ends that differ by rounding only may have the same middle.
    distinct, places = np.unique(values, return_inverse=True)
    joined = np.bincount(places, masses)
    return distinct, joined / joined.sum()
