"""The stationary distribution alone: our solvers and other solvers, on the same chains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.chains import SCENARIOS, SweepInput, sweep_input
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.solver.aggregation import gth_solve
from tcpdelay.chain.solver.state_space import number_states
from tcpdelay.chain.solver.stationary import LARGEST_CHAIN, MAX_SWEEPS, solve_by_sweeps, solve_directly

pytestmark = pytest.mark.benchmark(timer=process_time)

CHAINS = [name for name in SCENARIOS if name != "50 Mbit/s video"]
LARGEST_DENSE = 3000
"""Largest number of states for the solvers of dense matrices."""

Solve = Callable[[], NDArray[np.float64]]


class Chain(NamedTuple):
    """One chain, in the input forms of all solvers."""

    model: DelayModel
    sweep_input: SweepInput
    matrix: scipy.sparse.csr_array
    stationary: NDArray[np.float64]
    reachable_cells: NDArray[np.bool_]

    @property
    def labels(self) -> dict[str, NDArray[np.bool_]]:
        """The sets of states whose probability Storm computes: the first set is timed, the second is rare."""
        return {"backlogged": self.model.states["b"] > 0, "timed_out": self.model.states["w"] == 0}


@cache
def chain(name: str) -> Chain:
    """Return the chain of a scenario, solved by sweeps."""
    model, cells = SCENARIOS[name].model(), sweep_input(SCENARIOS[name])
    return Chain(model, cells, model.transition_matrix, model.stationary_distribution, number_states(*cells) >= 0)


def sweeps(c: Chain) -> Solve:
    """Our solver, as `DelayModel` calls it; its result is by cells."""
    return lambda: solve_by_sweeps(*c.sweep_input, MAX_SWEEPS).probability


def our_lu(c: Chain) -> Solve:
    """Our fallback: a matrix of its own, SciPy's LU, and two refinements."""
    return lambda: solve_directly(*c.sweep_input).probability


def normalised_system(c: Chain) -> tuple[scipy.sparse.csc_array, NDArray[np.float64]]:
    """Return the balance equations; the last equation is replaced by the condition that all probabilities sum to 1."""
    states = c.matrix.shape[0]
    balance = (c.matrix.T - scipy.sparse.eye_array(states)).tocsr()[:-1]
    return scipy.sparse.vstack([balance, np.ones((1, states))], format="csc"), np.eye(1, states, states - 1)[0]


def scipy_spsolve(c: Chain) -> Solve:
    """SciPy as in a textbook: the normalised system is solved in one call."""
    system, right = normalised_system(c)
    return lambda: scipy.sparse.linalg.spsolve(system, right)


def scipy_splu(c: Chain) -> Solve:
    """SciPy at its best: the last probability is set to 1, so that no row is dense, and all are scaled at the end."""
    states = c.matrix.shape[0]
    balance = (scipy.sparse.eye_array(states) - c.matrix).T.tocsc()
    system, right = balance[:-1, :-1], -balance[:-1, [-1]].toarray().ravel()

    def solve() -> NDArray[np.float64]:
        unscaled = np.append(scipy.sparse.linalg.splu(system).solve(right), 1.0)
        return unscaled / unscaled.sum()

    return solve


def our_gth(c: Chain) -> Solve:
    """Our own GTH elimination."""
    dense = c.matrix.toarray()
    return lambda: gth_solve(dense)


def quantecon_gth(c: Chain) -> Solve:
    """The GTH elimination of QuantEcon.py."""
    reference = pytest.importorskip("quantecon.markov.gth_solve", reason="QuantEcon.py is not installed")
    dense = c.matrix.toarray()
    return lambda: reference.gth_solve(dense)


DISTRIBUTION_SOLVERS = {
    "tcpdelay sweeps": sweeps,
    "tcpdelay LU fallback": our_lu,
    "SciPy splu": scipy_splu,
    "SciPy spsolve": scipy_spsolve,
    "tcpdelay GTH": our_gth,
    "QuantEcon GTH": quantecon_gth,
}
DENSE = {"tcpdelay GTH", "QuantEcon GTH"}
BY_CELLS = {"tcpdelay sweeps", "tcpdelay LU fallback"}
PAIRS = [(name, solver) for name in CHAINS for solver in DISTRIBUTION_SOLVERS]


