"""Transitions of the recoveries of the chain while the window limits the sender, with PRR."""

from __future__ import annotations

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.bursts import last_loss_weight, repair_segments
from tcpdelay.models.linux.detection import (
    detection_wait,
    timeout_chance,
)
from tcpdelay.models.linux.drop_tail_rounds import put_rest_losses
from tcpdelay.models.linux.losses import last_ack
from tcpdelay.models.linux.open_transitions import (
    OpenWindow,
    put_open_loss,
)
from tcpdelay.models.linux.parameters import (
    SAME_TIME,
    LinuxParameters,
)
from tcpdelay.models.linux.phases import (
    LOST_REPAIRING,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    Layout,
    Sending,
    even_repair_phase,
    open_phase,
    put,
    put_repeat,
    put_rounds,
    repair_phase,
)
from tcpdelay.models.linux.windows import window_before
from tcpdelay.models.solver.state_space import (
    Phases,
    Transitions,
)

GROUPS = 3
"""Number of parts of the first round of a recovery. The chain distinguishes in which part the first loss occurs."""


@kernel()
def _put_repair(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    sending: Sending,
    phase: int,
    window: int,
    even: bool,
    paced: float,
) -> int:
    """Append the phase from the last retransmission to its ACK.

    Parameters
    ----------
    phase : int
        The phase.
    window : int
        Reduced window [segments].
    even : bool
        Whether rounds with even spacing follow, as after a loss in an open window.
    paced : float
        Time between the segments that leave [slots].
    """
    load, per_segment, loss = p.load, p.packets_per_segment, p.loss
    opened = window >= o.needed
    openings = max(int(load / paced + 0.5), 1)
    gap = last_ack(p, o, window)
    lasts = load + gap
    if p.full_segments and not opened and openings > 1:
        # The window grows one ACK before that of the retransmission.
        openings -= 1
        lasts -= paced
    sending.duration[phase], sending.openings[phase] = lasts, openings
    sending.run[phase], sending.spacing_in_run[phase], sending.spacing_after_run[phase] = 1, gap + paced, paced
    kept, shift = (1 - loss) ** openings, lasts - per_segment * openings
    if p.rest_lost and not opened:
        first = layout.first_rounds[window].after_repair
        row = put_rest_losses(p, t, row, layout, first, openings, False, 0, 0.0, paced)
        return put_rounds(t, row, layout, window, even, opened, shift, kept, lasts)
    lost = open_phase(layout, window, LOST_REPAIRING)
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
            mean_time = gap + mean * paced
            change = mean_time - mean * per_segment
            if opened:
                row = put_open_loss(p, o, t, row, layout, window, chance, change, mean_time)
            else:
                row = put(t, row, lost, lost, change, chance, mean_time)
        done = end
    return put_rounds(t, row, layout, window, even, opened, shift, kept, lasts)


@kernel()
def put_repairs(
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
    # The retransmission takes one segment of the window; where segments are full, `openings` leaves it out.
    spacing_after_run = load / (window if p.full_segments else max(window - 1, 1))
    if opened:
        spacing_after_run = min(1.0, load) / p.segments_per_packet
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
    row = _put_repair(p, o, t, row, layout, sending, plain, window, False, paced)
    even = even_repair_phase(layout, window)
    phases.first_transition[even] = row
    if layout.runs_remain:
        row = _put_repair(p, o, t, row, layout, sending, even, window, True, paced)
    return row
