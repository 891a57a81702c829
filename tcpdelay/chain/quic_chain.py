"""The chain of QUIC for messages that do not wait for each other: its window, and how late its repairs are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import WRONG_CALL, is_near_capacity, no_less_than_teeth
from tcpdelay.ask import QUIC_SIMULATED, UnsupportedError, refused_lateness, unknown_fields
from tcpdelay.budget import Budget
from tcpdelay.chain.chains import DistributionChain
from tcpdelay.chain.engine import MadePhases, Solver
from tcpdelay.chain.events import begin, finished, new_events, put
from tcpdelay.chain.solver.aggregation import backlog_drift
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions
from tcpdelay.chain.solver.stationary import NEGLIGIBLE_LOSS
from tcpdelay.compiling.compilation import interpreted_first, kernel
from tcpdelay.delays import DelayDistribution, DelayParts, ExpectedError, Spread
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import Quic
from tcpdelay.sim.congestion.newreno import BURST_BELOW_WINDOW
from tcpdelay.sim.engine import TIE_BREAK
from tcpdelay.sim.quic.connection import (
    ALWAYS,
    BY_PACKETS,
    IMPLEMENTATIONS,
    NEAR_WINDOW,
    OVERSHOOT,
    PACKET_TOKENS,
    UNLESS_LIMITED,
    WHOLE,
    QuicRules,
)
from tcpdelay.sim.quic.sender import GRANULARITY, PACKET_THRESHOLD, TIME_THRESHOLD
from tcpdelay.sim.tcp.constants import SECOND

# The congestion window of QUIC and the data that wait for it, as a Markov chain.
#
# A step of the chain is a round trip, or the interval of the messages if that is longer. In each step the window
# carries its bytes once per round trip, and what is written beyond them waits. A phase has a window, the state of
# recovery, and whether data waited at the end of the step before.

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
def window_chain(p: WindowParameters, levels: NDArray[np.float64]) -> tuple[Phases, Transitions]:
    """Return the chain: phases by state of recovery, level of the window, and whether data waits."""
    count = 6 * levels.size
    e = new_events(count, _EVENTS * count)
    probability, reached, recovery = np.zeros(_OUTCOMES), np.zeros(_OUTCOMES), np.zeros(_OUTCOMES, np.int64)
    for phase in range(count):
        state, level, busy = phase // (2 * levels.size), (phase // 2) % levels.size, phase % 2 == 1
        window = held(p, levels, level, state)
        begin(e, phase, level, state)
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
        for outcome in range(_OUTCOMES):
            below, share = _place(levels, reached[outcome])
            for up in range(2):
                target = 2 * (recovery[outcome] * levels.size + below + up)
                chance = probability[outcome] * (share if up else 1 - share)
                change = shift
                if shift <= 0 and not busy:
                    change = -1.0
                elif target + 1 == phase:
                    # The solver allows one event that leads back to its own phase.
                    change = float(round(shift))
                put(e, target + 1, target, change, chance, p.step)
    return finished(e)


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


# How late a lost packet of QUIC is: when its loss is found, and when a retransmission arrives (RFC 9002, 6).
#
# The window is taken to be open: packets leave when they are written, and retransmissions when a loss is found.

NEGLIGIBLE = 1e-9
"""Probability of a sequence of losses below which it counts as repaired."""
DIGITS = 7
"""Decimals of a delay [s]."""
_TIE = 1e-9
"""Share of an interval within which two times are equal."""


class Found(NamedTuple):
    """How a loss is found: the time since the packet was sent [s], the probability, and whether a probe finds it."""

    after: float
    probability: float
    by_probe: bool


class LossRecovery(NamedTuple):
    """Loss recovery of a flow of messages, all of which leave at once when they are written."""

    loss: float  # Loss probability of a packet, 0 to below 1
    rtt: float  # Round-trip time [s]
    interval: float  # Interval of the messages [s]
    packets: int  # Packets of a message, 1 or more
    empty: int  # The last packets of a message that have no data of it
    ack_delay: float  # Delay of the ACK of a packet beside a gap [s]
    probe_timeout: float  # Probe timeout of a steady RTT, without back-off [s]
    probes: int  # Packets of a probe timeout

    def found(self, sent: float, behind: int, lost_behind: int, timeouts: int) -> Iterator[Found]:
        """Yield how the loss of a packet is found.

        An ACK of the first later packet that arrives shows the loss: at once, if it was sent three packets later or
        more (RFC 9002, 6.1.1), or else when 9/8 of the RTT have passed (6.1.2) or a third packet is acknowledged. A
        probe finds it if no packet is sent for a probe timeout (6.2.1).
        """
        if lost_behind < behind:
            yield Found(self._shown(sent, 0.0, lost_behind + 1, behind), 1.0, False)
            return
        timeout = self.probe_timeout * 2**timeouts
        last, later, rest = 0.0, behind, 1.0
        while rest > NEGLIGIBLE:
            at = self._later_write(sent, last, 1)
            if at - last > timeout:
                yield Found(last + timeout, rest, True)
                return
            for place in range(1, self.packets + 1):
                yield Found(self._shown(sent, at, later + place, later + self.packets), rest * (1 - self.loss), False)
                rest *= self.loss
            last, later = at, later + self.packets

    def _shown(self, sent: float, at: float, place: int, written: int) -> float:
        """Return when a loss is found by the packet that is sent `place` packets later, at a time since `sent` [s].

        By then, `written` packets are sent later than the lost one. The third of them is taken to arrive.
        """
        back = self.rtt + self.ack_delay
        if place >= PACKET_THRESHOLD:
            return at + back
        third = at if written >= PACKET_THRESHOLD else self._later_write(sent, at, PACKET_THRESHOLD - written)
        return min(max(at + back, TIME_THRESHOLD * self.rtt), third + back)

    def _later_write(self, sent: float, at: float, packets: int) -> float:
        """Return when a number of packets have been written after the time `at`; times are relative to `sent` [s]."""
        writes = -(-packets // self.packets)
        return (math.floor((sent + at) / self.interval + _TIE) + writes) * self.interval - sent

    def repaired(self, behind: int, lost_behind: int) -> dict[float, float]:
        """Return how late a lost packet of a message arrives [s], by probability; parameters as of `found`."""
        late: defaultdict[float, float] = defaultdict(float)
        self._follow(0.0, behind, lost_behind, 0, 1.0, late)
        return late

    def _follow(
        self, sent: float, behind: int, lost_behind: int, timeouts: int, share: float, late: defaultdict[float, float]
    ) -> None:
        """Follow the loss of a packet until a retransmission arrives."""
        for found in self.found(sent, behind, lost_behind, timeouts):
            again, possible = sent + found.after, share * found.probability
            lost = self.loss ** (self.probes if found.by_probe else 1)
            if possible * lost < NEGLIGIBLE:
                lost = 0.0
            late[round(again, DIGITS)] += possible * (1 - lost)
            if lost:
                self._follow(again, 0, 0, timeouts + 1 if found.by_probe else 0, possible * lost, late)


def loss_recovery(
    rules: QuicRules, path: Path, interval: float, packets: tuple[int, int], max_ack_delay: float
) -> LossRecovery:
    """Return the loss recovery of an implementation for messages of `packets` with and without data."""
    settings = rules.settings(max_ack_delay)
    gap_delay = 0.0 if rules.acks_gaps else settings["ack_delay"] / SECOND
    rtt = path.rtt + TIE_BREAK / SECOND
    # The RTT of the path is constant, so that its measured variation vanishes (RFC 9002, 5.3 and 6.2.1).
    timeout = rtt + (GRANULARITY + settings["max_ack_delay"]) / SECOND
    return LossRecovery(path.loss, rtt, interval, sum(packets), packets[1], gap_delay, timeout, rules.probes)


def message_repairs(recovery: LossRecovery) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays by which a message may be late for its losses [s], and their probabilities.

    A message is complete with the last of its packets with data. Packets are lost independently. How the loss of one is
    found depends on which of the packets behind it are lost, so that the packets are taken from the last to the first.
    """
    loss = recovery.loss
    each = {
        (behind, lost): recovery.repaired(behind, lost)
        for behind in range(recovery.empty, recovery.packets)
        for lost in range(behind + 1)
        if loss ** (lost + 1) >= NEGLIGIBLE
    }
    values = np.array(sorted({0.0}.union(*each.values())))
    # The share of messages that are complete by each delay, by the run of losses directly behind the next packet.
    by_then = {0: np.ones(values.size)}
    for behind in range(recovery.packets):
        following = {0: (1 - loss) * np.sum(list(by_then.values()), axis=0)}
        for lost, share in by_then.items():
            if behind < recovery.empty:
                following[lost + 1] = loss * share
            elif (behind, lost) in each:
                arrived = np.cumsum([each[behind, lost].get(value, 0.0) for value in values.tolist()])
                following[lost + 1] = loss * share * arrived
        by_then = following
    complete = np.sum(list(by_then.values()), axis=0)
    return values, np.diff(complete / complete[-1], prepend=0.0)


