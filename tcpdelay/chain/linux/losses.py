"""Losses in an open window and in a window that limits the sender: until they are detected, and their recoveries."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.events import Events, put, put_repeat
from tcpdelay.chain.linux.bursts import (
    last_loss_weight,
    more_lost,
    outage_chance,
    probe_interval,
    put_bursts,
    put_outage,
    put_rest_losses,
    repair_segments,
)
from tcpdelay.chain.linux.detection import (
    DETECTIONS,
    Detection,
    detection_wait,
    mean_detection_wait,
    open_timeout_chance,
    packet_detections,
    packet_timeout_chance,
    timeout_chance,
)
from tcpdelay.chain.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.chain.linux.phases import (
    LOST,
    LOST_OPEN,
    LOST_REPAIRING,
    LOST_TWO,
    OPEN,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    REPAIR_OPEN,
    Layout,
    begin_phase,
    clock_of_round,
    even_repair_phase,
    lost_open_phase,
    lost_phase,
    open_phase,
    put_outcomes,
    put_rounds,
    repair_open_phase,
    repair_phase,
    round_phase,
    set_clock,
)
from tcpdelay.chain.linux.windows import SMALL_PACKETS, AckClock, cubic_rate, grow, reduced_window, window_before
from tcpdelay.compiling.compilation import allocation_free, kernel
from tcpdelay.sim.tcp.constants import CUBIC_C, CUBIC_RENO_EIGHTHS, DUPLICATE_THRESHOLD

# An open window, in which every packet leaves at once, and the losses in it.

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


@allocation_free(inlined=True)
def put_open_loss(
    p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int, chance: float, shift: float, time: float
) -> None:
    """Put the loss of a packet in an open window: one event for each way of detection or length of a burst."""
    if p.segments_per_packet == 1:
        put_bursts(p, e, layout, window, shift, chance, time)
        return
    for way in range(DETECTIONS):
        lost = lost_open_phase(layout, window, way)
        put(e, lost, lost, shift, chance * o.detections[way].share, time)


@allocation_free()
def put_repair_of_open_window(
    p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int, way: int
) -> None:
    """Put the recovery after a loss in an open window, where the times of the writes are known.

    The packets are written at whole slots after the lost packet. PRR releases one segment per ACK
    (`tcp_cwnd_reduction`; RFC 6937, 3). The ACK of the retransmission ends the recovery one RTT after the detection.
    """
    load, loss = p.load, p.loss
    phase = repair_open_phase(layout, window, way)
    begin_phase(e, layout, phase, REPAIR_OPEN, window)
    if window < SMALLEST_WINDOW:
        return
    s = layout.sending[phase]
    # Time from the loss to its detection, and the first write from then on [slots].
    found = load + o.detections[way].wait
    first_write = math.ceil(found - SAME_TIME)
    s.wait, s.round_trips = found, 1
    if window >= o.needed:
        end = math.ceil(found + load - SAME_TIME)
        packets = end - first_write
        kept = (1 - o.loss) ** packets
        opened = open_phase(layout, window, OPEN)
        s.duration, s.openings = end - found, packets
        if packets > 0:
            put_open_loss(p, o, e, layout, window, 1 - kept, 0.0, (end - found) / 2)
        put(e, opened, opened, 0.0, kept, end - found)
        return
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
    s.duration, s.openings, s.spacing_after_run = load, openings, spacing_after_run
    if p.rest_lost:
        first = layout.first_rounds[window].after_open
        put_rest_losses(p, e, layout, first, openings, False, AckClock(0, 0.0, spacing_after_run))
    else:
        lost = open_phase(layout, window, LOST_REPAIRING)
        put(e, lost, lost, left / 2, 1 - kept, load / 2)
    put_rounds(e, layout, window, True, False, left, kept, load)


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


@allocation_free()
def put_lost_open(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int, way: int) -> None:
    """Put the phase from a loss in an open window to its detection."""
    phase = lost_open_phase(layout, window, way)
    begin_phase(e, layout, phase, LOST_OPEN, window)
    if window < SMALLEST_WINDOW:
        return
    s = layout.sending[phase]
    wait = o.detections[way].wait
    duration = p.load + wait
    packets = math.ceil(duration - SAME_TIME) - 1
    reduced = reduced_window(p, window)
    repeated, only_timeout = repair_chances(p, o, way, window)
    s.duration, s.wait, s.openings, s.repeated_loss, s.timeout_chance = duration, wait, packets, repeated, only_timeout
    more = more_lost(p, max(packets - o.telling, 0) * p.segments_per_packet, False)
    clean = repair_open_phase(layout, reduced, way)
    put_outcomes(e, layout, repeated, only_timeout, more, 1.0, reduced, clean, 0.0, duration)


@allocation_free()
def put_open_window(
    p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int, growth: float, step: int
) -> None:
    """Put the phase of an open window.

    The window grows by `step` segments per slot with the probability `growth` while it was the limit of the last flight
    (`tcp_is_cwnd_limited`).
    """
    opened = open_phase(layout, window, OPEN)
    begin_phase(e, layout, opened, OPEN, window)
    if window < SMALLEST_WINDOW:
        return
    if window > o.growing_window or window >= p.largest_window:
        growth = 0.0
    s = layout.sending[opened]
    s.duration, s.timeout_chance = 1.0, packet_timeout_chance(p, 0, o.wait, window, reduced_window(p, window))
    if p.followed_losses or p.segments_per_packet > 1:
        put_open_loss(p, o, e, layout, window, o.loss, 0.0, 0.0)
    else:
        lost, lost_two = lost_open_phase(layout, window, 0), open_phase(layout, window, LOST_TWO)
        put(e, lost, lost, 0.0, o.loss * (1 - o.next_lost), 0.0)
        put(e, lost_two, lost_two, 0.0, o.loss * o.next_lost, 0.0)
    if growth > 0:
        larger = open_phase(layout, window + step, OPEN)
        put(e, larger, larger, 0.0, (1 - o.loss) * growth, 1.0)
    put(e, opened, opened, 0.0, (1 - o.loss) * (1 - growth), 1.0)


@allocation_free()
def put_lost_two(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int) -> None:
    """Put the phase from a loss in an open window to its detection if the next packet is lost too."""
    phase = open_phase(layout, window, LOST_TWO)
    begin_phase(e, layout, phase, LOST_TWO, window)
    if window < SMALLEST_WINDOW:
        return
    reduced = reduced_window(p, window)
    duration = p.load + o.later_wait
    packets = math.ceil(duration - SAME_TIME) - 1
    blocked = float(max(packets - (window - 1), 0))
    only_timeout = open_timeout_chance(p, window - 3, reduced)
    s = layout.sending[phase]
    s.duration, s.wait, s.openings, s.timeout_chance = duration, o.later_wait, packets - blocked, only_timeout
    # Two retransmissions: either may be lost, and be found by the RTO or by RACK.
    timeout = 1 - (1 - p.loss * only_timeout) ** 2
    found = max(min(2 * p.loss, 0.9) - timeout, 0.0)
    again, several = repair_phase(layout, reduced, REPAIR_AGAIN), repair_phase(layout, reduced, REPAIR_MORE)
    put(e, 0, 0, blocked, timeout, duration)
    put(e, again, again, blocked, found, duration)
    put(e, several, several, blocked, 1 - found - timeout, duration)


@allocation_free()
def put_later_detections(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout) -> None:
    """Put the phases of losses in packets of several segments that later SACKs or RACK's timer detect."""
    if p.segments_per_packet > 1:
        for window in range(p.largest_window + 1):
            for way in range(1, DETECTIONS):
                put_lost_open(p, o, e, layout, window, way)
                put_repair_of_open_window(p, o, e, layout, window, way)


