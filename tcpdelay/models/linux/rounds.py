"""The rounds of the chain: the windows from each reduced window on, and the first round after each recovery.

A round is one round-trip time in which the window limits the sender.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.linux.parameters import SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.windows import (
    SMALL_PACKETS,
    UPDATE_INTERVAL,
    growing_windows,
    reduced_window,
    stored_window,
    window_before,
)
from tcpdelay.models.solver.state_space import Records

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

ROUND_RECORD = np.dtype(
    [
        ("window", np.int64),
        ("reduced", np.int64),
        ("all_in_run", np.int64),
        ("following", np.int64),
        ("grown", np.float64),
    ],
    align=True,
)
"""A round of the chain.

Fields: the window [segments], the reduced window from which it grew, whether all ACKs follow one another closely, the
number of the next round, and the mean growth before the round ends [segments].
"""

FIRST_ROUNDS = np.dtype(
    [
        ("after_open", np.int64),
        ("after_open_larger", np.int64),
        ("after_repair", np.int64),
        ("after_repair_larger", np.int64),
        ("larger", np.float64),
    ],
    align=True,
)
"""Numbers of the first rounds with a reduced window, after a loss in an open window and after any other loss.

If a window has no rounds of its own, the flow takes the rounds of the next larger window with the probability `larger`,
else those of the next smaller window.
"""


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
    p: LinuxParameters, rounds: Records, filled: int, reduced: int, last_window: int, all_in_run: bool
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
def _first_with(rounds: Records, begin: int, end: int, window: int) -> int:
    """Return the first round from `begin` to before `end` with that window or more, or the last of them."""
    place = begin
    while place < end - 1 and rounds.window[place] < window:
        place += 1
    return place


@kernel()
def _last_with(rounds: Records, begin: int, end: int, window: int) -> int:
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
    """Return the reduced windows with rounds of their own, in ascending order.

    Without `by_time` they are evenly spaced, up to the window after a loss in an open window. With `by_time` the
    distances grow with the window, up to the largest window that is reached between losses.
    """
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
    rounds: Records,
    reduced: NDArray[np.int64],
    begins: NDArray[np.int64],
    runs: NDArray[np.int64],
    by_time: bool,
    own_runs: bool,
) -> Records:
    """Return the `FIRST_ROUNDS` records of all windows.

    `begins` and `runs` are the first rounds after a loss in an open window, and after any other loss, by the windows
    `reduced`, which have rounds of their own.
    """
    starts, filled = reduced.size, rounds.size
    found: Records = records(p.largest_window + 2, FIRST_ROUNDS)
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
def make_rounds(p: LinuxParameters) -> tuple[Records, Records, bool]:
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
    rounds: Records = records(_most_rounds(p, top + 2) * (2 * starts + 3), ROUND_RECORD)
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
