"""Westwood+: Reno that reduces the window to the measured bandwidth times the smallest RTT (net/ipv4/tcp_westwood.c).

A sample of the bandwidth lasts for a round-trip time, and for 50 ms at least. Two low-pass filters smooth it.

References
----------
Grieco, Mascolo, "Performance Evaluation and Comparison of Westwood+, New Reno, and Vegas TCP Congestion Control", ACM
SIGCOMM Computer Communication Review 34 (2), 2004.
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.records import Connection, WireRecord, ticks_now, to_ticks
from tcpdelay.sim.tcp.constants import SECOND

SHORTEST_SAMPLES = 20
"""Shortest samples of the bandwidth in a second (TCP_WESTWOOD_RTT_MIN, HZ / 20)."""
FIRST_RTT = 20
"""Round-trip time before the first ACK [s] (TCP_WESTWOOD_INIT_RTT)."""
SMALLEST_WINDOW = 2


class State(Connection):
    """A connection with the state of Westwood+: bytes, ticks, and bandwidths in bytes per tick."""

    westwood_bw_ns_est: int  # The bandwidth after the first filter
    westwood_bw_est: int  # And after the second one
    westwood_rtt_win_sx: int  # Start of the sample
    westwood_bk: int  # Bytes acknowledged in the sample
    westwood_snd_una: int  # Position up to which they are counted
    westwood_accounted: int  # Bytes counted for duplicate ACKs
    westwood_rtt: int
    westwood_rtt_min: int
    westwood_first_ack: int
    westwood_reset_rtt_min: int


@kernel()
def start(c: State) -> None:
    """Begin without an estimate (`tcp_westwood_init`)."""
    c.westwood_rtt_win_sx = ticks_now(c)
    c.westwood_snd_una = c.snd_una
    c.westwood_rtt = c.westwood_rtt_min = to_ticks(c, FIRST_RTT * SECOND)
    c.westwood_first_ack = c.westwood_reset_rtt_min = 1


@kernel()
def on_rtt(c: State, rtt: int) -> None:
    """Keep the latest round-trip time (`tcp_westwood_pkts_acked`)."""
    if rtt > 0:
        c.westwood_rtt = to_ticks(c, rtt)


@kernel()
def on_arrival(c: State, predicted: bool) -> None:
    """Count the acknowledged bytes, and update bandwidth and smallest RTT (`tcp_westwood_ack`)."""
    if c.westwood_first_ack:
        c.westwood_snd_una, c.westwood_first_ack = c.snd_una, 0
    duration = ticks_now(c) - c.westwood_rtt_win_sx
    if c.westwood_rtt and duration > max(c.westwood_rtt, SECOND // c.tick // SHORTEST_SAMPLES):
        _filter(c, c.westwood_bk // duration)
        c.westwood_bk = 0
        c.westwood_rtt_win_sx = ticks_now(c)
    c.westwood_bk += c.snd_una - c.westwood_snd_una if predicted else _acknowledged(c)
    c.westwood_snd_una = c.snd_una
    c.westwood_rtt_min = c.westwood_rtt if c.westwood_reset_rtt_min else min(c.westwood_rtt, c.westwood_rtt_min)
    c.westwood_reset_rtt_min = 0


@kernel()
def _filter(c: State, bandwidth: int) -> None:
    """Smooth a sample of the bandwidth twice: the first sample as it is, else by an eighth (`westwood_filter`)."""
    if c.westwood_bw_ns_est == 0 and c.westwood_bw_est == 0:
        c.westwood_bw_ns_est = c.westwood_bw_est = bandwidth
        return
    c.westwood_bw_ns_est = (7 * c.westwood_bw_ns_est + bandwidth) >> 3
    c.westwood_bw_est = (7 * c.westwood_bw_est + c.westwood_bw_ns_est) >> 3


@kernel()
def _acknowledged(c: State) -> int:
    """Return the bytes of an ACK that reports more than the next data (`westwood_acked_count`).

    A duplicate ACK counts as a full segment, which a later ACK of more than a segment does not count again.
    """
    cumulative = c.snd_una - c.westwood_snd_una
    if cumulative == 0:
        c.westwood_accounted += c.mss
        return int(c.mss)
    if cumulative <= c.mss:
        return int(cumulative)
    if c.westwood_accounted >= cumulative:
        c.westwood_accounted -= cumulative
        return int(c.mss)
    cumulative -= c.westwood_accounted
    c.westwood_accounted = 0
    return int(cumulative)


@kernel()
def _bandwidth_delay_product(c: State) -> int:
    """Return the segments that the bandwidth delivers in the smallest RTT (`tcp_westwood_bw_rttmin`)."""
    return int(max(c.westwood_bw_est * c.westwood_rtt_min // c.mss, SMALLEST_WINDOW))


@kernel()
def on_reduction_end(c: State) -> None:
    """Set window and threshold to the bandwidth-delay product (`tcp_westwood_event`, CA_EVENT_COMPLETE_CWR)."""
    c.snd_cwnd = c.snd_ssthresh = _bandwidth_delay_product(c)


@kernel()
def on_timeout(c: State, wire: WireRecord, first: bool) -> None:
    """Set the threshold to the bandwidth-delay product; the next ACK begins a new smallest RTT (CA_EVENT_LOSS)."""
    if first:
        c.snd_ssthresh = _bandwidth_delay_product(c)
        c.westwood_reset_rtt_min = 1
