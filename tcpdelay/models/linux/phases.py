"""The phases of the chain: their kinds, their numbers, and the functions that append their transitions.

Phases are numbered in the order in which a flow passes through them from a timeout to an open window. A congestion
window is *open* while it lets every packet leave as soon as it is written; otherwise it *limits* the sender.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.windows import SMALL_PACKETS, growing_windows, reduced_window
from tcpdelay.models.solver.state_space import Records, Transitions

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
  in a round.
- LOST_TWO: from a loss in an open window to its detection if the next packet is lost too. With loss bursts: the same
  for several consecutive losses.
"""
PER_WINDOW = (REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR_OPEN)
OPEN_KINDS = (OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING)
MOST_STARTS = 8
"""Number of reduced windows with rounds of their own; any other shares the rounds of the next smaller window."""
ROUNDS_PER_WINDOW = 4
"""Capacity for rounds per segment of growth; CUBIC needs two or three."""

ROUND_RECORD = np.dtype(
    [("window", np.int64), ("reduced", np.int64), ("all_in_run", np.int64), ("following", np.int64)], align=True
)

SENDING = np.dtype(
    [
        ("kind", np.int64),
        ("run", np.int64),
        ("openings", np.float64),
        ("spacing_in_run", np.float64),
        ("spacing_after_run", np.float64),
        ("duration", np.float64),
        ("wait", np.float64),
        ("timeout_chance", np.float64),
        ("in_run", np.int64),
        ("round_trips", np.int64),
        ("lost", np.int64),
    ],
    align=True,
)
Sending: TypeAlias = Records
"""What happens in each phase; one record per phase, or a single record.

- kind: kind of the phase.
- run, spacing_in_run, spacing_after_run: spacing of the ACKs that release segments, as in `Openings`.
- openings: number of ACKs that release a segment; in an open window, number of packets that leave.
- duration: duration of the phase [slots].
- wait: time from the due time of an ACK to the detection of the loss; in REPAIR_OPEN, from the loss [slots].
- timeout_chance: probability that only the timeout finds a lost retransmission.
- in_run: whether the lost segment belonged to the run.
- round_trips: round-trip times from a write to the ACKs of this phase, through segments that ACKs have released.
- lost: number of packets of a loss burst; in an outage, the window.
"""


class Layout(NamedTuple):
    """The rounds of the chain and the numbers of its phases.

    Attributes
    ----------
    rounds : record array
        One record per round: the window, the reduced window from which it grew, whether all ACKs follow one another
        closely, and the number of the next round.
    after_open, after_repair : int array
        Number of the first round after a loss in an open window, and after any other loss, by the reduced window.
    repairs, first_round, opens, losses, bursts : int
        First phase of the recoveries, of the rounds, of the open windows, of the losses in rounds, and of the
        consecutive losses in an open window.
    burst_kinds : int
        Number of phases of consecutive losses per window.
    size : int
        Number of phases.
    """

    rounds: Records
    after_open: NDArray[np.int64]
    after_repair: NDArray[np.int64]
    repairs: int
    first_round: int
    opens: int
    losses: int
    bursts: int
    burst_kinds: int
    size: int


@kernel()
def _add_rounds(
    p: LinuxParameters, rounds: Records, filled: int, reduced: int, last_window: int, all_in_run: bool
) -> int:
    """Append the rounds with windows from `reduced` to `last_window`; return the new number of rounds."""
    windows = np.zeros(ROUNDS_PER_WINDOW * (last_window - reduced + 2), np.int64)
    growing_windows(p, reduced, windows)
    for window in windows:
        if window > last_window:
            break
        rounds.window[filled] = window
        rounds.reduced[filled] = reduced
        rounds.all_in_run[filled] = all_in_run
        rounds.following[filled] = filled + 1
        filled += 1
        if window >= p.largest_window:
            break
    return filled


