"""The search for the edge of what works along one quantity, and the quantities that questions vary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from tcpdelay.accuracy.errors import WRONG_CALL, expected_error
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.ask import Answer, Model, Requested
from tcpdelay.declare import InvalidValueError, bounds
from tcpdelay.models.predict import COMPARED_PACKETS, AnsweredBy, capacity, predict, simulator, supports
from tcpdelay.models.verdict import late_range, longer_limit, relative_error
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, Quic, Stack
from tcpdelay.units import DIGITS, format_fraction, format_rate, format_time

# The quantities of a scenario that questions vary: bitrate, packet rate, loss and round-trip time.

Quantity = Literal["bitrate", "packet rate", "loss", "rtt"]
Growth = Literal["segments", "size", "rate"]

MAX_RTT = bounds(Path, "rtt")[1]
MIN_INTERVAL, MAX_INTERVAL = bounds(Flow, "interval")
MAX_PACKET_SIZE = bounds(Flow, "packet_size")[1]
LARGEST_LOAD = 200
"""Largest number of packets per round-trip time in a search; with more packets, one chain takes too long."""
LONGEST_INTERVAL = 1.0
"""Longest interval in a search for a packet rate [s]; the chain has been checked up to a tenth of this interval."""
SMALLEST_LOSS, LARGEST_LOSS, NEARLY = 1e-6, 0.5, 0.99
SMALLEST_RTT = 1e-3
"""Ends of a search for a loss, and lower end of a search for a round-trip time [s]."""


def format_packet_rate(rate: float, digits: int = DIGITS) -> str:
    """Return a packet rate [1/s] in words.

    >>> format_packet_rate(50), format_packet_rate(999.7)
    ('50 packets/s', '1000 packets/s')
    """
    decimals = max(digits - len(f"{rate:.0f}"), 0)
    # Three digits of 999.5 and more would be written 1e+03.
    return f"{rate:.{digits}g} packets/s" if rate < 999.5 else f"{rate:.{decimals}f} packets/s"


FORMATS: dict[Quantity, Callable[..., str]] = {
    "bitrate": format_rate,
    "packet rate": format_packet_rate,
    "loss": format_fraction,
    "rtt": format_time,
}
"""Functions that format a value of each quantity."""


@dataclass(frozen=True)
class Axis:
    """A quantity that varies, while all other fields of a scenario keep their values."""

    quantity: Quantity  # The quantity that is varied
    # Returns the source and the path that have a given value of the quantity [bit/s, 1/s, fraction, s].
    place: Callable[[float], tuple[Source, Path]]
    # lowest, highest: Range of a search, above 0.
    lowest: float
    highest: float
    # The source before it is varied.
    source: Source


def average_flow(source: Source) -> Flow:
    """Return the flow with the mean packet size and interval of a source; a `Flow` is its own average.

    The chain answers for such a flow in milliseconds. A search by simulation can therefore begin near the edge.
    """
    if isinstance(source, Flow):
        return source
    size = min(max(round(source.mean_size), 1), int(MAX_PACKET_SIZE))
    return Flow(size, min(max(source.mean_interval, MIN_INTERVAL), MAX_INTERVAL), source.write_jitter)


def at_bitrate(flow: Flow, bitrate: float, mss: int) -> Flow:
    """Return the flow at another bitrate [bit/s]: packets grow up to one segment, and then become more frequent."""
    largest = max(mss, flow.packet_size)
    if bitrate * flow.interval / 8 > largest:
        return replace(Flow.from_bitrate(bitrate, largest), write_jitter=flow.write_jitter)
    return flow.at_bitrate(bitrate)


def bitrate_axis(flow: Source, path: Path, stack: Stack, grow: Growth = "segments") -> Axis:
    """Return the axis of the bitrate [bit/s]."""
    if grow not in get_args(Growth):
        raise InvalidValueError("grow", grow, f"be one of {', '.join(map(repr, get_args(Growth)))}")
    path = checked_path(path)
    if not isinstance(flow, Flow):
        return _scaled_axis(flow, path, stack, grow)
    size, interval = flow.packet_size, flow.interval
    mss = int(getattr(stack, "mss", size))
    per_packet = 8 * (size if grow == "rate" else max(mss, size))
    highest = min(LARGEST_LOAD * per_packet / path.rtt, per_packet / MIN_INTERVAL)
    if grow == "rate":
        lowest = per_packet / LONGEST_INTERVAL

        def more_often(rate: float) -> tuple[Flow, Path]:
            return replace(flow, interval=Flow.from_bitrate(rate, size).interval), path

        return Axis("bitrate", more_often, lowest, max(lowest, highest), flow)
    lowest = 8 / interval
    if grow == "segments" and size <= mss:
        return Axis("bitrate", lambda rate: (at_bitrate(flow, rate, mss), path), lowest, max(lowest, highest), flow)
    highest = max(lowest, min(highest, lowest * MAX_PACKET_SIZE))
    return Axis("bitrate", lambda rate: (flow.at_bitrate(rate), path), lowest, highest, flow)


def _scaled_axis(source: Source, path: Path, stack: Stack, grow: Growth) -> Axis:
    """Return the axis of the mean bitrate of a source: the sizes of its messages change, and their rate does not."""
    if grow == "rate":
        hint = "the messages of other sources keep their times and grow"
        raise InvalidValueError("grow", grow, "be 'segments' or 'size' unless the source is a Flow", hint)
    # Raises InvalidValueError if the source has no mean bitrate.
    source.scale_to(1.0)
    present = source.mean_bitrate
    lowest, highest = 8 * source.message_rate, LARGEST_LOAD * 8 * getattr(stack, "mss", source.mean_size) / path.rtt
    while lowest < present and not _can_have(source, lowest):
        lowest = min(2 * lowest, present)
    while highest > present and not _can_have(source, highest):
        highest = max(highest / 2, present)
    return Axis("bitrate", lambda rate: (source.at_bitrate(rate), path), lowest, max(lowest, highest), source)


def _can_have(source: Source, bitrate: float) -> bool:
    """Return whether the parameters of a source allow a bitrate [bit/s]."""
    try:
        source.at_bitrate(bitrate)
    except InvalidValueError:
        return False
    return True


def packet_rate_axis(flow: Flow, path: Path, stack: Stack) -> Axis:
    """Return the axis of the packet rate [1/s], from 1 packet per second to 200 packets per round-trip time."""
    bits = 8 * flow.packet_size
    axis = bitrate_axis(flow, path, stack, "rate")
    return Axis("packet rate", lambda rate: axis.place(rate * bits), axis.lowest / bits, axis.highest / bits, flow)


def loss_axis(flow: Source, path: Path) -> Axis:
    """Return the axis of the loss, from 1e-6 to `most_loss`."""
    highest = most_loss(checked_path(path))
    return Axis("loss", lambda loss: (flow, replace(path, loss=loss)), SMALLEST_LOSS, highest, flow)


def most_loss(path: Path) -> float:
    """Return the largest loss of a search: 0.5, or less than in bad states, or the path's own if that is larger."""
    return max(min(LARGEST_LOSS, NEARLY * path.bad_loss), path.loss)


