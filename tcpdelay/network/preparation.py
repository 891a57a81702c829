"""From sources that split, spread, discard or suppress packets to the records of their dispatchers.

From the sources and the bottleneck to the records that the compiled code works on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.simulator.engine import new_connection
from tcpdelay.models.simulator.path import ALWAYS, segments_until_loss
from tcpdelay.models.simulator.records import CONNECTION, EVENT, KEPT, NEVER, WIRE, generator_addresses
from tcpdelay.models.simulator.sender import LARGEST_FLIGHT
from tcpdelay.models.tcp import FIRST_TIMEOUT, SECOND
from tcpdelay.network.bottleneck import DRED, DROP_TAIL, LINK, RED, Bottleneck
from tcpdelay.network.dispatching import DISPATCHER
from tcpdelay.network.engine import Connections
from tcpdelay.network.linux import LARGEST_SEND_BUFFER
from tcpdelay.network.literature import classic, scp
from tcpdelay.network.literature.classic import CLASSIC as CLASSIC_RECORD
from tcpdelay.network.records import (
    BULK,
    CLASSIC,
    CONSTANT_RATE,
    COUNTERS,
    DATAGRAMS,
    DISPATCHED,
    FLOW,
    LINUX,
    SCP,
    TRANSFERS,
    WRITES,
)
from tcpdelay.network.sources import Bulk, ConstantRate, Sections, Source, Transfers
from tcpdelay.network.stacks import Classic, Scp, TimeLined, Udp
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack

ANY_WRITE = 1
"""In place of the size of writes: the receiver takes the end of each segment for a push."""


def connections_of(source: Source) -> int:
    """Return how many connections, and thus flows, a source needs."""
    return source.connections if isinstance(source, ConstantRate) else 1


def prepare_dispatchers(sources: Sequence[Source], flows: Any, fresh: Any) -> tuple[Any, list[list[int]]]:
    """Give the flows of each source to its dispatcher, if it needs one.

    Parameters
    ----------
    sources : sequence of Source
        The sources.
    flows : record array
        First one flow of each source, then the others of those that have several connections.
    fresh : Connections
        The connections of these flows as they begin.

    Returns
    -------
    record array
        The dispatchers, at least one, so that the compiled code has a record to name.
    list of list of int
        Of each source, the numbers of its flows.
    """
    dispatched = [
        number for number, source in enumerate(sources) if isinstance(source, ConstantRate) and source.dispatched
    ]
    dispatchers = np.zeros(max(len(dispatched), 1), DISPATCHER).view(np.recarray)
    members, first = [], len(sources)
    for number, source in enumerate(sources):
        beside = connections_of(source) - 1
        members.append([number, *range(first, first + beside)])
        first += beside
    for place, number in enumerate(dispatched):
        source = sources[number]
        assert isinstance(source, ConstantRate)
        _prepare(dispatchers[place], source, members[number])
        for position, flow_number in enumerate(members[number]):
            flow = flows[flow_number]
            flow.application, flow.dispatcher, flow.member = DISPATCHED, place + 1, position
            flow.due_write = NEVER
            if position > 0:
                flow.next_write = NEVER
            _join(fresh, flow, flow_number, number, source)
    return dispatchers, members


def _prepare(d: Any, source: ConstantRate, numbers: list[int]) -> None:
    d.leader, d.first_member = numbers[0], numbers[1] if len(numbers) > 1 else 0
    d.connections, d.pieces = source.connections, source.pieces
    d.intelligent = int(source.scheduling == "intelligent")
    d.discard_after = NEVER if source.discard_after is None else round(source.discard_after * SECOND)
    d.keepalive_size = source.keepalive_size or 0
    if source.talk is not None and source.silence is not None:
        # Before the first packet ends a silence.
        d.suppressing, d.phase_end = 1, round(source.start * SECOND)
        d.mean_talk, d.mean_silence = source.talk * SECOND, source.silence * SECOND


def _join(fresh: Any, flow: Any, number: int, leader: int, source: ConstantRate) -> None:
    """Let a connection write pieces, by the clock of the host that the first connection has."""
    if flow.kind == CLASSIC:
        fresh.classic[number].segment_size = -(-source.flow.packet_size // source.pieces)
        fresh.classic[number].tick_phase = fresh.classic[leader].tick_phase
        return
    connection = fresh.linux[number]
    connection.tick_phase = fresh.linux[leader].tick_phase
    equal = source.flow.packet_size % source.pieces == 0 and source.keepalive_size is None
    connection.packet_size = source.flow.packet_size // source.pieces if equal else ANY_WRITE


NANOSECONDS = 1e9
DISCIPLINES = {"drop-tail": DROP_TAIL, "red": RED, "dred": DRED}
KINDS: dict[type[Stack], int] = {Linux: LINUX, Classic: CLASSIC, Udp: DATAGRAMS, Scp: SCP}
VARIANTS = {"reno": classic.RENO, "newreno": classic.NEWRENO, "sack": classic.SACK}
_SHORTENED = {"events": (EVENT, (1,)), "delays": (np.int64, (2, 1))}
NETWORK_WIRE = np.dtype([(name, *_SHORTENED.get(name, (WIRE[name],))) for name in WIRE.names or ()])
"""What is under way in one flow; as `WIRE`, but without a packet trace and the delays, which are counted elsewhere."""


@dataclass
class Network:
    """All records of a simulation; each array has one entry per flow, `link` and `samples` have one.

    Attributes
    ----------
    dispatchers : record array
        What puts packets on several connections; one that nobody uses if no source asks for it.
    members : list of list of int
        Of each source, the numbers of its flows.
    generators : list of Generator
        What the records draw from by address, so they must live as long.
    """

    flows: Any
    connections: Connections
    fresh: Connections
    wires: Any
    link: Any
    samples: Any
    tree: NDArray[np.int64]
    dispatchers: Any
    members: list[list[int]]
    generators: list[np.random.Generator]


def prepare(sources: Sequence[Source], bottleneck: Bottleneck, seed: int, count_from: float, until: float) -> Network:
    """Return the records of a simulation that has not begun; packets written from `count_from` to `until` [s] count."""
    # What a source needs beside its first connection comes after all sources.
    carried = [*sources, *(source for source in sources for _ in range(connections_of(source) - 1))]
    size = len(carried)
    leaves = 1 << (size - 1).bit_length()
    generators = [np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(size + 1)]
    generators.append(generators.pop(len(sources)))
    network = Network(
        flows=np.zeros(size, FLOW).view(np.recarray),
        connections=_unused_connections(size),
        fresh=_unused_connections(size),
        wires=np.zeros(size, NETWORK_WIRE).view(np.recarray),
        link=np.zeros(1, LINK).view(np.recarray),
        samples=np.zeros(1, COUNTERS).view(np.recarray),
        tree=np.full(2 * leaves, NEVER, np.int64),
        dispatchers=None,
        members=[],
        generators=generators,
    )
    _prepare_link(network.link[0], bottleneck, generators[-1])
    for number, source in enumerate(carried):
        flow, wire = network.flows[number], network.wires[number]
        addresses = generator_addresses(generators[number])
        flow.next_double, flow.random_state = wire.next_double, wire.random_state = addresses
        flow.number = number
        flow.count_from, flow.count_until = round(count_from * SECOND), round(until * SECOND)
        stop = min(source.stop, until)
        # The flow begins anywhere within a tick of its host's clock.
        phase = int(generators[number].integers(SECOND))
        _prepare_flow(flow, source, stop)
        if isinstance(source.stack, Linux):
            network.fresh.linux[number] = _linux(source, source.stack, phase)
        elif isinstance(source.stack, Classic):
            _prepare_classic(network.fresh.classic[number], flow, source.stack, phase)
        elif isinstance(source.stack, Scp):
            _prepare_scp(network.fresh.scp[number], source.stack)
    network.dispatchers, network.members = prepare_dispatchers(sources, network.flows, network.fresh)
    for connections, fresh in zip(network.connections, network.fresh, strict=True):
        connections[:] = fresh
    return network


def _unused_connections(size: int) -> Connections:
    """Return connections of every kind for so many flows, all zero."""
    return Connections(*(np.zeros(size, record).view(np.recarray) for record in (CONNECTION, CLASSIC_RECORD, scp.SCP)))


def _set(record: Any, values: dict[str, float]) -> None:
    for name, value in values.items():
        record[name] = value


def _prepare_link(link: Any, bottleneck: Bottleneck, random: np.random.Generator) -> None:
    link.next_double, link.random_state = generator_addresses(random)
    nanoseconds_per_byte = 8 * NANOSECONDS / bottleneck.rate
    _set(
        link,
        {
            "discipline": DISCIPLINES[bottleneck.discipline],
            "in_bytes": int(bottleneck.unit == "bytes"),
            "capacity": bottleneck.capacity,
            "nanoseconds_per_byte": nanoseconds_per_byte,
            "burst_time": round(bottleneck.burst * nanoseconds_per_byte),
            "virtual_finish": -round(bottleneck.burst * nanoseconds_per_byte),
            "min_th": bottleneck.min_th,
            "max_th": bottleneck.max_th,
            "max_p": bottleneck.max_p,
            "w_q": bottleneck.w_q,
            "gentle": int(bottleneck.gentle),
            "mean_packet_size": bottleneck.mean_packet_size,
            "threshold": bottleneck.bandwidth_delay_product or np.inf,
            "count": -1,
        },
    )


def _prepare_flow(flow: Any, source: Source, stop: float) -> None:
    path, start = source.path, round(source.start * SECOND)
    kind = next(kind for stack, kind in KINDS.items() if isinstance(source.stack, stack))
    settings: dict[str, float] = {
        "kind": kind,
        "access_delay": round(path.access_delay * SECOND),
        "exit_delay": round(path.exit_delay * SECOND),
        "return_delay": round(path.back * SECOND),
        "return_jitter": round(path.return_jitter * SECOND),
        "header": source.header_size,
        "ecn": int(source.ecn),
        "loss": path.loss,
        "loss_burst": path.loss_burst,
        "until_loss": segments_until_loss(flow, path.loss),
        "section": 1,
        "first_write": start,
        "next_write": start if source.start < stop else NEVER,
        "stop": round(stop * SECOND),
        "first_timeout": round(FIRST_TIMEOUT * SECOND),
    }
    if isinstance(source, ConstantRate):
        settings |= {
            "application": CONSTANT_RATE,
            "message": source.flow.packet_size,
            "interval": max(round(source.flow.interval * SECOND), 1),
            "forging": int(source.forging),
        }
        stack = source.stack
        if isinstance(stack, Linux) and LARGEST_FLIGHT * stack.mss > KEPT * source.flow.packet_size:
            smallest = -(-LARGEST_FLIGHT * stack.mss // KEPT)
            raise ValueError(f"packet_size must be at least {smallest} bytes, got {source.flow.packet_size}")
    elif isinstance(source, Sections):
        settings |= {
            "application": CONSTANT_RATE,
            "message": source.stack.mss,  # type: ignore[attr-defined]
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
        raise ValueError(f"sources must be ConstantRate, Sections, Bulk, Transfers or Web, got {source!r}")
    if isinstance(source, (ConstantRate, Bulk)) and source.min_buf is not None:
        settings |= {"min_buf_multiple": source.min_buf.multiple, "min_buf_extra": source.min_buf.extra}
    _set(flow, settings)


def _bulk(source: Bulk) -> dict[str, float]:
    stack = source.stack
    message = stack.mss if source.packet_size is None else source.packet_size  # type: ignore[attr-defined]
    send_buffer = source.send_buffer or 0
    if source.min_buf is not None and not send_buffer:
        send_buffer = min(WRITES * message, LARGEST_SEND_BUFFER)
    if isinstance(stack, Classic) and not send_buffer:
        send_buffer = 2 * stack.receiver_window * stack.mss
    if send_buffer and not message <= send_buffer <= WRITES * message:
        raise ValueError(f"send_buffer must hold 1 to {WRITES} packets, got {send_buffer / message:.3g}")
    return {
        "application": BULK,
        "message": message,
        "send_buffer": send_buffer,
        "notsent_lowat": source.notsent_lowat or 0,
    }


def _linux(source: Source, stack: Linux, phase: int) -> Any:
    """Return a connection of the Linux sender, to which the link is a path of constant delay that defers arrivals."""
    path = Path(rtt=max(source.path.there + source.path.back, 1e-6), loss=0.0, one_way_delay=source.path.there)
    flow = source.flow if isinstance(source, ConstantRate) else Flow(stack.mss, 1.0)
    connection, _ = new_connection(flow, path, stack, 0)
    # Writes are timed here, so what the sender and the receiver keep are times and not delays.
    _set(connection, {"interval": 0, "next_write": NEVER, "deferred": 1, "leaping": 0, "until_loss": ALWAYS})
    connection.host_delay = round(source.path.access_delay * SECOND) if source.path.in_host else 0
    connection.tick_phase += phase % connection.tick - connection.tick_phase % connection.tick
    return connection


def _prepare_classic(connection: Any, flow: Any, stack: Classic, phase: int) -> None:
    tick = round(stack.tick * SECOND)
    flow.ack_delay = round(stack.ack_delay * SECOND)
    flow.first_timeout = round(stack.first_timeout * SECOND)
    _set(
        connection,
        {
            "variant": VARIANTS[stack.recovery],
            "segment_size": stack.mss if flow.application != CONSTANT_RATE else flow.message,
            "receiver_window": stack.receiver_window,
            "mss": stack.mss,
            "limited_transmit": int(stack.limited_transmit),
            "byte_counting": int(stack.byte_counting),
            "window_validation": int(stack.window_validation),
            "tick": tick,
            "tick_phase": phase % tick,
            "rto_min": max(-(-round(stack.rto_min * SECOND) // tick), 1),
            "rto": max(-(-round(stack.first_timeout * SECOND) // tick), 1),
            "cwnd": stack.initial_window,
            "ssthresh": stack.receiver_window,
            "recover": -1,
            "ecn_recover": -1,
            "timed": classic.NOT_TIMED,
            "timer_at": NEVER,
            "lifetime": round(stack.deadline * SECOND) if isinstance(stack, TimeLined) else 0,
            "expires_at": NEVER,
            "forge_at": NEVER,
            "last_arrival": -1,
        },
    )


def _prepare_scp(connection: Any, stack: Scp) -> None:
    times = {"rto_min": stack.rto_min * SECOND, "first_timeout": stack.first_timeout * SECOND}
    _set(connection, {"backlog": stack.backlog, "rate_gain": stack.rate_gain, **times})
    scp.reset(connection)
