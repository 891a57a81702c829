"""The search for the edge of what works along one quantity: a walk, then a secant method between two values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tcpdelay.models.accuracy import expected_error
from tcpdelay.models.error_table import WRONG_CALL
from tcpdelay.models.interface import WHOLE_DISTRIBUTION, Answer, Model, Requested
from tcpdelay.models.predict import AnsweredBy, capacity, predict
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.verdict import late_range, longer_limit, relative_error
from tcpdelay.questions.quantities import Axis
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import KnownStack, Quic
from tcpdelay.scenario.target import Target

STEP = math.sqrt(2)
"""Ratio of two neighbouring values of the walk."""
RELATIVE_TOLERANCE = 0.01
SMALLEST_SHARE = 1e-3
"""Smallest share of late packets, relative to the share that a target allows, that the search distinguishes."""
ALL_LATE = 1.0
STARTING_UTILIZATION = 0.5
"""Share of the fair TCP rate at which a search by simulations starts."""
STARTING_TOLERANCE = 0.1
NEAR, CLOSING = 0.6, 0.99
"""A value this near the predicted root needs a partner across the root, and the partner's distance; in tolerances."""
SMALLEST_EXCESS = 1e-9
"""Excess that stands for 0, so that its sign says on which side of the edge a value lies."""


@dataclass(frozen=True)
class Bracket:
    """Both sides of an edge.

    Parameters
    ----------
    inside : float or None
        Largest value found that works; None if no value works.
    outside : float or None
        Smallest value found above `inside` that does not work, or the last value tried if none works. None if the
        search ended with the highest value allowed, which works.
    known : bool
        False where there is no answer at `outside`, so that it may work.
    """

    inside: float | None
    outside: float | None
    known: bool = True


def bracket(
    excess: Callable[[float], float | None],
    start: float,
    lowest: float,
    highest: float,
    tolerance: float = RELATIVE_TOLERANCE,
) -> Bracket:
    """Return both sides of the edge of what works that a walk from `start` meets first.

    From a value that works the walk goes up, otherwise down, in ratios of the square root of two. Between its last two
    values it goes on as a secant method over the logarithm of the value. Both are our own.
    `scipy.optimize.elementwise.bracket_root` doubles its steps, and would step over a range of values that works
    between two ranges that do not. SciPy's root finders converge on the root, where an answer costs the most; the edge
    is known sooner from two values on its two sides.

    Parameters
    ----------
    excess : callable
        Returns how far a value is from working: finite, and 0 or less where it works; None where there is no answer,
        and there the walk turns as well.
    start : float
        Where the walk begins, above 0.
    lowest, highest : float
        Range of the walk, above 0.
    tolerance : float
        Largest relative difference of the two sides.

    Returns
    -------
    Bracket
        Both sides of the edge.

    Examples
    --------
    >>> found = bracket(lambda value: value**2 - 9, start=1.0, lowest=0.1, highest=100.0)
    >>> found.inside <= 3 < found.outside, found.outside / found.inside < 1.01
    (True, True)
    >>> bracket(lambda value: value - 3, start=1.0, lowest=0.1, highest=2.0)
    Bracket(inside=2.0, outside=None, known=True)
    """
    found: dict[float, float | None] = {}

    def works(value: float) -> bool:
        found[value] = excess(value)
        known = found[value]
        return known is not None and known <= 0

    if works(start):
        inside = start
        while inside < highest and works(outside := min(inside * STEP, highest)):
            inside = outside
        if inside == highest:
            return Bracket(highest, None)
    else:
        outside = start
        while outside > lowest and not works(inside := max(outside / STEP, lowest)):
            outside = inside
        if outside <= lowest:
            return Bracket(None, outside)
    inside, outside = narrowed(excess, found, inside, outside, tolerance)
    return Bracket(inside, outside, known=found[outside] is not None)


