"""Compare the chain with the simulator on paths with jitter: `python validation/jitter.py`.

The script takes some 20 minutes. It writes `results/jitter.csv` with one line per scenario, and `results/jitter.md`.
The scenarios are those of the error map with packets up to one segment and a utilization below 0.9. A third of them
uses BBR. A fifth sends packets ten times as rarely. A fifth has a jitter as long as the interval between packets, and
another fifth has no jitter, for comparison.
Predictions quote the errors with jitter (`tcpdelay/accuracy/data`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from scoring.chain_errors import MEASURES, comparison, errors, measures, row
from scoring.error_map import random_scenario
from tcpdelay.accuracy.errors import JITTER_TABLE, table_file
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.chain.linux.delays import with_jitter
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

RESULTS = FilePath(__file__).parent / "results"
TABLE, SUMMARY = "jitter.csv", "jitter.md"
SEEDS = (1, 2)
PACKETS = 400_000
SCENARIOS = 300
LARGEST_UTILIZATION = 0.9
SPARSER = 10
"""Factor of the interval of sparse flows."""
STEPS = 10
"""Number of scenarios between two lines of progress."""
SEED = 2026
RTT, LOSS = (0.020, 0.300), (0.001, 0.05)
"""Round-trip times [s] and losses of the scenarios in the summary; the table of errors has all scenarios."""
LARGE_SHARE = 0.1
"""Share of the round-trip time from which on a jitter counts as large."""
LONG_INTERVAL = 0.1
"""Longest interval of a flow that does not count as sparse [s]."""


def scenarios() -> Iterator[tuple[Flow, Path, Linux]]:
    """Yield random scenarios; the jitter is up to an interval, and up to the minimum retransmission timeout."""
    for number in count():
        one = random_scenario(number)
        random = np.random.default_rng([SEED, number])
        sparse, kind, share, bbr = random.random() < 0.2, random.random(), random.random(), random.random() < 1 / 3
        flow = replace(one.flow, interval=round(one.flow.interval * (SPARSER if sparse else 1), 6))
        stack = replace(one.stack, congestion_control="bbr") if bbr else one.stack
        relative = 0.0 if kind < 0.2 else 1.0 if kind < 0.4 else share
        # In whole microseconds, rounded down: the simulator's unit.
        path = replace(one.path, jitter=np.floor(min(relative * flow.interval, stack.rto_min) * 1e6) / 1e6)
        single = flow.packet_size <= stack.mss
        if single and connection_utilization(flow, path, stack) < LARGEST_UTILIZATION:
            yield flow, path, stack


def at_mean_rtt(flow: Flow, path: Path, stack: Linux) -> dict[str, float]:
    """Return the figures of one chain at the mean round-trip time, which the mean of several chains has to surpass."""
    steady = replace(path, rtt=path.mean_rtt, one_way_delay=path.forward_delay, jitter=0.0)
    found = predict(Scenario(flow, steady, stack), method="chain").distribution
    if found is None or not found.sustainable or path.jitter == 0:
        return measures(found, "one_chain")
    values, weights = with_jitter([found], path.jitter)
    return measures(DelayDistribution(values, weights, path.forward_delay), "one_chain")


def compared(number: int) -> pd.DataFrame:
    """Return one row per scenario: the figures of the chain and of the simulations."""
    rows = []
    for done, (flow, path, stack) in enumerate(islice(scenarios(), number)):
        if done % STEPS == 0:
            print(f"{done} of {number} scenarios ...", file=sys.stderr, flush=True)
        figures = row(flow, path, stack, PACKETS, SEEDS) | at_mean_rtt(flow, path, stack)
        rows.append({"jitter": path.jitter} | figures)
    return pd.DataFrame(rows)


def _errors_in_words(group: pd.DataFrame) -> dict[str, str]:
    """Return the mean errors of the chain in a group of scenarios, and the differences of the simulations."""
    words = {"scenarios": str(len(group))}
    for measure in MEASURES:
        first, second = (group[f"seed{seed}_{measure}"] for seed in SEEDS)
        chain, one_chain = (
            (group[f"{name}_{measure}"] / ((first + second) / 2) - 1).abs() for name in ("chain", "one_chain")
        )
        words[f"{measure}: chain"] = f"{chain.mean():.1%}"
        words[f"{measure}: nine in ten below"] = f"{chain.quantile(0.9):.1%}"
        words[f"{measure}: one chain"] = f"{one_chain.mean():.1%}"
        words[f"{measure}: simulations"] = f"{(second / first - 1).abs().mean():.1%}"
    return words


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean errors without their signs by the jitter in packet intervals, and by congestion control."""
    carried = table[np.isfinite(table[[f"seed{seed}_mean" for seed in SEEDS]]).all(axis=1) & table["chain_p95"].notna()]
    shown = carried[carried["rtt"].between(*RTT) & carried["loss"].between(*LOSS)]
    relative = shown["jitter"] / shown["interval"]
    sparse = shown["interval"] > LONG_INTERVAL
    groups = {
        "no jitter": ~sparse & (relative == 0),
        "jitter up to 1/3 interval": ~sparse & (relative > 0) & (relative <= 1 / 3),
        "jitter up to 2/3 interval": ~sparse & (relative > 1 / 3) & (relative <= 2 / 3),
        "jitter up to an interval": ~sparse & (relative > 2 / 3),
        "sparse flows, no jitter": sparse & (relative == 0),
        "sparse flows, jitter": sparse & (relative > 0),
    }
    large = shown["jitter"] > LARGE_SHARE * shown["rtt"]
    groups["jitter up to a tenth of the RTT"] = ~sparse & (relative > 0) & ~large
    groups["jitter above a tenth of the RTT"] = ~sparse & large
    for control in ("cubic", "reno", "bbr"):
        groups[f"{control}, any jitter"] = ~sparse & (relative > 0) & (shown["congestion_control"] == control)
    return pd.DataFrame({name: _errors_in_words(shown[chosen]) for name, chosen in groups.items()}).T


def main() -> None:
    """Write the comparison, its summary, and the errors that predictions quote."""
    table = comparison(__doc__ or "", RESULTS / TABLE, SCENARIOS, compared)
    words = (
        f"Errors of the chain with jitter, without their signs, in the mean of scenarios with an RTT of {RTT[0]:g} to "
        f"{RTT[1]:g} s and a loss of {LOSS[0]:g} to {LOSS[1]:g}. *One chain* has the mean round-trip time. "
        f"*Simulations* is the difference of two simulations of {PACKETS} packets each.\n\n"
    )
    (RESULTS / SUMMARY).write_text(words + summary(table).to_markdown() + "\n")
    table_file(JITTER_TABLE).write_text(errors(table[table["jitter"] > 0], SEEDS).to_csv())


if __name__ == "__main__":
    main()
