"""Comparisons of a model with the captures of a folder: one row per capture, a table file and a summary."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from scoring.spreads import model_spread
from tcpdelay.delays import Spread
from tcpdelay.study.validation.captures import MeasuredDelay, measure_all
from tcpdelay.study.validation.predictions import HALF_WIDTH

RESULTS = FilePath(__file__).parent.parent / "results"


def error_in_captures(
    predicted: pd.Series, measured: pd.DataFrame, name: str, standard_error: pd.Series | float = 0.0
) -> Spread:
    """Return the error of a model in captures, without the sampling errors of the captures.

    `measured` has the quantity as `name`, and the ends of its intervals as `name_low` and `name_high`.
    """
    errors = predicted / measured[name] - 1
    # The capture's standard error, on the side of the prediction.
    ends = measured[f"{name}_high"].where(errors > 0, measured[f"{name}_low"])
    sampling = np.hypot((ends / measured[name] - 1).abs() / HALF_WIDTH, standard_error)
    known = np.isfinite(errors) & np.isfinite(sampling)
    return model_spread(errors[known].to_numpy(np.float64), sampling[known].to_numpy(np.float64))


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
