"""Compare the chain with the simulator where losses come in bursts: `python validation/bursts.py`.

The script takes some minutes. It writes `results/bursts-chain.csv` with one line per scenario and mean burst: chosen
scenarios, and random scenarios of the error map with packets up to one segment and a utilization below 0.9. Predictions
quote the errors of this comparison (`tcpdelay/models/data`).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import count, islice
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from scoring.error_map import random_scenario
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.accuracy import features_of, linux_table_file
from tcpdelay.models.error_table import WRONG_CALL, ErrorTable
from tcpdelay.models.predict import predict
from tcpdelay.models.simulator.simulation import simulate
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack

RESULTS = FilePath(__file__).parent / "results"
TABLE = "bursts-chain.csv"
BURSTS = (1.5, 2.0)
SEEDS = (1, 2)
PACKETS = 1_000_000
LARGEST_UTILIZATION = 0.9
RANDOM = 150
CHOSEN = [
    *((174, 0.020, rtt, loss) for rtt in (0.020, 0.050, 0.100, 0.200) for loss in (0.005, 0.01, 0.02)),
    *((1200, 0.020, 0.100, loss) for loss in (0.005, 0.01)),
    *((160, 0.050, 0.050, loss) for loss in (0.005, 0.02)),
]
"""Packet size [bytes], interval [s], round-trip time [s] and loss."""
STEPS = 20
"""Number of scenarios between two lines of progress."""
MEASURES = ("mean", "p95", "p99")


def scenarios(random: int) -> list[tuple[Flow, Path, Linux]]:
    """Return the chosen scenarios, and `random` scenarios of the map with a low utilization."""
    chosen = [(Flow(size, interval), Path(rtt, loss), Stack.linux()) for size, interval, rtt, loss in CHOSEN]
    drawn = (random_scenario(number) for number in count())
    fitting = (one for one in drawn if one.flow.packet_size <= one.stack.mss and one.utilization < LARGEST_UTILIZATION)
    return chosen + [(one.flow, one.path, one.stack) for one in islice(fitting, random)]


def measures(delays: DelayDistribution | None, name: str) -> dict[str, float]:
    """Return mean and quantiles [s] by names that begin with `name`; NaN if there is no prediction."""
    if delays is None:
        return {f"{name}_{measure}": np.nan for measure in MEASURES}
    values = (delays.mean, delays.quantile(0.95), delays.quantile(0.99))
    return {f"{name}_{measure}": float(f"{value:.6g}") for measure, value in zip(MEASURES, values, strict=True)}


def row(flow: Flow, path: Path, stack: Linux) -> dict[str, float | str]:
    """Return the figures of the chain and of the simulations; without a prediction, nothing is simulated."""
    chain = predict(Scenario(flow, path, stack), method="chain").distribution
    scenario = {"packet_size": flow.packet_size, "interval": flow.interval, "rtt": path.rtt, "loss": path.loss}
    kernel = {"congestion_control": stack.congestion_control, "hz": stack.hz}
    found = scenario | kernel | {"loss_burst": path.loss_burst} | measures(chain, "chain")
    for seed in SEEDS:
        simulated = simulate(flow, path, stack, packets=PACKETS, seed=seed) if chain else None
        found |= measures(simulated, f"seed{seed}")
    return found


def compared(random: int) -> pd.DataFrame:
    """Return one row per scenario and mean burst: the figures of the chain and of two simulations."""
    rows = []
    for number, (flow, steady, stack) in enumerate(scenarios(random)):
        if number % STEPS == 0:
            print(f"{number} scenarios ...", file=sys.stderr, flush=True)
        for burst in BURSTS:
            rows.append({"random": number >= len(CHOSEN)} | row(flow, replace(steady, loss_burst=burst), stack))
    return pd.DataFrame(rows)


def errors(table: pd.DataFrame) -> ErrorTable:
    """Return the table of errors that predictions quote, against the mean of both simulations."""
    answered = table[table["chain_p95"].notna()]
    features = [
        features_of(Flow(one.packet_size, one.interval), Path(one.rtt, one.loss), Stack.linux(one.congestion_control))
        for one in answered.itertuples()
    ]
    off = {}
    for measure in MEASURES:
        simulated = np.mean([answered[f"seed{seed}_{measure}"] for seed in SEEDS], axis=0)
        # An infinite delay: TCP carries the flow in the chain, but not in the simulation.
        off[measure] = np.where(np.isfinite(simulated), answered[f"chain_{measure}"] / simulated - 1, -WRONG_CALL)
    cubic = (answered["congestion_control"] == "cubic").to_numpy()
    carried = np.isfinite(answered["chain_mean"].to_numpy())
    return ErrorTable(np.array(features), cubic, carried, {0.95: off["p95"], 0.99: off["p99"]}, off["mean"])


def main() -> None:
    """Write the comparison, and the errors that predictions quote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--random", type=int, default=RANDOM, help="random scenarios beside the chosen (%(default)s)")
    parser.add_argument("--again", action="store_true", help="compute the errors from the existing comparison")
    arguments = parser.parse_args()
    if not arguments.again:
        compared(arguments.random).to_csv(RESULTS / TABLE, index=False)
    table = pd.read_csv(RESULTS / TABLE)
    for burst in BURSTS:
        linux_table_file(burst).write_text(errors(table[table["loss_burst"] == burst]).to_csv())


if __name__ == "__main__":
    main()
