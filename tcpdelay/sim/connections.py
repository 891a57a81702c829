"""A run: the connections of a transport that carry a source's messages in turn, and the messages that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import SimulationBudget
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Source, is_exact, message_array
from tcpdelay.scenario.stack import Linux, Quic
from tcpdelay.sim.records import Rings, Wire
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.sim.writes import Writer, WriteSchedule

State = TypeVar("State", bound=Writer)

# Reno and CUBIC forget the start of a connection within seconds, so that they use a single connection. BBR over TCP
# does not end its startup while the application limits the rate. Its startup lasts for seconds to hours, and delays are
# shorter meanwhile; so the delays of BBR depend on the age of the connection.

WARM_UP = 2_000
"""Packets at the beginning that are not counted."""
BBR_WARM_UP = 10.0
"""Time at the beginning of a BBR connection that is not counted [s]: the first round trips."""


def warm_up(source: Source, stack: Linux | Quic) -> int:
    """Return the number of packets at the beginning of a connection that are not counted."""
    return max(round(BBR_WARM_UP / source.mean_interval), 1) if depends_on_age(stack) else WARM_UP


def depends_on_age(stack: Linux | Quic) -> bool:
    """Return whether delays depend on the age of a connection."""
    return isinstance(stack, Linux) and stack.congestion_control == "bbr"


@dataclass(frozen=True)
class Engine(Generic[State, Rings]):
    """The simulation of a connection of one transport."""

    # Opens a connection, given source, path, stack, seed and settings of its own.
    open: Callable[..., tuple[State, Wire[Rings]]]
    # Kernel that processes events until a number of messages have been read, or some work is done; returns the work.
    step: Callable[[State, Rings, int, int], int]
    counts: tuple[str, ...]  # Fields of a connection that are counts
    schedule: type[WriteSchedule] = WriteSchedule  # The messages of a source without exact writes
    is_backlogged: Callable[[State, Rings], bool] = lambda connection, wire: False  # Whether it can keep no more
    has_ticks: bool = False  # Whether timers expire at the ticks of a clock, which no flow shares
    work_of_connection: int = 0  # Work of opening a connection, in units of `SECONDS_PER_WORK`

    def advance(
        self,
        connection: State,
        wire: Wire[Rings],
        messages: int,
        schedule: WriteSchedule | None = None,
        budget: SimulationBudget | None = None,
    ) -> None:
        """Simulate until a number of messages are read, or fewer if source or budget ends or messages pile up."""
        budget = budget or SimulationBudget()
        while (
            connection.packets_read < messages
            and not self.is_backlogged(connection, wire.record)
            and (most := budget.next_call())
        ):
            if schedule is not None:
                messages = min(messages, schedule.fill(connection, wire))
            budget.spend(self.step(connection, wire.record, messages, most))

    def compile(self, connection: State, wire: Wire[Rings]) -> None:
        """Compile the event loop without processing an event, so that its time does not count."""
        self.step(connection, wire.record, 0, 0)


class Chunk(NamedTuple):
    """Consecutive messages that are read."""

    first: int  # Number of the first message since the connection was opened
    # Time of each message from its write to its read, and to its first transmission [us]; of TCP also the bytes that
    # the send buffer holds when it has taken the message
    delays: NDArray[np.int64]
    written_per_read: float  # Messages written in the time in which a message is read
    messages: NDArray[np.void]  # Of type `tcpdelay.scenario.source.MESSAGE`; none unless they are requested

    @property
    def packets(self) -> int:
        """Number of messages."""
        return int(self.delays.shape[1])


@dataclass
class Connections(Generic[State, Rings]):
    """The connections that carry the messages of a source in turn; unless their age matters, a single connection."""

    engine: Engine[State, Rings]
    source: Source
    path: Path
    stack: Linux | Quic
    seed: int
    budget: SimulationBudget  # What they may take; then they carry no more messages
    warm_up: int  # Messages at the beginning of a connection that are left out
    settings: Mapping[str, Any] = field(default_factory=dict)  # Settings of the engine's own, for each connection
    tick_offset: float | None = None  # As for `tcpdelay.sim.simulation.simulate`
    # Age of a connection [s] up to which it carries messages, where delays depend on it; None for a single connection
    connection_time: float | None = None
    schedule: WriteSchedule | None = None  # By default that of the engine
    with_messages: bool = False  # Whether chunks have their messages, or the delays alone
    # Whether a chunk has all messages that have been read. A call may read more than requested: those that waited for
    # the same segment.
    whole: bool = False
    state: State = field(init=False)
    wire: Wire[Rings] = field(init=False)

    def __post_init__(self) -> None:
        self._packets, self._earlier = 0, dict.fromkeys(self.engine.counts, 0)
        if self.connection_time is not None and depends_on_age(self.stack):
            self._packets = max(round(self.connection_time / self.source.mean_interval) - self.warm_up, 1)
        if self.schedule is None and not is_exact(self.source):
            self.schedule = self.engine.schedule(self.source, self.seed)
        self._open(self.seed)

    def _open(self, seed: int, earlier: State | None = None) -> None:
        """Open a connection, and let it carry the messages that do not count."""
        self.state, self.wire = self.engine.open(self.source, self.path, self.stack, seed, **self.settings)
        if self.tick_offset is not None:
            phase = round(self.tick_offset * SECOND) % self.state["tick"]
            self.state["tick_phase"] += phase - self.state["tick_phase"] % self.state["tick"]
        if self.schedule is not None:
            self.schedule.begin(self.state, earlier)
        if earlier is None:
            self.engine.compile(self.state, self.wire)
            self.budget.start()
        self.budget.spend(self.engine.work_of_connection)
        self.engine.advance(self.state, self.wire, self.warm_up, self.schedule, self.budget)
        self._left = self._packets

    def chunk(self, most: int) -> int:
        """Return the number of messages of a chunk, at most `most`: a connection carries a whole number of chunks."""
        return -(-self._packets // -(-self._packets // most)) if self._packets else most

    def chunks(self, messages: int, most: int) -> Iterator[Chunk]:
        """Yield the next messages, in chunks of at most `most`; fewer if source or budget ends or messages pile up."""
        while messages > 0:
            chunk = self._next(min(most, messages))
            if self.backlogged or not chunk.packets:
                return
            messages -= chunk.packets
            yield chunk

    def _next(self, packets: int) -> Chunk:
        if self._packets and self._left <= 0:
            self._earlier = self.counts
            self._open(int(self.wire.random.integers(1 << 62)), self.state)
        self._left -= packets
        first, written = int(self.state.packets_read), int(self.state.packets_written)
        if self.engine.has_ticks and self.tick_offset is None:
            # Flow and kernel have no common clock.
            self.state["tick_phase"] += int(self.wire.random.integers(self.state["tick"]))
        self.engine.advance(self.state, self.wire, first + packets, self.schedule, self.budget)
        read = int(self.state.packets_read) - first
        written_per_read = (int(self.state.packets_written) - written) / read if read else np.inf
        end = first + (read if self.whole else min(packets, read))
        last = end if self.with_messages else first
        if self.schedule is not None:
            messages = self.schedule.numbered(first, last)
        else:
            numbers = np.arange(first, last)
            messages = message_array(numbers * (int(self.state.interval) / SECOND), int(self.state.packet_size))
        return Chunk(first, self.wire.delays_of(first, end - first), written_per_read, messages)

    @property
    def backlogged(self) -> bool:
        """Whether more messages wait to be read than can be kept."""
        return self.engine.is_backlogged(self.state, self.wire.record) or (
            self.schedule is not None and self.schedule.backlogged
        )

    @property
    def counts(self) -> dict[str, int]:
        """Counts of all connections by name."""
        return {name: count + int(self.state[name]) for name, count in self._earlier.items()}
