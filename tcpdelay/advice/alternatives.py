"""The predictions at the ends of the confidence intervals of a measured path."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tcpdelay.models.interface import WHOLE_DISTRIBUTION, Model, Requested
from tcpdelay.models.predict import AnsweredBy, predict
from tcpdelay.models.verdict import Judgement, Verdict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.target import Target

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate

LARGEST_LOSS = 0.999
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


def alternatives_at_ends(
    scenario: Scenario,
    target: Target,
    estimate: PathEstimate | None,
    model: AnsweredBy | Model,
    requested: Requested = WHOLE_DISTRIBUTION,
) -> tuple[Alternative, ...]:
    """Return the predictions at both ends of the measured confidence intervals; none if the path was not measured."""
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
        changed = replace(path, rtt=rtt, loss=min(loss, LARGEST_LOSS), one_way_delay=None)
        answer = predict(replace(scenario, path=changed), requested, model)
        quantile = answer.require().quantile(target.quantile) if answer.answered else math.nan
        result.append(Alternative(label, rtt, loss, quantile, answer.meets(target)))
    return tuple(result)


def agreed_verdict(judgement: Judgement, works: bool, alternatives: tuple[Alternative, ...]) -> Verdict:
    """Return the verdict on a measured path: that on the estimate, if the ends of the intervals agree with it.

    Parameters
    ----------
    judgement : Judgement
        The verdict on the estimate.
    works : bool
        Whether the prediction for the estimate meets the target.
    alternatives : tuple of Alternative
        The predictions at the ends of the intervals.

    Returns
    -------
    {"works", "uncertain", "fails"}
        "uncertain" if the target is met in one part of the confidence interval and missed in another part.
    """
    agreed = all(alternative.meets_target == works for alternative in alternatives)
    return judgement.verdict if agreed else "uncertain"
