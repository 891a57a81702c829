"""The guideline's rules applied to one scenario."""

from __future__ import annotations

import math

from tcpdelay.advice.application_rules import APPLICATION_RULES
from tcpdelay.advice.rule import Recommendation, Rule, Situation
from tcpdelay.advice.tcp_rules import TCP_RULES

RULES = (*TCP_RULES, *APPLICATION_RULES)
"""All rules, those of TCP first."""


def recommendation(rule: Rule, situation: Situation) -> Recommendation:
    """Return what one rule says of a situation; its effect is computed only where the rule holds."""
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
    """Return all rules for one situation, those of TCP first; rules that do not hold here are marked so.

    Parameters
    ----------
    situation : Situation
        The scenario with its target and predicted delays.

    Returns
    -------
    list of Recommendation
        Each with its effect where one can be computed.

    Examples
    --------
    >>> from tcpdelay.models.chain import DelayModel
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay.scenario.target import Target
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> stack = Stack.newreno_2008(backlog_bound="grow")
    >>> d = DelayModel(flow, path, stack).delay_distribution()
    >>> rules = {rule.key: rule for rule in recommendations(Situation(flow, path, stack, Target(0.2), d))}
    >>> effect = rules["limited-transmit"].effect
    >>> effect.with_rule < effect.without
    True
    """
    return [recommendation(rule, situation) for rule in RULES]
