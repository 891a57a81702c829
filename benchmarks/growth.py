"""Measure how cost grows with the work: `python benchmarks/growth.py` writes growth.csv and docs/images/growth.svg.

After a first call, each case is called twice, and the shorter processor time counts; for workers, the shorter time by
the clock. With `--draw`, only the chart is drawn anew. A run takes about a minute of processor time.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

import tcpdelay as td
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.study.execution import Results, Schedule, threads
from tcpdelay.study.sweep.run import sweep_runs
from tcpdelay.study.sweep.specification import read_sweep

NUMBERS = Path(__file__).with_name("growth.csv")
CHART = Path(__file__).parents[1] / "docs" / "images" / "growth.svg"
CALLS = 2
VOIP = td.Flow(174, 0.020)
RTTS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
PACKETS = (1_000, 10_000, 100_000, 1_000_000, 3_000_000)
ROWS = (1_000, 10_000, 100_000, 1_000_000)
FLOWS = (1, 3, 10, 30, 100, 300)
WORKERS = (1, 2)
NETWORK_TIME = 20.0
"""Simulated time of a shared link [s]."""
TITLES = {
    "states of a chain of Linux": "states of a chain of Linux",
    "states of a published chain": "states of a published chain",
    "packets": "packets of a simulated call",
    "rows": "rows of a table of calls",
    "flows": f"calls on one link, {NETWORK_TIME:g} s",
    "workers": "workers of a sweep, by the clock",
}
"""The title of the panel of each kind of work."""


def smallest(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Return the smallest time of some calls [s], after a first call."""
    call()
    times = []
    for _ in range(CALLS):
        begun = clock()
        call()
        times.append(clock() - begun)
    return min(times)


def chains(stack: td.Stack) -> Iterator[tuple[int, float]]:
    """Yield the number of states of chains with growing windows, and the time from scenario to delays [s]."""
    for rtt in RTTS:
        flow, path = td.Flow(1448, 0.020), td.Path(rtt, 0.001)
        yield len(DelayModel(flow, path, stack).states), smallest(partial(_solved, flow, path, stack))


def _solved(flow: td.Flow, path: td.Path, stack: td.Stack) -> td.DelayDistribution:
    return DelayModel(flow, path, stack).delay_distribution()


def tables() -> Iterator[tuple[int, float]]:
    """Yield the number of rows of tables, and the time of their predictions, from an empty memory [s]."""
    rng = np.random.default_rng(1)
    for rows in ROWS:
        table = pd.DataFrame({"rtt": rng.uniform(0.05, 0.06, rows), "loss": rng.uniform(0.01, 0.013, rows)})
        yield rows, smallest(partial(td.predict_many, table, flow="voip", cached=False))


def links() -> Iterator[tuple[int, float]]:
    """Yield the number of flows on one link, and the time of their simulation [s]."""
    for flows in FLOWS:
        call = ConstantRate(flow=VOIP, path=SharedPath(access_delay=0.05), stack=td.Stack.linux())
        calls, link = [call] * flows, Bottleneck(rate=1e5 * flows, capacity=100)
        yield flows, smallest(partial(simulate_network, calls, link, duration=NETWORK_TIME))


def sweeps() -> Iterator[tuple[int, float]]:
    """Yield the number of workers, and the time by the clock of the same sweep [s]."""
    ranges = {
        "rtt": {"from": "50ms", "to": "150ms", "points": 40, "spacing": "log"},
        "loss": {"from": "0.1%", "to": "5%", "points": 40, "spacing": "log"},
    }
    work = sweep_runs(read_sweep({"flow": {"packet_size": 174, "interval": "20ms"}, "grid": ranges}))
    for workers in WORKERS:

        def run(workers: int = workers) -> None:
            with threads(workers) as executor:
                Schedule(work, Results(work.size, work.row_type), executor).run()

        yield workers, smallest(run, time.perf_counter)


def measured() -> dict[str, list[tuple[int, float]]]:
    """Return the amounts of each kind of work, and their times [s]."""
    path = td.Path(0.1, 0.02)
    kinds: dict[str, Callable[[], Iterator[tuple[int, float]]]] = {
        "states of a chain of Linux": lambda: chains(td.Stack.linux()),
        "states of a published chain": lambda: chains(td.Stack.newreno_2008()),
        "packets": lambda: ((n, smallest(partial(td.simulate, VOIP, path, packets=n))) for n in PACKETS),
        "rows": tables,
        "flows": links,
        "workers": sweeps,
    }
    found = {}
    for kind, measure in kinds.items():
        found[kind] = sorted(measure())
        print(kind, *(f"{amount}: {seconds:.3g} s" for amount, seconds in found[kind]), flush=True)
    return found


def drawn(found: dict[str, list[tuple[int, float]]]) -> None:
    """Draw the times over the amounts, each beside the line of a time in proportion."""
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "tcpdelay", "figure.facecolor": "white"}
    with rc_context(style):
        figure = Figure(figsize=(10, 6), layout="constrained")
        for axes, (kind, points) in zip(figure.subplots(2, 3).flat, found.items(), strict=True):
            amounts, seconds = np.array(points, np.float64).T
            power = -1 if kind == "workers" else 1
            axes.loglog(amounts, seconds[-1] * (amounts / amounts[-1]) ** power, color="#9aa0a6", linestyle="--")
            axes.loglog(amounts, seconds, marker="o", color="#0b5fa5")
            axes.set_title(TITLES[kind], fontsize=10)
            axes.set_ylabel("s" if kind == "workers" else "s of processor", fontsize=9)
            axes.grid(color="#e3e5e8", linewidth=0.6)
            if kind == "workers":
                axes.set_xticks(WORKERS, map(str, WORKERS))
                axes.minorticks_off()
        figure.savefig(CHART, metadata={"Date": None})


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the stored numbers")
    if not parser.parse_args().draw:
        found = measured()
        with NUMBERS.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("work", "amount", "seconds"))
            table.writerows((kind, amount, f"{each:.4g}") for kind, points in found.items() for amount, each in points)
    stored: dict[str, list[tuple[int, float]]] = {}
    with NUMBERS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            stored.setdefault(row["work"], []).append((int(row["amount"]), float(row["seconds"])))
    drawn(stored)


if __name__ == "__main__":
    main()
