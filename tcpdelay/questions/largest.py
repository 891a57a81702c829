"""The largest value of a quantity with which a target is met, and what keeps it from being larger."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tcpdelay.distribution import CUMULATION_NOISE, ExpectedError
from tcpdelay.models.accuracy import expected_error
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import TooLargeError, UnsupportedError
from tcpdelay.models.validity import validated_range
from tcpdelay.questions.search import Bracket, bracket, bracket_by_excess
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, Stack, checked_profile
from tcpdelay.scenario.target import Target
from tcpdelay.units import DIGITS, format_fraction, format_rate, format_time, told_apart

Quantity = Literal["bitrate", "packet rate", "loss", "rtt"]
Limit = Literal["delay", "capacity", "size of the chain", "bursts", "range"]

LARGEST_LOAD = 200
"""Packets per round-trip time up to which a search goes; beyond, a single point takes too long."""
SMALLEST_SHARE = 1e-3
"""Share of what a target allows to be late below which it does not matter how much is late."""
SCAN_FACTOR = 4.0
"""Factor between the values that are looked at for the best that can be had."""


def format_packet_rate(rate: float, digits: int = DIGITS) -> str:
    """Return a packet rate [1/s] in words.

    Examples
    --------
    >>> format_packet_rate(50), format_packet_rate(999.7)
    ('50 packets/s', '1000 packets/s')
    """
    decimals = max(digits - len(f"{rate:.0f}"), 0)
    # Three digits of 999.5 and more would be written 1e+03.
    return f"{rate:.{digits}g} packets/s" if rate < 999.5 else f"{rate:.{decimals}f} packets/s"


WORDS: dict[Quantity, Callable[..., str]] = {
    "bitrate": format_rate,
    "packet rate": format_packet_rate,
    "loss": format_fraction,
    "rtt": format_time,
}
"""How a value of each quantity is written."""


@dataclass(frozen=True)
class Axis:
    """One quantity of a scenario, everything else unchanged.

    Parameters
    ----------
    quantity : {"bitrate", "packet rate", "loss", "rtt"}
        What is varied.
    place : callable
        Returns flow and path at a value of it [bit/s, 1/s, fraction, s].
    lowest, highest : float
        Values between which a search goes, above 0.
    """

    quantity: Quantity
    place: Callable[[float], tuple[Flow, Path]]
    lowest: float
    highest: float

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return self.lowest, self.highest

    def search(self, stack: Stack, target: Target, start: float) -> Bracket:
        """Return both sides of the edge that a walk from `start` meets first."""
        return bracket_by_excess(lambda value: excess_lateness(*self.place(value), stack, target), start, *self.ends)


def meets(flow: Flow, path: Path, stack: Stack, target: Target) -> bool | None:
    """Say whether the chain predicts that a target is met; what is too large is not promised.

    Returns
    -------
    bool or None
        None for losses in bursts that the chain does not follow.
    """
    if path.forward_delay > target.limit:
        return False
    try:
        return DelayModel(flow, path, stack).meets(target.limit, target.quantile)
    except TooLargeError:
        return False
    except UnsupportedError:
        return None


def excess_lateness(flow: Flow, path: Path, stack: Stack, target: Target) -> float | None:
    """Return the logarithm of late packets over those that a target allows; what is too large is taken as all late.

    Near saturation the share of late packets falls exponentially with the distance from it, so that its logarithm is
    almost a straight line over whatever is varied.

    Returns
    -------
    float or None
        0 or less where the target is met; None for losses in bursts that the chain does not follow.
    """
    allowed = 1 - target.quantile
    late = 1.0
    if path.forward_delay <= target.limit:
        try:
            late = DelayModel(flow, path, stack).lateness(target.limit, target.quantile)
        except TooLargeError:
            pass
        except UnsupportedError:
            return None
    return (
        0.0 if allowed < late <= allowed + CUMULATION_NOISE else math.log(max(late, SMALLEST_SHARE * allowed) / allowed)
    )


@dataclass(frozen=True)
class Edge:
    """The largest value of one quantity with which a target is met.

    Parameters
    ----------
    quantity : {"bitrate", "packet rate", "loss", "rtt"}
        What was asked for.
    value : float
        Its largest value that works [bit/s, 1/s, fraction, s].
    fails : float or None
        The next value above that was tried and does not; None where the search ended first.
    limited_by : {"delay", "capacity", "size of the chain", "bursts", "range"}
        What is wrong with the value that fails: its delay is too long; TCP cannot carry the flow at all; no chain can
        be solved for it; the chain does not follow its losses in bursts, so it may work. Or that the search goes no
        further.
    tolerance : float
        How far the two are apart, as a fraction of `value`; 0 where nothing fails.
    delay : float
        The target's quantile of the delay [s] at `value`.
    delay_beyond : float or None
        The same at `fails`, infinite where TCP cannot carry the flow; None where nothing fails, or no chain is solved.
    target : Target
        The demand on the delay.
    stack : Stack
        The TCP implementation.
    at, beyond : tuple of Flow and Path
        The scenarios of the two values; `beyond` is None where nothing fails.
    expected_error : ExpectedError
        How far the prediction at `value` is probably off.
    """

    quantity: Quantity
    value: float
    fails: float | None
    limited_by: Limit
    tolerance: float
    delay: float
    delay_beyond: float | None
    target: Target
    stack: KnownStack
    at: tuple[Flow, Path]
    beyond: tuple[Flow, Path] | None
    expected_error: ExpectedError

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the scenario at `value` lies outside the range in which the model has been checked."""
        return tuple(validated_range(self.stack).exceeded_by(*self.at))


