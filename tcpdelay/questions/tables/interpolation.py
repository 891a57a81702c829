"""What is known of one scenario: its delays, and how they are spread around each quantile that is asked for.

Between the corners of a cell: compiled kernels that interpolate answers and say where they may not.

Where delays change smoothly, each is interpolated. Where a quantile jumps from one plateau of the distribution to the
next, the distributions of the corners are mixed instead: the share that has arrived by a given delay changes smoothly
with round-trip time and loss, so the mixture jumps in the right place. Where the late fraction jumps, as delays move
across the threshold, the distributions are moved: the delay of each share of the packets changes smoothly with the
round-trip time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.distribution import CUMULATION_NOISE
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import TooLargeError
from tcpdelay.questions.region.question import Question
from tcpdelay.scenario.path import Path

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
    >>> from tcpdelay.questions.region.question import question
    >>> asked = question("voip", None, None, None)
    >>> nodes = empty_nodes(1)
    >>> solve_into(nodes, 0, asked, 0.100, 0.02)
    >>> (nodes.answer[0] + [0.05, 0.05, 0.05, 0.05, 0]).round(3).tolist()
    [0.05, 0.14, 0.18, 0.063, 0.005]
    """
    try:
        delays = DelayModel(asked.flow, Path(rtt, loss), asked.stack).delay_distribution()
    except (TooLargeError, MemoryError):
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


SMALLEST_RTT, LARGEST_RTT = 1e-4, 2.0
LARGEST_LOSS = 0.5
"""Round-trip times [s] and losses that surfaces cover; beyond, every row is solved."""
SMALL_LOSS = 1e-4
"""Loss below which cells are equally wide in the loss, and above in its logarithm."""
DEEPEST = 22
"""Halvings of the whole range down to the lattice on which all corners lie."""
COARSEST = 5
"""Halvings down to the largest cells."""
UNTESTED, TRUSTED, ENDLESS, REFUSED, WIDE, TALL = range(6)
"""What a cell is good for: its rows are not yet known, answered from its corners, endlessly late, or each to be solved.

The last for all that is known, or because the cell is too wide in the round-trip time or too tall in the loss."""
IN_FOUR, ACROSS, UPWARDS = range(3)
"""How a cell has been split: in four, or in two beside or above one another."""
UNCERTAIN = 0.04
"""Error of a mixture in the largest cells, in parts of the share beyond a quantile, up to which a quantile has to hold.

In smaller ones less, in proportion to their width."""
ANSWERED, BEYOND = -1, -2
"""Marks of rows that have been answered, and of those beyond all cells."""
QUANTILES = len(PROBABILITIES)
WIDTH = len(COLUMNS)
_SPAN_OF_RTT = np.log(LARGEST_RTT / SMALLEST_RTT)
_SPAN_OF_LOSS = np.log1p(LARGEST_LOSS / SMALL_LOSS)
_PROBABILITIES = np.array(PROBABILITIES)


class Cells(NamedTuple):
    """Cells of a surface, one a row; those that have been split stay.

    Attributes
    ----------
    first_part : ndarray of int32
        The first of the parts of a cell that has been split: lower left, lower right, upper left, upper right.
        Negative in others.
    split : ndarray of int8
        How it has been split.
    state : ndarray of int8
        What a cell is good for.
    mixed : ndarray of bool, shape (cells, probabilities + 1)
        The quantiles that are taken from the mixture of the corners' distributions, and at last whether the late
        fraction is taken from the moved distributions; the others are interpolated.
    corners : ndarray of int32, shape (cells, 4)
        The nodes of a cell that has been tested, in the same order.
    """

    first_part: NDArray[np.int32]
    split: NDArray[np.int8]
    state: NDArray[np.int8]
    mixed: NDArray[np.bool_]
    corners: NDArray[np.int32]


class Errors(NamedTuple):
    """How far answers may be off; the larger one of two holds.

    Attributes
    ----------
    of_quantile, quantile_intervals : float
        Of quantiles, relative and in packet intervals.
    of_mean, mean_intervals : float
        Of the mean.
    of_late, late_error : float
        Of the late fraction, relative and as it is, for some limit within 1/16 of `of_quantile` and
        `quantile_intervals` of the one asked for.
    """

    of_quantile: float
    quantile_intervals: float
    of_mean: float
    mean_intervals: float
    of_late: float
    late_error: float


