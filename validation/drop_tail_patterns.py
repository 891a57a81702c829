"""Compare correlated losses in the chain, in the simulator and in captures: `python validation/drop_tail_patterns.py`.

The script takes some five minutes. It writes `results/drop-tail-chain.csv` with the chain and two simulations per
scenario: the scenarios of `bursts.py`. Predictions quote the errors of this comparison (`tcpdelay/accuracy/data`). The
script also writes `results/drop-tail-patterns.csv` with one line per capture behind a drop-tail router and model: the
errors with independent and with correlated losses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import pandas as pd

from bursts import PACKETS, SEEDS, STEPS, scenarios
from scoring.chain_errors import errors, row
from tcpdelay.accuracy.errors import linux_table_file
from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Linux, Stack, kernel_of_release
from tcpdelay.sim.simulation import Simulation, simulate
from tcpdelay.study.validation.captures import MeasuredDelay, measure

HERE = FilePath(__file__).parent
CHAIN, PATTERNS = HERE / "results" / "drop-tail-chain.csv", HERE / "results" / "drop-tail-patterns.csv"
RANDOM = 100
CAPTURE_PACKETS = 300_000
"""Number of packets of each simulation of a capture."""
ADJUSTMENTS = 4
"""Number of simulations that adjust the loss to the share of lost segments."""


def compared(random: int) -> pd.DataFrame:
    """Return one row per scenario: the figures of the chain and of two simulations with correlated losses."""
    rows = []
    for number, (flow, path, stack) in enumerate(scenarios(random)):
        if number % STEPS == 0:
            print(f"{number} scenarios ...", file=sys.stderr, flush=True)
        figures = row(flow, replace(path, loss_pattern="correlated"), stack, PACKETS, SEEDS)
        rows.append({"random": number >= len(scenarios(0))} | figures)
    return pd.DataFrame(rows)


def lost_share(simulated: Simulation) -> float:
    """Return the share of segments that were lost."""
    return simulated.counts["segments_lost"] / simulated.counts["segments_sent"]


def with_lost_share(capture: MeasuredDelay, path: Path, stack: Linux) -> Simulation:
    """Simulate correlated losses with a `loss` at which the share of lost segments is the capture's."""
    loss = path.loss
    for _ in range(ADJUSTMENTS):
        simulated = simulate(capture.flow, replace(path, loss=loss), stack, packets=CAPTURE_PACKETS, seed=1)
        loss *= capture.loss / lost_share(simulated)
    return simulated


def models(capture: MeasuredDelay) -> Iterator[tuple[str, DelayDistribution]]:
    """Yield the models' names and delays for a capture, at the loss and the round-trip time that were measured."""
    kernel = kernel_of_release(capture.kernel)
    stack = Stack.linux(capture.experiment.congestion_control, hz=capture.hz, kernel=kernel)
    paths = {"independent": replace(capture.path, loss_pattern="random"), "correlated": capture.path}
    for pattern, path in paths.items():
        yield f"chain, {pattern}", predict(Scenario(capture.flow, path, stack), method="chain").require()
        yield f"simulator, {pattern}", simulate(capture.flow, path, stack, packets=CAPTURE_PACKETS, seed=1)
    if capture.experiment.queue_bytes is None:
        yield "simulator, correlated, same share lost", with_lost_share(capture, capture.path, stack)
    published = Scenario(capture.flow, capture.path, Stack.newreno_2008())
    yield "newreno_2008, correlated", predict(published, method="chain").require()


def retransmitted(capture: FlowCapture) -> float:
    """Return the segments that the measured flows sent again, per packet written."""
    again = sum(int(run.samples["retransmits"].max()) for run in capture.runs)
    return again / sum(run.written.size for run in capture.runs)


def against_captures() -> pd.DataFrame:
    """Return one row per capture and model: predicted / measured - 1 of the quantiles and the mean."""
    rows = []
    for recorded in read_captures(HERE / "captures" / "drop-tail.parquet"):
        capture = measure(recorded)
        experiment = capture.experiment
        case = {
            "packet_size": experiment.packet_size,
            "queue": "packets" if experiment.queue_bytes is None else "bytes",
            "web_flows": experiment.web_flows,
            "congestion_control": experiment.congestion_control,
            "hz": capture.hz,
            "retransmitted": f"{retransmitted(recorded):.4g}",
            "loss": f"{capture.loss:.4g}",
        }
        for name, delays in models(capture):
            figures = {
                "p95": delays.quantile(0.95) / capture.p95.value - 1,
                "mean": delays.mean / capture.mean.value - 1,
                "p99": delays.quantile(0.99) / capture.p99.value - 1,
            }
            rows.append(case | {"model": name} | {measure: f"{error:.4g}" for measure, error in figures.items()})
    return pd.DataFrame(rows)


def main() -> None:
    """Write both comparisons, and the errors that predictions quote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--random", type=int, default=RANDOM, help="random scenarios beside the chosen (%(default)s)")
    arguments = parser.parse_args()
    compared(arguments.random).to_csv(CHAIN, index=False)
    table = pd.read_csv(CHAIN)
    linux_table_file(correlated=True).write_text(errors(table, SEEDS).to_csv())
    against_captures().to_csv(PATTERNS, index=False)


if __name__ == "__main__":
    main()
