"""Congestion control and pacing of QUIC: NewReno (RFC 9002, 7.3), CUBIC and BBR; windows in bytes."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.quic.connection import (
    AIOQUIC,
    BY_BYTES,
    BY_PACKETS,
    NEAR_WINDOW,
    PACKET_TOKENS,
    QUINN,
    UNLESS_LIMITED,
    Connection,
    Packet,
    WireRecord,
)
from tcpdelay.sim.records import LOSS, OPEN, RECOVERY
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.bbr import control, end_sample, is_paced, restart_after_idle, save_window, schedule_next, time_out
from tcpdelay.sim.tcp.constants import NEVER, SECOND

# BBR over QUIC: the BBR of the simulator of TCP, version 1, with the packets and the rate samples of QUIC.
#
# QUIC numbers each transmission anew: no packet counts as SACKed or retransmitted, and a lost one leaves the flight.
# Windows are counted in packets, as in the kernel.
#
# References:
# Cheng, Cardwell, Hassas Yeganeh, Jacobson, "Delivery Rate Estimation", draft-cheng-iccrg-delivery-rate-estimation.
# RFC 9002, "QUIC Loss Detection and Congestion Control", 2021, section 7: other controllers than NewReno.

TICK = tcp.MILLISECOND
"""Granularity of BBR's clock of seconds [us]."""


@kernel()
def limited_by_application(c: Connection) -> None:
    """Mark the rate as limited by the application if, before a write, nothing waits (`tcp_rate_check_app_limited`)."""
    if c.waiting == 0 and c.eliciting < c.snd_cwnd:
        c.app_limited = max(c.delivered + c.eliciting, 1)


