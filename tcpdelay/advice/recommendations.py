"""The recommendations for one scenario: the guideline's rules, applied to it."""

from __future__ import annotations

import math

from tcpdelay.advice.application_rules import APPLICATION_RULES
from tcpdelay.advice.rule import Recommendation, Rule, Situation
from tcpdelay.advice.tcp_rules import TCP_RULES

RULES = (*TCP_RULES, *APPLICATION_RULES)
"""All rules; the rules for TCP come first."""


def recommendation(rule: Rule, situation: Situation) -> Recommendation:
    """Return the recommendation of one rule in a situation; the effect is computed only if the rule holds."""
    applies = rule.holds(situation)
    linux, macos, windows, browser = rule.settings.filled_in(math.ceil(situation.load), situation.whole_packets).texts
    return Recommendation(
        key=rule.key,
        level=rule.level,
        title=rule.title,
        reason=rule.reason if rule.finding is None else f"{rule.reason} {rule.finding(situation)}",
        condition=rule.condition,
        applies=applies,
        status=rule.status,
        setting=linux,
        macos=macos,
        windows=windows,
        browser=browser,
        evidence=rule.evidence,
        effect=rule.effect(situation) if applies else None,
    )


def recommendations(situation: Situation) -> list[Recommendation]:
    """Return the recommendations of all rules in a situation; the rules for TCP come first.

    Parameters
    ----------
    situation : Situation
        The scenario with its target and its prediction.

    Returns
    -------
    list of Recommendation
        The recommendation of each rule; `applies` tells whether the rule holds.

    Examples
    --------
    >>> from tcpdelay.models.predict import predict
    >>> from tcpdelay.scenario.scenario import Scenario
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay.scenario.target import Target
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> stack = Stack.newreno_2008(backlog_bound="grow")
    >>> answer = predict(Scenario(flow, path, stack), method="chain")
    >>> rules = {rule.key: rule for rule in recommendations(Situation(answer, Target(0.2)))}
    >>> effect = rules["limited-transmit"].effect
    >>> effect.with_rule < effect.without
    True
    """
    return [recommendation(rule, situation) for rule in RULES]
