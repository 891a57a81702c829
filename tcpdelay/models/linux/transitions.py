"""The transitions of the chain: slots of an open window, rounds of a limiting window, losses, recoveries, timeouts."""

from __future__ import annotations

from tcpdelay.models.compilation import (
    kernel,
    records,
)
from tcpdelay.models.linux.bursts import (
    add_bursts,
    lost_round_chance,
    repair_rounds,
    repair_segments,
)
from tcpdelay.models.linux.drop_tail_rounds import add_rest_losses, put_rest_losses
from tcpdelay.models.linux.losses import (
    put_loss_in_repair,
    put_losses,
)
from tcpdelay.models.linux.open_transitions import (
    OpenWindow,
    add_later_detections,
    open_growth,
    open_window,
    put_open_window,
    put_repair_of_open_window,
)
from tcpdelay.models.linux.parameters import (
    SMALLEST_WINDOW,
    LinuxParameters,
)
from tcpdelay.models.linux.phases import (
    LOST_REPAIRING,
    OPEN,
    REPAIR,
    REPAIR_MORE,
    REPAIR_OPEN,
    ROUND,
    SENDING,
    TIMEOUT,
    Layout,
    Sending,
    even_repair_phase,
    lost_phase,
    make_layout,
    open_phase,
    put,
    put_repeat,
    put_rounds,
    repair_phase,
    round_phase,
)
from tcpdelay.models.linux.recoveries import put_repairs
from tcpdelay.models.linux.windows import (
    opening_time,
    reduced_window,
    round_openings,
)
from tcpdelay.models.solver.state_space import (
    PHASE,
    TRANSITION,
    Phases,
    Transitions,
)

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
        # RTO backoff: timeout number `stage` takes RTO 2^stage, or the longest timeout [slots].
        wait = min(p.timeout * 2.0**stage, p.longest_timeout)
        last = stage == p.backoffs - 1
        repeats = last and wait == p.longest_timeout
        if repeats:
            row = put_repeat(t, row, stage, wait, 0.0, p.next_loss)
        elif not last:
            row = put(t, row, stage + 1, stage + 1, wait, p.next_loss, wait)
        lasts = wait + p.load * (0.5 + rounds)
        ends = 1.0 if last and not repeats else 1 - p.next_loss
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


@kernel(nogil=True)
def linux_transitions(p: LinuxParameters) -> tuple[Phases, Transitions, Sending, Layout]:
    """Return the phases, the transitions, one `SENDING` record per phase, and the layout."""
    layout = make_layout(p)
    o = open_window(p)
    phases: Phases = records(layout.size + 1, PHASE)
    sending: Sending = records(layout.size, SENDING)
    t: Transitions = records((TRANSITIONS_PER_PHASE + 2 * p.followed_losses) * layout.size, TRANSITION)
    sending.round_trips[:] = ROUND_TRIPS_TO_ROUND
    sending.written_later[:] = 1.0
    row = _timeouts(p, t, layout, phases, sending, o.needed)
    for window in range(p.largest_window + 1):
        for kind in range(REPAIR_MORE, REPAIR_OPEN + 1):
            phase = repair_phase(layout, window, kind)
            phases.window[phase], phases.recovery[phase], sending.kind[phase] = window, kind, kind
            phases.first_transition[phase] = row
        even = even_repair_phase(layout, window)
        phases.window[even], phases.recovery[even], sending.kind[even] = window, REPAIR, REPAIR
        phases.first_transition[even] = row
        if window >= SMALLEST_WINDOW:
            row = put_repairs(p, o, t, row, layout, phases, sending, window)
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
            row = put_loss_in_repair(p, o, t, row, layout, phases, sending, window)
    if p.rest_lost:
        row = add_rest_losses(p, t, row, layout, phases, sending)
    else:
        row = put_losses(p, o, t, row, layout, phases, sending)
    row = add_bursts(p, t, row, layout, phases, sending)
    row = add_later_detections(p, o, t, row, layout, phases, sending)
    phases.first_transition[layout.size] = row
    return phases, t[:row], sending, layout
