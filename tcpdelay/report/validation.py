"""The tables and files of a comparison of models with captures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from tcpdelay.report.document import Cell, Column, ResultTable, attributes, interval_cells
from tcpdelay.study.validation.captures import PLAYOUT_DELAYS, VIRTUAL_TIME, MeasuredDelay
from tcpdelay.study.validation.predictions import GROUPINGS, MODELS, QUANTITIES, Score, ScoredModel, difference

Figure = tuple[str, bytes]
"""Caption and SVG file of a chart."""
LONG_TABLES = ("captures", "scores")
"""Names of the tables that are too long for the report and are only in files."""
_MEDIANS = tuple(Column(f"median_{name}", f"median {name}", "distance") for name in QUANTITIES)
_MEANS = tuple(Column(f"mean_{name}", f"mean {name}", "distance") for name in QUANTITIES)
_BEYOND = tuple(
    Column(f"mean_{name}_beyond_interval", f"mean {name} beyond interval", "distance") for name in QUANTITIES
)
_DISTRIBUTIONS = (
    Column("median_mean_distance", "median of W1", "distance"),
    Column("median_largest_gap", "median of KS", "distance"),
)
_SUMMARY = (
    Column("cases", "cases", "count"),
    *_MEDIANS,
    *_MEANS,
    *_BEYOND,
    *_DISTRIBUTIONS,
    Column("median_signed_p95", "p95, signed", "error"),
    Column("inside_p95", "p95 inside interval", "fraction"),
    Column("inside_p99", "p99 inside interval", "fraction"),
    Column("inside_mean", "mean inside interval", "fraction"),
    Column("average_standard_errors", "mean: standard errors apart", "ratio"),
    Column("spread_standard_errors", "their spread", "ratio"),
    Column("never", "never", "count"),
)
GROUP_COLUMNS = (
    Column("cases", "cases", "count"),
    *_MEDIANS,
    Column("mean_p95", "mean p95", "distance"),
    Column("mean_p95_beyond_interval", "mean p95 beyond interval", "distance"),
    Column("mean_mean_beyond_interval", "mean mean beyond interval", "distance"),
    *_DISTRIBUTIONS,
    Column("never", "never", "count"),
)
_NOTE = (
    "Cases: TCP carried the flow and the utilization is below 0.9. A prediction of never counts as an infinite "
    "distance in the median and is left out of the mean; 'never' counts them. 'Beyond interval' is the distance from "
    "the nearest end of the measurement's 95 % interval, 'inside interval' the share of cases within, or less than "
    "1 ms from it. 'Standard errors apart' is (predicted - measured) over the measurement's standard error: a perfect "
    "prediction has an average of 0 and a spread of 1. W1 is the mean distance of equally late packets over the "
    "measured mean delay, KS the largest difference in the share of packets read in time, delays less than 1 ms apart "
    "counting as the same. 'Carried or not' is over all captures."
)


@dataclass(frozen=True)
class Results:
    """The results of a comparison of models with captures."""

    models: Sequence[ScoredModel]
    measured: Sequence[MeasuredDelay]  # All captures
    scores: Sequence[Score]  # The models' scores for the plain captures
    tables: Sequence[ResultTable]  # All tables; the first is the summary
    long_tables: Sequence[str] = LONG_TABLES  # Names of the tables that are only in files

    @property
    def summary(self) -> ResultTable:
        """Each model's errors over all cases."""
        return self.tables[0]

    def files(self, figures: Mapping[str, Figure] | None = None) -> dict[str, bytes]:
        """Return the contents of all files by name: tables (CSV, Markdown, one JSON), report and the given figures."""
        drawn = figures or {}
        written = {f"{table.name}.csv": table.to_csv().encode() for table in self.tables}
        written |= {f"{name}.md": page.encode() for name, page in self._pages().items()}
        written["results.json"] = self.to_json().encode()
        written["report.md"] = self.to_markdown({name: caption for name, (caption, _) in drawn.items()}).encode()
        return written | {name: content for name, (_, content) in drawn.items()}

    def to_json(self) -> str:
        """Return all tables as JSON, in seconds and fractions; null if a value is infinite or not known."""
        titles = {model.name: model.title for model in self.models}
        parts = [f'"models": {json.dumps(titles)}']
        for table in self.tables:
            rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in table.to_records())
            parts.append(f"{json.dumps(table.name)}: [\n  {rows}\n]" if rows else f"{json.dumps(table.name)}: []")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def to_markdown(self, captions: Mapping[str, str]) -> str:
        """Return the report; `captions` has the captions of the figures by file name."""
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
        parts += [f"![{caption}]({name})\n\n*{caption}*" for name, caption in captions.items()]
        return "\n\n".join(parts) + "\n"

    def _pages(self) -> dict[str, str]:
        return {table.name: table.to_page() for table in self.tables if table.name not in self.long_tables}


