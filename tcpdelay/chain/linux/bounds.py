"""How far a backlog, and a delay, may reach."""

from __future__ import annotations

from typing import Any

from numba import njit

LOADS_OF_BACKLOG = 2
TIMEOUTS_OF_BACKLOG = 1.5
"""The bound of the backlog to begin with: packets of so many round-trip times, and of so many of the last timeout."""
SPARE_BACKLOG = 6
REPAIRS_BEYOND = 8
"""Round-trip times that a delay may last beyond the largest backlog and timeout."""
TIMEOUTS_BEYOND = 4


@njit(cache=True)
def first_bound(p: Any) -> int:
    """Return the bound of the backlog to begin with [packets]."""
    last_timeout = p.timeout * 2.0 ** (p.backoffs - 1)
    return int(LOADS_OF_BACKLOG * p.load + TIMEOUTS_OF_BACKLOG * last_timeout) + SPARE_BACKLOG


@njit(cache=True)
def beyond_backlog(p: Any) -> int:
    """Return how much longer than the largest backlog a delay may last [slots]."""
    beyond = REPAIRS_BEYOND * (p.load + 1) + TIMEOUTS_BEYOND * p.timeout
    if p.followed_losses:
        beyond += p.timeout * 2.0**p.backoffs
    return int(beyond)