# Losses in rounds and recoveries, in which the window limits the sender: from the loss to its detection.


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
def detection_in_round(p: LinuxParameters, in_run: bool, window: int, clock: AckClock) -> tuple[float, float]:
    """Return the mean wait for the detection of a loss in a round [slots], and the mean number of SACKs before it."""
    run, near, far = clock
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
    """Return the number of ACKs that release a segment before the detection: one per `step`, and those `added`."""
    return max(int(duration / step - 2 + added + SAME_TIME), 0)


@allocation_free()
def _put_lost(
    p: LinuxParameters,
    o: OpenWindow,
    e: Events,
    layout: Layout,
    phase: int,
    window: int,
    grown: float,
    step: float,
    last: float,
    even: bool,
) -> None:
    """Put the events of the detection of a loss while the window limits the sender; its wait and ACKs are set.

    RACK detects the loss (`tcp_rack_detect_loss`; RFC 8985, 6.2), the recovery reduces the window once
    (`tcp_init_cwnd_reduction`), and the segment is retransmitted. `last` is the time from the last ACK that releases a
    segment to the detection, `step` the time between ACKs.
    """
    s = layout.sending[phase]
    duration = p.load + s.wait
    reduced = reduced_window(p, window)
    until = max(duration - last, p.load / 2) if reduced < o.needed else duration
    s.duration, s.timeout_chance = duration, timeout_chance(p, window - 2, reduced)
    only_timeout, outage, more = s.timeout_chance, outage_chance(p, window), more_lost(p, int(s.openings), True)
    if s.spacing_after_run == 0:
        s.spacing_after_run = step
    if outage > 0:
        # The tail loss probe follows the last segment of the window, at the RTO at the latest [slots].
        time = min((window - 1) * step + probe_interval(p), p.timeout)
        put_outage(p, e, layout, window, time - p.packets_per_segment * s.openings, outage, time)
    # The window at detection is a whole number of segments: of two, so that their mean is window + grown.
    whole = int(grown)
    for further in range(2):
        share = (1 - outage) * (grown - whole if further else 1 - grown + whole)
        reduced = reduced_window(p, min(window + whole + further, p.largest_window))
        if p.full_segments:
            until = duration - last_ack(p, o, reduced)
        shift = until - p.packets_per_segment * s.openings
        clean = even_repair_phase(layout, reduced) if even else repair_phase(layout, reduced, REPAIR)
        put_outcomes(e, layout, p.repeated_loss, only_timeout, more, share, reduced, clean, shift, until)


