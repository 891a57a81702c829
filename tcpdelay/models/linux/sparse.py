"""Sparse flows: the next packet is written after the timer of a lost packet has fired.

A packet then has no company: no later segment can show its loss, and the timer alone repairs it. The tail loss probe,
the timeouts and their backoff give the delay (`tcp_schedule_loss_probe`, `tcp_send_loss_probe`,
`tcp_retransmit_timer`; RFC 8985, 7; RFC 6298, 5). The slots of the chain are too coarse for it: a slot is then longer
than all delays of interest.

So the delays are the sum over all sequences of losses, from a packet that is written while nothing is in flight until
everything is acknowledged, and over the phases of the timer wheel at which the packet may be written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models import tcp
from tcpdelay.models.linux.parameters import TIMER_SLACK
from tcpdelay.models.linux.profile import LinuxProfile
from tcpdelay.models.linux.timeouts import MOST_PHASES, is_sparse, timeout_ticks
from tcpdelay.models.solver.narrow import LEFT, RequestedFigures, solve_narrow, sum_up
from tcpdelay.models.solver.state_space import Rows
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

NEGLIGIBLE = 1e-7
"""Probability of a sequence of losses below which it is left out, for a packet that begins with an empty flight."""
PARTS_OF_TICK = 4
"""Number of times within a tick at which a packet may be written."""
DIGITS = 7
"""Decimals of a delay [s]."""


class _Lost(NamedTuple):
    """A lost segment: when it was sent, what has happened to it, and who waits for it. Times are in ticks."""

    sent: float
    waiting: tuple[float, ...]
    """Times at which the packets in flight were written."""
    held: tuple[float, ...]
    """The same of packets that the window holds back after a timeout."""
    next_write: float
    timeout: int
    probes: int
    """Number of tail loss probes left: 1, or 0 after a probe."""
    in_timeout: bool


class _SparseDelays:
    """Collects the delays of all sequences of losses that begin with a packet in an empty flight."""

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        self._loss = path.loss * (min(flow.packet_size / stack.mss, 1.0) if path.bottleneck == "bytes" else 1.0)
        self._interval, self._rtt = flow.interval * stack.hz, path.rtt * stack.hz
        self._forward = path.forward_delay * stack.hz
        self._slack = TIMER_SLACK * stack.hz
        self._timeout = timeout_ticks(path, stack)
        self._longest = int(stack.rto_max * stack.hz)
        self._delays: defaultdict[float, float] = defaultdict(float)
        self._hz = stack.hz
        self.held = 0.0
        """Sum over all packets of the time in the send buffer [s]."""

    def collect(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights, which sum to 1."""
        for phase in range(MOST_PHASES * PARTS_OF_TICK):
            written = (phase + 0.5) / PARTS_OF_TICK
            self._send(written, (written,), written + self._interval, 1.0)
        values = np.array(sorted(self._delays))
        weights = np.array([self._delays[value] for value in values])
        self.held /= weights.sum()
        return values, weights / weights.sum()

    def _deliver(self, arrival: float, written: tuple[float, ...], share: float) -> None:
        for time in written:
            self._delays[round((arrival - time) / self._hz, DIGITS)] += share

    def _send(self, time: float, written: tuple[float, ...], next_write: float, share: float) -> None:
        """Send packets in one segment into an empty flight."""
        self._deliver(time + self._forward, written, share * (1 - self._loss))
        lost = _Lost(time, written, (), next_write, self._timeout, 1, False)
        self._lose(lost, share * self._loss)

    def _expiry(self, time: float, ticks: int) -> float:
        return float(tcp.wheel_expiry(math.floor(time), ticks))

    def _lose(self, lost: _Lost, share: float) -> None:
        """Follow a lost segment until a retransmission arrives."""
        if share < NEGLIGIBLE:
            return
        fires = self._expiry(lost.sent, lost.timeout)
        if lost.in_timeout:
            lost = self._holding(lost, fires)
        elif lost.next_write < fires:
            self._write_meanwhile(lost, fires, share)
            return
        timeout, in_timeout = lost.timeout, lost.in_timeout
        if lost.probes == 0:
            # The timer of the first timeout is that of the probe; each timeout doubles the next one.
            timeout, in_timeout = min(2 * timeout, self._longest), True
        again = lost._replace(sent=fires, timeout=timeout, probes=0, in_timeout=in_timeout)
        self._retransmit(again, share)

    def _holding(self, lost: _Lost, until: float) -> _Lost:
        """Return a lost segment with the packets that are written before a time and that the window holds back."""
        count = max(math.ceil((until - lost.next_write) / self._interval), 0)
        written = (lost.next_write + number * self._interval for number in range(count))
        return lost._replace(held=(*lost.held, *written), next_write=lost.next_write + count * self._interval)

    def _write_meanwhile(self, lost: _Lost, fires: float, share: float) -> None:
        """Write a packet before the timer of the probe or of the first timeout fires; it leaves at once."""
        written, later = lost.next_write, lost.next_write + self._interval
        both = lost._replace(waiting=(*lost.waiting, written), next_write=later)
        found = written + self._rtt
        wait = self._rtt / tcp.REORDERING_SHARE - (written - lost.sent)
        if wait > 0:
            found = self._expiry(found, math.ceil(wait + self._slack))
        if found < fires:
            # RACK finds the loss by the SACK of the later packet (`tcp_rack_detect_loss`).
            again = both._replace(sent=found, timeout=self._timeout, probes=0)
            self._retransmit(again, share * (1 - self._loss))
            self._lose(both, share * self._loss)
        else:
            self._lose(both, share)

    def _retransmit(self, lost: _Lost, share: float) -> None:
        """Retransmit a lost segment; packets that were held back leave with the ACK."""
        arrives = share * (1 - self._loss)
        self._deliver(lost.sent + self._forward, lost.waiting, arrives)
        acknowledged = lost.sent + self._rtt
        later = self._holding(lost, acknowledged) if lost.in_timeout else lost
        if later.held and arrives >= NEGLIGIBLE:
            self.held += arrives * sum(acknowledged - time for time in later.held) / self._hz
            self._send(acknowledged, later.held, later.next_write, arrives)
        self._lose(lost, share * self._loss)


class SparseProfile(LinuxProfile):
    """The chain of a Linux kernel for a sparse flow: a `Profile` with delays of its own.

    The chain itself says whether TCP carries the flow.
    """

    def __init__(self, flow: Flow, path: Path, stack: Linux) -> None:
        super().__init__(flow, path, stack)
        self._collected = _SparseDelays(flow, path, stack)

    @cached_property
    def _found(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._collected.collect()

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return no time [s] and no memory [bytes]: bins of the chain, which may take much of both, are not made."""
        return 0.0, 0.0

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        return self._found

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        values, weights = self._found
        return 0.0, float(values @ weights) - self._forward_delay - self._collected.held, self._collected.held

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time with packets in the send buffer."""
        values, _ = self._found
        return min(self._collected.held / self.parameters.interval, 1.0) if values.size else 0.0

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64]) -> int:
        """Return whether TCP carries the flow, by the chain within its first bound, and compute the figures."""
        phases, transitions = self.structure
        outcome, _, _, cut = solve_narrow(phases, transitions, self.start, self.backlogged, self.first_bound, True)
        if outcome == LEFT:
            return LEFT
        return int(sum_up(outcome, *self._found, cut, True, figures, result))


def linux_profile(flow: Flow, path: Path, stack: Linux) -> LinuxProfile:
    """Return the chain of a Linux kernel for one scenario."""
    return SparseProfile(flow, path, stack) if is_sparse(flow, path, stack) else LinuxProfile(flow, path, stack)
