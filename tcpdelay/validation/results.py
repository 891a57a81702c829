"""Everything that is found out by scoring models against captures, and the files it is kept in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tcpdelay.report.result_table import ResultTable
from tcpdelay.validation import comparisons
from tcpdelay.validation.comparison_tables import comparisons_table, pairs_table
from tcpdelay.validation.drop_tail import Scenario, drop_tail_table
from tcpdelay.validation.error_tables import (
    errors_table,
    halves_table,
    not_simulated_table,
    settings_table,
    summary_table,
)
from tcpdelay.validation.measured import MeasuredDelay
from tcpdelay.validation.models import MODELS, Predictions, ScoredModel
from tcpdelay.validation.scores import Score, score
from tcpdelay.validation.tables import captures_table, scores_table

FIGURES = {
    "p95-scatter.svg": "Predicted against measured 95th percentile, with the measurement's 95 % interval.",
    "error-by-utilization.svg": "Predicted over measured 95th percentile by utilization.",
    "distributions.svg": "Share of packets later than a delay, measured and predicted.",
    "after-loss.svg": "Delay of the packets after a single loss: median, and where 80 % of them are.",
    "p95-by-loss-small.svg": "95th percentile by loss, 174 B every 20 ms: points measured, lines predicted.",
    "p95-by-loss-large.svg": "95th percentile by loss, 1448 B every 20 ms: points measured, lines predicted.",
}
LONG_TABLES = ("clock-rates", "congestion-controls", "captures", "scores")
"""Tables that are kept in files of their own and not shown in the report."""


@dataclass(frozen=True)
class Results:
    """What was found out.

    Parameters
    ----------
    models : sequence of ScoredModel
        The models.
    measured : sequence of MeasuredDelay
        All captures.
    scores : sequence of Score
        The models' scores for the plain captures.
    tables : sequence of ResultTable
        All tables; the first is the summary.
    """

    models: Sequence[ScoredModel]
    measured: Sequence[MeasuredDelay]
    scores: Sequence[Score]
    tables: Sequence[ResultTable]

    @property
    def summary(self) -> ResultTable:
        """Each model's errors over all cases."""
        return self.tables[0]

    def files(self) -> dict[str, bytes]:
        """Return all tables and figures by file name: CSV, Markdown, one JSON, SVG and the report in Markdown."""
        from tcpdelay.validation.charts import figures

        drawn = figures(self.scores)
        written = {f"{table.name}.csv": table.to_csv().encode() for table in self.tables}
        written |= {f"{name}.md": page.encode() for name, page in self._pages().items()}
        written["results.json"] = self.to_json().encode()
        written["report.md"] = self.to_markdown(list(drawn)).encode()
        return written | drawn

    def to_json(self) -> str:
        """Return all tables as JSON, in seconds and fractions; null where a value is infinite or not known."""
        titles = {model.name: model.title for model in self.models}
        parts = [f'"models": {json.dumps(titles)}']
        for table in self.tables:
            rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in table.to_records())
            parts.append(f"{json.dumps(table.name)}: [\n  {rows}\n]" if rows else f"{json.dumps(table.name)}: []")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def to_markdown(self, drawn: Sequence[str]) -> str:
        """Return the report, with links to those figures."""
        kernels = ", ".join(sorted({capture.kernel for capture in self.measured}))
        packets = sum(capture.offered for capture in self.measured)
        parts = [
            "# Validation",
            f"{len(self.measured)} captures with {packets} packets, Linux {kernels}.",
            "\n".join(f"- `{model.name}`: {model.title}" for model in self.models),
        ]
        for name, page in self._pages().items():
            title = next(table.title for table in self.tables if table.name == name)
            parts += [f"## {title}", page.rstrip("\n")]
        parts += [f"![{FIGURES[name]}]({name})\n\n*{FIGURES[name]}*" for name in drawn]
        return "\n\n".join(parts) + "\n"

    def _pages(self) -> dict[str, str]:
        """Return the tables that are not too long for people as Markdown by name."""
        return {table.name: table.to_page() for table in self.tables if table.name not in LONG_TABLES}


def evaluate(
    measured: Sequence[MeasuredDelay],
    published: Mapping[Scenario, Mapping[str, float]],
    models: Sequence[ScoredModel] = MODELS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Score the models against captures, and compare the captures with one another.

    Parameters
    ----------
    measured : sequence of MeasuredDelay
        The captures.
    published : mapping
        Published figures of drop-tail routers by scenario.
    models : sequence of ScoredModel
        The models.
    on_progress : callable, optional
        Called before each capture that is scored with the number of those done and of all.

    Returns
    -------
    Results
        The tables, and what their files hold.
    """
    predictions = Predictions(models)
    # Without loss there is nothing to predict but the network's delay; behind a router there is a table of its own.
    lossy = [capture for capture in measured if capture.experiment.loss > 0 and not capture.experiment.routed]
    scores = score(lossy, predictions, on_progress)
    plain = [one for one in scores if one.measured.plain]
    clocks, controls = comparisons.clock_rates(measured), comparisons.congestion_controls(measured)
    tables = [
        summary_table(plain),
        errors_table(plain),
        halves_table(plain, models),
        settings_table([one for one in scores if not one.measured.plain and one.measured.experiment.loss_burst == 1]),
        not_simulated_table(measured),
        drop_tail_table(measured, published, predictions),
        comparisons_table(
            "switches", "Stack switches, each beside the default stack on the same path", comparisons.switches(measured)
        ),
        comparisons_table(
            "heuristics", "What an application can do, each beside the same without", comparisons.heuristics(measured)
        ),
        comparisons_table("real-time", "Real time beside virtual time", comparisons.real_time(measured)),
        pairs_table([*clocks, *controls]),
        comparisons_table("clock-rates", "Other timer rates beside HZ 250", clocks),
        comparisons_table("congestion-controls", "CUBIC beside Reno", controls),
        captures_table(measured),
        scores_table(scores),
    ]
    return Results(models, measured, plain, tables)
