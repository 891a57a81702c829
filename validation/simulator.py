"""Compare the simulator with the captures of the published grid: `python validation/simulator.py`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

import tcpdelay as td
from tcpdelay.capture.flow_capture import FlowCapture, read_capture
from tcpdelay.confidence import Interval, mean_interval, quantile_interval
from tcpdelay.throughput import connection_utilization

HERE = Path(__file__).parent
LARGEST_UTILIZATION = 0.9
PACKETS = 400_000
BOOT = 1_700_000_000_000_000_000
"""Calendar time at which every guest in virtual time boots [ns]: its ticks are counted from there."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def compare(capture: FlowCapture) -> dict[str, str | float] | None:
    """Return errors of the simulator relative to a capture, or None if it is not compared."""
    utilization = connection_utilization(capture.flow, capture.path, td.Stack.newreno_2008())
    if utilization > LARGEST_UTILIZATION:
        return None
    control, hz = capture.settings["congestion_control"], capture.runs[0].hz
    simulated = [
        td.simulate(
            capture.flow,
            capture.path,
            td.Stack.linux(congestion_control=control, hz=hz),
            packets=PACKETS // len(capture.runs),
            seed=run.run,
            tick_offset=((run.epoch - BOOT) / 1e9) % (1 / hz),
            trace=True,
        )
        for run in capture.runs
    ]
    delays = np.concatenate([run.read_after for run in simulated])
    measured = capture.delays()
    row: dict[str, str | float] = {"capture": capture.name, "utilization": utilization}
    statistics: dict[str, tuple[float, Interval]] = {"mean": (float(delays.mean()), mean_interval(measured))}
    for name, probability in QUANTILES.items():
        statistics[name] = (float(np.quantile(delays, probability)), quantile_interval(measured, probability))
    for name, (value, interval) in statistics.items():
        row[f"{name}_measured"] = interval.value
        row[f"{name}_simulated"] = value
        row[f"{name}_error"] = value / interval.value - 1
        row[f"{name}_beyond"] = max(value - interval.high, interval.low - value, 0.0) / interval.value
    return row


def main() -> None:
    """Write the table of all comparisons, and print what they come to."""
    rows = []
    files = sorted((HERE / "captures" / "random-loss").glob("*.parquet"))
    for number, file in enumerate(files, start=1):
        row = compare(read_capture(file))
        if row is not None:
            rows.append(row)
        if number % 50 == 0:
            print(f"{number} of {len(files)} captures", file=sys.stderr)
    with (HERE / "results" / "simulator.csv").open("w", newline="", encoding="utf-8") as file_:
        table = csv.DictWriter(file_, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
        )
    print(f"{len(rows)} captures with a utilization of at most {LARGEST_UTILIZATION}; |simulated / measured - 1|:")
    for name in ("mean", *QUANTILES):
        errors = np.abs([float(row[f"{name}_error"]) for row in rows])
        beyond = np.mean([float(row[f"{name}_beyond"]) for row in rows])
        print(
            f"  {name:<5} median {np.median(errors):.2%}, mean {errors.mean():.2%}, "
            f"beyond the capture's 95 % interval {beyond:.2%} in the mean"
        )


if __name__ == "__main__":
    main()
