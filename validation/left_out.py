"""Measure what the chain leaves out by simulations: `python validation/left_out.py`.

The script simulates random scenarios of the error map with a utilization below 0.9, with lost ACKs, with delayed ACKs,
and without both. It takes some five minutes, and writes `results/left-out.csv` with one line per scenario, effect and
seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path as FilePath

import pandas as pd

from scoring.chain_errors import measures
from scoring.error_map import MapScenario, random_scenario
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.simulation import simulate

TABLE = FilePath(__file__).parent / "results" / "left-out.csv"
SEEDS = (1, 2)
PACKETS = 400_000
RANDOM = 60
LARGEST_UTILIZATION = 0.9


def variations(one: MapScenario) -> Iterator[tuple[str, Path, Linux]]:
    """Yield the name, path and stack of each simulation of a scenario; the first is the chain's own scenario."""
    path, stack = one.path, one.stack
    yield "none", path, stack
    yield "delayed ACKs", path, replace(stack, delayed_ack=True)
    yield "1 % of the ACKs lost", replace(path, ack_loss=0.01), stack
    yield "5 % of the ACKs lost", replace(path, ack_loss=0.05), stack


def rows(random: int) -> Iterator[dict[str, float | str]]:
    """Yield one row per scenario, effect and seed."""
    fitting = (one for one in map(random_scenario, count()) if one.utilization < LARGEST_UTILIZATION)
    for number, one in enumerate(islice(fitting, random)):
        print(f"{number} of {random} scenarios", file=sys.stderr, flush=True)
        scenario = {
            "scenario": number,
            "packet_size": one.flow.packet_size,
            "interval": one.flow.interval,
            "rtt": one.path.rtt,
            "loss": one.path.loss,
            "congestion_control": one.stack.congestion_control,
            "utilization": float(f"{one.utilization:.3g}"),
        }
        for effect, path, stack in variations(one):
            for seed in SEEDS:
                delays = simulate(one.flow, path, stack, packets=PACKETS, seed=seed)
                yield {
                    **scenario,
                    "effect": effect,
                    "jitter": path.jitter,
                    "seed": seed,
                    **measures(delays, "simulated"),
                }


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--random", type=int, default=RANDOM, help="number of random scenarios (%(default)s)")
    arguments = parser.parse_args()
    pd.DataFrame(rows(arguments.random)).to_csv(TABLE, index=False)


if __name__ == "__main__":
    main()
