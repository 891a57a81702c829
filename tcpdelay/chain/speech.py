"""The chain of speech: a Linux chain with a further state, talk or silence, and its interface of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import SPEECH_TABLE
from tcpdelay.ask import SIMULATED, UnsupportedError
from tcpdelay.budget import SECONDS_PER_UPDATE, Budget
from tcpdelay.chain.engine import MadePhases, Solver
from tcpdelay.chain.events import Events, begin, finished, new_events, put
from tcpdelay.chain.linux.chain import LinuxChain, SourceChain
from tcpdelay.chain.linux.delays import cost_of_bins, delay_bins, filled_bins
from tcpdelay.chain.linux.departures import WEIGHT, last_packet_repaired
from tcpdelay.chain.linux.losses import OpenWindow, open_window
from tcpdelay.chain.linux.parameters import SMALLEST_WINDOW, LinuxParameters, linux_parameters
from tcpdelay.chain.linux.phases import (
    LOST,
    LOST_OPEN,
    LOST_REPAIRING,
    LOST_TWO,
    OPEN,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    ROUND,
    SENDING,
    TIMEOUT,
    Layout,
    Sending,
    backlogged_phase,
    open_phase,
    repair_phase,
    round_phase,
    start_phase,
)
from tcpdelay.chain.linux.transitions import (
    beyond_backlog,
    first_bound,
    linux_transitions,
    seconds_of_phases,
)
from tcpdelay.chain.linux.windows import reduced_window
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions
from tcpdelay.compiling.compilation import allocation_free, kernel, records
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.media import Speech
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.tcp.constants import INITIAL_WINDOW

# The chain of speech: the chain of a Linux kernel with a further state, the phase of the source: talk or silence.

BLOCKED = (LOST, LOST_OPEN, LOST_TWO, LOST_REPAIRING, REPAIR_MORE, REPAIR_AGAIN, TIMEOUT)
"""Kinds of phases in which a lost segment keeps all later packets from being read."""
SHOWN_LATER = (LOST_OPEN, LOST_TWO)
"""Kinds of phases that begin with a loss in an open window, which the next packet shows."""
EMPTIED = -float(1 << 40)
"""Shift of an event that leaves no backlog: in a silence the ACKs release all packets that wait."""


class Alternation(NamedTuple):
    """The alternation of talk and silence: a Markov chain in continuous time."""

    talking: float  # Share of time in talk spurts
    # Rate at which the chain forgets its state: the rate at which talk spurts end plus the rate at which silences end
    # [1/slot].
    rate: float


class SpeechChain(NamedTuple):
    """The chain of speech."""

    # phases, transitions, sending: As of the chain of a flow. In turn: the phases of this chain during talk; the same
    # phases during silence, of which only the `BLOCKED` ones are reached; for each window, from the loss of the last
    # packet of a talk spurt to its tail loss probe; one phase per silence without a loss; first slots of talk spurts.
    phases: Phases
    transitions: Transitions
    sending: Sending
    talks: int  # Number of the phases during talk
    silences: int  # First phase of a silence without a loss
    begun: NDArray[np.int64]  # The phase in which a talk spurt begins after each of these silences
    blocked: NDArray[np.bool_]  # Whether a lost segment blocks the receiver in a phase


@kernel()
def _restarts(
    p: LinuxParameters, base: Phases, layout: Layout, needed: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the phases with which talk spurts go on after a silence, and the place of each phase's own among them.

    The window outlasts the silence. An idle time longer than the RTO reduces a window of more than ten segments to ten
    at least (`tcp_cwnd_restart`, TCP_INIT_CWND; RFC 5681, 4.1). That is enough for at most ten packets per RTT.
    """
    count = base.size - 1
    goes_on, place = np.zeros(count, np.int64), np.full(count, -1)
    for phase in range(count):
        window = max(base.window[phase], SMALLEST_WINDOW)
        if window >= needed:
            goes_on[phase] = open_phase(layout, window, OPEN)
        elif layout.sending[phase].kind == ROUND:
            goes_on[phase] = phase
        else:
            goes_on[phase] = round_phase(layout, layout.first_rounds[window].after_open)
        place[goes_on[phase]] = 0
    restarts = np.flatnonzero(place == 0)
    for number in range(restarts.size):
        place[restarts[number]] = number
    return restarts, place[goes_on]


