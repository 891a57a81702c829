"""The sender and the receiver of a Linux kernel, those of `tcpdelay.models.simulator`, on a shared link."""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.acknowledgement import on_acknowledgement, update_estimate
from tcpdelay.models.simulator.receiver import arrive, on_receiver_timer
from tcpdelay.models.simulator.records import COLLAPSED, CWR, NEVER, RING
from tcpdelay.models.simulator.recovery import begin_reduction
from tcpdelay.models.simulator.sender import on_timer, send_new
from tcpdelay.models.simulator.window import restart_after_idle
from tcpdelay.models.tcp import INITIAL_WINDOW
from tcpdelay.network.bottleneck import DROPPED
from tcpdelay.network.literature.min_buf import linux_admits
from tcpdelay.network.records import (
    BULK,
    TRANSFERS,
    cross,
    finish_transfer,
    is_write_due,
    message_end,
    note_read,
    note_write,
)
from tcpdelay.network.result import spread

LARGEST_SEND_BUFFER = 4 << 20
"""Where the kernel stops enlarging the send buffer [bytes] (sysctl tcp_wmem)."""
ENDLESS = 1 << 60
"""Size of a write that never ends [bytes]."""
_MASK = RING - 1


@kernel()
def next_time(flow: Any, c: Any, wire: Any) -> int:
    """Return when something happens next, in the order of which all flows are advanced."""
    arrival = wire.acknowledgements[c.first_ack & _MASK].arrival if c.first_ack < c.next_ack else NEVER
    return int(min(min(arrival, c.timer_at), min(flow.next_write, c.receiver_timer)))


@kernel()
def step(flow: Any, c: Any, wire: Any, link: Any, samples: Any) -> None:
    """Let the next thing happen: a timer, an acknowledgement or a write.

    The receiver's part of a segment is worked out when the link takes it, as nothing can overtake it. Only the timer of
    a delayed acknowledgement waits for its time, because a segment that is yet to be sent may come before.

    Parameters
    ----------
    flow, c : record
        The flow and its connection.
    wire, link, samples : record
        What is under way, the shared link, and where delays are counted.
    """
    acknowledgement = wire.acknowledgements[c.first_ack & _MASK]
    arrival = acknowledgement.arrival if c.first_ack < c.next_ack else NEVER
    answered = c.next_ack
    if c.receiver_timer <= min(arrival, min(c.timer_at, flow.next_write)):
        on_receiver_timer(c, wire)
    elif c.timer_at <= arrival and c.timer_at <= flow.next_write:
        c.now = c.timer_at
        on_timer(c, wire)
    elif arrival < flow.next_write:
        c.now = arrival
        c.first_ack += 1
        if flow.ecn:
            _heed_marks(flow, c, wire, acknowledgement.acknowledged, acknowledgement.segment)
        on_acknowledgement(c, wire, acknowledgement)
    else:
        c.now = flow.next_write
        if is_write_due(flow, link):
            _write(flow, c)
            send_new(c, wire, False)
    if flow.application == BULK:
        _fill_buffer(flow, c, wire)
    if c.first_transit < c.next_transit:
        _carry(flow, c, wire, link, samples)
    spread(flow, wire, answered, c.next_ack)


@kernel()
def count_up(flow: Any, c: Any) -> None:
    """Add to the flow's counts those of a connection that is given up."""
    flow.retransmissions += c.segments_retransmitted
    flow.timeouts += c.timeouts


@kernel()
def begin(flow: Any, c: Any) -> None:
    """Begin a connection whose handshake has timed the path."""
    c.now = flow.next_write
    flow.first_unsent = flow.connection_read = flow.last_return = 0
    c.min_rtt = flow.round_trip
    update_estimate(c, flow.round_trip)


@kernel()
def write_pieces(flow: Any, c: Any, wire: Any, link: Any, samples: Any, now: int, size: int, pieces: int) -> None:
    """Write so many bytes at a time [us], in pieces as equal as can be, and send what the window allows."""
    answered = c.next_ack
    c.now = now
    restart_after_idle(c)
    for piece in range(pieces):
        c.written += size // pieces + (1 if piece < size % pieces else 0)
        send_new(c, wire, False)
    _carry(flow, c, wire, link, samples)
    spread(flow, wire, answered, c.next_ack)