# The chain of QUIC for messages that do not wait for each other: a stream per message, or datagrams.
#
# The delay of a message is its wait for the window (`window_chain`), the one-way delay of the path, and the time until
# its lost packets have been repaired (`repairs`). The two waits are taken to be independent.

PATH_FIELDS = frozenset({"rtt", "loss", "one_way_delay"})
"""Fields of a path that the chain knows."""
LARGEST_LOSS = 0.25
"""Largest loss at which the sequences of losses of a packet are summed: with more, there are too many."""
MOST_PACKETS = 16
"""Most packets of a message: with more, pacing spreads each message."""
FIRST_BOUND = 64
"""First bound of the backlog, in units of `WindowParameters.unit`; it doubles until its effect is negligible."""
BINS_PER_ROUND_TRIP = 16
"""Bins of the waits for the window per round-trip time."""
MOST_BINS = 4096
"""Most bins; longer waits make the bins wider."""
BUSY = 0.05
"""Mean wait for the window, in round-trip times, from which on it counts."""
LIMITED = 1.01
"""Ratio of a quantile to the one-way delay from which on waits or losses count at this quantile."""
SETTLED_RATE = 1e-3
"""Relative change at which the search for the largest rate ends."""
MOST_RATES = 20
"""Most rates that this search tries."""
ErrorGroup = Literal["one-way delay", "later", "waiting", "not carried"]
"""Predictions with errors of their own: a quantile at the one-way delay, or later; messages that wait for the window,
`BUSY` or more in the mean; a flow that is not carried."""
_COMPARED = "random scenarios, simulated (validation/results/quic-chain.md)"
_WAITING_MEAN, _NONE = Spread(0.0403, 0.1222, 0.3519), Spread(0.0, 0.0, 0.0)
ERRORS: dict[tuple[ErrorGroup, float], ExpectedError] = {
    ("one-way delay", 0.95): ExpectedError(0.0, 0.0026, 0.0, Spread(0.0, 0.0008, 0.0003), 510, _COMPARED, 0.95),
    ("one-way delay", 0.99): ExpectedError(0.0, 0.0036, 0.0, Spread(0.0, 0.0001, 0.0), 359, _COMPARED, 0.99),
    ("later", 0.95): ExpectedError(0.0, 0.0890, 0.2789, Spread(0.0007, 0.0157, 0.0512), 64, _COMPARED, 0.95),
    ("later", 0.99): ExpectedError(0.0, 0.0338, 0.1047, Spread(0.0, 0.0063, 0.0172), 215, _COMPARED, 0.99),
    ("waiting", 0.95): ExpectedError(0.0369, 0.1634, 0.4748, _WAITING_MEAN, 76, _COMPARED, 0.95),
    ("waiting", 0.99): ExpectedError(0.0317, 0.1609, 0.5810, _WAITING_MEAN, 76, _COMPARED, 0.99),
    ("not carried", 0.95): ExpectedError(0.0, 0.0, 0.0, _NONE, 53, _COMPARED, 0.95),
    ("not carried", 0.99): ExpectedError(0.0, 0.0, 0.0, _NONE, 53, _COMPARED, 0.99),
}
"""Errors by `validation/quic_chain.py` beyond the simulator's interval, by `error_group` and quantile."""


