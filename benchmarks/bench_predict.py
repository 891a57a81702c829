"""From a scenario to its delay distribution: building the chain, solving it, and summing the delays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.chains import LINUX_SCENARIOS, SCENARIOS, LinuxScenario, Scenario
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict_delay

pytestmark = pytest.mark.benchmark(timer=process_time)

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    f"{name}, {bound} bound": (name, scenario if bound == "published" else scenario.growing())
    for name, scenario in SCENARIOS.items()
    for bound in ("published", "growing")
}


def distribution(scenario: Scenario | LinuxScenario) -> DelayDistribution:
    """Return the delay distribution of a new model, without any cached result."""
    return scenario.model().delay_distribution()


@pytest.mark.parametrize(("name", "scenario"), MODELS.values(), ids=MODELS.keys())
def test_model(name: str, scenario: Scenario, benchmark: BenchmarkFixture, measure: Callable[..., Any]) -> None:
    benchmark.group = "DelayModel(...).delay_distribution()"
    bound = "published" if scenario == SCENARIOS[name] else "growing"
    benchmark.extra_info["what"] = f"{name}, {bound} bound"
    published = SCENARIOS[name]
    result = measure(lambda: distribution(scenario), None if bound == "published" else lambda: distribution(published))
    benchmark.extra_info["states"] = len(published.model().states)
    benchmark.extra_info["sustainable"] = result.sustainable
    assert result.mean >= scenario.path.forward_delay


@pytest.mark.parametrize(("name", "scenario"), LINUX_SCENARIOS.items(), ids=LINUX_SCENARIOS.keys())
def test_linux_model(
    name: str, scenario: LinuxScenario, benchmark: BenchmarkFixture, measure: Callable[..., Any]
) -> None:
    benchmark.group = "DelayModel(...).delay_distribution(), chain of a Linux kernel"
    benchmark.extra_info["what"] = name
    result = measure(lambda: distribution(scenario), None)
    benchmark.extra_info["states"] = len(scenario.model().states)
    benchmark.extra_info["sustainable"] = result.sustainable
    assert result.mean >= scenario.path.forward_delay


@pytest.mark.parametrize("given", ["objects", "numbers"])
def test_predict_delay(given: str, benchmark: BenchmarkFixture, measure: Callable[..., Any]) -> None:
    benchmark.group = "predict_delay(...), voip, growing bound; times as long as the model alone"
    benchmark.extra_info["what"] = f"from {given}"
    flow, path, stack = scenario = SCENARIOS["voip"].growing()
    numbers = {"rtt": path.rtt, "loss": path.loss, "packet_size": flow.packet_size, "interval": flow.interval}
    calls: dict[str, Callable[[], DelayDistribution]] = {
        "objects": lambda: predict_delay(flow, path, stack, method="chain"),
        "numbers": lambda: predict_delay(**numbers, method="chain"),
    }
    result = measure(calls[given], lambda: distribution(scenario))
    assert result.mean == distribution(scenario).mean


@pytest.mark.benchmark(timer=perf_counter)
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc")
@pytest.mark.parametrize("bound", ["published", "growing"])
def test_video_in_a_new_process(bound: str, benchmark: BenchmarkFixture) -> None:
    benchmark.group = "50 Mbit/s video in a new process, kernels compiled before; time by the clock"
    benchmark.extra_info["what"] = f"{bound} bound"

    def run() -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.video_memory", bound]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return dict(json.loads(done.stdout))

    peak = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info.update(peak)
    assert peak["peak_mib"] > peak["peak_mib_before"]
