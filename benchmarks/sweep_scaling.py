"""Measure the cost of a sweep in three minutes: `python benchmarks/sweep_scaling.py [--into docs/appendix/scaling.md]`.

Times are processor times, so that other work on the machine has little influence.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from scipy.optimize import brentq
from summary import duration, put_into

import tcpdelay as td
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.study import execution
from tcpdelay.study.execution import program, work_through
from tcpdelay.study.sweep.run import checkpoint, row_type, sweep_runs
from tcpdelay.study.sweep.specification import Evaluation, SweepSpecification, read_sweep

UTILIZATIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
VIDEO = {"packet_size": 1200, "interval": "20ms"}
VOICE = {"packet_size": 174, "interval": "20ms"}
RANGES = {
    "rtt": {"from": "10ms", "to": "400ms", "points": 20, "spacing": "log"},
    "loss": {"from": "0.1%", "to": "10%", "points": 20, "spacing": "log"},
}
RTT = 0.1
POINTS = 10_000_000
PACKETS = 100_000
CORES = (2, 64, 1024)
PARTS = 200
TRIVIAL = {"flow": VOICE, "path": {"jitter": "1ms"}}
"""Points that the chain refuses at once, so that only the work of the sweep itself is measured."""


def processor_time(work: Callable[[], Any], least: float = 0.5) -> float:
    """Return the median time of a call [s]; the calls take `least` seconds together, after a first call."""
    work()
    times: list[float] = []
    while sum(times) < least or len(times) < 3:
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return median(times)


def loss_at(utilization: float, stack: Any) -> float:
    """Return the loss at which the video has a given utilization."""
    flow = td.Flow(1200, 0.020)
    return float(brentq(lambda loss: connection_utilization(flow, td.Path(RTT, loss), stack) - utilization, 1e-7, 0.3))


def times_over(specification: SweepSpecification) -> list[float]:
    """Return the time of each run [s]."""
    runs = sweep_runs(specification)
    work_through(runs, 0, 1)
    times = []
    for run in range(specification.runs):
        begun = time.process_time()
        work_through(runs, run, run + 1)
        times.append(time.process_time() - begun)
    return times


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown; all columns except the first are aligned to the right."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)] + [""]


def chain_points() -> Iterator[str]:
    """Measure a chain by utilization."""
    profiles = {"linux": td.Stack.linux(), "newreno_2008": td.Stack.newreno_2008(backlog_bound="grow")}
    rows = []
    for utilization in UTILIZATIONS:
        row = [f"{utilization:g}"]
        for name, stack in profiles.items():
            loss = loss_at(utilization, stack)
            asked = {"flow": VIDEO, "path": {"rtt": RTT}, "stack": {"profile": name}, "grid": {"loss": [loss]}}
            runs = sweep_runs(read_sweep(asked))
            cost = processor_time(lambda runs=runs: work_through(runs, 0, 1))
            row += [f"{loss:.2%}", duration(cost)]
        rows.append(row)
    yield "**A point of a chain**: 1200 bytes every 20 ms over 100 ms, by utilization."
    yield ""
    yield from table(["utilization", "loss", "`linux`", "loss", "`newreno_2008`"], rows)


def simulated_points() -> Iterator[str]:
    """Measure a simulation by its length."""
    paths = {
        "174 B every 20 ms, no loss": (VOICE, {"loss": 0.0}),
        "174 B every 20 ms, 2 % loss": (VOICE, {"loss": 0.02}),
        "174 B every 20 ms, 2 % loss, 5 ms jitter": (VOICE, {"loss": 0.02, "jitter": "5ms"}),
        "1200 B every 20 ms, 1 % loss": (VIDEO, {"loss": 0.01}),
        "1200 B every 20 ms, 5 % loss": (VIDEO, {"loss": 0.05}),
    }
    rows = []
    for name, (flow, path) in paths.items():
        costs = []
        for packets in (1000, PACKETS):
            specification = read_sweep(
                {
                    "flow": flow,
                    "path": path,
                    "grid": {"rtt": [RTT]},
                    "evaluate": {"method": "simulation", "packets": packets},
                }
            )
            runs = sweep_runs(specification)
            costs.append(processor_time(lambda runs=runs: work_through(runs, 0, 1)))
        per_packet = (costs[1] - costs[0]) / (PACKETS - 1000)
        rows.append([name, duration(costs[0]), f"{per_packet * 1e9:.0f} ns", duration(costs[1])])
    yield "**A run of the simulator** over 100 ms: the time of 1000 packets, of each further packet, and of 100 000."
    yield ""
    yield from table(["", "1000 packets", "each further", "100 000 packets"], rows)


def grid_points() -> tuple[list[str], dict[str, float]]:
    """Measure all points of a grid; return the lines, and the mean time by method [s]."""
    rows, means = [], {}
    for name, tables in (
        ("chain `linux`", {}),
        ("chain `newreno_2008`", {"stack": {"profile": "newreno_2008"}}),
        ("simulation, 100 000 packets", {"evaluate": {"method": "simulation", "packets": PACKETS}}),
    ):
        times = times_over(read_sweep({"flow": VOICE, "grid": RANGES, **tables}))
        means[name] = mean(times)
        share = sum(sorted(times)[-len(times) // 10 :]) / sum(times)
        rows.append([name, *(duration(value) for value in (mean(times), median(times), max(times))), f"{share:.0%}"])
    lines = ["**A grid**: 174 bytes every 20 ms, 20 round-trip times of 10 to 400 ms by 20 losses of 0.1 to 10 %.", ""]
    return lines + table(["", "mean", "median", "longest", "time of the slowest tenth"], rows), means


def own_work() -> tuple[list[str], float]:
    """Measure the work of a sweep besides its points; return the lines, and the coordinator's time for a part [s]."""
    many = {"rtt": {"from": "10ms", "to": "400ms", "points": 100}, "loss": {"from": 0.001, "to": 0.1, "points": 100}}
    specification = read_sweep({**TRIVIAL, "grid": many})
    here = processor_time(lambda: td.sweep(specification)) / specification.runs
    with tempfile.TemporaryDirectory() as folder, checkpoint(Path(folder, "result.nc"), specification) as kept:
        rows = work_through(sweep_runs(specification), 0, 1000)
        begun = time.monotonic()
        for _ in range(20):
            kept.store(rows)
        storing = (time.monotonic() - begun) / 20
    each = read_sweep({**TRIVIAL, "grid": {"rtt": many["rtt"] | {"points": PARTS}, "loss": [0.01]}})
    from distributed import LocalCluster

    execution.MOST_RUNS_IN_PART = 1
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        td.sweep(each, scheduler=cluster.scheduler_address)
        before = time.process_time(), time.monotonic()
        td.sweep(each, scheduler=cluster.scheduler_address)
        # Scheduler and coordinator are threads of this process.
        in_part, by_clock = ((now - then) / PARTS for now, then in zip(_clocks(), before, strict=True))
    lines = [
        "**What the sweep itself takes.** A point that is refused at once: "
        f"{duration(here)}, its scenario, row and reason included. A part of 1000 runs on the disk: "
        f"{duration(storing)} by the clock, most of it waiting. A part on Dask: "
        f"{duration(in_part)} of the processor of scheduler and coordinator together, {duration(by_clock)} "
        "by the clock of this machine with two workers.",
        "",
    ]
    return lines, in_part