def at_rtt(path: Path, rtt: float) -> Path:
    """Return the path with another round-trip time [s]; a given one-way delay keeps its share of the round-trip time.

    >>> at_rtt(Path(rtt=0.100, loss=0.02, one_way_delay=0.030), 0.200).forward_delay
    0.06
    """
    given = checked_path(path).one_way_delay
    return replace(path, rtt=rtt, one_way_delay=None if given is None else min(given / path.rtt * rtt, rtt))


def rtt_axis(flow: Source, path: Path) -> Axis:
    """Return the axis of the round-trip time [s], from 1 ms to 200 mean intervals of the source, or the path's own."""
    longest = max(checked_path(path).rtt, min(MAX_RTT, LARGEST_LOAD * flow.mean_interval))
    return Axis("rtt", lambda rtt: (flow, at_rtt(path, rtt)), min(SMALLEST_RTT, path.rtt), longest, flow)


# The search for the edge of what works along one quantity: a walk, then a secant method between two values.
#
# Every search tries only powers of one ratio, whose neighbours differ by no more than the tolerance. So two searches
# that begin at different values find the same edge.

STEPS_OF_WALK = 2
"""Values in a doubling that a walk tries."""
STEP = 2.0 ** (1 / STEPS_OF_WALK)
"""Ratio of two neighbouring values of the walk."""
RELATIVE_TOLERANCE = 0.01
SIMULATED_TOLERANCE = 0.05
"""Tolerance of the range in which the expected error places an edge, if its ends are simulated one by one."""
SMALLEST_SHARE = 1e-3
"""Smallest share of late packets, relative to the share that a target allows, that the search distinguishes."""
ALL_LATE = 1.0
HARDLY = math.log(3)
"""Largest excess of a value that hardly fails: a chain decides on values between it and the edge by its solution, which
then also gives the delays."""
STARTING_UTILIZATION = 0.5
"""Share of the fair TCP rate at which a search starts."""
STARTING_TOLERANCE = 0.1
SECONDS_AT_END = 1.0
"""Processor time that each of the answers takes at most that confirm an end of a range [s]."""
SMALLEST_EXCESS = 1e-9
"""Excess that stands for 0, so that its sign says on which side of the edge a value lies."""
ROUNDING = 1e-9
"""Largest error of the place of a value among the powers of a ratio."""


