"""Errors of the chain against simulations of the same scenarios, one row per scenario."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay.accuracy.errors import WRONG_CALL, ErrorTable, features_of
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack
from tcpdelay.sim.simulation import simulate

MEASURES = ("mean", "p95", "p99")


def measures(delays: DelayDistribution | None, name: str) -> dict[str, float]:
    """Return mean and quantiles [s] by names that begin with `name`; NaN if there is no prediction."""
    if delays is None:
        return {f"{name}_{measure}": np.nan for measure in MEASURES}
    values = (delays.mean, delays.quantile(0.95), delays.quantile(0.99))
    return {f"{name}_{measure}": float(f"{value:.6g}") for measure, value in zip(MEASURES, values, strict=True)}


def row(flow: Flow, path: Path, stack: Linux, packets: int, seeds: Sequence[int]) -> dict[str, float | str]:
    """Return the figures of the chain and of one simulation per seed; without a prediction, nothing is simulated."""
    chain = predict(Scenario(flow, path, stack), method="chain").distribution
    scenario = {"packet_size": flow.packet_size, "interval": flow.interval, "rtt": path.rtt, "loss": path.loss}
    kernel = {"congestion_control": stack.congestion_control, "hz": stack.hz}
    figures = measures(chain, "chain")
    for seed in seeds:
        simulated = simulate(flow, path, stack, packets=packets, seed=seed) if chain else None
        figures |= measures(simulated, f"seed{seed}")
    return {**scenario, **kernel, "loss_burst": path.loss_burst, **figures}


def errors(table: pd.DataFrame, seeds: Sequence[int]) -> ErrorTable:
    """Return the table of errors that predictions quote, against the mean of the simulations of each row."""
    answered = table[table["chain_p95"].notna()]
    features = [
        features_of(
            Flow(one.packet_size, one.interval, write_jitter=0.0),
            Path(one.rtt, one.loss, jitter=getattr(one, "jitter", 0.0)),
            Stack.linux(one.congestion_control),
        )
        for one in answered.itertuples()
    ]
    off = {}
    for measure in MEASURES:
        simulated = np.mean([answered[f"seed{seed}_{measure}"] for seed in seeds], axis=0)
        # An infinite delay: TCP carries the flow in the chain, but not in the simulation.
        off[measure] = np.where(np.isfinite(simulated), answered[f"chain_{measure}"] / simulated - 1, -WRONG_CALL)
    cubic = (answered["congestion_control"] == "cubic").to_numpy()
    carried = np.isfinite(answered["chain_mean"].to_numpy())
    return ErrorTable(np.array(features), cubic, carried, {0.95: off["p95"], 0.99: off["p99"]}, off["mean"])


def comparison(words: str, file: FilePath, scenarios: int, compared: Callable[[int], pd.DataFrame]) -> pd.DataFrame:
    """Return the comparison that a script has in a CSV file, written anew unless the command line says `--again`."""
    parser = argparse.ArgumentParser(description=words.partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=scenarios, help="number of scenarios (%(default)s)")
    parser.add_argument("--again", action="store_true", help="compute the errors from the existing comparison")
    arguments = parser.parse_args()
    if not arguments.again:
        compared(arguments.scenarios).to_csv(file, index=False)
    return pd.read_csv(file)
