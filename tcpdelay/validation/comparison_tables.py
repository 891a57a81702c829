"""The tables of captures beside captures: one row per pair, and what many pairs come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from tcpdelay.report.result_table import Cell, Column, ResultTable
from tcpdelay.validation.comparisons import Comparison
from tcpdelay.validation.grouping import rtt_group
from tcpdelay.validation.measured import QUANTILES
from tcpdelay.validation.tables import interval_cells


def comparisons_table(name: str, title: str, comparisons: Sequence[Comparison], note: str = "") -> ResultTable:
    """Return captures beside captures, with the ratios of their quantiles."""
    rows = []
    for pair in comparisons:
        experiment = pair.measured.experiment
        row: dict[str, Cell] = {
            "changed": pair.changed,
            "packet_size": experiment.packet_size,
            "interval": experiment.interval,
            "rtt": experiment.rtt,
            "loss": experiment.loss,
            "congestion_control": experiment.congestion_control,
            "hz": pair.measured.hz,
        }
        for quantity in QUANTILES:
            row |= interval_cells(quantity, getattr(pair.measured, quantity))
            row |= interval_cells(f"reference_{quantity}", getattr(pair.reference, quantity))
            row |= interval_cells(f"ratio_{quantity}", pair.ratio(quantity))
            row[f"apart_{quantity}"] = pair.apart(quantity)
        rows.append(row)
    columns = (
        Column("changed", "changed"),
        Column("packet_size", "bytes", "count"),
        Column("interval", "interval", "time"),
        Column("rtt", "RTT", "time"),
        Column("loss", "loss", "fraction"),
        Column("congestion_control", "control"),
        Column("hz", "Hz", "count"),
        Column("p95", "p95", "time", "p95_low", "p95_high"),
        Column("reference_p95", "beside", "time", "reference_p95_low", "reference_p95_high"),
        Column("ratio_p50", "ratio of p50", "ratio", "ratio_p50_low", "ratio_p50_high"),
        Column("ratio_p95", "ratio of p95", "ratio", "ratio_p95_low", "ratio_p95_high"),
        Column("apart_p95", "apart"),
    )
    return ResultTable(name, title, columns, rows, note)


def pairs_table(pairs: Sequence[Comparison]) -> ResultTable:
    """Return what many pairs come to by kind and round-trip time: median ratios, and how many are apart."""
    groups: dict[tuple[str, tuple[int, str]], list[Comparison]] = {}
    for pair in pairs:
        # Where TCP does not carry the flow, the delays only tell how long the run was.
        if pair.measured.sustainable and pair.reference.sustainable:
            groups.setdefault((pair.changed, rtt_group(pair.measured.path.rtt)), []).append(pair)
    rows = []
    for (kind, (_, rtt)), own in sorted(groups.items(), key=lambda item: item[0]):
        row: dict[str, Cell] = {"kind": kind, "rtt": rtt, "pairs": len(own)}
        for quantity in QUANTILES:
            known = [ratio for pair in own if math.isfinite(ratio := pair.ratio(quantity).value)]
            row[f"ratio_{quantity}"] = median(known) if known else None
            row[f"apart_{quantity}"] = sum(pair.apart(quantity) for pair in own) / len(own)
        rows.append(row)
    columns = (
        Column("kind", "pairs of"),
        Column("rtt", "RTT"),
        Column("pairs", "pairs", "count"),
        *(
            column
            for name in QUANTILES
            for column in (
                Column(f"ratio_{name}", f"median ratio of {name}", "ratio"),
                Column(f"apart_{name}", "apart", "fraction"),
            )
        ),
    )
    return ResultTable(
        "pairs",
        "Timer rates and congestion controls",
        columns,
        rows,
        "Pairs on the same path where TCP carried both flows; 'apart' is the share of pairs that differ by more than "
        "their 95 % intervals explain, which one in twenty does by chance.",
    )
