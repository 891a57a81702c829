"""The phases of the losses in rounds, where the rest of a round is lost with its first lost segment.

Each group of losses has two phases. The first lasts from the first loss to the last ACK that releases a segment, the
second from then to the last retransmission: packets that are written then have to wait.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import allocation_free, kernel
from tcpdelay.models.linux.bursts import more_lost, probe_interval, put_outage, repair_rounds, repair_segments
from tcpdelay.models.linux.drop_tail import (
    first_sack_wait,
    most_lost,
    rest_timeout,
    retransmission_times,
    typical_lost,
)
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.models.linux.phases import (
    LOST,
    REPAIR,
    ROUND,
    Layout,
    Sending,
    lost_phase,
    put,
    put_outcomes,
    repair_phase,
    round_phase,
)
from tcpdelay.models.linux.windows import opening_time, reduced_window, round_openings
from tcpdelay.models.solver.state_space import Phases, Transitions


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
    """Append the first loss among the segments that the ACKs of one round-trip time release: one event per group.

    Parameters
    ----------
    number : int
        Round with the phases of these losses.
    segments : int
        Number of segments.
    whole : bool
        Whether no SACK follows if all of them are lost. In a recovery the ACKs of the retransmissions follow.
    run, spacing_in_run, spacing_after_run
        Spacing of the ACKs, as in `Openings`.
    """
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
    that the SACK reports. `place` is 2 or more: a round that is lost as a whole has no SACK.
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
def own_wait(p: LinuxParameters, s: Sending, place: int) -> float:
    """Return the time that a packet waits if segment `place` of a round or recovery is lost first [slots].

    In a round that is lost as a whole, it waits for the tail loss probe and its ACK.
    """
    if place == 1 and s.kind == ROUND:
        last = opening_time(int(s.openings), s.run, s.spacing_in_run, s.spacing_after_run)
        return p.load + lost_round_probe(p, last - opening_time(1, s.run, s.spacing_in_run, s.spacing_after_run))
    return p.load + rest_detection(p, place, s.run, s.spacing_in_run, s.spacing_after_run)


@kernel()
def repair_times(p: LinuxParameters, s: Sending, window: int) -> tuple[float, float]:
    """Return the times from the first loss and from the first retransmission to the last retransmission [slots]."""
    if s.lost == window:
        repairing = p.load * repair_rounds(repair_segments(p, window))
        return s.duration + p.load + repairing, repairing
    return float(s.duration), float(s.duration - p.load - s.wait)


@allocation_free()
def times_after_rest(p: LinuxParameters, s: Sending, count: int, times: NDArray[np.float64]) -> None:
    """Write the times at which ACKs release segments after the first loss of a round [slots].

    The remaining ACKs of the round come first, then those of the next round, up to the place of the loss. SACKs before
    the detection release segments as well.
    """
    segments = s.place + s.lost - 1
    begin = opening_time(s.place, s.run, s.spacing_in_run, s.spacing_after_run)
    for number in range(count):
        ack = s.place + 1 + number
        rounds = 0 if ack <= segments else (1 if ack < segments + s.place else 2)
        ack -= segments if rounds == 1 else (segments + s.place - 1 if rounds == 2 else 0)
        time = rounds * p.load - begin + opening_time(ack, s.run, s.spacing_in_run, s.spacing_after_run)
        times[number] = min(time, p.load + s.wait)
