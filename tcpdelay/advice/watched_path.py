"""A live path: the running prediction, the verdict on it, and the advice to move a flow to TCP or away from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tcpdelay.advice.judged_delays import Alternative, agreed_verdict, alternatives_at_ends, measured_ends
from tcpdelay.ask import Answer, Requested
from tcpdelay.capture.estimate import MeasuredDelays, PathEstimate, PathSample, PathWindow
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import supports
from tcpdelay.models.verdict import Verdict, judge, relative_error
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.scenario.target import REPORTED_QUANTILES, Target

Transport = Literal["tcp", "udp"]
WatchVerdict = Literal["works", "does not work", "too early to say", "too close to say"]
"""The verdict on TCP. "too early to say": the target is met in one part of the confidence interval of the path and
missed in another. "too close to say": the expected error of the prediction reaches across the limit."""
Advice = Literal["none yet", "stay on TCP", "move away from TCP", "move to TCP", "stay away from TCP"]

WINDOW, HOLD = 300.0, 30.0
"""Defaults: time of the samples that count, and time for which a verdict must hold before it is advised [s]."""
PREDICTION_SECONDS = 1.0
"""Processor time that one prediction may take [s], by the chain's own estimate."""

_ADVICE: dict[tuple[Transport, WatchVerdict], Advice] = {
    ("tcp", "works"): "stay on TCP",
    ("tcp", "does not work"): "move away from TCP",
    ("udp", "works"): "move to TCP",
    ("udp", "does not work"): "stay away from TCP",
}


class MoveAdvice:
    """The advice that follows from the verdicts in the order of time, with hysteresis.

    The advice changes only when one verdict, "works" or "does not work", was given without interruption for the time
    `hold`. Every other verdict starts this time again and leaves the advice as it was.
    """

    def __init__(self, transport: Transport, hold: float) -> None:
        if not hold >= 0:
            raise InvalidValueError("hold", hold, "be 0 s or more")
        self._transport: Transport = transport
        self._hold = hold
        self._verdict: WatchVerdict = "too early to say"
        self._since = 0.0
        self.advice: Advice = "none yet"
        self.changes = 0

    def update(self, time: float, verdict: WatchVerdict) -> Advice:
        """Take the verdict at a time [s] into account, and return the advice."""
        if verdict != self._verdict:
            self._verdict, self._since = verdict, time
        advice = _ADVICE.get((self._transport, verdict))
        if advice is not None and advice != self.advice and time - self._since >= self._hold:
            self.changes += self.advice != "none yet"
            self.advice = advice
        return self.advice


@dataclass(frozen=True)
class Outlook:
    """The prediction for an estimated path, and the verdict on it."""

    answer: Answer  # The prediction for the estimate
    alternatives: tuple[Alternative, ...]  # The predictions at the ends of the confidence intervals of the estimate
    verdict: WatchVerdict  # The verdict on TCP, a `WatchVerdict`

    @property
    def quantile_range(self) -> tuple[float, float]:
        """Range of the target's quantile [s]: from the best to the worst path, by the expected error of the chain.

        The shorter end is divided by one plus the error that nine of ten predictions do not exceed, and the longer end
        is multiplied by it.
        """
        best, worst = (each.quantile for each in self.alternatives)
        factor = 1 + relative_error(self.answer.scenario.stack, self.answer.expected_error)
        return best / factor, worst * factor


@dataclass(frozen=True)
class Observation:
    """What is known of a watched path at one time."""

    sample: PathSample  # The latest sample
    elapsed: float  # Time since the first sample [s]
    rate: float | None  # Rate at which payload was acknowledged [bit/s]
    estimate: PathEstimate | None  # The estimated path; None while there is none
    outlook: Outlook | None  # The prediction for the estimate; None without an estimate
    measured: MeasuredDelays | None  # The delays by the backlog of the connection
    verdict: WatchVerdict  # The verdict of the outlook; "too early to say" without an estimate
    advice: Advice


@dataclass
class WatchedPath:
    """A live path that is predicted from its samples."""

    # flow, stack, target: The flow, the TCP that carries it or would carry it, and the demand on its delay.
    flow: Flow
    stack: KnownStack
    target: Target
    transport: Transport = "tcp"  # What carries the flow now
    window: float = WINDOW  # Time of the samples that count [s], above 0
    hold: float = HOLD  # Time for which a verdict must hold before it is advised [s], 0 or more
    # Count the losses since the connection began, as a report on `ss` does, not those of the window.
    whole_connection: bool = False
    path: Mapping[str, Any] = field(default_factory=dict)  # Other fields of `Path` than round-trip time and loss

    def __post_init__(self) -> None:
        self._window = PathWindow(self.window, self.whole_connection)
        self._advice = MoveAdvice(self.transport, self.hold)
        self._started: float | None = None
        quantiles = tuple(dict.fromkeys((*REPORTED_QUANTILES, self.target.quantile)))
        self._requested = Requested(quantiles, (self.target.limit,), max_seconds=PREDICTION_SECONDS)
        self._last: tuple[PathEstimate | None, Outlook | None] = None, None
        # A round-trip time and a loss that every model supports: only the other fields can be refused.
        some_path = Path(**{"rtt": 0.1, "loss": 0.01, **self.path})
        for refusal in supports(Scenario(self.flow, some_path, self.stack)).refused:
            raise refusal

    @property
    def changes(self) -> int:
        """Number of times that the advice has changed."""
        return self._advice.changes

    def add(self, sample: PathSample) -> Observation:
        """Take a sample into account, and return what is known now."""
        self._window.add(sample)
        self._started = sample.time if self._started is None else self._started
        estimate = self._window.estimate()
        if estimate != self._last[0]:
            self._last = estimate, None if estimate is None else self.outlook(estimate)
        outlook = self._last[1]
        verdict: WatchVerdict = "too early to say" if outlook is None else outlook.verdict
        way_back = 0.0 if estimate is None or estimate.rtt_min is None else estimate.rtt_min / 2
        return Observation(
            sample=sample,
            elapsed=sample.time - self._started,
            rate=self._window.rate(),
            estimate=estimate,
            outlook=outlook,
            measured=self._window.delays(way_back, self.target.quantile),
            verdict=verdict,
            advice=self._advice.update(sample.time, verdict),
        )

    def outlook(self, estimate: PathEstimate) -> Outlook:
        """Return the prediction for an estimated path by the chain, and the verdict of a report on it."""
        scenario = Scenario(self.flow, estimate.path(**self.path), self.stack)
        judgement = judge(scenario, self.target, "chain", self._requested)
        ends = measured_ends(scenario.path, estimate)
        alternatives = alternatives_at_ends(scenario, self.target, ends, "chain", self._requested)
        agreed = agreed_verdict(judgement, judgement.answer.meets(self.target), alternatives)
        return Outlook(judgement.answer, alternatives, _verdict(agreed, alternatives))


def _verdict(agreed: Verdict, alternatives: tuple[Alternative, ...]) -> WatchVerdict:
    if agreed != "uncertain":
        return "works" if agreed == "works" else "does not work"
    differ = len({alternative.meets_target for alternative in alternatives}) > 1
    return "too early to say" if differ else "too close to say"
