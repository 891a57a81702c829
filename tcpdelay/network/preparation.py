"""Prepare the records of the compiled code from the sources and the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import records
from tcpdelay.models.simulator.path import loss_settings
from tcpdelay.models.simulator.records import NEVER, generator_addresses
from tcpdelay.models.tcp import FIRST_TIMEOUT, SECOND
from tcpdelay.network import engine
from tcpdelay.network.bottleneck import LINK, Bottleneck, prepare_link
from tcpdelay.network.dispatching import DISPATCHER
from tcpdelay.network.linux import LARGEST_SEND_BUFFER
from tcpdelay.network.message_schedule import MessageSchedule
from tcpdelay.network.queues.managed_link import prepare_managed_link
from tcpdelay.network.queues.waiting import ECT_0, ECT_1, NOT_ECT
from tcpdelay.network.records import (
    BULK,
    CONSTANT_RATE,
    COUNTERS,
    DISPATCHED,
    FLOW,
    NETWORK_WIRE,
    SCHEDULED,
    TRANSFERS,
    WRITES,
)
from tcpdelay.network.result import SlicedDelays
from tcpdelay.network.sources import Bulk, ConstantRate, Sections, Source, Transfers
from tcpdelay.network.transport import CARRIER, Transport, segment_size
from tcpdelay.scenario.applications import constant_rate
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.source import Flow


@dataclass
class Network:
    """All records of a simulation. Each array and list has one entry per flow; `link` and `samples` have one entry.

    The first flows are the first connections of the sources, in the order of the sources. The further connections of
    the sources follow.

    Attributes
    ----------
    flows, wires : record arrays
        The flows, and their segments and acknowledgements in transit.
    transports : list of Transport
        What carries each flow.
    connections : list of record
        State of each connection, of the type that the transport defines.
    carriers : record array
        Addresses of the transports' kernels and of the connections.
    dispatchers : record array
        The dispatchers; an unused one if no source has one, because compiled code needs a record.
    members : list of list of int
        The numbers of the flows of each source.
    generators : list of Generator
        Random number generators of the flows, then that of the link; the records have their addresses.
    memory : list
        The trace of the link, if any, and the arrays with the states of the connections; records have their addresses.
    schedules : list of MessageSchedule
        Messages of the flows whose rate is not constant.
    """

    flows: Any
    transports: list[Transport]
    connections: list[Any]
    carriers: Any
    wires: Any
    link: Any
    samples: Any
    tree: NDArray[np.int64]
    dispatchers: Any
    members: list[list[int]]
    generators: list[np.random.Generator]
    memory: list[Any]
    schedules: list[MessageSchedule]

    def advance(self, until: float, delays: SlicedDelays | None = None) -> None:
        """Simulate up to a time [s], and collect the delays that are counted; by default they are discarded."""
        end, reached = round(until * SECOND), -1
        while reached < end:
            known = min([end, *(schedule.fill() for schedule in self.schedules)])
            emptied = engine.advance(
                self.tree,
                self.flows,
                self.carriers,
                self.wires,
                self.link,
                self.samples,
                self.dispatchers,
                known,
            )
            reached = known if emptied else reached
            if delays is not None:
                delays.take(self.samples[0])
            self.samples[0].used = 0


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
        if isinstance(source, ConstantRate) and flow.application == SCHEDULED:
            messages_seed = _messages_seed(seed, len(network.schedules))
            network.schedules.append(MessageSchedule(source.flow, messages_seed, flow))
        if _is_dispatched(source):
            _dispatch(flow, source, dispatched.index(leader), members[leader].index(number))
        _prepare_connection(network, number, source, phases[leader])
    engine.start(network.tree, network.flows, network.carriers, network.wires)
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


def _dispatch(flow: Any, source: ConstantRate, dispatcher: int, member: int) -> None:
    """Let a dispatcher write the messages of a flow."""
    size = constant_rate(source.flow).packet_size
    equal = size % source.pieces == 0 and source.keepalive_size is None
    flow.application, flow.dispatcher, flow.member = DISPATCHED, dispatcher + 1, member
    flow.pieces, flow.write_size = source.pieces, size // source.pieces if equal else 0
    flow.due_write = NEVER
    if member > 0:
        flow.next_write = NEVER


def _dispatchers(sources: Sequence[Source], members: list[list[int]]) -> Any:
    """Return the dispatchers of the sources that need one; at least one record."""
    dispatched = [(source, numbers) for source, numbers in zip(sources, members, strict=True) if _is_dispatched(source)]
    dispatchers = records(max(len(dispatched), 1), DISPATCHER)
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


def _prepare_flow(flow: Any, source: Source, stop: float) -> None:
    """Set the fields of a flow that do not depend on its transport."""
    path, start = source.path, round(source.start * SECOND)
    settings: dict[str, float] = {
        "access_delay": round(path.access_delay * SECOND),
        "exit_delay": round(path.exit_delay * SECOND),
        "return_delay": round(path.back * SECOND),
        "return_jitter": round(path.return_jitter * SECOND),
        "header": source.header_size,
        "ecn": ECT_1 if source.l4s else ECT_0 if source.ecn else NOT_ECT,
        **loss_settings(flow, path.loss, path.loss_burst, path.bad_time, path.bad_loss),
        "section": 1,
        "pieces": 1,
        "first_write": start,
        "next_write": start if source.start < stop else NEVER,
        "stop": round(stop * SECOND),
        "first_timeout": round(FIRST_TIMEOUT * SECOND),
    }
    if isinstance(source, ConstantRate) and isinstance(source.flow, Flow):
        settings |= {
            "application": CONSTANT_RATE,
            "message": source.flow.packet_size,
            "interval": max(round(source.flow.interval * SECOND), 1),
            "write_size": source.flow.packet_size,
            "receiver_forges": int(source.forging),
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
    }
