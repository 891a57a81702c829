"""The first retransmission timeout of a Linux kernel, and the flows whose timers fire before their next packet."""

from __future__ import annotations

from tcpdelay.models import tcp
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

MOST_PHASES = 64
"""Largest number of ticks at which a packet may be written. The wheel rounds timers of up to two seconds alike after
as many ticks of 4 ms."""
MICROSECOND = 1e-6
"""Smallest difference between a measured round-trip time and the path's [s]."""
LARGEST_LOSS = 0.2
"""Largest loss at which the sequences of losses of a sparse flow are few enough."""


def timeout_ticks(path: Path, stack: Linux) -> int:
    """Return the first retransmission timeout in ticks (`tcp_set_rto`).

    The kernel keeps its minimum in ticks, rounded up (`tcp_rto_min_us`).

    Examples
    --------
    >>> timeout_ticks(Path(0.010, 0.02), Linux()), timeout_ticks(Path(0.010, 0.02), Linux(rto_min=0.005))
    (53, 5)
    """
    tick = round(tcp.SECOND / stack.hz)
    least = tcp.to_ticks(round(stack.rto_min * tcp.SECOND), tick) * tick
    return tcp.to_ticks(round((path.rtt + MICROSECOND) * tcp.SECOND) + least, tick)


def times_out_before_next(flow: Flow, path: Path, stack: Linux) -> bool:
    """Return whether the timer of a lost packet always fires before the next packet is written.

    Examples
    --------
    >>> [times_out_before_next(Flow(174, interval), Path(0.1, 0.02), Linux()) for interval in (0.2, 0.4)]
    [False, True]
    """
    ticks = timeout_ticks(path, stack)
    latest = max(tcp.wheel_expiry(now, ticks) - now for now in range(MOST_PHASES))
    return latest <= flow.interval * stack.hz


def is_sparse(flow: Flow, path: Path, stack: Linux) -> bool:
    """Return whether the delays of a flow are the sum over the sequences of losses of single packets.

    Examples
    --------
    >>> is_sparse(Flow(174, 0.2), Path(0.1, 0.02), Linux()), is_sparse(Flow(174, 0.4), Path(0.1, 0.02), Linux())
    (False, True)
    """
    in_range = flow.packet_size <= stack.mss and 0 < path.loss <= LARGEST_LOSS
    return in_range and times_out_before_next(flow, path, stack)
