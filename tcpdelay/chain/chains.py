"""The interface of the Markov chains, and the two chains of a flow of constant rate: published, and of Linux."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import expected_error, no_less_than_teeth, source_error
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.accuracy.validity import compared_flow
from tcpdelay.ask import (
    SIMULATED,
    Answer,
    Precision,
    Requested,
    Status,
    Support,
    UnsupportedError,
    ignored_lateness,
    refused_lateness,
    requested_figures,
)
from tcpdelay.budget import Budget, TooLargeError
from tcpdelay.chain import published
from tcpdelay.chain.delay_model import DelayModel, DelaySummary, budget_for, summary
from tcpdelay.chain.linux import parameters as linux
from tcpdelay.chain.linux.delays import JITTER_FIELDS, constant_paths, filled_bins, jitter_refusals, with_jitter
from tcpdelay.chain.linux.transitions import compile_kernels
from tcpdelay.chain.published import merge_lattices
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions, reachable_rows
from tcpdelay.chain.solver.stationary import (
    BYTES_PER_CELL,
    NEGLIGIBLE_TRUNCATION,
    WORTH_FINISHING,
    RequestedFigures,
    from_start,
    probability_at_bound,
    solve_within,
)
from tcpdelay.compiling.compilation import interpreted_first, single_prediction
from tcpdelay.declare import declarations
from tcpdelay.delays import DelayDistribution, DelayParts, ExpectedError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import LOSS_BASED_CONTROLS, KnownStack, Linux, NewReno2008, Quic, Stack


class Chain(ABC):
    """A Markov chain behind the interface of a model: what it refuses, its delays, and their errors."""

    name: ClassVar[str] = "chain"
    stack: ClassVar[type[KnownStack | Quic]]
    source: ClassVar[type[Source]] = Flow
    path_fields: ClassVar[frozenset[str]]
    """Fields of the path that the chain knows."""
    assumed: ClassVar[Mapping[str, Any]] = {}
    """Fields of the stack that the chain ignores, with the values that it assumes."""
    compilation: ClassVar[tuple[Callable[..., Any], Callable[[], object] | None] | None] = None
    """The kernel that is compiled last, and a function that compiles the large ones; None to compile at once."""

    def __init__(self) -> None:
        fields = {name for part in (self.source, self.stack) for name in declarations(part)}
        self._honoured = frozenset(fields - set(self.assumed)) | self.path_fields

    def _mismatches(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield an error if the chain is not made for the stack or the source."""
        if not isinstance(scenario.stack, self.stack):
            yield UnsupportedError("stack", scenario.stack, f"be a {self.stack.__name__}")
        elif not isinstance(scenario.source, self.source):
            allowed = "a Flow, which has a constant rate, in the chain" if self.source is Flow else self.source.__name__
            yield UnsupportedError("source", scenario.source, f"be {allowed}", SIMULATED)

    @abstractmethod
    def refusals(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield the fields of a scenario whose values the chain refuses."""

    def lateness(self, scenario: Scenario) -> float:
        """Return the lateness of writes that the chain assumes [s]."""
        return 0.0

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the chain honours, ignores and refuses."""
        for refused in self._mismatches(scenario):
            return Support(frozenset(), refused=(refused,))
        ignored = {
            name: declarations(self.stack)[name].written(value)
            for name, value in self.assumed.items()
            if getattr(scenario.stack, name) != value
        }
        ignored |= ignored_lateness(scenario.source, self.lateness(scenario))
        return Support(self._honoured, ignored, tuple(self.refusals(scenario)))

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the chain's answer."""
        support = self.supports(scenario)
        answered = partial(Answer, scenario, requested, self.name, ignored=support.ignored)
        if support.refused:
            return answered("unsupported", refusal=support.refused[0])

        def solve() -> Answer:
            try:
                return self.solve(scenario, requested, answered, support.ignored)
            except TooLargeError as error:
                refusal = error
            except MemoryError:
                refusal = TooLargeError("the chain needs more memory than there is")
            return answered("too large", refusal=refusal, look_up_error=self.error_unsolved(scenario))

        # The first call is repeated in compiled kernels if it takes long in plain Python: each with the whole budget.
        return solve() if self.compilation is None else interpreted_first(solve, *self.compilation)

    @abstractmethod
    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer to a scenario that the chain supports; TooLargeError where it would be too large."""

    def error_unsolved(self, scenario: Scenario) -> Callable[[float], ExpectedError] | None:
        """Return how the error of a chain that is too large is looked up, if it is known."""
        return None

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that TCP carries; infinite without loss, NaN where it is unknown."""
        return math.nan


class DistributionChain(Chain):
    """A chain that always computes the whole distribution."""

    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer from the whole distribution."""
        solved = self.delays(scenario, budget_for(requested.max_seconds, requested.max_memory))
        parts = (scenario.source, scenario.path, scenario.stack)
        found = solved.described(parts, ignored, partial(self.error, solved, scenario))
        return answered(
            "exact" if found.sustainable else "not carried",
            mean=found.mean,
            sustainable=found.sustainable,
            truncated_mass=found.truncated_mass,
            distribution=found,
            parts=found.parts if requested.parts else None,
            backlogged_time_fraction=found.backlogged,
            **requested_figures(found, requested),
        )

    @abstractmethod
    def delays(self, scenario: Scenario, budget: Budget) -> DelayDistribution:
        """Return the delays; TooLargeError where the chain would be too large."""

    @abstractmethod
    def error(self, delays: DelayDistribution, scenario: Scenario, quantile: float) -> ExpectedError:
        """Return the expected error of a quantile."""


class _FlowChain(Chain):
    """What both chains of a flow of constant rate share: `DelayModel` solves them, as far as figures are requested."""

    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer to a scenario that the chain supports."""
        parts = (scenario.flow, scenario.path, scenario.stack)
        target = requested.target
        decided = target if requested.precision == "decision" else None
        if decided is not None and not decided.is_met_by(scenario.path.forward_delay):
            return answered("bound", lateness=1.0)
        model = DelayModel(*parts, budget_for(requested.max_seconds, requested.max_memory))
        if decided is not None:
            late = model.lateness(decided.latest, decided.quantile)
            error = partial(_expected_error, *parts, requested, late < 1, model.known_capacity)
            return answered("bound", lateness=late, sustainable=late < 1, look_up_error=error)
        return self._figures(model, answered, requested, ignored)

    def _figures(self, model: DelayModel, answered: Any, requested: Requested, ignored: Mapping[str, str]) -> Answer:
        """Return the answer with the requested figures."""
        figures = _requested_figures(requested)
        more: dict[str, Any] = {}
        if requested.distribution:
            if requested.parts:
                solved = model.distribution_up_to(figures.limit, figures.share)
            else:
                solved = model.distribution_alone(figures)
            found = summary(solved, figures)
            more["distribution"] = _predicted(solved, model, requested, ignored)
        else:
            found = model.summary_up_to(figures)
            parts = (model.flow, model.path, model.stack)
            more["look_up_error"] = partial(_expected_error, *parts, requested, found.sustainable, model.known_capacity)
        if requested.parts:
            more |= {"parts": model.delay_parts, "backlogged_time_fraction": model.backlogged_time_fraction}
        answer: Answer = answered(
            _status(found, requested.precision),
            found.quantiles,
            found.late_fractions,
            found.mean,
            found.sustainable,
            found.truncated_mass,
            **more,
        )
        return answer

    def error_unsolved(self, scenario: Scenario) -> Callable[[float], ExpectedError]:
        """Return how the error of a chain that is too large is looked up: as if TCP did not carry the flow."""
        return partial(expected_error, scenario.flow, scenario.path, scenario.stack, False, np.nan)

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that TCP carries; infinite without loss, NaN where it is unknown."""
        if self.supports(scenario).refused:
            return np.nan
        return _capacity(scenario.flow, scenario.path, scenario.stack, Requested())


def _capacity(flow: Flow, path: Path, stack: Stack, requested: Requested) -> float:
    """Return the largest packet rate [1/s] that TCP carries, at each round-trip time with jitter; NaN if too large."""
    paths = constant_paths(path)

    def smallest() -> float:
        budgets = (budget_for(requested.max_seconds / len(paths), requested.max_memory) for _ in paths)
        return min(DelayModel(flow, steady, stack, own).capacity for steady, own in zip(paths, budgets, strict=True))

    try:
        chain = LinuxChain if isinstance(stack, Linux) else PublishedChain
        return interpreted_first(smallest, *chain.compilation)
    except TooLargeError:
        return np.nan


def _requested_figures(requested: Requested) -> RequestedFigures:
    """Return the request in the form that the solver takes."""
    limit, share = np.inf, 0.5
    if requested.target is not None:
        share = requested.target.quantile
        if requested.precision == "bound":
            limit = requested.target.latest
    shares, limits = np.array(requested.quantiles, np.float64), np.array(requested.late_after, np.float64)
    return RequestedFigures(shares, limits, limit, share)


def _status(found: DelaySummary, precision: Precision) -> Status:
    """Return the status of an answer with these figures."""
    if not found.sustainable:
        return "not carried"
    return "bound" if precision == "bound" and found.truncated_mass >= NEGLIGIBLE_TRUNCATION else "exact"


def _expected_error(
    flow: Flow,
    path: Path,
    stack: Stack,
    requested: Requested,
    carried: bool,
    known_capacity: float | None,
    quantile: float,
) -> ExpectedError:
    """Return the expected error of a quantile; a capacity that is not known yet is computed within the same limits."""
    # An error is looked up after its prediction: if the prediction had to be compiled, the kernels are compiled now.
    with single_prediction():
        capacity = _capacity(flow, path, stack, requested) if known_capacity is None else known_capacity
        return expected_error(flow, path, stack, carried, capacity, quantile)


def _predicted(
    solved: DelayDistribution, model: DelayModel, requested: Requested, ignored: Mapping[str, str]
) -> DelayDistribution:
    """Return a distribution with its scenario, the fields that the chain ignored, and its expected error."""
    scenario = (model.flow, model.path, model.stack)
    error = partial(_expected_error, *scenario, requested, solved.sustainable, model.known_capacity)
    return solved.described(scenario, ignored, error)


OVERLOAD = 10.0
"""Rate, relative to the fair rate of Reno, from which no error of the chain's capacity matters.

RFC 9438, Equation 6: with a loss of 0.01 % and a round-trip time of 0.5 s, CUBIC sends five times as fast as Reno.
"""


class LinuxChain(_FlowChain):
    """The Markov chain of a current Linux kernel; with jitter, the mean of chains with constant round-trip times."""

    stack = Linux
    path_fields = linux.PATH_FIELDS | JITTER_FIELDS
    assumed: ClassVar[Mapping[str, Any]] = {"window_validation": True, "delayed_ack": False}
    compilation = filled_bins, compile_kernels

    def refusals(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield the fields of a scenario whose values the chain refuses."""
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Linux)
        beyond_window = tuple(linux.refused_beyond_initial_window(flow, stack))
        if beyond_window and _may_be_simulated(flow, path, stack):
            yield from beyond_window
        yield from linux.linux_refusals(flow, path.without_jitter() if path.jitter > 0 else path, stack)
        yield from jitter_refusals(flow, path, stack)

    def lateness(self, scenario: Scenario) -> float:
        """Return the lateness of writes that the chain assumes [s]."""
        return linux.lateness(scenario.flow, scenario.path)

    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer to a scenario that the chain supports; with jitter, from several chains."""
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Linux)
        if path.jitter == 0:
            refused = (*linux.refused_beyond_initial_window(flow, stack), linux.refusal_if_carried(flow, path, stack))
            if refused[0] is not None and _is_carried(flow, path, stack, requested):
                return answered("unsupported", refusal=refused[0])
            return super().solve(scenario, requested, answered, ignored)
        paths, found = constant_paths(path), []
        exact = Requested(
            parts=requested.parts, max_seconds=requested.max_seconds / len(paths), max_memory=requested.max_memory
        )
        for steady in paths:
            one = replace(scenario, source=replace(flow, write_jitter=0.0), path=steady)
            found.append(self.solve(one, exact, partial(Answer, one, exact, self.name), ignored))
            if found[-1].refusal is not None:
                error = self.error_unsolved(scenario)
                return answered(found[-1].status, refusal=found[-1].refusal, look_up_error=error)
        carried = all(one.sustainable for one in found)
        distribution = _jittery_delays([one.require() for one in found], scenario, requested, carried, ignored)
        more = requested_figures(distribution, requested)
        if requested.parts:
            more["parts"] = _mean_parts([one.parts for one in found if one.parts], path)
            more["backlogged_time_fraction"] = float(np.mean([one.backlogged_time_fraction for one in found]))
        return answered(
            "exact" if carried else "not carried",
            mean=distribution.mean,
            sustainable=carried,
            truncated_mass=distribution.truncated_mass,
            distribution=distribution,
            **more,
        )


def _is_carried(flow: Flow, path: Path, stack: Linux, requested: Requested) -> bool:
    """Return whether TCP carries a flow, or the chain that says so is too large: that takes no delays."""
    try:
        return DelayModel(flow, path, stack, budget_for(requested.max_seconds, requested.max_memory)).carried
    except TooLargeError:
        return True


def _may_be_simulated(flow: Flow, path: Path, stack: Linux) -> bool:
    """Return whether the simulator can answer in place of the chain, which suffices far beyond the capacity."""
    if connection_utilization(flow, path, stack) > OVERLOAD:
        return False
    from tcpdelay.sim.simulation import source_refusals

    return not any(source_refusals(flow, path, stack))


def _jittery_delays(
    solved: Sequence[DelayDistribution],
    scenario: Scenario,
    requested: Requested,
    carried: bool,
    ignored: Mapping[str, str],
) -> DelayDistribution:
    """Return the distribution of the delays with jitter, with its scenario and its expected error."""
    flow, path, stack = scenario.flow, scenario.path, scenario.stack
    if carried:
        values, weights = with_jitter(solved, path.jitter)
    else:
        values, weights = np.array([np.inf]), np.ones(1)
    return DelayDistribution(
        values,
        weights,
        path.forward_delay,
        carried,
        max(one.truncated_mass for one in solved),
        scenario=(flow, path, stack),
        ignored=ignored,
        look_up_error=partial(_expected_error, flow, path, stack, requested, carried, None),
    )


def _mean_parts(parts: Sequence[DelayParts], path: Path) -> DelayParts:
    """Return the mean of the parts of the mean delay; the mean jitter is a part of the network's delay."""
    _, backlog, head_of_line, timeouts = np.mean([astuple(one) for one in parts], axis=0).tolist()
    return DelayParts(path.forward_delay + path.jitter / 2, backlog, head_of_line, timeouts)


