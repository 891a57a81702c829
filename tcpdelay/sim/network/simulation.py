"""Simulate several sources that share one link: its records, the order of all events, and the figures of each flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import SimulationBudget, checked_budget
from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.compiling.random_numbers import generator_addresses
from tcpdelay.compiling.record_types import Array
from tcpdelay.declare import SEED, InvalidValueError, in_seconds, is_number
from tcpdelay.delays import UNKNOWN, USUAL_QUANTILE, DelayDistribution
from tcpdelay.scenario.scenario import checked_arguments, constant_rate
from tcpdelay.scenario.source import Flow
from tcpdelay.sim.batches import read_share
from tcpdelay.sim.network.bottleneck import (
    NANOSECONDS,
    Bottleneck,
    prepare_link,
    prepare_managed_link,
    serve,
    service_time,
)
from tcpdelay.sim.network.dispatching import DISPATCHER, Dispatcher, collect, dispatch
from tcpdelay.sim.network.linux import LARGEST_SEND_BUFFER
from tcpdelay.sim.network.result import FlowResult, MessageResult, NetworkResult, QueueStatistics, SlicedDelays, Slices
from tcpdelay.sim.network.sources import (
    Bulk,
    ConstantRate,
    MessageSchedule,
    Sections,
    Source,
    Transfers,
    checked_sources,
)
from tcpdelay.sim.network.transport import (
    BULK,
    CARRIER,
    CONSTANT_RATE,
    COUNTERS,
    DISPATCHED,
    ESTABLISHED,
    FLOW,
    NETWORK_WIRE,
    SAMPLES,
    SCHEDULED,
    TRANSFERS,
    WRITES,
    Carrier,
    FlowRecord,
    Samples,
    Transport,
    call_for_effect,
    call_for_number,
    copy_memory,
    segment_size,
)
from tcpdelay.sim.network.waiting import ECT_0, ECT_1, LINK, LINK_RING, NOBODY, NOT_ECT, Link, take_outcome
from tcpdelay.sim.path import loss_settings
from tcpdelay.sim.records import KEPT, WireRecord
from tcpdelay.sim.tcp.constants import FIRST_TIMEOUT, NEVER, SECOND
from tcpdelay.statistics import Interval

# The order of events over all flows and the link: a tournament tree whose root is the time of the next event.


@kernel()
def next_time(flow: FlowRecord, carrier: Carrier, wire: WireRecord) -> int:
    """Return when the next event of a flow is due by the link's clock: when a packet sent then reaches the queue.

    Packets take a constant time to the queue. So events in this order let the packets of all flows enter the queue in
    the order of time.
    """
    return int(at_link(flow, call_for_number(carrier.next_time, flow, carrier.connection, (wire,))))


@kernel()
def at_link(flow: FlowRecord, time: int) -> int:
    """Return when a packet reaches the queue that is sent at a time."""
    return int(time + flow.access_delay) if time < NEVER else NEVER


@kernel()
def start(
    tree: NDArray[np.int64], flows: Array[FlowRecord], carriers: Array[Carrier], wires: Array[WireRecord]
) -> None:
    """Fill the tournament: flows, then the link, in the second half; entry i is the earlier of 2 i and 2 i + 1."""
    leaves = tree.size // 2
    tree[:] = NEVER
    for number in range(flows.size):
        tree[leaves + number] = next_time(flows[number], carriers[number], wires[number])
    for place in range(leaves - 1, 0, -1):
        tree[place] = min(tree[2 * place], tree[2 * place + 1])


@kernel()
def _enter(tree: NDArray[np.int64], place: int, time: int) -> None:
    """Enter the time of a flow's next event."""
    tree[place] = time
    while place > 1:
        place //= 2
        tree[place] = min(tree[2 * place], tree[2 * place + 1])


@kernel()
def _open_connection(flow: FlowRecord, carrier: Carrier) -> None:
    """Replace the connection of a flow by a new one that is established."""
    if carrier.end:
        call_for_effect(carrier.end, flow, carrier.connection, ())
    copy_memory(carrier.connection, carrier.initial, carrier.size)
    call_for_effect(carrier.begin, flow, carrier.connection, ())


