"""What may carry a flow: transports, and what an application can do on top of one, as data for a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from tcpdelay.applications import Target
from tcpdelay.distribution import DelayDistribution
from tcpdelay.heuristics import parallel_delay, split_delay
from tcpdelay.predict import predict_delay
from tcpdelay.scenario import Flow, Linux, Path
from tcpdelay.sim.network.admission import MinBuf
from tcpdelay.sim.network.bottleneck import SharedPath
from tcpdelay.sim.network.sources import ConstantRate, Source
from tcpdelay.sim.network.stacks import Classic, Scp, TimeLined, Udp
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
    for name, value in (("ack_loss", path.ack_loss), ("jitter", path.jitter)):
        if value:
            raise ValueError(f"{name} must be 0 in a comparison, got {value:g}")
    if path.loss_pattern != "random":
        raise ValueError(
            f"loss_pattern must be 'random' in a comparison, got {path.loss_pattern!r}; a link with a queue has losses "
            "of its own"
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
    >>> from tcpdelay import Stack
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
