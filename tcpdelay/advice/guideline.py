"""The findings on a flow or another source as data: verdict, margins, parts of the delay; two findings compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tcpdelay.accuracy.validity import ValidatedRange, beyond_validation, validated_range
from tcpdelay.advice.judged_delays import GuidelineRequest, JudgedDelays
from tcpdelay.advice.rules import PlayoutBuffer, playout_buffers
from tcpdelay.ask import Answer, Model, NotSettledError, Requested, solved_once
from tcpdelay.declare import InvalidValueError
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import (
    COMPARED_PACKETS,
    AnsweredBy,
    model_to_compare,
    packets_to_count,
    predict,
    simulator,
    supports,
)
from tcpdelay.models.verdict import judge
from tcpdelay.quality.experience import Call, call_experience, video_experience
from tcpdelay.quality.video import VideoPlayout
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import NewReno2008, Quic, transport_name
from tcpdelay.scenario.target import REPORTED_QUANTILES
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
        model = simulator(packets_to_count(scenario, COMPARED_PACKETS), request.on_progress, because)
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
        notes=_notes(judged),
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
    "the ranges of margins",
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
