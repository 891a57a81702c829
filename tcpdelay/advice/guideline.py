"""The findings on a scenario as data: verdict, margins, parts of the delay, and recommendations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_jsonable_python

from tcpdelay.advice.judged_delays import JudgedDelays
from tcpdelay.advice.loss_curve import LossCurve, loss_curve
from tcpdelay.advice.playout import PlayoutBuffer, playout_buffers
from tcpdelay.advice.recommendations import recommendations
from tcpdelay.advice.rule import Recommendation, Situation
from tcpdelay.distribution import UNKNOWN_ERROR, ExpectedError
from tcpdelay.models.interface import Answer, DelayParts, Model, NotSettledError, Requested
from tcpdelay.models.predict import (
    AnsweredBy,
    model_to_compare,
    predict,
    simulator,
    solved_once,
    supports,
    why_simulated,
)
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.validity import ValidatedRange, validated_range
from tcpdelay.models.verdict import Verdict, judge, late_range
from tcpdelay.quality.experience import Call, call_experience, video_experience
from tcpdelay.quality.video import VideoPlayout
from tcpdelay.questions.margins import Margin, largest_sustainable_rate, margins
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, NewReno2008
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate

NO_PARTS = DelayParts(math.nan, math.nan, math.nan, math.nan)
"""Parts of the mean delay where there are no delays."""
LARGEST_ALTERNATIVE_LOSS = 0.999
"""Largest loss of an alternative prediction; the end of a confidence interval may be 1, which a path does not allow."""


@dataclass(frozen=True)
class Alternative:
    """The prediction at another round-trip time [s] and loss that are within the confidence intervals.

    `quantile` is the target's quantile of the delay [s]. It is NaN if the model has no answer; the target then does not
    count as met.
    """

    label: str
    rtt: float
    loss: float
    quantile: float
    meets_target: bool


@dataclass(frozen=True)
class Findings(JudgedDelays):
    """The content of a report, as data.

    Parameters
    ----------
    flow, path, stack, target
        The scenario, and the demand on its delay.
    works : bool
        Whether the prediction meets the target.
    answer : Answer
        The answer that verdict and delays rest on: of the chain, or of a simulation where the chain does not settle the
        verdict. It has no delays if the simulation has not settled, and the chain has no answer either.
    late_range : tuple of float
        Smallest and largest share of late packets that the expected error of the prediction allows.
    parts : DelayParts
        Parts of the mean delay [s]; NaN without delays.
    backlogged_time_fraction : float
        Share of time in which packets wait in the send buffer.
    fair_rate, utilization : float
        Rate of a long TCP transfer on the path [bit/s], and the flow's share of it.
    largest_sustainable_rate : Margin
        Highest bitrate that TCP can carry.
    verdict : {"works", "uncertain", "fails"}
        Whether the target is met; "uncertain" if the expected error of the prediction reaches across the limit, or if
        the target is met in one part of the measured path's confidence interval and missed in another part.
    margins : tuple of Margin
        The margins of loss, round-trip time and bitrate.
    playout : tuple of PlayoutBuffer
        Playout delays that hide single losses.
    recommendations : tuple of Recommendation
        All rules in the order of the report: first what to do, the largest effect first.
    alternatives : tuple of Alternative
        The predictions at the ends of the measured path's confidence intervals; empty if the path was not measured.
    validity : ValidatedRange
        Range in which the model has been checked.
    unchanged : float
        The target's quantile of the delay [s] with which the effects of a change are compared: by the chain, or
        `quantile` if the same model gives it. NaN if the simulation has not settled.
    expected_error : ExpectedError
        The probable error of the prediction.
    notes : tuple of str
        Limits of the numbers that the reader should know.
    ignored : mapping of str to str
        Fields of the scenario that the model ignores, and the values that it assumes.
    refused : tuple of str
        Fields of the scenario that the chain refuses; usually none.
    simulated_because : str
        Why the chain has no answer, so that all figures are simulated; usually empty.
    loss_curve : LossCurve
        The target's quantile against the loss.
    unsettled : NotSettledError, optional
        What is known from a simulation that has not settled, if the chain answers in its place.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    call : Call, optional
        The ratings of the call, if the application is a call.
    video : VideoPlayout, optional
        The playout of the video with the target's limit as start-up delay, if the application is a video.
    """

    flow: Flow
    path: Path
    stack: KnownStack
    target: Target
    works: bool
    answer: Answer
    late_range: tuple[float, float]
    parts: DelayParts
    backlogged_time_fraction: float
    fair_rate: float
    utilization: float
    largest_sustainable_rate: Margin
    verdict: Verdict
    margins: tuple[Margin, ...]
    playout: tuple[PlayoutBuffer, ...]
    recommendations: tuple[Recommendation, ...]
    alternatives: tuple[Alternative, ...]
    validity: ValidatedRange
    unchanged: float
    expected_error: ExpectedError
    notes: tuple[str, ...]
    ignored: Mapping[str, str]
    refused: tuple[str, ...]
    simulated_because: str
    loss_curve: LossCurve
    unsettled: NotSettledError | None = None
    estimate: PathEstimate | None = None
    call: Call | None = None
    video: VideoPlayout | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain numbers, strings, lists and dictionaries.

        Infinite delays, and delays of a simulation that has not settled, become None.
        """
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("answer", "estimate", "unsettled")
        }
        plain: dict[str, Any] = to_jsonable_python(
            {**fields, "delay": self.delay_record(), "estimate": self.estimate},
            inf_nan_mode="null",
            fallback=np.ndarray.tolist,
        )
        return plain


