"""The recommendations for one scenario: the guideline's rules, applied to it and ordered by their effect."""

from __future__ import annotations

import math
from dataclasses import replace

from tcpdelay.advice.application_rules import APPLICATION_RULES
from tcpdelay.advice.quic_rules import QUIC_RULES
from tcpdelay.advice.rule import Effect, Place, Recommendation, Rule, Situation, Status
from tcpdelay.advice.tcp_rules import TCP_RULES
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Quic
from tcpdelay.scenario.target import Target

RULES = (*TCP_RULES, *APPLICATION_RULES)
"""All rules for a flow over TCP; those that TCP follows come first."""
MOST_TO_DO = 5
"""Largest number of recommendations with the place "do"; a longer list is not read."""
SMALLEST_GAIN = 0.01
"""Smallest gain, as a share of the delay without the rule; the margins of a report are as precise."""
FOLLOWED: dict[Status, str] = {
    "default": "the default of a current Linux",
    "built in": "built into Linux",
    "gone": "no longer exists in Linux",
}
"""Why there is nothing to do for a rule of this status."""
PLACES: tuple[Place, ...] = ("do", "little gain", "already so", "not computed")
"""Places in the order of a report."""


def _place(rule: Rule, situation: Situation, applies: bool, effect: Effect | None) -> tuple[Place, str | None]:
    """Return the place of a rule in the report, and why it is there if the effect does not say so."""
    if not applies:
        return "little gain", f"only for {rule.condition}"
    if rule.status in FOLLOWED:
        return "already so", FOLLOWED[rule.status]
    if rule.is_followed_in(situation):
        return "already so", "so in this scenario"
    if effect is None:
        return "not computed", "the model has no answer for the changed flow"
    if effect.reason is not None:
        return "not computed" if effect.basis == "unknown" else "little gain", effect.reason
    if effect.quantity == "quantile" and not _is_gain(effect, situation.delay):
        return "little gain", None
    return "do", None


def _is_gain(effect: Effect, delay: float) -> bool:
    """Return whether an effect on the target's quantile is more than a negligible part of the present `delay` [s]."""
    return effect.gain == math.inf or effect.gain > SMALLEST_GAIN * delay


def recommendation(rule: Rule, situation: Situation) -> Recommendation:
    """Return the recommendation of one rule in a situation; the effect is computed only if the rule holds."""
    applies = rule.holds(situation)
    settings = rule.settings.filled_in(math.ceil(situation.load), situation.whole_packets, situation.lower_rate)
    linux, macos, windows, browser = settings.texts
    effect = rule.effect(situation) if applies else None
    place, why = _place(rule, situation, applies, effect)
    return Recommendation(
        key=rule.key,
        level=rule.level,
        title=rule.title,
        reason=rule.reason if rule.finding is None else f"{rule.reason} {rule.finding(situation)}",
        condition=rule.condition,
        applies=applies,
        place=place,
        why=why,
        status=rule.status,
        setting=linux,
        macos=macos,
        windows=windows,
        browser=browser,
        evidence=rule.evidence,
        effect=effect,
    )


def _rank(found: Recommendation, target: Target) -> tuple[bool, bool, float, float]:
    """Return a key that sorts recommendations by their effect, the largest first.

    Effects that hold only under a condition come last. Before them, effects that meet the target come first.
    """
    effect = found.effect
    if effect is None:
        return True, True, 0.0, math.inf
    after = math.inf if effect.with_rule is None or effect.quantity != "quantile" else effect.with_rule
    return effect.provided is not None, not target.is_met_by(after), -effect.gain, after


def recommendations(situation: Situation) -> list[Recommendation]:
    """Return the recommendations of all rules in a situation, in the order of the report.

    Parameters
    ----------
    situation : Situation
        The scenario with its target and its prediction.

    Returns
    -------
    list of Recommendation
        One recommendation for each rule that applies to this transport and this kind of source, sorted by `place`. The
        place "do" comes first, with at most `MOST_TO_DO` recommendations, beginning with the largest effect.

    Examples
    --------
    >>> from tcpdelay.models.predict import predict
    >>> from tcpdelay.scenario.scenario import Scenario
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay.scenario.target import Target
    >>> answer = predict(Scenario(Flow(968, 0.020), Path(rtt=0.200, loss=0.01), Stack.linux()), method="chain")
    >>> first, *_ = recommendations(Situation(answer, Target(0.3)))
    >>> first.place, first.title, first.effect.with_rule < first.effect.without
    ('do', 'Spread the packets over two connections', True)
    """
    constant_rate = isinstance(situation.source, Flow)
    rules = QUIC_RULES if isinstance(situation.stack, Quic) else RULES
    found = [recommendation(rule, situation) for rule in rules if constant_rate or rule.any_source]
    helpful = sorted((each for each in found if each.place == "do"), key=lambda each: _rank(each, situation.target))
    less = f"less than the {MOST_TO_DO} above"
    moved = [replace(each, place="little gain", why=less) for each in helpful[MOST_TO_DO:]]
    others = [*moved, *(each for each in found if each.place != "do")]
    return [*helpful[:MOST_TO_DO], *sorted(others, key=lambda each: PLACES.index(each.place))]
