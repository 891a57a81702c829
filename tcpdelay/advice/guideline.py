"""The findings on a scenario as data: verdict, margins, parts of the delay, and what to set or change."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tcpdelay.advice.loss_curve import LossCurve, loss_curve
from tcpdelay.advice.playout import PlayoutBuffer, playout_buffers
from tcpdelay.advice.recommendations import recommendations
from tcpdelay.advice.rule import Recommendation, Situation
from tcpdelay.distribution import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.interface import Answer, DelayParts, Requested
from tcpdelay.models.predict import predict, solved_once
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.validity import ValidatedRange, validated_range
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

Verdict = Literal["works", "uncertain", "fails"]

REPORTED_QUANTILES = (0.5, 0.95, 0.99)
LARGEST_ALTERNATIVE_LOSS = 0.999
"""Largest loss of a prediction at the end of a confidence interval, which may reach 1."""


@dataclass(frozen=True)
class Alternative:
    """The prediction at another round-trip time [s] and loss that the measurement does not exclude.

    `quantile` is the target's quantile of the delay [s]; NaN where the model has no answer, which does not meet the
    target either.
    """

    label: str
    rtt: float
    loss: float
    quantile: float
    meets_target: bool


@dataclass(frozen=True)
class Findings:
    """Everything that a report says, as data.

    Parameters
    ----------
    flow, path, stack, target
        The scenario, and the demand on its delay.
    works : bool
        Whether the prediction meets the target.
    distribution : DelayDistribution
        The predicted delays.
    parts : DelayParts
        Where the mean delay comes from [s].
    backlogged_time_fraction : float
        Share of time with packets waiting in the send buffer.
    fair_rate, utilization : float
        Rate of a long TCP transfer on the path [bit/s], and the flow's share of it.
    largest_sustainable_rate : Margin
        Highest bitrate that TCP can carry at all.
    verdict : {"works", "uncertain", "fails"}
        Whether the target is met; "uncertain" where the target is met in one part of the measured path's confidence
        interval and missed in another.
    margins : tuple of Margin
        How far loss, round-trip time and bitrate may go.
    playout : tuple of PlayoutBuffer
        Playout delays that mask single losses.
    recommendations : tuple of Recommendation
        The rules, those that do not hold here included.
    alternatives : tuple of Alternative
        The prediction at the ends of the measured path's confidence intervals; empty for a given path.
    validity : ValidatedRange
        Range in which the model has been checked.
    expected_error : ExpectedError
        How far the prediction is probably off.
    notes : tuple of str
        Facts to know before relying on the numbers.
    ignored : mapping of str to str
        Fields of the scenario that the model ignores, and the values that it assumes.
    loss_curve : LossCurve
        The target's quantile against the loss.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    call : Call, optional
        How a call is rated, where the application is a call.
    video : VideoPlayout, optional
        How a video plays that starts after the target's limit, where the application is a video.
    """

    flow: Flow
    path: Path
    stack: KnownStack
    target: Target
    works: bool
    distribution: DelayDistribution
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
    expected_error: ExpectedError
    notes: tuple[str, ...]
    ignored: Mapping[str, str]
    loss_curve: LossCurve
    estimate: PathEstimate | None = None
    call: Call | None = None
    video: VideoPlayout | None = None

    @property
    def quantile(self) -> float:
        """The target's quantile of the delay [s]."""
        return self.distribution.quantile(self.target.quantile)

    @property
    def late_fraction(self) -> float:
        """Share of the packets that come later than the target's limit."""
        return self.distribution.late_fraction(self.target.limit)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain numbers, strings, lists and dictionaries; infinite delays become None."""
        distribution = self.distribution
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("distribution", "estimate")
        }
        delays = {
            "mean": distribution.mean,
            "jitter": distribution.jitter,
            **{f"p{100 * q:g}": distribution.quantile(q) for q in REPORTED_QUANTILES},
            "target_quantile": self.quantile,
            "late_fraction": self.late_fraction,
            "sustainable": distribution.sustainable,
        }
        plain: dict[str, Any] = _plain({**fields, "delay": delays})
        plain["estimate"] = None if self.estimate is None else _plain(self.estimate)
        return plain

    def to_json(self) -> str:
        """Return the findings as JSON; delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Reduce dataclasses, tuples and non-finite numbers to what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _alternatives(scenario: Scenario, target: Target, estimate: PathEstimate | None) -> tuple[Alternative, ...]:
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
        answer = predict(dataclasses.replace(scenario, path=changed), method="chain")
        quantile = answer.require().quantile(target.quantile) if answer.answered else math.nan
        result.append(Alternative(label, rtt, loss, quantile, answer.meets(target)))
    return tuple(result)


def _notes(answer: Answer) -> tuple[str, ...]:
    flow, path, stack = answer.scenario.flow, answer.scenario.path, answer.scenario.stack
    notes = [*validated_range(stack).exceeded_by(flow, path), *answer.assumptions]
    if isinstance(stack, NewReno2008) and flow.packet_size > stack.mss:
        notes.append(
            f"packet_size {flow.packet_size} exceeds one segment of {stack.mss} bytes; "
            "the published chain counts such a packet as one in the window"
        )
    if not answer.sustainable:
        notes.append("TCP cannot carry this flow on this path: the backlog grows for as long as it sends")
    if isinstance(stack, NewReno2008):
        notes.append(
            "the chain describes the TCP of 2008 with a first timeout of "
            + ("4 RTT" if stack.initial_timeout is None else f"{stack.initial_timeout:g} s")
            + "; today's Linux recovers differently, faster at short round-trip times"
        )
    return tuple(notes)


def findings(
    scenario: Scenario,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
) -> Findings:
    """Return the findings on a scenario; no scenario is solved twice.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    target : Target, optional
        The demand on the delay; by default 95 % within 0.2 s.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    application : Application, optional
        What the flow carries: calls are rated, and videos played.

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
    with solved_once():
        return _findings(scenario, Target(DEFAULT_LIMIT) if target is None else target, estimate, application)


def _findings(
    scenario: Scenario, target: Target, estimate: PathEstimate | None, application: Application | None
) -> Findings:
    flow, path, stack = scenario.flow, scenario.path, scenario.stack
    answer = predict(scenario, Requested(parts=True), method="chain")
    delays = answer.require()
    assert answer.parts is not None
    utilization = connection_utilization(flow, path, stack)
    found_margins = margins(flow, path, stack, target)
    situation = Situation(answer, target, utilization, found_margins[-1])
    alternatives = _alternatives(scenario, target, estimate)
    works = answer.meets(target)
    agreed = all(alternative.meets_target == works for alternative in alternatives)
    return Findings(
        flow=flow,
        path=path,
        stack=stack,
        target=target,
        works=works,
        distribution=delays,
        parts=answer.parts,
        backlogged_time_fraction=answer.backlogged_time_fraction,
        fair_rate=flow.bitrate / utilization if utilization > 0 else math.inf,
        utilization=utilization,
        largest_sustainable_rate=largest_sustainable_rate(flow, path, stack),
        verdict=("works" if works else "fails") if agreed else "uncertain",
        margins=found_margins,
        playout=playout_buffers(flow, path, stack, delays),
        recommendations=tuple(recommendations(situation)),
        alternatives=alternatives,
        validity=validated_range(stack),
        expected_error=answer.expected_error or UNKNOWN_ERROR,
        notes=_notes(answer),
        ignored=answer.ignored,
        loss_curve=loss_curve(scenario, target, found_margins[0]),
        estimate=estimate,
        call=call_experience(application, flow, target, delays),
        video=video_experience(application, flow, target, delays),
    )
