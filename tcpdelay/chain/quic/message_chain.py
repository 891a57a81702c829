"""The chain of QUIC for messages that do not wait for each other, and how late its repairs are (RFC 9002, 6)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import WRONG_CALL, is_near_capacity, no_less_than_teeth
from tcpdelay.ask import (
    QUIC_SIMULATED,
    Answer,
    DelayParts,
    Requested,
    Support,
    UnsupportedError,
    ignored_lateness,
    refused_lateness,
    requested_figures,
    unknown_fields,
)
from tcpdelay.budget import Budget, TooLargeError
from tcpdelay.chain.delay_model import budget_for
from tcpdelay.chain.quic.window_chain import (
    WindowParameters,
    window_chain,
    window_levels,
    window_parameters,
    window_waits,
)
from tcpdelay.chain.solver.aggregation import backlog_drift
from tcpdelay.chain.solver.state_space import reachable_rows
from tcpdelay.chain.solver.stationary import (
    BYTES_PER_CELL,
    NEGLIGIBLE_LOSS,
    NEGLIGIBLE_TRUNCATION,
    from_start,
    probability_at_bound,
    solve_within,
)
from tcpdelay.compiling.compilation import interpreted_first
from tcpdelay.declare import declarations
from tcpdelay.delays import DelayDistribution, ExpectedError, Spread
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import Quic
from tcpdelay.sim.engine import TIE_BREAK
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS, QuicRules
from tcpdelay.sim.quic.sender import GRANULARITY, PACKET_THRESHOLD, TIME_THRESHOLD
from tcpdelay.sim.tcp.constants import SECOND

# How late a lost packet of QUIC is: when its loss is found, and when a retransmission arrives (RFC 9002, 6).
#
# The window is taken to be open: packets leave when they are written, and retransmissions when a loss is found.

NEGLIGIBLE = 1e-9
"""Probability of a sequence of losses below which it counts as repaired."""
DIGITS = 7
"""Decimals of a delay [s]."""
_TIE = 1e-9
"""Share of an interval within which two times are equal."""


class Found(NamedTuple):
    """How a loss is found: the time since the packet was sent [s], the probability, and whether a probe finds it."""

    after: float
    probability: float
    by_probe: bool


class LossRecovery(NamedTuple):
    """Loss recovery of a flow of messages, all of which leave at once when they are written."""

    loss: float  # Loss probability of a packet, 0 to below 1
    rtt: float  # Round-trip time [s]
    interval: float  # Interval of the messages [s]
    packets: int  # Packets of a message, 1 or more
    empty: int  # The last packets of a message that have no data of it
    ack_delay: float  # Delay of the ACK of a packet beside a gap [s]
    probe_timeout: float  # Probe timeout of a steady RTT, without back-off [s]
    probes: int  # Packets of a probe timeout

    def found(self, sent: float, behind: int, lost_behind: int, timeouts: int) -> Iterator[Found]:
        """Yield how the loss of a packet is found.

        An ACK of the first later packet that arrives shows the loss: at once, if it was sent three packets later or
        more (RFC 9002, 6.1.1), or else when 9/8 of the RTT have passed (6.1.2) or a third packet is acknowledged. A
        probe finds it if no packet is sent for a probe timeout (6.2.1).
        """
        if lost_behind < behind:
            yield Found(self._shown(sent, 0.0, lost_behind + 1, behind), 1.0, False)
            return
        timeout = self.probe_timeout * 2**timeouts
        last, later, rest = 0.0, behind, 1.0
        while rest > NEGLIGIBLE:
            at = self._later_write(sent, last, 1)
            if at - last > timeout:
                yield Found(last + timeout, rest, True)
                return
            for place in range(1, self.packets + 1):
                yield Found(self._shown(sent, at, later + place, later + self.packets), rest * (1 - self.loss), False)
                rest *= self.loss
            last, later = at, later + self.packets

    def _shown(self, sent: float, at: float, place: int, written: int) -> float:
        """Return when a loss is found by the packet that is sent `place` packets later, at a time since `sent` [s].

        By then, `written` packets are sent later than the lost one. The third of them is taken to arrive.
        """
        back = self.rtt + self.ack_delay
        if place >= PACKET_THRESHOLD:
            return at + back
        third = at if written >= PACKET_THRESHOLD else self._later_write(sent, at, PACKET_THRESHOLD - written)
        return min(max(at + back, TIME_THRESHOLD * self.rtt), third + back)

    def _later_write(self, sent: float, at: float, packets: int) -> float:
        """Return when a number of packets have been written after the time `at`; times are relative to `sent` [s]."""
        writes = -(-packets // self.packets)
        return (math.floor((sent + at) / self.interval + _TIE) + writes) * self.interval - sent

    def repaired(self, behind: int, lost_behind: int) -> dict[float, float]:
        """Return how late a lost packet of a message arrives [s], by probability; parameters as of `found`."""
        late: defaultdict[float, float] = defaultdict(float)
        self._follow(0.0, behind, lost_behind, 0, 1.0, late)
        return late

    def _follow(
        self, sent: float, behind: int, lost_behind: int, timeouts: int, share: float, late: defaultdict[float, float]
    ) -> None:
        """Follow the loss of a packet until a retransmission arrives."""
        for found in self.found(sent, behind, lost_behind, timeouts):
            again, possible = sent + found.after, share * found.probability
            lost = self.loss ** (self.probes if found.by_probe else 1)
            if possible * lost < NEGLIGIBLE:
                lost = 0.0
            late[round(again, DIGITS)] += possible * (1 - lost)
            if lost:
                self._follow(again, 0, 0, timeouts + 1 if found.by_probe else 0, possible * lost, late)


def loss_recovery(
    rules: QuicRules, path: Path, interval: float, packets: tuple[int, int], max_ack_delay: float
) -> LossRecovery:
    """Return the loss recovery of an implementation for messages of `packets` with and without data."""
    settings = rules.settings(max_ack_delay)
    gap_delay = 0.0 if rules.acks_gaps else settings["ack_delay"] / SECOND
    rtt = path.rtt + TIE_BREAK / SECOND
    # The RTT of the path is constant, so that its measured variation vanishes (RFC 9002, 5.3 and 6.2.1).
    timeout = rtt + (GRANULARITY + settings["max_ack_delay"]) / SECOND
    return LossRecovery(path.loss, rtt, interval, sum(packets), packets[1], gap_delay, timeout, rules.probes)


def message_repairs(recovery: LossRecovery) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays by which a message may be late for its losses [s], and their probabilities.

    A message is complete with the last of its packets with data. Packets are lost independently. How the loss of one is
    found depends on which of the packets behind it are lost, so that the packets are taken from the last to the first.
    """
    loss = recovery.loss
    each = {
        (behind, lost): recovery.repaired(behind, lost)
        for behind in range(recovery.empty, recovery.packets)
        for lost in range(behind + 1)
        if loss ** (lost + 1) >= NEGLIGIBLE
    }
    values = np.array(sorted({0.0}.union(*each.values())))
    # The share of messages that are complete by each delay, by the run of losses directly behind the next packet.
    by_then = {0: np.ones(values.size)}
    for behind in range(recovery.packets):
        following = {0: (1 - loss) * np.sum(list(by_then.values()), axis=0)}
        for lost, share in by_then.items():
            if behind < recovery.empty:
                following[lost + 1] = loss * share
            elif (behind, lost) in each:
                arrived = np.cumsum([each[behind, lost].get(value, 0.0) for value in values.tolist()])
                following[lost + 1] = loss * share * arrived
        by_then = following
    complete = np.sum(list(by_then.values()), axis=0)
    return values, np.diff(complete / complete[-1], prepend=0.0)


