"""From a scenario to a guideline: verdict, margins, where the delay comes from, and what to set or change."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tcpdelay.advice.playout import PlayoutBuffer, playout_buffers
from tcpdelay.advice.recommendations import recommendations
from tcpdelay.advice.rule import Recommendation, Situation
from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import expected_error
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import DelayParts
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.validity import ValidatedRange, validated_range
from tcpdelay.quality.experience import Call, call_experience, video_experience
from tcpdelay.quality.video import VideoPlayout
from tcpdelay.questions.margins import Margin, largest_sustainable_rate, margins
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import scenario_from_options
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, NewReno2008, Stack
from tcpdelay.scenario.target import Target

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate

Verdict = Literal["works", "uncertain", "fails"]

REPORTED_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Alternative:
    """The target's quantile [s] at another value of what is uncertain."""

    label: str
    rtt: float
    loss: float
    quantile: float
    meets_target: bool


@dataclass(frozen=True)
class Guideline:
    """Everything that the report says, as data.

    Parameters
    ----------
    flow, path, stack, target
        The scenario, and the demand on its delay.
    distribution : DelayDistribution
        The predicted delays.
    parts : DelayParts
        Where the mean delay comes from [s].
    backlogged_time_fraction : float
        Share of time with packets waiting in the send buffer.
    fair_rate, utilization : float
        What a long TCP transfer would get on the path [bit/s], and the flow's share of it.
    largest_sustainable_rate : Margin
        Highest bitrate that TCP can carry at all.
    verdict : {"works", "uncertain", "fails"}
        Whether the target is met; uncertain where the measured path's confidence interval holds both.
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
        What the reader has to know before relying on the numbers.
    estimate : PathEstimate, optional
        The measurement that the path comes from.
    call : Call, optional
        How a call is rated, where the flow is one.
    video : VideoPlayout, optional
        How a video plays that starts after the target's limit, where the flow is one.
    """

    flow: Flow
    path: Path
    stack: Stack
    target: Target
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
        """Return the guideline as plain numbers, strings, lists and dictionaries; infinite delays become None."""
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
        """Return the guideline as JSON; delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report in Markdown."""
        from tcpdelay.report.markdown import to_markdown

        return to_markdown(self)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from tcpdelay.report.html import to_html

        return to_html(self)


def _plain(value: Any) -> Any:
    """Reduce dataclasses, tuples and non-finite numbers to what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _alternatives(
    flow: Flow, path: Path, stack: Stack, target: Target, estimate: PathEstimate | None
) -> tuple[Alternative, ...]:
    if estimate is None:
        return ()
    low_loss, high_loss = estimate.loss_interval
    low_rtt, high_rtt = estimate.rtt_interval or (path.rtt, path.rtt)
    result = []
    for label, rtt, loss in (
        ("best case of the 95 % interval", low_rtt, low_loss),
        ("worst case of the 95 % interval", high_rtt, high_loss),
    ):
        changed = dataclasses.replace(path, rtt=rtt, loss=min(loss, 0.999), one_way_delay=None)
        quantile = DelayModel(flow, changed, stack).delay_distribution().quantile(target.quantile)
        result.append(Alternative(label, rtt, loss, quantile, quantile <= target.limit))
    return tuple(result)


def _notes(flow: Flow, path: Path, stack: KnownStack, distribution: DelayDistribution) -> tuple[str, ...]:
    notes = [*validated_range(stack).exceeded_by(flow, path)]
    if isinstance(stack, NewReno2008) and flow.packet_size > stack.mss:
        notes.append(
            f"packet_size {flow.packet_size} exceeds one segment of {stack.mss} bytes; "
            "the published chain counts such a packet as one in the window"
        )
    if not distribution.sustainable:
        notes.append("TCP cannot carry this flow on this path: the backlog grows for as long as it sends")
    if isinstance(stack, NewReno2008):
        notes.append(
            "the chain describes the TCP of 2008 with a first timeout of "
            + ("4 RTT" if stack.initial_timeout is None else f"{stack.initial_timeout:g} s")
            + "; today's Linux recovers differently, faster at short round-trip times"
        )
    return tuple(notes)


def guideline(
    flow: Flow | None = None,
    path: Path | None = None,
    stack: Stack | None = None,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    **options: Any,
) -> Guideline:
    """Predict a flow's delay and say whether it works, by what margin, and what to set or change.

    Parameters
    ----------
    flow, path : Flow and Path, optional
        The scenario; instead, give their parameters by name, as for `predict_delay`.
    stack : Stack, optional
        The TCP implementation; by default that of `predict_delay`.
    target : Target, optional
        Demand on the delay; by default 95 % within 0.2 s.
    estimate : PathEstimate, optional
        The measurement that `path` was made from; its confidence intervals are carried through the prediction.
    application : Application, optional
        What the flow carries, such as `tcpdelay.scenario.applications.application("voip")`: calls are then rated,
        and videos played. It gives `flow` and `target` where these are not given.
    **options
        The parameters of `Flow` and `Path` by name.

    Returns
    -------
    Guideline
        All findings as data, with `to_markdown()`, `to_html()` and `to_json()`.

    Raises
    ------
    ValueError
        If an argument is missing, unknown or out of its range.

    Examples
    --------
    >>> g = guideline(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> g.verdict, round(g.quantile, 3)
    ('works', 0.14)
    """
    if application is not None:
        flow = application.flow if flow is None and not {"packet_size", "interval"} & set(options) else flow
        target = application.target if target is None else target
    asked = scenario_from_options(flow, path, stack, options)
    flow, path, stack = asked.flow, asked.path, asked.stack
    target = Target(limit=0.200) if target is None else target
    model = DelayModel(flow, path, stack)
    distribution = model.delay_distribution()
    utilization = connection_utilization(flow, path, stack)
    found_margins = margins(flow, path, stack, target)
    situation = Situation(flow, path, stack, target, distribution, utilization, found_margins[-1])
    alternatives = _alternatives(flow, path, stack, target, estimate)
    works = situation.quantile_now <= target.limit
    agreed = all(alternative.meets_target == works for alternative in alternatives)
    return Guideline(
        flow=flow,
        path=path,
        stack=stack,
        target=target,
        distribution=distribution,
        parts=model.delay_parts,
        backlogged_time_fraction=model.backlogged_time_fraction,
        fair_rate=flow.bitrate / utilization if utilization > 0 else math.inf,
        utilization=utilization,
        largest_sustainable_rate=largest_sustainable_rate(flow, path, stack),
        verdict=("works" if works else "fails") if agreed else "uncertain",
        margins=found_margins,
        playout=playout_buffers(flow, path, distribution),
        recommendations=tuple(recommendations(situation)),
        alternatives=alternatives,
        validity=validated_range(stack),
        expected_error=expected_error(flow, path, stack, distribution.sustainable),
        notes=_notes(flow, path, stack, distribution),
        estimate=estimate,
        call=call_experience(application, flow, target, distribution),
        video=video_experience(application, flow, target, distribution),
    )
