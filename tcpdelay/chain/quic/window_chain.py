"""The congestion window of QUIC and the data that wait for it, as a Markov chain.

A step of the chain is a round trip, or the interval of the messages if that is longer. In each step the window carries
its bytes once per round trip, and what is written beyond them waits. A phase has a window, the state of recovery, and
whether data waited at the end of the step before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.solver.state_space import PHASE, TRANSITION, Phases, Rows, Transitions
from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.sim.congestion.newreno import BURST_BELOW_WINDOW
from tcpdelay.sim.quic.connection import (
    ALWAYS,
    BY_PACKETS,
    NEAR_WINDOW,
    OVERSHOOT,
    PACKET_TOKENS,
    UNLESS_LIMITED,
    WHOLE,
    QuicRules,
)
from tcpdelay.sim.quic.sender import TIME_THRESHOLD
from tcpdelay.sim.tcp.constants import SECOND

RECOVERING, OPEN, FOUND_LATER = range(3)
"""States of recovery: no loss is known; the loss of the step before is found at the end of this step; the window has
just been reduced, and packets of the flight before do not enlarge it."""
_OUTCOMES, _EVENTS = 3, 12
"""Outcomes of a step, and events of a phase: each outcome leads to two windows and two backlogs next to each other."""
PARTS = 4
"""Parts of a step in which delays are computed one by one."""
LARGEST_ROUND = 20
"""Full packets that are written in a round trip from which on a step has several round trips."""
UNITS_PER_STEP = 12
"""Most units of the backlog that are written in a step."""


class WindowParameters(NamedTuple):
    """What the chain of the window needs: bytes of UDP payload, times in seconds."""

    loss: float  # Loss probability of a packet
    round_trip: float  # Round trip of an ACK in a stream of packets [s]
    interval: float  # Interval of the messages [s]
    step: float  # Duration of a step [s]
    message: float  # Bytes of a message in packets of its own
    packed: float  # The same in full packets, as it leaves from a backlog
    packets: int  # Packets of a message
    datagram: float  # Bytes of a full packet
    factor: float  # Factor of the window at a loss
    pairs: bool  # Whether every second message is acknowledged with the next one
    idle_delay: float  # Delay of an ACK where messages are too rare for pairs [s]
    sent: float  # Transmissions of a packet, in the mean
    # How often the end of a packet cuts a message that leaves from a backlog, in the mean. The rest of the message
    # then waits for its next turn, as streams are served in turn.
    cuts: float
    found_after: float  # Mean time from a packet to the detection of its loss, if the window is open [s]
    # grows, growth, window_rule, pacer, pacing_gain, pacing_burst: As of `QuicRules`.
    grows: int
    growth: int
    window_rule: int
    pacer: int
    pacing_gain: float
    pacing_burst: float
    # Share of the packets from a backlog that are acknowledged only with the next packet, beyond those that `WHOLE`
    # leaves out.
    odd_share: float
    unit: float  # Unit of the backlog [bytes]


@kernel()
def messages_in_flight(p: WindowParameters) -> int:
    """Return the number of earlier messages that are in flight when a message is written."""
    return math.ceil((p.round_trip + p.idle_delay) / p.interval - 1e-9) - 1 + (1 if p.pairs else 0)


@kernel()
def usable(p: WindowParameters, window: float) -> float:
    """Return the bytes in flight that a window allows while much waits, so that all packets are full."""
    if p.window_rule == WHOLE:
        packets = math.floor(window / p.datagram)
        # Packets are acknowledged in pairs: an odd one waits at the receiver for the next.
        return (packets - packets % 2) * p.datagram
    if p.window_rule == OVERSHOOT:
        return math.ceil(window / p.datagram) * p.datagram
    return window


@kernel()
def served(p: WindowParameters, window: float) -> float:
    """Return the bytes that leave a backlog in a round trip: the usable window over the time in flight of a packet.

    A lost packet fills the window until its loss is found by the next packet, but not before the time threshold. A
    packet that is acknowledged with the next one fills it for as long as the next one is behind.
    """
    packets = usable(p, window) / p.datagram
    found_after = max(TIME_THRESHOLD, 1 + 1 / packets)
    time_in_flight = 1 + p.loss * (found_after - 1) + p.odd_share / packets
    return packets * p.datagram / time_in_flight


@kernel()
def held(p: WindowParameters, levels: NDArray[np.float64], level: int, state: int) -> float:
    """Return the window of a level in the mean.

    A window that grows by packets does so a packet at a time, and counts anew from a loss. So it is half a packet below
    the line that the levels follow while it grows, and on this line while it recovers.
    """
    if p.growth == BY_PACKETS and state != RECOVERING:
        return float(max(levels[level] - p.datagram / 2, levels[0]))
    return float(levels[level])


@kernel()
def first_wait(p: WindowParameters, window: float, with_next: bool) -> float:
    """Return the wait of a message for window and pacer if no data wait [s]; `with_next`, of the second of two."""
    wait = 0.0
    in_flight = messages_in_flight(p)
    if p.window_rule == OVERSHOOT:
        window = usable(p, window)
    if in_flight == 0 and p.message > window:
        wait = (math.ceil(p.message / min(usable(p, window), window)) - 1) * p.round_trip
    elif (in_flight + 1) * p.message > window:
        # The ACK of the oldest packet, or pair of packets, releases the message.
        wait = (p.round_trip + p.idle_delay) % p.interval
        if p.pairs and not with_next:
            wait += p.interval
    burst = p.pacing_burst * p.datagram
    if p.pacer == PACKET_TOKENS:
        burst = max(2.0, math.ceil(min(window / 4, burst) / p.datagram)) * p.datagram
    beyond = math.ceil((p.message - burst) / p.datagram)
    return max(wait, beyond * p.datagram * p.round_trip / (p.pacing_gain * window))


@kernel()
def grown(p: WindowParameters, window: float, busy: bool) -> float:
    """Return by how many bytes a window grows in a step without a loss (RFC 9002, 7.3.3 and 7.8; RFC 5681, 3.1)."""
    in_flight = (messages_in_flight(p) + 1) * p.message
    rounds = p.step / p.round_trip
    if busy:
        acknowledged = served(p, window) * rounds
    else:
        acknowledged = p.message * p.step / p.interval
        if p.grows == UNLESS_LIMITED:
            if in_flight <= window:
                return 0.0
            if in_flight == p.message:
                acknowledged = (math.ceil(p.message / min(usable(p, window), window)) - 1) * window
        elif p.grows == NEAR_WINDOW:
            if window - in_flight > BURST_BELOW_WINDOW * p.datagram:
                return 0.0
            if p.growth == BY_PACKETS:
                return p.packets * p.step / p.interval * p.datagram / math.floor(window / p.datagram)
    return p.datagram * acknowledged / window


@kernel()
def _place(levels: NDArray[np.float64], window: float) -> tuple[int, float]:
    """Return the level next below a window, and the share of the way to the next level."""
    if window >= levels[-1]:
        return levels.size - 2, 1.0
    if window <= levels[0]:
        return 0, 0.0
    above = int(np.searchsorted(levels, window, side="right"))
    return above - 1, (window - levels[above - 1]) / (levels[above] - levels[above - 1])


@kernel()
def _add_event(transitions: Transitions, first: int, event: int, target: int, shift: int, chance: float) -> None:
    """Set an event of a phase, or add its probability to an earlier event that leads to the same state."""
    for own in range(first, event):
        if transitions[own].target_when_empty == target and transitions[own].shift == shift:
            transitions[own].probability += chance
            return
    transition = transitions[event]
    transition.target, transition.target_when_empty = target + 1, target
    transition.shift, transition.probability = shift, chance


@kernel()
def window_chain(p: WindowParameters, levels: NDArray[np.float64]) -> tuple[Phases, Transitions]:
    """Return the chain: phases by state of recovery, level of the window, and whether data waits."""
    count = 6 * levels.size
    phases: Phases = records(count + 1, PHASE)
    transitions: Transitions = records(_EVENTS * count, TRANSITION)
    phases[count].first_transition = transitions.size
    probability, reached, recovery = np.zeros(_OUTCOMES), np.zeros(_OUTCOMES), np.zeros(_OUTCOMES, np.int64)
    for phase in range(count):
        state, level, busy = phase // (2 * levels.size), (phase // 2) % levels.size, phase % 2 == 1
        window = held(p, levels, level, state)
        phases[phase].window, phases[phase].recovery = level, state
        phases[phase].first_transition = _EVENTS * phase
        # Bytes that arrive and leave in the step, with retransmissions, and packets that may be lost.
        arrives = (p.packed if busy else p.message) * p.step / p.interval * p.sent
        leaves = (served(p, window) if busy else window) * p.step / p.round_trip
        packets = leaves / p.datagram if busy or arrives > leaves else p.packets * p.step / p.interval * p.sent
        shift = (arrives - leaves) / p.unit
        growth = grown(p, window, busy)
        if state == RECOVERING:
            # The window grows again with the ACK of the first packet that is sent after the loss has been found. If
            # data waits, this packet leaves when the flight, without the lost packet, has shrunk to the new window. All
            # of this pause is taken off here, so that the growth may be negative.
            shrinking = max(1 - p.factor - p.factor * p.datagram / usable(p, window), 0.0) if busy else 0.0
            growth *= 1 - (1 + shrinking) * p.round_trip / p.step
        # A loss is found a round trip later: at the end of this step or of the next, in shares that keep the mean.
        after = max(TIME_THRESHOLD, 1 + p.datagram / usable(p, window)) * p.round_trip if busy else p.found_after
        now = min(max(1.5 - after / p.step, 0.0), 1.0)
        lost = 1 - (1 - p.loss) ** packets
        if state == FOUND_LATER:
            lost, now = 1.0, 1.0
        probability[0], reached[0], recovery[0] = 1 - lost, levels[level] + growth, OPEN
        probability[1], reached[1], recovery[1] = lost * now, p.factor * (window + growth), RECOVERING
        probability[2], reached[2], recovery[2] = lost * (1 - now), levels[level] + growth, FOUND_LATER
        event = _EVENTS * phase
        for outcome in range(_OUTCOMES):
            below, share = _place(levels, reached[outcome])
            for up in range(2):
                target = 2 * (recovery[outcome] * levels.size + below + up)
                chance = probability[outcome] * (share if up else 1 - share)
                if shift <= 0 and not busy:
                    _add_event(transitions, _EVENTS * phase, event, target, -1, chance)
                elif target + 1 == phase:
                    # The solver allows one event that leads back to its own phase.
                    _add_event(transitions, _EVENTS * phase, event, target, round(shift), chance)
                else:
                    whole = math.floor(shift)
                    _add_event(transitions, _EVENTS * phase, event, target, whole, chance * (1 - shift + whole))
                    _add_event(transitions, _EVENTS * phase, event + 1, target, whole + 1, chance * (shift - whole))
                event += 2
        for own in range(_EVENTS * phase, _EVENTS * (phase + 1)):
            transitions[own].duration = p.step
    return phases, transitions


@kernel()
def window_waits(
    p: WindowParameters,
    levels: NDArray[np.float64],
    phases: Phases,
    rows: Rows,
    probability: NDArray[np.float64],
    bin_width: float,
    bins: int,
) -> NDArray[np.float64]:
    """Return the weights of the waits of messages for the window, in bins, and the weighted waits [s].

    Bin 0 is for messages that do not wait. Streams are served in turn, one frame each. So a message that leaves while b
    bytes wait has waited since its last turn for as long as these bytes took to join the streams behind it: those of
    new messages, and those of messages that the end of a packet cut. For each cut it waits for one more turn.
    """
    found = np.zeros((2, bins + 1))
    for phase in range(phases.size - 1):
        busy = phase % 2 == 1
        window = held(p, levels, phases[phase].window, phases[phase].recovery)
        written = (p.packed if busy else p.message) * p.step / p.interval * p.sent
        leaves = (served(p, window) if busy else window) * p.step / p.round_trip
        cuts = p.cuts
        for cell in range(rows.offset[phase], rows.offset[phase + 1]):
            weight = probability[cell] / PARTS
            backlog = (cell - rows.offset[phase] + rows.low[phase]) * p.unit
            for part in range(PARTS):
                behind = backlog + (written - leaves) * (part + 0.5) / PARTS
                if behind <= 0:
                    _add(found, first_wait(p, window, part % 2 == 1), weight, bin_width)
                    continue
                fewest = math.floor(cuts)
                for more in range(2):
                    wait, then = 0.0, behind
                    for _ in range(fewest + more + 1):
                        turn = then / (written / p.step * (1 + cuts / 2))
                        wait += turn
                        then = max(then - (written - leaves) / p.step * turn, 0.0)
                    share = cuts - fewest if more else 1 - cuts + fewest
                    _add(found, wait, share * weight * leaves / written, bin_width)
    return found


@kernel()
def _add(found: NDArray[np.float64], wait: float, weight: float, bin_width: float) -> None:
    """Add a wait to its bin: its weight, and the weighted wait."""
    place = 0 if wait <= 0 else min(1 + int(wait / bin_width), found.shape[1] - 1)
    found[0, place] += weight
    found[1, place] += weight * max(wait, 0.0)


def window_levels(p: WindowParameters, rules: QuicRules) -> NDArray[np.float64]:
    """Return the windows of the phases [bytes], ascending: evenly spaced where they limit the flow, then by factors."""
    need = (messages_in_flight(p) + 1) * p.message
    smallest = rules.smallest_window * p.datagram
    spacing = p.datagram / 2 * max(1, round(p.step / p.round_trip)) if p.interval < p.round_trip else p.datagram / 2
    largest = 24 * (need + 4 * p.datagram) if p.grows == ALWAYS else 3 * need + 10 * p.datagram
    levels = np.arange(smallest, max(1.5 * need, smallest) + 6 * p.datagram, spacing)
    factors = 1.12 ** np.arange(1, math.ceil(math.log(max(largest / levels[-1], 1.2)) / math.log(1.12)) + 1)
    return np.concatenate([levels, levels[-1] * factors])


def window_parameters(
    rules: QuicRules, flow: Flow, path: Path, max_ack_delay: float, datagrams: bool, found_after: float
) -> WindowParameters:
    """Return the parameters of the chain."""
    ack_delay = rules.settings(max_ack_delay)["ack_delay"] / SECOND
    packets = sum(rules.message_packets(flow.packet_size, datagrams))
    message = flow.packet_size + packets * (rules.packet_overhead + rules.frame_overhead)
    full = rules.datagram_size - rules.packet_overhead
    packed = (flow.packet_size + rules.frame_overhead) * rules.datagram_size / full
    if datagrams and rules.datagrams_per_packet == 1:
        packed = float(message)
    round_trip = path.rtt + (0.0 if rules.acks_gaps else ack_delay)
    rounds = math.ceil(message * round_trip / flow.interval / (LARGEST_ROUND * rules.datagram_size))
    step = max(rounds * round_trip, flow.interval)
    # Chance that a packet from a backlog has the end of a stream, which is acknowledged at once.
    ends = min(rules.datagram_size / packed, 1.0) if rules.acks_stream_ends and not datagrams else 0.0
    in_pairs = packets == 1 and rules.acks_gaps and not rules.acks_stream_ends
    return WindowParameters(
        loss=path.loss,
        round_trip=round_trip,
        interval=flow.interval,
        step=step,
        message=float(message),
        packed=float(packed),
        packets=packets,
        datagram=float(rules.datagram_size),
        factor=rules.loss_factor,
        pairs=in_pairs and flow.interval < ack_delay,
        idle_delay=ack_delay if in_pairs and flow.interval >= ack_delay else 0.0,
        sent=1.0 if datagrams else 1 / (1 - path.loss),
        cuts=0.0 if datagrams else packed / rules.datagram_size,
        found_after=found_after,
        grows=rules.grows,
        growth=rules.growth,
        window_rule=rules.window_rule,
        pacer=rules.pacer,
        pacing_gain=rules.pacing_gain,
        pacing_burst=float(rules.pacing_burst),
        odd_share=(1 - ends) / (2 - ends) if rules.window_rule == OVERSHOOT and rules.ack_every == 2 else 0.0,
        unit=max(rules.datagram_size / 4, message * step / flow.interval / UNITS_PER_STEP),
    )
