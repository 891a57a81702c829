"""The best of several ways to send the same data: packetization interval, writes per packet, and connections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from tcpdelay.accuracy.validity import validated_range
from tcpdelay.ask import Model, Requested
from tcpdelay.declare import InvalidValueError, as_numbers, is_number
from tcpdelay.delays import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.models.predict import COMPARED_PACKETS, AnsweredBy, model_to_compare, predict, simulator
from tcpdelay.models.verdict import Verdict, verdict_of
from tcpdelay.quality.voice import CallTarget, best_playout_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import DEFAULT_LIMIT, Scenario, Target, checked_arguments, flow_of, target_of
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, KnownTcp, Quic, Stack, StackName, checked_profile
from tcpdelay.units import format_fraction, format_time

Chosen = Literal["interval", "pieces", "connections"]
Reason = Literal["target", "rank", "candidates"]

SEGMENT_HEADERS = 52
"""Bytes of the headers of IPv4 and of TCP with timestamps, per segment (RFC 791, RFC 9293, RFC 7323)."""

AGE_DIGITS, MOS_DIGITS = 4, 3
"""Decimals of ages [s] and of scores that are compared; ways that differ by less are equally good."""


@dataclass(frozen=True)
class Way:
    """One way to send the data."""

    value: float  # The value that is chosen: an interval [s], or a number of pieces or connections
    packets: Flow  # The application's packets
    # The flow that the model predicts: the packets, the pieces of the packets, or the packets of one connection.
    asked: Flow
    wire_rate: float  # Bit rate of all packets on the network, including headers of TCP and IP [bit/s]
    # Returns the delay of the application's packets from the delay of the flow `asked`.
    combined: Callable[[DelayDistribution], DelayDistribution]


@dataclass(frozen=True)
class Candidate:
    """The prediction for one way to send the data."""

    value: float  # The value that is chosen: an interval [s], or a number of pieces or connections
    flow: Flow  # The application's packets
    delay: float  # Target's quantile [s]; for a call, the best playout delay; infinite where TCP cannot carry the flow
    age: float  # Age of a packet's first byte when it is read [s]: `delay` plus the interval that filled the packet
    mos: float | None  # Mean opinion score at the best playout delay; None unless the target is a call
    wire_rate: float  # Bit rate on the network with the headers of TCP and IP [bit/s]
    meets_target: bool
    verdict: Verdict  # "uncertain" where the expected error of the delay reaches across the limit
    method: str  # Name of the model: "chain" or "simulation"
    expected_error: ExpectedError
    notes: tuple[str, ...]  # Fields outside the checked range of the model, and fields that the model ignores

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
    """Return the best of several ways to send the same data."""
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


def whole_numbers(name: str, values: object) -> tuple[int, ...]:
    """Return the distinct values in ascending order."""
    given = [*values] if isinstance(values, Iterable) else []
    if not given or not all(is_number(value) and value >= 1 and value % 1 == 0 for value in given):
        raise InvalidValueError(name, values, "hold whole numbers above 0, one at least")
    return tuple(sorted(set(map(int, given))))


def wire_rate(flow: Flow, mss: int) -> float:
    """Return the bit rate of a flow on the network [bit/s], if no segment carries data of two packets."""
    return 8 * (flow.packet_size + SEGMENT_HEADERS * -(-flow.packet_size // mss)) / flow.interval


# Ways to send the same data: the packetization interval, writes per packet, and connections.

INTERVALS = (0.010, 0.020, 0.030, 0.040, 0.060)
"""Common packetization intervals of voice [s] (RFC 3551)."""
RTP_HEADER = 14
"""Bytes of the RTP header, and of its framing over TCP (RFC 3550, RFC 4571)."""


@checked_arguments
def best_interval(
    bitrate: float,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | CallTarget | None = None,
    intervals: Sequence[float] = INTERVALS,
    header: int = RTP_HEADER,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the best packetization interval for data of a constant bitrate.

    Short intervals mean more headers and more frequent losses. With long intervals, a packet takes longer to fill, and
    fewer duplicate ACKs follow a loss. The best interval has the smallest sum of interval and target quantile of the
    delay: the age of a packet's first byte when it is read. For a call, the best interval has the best score, which
    takes the interval into account.

    Parameters
    ----------
    bitrate : float
        Bit rate of the data without headers [bit/s], above 0.
    path : Path
        The path.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel.
    target : Target or CallTarget, optional
        The demand on the delay from write to read, without the interval; or the demand on a call; by default 95 %
        within 0.2 s.
    intervals : sequence of float
        Candidates [s], each 1e-7 to 60.
    header : int
        Bytes that the application puts before the data of each packet, 0 or more.
    on_progress : callable, optional
        Called after each interval with the number of intervals done and the number of all intervals.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain; all ways are simulated if the chain refuses them, or leaves a verdict open.

    Returns
    -------
    Choice
        The best interval [s]. The wire rates include the headers of TCP and IP.

    Raises
    ------
    ValueError
        If a value is out of its range; or if no interval meets the target, and the message names the best interval.

    References
    ----------
    RFC 3551, section 4.2 (packetization intervals), RFC 3550 and RFC 4571 (headers).

    Examples
    --------
    >>> found = best_interval(64_000, Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> found.value, found.candidates[1].flow
    (0.06, Flow(packet_size=174, interval=0.02))
    """
    if not is_number(bitrate) or not 0 < bitrate < float("inf"):
        raise InvalidValueError("bitrate", bitrate, "be a number above 0 bit/s")
    if not is_number(header) or not 0 <= header < float("inf") or header != int(header):
        raise InvalidValueError("header", header, "be a whole number of bytes from 0 on")
    chosen = np.ravel(as_numbers("intervals", intervals)).tolist()
    if not chosen:
        raise InvalidValueError("intervals", intervals, "hold at least one interval")
    stack, target = _tcp(stack), Target(DEFAULT_LIMIT) if target is None else target
    flows = sorted({_packed(bitrate, interval, int(header)) for interval in chosen}, key=lambda flow: flow.interval)
    ways = [Way(flow.interval, flow, flow, wire_rate(flow, stack.mss), lambda delays: delays) for flow in flows]
    return best("interval", ways, path, stack, target, on_progress, method)


