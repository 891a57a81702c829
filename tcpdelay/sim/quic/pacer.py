"""The pacer of QUIC: it spreads the packets of a window over the round-trip time (RFC 9002, 7.7)."""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.quic.connection import PACKET_TOKENS, Connection
from tcpdelay.sim.tcp.constants import NEVER

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
    """Return whether the next packet must wait; if so, its timer is set."""
    c.pacing_at = NEVER
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
    _refill(c)
    if c.pacer == PACKET_TOKENS:
        c.tokens = 0.0 if c.tokens < c.packet_time else c.tokens - c.packet_time
    else:
        c.tokens = max(c.tokens - size, 0.0)
