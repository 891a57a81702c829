"""Transitions of the chain from a loss to its detection while the window limits the sender."""

from __future__ import annotations

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.bursts import (
    more_lost,
    outage_chance,
    probe_interval,
    put_outage,
)
from tcpdelay.models.linux.detection import (
    detection_wait,
    mean_detection_wait,
    timeout_chance,
)
from tcpdelay.models.linux.open_transitions import OpenWindow
from tcpdelay.models.linux.parameters import (
    SAME_TIME,
    LinuxParameters,
)
from tcpdelay.models.linux.phases import (
    LOST,
    LOST_REPAIRING,
    REPAIR,
    Layout,
    Sending,
    even_repair_phase,
    lost_phase,
    open_phase,
    put_outcomes,
    repair_phase,
    round_phase,
)
from tcpdelay.models.linux.windows import (
    SMALL_PACKETS,
    reduced_window,
    round_openings,
    window_before,
)
from tcpdelay.models.solver.state_space import (
    Phases,
    Transitions,
)
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD


@kernel()
def sacks_before(wait: float, close: int, near: float, far: float) -> int:
    """Return the number of SACKs before the detection, at most 2, as the third SACK detects a loss.

    Of the SACKs, `close` follow each other at the distance `near`, later ones at the distance `far` [slots].
    """
    time = 0.0
    for place in range(1, DUPLICATE_THRESHOLD):
        time += near if place <= close else far
        if time >= wait - SAME_TIME and time > 0:
            return place - 1
    return DUPLICATE_THRESHOLD - 1


@kernel()
def detection_in_round(
    p: LinuxParameters, in_run: bool, window: int, run: int, near: float, far: float
) -> tuple[float, float]:
    """Return the mean wait for the detection of a loss in a round [slots], and the mean number of SACKs before it.

    The lost segment is any of the run, or any of the later segments of the round.
    """
    wait = sacks = 0.0
    places = run if in_run else window - run
    for place in range(1, places + 1):
        close = run - place
        if not in_run:
            # The run of the next round, which has grown, follows the last of these segments.
            close = run + 1 if place == places else 0
        this = detection_wait(p, close, near, far)
        wait += mean_detection_wait(p, this, near if close else far) / places
        sacks += sacks_before(this, close, near, far) / places
    return wait, sacks


@kernel()
def last_ack(p: LinuxParameters, o: OpenWindow, reduced: int) -> float:
    """Return the time from the last ACK that releases a segment to the detection of the loss [slots].

    Where segments are full, it is the mean distance of ACKs before the window is reduced to `reduced`. LOST ends with
    this ACK, so that REPAIR begins with it.
    """
    if reduced >= o.needed or not p.full_segments:
        return 0.0
    return float(max(1.0 / p.segments_per_packet, p.load / window_before(p, reduced)))


@kernel()
def _acks_until(duration: float, step: float, added: float) -> int:
    """Return the number of ACKs that release a segment before the detection.

    There is one ACK per `step`, without that of the lost segment and the one that releases the retransmission, and
    `added` in addition.
    """
    return max(int(duration / step - 2 + added + SAME_TIME), 0)


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
    openings: int,
    last: float,
    wait: float,
    even: bool,
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
    openings : int
        Number of these ACKs before the detection.
    last : float
        Time from the last of these ACKs to the detection [slots], if segments are not full. Packets written in this
        time wait until the recovery. Where segments are full, see `last_ack`.
    wait : float
        Time from the due time of the ACK to the detection [slots].
    even : bool
        Whether the recovery ends with rounds of even spacing, though runs remain.
    """
    duration = p.load + wait
    reduced = reduced_window(p, window)
    until = max(duration - last, p.load / 2) if reduced < o.needed else duration
    only_timeout = timeout_chance(p, window - 2, reduced)
    sending.duration[phase], sending.wait[phase], sending.openings[phase] = duration, wait, openings
    sending.timeout_chance[phase] = only_timeout
    if sending.spacing_after_run[phase] == 0:
        sending.spacing_after_run[phase] = step
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
        if p.full_segments:
            until = duration - last_ack(p, o, reduced)
        shift = until - p.packets_per_segment * openings
        clean = even_repair_phase(layout, reduced) if even else repair_phase(layout, reduced, REPAIR)
        row = put_outcomes(t, row, layout, p.repeated_loss, only_timeout, more, share, reduced, clean, shift, until)
    return row


@kernel()
def put_loss_in_repair(
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
    openings = _acks_until(p.load + wait, step, 0.5)
    return _put_lost(p, o, t, row, layout, sending, phase, window, grown, step, openings, step, wait, False)


@kernel()
def put_losses(
    p: LinuxParameters, o: OpenWindow, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Sending
) -> int:
    """Append the losses in rounds: for each round a loss in the run, and a loss of a later segment."""
    small = p.packets_per_segment >= SMALL_PACKETS
    for number in range(layout.rounds.size):
        sent, following = layout.rounds.window[number], layout.rounds.following[number]
        run, spacing_in_run, spacing_after_run = round_openings(
            p, sent, layout.rounds.reduced[number], layout.rounds.all_in_run[number]
        )
        window, grown = layout.rounds.window[following], layout.rounds.grown[following]
        for in_run in range(2):
            phase = lost_phase(layout, number, in_run)
            phases.window[phase], phases.first_transition[phase] = layout.rounds.window[following], row
            phases.recovery[phase], sending.kind[phase] = LOST, LOST
            sending.run[phase] = run
            sending.spacing_in_run[phase], sending.spacing_after_run[phase] = spacing_in_run, spacing_after_run
            sending.in_run[phase], sending.round_trips[phase] = in_run, sending.round_trips[round_phase(layout, number)]
            if p.full_segments:
                # The SACKs of the run come at once, before the ACK clock has reached the segment of growth.
                at = number if in_run and layout.runs_remain else following
                window, grown = layout.rounds.window[at], layout.rounds.grown[at]
                wait, sacks = detection_in_round(p, in_run == 1, sent, run, spacing_in_run, spacing_after_run)
                openings, last = max(int(window + grown - 1 + sacks + 0.5), 0), 0.0
            else:
                # The ACKs after the due time detect the loss: after a loss in the run, on average half of the run's.
                if in_run:
                    close_acks, step, last = run // 2, spacing_in_run, spacing_in_run
                else:
                    step = last = spacing_in_run if small and run else spacing_after_run
                    close_acks = run if small else 0
                wait = mean_detection_wait(p, detection_wait(p, close_acks, spacing_in_run, spacing_after_run), step)
                last = last if small else p.load / sent
                openings = _acks_until(p.load + wait, p.load / sent, 0.5 + window - sent)
            even = layout.runs_remain and in_run == 0
            row = _put_lost(
                p, o, t, row, layout, sending, phase, window, grown, p.load / sent, openings, last, wait, even
            )
    return row
