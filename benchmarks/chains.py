"""The chains that are timed: one flow over one path each, from a voice call to 50 Mbit/s video."""

from __future__ import annotations

from typing import NamedTuple

from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.published import BACKLOG_PER_LOAD, parameters, published_transitions, start_phase
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions, reachable_rows
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, NewReno2008, Stack


class Scenario(NamedTuple):
    """What a `DelayModel` is made from."""

    flow: Flow
    path: Path
    stack: NewReno2008

    def model(self) -> DelayModel:
        """Return a new model, with nothing computed yet."""
        return DelayModel(self.flow, self.path, self.stack)

    def growing(self) -> Scenario:
        """Return the same scenario with a backlog bound that grows as needed."""
        s = self.stack
        grow = Stack.newreno_2008(
            s.variant, s.limited_transmit, s.window_validation, s.initial_timeout, s.mss, backlog_bound="grow"
        )
        return self._replace(stack=grow)


class LinuxScenario(NamedTuple):
    """A scenario for the chain of a Linux kernel, whose backlog bound always grows."""

    flow: Flow
    path: Path
    stack: Linux

    def model(self) -> DelayModel:
        """Return a new model, with nothing computed yet."""
        return DelayModel(self.flow, self.path, self.stack)


PUBLISHED = Stack.newreno_2008()
LIMITED_TRANSMIT = Stack.newreno_2008(limited_transmit=True)
VOICE = Flow(packet_size=174, interval=0.020)
FULL_SEGMENTS = Flow(packet_size=1448, interval=0.020)

SCENARIOS = {
    "voip": Scenario(VOICE, Path(rtt=0.100, loss=0.02), PUBLISHED),
    "voip, limited transmit": Scenario(VOICE, Path(rtt=0.100, loss=0.02), LIMITED_TRANSMIT),
    "full segments, 100 ms": Scenario(FULL_SEGMENTS, Path(rtt=0.100, loss=0.02), PUBLISHED),
    "full segments, 200 ms": Scenario(FULL_SEGMENTS, Path(rtt=0.200, loss=0.01), PUBLISHED),
    "full segments, 600 ms": Scenario(FULL_SEGMENTS, Path(rtt=0.600, loss=0.01), LIMITED_TRANSMIT),
    "50 Mbit/s video": Scenario(Flow.from_bitrate(50e6), Path(rtt=0.100, loss=0.001), PUBLISHED),
}

LINUX = Stack.linux()
LINUX_SCENARIOS = {
    "voip, Linux": LinuxScenario(VOICE, Path(rtt=0.100, loss=0.02), LINUX),
    "1200 bytes, 150 ms, Linux": LinuxScenario(Flow(packet_size=1200, interval=0.020), Path(0.150, 0.005), LINUX),
    "the same near saturation, Linux": LinuxScenario(Flow(packet_size=1200, interval=0.020), Path(0.150, 0.02), LINUX),
}


class SweepInput(NamedTuple):
    """The arguments of `solve_by_sweeps`, without the last."""

    phases: Phases
    transitions: Transitions
    rows: Rows
    start: int


def sweep_input(scenario: Scenario) -> SweepInput:
    """Return the chain of `scenario` as input of the solver by sweeps, with the published backlog bound."""
    p = parameters(*scenario)
    phases, transitions = published_transitions(p)
    start = start_phase(p.load)
    return SweepInput(phases, transitions, reachable_rows(phases, transitions, start, BACKLOG_PER_LOAD * p.load), start)