@dataclass(frozen=True)
class Bracket:
    """Both sides of an edge."""

    inside: float | None  # Largest value found that works; None if no value works
    # Smallest value found above `inside` that does not work, or the last value tried if none works. None if the
    # search ended with the highest value allowed, which works.
    outside: float | None
    known: bool = True  # False where there is no answer at `outside`, so that it may work


def steps(tolerance: float) -> int:
    """Return how many values a search tries from one value to its double: a multiple of `STEPS_OF_WALK`."""
    return STEPS_OF_WALK * math.ceil(math.log(2) / math.log1p(tolerance) / STEPS_OF_WALK)


def _at_most(value: float, per_doubling: int) -> int:
    """Return the number of the largest tried value that is at most `value`."""
    return math.floor(per_doubling * math.log2(value) + ROUNDING)


def _at_least(value: float, per_doubling: int) -> int:
    """Return the number of the smallest tried value that is at least `value`."""
    return math.ceil(per_doubling * math.log2(value) - ROUNDING)


def _value(number: int, per_doubling: int) -> float:
    """Return the tried value of a number."""
    return float(2.0 ** (number / per_doubling))


def bracket(
    excess: Callable[[float], float | None],
    start: float,
    lowest: float,
    highest: float,
    tolerance: float = RELATIVE_TOLERANCE,
    near: Callable[[float], float | None] | None = None,
) -> Bracket:
    """Return both sides of the edge of what works that a walk from `start` meets first.

    From a value that works the walk goes up, otherwise down, over the powers of the square root of two. Between its
    last two values it goes on as a secant method over the logarithm of the value. Both are our own.
    `scipy.optimize.elementwise.bracket_root` doubles its steps, and would step over a range of values that works
    between two ranges that do not. SciPy's root finders converge on the root, where an answer costs the most; the edge
    is known sooner from two values on its two sides.

    `near` takes the place of `excess` between two values of which the one beyond the edge hardly fails.
    """
    found: dict[float, float | None] = {}

    def works(value: float) -> bool:
        found[value] = excess(value)
        known = found[value]
        return known is not None and known <= 0

    def next_above(value: float) -> float:
        return min(_value(_at_most(value, STEPS_OF_WALK) + 1, STEPS_OF_WALK), highest)

    def next_below(value: float) -> float:
        return max(_value(_at_least(value, STEPS_OF_WALK) - 1, STEPS_OF_WALK), lowest)

    if works(start):
        inside = start
        while inside < highest and works(outside := next_above(inside)):
            inside = outside
        if inside == highest:
            return Bracket(highest, None)
    else:
        outside = start
        while outside > lowest and not works(inside := next_below(outside)):
            outside = inside
        if outside <= lowest:
            return Bracket(None, outside)
    beyond = found[outside]
    closer = excess if near is None or beyond is None or beyond > HARDLY else near
    inside, outside = narrowed(closer, found, inside, outside, tolerance)
    return Bracket(inside, outside, known=found[outside] is not None)


