"""The phases of the chain and its rounds: their kinds, their numbers, and the events that they have in common."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.events import Events, begin, put
from tcpdelay.chain.linux.detection import DETECTIONS
from tcpdelay.chain.linux.parameters import MOST_GROUPS_IN_ROUND, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.chain.linux.windows import (
    SMALL_PACKETS,
    UPDATE_INTERVAL,
    AckClock,
    growing_windows,
    reduced_window,
    round_clock,
    stored_window,
    window_before,
)
from tcpdelay.compiling.compilation import allocation_free, kernel, records
from tcpdelay.compiling.record_types import Array, Column, Record, record_type

# The rounds of the chain: the windows from each reduced window on, and the first round after each recovery.
#
# A round is one round-trip time in which the window limits the sender.

MOST_STARTS = 8
"""Number of reduced windows with rounds of their own, if growth depends on the window only."""
START_RATIO = 1.25
"""Ratio of neighbouring reduced windows with rounds of their own, if growth depends on time."""
LARGEST_PER_ROOT_LOSS = 3.0
"""Largest reduced window with rounds of its own [segments], times the square root of the loss."""
SAME_GROWTH = 0.1
"""Share by which two numbers of rounds may differ that count as the same growth."""
ROUNDS_PER_WINDOW = 4
"""Capacity for rounds per segment of growth; CUBIC needs two or three."""
UPDATES_AWAITED = 2
"""Capacity for times in which a window of CUBIC waits for the next update of its rate of growth."""


class RoundFields:
    """Fields of a round."""

    window: Column[int]  # In segments
    reduced: Column[int]  # The reduced window from which it grew
    all_in_run: Column[bool]  # Whether all ACKs follow one another closely
    following: Column[int]  # Number of the next round
    grown: Column[float]  # Mean growth before the round ends [segments]


class Round(RoundFields, Record):
    """A round of the chain."""


class Rounds(RoundFields, Array[Round]):
    """The rounds of the chain."""


class FirstRoundFields:
    """Numbers of the first rounds with a reduced window, after a loss in an open window and after any other loss.

    If a window has no rounds of its own, the flow takes the rounds of the next larger window with the probability
    `larger`, else those of the next smaller window.
    """

    after_open: Column[int]
    after_open_larger: Column[int]
    after_repair: Column[int]
    after_repair_larger: Column[int]
    larger: Column[float]


class FirstRound(FirstRoundFields, Record):
    """The first rounds with a reduced window."""


class FirstRounds(FirstRoundFields, Array[FirstRound]):
    """The first rounds with each reduced window."""


ROUND_RECORD = record_type(Round, align=True)
FIRST_ROUNDS = record_type(FirstRound, align=True)


@kernel()
def _most_rounds(p: LinuxParameters, growth: int) -> int:
    """Return a capacity for the rounds in which a window grows by a number of segments.

    While its window stays the same, CUBIC updates its rate of growth every 1/32 s only (`bictcp_update`): in a network
    of short round-trip times many rounds pass until then.
    """
    waiting = math.ceil(UPDATE_INTERVAL / p.rtt) if p.cubic else 0
    return ROUNDS_PER_WINDOW * growth + UPDATES_AWAITED * waiting


@kernel()
def _add_rounds(
    p: LinuxParameters, rounds: Rounds, filled: int, reduced: int, last_window: int, all_in_run: bool
) -> int:
    """Append the rounds with windows from `reduced` to `last_window`; return the new number of rounds."""
    windows = np.zeros(_most_rounds(p, last_window - reduced + 2), np.int64)
    grown = np.zeros(windows.size)
    growing_windows(p, reduced, stored_window(p, reduced), windows, grown)
    for place in range(windows.size):
        window = windows[place]
        if window > last_window:
            break
        rounds.window[filled] = window
        rounds.reduced[filled] = reduced
        rounds.all_in_run[filled] = all_in_run
        rounds.following[filled] = filled + 1
        rounds.grown[filled] = grown[place]
        filled += 1
        if window >= p.largest_window:
            break
    return filled


@kernel()
def _first_with(rounds: Rounds, begin: int, end: int, window: int) -> int:
    """Return the first round from `begin` to before `end` with that window or more, or the last of them."""
    place = begin
    while place < end - 1 and rounds.window[place] < window:
        place += 1
    return place


@kernel()
def _last_with(rounds: Rounds, begin: int, end: int, window: int) -> int:
    """Return the last round from `begin` to before `end` with that window or less, or the first of them."""
    place = begin
    while place < end - 1 and rounds.window[place + 1] <= window:
        place += 1
    return place


@kernel()
def _grows_by_time(p: LinuxParameters, reduced: int) -> bool:
    """Return whether the time since the last reduction decides how fast the window grows, rather than the window.

    This is so if CUBIC regains the window before the reduction in another number of rounds than after a reduction to
    the smallest window. Reno's growth, and CUBIC's in its Reno-friendly region, depend on the window only
    (`bictcp_update`; RFC 9438, 4.2 and 4.3).
    """
    if not p.cubic:
        return False
    before = min(window_before(p, reduced), p.largest_window)
    size = _most_rounds(p, before + 2)
    own, common = np.zeros(size, np.int64), np.zeros(size, np.int64)
    unused = np.zeros(size)
    growing_windows(p, reduced, stored_window(p, reduced), own, unused)
    growing_windows(p, SMALLEST_WINDOW, stored_window(p, SMALLEST_WINDOW), common, unused)
    taken = int(np.sum(own < before))
    taken_in_common = int(np.sum(common < before)) - int(np.sum(common <= reduced)) + 1
    return bool(abs(taken_in_common - taken) > SAME_GROWTH * taken)


@kernel()
def _windows_with_rounds(p: LinuxParameters, last_fresh: int, by_time: bool) -> NDArray[np.int64]:
    """Return the reduced windows with rounds of their own, in ascending order; with `by_time` ever further apart."""
    if p.bbr:
        return np.array([last_fresh])
    if not by_time:
        highest = max(min(reduced_window(p, p.flight + 1), last_fresh), SMALLEST_WINDOW)
        count = min(highest - SMALLEST_WINDOW + 1, MOST_STARTS)
        found = np.zeros(count, np.int64)
        for start in range(count):
            found[start] = SMALLEST_WINDOW + (highest - SMALLEST_WINDOW) * start // max(count - 1, 1)
        return found
    usual, highest = reduced_window(p, p.flight + 2), reduced_window(p, last_fresh)
    if p.loss > 0:
        highest = min(highest, math.ceil(LARGEST_PER_ROOT_LOSS / math.sqrt(p.loss)))
    found = np.zeros(max(highest, SMALLEST_WINDOW), np.int64)
    window, count = SMALLEST_WINDOW, 0
    while window <= highest or count == 0:
        found[count] = window
        count += 1
        following = max(window + 1, int(window * START_RATIO))
        # Most losses occur in an open window.
        window = usual if window < usual < following else following
    return found[:count]


@kernel()
def _first_rounds(
    p: LinuxParameters,
    rounds: Rounds,
    reduced: NDArray[np.int64],
    begins: NDArray[np.int64],
    runs: NDArray[np.int64],
    by_time: bool,
    own_runs: bool,
) -> FirstRounds:
    """Return the first rounds after a loss for each window, from the largest reduced window up to this window."""
    starts, filled = reduced.size, rounds.size
    found: FirstRounds = records(p.largest_window + 2, FIRST_ROUNDS)
    start = 0
    for window in range(found.size):
        first = found[window]
        while start < starts - 1 and reduced[start + 1] <= window:
            start += 1
        if not by_time:
            first.after_open = first.after_open_larger = _first_with(rounds, begins[start], begins[start + 1], window)
            first.after_repair = first.after_repair_larger = first.after_open
            if own_runs:
                # The first segment of growth takes one round, not two: start with the last round of this window.
                first.after_repair = first.after_repair_larger = _last_with(rounds, runs[0], filled, window)
            continue
        begin, run = begins[start], runs[start]
        if start == starts - 1:
            begin = _first_with(rounds, begin, begins[starts], window)
            run = _first_with(rounds, run, filled, window)
        first.after_open = first.after_open_larger = begin
        first.after_repair = first.after_repair_larger = run if own_runs else begin
        if reduced[start] < window and start < starts - 1:
            first.after_open_larger = begins[start + 1]
            first.after_repair_larger = runs[start + 1] if own_runs else begins[start + 1]
            first.larger = (window - reduced[start]) / (reduced[start + 1] - reduced[start])
    return found


@kernel()
def make_rounds(p: LinuxParameters) -> tuple[Rounds, FirstRounds, bool]:
    """Return the `ROUND_RECORD` of each round, the `FIRST_ROUNDS` of each reduced window, and whether runs remain.

    Runs remain if the run of a round survives a recovery from the loss of one of its segments. The chain follows this
    where segments are full and growth does not depend on time, so that all reduced windows share the rounds.
    """
    top = p.largest_window
    last_fresh = top if p.bbr else min(p.flight + 1, top)
    by_time = _grows_by_time(p, reduced_window(p, top))
    runs_remain = p.full_segments and not by_time
    own_runs = runs_remain or p.packets_per_segment >= SMALL_PACKETS
    if by_time and not own_runs:
        last_fresh = top
    reduced = _windows_with_rounds(p, last_fresh, by_time)
    starts = reduced.size
    rounds: Rounds = records(_most_rounds(p, top + 2) * (2 * starts + 3), ROUND_RECORD)
    begins = np.zeros(starts + 1, np.int64)
    for start in range(starts):
        begins[start + 1] = _add_rounds(p, rounds, begins[start], reduced[start], last_fresh, False)
    # Unless growth depends on time, windows above an open window share their rounds. With small packets, windows that
    # were reduced twice do so too.
    filled = begins[starts]
    runs = np.zeros(starts + 1, np.int64)
    for start in range(starts):
        runs[start] = filled
        if start == 0 or (by_time and own_runs):
            begin = reduced[start] if own_runs else min(last_fresh + 1, top)
            if own_runs or last_fresh < top:
                filled = _add_rounds(p, rounds, filled, begin, top, True)
                # At the largest window the last two rounds alternate.
                rounds.following[filled - 1] = max(filled - 2, runs[start])
        else:
            runs[start] = runs[start - 1]
    runs[starts] = filled
    for start in range(starts):
        last = begins[start + 1] - 1
        end = runs[start + 1] if by_time else filled
        if end > runs[start]:
            rounds.following[last] = _first_with(rounds, runs[start], end, last_fresh + 1)
        else:
            rounds.following[last] = max(last - 1, begins[start])
    return rounds[:filled], _first_rounds(p, rounds[:filled], reduced, begins, runs, by_time, own_runs), runs_remain


# The phases of the chain: their kinds, their numbers, and the events that they have in common.
#
# Phases are numbered in the order in which a flow passes through them from a timeout to an open window. A congestion
# window is *open* while it lets every packet leave as soon as it is written; otherwise it *limits* the sender.

TIMEOUT, REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR_OPEN, ROUND, OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING, LOST = range(
    11
)
"""Kinds of phases.

