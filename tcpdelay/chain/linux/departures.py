"""Bins of delays, and the packets that leave: with a limiting window, and with an open one."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.linux.bursts import (
    burst_chance,
    burst_length,
    burst_wait,
    followed_losses,
    outage_chance,
    probe_time,
    repair_rounds,
    repair_segments,
)
from tcpdelay.chain.linux.detection import DETECTIONS, open_timeout_chance, rest_timeout_chance, timeout_chance
from tcpdelay.chain.linux.losses import OpenWindow, repair_chances
from tcpdelay.chain.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.chain.linux.phases import LOST_OPEN, LOST_TWO, OPEN, PhaseSending, written_share
from tcpdelay.chain.linux.windows import ack_offsets, reduced_window
from tcpdelay.compiling.compilation import allocation_free, kernel

# Bins of delays, and the packets that leave while the window limits the sender.
#
# A bin covers 1/32 of a slot. It holds its weight and its mean delay, so that equal delays keep their exact value.
#
# The *age* of a packet is the time from its write until it leaves. Packets that leave with one ACK are collected for
# all backlogs of a phase at once. A backlog that lasts for the whole phase only shifts the ages. Backlogs that the same
# ACK empties have the same future. So the ages at each ACK are sums over the backlogs, and each time at which a backlog
# may become empty is followed once.

BINS_PER_SLOT = 32
"""Number of bins of delays in each slot."""
MEAN_REPAIR_ONLY = 1e-8
"""Probability of a packet below which only the mean time of its further repairs counts."""
NEGLIGIBLE = 1e-10
"""Probability of a state, a phase or a single delay below which its packets are left out."""
WEIGHT, REMAINDER = range(2)
"""Contents of a bin: the sum of the weights, and the sum of weight times fractional part of the delay [slots]."""
EXTRA = BINS_PER_SLOT
"""Additional entries. Of the first slot: the slots up to the longest delay (WEIGHT), and the sum of ages (REMAINDER).

