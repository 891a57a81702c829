"""An independent check with the model checker Storm: its reading of an exported chain, and its long-run probabilities.

Storm answers `LRA=? ["label"]`, the long-run share of steps that end in a state with that label, which is the
stationary probability of these states.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import stormpy
import stormpy.analysis
import stormpy.environments
from numpy.typing import NDArray

from tcpdelay.chain.delay_model import DelayModel, write_drn

DEFAULT_PRECISION = 1e-6
"""Relative error at which Storm stops by default."""
TIGHT_PRECISION = 1e-10
"""Relative error at which `tight_environment` stops."""
MOST_ITERATIONS = 100_000
"""Iterations after which `tight_environment` stops: due to rounding, the bounds of a tiny probability stay apart."""


def storm_model(path: Path, model: DelayModel, sets: Mapping[str, NDArray[np.bool_]] | None = None) -> Any:
    """Write the chain of `model` to `path` as `write_drn` does, and return Storm's reading of that file."""
    write_drn(model, path, sets)
    return stormpy.build_model_from_drn(path)


def sound_environment() -> Any:
    """Return the default of stormpy: value iteration between bounds, to a relative error of 1e-6."""
    return stormpy.environments.sound()


def unbounded_environment() -> Any:
    """Return the default of the program `storm`: the equations of gain and bias, solved by GMRES.

    The iteration stops at a relative change of 1e-6, which does not bound the error of the result.
    """
    return stormpy.Environment()


@cache
def tight_environment() -> Any:
    """Return an environment for results as exact as Storm can compute them.

    Long-run averages are found by value iteration between bounds to a relative error of 1e-10, and stationary
    distributions by a sparse LU decomposition (Eigen), to rounding. Precision and decomposition can only be set as on
    the command line, and only once. The settings do not change the other environments.
    """
    settings = ["--sound", "--precision", str(TIGHT_PRECISION), "--lra:maxiter", str(MOST_ITERATIONS)]
    settings += ["--eqsolver", "eigen", "--eigen:method", "sparselu"]
    stormpy.developer.set_from_exploded_string(settings)
    return stormpy.developer.EnvironmentBuilder.build_environment()


def visits_environment() -> Any:
    """Return an environment that computes a stationary distribution from expected numbers of visits.

    Storm's sound variant of this method does not end on these chains; this variant solves with GMRES.
    """
    environment = stormpy.Environment()
    algorithms = stormpy.environments.SteadyStateDistributionAlgorithm
    environment.modelchecker().steady_state_distribution_algorithm = algorithms.EXPECTED_VISITING_TIMES
    return environment


def long_run_property(label: str) -> Any:
    """Return the property for the long-run probability of the states with the label `label`."""
    return stormpy.parse_property(f'LRA=? ["{label}"]')


def mean_step_property() -> Any:
    """Return the property for the mean duration of a step [s]."""
    return stormpy.parse_property("R=? [LRA]")


def long_run_probability(storm: Any, formula: Any, environment: Any) -> float:
    """Return Storm's value of a property in the initial state."""
    result = stormpy.model_checking(storm, formula, only_initial_states=True, environment=environment)
    return float(result.get_value(storm.initial_states[0]))


def stationary_distribution(storm: Any, environment: Any) -> NDArray[np.float64]:
    """Return Storm's stationary probabilities of all states."""
    result = stormpy.analysis.compute_steady_state_distribution(storm, environment=environment)
    return np.array(result.get_value_vector())