def _packed(bitrate: float, interval: float, header: int) -> Flow:
    """Return the flow whose packets hold the data of one interval and a header."""
    if not is_number(interval) or not interval > 0:
        raise InvalidValueError("intervals", interval, "lie above 0 s")
    return Flow(max(1, round(bitrate * interval / 8)) + header, interval)


def _tcp(stack: Stack | StackName | None) -> KnownTcp:
    """Return the stack, which must be a TCP: the rates on the network and the joined delays hold for TCP alone."""
    known = checked_profile(stack)
    if isinstance(known, Quic):
        raise InvalidValueError("stack", "Quic", "be a TCP in this question")
    return known


PIECES = (1, 2, 4)
"""Default candidates for the number of writes per packet."""


@checked_arguments
def best_split(
    flow: Flow | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | CallTarget | None = None,
    pieces: Sequence[int] = PIECES,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the number of writes per packet with the shortest delay.

    Parameters
    ----------
    flow : Flow or str
        The application's packets, or the name of an application in `tcpdelay.scenario.scenario`.
    path, stack, on_progress, method
        As for `best_interval`.
    target : Target or CallTarget, optional
        The demand on the delay or on the call; by default that of the application, or 95 % within 0.2 s.
    pieces : sequence of int
        Candidates, each from 1 to 64 and at most the packet size in bytes.

    Returns
    -------
    Choice
        The best number; the smallest number if several are equally good. The expected error is the error of the chain;
        it does not include the approximation in `tcpdelay.models.heuristics.split_delay`.

    Raises
    ------
    ValueError
        If a value is out of its range; or if no number meets the target, and the message names the best number.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: packet splitting.

    Examples
    --------
    >>> best_split(Flow(1448, 0.020), Path(rtt=0.100, loss=0.01), Stack.linux(), Target(0.2)).value > 1
    True
    """
    packets, known = flow_of(flow), _tcp(stack)
    ways = []
    for number in whole_numbers("pieces", pieces):
        piece = piece_of(packets, number)
        combined = partial(joined_delay, interval=packets.interval, pieces=number)
        ways.append(Way(number, packets, piece, wire_rate(piece, known.mss), combined))
    return best("pieces", ways, path, known, target or target_of(flow), on_progress, method)


CONNECTIONS = (1, 2, 4)
"""Default candidates for the number of connections."""


@checked_arguments
def best_connections(
    flow: Flow | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | CallTarget | None = None,
    connections: Sequence[int] = CONNECTIONS,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the number of connections with the shortest delay, if they take turns and packets are read in order.

    Parameters
    ----------
    flow : Flow or str
        The application's packets, or the name of an application in `tcpdelay.scenario.scenario`.
    path, stack, on_progress, method
        As for `best_interval`.
    target : Target or CallTarget, optional
        The demand on the delay or on the call; by default that of the application, or 95 % within 0.2 s.
    connections : sequence of int
        Candidates, each from 1 to 64.

    Returns
    -------
    Choice
        The best number; the smallest number if several are equally good.

    Raises
    ------
    ValueError
        If a value is out of its range; or if no number meets the target, and the message names the best number.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: parallel connections.

    Examples
    --------
    >>> best_connections(Flow(1448, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2)).value > 1
    True
    """
    packets, known = flow_of(flow), _tcp(stack)
    rate = wire_rate(packets, known.mss)
    ways = [
        Way(
            number,
            packets,
            share_of(packets, number),
            rate,
            partial(striped_delay, interval=packets.interval, connections=number),
        )
        for number in whole_numbers("connections", connections)
    ]
    return best("connections", ways, path, known, target or target_of(flow), on_progress, method)
