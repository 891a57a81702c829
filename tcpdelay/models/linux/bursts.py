"""Losses in bursts, packet by packet: how many are lost in a row, when that is found, and what repairs it.

After a packet that got through the next one is lost with the probability `loss`, after a lost one with `next_loss`
(Gilbert 1960). A burst goes on with whatever is sent next; so one that takes all that the window allows is still there
when the tail loss probe and the timeouts retransmit.

This module also makes the phases of such bursts, and of the loss of a whole window.
"""

from __future__ import annotations

import math
from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.detection import detection_wait, timeout_chance
from tcpdelay.models.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.phases import (
    LOST_OPEN,
    LOST_TWO,
    OPEN,
    REPAIR,
    REPAIR_OPEN,
    Layout,
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
def followed_losses(p: LinuxParameters, window: int) -> int:
    """Return the largest number of losses in a row that has a phase of its own; longer bursts share the last phase."""
    return int(max(min(window - 1, p.followed_losses), 1))


@kernel()
def probe_interval(p: LinuxParameters) -> float:
    """Return how long after the last packet the tail loss probe is sent [slots]."""
    return float(PROBE_ROUND_TRIPS * p.load + p.probe_slack)


@kernel()
def outage_chance(p: LinuxParameters, window: int) -> float:
    """Return the chance that all that the window allows after a lost packet is lost as well."""
    if p.followed_losses == 0:
        return 0.0
    # Between packets that come later than a probe, the probe is the next one sent.
    probes = 1 if probe_interval(p) < 1 and window > 2 else 0
    return float(p.next_loss ** (window - 1 + probes))


@kernel()
def burst_chance(p: LinuxParameters, window: int, lost: int) -> float:
    """Return the chance that, after a first loss, so many packets are lost in a row, but not the whole window."""
    most = followed_losses(p, window)
    begin, end = p.next_loss ** (lost - 1), p.next_loss**lost
    if probe_interval(p) < 1:
        begin *= p.next_loss if lost > 2 else 1.0
        end *= p.next_loss if lost > 1 else 1.0
    if lost == most:
        end = outage_chance(p, window)
    return float(begin - end)


@kernel()
def burst_wait(p: LinuxParameters, lost: int) -> float:
    """Return the time from when the first acknowledgement was due until `lost` losses in a row are found [slots]."""
    if lost == 1:
        return detection_wait(p, 0, 1.0, 1.0)
    if lost > 1 and probe_interval(p) < 1:
        return lost - 1 + probe_interval(p)
    if lost >= p.reordering_wait - SAME_TIME:
        return float(lost)
    overdue = math.ceil(p.reordering_wait - SAME_TIME)
    return float(min(max(p.timer, float(lost)), float(min(overdue, lost + DUPLICATE_THRESHOLD - 1))))


@kernel()
def probe_time(p: LinuxParameters, window: int) -> float:
    """Return when the probe or timeout comes after the first of so many losses, which are all that the window allows.

    Both timers run until the first one's timeout at most.
    """
    return float(min(window - 1 + probe_interval(p), p.timeout))


@kernel()
def repair_segments(p: LinuxParameters, lost: int) -> int:
    """Return in how many segments losses in a row are sent again: small ones share them."""
    segment = float(max(p.packets_per_segment, 1.0))
    return math.ceil(lost / segment - SAME_TIME)


@kernel()
def repair_rounds(segments: int) -> int:
    """Return how many round-trip times after the first the last segment is sent again, with nothing else under way.

    Each acknowledgement lets two of them go.
    """
    return math.floor(math.log2(max(segments, 1)) + SAME_TIME)


@kernel()
def more_lost(p: LinuxParameters, segments: float, next_to_loss: bool) -> float:
    """Return the chance that any of so many segments is lost; the first of them may be next to a loss."""
    kept = (1 - p.loss) ** segments
    if next_to_loss and p.followed_losses and segments >= 1:
        kept *= (1 - p.next_loss) / (1 - p.loss)
    return float(1 - kept)


@kernel()
def last_loss_weight(p: LinuxParameters, place: int, under_way: int) -> float:
    """Return a weight of the last loss of a flight being at that place after the first."""
    if p.followed_losses == 0:
        return float((1 - p.loss) ** (under_way - place))
    lost = p.mean_loss + (1 - p.mean_loss) * (p.next_loss - p.loss) ** place
    after = under_way - place
    return float(lost * ((1 - p.next_loss) * (1 - p.loss) ** (after - 1) if after > 0 else 1.0))


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
    """Append a first loss out of an open window, by how many are lost in a row with it."""
    for lost in range(1, followed_losses(p, window) + 1):
        target = open_phase(layout, window, LOST_OPEN) if lost == 1 else burst_phase(layout, window, lost)
        row = put(t, row, target, target, shift, chance * burst_chance(p, window, lost), duration)
    target = burst_phase(layout, window, 0)
    return put(t, row, target, target, shift, chance * outage_chance(p, window), duration)


@kernel()
def put_outage(
    p: LinuxParameters, t: Transitions, row: int, layout: Layout, window: int, shift: float, chance: float, time: float
) -> int:
    """Append what follows the probe at `time` after a whole window is lost: it tells of that, or the timeout does."""
    rest = p.load * (1 + repair_rounds(repair_segments(p, window)))
    repair = repair_phase(layout, reduced_window(window, p.cubic), REPAIR)
    row = put(t, row, 0, 0, shift, chance * p.next_loss, time)
    probe = p.packets_per_segment
    return put(t, row, repair, repair, shift + rest - probe, chance * (1 - p.next_loss), time + rest)


@kernel()
def add_bursts(p: LinuxParameters, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Any) -> int:
    """Append the phases of losses in a row, for each window."""
    for window in range(p.largest_window + 1):
        for place in range(layout.burst_kinds):
            lost = place + 1 if place else 0
            phase = burst_phase(layout, window, lost)
            phases.window[phase], phases.recovery[phase], sending.kind[phase] = window, LOST_TWO - OPEN, LOST_TWO
            phases.first_transition[phase] = row
            sending.lost[phase] = lost
            if window < SMALLEST_WINDOW or lost > followed_losses(p, window):
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
    p: LinuxParameters, t: Transitions, row: int, layout: Layout, sending: Any, phase: int, window: int, lost: int
) -> int:
    """Append the phase of that many losses in a row, until the last one is sent again."""
    wait = burst_wait(p, lost)
    found = p.load + wait
    packets = math.ceil(found - SAME_TIME) - 1
    sent = min(packets, window - 1)
    further = repair_segments(p, lost) - 1
    reduced = reduced_window(window, p.cubic)
    only_timeout = timeout_chance(p, min(sent - lost + 1, window - 1 - lost), reduced)
    sending.duration[phase], sending.wait[phase], sending.openings[phase] = found, wait, sent
    sending.timeout_chance[phase] = only_timeout
    waiting = float(packets - sent + further)
    clean = repair_phase(layout, reduced, REPAIR if waiting > 0 else REPAIR_OPEN)
    repeated = 1 - (1 - p.repeated_loss) * (1 - p.loss) ** further
    more = more_lost(p, max(sent - lost, 0), False)
    return put_outcomes(t, row, layout, repeated, only_timeout, more, 1.0, reduced, clean, waiting, found + further)
