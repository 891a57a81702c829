"""The report on two guidelines: their differences, the figures before and after, and both distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tcpdelay.report import phrases
from tcpdelay.report.charts import current_axes, plot_distribution
from tcpdelay.report.content import Content, Section, Table, flow_scenario_table, key_figures
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import NEVER_SETTLES, format_delay, format_fraction, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.advice.guideline import Changes, Findings
    from tcpdelay.report.html import Chart

COLUMNS = ("Before", "After", "Change")
Formatted = Callable[[float], str]


def changes_content(changes: Changes) -> Content:
    """Return the content of the report on two guidelines."""
    before, after = changes.before, changes.after
    differences = differences_table(changes)
    what_differs = (
        Section("differences", "What differs", tables=(differences,))
        if differences.rows
        else Section("differences", "What differs", ("Nothing: both scenarios are the same.",))
    )
    return Content(
        verdict=after.verdict,
        headline=_headline(before, after),
        explanation=(
            f"Before: {phrases.headline(before)}. After: {phrases.headline(after)}.",
            phrases.expected_error(after).replace("; see the end", ", after the change"),
        ),
        key_figures=key_figures(after),
        sections=(
            what_differs,
            Section("delays", "Delays before and after", tables=(delays_table(changes),)),
            Section("margins", "Margins before and after", tables=(margins_table(changes),)),
            Section(
                "trust",
                "How far to trust this",
                tuple(
                    phrases.sentence(f"{name}: {note}")
                    for name, found in (("before", before), ("after", after))
                    for note in found.notes
                )
                or ("Both scenarios are inside the range in which their models were checked.",),
            ),
        ),
    )


def _headline(before: Findings, after: Findings) -> str:
    """Return the target's quantile before and after, and the difference."""
    names = [quantile_name(found.target.quantile) for found in (before, after)]
    first, second = (phrases.settled(format_delay, found.quantile) for found in (before, after))
    start = f"{names[0]} {first} → {'' if names[0] == names[1] else names[1] + ' '}{second}"
    return f"{start}, {_sooner(before.quantile, after.quantile)}"


def _sooner(before: float, after: float) -> str:
    if math.isnan(before) or math.isnan(after):
        return "not comparable"
    if format_time(before) == format_time(after):
        return "no change"
    if math.isinf(before) or math.isinf(after):
        return "TCP can then carry it" if math.isinf(before) else "TCP can then no longer carry it"
    return f"{format_time(abs(after - before))} {'sooner' if after < before else 'later'}"


def differences_table(changes: Changes) -> Table:
    """Return the rows in which the two scenarios differ."""
    # A table has a row of its own for each field that the chain refuses.
    tables = [{row[0]: row[1] for row in flow_scenario_table(found).rows} for found in (changes.before, changes.after)]
    names = dict.fromkeys([*tables[0], *tables[1]])
    rows = tuple((name, *(table.get(name, "–") for table in tables)) for name in names)
    rows = tuple(row for row in rows if row[1] != row[2])
    return Table(("Scenario", "Before", "After"), rows)


def delays_table(changes: Changes) -> Table:
    """Return mean, jitter, quantiles and late fraction, and the score of a call, before and after."""
    rows = tuple(_delays(changes.before, changes.after))
    name = quantile_name(changes.before.target.quantile)
    emphasis = next((i for i, row in enumerate(rows) if row[0] == name), None)
    return Table(("Delay", *COLUMNS), rows, numeric=(1, 2, 3), emphasis=emphasis)


def _delays(before: Findings, after: Findings) -> Iterator[tuple[str, ...]]:
    yield _row("mean", before.mean, after.mean, format_time)
    yield _row("jitter", before.jitter, after.jitter, format_time)
    for q in sorted({*REPORTED_QUANTILES, before.target.quantile, after.target.quantile}):
        yield _row(quantile_name(q), before.quantile_of(q), after.quantile_of(q), format_time)
    limit = after.target.limit
    shares = before.late_after(limit), after.late_after(limit)
    yield _row(f"later than {format_time(limit)}", *shares, format_fraction)
    if before.call is not None and after.call is not None:
        scores = before.call.best.mos, after.call.best.mos
        yield ("best MOS", *map("{:.2f}".format, scores), f"{scores[1] - scores[0]:+.2f}")
    if before.video is not None and after.video is not None:
        stalls = (before.video.stalls_per_minute, after.video.stalls_per_minute)
        yield _row("stalls per minute, at most", *stalls, "{:.2g}".format)


def _row(name: str, before: float, after: float, formatted: Formatted) -> tuple[str, ...]:
    """Return the row of one figure: its name, its values before and after, and the change."""
    return (
        name,
        *(NEVER_SETTLES if math.isinf(value) else phrases.settled(formatted, value) for value in (before, after)),
        _ratio(before, after),
    )


def _ratio(before: float, after: float) -> str:
    """Return the change from `before` to `after` in percent; a dash if the ratio has no meaning."""
    if not (0 < before < math.inf and 0 <= after < math.inf):
        return "–"
    change = after / before - 1
    if abs(change) < 5e-4:
        return "none"
    if change >= 1:
        return f"{float(f'{after / before:.2g}'):g} times"
    return f"{100 * change:+.2g} %"


def margins_table(changes: Changes) -> Table:
    """Return the edges of loss, round-trip time and bitrate, and the utilization, before and after."""
    rows: list[tuple[str, ...]] = []
    pairs = zip(changes.before.margins, changes.after.margins, strict=True)
    for before, after in pairs:
        change = "–" if before.edge is None or after.edge is None else _ratio(before.edge, after.edge)
        name = f"{phrases.QUANTITY[before.quantity]}, up to"
        rows.append((name, phrases.format_edge(before), phrases.format_edge(after), change))
    utilizations = changes.before.utilization, changes.after.utilization
    rows.append(("Utilization", *map(format_fraction, utilizations), _ratio(*utilizations)))
    return Table(("Works with", *COLUMNS), tuple(rows), numeric=(1, 2, 3))


def changes_charts(changes: Changes) -> dict[str, list[Chart]]:
    """Return the chart of both distributions; no chart if TCP can carry neither flow."""
    from tcpdelay.report.html import chart

    carried = [found for found in (changes.before, changes.after) if math.isfinite(found.mean)]
    if not carried:
        return {}
    described = "; ".join(
        f"{name}: half arrive within {phrases.settled(format_time, found.quantile_of(0.5))}, {phrases.headline(found)}"
        for name, found in (("before", changes.before), ("after", changes.after))
    )
    drawn = chart("cdf-chart", "Arrived by then, before and after", described, lambda ax: plot_both(changes, ax))
    return {"delays": [drawn]}


def plot_both(changes: Changes, ax: Axes | None = None) -> Axes:
    """Draw both cumulative distributions, except that of a flow that TCP cannot carry."""
    ax = current_axes(ax)
    limit = {"limit": changes.after.target.limit}
    for name, found in (("before", changes.before), ("after", changes.after)):
        if math.isfinite(found.mean):
            marks = {} if name == "before" and math.isfinite(changes.after.mean) else limit
            plot_distribution(found.distribution, ax, kind="cdf", label=name, thresholds=marks)
    return ax
