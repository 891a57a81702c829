"""The verdict on a target: whether it is met, as far as the expected error of the prediction allows a statement."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tcpdelay.accuracy.errors import WRONG_CALL
from tcpdelay.ask import Answer, Model, Requested
from tcpdelay.declare import bounds
from tcpdelay.delays import DelayDistribution, ExpectedError
from tcpdelay.models.predict import AnsweredBy, predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.stack import NewReno2008, Stack

Verdict = Literal["works", "uncertain", "fails"]


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the answer that it rests on."""

    # Whether the target is met; "uncertain" where the expected error of the answer reaches across the target's limit.
    verdict: Verdict
    answer: Answer  # The answer of the method: the chain's or a simulation


def late_range(answer: Answer, limit: float) -> tuple[float, float]:
    """Return the smallest and the largest share of late packets that the expected error of an answer allows.

    The error is that of the requested target's quantile, or of the 95th percentile.
    """
    if not answer.answered:
        return 0.0, 1.0
    return late_range_within(answer.require(), relative_error(answer.scenario.stack, answer.expected_error), limit)


def relative_error(stack: Stack, expected: ExpectedError | None) -> float:
    """Return the error of the delays that nine of ten predictions do not exceed, a fraction; 0 if it is not known.

    It is 0 for the published chain, whose expected error is the distance from the TCP of today, which it does not
    model.
    """
    known = not isinstance(stack, NewReno2008) and expected is not None and not math.isnan(expected.p90)
    return expected.p90 if known and expected is not None else 0.0


def longer_limit(limit: float, error: float) -> float:
    """Return a limit [s] that is longer by a relative error, at most the longest round-trip time, or the limit itself.

    >>> longer_limit(10.0, 0.5), longer_limit(50.0, 0.5), longer_limit(90.0, 0.5)
    (15.0, 60.0, 90.0)
    """
    return min(limit * (1 + error), max(limit, bounds(Path, "rtt")[1]))


def late_range_within(delays: DelayDistribution, error: float, limit: float) -> tuple[float, float]:
    """Return the smallest and the largest share of late packets if all delays may be wrong by a relative error.

    For a simulation, the statistical error of the share counts too. With an error of 100 % or more TCP may carry the
    flow, or not.
    """
    if limit < delays.one_way_delay:
        # However wrong a model is, no message arrives earlier than the network lets it.
        return 1.0, 1.0
    if error >= WRONG_CALL:
        return 0.0, 1.0
    if not delays.sustainable:
        return 1.0, 1.0
    late, statistical = delays.late_fraction(limit), delays.late_error(limit)
    fewest = min(delays.late_fraction(longer_limit(limit, error)), late - statistical)
    most = max(delays.late_fraction(limit * (1 - error)), late + statistical)
    return max(fewest, 0.0), min(most, 1.0)


def verdict_of(answer: Answer, target: Target) -> Verdict:
    """Return the verdict on a target that an answer allows."""
    fewest, most = (target.allows(share) for share in late_range(answer, target.latest))
    if fewest == most:
        return "works" if most else "fails"
    return "uncertain"


def judge(
    scenario: Scenario, target: Target, method: AnsweredBy | Model = "auto", requested: Requested | None = None
) -> Judgement:
    """Return the verdict on a target, from the answer that `predict` gives to the scenario by this method."""
    asked = replace(Requested() if requested is None else requested, target=target)
    answer = predict(scenario, asked, method)
    return Judgement(verdict_of(answer, target), answer)
