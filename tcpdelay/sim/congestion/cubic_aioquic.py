"""CUBIC of aioquic (quic/congestion/cubic.py), which differs from RFC 9438.

The window also grows in recovery and while the application limits the sender.
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion.cubic_rfc9438 import CUBIC_BETA, CUBIC_C, end_epoch
from tcpdelay.sim.congestion.newreno import UNLIMITED, reduce_to
from tcpdelay.sim.quic import pacer
from tcpdelay.sim.quic.connection import Connection, Packet, WireRecord
from tcpdelay.sim.tcp.constants import SECOND

LONGEST_IDLE = 2 * SECOND
"""Age of the last acknowledged packet from which the window starts anew [us] (K_CUBIC_MAX_IDLE_TIME)."""


@kernel()
def _cubic_function(c: Connection, age: float) -> int:
    """Return the window of the cubic function at an age of the epoch [s] (W_cubic) [bytes]."""
    later = age - c.cubic_k
    return int((CUBIC_C * later * later * later + c.window_before_loss / c.datagram_size) * c.datagram_size)


@kernel()
def on_ack(c: Connection, sent: int, size: int, in_flight: int) -> None:
    """Let the window grow (on_packet_acked).

    It grows by a packet's share of the distance to the target whatever the size of the packet. It becomes Reno's
    window, which grows by a datagram per window from the start, where this is larger than the cubic function, also if
    this is smaller than the window.
    """
    c.acknowledged_sent = sent
    full = c.datagram_size
    if c.congestion_window < c.slow_start_threshold:
        c.congestion_window += size
        return
    if c.epoch == 0:
        c.epoch, c.estimated_window = c.now, c.congestion_window
        distance = (c.window_before_loss - c.congestion_window) / full / CUBIC_C
        c.cubic_k = abs(distance) ** (1 / 3) * (1.0 if distance >= 0 else -1.0)
    c.estimated_window = int(c.estimated_window + full * (size / c.congestion_window))
    age = (c.now - c.epoch) / SECOND
    if _cubic_function(c, age) < c.estimated_window:
        c.congestion_window = c.estimated_window
        return
    window = c.congestion_window
    target = min(max(_cubic_function(c, age + c.latest_rtt / SECOND), window), int(1.5 * window))
    c.congestion_window = int(window + (target - window) * (full / window))


@kernel()
def on_send(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Start with a new window if the last acknowledged packet was sent long ago (on_packet_sent)."""
    if c.now - c.acknowledged_sent >= LONGEST_IDLE:
        c.congestion_window = c.window_before_loss = c.initial_window * c.datagram_size
        c.slow_start_threshold = UNLIMITED
        c.epoch = 0
    pacer.spend(c, packet.length)


@kernel()
def on_loss(c: Connection) -> None:
    """Reduce the window to a share of the bytes in flight, also where the application limits them (on_packets_lost)."""
    end_epoch(c)
    reduce_to(c, c.in_flight * CUBIC_BETA)
