"""The content of a report in reading order, in words and formatted values, before any layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcpdelay.expected_error import in_words
from tcpdelay.report import phrases
from tcpdelay.report.tables import (
    Table,
    alternatives_table,
    call_table,
    delays_table,
    load_table,
    margins_table,
    measured_table,
    parts_table,
    playout_table,
    scenario_table,
    validity_table,
    video_table,
)
from tcpdelay.units import format_fraction, format_time

if TYPE_CHECKING:
    from tcpdelay.guideline import Guideline, Verdict
    from tcpdelay.recommendations import Recommendation

NO_DELAYS = (
    f"The delay {phrases.NEVER} on this path. It grows for as long as the flow sends, "
    "so mean, quantiles and playout buffers have no meaning here."
)
PLAYOUT_REMARK = (
    "A buffer that delays playout by this much hides one such loss; the share that is still late is predicted."
)
LEVEL = {"tcp": "In TCP", "application": "In the application"}


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation in words; `to_do` where the reader has to act; `elsewhere` pairs systems with settings."""

    title: str
    status: str
    to_do: bool
    reason: str
    condition: str
    effect: str | None
    setting: str
    elsewhere: tuple[tuple[str, str], ...]
    evidence: str


@dataclass(frozen=True, slots=True)
class Section:
    """One heading of a report and what stands below it, in this order.

    Parameters
    ----------
    key : str
        Stable name.
    title : str
        Heading.
    paragraphs : tuple of str
        Text.
    tables : tuple of Table
        Figures.
    advice : tuple of tuple
        Titles of groups of recommendations, each with its recommendations.
    points : tuple of str
        Items of a list.
    """

    key: str
    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    advice: tuple[tuple[str, tuple[Advice, ...]], ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """Everything a report says.

    Parameters
    ----------
    verdict : {"works", "uncertain", "fails"}
        The verdict.
    headline, explanation : str and tuple of str
        The verdict in words, and the sentences that explain it.
    key_figures : tuple of tuple of str
        Labels and values of what decides.
    sections : tuple of Section
        The rest in reading order.
    """

    verdict: Verdict
    headline: str
    explanation: tuple[str, ...]
    key_figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


def content(guideline: Guideline) -> Content:
    """Return what a report on `guideline` says.

    Examples
    --------
    >>> from tcpdelay import guideline
    >>> found = content(guideline(rtt=0.100, loss=0.02, packet_size=174, interval=0.020))
    >>> found.headline
    'Works, with 60 ms to spare'
    """
    estimate, settles = guideline.estimate, math.isfinite(guideline.distribution.mean)
    load = load_table(guideline)
    sections = [Section("scenario", "Scenario", tables=(scenario_table(guideline),))]
    if estimate is not None:
        sections.append(Section("measured", "What was measured", tables=(measured_table(guideline, estimate),)))
    if settles:
        sections.append(Section("delays", "Delays", tables=(delays_table(guideline),)))
    else:
        sections.append(Section("delays", "Delays", (NO_DELAYS,)))
    sections += _experience(guideline)
    sections.append(Section("margins", "Margins", ("Each with the others unchanged.",), (margins_table(guideline),)))
    if settles:
        sections += [
            Section("parts", "Where the delay comes from", tables=(parts_table(guideline), load)),
            Section("playout", "Playout buffers", (PLAYOUT_REMARK,), (playout_table(guideline),)),
        ]
    else:
        sections.append(Section("parts", "How much the flow asks for", tables=(load,)))
    if guideline.alternatives:
        table = alternatives_table(guideline)
        sections.append(Section("alternatives", "If the path is not as measured", tables=(table,)))
    return Content(
        verdict=guideline.verdict,
        headline=phrases.headline(guideline),
        explanation=(*phrases.verdict(guideline), phrases.expected_error(guideline.expected_error)),
        key_figures=key_figures(guideline),
        sections=(*sections, *_recommendations(guideline), _trust(guideline)),
    )


def _experience(guideline: Guideline) -> list[Section]:
    """Return what users make of it, where that can be said."""
    sections = []
    if guideline.call is not None:
        remark = phrases.call(guideline.call)
        sections.append(Section("call", "What it is like to talk", (remark,), (call_table(guideline.call),)))
    if guideline.video is not None:
        sections.append(Section("video", "How the video plays", tables=(video_table(guideline.video),)))
    return sections


def _recommendations(guideline: Guideline) -> list[Section]:
    helpful = [rule for rule in guideline.recommendations if rule.applies and not phrases.is_worse(rule.effect)]
    groups = ((title, [rule for rule in helpful if rule.level == level]) for level, title in LEVEL.items())
    others = [phrases.why_not(rule, guideline.target) for rule in guideline.recommendations if rule not in helpful]
    name = phrases.quantile_name(guideline.target.quantile)
    basis = f"Effects on {name}: “chain” is computed for this scenario, “up to” is a bound that the protocol sets."
    advice = tuple((title, _advice(rules, guideline)) for title, rules in groups if rules)
    sections = [Section("advice", "What to set or change", (basis,), advice=advice)]
    if others:
        sections.append(Section("others", "What does not help here", points=tuple(others)))
    return sections


def _trust(guideline: Guideline) -> Section:
    outside = guideline.validity.exceeded_by(guideline.flow, guideline.path)
    # The table says which inputs lie outside the range.
    notes = tuple(phrases.sentence(note) for note in guideline.notes if note not in outside)
    source = phrases.sentence(f"the model was checked against {guideline.validity.source}")
    error = phrases.sentence(f"expected error: {in_words(guideline.expected_error)}")
    return Section("trust", "How far to trust this", (error, source), (validity_table(guideline),), points=notes)


def key_figures(guideline: Guideline) -> tuple[tuple[str, str], ...]:
    """Return labels and values of what decides: the target's quantile, its limit, what is later, and a call's score."""
    target = guideline.target
    delay = "grows for ever" if math.isinf(guideline.quantile) else format_time(guideline.quantile)
    limit = format_time(target.limit)
    return (
        (f"{phrases.quantile_name(target.quantile)} delay", delay),
        ("limit", limit),
        (f"later than {limit}", format_fraction(guideline.late_fraction)),
        *_score(guideline),
    )


def _score(guideline: Guideline) -> tuple[tuple[str, str], ...]:
    if guideline.call is None:
        return ()
    about = "about " if guideline.call.approximate else ""
    return ((f"MOS, played after {format_time(guideline.target.limit)}", f"{about}{guideline.call.at_limit.mos:.2f}"),)


def _advice(rules: list[Recommendation], guideline: Guideline) -> tuple[Advice, ...]:
    order = list(phrases.STATUS)
    return tuple(
        Advice(
            title=rule.title,
            status=phrases.STATUS[rule.status],
            to_do=rule.status in ("set", "not a setting"),
            reason=phrases.sentence(rule.reason),
            condition=rule.condition,
            effect=phrases.effect(rule.effect, guideline.target),
            setting=rule.setting,
            elsewhere=(("macOS", rule.macos), ("Windows", rule.windows), ("Browser", rule.browser)),
            evidence=rule.evidence,
        )
        for rule in sorted(rules, key=lambda rule: order.index(rule.status))
    )
