"""An independent check with the model checker Storm: a chain as a DRN file, and Storm's long-run probabilities.

DRN is Storm's explicit format: a header, then every state with its labels, its one action and the probabilities of its
successors. Storm answers `LRA=? ["label"]`, the long-run share of steps that end in a state with that label, which is
the stationary probability of these states.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import stormpy
import stormpy.analysis
import stormpy.environments
from numpy.typing import NDArray

from tcpdelay.models.chain import DelayModel

DEFAULT_PRECISION = 1e-6
"""Relative error at which Storm stops by default."""
TIGHT_PRECISION = 1e-10
"""Relative error at which `tight_environment` stops."""
MOST_ITERATIONS = 100_000
"""Iterations after which `tight_environment` stops: due to rounding, the bounds of a tiny probability stay apart."""


def write_drn(
    path: Path, matrix: scipy.sparse.csr_array, initial_state: int, labels: Mapping[str, NDArray[np.bool_]]
) -> None:
    """Write a transition matrix as a DRN file.

    Parameters
    ----------
    path : Path
        The file to write.
    matrix : csr_array, shape (n, n)
        Transition probabilities, rows summing to 1.
    initial_state : int
        State in which the chain starts, 0 to n - 1.
    labels : mapping of str to ndarray, shape (n,)
        The states with each label. `init` is the label of the initial state.
    """
    states = matrix.shape[0]
    pointers, columns, probabilities = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    lines = [
        "@type: DTMC",
        "@parameters",
        "",
        "@reward_models",
        "",
        "@nr_states",
        str(states),
        "@nr_choices",
        str(states),
    ]
    lines.append("@model")
    for state in range(states):
        names = ["init"] if state == initial_state else []
        names += [label for label, carriers in labels.items() if carriers[state]]
        lines += [" ".join(["state", str(state), *names]), "\taction 0"]
        for entry in range(pointers[state], pointers[state + 1]):
            # The shortest decimal that is read as the same number.
            lines.append(f"\t\t{columns[entry]} : {probabilities[entry]!r}")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def initial_state(model: DelayModel) -> int:
    """Return the number of the state (r, 0, 0) in which the published chain starts, r being the load."""
    states = model.states
    (found,) = np.flatnonzero((states["w"] == model.load) & (states["b"] == 0) & (states["l"] == 0))
    return int(found)


def storm_model(path: Path, model: DelayModel, labels: Mapping[str, NDArray[np.bool_]]) -> Any:
    """Write the chain of `model` to `path` and return Storm's reading of that file."""
    write_drn(path, model.transition_matrix, initial_state(model), labels)
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
    """Return an environment with value iteration between bounds to a relative error of 1e-10.

    The precision of long-run averages can only be set as on the command line, and only once. The setting does not
    change the other environments.
    """
    settings = ["--sound", "--precision", str(TIGHT_PRECISION), "--lra:maxiter", str(MOST_ITERATIONS)]
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


def long_run_probability(storm: Any, formula: Any, environment: Any) -> float:
    """Return Storm's value of a property in the initial state."""
    result = stormpy.model_checking(storm, formula, only_initial_states=True, environment=environment)
    return float(result.get_value(storm.initial_states[0]))


def stationary_distribution(storm: Any, environment: Any) -> NDArray[np.float64]:
    """Return Storm's stationary probabilities of all states."""
    result = stormpy.analysis.compute_steady_state_distribution(storm, environment=environment)
    return np.array(result.get_value_vector())
