"""The chain of a Linux kernel as a profile: transitions, bounds of backlogs and delays, and sparse flows."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import SECONDS_PER_UPDATE
from tcpdelay.chain.engine import Profile
from tcpdelay.chain.events import Events, begin, finished, new_events, put, put_repeat
from tcpdelay.chain.linux.bursts import (
    lost_round_chance,
    put_burst_phases,
    put_rest_loss_phases,
    put_rest_losses,
    repair_rounds,
    repair_segments,
)
from tcpdelay.chain.linux.delays import beyond_bound, bins_with_tail, cost_of_bins, delay_bins, filled_bins, sums
from tcpdelay.chain.linux.losses import (
    OpenWindow,
    open_growth,
    open_window,
    put_later_detections,
    put_loss_in_repair,
    put_losses,
    put_lost_open,
    put_lost_two,
    put_open_window,
    put_repair_of_open_window,
    put_repairs,
)
from tcpdelay.chain.linux.parameters import (
    MOST_PHASES,
    SMALLEST_WINDOW,
    TIMER_SLACK,
    LinuxParameters,
    is_sparse,
    linux_parameters,
    timeout_ticks,
)
from tcpdelay.chain.linux.phases import (
    KIND_NAMES,
    LARGEST_PER_ROOT_LOSS,
    OPEN,
    ROUND,
    ROUND_TRIPS_TO_ROUND,
    START_RATIO,
    Layout,
    backlogged_phase,
    begin_phase,
    clock_of_round,
    lost_phase,
    make_layout,
    open_phase,
    put_rounds,
    round_phase,
    set_clock,
    start_phase,
)
from tcpdelay.chain.linux.rtt_probes import with_rtt_probes
from tcpdelay.chain.linux.windows import AckClock, ack_time, reduced_window
from tcpdelay.chain.solver.aggregation import backlog_drift, tail_decay
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions, reachable_rows
from tcpdelay.chain.solver.stationary import (
    BYTES_PER_CELL,
    BYTES_PER_PHASE,
    CARRIED,
    MAX_SWEEPS,
    NarrowSolution,
    RequestedFigures,
    after_timeout,
    solve_by_sweeps,
    solve_narrow,
    sum_up,
    updates_per_sweep,
)
from tcpdelay.compiling.compilation import allocation_free, compiled_elsewhere, interpreted, kernel
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import CUBIC_BETA, CUBIC_C, CUBIC_SCALE

TRANSITIONS_PER_PHASE = 16
"""Capacity: at most two windows with four outcomes each, and two whole shifts for each outcome."""


@allocation_free()
def _put_timeouts(p: LinuxParameters, e: Events, layout: Layout, opened: float) -> None:
    """Put consecutive timeouts (`tcp_retransmit_timer`, `tcp_enter_loss`; RFC 6298, 5.5)."""
    window, rounds = p.largest_window if p.bbr else SMALLEST_WINDOW, 0
    if p.followed_losses:
        # Most timeouts follow an outage. Slow start then retransmits the window.
        window = reduced_window(p, p.flight + 1)
        rounds = repair_rounds(repair_segments(p, p.flight + 1))
    for stage in range(p.backoffs):
        begin(e, stage, 0, stage + 1)
        # RTO backoff: timeout number `stage` takes RTO 2^stage, or the longest timeout [slots].
        wait = min(p.timeout * 2.0**stage, p.longest_timeout)
        last = stage == p.backoffs - 1
        repeats = last and wait == p.longest_timeout
        if repeats:
            put_repeat(e, stage, wait, p.next_loss, 0.0)
        elif not last:
            put(e, stage + 1, stage + 1, wait, p.next_loss, wait)
        lasts = wait + p.load * (0.5 + rounds)
        ends = 1.0 if last and not repeats else 1 - p.next_loss
        lost = lost_round_chance(p, rounds)
        if stage == 0:
            put_repeat(e, stage, wait + p.load, ends * lost, 0.0)
        else:
            put(e, 0, 0, wait + p.load, ends * lost, wait + p.load)
        put_rounds(e, layout, window, False, opened <= window, lasts, ends * (1 - lost), lasts)


@allocation_free()
def _put_first_losses(p: LinuxParameters, e: Events, layout: Layout, number: int, window: int, clock: AckClock) -> None:
    """Put the first loss of a round: one event for each part of the round.

    Segment number `place` is the first lost segment with the probability p (1 - p)^(place - 1). The event has the mean
    time of its part [slots]. The backlog changes by the packets written in this time minus the packets that have left.
    """
    chance, places, times, alive, run = 0.0, 0.0, 0.0, 1.0, clock.run
    middle = run + (window - run + 1) // 2
    for place in range(1, window + 1):
        this = alive * p.loss
        alive *= 1 - p.loss
        chance += this
        places += this * place
        times += this * ack_time(clock, place)
        if chance > 0 and place in (run, middle, window):
            lost = lost_phase(layout, number, 1 if place <= run else 0)
            mean_time = times / chance
            put(e, lost, lost, mean_time - p.packets_per_segment * places / chance, chance, mean_time)
            chance = places = times = 0.0


@allocation_free()
def _put_rounds_of_windows(p: LinuxParameters, o: OpenWindow, e: Events, layout: Layout) -> None:
    """Put the rounds, in which the window limits the sender.

    Each ACK releases a segment (ACK clock; `tcp_write_xmit`, `tcp_cwnd_test`). The window of the next round is that of
    `growing_windows`.
    """
    round_trips = ROUND_TRIPS_TO_ROUND
    for number in range(layout.rounds.size):
        window, following = layout.rounds.window[number], layout.rounds.following[number]
        continued = number > 0 and layout.rounds.following[number - 1] == number
        round_trips = round_trips + 1 if continued else ROUND_TRIPS_TO_ROUND
        clock = clock_of_round(p, layout, number)
        next_window = layout.rounds.window[following]
        phase, next_phase = round_phase(layout, number), round_phase(layout, following)
        begin_phase(e, layout, phase, ROUND, window)
        s = layout.sending[phase]
        set_clock(s, clock)
        s.duration, s.openings, s.round_trips = p.load, window, round_trips
        if p.rest_lost:
            put_rest_losses(p, e, layout, number, window, True, clock)
        else:
            _put_first_losses(p, e, layout, number, window, clock)
        empty = open_phase(layout, next_window, OPEN) if next_window >= o.needed else next_phase
        kept = (1 - p.loss) ** window
        put(e, next_phase, empty, p.load - p.packets_per_segment * window, kept, p.load)


@kernel(nogil=True)
def linux_transitions(p: LinuxParameters) -> tuple[Phases, Transitions, Layout]:
    """Return the phases, the transitions, and the layout, with one `SENDING` record per phase."""
    layout = make_layout(p)
    o = open_window(p)
    e = new_events(layout.size, (TRANSITIONS_PER_PHASE + 2 * p.followed_losses) * layout.size)
    _put_timeouts(p, e, layout, o.needed)
    for window in range(p.largest_window + 1):
        put_repairs(p, o, e, layout, window)
        put_repair_of_open_window(p, o, e, layout, window, 0)
    _put_rounds_of_windows(p, o, e, layout)
    growth, step = open_growth(p)
    for window in range(p.largest_window + 1):
        put_open_window(p, o, e, layout, window, growth[window], step[window])
        put_lost_open(p, o, e, layout, window, 0)
        put_lost_two(p, o, e, layout, window)
        put_loss_in_repair(p, o, e, layout, window)
    if p.rest_lost:
        put_rest_loss_phases(p, e, layout)
    else:
        put_losses(p, o, e, layout)
    put_burst_phases(p, e, layout)
    put_later_detections(p, o, e, layout)
    phases, transitions = finished(e)
    return phases, transitions, layout


# The chain of a Linux kernel as a `Profile`, and the bounds of its backlogs and delays.

LOADS_OF_BACKLOG = 2
"""Round-trip times whose packets fit into the first bound of the backlog."""
TIMEOUTS_OF_BACKLOG = 1.5
"""The same in multiples of the longest timeout."""
SPARE_BACKLOG = 6
"""Packets that the first bound of the backlog has in addition."""
REPAIRS_BEYOND = 8
"""Round-trip times by which a delay may exceed the largest backlog."""
TIMEOUTS_BEYOND = 4
"""The same in multiples of the first timeout."""


@kernel()
def first_bound(p: LinuxParameters) -> int:
    """Return the first bound of the backlog [packets]."""
    last_timeout = min(p.timeout * 2.0 ** (p.backoffs - 1), p.longest_timeout)
    return int(LOADS_OF_BACKLOG * p.load + TIMEOUTS_OF_BACKLOG * last_timeout) + SPARE_BACKLOG


@kernel()
def beyond_backlog(p: LinuxParameters) -> int:
    """Return the largest difference between a delay and the largest backlog [slots]."""
    beyond = REPAIRS_BEYOND * (p.load + 1) + TIMEOUTS_BEYOND * p.timeout
    if p.followed_losses:
        beyond += p.timeout * 2.0**p.backoffs
    return int(beyond)


PHASES_PER_WINDOW = 20
"""Approximate number of phases per window."""
SECONDS_PER_WINDOW, SECONDS_PER_SEGMENT, SECONDS_PER_ROUND = 2e-5, 6e-8, 5e-6
"""Times in which phases are made: for each window and each loss burst that is followed from it, for each segment of
the flight in addition, and for each of CUBIC's rounds [s]."""
MOST_WINDOWS = 5_000
"""Largest window whose phases are made within seconds. Up to it, the drift shows whether TCP carries the flow."""


