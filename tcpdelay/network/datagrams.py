"""UDP: a message is read when enough of its datagrams have arrived; a datagram that is lost is never sent again."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.network.bottleneck import DROPPED, SharedPath
from tcpdelay.network.records import cross, is_write_due, note_lost, note_read, note_write
from tcpdelay.network.stacks import Udp
from tcpdelay.network.transport import IP_HEADER, UDP_HEADER, Transport

DATAGRAMS = np.dtype([(name, np.int64) for name in ("largest_payload", "parity")])
"""Largest payload of a datagram [bytes], and parity datagrams of a message."""


@kernel()
def next_time(flow: Any, connection: Any, wire: Any) -> int:
    """Return when the application writes next."""
    return int(flow.next_write)


@kernel()
def step(flow: Any, connection: Any, wire: Any, link: Any, samples: Any) -> int:
    """Send the message that is due in datagrams; return when the application writes the next message."""
    now = flow.next_write
    if is_write_due(flow, link):
        note_write(flow, now)
        arrived, recovered, rest = 0, DROPPED, flow.message
        required = -(-flow.message // connection.largest_payload)
        for number in range(required + connection.parity):
            # A parity datagram is as large as the largest datagram of the message.
            size = min(rest if number < required else flow.message, connection.largest_payload)
            rest -= size
            arrival = cross(flow, link, now, size)
            if arrival != DROPPED:
                arrived += 1
                if arrived == required:
                    recovered = arrival
        if recovered == DROPPED:
            note_lost(flow)
        else:
            note_read(flow, samples, now, recovered, recovered)
    return int(flow.next_write)


def prepare(stack: Udp, path: SharedPath, flow: Any, connection: Any, phase: int) -> None:
    """Set the fields of a connection."""
    connection.largest_payload, connection.parity = stack.largest_payload, stack.parity


TRANSPORT = Transport(
    state=DATAGRAMS,
    header=IP_HEADER + UDP_HEADER,
    features=frozenset({"constant rate", "messages", "ecn"}),
    prepare=prepare,
    next_time=next_time,
    step=step,
)
