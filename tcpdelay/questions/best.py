"""The best of several ways to send the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcpdelay.distribution import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.interface import Model, Requested
from tcpdelay.models.predict import COMPARED_PACKETS, AnsweredBy, model_to_compare, predict, simulator
from tcpdelay.models.validity import validated_range
from tcpdelay.models.verdict import Verdict, verdict_of
from tcpdelay.quality.voice import CallTarget, best_playout_delay
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.scenario.target import Target
from tcpdelay.units import format_fraction, format_time

Chosen = Literal["interval", "pieces", "connections"]
Reason = Literal["target", "rank", "candidates"]

SEGMENT_HEADERS = 52
"""Bytes of the headers of IPv4 and of TCP with timestamps, per segment (RFC 791, RFC 9293, RFC 7323)."""

AGE_DIGITS, MOS_DIGITS = 4, 3
"""Decimals of ages [s] and of scores that are compared; ways that differ by less are equally good."""


@dataclass(frozen=True)
class Way:
    """One way to send the data.

    Parameters
    ----------
    value : float
        The value that is chosen: an interval [s], or a number of pieces or connections.
    packets : Flow
        The application's packets.
    asked : Flow
        The flow that the model predicts: the packets, the pieces of the packets, or the packets of one connection.
    wire_rate : float
        Bit rate of all packets on the network, including headers of TCP and IP [bit/s].
    combined : callable
        Returns the delay of the application's packets from the delay of the flow `asked`.
    """

    value: float
    packets: Flow
    asked: Flow
    wire_rate: float
    combined: Callable[[DelayDistribution], DelayDistribution]


@dataclass(frozen=True)
class Candidate:
    """The prediction for one way to send the data.

    Parameters
    ----------
    value : float
        The value that is chosen: an interval [s], or a number of pieces or connections.
    flow : Flow
        The application's packets.
    delay : float
        The target's quantile of the delay from write to read [s]; for a call, the best playout delay. Infinite where
        TCP cannot carry the flow.
    age : float
        `delay` plus the interval in which the packet was filled [s]: the age of its first byte when it is read.
    mos : float or None
        Mean opinion score at the best playout delay; None unless the target is a call.
    wire_rate : float
        Bit rate on the network, including headers of TCP and IP [bit/s].
    meets_target : bool
        Whether the prediction meets the target.
    verdict : {"works", "uncertain", "fails"}
        The verdict on the target; "uncertain" where the expected error of the delay reaches across the limit.
    method : str
        Name of the model: "chain" or "simulation".
    expected_error : ExpectedError
        Expected error of the prediction.
    notes : tuple of str
        Fields that lie outside the range in which the model has been checked, and fields that the model ignores.
    """

    value: float
    flow: Flow
    delay: float
    age: float
    mos: float | None
    wire_rate: float
    meets_target: bool
    verdict: Verdict
    method: str
    expected_error: ExpectedError
    notes: tuple[str, ...]

    @property
    def rank(self) -> tuple[float, float]:
        """Rank by age, or by the score of a call, and then by load; the best way has the smallest rank."""
        return (round(self.age, AGE_DIGITS) if self.mos is None else round(-self.mos, MOS_DIGITS), self.wire_rate)


@dataclass(frozen=True)
class Choice:
    """The best of several ways to send the data.

    Parameters
    ----------
    quantity : {"interval", "pieces", "connections"}
        The quantity that is chosen.
    target : Target or CallTarget
        The demand on the delay or on the call.
    candidates : tuple of Candidate
        All ways, in ascending order of the value.
    best : Candidate
        The way with the best score, or the smallest age, among the ways that meet the target.
    fails : float or None
        The value nearest to the best value that misses the target; None if all values meet the target.
    limited_by : {"target", "rank", "candidates"}
        Why no neighbouring value is the best value. "target": the neighbours miss the target. "rank": a neighbour meets
        the target, but its rank is worse. "candidates": the best value is the smallest or largest candidate, so that a
        value outside the candidates may be better.
    tolerance : float
        Ratio of the best value and its nearest neighbour, minus 1; 0 with one candidate. No value in between was tried.
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
    def method(self) -> str:
        """Name of the model that answered: "chain" or "simulation"."""
        return self.best.method

    @property
    def expected_error(self) -> ExpectedError:
        """Expected error of the prediction for the best value."""
        return self.best.expected_error

    @property
    def notes(self) -> tuple[str, ...]:
        """Fields of the best way that lie outside the checked range, and fields that the model ignores."""
        return self.best.notes

    @property
    def lead(self) -> float:
        """Relative difference in age between the best way and the next best way that meets the target.

        It is infinite if no other way meets the target. For a call it can be negative, because calls are ranked by
        score.
        """
        others = [other for other in self.candidates if other is not self.best and other.meets_target]
        if not others:
            return math.inf
        return min(others, key=lambda other: other.rank).age / self.best.age - 1

    @property
    def certain(self) -> bool:
        """Whether the lead is larger than the median expected error of the best way."""
        return self.lead > self.best.expected_error.median


