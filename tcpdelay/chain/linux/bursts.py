"""Loss bursts and losses in rounds: their length, detection and repair, and the phases of the chain for them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

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
    OPEN,
    REPAIR,
    REPAIR_OPEN,
    ROUND,
    Layout,
    PhaseSending,
    Sending,
    burst_phase,
    lost_phase,
    open_phase,
    put,
    put_outcomes,
    repair_phase,
    round_phase,
)
from tcpdelay.chain.linux.windows import opening_time, reduced_window, round_openings
from tcpdelay.chain.solver.state_space import Phases, Transitions
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


@kernel()
def put_bursts(
    p: LinuxParameters,
    t: Transitions,
    row: int,
    layout: Layout,
    window: int,
    shift: float,
    chance: float,
    duration: float,
) -> int:
    """Append the first loss in an open window: an event per number of consecutive losses; LOST_OPEN if independent."""
    for lost in range(1, followed_losses(p, window) + 1):
        target = open_phase(layout, window, LOST_OPEN) if lost == 1 else burst_phase(layout, window, lost)
        row = put(t, row, target, target, shift, chance * burst_chance(p, window, lost), duration)
    target = burst_phase(layout, window, 0)
    return put(t, row, target, target, shift, chance * outage_chance(p, window), duration)


@kernel()
def put_outage(
    p: LinuxParameters, t: Transitions, row: int, layout: Layout, window: int, shift: float, chance: float, time: float
) -> int:
    """Append the outcomes of an outage: the probe at `time` detects the losses, or it is lost and a timeout follows.

    `tcp_send_loss_probe`, then slow start or `tcp_retransmit_timer` (RFC 8985, 7.3 and 7.4).
    """
    rounds = repair_rounds(repair_segments(p, window))
    rest = p.load * (1 + rounds)
    repair = repair_phase(layout, reduced_window(p, window), REPAIR)
    row = put(t, row, 0, 0, shift, chance * p.next_loss, time)
    probe = p.packets_per_segment
    chance *= 1 - p.next_loss
    lost = lost_round_chance(p, 1 + rounds)
    row = put(t, row, 0, 0, shift + p.load - probe, chance * lost, time + p.load)
    return put(t, row, repair, repair, shift + rest - probe, chance * (1 - lost), time + rest)


@kernel()
def add_bursts(p: LinuxParameters, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Sending) -> int:
    """Append the phases of consecutive losses for each window."""
    for window in range(p.largest_window + 1):
        for place in range(layout.burst_kinds):
            group = place + 1 if place else 0
            lost = burst_length(p, group) if group else 0
            phase = burst_phase(layout, window, group)
            phases.window[phase], phases.recovery[phase], sending.kind[phase] = window, LOST_TWO - OPEN, LOST_TWO
            phases.first_transition[phase] = row
            sending.lost[phase] = lost
            if window < SMALLEST_WINDOW or group > followed_losses(p, window):
                continue
            if lost:
                row = _add_burst(p, t, row, layout, sending, phase, window, lost)
            else:
                time = probe_time(p, window)
                packets = math.ceil(time - SAME_TIME) - 1
                sent = min(packets, window - 1)
                sending.duration[phase], sending.openings[phase], sending.lost[phase] = time, sent, window
                row = put_outage(p, t, row, layout, window, float(packets - sent), 1.0, time)
    return row


@kernel()
def _add_burst(
    p: LinuxParameters, t: Transitions, row: int, layout: Layout, sending: Sending, phase: int, window: int, lost: int
) -> int:
    """Append the phase of `lost` consecutive losses. It ends when the last of them is retransmitted."""
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
    sending.duration[phase], sending.wait[phase], sending.openings[phase] = found, wait, sent
    sending.timeout_chance[phase] = only_timeout
    waiting = packets - sent + repairing
    clean = repair_phase(layout, reduced, REPAIR if waiting > 0 else REPAIR_OPEN)
    more = more_lost(p, max(sent - lost, 0), False)
    return put_outcomes(t, row, layout, repeated, only_timeout, more, 1.0, reduced, clean, waiting, found + repairing)


# The phases of the losses in rounds, where the rest of a round is lost with its first lost segment.
#
# Each group of losses has two phases. The first lasts from the first loss to the last ACK that releases a segment, the
# second from then to the last retransmission: packets that are written then have to wait.


@kernel()
def groups_of_round(layout: Layout, segments: int) -> int:
    """Return the number of groups of losses of a round with `segments` segments."""
    return int(min(segments, layout.loss_kinds // 2))


@kernel()
def put_rest_losses(
    p: LinuxParameters,
    t: Transitions,
    row: int,
    layout: Layout,
    number: int,
    segments: int,
    whole: bool,
    run: int,
    spacing_in_run: float,
    spacing_after_run: float,
) -> int:
    """Append the first loss among the segments that the ACKs of one round-trip time release: one event per group."""
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
            times += this * opening_time(place, run, spacing_in_run, spacing_after_run)
        if chance > 0:
            target, mean_time = lost_phase(layout, number, 2 * (group - 1)), times / chance
            shift = mean_time - p.packets_per_segment * places / chance
            # The first segment of the next round is lost too: no SACK follows, as after the loss of a whole round.
            next_too = 1.0 if group == groups else p.loss
            all_chance += chance * next_too
            all_shift += chance * next_too * shift
            all_time += chance * next_too * mean_time
            row = put(t, row, target, target, shift, chance * (1 - next_too), mean_time)
    if all_chance > 0:
        target = lost_phase(layout, number, 2 * (groups - 1))
        row = put(t, row, target, target, all_shift / all_chance, all_chance, all_time / all_chance)
    return row


@kernel()
def first_sack(p: LinuxParameters, place: int, run: int, spacing_in_run: float, spacing_after_run: float) -> float:
    """Return the time from the due time of the ACK to the first SACK, if segment `place` of a round is lost first.

    The first SACK comes one round-trip time after the first ACK of the next round, as this ACK releases the segment
    that the SACK reports. `place` is 2 or more.
    """
    begin = opening_time(1, run, spacing_in_run, spacing_after_run)
    return float(p.load - (opening_time(place, run, spacing_in_run, spacing_after_run) - begin))


@kernel()
def rest_detection(p: LinuxParameters, place: int, run: int, spacing_in_run: float, spacing_after_run: float) -> float:
    """Return the time from the due time of the ACK to the detection, if segment `place` of a round is lost first."""
    first = first_sack(p, place, run, spacing_in_run, spacing_after_run)
    return first_sack_wait(p, first, spacing_in_run if run > 1 else spacing_after_run, place - 1)


@kernel()
def lost_round_probe(p: LinuxParameters, last: float) -> float:
    """Return the time from the first segment of a lost round to the tail loss probe [slots].

    `last` is the time to the last segment. The RTO of the first segment is the upper limit (`tcp_schedule_loss_probe`).
    """
    return float(min(last + probe_interval(p), p.timeout))


@kernel()
def add_rest_losses(
    p: LinuxParameters, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Sending
) -> int:
    """Append the losses in rounds: for each round and group of losses, the phase until the last retransmission."""
    for number in range(layout.rounds.size):
        segments = layout.rounds.window[number]
        groups = groups_of_round(layout, segments)
        for kind in range(layout.loss_kinds):
            phase = lost_phase(layout, number, kind)
            phases.window[phase] = layout.rounds.window[layout.rounds.following[number]]
            phases.recovery[phase], sending.kind[phase] = LOST, LOST
        for group in range(1, layout.loss_kinds // 2 + 1):
            phase = lost_phase(layout, number, 2 * (group - 1))
            phases.first_transition[phase] = phases.first_transition[phase + 1] = row
            if group <= groups:
                lost = typical_lost(segments, groups, group)
                row = _add_rest_loss(p, t, row, layout, phases, sending, number, phase, lost)
    return row


@kernel()
def _add_rest_loss(
    p: LinuxParameters,
    t: Transitions,
    row: int,
    layout: Layout,
    phases: Phases,
    sending: Sending,
    number: int,
    phase: int,
    lost: int,
) -> int:
    """Append the two phases from the first of `lost` losses of a round to the last of their retransmissions."""
    waiting = phase + 1
    following = layout.rounds.following[number]
    segments, window = layout.rounds.window[number], layout.rounds.window[following]
    run, spacing_in_run, spacing_after_run = round_openings(
        p, segments, layout.rounds.reduced[number], layout.rounds.all_in_run[number]
    )
    place, grown = segments + 1 - lost, window - segments
    sending.run[phase], sending.place[phase], sending.lost[phase] = run, place, lost
    sending.spacing_in_run[phase], sending.spacing_after_run[phase] = spacing_in_run, spacing_after_run
    sending.round_trips[phase] = sending.round_trips[round_phase(layout, number)]
    sending.lost[waiting] = 0 if place > 1 else window
    begin = opening_time(place, run, spacing_in_run, spacing_after_run)
    if place == 1:
        last = opening_time(segments, run, spacing_in_run, spacing_after_run) - begin
        time, openings = lost_round_probe(p, last), segments - 1 + grown
        sending.lost[phase], sending.duration[phase], sending.openings[phase] = window, time, openings
        sending.wait[phase] = time - p.load
        row = put(t, row, waiting, waiting, last - p.packets_per_segment * openings, 1.0, last)
        phases.first_transition[waiting] = row
        return put_outage(p, t, row, layout, window, time - last, 1.0, time - last)
    first = first_sack(p, place, run, spacing_in_run, spacing_after_run)
    wait = rest_detection(p, place, run, spacing_in_run, spacing_after_run)
    spacing = p.load / segments
    # SACKs before the detection: each releases a new segment (`tcp_packets_in_flight`).
    before = min(math.ceil((wait - first) / spacing - SAME_TIME), place - 2)
    openings = segments - 1 + grown + before
    last = p.load - begin + opening_time(place - 1, run, spacing_in_run, spacing_after_run)
    if before > 0:
        last = p.load + first + (before - 1) * spacing
    whole = repair_segments(p, lost)
    reduced = reduced_window(p, min(window, p.largest_window))
    sacks = place - 1 + grown - before
    repairing, until_ack = retransmission_times(p, whole, sacks, spacing, reduced, before == 0)
    duration = p.load + wait + max(repairing, until_ack - spacing)
    repeated = 1 - (1 - p.loss) ** whole
    only_timeout = rest_timeout(p, before, repairing) / repeated if repeated > 0 else 1.0
    sending.wait[phase], sending.duration[phase], sending.openings[phase] = wait, duration, openings
    sending.timeout_chance[phase] = sending.timeout_chance[waiting] = only_timeout
    row = put(t, row, waiting, waiting, last - p.packets_per_segment * openings, 1.0, last)
    phases.first_transition[waiting] = row
    clean = repair_phase(layout, reduced, REPAIR)
    more = more_lost(p, place - 1 + before, False)
    rest = duration - last
    return put_outcomes(t, row, layout, repeated, only_timeout, more, 1.0, reduced, clean, rest, rest)


@kernel()
def own_wait(p: LinuxParameters, s: PhaseSending, place: int) -> float:
    """Return the time that a packet waits if segment `place` of a round or recovery is lost first [slots]."""
    if place == 1 and s.kind == ROUND:
        last = opening_time(int(s.openings), s.run, s.spacing_in_run, s.spacing_after_run)
        return p.load + lost_round_probe(p, last - opening_time(1, s.run, s.spacing_in_run, s.spacing_after_run))
    return p.load + rest_detection(p, place, s.run, s.spacing_in_run, s.spacing_after_run)


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
    segments = s.place + s.lost - 1
    begin = opening_time(s.place, s.run, s.spacing_in_run, s.spacing_after_run)
    for number in range(count):
        ack = s.place + 1 + number
        rounds = 0 if ack <= segments else (1 if ack < segments + s.place else 2)
        ack -= segments if rounds == 1 else (segments + s.place - 1 if rounds == 2 else 0)
        time = rounds * p.load - begin + opening_time(ack, s.run, s.spacing_in_run, s.spacing_after_run)
        times[number] = min(time, p.load + s.wait)
