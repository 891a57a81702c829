"""The tables of errors: by model, by what the error may depend on, and by what a capture changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, pstdev

from tcpdelay.report.result_table import Cell, Column, ResultTable
from tcpdelay.validation.comparisons import difference
from tcpdelay.validation.grouping import GROUPINGS
from tcpdelay.validation.holdout import held_out
from tcpdelay.validation.measured import VIRTUAL_TIME, MeasuredDelay
from tcpdelay.validation.models import ScoredModel
from tcpdelay.validation.scores import QUANTITIES, Score
from tcpdelay.validation.simulated import not_simulated

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
_BY_GROUP = (
    Column("cases", "cases", "count"),
    *_MEDIANS,
    Column("mean_p95", "mean p95", "distance"),
    Column("mean_p95_beyond_interval", "mean p95 beyond interval", "distance"),
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


def summary_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors over all cases, and how often it says rightly whether TCP carries the flow."""
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
    """Return each model's errors within the groups of `GROUPINGS`."""
    rows: list[dict[str, Cell]] = []
    for grouping, group_of in GROUPINGS:
        for model, own in by_model(scores).items():
            groups: dict[tuple[float, str], list[Score]] = {}
            for score in own:
                if score.comparable:
                    groups.setdefault(group_of(score.measured), []).append(score)
            for place in sorted(groups):
                rows.append({"by": grouping, "group": place[1], "model": model, **error_row(groups[place])})
    columns = (Column("by", "by"), Column("group", "group"), Column("model", "model"), *_BY_GROUP)
    return ResultTable("errors", "The same distances by what they may depend on", columns, rows)


def halves_table(scores: Sequence[Score], models: Sequence[ScoredModel]) -> ResultTable:
    """Return the errors of the models that ask for it on the captures held out from their design, and on the others."""
    rows: list[dict[str, Cell]] = []
    asking = {model.name for model in models if model.halves}
    for model, own in by_model(scores).items():
        for half, out in (("held out", True), ("seen in design", False)) if model in asking else ():
            part = [score for score in own if held_out(score.measured.name) == out]
            right = sum(score.sustainable_call_right for score in part) / len(part) if part else None
            errors = error_row([score for score in part if score.comparable])
            rows.append({"model": model, "half": half, **errors, "sustainable_right": right})
    columns = (
        Column("model", "model"),
        Column("half", "captures"),
        *_BY_GROUP,
        Column("sustainable_right", "carried or not: right", "fraction"),
    )
    return ResultTable("halves", "Captures held out from a model's design, and the others", columns, rows)


def settings_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors on captures that are not plain, by what is set otherwise there."""
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
        *_BY_GROUP,
        Column("sustainable_right", "carried or not: right", "fraction"),
    )
    return ResultTable("other-settings", "Stacks and paths other than the default", columns, rows)


def not_simulated_table(measured: Sequence[MeasuredDelay]) -> ResultTable:
    """Return what of the captures the simulator does not describe, and how many captures that are."""
    counts: dict[tuple[str, str], int] = {}
    for capture in measured:
        reason = not_simulated(capture.experiment)
        if reason:
            key = capture.collection, reason
            counts[key] = counts.get(key, 0) + 1
    rows: list[dict[str, Cell]] = [
        {"collection": collection, "reason": reason, "captures": count}
        for (collection, reason), count in counts.items()
    ]
    columns = (Column("collection", "captures"), Column("reason", "with"), Column("captures", "number", "count"))
    return ResultTable("not-simulated", "What the simulator does not describe", columns, rows)


def error_row(scores: Sequence[Score]) -> dict[str, Cell]:
    """Return the number of cases, median and mean distance of each quantity, and how far whole distributions are."""
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
    """Return what makes a capture differ from a plain one, in words."""
    changed = difference(capture.experiment, capture.plain_experiment)
    real_time = "" if capture.backend == VIRTUAL_TIME else f"real time, HZ {capture.hz}"
    return ", ".join(part for part in (changed, real_time) if part)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
