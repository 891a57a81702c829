"""Compare Linux 6.12 and 7.3 with 6.1 on the same cases: `python validation/kernels.py`.

`validation/specs/kernels/` has the cases, and `validation/kernel-captures/` their captures. Linux 6.1 has run them in
the set of the same name in `validation/captures/`, or else in this one. The set `same-kernel` runs cases on Linux 6.1
once more, with another seed: its differences are those that chance gives. The script writes `results/kernels.csv` with
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
from tcpdelay.scenario.stack import TIME_BASED_RECOVERY, kernel_of_release
from tcpdelay.study.validation.captures import VIRTUAL_TIME, MeasuredDelay, measure_all
from tcpdelay.study.validation.predictions import LINUX, SIMULATOR, Predictions, error_beyond
from tcpdelay.testbed.experiment import Experiment

HERE = FilePath(__file__).parent
CAPTURES, NEWER, RESULTS = HERE / "captures", HERE / "kernel-captures", HERE / "results"
REFERENCE = "6.1"
CONTROL = "same-kernel"
"""Set of the captures that repeat cases on the kernel of the references."""
AGAIN = f"{REFERENCE} again"
CHANCE = "chance"
BURSTS = "bursts"
"""Set whose captures are too short to compare kernels."""
QUANTITIES = ("mean", "p95", "p99")
MODELS = (LINUX, SIMULATOR)


def case(measured: MeasuredDelay) -> tuple[Experiment, int]:
    """Return the settings without the duration, which changes only the precision, and the timer rate."""
    return replace(measured.experiment, duration=Experiment().duration), measured.hz


def kernel_name(measured: MeasuredDelay) -> str:
    """Return the version of the kernel of a capture, as the tables name it."""
    return AGAIN if measured.collection == CONTROL else kernel_of_release(measured.kernel)


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
        "kernel": kernel_name(measured),
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


def by_a_tick(table: pd.DataFrame, quantity: str) -> pd.Series[bool]:
    """Return which comparisons differ significantly in a quantile, by a tick of the kernel's clock or more."""
    far = (table[quantity] - table[f"{quantity}_{REFERENCE}"]).abs() >= 1 / table["hz"]
    return far & table[f"{quantity}_differs"].astype(bool)


def summary(table: pd.DataFrame) -> str:
    """Return the differences between kernels and the errors of the models by kernel."""
    carried = table[table["carried"]]
    newer = table[table["kernel"] != AGAIN]
    cases = " and ".join(f"{own['case'].nunique()} cases at {hz} Hz" for hz, own in newer.groupby("hz"))
    carried_newer = int(newer["carried"].sum())
    said = [
        f"{cases}, {len(newer)} comparisons with Linux {REFERENCE}; TCP carries the flow in {carried_newer} of them, "
        "which count here. A difference is significant if the 95 % interval of the ratio of both kernels excludes 1. "
        f'"{AGAIN}" is Linux {REFERENCE} with another seed: TCP carries the flow in {len(carried) - carried_newer} of '
        f"{len(table) - len(newer)} comparisons, and their differences are chance.\n"
    ]
    counts = []
    groups = ["kernel", "hz", carried["explained_by"] != "", carried["set"] == BURSTS]
    for (kernel, hz, explained, bursts), own in carried.groupby(groups):
        line: dict[str, object] = {
            "kernel": kernel,
            "Hz": hz,
            "a rule differs": "yes" if explained else "no",
            "losses in bursts": "yes" if bursts else "no",
            "cases": len(own),
        }
        for name in QUANTITIES:
            line[f"median ratio of {name}"] = f"{own[f'{name}_ratio'].median():.3f}"
            line[f"{name} differs"] = int(own[f"{name}_differs"].sum())
            if name != "mean":
                line[f"{name} by a tick or more"] = int(by_a_tick(own, name).sum())
        counts.append(line)
    said += [pd.DataFrame(counts).to_markdown(index=False), "", "## Significant differences\n"]
    shown, within_tick = [], 0
    for name in QUANTITIES:
        differing = carried[f"{name}_differs"].astype(bool)
        far = differing if name == "mean" else by_a_tick(carried, name)
        within_tick += int((differing & ~far).sum())
        for one in carried[far].to_dict("records"):
            ratio = f"{one[f'{name}_ratio']:.3f} ({one[f'{name}_low']:.3f} to {one[f'{name}_high']:.3f})"
            unexplained = CHANCE if one["kernel"] == AGAIN else "not explained"
            cells = {"set": one["set"], "case": one["case"], "Hz": one["hz"], "kernel": one["kernel"]}
            shown.append(cells | {"quantity": name, "ratio": ratio, "explained by": one["explained_by"] or unexplained})
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


def compared() -> list[CapturePair]:
    """Return each capture of `kernel-captures/` beside the capture of the same case on Linux 6.1."""
    newer = measure_all(NEWER, sys.exit)
    cases = {case(measured) for measured in newer}
    references = {case(one): one for one in newer if kernel_name(one) == REFERENCE}
    sets = [CAPTURES / f"{name}.parquet" for name in sorted({measured.collection for measured in newer})]
    for file in filter(FilePath.exists, sets):
        for one in measure_all(file, sys.exit):
            if case(one) in cases and one.backend == VIRTUAL_TIME and kernel_of_release(one.kernel) == REFERENCE:
                references.setdefault(case(one), one)
    return [
        CapturePair(f"Linux {kernel_name(measured)}", measured, references[case(measured)])
        for measured in newer
        if case(measured) in references and kernel_name(measured) != REFERENCE
    ]


def main() -> None:
    """Write the comparison of all cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    parser.add_argument("--only", metavar="SET", help="renew the lines of this set, and keep the others of kernels.csv")
    arguments = parser.parse_args()
    output, only = arguments.output, arguments.only
    predictions = Predictions(MODELS)
    rows = []
    for pair in compared():
        if only in (None, pair.measured.collection):
            rows.append(row(pair, predictions))
            print(len(rows), pair.measured.name, file=sys.stderr, flush=True)
    table = pd.DataFrame(rows).round(6)
    if only is not None:
        before = pd.read_csv(output / "kernels.csv", dtype={"kernel": str}, keep_default_na=False, na_values=[""])
        before["explained_by"] = before["explained_by"].fillna("")
        table = pd.concat([before[before["set"] != only], table], ignore_index=True)
    table.to_csv(output / "kernels.csv", index=False)
    (output / "kernels.md").write_text(summary(table), encoding="utf-8")
    print(summary(table))


if __name__ == "__main__":
    main()
