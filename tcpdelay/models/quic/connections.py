"""The QUIC connection that carries the messages of a simulation, behind the interface of `simulator.connections`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from tcpdelay.models.quic.engine import QuicSchedule, advance, compile_loop, new_connection
from tcpdelay.models.quic.records import is_backlogged
from tcpdelay.models.simulator.connections import WARM_UP, Chunk, chunk_since
from tcpdelay.models.simulator.records import Wire
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Quic

COUNTS = (
    "packets_sent",
    "packets_lost",
    "declared_lost",
    "spurious_losses",
    "reductions",
    "probe_timeouts",
    "acks_sent",
    "acks_lost",
)


@dataclass
class QuicConnections:
    """The one connection of a simulation of QUIC.

    Parameters
    ----------
    source, path, stack, seed
        As for `tcpdelay.models.simulator.simulation.simulate`.
    longest : float
        Processor time after which it carries no more messages [s]. The time for compiling does not count.
    """

    source: Source
    path: Path
    stack: Quic
    seed: int
    longest: float
    warm_up: int = field(default=WARM_UP, init=False)
    ends: float = field(default=math.inf, init=False)
    state: Any = field(init=False)
    wire: Wire = field(init=False)

    def __post_init__(self) -> None:
        self.state, self.wire = new_connection(self.source, self.path, self.stack, self.seed)
        self.schedule = None if isinstance(self.source, Flow) else QuicSchedule(self.source, self.seed)
        if self.schedule is not None:
            self.schedule.begin(self.state)
        compile_loop(self.state, self.wire)
        self.ends = time.thread_time() + self.longest
        advance(self.state, self.wire, self.warm_up, self.schedule, self.ends)

    def chunk(self, most: int) -> int:
        """Return the number of messages of a chunk, at most `most`."""
        return most

    def advance(self, packets: int, with_messages: bool) -> Chunk:
        """Return the next messages: fewer if the source or the time ends, or too much waits."""
        first, written = int(self.state.packets_read), int(self.state.packets_written)
        advance(self.state, self.wire, first + packets, self.schedule, self.ends)
        return chunk_since(self.state, self.wire, self.schedule, first, written, packets, with_messages)

    @property
    def backlogged(self) -> bool:
        """Whether more waits than a connection can keep."""
        return is_backlogged(self.state, self.wire.record) or (self.schedule is not None and self.schedule.backlogged)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the connection by name."""
        return {name: int(self.state[name]) for name in COUNTS}
