"""Compare the chain of QUIC with its simulator: `python validation/quic_chain.py`.

It draws 200 scenarios of a stream per message: messages of 50 to 1200 bytes, and in one of four of 2400 to 9600 bytes;
intervals of 5 to 100 ms, round-trip times of 5 to 300 ms, and losses of 0.01 to 10 %, each uniform in its logarithm. It
writes `results/quic-chain.csv` with one line per scenario, and one per capture of a stream per message, and
`results/quic-chain.md` with the mean errors.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

import tcpdelay as td
from tcpdelay.confidence import Interval
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.budget import TooLargeError
from tcpdelay.models.quic.implementations import IMPLEMENTATIONS
from tcpdelay.models.quic.message_chain import quic_delays
from tcpdelay.questions.validation.captures import QUANTILES, measure_all
from tcpdelay.questions.validation.scores import error_beyond
from tcpdelay.scenario.source import Flow

HERE = FilePath(__file__).parent
CAPTURES, RESULTS = HERE / "quic-captures", HERE / "results"
SCENARIOS, RUNS, MESSAGES = 200, 5, 60_000
"""Scenarios, and simulations of each with their messages: the interval of a figure is that of the runs' mean."""
STUDENT = 2.776
"""Student's quantile for the 95 % interval of the mean of five runs."""
QUANTITIES = ("p95", "p99", "mean")
LIMITED = 1.01
"""Ratio of the simulated p95 to the one-way delay from which on the window or losses count at p95."""
BUSY = 0.05
"""Share of messages that wait for the window from which on a scenario is near the capacity."""


def drawn(count: int, seed: int) -> list[tuple[Flow, td.Path, str]]:
    """Return scenarios: flow, path and implementation."""
    random = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(random.uniform(np.log(low), np.log(high))):.3g}")

    found = []
    for number in range(count):
        size = round(between(2400, 9600) if number % 4 == 3 else between(50, 1200))
        flow = Flow(size, between(0.005, 0.1))
        path = td.Path(rtt=between(0.005, 0.3), loss=between(1e-4, 0.1))
        found.append((flow, path, str(random.choice(list(IMPLEMENTATIONS)))))
    return found


def figures(delays: DelayDistribution) -> dict[str, float]:
    """Return the compared figures of a distribution [s]."""
    return {name: delays.mean if name == "mean" else delays.quantile(QUANTILES[name]) for name in QUANTITIES}


def solved(flow: Flow, path: td.Path, implementation: str) -> tuple[DelayDistribution | None, float]:
    """Return the delays by the chain, None if it is too large, and the time that it took [s]."""
    stack = td.Stack.quic(implementation=implementation, delivery="stream_per_message")
    began = time.process_time()
    try:
        return quic_delays(flow, path, stack), time.process_time() - began
    except TooLargeError:
        return None, time.process_time() - began


def compared(flow: Flow, path: td.Path, implementation: str) -> dict[str, object]:
    """Return the row of a scenario."""
    stack = td.Stack.quic(implementation=implementation, delivery="stream_per_message")
    chain, seconds = solved(flow, path, implementation)
    runs = [td.simulate(flow, path, stack, packets=MESSAGES, seed=seed) for seed in range(RUNS)]
    carried = all(run.sustainable for run in runs)
    found: dict[str, object] = {
        "implementation": implementation,
        "packet_size": flow.packet_size,
        "interval": flow.interval,
        "rtt": path.rtt,
        "loss": path.loss,
        "chain_seconds": seconds,
        "chain_carries": chain is not None and chain.sustainable,
        "simulator_carries": carried,
        "settled": all(run.settled for run in runs),
        "waiting": float(np.mean([run.sender_delay for run in runs])) / path.rtt if carried else np.nan,
    }
    if not carried or chain is None or not chain.sustainable:
        return found
    each, predicted = pd.DataFrame([figures(run) for run in runs]), figures(chain)
    for name in QUANTITIES:
        value, half = float(each[name].mean()), STUDENT * float(each[name].std()) / RUNS**0.5
        found |= {name: value, f"{name}_low": value - half, f"{name}_high": value + half}
        found[f"chain_{name}"] = predicted[name]
        found[f"{name}_beyond"] = error_beyond(predicted[name], Interval(value, value - half, value + half))
    return found


