"""A simulated connection that advances with a clock, whose writes become known only when they happen."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.simulator.engine import change_path, new_connection, next_event, process_next
from tcpdelay.models.simulator.records import (
    ACKNOWLEDGEMENT,
    EVENT,
    NEVER,
    RING,
    SEGMENT,
    SNAPSHOT,
    TRANSIT,
    WRITTEN_MESSAGE,
)
from tcpdelay.models.simulator.writes import message_record
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Linux

MOST_WRITES = 1 << 12
"""Capacity of the ring of writes; one of them less may wait to be read."""
LIVE_WIRE = np.dtype(
    [
        ("segments", SEGMENT, RING),
        ("snapshots", SNAPSHOT, RING),
        ("acknowledgements", ACKNOWLEDGEMENT, RING),
        ("transit", TRANSIT, RING),
        ("delays", np.int64, (3, MOST_WRITES)),
        ("messages", WRITTEN_MESSAGE, MOST_WRITES),
        ("events", EVENT, 1),
        ("next_double", np.int64),
        ("random_state", np.int64),
    ]
)
"""A record like `WIRE` with shorter rings, because hundreds of connections are in memory; without a packet trace."""
READABLE = np.dtype([("time", np.int64), ("position", np.int64)])
"""A time [us], and the position in the stream up to which the receiver can read from then on [bytes]."""
READABLE_PER_CALL = 512
"""Most changes of the readable position in one call of the compiled code."""


class Progress(NamedTuple):
    """The state of a connection at a time.

    Attributes
    ----------
    readable : list of (int, int)
        Times [us], and positions in the stream up to which the receiver can read from then on [bytes]. Times may lie
        in the future: unless segments can overtake each other, they are known when a segment is sent.
    next_event : int
        Time of the next event [us], `NEVER` if only a write is an event.
    unacknowledged, unsent : int
        Bytes written that are not acknowledged, and that have not been sent yet.
    window : int
        Congestion window [segments].
    unread : int
        Writes whose last byte has not arrived.
    """

    readable: list[tuple[int, int]]
    next_event: int
    unacknowledged: int
    unsent: int
    window: int
    unread: int


class LiveConnection:
    """A simulated connection of Linux, from one write to the next.

    Parameters
    ----------
    path, stack : Path, Linux
        Path and stack.
    seed : int
        Seed of the losses, 0 or more.

    Examples
    --------
    >>> connection = LiveConnection(Path(rtt=0.100, loss=0.0), Linux(), seed=1)
    >>> connection.advance(1_000_000, size=200).readable
    [(1050000, 200)]
    >>> connection.advance(2_000_000).unacknowledged
    0
    """

    def __init__(self, path: Path, stack: Linux, seed: int) -> None:
        self._stack = stack
        self._state, self._wire = new_connection(None, path, stack, seed, wire_type=LIVE_WIRE)
        self._state.scheduled, self._state.next_write = 1, NEVER
        self._readable = records(READABLE_PER_CALL, READABLE)

    def advance(self, now: int, size: int = 0) -> Progress:
        """Advance to a time, and write there.

        Parameters
        ----------
        now : int
            Time since the start of the connection [us], not before the time of an earlier call.
        size : int
            Bytes that are written at this time; none if 0. At most `MOST_WRITES` - 1 writes may be unread.
        """
        readable: list[tuple[int, int]] = []
        while True:
            count, *state = _advance_to(self._state, self._wire.record, self._readable, now, size)
            readable += self._readable[:count].tolist()
            if count < READABLE_PER_CALL:
                return Progress(readable, *map(int, state))
            size = 0

    def change_path(self, path: Path) -> None:
        """Continue on another path, from the time of the last call of `advance` on."""
        change_path(self._state, self._wire, path, self._stack)


@kernel()
def _advance_to(c: Any, wire: Any, readable: Any, now: int, size: int) -> tuple[int, int, int, int, int, int]:
    """Process all events up to a time, at which `size` bytes are written, unless the array `readable` is full before.

    Returns the number of entries in the array, and the fields of `Progress`.
    """
    if size:
        message = message_record(wire, c.messages_known)
        message.written, message.end = now, c.written + size
        c.messages_known += 1
        c.next_write = now
    count = 0
    while count < readable.shape[0] and next_event(c, wire) <= now:
        before = c.rcv_nxt
        process_next(c, wire, 0)
        if c.rcv_nxt > before:
            entry = readable[count]
            # Unless arrivals are deferred, the receiver processes a segment when it is sent.
            entry.time = c.now if c.deferred else c.now + c.one_way_delay
            entry.position = c.rcv_nxt
            count += 1
    unread = c.packets_written - c.packets_read
    return count, next_event(c, wire), c.written - c.snd_una, c.written - c.snd_nxt, c.snd_cwnd, unread
