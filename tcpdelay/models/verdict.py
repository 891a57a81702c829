"""The verdict on a target: whether it is met, as far as the expected error of the prediction allows a statement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tcpdelay.models.accuracy import WRONG_CALL
from tcpdelay.models.interface import Answer, Requested
from tcpdelay.models.predict import AnsweredBy, predict, supports
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Linux
from tcpdelay.scenario.target import Target

Verdict = Literal["works", "uncertain", "fails"]

SIMULATED_PACKETS = (200_000, 1_600_000, 12_800_000)
"""Packets of the simulations that decide where the chain does not; each is tried if the one before does not decide."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the answer that it rests on.

    Parameters
    ----------
    verdict : {"works", "uncertain", "fails"}
        Whether the target is met; "uncertain" where the expected error of the answer reaches across the target's limit.
    answer : Answer
        The answer, by the chain or by a simulation.
    """

    verdict: Verdict
    answer: Answer


def late_range(answer: Answer, limit: float) -> tuple[float, float]:
    """Return the smallest and the largest share of late packets that the expected error of an answer allows.

    The delays are taken to be too long, or too short, by the error that nine of ten predictions do not exceed. The
    error is that of the 95th percentile.

    Parameters
    ----------
    answer : Answer
        An answer with the whole distribution, or a refusal.
    limit : float
        Limit of the delay [s], above 0.

    Returns
    -------
    tuple of float
        Two shares, 0 to 1. They are the same where the error is unknown, and 0 and 1 where the answer is refused.

    Examples
    --------
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.source import Flow
    >>> answer = predict(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)), method="chain")
    >>> low, high = late_range(answer, 0.200)
    >>> low < answer.require().late_fraction(0.200) < high
    True
    """
    if not answer.answered:
        return 0.0, 1.0
    # The published chain's error is its distance from the TCP of today, and not from the TCP that it describes.
    own = isinstance(answer.scenario.stack, Linux)
    error = answer.expected_error.p90 if own and answer.expected_error is not None else math.nan
    delays, error = answer.require(), 0.0 if math.isnan(error) else error
    if not answer.sustainable:
        return (0.0 if error >= WRONG_CALL else 1.0), 1.0
    shortest = limit * (1 - error)
    return delays.late_fraction(limit * (1 + error)), delays.late_fraction(shortest) if shortest > 0 else 1.0


def verdict_of(answer: Answer, target: Target) -> Verdict:
    """Return the verdict on a target that an answer allows.

    Examples
    --------
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.source import Flow
    >>> answer = predict(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)), method="chain")
    >>> [verdict_of(answer, Target(limit)) for limit in (0.200, 0.139, 0.100)]
    ['works', 'uncertain', 'fails']
    """
    fewest, most = (target.allows(share) for share in late_range(answer, target.latest))
    if fewest == most:
        return "works" if most else "fails"
    return "uncertain"


def judge(
    scenario: Scenario,
    target: Target,
    method: AnsweredBy = "auto",
    requested: Requested | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Return the verdict on a target.

    Parameters
    ----------
    scenario, target
        The scenario, and the demand on its delay.
    method : {"chain", "simulation", "auto"}
        The model. "auto" asks the chain, and simulates where the chain refuses the scenario or does not decide.
    requested : Requested, optional
        The request to the chain; the whole distribution by default.
    on_progress : callable, optional
        Function that a simulation calls with the number of packets simulated and the largest number of packets.

    Returns
    -------
    Judgement
        The verdict and the answer that it rests on.

    Examples
    --------
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.source import Flow
    >>> call = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02))
    >>> judge(call, Target(0.200)).verdict, judge(call, Target(0.100)).answer.method
    ('works', 'chain')
    """
    requested = Requested() if requested is None else requested
    simulated = not supports(scenario, "simulation").refused
    if method != "simulation":
        answer = predict(scenario, requested, "chain")
        found = Judgement(verdict_of(answer, target), answer)
        if method == "chain" or found.verdict != "uncertain" or not simulated:
            return found
    for packets in SIMULATED_PACKETS:
        request = replace(requested, target=target, packets=packets, on_progress=on_progress)
        answer = predict(scenario, request, "simulation")
        found = Judgement(verdict_of(answer, target), answer)
        if found.verdict != "uncertain":
            break
    return found
