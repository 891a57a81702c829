"""The largest bitrate, packet rate, loss or round-trip time with which a target is met, and the search for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tcpdelay.accuracy.validity import validated_range
from tcpdelay.ask import Model, Requested, Status, solved_once
from tcpdelay.delays import UNKNOWN_ERROR, ExpectedError
from tcpdelay.models.predict import (
    COMPARED_PACKETS,
    AnsweredBy,
    carries,
    model_to_compare,
    predict,
    simulator,
    supports,
    why_simulated,
)
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target, checked_arguments, flow_of, source_of, target_of
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, Stack, StackName, checked_profile, transport_name
from tcpdelay.study.search import (
    FORMATS,
    Axis,
    Growth,
    Quantity,
    bitrate_axis,
    edge_of,
    edges_within_error,
    likely_edge,
    loss_axis,
    packet_rate_axis,
    rtt_axis,
)
from tcpdelay.units import format_fraction, format_time, told_apart

Limit = Literal["delay", "capacity", "size of the chain", "not modelled", "segments in flight", "range"]

CHAIN_SIZE: Limit = "size of the chain"
NOT_MODELLED: Limit = "not modelled"
FAR = 10.0
"""Multiple of the present value from which on a report gives a simulated margin no range, which would take seconds."""
SCAN_FACTOR = 4.0
"""If no value meets the target, the shortest delay is searched at values with this ratio."""


@dataclass(frozen=True)
class Edge:
    """The largest value of one quantity with which a target is met.

    Parameters
    ----------
    quantity : {"bitrate", "packet rate", "loss", "rtt"}
        The quantity that is varied.
    value : float
        Largest value that meets the target [bit/s, 1/s, fraction, s].
    fails : float or None
        The next larger value that was tried, which misses the target; None if the search found none.
    limited_by : {"delay", "capacity", "size of the chain", "not modelled", "segments in flight", "range"}
        Why `fails` misses the target: "delay", the delay is too long; "capacity", TCP cannot carry the flow; "size of
        the chain", the chain would be too large; "not modelled", the chain refuses this value, so that the target may
        be met; "segments in flight", the simulator cannot hold more, so that the target may be met. With
        "range", the search ended at the largest value allowed.
    tolerance : float
        Relative difference between `fails` and `value`; 0 if no value fails.
    delay : float
        The target's quantile of the delay [s] at `value`.
    delay_beyond : float or None
        The target's quantile of the delay [s] at `fails`; infinite if TCP cannot carry the flow, None if no value fails
        or the model has no answer.
    target : Target
        The demand on the delay.
    stack : Stack
        The TCP implementation.
    at, beyond : tuple of Source and Path
        The scenarios of the two values; `beyond` is None if no value fails.
    expected_error : ExpectedError
        Expected error of the prediction at `value`.
    method : str
        Name of the model that answered: "chain" or "simulation".
    certain, impossible : float or None
        The range in which the expected error of the predictions places the edge: the largest value with which the
        target is met whatever the expected error, and the smallest value with which it is missed whatever the expected
        error. None where the range of the search has no such value.
    assumptions : tuple of str
        One sentence for each field of the scenario that the model ignores.
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
    at: tuple[Source, Path]
    beyond: tuple[Source, Path] | None
    expected_error: ExpectedError
    method: str
    certain: float | None
    impossible: float | None
    assumptions: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Fields at `value` that lie outside the range in which the model has been checked, or that it ignores."""
        return (*validated_range(self.stack, method=self.method).exceeded_by(*self.at), *self.assumptions)


def largest(
    axis: Axis,
    stack: Stack,
    target: Target,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest value on an axis that meets a target.

    The search begins at the likely edge, not at small values: a larger value may meet the target although a smaller
    value misses it, because at low packet rates few duplicate ACKs follow a loss.
    """
    stack = checked_profile(stack)
    with solved_once():
        found = largest_or_none(axis, stack, target, method, on_progress)
        if found is None:
            raise ValueError(nothing_meets(axis, stack, target, model_of(axis, stack, target, method)))
    return found


def model_of(axis: Axis, stack: KnownStack, target: Target, method: AnsweredBy | Model) -> AnsweredBy | Model:
    """Return the model whose answers are compared in a search on an axis."""
    if not isinstance(method, str):
        return method
    lowest = Scenario(*axis.place(axis.lowest), stack)
    if method == "chain" and isinstance(axis.source, Flow):
        # The chain may refuse the lowest value only.
        start = Scenario(*axis.place(likely_edge(axis, stack, target)), stack)
        if not supports(start).refused:
            return "chain"
    return model_to_compare(lowest, method, solved=False)


