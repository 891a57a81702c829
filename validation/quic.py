"""Compare the simulator of QUIC with captures of aioquic and quic-go: `python validation/quic.py`.

It writes `results/quic.csv` with one line per capture, and `results/quic.md` with the mean errors by source,
implementation and delivery. The distance of the other implementation on the same path, measured in the same way, says
how much the word QUIC leaves open. `specs/quic/` makes the captures again.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.delays import LONGEST_PLAYOUT
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.captures import QUANTILES, MeasuredDelay, measure_all
from tcpdelay.study.validation.predictions import QUANTITIES, SIMULATOR, Predictions, error_beyond, simulated_messages
from tcpdelay.testbed.experiment import Experiment

HERE = FilePath(__file__).parent
CAPTURES, RESULTS = HERE / "quic-captures", HERE / "results"
RUNS = 12
"""Simulations of a capture whose delays chance decides."""
ERRORS = (*QUANTITIES, "added")
"""Quantities whose errors are listed; `added` is the mean delay beyond the mean one-way delay of the path."""


def row(measured: MeasuredDelay, predictions: Predictions, other: MeasuredDelay | None) -> dict[str, object]:
    """Return the delays of a capture [s], those of the simulator, and the errors of two predictions of the capture.

    The other prediction is the capture of the other implementation with the same source, delivery and path. Errors are
    beyond the capture's interval, relative to the measured value; NaN where it is infinite.
    """
    experiment = measured.experiment
    one_way = measured.path.forward_delay + experiment.jitter / 2
    predicted = predictions.of(SIMULATOR.name, measured)
    assert predicted is not None
    found: dict[str, object] = {
        "source": measured.collection,
        "implementation": experiment.implementation,
        "delivery": experiment.delivery,
        "rtt": experiment.rtt,
        "loss": experiment.loss,
        "jitter": experiment.jitter,
        "ack_loss": experiment.ack_loss,
        "loss_burst": experiment.loss_burst,
        "utilization": measured.utilization,
        "messages": measured.offered,
        "lost": measured.unread,
        "simulator_lost": predicted.late_fraction(LONGEST_PLAYOUT),
    }
    for name in ERRORS:
        if name == "added":
            interval = Interval(*(value - one_way for value in measured.mean))
            values = predicted.mean - one_way, np.nan if other is None else other.mean.value - one_way
        else:
            interval = getattr(measured, name)
            value = predicted.mean if name == "mean" else predicted.quantile(QUANTILES[name])
            values = value, np.nan if other is None else getattr(other, name).value
            found |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
            found[f"simulator_{name}"] = value
        found[f"{name}_beyond"], found[f"{name}_other"] = (error_beyond(value, interval) for value in values)
    return found


def chance(measured: MeasuredDelay) -> dict[str, object]:
    """Return the shortest and the longest p95 of simulations that are as long as a capture, beside its own [s]."""
    asked = simulated_messages(measured)
    assert asked is not None
    runs = [
        simulate(asked.source, asked.path, asked.stack, packets=measured.offered, seed=seed).quantile(0.95)
        for seed in range(1, RUNS + 1)
    ]
    experiment = measured.experiment
    keys = {"source": measured.collection, "implementation": experiment.implementation, "delivery": experiment.delivery}
    path = {"RTT [ms]": f"{1e3 * experiment.rtt:g}", "loss": f"{experiment.loss:.1%}", "messages": measured.offered}
    found = {"capture": measured.p95.value, "shortest": min(runs), "longest": max(runs)}
    return keys | path | {f"{name} [s]": f"{value:.3g}" for name, value in found.items()}


def summary(table: pd.DataFrame, beyond: list[MeasuredDelay]) -> str:
    """Return the mean errors over all captures, by source, implementation and delivery, and the chance of those beyond.

    `beyond` are the captures from 0.9 of the rate that Reno over TCP carries.
    """
    near = table["utilization"] >= LARGEST_SUSTAINABLE_UTILIZATION
    listed = []
    for name in ERRORS:
        for one in table.loc[table.loc[~near, f"{name}_beyond"].abs().nlargest(3).index].to_dict("records"):
            keys = {key: one[key] for key in ("source", "implementation", "delivery")}
            path = {"RTT [ms]": f"{1e3 * one['rtt']:g}", "loss": f"{one['loss']:.1%}"}
            path["jitter [ms]"] = f"{1e3 * one['jitter']:g}"
            listed.append(keys | path | {"quantity": name, "error": f"{one[f'{name}_beyond']:+.1%}"})
    said = [
        f"{len(table)} captures of aioquic 1.7.2 and quic-go 0.59.0, {table['messages'].sum():,} messages. "
        "Mean errors of the simulator beyond the 95 % intervals of the captures; `added` is the mean delay less the "
        "mean one-way delay of the path. In brackets: the other implementation as a prediction of the same captures, "
        "where both have been captured. Delays of lost datagrams are infinite, and do not count.\n",
        "## Below 0.9 of the rate that Reno over TCP carries\n",
        _errors(table[~near], "source", "implementation", "delivery"),
        "",
        _errors(table[~near], "source"),
        "",
        "## Beyond\n",
        "Here delays grow without a bound, or nearly so: small differences in the rate that the sender reaches become "
        "large ones of the delay.\n",
        _errors(table[near], "source", "implementation", "delivery") if near.any() else "No capture.",
        "",
        f"What chance does there: p95 in a capture, and the shortest and longest p95 in {RUNS} simulations of as many "
        "messages.\n",
        pd.DataFrame([chance(one) for one in beyond]).to_markdown(index=False, disable_numparse=True),
        "",
        "## The largest errors of the simulator below 0.9\n",
    ]
    return "\n".join([*said, pd.DataFrame(listed).to_markdown(index=False, disable_numparse=True), ""])


def _errors(table: pd.DataFrame, *names: str) -> str:
    """Return the mean errors of the captures by some columns, as a table."""
    lines = []
    for keys, own in table.groupby(list(names)):
        line: dict[str, object] = dict(zip(names, keys, strict=True))
        line["captures"] = len(own)
        for name in ERRORS:
            simulator, other = (own[f"{name}_{end}"].abs().mean() for end in ("beyond", "other"))
            line[name] = f"{simulator:.1%}" + ("" if np.isnan(other) else f" ({other:.1%})")
        lines.append(line)
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True))


def main() -> None:
    """Write the comparison of all captures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--captures", type=FilePath, default=CAPTURES, help="folder of the captures (%(default)s)")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    def case(measured: MeasuredDelay, implementation: str) -> tuple[str, str, Experiment]:
        known = replace(measured.experiment, implementation="aioquic", duration=Experiment().duration)
        return measured.collection, implementation, known

    captured = measure_all(arguments.captures, sys.exit)
    by_case = {case(one, one.experiment.implementation): one for one in captured}
    predictions, rows = Predictions((SIMULATOR,)), []
    for one in captured:
        other = "quic-go" if one.experiment.implementation == "aioquic" else "aioquic"
        rows.append(row(one, predictions, by_case.get(case(one, other))))
        print(len(rows), one.name, file=sys.stderr, flush=True)
    table = pd.DataFrame(rows)
    table.round(6).to_csv(arguments.output / "quic.csv", index=False)
    beyond = [one for one in captured if one.utilization >= LARGEST_SUSTAINABLE_UTILIZATION]
    page = summary(table, beyond)
    (arguments.output / "quic.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
