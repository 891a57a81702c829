"""A demand on a call: its mean opinion score, in place of a limit of the delay.

The best of some ways to send the same data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import expected_error
from tcpdelay.models.interface import TooLargeError
from tcpdelay.models.validity import ValidityWarning, validated_range
from tcpdelay.quality.voice import CODECS, Codec, best_playout_delay, codec_named
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.scenario.target import Target
from tcpdelay.units import format_fraction, format_time


@dataclass(frozen=True)
class CallTarget:
    """What a call over TCP has to be worth.

    Parameters
    ----------
    codec : str or Codec
        A name in `tcpdelay.quality.CODECS`, or a codec of one's own. Its packets are taken to be as long as the flow's
        interval.
    mos : float, optional
        Least mean opinion score, 1 to 4.5; by default the best that can be had is asked for.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    ITU-T G.107 (the E-model).

    Examples
    --------
    >>> CallTarget("g711", mos=4.0).codec_of(0.040).packet_interval
    0.04
    """

    codec: str | Codec = "g711"
    mos: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.codec, str):
            codec_named(self.codec)
        if self.mos is not None and not 1 <= self.mos <= 4.5:
            raise InvalidValueError("mos", self.mos, "lie between 1 and 4.5")

    def codec_of(self, interval: float) -> Codec:
        """Return the codec with packets of `interval` [s], 0.0025 to 1."""
        codec = CODECS[self.codec] if isinstance(self.codec, str) else self.codec
        return replace(codec, packet_interval=interval)


Chosen = Literal["interval", "pieces", "connections"]
Reason = Literal["target", "rank", "candidates"]

SEGMENT_HEADERS = 52
"""Bytes that IPv4 and TCP with timestamps put before each segment (RFC 791, RFC 9293, RFC 7323)."""

AGE_DIGITS, MOS_DIGITS = 4, 3
"""Decimals of ages [s] and of scores that count: what differs by less is equally good."""


@dataclass(frozen=True)
class Way:
    """One way to send the data, before anything is predicted of it.

    Parameters
    ----------
    value : float
        What is chosen: an interval [s], or a number of pieces or connections.
    packets : Flow
        The application's packets.
    asked : Flow
        The flow that the chain is asked about: a piece of them, or what one connection carries.
    wire_rate : float
        Bits per second that all of it takes on the network, headers of TCP and IP included.
    predict : callable
        Returns the delay of the application's packets.
    """

    value: float
    packets: Flow
    asked: Flow
    wire_rate: float
    predict: Callable[[], DelayDistribution]


@dataclass(frozen=True)
class Candidate:
    """What is predicted of one way to send the data.

    Parameters
    ----------
    value : float
        What is chosen: an interval [s], or a number of pieces or connections.
    flow : Flow
        The application's packets.
    delay : float
        The target's quantile of the delay from write to read [s], of a call the best playout delay; infinite where TCP
        cannot carry the flow.
    age : float
        `delay` and the interval that the packet took to fill [s]: how old its first byte is when it is read.
    mos : float or None
        Mean opinion score at the best playout delay; None where no call was asked about.
    wire_rate : float
        Bits per second on the network, headers of TCP and IP included.
    meets_target : bool
        Whether `delay` is within the target's limit, or `mos` no less than asked for.
    expected_error : ExpectedError
        How far the chain's prediction behind it is probably off.
    notes : tuple of str
        What of it lies outside the range in which the model has been checked.
    """

    value: float
    flow: Flow
    delay: float
    age: float
    mos: float | None
    wire_rate: float
    meets_target: bool
    expected_error: ExpectedError
    notes: tuple[str, ...]

    @property
    def _rank(self) -> tuple[float, float]:
        """What is to be as small as possible: the age, or a call's badness; among near equals the load."""
        return (round(self.age, AGE_DIGITS) if self.mos is None else round(-self.mos, MOS_DIGITS), self.wire_rate)