def group(name: str) -> str:
    """Return the heading for the solvers of one chain."""
    return f"{name} ({chain(name).matrix.shape[0]} states)"


@pytest.mark.parametrize(("name", "solver"), PAIRS)
def test_solver(name: str, solver: str, benchmark: BenchmarkFixture, measure: Callable[..., Any]) -> None:
    c = chain(name)
    if solver in DENSE and c.matrix.shape[0] > LARGEST_DENSE:
        pytest.skip(f"a dense matrix of {c.matrix.shape[0]} states takes too long")
    if solver == "tcpdelay LU fallback" and c.matrix.shape[0] > LARGEST_CHAIN:
        pytest.skip(f"a chain of {c.matrix.shape[0]} states is not solved directly")
    benchmark.group = group(name)
    benchmark.extra_info["what"] = solver
    reference = None if solver == "tcpdelay sweeps" else sweeps(c)
    found = measure(DISTRIBUTION_SOLVERS[solver](c), reference)
    if solver in BY_CELLS:
        found = found[c.reachable_cells]
    error = float(np.abs(found - c.stationary).sum())
    if reference:
        benchmark.extra_info["error"] = error
    assert error < 1e-10


@pytest.fixture(scope="module")
def storm_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """Return a function that returns Storm's model of a chain, and the file of this model, by the name of the chain."""
    storm_chain = pytest.importorskip("benchmarks.storm_chain", reason="stormpy is not installed")
    folder = tmp_path_factory.mktemp("storm")

    @cache
    def storm_model(name: str) -> tuple[Any, Path]:
        path = folder / f"{CHAINS.index(name)}.drn"
        return storm_chain.storm_model(path, chain(name).model, chain(name).labels), path

    return storm_model


@pytest.mark.parametrize("how", ["sound", "sound, with parsing", "default of the program storm"])
@pytest.mark.parametrize("name", CHAINS)
def test_storm_long_run_average(
    name: str,
    how: str,
    storm_models: Callable[[str], tuple[Any, Path]],
    benchmark: BenchmarkFixture,
    measure: Callable[..., Any],
) -> None:
    model, path = storm_models(name)
    import stormpy

    from benchmarks import storm_chain

    c = chain(name)
    benchmark.group = group(name)
    benchmark.extra_info["what"] = f"Storm, one LRA ({how})"
    sound = how != "default of the program storm"
    environment = storm_chain.sound_environment() if sound else storm_chain.unbounded_environment()
    properties = {label: storm_chain.long_run_property(label) for label in c.labels}

    def check(label: str) -> float:
        read = stormpy.build_model_from_drn(path) if how == "sound, with parsing" else model
        return storm_chain.long_run_probability(read, properties[label], environment)

    def error(label: str, found: float) -> float:
        return abs(found / float(c.stationary[c.labels[label]].sum()) - 1)

    timed_error = error("backlogged", measure(lambda: check("backlogged"), sweeps(c)))
    largest_error = max(timed_error, error("timed_out", check("timed_out")))
    benchmark.extra_info["relative_error"] = largest_error
    assert timed_error < 1e-3
    assert largest_error < storm_chain.DEFAULT_PRECISION or not sound


@pytest.mark.parametrize("name", CHAINS)
def test_storm_stationary_distribution(
    name: str,
    storm_models: Callable[[str], tuple[Any, Path]],
    benchmark: BenchmarkFixture,
    measure: Callable[..., Any],
) -> None:
    model, _ = storm_models(name)
    from benchmarks import storm_chain

    c = chain(name)
    benchmark.group = group(name)
    benchmark.extra_info["what"] = "Storm, stationary distribution (expected visits)"
    environment = storm_chain.visits_environment()
    found = measure(lambda: storm_chain.stationary_distribution(model, environment), sweeps(c))
    error = float(np.abs(found - c.stationary).sum())
    benchmark.extra_info["error"] = error
    assert error < 1e-6
