"""Transitions while the window limits the sender: losses, recoveries with PRR, and measurements of the RTT by BBR."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.linux.bursts import (
    last_loss_weight,
    more_lost,
    outage_chance,
    probe_interval,
    put_outage,
    put_rest_losses,
    repair_segments,
)
from tcpdelay.chain.linux.departures import BINS_PER_SLOT, EXTRA, NEGLIGIBLE, REMAINDER, WEIGHT, add, new_bins
from tcpdelay.chain.linux.detection import detection_wait, mean_detection_wait, timeout_chance
from tcpdelay.chain.linux.open_transitions import OpenWindow, put_open_loss
from tcpdelay.chain.linux.parameters import FASTER, PACED, SAME_TIME, LinuxParameters
from tcpdelay.chain.linux.phases import (
    LOST,
    LOST_REPAIRING,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    Layout,
    Sending,
    even_repair_phase,
    lost_phase,
    open_phase,
    put,
    put_outcomes,
    put_repeat,
    put_rounds,
    repair_phase,
    round_phase,
)
from tcpdelay.chain.linux.windows import SMALL_PACKETS, reduced_window, round_openings, window_before
from tcpdelay.chain.solver.state_space import Phases, Transitions
from tcpdelay.chain.solver.sweeps import copy
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD

# Transitions of the chain from a loss to its detection while the window limits the sender.


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
    """Return the mean wait for the detection of a loss in a round [slots], and the mean number of SACKs before it."""
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


# Transitions of the recoveries of the chain while the window limits the sender, with PRR.

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
    """Append the phase from the last retransmission to its ACK."""
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


# BBR's measurements of the round-trip time (PROBE_RTT), which hold packets back every ten seconds.
#
# If no shorter RTT has been seen for ten seconds, BBR sends with a window of four segments for 200 ms, at least for a
# round (`bbr_update_min_rtt`). A flow with more segments in flight has a backlog then. After that, the pacing rate
# limits how fast the backlog leaves. It is the bandwidth times a gain (`bbr_update_gains`); the bandwidth is the
# largest rate at which segments were delivered (`bbr_update_bw`).
#
# For a flow of constant bit rate all measurements are alike, up to the phase of the gain cycle after the measurement,
# which is random. So the chain follows the packets of one measurement for each of these phases, without losses. The
# delay of a packet is then the sum of two delays: the delay that losses cause, and the delay that measurements cause
# for a packet written at a random time.

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
