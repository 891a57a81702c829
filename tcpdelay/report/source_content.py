"""The content of a report on a source whose rate is not constant, and its charts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tcpdelay.accuracy.errors import in_words
from tcpdelay.advice.guideline import NOT_FOR_SOURCES
from tcpdelay.ask import assumptions
from tcpdelay.report import phrases
from tcpdelay.report.content import (
    Content,
    Section,
    Table,
    advice_section,
    alternatives_section,
    delay_figures,
    delays_section,
    loss_table,
    margins_table,
    parts_table,
    path_sections,
    rules_section,
    scenario_table,
    transport_section,
)
from tcpdelay.report.html import Chart, chart, charts
from tcpdelay.scenario.stack import transport_name
from tcpdelay.units import (
    TOO_FEW,
    format_delay,
    format_fraction,
    format_known_time,
    format_rate,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from tcpdelay.advice.guideline import SourceFindings
    from tcpdelay.scenario.sources.message_stream import Source


def source_content(found: SourceFindings) -> Content:
    """Return the content of the report on a source."""
    sections = [
        advice_section(found, _remark_on_effects(found)),
        *transport_section(found),
        Section("scenario", "Scenario", tables=(scenario_table(found),)),
        Section("source", "What is sent", tables=(_source_table(found.source),)),
        *path_sections(found),
        delays_section(found, _remark_on_kinds(found), *_kinds_tables(found)),
        _margins(found),
    ]
    if math.isfinite(found.mean):
        sections.append(Section("parts", "Where the delay comes from", tables=(parts_table(found),)))
    sections += alternatives_section(found)
    return Content(
        verdict=found.verdict,
        headline=phrases.headline(found),
        explanation=tuple(explanation(found)),
        key_figures=delay_figures(found),
        sections=(*sections, rules_section(found), _trust(found)),
        transport=transport_name(found.stack),
    )


def _remark_on_effects(found: SourceFindings) -> str:
    """Return in a sentence from which delay the effects start, if the delays of the report are the chain's."""
    if found.answer.method != "chain":
        return ""
    name = quantile_name(found.target.quantile)
    return f" The simulated {name} is {format_delay(found.unchanged)} here, the chain's {format_delay(found.quantile)}."


def explanation(found: SourceFindings) -> list[str]:
    """Return the sentences that explain the verdict."""
    target = found.target
    endless = (
        f"{format_fraction(target.quantile)} of the messages should arrive within {format_time(target.limit)}, but the "
        "delay never settles: messages pile up in the send buffer for as long as the source sends its "
        f"{format_rate(found.source.mean_bitrate)}."
    )
    return [
        *phrases.outcome(found, (endless,)),
        *(_latest_kind(found) if math.isfinite(found.quantile) else []),
        "These delays are the chain's; delays by kind, margins, effects and delays at other losses are simulated."
        if found.answer.method == "chain"
        else "The rate of this source is not constant, so all figures are simulated.",
        *phrases.doubts(found),
    ]


def _latest_kind(found: SourceFindings) -> list[str]:
    """Return in a sentence which kind of message is late most often; nothing if no message is late."""
    late = {kind: delays.late_fraction(found.target.limit) for kind, delays in found.by_kind.items()}
    kind = max(late, key=lambda each: late[each], default="")
    if not late.get(kind):
        return []
    return [f"Of the kind “{kind}”, {format_fraction(late[kind])} come later than the limit."]


def _source_table(source: Source) -> Table:
    """Return the rates and sizes of a source."""
    kinds = f" of the kinds {' and '.join(source.kinds)}" if len(source.kinds) > 1 else ""
    rows = (
        ("Source", repr(source)),
        ("Bitrate", f"{format_rate(source.mean_bitrate)} in the mean"),
        ("Busiest second", f"{format_rate(source.peak_bitrate)}, in the first ten minutes"),
        ("Messages", f"{source.message_rate:.3g} per second of {source.mean_size:.0f} B in the mean{kinds}"),
    )
    return Table(("Source", "Value"), rows)


def _kinds_tables(found: SourceFindings) -> list[Table]:
    """Return the delays by kind of message; nothing for messages of one kind."""
    if not found.by_kind:
        return []
    target = found.target
    shares = sorted({0.5, 0.95, target.quantile})
    rows = []
    for kind, delays in found.by_kind.items():
        shown = (format_known_time(found.quantile_of_kind(kind, share)) for share in shares)
        late = format_fraction(delays.late_fraction(target.limit))
        rows.append((kind, format_time(delays.mean), *shown, late))
    columns = ("Kind", "Mean", *map(quantile_name, shares), f"Later than {format_time(target.limit)}")
    return [Table(columns, tuple(rows), numeric=tuple(range(1, len(columns))))]


def _remark_on_kinds(found: SourceFindings) -> tuple[str, ...]:
    """Return in a sentence why the quantile of some kind of message is missing; nothing if none is missing."""
    quantiles = [found.quantile_of_kind(kind, found.target.quantile) for kind in found.by_kind]
    if not any(map(math.isnan, quantiles)):
        return ()
    name = quantile_name(found.target.quantile)
    return (f"“{TOO_FEW}”: the simulation has fewer than ten messages of this kind beyond {name}.",)


def _margins(found: SourceFindings) -> Section:
    """Return the margin of each quantity, and the delay at other losses."""
    remark = (
        "Each margin holds if the other quantities do not change. With the bitrate, all sizes change and the times "
        f"stay. Each value is simulated with {found.compared} messages, all with the same random numbers; margins are "
        "searched to 2 %."
    )
    if all(margin.quantity != "bitrate" for margin in found.margins):
        remark += " This class of sources cannot be scaled, so there is no margin of the bitrate."
    tables = [margins_table(found), *([loss_table(found)] if found.loss_curve.loss.size else [])]
    return Section("margins", "Margins", (remark,), tuple(tables))


def _trust(found: SourceFindings) -> Section:
    """Return the section with the expected error, the contents that are left out for sources, and the notes."""
    error = phrases.sentence(f"expected error: {in_words(found.expected_error, found.target.quantile)}")
    missing = f"Left out, because they are for a flow of constant rate: {', '.join(NOT_FOR_SOURCES)}."
    notes = tuple(map(phrases.sentence, (*found.notes, *assumptions(found.answer.method, found.ignored))))
    return Section("trust", "How far to trust this", (error, missing), points=notes)


# The charts of a report on a source whose rate is not constant.

SHOWN_MESSAGES = 600
"""Mean number of messages that the chart of the source shows."""
SHORTEST, LONGEST = 0.5, 60.0
"""Shortest and longest time that the chart of the source shows [s]."""


def source_charts(found: SourceFindings, suffix: str = "") -> dict[str, list[Chart]]:
    """Return the charts of each section: the sizes of the messages, and the charts that every report has."""
    source = found.source
    duration = min(max(SHOWN_MESSAGES / source.message_rate, SHORTEST), LONGEST)
    sent = {
        "source": [
            chart(
                f"source-chart{suffix}",
                "Size of each message",
                f"The messages of the first {format_time(duration)}: {format_rate(source.mean_bitrate)} in the mean, "
                f"{format_rate(source.peak_bitrate)} in the busiest second.",
                lambda ax: source.plot(ax, duration=duration),
            )
        ],
    }
    return sent | charts(found, explanation(found), suffix)
