"""Heuristics of applications: compare the simulator with the kernel and with closed forms.

`python validation/papers/heuristics.py [captures] [closed-forms]` writes `validation/results/papers/heuristics-*.csv`;
both by default. The published gains are compared in `brosh.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from comparison import write_table

import tcpdelay as td
from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.heuristics import parallel_delay, split_delay, striped_delay
from tcpdelay.sim.batches import merge
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.result import FlowResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.study.validation.captures import measure
from tcpdelay.study.validation.predictions import SAME_DELAY

HERE = Path(__file__).parent
PROCESSES = 2
FAST = Bottleneck(1e12, 60_000)
"""A link without delay: all losses happen on the paths."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
INTERVAL = 0.020
SEEDS = range(1, 9)

Row = dict[str, str | float]

HEURISTICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "split 2": {"pieces": 2},
    "split 4": {"pieces": 4},
    "par 2 blind": {"connections": 2},
    "par 2 intelligent": {"connections": 2, "scheduling": "intelligent"},
    "par 5 blind": {"connections": 5},
    "par 5 intelligent": {"connections": 5, "scheduling": "intelligent"},
}

CAPTURE_SECONDS, CAPTURE_WARM_UP = 1000.0, 10.0
CLOSED_FORM_SECONDS = 4000.0


def pooled(results: list[FlowResult]) -> DelayDistribution:
    """Return the delays of several simulations as one distribution."""
    parts = [
        (np.rint(result.delays.values * 1e6).astype(np.int64), np.rint(result.delays.weights * result.delivered))
        for result in results
        if result.delays is not None
    ]
    values, counts = merge([(values, counts.astype(np.int64)) for values, counts in parts])
    one_way = next(result.delays.one_way_delay for result in results if result.delays is not None)
    return DelayDistribution(values / 1e6, counts / counts.sum(), one_way)


def lone(
    flow: td.Flow,
    rtt: float,
    loss: float,
    stack: td.Stack,
    seed: int,
    seconds: float,
    in_host: bool = False,
    **how: Any,
) -> FlowResult:
    """Simulate a single flow on a path with random losses; with `in_host`, a queue of the sender's host drops them."""
    source = ConstantRate(flow=flow, path=SharedPath(rtt / 2, loss=loss, in_host=in_host), stack=stack, **how)
    return simulate_network([source], FAST, duration=seconds, warm_up=CAPTURE_WARM_UP, seed=seed).flows[0]


def compare_capture(capture: FlowCapture) -> Row:
    """Return the measured and the simulated delays, with random phases of the kernel's clock."""
    measured = measure(capture)
    experiment = measured.experiment
    stack = td.Stack.linux(experiment.congestion_control, hz=measured.hz)  # type: ignore[arg-type]
    results = [
        lone(
            measured.flow,
            experiment.rtt,
            experiment.loss,
            stack,
            seed,
            CAPTURE_SECONDS,
            in_host=True,
            pieces=experiment.pieces,
            connections=experiment.connections,
            scheduling=experiment.scheduling,
        )
        for seed in SEEDS
    ]
    simulated = pooled(results)
    parallel = f"par {experiment.connections} {experiment.scheduling}"
    row: Row = {
        "heuristic": parallel if experiment.connections > 1 else f"split {experiment.pieces}",
        "packet_size": experiment.packet_size,
        "congestion_control": experiment.congestion_control,
        "hz": measured.hz,
    }
    values = {"mean": simulated.mean} | {name: simulated.quantile(share) for name, share in QUANTILES.items()}
    for name, value in values.items():
        interval = getattr(measured, name)
        inside = interval.low - SAME_DELAY <= value <= interval.high + SAME_DELAY
        row |= {
            f"{name}_measured": interval.value,
            f"{name}_low": interval.low,
            f"{name}_high": interval.high,
            f"{name}_simulated": value,
            f"{name}_error": value / interval.value - 1,
            f"{name}_inside": str(inside),
        }
    return row


def capture_tasks() -> list[tuple[Callable[..., Row], tuple[Any, ...]]]:
    """Return the comparisons with captures."""
    captures = read_captures(HERE.parent / "captures" / "heuristics.parquet", "cbr-*")
    return [(compare_capture, (capture,)) for capture in captures]


def compare_closed_form(size: int, rtt: float, loss: float, heuristic: str) -> Row:
    """Return the delays of the closed form and of the simulator."""
    flow, stack, how = td.Flow(size, INTERVAL, write_jitter=0.0), td.Stack.linux(), HEURISTICS[heuristic]
    path = td.Path(rtt=rtt, loss=loss)
    simulated = pooled([lone(flow, rtt, loss, stack, seed, CLOSED_FORM_SECONDS, **how) for seed in (1, 2)])
    row: Row = {"heuristic": heuristic, "packet_size": size, "rtt": rtt, "loss": loss}
    predicted, from_simulated = td.predict_delay(flow, path, stack, method="chain"), simulated
    if "pieces" in how:
        predicted = split_delay(flow, path, stack, how["pieces"])
    elif "connections" in how:
        count = how["connections"]
        predicted = parallel_delay(flow, path, stack, count)
        share = td.Flow(size, count * INTERVAL, write_jitter=0.0)
        one = pooled([lone(share, rtt, loss, stack, seed, CLOSED_FORM_SECONDS * count) for seed in (1, 2)])
        from_simulated = striped_delay(one, INTERVAL, count)
    for name, answer in (("simulated", simulated), ("chain", predicted), ("product", from_simulated)):
        row |= {f"mean_{name}": answer.mean}
        row |= {f"{label}_{name}": answer.quantile(share) for label, share in QUANTILES.items()}
    return row


def closed_form_tasks() -> list[tuple[Callable[..., Row], tuple[Any, ...]]]:
    """Return the comparisons of closed forms with the simulator; no round-trip time is a multiple of the interval."""
    names = [name for name in HEURISTICS if "intelligent" not in name]
    return [
        (compare_closed_form, (size, rtt, loss, name))
        for size in (174, 1448)
        for rtt, loss in ((0.0497, 0.02), (0.0997, 0.005), (0.0997, 0.02), (0.1997, 0.01))
        for name in names
    ]


def run(tasks: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> Iterator[Row]:
    """Yield the rows of all tasks, in the order of the tasks."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        futures = [pool.submit(function, *arguments) for function, arguments in tasks]
        for done, (future, (_, arguments)) in enumerate(zip(futures, tasks, strict=True), 1):
            answer = future.result()
            print(f"{done}/{len(tasks)} {arguments}", file=sys.stderr, flush=True)
            yield from answer if isinstance(answer, list) else [answer]


PARTS = {"captures": capture_tasks, "closed-forms": closed_form_tasks}


def main() -> None:
    """Write the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="tables to write; by default all")
    asked = parser.parse_args().parts
    if strange := set(asked) - set(PARTS):
        parser.error(f"no such table: {', '.join(sorted(strange))}")
    for name in asked or PARTS:
        write_table(f"heuristics-{name}", list(run(PARTS[name]())))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