# The chain of QUIC for messages that do not wait for each other: a stream per message, or datagrams.
#
# The delay of a message is its wait for the window (`window_chain`), the one-way delay of the path, and the time until
# its lost packets have been repaired (`repairs`). The two waits are taken to be independent.

PATH_FIELDS = frozenset({"rtt", "loss", "one_way_delay"})
"""Fields of a path that the chain knows."""
LARGEST_LOSS = 0.25
"""Largest loss at which the sequences of losses of a packet are summed: with more, there are too many."""
MOST_PACKETS = 16
"""Most packets of a message: with more, pacing spreads each message."""
FIRST_BOUND = 64
"""First bound of the backlog, in units of `WindowParameters.unit`; it doubles until its effect is negligible."""
WORTH_FINISHING = 2 * NEGLIGIBLE_TRUNCATION
"""Probability at the bound above which a solution need not be exact: the bound grows anyway."""
BINS_PER_ROUND_TRIP = 16
"""Bins of the waits for the window per round-trip time."""
MOST_BINS = 4096
"""Most bins; longer waits make the bins wider."""
BUSY = 0.05
"""Mean wait for the window, in round-trip times, from which on it counts."""
LIMITED = 1.01
"""Ratio of a quantile to the one-way delay from which on waits or losses count at this quantile."""
SETTLED_RATE = 1e-3
"""Relative change at which the search for the largest rate ends."""
MOST_RATES = 20
"""Most rates that this search tries."""
ErrorGroup = Literal["one-way delay", "later", "waiting", "not carried"]
"""Predictions with errors of their own: a quantile at the one-way delay, or later; messages that wait for the window,
`BUSY` or more in the mean; a flow that is not carried."""
_COMPARED = "random scenarios, simulated (validation/results/quic-chain.md)"
_WAITING_MEAN, _NONE = Spread(0.0403, 0.1222, 0.3519), Spread(0.0, 0.0, 0.0)
ERRORS: dict[tuple[ErrorGroup, float], ExpectedError] = {
    ("one-way delay", 0.95): ExpectedError(0.0, 0.0026, 0.0, Spread(0.0, 0.0008, 0.0003), 510, _COMPARED, 0.95),
    ("one-way delay", 0.99): ExpectedError(0.0, 0.0036, 0.0, Spread(0.0, 0.0001, 0.0), 359, _COMPARED, 0.99),
    ("later", 0.95): ExpectedError(0.0, 0.0890, 0.2789, Spread(0.0007, 0.0157, 0.0512), 64, _COMPARED, 0.95),
    ("later", 0.99): ExpectedError(0.0, 0.0338, 0.1047, Spread(0.0, 0.0063, 0.0172), 215, _COMPARED, 0.99),
    ("waiting", 0.95): ExpectedError(0.0369, 0.1634, 0.4748, _WAITING_MEAN, 76, _COMPARED, 0.95),
    ("waiting", 0.99): ExpectedError(0.0317, 0.1609, 0.5810, _WAITING_MEAN, 76, _COMPARED, 0.99),
    ("not carried", 0.95): ExpectedError(0.0, 0.0, 0.0, _NONE, 53, _COMPARED, 0.95),
    ("not carried", 0.99): ExpectedError(0.0, 0.0, 0.0, _NONE, 53, _COMPARED, 0.99),
}
"""Errors by `validation/quic_chain.py` beyond the simulator's interval, by `error_group` and quantile."""