@kernel()
def make_layout(p: LinuxParameters) -> Layout:
    """Return the rounds and the numbers of the phases for a scenario."""
    top = p.largest_window
    small = p.packets_per_segment >= SMALL_PACKETS
    capacity = ROUNDS_PER_WINDOW * (top + 2) * (MOST_STARTS + 3)
    rounds: Records = records(capacity, ROUND_RECORD)
    after_open = np.zeros(top + 2, np.int64)
    after_repair = np.zeros(top + 2, np.int64)
    last_fresh = min(p.flight + 1, top)
    # The reduced windows with rounds of their own are evenly spaced, up to the window after a loss in an open window.
    highest = max(min(reduced_window(p.flight + 1, p.cubic), last_fresh), SMALLEST_WINDOW)
    starts = min(highest - SMALLEST_WINDOW + 1, MOST_STARTS)
    filled = 0
    ends = np.zeros(starts, np.int64)
    for start in range(starts):
        reduced = SMALLEST_WINDOW + (highest - SMALLEST_WINDOW) * start // max(starts - 1, 1)
        first = filled
        filled = _add_rounds(p, rounds, filled, reduced, last_fresh, False)
        ends[start] = filled - 1
        place = first
        for window in range(reduced, top + 2):
            while place < filled - 1 and rounds.window[place] < window:
                place += 1
            after_open[window] = place
    # Windows above an open window share their rounds. With small packets, windows that were reduced twice do so too.
    common = filled
    begin = SMALLEST_WINDOW if small else min(last_fresh + 1, top)
    if small or last_fresh < top:
        filled = _add_rounds(p, rounds, filled, begin, top, True)
        # At the largest window the last two rounds alternate.
        rounds.following[filled - 1] = max(filled - 2, common)
    for start in range(starts):
        place = common
        while place < filled - 1 and rounds.window[place] <= last_fresh:
            place += 1
        rounds.following[ends[start]] = place if filled > common else ends[start]
    for reduced in range(top + 2):
        if not small:
            after_repair[reduced] = after_open[reduced]
            continue
        place = common
        # The first segment of growth takes one round, not two: start with the last round of the reduced window.
        while place < filled - 1 and rounds.window[place + 1] <= reduced:
            place += 1
        after_repair[reduced] = place
    repairs = p.backoffs
    first_round = repairs + len(PER_WINDOW) * (top + 1)
    opens = first_round + filled
    losses = opens + len(OPEN_KINDS) * (top + 1)
    bursts = losses + 2 * filled
    size = bursts + p.followed_losses * (top + 1)
    return Layout(
        rounds[:filled], after_open, after_repair, repairs, first_round, opens, losses, bursts, p.followed_losses, size
    )


@kernel()
def repair_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of a recovery of that kind with the reduced window `window`."""
    return int(layout.repairs + len(PER_WINDOW) * window + kind - REPAIR_MORE)


@kernel()
def open_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of that kind, one of `OPEN_KINDS`, with that window."""
    return int(layout.opens + len(OPEN_KINDS) * window + kind - OPEN)


@kernel()
def round_phase(layout: Layout, number: int) -> int:
    """Return the phase of round `number`."""
    return int(layout.first_round + number)


@kernel()
def start_phase(p: LinuxParameters, layout: Layout) -> int:
    """Return the phase in which the chain starts: an open window that no longer grows."""
    return open_phase(layout, p.flight + 2, OPEN)


@kernel()
def backlogged_phase(layout: Layout) -> int:
    """Return a phase with a backlog: the round with the smallest window."""
    return round_phase(layout, int(layout.after_repair[SMALLEST_WINDOW]))


@kernel()
def lost_phase(layout: Layout, number: int, in_run: bool) -> int:
    """Return the phase of a loss in round `number`; `in_run` says whether the lost segment belonged to the run."""
    return int(layout.losses + 2 * number + in_run)


@kernel()
def burst_phase(layout: Layout, window: int, lost: int) -> int:
    """Return the phase of `lost` consecutive losses, at least two, in an open window; 0: the whole window is lost."""
    return int(layout.bursts + layout.burst_kinds * window + max(lost - 1, 0))


@kernel()
def put(t: Transitions, row: int, target: int, when_empty: int, shift: float, chance: float, duration: float) -> int:
    """Append an event. If `shift` is not a whole number, append two events with whole shifts and the same mean."""
    if chance <= 0.0:
        return row
    low = math.floor(shift + SAME_TIME)
    part = shift - low
    for step in range(2):
        share = part if step else 1 - part
        if share > SAME_TIME:
            t.target[row] = target
            t.target_when_empty[row] = when_empty
            t.shift[row] = low + step
            t.probability[row] = chance * share
            t.duration[row] = duration
            row += 1
    return row


@kernel()
def put_repeat(t: Transitions, row: int, phase: int, shift: float, sent: float, chance: float) -> int:
    """Append an event that stays in its phase. The shift is rounded, and the duration is adapted to it.

    `sent` is the number of packets that leave.
    """
    if chance <= 0.0:
        return row
    whole = math.floor(shift + 0.5)
    t.target[row] = t.target_when_empty[row] = phase
    t.shift[row] = whole
    t.probability[row] = chance
    t.duration[row] = max(whole + sent, 0.0)
    return row + 1


@kernel()
def put_outcomes(
    t: Transitions,
    row: int,
    layout: Layout,
    repeated_loss: float,
    only_timeout: float,
    more: float,
    share: float,
    reduced: int,
    clean: int,
    shift: float,
    duration: float,
) -> int:
    """Append the four outcomes of a detected loss, which together have the probability `share`.

    The retransmission is lost and only a timeout finds this loss (`only_timeout` is the probability of the latter); the
    retransmission is lost and RACK finds this loss; the flight has `more` losses; or the recovery has no further loss
    and leads to the phase `clean`.
    """
    again = repair_phase(layout, reduced, REPAIR_AGAIN)
    several = repair_phase(layout, reduced, REPAIR_MORE)
    row = put(t, row, 0, 0, shift, share * (repeated_loss * only_timeout), duration)
    row = put(t, row, again, again, shift, share * (repeated_loss * (1 - only_timeout)), duration)
    row = put(t, row, several, several, shift, share * ((1 - repeated_loss) * more), duration)
    return put(t, row, clean, clean, shift, share * ((1 - repeated_loss) * (1 - more)), duration)
