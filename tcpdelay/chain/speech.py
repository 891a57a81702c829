"""The chain of speech: a Linux chain with a further state, talk or silence, and its interface of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.accuracy.errors import SPEECH_TABLE
from tcpdelay.ask import SIMULATED, UnsupportedError
from tcpdelay.budget import SECONDS_PER_UPDATE, Budget, TooLargeError
from tcpdelay.chain.chains import SourceChain, SourceDelays
from tcpdelay.chain.linux.delays import cost_of_bins, delay_bins, filled_bins
from tcpdelay.chain.linux.departures import WEIGHT, last_packet_repaired
from tcpdelay.chain.linux.open_transitions import open_window
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
    make_layout,
    open_phase,
    repair_phase,
    round_phase,
    start_phase,
)
from tcpdelay.chain.linux.transitions import (
    beyond_backlog,
    compile_kernels,
    first_bound,
    linux_transitions,
    seconds_of_phases,
)
from tcpdelay.chain.linux.windows import reduced_window
from tcpdelay.chain.solver.state_space import PHASE, TRANSITION, Phases, Rows, Transitions, reachable_rows
from tcpdelay.chain.solver.stationary import (
    BYTES_PER_CELL,
    NEGLIGIBLE_TRUNCATION,
    from_start,
    probability_at_bound,
    solve_within,
)
from tcpdelay.compiling.compilation import interpreted_first, records
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.media import Speech
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.tcp.constants import INITIAL_WINDOW

# The chain of speech: the chain of a Linux kernel with a further state, the phase of the source: talk or silence.

BLOCKED = (LOST, LOST_OPEN, LOST_TWO, LOST_REPAIRING, REPAIR_MORE, REPAIR_AGAIN, TIMEOUT)
"""Kinds of phases in which a lost segment keeps all later packets from being read."""
SHOWN_LATER = (LOST_OPEN, LOST_TWO)
"""Kinds of phases that begin with a loss in an open window, which the next packet shows."""
EMPTIED = -1 << 40
"""Shift of an event that leaves no backlog: in a silence the ACKs release all packets that wait."""


class Alternation(NamedTuple):
    """The alternation of talk and silence: a Markov chain in continuous time."""

    talking: float  # Share of time in talk spurts
    # Rate at which the chain forgets its state: the rate at which talk spurts end plus the rate at which silences end
    # [1/slot].
    rate: float

    @property
    def ending(self) -> float:
        """Rate at which a talk spurt ends [1/slot]."""
        return self.rate * (1 - self.talking)

    @property
    def beginning(self) -> float:
        """Rate at which a silence ends [1/slot]."""
        return self.rate * self.talking


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


EVENT_FIELDS = ("target", "target_when_empty", "shift", "probability", "duration")
"""Fields of a transition that the chain of speech sets."""


class _Events:
    """Transitions, appended as columns, and the phase that each of them leaves."""

    def __init__(self) -> None:
        self._columns: list[NDArray[np.float64]] = []

    def put(
        self,
        phase: ArrayLike,
        target: ArrayLike,
        when_empty: ArrayLike,
        shift: ArrayLike,
        probability: ArrayLike,
        duration: ArrayLike,
    ) -> None:
        """Append events; those that never occur are left out."""
        given = np.broadcast_arrays(*map(np.atleast_1d, (phase, target, when_empty, shift, probability, duration)))
        columns = np.array(given, np.float64)
        self._columns.append(columns[:, columns[4] > 0])

    def sorted(self, phases: int) -> tuple[Transitions, NDArray[np.int64]]:
        """Return all events in the order of their phases, and the first event of each phase."""
        columns = np.concatenate(self._columns, axis=1)
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        transitions: Transitions = records(columns.shape[1], TRANSITION)
        for name, column in zip(EVENT_FIELDS, columns[1:], strict=True):
            transitions[name] = column
        return transitions, np.searchsorted(columns[0], np.arange(phases + 1))


def _restarts(
    p: LinuxParameters, phases: Phases, sending: Sending, layout: Layout
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the phases with which talk spurts go on after a silence, and the place of each phase's own among them.

    The window outlasts the silence. An idle time longer than the RTO reduces a window of more than ten segments to ten
    at least (`tcp_cwnd_restart`, TCP_INIT_CWND; RFC 5681, 4.1). That is enough for at most ten packets per RTT.
    """
    windows = np.maximum(phases["window"][:-1], SMALLEST_WINDOW)
    rounds = sending["kind"] == ROUND
    # Kernels take a thousand times as long as their arithmetic when Python calls them: once for each window.
    after_open = layout.first_rounds["after_open"]
    opened, begun = np.zeros((2, p.largest_window + 1), np.int64)
    for window in range(SMALLEST_WINDOW, p.largest_window + 1):
        opened[window] = open_phase(layout, window, OPEN)
        begun[window] = round_phase(layout, int(after_open[window]))
    limiting = np.where(rounds, np.arange(windows.size), begun[windows])
    goes_on = np.where(windows >= open_window(p).needed, opened[windows], limiting)
    found, numbers = np.unique(goes_on, return_inverse=True)
    return found, numbers


