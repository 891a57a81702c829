"""The TCP of a Linux kernel on a shared link: sender, receiver, response to marks, and send buffer."""

from __future__ import annotations

import dataclasses

from tcpdelay.compiling.compilation import kernel
from tcpdelay.declare import InvalidValueError, described, quantity
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.network.bottleneck import DROPPED, WAITING, SharedPath
from tcpdelay.sim.network.dispatching import expected_delay
from tcpdelay.sim.network.stacks import Dctcp
from tcpdelay.sim.network.transport import (
    BULK,
    CONSTANT_RATE,
    DISPATCHED,
    HANDSHAKE,
    IN_TIMEOUT,
    IP_HEADER,
    SCHEDULED,
    TCP_HEADER,
    TIMESTAMPS,
    TRANSFERS,
    FlowRecord,
    Samples,
    Transport,
    add_return_jitter,
    cross_or_wait,
    end_handshake_step,
    finish_transfer,
    is_write_due,
    leave,
    message_end,
    note_read,
    note_write,
    wake,
)
from tcpdelay.sim.network.waiting import Link, Packet
from tcpdelay.sim.path import ALWAYS
from tcpdelay.sim.records import (
    COLLAPSED,
    CWR,
    KEPT,
    LOSS,
    MASK,
    OPEN,
    SACKED,
    Acknowledgement,
    Connection,
    WireRecord,
    in_flight,
)
from tcpdelay.sim.tcp.acknowledgement import on_acknowledgement, update_estimate
from tcpdelay.sim.tcp.constants import INITIAL_WINDOW, NEVER, SECOND
from tcpdelay.sim.tcp.receiver import (
    EVERYTHING,
    NO_SEGMENT,
    acknowledge,
    arrive,
    begin_quick_acks,
    expect_after_idle,
    on_receiver_timer,
)
from tcpdelay.sim.tcp.recovery import begin_reduction, end_reduction
from tcpdelay.sim.tcp.sender import LARGEST_FLIGHT, on_pacing_timer, on_timer, send_new
from tcpdelay.sim.tcp.window import restart_after_idle
from tcpdelay.sim.writes import message_record

# How the sender and the receiver of Linux respond to marks: ECN (RFC 3168), and DCTCP (RFC 8257).
#
# The sender learns of each mark with the ACK of its segment. Without DCTCP it reduces its window once per round trip,
# as the kernel does whose receiver repeats a mark until it hears of the reduction.

QUICK_ACKS_AFTER_MARK = 2
"""ACKs that are not delayed after the first mark (`tcp_data_ecn_check`)."""


@kernel()
def heed_marks(flow: FlowRecord, c: Connection, wire: WireRecord, answer: Acknowledgement) -> None:
    """Reduce the window if an ACK newly acknowledges marked segments, once per round trip (`tcp_enter_cwr`)."""
    delivered = marked = 0
    number = c.first_segment
    while number < c.next_segment and wire.segments[number & MASK].end <= answer.acknowledged:
        if not wire.segments[number & MASK].state & (SACKED | COLLAPSED):
            delivered += 1
            marked += flow.marked[number & MASK]
        number += 1
    # Beyond the cumulative acknowledgement: the segment that the ACK reports.
    if answer.segment >= number and not wire.segments[answer.segment & MASK].state & (SACKED | COLLAPSED):
        delivered += 1
        marked += flow.marked[answer.segment & MASK]
    control.on_marks(c, answer.acknowledged, c.delivered + delivered, marked)
    if c.ca_state == CWR and answer.acknowledged > c.high_seq and marked:
        # This ACK ends a reduction and begins the next one.
        end_reduction(c)
        c.ca_state = OPEN
    if not marked or c.ca_state >= CWR:
        return
    begin_reduction(c)
    c.undo_marker = 0
    c.ca_state = CWR
    c.cwr_segment = c.next_segment


