"""The simulator of Linux TCP: packets per second on one core, from a flow and a path to the delay distribution."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.simulation import simulate

pytestmark = pytest.mark.benchmark(timer=process_time)

PACKETS = 1_000_000
FLOWS = {
    "174 B every 20 ms, RTT 100 ms": (Flow(174, 0.020), 0.100, (0.0, 0.002, 0.01, 0.02, 0.05)),
    "1200 B every 20 ms, RTT 150 ms": (Flow(1200, 0.020), 0.150, (0.002, 0.01, 0.02)),
}
RUNS = {
    f"{name}, loss {loss:.1%}": (flow, Path(rtt=rtt, loss=loss))
    for name, (flow, rtt, losses) in FLOWS.items()
    for loss in losses
}


@pytest.mark.parametrize("name", RUNS)
def test_simulate(name: str, benchmark: BenchmarkFixture, measure: Callable[..., Any]) -> None:
    flow, path = RUNS[name]
    benchmark.group = "simulate(...), a million packets"
    benchmark.extra_info["what"] = name
    result = measure(lambda: simulate(flow, path, Stack.linux(), packets=PACKETS, seed=1))
    if benchmark.stats:
        benchmark.extra_info["packets_per_second"] = PACKETS / benchmark.stats.stats.median
    assert result.packets == PACKETS