@allocation_free()
def put_loss_in_repair(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int) -> None:
    """Put the phase of a loss during a recovery."""
    phase = open_phase(layout, window, LOST_REPAIRING)
    begin_phase(e, layout, phase, LOST_REPAIRING, window)
    if window < SMALLEST_WINDOW:
        return
    s = layout.sending[phase]
    step = p.load / window
    s.wait = mean_detection_wait(p, detection_wait(p, 0, step, step), step)
    s.openings = _acks_until(p.load + s.wait, step, 0.5)
    grown = layout.rounds.grown[layout.first_rounds[window].after_repair]
    _put_lost(p, o, e, layout, phase, window, grown, step, step, False)


@allocation_free()
def put_losses(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout) -> None:
    """Put the losses in rounds: for each round a loss in the run, and a loss of a later segment."""
    small = p.packets_per_segment >= SMALL_PACKETS
    for number in range(layout.rounds.size):
        sent, following = layout.rounds.window[number], layout.rounds.following[number]
        clock = clock_of_round(p, layout, number)
        run, near, far = clock
        window, grown = layout.rounds.window[following], layout.rounds.grown[following]
        for in_run in range(2):
            phase = lost_phase(layout, number, in_run)
            begin_phase(e, layout, phase, LOST, layout.rounds.window[following])
            s = layout.sending[phase]
            set_clock(s, clock)
            s.in_run, s.round_trips = in_run, layout.sending[round_phase(layout, number)].round_trips
            if p.full_segments:
                # The SACKs of the run come at once, before the ACK clock has reached the segment of growth.
                at = number if in_run and layout.runs_remain else following
                window, grown = layout.rounds.window[at], layout.rounds.grown[at]
                wait, sacks = detection_in_round(p, in_run == 1, sent, clock)
                openings, last = max(int(window + grown - 1 + sacks + 0.5), 0), 0.0
            else:
                # The ACKs after the due time detect the loss: after a loss in the run, on average half of the run's.
                close_acks, last = run // 2, near
                if not in_run:
                    close_acks, last = run if small else 0, near if small and run else far
                wait = mean_detection_wait(p, detection_wait(p, close_acks, near, far), last)
                last = last if small else p.load / sent
                openings = _acks_until(p.load + wait, p.load / sent, 0.5 + window - sent)
            s.wait, s.openings = wait, openings
            even = layout.runs_remain and in_run == 0
            _put_lost(p, o, e, layout, phase, window, grown, p.load / sent, last, even)


# Recoveries while the window limits the sender, with PRR.

GROUPS = 3
"""Number of parts of the first round of a recovery. The chain distinguishes in which part the first loss occurs."""


@allocation_free()
def _put_repair(
    p: LinuxParameters,
    o: OpenWindow,
    e: Events,
    layout: Layout,
    phase: int,
    window: int,
    even: bool,
    paced: float,
) -> None:
    """Put the phase from the last retransmission to its ACK."""
    begin_phase(e, layout, phase, REPAIR, window)
    load, per_segment, loss = p.load, p.packets_per_segment, p.loss
    opened = window >= o.needed
    openings = max(int(load / paced + 0.5), 1)
    gap = last_ack(p, o, window)
    lasts = load + gap
    if p.full_segments and not opened and openings > 1:
        # The window grows one ACK before that of the retransmission.
        openings -= 1
        lasts -= paced
    s = layout.sending[phase]
    s.duration, s.openings = lasts, openings
    set_clock(s, AckClock(1, gap + paced, paced))
    kept, shift = (1 - loss) ** openings, lasts - per_segment * openings
    if p.rest_lost and not opened:
        first = layout.first_rounds[window].after_repair
        put_rest_losses(p, e, layout, first, openings, False, AckClock(0, 0.0, paced))
        put_rounds(e, layout, window, even, opened, shift, kept, lasts)
        return
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
                put_open_loss(p, o, e, layout, window, chance, change, mean_time)
            else:
                put(e, lost, lost, change, chance, mean_time)
        done = end
    put_rounds(e, layout, window, even, opened, shift, kept, lasts)