def speech_chain(p: LinuxParameters, source: Alternation) -> SpeechChain:
    """Return the chain of speech, from the chain of a flow with the packets of its talk spurts."""
    o = open_window(p)
    base, t, talk_sending, layout = linux_transitions(p)
    count = len(base) - 1
    windows = p.largest_window + 1
    left = np.repeat(np.arange(count), np.diff(base["first_transition"]))
    blocked = np.isin(talk_sending["kind"], BLOCKED)
    restarts, restart_of = _restarts(p, base, talk_sending, layout)
    tails = 2 * count
    silences = tails + windows
    after_silence = np.where(blocked, count + np.arange(count), silences + restart_of)
    events = _Events()

    target, empty, shift, chance, time = (
        t[name] for name in ("target", "target_when_empty", "shift", "probability", "duration")
    )
    # Talk while nothing is lost: the talk goes on, or a silence begins in which every packet leaves.
    goes_on = np.exp(-source.ending * time)
    # The last packet of a talk spurt may be lost. Then no later packet shows the loss.
    shown_later = np.isin(talk_sending["kind"], SHOWN_LATER)
    last = shown_later[target]
    tail = tails + base["window"][left[last]]
    events.put(left[last], tail, tail, EMPTIED, ((1 - p.continuation) * chance * goes_on)[last], time[last])
    followed = np.where(last, p.continuation, 1.0)
    free = ~blocked[left]
    events.put(left[free], target[free], empty[free], shift[free], (chance * goes_on * followed)[free], time[free])
    ends = np.bincount(left[free], (chance * (1 - goes_on))[free], minlength=count).astype(np.float64)
    events.put(np.arange(count), silences + restart_of, silences + restart_of, EMPTIED, ends, 0.0)

    # Talk or silence while a loss is repaired. Speech may also fall silent and begin again in the meantime.
    lost = blocked[left]
    for silent in (0, 1):
        # One interval after a loss that a later packet shows, this packet is written.
        since = time[lost] - (shown_later[left[lost]] if not silent else 0.0)
        faded = np.exp(-source.rate * since)
        talks = source.talking * (1 - faded) if silent else source.talking + (1 - source.talking) * faded
        phase, kept = left[lost] + count * silent, EMPTIED if silent else shift[lost]
        events.put(phase, empty[lost] if silent else target[lost], empty[lost], kept, chance[lost] * talks, time[lost])
        later = after_silence[empty[lost]]
        events.put(phase, later, later, EMPTIED, chance[lost] * (1 - talks), time[lost])

    # The tail loss probe repairs the loss of the last packet, in the silence or in the next talk spurt.
    probed = last_packet_repaired(p)
    talks = source.talking * (1 - math.exp(-source.rate * probed))
    after_loss = range(SMALLEST_WINDOW, windows)
    lost_tail = tails + np.array(after_loss)
    reduced = [repair_phase(layout, reduced_window(p, window), REPAIR) for window in after_loss]
    in_talk, in_silence = restarts[restart_of[reduced]], silences + restart_of[reduced]
    events.put(lost_tail, in_talk, in_talk, EMPTIED, talks, probed)
    events.put(lost_tail, in_silence, in_silence, EMPTIED, 1 - talks, probed)

    # A talk spurt begins. With a window below the load its packets leave at once until the window is full.
    begun = restarts.copy()
    first_slot = silences + restarts.size
    slots: list[tuple[int, int]] = []
    of_slots: list[tuple[float, ...]] = []
    shown = o.loss * p.continuation
    for number, phase in enumerate(restarts.tolist()):
        silence, window = silences + number, int(base["window"][phase])
        if talk_sending["kind"][phase] == ROUND:
            begun[number] = first_slot + len(slots)
            opened, lost_one, lost_two = (open_phase(layout, window, kind) for kind in (OPEN, LOST_OPEN, LOST_TWO))
            for place in range(1, window + 1):
                slot, is_last = first_slot + len(slots), place == window
                lasts = p.load - window if is_last else 1.0
                on = math.exp(-source.ending * lasts)
                following, waiting = (phase, math.floor(p.load) - window) if is_last else (slot + 1, 0)
                of_slots += (
                    (slot, lost_one, lost_one, 0, shown * (1 - o.next_lost), 0.0),
                    (slot, lost_two, lost_two, 0, shown * o.next_lost, 0.0),
                    (slot, tails + window, tails + window, EMPTIED, o.loss - shown, 0.0),
                    (slot, following, following, waiting, (1 - o.loss) * on, lasts),
                    (slot, silence, silence, EMPTIED, (1 - o.loss) * (1 - on), lasts),
                )
                slots.append((window, opened))
    events.put(*np.array(of_slots, np.float64).reshape(-1, 1 + len(EVENT_FIELDS)).T)
    events.put(silences + np.arange(restarts.size), begun, begun, 0, 1.0, 0.0)

    size = first_slot + len(slots)
    transitions, first = events.sorted(size)
    phases: Phases = records(size + 1, PHASE)
    sending: Sending = records(size, SENDING)
    phases["first_transition"] = first
    for part in range(2):
        phases[part * count : (part + 1) * count]["window"] = base["window"][:count]
        sending[part * count : (part + 1) * count] = talk_sending
    phases["window"][lost_tail] = after_loss
    sending[lost_tail] = talk_sending[[open_phase(layout, window, LOST_OPEN) for window in after_loss]]
    sending["duration"][lost_tail], sending["openings"][lost_tail] = probed, math.ceil(probed) - 1
    sending["kind"][silences:first_slot] = TIMEOUT
    if slots:
        phases["window"][first_slot:size], opens = np.array(slots).T
        sending[first_slot:size] = talk_sending[opens]
    all_blocked = np.concatenate([blocked, blocked, np.ones(windows, np.bool_), np.zeros(size - silences, np.bool_)])
    _write_shares(sending, all_blocked, np.append(shown_later, np.zeros(size - count, np.bool_)), count, source)
    return SpeechChain(phases, transitions, sending, count, silences, begun, all_blocked)


