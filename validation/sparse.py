"""Compare the chain with captures of sparse flows: `python validation/sparse.py validation/captures/sparse`.

It writes `results/sparse.csv` with one line per capture, and `results/sparse.md` with the mean errors by kernel and
smallest timeout. `validation/specs/sparse.toml` makes the captures again.
"""

from __future__ import annotations

import pandas as pd

from scoring.capture_comparison import write_comparison
from scoring.chain_errors import MEASURES, measures
from tcpdelay.models.predict import predict
from tcpdelay.questions.validation.captures import MeasuredDelay
from tcpdelay.questions.validation.scores import error_beyond
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Stack

MODELS = ("chain",)


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return a capture's delays beside the predictions of the chain [s]; errors are relative."""
    experiment = measured.experiment
    stack = Stack.linux(experiment.congestion_control, hz=measured.hz, rto_min=experiment.rto_min or 0.2)
    scenario = Scenario(measured.flow, measured.path, stack)
    row: dict[str, object] = {
        "capture": measured.name,
        "kernel": measured.kernel,
        "interval": experiment.interval,
        "rtt": experiment.rtt,
        "rto_min": stack.rto_min,
        "loss": measured.path.loss,
    }
    for name in MEASURES:
        interval = getattr(measured, name)
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    for model in MODELS:
        figures = measures(predict(scenario, method=model).distribution, model)
        row |= figures
        for name in MEASURES:
            beyond = error_beyond(figures[f"{model}_{name}"], getattr(measured, name))
            row[f"{model}_{name}_beyond"] = round(abs(beyond), 4)
    return row


def summary(table: pd.DataFrame) -> str:
    """Return the mean errors beyond the captures' intervals, in words and by kernel and smallest timeout."""
    errors = [f"{model}_{name}_beyond" for model in MODELS for name in MEASURES]
    said = [f"{len(table)} captures. Mean errors beyond the 95 % intervals of the captures:\n"]
    for model in MODELS:
        figures = ", ".join(f"{name} {table[f'{model}_{name}_beyond'].mean():.1%}" for name in MEASURES)
        said.append(f"- {model}: {figures}; largest error of p99 {table[f'{model}_p99_beyond'].max():.1%}.")
    keys = ["kernel", "rto_min", "interval"]
    found = table.groupby(keys)[errors].mean().map("{:.1%}".format)
    found.columns = [name.removesuffix("_beyond").replace("_", ": ") for name in found.columns]
    found.insert(0, "captures", table.groupby(keys).size())
    return "\n".join([*said, "", found.reset_index().to_markdown(index=False), ""])


def main() -> None:
    """Write the comparison of all captures of a folder."""
    write_comparison("sparse", __doc__ or "", compared, summary)


if __name__ == "__main__":
    main()