@kernel()
def _until_last_loss(
    p: LinuxParameters, window: int, before: float, wait: float, spacing_after_run: float
) -> tuple[float, float]:
    """Return the mean time between the detections of the first and the last loss of a flight, and the ACKs in it.

    Any of the segments sent before the first detection, RTT + wait, may be the last loss. The segment `place` behind
    the first loss is detected by the ACK of its successor, at (place + 1) before; the first loss was detected at
    `wait`. `before` is the time between the segments of the flight. All ACKs release a new segment but the one that
    releases the retransmission.
    """
    if p.rest_lost:
        # The second loss is in the next round, whose rest is lost. The SACKs of the round after it detect this.
        further = repair_segments(p, (window + 1) // 2) - 1
        return p.load + further * spacing_after_run, (window - 1) / 2
    under_way = int(max((p.load + wait) / before + SAME_TIME, 1.0))
    weight = duration = openings = 0.0
    for place in range(1, under_way + 1):
        chance = last_loss_weight(p, place, under_way)
        lasts = max((place + 1) * before - wait, 0.0)
        weight += chance
        duration += chance * lasts
        openings += chance * max(lasts / spacing_after_run - 1, 0.0)
    return duration / weight, openings / weight


@allocation_free()
def put_repairs(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, window: int) -> None:
    """Put the phases of a recovery with the reduced window `window` [segments].

    In recovery RACK's reordering window is 0 (`tcp_rack_reo_wnd`; RFC 8985, 6.2): the ACK of the next later segment
    detects a loss. PRR releases one segment per ACK (`tcp_cwnd_reduction`; RFC 6937, 3). The recovery ends with the ACK
    of the last retransmission (`tcp_fastretrans_alert`).
    """
    plain, even = repair_phase(layout, window, REPAIR), even_repair_phase(layout, window)
    if window < SMALLEST_WINDOW:
        for kind in (REPAIR_MORE, REPAIR_AGAIN, REPAIR):
            begin_phase(e, layout, repair_phase(layout, window, kind), kind, window)
        begin_phase(e, layout, even, REPAIR, window)
        return
    opened = window >= o.needed
    # The retransmission takes one segment of the window; where segments are full, `openings` leaves it out.
    spacing_after_run = p.load / (window if p.full_segments else max(window - 1, 1))
    if opened:
        spacing_after_run = min(1.0, p.load) / p.segments_per_packet
    # Time between the segments of the flight in which the losses are, before the reduction [slots].
    before = max(1.0 / p.segments_per_packet, p.load / window_before(p, window))
    alone = 0.0 if opened else before
    wait = detection_wait(p, 0, alone, max(alone, spacing_after_run / 2)) if alone > 0 else o.wait
    # After the first round of a recovery BBR paces again; PRR continues (`bbr_set_cwnd_to_recover_or_restore`).
    paced = spacing_after_run / p.pacing
    only_timeout = timeout_chance(p, window - 1, window)
    again = repair_phase(layout, window, REPAIR_AGAIN)
    for kind in (REPAIR_MORE, REPAIR_AGAIN):
        phase = repair_phase(layout, window, kind)
        begin_phase(e, layout, phase, kind, window)
        if kind == REPAIR_MORE:
            duration, openings = _until_last_loss(p, window, before, wait, spacing_after_run)
        else:
            # The ACK of the first segment sent after the lost retransmission, one RTT and one ACK later [slots].
            duration = p.load + spacing_after_run
            openings = max(duration / paced - 1, 0.0)
        # The retransmission or at least one new segment is lost.
        lost = 1 - (1 - p.loss) ** (openings + 1)
        if p.followed_losses:
            lost = 1 - (1 - p.repeated_loss) * (1 - p.loss) ** openings
        timeout = p.repeated_loss * only_timeout
        lost_again = max(lost - timeout, 0.0)
        shift = duration - p.packets_per_segment * openings
        s = layout.sending[phase]
        s.duration, s.openings, s.timeout_chance = duration, openings, only_timeout
        s.spacing_after_run = spacing_after_run if kind == REPAIR_MORE else paced
        put(e, 0, 0, shift, timeout, duration)
        if kind == REPAIR_MORE:
            put(e, again, again, shift, lost_again, duration)
        else:
            put_repeat(e, phase, shift, lost_again, p.packets_per_segment * openings)
        put(e, plain, plain, shift, 1 - lost_again - timeout, duration)
    _put_repair(p, o, e, layout, plain, window, False, paced)
    if layout.runs_remain:
        _put_repair(p, o, e, layout, even, window, True, paced)
    else:
        begin_phase(e, layout, even, REPAIR, window)