- TIMEOUT: until a retransmission timeout and its retransmission.
- REPAIR_MORE: in recovery, until the last of several losses is retransmitted.
- REPAIR_AGAIN: in recovery, until a lost retransmission is retransmitted.
- REPAIR: from the last retransmission to its ACK, one round-trip time later.
- REPAIR_OPEN: the same after a loss in an open window.
- ROUND: one round-trip time in which the window limits the sender.
- OPEN: one slot in which the window is open.
- LOST_OPEN, LOST_REPAIRING, LOST: from a loss to its detection; the loss occurred in an open window, during REPAIR, or
  in a round. With correlated losses, LOST has two phases per group of losses, also for losses during REPAIR.
  A lost packet of several segments has a LOST_OPEN and a REPAIR_OPEN for each way in which RACK detects the loss; see
  `Detection`.
- LOST_TWO: from a loss in an open window to its detection if the next packet is lost too. With loss bursts or
  correlated losses: the same for several consecutive losses.
"""
KIND_NAMES = (
    *("timeout", "repair_more", "repair_again", "repair", "repair_open", "round"),
    *("open", "lost_open", "lost_two", "lost_repairing", "lost"),
)
"""Names of the kinds, by their numbers."""
PER_WINDOW = (REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR, REPAIR_OPEN)
"""Kinds of the phases of recovery that each window has. The second REPAIR is the one of `even_repair_phase`."""
ROUND_TRIPS_TO_ROUND = 2
"""Round-trip times from a write in an open window to the ACKs of the first round; the second is the recovery."""
OPEN_KINDS = (OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING)
"""Kinds of the phases of an open window."""


class SendingFields:
    """Fields of what happens in a phase."""

    kind: Column[int]  # Kind of the phase
    run: Column[int]  # With both spacings: the ACK clock, as in `AckClock`
    # Number of ACKs that release a segment; in an open window, number of packets that leave
    openings: Column[float]
    spacing_in_run: Column[float]
    spacing_after_run: Column[float]
    duration: Column[float]  # Duration of the phase [slots]
    # Time from the due time of an ACK to the detection of the loss; in REPAIR_OPEN, from the loss [slots]
    wait: Column[float]
    timeout_chance: Column[float]  # Probability that only the timeout finds a lost retransmission
    in_run: Column[int]  # Whether the lost segment belonged to the run
    place: Column[int]  # In a round whose rest is lost, the number of the first lost segment, counted from 1
    # Round-trip times from a write to the ACKs of this phase, through segments that ACKs have released
    round_trips: Column[int]
    lost: Column[int]  # Number of packets of a loss burst, or of lost segments of a round; in an outage, the window
    repeated_loss: Column[float]  # In LOST_OPEN, probability that the repair takes a further retransmission
    written_later: Column[float]  # This field and the next two: see `written_share`
    written_first: Column[float]
    fading: Column[float]  # 0 for a flow of constant rate


class PhaseSending(SendingFields, Record):
    """What happens in a phase."""


class Sending(SendingFields, Array[PhaseSending]):
    """What happens in each phase; one record per phase."""


SENDING = record_type(PhaseSending, align=True)


@kernel()
def written_share(later: float, first: float, fading: float, time: float) -> float:
    """Return `later` + `first` exp(-`fading` time), the share of time that a speaker talks in a phase [slots]."""
    return later if fading == 0.0 else later + first * math.exp(-fading * time)


@allocation_free()
def clock_of(s: PhaseSending) -> AckClock:
    """Return the ACK clock of a phase."""
    return AckClock(s.run, s.spacing_in_run, s.spacing_after_run)


@allocation_free()
def clock_of_round(p: LinuxParameters, layout: Layout, number: int) -> AckClock:
    """Return the ACK clock of a round."""
    one = layout.rounds[number]
    return round_clock(p, one.window, one.reduced, one.all_in_run)


@allocation_free(inlined=True)
def set_clock(s: PhaseSending, clock: AckClock) -> None:
    """Set the ACK clock of a phase."""
    s.run, s.spacing_in_run, s.spacing_after_run = clock.run, clock.spacing_in_run, clock.spacing_after_run


class Layout(NamedTuple):
    """The rounds of the chain and the numbers of its phases."""

    rounds: Rounds
    first_rounds: FirstRounds
    sending: Sending  # What happens in each phase, which the kernels of its kind set
    # Whether the run of a round survives a recovery from the loss of one of its segments; see `make_rounds`
    runs_remain: bool
    repairs: int  # First phase of the recoveries
    first_round: int  # First phase of the rounds
    opens: int  # First phase of the open windows
    losses: int  # First phase of the losses in rounds
    loss_kinds: int  # Number of phases of losses per round
    bursts: int  # First phase of the consecutive losses in an open window
    burst_kinds: int  # Number of phases of consecutive losses per window
    later_detections: int  # First phase of the losses that RACK detects late, in packets of several segments
    size: int  # Number of phases


@kernel()
def make_layout(p: LinuxParameters) -> Layout:
    """Return the rounds and the numbers of the phases for a scenario."""
    rounds, first_rounds, runs_remain = make_rounds(p)
    top, filled = p.largest_window, rounds.size
    repairs = p.backoffs
    first_round = repairs + len(PER_WINDOW) * (top + 1)
    opens = first_round + filled
    losses = opens + len(OPEN_KINDS) * (top + 1)
    loss_kinds = 2 * MOST_GROUPS_IN_ROUND if p.rest_lost else 2
    bursts = losses + loss_kinds * filled
    later_detections = bursts + p.followed_losses * (top + 1)
    size = later_detections
    if p.segments_per_packet > 1:
        size += 2 * (DETECTIONS - 1) * (top + 1)
    sending: Sending = records(size, SENDING)
    sending.round_trips[:] = ROUND_TRIPS_TO_ROUND
    sending.written_later[:] = 1.0
    return Layout(
        rounds,
        first_rounds,
        sending,
        runs_remain,
        repairs,
        first_round,
        opens,
        losses,
        loss_kinds,
        bursts,
        p.followed_losses,
        later_detections,
        size,
    )


@allocation_free()
def repair_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of a recovery of that kind with the reduced window `window`."""
    place = len(PER_WINDOW) - 1 if kind == REPAIR_OPEN else kind - REPAIR_MORE
    return int(layout.repairs + len(PER_WINDOW) * window + place)