@kernel(nogil=True, joins=True)
def _summed_up(
    p: LinuxParameters,
    forward_delay: float,
    figures: RequestedFigures,
    result: NDArray[np.float64],
    most_updates: float,
) -> tuple[int, NDArray[np.float64], NDArray[np.float64], float]:
    """Solve the chain within its first bound: see `Profile.sum_up`."""
    phases, transitions, layout = linux_transitions(p)
    # Durations are in slots here, and so is the drift.
    start, backlogged = start_phase(p, layout), backlogged_phase(layout)
    outcome, rows, probability, cut, drift = solve_narrow(
        phases, transitions, start, backlogged, first_bound(p), True, figures.limit, most_updates
    )
    values = weights = probability
    if probability.size > 0:
        bins = delay_bins(p, phases, layout.sending, rows, probability, beyond_backlog(p))
        values, weights = filled_bins(with_rtt_probes(p, bins) if p.bbr else bins)
        values = forward_delay + values * p.interval
    outcome = sum_up(outcome, values, weights, cut, True, figures, result)
    return outcome, values, weights, drift / p.interval


def seconds_of_phases(p: LinuxParameters) -> float:
    """Return the estimated time in which phases and transitions are made [s]."""
    window = float(p.largest_window)
    seconds = window * (SECONDS_PER_WINDOW * (1 + p.followed_losses) + SECONDS_PER_SEGMENT * p.flight)
    if p.cubic:
        # CUBIC grows by a segment in two rounds at least, and is back at the window before after a time K (RFC 9438,
        # 4.2): whichever takes fewer rounds, from each reduced window with rounds of its own.
        highest = min(window, LARGEST_PER_ROOT_LOSS / math.sqrt(p.loss)) if p.loss > 0 else window
        regained = (window * (1 - CUBIC_BETA / CUBIC_SCALE) / CUBIC_C) ** (1 / 3) / (p.load * p.interval)
        starts = 1 + math.log(max(highest, 1.0), START_RATIO)
        seconds += SECONDS_PER_ROUND * starts * 2 * min(window, regained)
    return seconds


