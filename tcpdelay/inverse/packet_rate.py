"""How often packets can be sent: the largest packet rate that meets a target."""

from __future__ import annotations

from tcpdelay.applications import Target
from tcpdelay.inverse.bitrate import bitrate_axis
from tcpdelay.inverse.edge import Axis, Edge, largest
from tcpdelay.scenario import Flow, Path, Stack


def packet_rate_axis(flow: Flow, path: Path, stack: Stack) -> Axis:
    """Return the axis of the packet rate [1/s]: from one packet a second to 200 per round-trip time.

    Examples
    --------
    >>> packet_rate_axis(Flow(160, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux()).place(100)[0]
    Flow(packet_size=160, interval=0.01)
    """
    bits = 8 * flow.packet_size
    axis = bitrate_axis(flow, path, stack, "rate")
    return Axis("packet rate", lambda rate: axis.place(rate * bits), axis.lowest / bits, axis.highest / bits)


def largest_packet_rate(flow: Flow, path: Path, stack: Stack, target: Target) -> Edge:
    """Return the largest rate of packets of one size that meets a target.

    Parameters
    ----------
    flow : Flow
        Its packet size counts, its interval does not.
    path : Path
        The path.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.

    Returns
    -------
    Edge
        The packet rate [1/s], to one percent.

    Raises
    ------
    ValueError
        If no rate meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> edge = largest_packet_rate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> edge.value > 50, edge.at[0].packet_size
    (True, 174)
    """
    return largest(packet_rate_axis(flow, path, stack), stack, target)
