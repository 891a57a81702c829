"""Compare the chain of QUIC with its simulator: `python validation/quic_chain.py`.

It draws 600 scenarios of a stream per message and 120 of datagrams: messages of 50 to 1200 bytes, and in one of four of
2400 to 9600 bytes; intervals of 5 to 100 ms, round-trip times of 5 to 300 ms, and losses of 0.01 to 10 %, each uniform
in its logarithm. It also simulates rates of 0.9 and 1.1 of the largest rate that the chain says QUIC carries. It writes
`results/quic-chain.csv` with one line per scenario, and one per capture of a stream per message, and
`results/quic-chain.md` with the mean errors.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

import tcpdelay as td
from scoring.spreads import spread_of
from tcpdelay.accuracy.errors import WRONG_CALL
from tcpdelay.budget import TooLargeError
from tcpdelay.chain.quic_chain import error_group, largest_rate
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Delivery
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.captures import QUANTILES, measure_all
from tcpdelay.study.validation.predictions import error_beyond

HERE = FilePath(__file__).parent
CAPTURES, RESULTS = HERE / "quic-captures", HERE / "results"
SCENARIOS, DATAGRAM_SCENARIOS, RUNS, MESSAGES = 600, 120, 5, 60_000
"""Scenarios, and simulations of each with their messages: the interval of a figure is that of the runs' mean."""
STUDENT = 2.776
"""Student's quantile for the 95 % interval of the mean of five runs."""
QUANTITIES = ("p95", "p99", "mean")
SHARES, RATE_MESSAGES = (0.9, 1.1), 600_000
"""Rates that are simulated, relative to the largest rate by the chain, and the messages of a simulation."""
SHORTEST_INTERVAL = 0.005
"""Shortest interval of the scenarios [s], also of the largest rates that are simulated."""
Case = tuple[Flow, td.Path, str, Delivery]
"""A scenario: flow, path, implementation and delivery."""


def drawn(count: int, seed: int, delivery: Delivery = "stream_per_message") -> list[Case]:
    """Return scenarios."""
    random = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(random.uniform(np.log(low), np.log(high))):.3g}")

    found = []
    for number in range(count):
        size = round(between(2400, 9600) if number % 4 == 3 else between(50, 1200))
        flow = Flow(size, between(0.005, 0.1), write_jitter=0.0)
        path = td.Path(rtt=between(0.005, 0.3), loss=between(1e-4, 0.1))
        found.append((flow, path, str(random.choice(list(IMPLEMENTATIONS))), delivery))
    return found


def figures(delays: DelayDistribution) -> dict[str, float]:
    """Return the compared figures of a distribution [s]; the mean with lost datagrams is NaN."""
    mean = delays.mean if math.isfinite(delays.mean) else math.nan
    return {name: mean if name == "mean" else delays.quantile(QUANTILES[name]) for name in QUANTITIES}


def solved(flow: Flow, path: td.Path, stack: td.Stack) -> tuple[DelayDistribution | None, float]:
    """Return the delays by the chain, None if it is too large, and the time that it took [s]."""
    began = time.process_time()
    try:
        return predict(Scenario(flow, path, stack), method="chain").require(), time.process_time() - began
    except TooLargeError:
        return None, time.process_time() - began


def beyond(predicted: float, runs: pd.Series) -> dict[str, float]:
    """Return the mean of a figure of the runs, its interval, and the error of a prediction beyond it.

    Quantiles of datagrams may be infinite: an infinite one that is finite in a run, or the reverse, counts as 100 %.
    """
    if np.isinf(runs).any() or math.isinf(predicted):
        infinite = np.isinf(runs).all() and math.isinf(predicted)
        return {"": np.inf, "low": np.inf, "high": np.inf, "beyond": 0.0 if infinite else WRONG_CALL}
    value, half = float(runs.mean()), STUDENT * float(runs.std()) / RUNS**0.5
    error = error_beyond(predicted, Interval(value, value - half, value + half))
    return {"": value, "low": value - half, "high": value + half, "beyond": error}


def compared(flow: Flow, path: td.Path, implementation: str, delivery: Delivery) -> dict[str, object]:
    """Return the row of a scenario."""
    stack = td.Stack.quic(implementation=implementation, delivery=delivery)
    chain, seconds = solved(flow, path, stack)
    runs = [td.simulate(flow, path, stack, packets=MESSAGES, seed=seed) for seed in range(RUNS)]
    carried = all(run.sustainable for run in runs)
    found: dict[str, object] = {
        "implementation": implementation,
        "delivery": delivery,
        "packet_size": flow.packet_size,
        "interval": flow.interval,
        "rtt": path.rtt,
        "loss": path.loss,
        "chain_seconds": seconds,
        "chain_carries": chain is not None and chain.sustainable,
        "simulator_carries": carried,
        "settled": all(run.settled for run in runs),
        "largest_rate": largest_rate(flow, path, stack),
    }
    if not carried or chain is None or not chain.sustainable:
        return found
    assert chain.parts is not None
    found["chain_waiting"] = chain.parts.backlog / path.rtt
    each, predicted = pd.DataFrame([figures(run) for run in runs]), figures(chain)
    for name in QUANTITIES:
        found |= {f"{name}_{key}".rstrip("_"): value for key, value in beyond(predicted[name], each[name]).items()}
        found[f"chain_{name}"] = predicted[name]
        if name in QUANTILES:
            found[f"{name}_group"] = error_group(chain, QUANTILES[name])
    return found


