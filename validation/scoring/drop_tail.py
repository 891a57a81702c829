"""The published drop-tail measurements, compared with captures of this project and with the models."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

from tcpdelay.report.document import Cell, Column, ResultTable, interval_cells
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import Predictions, relative_error

RouterCase = tuple[int, str, int]
"""Packet size [bytes], unit of the queue's limit ("packets" or "bytes"), and number of web flows."""

PACKET_SIZES = {"Table V": 174, "Table VI": 1448}
"""Packet size of each table of the paper [bytes]."""


def published_figures(file: str | os.PathLike[str]) -> dict[RouterCase, dict[str, float]]:
    """Return the published figures of the router by case and quantity, such as "p95, model" [s] or "loss" [%]."""
    path = FilePath(file)
    if not path.is_file():
        return {}
    figures: dict[RouterCase, dict[str, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row["item"] in PACKET_SIZES:
                    _, _, unit, web_flows, *_ = row["condition"].replace(",", "").split()
                    case = PACKET_SIZES[row["item"]], unit, int(web_flows)
                    figures.setdefault(case, {})[row["quantity"]] = float(row["value"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: is no table of published figures: {error}") from None
    return figures


def drop_tail_table(
    measured: Sequence[MeasuredDelay],
    published: Mapping[RouterCase, Mapping[str, float]],
    predictions: Predictions,
) -> ResultTable:
    """Return captures behind a router, the published figures, and the models at the measured loss and RTT."""
    rows: list[dict[str, Cell]] = []
    routed = [one for one in measured if one.experiment.routed and one.experiment.application == "cbr"]
    asked = [name for name, model in predictions.models.items() if any(map(model.question, routed))]
    for capture in routed:
        scenario = router_case(capture)
        size, queue, web_flows = scenario
        figures = published.get(scenario, {})
        row: dict[str, Cell] = {
            "packet_size": size,
            "queue": queue,
            "web_flows": web_flows,
            "congestion_control": capture.experiment.congestion_control,
            "hz": capture.hz,
            "published_loss": figures.get("loss", math.nan) / 100,
            "published_rtt": figures.get("round-trip time"),
            "published_measured_p95": figures.get("p95, measured"),
            "published_model_p95": figures.get("p95, model"),
            "loss": capture.loss,
            "rtt": capture.rtt,
            "utilization": capture.utilization,
            "sustainable": capture.sustainable,
            **interval_cells("p95", capture.p95),
        }
        for name in asked:
            prediction = predictions.of(name, capture)
            predicted = math.nan if prediction is None else prediction.quantile(0.95)
            row[name] = predicted
            row[f"error_{name}"] = relative_error(predicted, capture.p95.value)
        rows.append(row)
    rows.sort(key=lambda row: tuple(str(row[key]).rjust(6) for key in ("packet_size", "queue", "web_flows")))
    columns = (
        Column("packet_size", "bytes", "count"),
        Column("queue", "queue in"),
        Column("web_flows", "web", "count"),
        Column("congestion_control", "control"),
        Column("hz", "Hz", "count"),
        Column("published_measured_p95", "published, measured", "time"),
        Column("published_model_p95", "published, model", "time"),
        Column("p95", "measured here", "time", "p95_low", "p95_high"),
        Column("loss", "loss here", "fraction"),
        Column("rtt", "RTT here", "time"),
        *(
            column
            for name in asked
            for column in (Column(name, name, "time"), Column(f"error_{name}", "error", "error"))
        ),
    )
    return ResultTable(
        "drop-tail",
        "95th percentile behind a drop-tail router",
        columns,
        rows,
        "The models use the loss of the bottleneck and the mean round-trip time that were measured here, correlated "
        "losses, and a way back without queue. Their errors are relative to the delays measured here.",
    )


def router_case(capture: MeasuredDelay) -> RouterCase:
    """Return the published case that a capture behind a router repeats."""
    experiment = capture.experiment
    queue = "bytes" if experiment.queue_bytes is not None else "packets"
    return experiment.packet_size, queue, experiment.web_flows
