"""Compare Linux 6.12 and 7.3 with 6.1 on the same cases: `python validation/kernels.py`.

`validation/specs/kernels/` has the cases, and `validation/kernel-captures/` their captures. Linux 6.1 has run them in
the set of the same name in `validation/captures/`, or else in this one. The script writes `results/kernels.csv` with
one line per case and kernel, and `results/kernels.md` with the differences between kernels and the models' errors by
kernel.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path as FilePath

import pandas as pd

from scoring.capture_pairs import CapturePair
from tcpdelay.questions.validation.captures import VIRTUAL_TIME, MeasuredDelay, measure_all
from tcpdelay.questions.validation.predictions import LINUX, SIMULATOR, Predictions
from tcpdelay.questions.validation.scores import error_beyond
from tcpdelay.scenario.kernels import TIME_BASED_RECOVERY, kernel_of_release
from tcpdelay.testbed.experiment import Experiment

HERE = FilePath(__file__).parent
CAPTURES, NEWER, RESULTS = HERE / "captures", HERE / "kernel-captures", HERE / "results"
REFERENCE = "6.1"
QUANTITIES = ("mean", "p95", "p99")
MODELS = (LINUX, SIMULATOR)


def case(measured: MeasuredDelay) -> tuple[Experiment, int]:
    """Return the settings without the duration, which changes only the precision, and the timer rate."""
    return replace(measured.experiment, duration=Experiment.duration), measured.hz


def explanation(pair: CapturePair) -> str:
    """Return the rule of the table that explains a difference between kernels; empty if no rule has an effect."""
    if pair.measured.experiment.recovery == 0 and TIME_BASED_RECOVERY.holds(kernel_of_release(pair.measured.kernel)):
        return TIME_BASED_RECOVERY.name
    return ""


def row(pair: CapturePair, predictions: Predictions) -> dict[str, object]:
    """Return the delays of a case on two kernels, their ratios, and the errors of both models on the newer kernel."""
    measured, reference = pair.measured, pair.reference
    found: dict[str, object] = {
        "set": measured.collection,
        "case": measured.experiment.name,
        "hz": measured.hz,
        "kernel": kernel_of_release(measured.kernel),
        "carried": measured.sustainable and reference.sustainable,
        "explained_by": explanation(pair),
    }
    for name in QUANTITIES:
        ratio = pair.ratio(name)
        found |= {f"{name}_{REFERENCE}": getattr(reference, name).value, name: getattr(measured, name).value}
        found |= {f"{name}_ratio": ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
        found[f"{name}_differs"] = pair.apart(name)
    for model in MODELS:
        for kernel, capture in (("", measured), (f"_{REFERENCE}", reference)):
            predicted = predictions.of(model.name, capture)
            for name, probability in (("mean", None), ("p95", 0.95), ("p99", 0.99)):
                value = None
                if predicted is not None:
                    value = predicted.mean if probability is None else predicted.quantile(probability)
                error = None if value is None else abs(error_beyond(value, getattr(capture, name)))
                found[f"{model.name}_{name}_beyond{kernel}"] = error
    return found


def summary(table: pd.DataFrame) -> str:
    """Return the differences between kernels and the errors of the models by kernel."""
    carried = table[table["carried"]]
    cases = " and ".join(f"{own['case'].nunique()} cases at {hz} Hz" for hz, own in table.groupby("hz"))
    said = [
        f"{cases}, {len(table)} comparisons with Linux {REFERENCE}; TCP carries the flow in "
        f"{len(carried)} of them, which count here. A difference is significant if the 95 % interval of the ratio of "
        "both kernels excludes 1; by chance one in twenty does.\n"
    ]
    counts = []
    for (kernel, hz, explained), own in carried.groupby(["kernel", "hz", carried["explained_by"] != ""]):
        line: dict[str, object] = {
            "kernel": kernel,
            "Hz": hz,
            "a rule differs": "yes" if explained else "no",
            "cases": len(own),
        }
        for name in QUANTITIES:
            line[f"median ratio of {name}"] = f"{own[f'{name}_ratio'].median():.3f}"
            line[f"{name} differs"] = int(own[f"{name}_differs"].sum())
        counts.append(line)
    said += [pd.DataFrame(counts).to_markdown(index=False), "", "## Significant differences\n"]
    shown, within_tick = [], 0
    for name in QUANTITIES:
        for one in carried[carried[f"{name}_differs"]].to_dict("records"):
            if name != "mean" and abs(one[name] - one[f"{name}_{REFERENCE}"]) < 1 / one["hz"]:
                within_tick += 1
                continue
            ratio = f"{one[f'{name}_ratio']:.3f} ({one[f'{name}_low']:.3f} to {one[f'{name}_high']:.3f})"
            cells = {"set": one["set"], "case": one["case"], "Hz": one["hz"], "kernel": one["kernel"]}
            shown.append(
                cells | {"quantity": name, "ratio": ratio, "explained by": one["explained_by"] or "not explained"}
            )
    said.append(
        "Every capture has its own phase between writes and ticks of the kernel's clock, at which timers fire. So the "
        f"{within_tick} quantiles that differ by less than a tick (4 ms at 250 Hz) are left out here.\n"
    )
    said += [pd.DataFrame(shown).to_markdown(index=False), "", "## Errors of the models\n"]
    said.append(
        "Mean error beyond the captures' intervals, on the same cases with the newer kernel and with 6.1. Cases that a "
        "model does not describe, or in which it calls the flow too large for TCP, are left out.\n"
    )
    errors = []
    for (kernel, hz, part), own in carried.groupby(["kernel", "hz", "set"]):
        for model in MODELS:
            errors_of_model = [
                f"{model.name}_{name}_beyond{end}" for name in QUANTITIES for end in ("", f"_{REFERENCE}")
            ]
            finite = own[errors_of_model].apply(pd.to_numeric).replace(float("inf"), float("nan"))
            known = finite.dropna()
            if known.empty:
                continue
            line = {"kernel": kernel, "Hz": hz, "set": part, "model": model.name, "cases": len(known)}
            for name in QUANTITIES:
                newer = known[f"{model.name}_{name}_beyond"].mean()
                older = known[f"{model.name}_{name}_beyond_{REFERENCE}"].mean()
                line |= {name: f"{newer:.1%}", f"{name} on {REFERENCE}": f"{older:.1%}"}
            errors.append(line)
    said += [pd.DataFrame(errors).to_markdown(index=False), ""]
    return "\n".join(said)


def main() -> None:
    """Write the comparison of all cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    output = parser.parse_args().output
    newer = measure_all(NEWER, sys.exit)
    cases = {case(measured) for measured in newer}
    references = {case(one): one for one in newer if kernel_of_release(one.kernel) == REFERENCE}
    folders = [CAPTURES / name for name in sorted({measured.collection for measured in newer})]
    for folder in filter(FilePath.is_dir, folders):
        for one in measure_all(folder, sys.exit):
            if case(one) in cases and one.backend == VIRTUAL_TIME and kernel_of_release(one.kernel) == REFERENCE:
                references.setdefault(case(one), one)
    predictions = Predictions(MODELS)
    rows = []
    for measured in newer:
        reference = references.get(case(measured))
        if reference is not None and kernel_of_release(measured.kernel) != REFERENCE:
            rows.append(row(CapturePair(f"Linux {measured.kernel}", measured, reference), predictions))
            print(len(rows), measured.name, file=sys.stderr, flush=True)
    table = pd.DataFrame(rows)
    table.round(6).to_csv(output / "kernels.csv", index=False)
    (output / "kernels.md").write_text(summary(table), encoding="utf-8")
    print(summary(table))


if __name__ == "__main__":
    main()
