"""The guideline: findings on a scenario, on two scenarios, or on both directions of a connection, with reports."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, overload

from tcpdelay.advice.guideline import Changes, Findings, SourceFindings, findings, source_findings
from tcpdelay.advice.judged_delays import GuidelineRequest, JudgedDelays
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.models.verdict import Verdict
from tcpdelay.report import phrases
from tcpdelay.report.content import content, key_figures, scenario_table
from tcpdelay.report.document import Content, Section, Table, html_table, in_markdown
from tcpdelay.scenario.path import Path, PathPreset
from tcpdelay.scenario.scenario import (
    APPLICATIONS,
    DEFAULT_LIMIT,
    REPORTED_QUANTILES,
    Application,
    Target,
    checked_arguments,
    scenario_from_options,
)
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import Stack, StackName
from tcpdelay.units import NEVER_SETTLES, format_delay, format_fraction, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.report.html import Chart


# Results that have a report: in Markdown, as a page, and as a table for notebooks.


class Reported(ABC):
    """A result with a report."""

    @abstractmethod
    def content(self) -> Content:
        """Return the content of the report."""

    @abstractmethod
    def charts(self) -> dict[str, list[Chart]]:
        """Return the charts of the report, by the key of their section."""

    def to_markdown(self) -> str:
        """Return the report in Markdown."""
        return in_markdown(self.content())

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from tcpdelay.report.html import as_page

        return as_page(self.content(), self.charts())

    def _repr_html_(self) -> str:
        """Return headline, explanation and key figures as a table for notebooks; `to_html` has the whole report."""
        report = self.content()
        return html_table(report.headline, ("", ""), report.key_figures, " ".join(report.explanation))


class ReportedFindings(Reported):
    """Findings on a flow or another source, with their report."""

    def content(self) -> Content:
        """Return the content of the report."""
        assert isinstance(self, Findings | SourceFindings)
        return content(self)

    def charts(self, suffix: str = "") -> dict[str, list[Chart]]:
        """Return the charts of the report, by the key of their section; a suffix makes their names unique in a page."""
        from tcpdelay.report.html import charts

        assert isinstance(self, Findings | SourceFindings)
        return charts(self, suffix)


@dataclass(frozen=True)
class Guideline(ReportedFindings, Findings):
    """Findings on a flow of constant rate, with their reports.

    The fields are those of `tcpdelay.advice.guideline.Findings` and `tcpdelay.advice.judged_delays.JudgedDelays`.
    """

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the delays and the limit with the parameters of `DelayDistribution.plot`."""
        return self.distribution.plot(ax, **{"thresholds": {"limit": self.target.limit}, **options})


