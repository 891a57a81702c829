"""What may carry a flow: transports, and what an application can do on top of one, as data for a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tcpdelay.applications import Target
from tcpdelay.distribution import DelayDistribution
from tcpdelay.predict import predict_delay
from tcpdelay.scenario import Flow, Linux, Path
from tcpdelay.sim.network.bottleneck import SharedPath
from tcpdelay.sim.network.sources import ConstantRate, Source
from tcpdelay.sim.network.stacks import Classic, Udp


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
    yield Contender(
        "tcp",
        f"TCP of a Linux kernel, {stack.congestion_control}",
        ConstantRate(flow=flow, path=shared, stack=stack),
        lambda: predict_delay(flow, path, stack),
    )
    yield Contender(
        "newreno",
        "TCP of 2008: NewReno, three duplicate ACKs, timeouts from 1 s",
        ConstantRate(flow=flow, path=shared, stack=Classic()),
    )
    yield Contender("udp", "datagrams", ConstantRate(flow=flow, path=shared, stack=Udp()))