def best(
    quantity: Chosen,
    ways: Sequence[Way],
    path: Path,
    stack: KnownStack,
    target: Target | CallTarget,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the best of several ways to send the same data.

    Parameters
    ----------
    quantity : {"interval", "pieces", "connections"}
        The quantity that is chosen.
    ways : sequence of Way
        One way or more.
    path, stack
        The path and the TCP stack of all ways.
    target : Target or CallTarget
        The demand on the delay or on the call.
    on_progress : callable, optional
        Called after each way with the number of ways done and the number of all ways.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain; all ways are simulated if the chain refuses them, or leaves a verdict open.

    Returns
    -------
    Choice
        The best way, and the predictions for all ways.

    Raises
    ------
    ValueError
        If no way meets the target, and the message names the best value; or if the model refuses the scenario.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Linux
    >>> path, flow = Path(rtt=0.100, loss=0.02), Flow(174, 0.020)
    >>> found = best("pieces", [Way(1, flow, flow, 9e4, lambda delays: delays)], path, Linux(), Target(0.2))
    >>> found.value, round(found.best.age, 3), found.limited_by
    (1, 0.16, 'candidates')
    """
    scenarios = [Scenario(way.asked, path, stack) for way in ways]
    model = model_to_compare(scenarios[0], method)

    def predicted(model: AnsweredBy | Model) -> list[Candidate]:
        found = []
        for done, way in enumerate(sorted(ways, key=lambda way: way.value), 1):
            found.append(_candidate(way, path, stack, target, model))
            if on_progress is not None:
                on_progress(done, len(ways))
        return found

    candidates, simulated = predicted(model), simulator(COMPARED_PACKETS)
    undecided = method == "auto" and any(candidate.verdict == "uncertain" for candidate in candidates)
    if undecided and not any(simulated.supports(scenario).refused for scenario in scenarios):
        candidates = predicted(simulated)
    good = [candidate for candidate in candidates if candidate.meets_target]
    if not good:
        raise ValueError(_refusal(quantity, min(candidates, key=lambda candidate: candidate.rank), target))
    chosen = min(good, key=lambda candidate: candidate.rank)
    bad = [candidate.value for candidate in candidates if not candidate.meets_target]
    place = candidates.index(chosen)
    neighbours = candidates[max(place - 1, 0) : place] + candidates[place + 1 : place + 2]
    if len(neighbours) < 2:
        reason: Reason = "candidates"
    else:
        reason = "rank" if any(neighbour.meets_target for neighbour in neighbours) else "target"
    ratios = [max(other.value / chosen.value, chosen.value / other.value) - 1 for other in neighbours]
    return Choice(
        quantity=quantity,
        target=target,
        candidates=tuple(candidates),
        best=chosen,
        fails=min(bad, key=lambda value: abs(math.log(value / chosen.value)), default=None),
        limited_by=reason,
        tolerance=min(ratios, default=0.0),
    )


def _candidate(
    way: Way, path: Path, stack: KnownStack, target: Target | CallTarget, model: AnsweredBy | Model
) -> Candidate:
    """Return the prediction for one way."""
    requested = Requested(target=target) if isinstance(target, Target) else None
    answer = predict(Scenario(way.asked, path, stack), requested, model)
    error = answer.expected_error or UNKNOWN_ERROR
    verdict: Verdict
    if answer.status in ("too large", "not settled"):
        distribution = DelayDistribution.unsustainable(path.forward_delay)
    else:
        distribution = way.combined(answer.require())
    mos = None
    if isinstance(target, Target):
        delay, meets = distribution.quantile(target.quantile), distribution.meets(target)
        verdict = verdict_of(replace(answer, distribution=distribution, look_up_error=lambda quantile: error), target)
    else:
        call = best_playout_delay(distribution, target.codec_of(way.packets.interval))
        delay, mos, meets = call.playout_delay, call.mos, target.is_met_by(call)
        verdict = "uncertain" if answer.status == "too large" else "works" if meets else "fails"
    return Candidate(
        value=way.value,
        flow=way.packets,
        delay=delay,
        age=way.packets.interval + delay,
        mos=mos,
        wire_rate=way.wire_rate,
        meets_target=meets,
        verdict=verdict,
        method=answer.method,
        expected_error=error,
        notes=(*validated_range(stack).exceeded_by(way.asked, path), *answer.assumptions),
    )


def _refusal(quantity: Chosen, best: Candidate, target: Target | CallTarget) -> str:
    """Return the message that no way meets the target, with the best way."""
    value = format_time(best.value) if quantity == "interval" else f"{best.value:g}"
    if best.delay == math.inf:
        return f"no choice of {quantity} meets the target: TCP cannot carry the flow with any of them"
    if isinstance(target, Target):
        share = format_fraction(target.quantile)
        reached = f"{share} come within {format_time(best.delay)}, and not within {format_time(target.limit)}"
    else:
        reached = f"the score is {best.mos:.2f}, and not {target.mos:g}"
    return f"no choice of {quantity} meets the target: at best, with {value}, {reached}"


def whole_numbers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return the distinct values in ascending order.

    Raises
    ------
    InvalidValueError
        If there is no value, or a value is not a whole number above 0.

    Examples
    --------
    >>> whole_numbers("pieces", (4, 1, 1))
    (1, 4)
    """
    if not values or any(value != int(value) or value < 1 for value in values):
        raise InvalidValueError(name, tuple(values), "hold whole numbers above 0, one at least")
    return tuple(sorted(set(values)))


def wire_rate(flow: Flow, mss: int) -> float:
    """Return the bit rate of a flow on the network [bit/s], if no segment carries data of two packets.

    Examples
    --------
    >>> wire_rate(Flow(174, 0.020), mss=1448)
    90400.0
    """
    return 8 * (flow.packet_size + SEGMENT_HEADERS * -(-flow.packet_size // mss)) / flow.interval
