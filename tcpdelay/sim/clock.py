"""The kernel's clock of ticks, and when a timer that is set on it really fires."""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.records import NEVER, NO_TIMER

SECOND = 1_000_000
LONGEST_TIMEOUT = 120 * SECOND
"""TCP_RTO_MAX [us]."""
WHEEL_LEVEL_SHIFT = 3
WHEEL_FIRST_LEVEL = 63
"""Ticks ahead up to which the wheel is exact; each further level is eight times as coarse (kernel/time/timer.c)."""


@njit(cache=True)
def ticks_now(c: Any) -> int:
    """Return the tick that has begun last, `jiffies`."""
    return ticks_at(c, c.now)


@njit(cache=True)
def ticks_at(c: Any, time: int) -> int:
    """Return the tick that has begun last at a time [us]."""
    return int((time + c.tick_phase) // c.tick)


@njit(cache=True)
def to_ticks(c: Any, duration: int) -> int:
    """Return a duration [us] in ticks, rounded up (`usecs_to_jiffies`)."""
    return int((duration + c.tick - 1) // c.tick)


@njit(cache=True)
def wheel_expiry(now: int, ticks: int) -> int:
    """Return the tick at which a timer fires that is set for `ticks` after the tick `now`.

    The kernel's timer wheel never fires early, so it rounds up, by one tick at least and by more the farther ahead:
    a retransmission timeout of 75 ticks can be 8 ticks late.

    Examples
    --------
    >>> wheel_expiry(1000, 2), wheel_expiry(1000, 75)
    (1003, 1080)
    """
    shift = 0
    while ticks >= WHEEL_FIRST_LEVEL << shift:
        shift += WHEEL_LEVEL_SHIFT
    return (((now + ticks) >> shift) + 1) << shift


@njit(cache=True)
def fires_at(c: Any, now: int, ticks: int) -> int:
    """Return when a timer fires [us] that is set for `ticks` after the tick `now`."""
    return int((wheel_expiry(now, ticks) if c.ticks else now + ticks) * c.tick - c.tick_phase)


@njit(cache=True)
def set_timer(c: Any, kind: int, ticks: int) -> None:
    """Let the connection's timer fire after a number of ticks; it has but one, of changing kind."""
    c.timer_kind = kind
    c.timer_at = fires_at(c, ticks_now(c), min(ticks, LONGEST_TIMEOUT // c.tick))


@njit(cache=True)
def clear_timer(c: Any) -> None:
    """Stop the connection's timer."""
    c.timer_kind = NO_TIMER
    c.timer_at = NEVER
