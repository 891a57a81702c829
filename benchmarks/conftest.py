"""Timing of a call: in as many rounds as a time budget allows, each paired with a call of a reference."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from time import process_time
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

BUDGET = 3.0
"""Time for the rounds of one benchmark [s]; the first call, which may compile, is extra."""
MOST_ROUNDS = 5000
SLOW = 5.0
"""Shortest duration of a call that is timed only once [s]."""
PEERS = ("tcpdelay", "numba", "numpy", "scipy", "quantecon", "stormpy")

Measure = Callable[..., Any]


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Measure:
    """Return a function that times `function` and returns its result; times are processor times of this process.

    With `reference`, another function, a timed call of `reference` precedes each round, so that both are exposed to the
    same noise. The median of the ratios is reported as `ratio`.
    """

    def timed(function: Callable[[], Any], reference: Callable[[], Any] | None = None) -> Any:
        function()
        begin = process_time()
        result = function()
        rounds = 1
        once = process_time() - begin
        if once < SLOW:
            rounds = min(max(round(BUDGET / once), 5), MOST_ROUNDS)
        durations: list[float] = []

        def time_reference() -> None:
            assert reference is not None
            reference()  # loads its data into the processor's cache
            begin = process_time()
            reference()
            durations.append(process_time() - begin)

        benchmark.pedantic(function, setup=time_reference if reference else None, rounds=rounds)
        if durations and benchmark.stats:
            pairs = zip(benchmark.stats.stats.data, durations, strict=True)
            benchmark.extra_info["ratio"] = median(peer / ours for peer, ours in pairs)
        return result

    return timed


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Report the versions of all peers and the load of the machine at the end, as both influence the times."""
    machine_info["versions"] = {package: found for package in PEERS if (found := _version(package))}
    machine_info["cores"] = os.cpu_count()
    machine_info["load"] = os.getloadavg()[1]
