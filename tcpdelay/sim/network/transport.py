"""The interface of a transport: the protocol that carries the messages of a flow over the shared link.

A transport consists of a state record, a function that prepares the record, and compiled functions (kernels). The
engine knows nothing else about it. To add a transport, write these parts, declare a `Stack` with the settings, and
call `tcpdelay.sim.network.sources.register`; no module of the engine changes.

The state of a flow does not depend on its transport. Kernels that every transport uses send a packet over the link,
return acknowledgements, write messages by the rules of the application, and count the messages that the application
reads. All times are microseconds.

Kernels are functions under `numba.njit(cache=True)`. The engine calls them by address, so it is compiled once for all
transports, a transport is compiled when a simulation first uses it, and each of them is cached on its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from llvmlite import ir
from numba import config, from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import Generator, uniform
from tcpdelay.compiling.record_types import Array, Record, record_type
from tcpdelay.scenario.source import BLOCK
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network.bottleneck import DROPPED, NANOSECONDS_PER_MICROSECOND, WAITING, SharedPath, enqueue, wait
from tcpdelay.sim.network.waiting import DISCARDED, LINK, NOT_ECT, PACKET, Link, Packet
from tcpdelay.sim.path import LossState, is_lost
from tcpdelay.sim.records import KEPT, MASK, RING, WireRecord
from tcpdelay.sim.tcp.constants import NEVER

# The state of a flow that does not depend on its transport, and the kernels that every transport uses.

CONSTANT_RATE, BULK, TRANSFERS, DISPATCHED, SCHEDULED = range(5)
"""Kinds of application. A dispatcher (`tcpdelay.sim.network.dispatching`) writes the messages of a dispatched flow, and
the messages of a scheduled flow come from a source (`tcpdelay.sim.network.simulation`)."""
CLOSED, ACCEPTED, ESTABLISHED, TRANSFERRING = range(4)
"""Stages of a transfer's connection: not open, accepted by the receiver, established, and carrying the file."""
WRITES = 1 << 13
"""Largest number of messages between write and read whose write times are kept."""
UNREAD = 1 << 14
"""Largest number of messages of a dispatcher or of a source between write and in-order read."""
AHEAD = 2 * BLOCK
"""Largest number of a source's messages that are scheduled and not yet written."""
DELAY_BITS, KIND_BITS = 44, 8
"""Bits of a sample that hold the delay, and bits above them that hold the kind of the message; the flow's number is
stored above both."""
SAMPLES = KEPT * 2
"""Capacity of the buffer of delays; one event adds at most `KEPT` delays."""


class SourceMessage(Record):
    """A message of a source."""

    written: int  # Time of its write [us]
    length: int  # Its size [bytes]
    kind: int  # Number of its kind


class FlowRecord(LossState, Generator):
    """The part of a flow that does not depend on its transport."""

    mean_pause: float
    mean_size: float
    pareto_shape: float
    largest_size: float
    # Path
    number: int
    access_delay: int
    exit_delay: int
    return_delay: int
    return_jitter: int
    last_return: int
    header: int
    ecn: int
    # Application
    application: int
    interval: int
    first_write: int
    next_write: int
    stop: int
    message: int  # Bytes of a message; of a scheduled application, of the message written last
    section: int  # Messages written at a time
    pieces: int  # Writes of a message of a dispatched application
    write_size: int  # Bytes of each of these writes, 0 where their sizes differ
    stage: int
    attempts: int
    first_timeout: int
    round_trip: int
    opened_by_sender: int
    receiver_forges: int
    # Schedule
    kind: int  # Of the message written last
    messages_known: int  # Messages in `schedule` so far
    messages_taken: int  # How many of these have come due
    overflows: int  # Messages that were not written because `unread` was full
    # Send buffer: `buffer_windows` and `buffer_extra` are the parameters of `tcpdelay.sim.network.linux.MinBuf`
    send_buffer: int
    largest_send_buffer: int
    buffer_windows: int
    buffer_extra: int
    notsent_lowat: int
    wake_up: int
    # Dispatcher
    dispatcher: int
    member: int
    due_write: int
    # Connection
    ack_delay: int
    ack_held: int
    return_before: int
    first_unsent: int
    connection_read: int
    # Window of counting
    count_from: int
    count_until: int
    # Messages
    packets_written: int
    packets_read: int
    offered: int
    delivered: int
    lost: int
    gap_bytes: int
    bytes_read: int
    sender_delay: int
    network_delay: int
    receiver_delay: int
    transfers: int
    # Segments
    segments_sent: int
    segments_lost: int
    segments_dropped: int
    segments_carried: int
    marks: int
    retransmissions: int
    timeouts: int
    # By segment, at its number modulo `RING`
    first_sent: Annotated[Array[int], RING]  # When it was sent first
    arrived: Annotated[Array[int], RING]  # When its first copy reached the receiver
    marked: Annotated[Array[int], RING, np.int8]  # Whether the queue marked its last copy
    # By message, at its number modulo `WRITES`: the time of the write. For a dispatched flow it has the position in the
    # stream at which the message ends instead. A constant bit rate does not use it, because the interval gives the
    # write times, and a scheduled application has the next two rings in its place.
    writes: Annotated[Array[int], WRITES]
    schedule: Annotated[Array[SourceMessage], AHEAD]  # Messages that are known
    unread: Annotated[Array[SourceMessage], UNREAD]  # Messages that are written and not yet read
    # By kind
    offered_by_kind: Annotated[Array[int], 1 << KIND_BITS]
    lost_by_kind: Annotated[Array[int], 1 << KIND_BITS]
    gap_bytes_by_kind: Annotated[Array[int], 1 << KIND_BITS]
    lifetimes: Annotated[Array[int], 1 << KIND_BITS]  # Time from write to deadline, or 0 for that of the transport


