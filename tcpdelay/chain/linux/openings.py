"""When a window that binds lets segments go: the acknowledgements of one round open it at the times of the last.

A pattern of openings stays from round to round, as each acknowledgement releases one segment. Each growth of the window
adds an opening right after another one, so that openings come in a run, one packet after the other, and far apart
besides. After a loss out of an open window the others are evenly spaced; after another recovery all are in the run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.compilation import allocation_free

SMALL_PACKETS = 2
"""Packets per segment from which on a segment takes in all that waits, so that backlogs are gone within a round."""


class Openings(NamedTuple):
    """A round's openings: `run` of them `near` slots apart, then the others `far` slots apart."""

    run: int
    near: float
    far: float


@njit(cache=True)
def round_openings(p: Any, window: int, reduced: int, worn: bool) -> tuple[int, float, float]:
    """Return run, near and far of a round with that window, grown from `reduced`; `worn` if all are in the run."""
    load = p.load
    if p.packets_per_segment < SMALL_PACKETS:
        # With a backlog the added openings release a segment each at once.
        return max(window - reduced, 0), 0.0, load / min(window, reduced)
    run = window - 1 if worn else 0
    if not worn and window > reduced:
        # The run fills the gaps between the others, packet by packet, from the front.
        filled = (window - reduced) / (1 - reduced / load) if reduced < load else float(window)
        run = int(min(max(filled, float(window - reduced)), float(window)) + 0.5)
    if run >= load or run >= window:
        return window, load / window, load / window
    return run, 1.0, (load - run) / (window - run)


@njit(cache=True)
def opening_time(place: int, run: int, near: float, far: float) -> float:
    """Return the time of an opening, counted from 1, since the last one of the round before [slots]."""
    return place * near if place <= run else run * near + (place - run) * far


@allocation_free()
def opening_times(count: int, run: int, near: float, far: float, times: NDArray[np.float64]) -> None:
    """Fill in the times of a round's openings."""
    for place in range(count):
        times[place] = opening_time(place + 1, run, near, far)


@allocation_free()
def times_after_loss(
    p: Any, count: int, run: int, near: float, far: float, in_run: bool, duration: float, times: NDArray[np.float64]
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
            is_near = place < first or place >= last
        else:
            is_near = middle <= place < middle + run
        time += near if is_near else far
        times[place] = time
    if count and times[count - 1] > duration:
        shrink = duration / times[count - 1]
        for place in range(count):
            times[place] *= shrink
