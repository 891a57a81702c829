"""The chain of QUIC for messages that do not wait for each other: a stream per message, or datagrams.

The delay of a message is its wait for the window (`window_chain`), the one-way delay of the path, and the time until
its lost packets have been repaired (`repairs`). The two waits are taken to be independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution, ExpectedError, Spread
from tcpdelay.models.budget import Budget
from tcpdelay.models.chain import budget_for
from tcpdelay.models.interface import SIMULATED, UnsupportedError, unknown_fields
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
LARGEST_LOSS = 0.1
"""Largest loss at which the chain has been compared with the simulator."""
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
"""Mean wait for the window, in round-trip times, from which on a flow is near the capacity."""
_COMPARED = "200 random scenarios, simulated (validation/results/quic-chain.md)"
_FREE_MEAN, _BUSY_MEAN = Spread(0.0, 0.0021, 0.0004), Spread(0.104, 0.140, 0.423)
ERRORS = {
    (False, 0.95): ExpectedError(0.0, 0.0094, 0.0, _FREE_MEAN, 161, _COMPARED, 0.95),
    (False, 0.99): ExpectedError(0.0, 0.0131, 0.0, _FREE_MEAN, 161, _COMPARED, 0.99),
    (True, 0.95): ExpectedError(0.094, 0.184, 0.475, _BUSY_MEAN, 20, _COMPARED, 0.95),
    (True, 0.99): ExpectedError(0.108, 0.166, 0.468, _BUSY_MEAN, 20, _COMPARED, 0.99),
}
"""Errors by `validation/quic_chain.py` beyond the simulator's interval: near the capacity or not, and by quantile."""


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
        yield UnsupportedError("delivery", stack.delivery, allowed, SIMULATED)
    if stack.congestion_control != "newreno":
        yield UnsupportedError("congestion_control", stack.congestion_control, f"be 'newreno' {where}", SIMULATED)
    yield from unknown_fields(path, PATH_FIELDS, where, SIMULATED)
    if path.loss > LARGEST_LOSS:
        yield UnsupportedError("loss", path.loss, f"be at most {LARGEST_LOSS:.0%} {where}", SIMULATED)
    if not isinstance(source, Flow):
        yield UnsupportedError("source", source, f"be a Flow, which has a constant rate, {where}", SIMULATED)
    elif source.packet_size > MOST_PACKETS * IMPLEMENTATIONS[stack.implementation].payload:
        most = MOST_PACKETS * IMPLEMENTATIONS[stack.implementation].payload
        yield UnsupportedError("packet_size", source.packet_size, f"be at most {most} bytes {where}", SIMULATED)


def quic_delays(flow: Flow, path: Path, stack: Quic, budget: Budget | None = None) -> DelayDistribution:
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
    DelayDistribution
        The delays; of lost datagrams they are infinite. Not sustainable if the backlog grows for as long as the flow
        sends. `truncated_mass` is the probability that the backlog is at its bound, below 1e-6.

    Raises
    ------
    UnsupportedError
        If the chain refuses a field.
    TooLargeError
        If the chain needs more time or memory than the budget has.

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
    forward, datagrams = path.forward_delay, stack.delivery == "datagram"
    if path.loss < NEGLIGIBLE_LOSS:
        return DelayDistribution(np.array([forward]), np.ones(1), forward, scenario=(flow, path, stack))
    rules = IMPLEMENTATIONS[stack.implementation]
    packets = math.ceil(flow.packet_size / rules.payload)
    recovery = loss_recovery(rules, path.loss, path.rtt, flow.interval, packets, stack.max_ack_delay)
    p = window_parameters(rules, flow, path, stack.max_ack_delay, datagrams, _mean_found_after(recovery))
    waits = _waits(p, window_levels(p, rules), budget or budget_for(10.0, None))
    if waits is None:
        return DelayDistribution.unsustainable(forward)
    held, held_share, cut = waits
    if datagrams:
        arrived = (1 - path.loss) ** packets
        late, late_share = np.array([0.0, np.inf]), np.array([arrived, 1 - arrived])
    else:
        late, late_share = message_repairs(recovery)
    values, place = np.unique(np.round(np.add.outer(held, late).ravel(), DIGITS), return_inverse=True)
    weights = np.bincount(place, np.multiply.outer(held_share, late_share).ravel())
    return DelayDistribution(
        forward + values,
        weights / weights.sum(),
        forward,
        truncated_mass=cut,
        scenario=(flow, path, stack),
        look_up_error=partial(_expected_error, float(held @ held_share) > BUSY * path.rtt),
    )


def _expected_error(busy: bool, quantile: float) -> ExpectedError:
    """Return the expected error of p95 or p99: of the next higher one, as other chains have it."""
    return ERRORS[busy, 0.95 if quantile <= 0.95 else 0.99]


def _mean_found_after(recovery: LossRecovery) -> float:
    """Return the mean time from a packet to the detection of its loss [s], over the packets of a message."""
    found = [each for behind in range(recovery.packets) for each in recovery.found(0.0, behind, 0, 0)]
    return sum(each.after * each.probability for each in found) / recovery.packets


def _waits(
    p: WindowParameters, levels: NDArray[np.float64], budget: Budget
) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
    """Return the waits for the window [s], their shares, and the probability at the bound; None if it never ends."""
    phases, transitions = window_chain(p, levels)
    # The widest window without a loss; the first phase with a backlog is the next one.
    start = 2 * (2 * levels.size - 1)
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
    return weighted[occurs] / weight[occurs], weight[occurs] / weight.sum(), cut