EXAMPLE = Flow(packet_size=174, interval=0.020), Path(rtt=0.100, loss=0.02), Linux()
"""A scenario for which kernels are called so that they are compiled."""


def compile_transitions() -> None:
    """Compile the kernels that make the phases and transitions of a chain, and that need nothing else."""
    phases, transitions, layout = linux_transitions(linux_parameters(*EXAMPLE))
    backlog_drift(phases, transitions, backlogged_phase(layout))
    tail_decay(phases, transitions, backlogged_phase(layout))


def compile_kernels() -> None:
    """Compile the large kernels of the chain, and meanwhile run `compile_transitions` in a second process."""
    p = linux_parameters(*EXAMPLE)
    with interpreted():
        phases, transitions, layout = linux_transitions(p)
        start, beyond = start_phase(p, layout), beyond_backlog(p)
        rows = reachable_rows(phases, transitions, start, first_bound(p))
        solution = solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS)
    with compiled_elsewhere(compile_transitions):
        filled_bins(delay_bins(p, phases, layout.sending, rows, solution.probability, beyond))
        cost_of_bins(p, phases, layout.sending, rows, solution.probability, beyond)
        updates_per_sweep(phases, transitions, rows)
        solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS)


class LinuxProfile(Profile):
    """The chain of a Linux kernel for one scenario."""

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        super().__init__(flow, path)
        self.parameters = p = linux_parameters(flow, path, stack)
        self.load = p.load
        self.lossless = p.loss == 0
        self.first_bound = first_bound(p)
        backlogs = self.first_bound * BYTES_PER_CELL if p.largest_window > MOST_WINDOWS else BYTES_PER_PHASE
        self.least_memory = float(PHASES_PER_WINDOW * p.largest_window * backlogs)
        self.least_seconds = seconds_of_phases(p)

    @cached_property
    def _made(self) -> tuple[Phases, Transitions, Layout]:
        """Phases, transitions with durations in seconds, and layout."""
        phases, transitions, layout = linux_transitions(self.parameters)
        transitions["duration"] *= self.parameters.interval
        return phases, transitions, layout

    @property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions, with durations in seconds."""
        return self._made[:2]

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each phase: see `KIND_NAMES`."""
        names: NDArray[np.str_] = np.array(KIND_NAMES)[self._made[2].sending["kind"]]
        return names

    @property
    def start(self) -> int:
        """The phase in which the chain starts: an open window that no longer grows."""
        return start_phase(self.parameters, self._made[2])

    @property
    def backlogged(self) -> int:
        """A phase with a backlog: the round with the smallest window."""
        return backlogged_phase(self._made[2])

    def bins(self, rows: Rows, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bins of delays without the one-way delay, not normalised, as if no backlog exceeded the bound."""
        p, (phases, _, layout) = self.parameters, self._made
        bins = delay_bins(p, phases, layout.sending, rows, probability, beyond_backlog(p))
        return with_rtt_probes(p, bins) if p.bbr else bins

    def _bins_beyond(
        self, rows: Rows, probability: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return the bins within the bound, those beyond it as if each backlog was at the bound, and their probability.

        The bins beyond the bound are those of a sum of 1: rare packets would be left out as negligible.
        """
        phases, _, layout = self._made
        beyond = beyond_bound(self.parameters, phases, layout.sending, rows, probability)
        whole = max(float(beyond.sum()), sys.float_info.min)
        return self.bins(rows, probability - beyond), self.bins(rows, beyond / whole), whole

    def _sums(self, rows: Rows, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `sums` over all delays."""
        if not rows["ratio"][0] > 0:
            return np.array(sums(self.bins(rows, probability)))
        within, beyond, whole = self._bins_beyond(rows, probability)
        weight, delay, age, backlogged = sums(beyond)
        excess = weight * float(rows["ratio"][0] / (1 - rows["ratio"][0]))
        return sums(within) + whole * np.array([weight, delay + excess, age + excess, backlogged])

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return the estimated time [s] and memory [bytes] that `delays` takes."""
        p, (phases, _, layout) = self.parameters, self._made
        updates, memory = cost_of_bins(p, phases, layout.sending, rows, probability, beyond_backlog(p))
        return updates * SECONDS_PER_UPDATE, memory

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        if rows["ratio"][0] > 0:
            values, weights = bins_with_tail(*self._bins_beyond(rows, probability), float(rows["ratio"][0]))
        else:
            values, weights = filled_bins(self.bins(rows, probability))
        return self.path.forward_delay + values * self.parameters.interval, weights

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        interval = self.parameters.interval
        weight, delay, age, _ = self._sums(rows, probability).tolist()
        after_timeouts = after_timeout(*self.structure, rows, probability)
        timeouts = min(float(self._sums(rows, after_timeouts)[2]), age)
        return (age - timeouts) / weight * interval, (delay - age) / weight * interval, timeouts / weight * interval

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time with packets in the send buffer."""
        weight, _, _, backlogged = self._sums(rows, probability).tolist()
        return float(backlogged / weight)

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64], most_updates: float) -> NarrowSolution:
        """Solve the chain within its first bound and compute the requested figures."""
        return NarrowSolution(*_summed_up(self.parameters, self.path.forward_delay, figures, result, most_updates))


# Sparse flows: the next packet is written after the timer of a lost packet has fired.
#
# A packet then has no company: no later segment can show its loss, and the timer alone repairs it. The tail loss probe,
# the timeouts and their backoff give the delay (`tcp_schedule_loss_probe`, `tcp_send_loss_probe`,
# `tcp_retransmit_timer`; RFC 8985, 7; RFC 6298, 5). The slots of the chain are too coarse for it: a slot is then longer
# than all delays of interest.
#
# So the delays are the sum over all sequences of losses, from a packet that is written while nothing is in flight until
# everything is acknowledged, and over the phases of the timer wheel at which the packet may be written.

NEGLIGIBLE = 1e-7
"""Probability of a sequence of losses below which it is left out, for a packet that begins with an empty flight."""
PARTS_OF_TICK = 4
"""Number of times within a tick at which a packet may be written."""
DIGITS = 7
"""Decimals of a delay [s]."""


class _Lost(NamedTuple):
    """A lost segment: when it was sent, what has happened to it, and who waits for it. Times are in ticks."""

    sent: float
    waiting: tuple[float, ...]
    """Times at which the packets in flight were written."""
    held: tuple[float, ...]
    """The same of packets that the window holds back after a timeout."""
    next_write: float
    timeout: int
    probes: int
    """Number of tail loss probes left: 1, or 0 after a probe."""
    in_timeout: bool


class _SparseDelays:
    """Collects the delays of all sequences of losses that begin with a packet in an empty flight."""

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        self._loss = path.loss * (min(flow.packet_size / stack.mss, 1.0) if path.bottleneck == "bytes" else 1.0)
        self._interval, self._rtt = flow.interval * stack.hz, path.rtt * stack.hz
        self._forward = path.forward_delay * stack.hz
        self._slack = TIMER_SLACK * stack.hz
        self._timeout = timeout_ticks(path, stack)
        self._longest = int(stack.rto_max * stack.hz)
        self._delays: defaultdict[float, float] = defaultdict(float)
        self._hz = stack.hz
        self.held = 0.0
        """Sum over all packets of the time in the send buffer [s]."""

    def collect(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights, which sum to 1."""
        for phase in range(MOST_PHASES * PARTS_OF_TICK):
            written = (phase + 0.5) / PARTS_OF_TICK
            self._send(written, (written,), written + self._interval, 1.0)
        values = np.array(sorted(self._delays))
        weights = np.array([self._delays[value] for value in values])
        self.held /= weights.sum()
        return values, weights / weights.sum()

    def _deliver(self, arrival: float, written: tuple[float, ...], share: float) -> None:
        for time in written:
            self._delays[round((arrival - time) / self._hz, DIGITS)] += share

    def _send(self, time: float, written: tuple[float, ...], next_write: float, share: float) -> None:
        """Send packets in one segment into an empty flight."""
        self._deliver(time + self._forward, written, share * (1 - self._loss))
        lost = _Lost(time, written, (), next_write, self._timeout, 1, False)
        self._lose(lost, share * self._loss)

    def _expiry(self, time: float, ticks: int) -> float:
        return float(tcp.wheel_expiry(math.floor(time), ticks))

    def _lose(self, lost: _Lost, share: float) -> None:
        """Follow a lost segment until a retransmission arrives."""
        if share < NEGLIGIBLE:
            return
        fires = self._expiry(lost.sent, lost.timeout)
        if lost.in_timeout:
            lost = self._holding(lost, fires)
        elif lost.next_write < fires:
            self._write_meanwhile(lost, fires, share)
            return
        timeout, in_timeout = lost.timeout, lost.in_timeout
        if lost.probes == 0:
            # The timer of the first timeout is that of the probe; each timeout doubles the next one.
            timeout, in_timeout = min(2 * timeout, self._longest), True
        again = lost._replace(sent=fires, timeout=timeout, probes=0, in_timeout=in_timeout)
        self._retransmit(again, share)

    def _holding(self, lost: _Lost, until: float) -> _Lost:
        """Return a lost segment with the packets that are written before a time and that the window holds back."""
        count = max(math.ceil((until - lost.next_write) / self._interval), 0)
        written = (lost.next_write + number * self._interval for number in range(count))
        return lost._replace(held=(*lost.held, *written), next_write=lost.next_write + count * self._interval)

    def _write_meanwhile(self, lost: _Lost, fires: float, share: float) -> None:
        """Write a packet before the timer of the probe or of the first timeout fires; it leaves at once."""
        written, later = lost.next_write, lost.next_write + self._interval
        both = lost._replace(waiting=(*lost.waiting, written), next_write=later)
        found = written + self._rtt
        wait = self._rtt / tcp.REORDERING_SHARE - (written - lost.sent)
        if wait > 0:
            found = self._expiry(found, math.ceil(wait + self._slack))
        if found < fires:
            # RACK finds the loss by the SACK of the later packet (`tcp_rack_detect_loss`).
            again = both._replace(sent=found, timeout=self._timeout, probes=0)
            self._retransmit(again, share * (1 - self._loss))
            self._lose(both, share * self._loss)
        else:
            self._lose(both, share)

    def _retransmit(self, lost: _Lost, share: float) -> None:
        """Retransmit a lost segment; packets that were held back leave with the ACK."""
        arrives = share * (1 - self._loss)
        self._deliver(lost.sent + self._forward, lost.waiting, arrives)
        acknowledged = lost.sent + self._rtt
        later = self._holding(lost, acknowledged) if lost.in_timeout else lost
        if later.held and arrives >= NEGLIGIBLE:
            self.held += arrives * sum(acknowledged - time for time in later.held) / self._hz
            self._send(acknowledged, later.held, later.next_write, arrives)
        self._lose(lost, share * self._loss)


class SparseProfile(LinuxProfile):
    """The chain of a Linux kernel for a sparse flow: its own delays, but the capacity of the chain."""

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        super().__init__(flow, path, stack)
        self._collected = _SparseDelays(flow, path, stack)

    @cached_property
    def _found(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._collected.collect()

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return no time [s] and no memory [bytes]: bins of the chain, which may take much of both, are not made."""
        return 0.0, 0.0

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        return self._found

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        values, weights = self._found
        return 0.0, float(values @ weights) - self.path.forward_delay - self._collected.held, self._collected.held

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time with packets in the send buffer."""
        values, _ = self._found
        return min(self._collected.held / self.parameters.interval, 1.0) if values.size else 0.0

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64], most_updates: float) -> NarrowSolution:
        """Return whether TCP carries the flow, by the chain within its first bound, and compute the figures."""
        phases, transitions = self.structure
        outcome, _, _, cut, drift = solve_narrow(
            phases, transitions, self.start, self.backlogged, self.first_bound, True, figures.limit, most_updates
        )
        values, weights = self._found if outcome == CARRIED else (np.empty(0), np.empty(0))
        return NarrowSolution(sum_up(outcome, values, weights, cut, True, figures, result), values, weights, drift)


def linux_profile(flow: Flow, path: Path, stack: Linux) -> LinuxProfile:
    """Return the chain of a Linux kernel for one scenario."""
    return SparseProfile(flow, path, stack) if is_sparse(flow, path, stack) else LinuxProfile(flow, path, stack)