def largest_or_none(
    axis: Axis,
    stack: KnownStack,
    target: Target,
    method: AnsweredBy | Model,
    on_progress: Callable[[int, int], None] | None = None,
    now: float | None = None,
) -> Edge | None:
    """Return the largest value on an axis that meets a target; None if no value meets it.

    With the method "auto", the search is repeated by simulation if it ends where the chain has no answer. Elsewhere the
    edge is the chain's, and its range contains the edge of what `predict` answers. A simulated edge that is `FAR` from
    the value `now` has no range.
    """
    asked, model = Requested(target=target), model_of(axis, stack, target, method)
    found = _searched(axis, stack, asked, model, on_progress, method == "auto", now)
    if (
        method != "auto"
        or model != "chain"
        or (found is not None and found.limited_by not in (CHAIN_SIZE, NOT_MODELLED))
    ):
        return found
    beyond = Scenario(*((found and found.beyond) or axis.place(axis.lowest)), stack)
    because = "" if supports(beyond, "simulation").refused else why_simulated(beyond)
    model = simulator(COMPARED_PACKETS, because=because)
    return _searched(axis, stack, asked, model, on_progress, auto=True, now=now) if because else found


def _searched(
    axis: Axis,
    stack: KnownStack,
    asked: Requested,
    model: AnsweredBy | Model,
    on_progress: Callable[[int, int], None] | None,
    auto: bool = False,
    now: float | None = None,
) -> Edge | None:
    """Return the largest value on an axis that meets the target by one model; None if no value meets it."""
    target = asked.target
    assert target is not None
    found = edge_of(axis, stack, asked, likely_edge(axis, stack, target), model, on_progress)
    if found.inside is None:
        return None
    at = axis.place(found.inside)
    value = _exact(axis.quantity, at, found.inside)
    beyond: tuple[Source, Path] | None = None
    fails: float | None = None
    limit: Limit = "range"
    delay_beyond: float | None = None
    if found.outside is not None:
        beyond = axis.place(found.outside)
        fails = _exact(axis.quantity, beyond, found.outside)
        limit, delay_beyond = _limit(Scenario(*beyond, stack), asked, model)
    answer = predict(Scenario(*at, stack), asked, model)
    if answer.status == "not settled":
        # It is certain that the target is met, but not yet how long the delay is.
        answer = predict(Scenario(*at, stack), replace(asked, precision="decision"), model)
    near = now is None or value < now * FAR
    with_range = near or answer.method == "chain"
    ends = edges_within_error(axis, stack, asked, found.inside, model, auto) if with_range else (None, None)
    certain, impossible = (None if end is None else _exact(axis.quantity, axis.place(end), end) for end in ends)
    return Edge(
        quantity=axis.quantity,
        value=value,
        fails=fails,
        limited_by=limit,
        tolerance=0.0 if fails is None else fails / value - 1,
        delay=answer.require().quantile(target.quantile),
        delay_beyond=delay_beyond,
        target=target,
        stack=stack,
        at=at,
        beyond=beyond,
        expected_error=answer.expected_error or UNKNOWN_ERROR,
        method=answer.method,
        # Both searches have a tolerance.
        certain=None if certain is None else min(certain, value),
        impossible=None if impossible is None else max(impossible, fails or value),
        assumptions=answer.assumptions,
    )


def _exact(quantity: Quantity, scenario: tuple[Source, Path], searched: float) -> float:
    """Return the value of a scenario; its bitrate differs from the searched bitrate, as packets have whole bytes."""
    return scenario[0].mean_bitrate if quantity == "bitrate" else searched


_UNANSWERED: dict[tuple[str, Status], Limit] = {
    ("chain", "unsupported"): NOT_MODELLED,
    ("chain", "too large"): CHAIN_SIZE,
    ("simulation", "unsupported"): "segments in flight",
    ("simulation", "not settled"): "capacity",
}
"""Why a value is not known to meet the target, by the name of the model and the status of its answer."""


def _limit(scenario: Scenario, asked: Requested, model: AnsweredBy | Model) -> tuple[Limit, float | None]:
    """Return why a scenario misses the target, and the target's quantile of its delay [s]."""
    if carries(scenario, model) is False:
        return "capacity", math.inf
    answer = predict(scenario, asked, model)
    if not answer.answered:
        return _UNANSWERED[answer.method, answer.status], None
    assert asked.target is not None
    delay = answer.require().quantile(asked.target.quantile)
    return "capacity" if delay == math.inf else "delay", delay


