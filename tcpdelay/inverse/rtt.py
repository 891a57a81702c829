"""How long a round-trip time a flow can bear at its path's loss."""

from __future__ import annotations

from dataclasses import replace

from tcpdelay.applications import Target
from tcpdelay.inverse.edge import LARGEST_LOAD, Axis, Edge, largest
from tcpdelay.scenario import MAX_RTT, Flow, Path, Stack

SMALLEST_RTT = 1e-3


def at_rtt(path: Path, rtt: float) -> Path:
    """Return the path with another round-trip time [s], of which a given one-way delay keeps its share.

    Examples
    --------
    >>> at_rtt(Path(rtt=0.100, loss=0.02, one_way_delay=0.030), 0.200).forward_delay
    0.06
    """
    if path.one_way_delay is None:
        return replace(path, rtt=rtt)
    return replace(path, rtt=rtt, one_way_delay=min(path.one_way_delay / path.rtt * rtt, rtt))


def rtt_axis(flow: Flow, path: Path) -> Axis:
    """Return the axis of the round-trip time [s], from 1 ms to 200 packets of the flow; the path's own lies within.

    Examples
    --------
    >>> rtt_axis(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).highest
    4.0
    """
    longest = max(path.rtt, min(MAX_RTT, LARGEST_LOAD * flow.interval))
    return Axis("rtt", lambda rtt: (flow, at_rtt(path, rtt)), min(SMALLEST_RTT, path.rtt), longest)


def largest_rtt(flow: Flow, path: Path, stack: Stack, target: Target) -> Edge:
    """Return the longest round-trip time with which a target is met.

    Parameters
    ----------
    flow : Flow
        The flow.
    path : Path
        Everything but its round-trip time counts; of that, only the share that a given one-way delay has.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.

    Returns
    -------
    Edge
        The round-trip time [s], to one percent.

    Raises
    ------
    ValueError
        If none meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> edge = largest_rtt(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> 0.12 < edge.value < edge.fails < 0.15
    True
    """
    return largest(rtt_axis(flow, path), stack, target)
