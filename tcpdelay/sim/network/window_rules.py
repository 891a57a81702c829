"""Two rules for windows that the classic sender may follow: byte counting and window validation.

References
----------
.. [1] RFC 3465: byte counting. RFC 2861: window validation.
.. [2] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010: what they do to small packets.
"""

from __future__ import annotations

from typing import Any

from numba import njit

LARGEST_STEP, LARGEST_STEP_AFTER_TIMEOUT = 2.0, 1.0
"""L of RFC 3465: full segments by which an acknowledgement opens the window at most in slow start."""


@njit(cache=True)
def counted(s: Any, newly: int) -> float:
    """Return for how many segments an acknowledgement of so many counts: one, or their bytes in full segments."""
    if not s.byte_counting:
        return 1.0
    segments = newly * s.segment_size / s.mss
    if s.cwnd < s.ssthresh:
        segments = min(segments, LARGEST_STEP_AFTER_TIMEOUT if s.timeouts else LARGEST_STEP)
    return float(segments)


@njit(cache=True)
def may_grow(s: Any, outstanding: int) -> bool:
    """Whether the window was full before an acknowledgement, so that it is known to be safe."""
    return bool(not s.window_validation or outstanding >= min(int(s.cwnd), s.receiver_window))


@njit(cache=True)
def restart_after_idle(s: Any) -> None:
    """Halve the window for each timeout in which nothing was sent, before a new segment (RFC 2861, section 3.1)."""
    if not s.window_validation or s.snd_max > s.snd_una or s.snd_max == 0:
        return
    timeouts = (s.now - s.last_sent) // (s.rto * s.tick)
    if timeouts < 1:
        return
    s.ssthresh = max(s.ssthresh, 0.75 * s.cwnd)
    s.cwnd = max(s.cwnd / 2.0 ** min(timeouts, 64), 1.0)