@kernel()
def _write(flow: Any, c: Any) -> None:
    """Write a message."""
    note_write(flow, c.now)
    # The receiver takes the end of a write for a push. A bulk source's next write is there before.
    c.packet_size = ENDLESS if flow.application == BULK else flow.message
    c.written += flow.message


@kernel()
def _fill_buffer(flow: Any, c: Any, wire: Any) -> None:
    """Write as long as the send buffer takes a whole message.

    Left to itself the kernel makes room for twice the window (`tcp_sndbuf_expand`), and never less than before.
    """
    if c.now >= flow.stop or c.now < flow.first_write:
        return
    room = flow.send_buffer
    if room == 0:
        wanted = 2 * max(c.snd_cwnd, INITIAL_WINDOW) * c.mss
        room = flow.largest_backlog = max(flow.largest_backlog, min(wanted, LARGEST_SEND_BUFFER), flow.message)
    starved = c.snd_nxt == c.written
    while c.written + flow.message - c.snd_una <= room and linux_admits(flow, c, room):
        _write(flow, c)
        if flow.notsent_lowat:
            # What leaves at once does not count as unsent.
            send_new(c, wire, False)
    if starved:
        send_new(c, wire, False)


@kernel()
def _carry(flow: Any, c: Any, wire: Any, link: Any, samples: Any) -> None:
    """Put on the link what the sender has sent in this step, and let the receiver have what gets through."""
    together = 0
    while c.first_transit < c.next_transit:
        sent = wire.transit[c.first_transit & _MASK]
        c.first_transit += 1
        number, following = sent.segment, sent.following
        segment = wire.segments[number & _MASK]
        if number >= flow.first_unsent:
            flow.first_unsent = number + 1
            flow.first_sent[number & _MASK] = c.now
        lost = flow.segments_lost
        arrival = cross(flow, link, c.now, segment.end - segment.start)
        if arrival == DROPPED:
            # Random losses happen as a segment leaves the sender, those of the queue on the way.
            segment.gone = c.now if flow.segments_lost > lost else c.now + flow.access_delay
            continue
        segment.gone = arrival
        flow.marked[number & _MASK] = link.marked
        received = c.rcv_segment
        for other in range(max(number, received), following):
            if not wire.segments[other & _MASK].received:
                flow.arrived[other & _MASK] = arrival
        # A timer comes before what arrives at the same instant, but a read waits for all that was sent together.
        while c.receiver_timer <= arrival - together:
            on_receiver_timer(c, wire)
        together = 1
        arrive(c, wire, number, following, c.now, arrival)
        if c.rcv_segment > received:
            _read(flow, c, wire, samples, received, arrival)


@kernel()
def _read(flow: Any, c: Any, wire: Any, samples: Any, received: int, read: int) -> None:
    """Count the messages that can be read now that segments from number `received` on are in order."""
    while message_end(flow) <= c.rcv_nxt:
        flow.connection_read = message_end(flow)
        while wire.segments[received & _MASK].state & COLLAPSED or (
            wire.segments[received & _MASK].end < flow.connection_read
        ):
            received += 1
        # A segment that has been sent again may have taken in the one with the message's end, which was sent first.
        last = received
        while last + 1 < c.next_segment and _is_taken_in(wire, last + 1, flow.connection_read):
            last += 1
        note_read(flow, samples, flow.first_sent[last & _MASK], flow.arrived[last & _MASK], read)
        if flow.application == TRANSFERS:
            finish_transfer(flow, read)


@kernel()
def _is_taken_in(wire: Any, number: int, before: int) -> bool:
    """Whether a segment that began before a position of the stream has become part of the one ahead of it."""
    segment = wire.segments[number & _MASK]
    return bool(segment.state & COLLAPSED and segment.start < before)


@kernel()
def _heed_marks(flow: Any, c: Any, wire: Any, acknowledged: int, reported: int) -> None:
    """Reduce the window, once per round trip, if a segment was marked that is acknowledged now (`tcp_enter_cwr`)."""
    marked = reported >= 0 and flow.marked[reported & _MASK] == 1
    number = c.first_segment
    while number < c.next_segment and wire.segments[number & _MASK].end <= acknowledged:
        marked = marked or flow.marked[number & _MASK] == 1
        number += 1
    if not marked or c.ca_state >= CWR:
        return
    begin_reduction(c)
    c.undo_marker = 0
    c.ca_state = CWR