@njit(cache=True, nogil=True)
def lattice_place(rtt: float, loss: float) -> tuple[float, float]:
    """Return where a round-trip time [s] and a loss lie on the lattice; its steps are 1."""
    across = np.log(rtt / SMALLEST_RTT) / _SPAN_OF_RTT
    up = np.log1p(loss / SMALL_LOSS) / _SPAN_OF_LOSS
    return across * 2.0**DEEPEST, up * 2.0**DEEPEST


def scenario_at(across: Any, up: Any) -> tuple[Any, Any]:
    """Return the round-trip time [s] and the loss of a point of the lattice.

    Examples
    --------
    >>> rtt, loss = scenario_at(2**DEEPEST, 2**DEEPEST)
    >>> round(float(rtt), 9), round(float(loss), 9)
    (2.0, 0.5)
    """
    rtt = SMALLEST_RTT * np.exp(_SPAN_OF_RTT * across / 2**DEEPEST)
    loss = SMALL_LOSS * np.expm1(_SPAN_OF_LOSS * up / 2**DEEPEST)
    return rtt, loss


@njit(cache=True, nogil=True)
def _interpolate(nodes: Nodes, corners: NDArray[np.int32], u: float, v: float, answer: NDArray[np.float64]) -> None:
    """Fill in an answer; `u` and `v` are the shares of the way across and up."""
    known, (a, b, c, d) = nodes.answer, (corners[0], corners[1], corners[2], corners[3])
    for i in range(WIDTH):
        answer[i] = (known[a, i] * (1 - u) + known[b, i] * u) * (1 - v) + (known[c, i] * (1 - u) + known[d, i] * u) * v


