"""A chain as a DRN file: the explicit format of the probabilistic model checker Storm (https://www.stormchecker.org).

A DRN file has a header, then each state with its reward and its labels, its one action, and the probabilities of its
successors. Storm reads it with ``storm --explicit-drn FILE``. The property ``LRA=? ["label"]`` is the long-run share of
steps in states with that label: their stationary probability. ``R=? [LRA]`` is the mean duration of a step [s].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tcpdelay.files import written_durably
from tcpdelay.models.chain import DelayModel


def _state_labels(model: DelayModel, sets: Mapping[str, NDArray[np.bool_]] | None) -> list[str]:
    """Return the labels of each state, separated by spaces."""
    if sets is None:
        windows, backlogs = model.states["w"].tolist(), model.states["b"].tolist()
        rows = zip(model.kinds.tolist(), windows, backlogs, strict=True)
        return [f"{kind} window_{window} backlog_{backlog}" for kind, window, backlog in rows]
    labels: list[list[str]] = [[] for _ in range(model.states.size)]
    for label, members in sets.items():
        for state in np.flatnonzero(members):
            labels[state].append(label)
    return [" ".join(words) for words in labels]


def _lines(model: DelayModel, sets: Mapping[str, NDArray[np.bool_]] | None) -> Iterator[str]:
    matrix = model.transition_matrix
    states = matrix.shape[0]
    pointers, columns, probabilities = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    durations, labels = model.step_durations.tolist(), _state_labels(model, sets)
    labels[model.initial_state] = f"init {labels[model.initial_state]}"
    yield f"@type: DTMC\n@parameters\n\n@reward_models\nduration\n@nr_states\n{states}\n@nr_choices\n{states}\n@model\n"
    for state in range(states):
        # A float's repr is the shortest decimal that is read as the same number.
        yield f"state {state} [{durations[state]!r}] {labels[state]}".rstrip() + "\n\taction 0\n"
        for entry in range(pointers[state], pointers[state + 1]):
            yield f"\t\t{columns[entry]} : {probabilities[entry]!r}\n"


def write_drn(model: DelayModel, path: Path, sets: Mapping[str, NDArray[np.bool_]] | None = None) -> None:
    """Write the chain that `model` solves as a DRN file.

    States have the numbers of `DelayModel.states`. The reward of a state is the mean duration of the step from it [s].

    Parameters
    ----------
    model : DelayModel
        The chain, published or of Linux.
    path : Path
        The file to write.
    sets : mapping of str to bool array, shape (n,), optional
        Sets of states by their label, a word without spaces. By default each state has three labels: the kind of its
        phase (`DelayModel.kinds`), ``window_`` with its congestion window [segments], and ``backlog_`` with its
        backlog [packets]. The state in which the chain starts has the label ``init`` in any case.

    Raises
    ------
    ValueError
        If TCP cannot carry the flow: its chain has no stationary distribution.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from tcpdelay import Flow, Path as NetworkPath, Stack
    >>> model = DelayModel(Flow(174, 0.02), NetworkPath(0.1, 0.02), Stack.linux())
    >>> with TemporaryDirectory() as directory:
    ...     write_drn(model, Path(directory, "chain.drn"))
    ...     lines = Path(directory, "chain.drn").read_text().splitlines()
    >>> lines[0], [line for line in lines if " init " in line]
    ('@type: DTMC', ['state 549 [0.0196] init open window_8 backlog_0'])
    """
    with written_durably(path) as unfinished, unfinished.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(_lines(model, sets))
