"""BBR's measurements of the round-trip time (PROBE_RTT), which hold packets back every ten seconds.

If no shorter RTT has been seen for ten seconds, BBR sends with a window of four segments for 200 ms, at least for a
round (`bbr_update_min_rtt`). A flow with more segments in flight has a backlog then. After that, the pacing rate
limits how fast the backlog leaves. It is the bandwidth times a gain (`bbr_update_gains`); the bandwidth is the
largest rate at which segments were delivered (`bbr_update_bw`).

For a flow of constant bit rate all measurements are alike, up to the phase of the gain cycle after the measurement,
which is random. So the chain follows the packets of one measurement for each of these phases, without losses. The
delay of a packet is then the sum of two delays: the delay that losses cause, and the delay that measurements cause
for a packet written at a random time.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.linux.departures import BINS_PER_SLOT, EXTRA, NEGLIGIBLE, REMAINDER, WEIGHT, add, new_bins
from tcpdelay.chain.linux.detection import detection_wait
from tcpdelay.chain.linux.parameters import FASTER, PACED, SAME_TIME, LinuxParameters
from tcpdelay.chain.solver.sweeps import copy
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.tcp import constants as tcp

MIN_RTT_TIME, PROBE_TIME = tcp.BBR_MIN_RTT_TIME / tcp.SECOND, tcp.BBR_PROBE_RTT_TIME / tcp.SECOND
"""Time between two measurements, and the shortest time of a measurement [s]."""
SLOWER = tcp.BBR_PROBING_GAINS[1] / tcp.BBR_GAIN
"""Pacing gain of the second phase of the gain cycle; the gain of the first is `FASTER`, and of the other phases 1."""
HIGH = tcp.BBR_HIGH_GAIN / tcp.BBR_GAIN
"""Pacing gain in startup."""
STARTUP = -1
"""Number of startup among the phases of the gain cycle."""
SPARE_SEGMENTS, SPARE_WHEN_FASTER = 3, 2
"""Segments in flight beyond the product of bandwidth and RTT: three quanta, and two more in the first phase of the gain
cycle (`bbr_quantization_budget`)."""
MOST_DELAYS = 128
"""About the number of values that remain when similar delays are joined."""


@kernel()
def _gain(phase: int) -> float:
    """Return the pacing gain of a phase."""
    if phase == STARTUP:
        return HIGH
    return FASTER if phase == 0 else (SLOWER if phase == 1 else 1.0)


@kernel()
def _in_flight(p: LinuxParameters, bandwidth: float, phase: int) -> float:
    """Return the segments in flight at which one of the first two phases of the gain cycle ends (`bbr_inflight`)."""
    target = math.ceil((FASTER if phase == 0 else 1.0) * bandwidth * p.load - SAME_TIME) + SPARE_SEGMENTS
    return float(target + target % 2 + (SPARE_WHEN_FASTER if phase == 0 else 0))


@kernel()
def _is_over(p: LinuxParameters, phase: int, lasted: float, in_flight: int, bandwidth: float) -> bool:
    """Return whether a phase of the gain cycle is over after `lasted` slots (`bbr_is_next_cycle_phase`).

    The first phase also ends with a loss: in the mean, the first loss after a round-trip time is 1 / p segments later.
    """
    if phase == STARTUP:
        return False
    if phase == 0:
        until_loss = p.load + 1 / p.loss if p.loss > 0 else np.inf
        return lasted > p.load and (in_flight >= _in_flight(p, bandwidth, 0) or lasted > until_loss)
    return lasted > p.load or (phase == 1 and in_flight <= _in_flight(p, bandwidth, 1))


@kernel()
def _send(
    p: LinuxParameters, delays: NDArray[np.float64], sent: NDArray[np.float64], number: int, time: float, done: float
) -> float:
    """Send segment `number` with the packets that wait, up to a full segment; return the packets sent up to now."""
    sent[number] = time
    after = min(done + p.packets_per_segment, math.floor(time + SAME_TIME))
    for packet in range(math.floor(done + SAME_TIME) + 1, math.floor(after + SAME_TIME) + 1):
        delays[packet] = max(time - packet, 0.0)
    return float(after)


@kernel()
def _longest(p: LinuxParameters) -> int:
    """Return the number of packets that are written until the next measurement."""
    return int((MIN_RTT_TIME + PROBE_TIME) / p.interval + 4 * p.load) + 2


@kernel()
def held_back(p: LinuxParameters, phase: int) -> tuple[NDArray[np.float64], float]:
    """Return the delays that a measurement of the RTT adds to packets."""
    most = _longest(p)
    delays, sent = np.zeros(most), np.zeros(2 * most)
    # Packet k is written at the time k. Packets up to packet 0 were sent at once, and are in flight.
    tail = math.floor(p.load + SAME_TIME)
    for number in range(tail):
        sent[number] = number + 1.0 - tail
    head, time, done = 0, p.load - tail, 0.0
    ends, last_of_round = np.inf, most
    while not (head > last_of_round and time >= ends):
        if time > most - 2:
            return delays[1:most], time
        if ends == np.inf and tail - head <= tcp.BBR_SMALLEST_WINDOW:
            ends, last_of_round = time + PROBE_TIME / p.interval, tail
        while tail - head < tcp.BBR_SMALLEST_WINDOW and math.floor(time + SAME_TIME) > done + SAME_TIME:
            done = _send(p, delays, sent, tail, time, done)
            tail += 1
        # The next write or ACK.
        time = math.floor(time + SAME_TIME) + 1.0
        if head < tail and sent[head] + p.load <= time:
            time = sent[head] + p.load
            head += 1
    duration, began, paced, bandwidth, undelayed, behind = time, time, time, 1.0, 0, head
    while done < most - 2 and undelayed <= p.load:
        # A segment leaves when it is paced and has been written.
        time = max(paced, math.floor(done + SAME_TIME) + 1.0)
        while head < tail and sent[head] + p.load <= time + SAME_TIME:
            # The rate of delivery since the last segment that had been acknowledged when this segment was sent.
            while sent[behind] + p.load <= sent[head] + SAME_TIME:
                behind += 1
            if behind > 0:
                bandwidth = max(bandwidth, (head - behind + 1) / (sent[head] - sent[behind - 1]))
            head += 1
        if _is_over(p, phase, time - began, tail - head, bandwidth):
            phase, began = (phase + 1) % tcp.BBR_CYCLE, time
        before = done
        done = _send(p, delays, sent, tail, time, done)
        tail += 1
        undelayed = undelayed + 1 if time <= math.floor(done + SAME_TIME) + SAME_TIME else 0
        # A segment that is sent late makes up for at most half of the time to the next (`tcp_update_skb_after_send`).
        gap = (done - before) / p.packets_per_segment / (PACED * _gain(phase) * bandwidth)
        paced = time + gap - min(gap / 2, time - paced)
    return delays[1 : math.floor(done + SAME_TIME) + 1], duration


@kernel()
def _stays_in_startup(p: LinuxParameters) -> bool:
    """Return whether the flow stays in startup, which ends after rounds that the application does not limit.

    Such rounds follow a measurement whose backlog takes more than a round-trip time to leave: until then, segments have
    the mark of the application's limit (`tcp_rate_check_app_limited`). They also follow losses that an ACK detects, as
    the retransmission takes the place of a packet. RACK's timer, which fires between two ACKs, retransmits in addition.
    """
    held, duration = held_back(p, STARTUP)
    wait = detection_wait(p, 0, 1.0, 1.0)
    # The last packets of `held`, those of a round-trip time, are not delayed.
    return bool(held.size - duration <= 2 * p.load and abs(wait - round(wait)) > SAME_TIME)


@kernel()
def ascending(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values in ascending order, by Shell's method: Numba takes 1.5 s to compile `np.sort`."""
    result = values.copy()
    gap = 1
    while gap < result.size:
        gap = 3 * gap + 1
    while gap > 1:
        gap //= 3
        for last in range(gap, result.size):
            value, place = result[last], last
            while place >= gap and result[place - gap] > value:
                result[place] = result[place - gap]
                place -= gap
            result[place] = value
    return result


