"""The packet trace: what happens at the sender, in the order of time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tcpdelay.sim.records import MOST_EVENTS
from tcpdelay.sim.window import in_flight

KINDS = (
    "sent",
    "retransmitted",
    "lost",
    "acknowledged",
    "sacked",
    "recovery",
    "reordering timer",
    "probe",
    "timeout",
    "undone",
)
SENT, SENT_AGAIN, LOST_ON_PATH, ACKNOWLEDGED, NEWLY_SACKED, IN_RECOVERY, REORDERING, PROBE, TIMEOUT, UNDONE = range(10)
PUBLIC_EVENT = np.dtype(
    [("time", np.float64), ("kind", "U16")] + [(name, np.int64) for name in ("start", "end", "cwnd", "in_flight")]
)
MICROSECONDS = 1e6


@njit(cache=True)
def note(c: Any, wire: Any, kind: int, start: int, end: int) -> None:
    """Note an event that concerns the stream from `start` to before `end`, if the trace has begun and is not full."""
    note_at(c, wire, kind, c.now, start, end)


@njit(cache=True)
def note_at(c: Any, wire: Any, kind: int, time: int, start: int, end: int) -> None:
    """Note an event of another time than now."""
    if not c.tracing or c.events >= MOST_EVENTS:
        return
    event = wire.events[c.events]
    event.time, event.kind, event.start, event.end = time, kind, start, end
    event.cwnd, event.in_flight = c.snd_cwnd, in_flight(c)
    c.events += 1


def public_events(events: NDArray[np.void], first_write: int, first_byte: int) -> NDArray[np.void]:
    """Return noted events in seconds and bytes after the first packet that counts, with the kind in words."""
    result = np.empty(events.size, PUBLIC_EVENT)
    result["time"] = (events["time"] - first_write) / MICROSECONDS
    result["kind"] = np.array(KINDS)[events["kind"]]
    for name in ("start", "end"):
        result[name] = events[name] - first_byte
    for name in ("cwnd", "in_flight"):
        result[name] = events[name]
    return result
