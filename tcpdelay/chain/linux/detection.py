"""When losses are detected: by RACK (RFC 8985), and in a drop-tail queue."""

from __future__ import annotations

import math
from typing import NamedTuple

from tcpdelay.chain.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.chain.linux.windows import ack_offsets
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD

# Losses of a drop-tail queue: how many segments are lost with the first loss of a round, and when this is detected.
#
# With the first lost segment of a round, all further segments of the round are lost (Padhye, Firoiu, Towsley, Kurose,
# "Modeling TCP throughput", SIGCOMM 1998, II). A round lasts one round-trip time from its first segment on: it has the
# segments of a window that limits the sender, or the packets that are written in a round-trip time.
#
# The numbers of lost segments of a round are put in groups, each with a phase of its own. The last group is always the
# loss of the whole round.


@kernel()
def most_lost(segments: int, groups: int, group: int) -> int:
    """Return the largest number of lost segments in a group, counted from 1; 0 for the group 0.

    The first group has one lost segment, the last group all `segments` of the round.
    """
    if group <= 0:
        return 0
    if group >= groups:
        return segments
    if group == 1:
        return 1
    return int(1 + (group - 1) * (segments - 2) / (groups - 2) + SAME_TIME)


@kernel()
def typical_lost(segments: int, groups: int, group: int) -> int:
    """Return the number of lost segments with which the chain computes for a group: the middle one of the group."""
    fewest = most_lost(segments, groups, group - 1) + 1
    return (fewest + most_lost(segments, groups, group)) // 2


@kernel()
def rest_chance(loss: float, segments: int, fewer: int, most: int) -> float:
    """Return the probability that more than `fewer`, and at most `most`, segments of a round with a loss are lost.

    If j segments are lost, the first of them is number k = segments + 1 - j of the round. It is the first with the
    probability p (1 - p)^(k - 1), p being the `loss`, 0 to below 1.
    """
    if most <= fewer:
        return 0.0
    if loss <= 0.0:
        return (most - fewer) / segments
    kept = math.log1p(-loss)
    lost_after = math.exp(kept * (segments - most)) * -math.expm1(kept * (most - fewer))
    return float(lost_after / -math.expm1(kept * segments))


@kernel()
def first_sack_wait(p: LinuxParameters, first: float, spacing: float, sacks: int) -> float:
    """Return the time from the due time of the first lost segment's ACK to the detection of the losses [slots].

    The first SACK is that of the first segment of the next round. It detects the losses if RACK's reordering window is
    over by then. Otherwise RACK's timer, a SACK after the reordering window, or the third SACK detects them
    (`tcp_rack_detect_loss`, `tcp_rack_mark_lost`; RFC 8985, 6.2).
    """
    if first >= p.reordering_wait - SAME_TIME:
        return first
    wait = max(float(p.timer), first)
    if sacks >= DUPLICATE_THRESHOLD:
        wait = min(wait, first + (DUPLICATE_THRESHOLD - 1) * spacing)
    if spacing > 0:
        overdue = math.ceil((p.reordering_wait - first) / spacing - SAME_TIME)
        if overdue < sacks:
            wait = min(wait, first + overdue * spacing)
    return wait


@kernel()
def rest_timeout_chance(p: LinuxParameters, sacks: int) -> float:
    """Return the probability that only the timeout finds the loss of the first retransmission.

    The first SACK begins a round, as it arrives one round-trip time after its segment, the first of a round. If it
    detects the losses, the retransmission is the first segment of the round. With it all segments are lost that the
    SACKs of this round release, and no SACK follows. If `sacks` SACKs came before the detection, so many segments are
    sent in the next round, and RACK finds the loss by the first of them that arrives.
    """
    return 1.0 if sacks <= 0 else float(p.loss)


@kernel()
def rest_timeout(p: LinuxParameters, sacks: int, repairing: float) -> float:
    """Return the probability that the repair of the losses of a round ends in a timeout.

    Only the timeout finds the loss of the first retransmission (`rest_timeout_chance`), or that of the first one in a
    later round-trip time of the repair, which takes `repairing` slots.
    """
    later = math.floor(repairing / p.load + SAME_TIME)
    return float(1 - (1 - p.loss * rest_timeout_chance(p, sacks)) * (1 - p.loss) ** later)


@kernel()
def retransmission_times(
    p: LinuxParameters, segments: int, sacks: int, spacing: float, reduced: int, by_first: bool
) -> tuple[float, float]:
    """Return the times of the last retransmission and of the next ACK, from the first retransmission on [slots].

    Each SACK releases a retransmission, as fewer segments than ssthresh are in flight (PRR; `tcp_cwnd_reduction`; RFC
    6937, 3). Each ACK of a retransmission releases two, up to the reduced window. The next ACK lets new packets leave.
    """
    acks = max(sacks, 1)
    if by_first and (acks == 1 or p.timer < 2 * spacing):
        # The first SACK leaves out the segments that were sent in the reordering window before its own. If RACK's timer
        # marks them as lost before the next SACK, their places in the window are free (`tcp_rack_reo_timeout`).
        acks += max(math.ceil(p.reordering_wait / spacing - SAME_TIME) - 1, 0)
    in_round, begin = acks, 0.0
    while segments > in_round:
        segments -= in_round
        begin += p.load
        in_round = max(min(2 * in_round, reduced), 1)
    between = spacing * acks / in_round
    last = begin + (segments - 1) * between
    return last, last + between if segments < in_round else begin + p.load


