"""Margins and sensitivities: the largest values with which the target is met, and the change by a tenth of a field."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from tcpdelay.accuracy.validity import validated_range
from tcpdelay.ask import Answer, Model, Requested
from tcpdelay.declare import InvalidValueError, is_number
from tcpdelay.delays import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.predict import AnsweredBy, carries, model_to_compare, predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target, checked_arguments, flow_of, target_of
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, NewReno2008, Stack, StackName, checked_profile
from tcpdelay.study.execution import work_out
from tcpdelay.study.largest import FAR, NOT_MODELLED, Edge, largest_or_none
from tcpdelay.study.search import STEP, Axis, Bracket, at_rtt, bitrate_axis, bracket, loss_axis, rtt_axis


@dataclass(frozen=True)
class Margin:
    """The edge of the working region along one quantity."""

    quantity: str  # The quantity that is varied: "loss", "rtt" or "bitrate"
    now: float  # The value in the scenario [fraction, s, bit/s]
    # Largest value found with which the target is met, as by `tcpdelay.largest_loss`; None if no value meets it.
    edge: float | None
    # Whether larger values may also meet the target: the search ended at its largest value, or the model refuses
    # larger ones.
    at_least: bool = False
    # The range in which the expected error of the predictions places the edge: the largest value with which the
    # target is met whatever the expected error, and the smallest value with which it is missed whatever the expected
    # error; None for a side without such a value. The range itself is None without an edge, for a simulated edge far
    # from the present value, and for the TCP of 2008, whose chain has no error against itself.
    within_error: tuple[float | None, float | None] | None = None
    method: str = "chain"  # Name of the model that answered

    @property
    def is_far(self) -> bool:
        """Whether the edge is simulated, and so far from the present value that its range is not computed."""
        return self.edge is not None and self.method != "chain" and not self.edge < self.now * FAR

    def moved_to(self, edge: float) -> Margin:
        """Return the margin with another edge; the range is extended to it."""
        if self.within_error is None:
            return replace(self, edge=edge, at_least=False)
        low, high = self.within_error
        around = (None if low is None else min(low, edge), None if high is None else max(high, edge))
        return replace(self, edge=edge, at_least=False, within_error=around)

    def agreeing(self, works: bool, certain: bool) -> Margin:
        """Return a margin whose edge does not contradict a verdict.

        The verdict and the margin can come from two models, which can disagree near the limit. In that case the edge is
        moved to the value in the scenario. If the verdict is certain, `within_error` is cut at this value too.
        """
        now, inside = self.now, self.edge is not None and self.edge >= self.now
        moved = self if inside == works else self.moved_to(now)
        if not certain or moved.within_error is None:
            return moved
        low, high = moved.within_error
        if works:
            low = now if low is None else max(low, now)
        else:
            high = now if high is None else min(high, now)
        return replace(moved, within_error=(low, high))


def largest_sustainable_rate(flow: Flow, path: Path, stack: Stack, model: AnsweredBy | Model = "chain") -> Margin:
    """Return the highest bitrate [bit/s] that TCP can carry without a backlog that grows for as long as the flow sends.

    Above this bitrate, the mean drift of the backlog is positive. The tolerance of the chain is one percent. A
    simulation whose backlog grows shows which part of its bitrate TCP carries. At slightly lower bitrates, delays are
    already long: see `tcpdelay.accuracy.throughput.connection_utilization`. Packets grow with the bitrate up to one
    segment, and then become more frequent; packets of several segments only grow.
    """
    stack = checked_profile(stack)
    axis = bitrate_axis(flow, path, stack)

    def excess(bitrate: float) -> float | None:
        carried = carries(Scenario(*axis.place(bitrate), stack))
        return None if carried is None else -1.0 if carried else 1.0

    if model == "chain":
        found = bracket(excess, flow.bitrate, axis.lowest, axis.highest)
    else:
        found = _carried_part(axis, stack, flow.bitrate, model)
    return Margin("bitrate", flow.bitrate, found.inside, at_least=found.outside is None or not found.known)


def _carried_part(axis: Axis, stack: KnownStack, start: float, model: AnsweredBy | Model) -> Bracket:
    """Return the part that TCP carries of the first bitrate on the walk up from `start` whose backlog grows.

    The backlog of every larger bitrate grows too, so that an exponential search finds the first one.
    """
    count = math.ceil(math.log(axis.highest / start) / math.log(STEP)) if start < axis.highest else 0
    walk = [start, *(min(start * STEP**step, axis.highest) for step in range(1, count + 1))]

    @cache
    def at(step: int) -> Answer:
        return predict(Scenario(*axis.place(walk[step]), stack), method=model)

    def ends(step: int) -> bool:
        return at(step).status in ("not carried", "unsupported", "too large")

    # The start alone may be sparse, and its backlog grow because few duplicate ACKs follow a loss.
    first, beyond = 0, 1
    if not ends(0):
        while beyond < len(walk) and not ends(beyond):
            beyond *= 2
        first = bisect_left(range(len(walk)), True, beyond // 2 + 1, min(beyond, len(walk)), key=ends)
    carried = walk[first - 1] if first else None
    if first == len(walk):
        return Bracket(carried, None)
    answer = at(first)
    if answer.status != "not carried":
        return Bracket(carried, walk[first], known=False)
    rate = walk[first] * answer.require().carried.value
    # It is not known where more messages wait than can be kept, before the backlog has been measured.
    return Bracket(rate if rate >= axis.lowest else carried, walk[first])


def margins(
    scenario: Scenario,
    target: Target,
    method: AnsweredBy | Model = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[Margin, ...]:
    """Return the largest loss, round-trip time and bitrate with which a target is met, each with the others unchanged.

    They are those of `tcpdelay.largest_loss`, `largest_rtt` and `largest_bitrate`. A simulated margin of ten or more
    times the present value has no range.

    Parameters
    ----------
    scenario, target
        The scenario, and the demand on the delay.
    method : {"chain", "simulation", "auto"} or Model
        The model, as for `tcpdelay.largest_loss`.
    on_progress : callable, optional
        Called with the number of margins found, and the number of all margins.

    Returns
    -------
    tuple of Margin
        The margins of the loss, the round-trip time and the bitrate. A source that cannot be scaled has no margin of
        the bitrate.

    Examples
    --------
    >>> call = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008())
    >>> loss, rtt, bitrate = margins(call, Target(0.2))
    >>> loss.now < loss.edge < 0.1
    True

    >>> from tcpdelay.scenario.media import Speech
    >>> loss, *_ = margins(Scenario(Speech(174, 0.020), Path(rtt=0.100, loss=0.02)), Target(0.2))
    >>> loss.now < loss.edge, loss.method
    (True, 'simulation')
    """
    source, path, stack = scenario.source, scenario.path, scenario.stack
    axes = [(path.loss, loss_axis(source, path)), (path.rtt, rtt_axis(source, path))]
    if isinstance(source, Flow) or type(source).at_bitrate is not Source.at_bitrate:
        axes.append((source.mean_bitrate, bitrate_axis(source, path, stack)))
    if on_progress is not None:
        on_progress(0, len(axes))
    found = work_out(_Searches(axes, stack, target, method, copy_context()), on_progress)
    return tuple(found.values["margin"])


@dataclass(frozen=True)
class _Searches:
    """The searches for the margins, side by side in threads."""

    axes: list[tuple[float, Axis]]  # The present value of each quantity, and its axis
    stack: KnownStack
    target: Target
    method: AnsweredBy | Model
    context: Context  # Of the caller: the threads share what has been solved
    row_type = np.dtype([("margin", np.object_)])

    @property
    def size(self) -> int:
        """Number of margins."""
        return len(self.axes)

    def fill(self, row: Any, number: int) -> str:
        """Write a margin to `row`."""
        # The compiler takes a second to import.
        from tcpdelay.compiling.compilation import few_predictions

        now, axis = self.axes[number]
        search = partial(largest_or_none, axis, self.stack, self.target, self.method, now=now)
        with few_predictions():
            row["margin"] = _margin(axis.quantity, now, self.context.copy().run(search))
        return ""


def _margin(quantity: str, now: float, edge: Edge | None) -> Margin:
    """Return the margin to an edge; None if no value meets the target."""
    if edge is None:
        return Margin(quantity, now, None)
    ranged = not isinstance(edge.stack, NewReno2008) and (edge.certain, edge.impossible) != (None, None)
    return Margin(
        quantity,
        now,
        edge.value,
        at_least=edge.limited_by in ("range", NOT_MODELLED, "segments in flight"),
        within_error=(edge.certain, edge.impossible) if ranged else None,
        method=edge.method,
    )


# The sensitivity of the delay to each field: the change of the delay if the field changes by a tenth.

Input = Literal["rtt", "loss", "packet_size", "interval"]
Output = Literal["quantile", "mean", "late_fraction"]
Direction = Literal["rises", "falls", "stays", "turns"]

SENSITIVITY_STEP = 0.10
LARGEST_STEP = 0.5
NOISE = 1e-6
"""Largest relative change that counts as no change: a chain is not solved to more digits."""


@dataclass(frozen=True)
class Sensitivity:
    """The change of one figure of the delay when one input decreases and increases by the same share."""

    input: Input  # The field that is changed
    output: Output  # The figure: the target's quantile, the mean delay, or the share of late packets
    inputs: tuple[float, float, float]  # The lower, the present and the higher input; packets have whole bytes
    outputs: tuple[float, float, float]  # The output at each input; a delay is infinite where TCP cannot carry the flow

    @property
    def changes(self) -> tuple[float, float]:
        """Relative change of the output at the lower and the higher input; NaN if the output is now 0 or infinite."""
        low, now, high = self.outputs
        if now == 0 or now == math.inf:
            return math.nan, math.nan
        return low / now - 1, high / now - 1

    @property
    def elasticity(self) -> float:
        """Percent by which the output changes per percent of the input, from the lower to the higher input.

        It is not a derivative, because quantiles are step functions of some inputs. NaN where it is undefined.
        """
        low, _, high = self.outputs
        if not (0 < low < math.inf and 0 < high < math.inf and self.inputs[0] < self.inputs[2] and self.inputs[0] > 0):
            return math.nan
        return math.log(high / low) / math.log(self.inputs[2] / self.inputs[0])

    @property
    def direction(self) -> Direction:
        """Whether the output rises or falls with the input, stays the same, or turns: rises and falls."""
        low, now, high = self.outputs
        signs = {_sign(low, now), _sign(now, high)} - {0}
        if not signs:
            return "stays"
        if len(signs) == 2:
            return "turns"
        return "rises" if signs == {1} else "falls"


@dataclass(frozen=True)
class Sensitivities:
    """The change of each figure of the delay with each input.

    Parameters
    ----------
    entries : tuple of Sensitivity
        In the order of the inputs, and for each input in the order of the outputs.
    step : float
        Share by which each input was decreased and increased.
    target : Target
        The demand on the delay.
    flow, path, stack
        The scenario.
    expected_error : ExpectedError
        Expected error of the prediction; the error of a small change may be smaller than the error of a delay.
    method : str
        Name of the model: "chain" or "simulation".
    assumptions : tuple of str
        One sentence for each field of the scenario that the model ignores.
    """

    entries: tuple[Sensitivity, ...]
    step: float
    target: Target
    flow: Flow
    path: Path
    stack: KnownStack
    expected_error: ExpectedError
    method: str = "chain"
    assumptions: tuple[str, ...] = ()

    def of(self, changed: Input, output: Output = "quantile") -> Sensitivity:
        """Return the entry of one input and one output."""
        return next(entry for entry in self.entries if (entry.input, entry.output) == (changed, output))

    @property
    def largest(self) -> Input:
        """The input that changes the target's quantile most, in either direction."""
        quantiles = [entry for entry in self.entries if entry.output == "quantile"]
        return max(quantiles, key=_largest_change).input

    @property
    def notes(self) -> tuple[str, ...]:
        """Fields that lie outside the range in which the model has been checked, and fields that it ignores."""
        return (*validated_range(self.stack, method=self.method).exceeded_by(self.flow, self.path), *self.assumptions)