@kernel()
def _joined(delays: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Join similar delays; return about `MOST_DELAYS` mean delays, ascending, and the number of delays in each mean."""
    values, counts = np.zeros(delays.size), np.zeros(delays.size)
    least, filled = max(delays.size // MOST_DELAYS, 1), -1
    for delay in ascending(delays):
        if filled < 0 or (counts[filled] >= least and delay > values[filled] + SAME_TIME):
            filled += 1
        # The mean of the delays so far.
        values[filled] += (delay - values[filled]) / (counts[filled] + 1)
        counts[filled] += 1
    return values[: filled + 1], counts[: filled + 1]


@kernel(nogil=True)
def with_rtt_probes(p: LinuxParameters, bins: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bins of delays that losses cause with the delays that measurements of the RTT add.

    With less than a packet per round-trip time there are none: BBR measures no RTT when it restarts after idle time
    (`bbr_update_min_rtt`, idle_restart).
    """
    if p.load < 1:
        return bins
    in_startup = _stays_in_startup(p)
    delays, count, whole = np.zeros(tcp.BBR_CYCLE * _longest(p)), 0, 0.0
    for phase in range(STARTUP, tcp.BBR_CYCLE):
        # The second phase of the gain cycle never comes first (`bbr_reset_probe_bw_mode`).
        if phase != 1 and (phase == STARTUP) == in_startup:
            held, duration = held_back(p, phase)
            copy(held, delays[count : count + held.size])
            count += held.size
            whole += max(MIN_RTT_TIME / p.interval + duration, held.size)
    values, counts = _joined(delays[:count])
    shares, free = counts / whole, 1 - count / whole
    slots = int(bins[WEIGHT, EXTRA, 0])
    found = new_bins(slots + int(values[-1]) + 1)
    packets = 0.0
    for slot in range(slots):
        for place in range(BINS_PER_SLOT):
            weight = bins[WEIGHT, place, slot]
            if weight > NEGLIGIBLE:
                packets += weight
                delay = slot + bins[REMAINDER, place, slot] / weight
                add(found, 0.0, delay, weight * free)
                for i in range(values.size):
                    add(found, 0.0, delay + values[i], weight * shares[i])
    # A packet that is held back waits in the send buffer.
    found[REMAINDER, EXTRA, 0] = bins[REMAINDER, EXTRA, 0] + packets * (shares * values).sum()
    found[REMAINDER, EXTRA, 1] = bins[REMAINDER, EXTRA, 1] + packets * (shares * np.minimum(values, 1.0)).sum()
    return found