def _write_shares(
    sending: Sending, blocked: NDArray[np.bool_], shown_later: NDArray[np.bool_], talks: int, source: Alternation
) -> None:
    """Set the share of packets that are written in each phase; the first `talks` phases begin during talk."""
    silent = np.arange(blocked.size) >= talks
    sending["fading"] = np.where(blocked, source.rate, source.ending)
    sending["written_later"] = np.where(blocked, source.talking, 0.0)
    first = np.where(silent, 0.0, 1.0) - source.talking
    sending["written_first"] = np.where(blocked, np.where(shown_later, math.exp(source.rate) * first, first), 1.0)


def first_packets(
    chain: SpeechChain, source: Alternation, rows: Rows, probability: NDArray[np.float64]
) -> tuple[Sending, NDArray[np.float64]]:
    """Return the `SENDING` records and probabilities with which only the first packets of talk spurts are counted."""
    sending = chain.sending.copy()
    sending["written_later"] = source.ending / source.rate * source.beginning
    silent = np.arange(chain.blocked.size) >= chain.talks
    share = np.where(silent, source.talking, chain.sending["written_first"] * -1)
    sending["written_first"] = share * source.beginning
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
MOST_DOUBLINGS = 4
"""Number of times that the bound of the backlog is doubled."""


class SpeechModel(SourceChain):
    """The Markov chain of a Linux kernel for speech: talk spurts and silences."""

    source = Speech
    subject = "speech"
    busy = "talk spurts"
    largest_utilization = LARGEST_UTILIZATION
    table = SPEECH_TABLE
    averages_lateness = True

    def refusals(self, source: Speech, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
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

    def solve(
        self, source: Speech, path: Path, stack: Linux, ignored: Mapping[str, str], budget: Budget
    ) -> SourceDelays:
        """Solve the chain of speech."""

        # The first call is repeated in compiled kernels if it takes long in plain Python: each with the whole budget.
        def solve() -> SourceDelays:
            return _delays(source, path, stack, ignored, replace(budget))

        return interpreted_first(solve, filled_bins, compile_kernels)


def _delays(source: Speech, path: Path, stack: Linux, ignored: Mapping[str, str], budget: Budget) -> SourceDelays:
    """Solve the chain of speech."""
    alternation = Alternation(
        source.talk / (source.talk + source.silence), source.interval * (1 / source.talk + 1 / source.silence)
    )
    following = math.exp(-source.interval / source.talk)
    flow = source.without_silence
    p = linux_parameters(flow, path, stack)._replace(continuation=following)
    budget.load = f"{p.load:.4g} packets per round-trip time"
    budget.spend(seconds_of_phases(p))
    chain = speech_chain(p, alternation)
    start, bound = start_phase(p, make_layout(p)), first_bound(p)
    for _ in range(MOST_DOUBLINGS):
        rows = reachable_rows(chain.phases, chain.transitions, start, bound)
        budget.require_memory(float(rows["offset"][-1]) * BYTES_PER_CELL)
        inflow = from_start(rows, start)
        probability = solve_within(budget, chain.phases, chain.transitions, rows, start, inflow).probability
        cut = probability_at_bound(chain.phases, rows, probability)
        if cut < NEGLIGIBLE_TRUNCATION:
            break
        bound *= 2
    else:
        raise TooLargeError("the backlogs of talk spurts are too large for the chain of speech")
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
    of_kind = {
        kind: DelayDistribution(*_delays_of(bins, path, p.interval), path.forward_delay)
        for kind, bins in zip(source.kinds, (later, first), strict=True)
    }
    return SourceDelays(
        *_delays_of(every, path, p.interval),
        path.forward_delay,
        truncated_mass=float(cut),
        scenario=(source, path, stack),
        ignored=ignored,
        by_kind=of_kind,
    )


def _delays_of(
    bins: NDArray[np.float64], path: Path, interval: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays [s] in bins of slots, and their weights."""
    values, weights = filled_bins(bins)
    return path.forward_delay + values * interval, weights