def carried_rates(flow: Flow, path: td.Path, implementation: str, delivery: Delivery) -> dict[str, float]:
    """Return for each of `SHARES` whether the simulator carries this rate: 1, 0, or -1 if it has not settled."""
    stack = td.Stack.quic(implementation=implementation, delivery=delivery)
    largest, found = largest_rate(flow, path, stack), {}
    for share in SHARES:
        run = td.simulate(replace(flow, interval=1 / (share * largest)), path, stack, packets=RATE_MESSAGES)
        found[f"carries_{share}"] = float(run.sustainable) if run.settled else -1.0
    return found


def captured(folder: FilePath) -> pd.DataFrame:
    """Return the rows of the captures of a stream per message whose source is a flow of constant rate."""
    rows = []
    for one in measure_all(folder, sys.exit):
        experiment = one.experiment
        if experiment.delivery != "stream_per_message" or not isinstance(one.source, Flow):
            continue
        # The chain does not know jitter, lost ACKs and losses in bursts.
        if experiment.jitter > 0 or experiment.ack_loss > 0 or experiment.loss_burst > 1:
            continue
        stack = td.Stack.quic(implementation=experiment.implementation, delivery="stream_per_message")
        chain, seconds = solved(one.source, one.path, stack)
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


def _expected(table: pd.DataFrame) -> str:
    """Return the figures of `ERRORS`, by what the chain predicts, as a table."""
    lines = []
    for name in ("p95", "p99"):
        for group, own in table.groupby(f"{name}_group"):
            found, mean = spread_of(own[f"{name}_beyond"].to_numpy()), spread_of(own["mean_beyond"].dropna().to_numpy())
            spreads = {
                f"{of} {key}": f"{getattr(spread, key):.4f}"
                for of, spread in ((name, found), ("mean", mean))
                for key in ("median", "mean", "p90")
            }
            lines.append(
                {"prediction": f"{name}: {group}", "cases": len(own)}
                | {key.replace(name, "quantile"): value for key, value in spreads.items()}
            )
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True))


def _capacity(table: pd.DataFrame) -> list[str]:
    """Return in words how often the simulator carries the rates beside the largest rate by the chain."""
    said = []
    for share in SHARES:
        known = table[f"carries_{share}"].dropna()
        counts = [int((known == outcome).sum()) for outcome in (1, 0, -1)]
        said.append(
            f"- Of {len(known)} flows with {share} of the largest rate by the chain, with intervals of 5 ms or more, "
            f"the simulator carries {counts[0]}, and does not carry {counts[1]}; {counts[2]} have not settled after "
            f"{RATE_MESSAGES:,} messages."
        )
    return said


def summary(table: pd.DataFrame, captures: pd.DataFrame) -> str:
    """Return the comparison in words and tables."""
    both = table[table["chain_carries"] & table["simulator_carries"]]
    settled = both[both["settled"]]
    streams = settled[settled["delivery"] == "stream_per_message"]
    milliseconds = 1e3 * table["chain_seconds"].iloc[1:]
    groups = {"all": streams} | dict(list(streams.groupby("p95_group"))) | dict(list(streams.groupby("implementation")))
    groups["datagrams"] = settled[settled["delivery"] == "datagram"]
    differ = table[table["chain_carries"] != table["simulator_carries"]]
    said = [
        f"{len(table)} random scenarios of a stream per message or of datagrams, with {RUNS} simulations of "
        f"{MESSAGES:,} messages each. Mean errors of the chain beyond the 95 % interval of the simulations, relative "
        "to the simulated value. Groups are by what the chain predicts: a p95 at the one-way delay of the path, a "
        "later one, or messages that wait for the window for 5 % of the round-trip time or more in the mean.\n",
        _errors(groups),
        "",
        f"- Both carry {len(both)} scenarios, of which {len(both) - len(settled)} have not settled in the simulation "
        f"and do not count. Neither carries {(~table['chain_carries'] & ~table['simulator_carries']).sum()}.",
        f"- They differ in {len(differ)} scenarios on whether QUIC carries the flow.",
        *_capacity(table),
        f"- The chain takes {milliseconds.median():.1f} ms of processor time in the median, "
        f"{milliseconds.quantile(0.9):.0f} ms or less in nine of ten scenarios, and {milliseconds.max():.0f} ms at "
        "most.\n",
        "## Expected errors, by what the chain predicts\n",
        _expected(settled),
        "",
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
    few = round(arguments.scenarios * DATAGRAM_SCENARIOS / SCENARIOS)
    datagrams = drawn(few, arguments.seed + 1, "datagram")
    for scenario in [*drawn(arguments.scenarios, arguments.seed), *datagrams]:
        rows.append(compared(*scenario))
        if 1 / rows[-1]["largest_rate"] >= SHORTEST_INTERVAL:
            rows[-1] |= carried_rates(*scenario)
        print(len(rows), file=sys.stderr, flush=True)
    table, captures = pd.DataFrame(rows), captured(CAPTURES)
    merged = pd.concat([table.assign(capture=""), captures])
    merged.round(6).to_csv(arguments.output / "quic-chain.csv", index=False)
    (arguments.output / "quic-chain.md").write_text(summary(table, captures), encoding="utf-8")
    print(summary(table, captures))


if __name__ == "__main__":
    main()