class _Silences(NamedTuple):
    """What the chain of speech needs of the chain of a flow, and the numbers of the phases that it adds."""

    source: Alternation
    blocked: NDArray[np.bool_]  # Whether a lost segment blocks the receiver in a phase
    shown_later: NDArray[np.bool_]  # Whether the next packet shows the loss with which the phase begins
    restarts: NDArray[np.int64]  # The phases with which talk goes on
    restart_of: NDArray[np.int64]  # The place of the phase's own among them
    tails: int  # First phase of the losses of last packets, one for each window
    silences: int  # First phase of the silences without a loss


@allocation_free()
def _put_talk(p: LinuxParameters, e: Events, base: Phases, t: Transitions, to: _Silences, phase: int) -> None:
    """Put talk while nothing is lost: it goes on, or a silence begins in which every packet leaves."""
    ending, ends = to.source.rate * (1 - to.source.talking), 0.0
    begin(e, phase, base.window[phase], 0)
    for number in range(base.first_transition[phase], base.first_transition[phase + 1]):
        event = t[number]
        goes_on = event.probability * math.exp(-ending * event.duration)
        ends += event.probability - goes_on
        if to.shown_later[event.target]:
            # The last packet of a talk spurt may be lost. Then no later packet shows the loss.
            tail = to.tails + base.window[phase]
            put(e, tail, tail, EMPTIED, (1 - p.continuation) * goes_on, event.duration)
            goes_on *= p.continuation
        put(e, event.target, event.target_when_empty, float(event.shift), goes_on, event.duration)
    silence = to.silences + to.restart_of[phase]
    put(e, silence, silence, EMPTIED, ends, 0.0)


@allocation_free()
def _put_repair(e: Events, base: Phases, t: Transitions, to: _Silences, phase: int, silent: bool) -> None:
    """Put talk or silence while a loss is repaired. Speech may also fall silent and begin again in the meantime."""
    count, talking = base.size - 1, to.source.talking
    begin(e, phase + count if silent else phase, base.window[phase], 0)
    for number in range(base.first_transition[phase], base.first_transition[phase + 1]):
        event, empty = t[number], t[number].target_when_empty
        # One interval after a loss that a later packet shows, this packet is written.
        since = event.duration - (1.0 if to.shown_later[phase] and not silent else 0.0)
        faded = math.exp(-to.source.rate * since)
        talks = talking * (1 - faded) if silent else talking + (1 - talking) * faded
        target, shift = (empty, EMPTIED) if silent else (event.target, float(event.shift))
        put(e, target, empty, shift, event.probability * talks, event.duration)
        later = count + empty if to.blocked[empty] else to.silences + to.restart_of[empty]
        put(e, later, later, EMPTIED, event.probability * (1 - talks), event.duration)


@allocation_free()
def _put_first_slots(
    p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout, to: _Silences, number: int, first: int
) -> None:
    """Put the first slots of a talk spurt with a window below the load: packets leave until the window is full."""
    phase, silence = to.restarts[number], to.silences + number
    window, shown = e.phases.window[phase], o.loss * p.continuation
    lost_one, lost_two = open_phase(layout, window, LOST_OPEN), open_phase(layout, window, LOST_TWO)
    for place in range(1, window + 1):
        slot, following, waiting, lasts = first + place - 1, first + place, 0, 1.0
        if place == window:
            following, waiting, lasts = phase, math.floor(p.load) - window, p.load - window
        on = math.exp(-to.source.rate * (1 - to.source.talking) * lasts)
        begin(e, slot, window, 0)
        put(e, lost_one, lost_one, 0.0, shown * (1 - o.next_lost), 0.0)
        put(e, lost_two, lost_two, 0.0, shown * o.next_lost, 0.0)
        put(e, to.tails + window, to.tails + window, EMPTIED, o.loss - shown, 0.0)
        put(e, following, following, float(waiting), (1 - o.loss) * on, lasts)
        put(e, silence, silence, EMPTIED, (1 - o.loss) * (1 - on), lasts)


