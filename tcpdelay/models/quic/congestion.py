"""Congestion control: NewReno of RFC 9002 (7.3 and appendix B), and CUBIC of RFC 9438 or aioquic; windows in bytes."""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.quic.bbr import begin_anew, enter_recovery
from tcpdelay.models.quic.implementations import AIOQUIC, BY_BYTES, BY_PACKETS, NEAR_WINDOW, UNLESS_LIMITED
from tcpdelay.models.tcp import SECOND

UNLIMITED = 1e15
"""Slow-start threshold before the first loss [bytes]."""
CUBIC_C = 0.4
"""Constant of the growth [packets / s^3] (RFC 9438, 5)."""
CUBIC_BETA = 0.7
"""Factor of the window at a loss (RFC 9438, 4.6)."""
CUBIC_ALPHA = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
"""Growth per round trip of the window that Reno would have [packets] (RFC 9438, 4.3)."""
LONGEST_IDLE = 2 * SECOND
"""Age of the last acknowledged packet from which CUBIC of aioquic starts anew [us] (K_CUBIC_MAX_IDLE_TIME)."""
BURST_BELOW_WINDOW = 3
"""Packets that may be missing to a full window for quic-go to let it grow (cubic_sender.go, maxBurstPackets)."""


@kernel()
def may_grow(c: Any, in_flight: int) -> bool:
    """Return whether the window may grow at an ACK before which a number of bytes was in flight."""
    if c.grows == UNLESS_LIMITED:
        return bool(not c.application_limited)
    if c.grows != NEAR_WINDOW or in_flight >= c.congestion_window:
        return True
    if c.congestion_window < c.slow_start_threshold and in_flight > c.congestion_window / 2:
        return True
    return bool(c.congestion_window - in_flight <= BURST_BELOW_WINDOW * c.datagram_size)


@kernel()
def grow(c: Any, sent: int, size: int, in_flight: int) -> None:
    """Let the window grow with an acknowledged packet, by its time of sending [us] and its size [bytes]."""
    if c.bbr:
        return
    if c.cubic and c.cubic_form == AIOQUIC:
        c.acknowledged_sent = sent
        _grow_cubic_of_aioquic(c, size)
        return
    if sent <= c.recovery_start:
        return
    if not may_grow(c, in_flight):
        # The time in which the window does not grow is no part of an epoch of CUBIC (RFC 9438, 4.2).
        if c.epoch:
            c.epoch += c.now - max(c.last_acknowledged, c.epoch)
            c.last_acknowledged = c.now
        return
    full = c.datagram_size
    if c.congestion_window < c.slow_start_threshold:
        c.congestion_window += full if c.growth == BY_PACKETS else size
    elif c.cubic:
        _grow_cubic(c, size)
    elif c.growth == BY_BYTES:
        c.congestion_window += full * size / c.congestion_window
    else:
        by_packets = c.growth == BY_PACKETS
        c.counted += 1 if by_packets else size
        needed = c.congestion_window // full if by_packets else c.congestion_window
        if c.counted >= needed:
            c.counted = 0 if by_packets else c.counted - int(needed)
            c.congestion_window += full


@kernel()
def _grow_cubic(c: Any, size: int) -> None:
    """Let the window of CUBIC grow (RFC 9438, 4.2 to 4.5); windows in packets, times in seconds."""
    full = c.datagram_size
    window, largest = c.congestion_window / full, c.window_before_loss / full
    if c.epoch == 0:
        c.epoch, c.estimated_window = c.now, window
        c.cubic_k = ((largest - window) / CUBIC_C) ** (1 / 3) if largest > window else 0.0
        largest = max(largest, window)
    acknowledged = size / full
    alpha = CUBIC_ALPHA if c.estimated_window < c.window_before_loss / full else 1.0
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
def _cubic_of_aioquic(c: Any, age: float) -> int:
    """Return the window of the cubic function at an age of the epoch [s] (cubic.py, W_cubic) [bytes]."""
    later = age - c.cubic_k
    return int((CUBIC_C * later * later * later + c.window_before_loss / c.datagram_size) * c.datagram_size)


@kernel()
def _grow_cubic_of_aioquic(c: Any, size: int) -> None:
    """Let the window of aioquic's CUBIC grow (cubic.py, on_packet_acked).

    In contrast to RFC 9438 it also grows in recovery and while the application limits the sender, by a packet's share
    of the distance to the target whatever the size of the packet. It takes Reno's window where this is larger than the
    cubic function, also if this is smaller than the window. Reno's window grows by a datagram per window from the
    start.
    """
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
    if _cubic_of_aioquic(c, age) < c.estimated_window:
        c.congestion_window = c.estimated_window
        return
    window = c.congestion_window
    target = min(max(_cubic_of_aioquic(c, age + c.latest_rtt / SECOND), window), int(1.5 * window))
    c.congestion_window = int(window + (target - window) * (full / window))


@kernel()
def restart_if_idle(c: Any) -> None:
    """Start with a new window if the last acknowledged packet was sent long ago (cubic.py, on_packet_sent)."""
    if not c.cubic or c.cubic_form != AIOQUIC or c.now - c.acknowledged_sent < LONGEST_IDLE:
        return
    c.congestion_window = c.window_before_loss = c.initial_window * c.datagram_size
    c.slow_start_threshold = UNLIMITED
    c.epoch = 0


@kernel()
def reduce(c: Any, sent: int) -> None:
    """Reduce the window for a lost packet that was sent at a time [us], once for all that were sent before."""
    if sent <= c.recovery_start:
        return
    c.recovery_start = c.now
    c.reductions += 1
    if c.bbr:
        enter_recovery(c)
        return
    window = c.congestion_window
    if c.cubic:
        shrinks = window < c.window_before_loss
        c.window_before_loss = window * (1 + CUBIC_BETA) / 2 if shrinks else window
        c.epoch = 0
    smallest = c.smallest_window * c.datagram_size
    if c.cubic and c.cubic_form == AIOQUIC:
        # The window is a share of the bytes in flight also where the application limits them (on_packets_lost).
        window = float(c.in_flight)
    c.congestion_window = max(window * (CUBIC_BETA if c.cubic else c.loss_factor), smallest)
    c.slow_start_threshold = c.congestion_window
    if c.growth == BY_PACKETS:
        c.counted = 0


@kernel()
def collapse(c: Any, wire: Any) -> None:
    """Take the smallest window after persistent congestion (RFC 9002, 7.6.2)."""
    c.congestion_window = c.smallest_window * c.datagram_size
    c.recovery_start = 0
    c.epoch = 0
    if c.bbr:
        begin_anew(c, wire)
