"""What may carry a flow: transports, and what an application can do on top of one, as data for a comparison.

Transports and heuristics side by side on one path: who carries the flow, and what that does to the others.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

import numpy as np

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.heuristics import parallel_delay, split_delay
from tcpdelay.models.interface import unknown_fields
from tcpdelay.models.predict import predict_delay
from tcpdelay.models.validity import ValidityWarning
from tcpdelay.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.network.literature.min_buf import MinBuf
from tcpdelay.network.result import FlowResult, NetworkResult
from tcpdelay.network.simulation import simulate_network
from tcpdelay.network.sources import ConstantRate, Source
from tcpdelay.network.stacks import Classic, Scp, TimeLined, Udp
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux
from tcpdelay.scenario.target import Target
from tcpdelay.units import format_time

FINE_TICK, SHORT_TIMEOUT = 0.01, 0.2
"""Timers of the published transports [s], as of current systems: theirs of half a second would hide all else."""
OLD_TIMERS = "timeouts from 200 ms"
SHORTEST_DEADLINE = 0.001


@dataclass(frozen=True)
class Contender:
    """One way to carry the flow.

    Parameters
    ----------
    name : str
        A short name, such as ``"split-2"``.
    title : str
        What it is, in a few words.
    source : Source
        What the simulator is given.
    predict : callable, optional
        Returns the distribution of the delays by a chain or a closed form, where there is one.
    """

    name: str
    title: str
    source: Source
    predict: Callable[[], DelayDistribution] | None = None


PATH_FIELDS = frozenset({"rtt", "loss", "loss_pattern", "one_way_delay", "loss_burst", "bottleneck"})
"""Fields of a path that the simulator of shared links knows."""


def shared_path(path: Path) -> SharedPath:
    """Return a path as one to a shared link and back.

    Raises
    ------
    ValueError
        If the path has something that the simulator of shared links leaves out.

    Examples
    --------
    >>> shared_path(Path(rtt=0.100, loss=0.02)).back
    0.05
    """
    for refused in unknown_fields(path, PATH_FIELDS, "in a comparison"):
        raise refused
    if path.loss_pattern != "random":
        raise InvalidValueError(
            "loss_pattern",
            path.loss_pattern,
            "be 'random' in a comparison",
            "a link with a queue has losses of its own",
        )
    return SharedPath(
        access_delay=path.forward_delay,
        return_delay=path.rtt - path.forward_delay,
        loss=path.loss,
        loss_burst=path.loss_burst,
    )


def contenders(flow: Flow, path: Path, stack: Linux, target: Target) -> tuple[Contender, ...]:
    """Return all that may carry a flow, plain TCP of the kernel first and datagrams last.

    Parameters
    ----------
    flow : Flow
        The flow.
    path : Path
        The path; its losses are those before the shared link, if there is one.
    stack : Linux
        The kernel's TCP.
    target : Target
        The demand on the delay; its limit is the deadline of what knows one.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> found = contenders(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> found[0].name, found[-1].name
    ('tcp', 'udp')
    """
    return tuple(_contenders(flow, path, stack, target, shared_path(path)))


def _contenders(flow: Flow, path: Path, stack: Linux, target: Target, shared: SharedPath) -> Iterator[Contender]:
    carry = partial(ConstantRate, flow=flow, path=shared)
    yield Contender(
        "tcp",
        f"TCP of a Linux kernel, {stack.congestion_control}, one write per packet",
        carry(stack=stack),
        lambda: predict_delay(flow, path, stack),
    )
    for pieces in (2, 4):
        yield Contender(
            f"split-{pieces}",
            f"the same, each packet in {pieces} writes",
            carry(stack=stack, pieces=pieces),
            partial(split_delay, flow, path, stack, pieces),
        )
    yield Contender(
        "par-2-blind",
        "two connections that take turns",
        carry(stack=stack, connections=2),
        partial(parallel_delay, flow, path, stack, 2),
    )
    for connections in (2, 5):
        yield Contender(
            f"par-{connections}",
            f"{connections} connections, each packet over the least busy one",
            carry(stack=stack, connections=connections, scheduling="intelligent"),
        )
    yield Contender(
        "discard",
        f"TCP that is not given packets likely to come later than {format_time(target.limit)}",
        carry(stack=stack, discard_after=target.limit),
    )
    for buffer in (MinBuf(1, 0), MinBuf(1, 3)):
        yield Contender(
            f"min-buf-{buffer.multiple}-{buffer.extra}",
            f"TCP that is not given packets beyond the window and {buffer.extra} more (Goel et al. 2002)",
            carry(stack=stack, min_buf=buffer),
        )
    if flow.packet_size <= stack.mss:
        yield from _published(carry, path, target, max(stack.mss, Classic().mss))
    yield Contender(
        "udp",
        "datagrams, nothing sent again",
        carry(stack=Udp()),
        lambda: DelayDistribution(np.array([path.forward_delay]), np.ones(1), path.forward_delay),
    )


def _published(carry: Callable[..., ConstantRate], path: Path, target: Target, mss: int) -> Iterator[Contender]:
    """Yield the transports of the literature, each packet of which fits a segment."""
    classic = Classic(recovery="sack", mss=mss, tick=FINE_TICK, rto_min=SHORT_TIMEOUT, first_timeout=1.0)
    yield Contender("sack", f"TCP as published, SACK, {OLD_TIMERS}", carry(stack=classic))
    yield Contender(
        "tcp-rc",
        f"the same, its receiver forges what is late (McCreary et al. 2005), {OLD_TIMERS}",
        carry(stack=classic, forging=True),
    )
    deadline = max(target.limit - path.forward_delay, SHORTEST_DEADLINE)
    yield Contender(
        "time-lined",
        f"TCP Reno that gives up packets after {format_time(deadline)} (Mukherjee 2000), {OLD_TIMERS}",
        carry(stack=TimeLined(mss=mss, tick=FINE_TICK, rto_min=SHORT_TIMEOUT, first_timeout=1.0, deadline=deadline)),
    )
    yield Contender("scp", "SCP, a window over datagrams, nothing sent again (Cen et al. 1998)", carry(stack=Scp()))


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
    >>> from tcpdelay.scenario.stack import Stack
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
