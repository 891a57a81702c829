"""Compare simulations of sources with captures of their messages: `python validation/sources.py CAPTURES`.

`validation/specs/sources.toml` makes the captures, which are too large for the repository. For each capture and each
kind of message the script prints the 95th percentile and the mean of the captured and of the simulated delays, and the
error beyond the capture's 95 % interval, in percent of the captured figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tcpdelay.capture.flow_capture import FlowCapture, read_capture
from tcpdelay.confidence import BATCHES, Interval, mean_interval, quantile_interval
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.simulator.simulation import simulate
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.sources.source_settings import TraceFile
from tcpdelay.scenario.stack import Stack
from tcpdelay.testbed.experiment import Experiment

WARM_UP = 10.0
"""Time at the start of a run that is left out [s]."""
SEED = 1
"""Seed of the simulations: not of the captures, so that other messages than the captured ones are simulated."""


def source_of(capture: FlowCapture, experiment: Experiment) -> Source:
    """Return the source of a capture; of a trace, one period of the messages in the capture."""
    assert experiment.source is not None
    content = experiment.source.content
    if not isinstance(content, TraceFile):
        return content
    written = capture.trace()
    period = content.period or experiment.duration
    first = slice(int(np.searchsorted(written.times, period - 1e-3)))
    labels = np.array(written.kinds)[written.labels.codes[first]]
    return type(written)(written.times[first], written.sizes[first], period, labels)


def compared(file: Path, packets: int) -> list[dict[str, float | str | bool]]:
    """Return a row for all messages of a capture, and for each kind with enough messages."""
    capture = read_capture(file)
    experiment = Experiment.from_table(capture.settings)
    stack = Stack.linux(experiment.congestion_control, hz=capture.runs[0].hz)
    source = source_of(capture, experiment)
    simulated = simulate(source, experiment.path, stack, packets=packets, seed=SEED)
    parts = {"all": capture.delays(WARM_UP), **capture.delays_by_kind(WARM_UP)}
    predicted: dict[str, DelayDistribution] = {"all": simulated, **simulated.by_kind}
    rows = []
    for kind, delays in parts.items():
        if sum(part.size for part in delays) >= BATCHES and kind in predicted:
            rows.append(_row(capture, experiment, kind, delays, predicted[kind]))
    return rows


def _row(
    capture: FlowCapture,
    experiment: Experiment,
    kind: str,
    delays: list[NDArray[np.float64]],
    predicted: DelayDistribution,
) -> dict[str, float | str | bool]:
    assert experiment.source is not None
    p95, mean = quantile_interval(delays, 0.95), mean_interval(delays)
    return {
        "capture": capture.name,
        "source": experiment.source.table["kind"],
        "kind": kind,
        "messages": sum(part.size for part in delays),
        "p95": p95.value,
        "p95_low": p95.low,
        "p95_high": p95.high,
        "simulated_p95": predicted.quantile(0.95),
        "p95_error": _beyond(p95, predicted.quantile(0.95)),
        "mean": mean.value,
        "mean_low": mean.low,
        "mean_high": mean.high,
        "simulated_mean": predicted.mean,
        "mean_error": _beyond(mean, predicted.mean),
    }


def _beyond(measured: Interval, predicted: float) -> float:
    """Return the distance of a prediction from an interval, relative to the measured value [%]."""
    return 100 * max(measured.low - predicted, predicted - measured.high, 0.0) / measured.value


def main() -> None:
    """Print the comparison of all captures of a folder, and its means by source and kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("captures", type=Path, help="folder of the captures")
    parser.add_argument("--packets", type=int, default=1_000_000, help="simulated messages (%(default)s)")
    parser.add_argument("--output", type=Path, help="CSV file of all rows")
    arguments = parser.parse_args()
    rows = [row for file in sorted(arguments.captures.glob("*.parquet")) for row in compared(file, arguments.packets)]
    table = pd.DataFrame(rows)
    if arguments.output is not None:
        table.to_csv(arguments.output, index=False)
    summary = table.groupby(["source", "kind"]).agg(
        captures=("capture", "size"),
        p95_error=("p95_error", "mean"),
        largest_p95_error=("p95_error", "max"),
        mean_error=("mean_error", "mean"),
        largest_mean_error=("mean_error", "max"),
    )
    print(summary.round(2).to_string())


if __name__ == "__main__":
    main()
