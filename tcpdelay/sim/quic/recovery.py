"""Loss detection: the RTT, the thresholds of packets and time, and the probe timeout (RFC 9002, 5 and 6)."""

from __future__ import annotations

from typing import Any

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.quic.congestion import (
    begin_sample,
    collapse,
    grow,
    on_rate_sample,
    reduce,
    set_rate,
    take_delivery,
)
from tcpdelay.sim.quic.records import (
    ACKNOWLEDGED,
    DATAGRAMS,
    IN_FLIGHT,
    LOST,
    NEVER_ARRIVES,
    NEVER_READ,
    packet_record,
)
from tcpdelay.sim.quic.sender import finish, put_lost, send_packet
from tcpdelay.sim.records import NEVER
from tcpdelay.sim.writes import message_record

PACKET_THRESHOLD = 3
"""Packets beyond a lost one that are acknowledged first (RFC 9002, 6.1.1, kPacketThreshold)."""
TIME_THRESHOLD = 9 / 8
"""Time after which a packet is lost, in round-trip times (RFC 9002, 6.1.2, kTimeThreshold)."""
GRANULARITY = 1000
"""Granularity of timers [us] (RFC 9002, 6.1.2, kGranularity)."""
PERSISTENT = 3
"""Duration of persistent congestion, in probe timeouts (RFC 9002, 7.6.1)."""
SKIPPED, COUNTED = -1, -2
"""In place of the number of frames of a packet that is skipped, and of one that the window has grown with."""
MOST_DOUBLINGS = 20
"""Most doublings of the probe timeout: the timer must fit into a whole number."""
LONGEST_TIMEOUT = 60_000_000
"""Longest probe timeout [us]; quic-go has this bound (sent_packet_handler.go, maxPTODuration)."""


@kernel()
def timer_at(c: Any) -> int:
    """Return when the timer of loss detection fires [us] (RFC 9002, A.8)."""
    if c.loss_time != NEVER:
        return int(c.loss_time)
    if c.eliciting == 0:
        return NEVER
    period = probe_timeout(c) * (1 << min(c.probe_count, MOST_DOUBLINGS))
    return int(c.last_sent + min(period, LONGEST_TIMEOUT))


@kernel()
def probe_timeout(c: Any) -> int:
    """Return the probe timeout without back-off [us] (RFC 9002, 6.2.1)."""
    return int(c.smoothed_rtt + max(4 * c.rtt_variation, GRANULARITY) + c.max_ack_delay)


@kernel()
def update_rtt(c: Any, sample: int, ack_delay: int) -> None:
    """Take a sample of the RTT into the estimate [us] (RFC 9002, 5.3)."""
    c.smallest_rtt = min(c.smallest_rtt, sample)
    delay = min(ack_delay, c.max_ack_delay)
    # aioquic asks for a longer sample than this. A measured one is longer than the smallest by some microseconds.
    adjusted = float(sample - delay if sample >= c.smallest_rtt + delay else sample)
    c.latest_rtt = adjusted if c.adjusts_latest else float(sample)
    centre = float(c.smallest_rtt) if c.variation_from_smallest else c.smoothed_rtt
    c.rtt_variation = 0.75 * c.rtt_variation + 0.25 * abs(centre - adjusted)
    c.smoothed_rtt = 0.875 * c.smoothed_rtt + 0.125 * adjusted


@kernel()
def on_acknowledgement(c: Any, wire: Any, ack: Any) -> None:
    """Process an ACK (RFC 9002, A.7)."""
    newest, in_flight = -1, c.in_flight
    for number in range(c.first_packet, ack.largest + 1):
        packet = packet_record(wire, number)
        if packet.state == IN_FLIGHT and 0 < packet.rank <= ack.rank:
            newest = number
    if newest < 0:
        return
    c.largest_acknowledged = max(c.largest_acknowledged, ack.largest)
    first, lost_before = c.first_packet, c.declared_lost
    if c.bbr:
        begin_sample(c)
    for number in range(first, newest + 1):
        packet = packet_record(wire, number)
        if packet.state == IN_FLIGHT and 0 < packet.rank <= ack.rank:
            _leave_flight(c, packet, ACKNOWLEDGED)
            if c.bbr:
                take_delivery(c, packet)
    if c.grows_first:
        _grow_with(c, wire, first, newest, in_flight)
    if newest == ack.largest:
        sample = c.now - packet_record(wire, newest).sent
        update_rtt(c, sample, ack.delay)
        c.rs_rtt = max(sample - ack.delay, 1)
        set_rate(c)
    # By RFC 9002 the window is reduced before it grows, so that packets of the lost flight do not enlarge it.
    detect_lost(c, wire)
    _grow_with(c, wire, first, newest, in_flight)
    if c.bbr:
        on_rate_sample(c, wire, c.declared_lost - lost_before)
    c.last_acknowledged = c.now
    c.probe_count = 0
    _forget(c, wire)


