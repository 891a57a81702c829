"""Compare chain and simulator with captures at high load: `python validation/high_load.py CAPTURES`.

It writes `results/high-load.csv` with one line per capture, and `results/high-load.md` with the mean errors of each
group. `validation/specs/high-load.toml` makes the captures again; they are too large for the repository.
"""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from scoring.capture_comparison import write_comparison
from scoring.chain_errors import MEASURES, measures
from tcpdelay.models.predict import capacity, predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Stack, kernel_of_release
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import error_beyond

MODELS = ("chain", "simulation")
DIGITS = 6
UTILIZATIONS = (0.0, 0.425, 0.575, 0.725, 0.85, 1.0)
"""Limits of the groups: the flow's rate relative to the rate that the chain expects TCP to carry."""


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return a capture's delays beside the predictions of both models [s]; errors are relative."""
    kernel = kernel_of_release(measured.kernel)
    stack = Stack.linux(measured.experiment.congestion_control, hz=measured.hz, kernel=kernel)
    scenario = Scenario(measured.flow, measured.path, stack)
    row: dict[str, object] = {
        "capture": measured.name,
        "rtt": measured.path.rtt,
        "loss": measured.path.loss,
        "congestion_control": measured.experiment.congestion_control,
        "utilization": round(measured.flow.packet_rate / capacity(scenario), 3),
        "carried": measured.sustainable,
    }
    for name in MEASURES:
        interval = getattr(measured, name)
        for end in ("value", "low", "high"):
            row[name if end == "value" else f"{name}_{end}"] = round(getattr(interval, end), DIGITS)
    for model in MODELS:
        delays = predict(scenario, method=model).distribution
        carried = delays is not None and delays.sustainable
        figures = measures(delays if carried else None, model)
        row |= {f"{model}_carried": carried, **figures}
        for name in MEASURES:
            beyond = error_beyond(figures[f"{model}_{name}"], getattr(measured, name))
            row[f"{model}_{name}_beyond"] = round(abs(beyond), 4)
    return row


def groups(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean errors beyond the captures' intervals, by round-trip time and utilization."""
    labels = [f"{low:g} to {high:g}" for low, high in pairwise(UTILIZATIONS)]
    group = pd.cut(table["utilization"], UTILIZATIONS, labels=labels)
    keys = [(table["rtt"] * 1000).round().astype(int).rename("RTT [ms]"), group.rename("utilization")]
    errors = table[[f"{model}_{name}_beyond" for model in MODELS for name in MEASURES]]
    found = errors.groupby(keys, observed=True).mean().map("{:.1%}".format, na_action="ignore").fillna("–")
    found.columns = [name.removesuffix("_beyond").replace("_", ": ") for name in found.columns]
    found.insert(0, "captures", table.groupby(keys, observed=True).size())
    found.insert(1, "± of p95", half_width(table).groupby(keys, observed=True).median().map("{:.0%}".format))
    return found


def half_width(table: pd.DataFrame) -> pd.Series:
    """Return half the 95 % interval of each capture's p95, relative to p95."""
    return (table["p95_high"] - table["p95_low"]) / 2 / table["p95"]


def summary(table: pd.DataFrame) -> str:
    """Return the mean errors over all captures in words, and the mean errors of each group in a table."""
    width = half_width(table).median()
    said = [f"{len(table)} captures. Half the 95 % interval of p95 (±) is {width:.1%} in the median.\n"]
    for model in MODELS:
        known = table[table[f"{model}_carried"] & table["carried"]]
        figures = ", ".join(
            f"{name} {known[f'{model}_{name}_beyond'].mean():.1%} beyond the interval "
            f"({(known[f'{model}_{name}'] / known[name] - 1).mean():+.1%} in the mean with its sign)"
            for name in MEASURES
        )
        right = (table[f"{model}_carried"] == table["carried"]).sum()
        said.append(f"The {model}: {figures}; right in {right} captures whether TCP carries the flow.\n")
    return "\n".join([*said, groups(table).reset_index().to_markdown(index=False), ""])


def main() -> None:
    """Write the comparison of all captures of a folder."""
    write_comparison("high-load", __doc__ or "", compared, summary)


if __name__ == "__main__":
    main()
