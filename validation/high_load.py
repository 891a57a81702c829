"""Compare chain and simulator with captures at high load: `python validation/high_load.py CAPTURES`.

It writes `results/high-load.csv` with one line per capture, and `results/high-load.md` with the mean errors of each
group. `validation/specs/high-load.toml` makes the captures again; they are too large for the repository.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path as FilePath

import pandas as pd

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.predict import capacity, predict
from tcpdelay.questions.validation.captures import MeasuredDelay, measure_all
from tcpdelay.questions.validation.scores import error_beyond
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Stack

RESULTS = FilePath(__file__).parent / "results"
MODELS = ("chain", "simulation")
FIGURES = ("p95", "p99", "mean")
DIGITS = 6
UTILIZATIONS = (0.0, 0.425, 0.575, 0.725, 0.85, 1.0)
"""Limits of the groups: the flow's rate relative to the rate that the chain expects TCP to carry."""


def _figure(delays: DelayDistribution, name: str) -> float:
    return delays.mean if name == "mean" else delays.quantile(float(name[1:]) / 100)


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return a capture's delays beside the predictions of both models [s]; errors are relative."""
    stack = Stack.linux(measured.experiment.congestion_control, hz=measured.hz)
    scenario = Scenario(measured.flow, measured.path, stack)
    row: dict[str, object] = {
        "capture": measured.name,
        "rtt": measured.path.rtt,
        "loss": measured.path.loss,
        "congestion_control": measured.experiment.congestion_control,
        "utilization": round(measured.flow.packet_rate / capacity(scenario), 3),
        "carried": measured.sustainable,
    }
    for name in FIGURES:
        interval = getattr(measured, name)
        for end in ("value", "low", "high"):
            row[name if end == "value" else f"{name}_{end}"] = round(getattr(interval, end), DIGITS)
    for model in MODELS:
        delays = predict(scenario, method=model).distribution
        row[f"{model}_carried"] = bool(delays is not None and delays.sustainable)
        for name in FIGURES:
            value = math.nan if delays is None or not delays.sustainable else _figure(delays, name)
            row[f"{model}_{name}"] = round(value, DIGITS)
            row[f"{model}_{name}_beyond"] = round(abs(error_beyond(value, getattr(measured, name))), 4)
    return row


def groups(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean errors beyond the captures' intervals, by round-trip time and utilization."""
    labels = [f"{low:g} to {high:g}" for low, high in pairwise(UTILIZATIONS)]
    group = pd.cut(table["utilization"], UTILIZATIONS, labels=labels)
    keys = [(table["rtt"] * 1000).round().astype(int).rename("RTT [ms]"), group.rename("utilization")]
    errors = table[[f"{model}_{name}_beyond" for model in MODELS for name in FIGURES]]
    found = errors.groupby(keys, observed=True).mean().map("{:.1%}".format, na_action="ignore").fillna("–")
    found.columns = [name.removesuffix("_beyond").replace("_", ": ") for name in found.columns]
    found.insert(0, "captures", table.groupby(keys, observed=True).size())
    return found


def summary(table: pd.DataFrame) -> str:
    """Return the errors of all captures in words, and those of each group as a table."""
    width = ((table["p95_high"] - table["p95_low"]) / 2 / table["p95"]).median()
    said = [f"{len(table)} captures. Half the 95 % interval of p95 is {width:.1%} in the median.\n"]
    for model in MODELS:
        known = table[table[f"{model}_carried"] & table["carried"]]
        figures = ", ".join(
            f"{name} {known[f'{model}_{name}_beyond'].mean():.1%} beyond the interval "
            f"({(known[f'{model}_{name}'] / known[name] - 1).mean():+.1%} in the mean with its sign)"
            for name in FIGURES
        )
        right = (table[f"{model}_carried"] == table["carried"]).mean()
        said.append(f"The {model}: {figures}; right in {right:.0%} of the captures whether TCP carries the flow.\n")
    return "\n".join([*said, groups(table).reset_index().to_markdown(index=False), ""])


def compared_all(captures: Sequence[MeasuredDelay]) -> pd.DataFrame:
    """Return the table of all captures."""
    rows = []
    for measured in captures:
        rows.append(compared(measured))
        print(rows[-1], file=sys.stderr, flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Write the comparison of all captures of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("captures", type=FilePath, help="folder of the captures")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    table = compared_all(measure_all(arguments.captures, sys.exit))
    table.to_csv(arguments.output / "high-load.csv", index=False)
    (arguments.output / "high-load.md").write_text(summary(table), encoding="utf-8")
    print(summary(table))


if __name__ == "__main__":
    main()