@njit(cache=True, nogil=True)
def _mix(
    nodes: Nodes,
    corners: NDArray[np.int32],
    u: float,
    v: float,
    quantile: int,
    depth: int,
    network: float,
    interval: float,
) -> float:
    """Return a quantile of the mixture of the corners' distributions; NaN if it is not certain."""
    weights = ((1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v)
    wanted = _PROBABILITIES[quantile]
    doubt = UNCERTAIN * 2.0 ** (COARSEST - depth) * (1 - wanted)
    at = np.zeros(4, np.int64)
    reached = 0.0
    for k in range(4):
        reached += weights[k] * nodes.before[corners[k], quantile]
    delay = lowest = found = 0.0
    passed = 0
    while passed < 3:
        following, delay = 0, np.inf
        for k in range(4):
            if at[k] < STEPS and nodes.delay[corners[k], quantile, at[k]] < delay:
                following, delay = k, nodes.delay[corners[k], quantile, at[k]]
        if delay == np.inf:
            return np.nan
        node, place = corners[following], at[following]
        before = nodes.reached[node, quantile, place - 1] if place > 0 else nodes.before[node, quantile]
        reached += weights[following] * (nodes.reached[node, quantile, place] - before)
        at[following] += 1
        if passed == 0 and reached >= wanted - doubt:
            for k in range(4):
                if at[k] == 0 and nodes.before[corners[k], quantile] > 0:
                    return np.nan
            passed, lowest = 1, delay
        if passed == 1 and reached >= wanted:
            passed, found = 2, delay
        if passed == 2 and reached >= wanted + doubt:
            passed = 3
    if delay - lowest > max(0.01 * (network + lowest), interval):
        return np.nan
    return found


@njit(cache=True, nogil=True)
def _moved(nodes: Nodes, left: int, right: int, way: float) -> float:
    """Return the late fraction between two nodes of one loss, `way` of the way across.

    The delay within which a share of the packets arrives lies so far between those of the nodes.
    """
    at_left = at_right = 0
    reached = 0.0
    while reached < 1:
        while nodes.reached[left, QUANTILES, at_left] <= reached:
            at_left += 1
        while nodes.reached[right, QUANTILES, at_right] <= reached:
            at_right += 1
        delay = (1 - way) * nodes.delay[left, QUANTILES, at_left] + way * nodes.delay[right, QUANTILES, at_right]
        if delay > 0:
            break
        reached = min(nodes.reached[left, QUANTILES, at_left], nodes.reached[right, QUANTILES, at_right])
    return 1 - reached


@njit(cache=True, nogil=True)
def _late_fraction(nodes: Nodes, corners: NDArray[np.int32], u: float, v: float, depth_across: int) -> float:
    """Return the late fraction of moved distributions; those of other losses are mixed."""
    # Delays change in proportion to the round-trip time, and that with the exponential of the place.
    growth = _SPAN_OF_RTT * 2.0**-depth_across
    way = np.expm1(growth * u) / np.expm1(growth)
    return _moved(nodes, corners[0], corners[1], way) * (1 - v) + _moved(nodes, corners[2], corners[3], way) * v


@njit(cache=True, nogil=True)
def answer_rows(
    cells: Cells,
    nodes: Nodes,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    interval: float,
    answers: NDArray[np.float64],
    cell_of: NDArray[np.int32],
) -> int:
    """Answer the rows that cells can answer; return how many are left.

    Parameters
    ----------
    cells : Cells
    nodes : Nodes
        The surface.
    rtt, loss : ndarray, shape (n,)
        Round-trip times [s] and losses; NaN in rows that nothing is wanted of.
    interval : float
        Packet interval [s].
    answers : ndarray, shape (columns, n)
        Where the answers go.
    cell_of : ndarray, shape (n,)
        Filled in with `ANSWERED`, `BEYOND`, or the cell of the row that is left.
    """
    answer = np.empty(WIDTH)
    left = 0
    for row in range(rtt.size):
        if np.isnan(rtt[row]):
            cell_of[row] = ANSWERED
            continue
        if not (SMALLEST_RTT <= rtt[row] < LARGEST_RTT and loss[row] < LARGEST_LOSS):
            cell_of[row] = BEYOND
            left += 1
            continue
        across, up = lattice_place(rtt[row], loss[row])
        level = DEEPEST - COARSEST
        size = 2.0**level
        # Rounding may take a row at the edge beyond it.
        column, line = min(int(across / size), 2**COARSEST - 1), min(int(up / size), 2**COARSEST - 1)
        cell = line * 2**COARSEST + column
        u, v = across / size - column, up / size - line
        depth_across = depth_up = COARSEST
        while cells.first_part[cell] >= 0:
            split = cells.split[cell]
            cell = cells.first_part[cell]
            if split != UPWARDS:
                depth_across += 1
                u *= 2
                if u >= 1:
                    u -= 1
                    cell += 1
            if split != ACROSS:
                depth_up += 1
                v *= 2
                if v >= 1:
                    v -= 1
                    cell += 1 if split == UPWARDS else 2
        state = cells.state[cell]
        corners = cells.corners[cell]
        network = rtt[row] / 2
        certain = state in (TRUSTED, ENDLESS)
        if state == ENDLESS:
            answer[:LATE], answer[LATE] = np.inf, 1.0
        elif state == TRUSTED:
            _interpolate(nodes, corners, u, v, answer)
            for i in range(QUANTILES):
                if cells.mixed[cell, i]:
                    answer[i] = _mix(nodes, corners, u, v, i, min(depth_across, depth_up), network, interval)
                    certain &= not np.isnan(answer[i])
            if cells.mixed[cell, QUANTILES]:
                answer[LATE] = _late_fraction(nodes, corners, u, v, depth_across)
        if certain:
            cell_of[row] = ANSWERED
            for i in range(LATE):
                answers[i, row] = network + answer[i]
            answers[LATE, row] = answer[LATE]
        else:
            cell_of[row] = cell
            left += 1
    return left


@njit(cache=True)
def judge_cell(
    nodes: Nodes,
    corners: NDArray[np.int32],
    probes: NDArray[np.int32],
    places: NDArray[np.float64],
    networks: NDArray[np.float64],
    depth: tuple[int, int],
    interval: float,
    errors: Errors,
    allowed_late: float,
    verdict: bool,
    mixed: NDArray[np.bool_],
) -> int:
    """Return what a cell is good for, by its probes: solved scenarios at `places` of it.

    Parameters
    ----------
    nodes : Nodes
        Solved scenarios.
    corners, probes : ndarray
        Their nodes.
    places : ndarray, shape (probes, 2)
        The shares of the way across and up.
    networks : ndarray
        One-way delays of the probes [s].
    depth : tuple of int
        Halvings down to the cell, across and up.
    interval : float
        Packet interval [s].
    errors : Errors
        What probes may be off.
    allowed_late : float
        Share of the packets that may be late.
    verdict : bool
        Whether every probe must be on the right side of that.
    mixed : ndarray of bool, shape (probabilities + 1,)
        Filled in with the quantiles that interpolation does not follow, and whether it does not the late fraction.
    """
    endless, carried = 0, 0
    for corner in corners:
        endless += np.isinf(nodes.answer[corner, MEAN])
        carried += nodes.sustainable[corner] and np.isfinite(nodes.answer[corner, MEAN])
    for probe in probes:
        endless += np.isinf(nodes.answer[probe, MEAN])
        carried += nodes.sustainable[probe] and np.isfinite(nodes.answer[probe, MEAN])
    if endless == corners.size + probes.size:
        return ENDLESS
    if carried < corners.size + probes.size:
        return REFUSED
    answer = np.empty(WIDTH)
    failed, off = np.zeros(probes.size, np.bool_), np.zeros((QUANTILES + 1, probes.size), np.bool_)
    decided = allowed_late if verdict else np.nan
    for k in range(probes.size):
        network, exact = networks[k], nodes.answer[probes[k]]
        _interpolate(nodes, corners, places[k, 0], places[k, 1], answer)
        mean_error = max(errors.of_mean * (network + exact[MEAN]), errors.mean_intervals * interval)
        failed[k] = abs(answer[MEAN] - exact[MEAN]) > mean_error
        for i in range(QUANTILES):
            off[i, k] = _is_off(answer[i], exact[i], network, interval, errors)
        off[QUANTILES, k] = _late_is_off(answer[LATE], nodes, probes[k], errors, decided)
    mixed[QUANTILES] = off[QUANTILES].any()
    if mixed[QUANTILES]:
        for k in range(probes.size):
            late = _late_fraction(nodes, corners, places[k, 0], places[k, 1], depth[0])
            failed[k] |= _late_is_off(late, nodes, probes[k], errors, decided)
    for i in range(QUANTILES):
        mixed[i] = off[i].any()
        if not mixed[i]:
            continue
        follows = True
        for k in range(probes.size):
            # Rows of which the mixture is not certain are solved, so that a probe need not be.
            delay = _mix(nodes, corners, places[k, 0], places[k, 1], i, min(depth), networks[k], interval)
            follows &= np.isnan(delay) or not _is_off(delay, nodes.answer[probes[k], i], networks[k], interval, errors)
        if not follows:
            # Where interpolation is off says which way the quantile jumps.
            failed |= off[i]
    if not failed.any():
        return TRUSTED
    across = up = False
    for k in range(probes.size):
        # A probe in the middle of a lower or upper edge says how the cell changes across, one at the side how upwards.
        across |= failed[k] and places[k, 1] in (0.0, 1.0)
        up |= failed[k] and places[k, 0] in (0.0, 1.0)
    if across == up:
        return REFUSED
    return WIDE if across else TALL


@njit(cache=True)
def _is_off(delay: float, exact: float, network: float, interval: float, errors: Errors) -> bool:
    """Say whether a quantile is further off than allowed."""
    return abs(delay - exact) > max(errors.of_quantile * (network + exact), errors.quantile_intervals * interval)


@njit(cache=True)
def _late_is_off(late: float, nodes: Nodes, probe: int, errors: Errors, decided: float) -> bool:
    """Say whether a late fraction is further off than allowed, or, unless NaN, on the wrong side of `decided`."""
    exact, late_within = nodes.answer[probe, LATE], nodes.late_within[probe]
    within = max(errors.of_late * exact, errors.late_error)
    if not late_within[0] - within <= late <= late_within[1] + within:
        return True
    return not np.isnan(decided) and (late <= decided) != (exact <= decided)