@kernel()
def _process_outcome(
    tree: NDArray[np.int64],
    flows: Array[FlowRecord],
    carriers: Array[Carrier],
    wires: Array[WireRecord],
    link: Link,
    samples: Samples,
    dispatchers: Array[Dispatcher],
) -> None:
    """Let the flow of the packet process that has left the managed queue first, or has been dropped there."""
    packet = link.packets[take_outcome(link)]
    number = packet.flow
    flow, carrier, wire = flows[number], carriers[number], wires[number]
    time = call_for_number(carrier.deliver, flow, carrier.connection, (wire, link, samples, packet))
    if flow.dispatcher:
        d = dispatchers[flow.dispatcher - 1]
        collect(d, flows[d.leader], flow, samples)
    _enter(tree, tree.size // 2 + number, at_link(flow, time))


@kernel(nogil=True)
def advance(
    tree: NDArray[np.int64],
    flows: Array[FlowRecord],
    carriers: Array[Carrier],
    wires: Array[WireRecord],
    link: Array[Link],
    samples: Array[Samples],
    dispatchers: Array[Dispatcher],
    until: int,
) -> bool:
    """Simulate up to a time by the link's clock [us]; return False before it at a full buffer or `most_events`."""
    leaves = tree.size // 2
    while True:
        if samples[0].used > SAMPLES - KEPT or samples[0].events >= samples[0].most_events:
            return False
        samples[0].events += 1
        if link[0].managed:
            # Process what the last event has decided about packets, and enter when the link takes the next one.
            if link[0].first_outcome != NOBODY:
                _process_outcome(tree, flows, carriers, wires, link[0], samples[0], dispatchers)
                continue
            if tree[leaves + flows.size] != service_time(link[0]):
                _enter(tree, leaves + flows.size, service_time(link[0]))
        if tree[1] >= until:
            return True
        # Find the flow with the next event.
        place = 1
        while place < leaves:
            place *= 2
            if tree[place] > tree[place + 1]:
                place += 1
        number = place - leaves
        if number == flows.size:
            serve(link[0])
            continue
        flow, carrier, wire = flows[number], carriers[number], wires[number]
        # Let its transport process the event.
        if flow.stage == ESTABLISHED and tree[place] == flow.next_write + flow.access_delay:
            _open_connection(flow, carrier)
        time = call_for_number(carrier.step, flow, carrier.connection, (wire, link[0], samples[0]))
        # A dispatcher puts in order what its connections have read, and may write to another connection.
        if flow.dispatcher:
            d = dispatchers[flow.dispatcher - 1]
            collect(d, flows[d.leader], flow, samples[0])
            written = dispatch(d, flows, carriers, wires, link[0], samples[0])
            if written >= 0:
                collect(d, flows[d.leader], flows[written], samples[0])
                if written != number:
                    _enter(tree, leaves + written, next_time(flows[written], carriers[written], wires[written]))
                else:
                    time = call_for_number(carrier.next_time, flow, carrier.connection, (wire,))
        _enter(tree, place, at_link(flow, time))


# Prepare the records of the compiled code from the sources and the bottleneck.

WORK_OF_EVENT = 5
"""Work of an event, in units of `SECONDS_PER_WORK`."""


@dataclass
class Network:
    """All records of a simulation. Each array and list has one entry per flow; `link` and `samples` have one entry.

    The first flows are the first connections of the sources, in their order; the further connections follow.
    """

    # flows, wires: The flows, and their segments and acknowledgements in transit.
    flows: Array[FlowRecord]
    transports: list[Transport]  # What carries each flow
    connections: list[Any]  # State of each connection, of the type that the transport defines
    carriers: Array[Carrier]  # Addresses of the transports' kernels and of the connections
    wires: Array[WireRecord]
    link: Array[Link]
    samples: Array[Samples]
    tree: NDArray[np.int64]
    # The dispatchers; an unused one if no source has one, because compiled code needs a record
    dispatchers: Array[Dispatcher]
    members: list[list[int]]  # The numbers of the flows of each source
    # Random number generators of the flows, then that of the link; the records have their addresses.
    generators: list[np.random.Generator]
    # The trace of the link, if any, and the arrays with the states of the connections; records have their addresses.
    memory: list[Any]
    schedules: list[MessageSchedule]  # Messages of the flows whose rate is not constant

    def advance(self, until: float, delays: SlicedDelays | None = None, budget: SimulationBudget | None = None) -> None:
        """Simulate up to a time [s] or the end of the budget, and collect the delays that are counted."""
        end, reached, samples = round(until * SECOND), -1, self.samples[0]
        budget = budget or SimulationBudget()
        while reached < end and (most := budget.next_call()):
            known = min([end, *(schedule.fill() for schedule in self.schedules)])
            samples.events, samples.most_events = 0, -(-most // WORK_OF_EVENT)
            reached = known if self._advance(known) else reached
            budget.spend(WORK_OF_EVENT * int(samples.events))
            if samples.used > SAMPLES // 4 or reached >= end:
                if delays is not None:
                    delays.take(samples)
                samples.used = 0

    def compile(self) -> None:
        """Compile the engine without processing an event, so that its time does not count."""
        self._advance(0)

    def _advance(self, until: int) -> bool:
        """Process events up to a time [us], and return whether it is reached."""
        records = self.flows, self.carriers, self.wires, self.link, self.samples, self.dispatchers
        return bool(advance(self.tree, *records, until))


def prepare(sources: Sequence[Source], bottleneck: Bottleneck, seed: int, count_from: float, until: float) -> Network:
    """Return the records of a simulation at time 0; packets written from `count_from` to `until` [s] count."""
    members = _members(sources)
    # The source of each flow, and the number of the source's first flow, which has the application's clock.
    sources_of = {n: (source, flows[0]) for source, flows in zip(sources, members, strict=True) for n in flows}
    carried = [sources_of[number] for number in range(len(sources_of))]
    size = len(carried)
    leaves = 1 << size.bit_length()  # more than flows, as the link has events too
    generators = [np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(size + 1)]
    generators.append(generators.pop(len(sources)))
    network = Network(
        flows=records(size, FLOW),
        transports=[source.transport for source, _ in carried],
        connections=[],
        carriers=records(size, CARRIER),
        wires=records(size, NETWORK_WIRE),
        link=records(1, LINK),
        samples=records(1, COUNTERS),
        tree=np.full(2 * leaves, NEVER, np.int64),
        dispatchers=_dispatchers(sources, members),
        members=members,
        generators=generators,
        memory=[bottleneck.trace],
        schedules=[],
    )
    prepare_link(network.link[0], bottleneck, generators[-1])
    if bottleneck.managed:
        for source in sources:
            if source.transport.deliver is None:
                refused = type(source.stack).__name__
                raise InvalidValueError(
                    "discipline", bottleneck.discipline, f"be 'drop-tail', 'red' or 'dred' with {refused}"
                )
        prepare_managed_link(network.link[0], bottleneck)
    phases: list[int] = []
    dispatched = [number for number, source in enumerate(sources) if _is_dispatched(source)]
    for number, (source, leader) in enumerate(carried):
        flow, wire = network.flows[number], network.wires[number]
        addresses = generator_addresses(generators[number])
        flow.next_double, flow.random_state = wire.next_double, wire.random_state = addresses
        flow.number = number
        flow.count_from, flow.count_until = round(count_from * SECOND), round(until * SECOND)
        # The clock of a host is shifted by a random part of a tick. All connections of a source are on one host.
        phases.append(int(generators[number].integers(SECOND)))
        _prepare_flow(flow, source, min(source.stop, until))
        if isinstance(source, ConstantRate):
            for kind, deadline in source.deadlines.items():
                flow.lifetimes[source.flow.kinds.index(kind)] = round(deadline * SECOND)
        if isinstance(source, ConstantRate) and flow.application == SCHEDULED:
            messages_seed = _messages_seed(seed, len(network.schedules))
            network.schedules.append(MessageSchedule(source.flow, messages_seed, flow))
        if _is_dispatched(source):
            _dispatch(flow, source, dispatched.index(leader), members[leader].index(number))
        _prepare_connection(network, number, source, phases[leader])
    start(network.tree, network.flows, network.carriers, network.wires)
    return network


def _messages_seed(seed: int, place: int) -> int:
    """Return the seed of a schedule: that of the simulation for the first, else one that differs from all others."""
    return seed if place == 0 else int(np.random.SeedSequence([seed, place]).generate_state(1, np.uint64)[0])


def _members(sources: Sequence[Source]) -> list[list[int]]:
    """Return the numbers of the flows of each source: the source's own number, then numbers after all sources."""
    members, first = [], len(sources)
    for number, source in enumerate(sources):
        further = source.connections - 1 if isinstance(source, ConstantRate) else 0
        members.append([number, *range(first, first + further)])
        first += further
    return members


def _prepare_connection(network: Network, number: int, source: Source, phase: int) -> None:
    """Prepare the connection of a flow, and enter the addresses of its transport."""
    transport, flow, carrier = source.transport, network.flows[number], network.carriers[number]
    initial = records(1, transport.state)
    transport.prepare(source.stack, source.path, flow, initial[0], phase)
    connection = initial.copy()
    network.connections.append(connection[0])
    network.memory += [initial, connection]
    carrier.connection, carrier.initial = connection.ctypes.data, initial.ctypes.data
    carrier.size = transport.state.itemsize
    for name, address in transport.addresses.items():
        carrier[name] = address


def _is_dispatched(source: Source) -> TypeGuard[ConstantRate]:
    """Return whether a source has a dispatcher."""
    return isinstance(source, ConstantRate) and source.dispatched


def _dispatch(flow: FlowRecord, source: ConstantRate, dispatcher: int, member: int) -> None:
    """Let a dispatcher write the messages of a flow."""
    size = constant_rate(source.flow).packet_size
    equal = size % source.pieces == 0 and source.keepalive_size is None
    flow.application, flow.dispatcher, flow.member = DISPATCHED, dispatcher + 1, member
    flow.pieces, flow.write_size = source.pieces, size // source.pieces if equal else 0
    flow.due_write = NEVER
    if member > 0:
        flow.next_write = NEVER


def _dispatchers(sources: Sequence[Source], members: list[list[int]]) -> Array[Dispatcher]:
    """Return the dispatchers of the sources that need one; at least one record."""
    dispatched = [(source, numbers) for source, numbers in zip(sources, members, strict=True) if _is_dispatched(source)]
    dispatchers: Array[Dispatcher] = records(max(len(dispatched), 1), DISPATCHER)
    for d, (source, numbers) in zip(dispatchers, dispatched, strict=False):
        d.leader, d.first_member = numbers[0], numbers[1] if len(numbers) > 1 else 0
        d.connections = source.connections
        d.intelligent = int(source.scheduling == "intelligent")
        d.discard_after = NEVER if source.discard_after is None else round(source.discard_after * SECOND)
        d.keepalive_size = source.keepalive_size or 0
        if source.talk is not None and source.silence is not None:
            # A silence ends before the first packet.
            d.suppressing, d.phase_end = 1, round(source.start * SECOND)
            d.mean_talk, d.mean_silence = source.talk * SECOND, source.silence * SECOND
    return dispatchers


def _prepare_flow(flow: FlowRecord, source: Source, stop: float) -> None:
    """Set the fields of a flow that do not depend on its transport."""
    path, start = source.path, round(source.start * SECOND)
    settings: dict[str, float] = {
        "access_delay": round(path.access_delay * SECOND),
        "exit_delay": round(path.exit_delay * SECOND),
        "return_delay": round(path.back * SECOND),
        "return_jitter": round(path.return_jitter * SECOND),
        "header": source.header_size,
        "receiver_forges": int(source.forging),
        "ecn": ECT_1 if source.l4s else ECT_0 if source.ecn else NOT_ECT,
        **loss_settings(flow, path.loss, path),
        "section": 1,
        "pieces": 1,
        "first_write": start,
        "next_write": start if source.start < stop else NEVER,
        "stop": round(stop * SECOND),
        "first_timeout": round(FIRST_TIMEOUT * SECOND),
    }
    if isinstance(source, ConstantRate) and source.written_exactly:
        assert isinstance(source.flow, Flow)
        settings |= {
            "application": CONSTANT_RATE,
            "message": source.flow.packet_size,
            "interval": max(round(source.flow.interval * SECOND), 1),
            "write_size": source.flow.packet_size,
        }
    elif isinstance(source, ConstantRate):
        settings["application"] = SCHEDULED
    elif isinstance(source, Sections):
        settings |= {
            "application": CONSTANT_RATE,
            "message": segment_size(source.stack),
            "section": source.packets,
            "interval": round(source.interval * SECOND),
        }
    elif isinstance(source, Bulk):
        settings |= _bulk(source)
    elif isinstance(source, Transfers):
        settings |= {
            "application": TRANSFERS,
            "mean_size": source.mean_size,
            "pareto_shape": source.shape or 0.0,
            "largest_size": source.largest_size,
            "mean_pause": source.mean_pause * SECOND,
            "opened_by_sender": int(source.opened_by == "sender"),
        }
    else:
        raise InvalidValueError("sources", source, "be ConstantRate, Sections, Bulk, Transfers or Web")
    if isinstance(source, (ConstantRate, Bulk)) and source.min_buf is not None:
        settings |= {"buffer_windows": source.min_buf.multiple, "buffer_extra": source.min_buf.extra}
    for name, value in settings.items():
        flow[name] = value


def _bulk(source: Bulk) -> dict[str, float]:
    """Return the fields of a flow for a bulk source."""
    message = segment_size(source.stack) if source.packet_size is None else source.packet_size
    send_buffer = source.send_buffer or 0
    if source.min_buf is not None and not send_buffer:
        send_buffer = min(WRITES * message, LARGEST_SEND_BUFFER)
    if send_buffer and not message <= send_buffer <= WRITES * message:
        raise InvalidValueError("send_buffer", send_buffer, f"hold 1 to {WRITES} packets of {message} bytes")
    return {
        "application": BULK,
        "message": message,
        "send_buffer": send_buffer,
        "notsent_lowat": source.notsent_lowat or 0,
        "wake_up": round(source.wake_up * SECOND),
    }


# The simulation, and the results of its sources.

SLICES = 64
"""Equal parts of the time that counts; the differences between their delays give the confidence intervals."""
DRAIN = 120.0
"""Time after the last write within which packets may still be read [s]."""
MOST_FLOWS = 1000
DURATION = in_seconds("Simulated time.", 1e-6, 1e7)
LONGEST_SIMULATION = 600.0
"""Processor time that a simulation may take by default [s]."""
TOTALS = (
    "segments_sent",
    "segments_lost",
    "segments_dropped",
    "segments_carried",
    "retransmissions",
    "timeouts",
    "marks",
)
"""Fields of `FlowResult` that are summed over all connections of a source."""


@checked_arguments
def simulate_network(
    sources: Sequence[Source],
    bottleneck: Bottleneck,
    *,
    duration: float,
    warm_up: float = 0.0,
    seed: int = 0,
    max_seconds: float = LONGEST_SIMULATION,
) -> NetworkResult:
    """Simulate sources that share one link, packet by packet.

    Packets written from `warm_up` to `duration` count. Then all sources stop, and packets in transit may still arrive.
    Equal seeds give equal messages: the first source with messages of a video, speech or a trace writes those of
    `messages(duration, seed)`, and each further one has a seed of its own.

    Parameters
    ----------
    sources : sequence of Source
        The sources, 1 to 1000.
    bottleneck : Bottleneck
        The link.
    duration : float
        Time during which the sources write [s], above 0 to 1e7.
    warm_up : float
        Time at the beginning that does not count [s], 0 to below `duration`.
    seed : int
        Seed of losses, marks, sizes and pauses, 0 or more; the same seed gives the same result.
    max_seconds : float
        Processor time that the simulation may take on an ordinary machine, roughly [s], 0.01 to 1e6. It is counted in
        events, so that the result is the same on every machine; after 20 times this time, the clock ends it.

    Returns
    -------
    NetworkResult
        The results of every flow and of the queue.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.
    TooLargeError
        If the simulation needs more than `max_seconds`; a ValueError.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay.sim.network.bottleneck import SharedPath
    >>> from tcpdelay.sim.network.sources import Bulk, ConstantRate
    >>> path = SharedPath(access_delay=0.05)
    >>> voice = ConstantRate(flow=Flow(174, 0.020), path=path, stack=Stack.linux())
    >>> bulk = Bulk(path=path, stack=Stack.linux())
    >>> result = simulate_network([voice, bulk], Bottleneck(rate=3e6, capacity=50), duration=60, warm_up=10)
    >>> result.flows[0].offered, result.queue.utilization > 0.9
    (2500, True)

    A video beside a long transfer, and its key frames:

    >>> from tcpdelay.scenario.media import Video
    >>> video = ConstantRate(flow=Video(500_000), path=path, stack=Stack.linux())
    >>> result = simulate_network([video, bulk], Bottleneck(rate=3e6, capacity=50), duration=60, warm_up=10)
    >>> {kind: messages.offered for kind, messages in result.flows[0].by_kind.items()}
    {'other frame': 1475, 'key frame': 25}
    """
    sources = checked_sources("sources", sources)
    if not 1 <= len(sources) <= MOST_FLOWS:
        raise InvalidValueError("sources", len(sources), f"be 1 to {MOST_FLOWS}")
    DURATION.require("duration", duration)
    if not is_number(warm_up) or not 0 <= warm_up < duration:
        raise InvalidValueError("warm_up", warm_up, f"lie between 0 and duration, {duration:g} s")
    seed = SEED.require("seed", seed)
    checked_budget(max_seconds)
    network = prepare(sources, bottleneck, seed, warm_up, duration)
    delays, budget = SlicedDelays(), SimulationBudget(max_seconds)
    network.compile()
    budget.start()
    network.advance(warm_up, delays, budget)
    before = _queue_counts(network, warm_up)
    progress = [_progress(network, len(sources))]
    for place, slice_end in enumerate(np.linspace(warm_up, duration, SLICES + 1)[1:], 1):
        network.advance(float(slice_end), delays, budget)
        if budget.is_spent:
            reached = f"{slice_end - (duration - warm_up) / SLICES:.3g} s of {duration:g} s"
            raise budget.error(reached, "allow more time, or use a shorter duration")
        progress.append(_progress(network, len(sources)))
        # The last slice also takes the packets that are read after the last write.
        if place < SLICES:
            delays.end_slice()
    after = _queue_counts(network, duration)
    network.advance(duration + DRAIN, delays)
    delays.end_slice()
    written, read, _ = np.diff(np.array(progress), axis=0).T
    # As the delays, the last slice takes the packets that are lost after the last write.
    _, _, lost = np.diff(np.array([*progress[:-1], _progress(network, len(sources))]), axis=0).T
    time = duration - warm_up
    flows = tuple(
        _flow_result(
            network, number, source, delays, lost[number], _carried(source, written[number], read[number]), time
        )
        for number, source in enumerate(sources)
    )
    return NetworkResult(flows, _queue_statistics(after - before, time), duration, warm_up, seed)


def _queue_counts(network: Network, now: float) -> NDArray[np.float64]:
    """Return the counts of the link: packets offered, dropped, marked and carried; sojourn and busy times [ns]."""
    link = network.link[0]
    places = np.arange(link.first, link.next) % LINK_RING
    ahead = np.maximum(link.departures[places] - now * NANOSECONDS, 0.0)
    backlog = max(float(link.virtual_finish) - now * NANOSECONDS, 0.0)
    carried = link.offered - link.dropped
    # The counts include the packets in the queue, although a part of their waiting and sending times is still to come.
    sojourn, busy = link.sojourn - ahead.sum(), link.busy - backlog
    return np.array([link.offered, link.dropped, link.marks, carried, sojourn, busy], np.float64)


def _queue_statistics(counts: NDArray[np.float64], time: float) -> QueueStatistics:
    """Return the statistics of the queue from the counts of `_queue_counts` in a time [s]."""
    offered, dropped, marked, carried, sojourn, busy = (float(count) for count in counts)
    return QueueStatistics(
        # Little's law.
        mean_length=sojourn / NANOSECONDS / time,
        mean_sojourn=sojourn / NANOSECONDS / carried if carried else float("nan"),
        utilization=busy / NANOSECONDS / time,
        offered=int(offered),
        dropped=int(dropped),
        marked=int(marked),
    )


def _progress(network: Network, sources: int) -> NDArray[np.int64]:
    """Return how many packets each source has written, how many are read or given up, and how many count as lost."""
    result = np.zeros((sources, 3), np.int64)
    for number in range(sources):
        flow = network.flows[number]
        if flow.dispatcher:
            d = network.dispatchers[flow.dispatcher - 1]
            # Packets beyond the records are given up because of the backlog: they are not carried.
            result[number] = d.accepted, d.released - d.overflows, flow.lost
        else:
            result[number] = flow.packets_written + flow.overflows, flow.packets_read, flow.lost
    return result


def _carried(source: Source, written: NDArray[np.int64], read: NDArray[np.int64]) -> Interval:
    """Return the rate that is read or given up, relative to the rate of a source of constant rate."""
    if not isinstance(source, (ConstantRate, Sections)) or written.min() == 0:
        return UNKNOWN
    return read_share((read / written).tolist())


def _flow_result(
    network: Network,
    number: int,
    source: Source,
    delays: SlicedDelays,
    lost: NDArray[np.int64],
    carried: Interval,
    time: float,
) -> FlowResult:
    """Return the result of a source, whose connections have the numbers `network.members[number]`."""
    flow, members = network.flows[number], network.members[number]
    for member in members:
        if (end := network.transports[member].end) is not None:
            end(network.flows[member], network.connections[member])
    totals = {name: int(network.flows[name][members].sum()) for name in TOTALS}
    overflows = network.dispatchers[flow.dispatcher - 1].overflows if flow.dispatcher else flow.overflows
    slices = delays.of(number)
    settled = not overflows and (not slices.histogram()[0].size or slices.is_settled(USUAL_QUANTILE))
    known = {"one_way_delay": source.path.there, "settled": settled, "carried": carried}
    messages = _message_result(slices, (flow.offered, flow.lost, flow.gap_bytes), known)
    share = 1 / (SECOND * messages.delivered) if messages.delivered else float("nan")
    scheduled = source.flow if isinstance(source, ConstantRate) and flow.application == SCHEDULED else None
    kinds = scheduled.kinds if scheduled and len(scheduled.kinds) > 1 else ()
    return FlowResult(
        **vars(messages) | totals,
        name=f"{type(scheduled or source).__name__} over {type(source.stack).__name__}",
        sender_delay=float(flow.sender_delay) * share,
        network_delay=float(flow.network_delay) * share,
        receiver_delay=float(flow.receiver_delay) * share,
        throughput=8 * int(flow.bytes_read) / time,
        sustainable=not carried.high < 1,
        settled=settled,
        carried=carried,
        late_errors=delays.late_errors(number, lost),
        by_kind={
            name: _message_result(
                delays.of(number, kind),
                (flow.offered_by_kind[kind], flow.lost_by_kind[kind], flow.gap_bytes_by_kind[kind]),
                known,
            )
            for kind, name in enumerate(kinds)
            if flow.offered_by_kind[kind]
        },
    )


def _message_result(slices: Slices, counts: tuple[int, int, int], known: dict[str, Any]) -> MessageResult:
    """Return the result of the messages of a flow, of all kinds or of one; counts are offered, lost and gap bytes."""
    offered, lost, gap_bytes = map(int, counts)
    delivered = int(slices.histogram()[1].sum())
    return MessageResult(
        delays=slices.delays(DelayDistribution, probability=USUAL_QUANTILE, fewest=0, **known) if delivered else None,
        offered=offered,
        delivered=delivered,
        lost=lost,
        unfinished=offered - delivered - lost,
        gap_bytes=gap_bytes,
    )