@kernel()
def note_mark(c: Connection, wire: WireRecord, number: int, marked: int, arrival: int) -> None:
    """Let the receiver note whether a segment that arrives is marked, and report it soon.

    The first segment that was sent after a reduction is acknowledged at once (`tcp_ecn_accept_cwr`). With DCTCP so is a
    segment when marks begin or end, and the ACK that has been delayed goes before it (`dctcp_ece_ack_update`).
    Otherwise a few ACKs after the first mark are not delayed.
    """
    if number == c.cwr_segment:
        c.ack_now = 1
        if not control.reports_marks(c):
            c.ce_state = 0
    if control.reports_marks(c) and c.ce_state != marked:
        if c.delayed_ack_at != NEVER:
            acknowledge(c, wire, EVERYTHING, NO_SEGMENT, arrival)
        c.ack_now = 1
        c.ce_state = marked
    elif marked and not c.ce_state:
        begin_quick_acks(c, QUICK_ACKS_AFTER_MARK)
        c.ce_state = 1


# Send buffers whose limit follows the congestion window.

LARGEST_MULTIPLE, LARGEST_EXTRA = 4, 1000


@kernel()
def packets_allowed(multiple: int, extra: int, cwnd: int, sacked_out: int) -> int:
    """Return the largest number of packets in a send buffer that follows the window; see `MinBuf.limit`."""
    return int(multiple * cwnd + min(extra, cwnd) + sacked_out)


@kernel()
def has_room(flow: FlowRecord, held: int, cwnd: int, sacked_out: int) -> bool:
    """Return whether the limit of a flow's send buffer, if any, allows a segment beside the `held` segments.

    One segment must fit, not the whole message: a window smaller than a message would block the source for ever.
    """
    if flow.buffer_windows == 0:
        return True
    return bool(held < packets_allowed(flow.buffer_windows, flow.buffer_extra, cwnd, sacked_out))


@described
class MinBuf:
    """A send buffer that follows the congestion window: MIN_BUF(A, B) of Goel et al.

    References
    ----------
    Goel, Krasic, Li, Walpole, "Supporting Low-Latency TCP-Based Media Streams", IWQoS 2002. Sections 3 and 4 give the
    limit A cwnd + min(B, cwnd) + sacked_out.

    Examples
    --------
    >>> MinBuf(1, 3).limit(cwnd=10), MinBuf(1, 3).limit(cwnd=2), MinBuf(2, 0).limit(cwnd=10, sacked_out=4)
    (13, 4, 24)
    """

    multiple: int = quantity(
        "Congestion windows that the send buffer holds.",
        1,
        LARGEST_MULTIPLE,
        "windows",
        "count",
        details="A of the paper.",
        example="1",
        default=1,
    )
    extra: int = quantity(
        "Packets that the send buffer holds beyond these windows.",
        0,
        LARGEST_EXTRA,
        "packets",
        "count",
        details="B of the paper; at most one window counts.",
        example="3",
        default=0,
    )

    def limit(self, cwnd: int, sacked_out: int = 0) -> int:
        """Return the largest number of packets in the send buffer, including packets sent but not acknowledged."""
        return int(packets_allowed(self.multiple, self.extra, cwnd, sacked_out))


# The TCP of a Linux kernel on a shared link: sender and receiver of `tcpdelay.sim`.

LARGEST_SEND_BUFFER = 4 << 20
"""Largest send buffer that the kernel sets by itself [bytes] (sysctl tcp_wmem)."""
FIRST_RECEIVE_WINDOW, LARGEST_RECEIVE_WINDOW = 65_535, 4 << 20
"""The receive window at the start (`tcp_select_initial_window`), and when it has grown [bytes]: half of the memory of a
receive buffer of 4 MiB (SO_RCVBUF), as in the testbed."""
CONTINUOUS = 1 << 60
"""Size of the writes of a source that always writes on [bytes]: no segment ends with a push."""
ANY_WRITE = 1
"""Size of writes that differ in size [bytes]: the receiver takes the end of each segment for a push."""


@kernel()
def next_time(flow: FlowRecord, c: Connection, wire: WireRecord) -> int:
    """Return when the next event of the connection is due."""
    arrival = wire.acknowledgements[c.first_ack & MASK].arrival if c.first_ack < c.next_ack else NEVER
    return int(min(min(arrival, c.timer_at, c.pacing_at), min(flow.next_write, c.receiver_timer)))


