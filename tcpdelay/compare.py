"""Transports and heuristics side by side on one path: who carries the flow, and what that does to the others."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

from tcpdelay.applications import Target
from tcpdelay.contenders import Contender, contenders
from tcpdelay.distribution import DelayDistribution
from tcpdelay.scenario import Flow, Linux, Path
from tcpdelay.sim.network.bottleneck import Bottleneck
from tcpdelay.sim.network.result import FlowResult, NetworkResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Source
from tcpdelay.validity import ValidityWarning

PACKETS = 1_000_000
"""Packets of the flow that each contender carries, unless a link makes that too slow."""
LINK_PACKETS = 2_000_000
"""Full packets for which a shared link has time at most, in one simulation."""
FULL_PACKET = 1500
"""Bytes of such a packet."""
WARM_UP = 0.05
"""Share of the time, at the beginning, that does not count."""
UNLIMITED = Bottleneck(rate=1e12, capacity=60_000)


@dataclass(frozen=True)
class Carried:
    """What became of the flow with one contender.

    Attributes
    ----------
    contender : Contender
        Who carried it.
    result : FlowResult
        Its packets.
    others : float
        Bits per second that all other sources together got through.
    predicted : DelayDistribution or None
        The delays by a chain or a closed form, where there is one and the link is not shared.
    """

    contender: Contender
    result: FlowResult
    others: float
    predicted: DelayDistribution | None


@dataclass(frozen=True)
class Comparison:
    """All contenders on one path.

    Attributes
    ----------
    flow, path, stack, target
        The scenario.
    link : Bottleneck or None
        The shared link, if there is one.
    others : tuple of Source
        What else uses it.
    undisturbed : float
        Bits per second that the others get through without the flow; 0 without others.
    duration : float
        Time simulated for each [s].
    seed : int
        Seed of all that is drawn at random.
    rows : tuple of Carried
        The contenders, in their order.
    """

    flow: Flow
    path: Path
    stack: Linux
    target: Target
    link: Bottleneck | None
    others: tuple[Source, ...]
    undisturbed: float
    duration: float
    seed: int
    rows: tuple[Carried, ...]

    def taken(self, row: Carried) -> float:
        """Return what a contender takes from the other sources [bit/s]; nan without any."""
        return self.undisturbed - row.others if self.others else math.nan


def compare(
    flow: Flow,
    path: Path,
    stack: Linux | None = None,
    target: Target | None = None,
    *,
    link: Bottleneck | None = None,
    others: Sequence[Source] = (),
    duration: float | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Simulate every contender on one path, each by itself, with the same random losses.

    Parameters
    ----------
    flow : Flow
        The flow; `Stack.linux` and all others send the same packets.
    path : Path
        The path. Its losses, if any, are random or in bursts, and come before the link.
    stack : Linux, optional
        The kernel's TCP; `Stack.linux()` by default.
    target : Target, optional
        The demand on the delay; 95 % within 200 ms by default.
    link : Bottleneck, optional
        A shared link on the way; by default one that nothing waits for.
    others : sequence of Source
        What else uses the link.
    duration : float, optional
        Time to simulate [s], above 0 to 1e7. By default that of a million packets, or less with a fast link.
    seed : int
        Seed of all that is drawn at random, 0 or more; one seed gives one result.
    on_progress : callable, optional
        Is told after each simulation how many are done, and of how many.

    Returns
    -------
    Comparison
        All contenders.

    Raises
    ------
    ValueError
        If a value is out of its range, or others come without a link.

    Examples
    --------
    >>> from tcpdelay import Stack
    >>> found = compare(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), duration=60)
    >>> found.rows[0].contender.name, found.rows[-1].result.delivered_fraction < 1
    ('tcp', True)
    """
    if others and link is None:
        raise ValueError("others need a link that they share with the flow")
    stack, target = stack or Linux(), target or Target(0.2)
    entered = contenders(flow, path, stack, target)
    if duration is None:
        duration = default_duration(flow, link)
    work: list[Callable[[], NetworkResult | None]] = [
        partial(_simulate, [contender.source, *others], link, duration, seed) for contender in entered
    ]
    work.append(partial(_simulate, list(others), link, duration, seed) if others else lambda: None)
    *simulated, alone = _in_threads(work, on_progress)
    rows = []
    for contender, result in zip(entered, simulated, strict=True):
        assert result is not None
        predicted = _predicted(contender, contender is entered[0]) if link is None else None
        rows.append(Carried(contender, result.flows[0], _throughput(result.flows[1:]), predicted))
    undisturbed = 0.0 if alone is None else _throughput(alone.flows)
    return Comparison(flow, path, stack, target, link, tuple(others), undisturbed, duration, seed, tuple(rows))


def default_duration(flow: Flow, link: Bottleneck | None) -> float:
    """Return the time [s] for which a comparison simulates by default.

    Examples
    --------
    >>> default_duration(Flow(174, 0.020), None)
    20000.0
    >>> default_duration(Flow(174, 0.020), Bottleneck(rate=30e6, capacity=100))
    800.0
    """
    duration = PACKETS * flow.interval
    return duration if link is None else min(duration, 8 * FULL_PACKET * LINK_PACKETS / link.rate)


def _predicted(contender: Contender, warn: bool) -> DelayDistribution | None:
    """Return the prediction, if there is one; only that of the plain flow should warn of its range."""
    if contender.predict is None:
        return None
    with warnings.catch_warnings():
        if not warn:
            warnings.simplefilter("ignore", ValidityWarning)
        return contender.predict()


def _simulate(sources: Sequence[Source], link: Bottleneck | None, duration: float, seed: int) -> NetworkResult:
    return simulate_network(sources, link or UNLIMITED, duration=duration, warm_up=WARM_UP * duration, seed=seed)


def _throughput(flows: Sequence[FlowResult]) -> float:
    return sum(flow.throughput for flow in flows)


def _in_threads(
    work: Sequence[Callable[[], NetworkResult | None]], on_progress: Callable[[int, int], None] | None
) -> list[NetworkResult | None]:
    """Return the results in the order of the work; compiled code lets other threads run."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(simulate) for simulate in work]
        for done, _ in enumerate(as_completed(futures), 1):
            if on_progress is not None:
                on_progress(done, len(futures))
    return [future.result() for future in futures]
