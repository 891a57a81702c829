"""Compiled kernels: one variant each, the same results as in plain Python, and a line on stderr while they compile.

A first single prediction is computed in plain Python, without compiled kernels.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcpdelay import DelayModel, Flow, Stack
from tcpdelay import Path as NetworkPath
from tcpdelay.compiling.compilation import compiled_elsewhere
from tcpdelay.compiling.source_digest import PACKAGE, SOURCES

RUNS = Path(__file__).with_name("kernel_runs.py")
VARIANTS = RUNS.parents[1] / ".venv" / "stamps" / "kernels.json"
"""What `kernel_runs.py variants` has printed before the tests."""
COMPILED_FOR_SEVERAL_RECORDS = (
    *("tcpdelay.sim.tcp.", "tcpdelay.sim.quic.", "tcpdelay.sim.congestion."),
    *("tcpdelay.sim.engine.", "tcpdelay.sim.path.", "tcpdelay.sim.records.", "tcpdelay.sim.writes."),
    "tcpdelay.sim.network.transport.add_return_jitter",
)
"""A single connection keeps a packet trace and its delays in its record, the flows of a shared link do not. QUIC has
its acknowledgements in a record of its own."""


def python(*arguments, **environment):
    """Run Python in a process of its own; return what it prints and its errors."""
    package = str(RUNS.parents[1])
    if environment.get("NUMBA_CACHE_DIR"):
        # An empty cache: the kernels of the package are not used either.
        environment["TCPDELAY_KERNELS"] = "compile"
    environment = {**os.environ, "PYTHONPATH": package, **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, check=True
    )


def compiled_variants(folder):
    """Return what `kernel_runs.py variants` prints: of `make test`, or of a run with an empty cache."""
    sources = [file for pattern in SOURCES for file in PACKAGE.glob(pattern)]
    newest = max(file.stat().st_mtime for file in [RUNS, *sources])
    if VARIANTS.exists() and VARIANTS.stat().st_size and VARIANTS.stat().st_mtime > newest:
        return json.loads(VARIANTS.read_text())
    # Without optimisation they compile in less time.
    return json.loads(python(RUNS, "variants", NUMBA_CACHE_DIR=str(folder), NUMBA_OPT="0").stdout)


def test_each_kernel_is_compiled_once(tmp_path):
    found = compiled_variants(tmp_path)
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
    assert plain["quic"] == compiled["quic"]
    assert plain["network"] == compiled["network"]
    assert plain["live"] == compiled["live"]
    chains = ("published", "linux", "published near the capacity", "linux near the capacity", "correlated")
    for chain in chains:
        assert numbers(plain[chain]) == pytest.approx(numbers(compiled[chain]), rel=1e-12, abs=1e-15)
    # With late writes a rounding error may move a delay to the next bin.
    assert numbers(plain["late writes"]) == pytest.approx(numbers(compiled["late writes"]), rel=1e-6, abs=1e-7)


FIRST_PREDICTION = """
import json
from numba.core import event
from tcpdelay import predict_delay
from tcpdelay.chain.linux.transitions import first_bound
with event.install_recorder("numba:compile") as compiled:
    found = predict_delay(rtt=0.1, loss=0.02, packet_size=174, interval=0.02, method="chain")
    error = found.expected_error.median
print(json.dumps({
    "compiled": len(compiled.buffer),
    "from the cache": len(first_bound.stats.cache_hits),
    "error": error,
    "sustainable": found.sustainable,
    "values": found.values.tolist(),
    "weights": found.weights.tolist(),
}))
"""


NOWHERE = """
from pathlib import Path
from numba.core import caching
checked = caching._CacheLocator.ensure_cache_path
def ensure_cache_path(self):
    if not isinstance(self, caching.UserProvidedCacheLocator):
        raise OSError("nothing can be written there")
    checked(self)
