"""The transitions of the chain: slots of an open window, rounds of a limiting window, losses, recoveries, timeouts."""

from __future__ import annotations

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.linux.bursts import (
    add_bursts,
    last_loss_weight,
    lost_round_chance,
    more_lost,
    outage_chance,
    probe_interval,
    put_outage,
    repair_rounds,
    repair_segments,
)
from tcpdelay.models.linux.detection import detection_wait, mean_detection_wait, timeout_chance
from tcpdelay.models.linux.drop_tail_rounds import add_rest_losses, put_rest_losses
from tcpdelay.models.linux.open_transitions import (
    OpenWindow,
    add_later_detections,
    open_growth,
    open_window,
    put_open_loss,
    put_open_window,
    put_repair_of_open_window,
)
from tcpdelay.models.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.phases import (
    LOST,
    LOST_REPAIRING,
    OPEN,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    REPAIR_OPEN,
    ROUND,
    SENDING,
    TIMEOUT,
    Layout,
    Sending,
    lost_phase,
    make_layout,
    open_phase,
    put,
    put_outcomes,
    put_repeat,
    put_rounds,
    repair_phase,
    round_phase,
)
from tcpdelay.models.linux.windows import SMALL_PACKETS, opening_time, reduced_window, round_openings, window_before
from tcpdelay.models.solver.state_space import PHASE, TRANSITION, Phases, Transitions

GROUPS = 3
"""Number of parts of a round. The chain distinguishes in which part the first loss occurs."""
ROUND_TRIPS_TO_ROUND = 2
"""Round-trip times from a write in an open window to the ACKs of the first round; the second is the recovery."""
TRANSITIONS_PER_PHASE = 16
"""Capacity: at most two windows with four outcomes each, and two whole shifts for each outcome."""


@kernel()
def _timeouts(
    p: LinuxParameters, t: Transitions, layout: Layout, phases: Phases, sending: Sending, opened: float
) -> int:
    """Append the phases of consecutive timeouts; return the number of transitions.

    `tcp_retransmit_timer` doubles the timeout (RFC 6298, 5.5); `tcp_enter_loss` begins slow start.
    """
    row = 0
    window, rounds = p.largest_window if p.bbr else SMALLEST_WINDOW, 0
    if p.followed_losses:
        # Most timeouts follow an outage. Slow start then retransmits the window.
        window = reduced_window(p, p.flight + 1)
        rounds = repair_rounds(repair_segments(p, p.flight + 1))
    for stage in range(p.backoffs):
        phases.first_transition[stage] = row
        phases.recovery[stage] = stage + 1
        sending.kind[stage] = TIMEOUT
        # RTO backoff: timeout number `stage` takes RTO 2^stage [slots].
        wait = p.timeout * 2.0**stage
        last = stage == p.backoffs - 1
        if not last:
            row = put(t, row, stage + 1, stage + 1, wait, p.next_loss, wait)
        lasts = wait + p.load * (0.5 + rounds)
        ends = 1.0 if last else 1 - p.next_loss
        lost = lost_round_chance(p, rounds)
        if stage == 0:
            row = put_repeat(t, row, stage, wait + p.load, 0.0, ends * lost)
        else:
            row = put(t, row, 0, 0, wait + p.load, ends * lost, wait + p.load)
        ends *= 1 - lost
        row = put_rounds(t, row, layout, window, False, opened <= window, lasts, ends, lasts)
    return row


@kernel()
def _first_losses(
    p: LinuxParameters,
    t: Transitions,
    row: int,
    run: int,
    spacing_in_run: float,
    spacing_after_run: float,
    window: int,
    in_run: int,
    other: int,
) -> int:
    """Append the first loss of a round: one event for each part of the round.

    Segment number `place` is the first lost segment with the probability p (1 - p)^(place - 1). The event has the mean
    time of its part [slots]. The backlog changes by the packets written in this time minus the packets that have left.

    `in_run` and `other` are the phases after the loss of a segment of the run, and of a later segment.
    """
    chance, places, times, alive = 0.0, 0.0, 0.0, 1.0
    middle = run + (window - run + 1) // 2
    for place in range(1, window + 1):
        this = alive * p.loss
        alive *= 1 - p.loss
        chance += this
        places += this * place
        times += this * opening_time(place, run, spacing_in_run, spacing_after_run)
        if chance > 0 and place in (run, middle, window):
            target = in_run if place <= run else other
            mean_time = times / chance
            row = put(t, row, target, target, mean_time - p.packets_per_segment * places / chance, chance, mean_time)
            chance = places = times = 0.0
    return row