def _clocks() -> tuple[float, float]:
    return time.process_time(), time.monotonic()


def plan(means: dict[str, float], in_part: float) -> Iterator[str]:
    """Yield the cost of ten million points."""

    def by_cores(cost: float) -> list[str]:
        return [_long(cost * POINTS / cores) for cores in CORES]

    rows = [[name, _long(cost * POINTS), *by_cores(cost)] for name, cost in means.items()]
    yield f"**{POINTS:,} points** of that grid's kind.".replace(",", " ")
    yield ""
    yield from table(["", "one core", *(f"{cores} cores" for cores in CORES)], rows)
    size = {method: row_type(Evaluation(method)).itemsize + 4 for method in ("chain", "simulation")}
    yield (
        f"A result takes {size['chain']} bytes a point by a chain, {size['simulation']} by the simulator (three "
        f"quantiles, one threshold): {size['chain'] * POINTS / 1e9:.2g} and {size['simulation'] * POINTS / 1e9:.2g} GB "
        "for all, on the disk and again in the memory of the coordinator. A worker's memory at its highest, the grid "
        "above done: "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, Python and the compiler included."
    )
    yield ""
    parts = 1 / max(execution.SHORTEST_BUDGET / CORES[-1], execution.STORING_TIME)
    yield (
        f"With {CORES[-1]} workers a part takes {execution.STORING_TIME * CORES[-1]:.0f} s, and {parts:.0f} parts end "
        f"each second. For Dask's messages, scheduler and coordinator need {parts * in_part:.0%} of a processor."
    )


def _long(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def main() -> None:
    """Measure, and print the results or write them between the marks of a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, metavar="FILE.md", help="replace the text between the marks of the page")
    into = parser.parse_args().into
    grid, means = grid_points()
    memory_and_plan = [*chain_points(), *simulated_points(), *grid]
    own, in_part = own_work()
    machine = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": ?")
    text = "\n".join(
        [
            f"{machine.partition(': ')[2]}, {os.cpu_count()} cores; Python {platform.python_version()}; {program()}; "
            f"load average {os.getloadavg()[0]:.1f}.",
            "",
            *memory_and_plan,
            *own,
            *plan(means, in_part),
        ]
    )
    if into is None:
        print(text)
    else:
        put_into(into, text + "\n")


if __name__ == "__main__":
    main()
