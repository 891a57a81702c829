"""The sender: packets, as far as the congestion window and the pacer allow, and the probes of a timeout."""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.quic.bbr import limited_by_application, note_sending
from tcpdelay.models.quic.congestion import restart_if_idle
from tcpdelay.models.quic.implementations import OVERSHOOT, WHOLE
from tcpdelay.models.quic.pacer import must_wait, spend
from tcpdelay.models.quic.records import GROUPS, IN_FLIGHT, packet_record
from tcpdelay.models.quic.streams import fill_packet, put_message
from tcpdelay.models.simulator.writes import message_end


@kernel()
def send(c: Any, wire: Any) -> None:
    """Send what waits, as far as the window and the pacer allow."""
    c.application_limited = 0
    while c.waiting > 0:
        room = _room(c)
        if room <= 0 or must_wait(c):
            return
        if not send_packet(c, wire, room, False):
            return
    c.application_limited = 1


@kernel()
def write(c: Any, wire: Any) -> None:
    """Put the message that is due on its stream, and send what may leave.

    The end of its own stream is a packet without data if the library has taken the close after all data have left.
    """
    if c.bbr:
        limited_by_application(c)
    put_message(c, wire)
    send(c, wire)
    number = c.packets_written - 1
    if c.delivery != GROUPS or c.group != 1 or c.waiting > 0:
        return
    size = message_end(c, wire, number) - (message_end(c, wire, number - 1) if number else 0)
    if size > c.buffered_write and _room(c) > 0 and not must_wait(c):
        send_packet(c, wire, c.datagram_size, True)


@kernel()
def _room(c: Any) -> int:
    """Return the size up to which the congestion window allows a packet [bytes], 0 if it allows none."""
    if c.bbr:
        return int(c.datagram_size if c.eliciting < c.snd_cwnd else 0)
    left = c.congestion_window - c.in_flight
    if c.window_rule == OVERSHOOT:
        return int(c.datagram_size if left > 0 else 0)
    if c.window_rule == WHOLE:
        needed = min(c.packet_overhead + c.frame_overhead + c.waiting, c.datagram_size)
        return int(c.datagram_size if left >= needed else 0)
    return int(min(left, c.datagram_size))


@kernel()
def send_packet(c: Any, wire: Any, largest: int, probe: bool) -> bool:
    """Send a packet of at most a size [bytes]; return whether there was anything to send. A probe may be empty."""
    packet = packet_record(wire, c.next_packet)
    packet.frames = 0
    used = fill_packet(c, wire, packet, largest - c.packet_overhead)
    if packet.frames == 0 and not probe:
        return False
    c.next_packet += 1
    packet.length = c.packet_overhead + used + (1 if probe else 0)
    packet.sent, packet.state, packet.rank = c.now, IN_FLIGHT, 0
    if c.bbr:
        note_sending(c, wire, packet)
    c.in_flight += packet.length
    c.eliciting += 1
    c.last_sent = c.now
    c.packets_sent += 1
    restart_if_idle(c)
    spend(c, packet.length)
    if c.next_packet - c.first_packet >= wire.packets.shape[0]:
        c.failed = 1
    return True
