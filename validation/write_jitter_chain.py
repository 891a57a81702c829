"""Compare the chain with the simulator where writes are late: `python validation/write_jitter_chain.py`.

It writes `results/write-jitter-chain.csv` with one line per scenario, and `results/write-jitter-chain.md`. In three of
five scenarios the round-trip time is a multiple of the interval. Writes are up to 1 ms late in a sixth of the
scenarios, and up to a twentieth of the interval, a tenth, a quarter, a half or the whole of it in the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay.accuracy.throughput import reno_utilization
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack
from tcpdelay.sim.simulation import simulate

RESULTS = FilePath(__file__).parent / "results"
SCENARIOS, PACKETS, SEED = 150, 400_000, 2027
LARGEST_UTILIZATION = 0.9
INTERVALS = (0.005, 0.010, 0.020, 0.020, 0.030, 0.040)
"""Intervals between packets [s]; two of six flows send every 20 ms."""
RTT, LOSS, SIZE = (0.010, 0.300), (0.002, 0.060), (80, 1448)
"""Ranges of round-trip times [s], losses and packet sizes [bytes], drawn in equal ratios."""
MOST_INTERVALS = 10
"""Largest round-trip time that is a multiple of the interval [intervals]."""
SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Write jitters [intervals]; 0 stands for 1 ms."""
EDGES = [0.0, 0.15, 0.6, 1.0]
"""Edges of the groups of write jitters [intervals]."""


def scenarios() -> Iterator[tuple[Flow, Path, Linux]]:
    """Yield random scenarios whose flow writes late."""
    for number in count():
        random = np.random.default_rng([SEED, number])
        interval = float(random.choice(INTERVALS))
        rtt, loss, size = (float(np.exp(random.uniform(*np.log(each)))) for each in (RTT, LOSS, SIZE))
        if random.random() < 0.6:
            rtt = interval * int(random.integers(1, MOST_INTERVALS + 1))
        jitter = float(random.choice(SHARES)) * interval or 0.001
        flow = Flow(int(size), interval, write_jitter=round(jitter, 6))
        path = Path(round(rtt, 4), round(loss, 4))
        if reno_utilization(flow, path) < LARGEST_UTILIZATION:
            yield flow, path, Stack.linux(random.choice(["cubic", "cubic", "reno"]))


def compared(number: int) -> pd.DataFrame:
    """Return one row per scenario with the mean and p95 of chains and simulations, with late and with exact writes."""
    rows: list[dict[str, object]] = []
    for flow, path, stack in scenarios():
        if len(rows) == number:
            break
        row: dict[str, object] = {"control": stack.congestion_control}
        row |= {"packet_size": flow.packet_size, "interval": flow.interval, "rtt": path.rtt, "loss": path.loss}
        row["write_jitter"] = flow.write_jitter
        found: dict[str, DelayDistribution] = {}
        settled = True
        for name, written in (("late", flow), ("exact", replace(flow, write_jitter=0.0))):
            found[f"chain_{name}"] = DelayModel(written, path, stack).delay_distribution()
            simulated = simulate(written, path, stack, packets=PACKETS, seed=len(rows))
            found[f"simulated_{name}"] = simulated
            settled = settled and simulated.settled
        if not settled or not all(each.sustainable for each in found.values()):
            continue
        for name, delays in found.items():
            row |= {f"{name}_mean": round(delays.mean, 6), f"{name}_p95": round(float(delays.quantile(0.95)), 6)}
        rows.append(row)
        if len(rows) % 10 == 0:
            print(f"{len(rows)} of {number} scenarios ...", file=sys.stderr, flush=True)
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> str:
    """Return the mean errors without their signs, by write jitter and round-trip time, as a table of Markdown."""
    load = table.rtt / table.interval
    multiple = np.where((load - load.round()).abs() < 1e-6, "multiple of the interval", "other")
    share = pd.cut(table.write_jitter / table.interval, EDGES)
    lines = [
        f"{len(table)} scenarios, against simulations of {PACKETS} packets. Mean errors without their signs: the chain "
        "with late writes, the chain with exact writes against simulations of late writes, and, for comparison, the "
        "chain with exact writes against simulations of exact writes.\n\n",
        "| write jitter [intervals] | round-trip time | scenarios | mean: late | exact / late | exact / exact "
        "| p95: late | exact / late | exact / exact |\n",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    ]
    for (jitter, kind), rows in table.groupby([share, multiple], observed=True):
        errors = [
            f"{(rows[f'chain_{chain}_{figure}'] / rows[f'simulated_{simulated}_{figure}'] - 1).abs().mean():.1%}"
            for figure in ("mean", "p95")
            for chain, simulated in (("late", "late"), ("exact", "late"), ("exact", "exact"))
        ]
        lines.append(f"| {jitter.left:g} to {jitter.right:g} | {kind} | {len(rows)} | {' | '.join(errors)} |\n")
    return "".join(lines)


def main() -> None:
    """Write the table and its summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=SCENARIOS, help="number of scenarios (%(default)s)")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    table = compared(arguments.scenarios)
    table.to_csv(arguments.output / "write-jitter-chain.csv", index=False)
    (arguments.output / "write-jitter-chain.md").write_text(summary(table), encoding="utf-8")
    print(summary(table))


if __name__ == "__main__":
    main()
