"""BBR over QUIC: the BBR of the simulator of TCP, version 1, with the packets and the rate samples of QUIC.

QUIC numbers each transmission anew: no packet counts as SACKed or retransmitted, and a lost one leaves the flight.
Windows are counted in packets, as in the kernel.

References
----------
Cheng, Cardwell, Hassas Yeganeh, Jacobson, "Delivery Rate Estimation", draft-cheng-iccrg-delivery-rate-estimation.
RFC 9002, "QUIC Loss Detection and Congestion Control", 2021, section 7: other controllers than NewReno.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models import tcp
from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.bbr import control, restart_after_idle, save_window, time_out
from tcpdelay.models.simulator.delivery_rate import end_sample
from tcpdelay.models.simulator.pacing import schedule_next
from tcpdelay.models.simulator.records import LOSS, OPEN, RECOVERY

TICK = tcp.MILLISECOND
"""Granularity of BBR's clock of seconds [us]."""


@kernel()
def limited_by_application(c: Any) -> None:
    """Mark the rate as limited by the application if, before a write, nothing waits (`tcp_rate_check_app_limited`)."""
    if c.waiting == 0 and c.eliciting < c.snd_cwnd:
        c.app_limited = max(c.delivered + c.eliciting, 1)


@kernel()
def note_sending(c: Any, wire: Any, packet: Any) -> None:
    """Let BBR know of a packet that is sent now, and store the state of delivery with it."""
    if c.eliciting == 0:
        restart_after_idle(c, wire)
        c.first_tx_mstamp = c.delivered_mstamp = c.now
    schedule_next(c, packet.length)
    c.segments_sent += 1
    packet.first_tx_mstamp, packet.delivered_mstamp = c.first_tx_mstamp, c.delivered_mstamp
    packet.delivered, packet.app_limited = c.delivered, c.app_limited > 0


@kernel()
def begin_sample(c: Any) -> None:
    """Begin the rate sample of an ACK that arrives now."""
    c.rs_prior_delivered, c.rs_prior_in_flight = 0, c.eliciting
    c.rs_acked, c.rs_rtt = 0, -1


@kernel()
def take_delivery(c: Any, packet: Any) -> None:
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
def on_rate_sample(c: Any, wire: Any, losses: int) -> None:
    """Update BBR and the window at the end of an ACK that shows a number of lost packets."""
    c.min_rtt, c.srtt, c.packets_out = c.smallest_rtt, int(8 * c.smoothed_rtt), c.eliciting
    end_sample(c, c.rs_acked, losses)
    control(c, wire)
    c.congestion_window = float(c.snd_cwnd * c.datagram_size)


@kernel()
def enter_recovery(c: Any) -> None:
    """Save the window at the first loss of a flight; BBR conserves packets for a round (`bbr_ssthresh`)."""
    save_window(c)
    c.ca_state = RECOVERY


@kernel()
def begin_anew(c: Any, wire: Any) -> None:
    """Take the smallest window after persistent congestion (RFC 9002, 7.6.2), as after a timeout of TCP."""
    save_window(c)
    time_out(c, wire)
    c.ca_state, c.snd_cwnd, c.recovery_start = LOSS, c.smallest_window, c.now
