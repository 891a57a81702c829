"""Regions of 100 x 100 cells of a voice call. Kernels are compiled before."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pytest
import xarray as xr
from pytest_benchmark.fixture import BenchmarkFixture

from tcpdelay.scenario.stack import Stack
from tcpdelay.study.region import working_region

SPACINGS: dict[str, Callable[..., Any]] = {"equal ratios": np.geomspace, "equal steps": np.linspace}
STACKS = {
    "published chain, published bound": Stack.newreno_2008(),
    "published chain, growing bound": Stack.newreno_2008(backlog_bound="grow"),
    "chain of a Linux kernel": Stack.linux(),
}
ROUNDS = 5


@pytest.mark.benchmark(timer=perf_counter)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize(("name", "stack"), STACKS.items(), ids=STACKS.keys())
def test_voice_region(name: str, stack: Stack, spacing: str, benchmark: BenchmarkFixture) -> None:
    rtts, losses = SPACINGS[spacing](0.010, 0.400, 100), SPACINGS[spacing](0.001, 0.10, 100)
    benchmark.group = "working_region('voip', ...), 100 x 100 cells, in several threads; time by the clock"
    benchmark.extra_info["what"] = f"{name}, {spacing}"
    spent: list[float] = []

    def region() -> xr.Dataset:
        begin = process_time()
        result = working_region("voip", stack, rtt=rtts, loss=losses)
        spent.append(process_time() - begin)
        return result

    result = benchmark.pedantic(region, rounds=ROUNDS, warmup_rounds=1)
    benchmark.extra_info["processor"] = median(spent[-ROUNDS:])
    assert result.works.shape == (100, 100)
    assert result.works.values[0, 0]
    assert not result.works.values[-1, -1]
