"""The transitions of an open congestion window, in which every packet leaves at once, and of losses in it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.linux.bursts import more_lost, put_bursts, put_rest_losses
from tcpdelay.chain.linux.detection import (
    DETECTIONS,
    Detection,
    detection_wait,
    open_timeout_chance,
    packet_detections,
    packet_timeout_chance,
)
from tcpdelay.chain.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.chain.linux.phases import (
    LOST_OPEN,
    LOST_REPAIRING,
    LOST_TWO,
    OPEN,
    REPAIR_AGAIN,
    REPAIR_MORE,
    REPAIR_OPEN,
    Layout,
    Sending,
    lost_open_phase,
    open_phase,
    put,
    put_outcomes,
    put_rounds,
    repair_open_phase,
    repair_phase,
)
from tcpdelay.chain.linux.windows import cubic_rate, grow, reduced_window
from tcpdelay.chain.solver.state_space import Phases, Transitions
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.tcp.constants import (
    CUBIC_C,
    CUBIC_RENO_EIGHTHS,
    DUPLICATE_THRESHOLD,
)

LATE_GROWTH_FLIGHTS = 1.5
"""Round-trip times for which the kernel still counts a window as the limit after it has ceased to be the limit."""


class OpenWindow(NamedTuple):
    """Losses in an open window, in which every packet leaves at once. The values are the same for all open windows."""

    needed: float  # Window from which on every packet, or nearly every packet, leaves at once [segments]
    loss: float  # Probability that at least one segment of a packet is lost
    repeated_loss: float  # Probability that a retransmission for this packet is lost
    wait: float  # Mean time from the due time of the ACK to the detection of the loss [slots]
    detections: tuple[Detection, Detection, Detection]  # The ways in which the loss is detected
    telling: int  # Number of later packets whose ACKs detect the loss at this time
    next_lost: float  # Probability that at least one of these packets is lost
    later_wait: float  # Time from the due time of the ACK to the detection if one of these packets is lost [slots]
    growing_window: int  # Largest window that still grows [segments]


@kernel()
def open_window(p: LinuxParameters) -> OpenWindow:
    """Return probability and detection time of losses in an open window.

    RACK detects a loss by the SACKs of later segments or by its timer (`tcp_rack_detect_loss`, `tcp_rack_mark_lost`;
    RFC 8985, 6.2). If the next packet comes later than that, a tail loss probe shows the loss
    (`tcp_schedule_loss_probe`; RFC 8985, 7.2). A window that was the limit of the last flight still grows
    (`tcp_cwnd_validate`).
    """
    segments, load = p.segments_per_packet, p.load
    one = p.loss_of_one_packet
    # Wait for detection by the packets of the next slots, if they all arrive [slots].
    alone = detection_wait(p, 0, 1.0, 1.0)
    if p.timeout < 1:
        # Before the next packet, a tail loss probe at the time of the timeout repairs the loss (RFC 8985, 7.2).
        alone = p.timeout - load
    loss = 1 - (1 - one) ** segments
    # A window that has just ceased to limit the sender may grow once more.
    phase = load - math.floor(load)
    late_growth = not p.cubic and segments == 1 and phase >= 0.5 and (p.flight + 1) / load <= LATE_GROWTH_FLIGHTS
    growing = p.flight + int(late_growth)
    if segments == 1:
        repeated = p.repeated_loss if p.followed_losses and not p.rest_lost else one
        by_one = alone <= 2 + SAME_TIME or abs(alone - round(alone)) > SAME_TIME
        telling = 1 if by_one else DUPLICATE_THRESHOLD
        # If the detecting packet is lost, the next one detects the loss, one slot later. If the reordering window is
        # longer than a slot (RTT / 4 > 1), its SACK starts RACK's timer, and this may be earlier.
        later = alone + 1
        if load > 4:
            later = min(later, max(p.timer, 2.0))
        only, never = Detection(1.0, alone, 0.0), Detection(0.0, alone, 0.0)
        next_lost, later = 1 - (1 - one) ** telling, max(later, alone)
        return OpenWindow(load, loss, repeated, alone, (only, never, never), telling, next_lost, later, growing)
    detections = packet_detections(p, alone)
    wait = 0.0
    for way in range(DETECTIONS):
        wait += detections[way].share * detections[way].wait
    # Given a loss, segments * one / loss segments of the packet are lost in the mean, each with a retransmission.
    repeated = 1 - (1 - one) ** (segments * one / loss) if loss > 0 else 0.0
    return OpenWindow(load * segments, loss, repeated, wait, detections, 0, 0.0, wait, growing)


@kernel()
def repair_chances(p: LinuxParameters, o: OpenWindow, way: int, window: int) -> tuple[float, float]:
    """Return the probability that a repair takes a further retransmission, and of a timeout in this case."""
    detection = o.detections[way]
    repeated = 1 - (1 - o.repeated_loss) * (1 - detection.further)
    only_timeout = packet_timeout_chance(p, way, detection.wait, window, reduced_window(p, window))
    return repeated, only_timeout * o.repeated_loss / repeated if repeated > 0 else only_timeout


@kernel()
def put_open_loss(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    window: int,
    chance: float,
    shift: float,
    duration: float,
) -> int:
    """Append the loss of a packet in an open window: one event for each way of detection or length of a burst."""
    if p.segments_per_packet == 1:
        return put_bursts(p, t, row, layout, window, shift, chance, duration)
    for way in range(DETECTIONS):
        lost = lost_open_phase(layout, window, way)
        row = put(t, row, lost, lost, shift, chance * o.detections[way].share, duration)
    return row


@kernel()
def put_repair_of_open_window(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    phases: Phases,
    sending: Sending,
    window: int,
    way: int,
) -> int:
    """Append the recovery after a loss in an open window, where the times of the writes are known.

    The packets are written at whole slots after the lost packet. PRR releases one segment per ACK
    (`tcp_cwnd_reduction`; RFC 6937, 3). The ACK of the retransmission ends the recovery one RTT after the detection.
    """
    load, loss = p.load, p.loss
    phase = repair_open_phase(layout, window, way)
    phases.first_transition[phase] = row
    # Time from the loss to its detection, and the first write from then on [slots].
    found = load + o.detections[way].wait
    first_write = math.ceil(found - SAME_TIME)
    sending.wait[phase], sending.round_trips[phase] = found, 1
    if window >= o.needed:
        end = math.ceil(found + load - SAME_TIME)
        packets = end - first_write
        kept = (1 - o.loss) ** packets
        opened = open_phase(layout, window, OPEN)
        sending.duration[phase], sending.openings[phase] = end - found, packets
        if packets > 0:
            row = put_open_loss(p, o, t, row, layout, window, 1 - kept, 0.0, (end - found) / 2)
        return put(t, row, opened, opened, 0.0, kept, end - found)
    spacing_after_run = max(load / window, min(1.0, load) / p.segments_per_packet)
    openings = max(int(load / spacing_after_run + 0.5), 1)
    # Each ACK takes the packets that wait then, up to a full segment (`tcp_sendmsg_locked`) [packets].
    sent = 0.0
    for place in range(1, openings + 1):
        waiting = math.floor(found + place * spacing_after_run + SAME_TIME) - first_write + 1 - sent
        sent += max(min(p.packets_per_segment, waiting), 0.0)
    # Backlog at the end: packets written since the detection, half a slot for the one on its way, minus those sent.
    left = max(found + load - 0.5 - (first_write - 1) - sent, 0.0)
    kept = (1 - loss) ** openings
    sending.duration[phase], sending.openings[phase] = load, openings
    sending.spacing_after_run[phase] = spacing_after_run
    if p.rest_lost:
        first = layout.first_rounds[window].after_open
        row = put_rest_losses(p, t, row, layout, first, openings, False, 0, 0.0, spacing_after_run)
    else:
        lost = open_phase(layout, window, LOST_REPAIRING)
        row = put(t, row, lost, lost, left / 2, 1 - kept, load / 2)
    return put_rounds(t, row, layout, window, True, False, left, kept, load)


@kernel()
def open_growth(p: LinuxParameters) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return how fast an open window grows while it limits the sender, by window.

    Reno's window grows by one segment per window of ACKs (RFC 5681, 3.1), CUBIC's, whose Reno-friendly region governs
    here, in 15/8 of this time (RFC 9438, 4.3). With less than a packet per round-trip time only the ACKs of full
    windows count, since the window does not limit what is left of a packet (`tcp_is_cwnd_limited`).
    """
    chance, step = np.zeros(p.largest_window + 1), np.ones(p.largest_window + 1, np.int64)
    segments = p.segments_per_packet
    for window in range(1, p.largest_window + 1):
        acks = segments - segments % window if p.load < 1 and window < segments else segments
        growth = acks / window
        chance[window] = min(growth * 8 / CUBIC_RENO_EIGHTHS if p.cubic else growth, 1.0)
    if p.cubic and p.load < 1 and segments > 1:
        _follow_cubic(p, chance, step)
    return chance, step


