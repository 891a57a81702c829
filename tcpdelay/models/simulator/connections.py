"""The connections that carry the packets of a simulation in turn.

Reno and CUBIC forget the start of a connection within seconds, so that they use a single connection. BBR does not end
its startup while the application limits the rate. Its startup lasts for seconds to hours, and delays are shorter
meanwhile; so the delays of BBR depend on the age of the connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.simulator.engine import advance, new_connection
from tcpdelay.models.simulator.records import Rules
from tcpdelay.models.tcp import SECOND
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

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


@dataclass
class Connections:
    """The connections of a simulation; unless BBR controls congestion, a single connection.

    Parameters
    ----------
    flow, path, stack, seed, rules, exact_ties, tick_offset, connection_time
        As for `tcpdelay.models.simulator.simulation.simulate`.
    """

    flow: Flow
    path: Path
    stack: Linux
    seed: int
    rules: Rules
    exact_ties: bool
    tick_offset: float | None
    connection_time: float
    _earlier: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def __post_init__(self) -> None:
        self._warm_up, self._packets = WARM_UP, 0
        if self.stack.congestion_control == "bbr":
            self._warm_up = max(round(BBR_WARM_UP / self.flow.interval), 1)
            self._packets = max(round(self.connection_time / self.flow.interval) - self._warm_up, 1)
        self._open(self.seed)

    def _open(self, seed: int) -> None:
        """Open a connection, and let it carry the packets that do not count."""
        self.state, self.wire = new_connection(self.flow, self.path, self.stack, seed, self.rules, self.exact_ties)
        if self.tick_offset is not None:
            phase = round(self.tick_offset * SECOND) % self.state.tick
            self.state.tick_phase += phase - self.state.tick_phase % self.state.tick
        advance(self.state, self.wire, self._warm_up)
        self._left = self._packets

    def chunk(self, most: int) -> int:
        """Return the number of packets of a chunk, at most `most`: a connection carries a whole number of chunks."""
        return -(-self._packets // -(-self._packets // most)) if self._packets else most

    def advance(self, packets: int) -> tuple[NDArray[np.int64], float]:
        """Return the delays [us] of the next packets, shape (2, packets), and the packets written per packet read."""
        if self._packets and self._left <= 0:
            self._earlier = self.counts
            self._open(int(self.wire.random.integers(1 << 62)))
        self._left -= packets
        first, written = int(self.state.packets_read), int(self.state.packets_written)
        if self.tick_offset is None:
            self.state.tick_phase += int(self.wire.random.integers(self.state.tick))
        advance(self.state, self.wire, first + packets)
        # A call may read more packets than it has to: those that waited for the same segment.
        read = int(self.state.packets_read) - first
        return self.wire.delays_of(first, packets), (int(self.state.packets_written) - written) / read

    @property
    def counts(self) -> dict[str, int]:
        """Counts of all connections by name."""
        return {name: count + int(self.state[name]) for name, count in self._earlier.items()}