def captured(folder: FilePath) -> pd.DataFrame:
    """Return the rows of the captures of a stream per message whose source is a flow of constant rate."""
    rows = []
    for one in measure_all(folder, sys.exit):
        experiment = one.experiment
        if experiment.delivery != "stream_per_message" or not isinstance(one.source, Flow):
            continue
        chain, seconds = solved(one.source, one.path, experiment.implementation)
        row = {"capture": one.name, "source": one.collection, "implementation": experiment.implementation}
        row |= {"packet_size": one.source.packet_size, "interval": one.source.interval, "chain_seconds": seconds}
        row |= {"rtt": one.path.rtt, "loss": one.path.loss}
        assert chain is not None
        for name, predicted in figures(chain).items():
            measured = getattr(one, name)
            row |= {name: measured.value, f"{name}_low": measured.low, f"{name}_high": measured.high}
            row |= {f"chain_{name}": predicted, f"{name}_beyond": error_beyond(predicted, measured)}
        rows.append(row)
    return pd.DataFrame(rows)


def _errors(groups: dict[str, pd.DataFrame]) -> str:
    """Return the mean errors of groups of rows as a table."""
    lines = []
    for name, own in groups.items():
        errors = {quantity: own[f"{quantity}_beyond"].abs() for quantity in QUANTITIES}
        line: dict[str, object] = {"group": name, "cases": len(own)}
        line |= {quantity: f"{error.mean():.1%}" for quantity, error in errors.items()}
        line["p95, 9 of 10 within"] = f"{errors['p95'].quantile(0.9):.1%}"
        line["largest p95"] = f"{errors['p95'].max():.1%}"
        lines.append(line)
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True))


def summary(table: pd.DataFrame, captures: pd.DataFrame) -> str:
    """Return the comparison in words and tables."""
    both = table[table["chain_carries"] & table["simulator_carries"]]
    settled = both[both["settled"]]
    limited = settled["p95"] > LIMITED * settled["rtt"] / 2
    busy = settled["waiting"] > BUSY
    milliseconds = 1e3 * table["chain_seconds"].iloc[1:]
    groups = {"all": settled, "not near the capacity": settled[~busy], "near it": settled[busy]}
    groups |= {"p95 above the one-way delay": settled[limited], "p95 of the path": settled[~limited]}
    groups |= dict(list(settled.groupby("implementation")))
    differ = table[table["chain_carries"] != table["simulator_carries"]]
    said = [
        f"{len(table)} random scenarios of a stream per message, with {RUNS} simulations of {MESSAGES:,} messages "
        "each. Mean errors of the chain beyond the 95 % interval of the simulations, relative to the simulated value. "
        f"Near the capacity, a message waits for the window for {BUSY:.0%} of the round-trip time or more in the "
        "mean.\n",
        _errors(groups),
        "",
        f"- Both carry {len(both)} scenarios, of which {len(both) - len(settled)} have not settled in the simulation "
        f"and do not count. Neither carries {(~table['chain_carries'] & ~table['simulator_carries']).sum()}.",
        f"- They differ in {len(differ)} scenarios on whether QUIC carries the flow.",
        f"- The chain takes {milliseconds.median():.1f} ms of processor time in the median, "
        f"{milliseconds.quantile(0.9):.0f} ms or less in nine of ten scenarios, and {milliseconds.max():.0f} ms at "
        "most.\n",
        "## Captures of a stream per message, of constant rate\n",
        _errors(
            {"all": captures} | {" ".join(name): own for name, own in captures.groupby(["source", "implementation"])}
        ),
        "",
        "## The largest errors of p95 in the random scenarios\n",
    ]
    worst = settled.loc[settled["p95_beyond"].abs().nlargest(8).index]
    listed = worst[["implementation", "packet_size", "interval", "rtt", "loss", "p95", "chain_p95", "p95_beyond"]]
    return "\n".join([*said, str(listed.to_markdown(index=False)), ""])


def main() -> None:
    """Write the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=SCENARIOS, help="number of scenarios (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the scenarios (%(default)s)")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    rows = []
    for scenario in drawn(arguments.scenarios, arguments.seed):
        rows.append(compared(*scenario))
        print(len(rows), file=sys.stderr, flush=True)
    table, captures = pd.DataFrame(rows), captured(CAPTURES)
    merged = pd.concat([table.assign(capture=""), captures])
    merged.round(6).to_csv(arguments.output / "quic-chain.csv", index=False)
    (arguments.output / "quic-chain.md").write_text(summary(table, captures), encoding="utf-8")
    print(summary(table, captures))


if __name__ == "__main__":
    main()
