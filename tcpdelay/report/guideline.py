"""The guideline: the findings on one scenario, or the comparison of two scenarios, with their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, overload

from tcpdelay.advice.against import Changes
from tcpdelay.advice.guideline import Findings, findings
from tcpdelay.advice.judged_delays import JudgedDelays
from tcpdelay.advice.source_guideline import SourceFindings, source_findings
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.scenario.applications import APPLICATIONS, Application
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import scenario_from_options
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Stack
from tcpdelay.scenario.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.report.content import Content


def content_html(report: Content) -> str:
    """Return headline, explanation and key figures of a report for notebooks."""
    from tcpdelay.report.notebook import html_table

    return html_table(report.headline, ("", ""), report.key_figures, " ".join(report.explanation))


@dataclass(frozen=True)
class Guideline(Findings):
    """Findings on a scenario, with their reports; the fields are those of `tcpdelay.advice.guideline.Findings`."""

    def to_markdown(self) -> str:
        """Return the report in Markdown."""
        from tcpdelay.report.markdown import to_markdown

        return to_markdown(self)

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the delays and the limit with the parameters of `DelayDistribution.plot`."""
        return self.distribution.plot(ax, **{"thresholds": {"limit": self.target.limit}, **options})

    def _repr_html_(self) -> str:
        """Return the verdict and the delays as a table for notebooks; `to_html` has the whole report."""
        from tcpdelay.report.content import content

        return content_html(content(self))

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from tcpdelay.report.html import to_html

        return to_html(self)


@dataclass(frozen=True)
class SourceGuideline(SourceFindings):
    """Findings on a source whose rate is not constant, with their reports.

    The fields are those of `tcpdelay.advice.source_guideline.SourceFindings`.
    """

    def to_markdown(self) -> str:
        """Return the report in Markdown."""
        from tcpdelay.report.markdown import in_markdown

        return in_markdown(self.content())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of messages later than each delay, by kind of message."""
        from tcpdelay.report.source_page import plot_kinds

        return plot_kinds(self, ax)

    def content(self) -> Content:
        """Return the content of the report."""
        from tcpdelay.report.source_content import source_content

        return source_content(self)

    def _repr_html_(self) -> str:
        """Return the verdict and the delays as a table for notebooks; `to_html` has the whole report."""
        return content_html(self.content())

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from tcpdelay.report.html import as_page
        from tcpdelay.report.source_page import source_charts

        return as_page(self.content(), source_charts(self))


@overload
def guideline(
    flow: Flow | None = None,
    path: Path | None = None,
    stack: Stack | None = None,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: None = None,
    *,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Guideline: ...
@overload
def guideline(
    flow: Flow,
    path: Path | None = None,
    stack: Stack | None = None,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    *,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Guideline: ...
@overload
def guideline(
    flow: Source | str | None = None,
    path: Path | None = None,
    stack: Stack | None = None,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    *,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Guideline | SourceGuideline: ...


def guideline(
    flow: Source | str | None = None,
    path: Path | None = None,
    stack: Stack | None = None,
    target: Target | None = None,
    estimate: PathEstimate | None = None,
    application: Application | None = None,
    *,
    method: AnsweredBy = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_margin: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Guideline | SourceGuideline:
    """Predict a flow's delay, and return whether it meets the target, with which margins, and what to set or change.

    Parameters
    ----------
    flow, path : Source and Path, optional
        The scenario. Alternatively, give the parameters of `Flow` and `Path` by name, as for `predict_delay`. The flow
        may be the name of an application, such as "voip", which is then the `application` too. A source whose rate is
        not constant, such as a `Video`, is simulated.
    stack : Stack, optional
        The TCP implementation; by default a current Linux kernel.
    target : Target, optional
        The demand on the delay; by default 95 % within 0.2 s.
    estimate : PathEstimate, optional
        The measurement from which `path` was made; the target is also checked at both ends of its confidence intervals.
    application : Application, optional
        The application that sends the flow, such as `tcpdelay.scenario.applications.application("voip")`. It provides
        `flow` and `target` if these are not given. The findings on a call or a video have its quality too.
    method : {"chain", "simulation", "auto"}
        The model of the verdict and the delays. "auto" simulates where the chain's expected error reaches across the
        limit.
    on_progress : callable, optional
        Function that a simulation calls with the number of packets simulated and the largest number of packets.
    on_margin : callable, optional
        Function called with the number of margins found and the number of all.
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

    >>> from tcpdelay.scenario.sources.video import Video
    >>> g = guideline(Video(1_000_000), Path(rtt=0.060, loss=0.001), target=Target(1.0, 0.99))
    >>> g.verdict, list(g.by_kind)
    ('works', ['other frame', 'key frame'])
    """
    if isinstance(flow, str):
        application = APPLICATIONS.get(flow, application)
    if application is not None:
        flow = application.source if flow is None and not {"packet_size", "interval"} & set(options) else flow
        target = application.target if target is None else target
    scenario = scenario_from_options(flow, path, stack, options)
    if not isinstance(scenario.source, Flow):
        every = source_findings(scenario, target, estimate, application, method, on_progress, on_margin)
        return SourceGuideline(**{field.name: getattr(every, field.name) for field in fields(every)})
    found = findings(scenario, target, estimate, application, method, on_progress, on_margin)
    return Guideline(**{field.name: getattr(found, field.name) for field in fields(found)})


@dataclass(frozen=True)
class GuidelineComparison(Changes):
    """The findings on two scenarios, and their differences, with the reports.

    Parameters
    ----------
    before, after : Guideline
        The findings on each.
    """

    def to_markdown(self) -> str:
        """Return the report on the differences in Markdown."""
        from tcpdelay.report.against import changes_content
        from tcpdelay.report.markdown import in_markdown

        return in_markdown(changes_content(self))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw both distributions into the given axes, by default the current axes of pyplot."""
        from tcpdelay.report.against import plot_both

        return plot_both(self, ax)

    def _repr_html_(self) -> str:
        """Return the verdict and the main figures as a table for notebooks; `to_html` has the whole report."""
        from tcpdelay.report.against import changes_content

        return content_html(changes_content(self))

    def to_html(self) -> str:
        """Return the report on the differences as one self-contained HTML page."""
        from tcpdelay.report.against import changes_charts, changes_content
        from tcpdelay.report.html import as_page

        return as_page(changes_content(self), changes_charts(self))


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
    # p95 190 ms → 140 ms, 50 ms sooner
    """
    if not isinstance(before, Findings) or not isinstance(after, Findings):
        name, found = ("after", after) if isinstance(before, Findings) else ("before", before)
        raise InvalidValueError(name, type(found).__name__, "be a guideline for a flow of constant rate")
    return GuidelineComparison(before, after)
