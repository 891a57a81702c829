"""What the chains of sources that are no constant rate share: the interface of a model, refusals, delays by kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import no_less_than_teeth, source_error
from tcpdelay.models.budget import Budget, TooLargeError
from tcpdelay.models.chain import budget_for
from tcpdelay.models.chain_models import LinuxChain, ignored_settings
from tcpdelay.models.interface import SIMULATED, Answer, Requested, Support, UnsupportedError, requested_figures
from tcpdelay.models.linux.parameters import PATH_FIELDS, linux_refusals
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.validity import compared_flow
from tcpdelay.scenario.fields import declarations
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Linux


@dataclass(frozen=True, repr=False)
class SourceDelays(DelayDistribution):
    """The delays of the messages of a source.

    Attributes
    ----------
    by_kind : mapping of str to DelayDistribution
        Delays of the messages of each kind.
    """

    by_kind: Mapping[str, DelayDistribution] = field(default_factory=dict, repr=False, compare=False)


class SourceChain(ABC):
    """The Markov chain of a Linux kernel for one class of sources.

    Attributes
    ----------
    source : type of Source
        The class.
    subject : str
        The name of its sources in refusals.
    busy : str
        The part of such a source whose rate is compared with the fair rate of TCP.
    largest_utilization : float
        Largest rate of this part, relative to the fair rate of TCP.
    table : str
        File with the errors of the chain.
    """

    name = "chain"
    source: type[Source]
    subject: str
    busy: str
    largest_utilization: float
    table: str

    def busiest(self, source: Any, stack: Linux) -> Flow:
        """Return the flow whose rate is compared with the fair rate of TCP."""
        return compared_flow(source)

    @abstractmethod
    def refusals(self, source: Any, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
        """Yield an error for each field that only this chain refuses."""

    @abstractmethod
    def solve(self, source: Any, path: Path, stack: Linux, ignored: Mapping[str, str], budget: Budget) -> SourceDelays:
        """Solve the chain; TooLargeError if it would be too large."""

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the chain honours, ignores and refuses."""
        if not isinstance(scenario.source, self.source) or not isinstance(scenario.stack, Linux):
            allowed = f"be {self.source.__name__}"
            return Support(frozenset(), refused=(UnsupportedError("source", scenario.source, allowed, SIMULATED),))
        assumed = LinuxChain.assumed
        fields = {name for part in (self.source, Linux) for name in declarations(part)}
        refused = tuple(self._refused(scenario.source, scenario.path, scenario.stack))
        ignored = ignored_settings(scenario.stack, assumed)
        return Support(frozenset(fields - set(assumed)) | PATH_FIELDS, ignored, refused)

    def _refused(self, source: Source, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
        """Yield an error for each field of a scenario that the chain refuses."""
        where = f"in the chain of {self.subject}"
        if stack.congestion_control == "bbr":
            yield UnsupportedError("congestion_control", "bbr", f"be cubic or reno {where}", SIMULATED)
            return
        steady = (("loss_pattern", "random"), ("loss_burst", 1.0), ("bottleneck", "packets"), ("jitter", 0.0))
        for name, value in steady:
            if getattr(path, name) != value:
                yield UnsupportedError(name, getattr(path, name), f"be {value!r} {where}", SIMULATED)
                return
        yield from linux_refusals(compared_flow(source), path, stack)
        yield from self.refusals(source, path, stack)
        if (
            path.loss > 0
            and connection_utilization(self.busiest(source, stack), path, stack) > self.largest_utilization
        ):
            limit = f"{self.largest_utilization:.0%} of the fair rate of TCP"
            yield UnsupportedError("loss", path.loss, f"be smaller {where}: {self.busy} exceed {limit}", SIMULATED)

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the chain's answer."""
        support = self.supports(scenario)
        answered = partial(Answer, scenario, requested, self.name, ignored=support.ignored)
        if support.refused:
            return answered("unsupported", refusal=support.refused[0])
        assert isinstance(scenario.stack, Linux)
        try:
            budget = budget_for(requested.max_seconds, requested.max_memory)
            solved = self.solve(scenario.source, scenario.path, scenario.stack, support.ignored, budget)
        except TooLargeError as error:
            return answered("too large", refusal=error)
        found = replace(solved, look_up_error=partial(self._expected_error, solved))
        return answered(
            "exact",
            mean=found.mean,
            sustainable=True,
            truncated_mass=found.truncated_mass,
            distribution=found,
            **requested_figures(found, requested),
        )

    def capacity(self, scenario: Scenario) -> float:
        """Return NaN: the chain answers only far below the capacity."""
        return np.nan

    def _expected_error(self, delays: SourceDelays, quantile: float) -> ExpectedError:
        """Return the expected error of a quantile."""
        assert delays.scenario is not None
        source, path, stack = delays.scenario
        assert isinstance(stack, Linux)
        found = source_error(self.table, compared_flow(source), path, stack, quantile)
        return no_less_than_teeth(found, delays, quantile)
