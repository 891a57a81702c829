"""The public face of a chain: its states, its transition matrix, its stationary distribution, and a file of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import MOST_SECONDS, Budget
from tcpdelay.chain.engine import Profile, SolvedChain, budget_for
from tcpdelay.chain.linux.transitions import linux_profile
from tcpdelay.chain.published import PublishedProfile
from tcpdelay.chain.solver.state_space import compressed_rows, list_states, number_states
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, NewReno2008, Stack, StackName, checked_profile
from tcpdelay.store import written_durably

if TYPE_CHECKING:
    import scipy.sparse


STATE = np.dtype([("w", np.int64), ("b", np.int64), ("l", np.int64)])


def _profile(flow: Flow, path: Path, stack: Stack) -> Profile:
    if isinstance(stack, NewReno2008):
        return PublishedProfile(flow, path, stack)
    if isinstance(stack, Linux):
        return linux_profile(flow, path, stack)
    raise InvalidValueError("stack", stack, "come from one of the profiles, such as Stack.linux()")


class DelayModel(SolvedChain):
    """The Markov chain of one flow over one path with one TCP stack, solved when asked.

    Parameters
    ----------
    flow : Flow
        Packet size [bytes] and interval [s].
    path : Path
        Round-trip time [s], loss and queue.
    stack : Stack or {"linux", "newreno_2008"}, optional
        The TCP implementation, or its name on the command line; by default the TCP of a current Linux kernel.
    budget : Budget, optional
        The time and the memory that the chain may take; by default 10 s and 1 GiB.

    Raises
    ------
    TooLargeError
        If the chain would need more, when it is made or later; a ValueError.
    ValueError
        If the flow does not go with the path.

    Examples
    --------
    >>> from tcpdelay.chain.delay_model import DelayModel
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.stack import Stack
    >>> m = DelayModel(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008())
    >>> len(m.states), m.transition_matrix.shape
    (318, (318, 318))
    >>> round(m.delay_distribution().quantile(0.95), 3)
    0.19
    """

    def __init__(
        self, flow: Flow, path: Path, stack: Stack | StackName | None = None, budget: Budget | None = None
    ) -> None:
        self.stack = checked_profile(stack)
        super().__init__(_profile(flow, path, self.stack), budget_for(MOST_SECONDS, None) if budget is None else budget)

    @cached_property
    def _numbering(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        rows, _ = self._listed
        phases, transitions = self._structure
        number = number_states(phases, transitions, rows, self._profile.start)
        return (number, *list_states(phases, rows, number))

    @cached_property
    def states(self) -> NDArray[np.void]:
        """Reachable states as a structured array of (w, b, l): window, backlog [packets], recovery phase."""
        phases, _ = self._structure
        _, phase_of, backlog_of = self._numbering
        states = np.empty(phase_of.size, STATE)
        states["w"], states["b"], states["l"] = phases["window"][phase_of], backlog_of, phases["recovery"][phase_of]
        return states

    @cached_property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of the phase of each of `states`, for example ``"round"`` or ``"timeout"``."""
        _, phase_of, _ = self._numbering
        return self._profile.kinds[phase_of]

    @cached_property
    def step_durations(self) -> NDArray[np.float64]:
        """Mean duration of the step from each of `states` [s]."""
        phases, transitions = self._structure
        _, phase_of, _ = self._numbering
        phase_of_event = np.repeat(np.arange(phases.size - 1), np.diff(phases["first_transition"]))
        events = transitions[: phase_of_event.size]
        mean = np.zeros(phases.size - 1)
        np.add.at(mean, phase_of_event, events["probability"] * events["duration"])
        return mean[phase_of]

    @property
    def initial_state(self) -> int:
        """Number of the state in which the chain starts: an open window without a backlog."""
        rows, _ = self._listed
        start = self._profile.start
        return int(self._numbering[0][rows["offset"][start] - rows["low"][start]])

    @cached_property
    def transition_matrix(self) -> scipy.sparse.csr_array:
        """Transition probabilities between `states`, in their order; each row sums to 1."""
        import scipy.sparse

        rows, _ = self._listed
        number, phase_of, backlog_of = self._numbering
        entries = compressed_rows(*self._structure, rows, number, phase_of, backlog_of)
        return scipy.sparse.csr_array(entries, shape=(phase_of.size, phase_of.size))

    @cached_property
    def stationary_distribution(self) -> NDArray[np.float64]:
        """Stationary probabilities of `states`, in their order, summing to 1."""
        number, _, _ = self._numbering
        return self._listed[1].probability[number >= 0]

    @property
    def residual(self) -> float:
        """Sum over all states of ``|pi Q - pi|`` of the stationary distribution found."""
        return self._listed[1].residual


# A chain as a DRN file: the explicit format of the probabilistic model checker Storm (https://www.stormchecker.org).
#
# A DRN file has a header, then each state with its reward and its labels, its one action, and the probabilities of its
# successors. Storm reads it with ``storm --explicit-drn FILE``. The property ``LRA=? ["label"]`` is the long-run share
# of steps in states with that label: their stationary probability. ``R=? [LRA]`` is the mean duration of a step [s].


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


def write_drn(model: DelayModel, path: FilePath, sets: Mapping[str, NDArray[np.bool_]] | None = None) -> None:
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
    >>> import pathlib
    >>> from tempfile import TemporaryDirectory
    >>> from tcpdelay import Flow, Path, Stack
    >>> model = DelayModel(Flow(174, 0.02), Path(0.1, 0.02), Stack.linux())
    >>> with TemporaryDirectory() as directory:
    ...     write_drn(model, pathlib.Path(directory, "chain.drn"))
    ...     lines = pathlib.Path(directory, "chain.drn").read_text().splitlines()
    >>> lines[0], [line for line in lines if " init " in line]
    ('@type: DTMC', ['state 549 [0.0196] init open window_8 backlog_0'])
    """
    with written_durably(path) as unfinished, unfinished.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(_lines(model, sets))