def error_group(delays: DelayDistribution, quantile: float) -> ErrorGroup:
    """Return the group of `ERRORS` of a predicted quantile."""
    if not delays.sustainable:
        return "not carried"
    assert delays.scenario is not None
    assert delays.parts is not None
    if delays.parts.backlog > BUSY * delays.scenario[1].rtt:
        return "waiting"
    return "later" if delays.quantile(quantile) > LIMITED * delays.one_way_delay else "one-way delay"


def quic_chain_refusals(source: Source, path: Path, stack: Quic) -> Iterator[UnsupportedError]:
    """Yield an error for each field of a scenario that the chain refuses."""
    where = "in the chain of QUIC"
    if stack.delivery not in ("stream_per_message", "datagram"):
        allowed = f"be 'stream_per_message' or 'datagram' {where}"
        yield UnsupportedError("delivery", stack.delivery, allowed, QUIC_SIMULATED)
    if stack.implementation == "quinn":
        allowed = f"be 'rfc9002', 'aioquic' or 'quic-go' {where}"
        yield UnsupportedError("implementation", stack.implementation, allowed, QUIC_SIMULATED)
    if stack.congestion_control != "newreno":
        yield UnsupportedError("congestion_control", stack.congestion_control, f"be 'newreno' {where}", QUIC_SIMULATED)
    yield from refused_lateness(source, where, QUIC_SIMULATED)
    yield from unknown_fields(path, PATH_FIELDS, where, QUIC_SIMULATED)
    if path.loss > LARGEST_LOSS:
        # Too many sequences of losses follow each other.
        yield UnsupportedError("loss", path.loss, f"be at most {LARGEST_LOSS:g} {where}", QUIC_SIMULATED)
    if not isinstance(source, Flow):
        yield UnsupportedError("source", source, f"be a Flow, which has a constant rate, {where}", QUIC_SIMULATED)
    elif source.packet_size > MOST_PACKETS * IMPLEMENTATIONS[stack.implementation].payload:
        most = MOST_PACKETS * IMPLEMENTATIONS[stack.implementation].payload
        yield UnsupportedError("packet_size", source.packet_size, f"be at most {most} bytes {where}", QUIC_SIMULATED)


