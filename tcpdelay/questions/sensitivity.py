"""The sensitivity of the delay to each field: the change of the delay if the field changes by a tenth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tcpdelay.distribution import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.interface import Answer, Requested
from tcpdelay.models.predict import AnsweredBy, model_to_compare, predict
from tcpdelay.models.validity import validated_range
from tcpdelay.questions.quantities import at_rtt
from tcpdelay.scenario.applications import flow_of, target_of
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, Stack, checked_profile
from tcpdelay.scenario.target import Target

Input = Literal["rtt", "loss", "packet_size", "interval"]
Output = Literal["quantile", "mean", "late_fraction"]
Direction = Literal["rises", "falls", "stays", "turns"]

STEP = 0.10
LARGEST_STEP = 0.5
NOISE = 1e-6
"""Largest relative change that counts as no change: a chain is not solved to more digits."""


@dataclass(frozen=True)
class Sensitivity:
    """The change of one figure of the delay when one input decreases and increases by the same share.

    Parameters
    ----------
    input : {"rtt", "loss", "packet_size", "interval"}
        The field that is changed.
    output : {"quantile", "mean", "late_fraction"}
        The figure: the target's quantile of the delay [s], the mean delay [s], or the share of packets later than the
        target's limit.
    inputs : tuple of float
        The lower, the present and the higher input [s, fraction, bytes, s]; packets have whole bytes.
    outputs : tuple of float
        The output at each input; a delay is infinite where TCP cannot carry the flow.
    """

    input: Input
    output: Output
    inputs: tuple[float, float, float]
    outputs: tuple[float, float, float]

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


def sensitivities(
    flow: Flow | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | None = None,
    step: float = STEP,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Sensitivities:
    """Return how quantile, mean and late fraction change with round-trip time, loss, packet size and interval.

    One input at a time decreases and increases by the same share.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of an application in `tcpdelay.scenario.applications`.
    path : Path
        The path.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    target : Target, optional
        The quantile of the delay, and the limit beyond which packets are late; by default that of the application, or
        95 % within 0.2 s.
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
    if not 0.001 <= step <= LARGEST_STEP:
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
