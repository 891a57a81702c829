"""How idle time reduces the congestion window (RFC 2861), and the trace of events at the sender."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.congestion.reno import is_window_the_limit
from tcpdelay.sim.records import MOST_EVENTS, OPEN, Connection, WireRecord, in_flight, in_reduction, ticks_now
from tcpdelay.sim.tcp import constants as tcp


@kernel()
def validate_window(c: Connection, limited: bool) -> None:
    """Record whether the window was the limit, and reduce it after idle time (`tcp_cwnd_validate`; RFC 2861).

    The flag is cleared only after all segments that were outstanding when it was set have been acknowledged. Each ACK
    of new data renews the time stamp, so that only a whole retransmission timeout without such an ACK reduces the
    window.
    """
    if c.snd_una >= c.cwnd_usage_seq or limited or (not c.is_cwnd_limited and c.packets_out > c.max_packets_out):
        c.is_cwnd_limited = limited
        c.max_packets_out = c.packets_out
        c.cwnd_usage_seq = c.snd_nxt
    now = ticks_now(c)
    if is_window_the_limit(c):
        c.snd_cwnd_used = 0
        c.snd_cwnd_stamp = now
        return
    c.snd_cwnd_used = max(c.snd_cwnd_used, c.packets_out)
    if c.window_validation and now - c.snd_cwnd_stamp >= c.rto and not control.sets_window(c):
        if c.ca_state == OPEN:
            used = max(c.snd_cwnd_used, tcp.INITIAL_WINDOW)
            if used < c.snd_cwnd:
                c.snd_ssthresh = max(c.snd_ssthresh, (c.snd_cwnd >> 1) + (c.snd_cwnd >> 2))
                c.snd_cwnd = (c.snd_cwnd + used) >> 1
            c.snd_cwnd_used = 0
        c.snd_cwnd_stamp = now


@kernel()
def restart_after_idle(c: Connection) -> None:
    """Halve the window before a write after idle time, once for each timeout that the idle time has lasted.

    It does not fall below the initial window (`tcp_cwnd_restart`; RFC 2861 has one segment there).
    """
    now = ticks_now(c)
    idle = now - c.last_send
    if not c.window_validation or c.packets_out or c.last_send == 0 or idle <= c.rto:
        return
    if control.sets_window(c):
        return
    if not in_reduction(c):
        c.snd_ssthresh = max(c.snd_ssthresh, (c.snd_cwnd >> 1) + (c.snd_cwnd >> 2))
    smallest = min(tcp.INITIAL_WINDOW, c.snd_cwnd)
    idle -= c.rto
    while idle > 0 and c.snd_cwnd > smallest:
        c.snd_cwnd >>= 1
        idle -= c.rto
    c.snd_cwnd = max(c.snd_cwnd, smallest)
    c.snd_cwnd_stamp = now
    c.snd_cwnd_used = 0


# The packet trace: the events at the sender, in the order of time.

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
"""Kinds of events in the packet trace, and their names."""
PUBLIC_EVENT = np.dtype(
    [("time", np.float64), ("kind", "U16")] + [(name, np.int64) for name in ("start", "end", "cwnd", "in_flight")]
)


@kernel()
def note(c: Connection, wire: WireRecord, kind: int, start: int, end: int) -> None:
    """Record an event now that concerns the stream from `start` to before `end`, unless the trace is full or off."""
    if not c.tracing or c.events >= MOST_EVENTS:
        return
    event = wire.events[c.events]
    event.time, event.kind, event.start, event.end = c.now, kind, start, end
    event.cwnd, event.in_flight = c.snd_cwnd, in_flight(c)
    c.events += 1


def public_events(events: NDArray[np.void], first_write: int, first_byte: int) -> NDArray[np.void]:
    """Return recorded events with their kind in words, in seconds and bytes from the first packet that counts."""
    result = np.empty(events.size, PUBLIC_EVENT)
    result["time"] = (events["time"] - first_write) / tcp.SECOND
    result["kind"] = np.array(KINDS)[events["kind"]]
    for name in ("start", "end"):
        result[name] = events[name] - first_byte
    for name in ("cwnd", "in_flight"):
        result[name] = events[name]
    return result
