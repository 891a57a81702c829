"""Comparisons of a model with the captures of a folder: one row per capture, a table file and a summary."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path as FilePath

import pandas as pd

from tcpdelay.study.validation.captures import MeasuredDelay, measure_all

RESULTS = FilePath(__file__).parent.parent / "results"


def write_comparison(
    name: str,
    description: str,
    compared: Callable[[MeasuredDelay], dict[str, object]],
    summary: Callable[[pd.DataFrame], str],
) -> pd.DataFrame:
    """Compare all captures of the folder on the command line; return the table.

    Writes `NAME.csv` and `NAME.md`, and prints each row and the summary.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("captures", type=FilePath, help="set or folder of the captures")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    rows = []
    for measured in measure_all(arguments.captures, sys.exit):
        rows.append(compared(measured))
        print(rows[-1], file=sys.stderr, flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(arguments.output / f"{name}.csv", index=False)
    (arguments.output / f"{name}.md").write_text(summary(table), encoding="utf-8")
    print(summary(table))
    return table
