"""The window from round to round: what a loss leaves of it, and how Reno and CUBIC let it grow again.

When a window that binds lets segments go: the acknowledgements of one round open it at the times of the last.

A pattern of openings stays from round to round, as each acknowledgement releases one segment. Each growth of the window
adds an opening right after another one, so that openings come in a run, one packet after the other, and far apart
besides. After a loss out of an open window the others are evenly spaced; after another recovery all are in the run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models import tcp
from tcpdelay.models.compilation import allocation_free, kernel
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters

UPDATE_INTERVAL = 1 / tcp.CUBIC_UPDATES_PER_SECOND
"""Time for which the kernel keeps the growth of an unchanged window [s]."""

fast_converged = kernel()(tcp.fast_converged)
reduced_window = kernel()(tcp.reduced_window)


@kernel()
def window_before(reduced: int, cubic: bool) -> int:
    """Return the largest window that a loss reduces to `reduced`."""
    window = reduced
    while reduced_window(window + 1, cubic) <= reduced:
        window += 1
    return window


@kernel()
def growing_windows(p: LinuxParameters, reduced: int, rounds: NDArray[np.int64]) -> None:
    """Fill in the window in each round after a recovery that left `reduced`, as long as the window is the limit.

    Reno grows by one segment a round. CUBIC's whole-number arithmetic is followed ACK by ACK (RFC 9438, 4.2 to 4.4).
    """
    if not p.cubic:
        for place in range(rounds.size):
            rounds[place] = min(reduced + place, p.largest_window)
        return
    before = window_before(reduced, True)
    largest = before if before > p.flight else max(fast_converged(before), 1)
    origin = max(largest, reduced)
    inflection = np.cbrt((origin - reduced) / tcp.CUBIC_C)
    window, reno_window, acks, credit, per_segment = reduced, reduced, 0, 0, tcp.CUBIC_SLOWEST_GROWTH * reduced
    updated_at, updated_window = -1.0, 0
    for place in range(rounds.size):
        rounds[place] = min(window, p.largest_window)
        if window >= p.largest_window:
            continue
        flight = window
        for ack in range(flight):
            acks += 1
            time = (place + ack / flight) * p.rtt
            if updated_window != window or time - updated_at > UPDATE_INTERVAL + SAME_TIME:
                updated_window, updated_at = window, time
                distance = time + p.rtt - inflection
                climb = np.floor(tcp.CUBIC_C * abs(distance) ** 3 + SAME_TIME)
                target = origin + (climb if distance >= 0 else -climb)
                per_segment = window // int(target - window) if target > window else tcp.CUBIC_SLOWEST_GROWTH * window
                needed = window * tcp.CUBIC_RENO_EIGHTHS // 8
                while acks > needed:
                    acks -= needed
                    reno_window += 1
                if reno_window > window:
                    per_segment = min(per_segment, window // (reno_window - window))
                per_segment = max(per_segment, tcp.CUBIC_FASTEST_GROWTH)
            if credit >= per_segment:
                credit = 0
                window += 1
            credit += 1
            if credit >= per_segment:
                window += credit // per_segment
                credit %= per_segment


SMALL_PACKETS = 2
"""Packets per segment from which on a segment takes in all that waits, so that backlogs are gone within a round."""


class Openings(NamedTuple):
    """Openings of a round: `run` of them `spacing_in_run` slots apart, then others `spacing_after_run` slots apart."""

    run: int
    spacing_in_run: float
    spacing_after_run: float


@kernel()
def round_openings(p: LinuxParameters, window: int, reduced: int, all_in_run: bool) -> tuple[int, float, float]:
    """Return the `Openings` of a round with a window that has grown from `reduced`.

    `all_in_run` tells that all openings have run together.
    """
    load = p.load
    if p.packets_per_segment < SMALL_PACKETS:
        # With a backlog the added openings release a segment each at once.
        return max(window - reduced, 0), 0.0, load / min(window, reduced)
    run = window - 1 if all_in_run else 0
    if not all_in_run and window > reduced:
        # The run fills the gaps between the others, packet by packet, from the front.
        filled = (window - reduced) / (1 - reduced / load) if reduced < load else float(window)
        run = int(min(max(filled, float(window - reduced)), float(window)) + 0.5)
    if run >= load or run >= window:
        return window, load / window, load / window
    return run, 1.0, (load - run) / (window - run)


@kernel()
def opening_time(place: int, run: int, spacing_in_run: float, spacing_after_run: float) -> float:
    """Return the time of an opening, counted from 1, since the last one of the round before [slots]."""
    return place * spacing_in_run if place <= run else run * spacing_in_run + (place - run) * spacing_after_run


@allocation_free()
def opening_times(
    count: int, run: int, spacing_in_run: float, spacing_after_run: float, times: NDArray[np.float64]
) -> None:
    """Fill in the times of a round's openings."""
    for place in range(count):
        times[place] = opening_time(place + 1, run, spacing_in_run, spacing_after_run)


@allocation_free()
def times_after_loss(
    p: LinuxParameters,
    count: int,
    run: int,
    spacing_in_run: float,
    spacing_after_run: float,
    in_run: bool,
    duration: float,
    times: NDArray[np.float64],
) -> None:
    """Fill in the times of the openings after a segment of the run, or another one, is lost."""
    others = count - run
    if in_run:
        first, last = run // 2, run // 2 + others
    elif p.packets_per_segment < SMALL_PACKETS:
        first, last = 0, 0
    else:
        first, last = run, count
    middle = others // 2
    time = 0.0
    for place in range(count):
        if in_run or p.packets_per_segment >= SMALL_PACKETS:
            follows_closely = place < first or place >= last
        else:
            follows_closely = middle <= place < middle + run
        time += spacing_in_run if follows_closely else spacing_after_run
        times[place] = time
    if count and times[count - 1] > duration:
        shrink = duration / times[count - 1]
        for place in range(count):
            times[place] *= shrink
