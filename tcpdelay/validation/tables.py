"""The tables of errors: by model, and by what the error may depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median

from tcpdelay.confidence import Interval
from tcpdelay.units import format_fraction, format_time
from tcpdelay.validation.measured import PLAYOUT_DELAYS, MeasuredDelay
from tcpdelay.validation.result_table import Cell, Column, ResultTable
from tcpdelay.validation.scores import QUANTITIES, Score

RTT_GROUPS = (0.050, 0.160)
UTILIZATION_BANDS = (0.1, 1 / 3, 2 / 3, 0.9)

_Grouping = tuple[str, Callable[[MeasuredDelay], tuple[float, str]]]


def rtt_group(rtt: float) -> tuple[int, str]:
    """Return the place and the name of the group of round-trip times [s] that `rtt` belongs to.

    Examples
    --------
    >>> rtt_group(0.020), rtt_group(0.160)
    ((0, 'below 50 ms'), (1, '50 ms to 160 ms'))
    """
    low, high = (format_time(edge) for edge in RTT_GROUPS)
    if rtt < RTT_GROUPS[0]:
        return 0, f"below {low}"
    return (1, f"{low} to {high}") if rtt <= RTT_GROUPS[1] else (2, f"above {high}")


def _utilization_band(measured: MeasuredDelay) -> tuple[float, str]:
    below = 0.0
    for place, edge in enumerate(UTILIZATION_BANDS):
        if measured.utilization < edge:
            return place, f"{below:.2g} to {edge:.2g}"
        below = edge
    return len(UTILIZATION_BANDS), f"{below:.2g} and more"


GROUPINGS: Sequence[_Grouping] = (
    ("RTT", lambda measured: rtt_group(measured.path.rtt)),
    ("loss", lambda measured: (measured.experiment.loss, format_fraction(measured.experiment.loss))),
    ("packet size", lambda measured: (measured.flow.packet_size, f"{measured.flow.packet_size} B")),
    ("interval", lambda measured: (measured.flow.interval, format_time(measured.flow.interval))),
    ("utilization", _utilization_band),
    ("HZ", lambda measured: (measured.hz, str(measured.hz))),
    ("congestion control", lambda measured: (0, measured.experiment.congestion_control)),
)
"""What errors are grouped by: each capture's place and name within the groups."""

_ERROR_COLUMNS = (
    Column("cases", "cases", "count"),
    *(Column(f"median_{name}", f"median {name}", "distance") for name in QUANTITIES),
    *(Column(f"mean_{name}", f"mean {name}", "distance") for name in QUANTITIES),
    Column("median_signed_p95", "p95, signed", "error"),
    Column("median_p95_beyond_interval", "p95 beyond interval", "distance"),
    Column("never", "never", "count"),
)

_SHOWN_BY_GROUP = tuple(column for column in _ERROR_COLUMNS if column.key not in ("mean_p50", "mean_p99", "mean_mean"))


def summary_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors over all cases, and how often it says rightly whether TCP carries the flow."""
    rows = []
    for model, own in _by_model(scores).items():
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
        *_ERROR_COLUMNS,
        Column("sustainable_right", "carried or not: right", "fraction"),
        Column("wrongly_sustainable", "said carried, was not", "count"),
        Column("wrongly_unsustainable", "said not, was carried", "count"),
    )
    return ResultTable(
        "summary",
        "Distance of the predicted delay from the measured one, |predicted / measured - 1|",
        columns,
        rows,
        "Cases: TCP carried the flow and the utilization is below 0.9. A prediction of never counts as an infinite "
        "distance in the median and is left out of the mean; 'never' counts them. 'p95 beyond interval' is the median "
        "distance from the nearest end of the measurement's 95 % interval. 'Carried or not' is over all captures.",
    )


def errors_table(scores: Sequence[Score]) -> ResultTable:
    """Return each model's errors within the groups of `GROUPINGS`."""
    rows: list[dict[str, Cell]] = []
    for grouping, group_of in GROUPINGS:
        for model, own in _by_model(scores).items():
            groups: dict[tuple[float, str], list[Score]] = {}
            for score in own:
                if score.comparable:
                    groups.setdefault(group_of(score.measured), []).append(score)
            for place in sorted(groups):
                rows.append({"by": grouping, "group": place[1], "model": model, **error_row(groups[place])})
    columns = (Column("by", "by"), Column("group", "group"), Column("model", "model"), *_SHOWN_BY_GROUP)
    return ResultTable("errors", "The same distances by what they may depend on", columns, rows)


def error_row(scores: Sequence[Score]) -> dict[str, Cell]:
    """Return the number of cases, and median and mean distance of each quantity."""
    row: dict[str, Cell] = {"cases": len(scores)}
    for quantity in QUANTITIES:
        errors = [error for score in scores if not math.isnan(error := score.error(quantity))]
        finite = [abs(error) for error in errors if math.isfinite(error)]
        row[f"median_{quantity}"] = median(map(abs, errors)) if errors else None
        row[f"mean_{quantity}"] = fmean(finite) if finite else None
        if quantity == "p95":
            row["median_signed_p95"] = median(errors) if errors else None
            row["never"] = len(errors) - len(finite)
    beyond = [abs(far) for score in scores if not math.isnan(far := score.error_beyond_interval("p95"))]
    row["median_p95_beyond_interval"] = median(beyond) if beyond else None
    return row


def captures_table(measured: Sequence[MeasuredDelay]) -> ResultTable:
    """Return what was measured, one row per capture."""
    rows = []
    for capture in measured:
        experiment = capture.experiment
        row: dict[str, Cell] = {
            "collection": capture.collection,
            "capture": capture.name,
            "application": experiment.application,
            "packet_size": experiment.packet_size,
            "interval": experiment.interval,
            "rtt": experiment.rtt,
            "loss": experiment.loss,
            "congestion_control": experiment.congestion_control,
            "hz": capture.hz,
            "backend": capture.backend,
            "kernel": capture.kernel,
            "runs": capture.runs,
            "offered": capture.offered,
            "unread": capture.unread,
            "measured_loss": capture.loss,
            "measured_rtt": capture.rtt,
            "utilization": capture.utilization,
            "sustainable": capture.sustainable,
            "growth": capture.growth,
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
    """Return predictions beside measurements, one row per capture and model."""
    rows = []
    for score in scores:
        capture = score.measured
        row: dict[str, Cell] = {
            "capture": capture.name,
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


def interval_cells(name: str, interval: Interval) -> dict[str, Cell]:
    """Return an estimate and the ends of its interval under its name."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _by_model(scores: Sequence[Score]) -> dict[str, list[Score]]:
    models: dict[str, list[Score]] = {}
    for score in scores:
        models.setdefault(score.model, []).append(score)
    return models
