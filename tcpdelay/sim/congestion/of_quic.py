"""The interface of the congestion controls of QUIC, like a controller of quinn (quinn-proto, src/congestion.rs).

A control is a module with those functions of this interface in which it differs from NewReno (RFC 9002, 7.3).
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.scenario.stack import Quic
from tcpdelay.sim.congestion import bbr_quic, cubic_aioquic, cubic_quinn, cubic_rfc9438, newreno
from tcpdelay.sim.congestion.interface import by_control
from tcpdelay.sim.quic import pacer
from tcpdelay.sim.quic.connection import FULL, OVERSHOOT, WHOLE, Connection, Packet, WireRecord

CONTROLS = {
    "newreno": newreno,
    "cubic": cubic_rfc9438,
    "cubic of aioquic": cubic_aioquic,
    "cubic of quinn": cubic_quinn,
    "bbr": bbr_quic,
}
"""The controls by name; the place of a control is its number, the field `control` of a connection."""


def number_of(stack: Quic) -> int:
    """Return the number of a stack's control, in the form of its implementation if this has an own one."""
    own = f"{stack.congestion_control} of {stack.implementation}"
    return list(CONTROLS).index(own if own in CONTROLS else stack.congestion_control)


@by_control(CONTROLS)
def allowed_size(c: Connection) -> int:
    """Return the size up to which the congestion window allows a packet [bytes], 0 if it allows none."""
    left = c.congestion_window - c.in_flight
    if c.window_rule == OVERSHOOT:
        return int(c.datagram_size if left > 0 else 0)
    if c.window_rule == WHOLE:
        needed = min(c.packet_overhead + c.frame_overhead + c.waiting, c.datagram_size)
        return int(c.datagram_size if left >= needed else 0)
    if c.window_rule == FULL:
        return int(c.datagram_size if left > c.datagram_size else 0)
    return int(min(left, c.datagram_size))


@by_control(CONTROLS)
def must_wait(c: Connection) -> bool:
    """Return whether the next packet must wait; if so, its timer is set."""
    return bool(pacer.must_wait(c))


# Events, from the start of a connection on.


@by_control(CONTROLS)
def start(c: Connection) -> None:
    """Begin with the state after the handshake."""


@by_control(CONTROLS)
def on_write(c: Connection) -> None:
    """Learn that the application is about to write."""


@by_control(CONTROLS)
def on_send(c: Connection, wire: WireRecord, packet: Packet) -> None:
    """Learn that a packet leaves, before it counts as in flight."""
    pacer.spend(c, packet.length)


@by_control(CONTROLS)
def before_ack(c: Connection) -> None:
    """Learn that an ACK has arrived, before the packets that it reports are processed."""


@by_control(CONTROLS)
def on_delivery(c: Connection, packet: Packet) -> None:
    """Learn that the ACK reports a packet for the first time."""


@by_control(CONTROLS)
def on_ack(c: Connection, sent: int, size: int, in_flight: int) -> None:
    """Let the window grow with an acknowledged packet, by its time of sending [us] and its size [bytes].

    `in_flight` is the number of bytes in flight before the ACK.
    """
    newreno.on_ack(c, sent, size, in_flight)


@by_control(CONTROLS)
def after_ack(c: Connection, wire: WireRecord, losses: int) -> None:
    """Learn that an ACK, which shows a number of lost packets, has been processed."""


@by_control(CONTROLS)
def on_loss(c: Connection) -> None:
    """Reduce the window, once for all packets that were sent before."""
    newreno.on_loss(c)


@by_control(CONTROLS)
def on_persistent_congestion(c: Connection, wire: WireRecord) -> None:
    """Take the smallest window (RFC 9002, 7.6.2)."""
    newreno.collapse(c)


@kernel()
def reduce(c: Connection, sent: int) -> None:
    """Reduce the window for a lost packet that was sent at a time [us], unless it has been reduced since then."""
    if sent <= c.recovery_start:
        return
    c.recovery_start = c.now
    c.reductions += 1
    on_loss(c)