def narrowed(
    excess: Callable[[float], float | None],
    found: dict[float, float | None],
    inside: float,
    outside: float,
    tolerance: float,
) -> tuple[float, float]:
    """Return the two sides of an edge, brought together to a tolerance.

    The search is a secant method over the logarithm of the value that steps to one side of the root and then to the
    other. It halves the bracket where the secant does not do so in two steps.
    """
    per_doubling = steps(tolerance)
    low, high = _at_most(inside, per_doubling), _at_least(outside, per_doubling)
    widths = [math.inf, math.inf]
    upwards = False
    while high - low > 1:
        below, above = found[inside], found[outside]
        assert below is not None
        below, above = min(below, -SMALLEST_EXCESS), ALL_LATE if above is None else above
        root = low + (high - low) * below / (below - above)
        number = (low + high) // 2 if high - low > widths[-2] / 2 else math.ceil(root) if upwards else math.floor(root)
        widths.append(high - low)
        number = min(max(number, low + 1), high - 1)
        value = _value(number, per_doubling)
        distance = found[value] = excess(value)
        upwards = distance is not None and distance <= 0
        if upwards:
            inside, low = value, number
        else:
            outside, high = value, number
    return inside, outside


def excess_lateness(answer: Answer, target: Target) -> float | None:
    """Return the logarithm of the share of late packets over the share that a target allows.

    Near saturation the share of late packets falls exponentially with the distance from saturation, so that its
    logarithm is nearly linear in the quantity that is varied. A scenario that is too large counts as all late.
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
    asked: Requested,
    start: float,
    model: AnsweredBy | Model = "chain",
    on_progress: Callable[[int, int], None] | None = None,
) -> Bracket:
    """Return both sides of the edge of what meets the target asked for, as `bracket` finds it from `start`."""
    requested, target = replace(asked, precision="decision"), asked.target
    assert target is not None
    tried, most = 0, most_values(axis)

    def excess(value: float, whole: bool = False) -> float | None:
        nonlocal tried
        scenario = Scenario(*axis.place(value), stack)
        answer = _decision(scenario, requested, asked if whole else None, model)
        if answer.status == "too large":
            # A decision near the limit may take longer than the distribution.
            distribution = predict(scenario, asked, model)
            answer = distribution.restated(requested) or distribution
        tried += 1
        found = excess_lateness(answer, target)
        if on_progress is not None:
            on_progress(tried, most)
        return found

    near = partial(excess, whole=True) if model == "chain" else None
    return bracket(excess, start, axis.lowest, axis.highest, near=near)


def _decision(scenario: Scenario, requested: Requested, whole: Requested | None, model: AnsweredBy | Model) -> Answer:
    """Return the answer to a decision; with a request for the whole distribution, from that if it is not too large."""
    answer = None if whole is None else predict(scenario, whole, model).restated(requested)
    return predict(scenario, requested, model) if answer is None else answer


def likely_edge(axis: Axis, stack: KnownStack, target: Target) -> float:
    """Return the value at which a search starts, from closed forms alone.

    There, the mean rate of the source is half of the fair TCP rate, or the network alone takes the target's limit. Far
    above the edge an answer takes far longer than near it.

    >>> 0.005 < likely_edge(loss_axis(Flow(2000, 0.020), Path(0.060, 0)), Stack.linux(), Target(0.2)) < 0.02
    True
    """

    def excess(value: float) -> float:
        source, path = axis.place(value)
        if not target.is_met_by(path.forward_delay):
            return ALL_LATE
        return connection_utilization(source, path, stack) - STARTING_UTILIZATION

    return bracket(excess, axis.highest, axis.lowest, axis.highest, STARTING_TOLERANCE).inside or axis.lowest


def most_values(axis: Axis) -> int:
    """Return the largest number of values that a search on an axis tries."""
    walked = math.ceil(STEPS_OF_WALK * math.log2(axis.highest / axis.lowest)) + 2
    return walked + 2 * math.ceil(math.log2(steps(RELATIVE_TOLERANCE) / STEPS_OF_WALK))


def edges_within_error(
    axis: Axis,
    stack: KnownStack,
    asked: Requested,
    edge: float,
    model: AnsweredBy | Model = "chain",
    auto: bool = False,
) -> tuple[float | None, float | None]:
    """Return the range in which the expected error places an edge: to 1 %, or to 5 % by simulations.

    With `auto`, what the chain refuses is simulated, and the range contains the edge of what `predict` answers. The
    simulations of a search are short, and `predict` simulates for longer.
    """
    requested, target = replace(asked, precision="decision"), asked.target
    assert target is not None
    tolerance = RELATIVE_TOLERANCE if model == "chain" else SIMULATED_TOLERANCE
    error = None
    if model != "chain":
        error = relative_error(stack, predict(Scenario(*axis.place(edge), stack), asked, model).expected_error)

    def edge_if(longer: bool) -> Bracket:
        def excess(value: float, whole: Requested | None = None) -> float:
            scenario = Scenario(*axis.place(value), stack)
            return _excess(_late_if(longer, scenario, requested, model, error, whole, auto), target)

        near = partial(excess, whole=asked) if model == "chain" else None
        return bracket(excess, edge, axis.lowest, axis.highest, tolerance, near)

    ends = edge_if(longer=True).inside, edge_if(longer=False).outside
    if not auto:
        return ends
    works, fails = (_where_predicted(axis, stack, requested, end, end is ends[0]) for end in ends)
    return works, fails


def _where_predicted(
    axis: Axis, stack: KnownStack, requested: Requested, end: float | None, works: bool
) -> float | None:
    """Return an end of a range, or the next value at which `predict` agrees that it works or fails."""
    decided, target = replace(requested, max_seconds=min(SECONDS_AT_END, requested.max_seconds)), requested.target
    assert target is not None

    def excess(value: float) -> float | None:
        answer = predict(Scenario(*axis.place(value), stack), decided)
        known = answer.answered and answer.method != "chain"
        return _excess(_late_within(answer, works), target) if known else excess_lateness(answer, target)

    if end is None or ((known := excess(end)) is not None and known <= 0) == works:
        return end
    found = bracket(excess, end, axis.lowest, axis.highest, SIMULATED_TOLERANCE)
    return found.inside if works else found.outside


def _late_within(answer: Answer, longer: bool) -> float:
    """Return the largest, or the smallest, share of late packets that the statistical error of a simulation allows."""
    target, found = answer.requested.target, answer.distribution
    statistical = 0.0 if target is None or found is None else found.late_error(target.limit)
    return min(max(answer.lateness + (statistical if longer else -statistical), 0.0), 1.0)


def _late_if(
    longer: bool,
    scenario: Scenario,
    requested: Requested,
    model: AnsweredBy | Model,
    error: float | None,
    whole: Requested | None = None,
    auto: bool = False,
) -> float:
    """Return the share of late packets if all delays are longer, or shorter, by the expected error.

    The error of a simulation is given: that at the edge, as it hardly changes along the range.
    """
    target, open_end = requested.target, ALL_LATE if longer else 0.0
    assert target is not None
    if target.latest < scenario.path.forward_delay:
        return ALL_LATE
    refused = auto and bool(supports(scenario).refused)
    if error is None and not refused:
        if isinstance(scenario.stack, Quic):
            # The range follows from the whole distribution.
            return late_range(predict(scenario, replace(requested, precision="exact"), model), target.latest)[longer]
        # The chain of TCP knows its error from its capacity, and decides with less work than a distribution takes.
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        largest = capacity(scenario)
        known = expected_error(flow, path, stack, largest > flow.packet_rate, largest, target.quantile)
        error = relative_error(stack, known)
        if error >= WRONG_CALL:
            return open_end
    if error is not None:
        limit = target.limit * max(1 - error, SMALLEST_SHARE) if longer else longer_limit(target.limit, error)
        answer = _decision(scenario, replace(requested, target=replace(target, limit=limit)), whole, model)
        if answer.answered:
            # Without a known error of the delays, the statistical error of the share counts.
            return _late_within(answer, longer) if error == 0 else answer.lateness
        if not auto:
            return open_end
    simulated = predict(scenario, replace(requested, precision="exact"), simulator(COMPARED_PACKETS))
    return late_range(simulated, target.latest)[longer]