def validation_results(measured: Sequence[MeasuredDelay], scores: Sequence[Score]) -> Results:
    """Return the tables of a comparison of the models with a user's own captures."""
    plain = [score for score in scores if score.measured.plain]
    cases = plain or [score for score in scores if not score.measured.kind]
    tables = [
        summary_table(cases),
        errors_table(cases),
        settings_table(
            [score for score in scores if score.measured.experiment.source is None and not score.measured.plain]
        ),
        sources_table(scores),
        captures_table(measured),
        scores_table(scores),
    ]
    return Results(MODELS, measured, cases, tables)


def summary_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors over all cases, and how often it predicts correctly whether TCP carries the flow."""
    rows: list[dict[str, Cell]] = []
    for model, own in by_model(scores).items():
        called_wrongly = [score for score in own if not score.sustainable_call_right]
        row: dict[str, Cell] = {"model": model, **error_row([score for score in own if score.comparable])}
        row |= {
            "captures": len(own),
            "sustainable_right": 1 - len(called_wrongly) / len(own),
            "wrongly_sustainable": sum(score.prediction.sustainable for score in called_wrongly),
            "wrongly_unsustainable": sum(not score.prediction.sustainable for score in called_wrongly),
            "not_solved": sum(score.prediction.distribution is None for score in own),
        }
        rows.append(row)
    columns = (
        Column("model", "model"),
        *_SUMMARY,
        Column("sustainable_right", "carried or not: right", "fraction"),
        Column("wrongly_sustainable", "said carried, was not", "count"),
        Column("wrongly_unsustainable", "said not, was carried", "count"),
    )
    title = "Distance of the predicted delay from the measured one, |predicted / measured - 1|"
    return ResultTable("summary", title, columns, rows, _NOTE)


def errors_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors in each group of `GROUPINGS`."""
    rows: list[dict[str, Cell]] = []
    for grouping, group_of in GROUPINGS:
        for model, own in by_model(scores).items():
            groups: dict[tuple[float, str], list[Score]] = {}
            for score in own:
                if score.comparable:
                    groups.setdefault(group_of(score.measured), []).append(score)
            for place in sorted(place for place in groups if place[1]):
                rows.append({"by": grouping, "group": place[1], "model": model, **error_row(groups[place])})
    columns = (Column("by", "by"), Column("group", "group"), Column("model", "model"), *GROUP_COLUMNS)
    return ResultTable("errors", "The same distances by what they may depend on", columns, rows)


def settings_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors for the captures that are not plain, by the settings that differ."""
    return _by_setting("other-settings", "Stacks and paths other than the default", scores)


def sources_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors for sources whose rate is not constant: for all messages, and for each kind."""
    of_sources = [score for score in scores if score.measured.experiment.source is not None]
    return _by_setting("sources", "Sources whose rate is not constant, by kind of message", of_sources)


def _by_setting(name: str, title: str, scores: Sequence[Score]) -> ResultTable:
    rows: list[dict[str, Cell]] = []
    for model, own in by_model(scores).items():
        groups: dict[tuple[str, str], list[Score]] = {}
        for score in own:
            groups.setdefault((score.measured.collection, _otherwise(score.measured)), []).append(score)
        for (collection, setting), part in groups.items():
            comparable = [score for score in part if score.comparable]
            right = sum(score.sustainable_call_right for score in part) / len(part)
            row: dict[str, Cell] = {"collection": collection, "set": setting, "model": model, **error_row(comparable)}
            rows.append(row | {"sustainable_right": right})
    columns = (
        Column("collection", "captures"),
        Column("set", "set"),
        Column("model", "model"),
        *GROUP_COLUMNS,
        Column("sustainable_right", "carried or not: right", "fraction"),
    )
    return ResultTable(name, title, columns, rows)


