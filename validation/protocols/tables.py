"""The tables that the scripts of this folder write."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "protocols"


def write_table(name: str, rows: Sequence[Mapping[str, object]], digits: int = 6) -> Path:
    """Write rows as `name`.csv, numbers with `digits` significant digits, and return the file; cells may be missing."""
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
