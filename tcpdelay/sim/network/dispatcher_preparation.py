"""From sources that split, spread, discard or suppress packets to the records of their dispatchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tcpdelay.sim.network.dispatcher import DISPATCHER
from tcpdelay.sim.network.records import CLASSIC, DISPATCHED
from tcpdelay.sim.network.sources import ConstantRate, Source
from tcpdelay.sim.records import NEVER

SECOND = 1_000_000
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
