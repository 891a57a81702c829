"""Published figures beside ours: how the scripts of this folder read the first and write both.

A file of `validation/published/` has one row for each published figure. A file of `validation/results/papers/` has the
same rows with our figure, its interval and the distance.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tcpdelay.statistics import Interval, mean_interval

VALIDATION = Path(__file__).parents[1]
PUBLISHED = VALIDATION / "published"
RESULTS = VALIDATION / "results" / "papers"


class Figure(NamedTuple):
    """A published figure."""

    item: str  # Where the paper has it: a table, a figure, a section
    condition: str  # Settings that distinguish it from other figures of the item
    # quantity, unit: What it is, and its unit.
    quantity: str
    unit: str
    value: float
    error: float  # Half of the published interval, or the precision with which a chart can be read; NaN if unknown
    kind: str  # "printed", "chart" (read from a description of a chart or its axis) or "claim" (said in words)


def published_figures(paper: str) -> list[Figure]:
    """Return the published figures of a paper, in the order of its file."""
    with (PUBLISHED / f"{paper}.csv").open(newline="", encoding="utf-8") as file:
        return [
            Figure(
                row["item"],
                row["condition"],
                row["quantity"],
                row["unit"],
                float(row["value"]),
                float(row["error"] or "nan"),
                row["kind"],
            )
            for row in csv.DictReader(file)
        ]


def interval_over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of one value per seed, and its 95 % interval by Student's distribution."""
    return mean_interval([np.array(values)], batches=len(values))


def with_interval(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean over the seeds and its 95 % interval as columns."""
    mean, low, high = interval_over_seeds(values)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def write_comparison(paper: str, ours: Mapping[Figure, Interval], reasons: Mapping[str, str]) -> Path:
    """Write each published figure beside ours; `reasons` maps an item to the likely reason of its distances."""
    return write_table(
        f"{paper}-published",
        [
            {
                **figure._asdict(),
                "ours": found.value,
                "ours_low": found.low,
                "ours_high": found.high,
                "distance": found.value / figure.value - 1 if figure.value else found.value,
                "reason": reasons.get(figure.item, ""),
            }
            for figure, found in ours.items()
        ],
    )


def write_table(name: str, rows: Iterable[Mapping[str, object]], digits: int = 6) -> Path:
    """Write rows as `name`.csv, numbers with `digits` significant digits, and return the file; cells may be missing."""
    rows = list(rows)
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{name}.csv"
    with file.open("w", newline="", encoding="utf-8") as output:
        columns = list(dict.fromkeys(column for row in rows for column in row))
        table = csv.DictWriter(output, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(
            {column: f"{value:.{digits}g}" if isinstance(value, float) else value for column, value in row.items()}
            for row in rows
        )
    return file