@kernel()
def speech_chain(p: LinuxParameters, source: Alternation, base: Phases, t: Transitions, layout: Layout) -> SpeechChain:
    """Return the chain of speech, from the chain of a flow with the packets of its talk spurts."""
    o = open_window(p)
    count, windows = base.size - 1, p.largest_window + 1
    blocked, shown_later = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for phase in range(count):
        blocked[phase] = layout.sending[phase].kind in BLOCKED
        shown_later[phase] = layout.sending[phase].kind in SHOWN_LATER
    restarts, restart_of = _restarts(p, base, layout, o.needed)
    silences = 2 * count + windows
    to = _Silences(source, blocked, shown_later, restarts, restart_of, 2 * count, silences)
    # A talk spurt begins with its first slots, where the window is below the load.
    begun, size = restarts.copy(), silences + restarts.size
    for number in range(restarts.size):
        if layout.sending[restarts[number]].kind == ROUND:
            begun[number] = size
            size += base.window[restarts[number]]
    e = new_events(size, 4 * t.size + count + 2 * windows + 6 * (size - silences))
    for phase in range(count):
        if blocked[phase]:
            _put_repair(e, base, t, to, phase, False)
        else:
            _put_talk(p, e, base, t, to, phase)
    for phase in range(count):
        if blocked[phase]:
            _put_repair(e, base, t, to, phase, True)
        else:
            begin(e, count + phase, base.window[phase], 0)
    # The tail loss probe repairs the loss of the last packet, in the silence or in the next talk spurt.
    probed = last_packet_repaired(p)
    talks = source.talking * (1 - math.exp(-source.rate * probed))
    for window in range(SMALLEST_WINDOW, windows):
        begin(e, to.tails + window, window, 0)
        restart = restart_of[repair_phase(layout, reduced_window(p, window), REPAIR)]
        put(e, restarts[restart], restarts[restart], EMPTIED, talks, probed)
        put(e, silences + restart, silences + restart, EMPTIED, 1 - talks, probed)
    for number in range(restarts.size):
        begin(e, silences + number, 0, 0)
        put(e, begun[number], begun[number], 0.0, 1.0, 0.0)
    for number in range(restarts.size):
        if begun[number] != restarts[number]:
            _put_first_slots(p, o, e, layout, to, number, begun[number])
    phases, transitions = finished(e)
    sending, all_blocked = _sending_of_speech(p, layout, to, phases)
    return SpeechChain(phases, transitions, sending, count, silences, begun, all_blocked)


@kernel()
def _sending_of_speech(
    p: LinuxParameters, layout: Layout, to: _Silences, phases: Phases
) -> tuple[Sending, NDArray[np.bool_]]:
    """Return what happens in each phase, with the share of packets that are written, and whether it is blocked."""
    count, size = to.blocked.size, phases.size - 1
    sending: Sending = records(size, SENDING)
    blocked = np.zeros(size, np.bool_)
    source, ending = to.source, to.source.rate * (1 - to.source.talking)
    probed = last_packet_repaired(p)
    for phase in range(size):
        s, window = sending[phase], phases.window[phase]
        shown_later = False
        if phase < to.tails:
            sending[phase] = layout.sending[phase % count]
            blocked[phase] = to.blocked[phase % count]
            shown_later = phase < count and to.shown_later[phase]
        elif phase < to.silences:
            sending[phase] = layout.sending[open_phase(layout, window, LOST_OPEN)]
            s.duration, s.openings, blocked[phase] = probed, math.ceil(probed) - 1, True
        elif phase < to.silences + to.restarts.size:
            s.kind = TIMEOUT
        else:
            sending[phase] = layout.sending[open_phase(layout, window, OPEN)]
        s.fading, s.written_later, s.written_first = ending, 0.0, 1.0
        if blocked[phase]:
            first = (1.0 if phase < count else 0.0) - source.talking
            s.fading, s.written_later = source.rate, source.talking
            s.written_first = math.exp(source.rate) * first if shown_later else first
    return sending, blocked


def first_packets(
    chain: SpeechChain, source: Alternation, rows: Rows, probability: NDArray[np.float64]
) -> tuple[Sending, NDArray[np.float64]]:
    """Return the `SENDING` records and probabilities with which only the first packets of talk spurts are counted."""
    sending = chain.sending.copy()
    # Rate at which a silence ends [1/slot].
    beginning = source.rate * source.talking
    sending["written_later"] = (1 - source.talking) * beginning
    silent = np.arange(chain.blocked.size) >= chain.talks
    sending["written_first"] = np.where(silent, source.talking, -chain.sending["written_first"]) * beginning
    counted = np.where(np.repeat(chain.blocked, np.diff(rows["offset"])), probability, 0.0)
    for number, phase in enumerate(chain.begun):
        cells = slice(rows["offset"][chain.silences + number], rows["offset"][chain.silences + number + 1])
        if rows["low"][phase] == 0:
            counted[rows["offset"][phase]] = probability[cells].sum()
    return sending, counted