@dataclass(frozen=True, repr=False)
class QuicDelays(DelayDistribution):
    """The delays of messages over QUIC, and their wait for the window."""

    waiting: float = math.inf  # Mean wait for the window [s]
    backlogged: float = 1.0  # Share of the time with data that waits for the window


def error_group(delays: QuicDelays, quantile: float) -> ErrorGroup:
    """Return the group of `ERRORS` of a predicted quantile."""
    if not delays.sustainable:
        return "not carried"
    assert delays.scenario is not None
    if delays.waiting > BUSY * delays.scenario[1].rtt:
        return "waiting"
    return "later" if delays.quantile(quantile) > LIMITED * delays.one_way_delay else "one-way delay"


def _expected_error(delays: QuicDelays, quantile: float) -> ExpectedError:
    """Return the expected error of p95 or p99: of the next higher one, as other chains have it."""
    assert delays.scenario is not None
    flow, path, stack = delays.scenario
    assert isinstance(flow, Flow)
    assert isinstance(stack, Quic)
    found = ERRORS[error_group(delays, quantile), 0.95 if quantile <= 0.95 else 0.99]
    found = no_less_than_teeth(found, delays, quantile)
    near = is_near_capacity(largest_rate(flow, path, stack) / flow.packet_rate)
    return replace(found, p90=WRONG_CALL) if near else found


def quic_chain_refusals(source: Source, path: Path, stack: Quic) -> Iterator[UnsupportedError]:
    """Yield an error for each field of a scenario that the chain refuses."""
    where = "in the chain of QUIC"
    if stack.delivery not in ("stream_per_message", "datagram"):
        allowed = f"be 'stream_per_message' or 'datagram' {where}"
        yield UnsupportedError("delivery", stack.delivery, allowed, QUIC_SIMULATED)
    if stack.implementation == "quinn":
        allowed = f"be 'rfc9002', 'aioquic' or 'quic-go' {where}"
        yield UnsupportedError("implementation", stack.implementation, allowed, QUIC_SIMULATED)
    if stack.congestion_control != "newreno":
        yield UnsupportedError("congestion_control", stack.congestion_control, f"be 'newreno' {where}", QUIC_SIMULATED)
    yield from refused_lateness(source, where, QUIC_SIMULATED)
    yield from unknown_fields(path, PATH_FIELDS, where, QUIC_SIMULATED)
    if path.loss > LARGEST_LOSS:
        # Too many sequences of losses follow each other.
        yield UnsupportedError("loss", path.loss, f"be at most {LARGEST_LOSS:g} {where}", QUIC_SIMULATED)
    if not isinstance(source, Flow):
        yield UnsupportedError("source", source, f"be a Flow, which has a constant rate, {where}", QUIC_SIMULATED)
    elif source.packet_size > MOST_PACKETS * IMPLEMENTATIONS[stack.implementation].payload:
        most = MOST_PACKETS * IMPLEMENTATIONS[stack.implementation].payload
        yield UnsupportedError("packet_size", source.packet_size, f"be at most {most} bytes {where}", QUIC_SIMULATED)


