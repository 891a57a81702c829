"""Compiled kernels: one variant each, the same results as in plain Python, and a line on stderr while they compile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).with_name("kernel_runs.py")
COMPILED_FOR_SEVERAL_RECORDS = "tcpdelay.models.simulator."
"""A single connection keeps a packet trace and its delays in its record, the flows of a shared link do not."""


def python(*arguments, **environment):
    """Run Python in a process of its own; return what it prints and its errors."""
    package = str(RUNS.parents[1])
    environment = {**os.environ, "PYTHONPATH": package, **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, check=True
    )


def test_each_kernel_is_compiled_once(tmp_path):
    # Kernels that come from a cache do not say for which types those were compiled that they call. Without
    # optimisation they compile in less time.
    found = json.loads(python(RUNS, "variants", NUMBA_CACHE_DIR=str(tmp_path), NUMBA_OPT="0").stdout)
    assert len(found) > 300
    assert {name: signatures for name, (signatures, _) in found.items() if len(signatures) != 1} == {}
    several = [name for name, (_, variants) in found.items() if variants > 1]
    assert all(name.startswith(COMPILED_FOR_SEVERAL_RECORDS) for name in several)


def numbers(value):
    """Return all numbers in a tree of dictionaries and lists."""
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return [number for child in children for number in numbers(child)]
    return [value]


def test_plain_python_gives_the_results_of_the_compiled_kernels():
    compiled = json.loads(python(RUNS, "figures").stdout)
    plain_run = python(RUNS, "figures", NUMBA_DISABLE_JIT="1")
    plain = json.loads(plain_run.stdout)
    assert plain_run.stderr == ""
    assert plain["simulation"] == compiled["simulation"]
    assert plain["network"] == compiled["network"]
    for chain in ("published", "linux"):
        assert numbers(plain[chain]) == pytest.approx(numbers(compiled[chain]), rel=1e-12, abs=1e-15)


PREDICTION = """
from tcpdelay import Stack, predict_delay
from tcpdelay.models import compilation
compilation.QUIET_TIME = {quiet_time}
for _ in range(2):
    predict_delay(rtt=0.1, loss=0.02, packet_size=174, interval=0.02, stack=Stack.newreno_2008())
"""


def test_a_long_compilation_is_announced_once(tmp_path):
    code = PREDICTION.format(quiet_time=0.5)
    first = python("-c", code, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.stdout == ""
    assert first.stderr.splitlines() == ["tcpdelay: compiling for this machine, once, about 10 s"]
    cached = python("-c", code, NUMBA_CACHE_DIR=str(tmp_path))
    assert (cached.stdout, cached.stderr) == ("", "")


def test_kernels_of_other_packages_are_not_announced(tmp_path):
    code = (
        "import tcpdelay.models.compilation as compilation, numba, time\n"
        "compilation.QUIET_TIME = 0\n"
        "numba.njit(lambda x: x + 1)(1)\n"
        "time.sleep(0.1)\n"
    )
    assert python("-c", code, NUMBA_CACHE_DIR=str(tmp_path)).stderr == ""
