"""The simulator asked about captures: which of them it describes, and the same flows simulated."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.simulator.records import Rules
from tcpdelay.models.simulator.simulation import simulate
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import CongestionControl, Linux, Stack
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.validation.loss_recovery import delays_after_loss
from tcpdelay.validation.measured import VIRTUAL_TIME, WARM_UP, MeasuredDelay

PACKETS = 400_000
"""Packets that are simulated for a capture, over all of its runs."""
FEWEST_PACKETS = 1_000


@dataclass(frozen=True)
class SimulatedFlow:
    """What the simulation of a capture depends on.

    Parameters
    ----------
    flow : Flow
        The packets.
    path : Path
        The network.
    stack : Linux
        The kernel's TCP, as in the capture.
    rules : Rules
        The kernel's rules that are followed.
    connections : int
        Connections that carry the packets in turn, and independently of one another.
    packets : tuple of int
        Of each run, the packets that count.
    phases : tuple
        Of each run, the time from a tick of the kernel's clock to the first write [s], or None if not known.
    seeds : tuple of int
        Of each run; they follow from the capture's name.
    ends : bool
        Whether a run ends with its last write, so that packets not read by then never are, as in a capture.
    """

    flow: Flow
    path: Path
    stack: Linux
    rules: Rules
    connections: int
    packets: tuple[int, ...]
    phases: tuple[float | None, ...]
    seeds: tuple[int, ...]
    ends: bool = False


def not_simulated(experiment: Experiment) -> str:
    """Return why the simulator does not describe an experiment, in a few words; nothing if it does.

    Examples
    --------
    >>> not_simulated(Experiment(loss=0.02)), not_simulated(Experiment(loss=0.02, sack=False))
    ('', 'recovery without SACK')
    """
    reasons = {
        "no TCP": experiment.application == "udp",
        "a source that fills its window": experiment.application == "adaptive",
        "a queue shared with other flows": experiment.routed,
        "writes at the same instant": experiment.pieces > 1,
        "connections chosen by their state": experiment.connections > 1 and experiment.scheduling != "blind",
        f"congestion control {experiment.congestion_control}": experiment.congestion_control not in ("reno", "cubic"),
        "Nagle's algorithm": not experiment.nodelay,
        "recovery without SACK": not experiment.sack,
        "a setting of RACK between on and off": experiment.recovery not in (0, 1),
        "a setting of early retransmission between on and off": experiment.early_retrans not in (0, 3),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def simulated_flow(capture: MeasuredDelay) -> SimulatedFlow | None:
    """Return what the simulation of a capture depends on; None where the simulator does not describe it."""
    experiment = capture.experiment
    if not_simulated(experiment):
        return None
    control = cast(CongestionControl, experiment.congestion_control)
    return SimulatedFlow(
        flow=capture.flow,
        path=_path(capture),
        stack=Stack.linux(
            congestion_control=control,
            delayed_ack=experiment.delayed_ack,
            window_validation=experiment.slow_start_after_idle,
            hz=capture.hz,
        ),
        rules=Rules(rack=experiment.recovery == 1, tail_loss_probe=experiment.early_retrans == 3),
        connections=experiment.connections,
        packets=tuple(max(PACKETS * size // sum(capture.sizes), FEWEST_PACKETS) for size in capture.sizes),
        phases=capture.phases,
        seeds=tuple(_seed(f"{capture.name}/{run}") for run in range(len(capture.phases))),
    )


def _path(capture: MeasuredDelay) -> Path:
    """Return the path; in real time the machine adds to every round-trip time, so that it is the measured one."""
    experiment = capture.experiment
    path = replace(experiment.path, loss_burst=experiment.loss_burst, ack_loss=experiment.ack_loss)
    return path if capture.backend == VIRTUAL_TIME or not capture.rtt > 0 else replace(path, rtt=capture.rtt)


def simulate_flow(simulated: SimulatedFlow) -> tuple[DelayDistribution, NDArray[np.float64]]:
    """Simulate every run of a capture.

    Parameters
    ----------
    simulated : SimulatedFlow
        What is to be simulated.

    Returns
    -------
    DelayDistribution
        The delays over all runs; unsustainable if TCP carries the flow in less than half of them.
    ndarray
        The delays after an isolated loss, as `delays_after_loss` finds them; empty for several connections.
    """
    path = simulated.path
    runs = [_run(simulated, number) for number in range(len(simulated.phases))]
    carried = [run for run in runs if np.isfinite(run).any()]
    if 2 * len(carried) < len(runs):
        return DelayDistribution.unsustainable(path.forward_delay), np.empty((0, 0))
    pattern = delays_after_loss(carried, simulated.flow, path) if simulated.connections == 1 else np.empty((0, 0))
    return DelayDistribution.from_samples(np.concatenate(runs), path.forward_delay), pattern


def _run(simulated: SimulatedFlow, number: int) -> NDArray[np.float64]:
    """Return the delays of one run in the order of writing; infinite if TCP does not carry it."""
    flow, count, phase = simulated.flow, simulated.connections, simulated.phases[number]
    share = Flow(flow.packet_size, flow.interval * count)
    packets = max(simulated.packets[number] // count, FEWEST_PACKETS)
    parts = []
    for connection in range(count):
        simulation = simulate(
            share,
            simulated.path,
            simulated.stack,
            packets=packets,
            seed=_seed(f"{simulated.seeds[number]}/{connection}"),
            rules=simulated.rules,
            # Only virtual time lets an acknowledgement and a write fall into one microsecond again and again.
            exact_ties=phase is not None,
            tick_offset=None if phase is None else (phase + connection * flow.interval) % (1 / simulated.stack.hz),
            trace=True,
        )
        parts.append(simulation.read_after if simulation.sustainable else np.full(packets, np.inf))
    delays = np.stack(parts, axis=1).ravel()
    written = np.arange(delays.size) * flow.interval
    if count > 1:
        # The application gets the packets in order, whichever connection they come over.
        delays = np.asarray(np.maximum.accumulate(written + delays) - written, np.float64)
    if simulated.ends:
        counted = written < written[-1] - WARM_UP / 2
        delays = np.where(written + delays > written[-1], np.inf, delays)[counted]
    return delays


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
