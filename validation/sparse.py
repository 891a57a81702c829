"""Compare chain and simulator with captures of sparse flows, such as `captures/sparse.parquet`.

It writes `results/sparse.csv` with one line per capture, and `results/sparse.md` with the mean errors by kernel and
smallest timeout. `validation/specs/sparse.toml` makes the captures again. A retransmission is spurious if the path has
not dropped the segment: the receiver then reports a duplicate (D-SACK).
"""

from __future__ import annotations

import pandas as pd

from scoring.capture_comparison import write_comparison
from scoring.chain_errors import MEASURES, measures
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import SIMULATOR, error_beyond, simulated_flow

MODELS = ("chain", "simulator")


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return a capture's delays beside the predictions of the chain [s]; errors are relative."""
    experiment = measured.experiment
    question = simulated_flow(measured)
    assert question is not None
    stack = question.stack
    predicted = {
        "chain": predict(Scenario(measured.flow, measured.path, stack), method="chain").distribution,
        "simulator": SIMULATOR.answer(question).distribution,
    }
    row: dict[str, object] = {
        "capture": measured.name,
        "kernel": measured.kernel,
        "interval": experiment.interval,
        "rtt": experiment.rtt,
        "rto_min": stack.rto_min,
        "loss": measured.path.loss,
        "retransmitted": measured.retransmitted,
        "spurious": measured.spurious,
    }
    for name in MEASURES:
        interval = getattr(measured, name)
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    for model in MODELS:
        figures = measures(predicted[model], model)
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
    retransmitted, spurious = table["retransmitted"].sum(), table["spurious"].sum()
    said.append(f"- {spurious} of {retransmitted} retransmissions were spurious (D-SACKs).")
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
