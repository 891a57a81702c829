"""Compare the chain with the simulator where losses come in bursts: `python validation/bursts.py`.

It takes some minutes, and writes `results/bursts-chain.csv`, a scenario and mean burst a line, and the table of errors
by mean burst that the documentation shows.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import count, islice
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay import DelayDistribution, DelayModel, Flow, Path, Stack, simulate
from tcpdelay.chain.linux.parameters import BurstsBeyondChainError
from tcpdelay.chain.model import ChainTooLargeError
from tcpdelay.scenario import Linux
from tcpdelay.validation.error_map import random_scenario

RESULTS = FilePath(__file__).parent / "results"
BURSTS = (1.5, 2.0, 3.0, 5.0)
PACKETS = 1_000_000
LARGEST_UTILIZATION = 0.9
CHOSEN = [
    *((174, 0.020, rtt, loss) for rtt in (0.020, 0.050, 0.100, 0.200) for loss in (0.005, 0.01, 0.02)),
    *((1200, 0.020, 0.100, loss) for loss in (0.005, 0.01)),
    *((160, 0.050, 0.050, loss) for loss in (0.005, 0.01, 0.02)),
]
"""Packet size [bytes], interval [s], round-trip time [s] and loss."""
MEASURES = ("mean", "p95", "p99")


def scenarios(random: int) -> list[tuple[Flow, Path, Linux]]:
    """Return the chosen scenarios and so many random ones, those of the map that load TCP little enough."""
    chosen = [(Flow(size, interval), Path(rtt, loss), Stack.linux()) for size, interval, rtt, loss in CHOSEN]
    drawn = (random_scenario(number) for number in count())
    fitting = (one for one in drawn if one.flow.packet_size <= one.stack.mss and one.utilization < LARGEST_UTILIZATION)
    return chosen + [(one.flow, one.path, one.stack) for one in islice(fitting, random)]


def measures(delays: DelayDistribution | None, name: str) -> dict[str, float]:
    """Return mean and quantiles [s] under names that begin with `name`; none if there is no answer."""
    if delays is None:
        return {f"{name}_{measure}": np.nan for measure in MEASURES}
    values = (delays.mean, delays.quantile(0.95), delays.quantile(0.99))
    return {f"{name}_{measure}": float(f"{value:.6g}") for measure, value in zip(MEASURES, values, strict=True)}


def compared(random: int) -> pd.DataFrame:
    """Return every scenario and mean burst with what chain and simulator, twice, say."""
    rows = []
    for number, (flow, steady, stack) in enumerate(scenarios(random)):
        for burst in BURSTS:
            path = replace(steady, loss_burst=burst)
            try:
                chain = DelayModel(flow, path, stack).delay_distribution()
            except (BurstsBeyondChainError, ChainTooLargeError):
                chain = None
            row = {"packet_size": flow.packet_size, "interval": flow.interval, "rtt": path.rtt, "loss": path.loss}
            row |= {"congestion_control": stack.congestion_control, "hz": stack.hz, "loss_burst": burst}
            row |= {"random": number >= len(CHOSEN)} | measures(chain, "chain")
            for seed in (1, 2):
                row |= measures(simulate(flow, path, stack, packets=PACKETS, seed=seed), f"seed{seed}")
            rows.append(row)
    return pd.DataFrame(rows)


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of the errors without their signs, by mean burst, over the scenarios that the chain answers."""
    rows = {}
    for burst, group in table.groupby("loss_burst"):
        answered = group[group["chain_p95"].notna()]
        row = {"scenarios": str(len(group)), "answered": str(len(answered))}
        for name, one in (("chain", "chain"), ("second simulation", "seed2")):
            for measure in ("p95", "mean", "p99"):
                off = (answered[f"{one}_{measure}"] / answered[f"seed1_{measure}"] - 1).abs()
                row[f"{name}: {measure}"] = f"{off.mean():.1%}" if len(off) else ""
        rows[f"{burst:g}"] = row
    return pd.DataFrame(rows).T.rename_axis("mean burst")


def main() -> None:
    """Write the comparison and its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--random", type=int, default=0, help="random scenarios beside the chosen ones (%(default)s)")
    table = compared(parser.parse_args().random)
    table.to_csv(RESULTS / "bursts-chain.csv", index=False)
    page = errors(table).to_markdown()
    (RESULTS / "bursts-chain.md").write_text(page + "\n")
    print(page)


if __name__ == "__main__":
    main()