@dataclass(frozen=True)
class SourceGuideline(ReportedFindings, SourceFindings):
    """Findings on a source whose rate is not constant, with their reports.

    The fields are those of `tcpdelay.advice.guideline.SourceFindings` and
    `tcpdelay.advice.judged_delays.JudgedDelays`.
    """

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of messages later than each delay, by kind of message."""
        from tcpdelay.report.charts import plot_later

        return plot_later(self, ax)


# The type of the result depends on the source only; the implementation below declares the other parameters.
@overload
def guideline(flow: Flow, *others: Any, **options: Any) -> Guideline: ...
@overload
def guideline(flow: None = None, *, application: None = None, **options: Any) -> Guideline: ...
@overload
def guideline(flow: Source | str | None = None, *others: Any, **options: Any) -> Guideline | SourceGuideline: ...


@checked_arguments
def guideline(
    flow: Source | str | None = None,
    path: Path | None = None,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    *,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
    path_preset: PathPreset | None = None,
    **options: Any,
) -> Guideline | SourceGuideline:
    """Predict a flow's delay, and return whether it meets the target, with which margins, and what to set or change.

    Parameters
    ----------
    flow, path : Source and Path, optional
        The scenario. Alternatively, give the parameters of `Flow` and `Path` by name, as for `predict_delay`. The flow
        may be the name of an application, such as "voip", which is then the `application` too. A source whose rate is
        not constant, such as a `Video`, is simulated.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel.
    target : Target, optional
        The demand on the delay; by default 95 % within 0.2 s.
    estimate : PathEstimate, optional
        The measurement from which `path` was made; the target is also checked at both ends of its confidence intervals.
    application : Application, optional
        The application that sends the flow, such as `tcpdelay.scenario.scenario.application("voip")`. It provides
        `flow` and `target` if these are not given. The findings on a call or a video have its quality too.
    method : {"chain", "simulation", "auto"}
        The model of the verdict and the delays. "auto" simulates where the chain's expected error reaches across the
        limit.
    on_progress : callable, optional
        Function that a simulation calls with the number of packets simulated and the largest number of packets.
    on_margin : callable, optional
        Function called with the number of margins found and the number of all.
    path_preset : PathPreset, optional
        The preset from which `path` was made, such as `tcpdelay.scenario.path.path_preset("lte")`. It provides
        `path` if this is not given. The report has its sources.
    **options
        The parameters of `Flow` and `Path` by name.

    Returns
    -------
    Guideline or SourceGuideline
        All findings as data, with `to_markdown()`, `to_html()` and `to_json()`; a `SourceGuideline` for a source whose
        rate is not constant.

    Raises
    ------
    ValueError
        If an argument is missing, unknown or out of its range, or if the model refuses the scenario.

    Examples
    --------
    >>> g = guideline(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> g.verdict, round(g.quantile, 3)
    ('works', 0.14)

    >>> from tcpdelay.scenario.media import Video
    >>> g = guideline(Video(1_000_000), Path(rtt=0.060, loss=0.001), target=Target(1.0, 0.99))
    >>> g.verdict, list(g.by_kind)
    ('works', ['other frame', 'key frame'])
    """
    if estimate is not None:
        from tcpdelay.capture.estimate import PathEstimate

        if not isinstance(estimate, PathEstimate):
            raise InvalidValueError("estimate", estimate, "be a PathEstimate")
    if isinstance(flow, str):
        application = APPLICATIONS.get(flow, application)
    if application is not None:
        flow = application.source if flow is None and not {"packet_size", "interval"} & set(options) else flow
        target = application.target if target is None else target
    if path_preset is not None and path is None:
        path = Path.preset(path_preset.name)
    scenario, demand = scenario_from_options(flow, path, stack, options), target or Target(DEFAULT_LIMIT)
    request = GuidelineRequest(scenario, demand, estimate, application, method, on_progress, on_margin, path_preset)
    if isinstance(scenario.source, Flow):
        return Guideline(**vars(findings(request)))
    return SourceGuideline(**vars(source_findings(request)))


@dataclass(frozen=True)
class GuidelineComparison(Reported, Changes):
    """The findings on two scenarios, and their differences, with the reports.

    Parameters
    ----------
    before, after : Guideline
        The findings on each.
    """

    @property
    def _named(self) -> tuple[tuple[str, Findings], ...]:
        return ("before", self.before), ("after", self.after)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw both distributions into the given axes, by default the current axes of pyplot."""
        from tcpdelay.report.charts import current_axes, plot_distribution

        ax = current_axes(ax)
        limit = {"limit": self.after.target.limit}
        for name, found in self._named:
            if math.isfinite(found.mean):
                marks = {} if name == "before" and math.isfinite(self.after.mean) else limit
                plot_distribution(found.distribution, ax, kind="cdf", label=name, thresholds=marks)
        return ax

    def content(self) -> Content:
        """Return the content of the report on the differences."""
        before, after = self.before, self.after
        differences = differences_table(self)
        nothing = ("Nothing: both scenarios are the same.",)
        notes = [phrases.sentence(f"{name}: {note}") for name, found in self._named for note in found.notes]
        inside = "Both scenarios are inside the range in which their models were checked."
        return Content(
            verdict=after.verdict,
            headline=_headline(before, after),
            explanation=(
                f"Before: {phrases.headline(before)}. After: {phrases.headline(after)}.",
                phrases.expected_error(after).replace("; see the end", ", after the change"),
            ),
            key_figures=key_figures(after),
            sections=(
                Section("differences", "What differs", *(((), (differences,)) if differences.rows else (nothing,))),
                Section("delays", "Delays before and after", tables=(_delays_table(self),)),
                Section("margins", "Margins before and after", tables=(_margins_table(self),)),
                Section("trust", "How far to trust this", tuple(notes or [inside])),
            ),
        )

    def charts(self) -> dict[str, list[Chart]]:
        """Return the chart of both distributions, by the key of its section; none if TCP carries neither flow."""
        from tcpdelay.report.html import chart

        if not any(math.isfinite(found.mean) for _, found in self._named):
            return {}
        described = "; ".join(
            f"{name}: half arrive within {phrases.settled(format_time, found.quantile_of(0.5))}, "
            f"{phrases.headline(found)}"
            for name, found in self._named
        )
        return {"delays": [chart("cdf-chart", "Arrived by then, before and after", described, self.plot)]}


def compare_guidelines(before: JudgedDelays, after: JudgedDelays) -> GuidelineComparison:
    """Compare two guidelines, such as guidelines for two stacks, or before and after a change.

    Parameters
    ----------
    before, after : Guideline
        Results of `guideline`, for flows of constant rate.

    Returns
    -------
    GuidelineComparison
        The comparison, with `to_markdown()`, `to_html()` and `to_json()`.

    Raises
    ------
    InvalidValueError
        If the rate of a source is not constant; a ValueError.

    Examples
    --------
    >>> call = {"rtt": 0.100, "loss": 0.02, "packet_size": 174, "interval": 0.020}
    >>> then, now = guideline(stack=Stack.newreno_2008(), **call), guideline(**call)
    >>> print(compare_guidelines(then, now).to_markdown().splitlines()[0])
    # p95 190 ms → 140 ms, 49.7 ms sooner
    """
    if not isinstance(before, Findings) or not isinstance(after, Findings):
        name, found = ("after", after) if isinstance(before, Findings) else ("before", before)
        raise InvalidValueError(name, type(found).__name__, "be a guideline for a flow of constant rate")
    return GuidelineComparison(before, after)


# The figures of two scenarios side by side.

COLUMNS = ("Before", "After", "Change")


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
    tables = [{row[0]: row[1] for row in scenario_table(found).rows} for found in (changes.before, changes.after)]
    names = dict.fromkeys([*tables[0], *tables[1]])
    rows = tuple((name, *(table.get(name, "–") for table in tables)) for name in names)
    rows = tuple(row for row in rows if row[1] != row[2])
    return Table(("Scenario", "Before", "After"), rows)


def _delays_table(changes: Changes) -> Table:
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


def _row(name: str, before: float, after: float, formatted: Callable[[float], str]) -> tuple[str, ...]:
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


def _margins_table(changes: Changes) -> Table:
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


@dataclass(frozen=True)
class TwoWayGuideline(Reported):
    """The guidelines for both directions of a connection."""

    # forward, backward: The guideline for the data of the first end, and for the data of the second end.
    forward: Guideline | SourceGuideline
    backward: Guideline | SourceGuideline
    ends: tuple[str, str]  # Addresses of the first and the second end

    def content(self) -> Content:
        """Return the content of the report: the worse verdict, and the sections of both directions."""
        first, second = self.ends
        reports = [("forward", self.forward.content()), ("backward", self.backward.content())]
        # From the best verdict to the worst.
        order = get_args(Verdict)
        return Content(
            verdict=max((report.verdict for _, report in reports), key=order.index),
            headline="; ".join(
                f"{way}: {report.headline[0].lower()}{report.headline[1:]}"
                for way, (_, report) in zip(("Forward", "backward"), reports, strict=True)
            ),
            explanation=(
                f"Forward is from {first} to {second}, backward from {second} to {first}.",
                *(f"{way.capitalize()}: {sentence}" for way, report in reports for sentence in report.explanation),
            ),
            key_figures=tuple(
                (f"{label}, {way}", value) for way, report in reports for label, value in report.key_figures
            ),
            sections=tuple(
                _of_direction(section, way, number)
                for number, (way, report) in enumerate(reports)
                for section in report.sections
            ),
        )

    def charts(self) -> dict[str, list[Chart]]:
        """Return the charts of both directions, by the key of their section."""
        return {
            f"{key}{suffix}": of_section
            for suffix, found in zip(_SUFFIXES, (self.forward, self.backward), strict=True)
            for key, of_section in found.charts(suffix).items()
        }

    def to_json(self) -> str:
        """Return the guideline for the first direction, with the guideline for the other direction as `backward`."""
        from tcpdelay.report.document import to_json

        forward, backward = (json.loads(found.to_json()) for found in (self.forward, self.backward))
        return to_json({**forward, "backward": backward})


_SUFFIXES = ("", "-backward")
"""Suffixes of the keys of sections and charts of each direction."""


def _of_direction(section: Section, way: str, number: int) -> Section:
    return replace(section, key=f"{section.key}{_SUFFIXES[number]}", title=f"{section.title}, {way}")
