"""What is known of one scenario: its delays, and how they are spread around each quantile that is asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.model import ChainTooLargeError, DelayModel
from tcpdelay.distribution import CUMULATION_NOISE
from tcpdelay.region.question import Question
from tcpdelay.scenario import Path

PROBABILITIES = (0.5, 0.95, 0.99)
COLUMNS = ("p50", "p95", "p99", "mean", "late")
MEAN, LATE = 3, 4
STEPS = 40
"""Steps of a distribution that are kept around each quantile, and around the limit."""
WINDOW = 2.0
"""Factor by which the share beyond a quantile may grow or shrink before its neighbourhood ends."""
STEPS_PER_INTERVAL = 16
"""Delays this close together, in parts of a packet interval, are one step."""
FINE_DISTANCE = 64
"""Distance from the quantile, in such parts, up to which they are so to begin with."""
LATE_SHIFT = 1 / STEPS_PER_INTERVAL
"""Shift of the limit that a late fraction allows for, in parts of the error that a quantile may have."""
LATE_STEP = 0.01
"""Late fractions this close together, in parts of themselves, are one step next to the limit."""
LATE_FLOOR = 0.005
"""Late fraction below which they are one step when this close in parts of it."""
ROUNDING = 1e-8
"""Rounding of a delay that lies on the limit [s]."""


def allowed_shift(delay: float, interval: float) -> float:
    """Return the error that a quantile of `delay` [s] may have: 1 % of it or one packet `interval` [s].

    Examples
    --------
    >>> allowed_shift(0.150, 0.020), allowed_shift(5.0, 0.020)
    (0.02, 0.05)
    """
    return max(0.01 * delay, interval)


class Nodes(NamedTuple):
    """Solved scenarios, one a row.

    Attributes
    ----------
    answer : ndarray, shape (nodes, columns)
        `COLUMNS`, delays beyond the one-way delay [s]; NaN where the chain is too large, infinite where TCP cannot
        carry the flow.
    late_within : ndarray, shape (nodes, 2)
        Late fractions for the limit plus and minus what it may be shifted by.
    works, sustainable : ndarray of bool
        Whether the target is met, and whether TCP can carry the flow.
    before : ndarray, shape (nodes, probabilities)
        Share of the packets that arrives before the first of the steps around each of `PROBABILITIES`.
    delay, reached : ndarray, shape (nodes, probabilities + 1, steps)
        The steps: delays beyond the one-way delay [s], ascending, and the share that arrives within each. The last ones
        are all of the distribution, its delays those beyond the limit.
    """

    answer: NDArray[np.float64]
    late_within: NDArray[np.float64]
    works: NDArray[np.bool_]
    sustainable: NDArray[np.bool_]
    before: NDArray[np.float32]
    delay: NDArray[np.float32]
    reached: NDArray[np.float32]


def empty_nodes(count: int) -> Nodes:
    """Return room for as many solved scenarios.

    Examples
    --------
    >>> empty_nodes(2).delay.shape == (2, len(PROBABILITIES) + 1, STEPS)
    True
    """
    quantiles = len(PROBABILITIES)
    return Nodes(
        np.full((count, len(COLUMNS)), np.nan),
        np.full((count, 2), np.nan),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros((count, quantiles), np.float32),
        np.full((count, quantiles + 1, STEPS), np.inf, np.float32),
        np.ones((count, quantiles + 1, STEPS), np.float32),
    )


def solve_into(nodes: Nodes, place: int, asked: Question, rtt: float, loss: float) -> None:
    """Solve the chain of one scenario, and fill in row `place`, which is fresh.

    Parameters
    ----------
    nodes : Nodes
        Where the outcome goes.
    place : int
        In which row.
    asked : Question
        Flow, TCP and target.
    rtt, loss : float
        Round-trip time [s], 1e-6 to 60, and loss, 0 to below 1.

    Examples
    --------
    >>> from tcpdelay.region.question import question
    >>> asked = question("voip", None, None, None)
    >>> nodes = empty_nodes(1)
    >>> solve_into(nodes, 0, asked, 0.100, 0.02)
    >>> (nodes.answer[0] + [0.05, 0.05, 0.05, 0.05, 0]).round(3).tolist()
    [0.05, 0.14, 0.18, 0.063, 0.005]
    """
    try:
        delays = DelayModel(asked.flow, Path(rtt, loss), asked.stack).delay_distribution()
    except (ChainTooLargeError, MemoryError):
        return
    limit = asked.target.limit + ROUNDING
    slack = LATE_SHIFT * allowed_shift(asked.target.limit, asked.flow.interval)
    network = delays.one_way_delay
    nodes.sustainable[place] = delays.sustainable
    nodes.works[place] = delays.quantile(asked.target.quantile) <= limit
    answer = nodes.answer[place]
    answer[:MEAN] = delays.quantile(np.array(PROBABILITIES)) - network
    answer[MEAN] = delays.mean - network
    late = delays.late_fraction(np.array([limit, limit + slack, max(limit - slack, 0.0)]))
    answer[LATE], nodes.late_within[place] = late[0], late[1:]
    if np.isfinite(delays.mean):
        reached = np.cumsum(delays.weights)
        finest = asked.flow.interval / STEPS_PER_INTERVAL
        steps = [_steps_at_quantile(each, delays.values - network, reached, finest) for each in PROBABILITIES]
        nodes.before[place] = [each.before for each in steps]
        for i, each in enumerate([*steps, _steps_at_limit(delays.values - limit, reached)]):
            count = each.delay.size
            nodes.delay[place, i, :count], nodes.reached[place, i, :count] = each.delay, each.reached


class _Steps(NamedTuple):
    before: float
    delay: NDArray[np.float64]
    reached: NDArray[np.float64]


def _steps_at_quantile(
    probability: float, delay: NDArray[np.float64], reached: NDArray[np.float64], finest: float
) -> _Steps:
    """Return the distribution around one probability; delays up to `finest` [s] apart may be one step."""
    beyond = 1 - probability
    first = int(np.searchsorted(reached, 1 - WINDOW * beyond, side="right"))
    last = min(int(np.searchsorted(reached, 1 - beyond / WINDOW)), reached.size - 1)
    near, level = delay[first : last + 1], reached[first : last + 1]
    middle = near[min(int(np.searchsorted(level, probability - CUMULATION_NOISE)), near.size - 1)]
    ends = _ends_of_joined((near - middle) / finest)
    # The last of those that are joined: by then the weight of all of them has arrived.
    return _Steps(float(reached[first - 1]) if first else 0.0, near[ends], level[ends])


def _steps_at_limit(delay: NDArray[np.float64], reached: NDArray[np.float64]) -> _Steps:
    """Return the distribution, finely around a limit, which is between two steps; `delay` is how far beyond it [s]."""
    on_time = int(np.searchsorted(delay, 0.0, side="right"))
    late = np.append(1.0, 1 - reached).clip(0.0)
    distance = np.log((late[on_time] + LATE_FLOOR) / (late[1:] + LATE_FLOOR))
    ends = _ends_of_joined(distance / LATE_STEP)
    # The first of those that are joined may have most of their weight; the others are all of a step.
    return _Steps(0.0, delay[np.append(0, ends[:-1] + 1)], reached[ends])


def _ends_of_joined(distance: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return where steps end, few enough: what is close together in parts of the distance from the middle is joined.

    Parameters
    ----------
    distance : ndarray, shape (n,)
        From the middle, ascending, in units of the finest steps.
    """
    share = 1 / FINE_DISTANCE
    while True:
        ends: NDArray[np.int64] = np.flatnonzero(np.diff(np.ceil(np.arcsinh(distance * share) / share), append=np.inf))
        if ends.size <= STEPS:
            return ends
        share *= 1.5
