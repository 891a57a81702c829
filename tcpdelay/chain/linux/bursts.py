"""Loss bursts and losses in rounds: their length, detection and repair, and the phases of the chain for them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.events import Events, put
from tcpdelay.chain.linux.detection import (
    detection_wait,
    first_sack_wait,
    most_lost,
    rest_chance,
    rest_timeout,
    retransmission_times,
    timeout_chance,
    typical_lost,
)
from tcpdelay.chain.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.chain.linux.phases import (
    LOST,
    LOST_OPEN,
    LOST_TWO,
    REPAIR,
    REPAIR_OPEN,
    ROUND,
    Layout,
    PhaseSending,
    begin_phase,
    burst_phase,
    clock_of,
    clock_of_round,
    lost_phase,
    open_phase,
    put_outcomes,
    repair_phase,
    round_phase,
    set_clock,
)
from tcpdelay.chain.linux.windows import AckClock, ack_time, reduced_window
from tcpdelay.compiling.compilation import allocation_free, kernel
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD, PROBE_ROUND_TRIPS

# Loss bursts, packet by packet: their length, their detection, their repair, and the phases of the chain for them.
#
# After a packet that arrived, the next packet is lost with the probability `loss`; after a lost packet, with
# `next_loss` (Gilbert 1960). A burst continues with the next packet that is sent, whenever this is. If a burst has
# taken the whole window, it may therefore also take the tail loss probe and the retransmissions after timeouts.
#
# An *outage* is the loss of a whole window: the first lost packet and all later packets that the window allows.


@kernel()
def burst_length(p: LinuxParameters, group: int) -> int:
    """Return the number of losses of a phase of consecutive losses: a group of them, or the number itself."""
    return typical_lost(p.flight, p.followed_losses, group) if p.rest_lost else group


@kernel()
def followed_losses(p: LinuxParameters, window: int) -> int:
    """Return the largest number of consecutive losses with a phase of its own; longer bursts share the last phase.

    With the losses of a drop-tail queue, this is the number of groups of losses that leave a segment of the window.
    """
    if p.rest_lost:
        groups = p.followed_losses
        while groups > 1 and burst_length(p, groups) >= window:
            groups -= 1
        return int(groups)
    return int(max(min(window - 1, p.followed_losses), 1))


@kernel()
def probe_interval(p: LinuxParameters) -> float:
    """Return the time from the last packet to the tail loss probe [slots].

    2 RTT + 2 ms, rounded up to a tick, half a tick in the mean (`tcp_schedule_loss_probe`; RFC 8985, 7.2).
    """
    return float(PROBE_ROUND_TRIPS * p.load + p.probe_slack)


@kernel()
def _group_chance(p: LinuxParameters, window: int, group: int) -> float:
    """Return the probability that the number of lost segments of a round is in a group, if the round has a loss.

    The window is open. A drop-tail queue drops the first lost segment of a round and all later segments of the round.
    """
    segments, groups = min(p.flight, window), p.followed_losses
    most = window - 1 if group == followed_losses(p, window) else most_lost(p.flight, groups, group)
    return rest_chance(p.loss_of_one_packet, segments, most_lost(p.flight, groups, group - 1), min(most, segments))


@kernel()
def _next_round_chance(p: LinuxParameters, window: int, group: int) -> float:
    """Return the probability that the next round is lost as a whole and leaves no segment of the window."""
    return p.loss_of_one_packet if burst_length(p, group) + p.flight >= window else 0.0


@kernel()
def outage_chance(p: LinuxParameters, window: int) -> float:
    """Return the probability that, after a lost packet, all further packets that the window allows are lost too."""
    if p.followed_losses == 0:
        return 0.0
    if p.rest_lost:
        # The loss takes the first segment of a round that fills the window; or the next round is lost as well.
        chance = rest_chance(p.loss_of_one_packet, window, window - 1, window) if window <= p.flight else 0.0
        for group in range(1, followed_losses(p, window) + 1):
            chance += _group_chance(p, window, group) * _next_round_chance(p, window, group)
        return chance
    # If the probe is sent before the next packet, it is the next segment of the burst.
    probes = 1 if probe_interval(p) < 1 and window > 2 else 0
    return float(p.next_loss ** (window - 1 + probes))


@kernel()
def burst_chance(p: LinuxParameters, window: int, lost: int) -> float:
    """Return the probability that a burst has `lost` packets, given its first loss, but not the whole window.

    With independent losses the burst has one packet. Otherwise the length is geometric (`gilbert_probabilities`): it is
    `lost` or more with the probability r^(lost - 1), r being `next_loss`. With the losses of a drop-tail queue, `lost`
    is the number of a group of losses.
    """
    if p.rest_lost:
        return _group_chance(p, window, lost) * (1 - _next_round_chance(p, window, lost))
    begin, end = p.next_loss ** (lost - 1), p.next_loss**lost
    # A tail loss probe before the next packet is a segment of the burst as well.
    if probe_interval(p) < 1:
        begin *= p.next_loss if lost > 2 else 1.0
        end *= p.next_loss if lost > 1 else 1.0
    if lost == followed_losses(p, window):
        end = outage_chance(p, window)
    return float(begin - end)


@kernel()
def burst_wait(p: LinuxParameters, lost: int) -> float:
    """Return the time from the due time of the first ACK to the detection of `lost` consecutive losses [slots].

    The first SACK comes `lost` slots after the due time. It detects the losses if the reordering window is over by
    then; otherwise RACK's timer, a SACK after the reordering window, or the third SACK detects them
    (`tcp_rack_detect_loss`, `tcp_rack_mark_lost`; RFC 8985, 6.2). A tail loss probe that is sent before the next packet
    has the first SACK (`tcp_send_loss_probe`; RFC 8985, 7.3).
    """
    if lost == 1:
        return detection_wait(p, 0, 1.0, 1.0)
    if probe_interval(p) < 1:
        return lost - 1 + probe_interval(p)
    if lost >= p.reordering_wait - SAME_TIME:
        return float(lost)
    overdue = math.ceil(p.reordering_wait - SAME_TIME)
    return float(min(max(p.timer, float(lost)), float(min(overdue, lost + DUPLICATE_THRESHOLD - 1))))


@kernel()
def probe_time(p: LinuxParameters, window: int) -> float:
    """Return the time from the first packet of a lost window to the tail loss probe [slots].

    The retransmission timeout of the first packet is the upper limit (`tcp_schedule_loss_probe`).
    """
    return float(min(window - 1 + probe_interval(p), p.timeout))


@kernel()
def repair_segments(p: LinuxParameters, lost: int) -> int:
    """Return the segments in which `lost` packets are retransmitted; small ones share (`tcp_retrans_try_collapse`)."""
    segment = float(max(p.packets_per_segment, 1.0))
    return math.ceil(lost / segment - SAME_TIME)


@kernel()
def repair_rounds(segments: int) -> int:
    """Return the number of round-trip times from the first to the last retransmission in slow start.

    No other segments are in flight, and each ACK releases two retransmissions (`tcp_slow_start`; RFC 5681, 3.1): with
    1, 2, 4, ... of them in a round, n segments take floor(log2 n) further rounds.
    """
    return math.floor(math.log2(max(segments, 1)) + SAME_TIME)


@kernel()
def more_lost(p: LinuxParameters, segments: float, next_to_loss: bool) -> float:
    """Return the probability that at least one of `segments` is lost, the first directly after a loss or not."""
    kept = (1 - p.loss) ** segments
    if next_to_loss and p.followed_losses and segments >= 1:
        kept *= (1 - p.next_loss) / (1 - p.loss)
    return float(1 - kept)


@kernel()
def last_loss_weight(p: LinuxParameters, place: int, under_way: int) -> float:
    """Return the weight of segment `place` as the last lost one among `under_way` segments after the first loss.

    It is the probability that this segment is lost and that all later segments arrive, up to a common factor. With
    independent losses: (1 - p)^(under_way - place).
    """
    if p.followed_losses == 0 or p.rest_lost:
        return float((1 - p.loss) ** (under_way - place))
    # Gilbert's chain, `place` segments after a loss: the excess over the mean loss decays by r - p per segment.
    lost = p.mean_loss + (1 - p.mean_loss) * (p.next_loss - p.loss) ** place
    after = under_way - place
    return float(lost * ((1 - p.next_loss) * (1 - p.loss) ** (after - 1) if after > 0 else 1.0))


@kernel()
def lost_round_chance(p: LinuxParameters, rounds: int) -> float:
    """Return the probability that one of `rounds` rounds of slow start is lost as a whole, with its first segment."""
    return float(1 - (1 - p.loss) ** rounds) if p.rest_lost else 0.0


@allocation_free(inlined=True)
def put_bursts(
    p: LinuxParameters, e: Events, layout: Layout, window: int, shift: float, chance: float, time: float
) -> None:
    """Put the first loss in an open window: an event per number of consecutive losses; LOST_OPEN if independent."""
    for lost in range(1, followed_losses(p, window) + 1):
        target = open_phase(layout, window, LOST_OPEN) if lost == 1 else burst_phase(layout, window, lost)
        put(e, target, target, shift, chance * burst_chance(p, window, lost), time)
    target = burst_phase(layout, window, 0)
    put(e, target, target, shift, chance * outage_chance(p, window), time)


@allocation_free()
def put_outage(
    p: LinuxParameters, e: Events, layout: Layout, window: int, shift: float, chance: float, time: float
) -> None:
    """Put the outcomes of an outage: the probe at `time` detects the losses, or it is lost and a timeout follows.

    `tcp_send_loss_probe`, then slow start or `tcp_retransmit_timer` (RFC 8985, 7.3 and 7.4).
    """
    rounds = repair_rounds(repair_segments(p, window))
    rest = p.load * (1 + rounds)
    repair = repair_phase(layout, reduced_window(p, window), REPAIR)
    put(e, 0, 0, shift, chance * p.next_loss, time)
    probe = p.packets_per_segment
    chance *= 1 - p.next_loss
    lost = lost_round_chance(p, 1 + rounds)
    put(e, 0, 0, shift + p.load - probe, chance * lost, time + p.load)
    put(e, repair, repair, shift + rest - probe, chance * (1 - lost), time + rest)


@allocation_free()
def put_burst_phases(p: LinuxParameters, e: Events, layout: Layout) -> None:
    """Put the phases of consecutive losses for each window."""
    for window in range(p.largest_window + 1):
        for place in range(layout.burst_kinds):
            group = place + 1 if place else 0
            lost = burst_length(p, group) if group else 0
            phase = burst_phase(layout, window, group)
            begin_phase(e, layout, phase, LOST_TWO, window)
            s = layout.sending[phase]
            s.lost = lost
            if window < SMALLEST_WINDOW or group > followed_losses(p, window):
                continue
            if lost:
                _put_burst(p, e, layout, phase, window, lost)
            else:
                time = probe_time(p, window)
                packets = math.ceil(time - SAME_TIME) - 1
                sent = min(packets, window - 1)
                s.duration, s.openings, s.lost = time, sent, window
                put_outage(p, e, layout, window, float(packets - sent), 1.0, time)


@allocation_free()
def _put_burst(p: LinuxParameters, e: Events, layout: Layout, phase: int, window: int, lost: int) -> None:
    """Put the phase of `lost` consecutive losses. It ends when the last of them is retransmitted."""
    wait = burst_wait(p, lost)
    found = p.load + wait
    packets = math.ceil(found - SAME_TIME) - 1
    sent = min(packets, window - 1)
    further = repair_segments(p, lost) - 1
    reduced = reduced_window(p, window)
    repeated = 1 - (1 - p.repeated_loss) * (1 - p.loss) ** further
    repairing = float(further)
    if p.rest_lost:
        before = math.floor(wait - lost + SAME_TIME)
        # The next ACK after the retransmissions lets new packets leave.
        last, until_ack = retransmission_times(p, further + 1, sent + 1 - lost - before, 1.0, reduced, before == 0)
        repairing = max(last, until_ack - 1)
        only_timeout = rest_timeout(p, before, last) / repeated if repeated > 0 else 1.0
    else:
        only_timeout = timeout_chance(p, min(sent - lost + 1, window - 1 - lost), reduced)
    s = layout.sending[phase]
    s.duration, s.wait, s.openings, s.timeout_chance = found, wait, sent, only_timeout
    waiting = packets - sent + repairing
    clean = repair_phase(layout, reduced, REPAIR if waiting > 0 else REPAIR_OPEN)
    more = more_lost(p, max(sent - lost, 0), False)
    put_outcomes(e, layout, repeated, only_timeout, more, 1.0, reduced, clean, waiting, found + repairing)


# The phases of the losses in rounds, where the rest of a round is lost with its first lost segment.
#
# Each group of losses has two phases. The first lasts from the first loss to the last ACK that releases a segment, the
# second from then to the last retransmission: packets that are written then have to wait.


@allocation_free()
def groups_of_round(layout: Layout, segments: int) -> int:
    """Return the number of groups of losses of a round with `segments` segments."""
    return int(min(segments, layout.loss_kinds // 2))


@allocation_free()
def put_rest_losses(
    p: LinuxParameters, e: Events, layout: Layout, number: int, segments: int, whole: bool, clock: AckClock
) -> None:
    """Put the first loss among the segments that the ACKs of one round-trip time release: one event per group."""
    of_round = layout.rounds.window[number]
    groups = groups_of_round(layout, of_round)
    last = groups if whole else max(groups - 1, 1)
    all_chance = all_shift = all_time = 0.0
    for group in range(1, last + 1):
        chance = places = times = 0.0
        most = segments if group == last else most_lost(of_round, groups, group)
        for lost in range(most_lost(of_round, groups, group - 1) + 1, most + 1):
            place = segments + 1 - lost
            if place < 1:
                break
            this = p.loss * (1 - p.loss) ** (place - 1)
            chance += this
            places += this * place
            times += this * ack_time(clock, place)
        if chance > 0:
            target, mean_time = lost_phase(layout, number, 2 * (group - 1)), times / chance
            shift = mean_time - p.packets_per_segment * places / chance
            # The first segment of the next round is lost too: no SACK follows, as after the loss of a whole round.
            next_too = 1.0 if group == groups else p.loss
            all_chance += chance * next_too
            all_shift += chance * next_too * shift
            all_time += chance * next_too * mean_time
            put(e, target, target, shift, chance * (1 - next_too), mean_time)
    if all_chance > 0:
        target = lost_phase(layout, number, 2 * (groups - 1))
        put(e, target, target, all_shift / all_chance, all_chance, all_time / all_chance)


@kernel()
def first_sack(p: LinuxParameters, place: int, clock: AckClock) -> float:
    """Return the time from the due time of the ACK to the first SACK, if segment `place` of a round is lost first.

    The first SACK comes one round-trip time after the first ACK of the next round, as this ACK releases the segment
    that the SACK reports. `place` is 2 or more.
    """
    return float(p.load - (ack_time(clock, place) - ack_time(clock, 1)))


@kernel()
def rest_detection(p: LinuxParameters, place: int, clock: AckClock) -> float:
    """Return the time from the due time of the ACK to the detection, if segment `place` of a round is lost first."""
    spacing = clock.spacing_in_run if clock.run > 1 else clock.spacing_after_run
    return first_sack_wait(p, first_sack(p, place, clock), spacing, place - 1)


@kernel()
def lost_round_probe(p: LinuxParameters, last: float) -> float:
    """Return the time from the first segment of a lost round to the tail loss probe [slots].

    `last` is the time to the last segment. The RTO of the first segment is the upper limit (`tcp_schedule_loss_probe`).
    """
    return float(min(last + probe_interval(p), p.timeout))


@allocation_free()
def put_rest_loss_phases(p: LinuxParameters, e: Events, layout: Layout) -> None:
    """Put the losses in rounds: for each round and group of losses, the phases until the last retransmission."""
    for number in range(layout.rounds.size):
        segments, window = layout.rounds.window[number], layout.rounds.window[layout.rounds.following[number]]
        groups = groups_of_round(layout, segments)
        for group in range(1, layout.loss_kinds // 2 + 1):
            phase = lost_phase(layout, number, 2 * (group - 1))
            begin_phase(e, layout, phase, LOST, window)
            if group <= groups:
                _put_rest_loss(p, e, layout, number, phase, typical_lost(segments, groups, group))
            else:
                begin_phase(e, layout, phase + 1, LOST, window)


@allocation_free()
def _put_rest_loss(p: LinuxParameters, e: Events, layout: Layout, number: int, phase: int, lost: int) -> None:
    """Put the two phases from the first of `lost` losses of a round to the last of their retransmissions."""
    waiting = phase + 1
    segments, window = layout.rounds.window[number], layout.rounds.window[layout.rounds.following[number]]
    clock = clock_of_round(p, layout, number)
    place, grown = segments + 1 - lost, window - segments
    s, later = layout.sending[phase], layout.sending[waiting]
    set_clock(s, clock)
    s.place, s.lost, s.round_trips = place, lost, layout.sending[round_phase(layout, number)].round_trips
    later.lost = 0 if place > 1 else window
    start = ack_time(clock, place)
    if place == 1:
        last = ack_time(clock, segments) - start
        time, openings = lost_round_probe(p, last), segments - 1 + grown
        s.lost, s.duration, s.openings, s.wait = window, time, openings, time - p.load
        put(e, waiting, waiting, last - p.packets_per_segment * openings, 1.0, last)
        begin_phase(e, layout, waiting, LOST, window)
        put_outage(p, e, layout, window, time - last, 1.0, time - last)
        return
    first, wait = first_sack(p, place, clock), rest_detection(p, place, clock)
    spacing = p.load / segments
    # SACKs before the detection: each releases a new segment (`tcp_packets_in_flight`).
    before = min(math.ceil((wait - first) / spacing - SAME_TIME), place - 2)
    openings = segments - 1 + grown + before
    last = p.load - start + ack_time(clock, place - 1)
    if before > 0:
        last = p.load + first + (before - 1) * spacing
    whole = repair_segments(p, lost)
    reduced = reduced_window(p, min(window, p.largest_window))
    sacks = place - 1 + grown - before
    repairing, until_ack = retransmission_times(p, whole, sacks, spacing, reduced, before == 0)
    duration = p.load + wait + max(repairing, until_ack - spacing)
    repeated = 1 - (1 - p.loss) ** whole
    only_timeout = rest_timeout(p, before, repairing) / repeated if repeated > 0 else 1.0
    s.wait, s.duration, s.openings = wait, duration, openings
    s.timeout_chance = later.timeout_chance = only_timeout
    put(e, waiting, waiting, last - p.packets_per_segment * openings, 1.0, last)
    begin_phase(e, layout, waiting, LOST, window)
    clean = repair_phase(layout, reduced, REPAIR)
    more = more_lost(p, place - 1 + before, False)
    rest = duration - last
    put_outcomes(e, layout, repeated, only_timeout, more, 1.0, reduced, clean, rest, rest)


@kernel()
def own_wait(p: LinuxParameters, s: PhaseSending, place: int) -> float:
    """Return the time that a packet waits if segment `place` of a round or recovery is lost first [slots]."""
    clock = clock_of(s)
    if place == 1 and s.kind == ROUND:
        return p.load + lost_round_probe(p, ack_time(clock, int(s.openings)) - ack_time(clock, 1))
    return p.load + rest_detection(p, place, clock)


@kernel()
def repair_times(p: LinuxParameters, s: PhaseSending, window: int) -> tuple[float, float]:
    """Return the times from the first loss and from the first retransmission to the last retransmission [slots]."""
    if s.lost == window:
        repairing = p.load * repair_rounds(repair_segments(p, window))
        return s.duration + p.load + repairing, repairing
    return float(s.duration), float(s.duration - p.load - s.wait)


@allocation_free()
def times_after_rest(p: LinuxParameters, s: PhaseSending, count: int, times: NDArray[np.float64]) -> None:
    """Write the times at which ACKs and SACKs release segments after the first loss of a round [slots]."""
    segments, clock = s.place + s.lost - 1, clock_of(s)
    start = ack_time(clock, s.place)
    for number in range(count):
        ack = s.place + 1 + number
        rounds = 0 if ack <= segments else (1 if ack < segments + s.place else 2)
        ack -= segments if rounds == 1 else (segments + s.place - 1 if rounds == 2 else 0)
        time = rounds * p.load - start + ack_time(clock, ack)
        times[number] = min(time, p.load + s.wait)