class PublishedChain(_FlowChain):
    """The Markov chain of Brosh et al. (2010)."""

    stack = NewReno2008
    path_fields = published.PATH_FIELDS
    compilation = merge_lattices, None

    def refusals(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield the fields of a scenario whose values the chain refuses."""
        assert isinstance(scenario.stack, NewReno2008)
        return published.published_refusals(scenario.flow, scenario.path, scenario.stack)


class SourceChain(DistributionChain):
    """The Markov chain of a Linux kernel for sources that are no constant rate."""

    stack = Linux
    path_fields = linux.PATH_FIELDS
    assumed = LinuxChain.assumed
    subject: ClassVar[str]  # The name of its sources in refusals
    busy: ClassVar[str]  # The part of such a source whose rate is compared with the fair rate of TCP
    largest_utilization: ClassVar[float]  # Largest rate of this part, relative to the fair rate of TCP
    table: ClassVar[str]  # File with the errors of the chain

    def busiest(self, source: Any, stack: Linux) -> Flow:
        """Return the flow whose rate is compared with the fair rate of TCP."""
        return compared_flow(source)

    @abstractmethod
    def own_refusals(self, source: Any, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
        """Yield an error for each field that only this chain refuses."""

    def refusals(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield an error for each field of a scenario that the chain refuses."""
        source, path, stack, where = scenario.source, scenario.path, scenario.stack, f"in the chain of {self.subject}"
        assert isinstance(stack, Linux)
        if (control := stack.congestion_control) not in LOSS_BASED_CONTROLS:
            yield UnsupportedError("congestion_control", control, f"be cubic or reno {where}", SIMULATED)
            return
        steady = (("loss_pattern", "random"), ("loss_burst", 1.0), ("bottleneck", "packets"), ("jitter", 0.0))
        for name, value in steady:
            if getattr(path, name) != value:
                yield UnsupportedError(name, getattr(path, name), f"be {value!r} {where}", SIMULATED)
                return
        if self.lateness(scenario) != source.write_jitter:
            yield from refused_lateness(source, where)
        yield from linux.linux_refusals(compared_flow(source), path, stack)
        yield from self.own_refusals(source, path, stack)
        utilization = connection_utilization(self.busiest(source, stack), path, stack) if path.loss > 0 else 0.0
        if utilization > self.largest_utilization:
            limit = f"{self.largest_utilization:.0%} of the fair rate of TCP"
            yield UnsupportedError("loss", path.loss, f"be smaller {where}: {self.busy} exceed {limit}", SIMULATED)

    def error(self, delays: DelayDistribution, scenario: Scenario, quantile: float) -> ExpectedError:
        """Return the expected error of a quantile."""
        assert isinstance(scenario.stack, Linux)
        flow = compared_flow(scenario.source)
        found = source_error(self.table, flow, scenario.path, scenario.stack, quantile)
        return no_less_than_teeth(found, delays, quantile)


def solved_within(
    budget: Budget, phases: Phases, transitions: Transitions, start: int, bound: int, most: int = 40
) -> tuple[Rows, NDArray[np.float64], float]:
    """Return rows, probabilities, and that at the bound of the backlog, which doubles until it is negligible.

    TooLargeError after `most` bounds, or where the budget does not suffice.
    """
    for _ in range(most):
        rows = reachable_rows(phases, transitions, start, bound)
        budget.require_memory(float(rows["offset"][-1]) * BYTES_PER_CELL)
        inflow = from_start(rows, start)
        solved = solve_within(budget, phases, transitions, rows, start, inflow, WORTH_FINISHING)
        cut = float(probability_at_bound(phases, rows, solved.probability))
        if cut < NEGLIGIBLE_TRUNCATION:
            return rows, solved.probability, cut
        bound *= 2
    raise TooLargeError(f"the backlogs may be larger than {bound // 2} packets, the largest bound of this chain")