def alternatives_at_ends(
    scenario: Scenario, target: Target, estimate: PathEstimate | None, model: AnsweredBy | Model
) -> tuple[Alternative, ...]:
    """Return the predictions at both ends of the measured confidence intervals."""
    if estimate is None:
        return ()
    path = scenario.path
    low_loss, high_loss = estimate.loss_interval
    low_rtt, high_rtt = estimate.rtt_interval or (path.rtt, path.rtt)
    result = []
    for label, rtt, loss in (
        ("best case of the 95 % interval", low_rtt, low_loss),
        ("worst case of the 95 % interval", high_rtt, high_loss),
    ):
        changed = dataclasses.replace(path, rtt=rtt, loss=min(loss, LARGEST_ALTERNATIVE_LOSS), one_way_delay=None)
        answer = predict(dataclasses.replace(scenario, path=changed), method=model)
        quantile = answer.require().quantile(target.quantile) if answer.answered else math.nan
        result.append(Alternative(label, rtt, loss, quantile, answer.meets(target)))
    return tuple(result)


def _notes(answer: Answer) -> tuple[str, ...]:
    """Return the limits of a prediction in words."""
    flow, path, stack = answer.scenario.flow, answer.scenario.path, answer.scenario.stack
    notes = [*validated_range(stack).exceeded_by(flow, path), *answer.assumptions]
    if isinstance(stack, NewReno2008) and flow.packet_size > stack.mss:
        notes.append(
            f"packet_size {flow.packet_size} exceeds one segment of {stack.mss} bytes; "
            "the published chain counts such a packet as one segment in the window"
        )
    if answer.answered and not answer.sustainable:
        notes.append("TCP cannot carry this flow on this path: the backlog grows for as long as the flow sends")
    if isinstance(stack, NewReno2008):
        notes.append(
            "the chain describes the TCP of 2008 with a first timeout of "
            + ("4 RTT" if stack.initial_timeout is None else f"{stack.initial_timeout:g} s")
            + "; today's Linux recovers differently, and faster at short round-trip times"
        )
    return tuple(notes)


def findings(
    scenario: Scenario,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
) -> Findings:
    """Return the findings on a scenario; each scenario is solved only once.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    target : Target, optional
        The demand on the delay; by default 95 % within 0.2 s.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    application : Application, optional
        The application that sends the flow; the findings on a call or a video have its quality too.
    method : {"chain", "simulation", "auto"}
        The model of the verdict and the delays. "auto" simulates where the chain's expected error reaches across the
        limit. Margins, parts of the delay and effects of settings are the chain's, unless the chain refuses the
        scenario and `method` allows a simulation.
    on_progress : callable, optional
        Function that a simulation calls with the number of packets simulated and the largest number of packets.
    on_margin : callable, optional
        Function called with the number of margins found and the number of all.

    Returns
    -------
    Findings
        All findings.

    Raises
    ------
    ValueError
        If the model refuses the scenario, or has too little memory for it.

    Examples
    --------
    >>> findings(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02))).works
    True
    """
    # Imported here, because it imports Numba, which takes a second.
    from tcpdelay.models.compilation import few_predictions

    with solved_once(), few_predictions():
        demand = Target(DEFAULT_LIMIT) if target is None else target
        return _findings(scenario, demand, estimate, application, method, on_progress, on_margin)


