"""CUBIC of QUIC, by the letter of RFC 9438; windows in packets, times in seconds."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion.newreno import leaves_to_avoidance, may_grow, reduce_to
from tcpdelay.sim.quic.connection import Connection
from tcpdelay.sim.tcp.constants import SECOND

CUBIC_C = 0.4
"""Constant of the growth [packets / s^3] (RFC 9438, 5)."""
CUBIC_BETA = 0.7
"""Factor of the window at a loss (RFC 9438, 4.6)."""
CUBIC_ALPHA = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
"""Growth per round trip of the window that Reno would have [packets] (RFC 9438, 4.3)."""


@kernel()
def on_ack(c: Connection, sent: int, size: int, in_flight: int) -> None:
    """Let the window grow; while the application limits the sender, the epoch's clock stands still (RFC 9438, 4.2)."""
    if leaves_to_avoidance(c, sent, size, in_flight):
        _grow(c, size)
    elif c.epoch and sent > c.recovery_start and not may_grow(c, in_flight):
        c.epoch += c.now - max(c.last_acknowledged, c.epoch)
        c.last_acknowledged = c.now


@kernel()
def _grow(c: Connection, size: int) -> None:
    """Let the window grow in congestion avoidance (RFC 9438, 4.2 to 4.5)."""
    full = c.datagram_size
    window, largest = c.congestion_window / full, c.window_before_loss / full
    if c.epoch == 0:
        c.epoch, c.estimated_window = c.now, window
        c.cubic_k = ((largest - window) / CUBIC_C) ** (1 / 3) if largest > window else 0.0
        largest = max(largest, window)
    acknowledged = size / full
    alpha = CUBIC_ALPHA if c.estimated_window < c.window_at_loss / full else 1.0
    c.estimated_window += alpha * acknowledged / window
    later = (c.now - c.epoch + c.smoothed_rtt) / SECOND - c.cubic_k
    target = min(max(CUBIC_C * later * later * later + largest, window), 1.5 * window)
    now = (c.now - c.epoch) / SECOND - c.cubic_k
    if CUBIC_C * now * now * now + largest < c.estimated_window:
        window = max(c.estimated_window, window)
    else:
        window += (target - window) / window * acknowledged
    c.congestion_window = window * full


@kernel()
def on_loss(c: Connection) -> None:
    """Reduce the window to 0.7 (RFC 9438, 4.6)."""
    c.window_at_loss = c.congestion_window
    end_epoch(c)
    reduce_to(c, c.congestion_window * CUBIC_BETA)


@kernel()
def end_epoch(c: Connection) -> None:
    """Store the window before a loss, by fast convergence a smaller one (RFC 9438, 4.7)."""
    window = c.congestion_window
    c.window_before_loss = window * (1 + CUBIC_BETA) / 2 if window < c.window_before_loss else window
    c.epoch = 0
