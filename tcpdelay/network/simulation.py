"""The front door of the shared link: several sources, one bottleneck, and what becomes of their packets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.simulator.simulation import MICROSECONDS
from tcpdelay.models.tcp import SECOND
from tcpdelay.network import engine, linux
from tcpdelay.network.bottleneck import LINK_RING, Bottleneck, check_range
from tcpdelay.network.literature import classic, scp
from tcpdelay.network.preparation import NANOSECONDS, Network, prepare
from tcpdelay.network.records import CLASSIC, LINUX, SCP
from tcpdelay.network.result import FlowResult, NetworkResult, QueueStatistics, SlicedDelays
from tcpdelay.network.sources import Source

SLICES = 20
"""Equal parts of the time that counts, between which delays are compared to tell how well they are known."""
DRAIN = 120.0
"""Time after the last write within which what is under way may still be read [s]."""
MOST_FLOWS = 1000


def simulate_network(
    sources: Sequence[Source], bottleneck: Bottleneck, *, duration: float, warm_up: float = 0.0, seed: int = 0
) -> NetworkResult:
    """Simulate sources that share one link, packet by packet.

    Packets written from `warm_up` to `duration` count. Then all sources stop, and what is under way may still arrive.

    Parameters
    ----------
    sources : sequence of Source
        The sources, 1 to 1000.
    bottleneck : Bottleneck
        The link.
    duration : float
        Time in which sources write [s], above 0 to 1e7.
    warm_up : float
        Its part at the beginning that does not count [s], 0 to below `duration`.
    seed : int
        Seed of losses, marks, sizes and pauses, 0 or more; one seed gives one result.

    Returns
    -------
    NetworkResult
        Every flow and the queue.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay.network.bottleneck import SharedPath
    >>> from tcpdelay.network.sources import Bulk, ConstantRate
    >>> path = SharedPath(access_delay=0.05)
    >>> voice = ConstantRate(flow=Flow(174, 0.020), path=path, stack=Stack.linux())
    >>> bulk = Bulk(path=path, stack=Stack.linux())
    >>> result = simulate_network([voice, bulk], Bottleneck(rate=3e6, capacity=50), duration=60, warm_up=10)
    >>> result.flows[0].offered, result.queue.utilization > 0.9
    (2500, True)
    """
    if not 1 <= len(sources) <= MOST_FLOWS:
        raise ValueError(f"sources must be 1 to {MOST_FLOWS}, got {len(sources)}")
    check_range("duration", duration, 1e-6, 1e7, "s")
    if not 0 <= warm_up < duration:
        raise ValueError(f"warm_up must lie between 0 and duration, {duration:g} s, got {warm_up:g}")
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}")
    network = prepare(sources, bottleneck, seed, warm_up, duration)
    engine.start(network.tree, network.flows, network.connections, network.wires)
    delays = SlicedDelays()
    _advance(network, delays, warm_up)
    before = _queue_counts(network, warm_up)
    for slice_end in np.linspace(warm_up, duration, SLICES + 1)[1:]:
        _advance(network, delays, float(slice_end))
        delays.end_slice()
    after = _queue_counts(network, duration)
    _advance(network, delays, duration + DRAIN)
    delays.end_slice()
    flows = tuple(
        _flow_result(network, number, source, delays, duration - warm_up) for number, source in enumerate(sources)
    )
    return NetworkResult(flows, _queue_statistics(after - before, duration - warm_up), duration, warm_up, seed)


def _advance(network: Network, delays: SlicedDelays, until: float) -> None:
    """Simulate up to a time [s]."""
    done = False
    while not done:
        done = engine.advance(
            network.tree,
            network.flows,
            network.connections,
            network.fresh,
            network.wires,
            network.link,
            network.samples,
            network.dispatchers,
            round(until * SECOND),
        )
        delays.take(network.samples[0])


def _queue_counts(network: Network, now: float) -> NDArray[np.float64]:
    """Return what the link has counted: packets offered, dropped, marked and carried, sojourns and busy time [ns]."""
    link = network.link[0]
    places = np.arange(link.first, link.next) % LINK_RING
    ahead = np.maximum(link.departures[places] - now * NANOSECONDS, 0.0)
    backlog = max(float(link.virtual_finish) - now * NANOSECONDS, 0.0)
    carried = link.offered - link.dropped
    # What is queued will wait and be sent after this time only.
    sojourn, busy = link.sojourn - ahead.sum(), link.busy - backlog
    return np.array([link.offered, link.dropped, link.marks, carried, sojourn, busy], np.float64)


def _queue_statistics(counts: NDArray[np.float64], time: float) -> QueueStatistics:
    offered, dropped, marked, carried, sojourn, busy = (float(count) for count in counts)
    return QueueStatistics(
        # Little's law.
        mean_length=sojourn / NANOSECONDS / time,
        mean_sojourn=sojourn / NANOSECONDS / carried if carried else float("nan"),
        utilization=busy / NANOSECONDS / time,
        offered=int(offered),
        dropped=int(dropped),
        marked=int(marked),
    )


def _flow_result(network: Network, number: int, source: Source, delays: SlicedDelays, time: float) -> FlowResult:
    flow = network.flows[number]
    for member in network.members[number]:
        if flow.kind == LINUX:
            linux.count_up(network.flows[member], network.connections.linux[member])
        elif flow.kind == CLASSIC:
            classic.count_up(network.flows[member], network.connections.classic[member])
        elif flow.kind == SCP:
            scp.count_up(network.flows[member], network.connections.scp[member])

    def total(name: str) -> int:
        return sum(int(network.flows[member][name]) for member in network.members[number])

    delivered = int(flow.delivered)
    share = 1 / (MICROSECONDS * delivered) if delivered else float("nan")
    values, counts = delays.histogram(number)
    distribution = None
    if delivered:
        distribution = DelayDistribution(values / MICROSECONDS, counts / counts.sum(), source.path.there)
    return FlowResult(
        name=f"{type(source).__name__} over {type(source.stack).__name__}",
        delays=distribution,
        mean_interval=delays.mean(number),
        p95_interval=delays.quantile(number, 0.95),
        sender_delay=float(flow.sender_delay) * share,
        network_delay=float(flow.network_delay) * share,
        receiver_delay=float(flow.receiver_delay) * share,
        offered=int(flow.offered),
        delivered=delivered,
        lost=int(flow.lost),
        unfinished=int(flow.offered - flow.delivered - flow.lost),
        throughput=8 * int(flow.bytes_read) / time,
        sustainable=not delays.grows(number),
        segments_sent=total("segments_sent"),
        segments_lost=total("segments_lost"),
        segments_dropped=total("segments_dropped"),
        segments_carried=total("segments_carried"),
        retransmissions=total("retransmissions"),
        timeouts=total("timeouts"),
        marks=total("marks"),
    )