class Samples(Record):
    """The delays counted since the buffer was last emptied."""

    used: int
    keys: Annotated[Array[int], SAMPLES]  # Each with the number of its flow and the kind of its message
    completed: int
    # A row per message that a dispatched connection has read in this event: when the message was sent first, when it
    # arrived, and when this connection could read it in order
    completions: Annotated[Array[Array[int]], (KEPT, 3)]
    events: int  # Events that a call of the engine has processed
    most_events: int  # Events after which a call of the engine ends


FLOW = record_type(FlowRecord)
NETWORK_WIRE = record_type(WireRecord, events=(1,), delays=(3, 1), messages=UNREAD)
"""The segments and acknowledgements in transit of one flow: `WIRE` without room for a packet trace and delays, and with
room for fewer messages."""
COUNTERS = record_type(Samples)


class Arriving(Protocol):
    """An acknowledgement of any transport."""

    arrival: int


Arrival = TypeVar("Arrival", bound=Arriving)


class ReturnPath(Protocol[Arrival]):
    """A record with the acknowledgements of a connection."""

    @property
    def acknowledgements(self) -> Array[Arrival]:
        """Ring of acknowledgements."""
        ...


@kernel()
def cross(flow: FlowRecord, link: Link, now: int, payload: int) -> int:
    """Send a packet over a link without a managed queue; return when it reaches the receiver, or `DROPPED`."""
    return cross_or_wait(flow, link, now, payload, 0, 0)


@kernel()
def cross_or_wait(flow: FlowRecord, link: Link, now: int, payload: int, segment: int, following: int) -> int:
    """Send a packet over the link; return when it reaches the receiver, `DROPPED`, or `WAITING` in a managed queue."""
    flow.segments_sent += 1
    if is_lost(flow, flow, now):
        flow.segments_lost += 1
        return DROPPED
    if link.managed:
        if wait(link, flow, now, payload + flow.header, segment, following):
            return WAITING
        flow.segments_dropped += 1
        return DROPPED
    departure = enqueue(link, now + flow.access_delay, payload + flow.header, flow.ecn != NOT_ECT)
    if departure == DROPPED:
        flow.segments_dropped += 1
        return DROPPED
    flow.segments_carried += 1
    flow.marks += link.marked
    return int(departure + flow.exit_delay)