def quic_delays(flow: Flow, path: Path, stack: Quic, budget: Budget | None = None) -> QuicDelays:
    """Return the delays of messages on streams of their own or as datagrams (RFC 9002), as in quic-chain.md."""
    for refused in quic_chain_refusals(flow, path, stack):
        raise refused
    found = _delays(flow, path, stack, budget or budget_for(10.0, None))
    return replace(found, look_up_error=partial(_expected_error, found))


def _delays(flow: Flow, path: Path, stack: Quic, budget: Budget) -> QuicDelays:
    """Return the delays without their expected error."""
    forward, scenario = path.forward_delay, (flow, path, stack)
    if path.loss < NEGLIGIBLE_LOSS:
        return QuicDelays(np.array([forward]), np.ones(1), forward, scenario=scenario, waiting=0.0, backlogged=0.0)
    recovery, p, levels = _window(flow, path, stack)
    waits = _waits(p, levels, budget)
    if waits is None:
        return replace(QuicDelays.unsustainable(forward), scenario=scenario)
    if stack.delivery == "datagram":
        arrived = (1 - path.loss) ** recovery.packets
        late, late_share = np.array([0.0, np.inf]), np.array([arrived, 1 - arrived])
    else:
        late, late_share = message_repairs(recovery)
    values, place = np.unique(np.round(np.add.outer(waits.values, late).ravel(), DIGITS), return_inverse=True)
    weights = np.bincount(place, np.multiply.outer(waits.shares, late_share).ravel())
    return QuicDelays(
        forward + values,
        weights / weights.sum(),
        forward,
        truncated_mass=waits.cut,
        scenario=scenario,
        waiting=float(waits.values @ waits.shares),
        backlogged=waits.backlogged,
    )


def largest_rate(flow: Flow, path: Path, stack: Quic) -> float:
    """Return the largest rate of messages that QUIC carries, by the drift of a backlog that never empties.

    At this rate the drift is 0. The drift of each rate tried gives the next rate.

    Loynes, "The stability of a queue with non-independent inter-arrival and service times", Mathematical Proceedings of
    the Cambridge Philosophical Society 58(3), 1962.
    """
    for refused in quic_chain_refusals(flow, path, stack):
        raise refused
    if path.loss < NEGLIGIBLE_LOSS:
        return math.inf
    rate = flow.packet_rate
    for _ in range(MOST_RATES):
        _, p, levels = _window(replace(flow, interval=1 / rate), path, stack)
        drift = backlog_drift(*window_chain(p, levels), _first_phase(levels) + 1)
        tried, rate = rate, rate - drift * p.unit / (p.packed * p.sent)
        if abs(rate / tried - 1) < SETTLED_RATE:
            break
    return rate


def _window(flow: Flow, path: Path, stack: Quic) -> tuple[LossRecovery, WindowParameters, NDArray[np.float64]]:
    """Return the loss recovery of a flow, and the parameters and windows of the chain of the window."""
    rules = IMPLEMENTATIONS[stack.implementation]
    datagrams = stack.delivery == "datagram"
    packets = rules.message_packets(flow.packet_size, datagrams)
    recovery = loss_recovery(rules, path, flow.interval, packets, stack.max_ack_delay)
    p = window_parameters(rules, flow, path, stack.max_ack_delay, datagrams, _mean_found_after(recovery))
    return recovery, p, window_levels(p, rules)


def _first_phase(levels: NDArray[np.float64]) -> int:
    """Return the phase of the widest window without a loss and without a backlog; the next phase has a backlog."""
    return 2 * (2 * levels.size - 1)


