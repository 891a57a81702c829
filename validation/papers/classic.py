"""The classic TCP, which assembles packets, beside the published (w, b, l) chain, and the literature's transports.

`python validation/papers/classic.py` writes `validation/results/papers/classic-chain.csv`, with the grid of section
IV-A of Brosh et al. 2010, and `classic-compare.csv`. With an earlier version of the package in PYTHONPATH, in which the
classic TCP sends each write alone, it writes `classic-compare-before.csv` only.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import product

from comparison import with_interval, write_table

import tcpdelay as td
from tcpdelay.models.predict import predict_delay
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.result import FlowResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import ConstantRate, Source
from tcpdelay.sim.network.stacks import Classic, Recovery
from tcpdelay.study.transports import contenders

SEEDS = range(1, 11)
DURATION, WARM_UP = 300.0, 10.0
"""Ten runs of five minutes each, as published."""
SIZES, INTERVALS, RTTS = (174, 724, 1448), (0.020, 0.030), (0.020, 0.100, 0.300)
LOSSES = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
VARIANTS: tuple[tuple[Recovery, bool], ...] = (("newreno", False), ("sack", True), ("newreno", True), ("sack", False))
"""Recovery, and whether limited transmit is on."""
FAST = Bottleneck(1e10, 60_000)
OVER_CLASSIC = ("sack", "tcp-rc", "time-lined")
LITERATURE = ("tcp", *OVER_CLASSIC, "scp", "udp")
PATHS = ((0.060, 0.01), (0.100, 0.005), (0.100, 0.02), (0.200, 0.01))
LIMIT, COMPARED, COMPARED_SEEDS = 0.2, 1000.0, range(1, 6)


def runs(source: Source, duration: float, seeds: range) -> list[FlowResult]:
    """Return one result per seed."""
    return [simulate_network([source], FAST, duration=duration, warm_up=WARM_UP, seed=seed).flows[0] for seed in seeds]


def beside_the_chain() -> Iterator[dict[str, object]]:
    """Yield one row per scenario of the grid, variant and limited transmit."""
    for (recovery, limited), rtt, interval, size, loss in product(VARIANTS, RTTS, INTERVALS, SIZES, LOSSES):
        flow = td.Flow(size, interval, write_jitter=0.0)
        stack = td.Stack.newreno_2008(variant=recovery, limited_transmit=limited)
        chain = predict_delay(flow, td.Path(rtt=rtt, loss=loss), stack, method="chain")
        source = ConstantRate(
            flow=flow,
            path=SharedPath(rtt / 2, loss=loss),
            stack=Classic.of_2008(recovery=recovery, limited_transmit=limited),
        )
        results = runs(source, DURATION, SEEDS)
        row: dict[str, object] = {
            "recovery": recovery,
            "limited_transmit": limited,
            "size": size,
            "interval": interval,
            "rtt": rtt,
            "loss": loss,
        }
        for quantity, published, simulated in (
            ("p95", float(chain.quantile(0.95)), [float(run.delays.quantile(0.95)) for run in results if run.delays]),
            ("mean", chain.mean, [run.delays.mean for run in results if run.delays]),
        ):
            found = with_interval(quantity, simulated)
            row |= {f"{quantity}_chain": published} | found
            row[f"{quantity}_distance"] = found[quantity] / published - 1
        row["segments_per_packet"] = sum(run.segments_sent for run in results) / sum(run.offered for run in results)
        row["timeouts_per_loss"] = sum(run.timeouts for run in results) / max(
            sum(run.segments_lost for run in results), 1
        )
        row["settled"] = sum(run.settled for run in results)
        yield row


def compared(transports: tuple[str, ...]) -> Iterator[dict[str, object]]:
    """Yield one row per path, packet size and transport of the literature, in the settings of `td.compare`."""
    for (rtt, loss), size in product(PATHS, (174, 1448)):
        flow, path = td.Flow(size, 0.020, write_jitter=0.0), td.Path(rtt=rtt, loss=loss)
        for contender in contenders(flow, path, td.Stack.linux(), td.Target(LIMIT)):
            if contender.name not in transports:
                continue
            results = runs(contender.source, COMPARED, COMPARED_SEEDS)
            row: dict[str, object] = {"rtt": rtt, "loss": loss, "size": size, "transport": contender.name}
            row |= with_interval("p95", [float(run.delays.quantile(0.95)) for run in results if run.delays])
            row |= with_interval("lost_or_late", [run.late_fraction(LIMIT) for run in results])
            row |= with_interval("lost", [run.lost / run.offered for run in results])
            yield row


def written(name: str, rows: Iterator[dict[str, object]]) -> None:
    """Write a table, and print its rows to standard error, as they are computed."""
    kept = []
    for row in rows:
        kept.append(row)
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()), file=sys.stderr)
        write_table(name, kept)


def main() -> None:
    """Write the tables."""
    started = time.monotonic()
    if not hasattr(Classic, "of_2008"):
        written("classic-compare-before", compared(OVER_CLASSIC))
        return
    written("classic-compare", compared(LITERATURE))
    written("classic-chain", beside_the_chain())
    print(f"{math.ceil((time.monotonic() - started) / 60)} min", file=sys.stderr)


if __name__ == "__main__":
    main()