@kernel()
def _repairs(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    phases: Phases,
    sending: Sending,
    window: int,
) -> int:
    """Append the phases of a recovery with the reduced window `window` [segments].

    In recovery RACK's reordering window is 0 (`tcp_rack_reo_wnd`; RFC 8985, 6.2): the ACK of the next later segment
    detects a loss. PRR releases one segment per ACK (`tcp_cwnd_reduction`; RFC 6937, 3). The recovery ends with the ACK
    of the last retransmission (`tcp_fastretrans_alert`).
    """
    load, per_segment, loss = p.load, p.packets_per_segment, p.loss
    opened = window >= o.needed
    # The retransmission takes one segment of the window.
    spacing_after_run = load / max(window - 1, 1) if not opened else min(1.0, load) / p.segments_per_packet
    # Time between the segments of the flight in which the losses are, before the reduction [slots].
    before = max(1.0 / p.segments_per_packet, load / window_before(p, window))
    alone = 0.0 if opened else before
    wait = detection_wait(p, 0, alone, max(alone, spacing_after_run / 2)) if alone > 0 else o.wait
    # After the first round of a recovery BBR paces again; PRR continues (`bbr_set_cwnd_to_recover_or_restore`).
    paced = spacing_after_run / p.pacing
    plain = repair_phase(layout, window, REPAIR)
    again = repair_phase(layout, window, REPAIR_AGAIN)
    only_timeout = timeout_chance(p, window - 1, window)
    for kind in (REPAIR_MORE, REPAIR_AGAIN):
        phase = repair_phase(layout, window, kind)
        phases.first_transition[phase] = row
        if kind == REPAIR_MORE:
            # The phase lasts from the detection of the first loss to that of the last loss. Any of the segments sent
            # before the first detection, RTT + wait, may be the last loss. The segment `place` behind the first loss is
            # detected by the ACK of its successor, at (place + 1) before; the first loss was detected at `wait`.
            under_way = int(max((load + wait) / before + SAME_TIME, 1.0))
            weight = duration = openings = 0.0
            for place in range(1, under_way + 1):
                chance = last_loss_weight(p, place, under_way)
                lasts = max((place + 1) * before - wait, 0.0)
                weight += chance
                duration += chance * lasts
                # ACKs of this time that release a new segment: all but the ACK that releases the retransmission.
                openings += chance * max(lasts / spacing_after_run - 1, 0.0)
            duration /= weight
            openings /= weight
            if p.rest_lost:
                # The second loss is in the next round, whose rest is lost. The SACKs of the round after it detect this.
                further = repair_segments(p, (window + 1) // 2) - 1
                duration, openings = load + further * spacing_after_run, (window - 1) / 2
        else:
            # The ACK of the first segment sent after the lost retransmission, one RTT and one ACK later [slots].
            duration = load + spacing_after_run
            openings = max(duration / paced - 1, 0.0)
        # The retransmission or at least one new segment is lost.
        lost = 1 - (1 - loss) ** (openings + 1)
        if p.followed_losses:
            lost = 1 - (1 - p.repeated_loss) * (1 - loss) ** openings
        timeout = p.repeated_loss * only_timeout
        lost_again = max(lost - timeout, 0.0)
        shift = duration - per_segment * openings
        sending.duration[phase], sending.openings[phase] = duration, openings
        sending.timeout_chance[phase] = only_timeout
        sending.spacing_after_run[phase] = spacing_after_run if kind == REPAIR_MORE else paced
        row = put(t, row, 0, 0, shift, timeout, duration)
        if kind == REPAIR_MORE:
            row = put(t, row, again, again, shift, lost_again, duration)
        else:
            row = put_repeat(t, row, phase, shift, per_segment * openings, lost_again)
        row = put(t, row, plain, plain, shift, 1 - lost_again - timeout, duration)

    phases.first_transition[plain] = row
    openings = max(int(load / paced + 0.5), 1)
    sending.duration[plain], sending.openings[plain] = load, openings
    sending.spacing_after_run[plain] = paced
    lost = open_phase(layout, window, LOST_REPAIRING)
    if p.rest_lost and not opened:
        first = layout.first_rounds[window].after_repair
        row = put_rest_losses(p, t, row, layout, first, openings, False, 0, 0.0, paced)
        return put_rounds(
            t, row, layout, window, False, opened, load - per_segment * openings, (1 - loss) ** openings, load
        )
    # The first loss of a new segment, by the third of the RTT in which an ACK releases it, at its mean time [slots].
    done = 0
    groups = min(openings, GROUPS)
    for group in range(groups):
        end = openings * (group + 1) // groups
        chance = places = 0.0
        for place in range(done, end):
            this = loss * (1 - loss) ** place
            chance += this
            places += this * (place + 1)
        if chance > 0:
            mean = places / chance
            shift, mean_time = mean * (paced - per_segment), mean * paced
            if opened:
                row = put_open_loss(p, o, t, row, layout, window, chance, shift, mean_time)
            else:
                row = put(t, row, lost, lost, shift, chance, mean_time)
        done = end
    kept = (1 - loss) ** openings
    return put_rounds(t, row, layout, window, False, opened, load - per_segment * openings, kept, load)


@kernel()
def _put_lost(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    sending: Sending,
    phase: int,
    window: int,
    grown: float,
    step: float,
    last: float,
    wait: float,
    added: float,
) -> int:
    """Append the phase of a loss while the window limits the sender.

    RACK detects the loss (`tcp_rack_detect_loss`; RFC 8985, 6.2), the recovery reduces the window once
    (`tcp_init_cwnd_reduction`), and the segment is retransmitted.

    Parameters
    ----------
    window : int
        Window at the beginning of the round in which the loss is detected [segments].
    grown : float
        Mean growth from the beginning of this round to the detection [segments].
    step : float
        Mean time between ACKs that release a segment [slots].
    last : float
        Time from the last of these ACKs to the detection [slots]. Packets written in this time wait until the recovery.
    wait : float
        Time from the due time of the ACK to the detection [slots].
    added : float
        ACKs that release a segment in addition to one per `step`.
    """
    duration = p.load + wait
    reduced = reduced_window(p, window)
    # One ACK per step, without that of the lost segment and the one that releases the retransmission.
    openings = max(int(duration / step - 2 + added + SAME_TIME), 0)
    only_timeout = timeout_chance(p, window - 2, reduced)
    sending.duration[phase], sending.wait[phase], sending.openings[phase] = duration, wait, openings
    sending.timeout_chance[phase] = only_timeout
    if sending.spacing_after_run[phase] == 0:
        sending.spacing_after_run[phase] = step
    until = max(duration - last, p.load / 2) if reduced < o.needed else duration
    shift = until - p.packets_per_segment * openings
    outage = outage_chance(p, window)
    if outage > 0:
        # The tail loss probe follows the last segment of the window, at the RTO at the latest [slots].
        time = min((window - 1) * step + probe_interval(p), p.timeout)
        row = put_outage(p, t, row, layout, window, time - p.packets_per_segment * openings, outage, time)
    more = more_lost(p, openings, True)
    # The window at detection is a whole number of segments: of two, so that their mean is window + grown.
    whole = int(grown)
    for further in range(2):
        share = (1 - outage) * (grown - whole if further else 1 - grown + whole)
        reduced = reduced_window(p, min(window + whole + further, p.largest_window))
        clean = repair_phase(layout, reduced, REPAIR)
        row = put_outcomes(t, row, layout, p.repeated_loss, only_timeout, more, share, reduced, clean, shift, until)
    return row


@kernel()
def _loss_in_repair(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    phases: Phases,
    sending: Sending,
    window: int,
) -> int:
    """Append the phase of a loss during a recovery."""
    phase = open_phase(layout, window, LOST_REPAIRING)
    phases.first_transition[phase] = row
    step = p.load / window
    wait = mean_detection_wait(p, detection_wait(p, 0, step, step), step)
    grown = layout.rounds.grown[layout.first_rounds[window].after_repair]
    return _put_lost(p, o, t, row, layout, sending, phase, window, grown, step, step, wait, 0.5)


@kernel()
def _rounds(
    p: LinuxParameters, o: OpenWindow, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Sending
) -> int:
    """Append the rounds, in which the window limits the sender.

    Each ACK releases a segment (ACK clock; `tcp_write_xmit`, `tcp_cwnd_test`). The window of the next round is that of
    `growing_windows`.
    """
    round_trips = ROUND_TRIPS_TO_ROUND
    for number in range(layout.rounds.size):
        window, following = layout.rounds.window[number], layout.rounds.following[number]
        continued = number > 0 and layout.rounds.following[number - 1] == number
        round_trips = round_trips + 1 if continued else ROUND_TRIPS_TO_ROUND
        run, spacing_in_run, spacing_after_run = round_openings(
            p, window, layout.rounds.reduced[number], layout.rounds.all_in_run[number]
        )
        next_window = layout.rounds.window[following]
        phase, next_phase = round_phase(layout, number), round_phase(layout, following)
        phases.first_transition[phase] = row
        sending.run[phase] = run
        sending.spacing_in_run[phase], sending.spacing_after_run[phase] = spacing_in_run, spacing_after_run
        sending.duration[phase], sending.openings[phase] = p.load, window
        sending.round_trips[phase] = round_trips
        if p.rest_lost:
            row = put_rest_losses(p, t, row, layout, number, window, True, run, spacing_in_run, spacing_after_run)
        else:
            in_run, other = lost_phase(layout, number, 1), lost_phase(layout, number, 0)
            row = _first_losses(p, t, row, run, spacing_in_run, spacing_after_run, window, in_run, other)
        empty = open_phase(layout, next_window, OPEN) if next_window >= o.needed else next_phase
        kept = (1 - p.loss) ** window
        row = put(t, row, next_phase, empty, p.load - p.packets_per_segment * window, kept, p.load)
    return row


@kernel()
def _losses(
    p: LinuxParameters, o: OpenWindow, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Sending
) -> int:
    """Append the losses in rounds: for each round a loss in the run, and a loss of a later segment."""
    small = p.packets_per_segment >= SMALL_PACKETS
    for number in range(layout.rounds.size):
        sent, following = layout.rounds.window[number], layout.rounds.following[number]
        run, spacing_in_run, spacing_after_run = round_openings(
            p, sent, layout.rounds.reduced[number], layout.rounds.all_in_run[number]
        )
        window = layout.rounds.window[following]
        for in_run in range(2):
            phase = lost_phase(layout, number, in_run)
            phases.window[phase], phases.first_transition[phase] = window, row
            phases.recovery[phase], sending.kind[phase] = LOST, LOST
            sending.run[phase] = run
            sending.spacing_in_run[phase], sending.spacing_after_run[phase] = spacing_in_run, spacing_after_run
            sending.in_run[phase], sending.round_trips[phase] = in_run, sending.round_trips[round_phase(layout, number)]
            # The ACKs after the due time detect the loss: after a loss in the run, on average half of the run's.
            if in_run:
                close_acks, step, last = run // 2, spacing_in_run, spacing_in_run
            else:
                step = last = spacing_in_run if small and run else spacing_after_run
                close_acks = run if small else 0
            wait = mean_detection_wait(p, detection_wait(p, close_acks, spacing_in_run, spacing_after_run), step)
            mean_step = p.load / sent
            if not small:
                last = mean_step
            added = 0.5 + window - sent
            grown = layout.rounds.grown[following]
            row = _put_lost(p, o, t, row, layout, sending, phase, window, grown, mean_step, last, wait, added)
    return row


@kernel(nogil=True)
def linux_transitions(p: LinuxParameters) -> tuple[Phases, Transitions, Sending, Layout]:
    """Return the phases, the transitions, one `SENDING` record per phase, and the layout."""
    layout = make_layout(p)
    o = open_window(p)
    phases: Phases = records(layout.size + 1, PHASE)
    sending: Sending = records(layout.size, SENDING)
    t: Transitions = records((TRANSITIONS_PER_PHASE + 2 * p.followed_losses) * layout.size, TRANSITION)
    sending.round_trips[:] = ROUND_TRIPS_TO_ROUND
    row = _timeouts(p, t, layout, phases, sending, o.needed)
    for window in range(p.largest_window + 1):
        for kind in range(REPAIR_MORE, REPAIR_OPEN + 1):
            phase = repair_phase(layout, window, kind)
            phases.window[phase], phases.recovery[phase], sending.kind[phase] = window, kind, kind
            phases.first_transition[phase] = row
        if window >= SMALLEST_WINDOW:
            row = _repairs(p, o, t, row, layout, phases, sending, window)
            row = put_repair_of_open_window(p, o, t, row, layout, phases, sending, window, 0)
    for number in range(layout.rounds.size):
        phase = round_phase(layout, number)
        phases.window[phase], sending.kind[phase] = layout.rounds.window[number], ROUND
    row = _rounds(p, o, t, row, layout, phases, sending)
    growth, step = open_growth(p)
    for window in range(p.largest_window + 1):
        for kind in range(OPEN, LOST_REPAIRING + 1):
            phase = open_phase(layout, window, kind)
            phases.window[phase], phases.recovery[phase], sending.kind[phase] = window, kind - OPEN, kind
            phases.first_transition[phase] = row
        if window >= SMALLEST_WINDOW:
            row = put_open_window(p, o, t, row, layout, phases, sending, window, growth[window], step[window])
            row = _loss_in_repair(p, o, t, row, layout, phases, sending, window)
    if p.rest_lost:
        row = add_rest_losses(p, t, row, layout, phases, sending)
    else:
        row = _losses(p, o, t, row, layout, phases, sending)
    row = add_bursts(p, t, row, layout, phases, sending)
    row = add_later_detections(p, o, t, row, layout, phases, sending)
    phases.first_transition[layout.size] = row
    return phases, t[:row], sending, layout
