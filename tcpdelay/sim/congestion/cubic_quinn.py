"""CUBIC of quinn (congestion/cubic.rs of quinn-proto 0.11.14; RFC 8312); windows in packets, times in seconds."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion.cubic_rfc9438 import CUBIC_ALPHA, CUBIC_BETA, CUBIC_C, end_epoch
from tcpdelay.sim.congestion.newreno import leaves_to_avoidance, reduce_to
from tcpdelay.sim.quic.connection import Connection
from tcpdelay.sim.tcp.constants import SECOND


@kernel()
def on_ack(c: Connection, sent: int, size: int, in_flight: int) -> None:
    """Let the window grow (on_ack)."""
    if leaves_to_avoidance(c, sent, size, in_flight):
        _grow(c)


@kernel()
def _grow(c: Connection) -> None:
    """Let the window grow in congestion avoidance.

    Reno's window grows with the time since the loss, also while the application limits the sender. An ACK lets the
    window grow by at most a datagram; what exceeds it is forgotten.
    """
    full = c.datagram_size
    window = c.congestion_window / full
    if c.epoch == 0:
        c.epoch, c.cubic_k, c.window_before_loss = c.now, 0.0, c.congestion_window
    age, rtt, largest = (c.now - c.epoch) / SECOND, c.smoothed_rtt / SECOND, c.window_before_loss / full
    later = age + rtt - c.cubic_k
    cubic = CUBIC_C * later * later * later + largest
    estimated = CUBIC_BETA * largest + CUBIC_ALPHA * age / rtt
    growth = estimated - window if cubic < estimated else (cubic - window) / window
    c.counted += int(max(growth, 0.0) * full)
    if c.counted >= full:
        c.congestion_window += full
        c.counted = 0


@kernel()
def on_loss(c: Connection) -> None:
    """Reduce the reduced W_max once more (on_congestion_event)."""
    end_epoch(c)
    window = c.window_before_loss
    c.epoch, c.cubic_k = c.now, (window / c.datagram_size * (1 - CUBIC_BETA) / CUBIC_C) ** (1 / 3)
    c.counted = int(CUBIC_BETA * c.counted)
    reduce_to(c, window * CUBIC_BETA)
