"""Pacing by the timer of TCP itself, as without the queueing discipline fq (net/ipv4/tcp_output.c).

The timer has a high resolution: it does not wait for a tick.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models import tcp
from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import NEVER

NANOSECONDS = 1000
"""Nanoseconds per microsecond."""


@kernel()
def bytes_per_second(c: Any, bandwidth: int, gain: int) -> int:
    """Return the rate of a bandwidth times a gain, less BBR's margin of 1 % (`bbr_rate_bytes_per_sec`)."""
    rate = bandwidth * c.mss * gain // tcp.BBR_GAIN
    return int(rate * (tcp.SECOND // 100 * (100 - tcp.BBR_PACING_MARGIN)) // tcp.BBR_BANDWIDTH)


@kernel()
def is_paced(c: Any) -> bool:
    """Return whether the next segment must wait, and if so, let the timer send it later (`tcp_pacing_check`)."""
    if not c.bbr or c.tcp_wstamp_ns <= c.now * NANOSECONDS:
        return False
    if c.pacing_at == NEVER:
        c.pacing_at = -(-c.tcp_wstamp_ns // NANOSECONDS)
    return True


@kernel()
def schedule_next(c: Any, size: int) -> None:
    """Set the earliest time of the next segment after one of `size` bytes that is sent now.

    The first segments are not paced, nor is any segment at a rate of 0, as after a minute of losses. A segment that is
    sent late makes up for at most half of the time to the next segment (`tcp_update_skb_after_send`).
    """
    now = c.now * NANOSECONDS
    credit = max(now - c.tcp_wstamp_ns, 0)
    c.tcp_wstamp_ns += credit
    if c.segments_sent + 1 < tcp.UNPACED_SEGMENTS or c.pacing_rate == 0:
        return
    duration = size * tcp.SECOND * NANOSECONDS // c.pacing_rate
    c.tcp_wstamp_ns += duration - min(duration // 2, credit)
