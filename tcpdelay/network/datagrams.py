"""Datagrams: what gets through is read at once, what is lost is lost."""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.network.bottleneck import DROPPED
from tcpdelay.network.records import cross, is_write_due, note_lost, note_read, note_write


@kernel()
def step(flow: Any, link: Any, samples: Any) -> None:
    """Send the datagram that is due; its next time is `flow.next_write`."""
    now = flow.next_write
    if is_write_due(flow, link):
        note_write(flow, now)
        arrival = cross(flow, link, now, flow.message)
        if arrival == DROPPED:
            note_lost(flow)
        else:
            note_read(flow, samples, now, arrival, arrival)
