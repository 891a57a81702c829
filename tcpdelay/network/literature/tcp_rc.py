"""TCP-RC: a receiver that does not wait for a lost packet, but forges one in its place and goes on.

References
----------
McCreary, Li, Watterson, Lowenthal, "TCP-RC: a receiver-centered TCP protocol for delay-sensitive applications", MMCN
2005.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import NEVER, RING
from tcpdelay.network.result import answer

GAPS_WAITED = 3
"""Mean times between two arrivals after which a packet that others have overtaken is declared missing."""
DUPLICATES = 4
"""Duplicate acknowledgements of a missing packet, so that the sender takes it for lost."""
GAIN = 0.0625
"""Weight of the latest gap between two arrivals in their mean."""
_MASK = RING - 1


@kernel()
def note_gap(s: Any, arrival: int) -> None:
    """Note that a packet arrives which had not arrived before."""
    if s.last_arrival >= 0:
        gap = float(arrival - s.last_arrival)
        s.mean_gap = s.mean_gap + GAIN * (gap - s.mean_gap) if s.mean_gap > 0.0 else gap
    s.last_arrival = arrival


@kernel()
def acknowledge(flow: Any, s: Any, wire: Any, number: int, time: int) -> None:
    """Acknowledge at once, and count how often the same has been acknowledged before."""
    s.duplicates = s.duplicates + 1 if s.acknowledged == s.rcv_nxt else 0
    s.acknowledged = s.rcv_nxt
    answer(flow, s, wire, number, time, False)


@kernel()
def set_forging_timer(flow: Any, s: Any, wire: Any, now: int) -> None:
    """Let the timer run if packets have overtaken the next one, from the arrival of the first of them."""
    s.forge_at = NEVER
    if s.rcv_nxt >= s.highest or s.mean_gap <= 0.0:
        return
    overtaken = NEVER
    for number in range(s.rcv_nxt + 1, s.highest):
        if wire.segments[number & _MASK].received:
            overtaken = min(overtaken, flow.arrived[number & _MASK])
    s.forge_at = max(overtaken + round(GAPS_WAITED * s.mean_gap), now)


@kernel()
def declare_missing(flow: Any, s: Any, wire: Any) -> None:
    """Send what lacks of the duplicate acknowledgements for the next packet, and go on behind it."""
    missing = s.rcv_nxt
    while s.acknowledged != missing or s.duplicates < DUPLICATES:
        acknowledge(flow, s, wire, s.highest - 1, s.forge_at)
    s.rcv_nxt += 1