# When RACK (RFC 8985) detects a loss, given the times at which later segments are acknowledged.

DETECTIONS = 3
"""Number of ways in which RACK detects a loss in a packet of several segments; see `Detection`."""
LATENESS_DEVIATION = math.sqrt(1 / 6)
"""Standard deviation of the difference of two times that are uniform between 0 and 1."""
FOLLOWED_LOSSES = 4
"""Number of lost ACK-triggering segments in a row that are followed while a loss waits for detection."""


@kernel()
def detection_wait(p: LinuxParameters, close_acks: int, spacing_in_run: float, spacing_after_run: float) -> float:
    """Return how long after the due time of its ACK a lost segment is detected [slots].

    Each later segment has an ACK of its own, the first `close_acks` of them in a run. The first of three events detects
    the loss: an ACK that arrives RACK's reordering wait or more after the due time, the third ACK, or the timer that
    the first ACK starts (RFC 8985, 6.2).
    """
    if p.write_jitter == 0:
        return _detection_wait(p, p.reordering_wait, close_acks, spacing_in_run, spacing_after_run)
    # Of two segments that leave with late writes, the SACK of the second comes earlier or later by the difference of
    # two latenesses. Its mean and variance are those of two equally probable values.
    spread = LATENESS_DEVIATION * p.write_jitter
    wait = 0.0
    for sign in (-1.0, 1.0):
        reordering_wait = p.reordering_wait + sign * spread
        wait += _detection_wait(p, reordering_wait, close_acks, spacing_in_run, spacing_after_run) / 2
    return wait


@kernel()
def _detection_wait(
    p: LinuxParameters, reordering_wait: float, close_acks: int, spacing_in_run: float, spacing_after_run: float
) -> float:
    """Return the time from the due time of an ACK to the detection, for one length of the reordering wait [slots]."""
    time = 0.0
    for place in range(1, 1000):
        time += spacing_in_run if place <= close_acks else spacing_after_run
        if time >= reordering_wait - SAME_TIME:
            return time if place == 1 else min(time, float(p.timer))
        if place >= DUPLICATE_THRESHOLD:
            return time
        following = time + (spacing_in_run if place + 1 <= close_acks else spacing_after_run)
        if following > p.timer:
            return max(float(p.timer), time)
    return time


@kernel()
def mean_detection_wait(p: LinuxParameters, wait: float, step: float) -> float:
    """Return the mean wait for detection if the segments that would trigger it may be lost too [slots].

    A lost segment sends no SACK, so the next one, `step` later, detects the loss (`tcp_rack_detect_loss`; RFC 8985,
    6.2). Once an earlier SACK has started RACK's timer, it is the upper limit (`tcp_rack_mark_lost`).
    """
    mean, chance, this = 0.0, 1.0, wait
    for place in range(FOLLOWED_LOSSES):
        mean += chance * (1 - p.next_loss) * this
        chance *= p.next_loss
        this = wait + step * (place + 1)
        if step < p.reordering_wait and wait > step:
            this = min(this, max(p.timer, wait))
    return float(mean + chance * this)


@kernel()
def timeout_chance(p: LinuxParameters, in_flight: int, reduced: int) -> float:
    """Return the probability that only the retransmission timeout finds a lost retransmission.

    RACK finds the loss by the ACK of any segment that was sent after the retransmission (`tcp_rack_detect_loss`; RFC
    8985, 6.2). Each segment in flight releases one new segment when it is acknowledged (PRR, `tcp_cwnd_reduction`), as
    far as the reduced window allows. If in each of these pairs either segment is lost, only the timeout finds the loss
    (`tcp_retransmit_timer`). For n pairs the probability is (1 - (1 - p)^2)^n.
    """
    if in_flight <= 0 or p.rest_lost:
        # The rest of the retransmission's round is lost with it.
        return 1.0
    pairs = max(min(in_flight, reduced - 1), 1)
    if p.followed_losses:
        # The segments in flight have passed the burst, but the new segments meet the same burst as the retransmission.
        return float(p.next_loss**pairs)
    return float((1 - (1 - p.loss) ** 2) ** pairs)


