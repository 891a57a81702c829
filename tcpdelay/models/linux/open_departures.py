"""The packets that leave while the window is open, and while losses in an open window are detected and repaired."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import allocation_free, kernel
from tcpdelay.models.linux.bursts import (
    burst_chance,
    burst_length,
    burst_wait,
    followed_losses,
    outage_chance,
    probe_time,
    repair_rounds,
    repair_segments,
)
from tcpdelay.models.linux.departures import add, add_repaired
from tcpdelay.models.linux.detection import DETECTIONS, timeout_chance
from tcpdelay.models.linux.drop_tail import rest_timeout_chance
from tcpdelay.models.linux.open_transitions import OpenWindow, repair_chances
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.models.linux.phases import LOST_OPEN, LOST_TWO, OPEN, Sending, written_share
from tcpdelay.models.linux.windows import reduced_window


@allocation_free()
def _add_outage(p: LinuxParameters, bins: NDArray[np.float64], window: int, place: int, weight: float) -> None:
    """Add packet `place` of an outage, counted from 0.

    The tail loss probe is lost with the probability of a segment that follows a lost segment. So is the retransmission
    after each timeout.
    """
    left = probe_time(p, window) - place
    later = p.load * repair_rounds(repair_segments(p, place + 1))
    add(bins, 0.0, left + p.load + later, weight * (1 - p.next_loss))
    rest = weight * p.next_loss
    waited = 0.0
    for stage in range(p.backoffs):
        waited += min(p.timeout * 2.0**stage, p.longest_timeout)
        ends = 1.0 if stage == p.backoffs - 1 else 1 - p.next_loss
        add(bins, 0.0, left + waited + later, rest * ends)
        rest *= p.next_loss


@allocation_free()
def add_first_of_burst(
    p: LinuxParameters, bins: NDArray[np.float64], age: float, window: int, only_timeout: float, weight: float
) -> None:
    """Add the first packet of a loss burst in an open window, for each length of the burst."""
    for lost in range(1, followed_losses(p, window) + 1):
        this, length = weight * burst_chance(p, window, lost), burst_length(p, lost)
        wait = burst_wait(p, length)
        timeout = rest_timeout_chance(p, math.floor(wait - length + SAME_TIME)) if p.rest_lost else only_timeout
        add_repaired(bins, age, p.load + wait, this, p.repeated_loss, p.load + 1.0, timeout, p.timeout)
    _add_outage(p, bins, window, 0, weight * outage_chance(p, window))


@allocation_free()
def add_burst_phase(p: LinuxParameters, bins: NDArray[np.float64], window: int, s: Sending, weight: float) -> None:
    """Add the packets that leave after the first of several losses. They are lost, or they wait for lost packets."""
    further = repair_segments(p, s.lost) - 1
    for place in range(1, int(s.openings) + 1):
        if s.lost == window:
            _add_outage(p, bins, window, place, weight)
            continue
        later = repair_segments(p, place + 1) - 1 if place < s.lost else further
        left = max(s.duration + later - place, 0.0)
        repeated, only_timeout = p.repeated_loss, s.timeout_chance
        if p.rest_lost and p.loss > 0:
            # The packet waits for all retransmissions up to its own; only the first may end in a timeout.
            repeated = 1 - (1 - p.loss) ** (later + 1)
            only_timeout *= (1 - (1 - p.loss) ** (further + 1)) / repeated
            # A second loss in the next round is detected one round-trip time later.
            second = 1 - (1 - p.loss_of_one_packet) ** max(place - s.lost + 1, 0)
            add_repaired(bins, 0.0, left + p.load, weight * second, repeated, p.load + 1.0, only_timeout, p.timeout)
            add_repaired(bins, 0.0, left, weight * (1 - second), repeated, p.load + 1.0, only_timeout, p.timeout)
            continue
        add_repaired(bins, 0.0, left, weight, repeated, p.load + 1.0, only_timeout, p.timeout)


@kernel()
def _age_in_open_window(p: LinuxParameters, window: int) -> float:
    """Return how long the last segment of a packet waits if the window is smaller than the flight [slots].

    It waits for the ACK that lets it leave (`tcp_cwnd_test`): the next ACK after its write, or if the RTT is shorter
    than a slot, the last ACK before the packet's last window.
    """
    if p.segments_per_packet == 1 or window >= p.flight:
        return 0.0
    if p.load >= 1:
        return float(p.load - math.floor(p.load))
    return float((math.ceil(p.segments_per_packet / window) - 1) * p.load)


@kernel()
def _age_in_recovery(p: LinuxParameters, s: Sending, write: int, window: int) -> float:
    """Return how long the last segment of a packet written in recovery waits in an open window [slots].

    With a load below 1 no other packet is in flight, so that PRR lets no new segment leave before the retransmission
    is acknowledged (RFC 6937, 3). At higher loads each ACK releases a segment.
    """
    until_end = s.wait + p.load - write
    if p.load < 1:
        return float(max(until_end, 0.0) + _age_in_open_window(p, window))
    return float(max(min(p.load - math.floor(p.load), until_end), 0.0, _age_in_open_window(p, window)))


@allocation_free()
def _add_packet(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], age: float, weight: float, window: int
) -> None:
    """Add a packet of several segments, with each way in which a loss of its segments is detected."""
    add(bins, age, 0.0, weight * (1 - o.loss))
    for way in range(DETECTIONS):
        detection = o.detections[way]
        repeated, only_timeout = repair_chances(p, o, way, window)
        this = weight * o.loss * detection.share
        add_repaired(bins, age, p.load + detection.wait, this, repeated, p.load + o.wait, only_timeout, p.timeout)


@allocation_free()
def _add_open(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], weight: float, window: int, only_timeout: float
) -> None:
    """Add the packet that is written in a slot with an open window."""
    load, segments = p.load, p.segments_per_packet
    age, again = _age_in_open_window(p, window), load + 1.0
    if segments > 1:
        _add_packet(p, o, bins, age, weight, window)
        return
    add(bins, age, 0.0, weight * (1 - o.loss))
    if p.continuation < 1.0:
        last = weight * o.loss * (1 - p.continuation)
        add_repaired(bins, age, last_packet_repaired(p), last, o.repeated_loss, p.timeout, 0.0, p.timeout)
        weight *= p.continuation
    if p.followed_losses:
        add_first_of_burst(p, bins, age, window, only_timeout, weight * o.loss)
    else:
        found, later = o.loss * (1 - o.next_lost), o.loss * o.next_lost
        add_repaired(bins, age, load + o.wait, weight * found, o.repeated_loss, again, only_timeout, p.timeout)
        add_repaired(bins, age, load + o.later_wait, weight * later, o.repeated_loss, again, only_timeout, p.timeout)


@allocation_free()
def _written(s: Sending, first: int, last: int) -> float:
    """Return the number of packets that are written from slot `first` to slot `last` of a phase."""
    packets = 0.0
    for place in range(first, last + 1):
        packets += written_share(s.written_later, s.written_first, s.fading, float(place))
    return packets


@allocation_free()
def last_packet_repaired(p: LinuxParameters) -> float:
    """Return the time from the last packet of a talk spurt, which is lost, until its tail loss probe arrives [slots].

    The ACK of the packet before starts the probe's timer again (`tcp_schedule_loss_probe`). With one segment in flight
    the probe waits for two round-trip times and RTO_MIN, and for the RTO at most (RFC 8985, 7.2).
    """
    return float(p.timeout + max(p.load - 1.0, 0.0))


@allocation_free()
def _add_lost_open(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], weight: float, window: int, s: Sending
) -> None:
    """Add the packets that leave between a loss in an open window and its detection."""
    # The lost segment takes a place in the window until it is detected (`tcp_packets_in_flight`).
    age = _age_in_open_window(p, window if p.segments_per_packet == 1 else window - 1)
    step = 1.0
    again = p.load + (step if p.segments_per_packet == 1 else o.wait)
    count = int(s.openings)
    for place in range(1, count + 1):
        # The packet is read at the latest when its own ACK has detected the loss.
        left = min(max(s.duration - place - age, 0.0), p.load + s.wait)
        following = max(place - o.telling, 0)
        further = min(max(math.ceil((again - left) / step - SAME_TIME), 0), following)
        kept = weight * _written(s, place, place) * (1 - o.loss) ** further
        add_repaired(bins, age, left, kept, s.repeated_loss, again, s.timeout_chance, p.timeout)
    chance = o.loss * weight
    for behind in range(count - o.telling):
        # A packet sent `behind` packets before the one that leaves is lost too. Count the packets that this delays.
        later = again - behind * step
        first = max(behind + 1 + o.telling, math.floor(s.duration - age - later + SAME_TIME) + 1)
        if later <= 0:
            break
        if first <= count:
            packets = _written(s, first, count)
            add_repaired(bins, age, later, chance * packets, s.repeated_loss, again, s.timeout_chance, p.timeout)
        chance *= 1 - o.loss


@allocation_free()
def add_open_phase(
    p: LinuxParameters, o: OpenWindow, bins: NDArray[np.float64], window: int, s: Sending, weight: float
) -> None:
    """Add the packets that leave in a phase of an open window. The backlog does not matter."""
    load = p.load
    if s.kind == OPEN:
        _add_open(p, o, bins, weight, window, s.timeout_chance)
    elif s.kind == LOST_OPEN:
        _add_lost_open(p, o, bins, weight, window, s)
    elif s.kind == LOST_TWO and s.lost > 0:
        add_burst_phase(p, bins, window, s, weight)
    elif s.kind == LOST_TWO:
        for place in range(1, int(s.openings) + 1):
            left = max(load + 2.0 - place, s.duration - place)
            this = weight * _written(s, place, place)
            add_repaired(bins, 0.0, left, this, 2 * p.loss, load + 1.0, s.timeout_chance, p.timeout)
    else:
        only_timeout = timeout_chance(p, min(int(load) * p.segments_per_packet, window - 2), reduced_window(p, window))
        write = math.ceil(s.wait - SAME_TIME)
        alive = weight
        for _ in range(int(s.openings)):
            if p.segments_per_packet > 1:
                _add_packet(p, o, bins, _age_in_recovery(p, s, write, window), alive, window)
                alive *= 1 - o.loss
                write += 1
                continue
            # In recovery each ACK releases one packet.
            age = max(min(load - math.floor(load), s.wait + load - write), 0.0)
            this = alive * written_share(s.written_later, s.written_first, s.fading, write - s.wait)
            add(bins, age, 0.0, this * (1 - o.loss))
            if p.followed_losses:
                add_first_of_burst(p, bins, age, window, only_timeout, this * o.loss)
            else:
                add_repaired(bins, age, s.wait, this * o.loss, o.repeated_loss, load + 1.0, only_timeout, p.timeout)
            alive *= 1 - o.loss
            write += 1