Of the second slot: the time with packets in the send buffer (REMAINDER). Packets leave in the order of writing. So the
send buffer holds a packet between two writes for as long as the packet of the first write waits: min(age, 1) slots.
"""


@kernel()
def new_bins(slots: int) -> NDArray[np.float64]:
    """Return empty bins for delays of up to `slots` slots."""
    return np.zeros((2, BINS_PER_SLOT + 1, slots + 1))


@allocation_free()
def bin_of(slot: int, part: float) -> int:
    """Return the bin of a delay: the first bin of all has the packets that wait for nothing, and no others."""
    place = min(int(part * BINS_PER_SLOT), BINS_PER_SLOT - 1)
    return 1 if slot == place == 0 and part > SAME_TIME else place


@allocation_free()
def add(bins: NDArray[np.float64], age: float, left: float, weight: float) -> None:
    """Add packets with the delay `age` + `left`, the time until a repair, unless their weight is negligible."""
    if weight < NEGLIGIBLE:
        return
    delay = age + left
    slot = min(int(delay), bins.shape[2] - 1)
    part = delay - slot
    place = bin_of(slot, part)
    bins[WEIGHT, place, slot] += weight
    bins[REMAINDER, place, slot] += weight * part
    bins[WEIGHT, EXTRA, 0] = max(bins[WEIGHT, EXTRA, 0], slot + 1.0)
    bins[REMAINDER, EXTRA, 0] += weight * age
    bins[REMAINDER, EXTRA, 1] += weight * min(age, 1.0)


@allocation_free()
def add_row(bins: NDArray[np.float64], delay: float, weight: float, row: NDArray[np.float64]) -> None:
    """Add `row[i]` times `weight` packets with the delay `delay` + i, for each i; the sums over ages stay the same."""
    last = bins.shape[2] - 1
    slot = min(int(delay), last)
    part = delay - slot
    place = bin_of(slot, part)
    within = min(row.size, last - slot + 1)
    weights, remainders = bins[WEIGHT, place, slot : slot + within], bins[REMAINDER, place, slot : slot + within]
    for i in range(within):
        this = weight * row[i]
        weights[i] += this
        remainders[i] += this * part
    for i in range(within, row.size):
        bins[WEIGHT, place, last] += weight * row[i]
        bins[REMAINDER, place, last] += weight * row[i] * (part + slot + i - last)
    bins[WEIGHT, EXTRA, 0] = max(bins[WEIGHT, EXTRA, 0], float(slot + within))


@allocation_free()
def add_shifted(pattern: NDArray[np.float64], probability: NDArray[np.float64], bins: NDArray[np.float64]) -> float:
    """Add a pattern of delays for each backlog, shifted by its packets, and empty it; return its packets."""
    packets = 0.0
    for place in range(BINS_PER_SLOT):
        for slot in range(int(pattern[WEIGHT, EXTRA, 0])):
            weight = pattern[WEIGHT, place, slot]
            if weight > 0.0:
                packets += weight
                add_row(bins, slot + pattern[REMAINDER, place, slot] / weight, weight, probability)
                pattern[WEIGHT, place, slot] = pattern[REMAINDER, place, slot] = 0.0
    pattern[WEIGHT, EXTRA, 0] = 0.0
    return packets


@allocation_free()
def add_repaired(
    bins: NDArray[np.float64],
    age: float,
    left: float,
    weight: float,
    repeated_loss: float,
    again: float,
    only_timeout: float,
    timeout: float,
) -> None:
    """Add packets that wait for a repair.

    The repair takes one, two or three retransmissions, or it ends after one or two timeouts, RTO and 2 RTO
    (`tcp_rack_detect_loss`, RFC 8985, 6.2; `tcp_retransmit_timer`, RFC 6298, 5.5).
    """
    if weight < MEAN_REPAIR_ONLY:
        further = (1 - only_timeout) * again * (1 + repeated_loss) + only_timeout * timeout * (1 + 2 * repeated_loss)
        add(bins, age, left + repeated_loss * further, weight)
        return
    found = weight * repeated_loss * (1 - only_timeout)
    timed_out = weight * repeated_loss * only_timeout
    add(bins, age, left, weight * (1 - repeated_loss))
    add(bins, age, left + again, found * (1 - repeated_loss))
    add(bins, age, left + 2 * again, found * repeated_loss)
    add(bins, age, left + timeout, timed_out * (1 - repeated_loss))
    add(bins, age, left + 3 * timeout, timed_out * repeated_loss)


@allocation_free()
def add_tries(
    waiting: NDArray[np.float64],
    bins: NDArray[np.float64],
    repeated_loss: float,
    again: float,
    only_timeout: float,
    timeout: float,
) -> None:
    """Move the packets that wait for a repair to `bins` and add the time of further retransmissions."""
    for place in range(BINS_PER_SLOT):
        for slot in range(int(waiting[WEIGHT, EXTRA, 0])):
            weight = waiting[WEIGHT, place, slot]
            if weight > 0.0:
                left = slot + waiting[REMAINDER, place, slot] / weight
                add_repaired(bins, 0.0, left, weight, repeated_loss, again, only_timeout, timeout)
                waiting[WEIGHT, place, slot] = waiting[REMAINDER, place, slot] = 0.0
    waiting[WEIGHT, EXTRA, 0] = 0.0


class Workspace(NamedTuple):
    """Arrays that each phase overwrites."""

    # times, shares, own_waits: Times at which ACKs release segments in a phase [slots], the probability that each ACK
    # arrives, and the time that a packet waits if the segment that the ACK releases is lost [slots].
    times: NDArray[np.float64]
    shares: NDArray[np.float64]
    own_waits: NDArray[np.float64]
    up_to: NDArray[np.float64]  # Cumulative probabilities of the backlogs
    # row, single: Packets that leave at one time, by age in whole slots; and the same for one packet that has not
    # waited.
    row: NDArray[np.float64]
    single: NDArray[np.float64]
    # Packets that leave after the backlog has been empty, by ACK and by age in whole slots.
    later: NDArray[np.float64]
    # Probability that the backlog is empty, by number of ACKs and by number of ACKs that have released nothing.
    drained: NDArray[np.float64]
    # pattern, pattern_waiting: Bins of one of the backlogs that outlast a phase, read at once or after a repair.
    pattern: NDArray[np.float64]
    pattern_waiting: NDArray[np.float64]


@kernel()
def new_workspace(openings: int, time: int, backlogs: int, delays: int) -> Workspace:
    """Return a workspace for phases with at most `openings` ACKs, `time` slots, and these backlogs and delays."""
    return Workspace(
        np.empty(openings),
        np.empty(openings),
        np.empty(openings),
        np.empty(backlogs + 1),
        np.empty(backlogs + time),
        np.empty(1),
        np.empty((openings, time)),
        np.empty((openings + 1, openings + 2)),
        new_bins(delays),
        new_bins(delays),
    )


class Leaving(NamedTuple):
    """Waits for repairs that the packets of a phase have in addition to their age."""

    blocked: bool  # Whether the phase begins with a loss; otherwise it ends with its first loss
    duration: float  # Duration of the phase, until the loss at its beginning is repaired [slots]
    again: float  # Time that a further retransmission takes [slots]
    step: float  # Time between ACKs that release a segment [slots]
    lost: int  # Segments that are lost with the segment at the beginning of the phase, which they follow
    repairing: float  # Time from the first to the last of their retransmissions [slots]
    # written_later, written_first, fading: As in `SENDING`.
    written_later: float
    written_first: float
    fading: float


@allocation_free(frozenset({"reassoc", "contract"}))
def _packets_and_ages(row: NDArray[np.float64]) -> tuple[float, float]:
    """Return the number of packets in `row`, and the sum of their ages in whole slots."""
    packets = ages = 0.0
    for i in range(row.size):
        packets += row[i]
        ages += row[i] * i
    return packets, ages


@allocation_free(inlined=True)
def _add_leaving(
    p: LinuxParameters,
    leaving: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    row: NDArray[np.float64],
    age: float,
    time: float,
    place: int,
    share: float,
    own_wait: float,
) -> None:
    """Add the packets that leave at one time; those that wait for a repair are added to `waiting`."""
    packets, ages = _packets_and_ages(row)
    packets *= share
    if packets < NEGLIGIBLE:
        return
    bins[REMAINDER, EXTRA, 0] += ages * share + packets * age
    bins[REMAINDER, EXTRA, 1] += packets - row[0] * share * (1 - age)
    if not leaving.blocked:
        add_row(bins, age, share * (1 - p.loss), row)
        add_row(waiting, age + own_wait, share * p.loss, row)
        return
    # Each segment that has left in this phase may be lost as well.
    left = leaving.duration - time
    if place < leaving.lost:
        # The segment is lost itself, and waits for the retransmissions up to its own.
        left -= leaving.repairing * (1 - (place + 1) / leaving.lost)
    left = max(left, 0.0)
    rest = share
    if p.rest_lost and place >= leaving.lost and leaving.lost > 0:
        # A second loss in the next round is detected one round-trip time later.
        rest *= (1 - p.loss) ** (place + 1 - leaving.lost)
        add_row(waiting, age + left + p.load, share - rest, row)
        add_row(waiting, age + left, rest, row)
        return
    for behind in range(place + 1 - leaving.lost):
        later = leaving.again - behind * leaving.step
        if later <= left or packets * p.loss < NEGLIGIBLE:
            break
        add_row(waiting, age + later, rest * p.loss, row)
        rest *= 1 - p.loss
    add_row(waiting, age + left, rest, row)


@allocation_free(inlined=True)
def _add_drained(
    p: LinuxParameters,
    leaving: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    count: int,
    phase: float,
    begin: int,
    credit: int,
    weight: float,
    workspace: Workspace,
) -> None:
    """Follow a flow whose backlog is empty after `begin` ACKs until another ACK empties the backlog again.

    `credit` is the number of ACKs that have released nothing. Packets that an ACK releases are added to `later`.
    """
    times, shares = workspace.times, workspace.shares
    latest = math.floor(times[begin - 1] + phase + SAME_TIME) if begin > 0 else 0
    sent = float(latest)
    workspace.single[0] = weight
    for place in range(begin, count):
        time, own = times[place], workspace.own_waits[place]
        while credit > 0 and sent + 1 - phase <= time + SAME_TIME:
            # The window has room: the packet, or as many of its segments as fit, leaves as soon as it is written.
            if credit < p.segments_per_packet:
                sent, credit = sent + credit * p.packets_per_segment, 0
                break
            credit -= p.segments_per_packet
            sent += 1.0
            share = shares[place]
            if leaving.fading > 0.0:
                share *= written_share(leaving.written_later, leaving.written_first, leaving.fading, sent - phase)
            _add_leaving(p, leaving, bins, waiting, workspace.single, 0.0, sent - phase, place, share, own)
        latest = math.floor(time + phase + SAME_TIME)
        if latest <= sent + SAME_TIME:
            workspace.drained[place + 1, credit + 1] += weight
            return
        until = min(float(latest), sent + p.packets_per_segment)
        number = math.floor(sent + SAME_TIME) + 1
        while number <= until + SAME_TIME:
            workspace.later[place, latest - number] += weight
            number += 1
        sent = until
        if sent >= latest - SAME_TIME:
            workspace.drained[place + 1, credit] += weight
            return


@allocation_free()
def add_openings(
    p: LinuxParameters,
    leaving: Leaving,
    bins: NDArray[np.float64],
    waiting: NDArray[np.float64],
    workspace: Workspace,
    low: int,
    high: int,
    count: int,
    phase: float,
) -> None:
    """Add the packets that the ACKs of a phase release, for the backlogs from `low` to `high`."""
    if count == 0:
        return
    per_segment = p.packets_per_segment
    times, up_to, row = workspace.times, workspace.up_to, workspace.row
    later, drained = workspace.later, workspace.drained
    slots = math.floor(times[count - 1] + phase + SAME_TIME)
    for place in range(count):
        for age in range(slots + 1):
            later[place, age] = 0.0
        for credit in range(place + 2):
            drained[place + 1, credit] = 0.0
    if low == 0:
        _add_drained(p, leaving, bins, waiting, count, phase, 0, 0, up_to[1], workspace)
    gone = max(low - 1, 0)
    for place in range(count):
        time = times[place]
        latest = math.floor(time + phase + SAME_TIME)
        filled = latest + 1
        for age in range(filled):
            row[age] = later[place, age]
        if gone < high:
            first = math.floor(place * per_segment + SAME_TIME) + 1
            last = math.floor((place + 1) * per_segment + SAME_TIME)
            if first <= last:
                end = high + latest - first + 1
                for age in range(filled, end):
                    row[age] = 0.0
                for age in range(max(gone + 1 + latest - last, 0), end):
                    until = min(age + last - latest, high)
                    after = max(age + first - latest - 1, gone)
                    row[age] += up_to[until - low + 1] - up_to[after - low + 1]
                filled = max(filled, end)
            now_gone = min(math.floor((place + 1) * per_segment - latest + SAME_TIME), high)
            if now_gone > gone:
                drained[place + 1, 0] += up_to[now_gone - low + 1] - up_to[gone - low + 1]
                gone = now_gone
        age_part = max(time + phase - latest, 0.0)
        if leaving.fading > 0.0:
            for age in range(filled):
                written = time - age_part - age
                row[age] *= written_share(leaving.written_later, leaving.written_first, leaving.fading, written)
        own, share = workspace.own_waits[place], workspace.shares[place]
        _add_leaving(p, leaving, bins, waiting, row[:filled], age_part, time, place, share, own)
        for credit in range(place + 2):
            weight = drained[place + 1, credit]
            if weight > NEGLIGIBLE:
                _add_drained(p, leaving, bins, waiting, count, phase, place + 1, credit, weight, workspace)


# The packets that leave while the window is open, and while losses in an open window are detected and repaired.


@allocation_free()
def _add_outage(p: LinuxParameters, bins: NDArray[np.float64], window: int, place: int, weight: float) -> None:
    """Add packet `place` of an outage, counted from 0; its probe is lost like a segment that follows a loss."""
    left = probe_time(p, window) - place
    later = p.load * repair_rounds(repair_segments(p, place + 1))
    add(bins, 0.0, left + p.load + later, weight * (1 - p.next_loss))
    rest = weight * p.next_loss
    waited = 0.0
    for stage in range(p.backoffs):
        waited += min(p.timeout * 2.0**stage, p.longest_timeout)
        ends = 1.0 if stage == p.backoffs - 1 else 1 - p.next_loss
        add(bins, 0.0, left + waited + later, rest * ends)
        rest *= p.next_loss


@allocation_free()
def add_first_of_burst(
    p: LinuxParameters, bins: NDArray[np.float64], age: float, window: int, only_timeout: float, weight: float
) -> None:
    """Add the first packet of a loss burst in an open window, for each length of the burst."""
    for lost in range(1, followed_losses(p, window) + 1):
        this, length = weight * burst_chance(p, window, lost), burst_length(p, lost)
        wait = burst_wait(p, length)
        timeout = rest_timeout_chance(p, math.floor(wait - length + SAME_TIME)) if p.rest_lost else only_timeout
        add_repaired(bins, age, p.load + wait, this, p.repeated_loss, p.load + 1.0, timeout, p.timeout)
    _add_outage(p, bins, window, 0, weight * outage_chance(p, window))


@allocation_free()
def add_burst_phase(p: LinuxParameters, bins: NDArray[np.float64], window: int, s: PhaseSending, weight: float) -> None:
    """Add the packets that leave after the first of several losses. They are lost, or they wait for lost packets."""
    further = repair_segments(p, s.lost) - 1
    for place in range(1, int(s.openings) + 1):
        if s.lost == window:
            _add_outage(p, bins, window, place, weight)
            continue
        later = repair_segments(p, place + 1) - 1 if place < s.lost else further
        left = max(s.duration + later - place, 0.0)
        repeated, only_timeout = p.repeated_loss, s.timeout_chance
        if p.rest_lost and p.loss > 0:
            # The packet waits for all retransmissions up to its own; only the first may end in a timeout.
            repeated = 1 - (1 - p.loss) ** (later + 1)
            only_timeout *= (1 - (1 - p.loss) ** (further + 1)) / repeated
            # A second loss in the next round is detected one round-trip time later.
            second = 1 - (1 - p.loss_of_one_packet) ** max(place - s.lost + 1, 0)
            add_repaired(bins, 0.0, left + p.load, weight * second, repeated, p.load + 1.0, only_timeout, p.timeout)
            add_repaired(bins, 0.0, left, weight * (1 - second), repeated, p.load + 1.0, only_timeout, p.timeout)
            continue
        add_repaired(bins, 0.0, left, weight, repeated, p.load + 1.0, only_timeout, p.timeout)


@kernel()
def _age_in_open_window(p: LinuxParameters, window: int) -> float:
    """Return how long the last segment of a packet waits if the window is smaller than the flight [slots].

    It waits for the ACK that lets it leave (`tcp_cwnd_test`): the next ACK after its write, or if the RTT is shorter
    than a slot, the last ACK before the packet's last window.
    """
    if p.segments_per_packet == 1 or window >= p.flight:
        return 0.0
    if p.load >= 1:
        return float(p.load - math.floor(p.load))
    return float((math.ceil(p.segments_per_packet / window) - 1) * p.load)


@kernel()
def _age_in_recovery(p: LinuxParameters, s: PhaseSending, write: int, window: int) -> float:
    """Return how long the last segment of a packet written in recovery waits in an open window [slots].

    With a load below 1 no other packet is in flight, so that PRR lets no new segment leave before the retransmission
    is acknowledged (RFC 6937, 3). At higher loads each ACK releases a segment.
    """
    until_end = s.wait + p.load - write
    if p.load < 1:
        return float(max(until_end, 0.0) + _age_in_open_window(p, window))
    return float(max(min(p.load - math.floor(p.load), until_end), 0.0, _age_in_open_window(p, window)))


@allocation_free()
def _add_packet(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], age: float, weight: float, window: int
) -> None:
    """Add a packet of several segments, with each way in which a loss of its segments is detected."""
    add(bins, age, 0.0, weight * (1 - o.loss))
    for way in range(DETECTIONS):
        detection = o.detections[way]
        repeated, only_timeout = repair_chances(p, o, way, window)
        this = weight * o.loss * detection.share
        add_repaired(bins, age, p.load + detection.wait, this, repeated, p.load + o.wait, only_timeout, p.timeout)


@allocation_free()
def _add_open(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], weight: float, window: int, only_timeout: float
) -> None:
    """Add the packet that is written in a slot with an open window."""
    load, segments = p.load, p.segments_per_packet
    age, again = _age_in_open_window(p, window), load + 1.0
    if segments > 1:
        _add_packet(p, o, bins, age, weight, window)
        return
    add(bins, age, 0.0, weight * (1 - o.loss))
    if p.continuation < 1.0:
        last = weight * o.loss * (1 - p.continuation)
        add_repaired(bins, age, last_packet_repaired(p), last, o.repeated_loss, p.timeout, 0.0, p.timeout)
        weight *= p.continuation
    if p.followed_losses:
        add_first_of_burst(p, bins, age, window, only_timeout, weight * o.loss)
    else:
        found, later = o.loss * (1 - o.next_lost), o.loss * o.next_lost
        add_repaired(bins, age, load + o.wait, weight * found, o.repeated_loss, again, only_timeout, p.timeout)
        add_repaired(bins, age, load + o.later_wait, weight * later, o.repeated_loss, again, only_timeout, p.timeout)


@allocation_free()
def _written(s: PhaseSending, first: int, last: int) -> float:
    """Return the number of packets that are written from slot `first` to slot `last` of a phase."""
    packets = 0.0
    for place in range(first, last + 1):
        packets += written_share(s.written_later, s.written_first, s.fading, float(place))
    return packets


@allocation_free()
def last_packet_repaired(p: LinuxParameters) -> float:
    """Return the time from the last packet of a talk spurt, which is lost, until its tail loss probe arrives [slots].

    The ACK of the packet before starts the probe's timer again (`tcp_schedule_loss_probe`). With one segment in flight
    the probe waits for two round-trip times and RTO_MIN, and for the RTO at most (RFC 8985, 7.2).
    """
    return float(p.timeout + max(p.load - 1.0, 0.0))


@allocation_free()
def _add_lost_open(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], weight: float, window: int, s: PhaseSending
) -> None:
    """Add the packets that leave between a loss in an open window and its detection."""
    # The lost segment takes a place in the window until it is detected (`tcp_packets_in_flight`).
    age = _age_in_open_window(p, window if p.segments_per_packet == 1 else window - 1)
    step = 1.0
    again = p.load + (step if p.segments_per_packet == 1 else o.wait)
    count = int(s.openings)
    for place in range(1, count + 1):
        # The packet is read at the latest when its own ACK has detected the loss.
        left = min(max(s.duration - place - age, 0.0), p.load + s.wait)
        following = max(place - o.telling, 0)
        further = min(max(math.ceil((again - left) / step - SAME_TIME), 0), following)
        kept = weight * _written(s, place, place) * (1 - o.loss) ** further
        add_repaired(bins, age, left, kept, s.repeated_loss, again, s.timeout_chance, p.timeout)
    chance = o.loss * weight
    for behind in range(count - o.telling):
        # A packet sent `behind` packets before the one that leaves is lost too. Count the packets that this delays.
        later = again - behind * step
        first = max(behind + 1 + o.telling, math.floor(s.duration - age - later + SAME_TIME) + 1)
        if later <= 0:
            break
        if first <= count:
            packets = _written(s, first, count)
            add_repaired(bins, age, later, chance * packets, s.repeated_loss, again, s.timeout_chance, p.timeout)
        chance *= 1 - o.loss


@allocation_free()
def add_open_phase(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], window: int, s: PhaseSending, weight: float
) -> None:
    """Add the packets that leave in a phase of an open window. The backlog does not matter."""
    load = p.load
    if s.kind == OPEN:
        _add_open(p, o, bins, weight, window, s.timeout_chance)
    elif s.kind == LOST_OPEN:
        _add_lost_open(p, o, bins, weight, window, s)
    elif s.kind == LOST_TWO and s.lost > 0:
        add_burst_phase(p, bins, window, s, weight)
    elif s.kind == LOST_TWO:
        for place in range(1, int(s.openings) + 1):
            left = max(load + 2.0 - place, s.duration - place)
            this = weight * _written(s, place, place)
            add_repaired(bins, 0.0, left, this, 2 * p.loss, load + 1.0, s.timeout_chance, p.timeout)
    else:
        reduced = reduced_window(p, window)
        if p.segments_per_packet == 1:
            only_timeout = open_timeout_chance(p, window - 2, reduced)
        else:
            only_timeout = timeout_chance(p, min(int(load) * p.segments_per_packet, window - 2), reduced)
        write = math.ceil(s.wait - SAME_TIME)
        alive = weight
        # In recovery each ACK releases one packet. With late writes, it may come before the write of its slot.
        early, before, after = ack_offsets(p, 1)
        for _ in range(int(s.openings)):
            if p.segments_per_packet > 1:
                _add_packet(p, o, bins, _age_in_recovery(p, s, write, window), alive, window)
                alive *= 1 - o.loss
                write += 1
                continue
            until_end = s.wait + load - write
            this = alive * written_share(s.written_later, s.written_first, s.fading, write - s.wait)
            for case in range(2 if early > 0.0 else 1):
                age = max(min(1 + before if case else after, until_end), 0.0)
                share = this * (early if case else 1 - early)
                add(bins, age, 0.0, share * (1 - o.loss))
                if p.followed_losses:
                    add_first_of_burst(p, bins, age, window, only_timeout, share * o.loss)
                else:
                    again = load + 1.0
                    add_repaired(bins, age, s.wait, share * o.loss, o.repeated_loss, again, only_timeout, p.timeout)
            alive *= 1 - o.loss
            write += 1
