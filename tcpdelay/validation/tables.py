"""The tables of single captures: what was measured, and what was predicted of it."""

from __future__ import annotations

from collections.abc import Sequence

from tcpdelay.confidence import Interval
from tcpdelay.report.result_table import Cell, Column, ResultTable
from tcpdelay.validation.measured import PLAYOUT_DELAYS, MeasuredDelay
from tcpdelay.validation.scores import QUANTITIES, Score


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
            "collection": capture.collection,
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


def interval_cells(name: str, interval: Interval) -> dict[str, Cell]:
    """Return an estimate and the ends of its interval under its name."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