@kernel()
def _grow_with(c: Any, wire: Any, first: int, newest: int, in_flight: int) -> None:
    """Let the window grow with the packets in a range that have been acknowledged, once with each."""
    for number in range(first, newest + 1):
        packet = packet_record(wire, number)
        if packet.state == ACKNOWLEDGED and packet.frames >= 0:
            grow(c, packet.sent, packet.length, in_flight)
            packet.frames = COUNTED


@kernel()
def _leave_flight(c: Any, packet: Any, state: int) -> None:
    """Take a packet out of the flight."""
    packet.state = state
    c.in_flight -= packet.length
    c.eliciting -= 1


@kernel()
def _forget(c: Any, wire: Any) -> None:
    """Move on to the first packet that is neither acknowledged nor lost."""
    while c.first_packet < c.next_packet and packet_record(wire, c.first_packet).state != IN_FLIGHT:
        c.first_packet += 1


@kernel()
def detect_lost(c: Any, wire: Any) -> None:
    """Find the packets that are lost by now, and set the timer for the next (RFC 9002, A.10)."""
    delay = max(int(TIME_THRESHOLD * max(c.latest_rtt, c.smoothed_rtt)), GRANULARITY)
    c.loss_time = NEVER
    latest_lost, run_start, previous, persistent = -1, NEVER, -1, False
    longest = PERSISTENT * probe_timeout(c)
    for number in range(c.first_packet, c.largest_acknowledged + 1):
        packet = packet_record(wire, number)
        if packet.state != IN_FLIGHT:
            continue
        if packet.sent > c.now - delay and c.largest_acknowledged - number < PACKET_THRESHOLD:
            c.loss_time = min(c.loss_time, packet.sent + delay)
            continue
        if number != previous + 1:
            run_start = NEVER
        previous = number
        run_start = min(run_start, packet.sent)
        persistent |= packet.sent - run_start > longest
        declare_lost(c, wire, packet)
        latest_lost = packet.sent
    if latest_lost >= 0:
        reduce(c, latest_lost)
        if persistent and c.persistent_congestion:
            collapse(c, wire)
        set_rate(c)


@kernel()
def declare_lost(c: Any, wire: Any, packet: Any) -> None:
    """Take a packet for lost: its streams send its data again, its datagrams are given up.

    A later ACK of it changes nothing: the window stays reduced (RFC 9002, 7.3.2, allows to undo this), as in aioquic
    and in quic-go, which only logs such a loss.
    """
    _leave_flight(c, packet, LOST)
    c.declared_lost += 1
    c.lost += 1
    if packet.rank > 0:
        c.spurious_losses += 1
    if c.delivery == DATAGRAMS:
        _give_up(c, wire, packet)
        return
    for frame in range(packet.frames):
        put_lost(c, wire, packet.stream[frame], packet.start[frame], packet.end[frame])


@kernel()
def drop(c: Any, wire: Any, packet: Any) -> None:
    """Note that the path drops a packet, before the sender knows, or after it has taken the packet for lost."""
    c.packets_lost += 1
    packet.rank = NEVER_ARRIVES
    if c.delivery == DATAGRAMS and packet.state == LOST:
        _give_up(c, wire, packet)


@kernel()
def _give_up(c: Any, wire: Any, packet: Any) -> None:
    """Give up the messages of a packet whose datagrams never arrive."""
    if packet.rank != NEVER_ARRIVES:
        return
    for frame in range(packet.frames):
        number = packet.stream[frame]
        if not message_record(wire, number).done:
            finish(c, wire, number, NEVER_READ)


@kernel()
def on_timer(c: Any, wire: Any) -> None:
    """Process the timer of loss detection (RFC 9002, A.9).

    A probe carries the oldest data in flight, whose packet then counts as lost, but not as a sign of congestion, as
    aioquic and quic-go have it.
    """
    if c.loss_time != NEVER:
        detect_lost(c, wire)
        _forget(c, wire)
        return
    c.probe_count += 1
    c.probe_timeouts += 1
    if c.skips_at_probe:
        packet = packet_record(wire, c.next_packet)
        packet.state, packet.rank, packet.frames = LOST, 0, SKIPPED
        c.next_packet += 1
    for _ in range(c.probes):
        _forget(c, wire)
        if c.probes_with_data and c.first_packet < c.next_packet:
            declare_lost(c, wire, packet_record(wire, c.first_packet))
        send_packet(c, wire, c.datagram_size, True)
    _forget(c, wire)
