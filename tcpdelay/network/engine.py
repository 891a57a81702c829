"""The order of time over all flows: a tournament whose winner is the flow with the next event."""

from __future__ import annotations

from typing import Any, NamedTuple

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import KEPT, NEVER
from tcpdelay.network import datagrams, linux
from tcpdelay.network.dispatching import collect, dispatch
from tcpdelay.network.literature import classic, scp
from tcpdelay.network.records import CLASSIC, LINUX, OPENED, SAMPLES, SCP


class Connections(NamedTuple):
    """An array of connections for each kind of transport that has any, each with one entry per flow.

    What belongs to other kinds of a flow than its own is not touched.
    """

    linux: Any
    classic: Any
    scp: Any


@kernel()
def next_time(flow: Any, connections: Any, wire: Any) -> int:
    """Return when something happens next in a flow, by the link's clock: when what it sends then reaches the queue.

    Flows meet in the queue only, and each reaches it after a constant delay. So if they are advanced in this order, the
    queue sees all packets in the order of time, without an event for their arrival there.
    """
    if flow.kind == LINUX:
        time = linux.next_time(flow, connections.linux[flow.number], wire)
    elif flow.kind == CLASSIC:
        time = classic.next_time(flow, connections.classic[flow.number], wire)
    elif flow.kind == SCP:
        time = scp.next_time(flow, connections.scp[flow.number], wire)
    else:
        time = flow.next_write
    return int(time + flow.access_delay) if time < NEVER else NEVER


@kernel()
def start(tree: Any, flows: Any, connections: Any, wires: Any) -> None:
    """Fill the tournament: entry i is the earlier one of entries 2 i and 2 i + 1, flows stand in the second half."""
    leaves = tree.size // 2
    tree[:] = NEVER
    for number in range(flows.size):
        tree[leaves + number] = next_time(flows[number], connections, wires[number])
    for place in range(leaves - 1, 0, -1):
        tree[place] = min(tree[2 * place], tree[2 * place + 1])


@kernel()
def _enter(tree: Any, place: int, time: int) -> None:
    """Enter the time of a flow's next event."""
    tree[place] = time
    while place > 1:
        place //= 2
        tree[place] = min(tree[2 * place], tree[2 * place + 1])


@kernel(nogil=True)
def advance(
    tree: Any,
    flows: Any,
    connections: Any,
    fresh: Any,
    wires: Any,
    link: Any,
    samples: Any,
    dispatchers: Any,
    until: int,
) -> bool:
    """Simulate up to a time by the link's clock [us]; return early, with False, when the samples are to be taken out.

    Parameters
    ----------
    tree : int64 array, shape (2 n,)
        The tournament.
    flows, wires : record arrays, shape (flows,)
        The flows and what is under way in each.
    connections, fresh : Connections
        Their connections, and these as they begin, for transfers, which open a new one each.
    link, samples : record arrays, shape (1,)
        The shared link, and the delays that have been counted.
    dispatchers : record array
        Those of the flows that have one, at one less than the flow's number for it.
    until : int
        The time.
    """
    leaves = tree.size // 2
    while tree[1] < until:
        if samples[0].used > SAMPLES - KEPT:
            return False
        place = 1
        while place < leaves:
            place *= 2
            if tree[place] > tree[place + 1]:
                place += 1
        number = place - leaves
        flow = flows[number]
        opens = flow.stage == OPENED and tree[place] == flow.next_write + flow.access_delay
        if flow.kind == LINUX:
            if opens:
                linux.count_up(flow, connections.linux[number])
                connections.linux[number] = fresh.linux[number]
                linux.begin(flow, connections.linux[number])
            linux.step(flow, connections.linux[number], wires[number], link[0], samples[0])
        elif flow.kind == CLASSIC:
            if opens:
                classic.count_up(flow, connections.classic[number])
                connections.classic[number] = fresh.classic[number]
                classic.begin(flow, connections.classic[number])
            classic.step(flow, connections.classic[number], wires[number], link[0], samples[0])
        elif flow.kind == SCP:
            scp.step(flow, connections.scp[number], wires[number], link[0], samples[0])
        else:
            datagrams.step(flow, link[0], samples[0])
        if flow.dispatcher:
            d = dispatchers[flow.dispatcher - 1]
            collect(d, flows[d.leader], flow, samples[0])
            written = dispatch(d, flows, connections, wires, link[0], samples[0])
            if written >= 0:
                collect(d, flows[d.leader], flows[written], samples[0])
                if written != number:
                    _enter(tree, leaves + written, next_time(flows[written], connections, wires[written]))
        _enter(tree, place, next_time(flow, connections, wires[number]))
    return True