caching._CacheLocator.ensure_cache_path = ensure_cache_path
from tcpdelay.chain.solver.aggregation import eliminate
print(Path(eliminate.stats.cache_path).parent, Path(eliminate.stats.cache_path).is_dir())
"""


def test_kernels_are_cached_for_a_process_where_no_cache_can_be_written(tmp_path):
    run = python("-c", NOWHERE, NUMBA_CACHE_DIR="", TMPDIR=str(tmp_path))
    folder, exists = run.stdout.split()
    assert (Path(folder).parent, exists, run.stderr) == (tmp_path, "True", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_process_leaves_no_kernels_behind(tmp_path, number):
    killed = f"{NOWHERE}import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(0, {number:d})"
    environment = {**os.environ, "PYTHONPATH": str(RUNS.parents[1]), "NUMBA_CACHE_DIR": "", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-u", "-c", killed]
    # The signal reaches the whole group of processes, as that of a terminal does.
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, start_new_session=True)
    folder, exists = run.stdout.split()
    assert (run.returncode, Path(folder).parent, exists, run.stderr) == (-number, tmp_path, "True", "")
    patience = time.monotonic() + 60
    while list(tmp_path.iterdir()) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())


def test_the_first_prediction_needs_no_compiled_kernel(tmp_path):
    run = python("-c", FIRST_PREDICTION, NUMBA_CACHE_DIR=str(tmp_path))
    first = json.loads(run.stdout)
    assert (first["compiled"], first["from the cache"], run.stderr) == (0, 0, "")
    compiled = DelayModel(Flow(174, 0.02), NetworkPath(rtt=0.1, loss=0.02), Stack.linux()).delay_distribution()
    assert first["values"] == pytest.approx(compiled.values.tolist(), rel=1e-12)
    assert first["weights"] == pytest.approx(compiled.weights.tolist(), rel=1e-12)
    # The kernels of this process are now in the cache, so that a new process loads them.
    cached = json.loads(python("-c", FIRST_PREDICTION).stdout)
    assert cached["from the cache"] == 1
    assert (cached["values"], cached["weights"]) == (compiled.values.tolist(), compiled.weights.tolist())
    assert first["error"] == cached["error"]


FIRST_REPORT = """
import json
from tcpdelay.advice.guideline import findings
from tcpdelay.advice.judged_delays import GuidelineRequest
from tcpdelay.chain.linux import delays
from tcpdelay.chain.linux import phases
from tcpdelay.chain.linux import transitions
from tcpdelay.chain.solver import stationary
from tcpdelay.scenario import Flow, Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.scenario import Target
scenario = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02))
# The chain alone answers for this target: a simulation would compile the simulator in addition.
found = findings(GuidelineRequest(scenario, Target(0.25)))
kernels = (transitions.linux_transitions, delays.delay_bins, stationary.iterate_sweeps)
print(json.dumps({
    "from the cache": [len(kernel.stats.cache_hits) for kernel in kernels],
    "joined": len(transitions._summed_up.signatures),
    "alone": len(phases.make_layout.signatures),
    "edges": [margin.edge for margin in found.margins],
}))
"""


def test_the_kernels_of_a_first_report_are_compiled_in_two_processes(tmp_path):
    first = json.loads(python("-c", FIRST_REPORT, NUMBA_CACHE_DIR=str(tmp_path)).stdout)
    assert first["from the cache"] == [1, 0, 0]
    # Kernels that only join others wait for many predictions, and kernels below others are compiled with these.
    assert (first["joined"], first["alone"]) == (0, 0)
    cached = {file.name.partition("-")[0] for file in tmp_path.rglob("*.nbi")}
    assert {"transitions.linux_transitions", "delays.delay_bins"} < cached
    assert not {"phases.make_layout", "transitions._summed_up"} & cached
    second = json.loads(python("-c", FIRST_REPORT, NUMBA_CACHE_DIR=str(tmp_path)).stdout)
    assert second["from the cache"] == [1, 1, 1]
    assert second["edges"] == first["edges"]


CALLS = """
from tcpdelay.compiling.compilation import kernel
@kernel()
def ratio(a, b):
    return a / b
@kernel()
def twice(a, b):
    return 2 * ratio(a, b)
"""


def test_an_error_in_a_kernel_below_another_reaches_python(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    paths = os.pathsep.join([str(RUNS.parents[1]), str(tmp_path)])
    run = subprocess.run(
        [sys.executable, "-c", "from calls import twice; print(twice(1.0, 4.0)); twice(1.0, 0.0)"],
        env={**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "0.5\n"
    assert run.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_kernels_are_compiled_here_if_the_other_process_fails():
    with compiled_elsewhere(json.loads):
        pass


TIME_USED_UP = """
import time
import numpy as np
from tcpdelay.compiling import compilation
from tcpdelay.chain.solver.sweeps import total
def compute():
    compiled.append(len(total.signatures))
    time.sleep(0.2)
    return total(np.ones(3))
with compilation.single_prediction():
    for seconds in (60.0, 0.1):
        compilation.INTERPRETED_TIME, compiled = seconds, []
        print(compilation.interpreted_first(compute, total), compiled, len(total.signatures))
"""


def test_kernels_are_compiled_when_the_time_for_plain_python_is_used_up(tmp_path):
    plain, used_up = python("-c", TIME_USED_UP, NUMBA_CACHE_DIR=str(tmp_path)).stdout.splitlines()
    assert plain == "3.0 [0] 0"
    assert used_up == "3.0 [0] 1"


def test_the_time_for_plain_python_also_ends_within_a_prediction(tmp_path):
    code = TIME_USED_UP.replace("(60.0, 0.1)", "(0.1,)")
    assert python("-c", code, NUMBA_CACHE_DIR=str(tmp_path)).stdout == "3.0 [0, 0] 1\n"


PREDICTION = """
from tcpdelay import Flow, Path, Stack
from tcpdelay.compiling import compilation
from tcpdelay.models.predict import predict
from tcpdelay.scenario import Scenario
compilation.QUIET_TIME = {quiet_time}
for _ in range(2):
    predict(Scenario(Flow(174, 0.02), Path(rtt=0.1, loss=0.02), Stack.newreno_2008()))
"""


def test_a_long_compilation_is_announced_once(tmp_path):
    # Other questions than single predictions are compiled at once: tables and sweeps have the same bits everywhere.
    # Before the first kernel, Numba takes a second to start.
    code = f"import numba\nnumba.njit(lambda x: x + 1)(1)\n{PREDICTION.format(quiet_time=0.5)}"
    first = python("-c", code, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.stdout == ""
    (said,) = first.stderr.splitlines()
    # The chain is named: a later command may compile another part.
    found = re.fullmatch(r"tcpdelay: compiling parts of the published chain, about (\d+) s; (.*)", said)
    assert found[2] == "each part is compiled once for this machine (TCPDELAY_KERNELS=compile)"
    # Beside other work it takes longer.
    assert 10 <= int(found[1]) <= 200
    cached = python("-c", code, NUMBA_CACHE_DIR=str(tmp_path))
    assert (cached.stdout, cached.stderr) == ("", "")


def test_kernels_of_other_packages_are_not_announced(tmp_path):
    code = (
        "import tcpdelay.compiling.compilation as compilation, numba, time\n"
        "compilation.QUIET_TIME = 0\n"
        "numba.njit(lambda x: x + 1)(1)\n"
        "time.sleep(0.1)\n"
    )
    assert python("-c", code, NUMBA_CACHE_DIR=str(tmp_path)).stderr == ""
