"""The order of events over all flows and the link: a tournament tree whose root is the time of the next event."""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import KEPT, NEVER
from tcpdelay.network.dispatching import collect, dispatch
from tcpdelay.network.queues.managed_link import serve, service_time
from tcpdelay.network.queues.waiting import NOBODY, take_outcome
from tcpdelay.network.records import ESTABLISHED, SAMPLES
from tcpdelay.network.transport import call_for_effect, call_for_number, copy_memory


@kernel()
def next_time(flow: Any, carrier: Any, wire: Any) -> int:
    """Return when the next event of a flow is due by the link's clock: when a packet sent then reaches the queue.

    Flows meet in the queue only, and the packets of each flow reach it after a constant delay. Processing the events in
    this order therefore lets the packets of all flows enter the queue in the order of time.
    """
    return int(at_link(flow, call_for_number(carrier.next_time, flow, carrier.connection, (wire,))))


@kernel()
def at_link(flow: Any, time: int) -> int:
    """Return when a packet reaches the queue that is sent at a time."""
    return int(time + flow.access_delay) if time < NEVER else NEVER


@kernel()
def start(tree: Any, flows: Any, carriers: Any, wires: Any) -> None:
    """Fill the tournament: the second half has the flows and the link, entry i the earlier of entries 2 i and 2 i + 1.

    The link is after the flows. It has events only if its queue is managed, and none before a packet arrives.
    """
    leaves = tree.size // 2
    tree[:] = NEVER
    for number in range(flows.size):
        tree[leaves + number] = next_time(flows[number], carriers[number], wires[number])
    for place in range(leaves - 1, 0, -1):
        tree[place] = min(tree[2 * place], tree[2 * place + 1])


@kernel()
def _enter(tree: Any, place: int, time: int) -> None:
    """Enter the time of a flow's next event."""
    tree[place] = time
    while place > 1:
        place //= 2
        tree[place] = min(tree[2 * place], tree[2 * place + 1])


@kernel()
def _open_connection(flow: Any, carrier: Any) -> None:
    """Replace the connection of a flow by a new one that is established."""
    if carrier.end:
        call_for_effect(carrier.end, flow, carrier.connection, ())
    copy_memory(carrier.connection, carrier.initial, carrier.size)
    call_for_effect(carrier.begin, flow, carrier.connection, ())


@kernel()
def _process_outcome(
    tree: Any, flows: Any, carriers: Any, wires: Any, link: Any, samples: Any, dispatchers: Any
) -> None:
    """Let the flow of the packet process that has left the managed queue first, or has been dropped there."""
    packet = link.packets[take_outcome(link)]
    number = packet.flow
    flow, carrier, wire = flows[number], carriers[number], wires[number]
    time = call_for_number(carrier.deliver, flow, carrier.connection, (wire, link, samples, packet))
    if flow.dispatcher:
        d = dispatchers[flow.dispatcher - 1]
        collect(d, flows[d.leader], flow, samples)
    _enter(tree, tree.size // 2 + number, at_link(flow, time))


@kernel(nogil=True)
def advance(
    tree: Any, flows: Any, carriers: Any, wires: Any, link: Any, samples: Any, dispatchers: Any, until: int
) -> bool:
    """Simulate up to a time by the link's clock [us]; return early, with False, when the buffer of delays is full.

    Parameters
    ----------
    tree : int64 array, shape (2 n,)
        The tournament; n is larger than the number of flows.
    flows, carriers, wires : record arrays, shape (flows,)
        The flows, the addresses of their transports, and the segments and acknowledgements in transit.
    link, samples : record arrays, shape (1,)
        The shared link, and the delays counted since the last call.
    dispatchers : record array
        The dispatchers; `flow.dispatcher` is the index of the flow's dispatcher plus one, or 0.
    until : int
        The time.
    """
    leaves = tree.size // 2
    while True:
        if samples[0].used > SAMPLES - KEPT:
            return False
        if link[0].managed:
            # Process what the last event has decided about packets, and enter when the link takes the next one.
            if link[0].first_outcome != NOBODY:
                _process_outcome(tree, flows, carriers, wires, link[0], samples[0], dispatchers)
                continue
            if tree[leaves + flows.size] != service_time(link[0]):
                _enter(tree, leaves + flows.size, service_time(link[0]))
        if tree[1] >= until:
            return True
        # Find the flow with the next event.
        place = 1
        while place < leaves:
            place *= 2
            if tree[place] > tree[place + 1]:
                place += 1
        number = place - leaves
        if number == flows.size:
            serve(link[0])
            continue
        flow, carrier, wire = flows[number], carriers[number], wires[number]
        # Let its transport process the event.
        if flow.stage == ESTABLISHED and tree[place] == flow.next_write + flow.access_delay:
            _open_connection(flow, carrier)
        time = call_for_number(carrier.step, flow, carrier.connection, (wire, link[0], samples[0]))
        # A dispatcher puts in order what its connections have read, and may write to another connection.
        if flow.dispatcher:
            d = dispatchers[flow.dispatcher - 1]
            collect(d, flows[d.leader], flow, samples[0])
            written = dispatch(d, flows, carriers, wires, link[0], samples[0])
            if written >= 0:
                collect(d, flows[d.leader], flows[written], samples[0])
                if written != number:
                    _enter(tree, leaves + written, next_time(flows[written], carriers[written], wires[written]))
                else:
                    time = call_for_number(carrier.next_time, flow, carrier.connection, (wire,))
        _enter(tree, place, at_link(flow, time))