def error_row(scores: Sequence[Score]) -> dict[str, Cell]:
    """Return the number of cases, median and mean error of each quantity, and the distance of the distributions."""
    row: dict[str, Cell] = {"cases": len(scores)}
    for quantity in QUANTITIES:
        errors = [error for score in scores if not math.isnan(error := score.error(quantity))]
        finite = [abs(error) for error in errors if math.isfinite(error)]
        beyond = [abs(far) for score in scores if not math.isnan(far := score.error_beyond_interval(quantity))]
        known = [far for far in beyond if math.isfinite(far)]
        row[f"median_{quantity}"] = _median([abs(error) for error in errors])
        row[f"mean_{quantity}"] = fmean(finite) if finite else None
        row[f"median_{quantity}_beyond_interval"] = _median(beyond)
        row[f"mean_{quantity}_beyond_interval"] = fmean(known) if known else None
        inside = [score.inside_interval(quantity) for score in scores]
        row[f"inside_{quantity}"] = sum(inside) / len(inside) if inside else None
        if quantity == "p95":
            row["median_signed_p95"] = _median(errors)
            row["never"] = len(errors) - len(finite)
    apart = [far for score in scores if math.isfinite(far := score.standard_errors_apart)]
    row["average_standard_errors"] = fmean(apart) if apart else None
    row["spread_standard_errors"] = pstdev(apart) if apart else None
    for name in ("mean_distance", "largest_gap"):
        row[f"median_{name}"] = _median([far for score in scores if not math.isnan(far := getattr(score, name))])
    return row


def by_model(scores: Sequence[Score]) -> dict[str, list[Score]]:
    """Return the scores of each model."""
    models: dict[str, list[Score]] = {}
    for score in scores:
        models.setdefault(score.model, []).append(score)
    return models


def _otherwise(capture: MeasuredDelay) -> str:
    """Return in words how a capture differs from a plain one."""
    changed = difference(capture.experiment, capture.plain_experiment)
    real_time = "" if capture.backend == VIRTUAL_TIME else f"real time, HZ {capture.hz}"
    return ", ".join(part for part in (capture.words, changed, real_time) if part)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def captures_table(measured: Sequence[MeasuredDelay]) -> ResultTable:
    """Return the measured delays: one row for each capture, and one row for each kind of messages in it."""
    rows = []
    for capture in (part for whole in measured for part in (whole, *whole.by_kind.values())):
        experiment = capture.experiment
        row: dict[str, Cell] = {
            "collection": capture.collection,
            "capture": capture.name,
            "application": experiment.application,
            "messages": capture.words,
            "packet_size": None if experiment.source else experiment.packet_size,
            "interval": None if experiment.source else experiment.interval,
            **attributes(experiment, "rtt", "loss", "congestion_control"),
            **attributes(capture, "hz", "backend", "kernel", "runs", "offered", "unread"),
            "measured_loss": capture.loss,
            "measured_rtt": capture.rtt,
            **attributes(capture, "utilization", "sustainable", "growth"),
        }
        for name in QUANTITIES:
            row |= interval_cells(name, getattr(capture, name))
        for limit in PLAYOUT_DELAYS:
            row |= interval_cells(f"late_{1e3 * limit:g}ms", capture.late[limit])
        rows.append(row)
    columns = (
        Column("capture", "capture"),
        Column("utilization", "utilization", "ratio"),
        Column("sustainable", "carried"),
        *(Column(name, name, "time", f"{name}_low", f"{name}_high") for name in QUANTITIES),
    )
    return ResultTable("captures", "What was measured", columns, rows)


def scores_table(scores: Sequence[Score]) -> ResultTable:
    """Return predictions and measurements for each capture and model: of all messages, and of each kind of messages."""
    rows = []
    for score in scores:
        capture = score.measured
        row: dict[str, Cell] = {
            "capture": capture.name,
            "collection": capture.collection,
            "messages": capture.words,
            "model": score.model,
            "utilization": capture.utilization,
            "measured_sustainable": capture.sustainable,
            "predicted_sustainable": score.prediction.sustainable,
            "comparable": score.comparable,
        }
        for quantity in QUANTITIES:
            row |= {
                f"measured_{quantity}": score.measurement(quantity).value,
                f"predicted_{quantity}": score.predicted(quantity),
                f"error_{quantity}": score.error(quantity),
                f"error_beyond_interval_{quantity}": score.error_beyond_interval(quantity),
            }
        row |= {"mean_distance": score.mean_distance, "largest_gap": score.largest_gap}
        for limit in PLAYOUT_DELAYS:
            key = f"late_{1e3 * limit:g}ms"
            row[f"measured_{key}"] = capture.late[limit].value
            row[f"predicted_{key}"] = score.prediction.late_fraction(limit)
        rows.append(row)
    columns = (
        Column("capture", "capture"),
        Column("model", "model"),
        Column("measured_p95", "measured p95", "time"),
        Column("predicted_p95", "predicted p95", "time"),
        Column("error_p95", "error", "error"),
    )
    return ResultTable("scores", "Predictions beside measurements", columns, rows)