@allocation_free()
def even_repair_phase(layout: Layout, window: int) -> int:
    """Return the phase REPAIR that leads to rounds with evenly spaced ACKs, after a loss outside the run."""
    return repair_phase(layout, window, REPAIR) + 1


@allocation_free()
def open_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of that kind, one of `OPEN_KINDS`, with that window."""
    return int(layout.opens + len(OPEN_KINDS) * window + kind - OPEN)


@allocation_free()
def lost_open_phase(layout: Layout, window: int, detection: int) -> int:
    """Return the phase LOST_OPEN with that window and that way of detection, one of `DETECTIONS`."""
    if detection == 0:
        return open_phase(layout, window, LOST_OPEN)
    return int(layout.later_detections + 2 * ((DETECTIONS - 1) * window + detection - 1))


@allocation_free()
def repair_open_phase(layout: Layout, window: int, detection: int) -> int:
    """Return the phase REPAIR_OPEN with the reduced window `window` after that way of detection."""
    if detection == 0:
        return repair_phase(layout, window, REPAIR_OPEN)
    return lost_open_phase(layout, window, detection) + 1


@allocation_free()
def round_phase(layout: Layout, number: int) -> int:
    """Return the phase of round `number`."""
    return int(layout.first_round + number)


@allocation_free()
def start_phase(p: LinuxParameters, layout: Layout) -> int:
    """Return the phase in which the chain starts: an open window that no longer grows."""
    return open_phase(layout, p.flight + 2, OPEN)


@allocation_free()
def backlogged_phase(layout: Layout) -> int:
    """Return a phase with a backlog: the round with the smallest window."""
    return round_phase(layout, int(layout.first_rounds[SMALLEST_WINDOW].after_repair))


@allocation_free()
def lost_phase(layout: Layout, number: int, kind: int) -> int:
    """Return the phase of a loss in round `number`.

    `kind` is 1 if the lost segment belonged to the run, else 0. If the rest of the round is lost, each group of losses
    has two phases: see `put_rest_loss_phases`.
    """
    return int(layout.losses + layout.loss_kinds * number + kind)


@allocation_free()
def burst_phase(layout: Layout, window: int, lost: int) -> int:
    """Return the phase of `lost` consecutive losses, at least two, in an open window; 0: the whole window is lost."""
    return int(layout.bursts + layout.burst_kinds * window + max(lost - 1, 0))


@allocation_free(inlined=True)
def begin_phase(e: Events, layout: Layout, phase: int, kind: int, window: int) -> None:
    """Begin a phase of this kind; ROUND and OPEN have the recovery state 0."""
    layout.sending[phase].kind = kind
    begin(e, phase, window, 0 if kind == ROUND else (kind - OPEN if OPEN <= kind < LOST else kind))


@allocation_free(inlined=True)
def put_rounds(
    e: Events, layout: Layout, window: int, after_open: bool, opened: bool, shift: float, chance: float, time: float
) -> None:
    """Put the event that a recovery with the reduced window `window` leads to its first round.

    At the end of a recovery the window is the reduced window (`tcp_end_cwnd_reduction`; RFC 6937, 3).
    `opened` says whether the window is open for a flow without a backlog.
    """
    first = layout.first_rounds[window]
    empty = open_phase(layout, window, OPEN)
    for larger in range(2):
        number = first.after_repair_larger if larger else first.after_repair
        if after_open:
            number = first.after_open_larger if larger else first.after_open
        target = round_phase(layout, number)
        share = first.larger if larger else 1 - first.larger
        put(e, target, empty if opened else target, shift, chance * share, time)


@allocation_free(inlined=True)
def put_outcomes(
    e: Events,
    layout: Layout,
    repeated_loss: float,
    only_timeout: float,
    more: float,
    share: float,
    reduced: int,
    clean: int,
    shift: float,
    time: float,
) -> None:
    """Put the four outcomes of a detected loss, which together have the probability `share`.

    RACK finds a lost retransmission like any other lost segment (`tcp_rack_detect_loss`; RFC 8985, 6.2).
    The retransmission is lost and only a timeout finds this loss (`only_timeout` is the probability of the latter); the
    retransmission is lost and RACK finds this loss; the flight has `more` losses; or the recovery has no further loss
    and leads to the phase `clean`.
    """
    again, several = repair_phase(layout, reduced, REPAIR_AGAIN), repair_phase(layout, reduced, REPAIR_MORE)
    put(e, 0, 0, shift, share * (repeated_loss * only_timeout), time)
    put(e, again, again, shift, share * (repeated_loss * (1 - only_timeout)), time)
    put(e, several, several, shift, share * ((1 - repeated_loss) * more), time)
    put(e, clean, clean, shift, share * ((1 - repeated_loss) * (1 - more)), time)