def _quantile(flow: Flow, path: Path, stack: Stack, target: Target) -> float:
    """Return the target's quantile [s] as the chain predicts it."""
    return DelayModel(flow, path, stack).delay_distribution().quantile(target.quantile)


def largest(axis: Axis, stack: Stack, target: Target) -> Edge:
    """Return the largest value on an axis that meets a target, coming down from the top in steps of 1.41.

    Coming down, as a low value need not work for a higher one to: few packets bring few duplicate acknowledgements.

    Parameters
    ----------
    axis : Axis
        What to vary, and how far.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.

    Returns
    -------
    Edge
        The value, to one percent.

    Raises
    ------
    ValueError
        If no value meets the target; the message says what the best is.

    Examples
    --------
    >>> path = Path(rtt=0.100, loss=0.02)
    >>> axis = Axis("bitrate", lambda rate: (Flow(round(rate / 400), 0.020), path), lowest=8e3, highest=3e5)
    >>> largest(axis, Stack.linux(), Target(0.2)).limited_by
    'range'
    """
    stack = checked_profile(stack)
    found = bracket(lambda value: _certainly_meets(*axis.place(value), stack, target), axis.highest, *axis.ends)
    if found.inside is None:
        raise ValueError(f"no {axis.quantity} meets the target: {_best_reachable(axis, stack, target)}")
    at = axis.place(found.inside)
    beyond = None if found.outside is None else axis.place(found.outside)
    value = _exact(axis.quantity, at, found.inside)
    fails = None if found.outside is None or beyond is None else _exact(axis.quantity, beyond, found.outside)
    limit, delay_beyond = ("range", None) if beyond is None else _limit(*beyond, stack, target)
    return Edge(
        quantity=axis.quantity,
        value=value,
        fails=fails,
        limited_by=limit,
        tolerance=0.0 if fails is None else fails / value - 1,
        delay=_quantile(*at, stack, target),
        delay_beyond=delay_beyond,
        target=target,
        stack=stack,
        at=at,
        beyond=beyond,
        expected_error=expected_error(*at, stack),
    )


def _exact(quantity: Quantity, scenario: tuple[Flow, Path], searched: float) -> float:
    """Return the value that a scenario really has: packets are of whole bytes."""
    return scenario[0].bitrate if quantity == "bitrate" else searched


def _certainly_meets(flow: Flow, path: Path, stack: Stack, target: Target) -> bool | None:
    """Say whether a target is met, also with all of the backlog: a quick yes looks at most of it."""
    return meets(flow, path, stack, target) and _quantile(flow, path, stack, target) <= target.limit


def _limit(flow: Flow, path: Path, stack: Stack, target: Target) -> tuple[Limit, float | None]:
    """Return what is wrong with a scenario that misses the target, and the target's quantile of its delay [s]."""
    try:
        if DelayModel(flow, path, stack).backlog_drift >= 0:
            return "capacity", math.inf
        delay = _quantile(flow, path, stack, target)
    except TooLargeError:
        return "size of the chain", None
    except UnsupportedError:
        return "bursts", None
    return "capacity" if delay == math.inf else "delay", delay


def _best_reachable(axis: Axis, stack: Stack, target: Target) -> str:
    """Say which value has the shortest delay, and how long that is."""
    best, least = axis.lowest, math.inf
    value = axis.lowest
    while value <= axis.highest:
        try:
            delay = _quantile(*axis.place(value), stack, target)
        except (TooLargeError, UnsupportedError):
            break
        if delay == math.inf:
            break
        if delay < least:
            best, least = value, delay
        value *= SCAN_FACTOR
    share = format_fraction(target.quantile)
    reached, limit = told_apart(format_time, least, target.limit)
    if least == math.inf:
        return f"TCP carries no such flow, and so not {share} within {limit}"
    at_best = WORDS[axis.quantity](best)
    return f"at best, with {at_best}, {share} come within {reached}, and not within {limit}"