@kernel()
def note_sending(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Let BBR know of a packet that is sent now, and store the state of delivery with it."""
    if c.eliciting == 0:
        restart_after_idle(c, wire)
        c.first_tx_mstamp = c.delivered_mstamp = c.now
    schedule_next(c, packet.length)
    c.segments_sent += 1
    packet.first_tx_mstamp, packet.delivered_mstamp = c.first_tx_mstamp, c.delivered_mstamp
    packet.delivered, packet.app_limited = c.delivered, c.app_limited > 0


@kernel()
def begin_sample(c: Connection) -> None:
    """Begin the rate sample of an ACK that arrives now."""
    c.rs_prior_delivered, c.rs_prior_in_flight = 0, c.eliciting
    c.rs_acked, c.rs_rtt = 0, -1


@kernel()
def take_delivery(c: Connection, packet: Packet) -> None:
    """Count an acknowledged packet; the latest sent one of an ACK is the start of the sample."""
    c.delivered += 1
    c.rs_acked += 1
    if c.rs_prior_delivered and packet.sent < c.first_tx_mstamp:
        return
    c.rs_prior_delivered, c.rs_prior_mstamp = packet.delivered, packet.delivered_mstamp
    c.rs_app_limited = packet.app_limited
    c.first_tx_mstamp, c.rs_interval = packet.sent, packet.sent - packet.first_tx_mstamp
    if c.ca_state != OPEN and packet.sent > c.recovery_start:
        c.ca_state = OPEN


@kernel()
def on_rate_sample(c: Connection, wire: WireRecord, losses: int) -> None:
    """Update BBR and the window at the end of an ACK that shows a number of lost packets."""
    c.min_rtt, c.srtt, c.packets_out = c.smallest_rtt, int(8 * c.smoothed_rtt), c.eliciting
    end_sample(c, c.rs_acked, losses)
    control(c, wire)
    c.congestion_window = float(c.snd_cwnd * c.datagram_size)


@kernel()
def enter_recovery(c: Connection) -> None:
    """Save the window at the first loss of a flight; BBR conserves packets for a round (`bbr_ssthresh`)."""
    save_window(c)
    c.ca_state = RECOVERY


@kernel()
def begin_anew(c: Connection, wire: WireRecord) -> None:
    """Take the smallest window after persistent congestion (RFC 9002, 7.6.2), as after a timeout of TCP."""
    save_window(c)
    time_out(c, wire)
    c.ca_state, c.snd_cwnd, c.recovery_start = LOSS, c.smallest_window, c.now


# Congestion control: NewReno (RFC 9002, 7.3), and CUBIC of RFC 9438, aioquic or quinn; windows in bytes.

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
def grow(c: Connection, sent: int, size: int, in_flight: int) -> None:
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
        if c.epoch and c.cubic_form != QUINN:
            c.epoch += c.now - max(c.last_acknowledged, c.epoch)
            c.last_acknowledged = c.now
        return
    full = c.datagram_size
    if c.congestion_window < c.slow_start_threshold:
        c.congestion_window += full if c.growth == BY_PACKETS else size
    elif c.cubic and c.cubic_form == QUINN:
        _grow_cubic_of_quinn(c)
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
def _grow_cubic(c: Connection, size: int) -> None:
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
def _cubic_of_aioquic(c: Connection, age: float) -> int:
    """Return the window of the cubic function at an age of the epoch [s] (cubic.py, W_cubic) [bytes]."""
    later = age - c.cubic_k
    return int((CUBIC_C * later * later * later + c.window_before_loss / c.datagram_size) * c.datagram_size)


@kernel()
def _grow_cubic_of_aioquic(c: Connection, size: int) -> None:
    """Let the window of aioquic's CUBIC grow (cubic.py, on_packet_acked).

    In contrast to RFC 9438 it also grows in recovery and while the application limits the sender, by a packet's share
    of the distance to the target whatever the size of the packet. It takes Reno's window, which grows by a datagram per
    window from the start, where this is larger than the cubic function, also if this is smaller than the window.
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
def _grow_cubic_of_quinn(c: Connection) -> None:
    """Let the window of quinn's CUBIC grow (cubic.rs, on_ack; RFC 8312); windows in packets, times in seconds.

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
def restart_if_idle(c: Connection) -> None:
    """Start with a new window if the last acknowledged packet was sent long ago (cubic.py, on_packet_sent)."""
    if not c.cubic or c.cubic_form != AIOQUIC or c.now - c.acknowledged_sent < LONGEST_IDLE:
        return
    c.congestion_window = c.window_before_loss = c.initial_window * c.datagram_size
    c.slow_start_threshold = UNLIMITED
    c.epoch = 0


@kernel()
def reduce(c: Connection, sent: int) -> None:
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
    elif c.cubic and c.cubic_form == QUINN:
        # The reduced W_max is reduced once more (cubic.rs of quinn-proto 0.11.14, on_congestion_event).
        window = c.window_before_loss
        c.epoch, c.cubic_k = c.now, (window / c.datagram_size * (1 - CUBIC_BETA) / CUBIC_C) ** (1 / 3)
        c.counted = int(CUBIC_BETA * c.counted)
    c.congestion_window = max(window * (CUBIC_BETA if c.cubic else c.loss_factor), smallest)
    c.slow_start_threshold = c.congestion_window
    if c.growth == BY_PACKETS:
        c.counted = 0


@kernel()
def collapse(c: Connection, wire: WireRecord) -> None:
    """Take the smallest window after persistent congestion (RFC 9002, 7.6.2)."""
    c.congestion_window = c.smallest_window * c.datagram_size
    c.recovery_start = 0
    c.epoch = 0
    if c.bbr:
        begin_anew(c, wire)


# The pacer: it spreads the packets of a window over the round-trip time (RFC 9002, 7.7).

SHORTEST_RTT = 1000.0
"""Round-trip time from which on the rate no longer grows as it gets shorter [us]."""


@kernel()
def set_rate(c: Connection) -> None:
    """Let a pacer that counts packets take over window and smoothed RTT (aioquic, `QuicPacketPacer.update_rate`)."""
    if c.pacer != PACKET_TOKENS:
        return
    full = c.datagram_size
    rate = c.pacing_gain * c.congestion_window / max(c.smoothed_rtt, 1.0)
    c.packet_time = min(max(full / rate, 1.0), 1e6)
    c.token_limit = max(2 * full, min(c.congestion_window // 4, c.pacing_burst * full)) / rate
    c.tokens = min(c.tokens, c.token_limit)


@kernel()
def _rate(c: Connection) -> float:
    """Return the rate of a pacer that counts bytes [bytes per us]."""
    return float(c.pacing_gain * c.congestion_window / max(c.smoothed_rtt, SHORTEST_RTT))


@kernel()
def _refill(c: Connection) -> None:
    """Add the tokens of the time since the last refill."""
    if c.pacer == PACKET_TOKENS:
        if c.now > c.tokens_at:
            c.tokens = min(c.tokens + (c.now - c.tokens_at), c.token_limit)
            c.tokens_at = c.now
        return
    rate = _rate(c)
    # quic-go's burst lasts for its shortest pause and the granularity of its timers, which are equal.
    most = max(2 * c.pacing_pause * rate, c.pacing_burst * c.datagram_size)
    c.tokens = min(c.tokens + rate * (c.now - c.tokens_at), most)
    c.tokens_at = c.now


@kernel()
def must_wait(c: Connection) -> bool:
    """Return whether the next packet must wait; if so, its timer is set. BBR has a pacer of its own."""
    c.pacing_at = NEVER
    if c.bbr:
        return is_paced(c)
    if c.pacer == PACKET_TOKENS:
        if c.packet_time == 0.0:
            return False
        _refill(c)
        if c.tokens <= 0.0:
            c.pacing_at = c.now + int(c.packet_time) + 1
        return bool(c.pacing_at != NEVER)
    _refill(c)
    if c.tokens >= c.datagram_size:
        return False
    pause = int((c.datagram_size - c.tokens) / _rate(c)) + 1
    c.pacing_at = c.now + max(pause, c.pacing_pause)
    return True


@kernel()
def spend(c: Connection, size: int) -> None:
    """Take the tokens of a packet that is sent now, by its size [bytes]."""
    if c.bbr:
        return
    _refill(c)
    if c.pacer == PACKET_TOKENS:
        c.tokens = 0.0 if c.tokens < c.packet_time else c.tokens - c.packet_time
    else:
        c.tokens = max(c.tokens - size, 0.0)
