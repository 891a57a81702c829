"""The findings on a flow of constant rate as data: verdict, margins, parts of the delay, and recommendations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tcpdelay.advice.judged_delays import JudgedDelays
from tcpdelay.advice.playout import PlayoutBuffer, playout_buffers
from tcpdelay.advice.request import GuidelineRequest
from tcpdelay.models.interface import Answer, NotSettledError, Requested
from tcpdelay.models.predict import (
    model_to_compare,
    predict,
    solved_once,
    supports,
    why_simulated,
)
from tcpdelay.models.validity import ValidatedRange, beyond_validation, validated_range
from tcpdelay.models.verdict import judge
from tcpdelay.quality.experience import Call, call_experience, video_experience
from tcpdelay.quality.video import VideoPlayout
from tcpdelay.questions.margins import Margin, largest_sustainable_rate
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import NewReno2008, transport_name


@dataclass(frozen=True, kw_only=True)
class Findings(JudgedDelays):
    """The findings on a flow of constant rate; `JudgedDelays` has the other fields.

    The verdict follows from the chain's answer, or from a simulation if the chain's expected error leaves it open.

    Parameters
    ----------
    flow : Flow
        The flow.
    backlogged_time_fraction : float
        Share of time in which packets wait in the send buffer.
    largest_sustainable_rate : Margin
        Highest bitrate that TCP can carry.
    playout : tuple of PlayoutBuffer
        Playout delays that hide single losses.
    validity : ValidatedRange
        Range in which the model has been checked.
    refused : tuple of str
        Fields of the scenario that the chain refuses; usually none.
    call : Call, optional
        The ratings of the call, if the application is a call.
    video : VideoPlayout, optional
        The playout of the video with the target's limit as start-up delay, if the application is a video.
    """

    flow: Flow
    backlogged_time_fraction: float
    largest_sustainable_rate: Margin
    playout: tuple[PlayoutBuffer, ...]
    validity: ValidatedRange
    refused: tuple[str, ...]
    call: Call | None = None
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


def _notes(answer: Answer) -> tuple[str, ...]:
    """Return the limits of a prediction in words."""
    flow, path, stack = answer.scenario.flow, answer.scenario.path, answer.scenario.stack
    notes = [*beyond_validation(flow, path, stack, answer.method), *answer.assumptions]
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

    With the method "auto", verdict and delays are simulated if the chain's expected error leaves the verdict open.
    The chain computes margins, parts of the delay and effects of settings. If the chain refuses the scenario and the
    method allows a simulation, these are simulated too. If the application is a call or a video, the findings include
    the quality of the call or the playout of the video.

    Raises
    ------
    ValueError
        If the model refuses the scenario, or has too little memory for it.

    Examples
    --------
    >>> from tcpdelay.scenario import Path, Scenario, Target
    >>> findings(GuidelineRequest(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)), Target(0.2))).works
    True
    """
    # Imported here, because it imports Numba, which takes a second.
    from tcpdelay.models.compilation import few_predictions

    with solved_once(), few_predictions():
        return _findings(request)


def _findings(request: GuidelineRequest) -> Findings:
    scenario, target, application = request.scenario, request.target, request.application
    flow, path, stack = scenario.flow, scenario.path, scenario.stack
    requested = Requested(parts=True, target=target)
    answer = predict(scenario, requested, "chain")
    model = model_to_compare(scenario, "chain" if request.method == "chain" else "auto", request.on_progress)
    judgement = judge(scenario, target, request.method, requested, request.on_progress)
    judged, unsettled = judgement.answer, None
    if model == "chain":
        answer.require()
        if not judged.answered:
            unsettled = judged.refusal if isinstance(judged.refusal, NotSettledError) else None
            # A simulation that has not settled has no delays.
            judged = answer
    else:
        answer = judged
    delays = judged.distribution
    return Findings.of(
        request,
        judgement,
        judged,
        answer,
        model,
        flow=flow,
        backlogged_time_fraction=answer.backlogged_time_fraction,
        largest_sustainable_rate=largest_sustainable_rate(flow, path, stack, model),
        playout=() if delays is None else playout_buffers(judged),
        validity=validated_range(stack, method=judged.method),
        notes=_notes(judged),
        refused=() if model == "chain" else tuple(error.name for error in supports(scenario).refused),
        simulated_because="" if model == "chain" else why_simulated(scenario),
        unsettled=unsettled,
        call=None if delays is None else call_experience(application, flow, target, delays),
        video=None if delays is None else video_experience(application, flow, target, delays),
    )