def _mean_found_after(recovery: LossRecovery) -> float:
    """Return the mean time from a packet to the detection of its loss [s], over the packets of a message."""
    found = [each for behind in range(recovery.packets) for each in recovery.found(0.0, behind, 0, 0)]
    return sum(each.after * each.probability for each in found) / recovery.packets


class _Waits(NamedTuple):
    """Waits for the window [s], their shares, the probability at the bound, and the share of time with a backlog."""

    values: NDArray[np.float64]
    shares: NDArray[np.float64]
    cut: float
    backlogged: float


def _waits(p: WindowParameters, levels: NDArray[np.float64], budget: Budget) -> _Waits | None:
    """Return the waits for the window; None if they never end."""
    phases, transitions = window_chain(p, levels)
    start = _first_phase(levels)
    budget.load = f"{p.step / p.interval:.4g} messages per step"
    if backlog_drift(phases, transitions, start + 1) >= 0:
        return None
    bound = FIRST_BOUND
    while True:
        rows = reachable_rows(phases, transitions, start, bound)
        budget.require_memory(float(rows["offset"][-1]) * BYTES_PER_CELL)
        solved = solve_within(budget, phases, transitions, rows, start, from_start(rows, start), WORTH_FINISHING)
        cut = float(probability_at_bound(phases, rows, solved.probability))
        if cut < NEGLIGIBLE_TRUNCATION:
            break
        bound *= 2
    longest = (1 + math.ceil(p.cuts)) * bound * p.unit / p.packed * p.interval
    width = max(p.round_trip / BINS_PER_ROUND_TRIP, longest / MOST_BINS)
    weight, weighted = window_waits(p, levels, phases, rows, solved.probability, width, math.ceil(longest / width) + 1)
    occurs = weight > 0
    # Every second phase has a backlog.
    backlogged = np.repeat(np.arange(phases.size - 1) % 2, np.diff(rows["offset"]))
    time_share = float(solved.probability @ backlogged)
    return _Waits(weighted[occurs] / weight[occurs], weight[occurs] / weight.sum(), cut, time_share)


# The chain of QUIC behind the interface of a model: a stream per message, or datagrams.

_HONOURED = frozenset(name for part in (Flow, Quic) for name in declarations(part)) | PATH_FIELDS


class QuicChain:
    """The Markov chain of QUIC for messages that do not wait for each other."""

    name: ClassVar[str] = "chain"

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the chain honours and refuses."""
        source, path, stack = scenario.source, scenario.path, scenario.stack
        if not isinstance(stack, Quic):
            return Support(frozenset(), refused=(UnsupportedError("stack", stack, "be a Quic"),))
        return Support(_HONOURED, ignored_lateness(source), tuple(quic_chain_refusals(source, path, stack)))

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the chain's answer."""
        support = self.supports(scenario)
        answered = partial(Answer, scenario, requested, self.name, ignored=support.ignored)
        for refused in support.refused:
            return answered("unsupported", refusal=refused)
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Quic)

        # The first call is repeated in compiled kernels if it takes long in plain Python: each with the whole budget.
        def solve() -> QuicDelays:
            return quic_delays(flow, path, stack, budget_for(requested.max_seconds, requested.max_memory))

        try:
            found = interpreted_first(solve, window_waits)
        except TooLargeError as error:
            return answered("too large", refusal=error)
        except MemoryError:
            return answered("too large", refusal=TooLargeError("the chain needs more memory than there is"))
        return answered(
            "exact" if found.sustainable else "not carried",
            mean=found.mean,
            sustainable=found.sustainable,
            truncated_mass=found.truncated_mass,
            distribution=replace(found, ignored=support.ignored),
            parts=_parts(found) if requested.parts else None,
            backlogged_time_fraction=found.backlogged,
            **requested_figures(found, requested),
        )

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that QUIC carries; infinite without loss, NaN where it is unknown."""
        stack = scenario.stack
        if self.supports(scenario).refused or not isinstance(stack, Quic):
            return np.nan
        return interpreted_first(partial(largest_rate, scenario.flow, scenario.path, stack), window_chain)


def _parts(found: QuicDelays) -> DelayParts:
    """Return the parts of the mean delay [s]: the path, the wait for the window, and repairs."""
    # Nobody repairs datagrams, whose mean delay is infinite, and where QUIC does not carry the flow nothing is known.
    repairs = found.mean - found.one_way_delay - found.waiting if np.isfinite(found.mean) else 0.0
    return DelayParts(found.one_way_delay, found.waiting, repairs, timeouts=0.0)