@kernel()
def leave(flow: FlowRecord, link: Link, packet: Packet) -> int:
    """Count a packet that leaves a managed queue; return when it reaches the receiver, or `DROPPED`."""
    link.marked = packet.marked
    if packet.departure == DISCARDED:
        flow.segments_dropped += 1
        return DROPPED
    flow.segments_carried += 1
    flow.marks += packet.marked
    departure = (packet.departure + NANOSECONDS_PER_MICROSECOND // 2) // NANOSECONDS_PER_MICROSECOND
    return int(departure + flow.exit_delay)


@kernel()
def add_return_jitter(flow: FlowRecord, wire: ReturnPath[Arrival], first: int, following: int) -> None:
    """Add a random delay to the acknowledgements from number `first` to before `following`, and keep their order."""
    if flow.return_jitter == 0:
        return
    for number in range(first, following):
        acknowledgement = wire.acknowledgements[number & MASK]
        delay = int(uniform(flow.next_double, flow.random_state) * (flow.return_jitter + 1))
        flow.last_return = max(flow.last_return, acknowledgement.arrival + delay)
        acknowledgement.arrival = flow.last_return


@kernel()
def note_write(flow: FlowRecord, now: int) -> None:
    """Count a message as written."""
    if flow.application == SCHEDULED:
        message = flow.unread[flow.packets_written % UNREAD]
        message.written, message.length, message.kind = now, flow.message, flow.kind
    else:
        flow.writes[flow.packets_written % WRITES] = now
    flow.packets_written += 1
    count_offered(flow, now, flow.kind)


@kernel()
def count_offered(flow: FlowRecord, written: int, kind: int) -> None:
    """Count a message that the application offers."""
    if flow.count_from <= written < flow.count_until:
        flow.offered += 1
        if flow.application == SCHEDULED:
            flow.offered_by_kind[kind] += 1


@kernel()
def count_lost(flow: FlowRecord, written: int, kind: int, gap: int) -> None:
    """Count a message as lost, given the time at which it was offered, and the bytes that the receiver reports."""
    if flow.count_from <= written < flow.count_until:
        flow.lost += 1
        flow.gap_bytes += gap
        if flow.application == SCHEDULED:
            flow.lost_by_kind[kind] += 1
            flow.gap_bytes_by_kind[kind] += gap


@kernel()
def written_at(flow: FlowRecord, number: int) -> int:
    """Return when a message was written, given its number."""
    if flow.application == CONSTANT_RATE:
        return int(flow.first_write + number // flow.section * flow.interval)
    if flow.application == SCHEDULED:
        return int(flow.unread[number % UNREAD].written)
    return int(flow.writes[number % WRITES])


@kernel()
def message_end(flow: FlowRecord) -> int:
    """Return the position in the connection's stream at which the next message to be read ends."""
    if flow.application == DISPATCHED:
        return int(flow.writes[flow.packets_read % WRITES]) if flow.packets_read < flow.packets_written else NEVER
    if flow.application == SCHEDULED:
        length = flow.unread[flow.packets_read % UNREAD].length
        return int(flow.connection_read + length) if flow.packets_read < flow.packets_written else NEVER
    return int(flow.connection_read + flow.message)


@kernel()
def note_read(flow: FlowRecord, samples: Samples, sent: int, arrived: int, read: int) -> None:
    """Count the next message as read, given when it was sent first, when it arrived, and when it was read in order."""
    if flow.application == DISPATCHED:
        completion = samples.completions[samples.completed]
        completion[0], completion[1], completion[2] = sent, arrived, read
        samples.completed += 1
    elif flow.application == SCHEDULED:
        message = flow.unread[flow.packets_read % UNREAD]
        count_read(flow, samples, message.length, message.kind, message.written, sent, arrived, read)
    else:
        count_read(flow, samples, flow.message, 0, written_at(flow, flow.packets_read), sent, arrived, read)
    flow.packets_read += 1


@kernel()
def count_read(
    flow: FlowRecord, samples: Samples, size: int, kind: int, written: int, sent: int, arrived: int, read: int
) -> None:
    """Count a message that the application has read."""
    if flow.count_from <= read < flow.count_until:
        flow.bytes_read += size
    if flow.count_from <= written < flow.count_until:
        flow.delivered += 1
        flow.sender_delay += sent - written
        flow.network_delay += arrived - sent
        flow.receiver_delay += read - arrived
        samples.keys[samples.used] = (flow.number << KIND_BITS | kind) << DELAY_BITS | (read - written)
        samples.used += 1


@kernel()
def note_lost(flow: FlowRecord, gap: int) -> None:
    """Count the next message as lost: it will never be read; the receiver may report a gap of so many bytes."""
    kind = flow.unread[flow.packets_read % UNREAD].kind if flow.application == SCHEDULED else 0
    count_lost(flow, written_at(flow, flow.packets_read), kind, gap)
    flow.packets_read += 1


HANDSHAKE = -1
"""In place of the number of a segment: a packet of the handshake of a connection."""
MOST_DOUBLINGS = 6
"""Doublings of the timeout of a connection request."""


@kernel()
def is_write_due(flow: FlowRecord, link: Link) -> bool:
    """Let the application act at `flow.next_write`; return whether it writes a message."""
    now = flow.next_write
    flow.next_write = NEVER
    if flow.application == CONSTANT_RATE or flow.application == DISPATCHED:
        if now + flow.interval < flow.stop:
            flow.next_write = now + flow.interval
        flow.due_write = now
        return bool(flow.application == CONSTANT_RATE)
    if flow.application == SCHEDULED:
        return _take_message(flow)
    if flow.application == TRANSFERS:
        if flow.stage < ESTABLISHED:
            if now < flow.stop:
                _connect(flow, link, now)
            return False
        flow.stage = TRANSFERRING
        flow.message = draw_size(flow)
        return True
    return False


@kernel()
def wake(flow: FlowRecord, now: int) -> None:
    """Let a bulk source that has room in its send buffer write as soon as its process has been scheduled."""
    flow.next_write = min(flow.next_write, now + flow.wake_up)


@kernel()
def _take_message(flow: FlowRecord) -> bool:
    """Take the message that is due from the schedule; return whether it is written, which takes room in the records."""
    message = flow.schedule[flow.messages_taken % AHEAD]
    flow.messages_taken += 1
    if flow.messages_taken < flow.messages_known:
        flow.next_write = flow.schedule[flow.messages_taken % AHEAD].written
    # The receiver may still ask for the end of the message that it has read last.
    if flow.packets_written - flow.packets_read >= UNREAD - 1:
        flow.overflows += 1
        count_offered(flow, message.written, message.kind)
        count_lost(flow, message.written, message.kind, 0)
        return False
    flow.message, flow.kind = message.length, message.kind
    return True


@kernel()
def _connect(flow: FlowRecord, link: Link, now: int) -> None:
    """Send a packet of the handshake over the link; if it is lost, send it again after a timeout.

    If the receiver opens the connection, only its SYN-ACK crosses the link, and the connection is established one
    return delay later. If the sender opens it, its SYN and its ACK cross the link.
    """
    arrival = cross_or_wait(flow, link, now, 0, HANDSHAKE, 0)
    if arrival != WAITING:
        end_handshake_step(flow, now, arrival)


@kernel()
def end_handshake_step(flow: FlowRecord, now: int, arrival: int) -> None:
    """Go on with the handshake whose packet was sent at `now` and arrives at `arrival`, or is lost (`DROPPED`)."""
    if arrival == DROPPED:
        flow.next_write = now + (flow.first_timeout << min(flow.attempts, MOST_DOUBLINGS))
        flow.attempts += 1
        return
    flow.attempts = 0
    if flow.stage == ACCEPTED:
        flow.stage = ESTABLISHED
        flow.next_write = arrival
        return
    flow.stage = ACCEPTED if flow.opened_by_sender else ESTABLISHED
    flow.next_write = arrival + flow.return_delay
    flow.round_trip = flow.next_write - now


@kernel()
def finish_transfer(flow: FlowRecord, read: int) -> None:
    """Count a transfer as complete, and schedule the next one after a pause."""
    flow.transfers += 1
    flow.stage = CLOSED
    pause = 0
    if flow.mean_pause > 0.0:
        pause = round(-flow.mean_pause * np.log(1.0 - uniform(flow.next_double, flow.random_state)))
    flow.next_write = read + pause + (0 if flow.opened_by_sender else flow.return_delay)


@kernel()
def draw_size(flow: FlowRecord) -> int:
    """Return the size of the next transfer [bytes]: constant, or from a Pareto distribution with an upper limit."""
    if flow.pareto_shape <= 0.0:
        return int(flow.mean_size)
    smallest = flow.mean_size * (flow.pareto_shape - 1.0) / flow.pareto_shape
    size = smallest * (1.0 - uniform(flow.next_double, flow.random_state)) ** (-1.0 / flow.pareto_shape)
    return int(max(round(min(size, flow.largest_size)), 1))


# A transport, and how the engine calls its kernels.

Feature = Literal[
    "constant rate",
    "messages",
    "sections",
    "deadlines",
    "bulk",
    "transfers",
    "dispatching",
    "ecn",
    "l4s",
    "send buffer",
    "notsent_lowat",
    "forging",
]
"""A kind of source that a transport can carry, or an option of a source that it honours."""
Kernel = Callable[..., Any]

INTERPRETED = bool(getattr(config, "DISABLE_JIT", False))
"""Whether kernels run in Python (NUMBA_DISABLE_JIT=1), which is slow, for debugging."""
IP_HEADER, UDP_HEADER, TCP_HEADER, TIMESTAMPS = 20, 8, 20, 12
IN_TIMEOUT = 1 << 50
"""Added to the send queue of a connection that waits for a retransmission timeout."""

_RECORDS = {"flow": FLOW, "wire": NETWORK_WIRE, "link": LINK, "samples": COUNTERS, "packet": PACKET}
_SIGNATURES = {
    "next_time": ("flow connection wire", types.int64),
    "step": ("flow connection wire link samples", types.int64),
    "deliver": ("flow connection wire link samples packet", types.int64),
    "begin": ("flow connection", types.none),
    "end": ("flow connection", types.none),
    "send_queue": ("flow connection", types.int64),
    "delay_of_next": ("flow connection", types.int64),
    "write": ("flow connection wire time size pieces", types.int64),
    "transmit": ("flow connection wire link samples", types.none),
}
"""Parameters and type of the result of each kernel."""


class Carrier(Record):
    """What the engine needs to call a flow's transport."""

    connection: int  # Address of the connection's state
    initial: int  # Address of the state that a new connection starts from
    size: int  # Size of these states [bytes]
    # Addresses of the transport's kernels, 0 if it has none
    next_time: int
    step: int
    deliver: int
    begin: int
    end: int
    send_queue: int
    delay_of_next: int
    write: int
    transmit: int


CARRIER = record_type(Carrier)


@dataclass(frozen=True, kw_only=True, eq=False)
class Transport:
    """A transport, as the engine of the shared link uses it.

    The arguments of the kernels are records: `flow` of type `tcpdelay.sim.network.transport.FLOW`, `connection` of type
    `state`, `wire` of type `tcpdelay.sim.network.transport.NETWORK_WIRE`, `link` of type
    `tcpdelay.sim.network.bottleneck.LINK` and `samples` of type `tcpdelay.sim.network.transport.COUNTERS`. Times are
    whole microseconds.
    """

    state: np.dtype[np.void]  # Record type of a connection; all fields are zero before `prepare`
    header: int  # Bytes of all headers of a packet from IP on
    # Sources that the transport carries, and options of sources that it honours. A stack that carries sections or bulk
    # data must have an attribute `mss` [bytes].
    features: frozenset[Feature]
    # ``prepare(stack, path, flow, connection, phase)`` sets the fields of a connection, in Python. The fields of `flow`
    # are set already. `phase` is a random time [us] by which the clock of the host is shifted.
    prepare: Callable[[Any, SharedPath, FlowRecord, Any, int], None]
    # ``next_time(flow, connection, wire)`` returns when the next event of the flow is due: the arrival of an
    # acknowledgement, a timer, or `flow.next_write`.
    next_time: Kernel
    # ``step(flow, connection, wire, link, samples)`` processes this event, sends what may be sent then, and returns
    # when the following event is due, as `next_time` does. Segments are sent with `cross`. It returns when a segment
    # reaches the receiver, so `step` can process the arrival as well: put an acknowledgement into `wire`, and count
    # messages that are read with `note_read`.
    step: Kernel
    # ``deliver(flow, connection, wire, link, samples, packet)`` processes a packet for which `cross_or_wait` returned
    # `WAITING`, when it leaves the managed queue or is dropped there, and returns when the next event is due. `packet`
    # is of type `tcpdelay.sim.network.waiting.PACKET`; `leave` returns its arrival. Needed for managed queues. Packets
    # of a flow leave in the order of sending.
    deliver: Kernel | None = None
    # ``end(flow, connection)`` adds the counts of a closed connection to the counts of the flow.
    end: Kernel | None = None
    # ``begin(flow, connection)`` starts a new connection after its handshake, which took `flow.round_trip`; needed for
    # transfers.
    begin: Kernel | None = None
    # ``send_queue(flow, connection)`` returns the data written but not acknowledged, plus `IN_TIMEOUT` while the
    # connection waits for a retransmission timeout. This kernel and the following ones are needed for dispatching.
    send_queue: Kernel | None = None
    # ``delay_of_next(flow, connection)`` returns the expected delay of the next message [us], or
    # `tcpdelay.sim.records.NEVER` if the send buffer has no room for it.
    delay_of_next: Kernel | None = None
    # ``write(flow, connection, wire, time, size, pieces)`` takes a message into the send buffer, and returns where it
    # ends in the stream.
    write: Kernel | None = None
    # ``transmit(flow, connection, wire, link, samples)`` sends the segments that the window allows.
    transmit: Kernel | None = None

    @cached_property
    def addresses(self) -> dict[str, int]:
        """Addresses of the compiled kernels by name, 0 for a kernel that the transport does not have."""
        return {name: self._address(name) for name in _SIGNATURES}

    def _address(self, name: str) -> int:
        """Compile a kernel for the types of its records, or load it from the cache; return its address."""
        kernel: Any = getattr(self, name)
        if kernel is None:
            return 0
        if INTERPRETED:
            _KERNELS[id(kernel)] = kernel, self.state
            return id(kernel)
        parameters, result = _SIGNATURES[name]
        records = _RECORDS | {"connection": self.state}
        signature = tuple(
            from_dtype(records[parameter]) if parameter in records else types.int64 for parameter in parameters.split()
        )
        kernel.compile(signature)
        compiled = kernel.overloads[signature]
        if compiled.signature.return_type != result:
            raise TypeError(f"kernel {name} must return {result}, returns {compiled.signature.return_type}")
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def segment_size(stack: Stack) -> int:
    """Return the size of a full segment of a stack [bytes]."""
    return int(stack.mss)  # type: ignore[attr-defined]


def _kernel_call(result: Any) -> Callable[..., Any]:
    """Return the typing function of a call to a kernel at an address, with numba's calling convention."""

    def type_call(typing_context: Any, address: Any, flow: Any, connection: Any, others: Any) -> Any:
        argument_types = (flow, types.voidptr, *(types.int64 if isinstance(t, types.Integer) else t for t in others))

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            address, flow, connection, others = values
            arguments = [flow, builder.inttoptr(connection, cgutils.voidptr_t)]
            for index, given in enumerate(signature.args[3]):
                value = builder.extract_value(others, index)
                arguments.append(context.cast(builder, value, given, argument_types[index + 2]))
            function_type = context.call_conv.get_function_type(result, argument_types)
            function = builder.inttoptr(address, function_type.as_pointer())
            status, value = context.call_conv.call_function(builder, function, result, argument_types, arguments)
            with builder.if_then(status.is_error, likely=False):
                context.call_conv.return_status_propagate(builder, status)
            return value

        return result(types.int64, flow, types.int64, others), generate

    return type_call


_KERNELS: dict[int, tuple[Kernel, np.dtype[np.void]]] = {}
"""Kernels and the types of their states by address, with NUMBA_DISABLE_JIT=1."""


def _interpret(address: int, flow: Any, connection: int, others: tuple[Any, ...]) -> Any:
    """Call a kernel in Python."""
    kernel, state = _KERNELS[int(address)]
    memory: Any = (ctypes.c_char * state.itemsize).from_address(int(connection))
    return kernel(flow, np.frombuffer(memory, state).view(np.recarray)[0], *others)


call_for_number: Any = _interpret if INTERPRETED else intrinsic(_kernel_call(types.int64))
"""Calls a kernel that returns an integer: ``call_for_number(address, flow, connection, others)``.

`address` and `connection` are addresses of a `CARRIER`, `others` is the tuple of the kernel's further arguments.
"""
call_for_effect: Any = _interpret if INTERPRETED else intrinsic(_kernel_call(types.none))
"""Calls a kernel that returns nothing."""


def _type_copy(typing_context: Any, destination: Any, source: Any, size: Any) -> Any:
    """Return signature and code of `copy_memory` for numba."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        copy: Any = cgutils.raw_memcpy
        destination, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in values[:2])
        copy(builder, destination, source, values[2], ir.Constant(ir.IntType(64), 1))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


copy_memory: Any = ctypes.memmove if INTERPRETED else intrinsic(_type_copy)
"""Copies memory: ``copy_memory(destination, source, size)``, two addresses and a size [bytes]."""