@kernel()
def step(flow: FlowRecord, c: Connection, wire: WireRecord, link: Link, samples: Samples) -> int:
    """Process the next event: a timer, an acknowledgement or a write; return when the following event is due.

    The receiver processes a segment when the link accepts it, because no other segment can overtake it. Only the timer
    of a delayed acknowledgement waits for its time, because a segment that is sent later may arrive before it.
    """
    acknowledgement = wire.acknowledgements[c.first_ack & MASK]
    arrival = acknowledgement.arrival if c.first_ack < c.next_ack else NEVER
    first_new_ack = c.next_ack
    awake = flow.wake_up == 0
    if c.receiver_timer <= min(arrival, c.timer_at, c.pacing_at, flow.next_write):
        on_receiver_timer(c, wire)
    elif c.pacing_at <= min(arrival, c.timer_at, flow.next_write):
        c.now = c.pacing_at
        on_pacing_timer(c, wire)
    elif c.timer_at <= arrival and c.timer_at <= flow.next_write:
        c.now = c.timer_at
        on_timer(c, wire)
    elif arrival < flow.next_write:
        c.now = arrival
        c.first_ack += 1
        if flow.ecn:
            heed_marks(flow, c, wire, acknowledgement)
        on_acknowledgement(c, wire, acknowledgement)
    else:
        c.now = flow.next_write
        awake = True
        if is_write_due(flow, link):
            _write(flow, c, wire)
            send_new(c, wire, False)
    if flow.application == BULK:
        _fill_buffer(flow, c, wire, awake)
    if c.first_transit < c.next_transit:
        _carry(flow, c, wire, link, samples)
    add_return_jitter(flow, wire, first_new_ack, c.next_ack)
    return int(next_time(flow, c, wire))


@kernel()
def end(flow: FlowRecord, c: Connection) -> None:
    """Add the counts of a closed connection to the counts of the flow."""
    flow.retransmissions += c.segments_retransmitted
    flow.timeouts += c.timeouts


@kernel()
def begin(flow: FlowRecord, c: Connection) -> None:
    """Start a connection; its handshake has measured the round-trip time."""
    c.now = flow.next_write
    flow.first_unsent = flow.connection_read = flow.last_return = 0
    c.min_rtt = flow.round_trip
    update_estimate(c, flow.round_trip)
    control.start(c)


@kernel()
def send_queue(flow: FlowRecord, c: Connection) -> int:
    """Return the bytes that are not acknowledged, plus `IN_TIMEOUT` during a timeout."""
    return int(c.written - c.snd_una + (IN_TIMEOUT if c.ca_state == LOSS else 0))


