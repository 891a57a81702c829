"""Compare the rate that the chain expects TCP to carry with simulations: `python validation/capacity.py`.

The flows of random scenarios send 1.4 times that rate, so that the simulated sender always has a backlog. The script
takes some minutes and writes `results/capacity.csv`. A verdict near capacity quotes the error that nine of ten do not
exceed (`tcpdelay.accuracy.errors.CAPACITY_ERROR`).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from scoring.error_map import random_scenario
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import capacity
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.simulation import simulate

RESULTS = FilePath(__file__).parent / "results"
OVERLOAD = 1.4
ROUNDS = 6
"""Steps in which the interval approaches `OVERLOAD`: the chain's rate depends a little on the interval."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 1e-4, 1.0
PACKETS = 600_000
STEPS = 20
"""Number of scenarios between two lines of progress."""


def overloaded(flow: Flow, path: Path, stack: Linux) -> Flow | None:
    """Return the flow with `OVERLOAD` times the rate that the chain expects TCP to carry; None if out of range."""
    for _ in range(ROUNDS):
        rate = capacity(Scenario(flow, path, stack))
        if not SHORTEST_INTERVAL <= 1 / (OVERLOAD * rate) <= LONGEST_INTERVAL:
            return None
        flow = replace(flow, interval=1 / (OVERLOAD * rate))
    return flow


def row(flow: Flow, path: Path, stack: Linux) -> dict[str, float | str]:
    """Return the simulated rate relative to the chain's."""
    share = simulate(flow, path, stack, packets=PACKETS, seed=1).carried.value
    offered = 1 / (flow.interval * capacity(Scenario(flow, path, stack)))
    scenario = {"packet_size": flow.packet_size, "interval": flow.interval, "rtt": path.rtt, "loss": path.loss}
    kernel = {"congestion_control": stack.congestion_control, "hz": stack.hz}
    rounded = {name: float(f"{value:.6g}") for name, value in scenario.items()}
    return rounded | kernel | {"simulated": float(f"{share * offered:.4g}")}


def compared(scenarios: int) -> pd.DataFrame:
    """Return one row per random scenario that the simulator takes."""
    rows: list[dict[str, float | str]] = []
    for number in count():
        if len(rows) == scenarios:
            break
        drawn = random_scenario(number)
        flow = overloaded(drawn.flow, drawn.path, drawn.stack)
        if flow is None:
            continue
        try:
            rows.append(row(flow, drawn.path, drawn.stack))
        except InvalidValueError as error:
            print(f"left out: {error}", file=sys.stderr)
        if len(rows) % STEPS == 0:
            print(f"{len(rows)} scenarios ...", file=sys.stderr, flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Write the comparison, and print the errors of the chain's rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=250, help="number of scenarios (%(default)s)")
    arguments = parser.parse_args()
    table = compared(arguments.scenarios)
    table.to_csv(RESULTS / "capacity.csv", index=False)
    errors = np.abs(table["simulated"] - 1)
    print(f"{len(table)} scenarios: the chain's rate is {errors.median():.3f} off in the median,")
    print(f"{errors.quantile(0.9):.3f} in nine of ten, {errors.max():.3f} at most")


if __name__ == "__main__":
    main()
