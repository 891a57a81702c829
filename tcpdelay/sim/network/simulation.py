"""Simulate several sources that share one link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import SimulationBudget, checked_budget
from tcpdelay.declare import SEED, InvalidValueError, in_seconds, is_number
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.scenario import checked_arguments
from tcpdelay.sim.batches import UNKNOWN, read_share
from tcpdelay.sim.network.bottleneck import LINK_RING, NANOSECONDS, Bottleneck
from tcpdelay.sim.network.preparation import Network, prepare
from tcpdelay.sim.network.records import SCHEDULED
from tcpdelay.sim.network.result import FlowResult, MessageResult, NetworkResult, QueueStatistics, SlicedDelays
from tcpdelay.sim.network.sources import ConstantRate, Sections, Source, checked_sources
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.statistics import Interval

SLICES = 64
"""Equal parts of the time that counts; the differences between their delays give the confidence intervals."""
DRAIN = 120.0
"""Time after the last write within which packets may still be read [s]."""
MOST_FLOWS = 1000
DURATION = in_seconds("Simulated time.", 1e-6, 1e7)
LONGEST_SIMULATION = 600.0
"""Processor time that a simulation may take by default [s]."""
TOTALS = (
    "segments_sent",
    "segments_lost",
    "segments_dropped",
    "segments_carried",
    "retransmissions",
    "timeouts",
    "marks",
)
"""Fields of `FlowResult` that are summed over all connections of a source."""


@checked_arguments
def simulate_network(
    sources: Sequence[Source],
    bottleneck: Bottleneck,
    *,
    duration: float,
    warm_up: float = 0.0,
    seed: int = 0,
    max_seconds: float = LONGEST_SIMULATION,
) -> NetworkResult:
    """Simulate sources that share one link, packet by packet.

    Packets written from `warm_up` to `duration` count. Then all sources stop, and packets in transit may still arrive.
    Equal seeds give equal messages: the first source with messages of a video, speech or a trace writes those of
    `messages(duration, seed)`, and each further one has a seed of its own.

    Parameters
    ----------
    sources : sequence of Source
        The sources, 1 to 1000.
    bottleneck : Bottleneck
        The link.
    duration : float
        Time during which the sources write [s], above 0 to 1e7.
    warm_up : float
        Time at the beginning that does not count [s], 0 to below `duration`.
    seed : int
        Seed of losses, marks, sizes and pauses, 0 or more; the same seed gives the same result.
    max_seconds : float
        Processor time that the simulation may take on an ordinary machine, roughly [s], 0.01 to 1e6. It is counted in
        events, so that the result is the same on every machine; after 20 times this time, the clock ends it.

    Returns
    -------
    NetworkResult
        The results of every flow and of the queue.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.
    TooLargeError
        If the simulation needs more than `max_seconds`; a ValueError.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay.sim.network.bottleneck import SharedPath
    >>> from tcpdelay.sim.network.sources import Bulk, ConstantRate
    >>> path = SharedPath(access_delay=0.05)
    >>> voice = ConstantRate(flow=Flow(174, 0.020), path=path, stack=Stack.linux())
    >>> bulk = Bulk(path=path, stack=Stack.linux())
    >>> result = simulate_network([voice, bulk], Bottleneck(rate=3e6, capacity=50), duration=60, warm_up=10)
    >>> result.flows[0].offered, result.queue.utilization > 0.9
    (2500, True)

    A video beside a long transfer, and its key frames:

    >>> from tcpdelay.scenario.sources.video import Video
    >>> video = ConstantRate(flow=Video(500_000), path=path, stack=Stack.linux())
    >>> result = simulate_network([video, bulk], Bottleneck(rate=3e6, capacity=50), duration=60, warm_up=10)
    >>> {kind: messages.offered for kind, messages in result.flows[0].by_kind.items()}
    {'other frame': 1475, 'key frame': 25}
    """
    sources = checked_sources("sources", sources)
    if not 1 <= len(sources) <= MOST_FLOWS:
        raise InvalidValueError("sources", len(sources), f"be 1 to {MOST_FLOWS}")
    DURATION.require("duration", duration)
    if not is_number(warm_up) or not 0 <= warm_up < duration:
        raise InvalidValueError("warm_up", warm_up, f"lie between 0 and duration, {duration:g} s")
    seed = SEED.require("seed", seed)
    checked_budget(max_seconds)
    network = prepare(sources, bottleneck, seed, warm_up, duration)
    delays, budget = SlicedDelays(), SimulationBudget(max_seconds)
    network.compile()
    budget.start()
    network.advance(warm_up, delays, budget)
    before = _queue_counts(network, warm_up)
    progress = [_progress(network, len(sources))]
    for place, slice_end in enumerate(np.linspace(warm_up, duration, SLICES + 1)[1:], 1):
        network.advance(float(slice_end), delays, budget)
        if budget.is_spent:
            reached = f"{slice_end - (duration - warm_up) / SLICES:.3g} s of {duration:g} s"
            raise budget.error(reached, "allow more time, or use a shorter duration")
        progress.append(_progress(network, len(sources)))
        # The last slice also takes the packets that are read after the last write.
        if place < SLICES:
            delays.end_slice()
    after = _queue_counts(network, duration)
    network.advance(duration + DRAIN, delays)
    delays.end_slice()
    written, read, _ = np.diff(np.array(progress), axis=0).T
    # As the delays, the last slice takes the packets that are lost after the last write.
    _, _, lost = np.diff(np.array([*progress[:-1], _progress(network, len(sources))]), axis=0).T
    flows = tuple(
        _flow_result(
            network,
            number,
            source,
            delays,
            lost[number],
            _carried(source, written[number], read[number]),
            duration - warm_up,
        )
        for number, source in enumerate(sources)
    )
    return NetworkResult(flows, _queue_statistics(after - before, duration - warm_up), duration, warm_up, seed)


def _queue_counts(network: Network, now: float) -> NDArray[np.float64]:
    """Return the counts of the link: packets offered, dropped, marked and carried; sojourn and busy times [ns]."""
    link = network.link[0]
    places = np.arange(link.first, link.next) % LINK_RING
    ahead = np.maximum(link.departures[places] - now * NANOSECONDS, 0.0)
    backlog = max(float(link.virtual_finish) - now * NANOSECONDS, 0.0)
    carried = link.offered - link.dropped
    # The counts include the packets in the queue, although a part of their waiting and sending times is still to come.
    sojourn, busy = link.sojourn - ahead.sum(), link.busy - backlog
    return np.array([link.offered, link.dropped, link.marks, carried, sojourn, busy], np.float64)


def _queue_statistics(counts: NDArray[np.float64], time: float) -> QueueStatistics:
    """Return the statistics of the queue from the counts of `_queue_counts` in a time [s]."""
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


def _progress(network: Network, sources: int) -> NDArray[np.int64]:
    """Return how many packets each source has written, how many are read or given up, and how many count as lost."""
    result = np.zeros((sources, 3), np.int64)
    for number in range(sources):
        flow = network.flows[number]
        if flow.dispatcher:
            d = network.dispatchers[flow.dispatcher - 1]
            # Packets beyond the records are given up because of the backlog: they are not carried.
            result[number] = d.accepted, d.released - d.overflows, flow.lost
        else:
            result[number] = flow.packets_written + flow.overflows, flow.packets_read, flow.lost
    return result


def _carried(source: Source, written: NDArray[np.int64], read: NDArray[np.int64]) -> Interval:
    """Return the rate that is read or given up, relative to the rate of a source of constant rate."""
    if not isinstance(source, (ConstantRate, Sections)) or written.min() == 0:
        return UNKNOWN
    return read_share((read / written).tolist())


def _flow_result(
    network: Network,
    number: int,
    source: Source,
    delays: SlicedDelays,
    lost: NDArray[np.int64],
    carried: Interval,
    time: float,
) -> FlowResult:
    """Return the result of a source, whose connections have the numbers `network.members[number]`."""
    flow, members = network.flows[number], network.members[number]
    for member in members:
        if (end := network.transports[member].end) is not None:
            end(network.flows[member], network.connections[member])
    totals = {name: int(network.flows[name][members].sum()) for name in TOTALS}
    overflows = network.dispatchers[flow.dispatcher - 1].overflows if flow.dispatcher else flow.overflows
    read = bool(delays.histogram(number)[0].size)
    settled = not overflows and (not read or delays.is_settled(number, 0.95))
    known = {"one_way_delay": source.path.there, "settled": settled, "carried": carried, "method": "simulation"}
    messages = _message_result(delays, number, (flow.offered, flow.lost, flow.gap_bytes), known)
    share = 1 / (SECOND * messages.delivered) if messages.delivered else float("nan")
    scheduled = source.flow if isinstance(source, ConstantRate) and flow.application == SCHEDULED else None
    kinds = scheduled.kinds if scheduled and len(scheduled.kinds) > 1 else ()
    return FlowResult(
        **vars(messages) | totals,
        name=f"{type(scheduled or source).__name__} over {type(source.stack).__name__}",
        sender_delay=float(flow.sender_delay) * share,
        network_delay=float(flow.network_delay) * share,
        receiver_delay=float(flow.receiver_delay) * share,
        throughput=8 * int(flow.bytes_read) / time,
        sustainable=not carried.high < 1,
        settled=settled,
        carried=carried,
        late_errors=delays.late_errors(number, lost),
        by_kind={
            name: _message_result(
                delays,
                number,
                (flow.offered_by_kind[kind], flow.lost_by_kind[kind], flow.gap_bytes_by_kind[kind]),
                known,
                kind,
            )
            for kind, name in enumerate(kinds)
            if flow.offered_by_kind[kind]
        },
    )


def _message_result(
    delays: SlicedDelays, number: int, counts: tuple[int, int, int], known: dict[str, Any], kind: int | None = None
) -> MessageResult:
    """Return the result of the messages of a flow, of all kinds or of one; counts are offered, lost and gap bytes."""
    offered, lost, gap_bytes = map(int, counts)
    values, frequencies = delays.histogram(number, kind)
    delivered = int(frequencies.sum())
    return MessageResult(
        delays=DelayDistribution(values / SECOND, frequencies / delivered, packets=delivered, **known)
        if delivered
        else None,
        mean_interval=delays.mean(number, kind),
        p95_interval=delays.quantile(number, 0.95, kind),
        offered=offered,
        delivered=delivered,
        lost=lost,
        unfinished=offered - delivered - lost,
        gap_bytes=gap_bytes,
    )