@kernel()
def delay_of_next(flow: FlowRecord, c: Connection) -> int:
    """Return the expected delay of the next message [us], or `NEVER` if the send buffer has no room for it."""
    segments = -(-flow.message // c.mss)
    held = -(-(c.written - c.snd_una) // flow.message) * segments
    if not has_room(flow, held, c.snd_cwnd, c.sacked_out):
        return NEVER
    unsent = -(-(c.written + flow.message - c.snd_nxt) // c.mss)
    return int(expected_delay(unsent, c.snd_cwnd, in_flight(c), c.srtt >> 3))


@kernel()
def write(flow: FlowRecord, c: Connection, wire: WireRecord, time: int, size: int, pieces: int) -> int:
    """Write `size` bytes in pieces of nearly equal size; return the position in the stream at which they end."""
    c.now = time
    restart_after_idle(c)
    for piece in range(pieces):
        control.on_write(c)
        c.written += size // pieces + (1 if piece < size % pieces else 0)
        send_new(c, wire, False)
    return int(c.written)


@kernel()
def transmit(flow: FlowRecord, c: Connection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Put the segments that the sender has sent on the link."""
    first_new_ack = c.next_ack
    _carry(flow, c, wire, link, samples)
    add_return_jitter(flow, wire, first_new_ack, c.next_ack)


@kernel()
def _write(flow: FlowRecord, c: Connection, wire: WireRecord) -> None:
    """Write a message."""
    note_write(flow, c.now)
    restart_after_idle(c)
    expect_after_idle(c)
    if flow.application == SCHEDULED:
        # The receiver asks for the ends of messages.
        message = message_record(wire, c.packets_written)
        message.written, message.end = c.now, c.written + flow.message
        c.packets_written += 1
    # The receiver takes the end of a write for a push. A bulk source has written more by then.
    c.packet_size = CONTINUOUS if flow.application == BULK else flow.message
    control.on_write(c)
    c.written += flow.message


@kernel()
def is_writable(flow: FlowRecord, c: Connection, size: int) -> bool:
    """Return whether a send buffer of `size` bytes accepts another message of a bulk source.

    Without a limit that follows the window, `poll` decides: it reports room while the free part of the buffer is at
    least half of the occupied part (`__sk_stream_is_writeable`) and, with TCP_NOTSENT_LOWAT, while less than half of
    this limit is unsent (`__tcp_stream_memory_free`).
    """
    held = c.written - c.snd_una
    if held + flow.message > size:
        return False
    if flow.buffer_windows:
        allowed = packets_allowed(flow.buffer_windows, flow.buffer_extra, c.snd_cwnd, c.sacked_out)
        return bool(held + min(flow.message, c.mss) <= allowed * c.mss)
    if flow.notsent_lowat and 2 * (c.written - c.snd_nxt) >= flow.notsent_lowat:
        return False
    return bool(2 * (size - held) >= held)


@kernel()
def _fill_buffer(flow: FlowRecord, c: Connection, wire: WireRecord, awake: bool) -> None:
    """Write messages while the send buffer accepts a whole one, or wake the process that writes them.

    A buffer whose size is not set holds some congestion windows, and never shrinks (`tcp_sndbuf_expand`).
    """
    if c.now >= flow.stop or c.now < flow.first_write:
        return
    size = flow.send_buffer
    if size == 0:
        windows = control.buffered_windows(c) * max(c.snd_cwnd, INITIAL_WINDOW) * c.mss
        size = max(flow.largest_send_buffer, min(windows, LARGEST_SEND_BUFFER), flow.message)
        flow.largest_send_buffer = size
    if not awake:
        if is_writable(flow, c, size):
            wake(flow, c.now)
        return
    all_sent = c.snd_nxt == c.written
    while is_writable(flow, c, size):
        _write(flow, c, wire)
        if flow.notsent_lowat:
            # A segment that the window allows is sent at once, and is not unsent data.
            send_new(c, wire, False)
    if all_sent:
        send_new(c, wire, False)


@kernel()
def _carry(flow: FlowRecord, c: Connection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Put the segments sent in this event on the link, and let the receiver process the segments that arrive."""
    together = 0
    while c.first_transit < c.next_transit:
        sent = wire.transit[c.first_transit & MASK]
        c.first_transit += 1
        number, following = sent.segment, sent.following
        segment = wire.segments[number & MASK]
        if number >= flow.first_unsent:
            flow.first_unsent = number + 1
            flow.first_sent[number & MASK] = c.now
        lost = flow.segments_lost
        arrival = cross_or_wait(flow, link, c.now, segment.end - segment.start, number, following)
        if arrival == WAITING:
            segment.gone = NEVER
            continue
        if arrival == DROPPED:
            # A random loss happens when the segment leaves the sender, a drop when it reaches the queue.
            segment.gone = c.now if flow.segments_lost > lost else c.now + flow.access_delay
            continue
        segment.gone = arrival
        _receive(flow, c, wire, link, samples, number, following, c.now, arrival, together)
        together = 1


@kernel()
def deliver(flow: FlowRecord, c: Connection, wire: WireRecord, link: Link, samples: Samples, packet: Packet) -> int:
    """Let the receiver process a segment that leaves a managed queue, unless it is dropped; return the next event."""
    arrival, number = leave(flow, link, packet), packet.segment
    if number == HANDSHAKE:
        end_handshake_step(flow, packet.sent, arrival)
        return int(next_time(flow, c, wire))
    # A copy of a segment of an earlier transfer has no effect.
    if packet.transfer == flow.transfers:
        segment = wire.segments[number & MASK]
        if segment.sent == packet.sent:
            segment.gone = packet.sent + flow.access_delay if arrival == DROPPED else arrival
        if arrival != DROPPED:
            first_new_ack = c.next_ack
            _receive(flow, c, wire, link, samples, number, packet.following, packet.sent, arrival, 1)
            add_return_jitter(flow, wire, first_new_ack, c.next_ack)
    return int(next_time(flow, c, wire))


@kernel()
def _receive(
    flow: FlowRecord,
    c: Connection,
    wire: WireRecord,
    link: Link,
    samples: Samples,
    number: int,
    following: int,
    sent: int,
    arrival: int,
    together: int,
) -> None:
    """Let the receiver process a segment, and the application read; `together` is 1 after segments sent together."""
    flow.marked[number & MASK] = link.marked
    received = c.rcv_segment
    for other in range(max(number, received), following):
        if not wire.segments[other & MASK].received:
            flow.arrived[other & MASK] = arrival
    # A timer runs before a segment that arrives at the same time, but after segments that were sent together.
    while c.receiver_timer <= arrival - together:
        on_receiver_timer(c, wire)
    if flow.ecn:
        note_mark(c, wire, number, link.marked, arrival)
    arrive(c, wire, number, following, sent, arrival)
    if c.rcv_segment > received:
        _read(flow, c, wire, samples, received, arrival)


@kernel()
def _read(flow: FlowRecord, c: Connection, wire: WireRecord, samples: Samples, received: int, read: int) -> None:
    """Count the messages that can be read, now that the segments from number `received` on are in order."""
    while message_end(flow) <= c.rcv_nxt:
        flow.connection_read = message_end(flow)
        # The segment in which the last byte of the message was sent first: a retransmission may have absorbed it since.
        while received + 1 < c.next_segment and wire.segments[(received + 1) & MASK].start < flow.connection_read:
            received += 1
        note_read(flow, samples, flow.first_sent[received & MASK], flow.arrived[received & MASK], read)
        if flow.application == TRANSFERS:
            finish_transfer(flow, read)


def prepare(stack: Linux, shared: SharedPath, flow: FlowRecord, connection: Connection, phase: int) -> None:
    """Prepare a connection: to the sender the shared link is a path of constant delay whose arrivals are deferred."""
    constant_rate = flow.application in (CONSTANT_RATE, DISPATCHED)
    if constant_rate and LARGEST_FLIGHT * stack.mss > KEPT * flow.message:
        smallest = -(-LARGEST_FLIGHT * stack.mss // KEPT)
        raise InvalidValueError("packet_size", int(flow.message), f"be at least {smallest} bytes")
    path = Path(rtt=max(shared.there + shared.back, 1e-6), loss=0.0, one_way_delay=shared.there)
    prepared, _ = new_connection(Flow(stack.mss, 1.0, write_jitter=0.0), path, stack, 0)
    settings = {name: prepared[name] for name in control.CONNECTION.names or ()}
    # The flow times the writes, so the connection keeps times of segments and no delays of packets.
    settings |= {"interval": 0, "next_write": NEVER, "deferred": 1, "leaping": 0, "until_loss": ALWAYS}
    settings["scheduled"] = int(flow.application == SCHEDULED)
    if constant_rate:
        settings["packet_size"] = flow.write_size or ANY_WRITE
    for name, value in settings.items():
        connection[name] = value
    connection.host_delay = round(shared.access_delay * SECOND) if shared.in_host else 0
    connection.cwr_segment = NO_SEGMENT
    if flow.application in (BULK, TRANSFERS):
        connection.rcv_room = LARGEST_RECEIVE_WINDOW - FIRST_RECEIVE_WINDOW
    connection.tick_phase += phase % connection.tick - connection.tick_phase % connection.tick


def prepare_dctcp(stack: Dctcp, shared: SharedPath, flow: FlowRecord, connection: Connection, phase: int) -> None:
    """Prepare a connection with DCTCP, which grows its window as Reno does."""
    reno = Linux(congestion_control="reno", delayed_ack=stack.delayed_ack, hz=stack.hz, mss=stack.mss)
    prepare(reno, shared, flow, connection, phase)
    connection.control = control.number_of("dctcp")
    control.start(connection)


TRANSPORT = Transport(
    state=control.CONNECTION,
    header=IP_HEADER + TCP_HEADER + TIMESTAMPS,
    features=frozenset(
        {"constant rate", "messages", "bulk", "transfers", "dispatching", "ecn", "send buffer", "notsent_lowat"}
    ),
    prepare=prepare,
    next_time=next_time,
    step=step,
    deliver=deliver,
    begin=begin,
    end=end,
    send_queue=send_queue,
    delay_of_next=delay_of_next,
    write=write,
    transmit=transmit,
)
DCTCP = dataclasses.replace(TRANSPORT, features=TRANSPORT.features | {"l4s"}, prepare=prepare_dctcp)
