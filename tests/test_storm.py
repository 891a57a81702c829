"""Agreement with Storm, a probabilistic model checker that knows nothing of TCP, on the exported chains."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest
from numpy.typing import NDArray

from chain_structure import VOICE, linux_models
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

pytest.importorskip("stormpy", reason="stormpy, the independent model checker, is not installed; `make bench` does it")

from benchmarks.storm_chain import (
    TIGHT_PRECISION,
    long_run_probability,
    long_run_property,
    mean_step_property,
    stationary_distribution,
    storm_model,
    tight_environment,
)

FULL_SEGMENTS = Flow(packet_size=1448, interval=0.020)
CHAINS = {
    "voip": DelayModel(VOICE, Path(rtt=0.100, loss=0.02), Stack.newreno_2008()),
    "limited transmit": DelayModel(VOICE, Path(rtt=0.100, loss=0.02), Stack.newreno_2008(limited_transmit=True)),
    "reno, correlated": DelayModel(
        VOICE, Path(rtt=0.200, loss=0.05, loss_pattern="correlated"), Stack.newreno_2008(variant="reno")
    ),
    "byte queue, window validation": DelayModel(
        VOICE, Path(rtt=0.200, loss=0.10, bottleneck="bytes"), Stack.newreno_2008(window_validation=True)
    ),
    "full segments": DelayModel(FULL_SEGMENTS, Path(rtt=0.200, loss=0.01), Stack.newreno_2008()),
    "more than TCP can carry": DelayModel(FULL_SEGMENTS, Path(rtt=0.100, loss=0.10), Stack.newreno_2008()),
}
LINUX_CHAINS = {
    **linux_models(),
    "loss bursts": DelayModel(VOICE, Path(rtt=0.100, loss=0.02, loss_burst=1.5), Stack.linux()),
}
LU_PRECISION = 1e-12
"""Largest sum of the differences of two stationary distributions; the sparse LU of Storm is exact to rounding."""
DENSITIES = (0.9, 0.5, 0.2, 0.05)


def sets_of_states(model: DelayModel) -> dict[str, NDArray[np.bool_]]:
    """Return sets with a meaning, and random ones of every size: seeded, so that a failure comes back."""
    states = model.states
    sets = {
        "backlogged": states["b"] > 0,
        "timed_out": states["w"] == 0,
        "first_recovery_phase": states["l"] == 1,
        "long_backlog": states["b"] > 4 * model.load,
    }
    random = np.random.default_rng(20100504)
    return sets | {f"random_{i}": random.random(states.size) < density for i, density in enumerate(DENSITIES)}


@pytest.mark.parametrize("model", CHAINS.values(), ids=CHAINS.keys())
def test_storm_finds_the_same_long_run_probabilities(model: DelayModel, tmp_path: FilePath) -> None:
    sets = sets_of_states(model)
    expected = [model.stationary_distribution[members].sum() for members in sets.values()]
    storm = storm_model(tmp_path / "chain.drn", model, sets)
    found = [long_run_probability(storm, long_run_property(label), tight_environment()) for label in sets]
    assert found == pytest.approx(expected, rel=TIGHT_PRECISION, abs=0)


@pytest.mark.parametrize("model", (CHAINS | LINUX_CHAINS).values(), ids=(CHAINS | LINUX_CHAINS).keys())
def test_storm_finds_the_same_stationary_distribution(model: DelayModel, tmp_path: FilePath) -> None:
    storm = storm_model(tmp_path / "chain.drn", model)
    found = stationary_distribution(storm, tight_environment())
    assert np.abs(found - model.stationary_distribution).sum() < LU_PRECISION
    # The states carry what a reader needs to find them: Storm's sets are those of the model.
    for kind in np.unique(model.kinds):
        assert list(storm.labeling.get_states(kind)) == np.flatnonzero(model.kinds == kind).tolist()
    for label, column in (("window", "w"), ("backlog", "b")):
        largest = model.states[column].max()
        of_largest = np.flatnonzero(model.states[column] == largest)
        assert list(storm.labeling.get_states(f"{label}_{largest}")) == of_largest.tolist()
    mean_step = long_run_probability(storm, mean_step_property(), tight_environment())
    assert mean_step == pytest.approx(model.stationary_distribution @ model.step_durations, rel=1e-9)


def test_storm_reads_the_chain_that_was_written(tmp_path: FilePath) -> None:
    model = CHAINS["limited transmit"]
    sets = sets_of_states(model)
    storm = storm_model(tmp_path / "chain.drn", model, sets)
    assert storm.nr_states == len(model.states)
    for label, members in sets.items():
        assert list(storm.labeling.get_states(label)) == np.flatnonzero(members).tolist()
    expected = model.transition_matrix
    for state in range(len(model.states)):
        row = slice(expected.indptr[state], expected.indptr[state + 1])
        read = [(entry.column, entry.value) for entry in storm.transition_matrix.get_row(state)]
        assert read == list(zip(expected.indices[row].tolist(), expected.data[row].tolist(), strict=True))
