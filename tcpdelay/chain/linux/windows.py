"""The window from round to round: what a loss leaves of it, and how Reno and CUBIC let it grow again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.chain.linux.detection import SAME_TIME

CUBIC_BETA, CUBIC_SCALE = 717, 1024
"""CUBIC's multiplicative decrease, in 1024ths (net/ipv4/tcp_cubic.c; RFC 9438 has 0.7)."""
CUBIC_C = 0.4
"""Scale of the cubic function, in segments per cubed second (RFC 9438, 5.1)."""
FAST_CONVERGENCE = 0.85
"""Share of its window that a flow remembers as its largest if it lost before reaching the last one (RFC 9438, 4.7)."""
RENO_ACKS = 15
"""Eighths of a window of ACKs after which the Reno-friendly window grows by one segment."""
UPDATE_INTERVAL = 1 / 32
"""Time for which the kernel keeps the growth of an unchanged window [s]."""
SLOWEST_GROWTH = 100


@njit(cache=True)
def reduced_window(window: int, cubic: bool) -> int:
    """Return the window after a loss: half of it, or 0.7 with CUBIC, at least two segments."""
    return max(window * CUBIC_BETA // CUBIC_SCALE if cubic else window // 2, 2)


@njit(cache=True)
def window_before(reduced: int, cubic: bool) -> int:
    """Return the largest window that a loss reduces to `reduced`."""
    window = reduced
    while reduced_window(window + 1, cubic) <= reduced:
        window += 1
    return window


@njit(cache=True)
def growing_windows(p: Any, reduced: int, rounds: NDArray[np.int64]) -> None:
    """Fill in the window in each round after a recovery that left `reduced`, as long as the window is the limit.

    Reno grows by one segment a round. CUBIC's whole-number arithmetic is followed ACK by ACK (RFC 9438, 4.2 to 4.4).
    """
    if not p.cubic:
        for place in range(rounds.size):
            rounds[place] = min(reduced + place, p.largest_window)
        return
    before = window_before(reduced, True)
    largest = before if before > p.flight else max(int(before * FAST_CONVERGENCE), 1)
    origin = max(largest, reduced)
    inflection = np.cbrt((origin - reduced) / CUBIC_C)
    window, reno_window, acks, credit, per_segment = reduced, reduced, 0, 0, SLOWEST_GROWTH * reduced
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
                climb = np.floor(CUBIC_C * abs(distance) ** 3 + SAME_TIME)
                target = origin + (climb if distance >= 0 else -climb)
                per_segment = window // int(target - window) if target > window else SLOWEST_GROWTH * window
                needed = window * RENO_ACKS // 8
                while acks > needed:
                    acks -= needed
                    reno_window += 1
                if reno_window > window:
                    per_segment = min(per_segment, window // (reno_window - window))
                per_segment = max(per_segment, 2)
            if credit >= per_segment:
                credit = 0
                window += 1
            credit += 1
            if credit >= per_segment:
                window += credit // per_segment
                credit %= per_segment
