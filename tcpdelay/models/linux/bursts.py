"""Loss bursts, packet by packet: their length, their detection, their repair, and the phases of the chain for them.

After a packet that arrived, the next packet is lost with the probability `loss`; after a lost packet, with `next_loss`
(Gilbert 1960). A burst continues with the next packet that is sent, whenever this is. If a burst has taken the whole
window, it may therefore also take the tail loss probe and the retransmissions after timeouts.

An *outage* is the loss of a whole window: the first lost packet and all later packets that the window allows.
"""

from __future__ import annotations

import math

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.detection import detection_wait, timeout_chance
from tcpdelay.models.linux.drop_tail import most_lost, rest_chance, rest_timeout, retransmission_times, typical_lost
from tcpdelay.models.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.phases import (
    LOST_OPEN,
    LOST_TWO,
    OPEN,
    REPAIR,
    REPAIR_OPEN,
    Layout,
    Sending,
    burst_phase,
    open_phase,
    put,
    put_outcomes,
    repair_phase,
)
from tcpdelay.models.linux.windows import reduced_window
from tcpdelay.models.solver.state_space import Phases, Transitions
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD, PROBE_ROUND_TRIPS


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
    `most_lost` divides the numbers of lost segments into groups.
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
    """Return the number of segments in which `lost` packets are retransmitted.

    Small packets share a segment (`tcp_retrans_try_collapse`).
    """
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
    """Return the probability that at least one of `segments` is lost.

    `next_to_loss` says whether the first of them was sent directly after a lost segment.
    """
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
    """Return the probability that one of `rounds` rounds of slow start is lost as a whole, with its first segment.

    Only the timeout finds this loss. Without the losses of a drop-tail queue it does not count.
    """
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
    """Append the first loss in an open window: one event per number of consecutive losses.

    With independent losses there is a single event, which leads to LOST_OPEN.
    """
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
