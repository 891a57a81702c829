"""The guideline's rules applied to one scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tcpdelay.rules import RULES, Effect, Level, Rule, Situation, Status


@dataclass(frozen=True)
class Recommendation:
    """One rule of the guideline, for one scenario.

    Parameters
    ----------
    key : str
        Stable name of the rule.
    level : {"tcp", "application"}
        Who follows it.
    title, reason : str
        What to do, and why.
    condition : str
        When the rule holds.
    applies : bool
        Whether it holds here.
    status : {"set", "default", "built in", "gone", "not a setting"}
        Whether it has to be set on today's Linux.
    setting : str
        The exact setting on Linux, or what stands in its place.
    macos, windows, browser : str
        The same there.
    evidence : str
        What shows it, as a path in the repository.
    effect : Effect, optional
        What it does here, where that can be said.
    """

    key: str
    level: Level
    title: str
    reason: str
    condition: str
    applies: bool
    status: Status
    setting: str
    macos: str
    windows: str
    browser: str
    evidence: str
    effect: Effect | None = None


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
    >>> from tcpdelay import DelayModel, Flow, Path, Stack, Target
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> stack = Stack.newreno_2008(backlog_bound="grow")
    >>> d = DelayModel(flow, path, stack).delay_distribution()
    >>> rules = {rule.key: rule for rule in recommendations(Situation(flow, path, stack, Target(0.2), d))}
    >>> effect = rules["limited-transmit"].effect
    >>> effect.with_rule < effect.without
    True
    """
    return [recommendation(rule, situation) for rule in RULES]