def largest_rate(flow: Flow, path: Path, stack: Quic) -> float:
    """Return the largest rate of messages that QUIC carries, by the drift of a backlog that never empties.

    At this rate the drift is 0. The drift of each rate tried gives the next rate.

    Loynes, "The stability of a queue with non-independent inter-arrival and service times", Mathematical Proceedings of
    the Cambridge Philosophical Society 58(3), 1962.
    """
    for refused in quic_chain_refusals(flow, path, stack):
        raise refused
    if path.loss < NEGLIGIBLE_LOSS:
        return math.inf
    rate = flow.packet_rate
    for _ in range(MOST_RATES):
        _, p, levels = _window(replace(flow, interval=1 / rate), path, stack)
        drift = backlog_drift(*window_chain(p, levels), _first_phase(levels) + 1)
        tried, rate = rate, rate - drift * p.unit / (p.packed * p.sent)
        if abs(rate / tried - 1) < SETTLED_RATE:
            break
    return rate


def _window(flow: Flow, path: Path, stack: Quic) -> tuple[LossRecovery, WindowParameters, NDArray[np.float64]]:
    """Return the loss recovery of a flow, and the parameters and windows of the chain of the window."""
    rules = IMPLEMENTATIONS[stack.implementation]
    datagrams = stack.delivery == "datagram"
    packets = rules.message_packets(flow.packet_size, datagrams)
    recovery = loss_recovery(rules, path, flow.interval, packets, stack.max_ack_delay)
    p = window_parameters(rules, flow, path, stack.max_ack_delay, datagrams, _mean_found_after(recovery))
    return recovery, p, window_levels(p, rules)


def _first_phase(levels: NDArray[np.float64]) -> int:
    """Return the phase of the widest window without a loss and without a backlog; the next phase has a backlog."""
    return 2 * (2 * levels.size - 1)


def _mean_found_after(recovery: LossRecovery) -> float:
    """Return the mean time from a packet to the detection of its loss [s], over the packets of a message."""
    found = [each for behind in range(recovery.packets) for each in recovery.found(0.0, behind, 0, 0)]
    return sum(each.after * each.probability for each in found) / recovery.packets


