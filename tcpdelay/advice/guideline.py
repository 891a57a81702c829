"""The findings on a flow or another source as data: verdict, margins, parts of the delay; advice on a watched path."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tcpdelay.accuracy.validity import ValidatedRange, beyond_validation, validated_range
from tcpdelay.advice.judged_delays import (
    Alternative,
    GuidelineRequest,
    JudgedDelays,
    agreed_verdict,
    alternatives_at_ends,
    measured_ends,
)
from tcpdelay.advice.rules import PlayoutBuffer, playout_buffers
from tcpdelay.ask import Answer, Model, NotSettledError, Requested, solved_once
from tcpdelay.capture.estimate import MeasuredDelays, PathEstimate, PathSample, PathWindow
from tcpdelay.declare import InvalidValueError
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import (
    COMPARED_PACKETS,
    AnsweredBy,
    model_to_compare,
    predict,
    simulator,
    supports,
)
from tcpdelay.models.verdict import Verdict, judge, relative_error
from tcpdelay.quality.experience import Call, VideoPlayout, call_experience, video_experience
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import REPORTED_QUANTILES, Application, Scenario, Target
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, NewReno2008, Quic, transport_name
from tcpdelay.study.margins import Margin, largest_sustainable_rate
from tcpdelay.units import quantile_name


@dataclass(frozen=True, kw_only=True)
class Findings(JudgedDelays):
    """The findings on a flow of constant rate; `JudgedDelays` has the other fields."""

    flow: Flow
    backlogged_time_fraction: float  # Share of time in which packets wait in the send buffer
    largest_sustainable_rate: Margin  # Highest bitrate that TCP can carry
    playout: tuple[PlayoutBuffer, ...]  # Playout delays that hide single losses
    validity: ValidatedRange  # Range in which the model has been checked
    refused: tuple[str, ...]  # Fields of the scenario that the chain refuses; usually none
    call: Call | None = None  # The ratings of the call, if the application is a call
    # The playout of the video with the target's limit as start-up delay, if the application is a video.
    video: VideoPlayout | None = None

    recorded = (
        *("flow", "path", "stack", "target", "works", "late_range", "parts", "backlogged_time_fraction", "fair_rate"),
        *("utilization", "largest_sustainable_rate", "verdict", "margins", "playout", "recommendations"),
        *("alternatives", "validity", "unchanged", "expected_error", "notes", "ignored", "refused"),
        *("simulated_because", "loss_curve", "transports", "call", "video"),
    )

    @property
    def fair_rate(self) -> float:
        """Rate of a long TCP transfer on the path [bit/s]."""
        return self.flow.bitrate / self.utilization if self.utilization > 0 else math.inf


def _notes(answer: Answer, app: Application | None) -> tuple[str, ...]:
    """Return the limits of a prediction in words; `app` is the application for which the flow is taken."""
    flow, path, stack = answer.scenario.flow, answer.scenario.path, answer.scenario.stack
    notes = [*beyond_validation(flow, path, stack, answer.method), *answer.assumptions]
    if app is not None and not app.constant_rate:
        notes.append(f"a flow of constant rate takes the place of the messages of {app.name}, which are not equal")
    if isinstance(stack, NewReno2008) and flow.packet_size > stack.mss:
        notes.append(
            f"packet_size {flow.packet_size} exceeds one segment of {stack.mss} bytes; "
            "the published chain counts such a packet as one segment in the window"
        )
    if answer.answered and not answer.sustainable:
        carrier = transport_name(stack)
        notes.append(f"{carrier} cannot carry this flow on this path: the backlog grows for as long as the flow sends")
    if isinstance(stack, NewReno2008):
        notes.append(
            "the chain describes the TCP of 2008 with a first timeout of "
            + ("4 RTT" if stack.initial_timeout is None else f"{stack.initial_timeout:g} s")
            + "; today's Linux recovers differently, and faster at short round-trip times"
        )
    return tuple(notes)


def findings(request: GuidelineRequest) -> Findings:
    """Return the findings on a flow of constant rate; each scenario is solved only once.

    Verdict and delays are those of `tcpdelay.models.predict.predict` by the same method. The model that answers there
    also computes parts of the delay, effects of settings and delays at other losses. If the application is a call or a
    video, the findings include the quality of the call or the playout of the video.
    """
    # Imported here, because it imports Numba, which takes a second.
    from tcpdelay.compiling.compilation import few_predictions

    with solved_once(), few_predictions():
        return _findings(request)


_CHAIN: AnsweredBy | Model = "chain"


def _require(judged: Answer) -> None:
    """Raise the reason if there is no answer; a simulation that has not settled tells something too."""
    if not isinstance(judged.refusal, NotSettledError):
        judged.require()


def _findings(request: GuidelineRequest) -> Findings:
    scenario, target, application = request.scenario, request.target, request.application
    flow, path, stack = scenario.flow, scenario.path, scenario.stack
    requested = Requested(parts=True, target=target, on_progress=request.on_progress)
    judgement = judge(scenario, target, request.method, requested)
    judged = judgement.answer
    _require(judged)
    because, model = "", _CHAIN
    if judged.method == "simulation":
        because = judged.simulated_because or "a simulation was requested"
        model = simulator(COMPARED_PACKETS, request.on_progress, because)
    delays = judged.distribution
    return Findings.of(
        request,
        judgement,
        judged,
        model,
        flow=flow,
        backlogged_time_fraction=judged.backlogged_time_fraction,
        largest_sustainable_rate=largest_sustainable_rate(flow, path, stack, model),
        playout=() if delays is None else playout_buffers(judged),
        validity=validated_range(stack, method=judged.method),
        notes=_notes(judged, application),
        refused=() if model == "chain" else tuple(error.name for error in supports(scenario).refused),
        simulated_because=because,
        call=None if delays is None else call_experience(application, flow, target, delays),
        video=None if delays is None else video_experience(application, flow, target, delays),
    )


# The findings on a source whose rate is not constant, as data; all delays are simulated.

NOT_FOR_SOURCES = (
    "the fair TCP rate",
    "the time with a backlog",
    "playout buffers for single losses",
    "rules on packets of one size",
)
"""Contents of a report on a flow of constant rate that a report on another source does not have."""


@dataclass(frozen=True, kw_only=True)
class SourceFindings(JudgedDelays):
    """The findings on a source whose rate is not constant; `JudgedDelays` calls its messages packets."""

    source: Source
    simulated: Answer  # The simulation from which effects start, and which has the delays of each kind
    compared: int  # Number of messages in each simulation of the search for the margins

    messages = "messages"
    recorded = (
        *("source", "path", "stack", "target", "works", "late_range", "parts", "verdict", "margins", "recommendations"),
        *("alternatives", "compared", "expected_error", "notes", "ignored", "loss_curve", "transports"),
        "simulated_because",
    )

    @property
    def by_kind(self) -> Mapping[str, DelayDistribution]:
        """Delays of each kind of message, which the chains of sources do not distinguish."""
        found: Mapping[str, DelayDistribution] = getattr(self.simulated.distribution, "by_kind", {})
        return found

    def quantile_of_kind(self, kind: str, share: float) -> float:
        """Return the delay [s] within which a share of the messages of a kind arrives; NaN if these are too few."""
        return self.by_kind[kind].known_quantile(share)

    def other_entries(self) -> dict[str, Any]:
        """Return the rates and sizes of the source as its entry, and the delays of each kind of message."""
        source = {
            "kind": type(self.source).__name__,
            "text": repr(self.source),
            "mean_bitrate": self.source.mean_bitrate,
            "peak_bitrate": self.source.peak_bitrate,
            "message_rate": self.source.message_rate,
            "mean_size": self.source.mean_size,
        }
        shares = dict.fromkeys((*REPORTED_QUANTILES, self.target.quantile))
        by_kind = {
            kind: {
                "messages": delays.packets,
                "mean": delays.mean,
                **{quantile_name(share): self.quantile_of_kind(kind, share) for share in shares},
                "late_fraction": delays.late_fraction(self.target.limit),
            }
            for kind, delays in self.by_kind.items()
        }
        return {"source": source, "by_kind": by_kind}


@solved_once()
def source_findings(request: GuidelineRequest) -> SourceFindings:
    """Simulate a source whose rate is not constant, and return the findings: verdict, margins and recommendations."""
    if request.method == "chain":
        allowed = "be 'simulation' or 'auto' for a source whose rate is not constant"
        raise InvalidValueError("method", request.method, allowed)
    scenario, target, on_progress = request.scenario, request.target, request.on_progress
    model = model_to_compare(scenario, "simulation", on_progress)
    requested = Requested(parts=True, target=target, on_progress=on_progress)
    judgement = judge(scenario, target, request.method, requested)
    judged = answer = judgement.answer
    _require(judged)
    if judged.method == "chain":
        # The chains of speech and video answer for single points: the effects start from a simulation.
        answer = predict(scenario, requested, simulator(because="effects are simulated"))
    carried = answer.sustainable or not answer.answered
    carrier = transport_name(scenario.stack)
    endless = f"{carrier} cannot carry this source on this path: the backlog grows for as long as it sends"
    quic = isinstance(scenario.stack, Quic)
    beyond = beyond_validation(scenario.source, scenario.path, scenario.stack, "simulation") if quic else []
    return SourceFindings.of(
        request,
        judgement,
        answer,
        model,
        source=scenario.source,
        simulated=answer,
        compared=getattr(model, "packets", 0),
        notes=(*beyond, *(() if carried else (endless,)), *answer.clock_notes),
        simulated_because="the rate of the source is not constant",
    )


# The comparison of the findings on two scenarios, as data.


@dataclass(frozen=True)
class Changes:
    """The findings on two scenarios, and their differences."""

    # before, after: The findings on each.
    before: Findings
    after: Findings

    def to_dict(self) -> dict[str, Any]:
        """Return both findings in the form of `Findings.to_dict`, and the names of the fields that differ."""
        before, after = self.before.to_dict(), self.after.to_dict()
        return {
            "differs": [
                f"{part}.{name}"
                for part in ("flow", "path", "stack", "target")
                for name in sorted({*before[part], *after[part]})
                if before[part].get(name) != after[part].get(name)
            ],
            "before": before,
            "after": after,
        }

    def to_json(self) -> str:
        """Return the comparison as JSON: delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


# A live path: the running prediction, the verdict on it, and the advice to move a flow to TCP or away from it.

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
