"""Pacing by the timer of TCP (net/ipv4/tcp_output.c), and samples of the delivery rate (net/ipv4/tcp_rate.c)."""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.records import MASK, NEVER, in_flight
from tcpdelay.sim.tcp import constants as tcp

# Pacing by the timer of TCP itself, as without the queueing discipline fq (net/ipv4/tcp_output.c).
#
# The timer has a high resolution: it does not wait for a tick.

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


# The delivery rate that an ACK shows, and its mark where the application limits the rate (net/ipv4/tcp_rate.c).
#
# A sample spans the time between two deliveries, and the segments delivered meanwhile. BBR estimates the path's
# bandwidth from these samples.
#
# References:
# Cheng, Cardwell, Hassas Yeganeh, Jacobson, "Delivery Rate Estimation", draft-cheng-iccrg-delivery-rate-estimation.

NO_SAMPLE = -1
"""Value in place of a rate sample's count, interval or RTT if the ACK shows none."""


@kernel()
def note_sending(c: Any, wire: Any, number: int) -> None:
    """Store the state of delivery with a segment that is sent now (`tcp_rate_skb_sent`).

    A sample begins with the most recent ACK, or now if nothing is outstanding.
    """
    if c.packets_out == 0:
        c.first_tx_mstamp = c.delivered_mstamp = c.now
    snapshot = wire.snapshots[number & MASK]
    snapshot.first_tx_mstamp = c.first_tx_mstamp
    snapshot.delivered_mstamp = c.delivered_mstamp
    snapshot.delivered = c.delivered
    snapshot.app_limited = c.app_limited > 0


@kernel()
def begin_sample(c: Any) -> None:
    """Begin the sample of an ACK that arrives now."""
    c.rs_prior_delivered = c.rs_last_end_seq = 0
    c.rs_prior_in_flight = in_flight(c)


@kernel()
def take_delivery(c: Any, wire: Any, number: int) -> None:
    """Use the latest sent segment that the ACK reports as the start of the sample (`tcp_rate_skb_delivered`)."""
    segment, snapshot = wire.segments[number & MASK], wire.snapshots[number & MASK]
    later = segment.sent > c.first_tx_mstamp or (segment.sent == c.first_tx_mstamp and segment.end > c.rs_last_end_seq)
    if c.rs_prior_delivered and not later:
        return
    c.rs_prior_delivered = snapshot.delivered
    c.rs_prior_mstamp = snapshot.delivered_mstamp
    c.rs_app_limited = snapshot.app_limited
    c.rs_last_end_seq = segment.end
    c.first_tx_mstamp = segment.sent
    c.rs_interval = segment.sent - snapshot.first_tx_mstamp


@kernel()
def end_sample(c: Any, acked: int, losses: int) -> None:
    """Complete the sample of an ACK (`tcp_rate_gen`).

    The interval is the longer one of the times in which the segments were sent and in which they were acknowledged. An
    interval below the smallest RTT is not possible: the ACK is not for the transmission that it seems to be for.
    """
    if c.delivered > c.app_limited:
        c.app_limited = 0
    if acked:
        c.delivered_mstamp = c.now
    c.rs_acked, c.rs_losses = acked, losses
    if c.rs_prior_delivered == 0:
        c.rs_delivered = c.rs_interval = NO_SAMPLE
        return
    c.rs_delivered = c.delivered - c.rs_prior_delivered
    c.rs_interval = max(c.rs_interval, c.now - c.rs_prior_mstamp)
    if c.rs_interval < c.min_rtt:
        c.rs_interval = NO_SAMPLE


@kernel()
def check_application_limited(c: Any) -> None:
    """Mark the rate as limited by the application if, before a write, it is (`tcp_rate_check_app_limited`)."""
    if c.written - c.snd_nxt < c.mss and in_flight(c) < c.snd_cwnd and c.lost_out <= c.retrans_out:
        c.app_limited = max(c.delivered + in_flight(c), 1)
