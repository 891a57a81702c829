"""Random scenarios for the map of the chain's error, and their simulations.

Simulations take hours, predictions take seconds. Therefore a file keeps the simulations: after a change of the chain,
it is scored again without new simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import CongestionControl, Linux, Stack
from tcpdelay.sim.batches import LARGEST_HALF_WIDTH
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import Interval

RTT = (0.005, 0.400)
LOSS = (0.0001, 0.10)
SINGLE_SEGMENT_SIZE = (60, 1448)
SEVERAL_SEGMENTS_SIZE = (1449, 15_000)
SHARE_OF_SINGLE = 0.7
INTERVAL = (0.005, 0.100)
LARGEST_UTILIZATION = 2.0
CONGESTION_CONTROLS: tuple[CongestionControl, ...] = ("cubic", "reno")
CLOCK_RATES = (250, 1000)
"""Ranges and values of the random scenarios; times, losses and sizes are uniform in the logarithm."""
NUDGE = 7e-6
"""Time that is added to a round-trip time if it is a multiple of the interval [s]: it avoids ties of ACK and write."""
SEED = 2010
PACKETS = 1_000_000
BATCH = 50
"""Number of scenarios after which the file is written."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
COMPRESSION_LEVEL = 19
_TIMES = ("mean", "mean_low", "mean_high", *QUANTILES, "p95_low", "p95_high", "sender_delay", "head_of_line_delay")
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("number", pa.int32()),
    ("rtt", pa.float64()),
    ("loss", pa.float64()),
    ("packet_size", pa.int32()),
    ("interval", pa.float64()),
    ("congestion_control", pa.string()),
    ("hz", pa.int32()),
    ("packets", pa.int64()),
    ("sustainable", pa.bool_()),
    *((name, pa.float64()) for name in _TIMES),
]
SCHEMA = pa.schema(_COLUMNS)


@dataclass(frozen=True)
class MapScenario:
    """One random scenario of the map; its number determines all other values."""

    number: int
    flow: Flow
    path: Path
    stack: Linux

    @property
    def utilization(self) -> float:
        """The flow's rate over the fair TCP rate."""
        return connection_utilization(self.flow, self.path, self.stack)

    @property
    def packets_per_rtt(self) -> float:
        """Packets written per round-trip time."""
        return self.path.rtt / self.flow.interval


@dataclass(frozen=True)
class SimulatedScenario:
    """A simulated scenario of the map, with its delays by the names in `_TIMES` [s]."""

    scenario: MapScenario
    packets: int
    sustainable: bool
    times: dict[str, float]

    @property
    def p95(self) -> Interval:
        """95th percentile [s] with its interval."""
        return Interval(self.times["p95"], self.times["p95_low"], self.times["p95_high"])

    @property
    def settled(self) -> bool:
        """Whether the delays do not depend on the length of the simulation; otherwise they show nothing."""
        # The records hold the interval of the quantile, not the share of later packets in each batch.
        return not self.sustainable or self.p95.relative_half_width <= LARGEST_HALF_WIDTH


def random_scenario(number: int) -> MapScenario:
    """Return a random scenario below twice the fair TCP rate; the same number gives the same scenario."""
    random = np.random.default_rng([SEED, number])

    def between(low: float, high: float) -> float:
        return math.exp(random.uniform(math.log(low), math.log(high)))

    while True:
        single = random.random() < SHARE_OF_SINGLE
        flow = Flow(
            round(between(*(SINGLE_SEGMENT_SIZE if single else SEVERAL_SEGMENTS_SIZE))),
            round(between(*INTERVAL), 6),
            write_jitter=0.0,
        )
        path = Path(rtt=off_multiples(round(between(*RTT), 6), flow.interval), loss=float(f"{between(*LOSS):.4g}"))
        control = CONGESTION_CONTROLS[int(random.integers(len(CONGESTION_CONTROLS)))]
        stack = Stack.linux(control, hz=CLOCK_RATES[int(random.integers(len(CLOCK_RATES)))])
        scenario = MapScenario(number, flow, path, stack)
        if scenario.utilization < LARGEST_UTILIZATION:
            return scenario


def off_multiples(rtt: float, interval: float) -> float:
    """Return the round-trip time [s], increased by some microseconds if it is a multiple of the interval [s]."""
    apart = abs(rtt - round(rtt / interval) * interval)
    return round(rtt + NUDGE, 6) if apart < NUDGE / 2 else rtt


def simulate_scenario(scenario: MapScenario, packets: int = PACKETS) -> SimulatedScenario:
    """Simulate a scenario with `packets` packets, 1000 to 1e9; its number is the seed."""
    found = simulate(scenario.flow, scenario.path, scenario.stack, packets=packets, seed=scenario.number)
    times = {
        "mean": found.mean,
        "mean_low": found.mean_interval.low,
        "mean_high": found.mean_interval.high,
        **{name: found.quantile(probability) for name, probability in QUANTILES.items()},
        "p95_low": found.quantile_interval.low,
        "p95_high": found.quantile_interval.high,
        "sender_delay": found.sender_delay,
        "head_of_line_delay": found.head_of_line_delay,
    }
    return SimulatedScenario(scenario, found.packets, found.sustainable, times)


def extend(
    file: FilePath,
    count: int,
    packets: int = PACKETS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Simulate the missing scenarios of the first `count` into a file; it can be interrupted at any time."""
    known = read_simulated(file) if file.exists() else []
    numbers = {one.scenario.number for one in known}
    missing = [number for number in range(count) if number not in numbers]
    for start in range(0, len(missing), BATCH):
        for number in missing[start : start + BATCH]:
            on_progress(len(known), count)
            known.append(simulate_scenario(random_scenario(number), packets))
        write_simulated(file, known)


def write_simulated(file: FilePath, simulated: Sequence[SimulatedScenario]) -> None:
    """Write simulated scenarios to a Parquet file; the old file remains until the new file is complete."""
    rows = [_row(one) for one in sorted(simulated, key=lambda one: one.scenario.number)]
    temporary = file.with_suffix(".part")
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA), temporary, compression="zstd", compression_level=COMPRESSION_LEVEL
    )
    temporary.replace(file)


def _row(one: SimulatedScenario) -> dict[str, Any]:
    scenario = one.scenario
    return {
        "number": scenario.number,
        "rtt": scenario.path.rtt,
        "loss": scenario.path.loss,
        "packet_size": scenario.flow.packet_size,
        "interval": scenario.flow.interval,
        "congestion_control": scenario.stack.congestion_control,
        "hz": scenario.stack.hz,
        "packets": one.packets,
        "sustainable": one.sustainable,
        **one.times,
    }


def read_simulated(file: FilePath) -> list[SimulatedScenario]:
    """Return the simulated scenarios of a file in the order of their numbers."""
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from None
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise ValueError(f"{file}: holds no simulated scenarios, as there is no column {missing[0]!r}")
    return [_simulated(row) for row in table.to_pylist()]


def _simulated(row: dict[str, Any]) -> SimulatedScenario:
    scenario = MapScenario(
        row["number"],
        Flow(row["packet_size"], row["interval"], write_jitter=0.0),
        Path(row["rtt"], row["loss"]),
        Stack.linux(row["congestion_control"], hz=row["hz"]),
    )
    return SimulatedScenario(scenario, row["packets"], row["sustainable"], {name: row[name] for name in _TIMES})