def nothing_meets(axis: Axis, stack: KnownStack, target: Target, model: AnsweredBy | Model) -> str:
    """Return the message that no value meets the target, with the value that has the shortest delay."""
    best, shortest = axis.lowest, math.inf
    value, refused = axis.lowest, None
    while value <= axis.highest:
        answer = predict(Scenario(*axis.place(value), stack), Requested(target=target), model)
        value, tried = value * SCAN_FACTOR, value
        if answer.status == "not settled":
            continue
        if not answer.answered:
            refused = answer
            break
        if not answer.sustainable:
            break
        delay = answer.require().quantile(target.quantile)
        if delay < shortest:
            best, shortest = tried, delay
    nothing = f"no {axis.quantity} meets the target"
    if shortest == math.inf and refused is not None and refused.status == "unsupported":
        if model == "chain":
            return nothing_meets(axis, stack, target, simulator(COMPARED_PACKETS))
        return f"{nothing} of which a model knows the delays: {refused.refusal}"
    if shortest == math.inf:
        return f"{nothing}: {transport_name(stack)} cannot carry the flow with any value"
    share = format_fraction(target.quantile)
    reached, limit = told_apart(format_time, shortest, target.limit)
    return f"{nothing}: at best, with {FORMATS[axis.quantity](best)}, {share} come within {reached}, not within {limit}"


# The largest bitrate, packet rate, loss or round-trip time with which a target is met.


@checked_arguments
def largest_bitrate(
    flow: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    grow: Growth = "segments",
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest bitrate that meets a target.

    Parameters
    ----------
    flow : Source or str
        The flow, or the name of an application; only its interval is used, or with ``grow="rate"`` only its packet
        size. For any other source, the sizes of the messages are scaled, and their times and kinds do not change
        (`Source.at_bitrate`).
    path : Path
        The path.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel.
    target : Target, optional
        The demand on the delay; by default that of the application, or 95 % within 0.2 s.
    grow : {"segments", "size", "rate"}
        "segments": packets at the flow's interval grow up to one segment; beyond, packets of one segment become more
        frequent (as with ``--app ... --bitrate``). Packets of several segments are frames, which only grow. "size":
        packets at the flow's interval grow without limit. "rate":
        packets of the flow's size become more frequent; only for a `Flow`.
    on_progress : callable, optional
        Called with the number of values tried, and the largest number of values.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain, or the simulator where the chain refuses the scenario or is too large. The range
        of the chain's edge extends to values at which `predict_delay` agrees, if it simulates there. Each simulation
        has 200 000 messages, or all messages of a source that ends earlier, and the same random numbers.

    Returns
    -------
    Edge
        The bitrate [bit/s], with a tolerance of one percent before packets are rounded to whole bytes.

    Raises
    ------
    ValueError
        If an argument is out of range, or no bitrate meets the target; the message names the best value.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> edge = largest_bitrate(flow, path, Stack.linux(), Target(0.2))
    >>> edge.delay <= 0.2 < edge.delay_beyond, edge.tolerance <= 0.011
    (True, True)
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(bitrate_axis(source, path, stack, grow), stack, target, on_progress, method)


@checked_arguments
def largest_packet_rate(
    flow: Flow | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest rate of packets of one size that meets a target.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of an application; only its packet size is used.
    path, stack, target, on_progress, method
        As for `largest_bitrate`.

    Returns
    -------
    Edge
        The packet rate [1/s], with a tolerance of one percent.

    Raises
    ------
    ValueError
        If no rate meets the target; the message names the best value.

    Examples
    --------
    >>> edge = largest_packet_rate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> edge.value > 50, edge.at[0].packet_size
    (True, 174)
    """
    flow, stack, target = flow_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(packet_rate_axis(flow, path, stack), stack, target, on_progress, method)


@checked_arguments
def largest_loss(
    flow: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest loss with which a target is met.

    Parameters
    ----------
    flow : Source or str
        The source: a `Flow`, any other source, or the name of an application.
    path : Path
        The path; its loss is not used.
    stack, target, on_progress, method
        As for `largest_bitrate`.

    Returns
    -------
    Edge
        The loss, a fraction, with a relative tolerance of one percent.

    Raises
    ------
    ValueError
        If not even a loss of 1e-6 meets the target; the message names the best value.

    Examples
    --------
    >>> edge = largest_loss(Flow(174, 0.020), Path(rtt=0.100, loss=0), Stack.linux(), Target(0.2))
    >>> 0.05 < edge.value < edge.fails < 0.07, edge.limited_by
    (True, 'delay')
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(loss_axis(source, path), stack, target, on_progress, method)


@checked_arguments
def largest_rtt(
    flow: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the longest round-trip time with which a target is met.

    Parameters
    ----------
    flow, stack, target, on_progress, method
        As for `largest_loss`.
    path : Path
        The path. Its round-trip time is only used for the share that a given one-way delay has in it.

    Returns
    -------
    Edge
        The round-trip time [s], with a tolerance of one percent.

    Raises
    ------
    ValueError
        If no round-trip time meets the target; the message names the best value.

    Examples
    --------
    >>> edge = largest_rtt(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> 0.12 < edge.value < edge.fails < 0.15
    True
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(rtt_axis(source, path), stack, target, on_progress, method)
