"""The interface of the Markov chains: refusals, delays and expected errors, of a constant rate or of any source."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tcpdelay.accuracy.errors import expected_error
from tcpdelay.ask import (
    SIMULATED,
    Answer,
    Requested,
    Support,
    UnsupportedError,
    ignored_lateness,
    requested_figures,
)
from tcpdelay.budget import Budget, TooLargeError
from tcpdelay.chain.engine import Profile, SolvedChain, budget_for, summary
from tcpdelay.chain.solver.stationary import NEGLIGIBLE_TRUNCATION, RequestedFigures
from tcpdelay.compiling.compilation import interpreted_first, single_prediction
from tcpdelay.declare import declarations
from tcpdelay.delays import DelayDistribution, ExpectedError
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, Quic


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


def from_distribution(
    answered: Callable[..., Answer], found: DelayDistribution, requested: Requested, **more: Any
) -> Answer:
    """Return an answer with the figures of a distribution."""
    return answered(
        "exact" if found.sustainable else "not carried",
        mean=found.mean,
        sustainable=found.sustainable,
        truncated_mass=found.truncated_mass,
        distribution=found,
        **more,
        **requested_figures(found, requested),
    )


class DistributionChain(Chain):
    """A chain that always computes the whole distribution."""

    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer from the whole distribution."""
        solved = self.delays(scenario, budget_for(requested.max_seconds, requested.max_memory))
        parts = (scenario.source, scenario.path, scenario.stack)
        found = solved.described(parts, ignored, partial(self.error, solved, scenario))
        more = {"parts": found.parts if requested.parts else None, "backlogged_time_fraction": found.backlogged}
        return from_distribution(answered, found, requested, **more)

    @abstractmethod
    def delays(self, scenario: Scenario, budget: Budget) -> DelayDistribution:
        """Return the delays; TooLargeError where the chain would be too large."""

    @abstractmethod
    def error(self, delays: DelayDistribution, scenario: Scenario, quantile: float) -> ExpectedError:
        """Return the expected error of a quantile."""


class FlowChain(Chain):
    """A chain of a flow of constant rate, which is solved as far as figures are requested."""

    @abstractmethod
    def profile(self, scenario: Scenario) -> Profile:
        """Return the chain of a scenario."""

    def constant(self, scenario: Scenario) -> tuple[Scenario, ...]:
        """Return the scenarios of constant round-trip times whose mean is the answer."""
        return (scenario,)

    def solved(self, scenario: Scenario, requested: Requested) -> SolvedChain:
        """Return the chain of a scenario within the limits of a request."""
        return SolvedChain(self.profile(scenario), budget_for(requested.max_seconds, requested.max_memory))

    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer to a scenario that the chain supports."""
        target = requested.target
        decided = target if requested.precision == "decision" else None
        if decided is not None and not decided.is_met_by(scenario.path.forward_delay):
            return answered("bound", lateness=1.0)
        chain, error = self.solved(scenario, requested), partial(self.error, scenario, requested)
        if decided is not None:
            late = chain.lateness(decided.latest, decided.quantile)
            look_up = partial(error, chain.known_capacity, late < 1)
            return answered("bound", lateness=late, sustainable=late < 1, look_up_error=look_up)
        figures = _solver_request(requested)
        more: dict[str, Any] = {}
        if requested.distribution:
            if requested.parts:
                found = chain.distribution_up_to(figures.limit, figures.share)
            else:
                found = chain.distribution_alone(figures)
            summed, parts = summary(found, figures), (scenario.flow, scenario.path, scenario.stack)
            look_up = partial(error, chain.known_capacity, found.sustainable)
            more["distribution"] = found.described(parts, ignored, look_up)
        else:
            summed = chain.summary_up_to(figures)
            more["look_up_error"] = partial(error, chain.known_capacity, summed.sustainable)
        if requested.parts:
            more |= {"parts": chain.delay_parts, "backlogged_time_fraction": chain.backlogged_time_fraction}
        is_bound = requested.precision == "bound" and summed.truncated_mass >= NEGLIGIBLE_TRUNCATION
        status = "not carried" if not summed.sustainable else "bound" if is_bound else "exact"
        return answered(status, *summed, **more)

    def error(
        self, scenario: Scenario, requested: Requested, known_capacity: float | None, carried: bool, quantile: float
    ) -> ExpectedError:
        """Return the expected error of a quantile; a capacity that is not known is computed within the same limits."""
        # An error is looked up after its prediction: if that had to be compiled, the kernels are compiled now.
        with single_prediction():
            capacity = self._capacity(scenario, requested) if known_capacity is None else known_capacity
            return expected_error(scenario.flow, scenario.path, scenario.stack, carried, capacity, quantile)

    def error_unsolved(self, scenario: Scenario) -> Callable[[float], ExpectedError]:
        """Return how the error of a chain that is too large is looked up: as if TCP did not carry the flow."""
        return partial(expected_error, scenario.flow, scenario.path, scenario.stack, False, np.nan)

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that TCP carries; infinite without loss, NaN where it is unknown."""
        return np.nan if self.supports(scenario).refused else self._capacity(scenario, Requested())

    def _capacity(self, scenario: Scenario, requested: Requested) -> float:
        """Return the largest packet rate [1/s] that is carried at each round-trip time; NaN if a chain is too large."""
        steady = self.constant(scenario)
        own = Requested(max_seconds=requested.max_seconds / len(steady), max_memory=requested.max_memory)
        assert self.compilation is not None
        try:
            return interpreted_first(lambda: min(self.solved(each, own).capacity for each in steady), *self.compilation)
        except TooLargeError:
            return np.nan


def _solver_request(requested: Requested) -> RequestedFigures:
    """Return the request in the form that the solver takes."""
    limit, share = np.inf, 0.5
    if requested.target is not None:
        share = requested.target.quantile
        if requested.precision == "bound":
            limit = requested.target.latest
    shares, limits = np.array(requested.quantiles, np.float64), np.array(requested.late_after, np.float64)
    return RequestedFigures(shares, limits, limit, share)
