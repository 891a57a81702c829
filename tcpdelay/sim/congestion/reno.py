"""Reno: the window grows by a segment per window, and a loss halves it (RFC 5681; net/ipv4/tcp_cong.c)."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.records import Connection
from tcpdelay.sim.tcp import constants as tcp

reduced_window = kernel()(tcp.reduced_window)
NO_GROWTH = -1
"""In place of the number of segments for which congestion avoidance lets the window grow."""


@kernel()
def in_slow_start(c: Connection) -> bool:
    """Return whether the window is below the slow-start threshold."""
    return bool(c.snd_cwnd < c.snd_ssthresh)


@kernel()
def is_window_the_limit(c: Connection) -> bool:
    """Return whether the window, not the application, has limited the sender recently (`tcp_is_cwnd_limited`)."""
    if c.is_cwnd_limited:
        return True
    return in_slow_start(c) and c.snd_cwnd < 2 * c.max_packets_out


@kernel()
def on_ack(c: Connection, acknowledged: int) -> None:
    """Grow the window (`tcp_reno_cong_avoid`)."""
    left = left_by_slow_start(c, acknowledged)
    if left != NO_GROWTH:
        avoid_congestion(c, left, c.snd_cwnd)


@kernel()
def left_by_slow_start(c: Connection, acknowledged: int) -> int:
    """Grow the window in slow start; return the acknowledged segments that are left, or `NO_GROWTH`."""
    if c.application_limited_rule and not is_window_the_limit(c):
        return NO_GROWTH
    if in_slow_start(c):
        grown = min(c.snd_cwnd + acknowledged, c.snd_ssthresh)
        acknowledged -= grown - c.snd_cwnd
        c.snd_cwnd = grown
        if acknowledged == 0:
            return NO_GROWTH
    return int(acknowledged)


@kernel()
def avoid_congestion(c: Connection, acknowledged: int, segments: int) -> None:
    """Grow the window by one segment for each number of acknowledged `segments` (`tcp_cong_avoid_ai`)."""
    if c.snd_cwnd_cnt >= segments:
        c.snd_cwnd_cnt = 0
        c.snd_cwnd += 1
    c.snd_cwnd_cnt += acknowledged
    if c.snd_cwnd_cnt >= segments:
        steps = c.snd_cwnd_cnt // segments
        c.snd_cwnd_cnt -= steps * segments
        c.snd_cwnd += steps


@kernel()
def on_loss(c: Connection) -> int:
    """Return half of the window (`tcp_reno_ssthresh`)."""
    return int(reduced_window(c.snd_cwnd, False))