@kernel()
def open_timeout_chance(p: LinuxParameters, most: int, reduced: int) -> float:
    """Return `timeout_chance` of a loss in an open window, with at most `most` segments in flight.

    In flight are the packets of a round-trip time. With late writes, the SACK that detects the loss may come before the
    write of the last of them, which then waits for the end of the recovery.
    """
    early, _, _ = ack_offsets(p, 1)
    if early == 0.0:
        return timeout_chance(p, min(int(p.load), most), reduced)
    packets = math.floor(p.load + 0.5)
    without = timeout_chance(p, min(packets - 1, most), reduced)
    return early * without + (1 - early) * timeout_chance(p, min(packets, most), reduced)


class Detection(NamedTuple):
    """A way in which RACK detects the first lost segment of a packet (RFC 8985, 6.2).

    The later segments of the packet that arrive are SACKed at one instant. If they are three or more, their SACKs
    detect the loss at once; if they are one or two, RACK's timer or the next packet detects it. If none arrives, the
    next packet detects it. These are the ways 0, 1 and 2. A packet of one segment has the way 0 only.
    """

    share: float  # Share of the packets with a lost segment
    wait: float  # Time from the due time of the ACK to the detection [slots]
    # Probability that the packet has further lost segments. PRR retransmits them when the first retransmission is
    # acknowledged.
    further: float


@kernel()
def _later_arrivals(p: LinuxParameters, later: int, arrived: int) -> float:
    """Return the probability that `arrived` of `later` segments arrive, 0 to 2."""
    loss, kept = p.loss_of_one_packet, 1 - p.loss_of_one_packet
    if arrived > later:
        return 0.0
    ways = 1.0 if arrived == 0 else (float(later) if arrived == 1 else later * (later - 1) / 2)
    return float(ways * kept**arrived * loss ** (later - arrived))


@kernel()
def packet_detections(p: LinuxParameters, alone: float) -> tuple[Detection, Detection, Detection]:
    """Return the ways in which losses in a packet of several segments are detected.

    >>> from tcpdelay import Flow, Path, Stack
    >>> from tcpdelay.chain.linux.parameters import linux_parameters
    >>> p = linux_parameters(Flow(5792, 0.02), Path(0.01, 1e-9), Stack.linux())
    >>> p = p._replace(loss_of_one_packet=1e-9)
    >>> [(round(way.share, 3), round(way.wait, 3)) for way in packet_detections(p, 1.0)]
    [(0.25, 0.0), (0.5, 0.5), (0.25, 1.0)]
    """
    segments, loss = p.segments_per_packet, p.loss_of_one_packet
    early = by_timer = late = early_alone = by_timer_alone = 0.0
    chance = loss
    for place in range(1, segments + 1):
        later = segments - place
        none = _later_arrivals(p, later, 0)
        few = _later_arrivals(p, later, 1) + _later_arrivals(p, later, 2)
        late += chance * none
        by_timer += chance * few
        early += chance * max(1 - none - few, 0.0)
        whole = chance * (1 - loss) ** later
        if later >= DUPLICATE_THRESHOLD:
            early_alone += whole
        elif later:
            by_timer_alone += whole
        chance *= 1 - loss
    lost = max(early + by_timer + late, 1e-300)
    last = alone if segments < DUPLICATE_THRESHOLD else min(alone, 1.0)
    return (
        Detection(early / lost, 0.0, 1 - early_alone / early if early > 0 else 0.0),
        Detection(by_timer / lost, min(1.0, p.timer), 1 - by_timer_alone / by_timer if by_timer > 0 else 0.0),
        Detection(late / lost, last, 1 - (chance / (1 - loss)) / late if late > 0 else 0.0),
    )


@kernel()
def packet_timeout_chance(p: LinuxParameters, way: int, wait: float, window: int, reduced: int) -> float:
    """Return the probability that only the timeout finds a lost retransmission for a packet of an open window.

    In flight are the packets written since, and those later segments of the same packet that are SACKed after the
    detection: PRR lets a new segment leave for each of them (RFC 6937, 3), and none besides the retransmission if no
    segment is in flight.
    """
    segments, load = p.segments_per_packet, p.load
    if p.rest_lost:
        return rest_timeout_chance(p, math.floor(wait - 1 + SAME_TIME))
    if segments == 1:
        return open_timeout_chance(p, window - 2, reduced)
    later_packets = math.floor(load + wait + SAME_TIME) - math.floor(wait + SAME_TIME)
    in_flight = max(later_packets, 0) * segments
    if way == 0:
        chance, places = 0.0, max(segments - DUPLICATE_THRESHOLD, 1)
        for sacked_later in range(places):
            chance += timeout_chance(p, min(in_flight + sacked_later, window - 2), reduced)
        return chance / places
    if wait >= 1 - SAME_TIME:
        # The next packet's SACKs detect the loss: the first of them if it is late enough, otherwise the third.
        in_flight += segments - 1 if wait >= p.reordering_wait else max(segments - DUPLICATE_THRESHOLD, 0)
    return timeout_chance(p, min(in_flight, window - 2), reduced)
