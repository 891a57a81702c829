"""The transitions of an open congestion window, in which every packet leaves at once, and of losses in it."""

from __future__ import annotations

import math
from typing import NamedTuple

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.bursts import more_lost, put_bursts
from tcpdelay.models.linux.detection import detection_wait, timeout_chance
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.models.linux.phases import (
    LOST_OPEN,
    LOST_REPAIRING,
    LOST_TWO,
    OPEN,
    REPAIR_AGAIN,
    REPAIR_MORE,
    REPAIR_OPEN,
    Layout,
    Sending,
    open_phase,
    put,
    put_outcomes,
    put_rounds,
    repair_phase,
)
from tcpdelay.models.linux.windows import reduced_window
from tcpdelay.models.solver.state_space import Phases, Transitions
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD

LATE_GROWTH_FLIGHTS = 1.5
"""Round-trip times for which the kernel still counts a window as the limit after it has ceased to be the limit."""


class OpenWindow(NamedTuple):
    """Losses in an open window, in which every packet leaves at once. The values are the same for all open windows.

    Attributes
    ----------
    needed : float
        Window from which on every packet, or nearly every packet, leaves at once [segments].
    loss : float
        Probability that at least one segment of a packet is lost.
    repeated_loss : float
        Probability that a retransmission for this packet is lost.
    wait : float
        Time from the due time of the ACK to the detection of the loss [slots].
    telling : int
        Number of later packets whose ACKs detect the loss at this time.
    next_lost : float
        Probability that at least one of these packets is lost.
    later_wait : float
        Time from the due time of the ACK to the detection if one of these packets is lost [slots].
    growing_window : int
        Largest window that still grows [segments].
    """

    needed: float
    loss: float
    repeated_loss: float
    wait: float
    telling: int
    next_lost: float
    later_wait: float
    growing_window: int


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
        repeated = p.repeated_loss if p.followed_losses else one
        by_one = alone <= 2 + SAME_TIME or abs(alone - round(alone)) > SAME_TIME
        telling = 1 if by_one else DUPLICATE_THRESHOLD
        # If the detecting packet is lost, the next one detects the loss, one slot later. If the reordering window is
        # longer than a slot (RTT / 4 > 1), its SACK starts RACK's timer, and this may be earlier.
        later = alone + 1
        if load > 4:
            later = min(later, max(p.timer, 2.0))
        return OpenWindow(load, loss, repeated, alone, telling, 1 - (1 - one) ** telling, max(later, alone), growing)
    # Mean over the segments of a packet. Three later segments detect a loss at once, as the reordering window is then 0
    # (`tcp_rack_reo_wnd`). The two segments before the last one wait for the next packet or the timer, and the last one
    # for the next packet.
    last = alone if segments < DUPLICATE_THRESHOLD else 1.0
    wait = (min(2, segments - 1) * min(1.0, p.timer) + last) / segments
    # Given a loss, segments * one / loss segments of the packet are lost in the mean, each with a retransmission.
    repeated = 1 - (1 - one) ** (segments * one / loss) if loss > 0 else 0.0
    return OpenWindow(load * segments, loss, repeated, wait, 0, 0.0, wait, growing)


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
) -> int:
    """Append the recovery after a loss in an open window, where the times of the writes are known.

    The packets are written at whole slots after the lost packet. PRR releases one segment per ACK
    (`tcp_cwnd_reduction`; RFC 6937, 3). The ACK of the retransmission ends the recovery one RTT after the detection.
    """
    load, loss = p.load, p.loss
    phase = repair_phase(layout, window, REPAIR_OPEN)
    phases.first_transition[phase] = row
    # Time from the loss to its detection, and the first write from then on [slots].
    found = load + o.wait
    first_write = math.ceil(found - SAME_TIME)
    sending.wait[phase], sending.round_trips[phase] = found, 1
    if window >= o.needed:
        end = math.ceil(found + load - SAME_TIME)
        packets = end - first_write
        kept = (1 - o.loss) ** packets
        opened = open_phase(layout, window, OPEN)
        sending.duration[phase], sending.openings[phase] = end - found, packets
        if packets > 0:
            row = put_bursts(p, t, row, layout, window, 0.0, 1 - kept, (end - found) / 2)
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
    lost = open_phase(layout, window, LOST_REPAIRING)
    row = put(t, row, lost, lost, left / 2, 1 - kept, load / 2)
    return put_rounds(t, row, layout, window, True, False, left, kept, load)


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
) -> int:
    """Append the phases of an open window and of losses in it.

    A window that was the limit of the last flight grows (`tcp_is_cwnd_limited`): with Reno by one segment per RTT (RFC
    5681, 3.1); CUBIC's Reno-friendly window takes 15/8 RTT (`CUBIC_RENO_EIGHTHS`; RFC 9438, 4.3), here 2.
    """
    load, segments = p.load, p.segments_per_packet
    reduced = reduced_window(window, p.cubic)
    opened = open_phase(layout, window, OPEN)
    lost, lost_two = open_phase(layout, window, LOST_OPEN), open_phase(layout, window, LOST_TWO)
    # Probability that the window grows by a segment in a slot.
    growth = 0.0
    if window <= o.growing_window and window < p.largest_window:
        growth = 1 / load if load >= 1 else (segments / window if segments > 1 else 1.0)
        growth = min(growth / 2 if p.cubic else growth, 1.0)
    only_timeout = timeout_chance(p, min(int(load) * segments, window - 2), reduced)

    phases.first_transition[opened] = row
    sending.duration[opened] = 1.0
    sending.timeout_chance[opened] = only_timeout
    if p.followed_losses:
        row = put_bursts(p, t, row, layout, window, 0.0, o.loss, 0.0)
    else:
        row = put(t, row, lost, lost, 0.0, o.loss * (1 - o.next_lost), 0.0)
        row = put(t, row, lost_two, lost_two, 0.0, o.loss * o.next_lost, 0.0)
    if growth > 0:
        larger = open_phase(layout, window + 1, OPEN)
        row = put(t, row, larger, larger, 0.0, (1 - o.loss) * growth, 1.0)
    row = put(t, row, opened, opened, 0.0, (1 - o.loss) * (1 - growth), 1.0)

    phases.first_transition[lost] = row
    duration = load + o.wait
    packets = math.ceil(duration - SAME_TIME) - 1
    clean = repair_phase(layout, reduced, REPAIR_OPEN)
    sending.duration[lost], sending.wait[lost], sending.openings[lost] = duration, o.wait, packets
    sending.timeout_chance[lost] = only_timeout
    more = more_lost(p, max(packets - o.telling, 0) * segments, False)
    row = put_outcomes(t, row, layout, o.repeated_loss, only_timeout, more, 1.0, reduced, clean, 0.0, duration)

    phases.first_transition[lost_two] = row
    duration = load + o.later_wait
    packets = math.ceil(duration - SAME_TIME) - 1
    blocked = float(max(packets - (window - 1), 0))
    only_timeout = timeout_chance(p, min(int(load), window - 3), reduced)
    sending.duration[lost_two], sending.wait[lost_two] = duration, o.later_wait
    sending.openings[lost_two], sending.timeout_chance[lost_two] = packets - blocked, only_timeout
    # Two retransmissions: either may be lost, and be found by the RTO or by RACK.
    timeout = 1 - (1 - p.loss * only_timeout) ** 2
    again = max(min(2 * p.loss, 0.9) - timeout, 0.0)
    again_phase, more_phase = repair_phase(layout, reduced, REPAIR_AGAIN), repair_phase(layout, reduced, REPAIR_MORE)
    row = put(t, row, 0, 0, blocked, timeout, duration)
    row = put(t, row, again_phase, again_phase, blocked, again, duration)
    return put(t, row, more_phase, more_phase, blocked, 1 - again - timeout, duration)
