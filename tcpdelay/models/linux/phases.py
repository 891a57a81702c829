"""The phases and their numbers, in the order in which an undisturbed flow passes through them, and their events.

An event changes the backlog by whole packets.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.linux.parameters import SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.windows import SMALL_PACKETS, growing_windows, reduced_window
from tcpdelay.models.solver.state_space import Transitions

TIMEOUT, REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR_OPEN, ROUND, OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING, LOST = range(
    11
)
"""Kinds of phases.

TIMEOUT: until a timeout and its retransmission; REPAIR_MORE: in recovery, until the last of several losses is sent
again; REPAIR_AGAIN: until a lost retransmission is; REPAIR: one round-trip time from the last retransmission to its
acknowledgement; REPAIR_OPEN: the same after a loss out of an open window; ROUND: a round in which the window is the
limit; OPEN: one slot in which it is not; LOST_OPEN, LOST_TWO, LOST_REPAIRING, LOST: from a loss to its detection, out
of an open window, with the next packet lost as well, out of REPAIR, and out of a round.
"""
PER_WINDOW = (REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR_OPEN)
OPEN_KINDS = (OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING)
MOST_STARTS = 8
"""Reduced windows whose growth is followed on its own; the others share that of the next smaller one."""
ROUNDS_PER_WINDOW = 4
"""Rounds per segment of growth for which there is room; CUBIC takes two or three."""

ROUND_RECORD = np.dtype(
    [("window", np.int64), ("reduced", np.int64), ("all_in_run", np.int64), ("following", np.int64)], align=True
)


class Layout(NamedTuple):
    """Numbers of the phases.

    Attributes
    ----------
    rounds : record array
        The rounds: the window, the reduced window from which it grew, whether all openings have run together, and the
        next round.
    after_open, after_repair : int array
        First round after a loss out of an open window, or another, by the reduced window.
    repairs, opens, losses, size : int
        First phase of the repairs, of the open windows, of the losses in rounds; and the number of phases.
    first_round : int
        First phase of the rounds.
    bursts, burst_kinds : int
        First phase of losses in a row out of an open window, and how many of them there are for each window.
    """

    rounds: Any
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
def _add_rounds(p: LinuxParameters, rounds: Any, filled: int, reduced: int, last_window: int, all_in_run: bool) -> int:
    """Append the rounds from `reduced` up to `last_window`; return how many rounds there are then."""
    windows = np.zeros(ROUNDS_PER_WINDOW * (last_window - reduced + 2), np.int64)
    growing_windows(p, reduced, windows)
    place = 0
    while place < windows.size and windows[place] <= last_window:
        rounds.window[filled] = windows[place]
        rounds.reduced[filled] = reduced
        rounds.all_in_run[filled] = all_in_run
        rounds.following[filled] = filled + 1
        filled += 1
        place += 1
        if windows[place - 1] >= p.largest_window:
            break
    return filled


@kernel()
def make_layout(p: LinuxParameters) -> Layout:
    """Return the numbers of the phases of a scenario."""
    top = p.largest_window
    small = p.packets_per_segment >= SMALL_PACKETS
    capacity = ROUNDS_PER_WINDOW * (top + 2) * (MOST_STARTS + 3)
    rounds: Any = records(capacity, ROUND_RECORD)
    after_open = np.zeros(top + 2, np.int64)
    after_repair = np.zeros(top + 2, np.int64)
    last_fresh = min(p.flight + 1, top)
    # Windows whose growth is followed on its own: evenly spread, up to that after a loss out of an open window.
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
    # Beyond an open window growth is shared, and so it is, with small packets, by all that were reduced twice.
    common = filled
    begin = SMALLEST_WINDOW if small else min(last_fresh + 1, top)
    if small or last_fresh < top:
        filled = _add_rounds(p, rounds, filled, begin, top, True)
        # At the largest window the last two rounds take turns.
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
        # The first segment of growth takes one round, not two: the last round with the reduced window.
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
    """Return the phase of a repair with that reduced window."""
    return int(layout.repairs + 4 * window + kind - REPAIR_MORE)


@kernel()
def open_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of an open window, or of a loss out of one, or out of a repair."""
    return int(layout.opens + 4 * window + kind - OPEN)


@kernel()
def round_phase(layout: Layout, number: int) -> int:
    """Return the phase of the round of that number."""
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
    """Return the phase of a loss in the round of that number, of a segment of the run or of another."""
    return int(layout.losses + 2 * number + in_run)


@kernel()
def burst_phase(layout: Layout, window: int, lost: int) -> int:
    """Return the phase of so many losses in a row, two or more, out of an open window; with 0, of a whole window."""
    return int(layout.bursts + layout.burst_kinds * window + max(lost - 1, 0))


@kernel()
def put(t: Transitions, row: int, target: int, when_empty: int, shift: float, chance: float, duration: float) -> int:
    """Append an event; a shift between two whole numbers becomes two events with the same mean."""
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
    """Append an event that stays in its phase; its duration makes up for the shift being whole."""
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
    without_tell: float,
    more: float,
    share: float,
    reduced: int,
    clean: int,
    shift: float,
    duration: float,
) -> int:
    """Append what follows the detection of a loss: a timeout, a retransmission lost, more losses, or none of these.

    `share` is the chance of all of it.
    """
    again = repair_phase(layout, reduced, REPAIR_AGAIN)
    several = repair_phase(layout, reduced, REPAIR_MORE)
    row = put(t, row, 0, 0, shift, share * (repeated_loss * without_tell), duration)
    row = put(t, row, again, again, shift, share * (repeated_loss * (1 - without_tell)), duration)
    row = put(t, row, several, several, shift, share * ((1 - repeated_loss) * more), duration)
    return put(t, row, clean, clean, shift, share * ((1 - repeated_loss) * (1 - more)), duration)
