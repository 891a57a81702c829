"""The findings on any source: delays, the verdict whether they meet the target, margins, and recommendations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from pydantic_core import to_jsonable_python

from tcpdelay.advice.alternatives import Alternative, agreed_verdict, alternatives_at_ends
from tcpdelay.advice.loss_curve import LossCurve, loss_curve
from tcpdelay.advice.other_transports import TransportComparison, other_transports
from tcpdelay.advice.recommendations import recommendations
from tcpdelay.advice.request import GuidelineRequest
from tcpdelay.advice.rule import Recommendation, Situation
from tcpdelay.distribution import UNKNOWN_ERROR, DelayDistribution, ExpectedError
from tcpdelay.models.interface import Answer, DelayParts, Model, NotSettledError, settled_record
from tcpdelay.models.predict import AnsweredBy, simulator
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.verdict import Judgement, Verdict, late_range
from tcpdelay.questions.margins import Margin, margins
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.path_presets import PathPreset
from tcpdelay.scenario.stack import KnownStack, Quic
from tcpdelay.scenario.target import REPORTED_QUANTILES, Target
from tcpdelay.units import quantile_name

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate

NO_PARTS = DelayParts(math.nan, math.nan, math.nan, math.nan)
"""Parts of the mean delay where there are no delays."""


@dataclass(frozen=True, kw_only=True)
class JudgedDelays:
    """The findings of a report that do not depend on the kind of source: predicted delays, and the verdict on them.

    The verdict says whether the delays meet the target. A subclass adds the source, and findings for its kind.

    Parameters
    ----------
    path, stack, target
        The scenario without its source, and the demand on the delay.
    works : bool
        Whether the prediction meets the target.
    answer : Answer
        The answer of the chain or of a simulation, from which the verdict and the delays follow. It has no delays if
        the simulation has not settled, and the chain has no answer either.
    late_range : tuple of float
        Smallest and largest share of late packets that the expected error of the prediction allows.
    parts : DelayParts
        Parts of the mean delay [s]; NaN without delays.
    utilization : float
        The mean bitrate divided by the rate of a long TCP transfer on the path.
    verdict : {"works", "uncertain", "fails"}
        Whether the target is met; "uncertain" if the expected error of the prediction reaches across the limit, or if
        the target is met in one part of the measured path's confidence interval and missed in another part.
    margins : tuple of Margin
        The margins of loss, round-trip time and bitrate; without the bitrate if the source cannot be scaled.
    recommendations : tuple of Recommendation
        The rules that apply to this kind of source, in the order of the report: first what to do, beginning with the
        largest effect.
    alternatives : tuple of Alternative
        The predictions at the ends of the measured path's confidence intervals; empty if the path was not measured.
    unchanged : float
        The target's quantile of the delay without a change [s], by the model that computes the effects of changes. NaN
        if the simulation has not settled.
    expected_error : ExpectedError
        The probable error of the prediction.
    notes : tuple of str
        Limits of the numbers that the reader should know.
    ignored : mapping of str to str
        Fields of the scenario that the model ignores, and the values that it assumes.
    loss_curve : LossCurve
        The target's quantile against the loss.
    simulated_because : str
        Why the chain has no answer, so that all figures are simulated; empty if the chain has an answer.
    transports : TransportComparison, optional
        Whether another transport would help; None over QUIC, over the TCP of 2008, and without delays.
    unsettled : NotSettledError, optional
        What is known from a simulation that has not settled, if the chain answers in its place.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    path_preset : PathPreset, optional
        The preset from which the path was made.
    """

    path: Path
    stack: KnownStack
    target: Target
    works: bool
    answer: Answer
    late_range: tuple[float, float]
    parts: DelayParts
    utilization: float
    verdict: Verdict
    margins: tuple[Margin, ...]
    recommendations: tuple[Recommendation, ...]
    alternatives: tuple[Alternative, ...]
    unchanged: float
    expected_error: ExpectedError
    notes: tuple[str, ...]
    ignored: Mapping[str, str]
    loss_curve: LossCurve
    simulated_because: str
    transports: TransportComparison | None = None
    unsettled: NotSettledError | None = None
    estimate: PathEstimate | None = None
    path_preset: PathPreset | None = None

    recorded: ClassVar[tuple[str, ...]]
    """Names of the fields that `to_dict` returns, in the order of its keys."""

    @classmethod
    def of(
        cls,
        request: GuidelineRequest,
        judgement: Judgement,
        judged: Answer,
        answer: Answer,
        model: AnsweredBy | Model,
        **others: Any,
    ) -> Self:
        """Compute the fields of this class from the verdict and the answers of the models, and return the findings.

        Parameters
        ----------
        request : GuidelineRequest
            The scenario and the demand on its delay.
        judgement : Judgement
            The verdict on the request's path, and the answer from which it follows.
        judged : Answer
            The answer with the delays of the report: the answer of `judgement`, or the chain's if that has no delays.
        answer : Answer
            The prediction without a change, from which the effect of each change is counted.
        model : {"chain"} or Model
            The model of the margins, the alternatives and the loss curve.
        **others
            The other fields, by name.
        """
        scenario, target, estimate = request.scenario, request.target, request.estimate
        utilization = connection_utilization(scenario.source, scenario.path, scenario.stack)
        works, certain = judged.meets(target), judgement.verdict != "uncertain"
        found = tuple(margin.agreeing(works, certain) for margin in margins(scenario, target, model, request.on_margin))
        bitrate = next((margin for margin in found if margin.quantity == "bitrate"), None)
        simulated = model != "chain" and judged.answered
        compared = simulator(judged.requested.packets, request.on_progress) if simulated else model
        situation = Situation(answer, target, utilization, bitrate, request.application, compared, judged)
        alternatives = alternatives_at_ends(scenario, target, estimate, model)
        verdict = agreed_verdict(judgement, works, alternatives)
        return cls(
            path=scenario.path,
            stack=scenario.stack,
            target=target,
            works=works,
            answer=judged,
            late_range=late_range(judgement.answer, target.latest),
            parts=answer.parts or NO_PARTS,
            utilization=utilization,
            verdict=verdict,
            margins=found,
            recommendations=tuple(recommendations(situation)),
            alternatives=alternatives,
            unchanged=situation.delay,
            expected_error=judged.expected_error or UNKNOWN_ERROR,
            ignored=judged.ignored,
            loss_curve=loss_curve(scenario, target, found[0], model),
            estimate=estimate,
            path_preset=request.path_preset,
            transports=other_transports(scenario, target, judged, verdict),
            **others,
        )

    @property
    def settled(self) -> bool:
        """Whether the expected error of the prediction stays on one side of the limit."""
        fewest, most = (self.target.allows(share) for share in self.late_range)
        return fewest == most

    @property
    def distribution(self) -> DelayDistribution:
        """The predicted delays.

        Raises
        ------
        NotSettledError
            If the simulation has not settled, and the chain has no answer either.
        """
        return self.answer.require()

    @property
    def endless(self) -> bool:
        """Whether the delay grows for as long as the source sends, or is not known.

        Lost datagrams have infinite delays too, so that the mean delay alone does not say it.
        """
        return (math.isinf(self.mean) and not self.answer.sustainable) or math.isnan(self.mean)

    @property
    def tells_timeouts(self) -> bool:
        """Whether the parts of the delay have timeouts of their own: a simulation counts their backlog as backlog.

        The chain of QUIC has no such part either: its probe timeouts belong to repairs.
        """
        return not (self.simulated_because or isinstance(self.stack, Quic))

    @property
    def by_kind(self) -> Mapping[str, DelayDistribution]:
        """Delays of each kind of message; empty if there is only one kind, or if delays are infinite or unknown."""
        found: Mapping[str, DelayDistribution] = getattr(self.answer.distribution, "by_kind", {})
        return found

    def quantile_of(self, share: float) -> float:
        """Return the delay [s] within which a share of the packets arrives; NaN if the simulation has not settled."""
        return self.distribution.quantile(share) if self.answer.answered else math.nan

    def late_after(self, delay: float) -> float:
        """Return the share of packets later than a delay [s]; NaN if the simulation has not settled."""
        return self.distribution.late_fraction(delay) if self.answer.answered else math.nan

    @property
    def mean(self) -> float:
        """Mean delay [s]; NaN if the simulation has not settled."""
        return self.distribution.mean if self.answer.answered else math.nan

    @property
    def jitter(self) -> float:
        """Standard deviation of the delay [s]; NaN if the simulation has not settled."""
        return self.distribution.jitter if self.answer.answered else math.nan

    @property
    def quantile(self) -> float:
        """The target's quantile of the delay [s]; NaN if the simulation has not settled."""
        return self.quantile_of(self.target.quantile)

    @property
    def late_fraction(self) -> float:
        """Share of the packets that arrive later than the target's limit; NaN if the simulation has not settled."""
        return self.late_after(self.target.limit)

    def delay_record(self) -> dict[str, Any]:
        """Return the figures of the delay by name, in seconds and fractions."""
        answer, refusal = self.answer, self.unsettled or self.answer.refusal
        return {
            "mean": self.mean,
            "jitter": self.jitter,
            **{quantile_name(q): self.quantile_of(q) for q in REPORTED_QUANTILES},
            "target_quantile": self.quantile,
            "late_fraction": self.late_fraction,
            "method": answer.method,
            "sustainable": answer.sustainable if answer.answered else None,
            **settled_record(refusal if isinstance(refusal, NotSettledError) else None),
        }

    def other_entries(self) -> dict[str, Any]:
        """Return the entries of `to_dict` that take the place of fields or come in addition to them."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain numbers, strings, lists and dictionaries.

        Infinite delays, delays of a simulation that has not settled, and quantiles of too few messages become None.
        """
        record = {name: getattr(self, name) for name in self.recorded}
        record |= {"delay": self.delay_record(), **self.other_entries(), "estimate": self.estimate}
        record["path_preset"] = self.path_preset
        plain: dict[str, Any] = to_jsonable_python(record, inf_nan_mode="null", fallback=np.ndarray.tolist)
        return plain

    def to_json(self) -> str:
        """Return the findings as JSON: delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)