@kernel()
def _follow_cubic(p: LinuxParameters, chance: NDArray[np.float64], step: NDArray[np.int64]) -> None:
    """Follow CUBIC's integer arithmetic from a loss in the largest open window on, with one ACK per flight of segments.

    The clock of the cubic function stops while nothing is in flight (`cubictcp_cwnd_event`), so the function stays just
    above the reduced window. An ACK of a whole window may let the window grow by two segments (`tcp_cong_avoid_ai`).
    """
    segments, origin = p.segments_per_packet, p.flight + 2
    window = reduced_window(p, origin)
    remaining = np.cbrt((origin - window) / CUBIC_C) - p.rtt
    target = origin - int(CUBIC_C * max(remaining, 0.0) ** 3 + SAME_TIME)
    reno_window, acks, credit, slots = window, 0, 0, 0
    while window <= p.flight:
        before = window
        slots += 1
        for _ in range(max(segments // window, 1)):
            delivered = min(window, segments)
            acks += delivered
            per_segment, reno_window, acks = cubic_rate(window, target, reno_window, acks)
            window, credit = grow(window, credit, per_segment, delivered)
        if window > before:
            chance[before] = 1 / slots
            step[before] = min(window, p.largest_window) - before
            slots = 0


@kernel()
def put_lost_open(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    phases: Phases,
    sending: Sending,
    window: int,
    way: int,
) -> int:
    """Append the phase from a loss in an open window to its detection."""
    phase = lost_open_phase(layout, window, way)
    phases.first_transition[phase] = row
    wait = o.detections[way].wait
    duration = p.load + wait
    packets = math.ceil(duration - SAME_TIME) - 1
    reduced = reduced_window(p, window)
    repeated, only_timeout = repair_chances(p, o, way, window)
    sending.duration[phase], sending.wait[phase], sending.openings[phase] = duration, wait, packets
    sending.repeated_loss[phase], sending.timeout_chance[phase] = repeated, only_timeout
    more = more_lost(p, max(packets - o.telling, 0) * p.segments_per_packet, False)
    clean = repair_open_phase(layout, reduced, way)
    return put_outcomes(t, row, layout, repeated, only_timeout, more, 1.0, reduced, clean, 0.0, duration)


@kernel()
def put_open_window(
    p: LinuxParameters,
    o: OpenWindow,
    t: Transitions,
    row: int,
    layout: Layout,
    phases: Phases,
    sending: Sending,
    window: int,
    growth: float,
    step: int,
) -> int:
    """Append the phases of an open window and of losses in it.

    The window grows by `step` segments per slot with the probability `growth` while it was the limit of the last flight
    (`tcp_is_cwnd_limited`).
    """
    load, segments = p.load, p.segments_per_packet
    reduced = reduced_window(p, window)
    opened = open_phase(layout, window, OPEN)
    lost, lost_two = lost_open_phase(layout, window, 0), open_phase(layout, window, LOST_TWO)
    if window > o.growing_window or window >= p.largest_window:
        growth = 0.0
    phases.first_transition[opened] = row
    sending.duration[opened] = 1.0
    sending.timeout_chance[opened] = packet_timeout_chance(p, 0, o.wait, window, reduced)
    if p.followed_losses or segments > 1:
        row = put_open_loss(p, o, t, row, layout, window, o.loss, 0.0, 0.0)
    else:
        row = put(t, row, lost, lost, 0.0, o.loss * (1 - o.next_lost), 0.0)
        row = put(t, row, lost_two, lost_two, 0.0, o.loss * o.next_lost, 0.0)
    if growth > 0:
        larger = open_phase(layout, window + step, OPEN)
        row = put(t, row, larger, larger, 0.0, (1 - o.loss) * growth, 1.0)
    row = put(t, row, opened, opened, 0.0, (1 - o.loss) * (1 - growth), 1.0)

    row = put_lost_open(p, o, t, row, layout, phases, sending, window, 0)

    phases.first_transition[lost_two] = row
    duration = load + o.later_wait
    packets = math.ceil(duration - SAME_TIME) - 1
    blocked = float(max(packets - (window - 1), 0))
    only_timeout = open_timeout_chance(p, window - 3, reduced)
    sending.duration[lost_two], sending.wait[lost_two] = duration, o.later_wait
    sending.openings[lost_two], sending.timeout_chance[lost_two] = packets - blocked, only_timeout
    # Two retransmissions: either may be lost, and be found by the RTO or by RACK.
    timeout = 1 - (1 - p.loss * only_timeout) ** 2
    again = max(min(2 * p.loss, 0.9) - timeout, 0.0)
    again_phase, more_phase = repair_phase(layout, reduced, REPAIR_AGAIN), repair_phase(layout, reduced, REPAIR_MORE)
    row = put(t, row, 0, 0, blocked, timeout, duration)
    row = put(t, row, again_phase, again_phase, blocked, again, duration)
    return put(t, row, more_phase, more_phase, blocked, 1 - again - timeout, duration)


@kernel()
def add_later_detections(
    p: LinuxParameters, o: OpenWindow, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Sending
) -> int:
    """Append the phases of losses in packets of several segments that later SACKs or RACK's timer detect."""
    if p.segments_per_packet == 1:
        return row
    for window in range(p.largest_window + 1):
        for way in range(1, DETECTIONS):
            lost, repair = lost_open_phase(layout, window, way), repair_open_phase(layout, window, way)
            phases.window[lost] = phases.window[repair] = window
            phases.recovery[lost], sending.kind[lost] = LOST_OPEN - OPEN, LOST_OPEN
            phases.recovery[repair] = sending.kind[repair] = REPAIR_OPEN
            phases.first_transition[lost] = phases.first_transition[repair] = row
            if window >= SMALLEST_WINDOW:
                row = put_lost_open(p, o, t, row, layout, phases, sending, window, way)
                row = put_repair_of_open_window(p, o, t, row, layout, phases, sending, window, way)
    return row
