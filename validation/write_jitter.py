"""Compare simulations with captures of applications that write late: `python validation/write_jitter.py CAPTURES`.

`validation/specs/write-jitter.toml` makes the captures. Each is compared with 16 simulations of its length. The score
is the distance of its mean delay from their mean, in standard deviations of a simulation and of that mean; chance gives
scores with a mean of 0 and a standard deviation of 1. The script writes `results/write-jitter.csv` and `.md`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from scoring.capture_comparison import write_comparison
from tcpdelay.models.simulator.simulation import simulate
from tcpdelay.questions.validation.captures import MeasuredDelay
from tcpdelay.scenario.kernels import kernel_of_release
from tcpdelay.scenario.stack import Stack

SEEDS = 16


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return mean and p95 [s] of a capture, of simulations with late writes and of some with exact ones, and scores."""
    experiment, source = measured.experiment, measured.source
    stack = Stack.linux(experiment.congestion_control, hz=measured.hz, kernel=kernel_of_release(measured.kernel))
    packets = round(experiment.duration * source.message_rate)
    row: dict[str, object] = {
        "capture": measured.name,
        "write_jitter": source.write_jitter,
        "mean": measured.mean.value,
        "p95": measured.p95.value,
    }
    for name, written in (("late", source), ("exact", replace(source, write_jitter=0.0))):
        found = [
            simulate(
                written,
                measured.path,
                stack,
                packets=packets,
                seed=seed,
                # In virtual time, an ACK and an exact write often fall into the same microsecond.
                exact_ties=source.write_jitter == 0,
                tick_offset=measured.phases[0],
                connection_time=experiment.duration,
            )
            for seed in range(SEEDS)
        ]
        means = np.array([each.mean for each in found])
        deviation = means.std(ddof=1) * np.sqrt(1 + 1 / SEEDS)
        row[f"mean_{name}"] = means.mean()
        row[f"p95_{name}"] = np.mean([each.quantile(0.95) for each in found])
        row[f"score_{name}"] = (measured.mean.value - means.mean()) / deviation
    return {name: round(float(value), 6) if isinstance(value, float) else value for name, value in row.items()}


def summary(table: pd.DataFrame) -> str:
    """Return the scores in words."""
    late = table[table.write_jitter > 0]
    lines = [f"{len(table)} captures of 20 minutes, {len(late)} of applications that write up to 1 ms late.\n"]
    for group, rows in (("late", late), ("exact", table[table.write_jitter == 0])):
        for simulated in ("late", "exact") if group == "late" else ("exact",):
            differences, scores = rows["mean"] / rows[f"mean_{simulated}"] - 1, rows[f"score_{simulated}"]
            lines.append(
                f"Captures with {group} writes, simulations with {simulated} writes: the captured mean delay differs "
                f"by {differences.mean():+.1%} in the mean; scores {scores.mean():+.1f} (sd {scores.std():.1f}).\n"
            )
    return "".join(lines)


if __name__ == "__main__":
    write_comparison("write-jitter", __doc__ or "", compared, summary)
