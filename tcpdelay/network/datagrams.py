"""UDP: a datagram that arrives is read at once, a datagram that is lost is never sent again."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.network.bottleneck import DROPPED
from tcpdelay.network.records import cross, is_write_due, note_lost, note_read, note_write
from tcpdelay.network.transport import IP_HEADER, UDP_HEADER, Transport

UDP = np.dtype([("unused", np.int64)])
"""UDP keeps no state."""


@kernel()
def next_time(flow: Any, connection: Any, wire: Any) -> int:
    """Return when the application writes next."""
    return int(flow.next_write)


@kernel()
def step(flow: Any, connection: Any, wire: Any, link: Any, samples: Any) -> int:
    """Send the datagram that is due; return when the application writes the next one."""
    now = flow.next_write
    if is_write_due(flow, link):
        note_write(flow, now)
        arrival = cross(flow, link, now, flow.message)
        if arrival == DROPPED:
            note_lost(flow)
        else:
            note_read(flow, samples, now, arrival, arrival)
    return int(flow.next_write)


TRANSPORT = Transport(
    state=UDP,
    header=IP_HEADER + UDP_HEADER,
    features=frozenset({"constant rate", "ecn"}),
    prepare=lambda stack, path, flow, connection, phase: None,
    next_time=next_time,
    step=step,
)
