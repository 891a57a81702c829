"""The findings on a source whose rate is not constant, as data: everything is simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_jsonable_python

from tcpdelay.advice.guideline import NO_PARTS, Alternative, agreeing, alternatives_at_ends
from tcpdelay.advice.judged_delays import REPORTED_QUANTILES, JudgedDelays
from tcpdelay.advice.loss_curve import LossCurve, loss_curve
from tcpdelay.advice.recommendations import recommendations
from tcpdelay.advice.rule import Recommendation, Situation
from tcpdelay.distribution import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.interface import Answer, DelayParts, NotSettledError, Requested
from tcpdelay.models.predict import AnsweredBy, model_to_compare, simulator, solved_once
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.verdict import Verdict, judge, late_range
from tcpdelay.questions.margins import Margin, source_margins
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target
from tcpdelay.units import quantile_name

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate

NOT_FOR_SOURCES = (
    "the fair TCP rate",
    "the time with a backlog",
    "playout buffers for single losses",
    "the ranges of margins",
    "rules on packets of one size",
)
"""What a report has only for a flow of constant rate."""


@dataclass(frozen=True)
class SourceFindings(JudgedDelays):
    """The content of a report on a source whose rate is not constant, as data; all figures are simulated.

    Parameters
    ----------
    source, path, stack, target
        The scenario, and the demand on its delay.
    works : bool
        Whether the simulation meets the target.
    answer : Answer
        The simulation that verdict and delays rest on. It has no delays if it has not settled.
    late_range : tuple of float
        Smallest and largest share of late messages that the expected error allows.
    parts : DelayParts
        Parts of the mean delay [s]; NaN without delays.
    verdict : {"works", "uncertain", "fails"}
        Whether the target is met, as for a flow.
    margins : tuple of Margin
        The margins of loss, round-trip time and, if the source can be scaled, bitrate.
    recommendations : tuple of Recommendation
        The rules that make sense for every source, in the order of the report.
    alternatives : tuple of Alternative
        The predictions at the ends of the measured path's confidence intervals.
    compared : int
        Number of messages of each simulation of a margin.
    expected_error : ExpectedError
        The probable error of the prediction.
    notes : tuple of str
        Limits of the figures that the reader should know.
    ignored : mapping of str to str
        Fields of the scenario that the simulator ignores.
    loss_curve : LossCurve
        The target's quantile against the loss.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    """

    source: Source
    path: Path
    stack: KnownStack
    target: Target
    works: bool
    answer: Answer
    late_range: tuple[float, float]
    parts: DelayParts
    verdict: Verdict
    margins: tuple[Margin, ...]
    recommendations: tuple[Recommendation, ...]
    alternatives: tuple[Alternative, ...]
    compared: int
    expected_error: ExpectedError
    notes: tuple[str, ...]
    ignored: Mapping[str, str]
    loss_curve: LossCurve
    simulated_because: str = "the rate of the source is not constant"
    unsettled: NotSettledError | None = None
    estimate: PathEstimate | None = None

    @property
    def by_kind(self) -> Mapping[str, DelayDistribution]:
        """Delays of each kind of message; empty for messages of one kind, and without finite delays."""
        found: Mapping[str, DelayDistribution] = getattr(self.answer.distribution, "by_kind", {})
        return found

    def quantile_of_kind(self, kind: str, share: float) -> float:
        """Return the delay [s] within which a share of the messages of a kind arrives; NaN if these are too few."""
        return self.by_kind[kind].known_quantile(share)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain numbers, strings, lists and dictionaries.

        Infinite delays, delays of a simulation that has not settled, and quantiles of too few messages become None.
        """
        kept = ("answer", "source", "estimate", "unsettled")
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in kept}
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
        every = {
            "source": source,
            **fields,
            "delay": self.delay_record(),
            "by_kind": by_kind,
            "estimate": self.estimate,
        }
        plain: dict[str, Any] = to_jsonable_python(every, inf_nan_mode="null", fallback=np.ndarray.tolist)
        return plain


def source_findings(
    scenario: Scenario,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
) -> SourceFindings:
    """Return the findings on a source whose rate is not constant; the parameters are those of `findings`.

    Raises
    ------
    InvalidValueError
        If `method` is "chain", or the simulator refuses the scenario.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.speech import Speech
    >>> found = source_findings(Scenario(Speech(174, 0.020), Path(rtt=0.100, loss=0.02)))
    >>> found.verdict, list(found.by_kind)
    ('works', ['packet', 'first packet'])
    """
    if method == "chain":
        raise InvalidValueError("method", method, "be 'simulation' or 'auto' for a source whose rate is not constant")
    demand = Target(DEFAULT_LIMIT) if target is None else target
    with solved_once():
        return _findings(scenario, demand, estimate, application, on_progress, on_margin)


def _findings(
    scenario: Scenario,
    target: Target,
    estimate: PathEstimate | None,
    application: Application | None,
    on_progress: Callable[[int, int], None] | None,
    on_margin: Callable[[int, int], None] | None,
) -> SourceFindings:
    source, path, stack = scenario.source, scenario.path, scenario.stack
    model = model_to_compare(scenario, "simulation", on_progress)
    judgement = judge(scenario, target, "simulation", Requested(parts=True, target=target), on_progress)
    answer = judgement.answer
    works = answer.meets(target)
    margins = tuple(
        agreeing(margin, works, judgement.verdict != "uncertain")
        for margin in source_margins(scenario, target, model, on_margin)
    )
    bitrate = next((margin for margin in margins if margin.quantity == "bitrate"), None)
    changed = simulator(answer.requested.packets, on_progress) if answer.answered else model
    utilization = connection_utilization(source, path, stack)
    situation = Situation(answer, target, utilization, bitrate, application, changed, answer)
    alternatives = alternatives_at_ends(scenario, target, estimate, model)
    agreed = all(alternative.meets_target == works for alternative in alternatives)
    carried = answer.sustainable or not answer.answered
    return SourceFindings(
        source=source,
        path=path,
        stack=stack,
        target=target,
        works=works,
        answer=answer,
        late_range=late_range(answer, target.latest),
        parts=answer.parts or NO_PARTS,
        verdict=judgement.verdict if agreed else "uncertain",
        margins=margins,
        recommendations=tuple(recommendations(situation)),
        alternatives=alternatives,
        compared=getattr(model, "packets", 0),
        expected_error=answer.expected_error or UNKNOWN_ERROR,
        notes=()
        if carried
        else ("TCP cannot carry this source on this path: the backlog grows for as long as it sends",),
        ignored=answer.ignored,
        loss_curve=loss_curve(scenario, target, margins[0], model),
        estimate=estimate,
    )
