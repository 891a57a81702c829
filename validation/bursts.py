"""Compare the chain with the simulator where losses come in bursts: `python validation/bursts.py`.

The script takes some minutes. It writes `results/bursts-chain.csv` with one line per scenario and mean burst: chosen
scenarios, and random scenarios of the error map with packets up to one segment and a utilization below 0.9. Predictions
quote the errors of this comparison (`tcpdelay/accuracy/data`).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import count, islice
from pathlib import Path as FilePath

import pandas as pd

from scoring.chain_errors import errors, row
from scoring.error_map import random_scenario
from tcpdelay.accuracy.errors import linux_table_file
from tcpdelay.scenario.path import Path
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


def scenarios(random: int) -> list[tuple[Flow, Path, Linux]]:
    """Return the chosen scenarios, and `random` scenarios of the map with a low utilization."""
    chosen = [
        (Flow(size, interval, write_jitter=0.0), Path(rtt, loss), Stack.linux()) for size, interval, rtt, loss in CHOSEN
    ]
    drawn = (random_scenario(number) for number in count())
    fitting = (one for one in drawn if one.flow.packet_size <= one.stack.mss and one.utilization < LARGEST_UTILIZATION)
    return chosen + [(one.flow, one.path, one.stack) for one in islice(fitting, random)]


def compared(random: int) -> pd.DataFrame:
    """Return one row per scenario and mean burst: the figures of the chain and of two simulations."""
    rows = []
    for number, (flow, steady, stack) in enumerate(scenarios(random)):
        if number % STEPS == 0:
            print(f"{number} scenarios ...", file=sys.stderr, flush=True)
        for burst in BURSTS:
            rows.append(
                {"random": number >= len(CHOSEN)} | row(flow, replace(steady, loss_burst=burst), stack, PACKETS, SEEDS)
            )
    return pd.DataFrame(rows)


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
        linux_table_file(burst).write_text(errors(table[table["loss_burst"] == burst], SEEDS).to_csv())


if __name__ == "__main__":
    main()