def agreeing(margin: Margin, works: bool, certain: bool) -> Margin:
    """Return a margin on the verdict's side.

    If one model gives the verdict and another the margin, they can disagree near the limit: the edge is then here,
    within the error of the model of the margin. If the verdict is certain, the edge is not on its other side, whatever
    that error.
    """
    now, inside = margin.now, margin.edge is not None and margin.edge >= margin.now
    moved = margin if inside == works else margin.moved_to(now)
    if not certain or moved.within_error is None:
        return moved
    low, high = moved.within_error
    if works:
        low = now if low is None else max(low, now)
    else:
        high = now if high is None else min(high, now)
    return dataclasses.replace(moved, within_error=(low, high))


def _findings(
    scenario: Scenario,
    target: Target,
    estimate: PathEstimate | None,
    application: Application | None,
    method: AnsweredBy,
    on_progress: Callable[[int, int], None] | None,
    on_margin: Callable[[int, int], None] | None,
) -> Findings:
    flow, path, stack = scenario.flow, scenario.path, scenario.stack
    requested = Requested(parts=True, target=target)
    answer = predict(scenario, requested, "chain")
    model = model_to_compare(scenario, "chain" if method == "chain" else "auto", on_progress)
    judgement = judge(scenario, target, method, requested, on_progress)
    judged, unsettled = judgement.answer, None
    changed: AnsweredBy | Model = model
    if model == "chain":
        answer.require()
        if not judged.answered:
            unsettled = judged.refusal if isinstance(judged.refusal, NotSettledError) else None
            # A simulation that has not settled has no delays.
            judged = answer
    else:
        answer = judged
        if judged.answered:
            changed = simulator(judged.requested.packets, on_progress)
    utilization = connection_utilization(flow, path, stack)
    works = judged.meets(target)
    every = margins(flow, path, stack, target, model, on_margin)
    found_margins = tuple(agreeing(margin, works, judgement.verdict != "uncertain") for margin in every)
    situation = Situation(answer, target, utilization, found_margins[-1], application, changed, judged)
    alternatives = alternatives_at_ends(scenario, target, estimate, model)
    agreed = all(alternative.meets_target == works for alternative in alternatives)
    delays = judged.distribution
    return Findings(
        flow=flow,
        path=path,
        stack=stack,
        target=target,
        works=works,
        answer=judged,
        late_range=late_range(judgement.answer, target.latest),
        parts=answer.parts or NO_PARTS,
        backlogged_time_fraction=answer.backlogged_time_fraction,
        fair_rate=flow.bitrate / utilization if utilization > 0 else math.inf,
        utilization=utilization,
        largest_sustainable_rate=largest_sustainable_rate(flow, path, stack, model),
        verdict=judgement.verdict if agreed else "uncertain",
        margins=found_margins,
        playout=() if delays is None else playout_buffers(judged),
        recommendations=tuple(recommendations(situation)),
        alternatives=alternatives,
        validity=validated_range(stack),
        unchanged=situation.delay,
        expected_error=judged.expected_error or UNKNOWN_ERROR,
        notes=_notes(judged),
        ignored=judged.ignored,
        refused=() if model == "chain" else tuple(error.name for error in supports(scenario).refused),
        simulated_because="" if model == "chain" else why_simulated(scenario),
        loss_curve=loss_curve(scenario, target, found_margins[0], model),
        unsettled=unsettled,
        estimate=estimate,
        call=None if delays is None else call_experience(application, flow, target, delays),
        video=None if delays is None else video_experience(application, flow, target, delays),
    )
