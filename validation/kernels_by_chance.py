"""Count how often two simulations of one kernel differ significantly: `python validation/kernels_by_chance.py`.

`kernels.py` calls a difference between two kernels significant if the interval of the ratio of their delays excludes 1.
This script applies the same test to pairs of simulations that differ only in their seeds, so each significant
difference is chance. Each pair has the case and the numbers of packets of two captures that `kernels.py` compares. The
script writes `results/kernels-by-chance.md`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from kernels import AGAIN, BURSTS, QUANTITIES, RESULTS, case, compared, explanation, kernel_name
from scoring.capture_pairs import CapturePair, ratio_interval
from tcpdelay.statistics import Interval, mean_interval, quantile_interval
from tcpdelay.study.validation.captures import QUANTILES, MeasuredDelay
from tcpdelay.study.validation.predictions import SimulatedFlow, simulated_flow, simulated_runs

REPETITIONS = 5
SETTINGS = ("set", "case", "load", "comparisons")
LOADS = ((0.0, "below 0.5"), (0.5, "0.5 to 0.8"), (0.8, "0.8 and more"))
"""Lower bounds of the rate over the fair TCP rate, and their names."""


def simulated(flow: SimulatedFlow, capture: MeasuredDelay, seed: int) -> dict[str, Interval] | None:
    """Return the figures of a simulation of the length of a capture; None if TCP does not carry the flow in it."""
    random = np.random.default_rng(seed)
    phases = tuple(random.uniform(0, 1 / flow.stack.hz, len(flow.phases)))
    seeds = tuple(int(one) for one in random.integers(2**31, size=len(flow.phases)))
    runs = simulated_runs(replace(flow, packets=capture.sizes, phases=phases, seeds=seeds))
    if not all(np.isfinite(run).all() for run in runs):
        return None
    quantiles = {name: quantile_interval(runs, probability) for name, probability in QUANTILES.items()}
    return {"mean": mean_interval(runs), **quantiles}


def differences(first: dict[str, Interval], second: dict[str, Interval], tick: float) -> dict[str, bool]:
    """Return in which quantities two simulations differ significantly; quantiles also by a tick of the clock [s]."""
    found = {}
    for name in QUANTITIES:
        ratio = ratio_interval(first[name], second[name])
        found[name] = not ratio.low <= 1 <= ratio.high
        if name != "mean":
            far = abs(first[name].value - second[name].value) >= tick
            found[f"{name} by a tick"] = found[name] and far
    return found


def pairs(repetitions: int) -> Iterator[dict[str, object]]:
    """Yield each pair of simulations, and whether it differs significantly in each quantity."""
    of_case: dict[tuple[object, ...], list[CapturePair]] = {}
    for pair in compared():
        carried = pair.measured.sustainable and pair.reference.sustainable
        if carried and kernel_name(pair.measured) != AGAIN and not explanation(pair):
            of_case.setdefault((pair.measured.collection, *case(pair.measured)), []).append(pair)
    for number, comparisons in enumerate(of_case.values()):
        measured, reference = comparisons[0].measured, comparisons[0].reference
        flows = simulated_flow(measured), simulated_flow(reference)
        if flows[0] is None or flows[1] is None:
            continue
        print(f"{number} of {len(of_case)}: {measured.name}", file=sys.stderr, flush=True)
        load = max((bound, name) for bound, name in LOADS if measured.utilization >= bound)[1]
        for repetition in range(repetitions):
            seed = 2 * (number * repetitions + repetition)
            first, second = simulated(flows[0], measured, seed), simulated(flows[1], reference, seed + 1)
            if first is not None and second is not None:
                settings = {"set": measured.collection, "case": number, "load": load, "comparisons": len(comparisons)}
                yield settings | differences(first, second, 1 / measured.hz)


def expected(table: pd.DataFrame, quantity: str) -> str:
    """Return how many of the comparisons differ by chance, in percent of them and as a number."""
    cases = table.groupby("case")
    share, weight = cases[quantity].mean(), cases["comparisons"].first()
    mean = float((share * weight).sum())
    return f"{mean / weight.sum():.1%}, {mean:.1f}"


def shares(table: pd.DataFrame, by: str) -> str:
    """Return the comparisons that differ by chance, by a column."""
    whole = table[table["set"] != BURSTS]
    lines = []
    for group, own in [*table.groupby(by), (f"all but {BURSTS}", whole)]:
        line: dict[str, object] = {by: group, "comparisons": int(own.groupby("case")["comparisons"].first().sum())}
        line["pairs of simulations"] = len(own)
        for quantity in own.columns[len(SETTINGS) :]:
            line[f"{quantity} differs"] = expected(own, quantity)
        lines.append(line)
    text: str = pd.DataFrame(lines).to_markdown(index=False)
    return text


def main() -> None:
    """Write the shares of significant differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="pairs per case (%(default)s)")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    table = pd.DataFrame(pairs(arguments.repetitions))
    said = [
        "Pairs of simulations of one kernel, with the cases and the lengths of the captures of two kernels. A pair "
        "differs significantly if the 95 % interval of its ratio excludes 1. The share of such pairs is given, and how "
        'many of the comparisons of kernels that do not differ would be significant. "By a tick" counts only '
        "differences of a tick of the kernel's clock or more. Load is the rate over the fair TCP rate. Comparisons "
        "that the simulator does not describe, such as those of sources and of a bottleneck, are left out.\n",
        shares(table, "set"),
        "",
        shares(table[table["set"] != BURSTS], "load"),
        "",
    ]
    (arguments.output / "kernels-by-chance.md").write_text("\n".join(said), encoding="utf-8")
    print("\n".join(said))


if __name__ == "__main__":
    main()
