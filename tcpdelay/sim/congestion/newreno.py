"""NewReno of QUIC (RFC 9002, 7.3), also in the forms of aioquic, quic-go and quinn; windows in bytes."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.quic.connection import BY_BYTES, BY_PACKETS, NEAR_WINDOW, UNLESS_LIMITED, Connection

UNLIMITED = 1e15
"""Slow-start threshold before the first loss [bytes]."""
BURST_BELOW_WINDOW = 3
"""Packets that may be missing to a full window for quic-go to let it grow (cubic_sender.go, maxBurstPackets)."""


@kernel()
def may_grow(c: Connection, in_flight: int) -> bool:
    """Return whether the window may grow at an ACK before which a number of bytes was in flight."""
    if c.grows == UNLESS_LIMITED:
        return bool(not c.application_limited)
    if c.grows != NEAR_WINDOW or in_flight >= c.congestion_window:
        return True
    if c.congestion_window < c.slow_start_threshold and in_flight > c.congestion_window / 2:
        return True
    return bool(c.congestion_window - in_flight <= BURST_BELOW_WINDOW * c.datagram_size)


@kernel()
def on_ack(c: Connection, sent: int, size: int, in_flight: int) -> None:
    """Let the window grow by a datagram per window, as the implementation counts."""
    if not leaves_to_avoidance(c, sent, size, in_flight):
        return
    full = c.datagram_size
    if c.growth == BY_BYTES:
        c.congestion_window += full * size / c.congestion_window
        return
    by_packets = c.growth == BY_PACKETS
    c.counted += 1 if by_packets else size
    needed = c.congestion_window // full if by_packets else c.congestion_window
    if c.counted >= needed:
        c.counted = 0 if by_packets else c.counted - int(needed)
        c.congestion_window += full


@kernel()
def leaves_to_avoidance(c: Connection, sent: int, size: int, in_flight: int) -> bool:
    """Let the window grow in slow start; return whether congestion avoidance may let it grow instead."""
    if sent <= c.recovery_start or not may_grow(c, in_flight):
        return False
    if c.congestion_window < c.slow_start_threshold:
        c.congestion_window += c.datagram_size if c.growth == BY_PACKETS else size
        return False
    return True


@kernel()
def on_loss(c: Connection) -> None:
    """Reduce the window by the factor of the implementation."""
    reduce_to(c, c.congestion_window * c.loss_factor)


@kernel()
def reduce_to(c: Connection, window: float) -> None:
    """Reduce window and threshold to a size, and at least to the smallest window [bytes]."""
    c.congestion_window = max(window, c.smallest_window * c.datagram_size)
    c.slow_start_threshold = c.congestion_window
    if c.growth == BY_PACKETS:
        c.counted = 0


@kernel()
def collapse(c: Connection) -> None:
    """Take the smallest window (RFC 9002, 7.6.2)."""
    c.congestion_window = c.smallest_window * c.datagram_size
    c.recovery_start = 0
    c.epoch = 0