def _with_repairs(
    waits: NDArray[np.float64], shares: NDArray[np.float64], path: Path, recovery: LossRecovery, datagrams: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays beyond the one-way delay [s] and their weights: of waits for the window, and of repairs."""
    if datagrams:
        # Nobody repairs them.
        arrived = (1 - path.loss) ** recovery.packets
        late, late_shares = np.array([0.0, np.inf]), np.array([arrived, 1 - arrived])
    else:
        late, late_shares = message_repairs(recovery)
    values, place = np.unique(np.round(np.add.outer(waits, late).ravel(), DIGITS), return_inverse=True)
    weights = np.bincount(place, np.multiply.outer(shares, late_shares).ravel())
    return values, weights / weights.sum()


class QuicChain(DistributionChain):
    """The Markov chain of QUIC for messages that do not wait for each other: a stream per message, or datagrams."""

    stack = Quic
    path_fields = PATH_FIELDS
    compilation = window_waits, None

    def _mismatches(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield an error if the stack is not QUIC; other sources are refused among the fields."""
        if not isinstance(scenario.stack, Quic):
            yield UnsupportedError("stack", scenario.stack, "be a Quic")

    def refusals(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield an error for each field of a scenario that the chain refuses."""
        assert isinstance(scenario.stack, Quic)
        yield from quic_chain_refusals(scenario.source, scenario.path, scenario.stack)

    def delays(self, scenario: Scenario, budget: Budget) -> DelayDistribution:
        """Return the delays: the wait for the window, the path, and the time until lost packets are repaired."""
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Quic)
        forward = path.forward_delay
        if path.loss < NEGLIGIBLE_LOSS:
            parts = DelayParts(forward, 0.0, 0.0, timeouts=0.0)
            return DelayDistribution(np.array([forward]), np.ones(1), forward, parts=parts, backlogged=0.0)
        recovery, p, levels = _window(flow, path, stack)
        phases, transitions = window_chain(p, levels)
        start = _first_phase(levels)
        budget.load = f"{p.step / p.interval:.4g} messages per step"
        solver = Solver(MadePhases((phases, transitions), start, start + 1, FIRST_BOUND), budget)
        if not solver.carried:
            parts = DelayParts(forward, math.inf, 0.0, timeouts=0.0)
            return replace(DelayDistribution.unsustainable(forward), parts=parts, backlogged=1.0)
        rows, solution = solver.listed()
        probability, cut = solution.probability, solver.cut(rows, solution)
        bound = int(rows["bound"][0])
        longest = (1 + math.ceil(p.cuts)) * bound * p.unit / p.packed * p.interval
        width = max(p.round_trip / BINS_PER_ROUND_TRIP, longest / MOST_BINS)
        weight, weighted = window_waits(p, levels, phases, rows, probability, width, math.ceil(longest / width) + 1)
        occurs = weight > 0
        waits, shares = weighted[occurs] / weight[occurs], weight[occurs] / weight.sum()
        values, weights = _with_repairs(waits, shares, path, recovery, stack.delivery == "datagram")
        # Every second phase has a backlog.
        of_cells = np.repeat(np.arange(phases.size - 1) % 2, np.diff(rows["offset"]))
        solved = DelayDistribution(
            forward + values, weights, forward, truncated_mass=cut, backlogged=float(probability @ of_cells)
        )
        waiting = float(waits @ shares)
        # Nobody repairs datagrams, whose mean delay is infinite.
        repairs = solved.mean - forward - waiting if np.isfinite(solved.mean) else 0.0
        return replace(solved, parts=DelayParts(forward, waiting, repairs, timeouts=0.0))

    def error(self, delays: DelayDistribution, scenario: Scenario, quantile: float) -> ExpectedError:
        """Return the expected error of p95 or p99: of the next higher one, as other chains have it."""
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Quic)
        group = error_group(replace(delays, scenario=(flow, path, stack)), quantile)
        found = no_less_than_teeth(ERRORS[group, 0.95 if quantile <= 0.95 else 0.99], delays, quantile)
        near = is_near_capacity(largest_rate(flow, path, stack) / flow.packet_rate)
        return replace(found, p90=WRONG_CALL) if near else found

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that QUIC carries; infinite without loss, NaN where it is unknown."""
        stack = scenario.stack
        if self.supports(scenario).refused or not isinstance(stack, Quic):
            return np.nan
        return interpreted_first(partial(largest_rate, scenario.flow, scenario.path, stack), window_chain)
