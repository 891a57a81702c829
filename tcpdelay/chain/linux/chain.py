"""The chain of a Linux kernel: its refusals and its jitter, and what the chains of other sources share with it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tcpdelay.accuracy.errors import no_less_than_teeth, source_error
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.accuracy.validity import compared_flow
from tcpdelay.ask import SIMULATED, Answer, Requested, UnsupportedError, refused_lateness
from tcpdelay.budget import TooLargeError
from tcpdelay.chain.chains import DistributionChain, FlowChain, from_distribution
from tcpdelay.chain.linux import parameters as linux
from tcpdelay.chain.linux.delays import JITTER_FIELDS, constant_paths, filled_bins, jitter_refusals, with_jitter
from tcpdelay.chain.linux.transitions import LinuxProfile, compile_kernels, linux_profile
from tcpdelay.delays import DelayDistribution, DelayParts, ExpectedError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import LOSS_BASED_CONTROLS, Linux

OVERLOAD = 10.0
"""Rate, relative to the fair rate of Reno, from which no error of the chain's capacity matters.

RFC 9438, Equation 6: with a loss of 0.01 % and a round-trip time of 0.5 s, CUBIC sends five times as fast as Reno.
"""


class LinuxChain(FlowChain):
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

    def profile(self, scenario: Scenario) -> LinuxProfile:
        """Return the chain of a scenario."""
        assert isinstance(scenario.stack, Linux)
        return linux_profile(scenario.flow, scenario.path, scenario.stack)

    def constant(self, scenario: Scenario) -> tuple[Scenario, ...]:
        """Return the scenarios of constant round-trip times whose mean is the answer."""
        return tuple(replace(scenario, path=path) for path in constant_paths(scenario.path))

    def solve(
        self, scenario: Scenario, requested: Requested, answered: Callable[..., Answer], ignored: Mapping[str, str]
    ) -> Answer:
        """Return the answer to a scenario that the chain supports; with jitter, from several chains."""
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Linux)
        if path.jitter == 0:
            refused = (*linux.refused_beyond_initial_window(flow, stack), linux.refusal_if_carried(flow, path, stack))
            if refused[0] is not None and self._is_carried(scenario, requested):
                return answered("unsupported", refusal=refused[0])
            return super().solve(scenario, requested, answered, ignored)
        steady, found = self.constant(replace(scenario, source=replace(flow, write_jitter=0.0))), []
        seconds = requested.max_seconds / len(steady)
        exact = Requested(parts=requested.parts, max_seconds=seconds, max_memory=requested.max_memory)
        for one in steady:
            found.append(self.solve(one, exact, partial(Answer, one, exact, self.name), ignored))
            if found[-1].refusal is not None:
                error = self.error_unsolved(scenario)
                return answered(found[-1].status, refusal=found[-1].refusal, look_up_error=error)
        more: dict[str, Any] = {}
        if requested.parts:
            more["parts"] = _mean_parts([one.parts for one in found if one.parts], path)
            more["backlogged_time_fraction"] = float(np.mean([one.backlogged_time_fraction for one in found]))
        delays = _jittery_delays([one.require() for one in found], path)
        look_up = partial(self.error, scenario, requested, None, delays.sustainable)
        return from_distribution(answered, delays.described((flow, path, stack), ignored, look_up), requested, **more)

    def _is_carried(self, scenario: Scenario, requested: Requested) -> bool:
        """Return whether TCP carries a flow, or the chain that says so is too large: that takes no delays."""
        try:
            return self.solved(scenario, requested).carried
        except TooLargeError:
            return True


def _may_be_simulated(flow: Flow, path: Path, stack: Linux) -> bool:
    """Return whether the simulator can answer in place of the chain, which suffices far beyond the capacity."""
    if connection_utilization(flow, path, stack) > OVERLOAD:
        return False
    from tcpdelay.sim.simulation import source_refusals

    return not any(source_refusals(flow, path, stack))


def _jittery_delays(solved: Sequence[DelayDistribution], path: Path) -> DelayDistribution:
    """Return the distribution of the delays with jitter: not carried unless each of the chains is."""
    if not all(one.sustainable for one in solved):
        return DelayDistribution.unsustainable(path.forward_delay)
    values, weights = with_jitter(solved, path.jitter)
    truncated = max(one.truncated_mass for one in solved)
    return DelayDistribution(values, weights, path.forward_delay, truncated_mass=truncated)


def _mean_parts(parts: Sequence[DelayParts], path: Path) -> DelayParts:
    """Return the mean of the parts of the mean delay; the mean jitter is a part of the network's delay."""
    _, backlog, head_of_line, timeouts = np.mean([astuple(one) for one in parts], axis=0).tolist()
    return DelayParts(path.forward_delay + path.jitter / 2, backlog, head_of_line, timeouts)


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
