"""Compare models with captures of applications that write late, `jitter-captures/write-jitter.parquet`.

`validation/specs/write-jitter.toml` makes the captures. Each is compared with 16 simulations of its length. The score
is the distance of its mean delay from their mean, in standard deviations of a simulation and of that mean; chance
gives scores with a mean of 0 and a standard deviation of 1. TCP is also compared with the chain. The script
writes `results/write-jitter.csv` and `.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from scoring.capture_comparison import write_comparison
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import simulated_messages

SEEDS = 16
WHOLE = 1e-6
"""Largest difference of two numbers that only rounding makes different."""


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return mean and p95 [s] of a capture, of simulations with late writes and of some with exact ones, and scores."""
    question = simulated_messages(measured)
    assert question is not None
    stack, source = question.stack, measured.source
    row: dict[str, object] = {
        "capture": measured.name,
        "control": stack.congestion_control if isinstance(stack, Linux) else f"QUIC, {stack.implementation}",
        "load": measured.path.rtt / source.mean_interval,
        "write_jitter": source.write_jitter,
        "mean": measured.mean.value,
        "p95": measured.p95.value,
    }
    chains = isinstance(stack, Linux)
    for name, written in (("late", source), ("exact", replace(source, write_jitter=0.0))):
        once = partial(simulate, written, measured.path, stack, packets=measured.offered)
        if isinstance(stack, Linux):
            # In virtual time the round-trip time is exact to the microsecond.
            once = partial(
                once, exact_ties=True, tick_offset=measured.phases[0], connection_time=measured.experiment.duration
            )
        row |= _scored(measured, name, once)
        solved = predict(Scenario(written, measured.path, stack), method="chain") if chains else None
        row[f"mean_chain_{name}"] = np.nan if solved is None else solved.mean
    return {name: round(float(value), 6) if isinstance(value, float) else value for name, value in row.items()}


def _scored(measured: MeasuredDelay, name: str, once: Callable[..., DelayDistribution]) -> dict[str, object]:
    """Return mean, p95 [s] and score of the simulations that `once` makes."""
    found = [once(seed=seed) for seed in range(SEEDS)]
    means = np.array([each.mean for each in found])
    deviation = means.std(ddof=1) * np.sqrt(1 + 1 / SEEDS)
    return {
        f"mean_{name}": means.mean(),
        f"p95_{name}": np.mean([each.quantile(0.95) for each in found]),
        f"score_{name}": (measured.mean.value - means.mean()) / deviation,
    }


def summary(table: pd.DataFrame) -> str:
    """Return the scores in words, and a table of them by congestion control and round-trip time."""
    late = table[table.write_jitter > 0]
    lines = [f"{len(table)} captures, {len(late)} of applications that write up to 1 ms late.\n"]
    for group, rows in (("late", late), ("exact", table[table.write_jitter == 0])):
        for simulated in ("late", "exact") if group == "late" else ("exact",):
            differences, scores = rows["mean"] / rows[f"mean_{simulated}"] - 1, rows[f"score_{simulated}"]
            lines.append(
                f"Captures with {group} writes, simulations with {simulated} writes: the captured mean delay differs "
                f"by {differences.mean():+.1%} in the mean; scores {scores.mean():+.1f} (sd {scores.std():.1f}).\n"
            )
    lines += [
        "\n| control | round-trip time | writes | captures | simulated mean, late / exact writes | scores "
        "| chain, late / exact writes |\n",
        "|---|---|---|---:|---:|---:|---:|\n",
    ]
    load = table.load
    multiple = np.where((load - load.round()).abs() < WHOLE, "multiple of the interval", "other")
    for (control, kind, is_late), rows in table.groupby([table.control, multiple, table.write_jitter > 0]):
        differences = [(rows[f"mean_{name}"] / rows["mean"] - 1).mean() for name in ("late", "exact")]
        chains = [(rows[f"mean_chain_{name}"] / rows["mean"] - 1).mean() for name in ("late", "exact")]
        chain = "" if np.isnan(chains).any() else f"{chains[0]:+.1%} / {chains[1]:+.1%}"
        scores = ", ".join(f"{score:+.1f}" for score in rows["score_late"])
        writes = "late" if is_late else "exact"
        lines.append(
            f"| {control} | {kind} | {writes} | {len(rows)} | {differences[0]:+.1%} / {differences[1]:+.1%} | {scores} "
            f"| {chain} |\n"
        )
    lines.append(
        "\nShown are model / captured - 1 of the mean delay, and the scores of simulations with late writes.\n"
    )
    return "".join(lines)


if __name__ == "__main__":
    write_comparison("write-jitter", __doc__ or "", compared, summary)