@checked_arguments
def sensitivities(
    flow: Flow | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    step: float = SENSITIVITY_STEP,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Sensitivities:
    """Return how quantile, mean and late fraction change with round-trip time, loss, packet size and interval.

    One input at a time decreases and increases by the same share.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of an application in `tcpdelay.scenario.scenario`.
    path, stack, target
        As for `largest_bitrate`. The target has the quantile, and the limit beyond which packets are late.
    step : float
        Share by which an input decreases and increases, 0.001 to 0.5.
    on_progress : callable, optional
        Called after each prediction with the number of predictions done and the number of all predictions.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain, or the simulator where the chain refuses the scenario or is too large. A
        simulation has a statistical error, although all simulations have the same random numbers.

    Returns
    -------
    Sensitivities
        Twelve entries.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Examples
    --------
    >>> found = sensitivities(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> found.of("rtt").direction, found.largest, found.of("loss", "late_fraction").direction
    ('rises', 'rtt', 'rises')
    """
    if not is_number(step) or not 0.001 <= step <= LARGEST_STEP:
        raise InvalidValueError("step", step, f"lie between 0.001 and {LARGEST_STEP:g}")
    flow, stack, target = flow_of(flow), checked_profile(stack), target_of(flow, target)
    model = model_to_compare(Scenario(flow, path, stack), method)
    places: dict[Input, tuple[float, Callable[[float], tuple[Flow, Path]]]] = {
        "rtt": (path.rtt, lambda value: (flow, at_rtt(path, value))),
        "loss": (path.loss, lambda value: (flow, replace(path, loss=value))),
        "packet_size": (flow.packet_size, lambda value: (replace(flow, packet_size=max(1, round(value))), path)),
        "interval": (flow.interval, lambda value: (replace(flow, interval=value), path)),
    }
    total = 1 + 2 * len(places)
    done = 0

    def answer(flow: Flow, path: Path) -> Answer:
        nonlocal done
        found = predict(Scenario(flow, path, stack), Requested(target=target), model)
        done += 1
        if on_progress is not None:
            on_progress(done, total)
        return found

    now = answer(flow, path)
    entries: list[Sensitivity] = []
    for name, (value, place) in places.items():
        lower, higher = place(value * (1 - step)), place(value * (1 + step))
        inputs = (_value(name, *lower), float(value), _value(name, *higher))
        found = [each.require() for each in (answer(*lower), now, answer(*higher))]
        for output, figure in _figures(target).items():
            low, middle, high = (figure(distribution) for distribution in found)
            entries.append(Sensitivity(name, output, inputs, (low, middle, high)))
    error = now.expected_error or UNKNOWN_ERROR
    return Sensitivities(tuple(entries), step, target, flow, path, stack, error, now.method, now.assumptions)


def _figures(target: Target) -> dict[Output, Callable[[DelayDistribution], float]]:
    """Return the outputs by name."""
    return {
        "quantile": lambda distribution: distribution.quantile(target.quantile),
        "mean": lambda distribution: distribution.mean,
        "late_fraction": lambda distribution: distribution.late_fraction(target.limit),
    }


def _value(name: Input, flow: Flow, path: Path) -> float:
    """Return the value that an input has in a scenario."""
    return float(getattr(path if name in ("rtt", "loss") else flow, name))


def _sign(first: float, second: float) -> int:
    """Return 1, -1 or 0 if the second of two figures is larger, smaller or the same."""
    if math.isclose(first, second, rel_tol=NOISE):
        return 0
    return 1 if second > first else -1


def _largest_change(entry: Sensitivity) -> float:
    """Return the larger absolute value of the two changes; NaN counts as no change."""
    return max(0.0 if math.isnan(change) else abs(change) for change in entry.changes)