# The chain of speech behind the interface of a model.

LEAST_PACKETS_PER_SEGMENT = 2
"""Smallest number of packets in a full segment: with larger packets a backlog may outlast a talk spurt."""
LARGEST_UTILIZATION = 0.25
"""Largest rate of a talk spurt, relative to the fair rate of TCP: above it, windows limit the sender too often."""
SHORTEST_TALK = 0.2
"""Shortest mean talk spurt, and shortest mean silence, at which the chain has been compared with the simulator [s]."""
MOST_BOUNDS = 4
"""Number of bounds of the backlog that are tried, each twice the one before."""


class SpeechModel(SourceChain):
    """The Markov chain of a Linux kernel for speech: talk spurts and silences."""

    source = Speech
    subject = "speech"
    busy = "talk spurts"
    largest_utilization = LARGEST_UTILIZATION
    table = SPEECH_TABLE
    compilation = LinuxChain.compilation

    def lateness(self, scenario: Scenario) -> float:
        """Return the lateness of writes that the chain assumes [s]: it takes all of it into account."""
        return scenario.source.write_jitter

    def own_refusals(self, source: Speech, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
        """Yield an error for each field that only the chain of speech refuses."""
        for name, size, most in (
            ("packet_size", source.packet_size, stack.mss / LEAST_PACKETS_PER_SEGMENT),
            ("rtt", path.rtt, INITIAL_WINDOW * source.interval),
        ):
            if size > most:
                yield UnsupportedError(name, size, f"be at most {most:g} in the chain of speech", SIMULATED)
        for name in ("talk", "silence"):
            if getattr(source, name) < SHORTEST_TALK:
                allowed = f"be at least {SHORTEST_TALK:g} s in the chain of speech"
                yield UnsupportedError(name, getattr(source, name), allowed, SIMULATED)

    def delays(self, scenario: Scenario, budget: Budget) -> DelayDistribution:
        """Return the delays of all packets, of the first packets of talk spurts, and of their other packets."""
        source, path, stack = scenario.source, scenario.path, scenario.stack
        assert isinstance(source, Speech)
        assert isinstance(stack, Linux)
        rate = source.interval * (1 / source.talk + 1 / source.silence)
        alternation = Alternation(source.talk / (source.talk + source.silence), rate)
        following = math.exp(-source.interval / source.talk)
        p = linux_parameters(source.without_silence, path, stack)._replace(continuation=following)
        budget.load = f"{p.load:.4g} packets per round-trip time"
        budget.spend(seconds_of_phases(p))
        base, transitions, layout = linux_transitions(p)
        chain = speech_chain(p, alternation, base, transitions, layout)
        made = MadePhases(chain[:2], start_phase(p, layout), backlogged_phase(layout), first_bound(p))
        solver = Solver(made, budget)
        rows, solution = solver.listed(most_bounds=MOST_BOUNDS)
        probability, cut = solution.probability, solver.cut(rows, solution)
        beyond = beyond_backlog(p)
        updates, memory = cost_of_bins(p, chain.phases, chain.sending, rows, probability, beyond)
        budget.spend(2 * updates * SECONDS_PER_UPDATE)
        budget.require_memory(2 * memory)
        every = delay_bins(p, chain.phases, chain.sending, rows, probability, beyond)
        counted, weights = first_packets(chain, alternation, rows, probability)
        first = delay_bins(p, chain.phases, counted, rows, weights, beyond)
        # Every talk spurt has a first packet, and 1 / (1 - following) packets in the mean.
        share = (1 - following) * every[WEIGHT, :-1].sum() / first[WEIGHT, :-1].sum()
        later, slots = every.copy(), min(every.shape[-1], first.shape[-1])
        later[:, :-1, :slots] = np.maximum(every[:, :-1, :slots] - share * first[:, :-1, :slots], 0.0)
        forward, of_kind = path.forward_delay, {}
        for kind, bins in zip((*source.kinds, ""), (later, first, every), strict=True):
            values, shares = filled_bins(bins)
            of_kind[kind] = DelayDistribution(forward + values * p.interval, shares, forward)
        all_packets = of_kind.pop("")
        return replace(all_packets, truncated_mass=cut, by_kind=of_kind)
