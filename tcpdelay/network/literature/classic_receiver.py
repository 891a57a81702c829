"""The receivers of the classic TCP: the normal receiver waits for missing segments, the one of TCP-RC forges them.

TCP-RC does not wait for a lost packet. It sends the duplicate acknowledgements that reduce the sender's window, hands a
forged packet to the application, and goes on with the next one.

References
----------
McCreary, Li, Watterson, Lowenthal, "TCP-RC: a receiver-centered TCP protocol for delay-sensitive applications", MMCN
2005.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import MASK, NEVER
from tcpdelay.network.literature.timelined import skip
from tcpdelay.network.records import (
    DISPATCHED,
    TRANSFERS,
    add_return_jitter,
    finish_transfer,
    message_end,
    note_lost,
    note_read,
)

GAPS_WAITED = 3
"""Mean times between two arrivals after which TCP-RC declares a packet missing that later packets have overtaken."""
DUPLICATES = 4
"""Duplicate acknowledgements of a missing packet, after which the sender takes it for lost."""
GAIN = 0.0625
"""Weight of the latest time between two arrivals in their mean."""


@kernel()
def receive(flow: Any, s: Any, wire: Any, samples: Any, number: int, arrival: int) -> None:
    """Process the arrival of a segment: read the segments in order, and acknowledge."""
    while s.forge_at < arrival:
        forge_missing(flow, s, wire, samples)
    in_order = number == s.rcv_nxt == s.highest
    s.highest = max(s.highest, number + 1)
    if number >= s.rcv_nxt and not wire.segments[number & MASK].received:
        wire.segments[number & MASK].received = 1
        flow.arrived[number & MASK] = arrival
        if flow.receiver_forges:
            note_gap(s, arrival)
    skip(flow, s, wire)
    awaited = s.rcv_nxt
    _read(flow, s, wire, samples, arrival)
    if not flow.receiver_forges:
        acknowledge(flow, s, wire, number, arrival, in_order)
        return
    _acknowledge_and_count(flow, s, wire, number, arrival)
    if s.rcv_nxt > awaited or s.forge_at == NEVER:
        set_forging_timer(flow, s, wire, arrival)


@kernel()
def _read(flow: Any, s: Any, wire: Any, samples: Any, now: int) -> None:
    """Read the segments that are in order."""
    while s.rcv_nxt < s.snd_max and wire.segments[s.rcv_nxt & MASK].received:
        last = s.rcv_nxt & MASK
        s.rcv_nxt += 1
        if _ends_message(flow, s):
            note_read(flow, samples, wire.segments[last].sent, flow.arrived[last], now)
            if flow.application == TRANSFERS:
                finish_transfer(flow, now)


@kernel()
def _ends_message(flow: Any, s: Any) -> bool:
    """Return whether the segment that has just been read is the last one of a message."""
    if flow.application == TRANSFERS:
        return bool(s.rcv_nxt == s.written)
    return bool(flow.application != DISPATCHED or s.rcv_nxt == message_end(flow))


@kernel()
def acknowledge(flow: Any, s: Any, wire: Any, number: int, arrival: int, in_order: bool) -> None:
    """Acknowledge a segment that arrives.

    A delayed acknowledgement is queued with the time at which its timer would send it. If another segment arrives
    before that time, the queued acknowledgement is withdrawn: the sender cannot have received it when it sent this
    segment.

    Parameters
    ----------
    flow, s, wire : record
        The flow, its connection, and the segments and acknowledgements in transit.
    number, arrival : int
        The segment and the time of its arrival [us].
    in_order : bool
        Whether it is the next segment in order, and no later segment has arrived before.
    """
    second = flow.ack_held > arrival
    if second:
        s.next_ack -= 1
        flow.last_return = flow.return_before
    flow.ack_held = delay = 0
    if flow.ack_delay and in_order and not second:
        delay = flow.ack_delay
        flow.ack_held = arrival + delay
        flow.return_before = flow.last_return
    acknowledgement = wire.acknowledgements[s.next_ack & MASK]
    acknowledgement.arrival = arrival + delay + flow.return_delay
    acknowledgement.acknowledged = s.rcv_nxt
    acknowledgement.segment = number
    s.next_ack += 1
    add_return_jitter(flow, wire, s.next_ack - 1, s.next_ack)


@kernel()
def note_gap(s: Any, arrival: int) -> None:
    """Update the mean time between two arrivals; the packet has not arrived before."""
    if s.last_arrival >= 0:
        gap = float(arrival - s.last_arrival)
        s.mean_gap = s.mean_gap + GAIN * (gap - s.mean_gap) if s.mean_gap > 0.0 else gap
    s.last_arrival = arrival


@kernel()
def _acknowledge_and_count(flow: Any, s: Any, wire: Any, number: int, time: int) -> None:
    """Acknowledge at once, and count the duplicate acknowledgements of the same packet."""
    s.duplicates = s.duplicates + 1 if s.acknowledged == s.rcv_nxt else 0
    s.acknowledged = s.rcv_nxt
    acknowledge(flow, s, wire, number, time, False)


@kernel()
def set_forging_timer(flow: Any, s: Any, wire: Any, now: int) -> None:
    """Start the timer of TCP-RC if a packet has overtaken the next one; it runs from the first such arrival."""
    s.forge_at = NEVER
    if s.rcv_nxt >= s.highest or s.mean_gap <= 0.0:
        return
    overtaken = NEVER
    for number in range(s.rcv_nxt + 1, s.highest):
        if wire.segments[number & MASK].received:
            overtaken = min(overtaken, flow.arrived[number & MASK])
    s.forge_at = max(overtaken + round(GAPS_WAITED * s.mean_gap), now)


@kernel()
def forge_missing(flow: Any, s: Any, wire: Any, samples: Any) -> None:
    """Declare the next packet missing: hand a forged packet to the application in its place, and read on behind it."""
    now = s.forge_at
    # Complete the duplicate acknowledgements, so that the sender reduces its window.
    missing = s.rcv_nxt
    while s.acknowledged != missing or s.duplicates < DUPLICATES:
        _acknowledge_and_count(flow, s, wire, s.highest - 1, now)
    s.rcv_nxt += 1
    note_lost(flow)
    _read(flow, s, wire, samples, now)
    set_forging_timer(flow, s, wire, now)
