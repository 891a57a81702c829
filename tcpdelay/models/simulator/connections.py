"""The connections that carry the packets of a simulation in turn.

Reno and CUBIC forget the start of a connection within seconds, so that they use a single connection. BBR does not end
its startup while the application limits the rate. Its startup lasts for seconds to hours, and delays are shorter
meanwhile; so the delays of BBR depend on the age of the connection.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.simulator.engine import advance, compile_loop, new_connection
from tcpdelay.models.simulator.records import Rules, Wire
from tcpdelay.models.simulator.writes import AnsweredSchedule, WriteSchedule
from tcpdelay.models.tcp import SECOND
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source, message_array
from tcpdelay.scenario.stack import Linux, Quic

WARM_UP = 2_000
"""Packets at the beginning that are not counted."""
BBR_WARM_UP = 10.0
"""Time at the beginning of a BBR connection that is not counted [s]: the first round trips."""
CONNECTION_TIME = 1200.0
"""Age up to which the packets of a BBR connection count by default [s]."""
SHORTEST_CONNECTION, LONGEST_CONNECTION = 60.0, 1e6
"""Bounds of this age [s]."""
COUNTS = (
    "segments_sent",
    "segments_lost",
    "segments_retransmitted",
    "recoveries",
    "timeouts",
    "probes",
    "reordering_timeouts",
    "undone",
    "acks_sent",
    "acks_lost",
)


class Chunk(NamedTuple):
    """Consecutive packets of a simulation.

    Attributes
    ----------
    delays : ndarray of int64, shape (2, packets)
        Time of each packet from its write to its read, and to its first transmission [us].
    written_per_read : float
        Packets written in the time in which a packet is read.
    messages : structured array
        The messages, of type `tcpdelay.scenario.sources.message_stream.MESSAGE`; none of a constant rate unless they
        are requested.
    """

    delays: NDArray[np.int64]
    written_per_read: float
    messages: NDArray[np.void]

    @property
    def packets(self) -> int:
        """Number of packets."""
        return int(self.delays.shape[1])


def chunk_since(
    state: Any, wire: Any, schedule: WriteSchedule | None, first: int, written: int, packets: int, with_messages: bool
) -> Chunk:
    """Return at most a number of packets that a connection has read since it had read `first` and written `written`.

    `state` and `wire` are those of a connection after that. The messages of a constant rate are returned only
    `with_messages`.
    """
    # A call may read more packets than it has to: those that waited for the same segment.
    read = int(state.packets_read) - first
    packets = min(packets, read)
    written_per_read = (int(state.packets_written) - written) / read if read else np.inf
    if schedule is not None:
        messages = schedule.numbered(first, first + packets)
    else:
        numbers = np.arange(first, first + packets if with_messages else first)
        messages = message_array(numbers * (int(state.interval) / SECOND), int(state.packet_size))
    return Chunk(wire.delays_of(first, packets)[:2], written_per_read, messages)


def warm_up(source: Source, stack: Linux | Quic) -> int:
    """Return the number of packets at the beginning of a connection that are not counted.

    Examples
    --------
    >>> warm_up(Flow(174, 0.020), Linux()), warm_up(Flow(174, 0.020), Linux(congestion_control="bbr"))
    (2000, 500)
    """
    return max(round(BBR_WARM_UP / source.mean_interval), 1) if stack.congestion_control == "bbr" else WARM_UP


@dataclass
class Connections:
    """The connections of a simulation; unless BBR controls congestion, a single connection.

    Parameters
    ----------
    source, path, stack, seed, rules, exact_ties, tick_offset, connection_time
        As for `tcpdelay.models.simulator.simulation.simulate`.
    longest : float
        Processor time after which they carry no more packets [s]. The time for compiling does not count.
    answered : bool
        Whether each message waits until the message before it is read and answered, as in `AnsweredSchedule`.
    """

    source: Source
    path: Path
    stack: Linux
    seed: int
    rules: Rules
    exact_ties: bool
    tick_offset: float | None
    connection_time: float
    longest: float
    answered: bool = False
    ends: float = field(default=math.inf, init=False)
    state: Any = field(default=None, init=False)
    wire: Wire = field(init=False)
    _earlier: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def __post_init__(self) -> None:
        self.warm_up, self._packets = warm_up(self.source, self.stack), 0
        if self.stack.congestion_control == "bbr":
            self._packets = max(round(self.connection_time / self.source.mean_interval) - self.warm_up, 1)
        schedule = AnsweredSchedule if self.answered else WriteSchedule
        self.schedule = None if isinstance(self.source, Flow) else schedule(self.source, self.seed)
        self._open(self.seed)

    def _open(self, seed: int) -> None:
        """Open a connection, and let it carry the packets that do not count."""
        earlier = self.state
        self.state, self.wire = new_connection(self.source, self.path, self.stack, seed, self.rules, self.exact_ties)
        if self.tick_offset is not None:
            phase = round(self.tick_offset * SECOND) % self.state.tick
            self.state.tick_phase += phase - self.state.tick_phase % self.state.tick
        if self.schedule is not None:
            self.schedule.begin(self.state, earlier)
        if earlier is None:
            compile_loop(self.state, self.wire)
            self.ends = time.thread_time() + self.longest
        advance(self.state, self.wire, self.warm_up, self.schedule, self.ends)
        self._left = self._packets

    def chunk(self, most: int) -> int:
        """Return the number of packets of a chunk, at most `most`: a connection carries a whole number of chunks."""
        return -(-self._packets // -(-self._packets // most)) if self._packets else most

    def advance(self, packets: int, with_messages: bool) -> Chunk:
        """Return the next packets: fewer if the source or the time ends, or too many packets wait to be read.

        The messages of a constant rate are returned only `with_messages`.
        """
        if self._packets and self._left <= 0:
            self._earlier = self.counts
            self._open(int(self.wire.random.integers(1 << 62)))
        self._left -= packets
        first, written = int(self.state.packets_read), int(self.state.packets_written)
        if self.tick_offset is None:
            self.state.tick_phase += int(self.wire.random.integers(self.state.tick))
        advance(self.state, self.wire, first + packets, self.schedule, self.ends)
        return chunk_since(self.state, self.wire, self.schedule, first, written, packets, with_messages)

    @property
    def backlogged(self) -> bool:
        """Whether more messages wait to be read than can be kept."""
        return self.schedule is not None and self.schedule.backlogged

    @property
    def counts(self) -> dict[str, int]:
        """Counts of all connections by name."""
        return {name: count + int(self.state[name]) for name, count in self._earlier.items()}
