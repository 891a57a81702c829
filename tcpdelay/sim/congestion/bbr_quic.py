"""BBR over QUIC: the BBR of TCP, version 1, with the packets and the rate samples of QUIC.

QUIC numbers each transmission anew: no packet counts as SACKed or retransmitted, and a lost one leaves the flight.
Windows are counted in packets, as in the kernel.

References
----------
Cheng, Cardwell, Hassas Yeganeh, Jacobson, "Delivery Rate Estimation", draft-cheng-iccrg-delivery-rate-estimation.
RFC 9002, "QUIC Loss Detection and Congestion Control", 2021, section 7: other controllers than NewReno.
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion import bbr
from tcpdelay.sim.congestion.newreno import collapse
from tcpdelay.sim.quic.connection import Connection, Packet, WireRecord
from tcpdelay.sim.records import LOSS, OPEN, RECOVERY
from tcpdelay.sim.tcp.constants import NEVER

start = bbr.start


@kernel()
def on_write(c: Connection) -> None:
    """Mark the rate as limited by the application if, before a write, nothing waits (`tcp_rate_check_app_limited`)."""
    if c.waiting == 0 and c.eliciting < c.snd_cwnd:
        c.app_limited = max(c.delivered + c.eliciting, 1)


@kernel()
def allowed_size(c: Connection) -> int:
    """Return the size of a full packet if the window, in packets, allows one more [bytes]; otherwise 0."""
    return int(c.datagram_size if c.eliciting < c.snd_cwnd else 0)


@kernel()
def must_wait(c: Connection) -> bool:
    """Return whether the next packet must wait; if so, its timer is set."""
    c.pacing_at = NEVER
    return bbr.is_paced(c)


@kernel()
def on_send(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Pace the next packet, and store the state of delivery with this one."""
    if c.eliciting == 0:
        bbr.on_idle(c, wire)
        c.first_tx_mstamp = c.delivered_mstamp = c.now
    bbr.schedule_next(c, packet.length)
    c.segments_sent += 1
    packet.first_tx_mstamp, packet.delivered_mstamp = c.first_tx_mstamp, c.delivered_mstamp
    packet.delivered, packet.app_limited = c.delivered, c.app_limited > 0


@kernel()
def before_ack(c: Connection) -> None:
    """Begin the rate sample of an ACK that arrives now."""
    c.rs_prior_delivered, c.rs_prior_in_flight = 0, c.eliciting
    c.rs_acked, c.rs_rtt = 0, -1


@kernel()
def on_delivery(c: Connection, packet: Packet) -> None:
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
def on_ack(c: Connection, sent: int, size: int, in_flight: int) -> None:
    """Leave the window to the rate sample of the whole ACK."""


@kernel()
def after_ack(c: Connection, wire: WireRecord, losses: int) -> None:
    """Update BBR and the window at the end of an ACK that shows a number of lost packets."""
    c.min_rtt, c.srtt, c.packets_out = c.smallest_rtt, int(8 * c.smoothed_rtt), c.eliciting
    bbr.end_sample(c, c.rs_acked, losses)
    bbr.control(c, wire)
    c.congestion_window = float(c.snd_cwnd * c.datagram_size)


@kernel()
def on_loss(c: Connection) -> None:
    """Save the window at the first loss of a flight; BBR conserves packets for a round (`bbr_ssthresh`)."""
    bbr.save_window(c)
    c.ca_state = RECOVERY


@kernel()
def on_persistent_congestion(c: Connection, wire: WireRecord) -> None:
    """Take the smallest window, as after a timeout of TCP."""
    collapse(c)
    bbr.save_window(c)
    bbr.on_timeout(c, wire, True)
    c.ca_state, c.snd_cwnd, c.recovery_start = LOSS, c.smallest_window, c.now
