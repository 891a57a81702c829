"""Compare the chain of BBR with the simulator in random scenarios: `python validation/bbr_chain.py`.

The script takes some twenty minutes. It writes `results/bbr-chain.csv` with one line per scenario of the error map with
packets up to one segment, whose writes are up to 1 ms late. Predictions quote the errors of this comparison
(`tcpdelay/accuracy/data`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count, islice
from pathlib import Path as FilePath

import pandas as pd

from scoring.chain_errors import MEASURES, comparison, errors, row
from scoring.error_map import random_scenario
from tcpdelay.accuracy.errors import linux_table_file
from tcpdelay.scenario.source import TYPICAL_WRITE_JITTER

RESULTS = FilePath(__file__).parent / "results"
TABLE = "bbr-chain.csv"
SEEDS = (1,)
PACKETS, CONNECTIONS = 300_000, 3
"""Fewest packets of a simulation, and fewest connections of 20 minutes."""
CONNECTION_TIME = 1200.0
SCENARIOS = 500
STEPS = 50
"""Number of scenarios between two lines of progress."""


def compared(scenarios: int) -> pd.DataFrame:
    """Return one row per scenario: the figures of the chain and of a simulation."""
    rows = []
    single = (one for one in map(random_scenario, count()) if one.flow.packet_size <= one.stack.mss)
    for number, one in enumerate(islice(single, scenarios)):
        if number % STEPS == 0:
            print(f"{number} scenarios ...", file=sys.stderr, flush=True)
        packets = max(PACKETS, round(CONNECTIONS * CONNECTION_TIME * one.flow.packet_rate))
        # BBR feels how evenly an application writes, so that its error is that of writes as programs make them.
        flow = replace(one.flow, write_jitter=TYPICAL_WRITE_JITTER)
        rows.append(row(flow, one.path, replace(one.stack, congestion_control="bbr"), packets, SEEDS))
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> str:
    """Return the mean and the median error of each figure in words."""
    said = []
    for name in MEASURES:
        off = (table[f"chain_{name}"] / table[f"seed{SEEDS[0]}_{name}"] - 1).abs()
        said.append(f"{name} {off.mean():.1%} in the mean, at most {off.quantile(0.9):.1%} in nine of ten")
    return f"Errors of the chain in {len(table)} scenarios: " + "; ".join(said)


def main() -> None:
    """Write the comparison and the errors that predictions quote, and print the mean errors."""
    table = comparison(__doc__ or "", RESULTS / TABLE, SCENARIOS, compared)
    linux_table_file(bbr=True).write_text(errors(table, SEEDS).to_csv())
    print(summary(table))


if __name__ == "__main__":
    main()