@dataclass(frozen=True)
class Choice:
    """The best of some ways to send the data.

    Parameters
    ----------
    quantity : {"interval", "pieces", "connections"}
        What is chosen.
    target : Target or CallTarget
        What is demanded.
    candidates : tuple of Candidate
        All ways, by ascending value.
    best : Candidate
        That with the best score, or the shortest age, among those that meet the target.
    fails : float or None
        The value nearest to the best that misses the target; None if none does.
    limited_by : {"target", "rank", "candidates"}
        Why not a neighbour: those miss the target; they meet it but are worse; or the best is the smallest or the
        largest value offered, so that one beyond might be better.
    tolerance : float
        Ratio of the best value to its nearest neighbour, less 1: nothing between was tried; 0 with one candidate.
    """

    quantity: Chosen
    target: Target | CallTarget
    candidates: tuple[Candidate, ...]
    best: Candidate
    fails: float | None
    limited_by: Reason
    tolerance: float

    @property
    def value(self) -> float:
        """The best value."""
        return self.best.value

    @property
    def expected_error(self) -> ExpectedError:
        """How far the prediction for the best value is probably off."""
        return self.best.expected_error

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the best one lies outside the range in which the model has been checked."""
        return self.best.notes

    @property
    def lead(self) -> float:
        """By what fraction of its own age the best is ahead of the next best that meets the target; infinite alone.

        Of a call, the lead is in its age too, and can be negative.
        """
        others = [other for other in self.candidates if other is not self.best and other.meets_target]
        if not others:
            return math.inf
        return min(others, key=lambda other: other._rank).age / self.best.age - 1

    @property
    def certain(self) -> bool:
        """Whether the lead is larger than the median of the error expected of the best."""
        return self.lead > self.best.expected_error.median


def choose(
    quantity: Chosen,
    ways: Sequence[Way],
    path: Path,
    stack: KnownStack,
    target: Target | CallTarget,
    on_progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Return the best of some ways to send the same data.

    Parameters
    ----------
    quantity : {"interval", "pieces", "connections"}
        What is chosen.
    ways : sequence of Way
        What there is to choose from, one at least.
    path, stack
        The rest of the scenario.
    target : Target or CallTarget
        What is demanded.
    on_progress : callable, optional
        Is told after each way how many are done, and of how many.

    Returns
    -------
    Choice
        The best, and all others.

    Raises
    ------
    ValueError
        If none meets the target; the message says what the best is.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Linux
    >>> path, stack, flow = Path(rtt=0.100, loss=0.02), Linux(), Flow(174, 0.020)
    >>> fixed = DelayDistribution.from_samples([0.05, 0.15], 0.05)
    >>> found = choose("pieces", [Way(1, flow, flow, 9e4, lambda: fixed)], path, stack, Target(0.2))
    >>> found.value, found.best.age, found.limited_by
    (1, 0.17, 'candidates')
    """
    candidates = []
    for done, way in enumerate(sorted(ways, key=lambda way: way.value), 1):
        candidates.append(_candidate(way, path, stack, target))
        if on_progress is not None:
            on_progress(done, len(ways))
    good = [candidate for candidate in candidates if candidate.meets_target]
    if not good:
        raise ValueError(_refusal(quantity, min(candidates, key=lambda one: one._rank), target))
    best = min(good, key=lambda one: one._rank)
    bad = [candidate.value for candidate in candidates if not candidate.meets_target]
    place = candidates.index(best)
    neighbours = candidates[max(place - 1, 0) : place] + candidates[place + 1 : place + 2]
    if len(neighbours) < 2:
        reason: Reason = "candidates"
    else:
        reason = "rank" if any(neighbour.meets_target for neighbour in neighbours) else "target"
    ratios = [max(other.value / best.value, best.value / other.value) - 1 for other in neighbours]
    return Choice(
        quantity=quantity,
        target=target,
        candidates=tuple(candidates),
        best=best,
        fails=min(bad, key=lambda value: abs(math.log(value / best.value)), default=None),
        limited_by=reason,
        tolerance=min(ratios, default=0.0),
    )


def _candidate(way: Way, path: Path, stack: KnownStack, target: Target | CallTarget) -> Candidate:
    """Return what is predicted of one way."""
    try:
        with warnings.catch_warnings():
            # What has not been checked is among the notes.
            warnings.simplefilter("ignore", ValidityWarning)
            distribution = way.predict()
    except TooLargeError:
        distribution = DelayDistribution.unsustainable(path.forward_delay)
    mos = None
    if isinstance(target, Target):
        delay = distribution.quantile(target.quantile)
        meets = delay <= target.limit
    else:
        call = best_playout_delay(distribution, target.codec_of(way.packets.interval))
        delay, mos = call.playout_delay, call.mos
        meets = delay < math.inf and (target.mos is None or mos >= target.mos)
    return Candidate(
        value=way.value,
        flow=way.packets,
        delay=delay,
        age=way.packets.interval + delay,
        mos=mos,
        wire_rate=way.wire_rate,
        meets_target=meets,
        expected_error=expected_error(way.asked, path, stack, carried=distribution.sustainable),
        notes=tuple(validated_range(stack).exceeded_by(way.asked, path)),
    )


def _refusal(quantity: Chosen, best: Candidate, target: Target | CallTarget) -> str:
    """Say that nothing meets the target, and what comes nearest."""
    value = format_time(best.value) if quantity == "interval" else f"{best.value:g}"
    if best.delay == math.inf:
        return f"no choice of {quantity} meets the target: TCP cannot carry any of them"
    if isinstance(target, Target):
        share = format_fraction(target.quantile)
        reached = f"{share} come within {format_time(best.delay)}, and not within {format_time(target.limit)}"
    else:
        reached = f"the score is {best.mos:.2f}, and not {target.mos:g}"
    return f"no choice of {quantity} meets the target: at best, with {value}, {reached}"


def whole_numbers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return the distinct values, ascending, if there are any and each is a whole number above 0.

    Raises
    ------
    ValueError
        If there are none, or one is something else.

    Examples
    --------
    >>> whole_numbers("pieces", (4, 1, 1))
    (1, 4)
    """
    if not values or any(value != int(value) or value < 1 for value in values):
        raise InvalidValueError(name, tuple(values), "hold whole numbers above 0, one at least")
    return tuple(sorted(set(values)))


def wire_rate(flow: Flow, mss: int) -> float:
    """Return the bits per second that a flow takes on the network, each packet in segments of its own.

    Examples
    --------
    >>> wire_rate(Flow(174, 0.020), mss=1448)
    90400.0
    """
    return 8 * (flow.packet_size + SEGMENT_HEADERS * -(-flow.packet_size // mss)) / flow.interval