def narrowed(
    excess: Callable[[float], float | None],
    found: dict[float, float | None],
    inside: float,
    outside: float,
    tolerance: float,
) -> tuple[float, float]:
    """Bring the two sides of an edge together.

    The search is a secant method over the logarithm of the value that steps to one side of the root and then to the
    other. It halves the bracket where the secant does not do so in two steps.

    Parameters
    ----------
    excess : callable
        As for `bracket`.
    found : dict
        The excesses that are known, of both sides at least; the others are added.
    inside, outside : float
        A value that works, and a larger value that does not, both above 0.
    tolerance : float
        Largest relative difference of the two sides.

    Returns
    -------
    tuple of float
        Both sides: a value that works, and a larger value that does not.

    Examples
    --------
    >>> inside, outside = narrowed(lambda value: value - 3, {1.0: -2.0, 9.0: 6.0}, 1.0, 9.0, tolerance=0.01)
    >>> inside <= 3 < outside <= 1.01 * inside
    True
    """
    width = math.log1p(tolerance)
    low, high = math.log(inside), math.log(outside)
    widths = [math.inf, math.inf]
    while high - low > width:
        below, above = found[inside], found[outside]
        assert below is not None
        below, above = min(below, -SMALLEST_EXCESS), ALL_LATE if above is None else above
        root = low + (high - low) * below / (below - above)
        if high - low > widths[-2] / 2:
            place = (low + high) / 2
        elif root - low < NEAR * width:
            place = low + CLOSING * width
        elif high - root < NEAR * width:
            place = high - CLOSING * width
        else:
            place = root - (1 - NEAR) * width
        widths.append(high - low)
        value = math.exp(place)
        distance = found[value] = excess(value)
        if distance is not None and distance <= 0:
            inside, low = value, place
        else:
            outside, high = value, place
    return inside, outside


def excess_lateness(answer: Answer, target: Target) -> float | None:
    """Return the logarithm of the share of late packets over the share that a target allows.

    Near saturation the share of late packets falls exponentially with the distance from saturation, so that its
    logarithm is nearly linear in the quantity that is varied. A scenario that is too large counts as all late.

    Parameters
    ----------
    answer : Answer
        The answer to a request with precision "decision".
    target : Target
        The demand on the delay.

    Returns
    -------
    float or None
        0 or less where the target is met; None where the model refuses the scenario.
    """
    if answer.status == "unsupported":
        return None
    return _excess(answer.lateness if answer.answered else ALL_LATE, target)


def _excess(late: float, target: Target) -> float:
    """Return the logarithm of a share of late packets over the share that a target allows."""
    allowed = 1 - target.quantile
    distance = math.log(max(late, SMALLEST_SHARE * allowed) / allowed)
    return min(distance, 0.0) if target.allows(late) else max(distance, SMALLEST_EXCESS)


def edge_of(
    axis: Axis,
    stack: KnownStack,
    target: Target,
    start: float,
    model: AnsweredBy | Model = "chain",
    on_progress: Callable[[int, int], None] | None = None,
    tolerance: float = RELATIVE_TOLERANCE,
) -> Bracket:
    """Return both sides of the edge of what meets a target, as `bracket` finds it from `start` on an axis.

    `model` answers each value. `on_progress` is called with the number of values tried, and the largest number.
    `tolerance` is the largest relative difference between the two sides of the edge.
    """
    requested = Requested(precision="decision", target=target)
    tried, most = 0, most_values(axis)

    def excess(value: float) -> float | None:
        nonlocal tried
        found = excess_lateness(predict(Scenario(*axis.place(value), stack), requested, model), target)
        tried += 1
        if on_progress is not None:
            on_progress(tried, most)
        return found

    return bracket(excess, start, axis.lowest, axis.highest, tolerance)


