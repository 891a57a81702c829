"""The chain of QUIC for messages that do not wait for each other: a stream per message, or datagrams.

The delay of a message is its wait for the window (`window_chain`), the one-way delay of the path, and the time until
its lost packets have been repaired (`repairs`). The two waits are taken to be independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution, ExpectedError, Spread
from tcpdelay.models.accuracy import is_near_capacity, no_less_than_teeth
from tcpdelay.models.budget import Budget
from tcpdelay.models.chain import budget_for
from tcpdelay.models.error_table import WRONG_CALL
from tcpdelay.models.interface import QUIC_SIMULATED, UnsupportedError, unknown_fields
from tcpdelay.models.quic.implementations import IMPLEMENTATIONS
from tcpdelay.models.quic.repairs import DIGITS, LossRecovery, loss_recovery, message_repairs
from tcpdelay.models.quic.window_chain import (
    WindowParameters,
    window_chain,
    window_levels,
    window_parameters,
    window_waits,
)
from tcpdelay.models.solver.aggregation import backlog_drift
from tcpdelay.models.solver.measures import probability_at_bound
from tcpdelay.models.solver.narrow import NEGLIGIBLE_TRUNCATION
from tcpdelay.models.solver.profile import BYTES_PER_CELL, NEGLIGIBLE_LOSS
from tcpdelay.models.solver.state_space import reachable_rows
from tcpdelay.models.solver.stationary import from_start, solve_within
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Quic

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
    """The delays of messages over QUIC, and their wait for the window.

    Attributes
    ----------
    waiting : float
        Mean wait for the window [s].
    backlogged : float
        Share of the time with data that waits for the window.
    """

    waiting: float = math.inf
    backlogged: float = 1.0


def error_group(delays: QuicDelays, quantile: float) -> ErrorGroup:
    """Return the group of `ERRORS` of a predicted quantile.

    Examples
    --------
    >>> found = quic_delays(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Quic(delivery="stream_per_message"))
    >>> error_group(found, 0.95), error_group(found, 0.99)
    ('one-way delay', 'later')
    """
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
    """Yield an error for each field of a scenario that the chain refuses.

    Examples
    --------
    >>> scenario = Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Quic(delivery="stream")
    >>> [refused.name for refused in quic_chain_refusals(*scenario)]
    ['delivery']
    """
    where = "in the chain of QUIC"
    if stack.delivery not in ("stream_per_message", "datagram"):
        allowed = f"be 'stream_per_message' or 'datagram' {where}"
        yield UnsupportedError("delivery", stack.delivery, allowed, QUIC_SIMULATED)
    if stack.congestion_control != "newreno":
        yield UnsupportedError("congestion_control", stack.congestion_control, f"be 'newreno' {where}", QUIC_SIMULATED)
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
    """Return the delays of messages that travel on streams of their own, or as datagrams.

    Parameters
    ----------
    flow : Flow
        Size of the messages [bytes], at most 16 packets, and interval [s].
    path : Path
        Round-trip time [s], loss, at most 10 %, and one-way delay [s]; all else at its default.
    stack : Quic
        The QUIC stack: `delivery` "stream_per_message" or "datagram", and `congestion_control` "newreno".
    budget : Budget, optional
        The time and the memory that the chain may take; by default 10 s and 1 GiB.

    Returns
    -------
    QuicDelays
        The delays; of lost datagrams they are infinite. Not sustainable if the backlog grows for as long as the flow
        sends. `truncated_mass` is the probability that the backlog is at its bound, below 1e-6.

    Raises
    ------
    UnsupportedError
        If the chain refuses a field.
    TooLargeError
        If the chain needs more time or memory than the budget has, or the loss is above 25 %.

    References
    ----------
    RFC 9002 (loss detection and congestion control). `docs/quic-chain.md` derives the chain.

    Examples
    --------
    >>> stack = Quic("quic-go", delivery="stream_per_message")
    >>> found = quic_delays(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), stack)
    >>> [round(found.quantile(share), 4) for share in (0.95, 0.99)]
    [0.05, 0.17]
    """
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

    Parameters
    ----------
    flow, path, stack : Flow, Path, Quic
        The scenario, as for `quic_delays`; of the flow only the size of the messages counts.

    Returns
    -------
    float
        The rate [1/s]; infinite without loss.

    Raises
    ------
    UnsupportedError
        If the chain refuses the scenario (`quic_chain_refusals`).

    References
    ----------
    Loynes, "The stability of a queue with non-independent inter-arrival and service times", Mathematical Proceedings of
    the Cambridge Philosophical Society 58(3), 1962.

    Examples
    --------
    >>> stack = Quic("aioquic", delivery="stream_per_message")
    >>> round(largest_rate(Flow(1130, 0.020), Path(rtt=0.0972, loss=0.0042), stack))
    203
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