def likely_edge(axis: Axis, stack: KnownStack, target: Target) -> float:
    """Return the value at which a search by simulations starts, from closed forms alone.

    There, the mean rate of the source is half of the fair TCP rate, or the network alone takes the target's limit. A
    chain would know it better. But to compile the chain takes far longer than the simulations that this saves.

    Examples
    --------
    >>> from tcpdelay.questions.quantities import loss_axis
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.sources.video import Video
    >>> from tcpdelay.scenario.stack import Linux
    >>> axis = loss_axis(Video(1e6), Path(rtt=0.060, loss=0))
    >>> 0.004 < likely_edge(axis, Linux(), Target(0.2)) < 0.008
    True
    """

    def excess(value: float) -> float:
        source, path = axis.place(value)
        if not target.is_met_by(path.forward_delay):
            return ALL_LATE
        return connection_utilization(source, path, stack) - STARTING_UTILIZATION

    return bracket(excess, axis.highest, axis.lowest, axis.highest, STARTING_TOLERANCE).inside or axis.lowest


def most_values(axis: Axis) -> int:
    """Return the largest number of values that a search on an axis tries.

    Examples
    --------
    >>> most_values(Axis("rtt", lambda rtt: None, lowest=0.01, highest=0.02))
    15
    """
    walked = math.ceil(math.log(axis.highest / axis.lowest) / math.log(STEP)) + 1
    return walked + 2 * math.ceil(math.log2(math.log(STEP) / math.log1p(RELATIVE_TOLERANCE)))


def edges_within_error(
    axis: Axis,
    stack: KnownStack,
    target: Target,
    edge: float,
    model: AnsweredBy | Model = "chain",
    tolerance: float = RELATIVE_TOLERANCE,
    asked: Requested = WHOLE_DISTRIBUTION,
) -> tuple[float | None, float | None]:
    """Return the range in which the expected error places an edge.

    Parameters
    ----------
    axis : Axis
        The quantity to vary, and its range.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.
    edge : float
        The edge that the model predicts.
    model : {"chain"} or Model
        The model.
    tolerance : float
        Largest relative distance from an end of the range to the next value tried, which is beyond this end.
    asked : Requested
        What time and memory an answer may take.

    Returns
    -------
    tuple of float or None
        The largest value below `edge` with which the target is met whatever the expected error, and the smallest value
        above it with which the target is missed whatever the expected error; None where a side has no such value.

    Examples
    --------
    >>> from tcpdelay.questions.quantities import loss_axis
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.stack import Linux
    >>> axis = loss_axis(Flow(174, 0.020), Path(rtt=0.100, loss=0.02))
    >>> low, high = edges_within_error(axis, Linux(), Target(0.2), 0.0589)
    >>> low < 0.0589 < high
    True
    """
    requested = replace(asked, precision="decision", target=target)

    def edge_if(longer: bool) -> Bracket:
        def excess(value: float) -> float:
            return _excess(_late_if(longer, Scenario(*axis.place(value), stack), requested, target, model), target)

        return bracket(excess, edge, axis.lowest, axis.highest, tolerance)

    return edge_if(longer=True).inside, edge_if(longer=False).outside


def _late_if(
    longer: bool, scenario: Scenario, requested: Requested, target: Target, model: AnsweredBy | Model
) -> float:
    """Return the share of late packets if all delays are longer, or shorter, by the expected error."""
    if model != "chain" or isinstance(scenario.stack, Quic):
        answer = predict(scenario, requested, model)
        return late_range(answer, target.latest)[longer]
    # The chain of TCP knows its error from its capacity, and decides with less work than a distribution takes.
    flow, path, stack = scenario.flow, scenario.path, scenario.stack
    largest = capacity(scenario)
    error = relative_error(
        stack, expected_error(flow, path, stack, largest > flow.packet_rate, largest, target.quantile)
    )
    open_end = ALL_LATE if longer else 0.0
    if error >= WRONG_CALL:
        return open_end
    limit = target.limit * (1 - error) if longer else longer_limit(target.limit, error)
    answer = predict(scenario, replace(requested, target=replace(target, limit=limit)), model)
    return answer.lateness if answer.answered else open_end
