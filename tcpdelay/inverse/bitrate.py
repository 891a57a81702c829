"""How much can be sent: the largest bitrate and the largest packet rate that meet a target."""

from __future__ import annotations

from typing import Literal, get_args

from tcpdelay.applications import Target
from tcpdelay.inverse.edge import LARGEST_LOAD, Axis, Edge, largest
from tcpdelay.scenario import MAX_PACKET_SIZE, MIN_INTERVAL, Flow, Path, Stack

Growth = Literal["segments", "size", "rate"]

LONGEST_INTERVAL = 1.0
"""Interval up to which a search for a packet rate goes [s]; the chain has been checked up to a tenth of it."""


def at_bitrate(flow: Flow, bitrate: float, mss: int) -> Flow:
    """Return the flow at another bitrate [bit/s]: larger packets up to one segment, more of them beyond.

    Examples
    --------
    >>> at_bitrate(Flow(160, 0.020), 128_000, mss=1448)
    Flow(packet_size=320, interval=0.02)
    """
    size = bitrate * flow.interval / 8
    largest = max(mss, flow.packet_size)
    if size > largest:
        return Flow.from_bitrate(bitrate, largest)
    return Flow(max(1, round(size)), flow.interval)


def bitrate_axis(flow: Flow, path: Path, stack: Stack, grow: Growth = "segments") -> Axis:
    """Return the axis of the bitrate [bit/s].

    Parameters
    ----------
    flow, path, stack
        The scenario.
    grow : {"segments", "size", "rate"}
        What becomes more with the bitrate, as in `largest_bitrate`.

    Returns
    -------
    Axis
        From packets of one byte, or one packet a second, to 200 full segments or such packets per round-trip time.

    Raises
    ------
    ValueError
        If `grow` is none of these.

    Examples
    --------
    >>> axis = bitrate_axis(Flow(160, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), "rate")
    >>> axis.place(128_000)[0]
    Flow(packet_size=160, interval=0.01)
    """
    if grow not in get_args(Growth):
        raise ValueError(f"grow must be one of {', '.join(map(repr, get_args(Growth)))}, got {grow!r}")
    size, interval = flow.packet_size, flow.interval
    mss = int(getattr(stack, "mss", size))
    per_packet = 8 * (size if grow == "rate" else max(mss, size))
    highest = min(LARGEST_LOAD * per_packet / path.rtt, per_packet / MIN_INTERVAL)
    if grow == "rate":
        lowest = per_packet / LONGEST_INTERVAL
        return Axis("bitrate", lambda rate: (Flow.from_bitrate(rate, size), path), lowest, max(lowest, highest))
    lowest = 8 / interval
    if grow == "segments":
        return Axis("bitrate", lambda rate: (at_bitrate(flow, rate, mss), path), lowest, max(lowest, highest))
    highest = max(lowest, min(highest, lowest * MAX_PACKET_SIZE))
    return Axis("bitrate", lambda rate: (Flow(max(1, round(rate * interval / 8)), interval), path), lowest, highest)


def largest_bitrate(flow: Flow, path: Path, stack: Stack, target: Target, grow: Growth = "segments") -> Edge:
    """Return the largest bitrate that meets a target.

    Parameters
    ----------
    flow : Flow
        Its interval counts, and with ``grow="rate"`` its packet size alone; its bitrate does not.
    path : Path
        The path.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.
    grow : {"segments", "size", "rate"}
        Packets at the flow's interval that grow up to one segment, and beyond come more often, as `margins` and
        ``--app ... --bitrate`` have it; packets at that interval of any size; or packets of the flow's size that come
        more often.

    Returns
    -------
    Edge
        The bitrate [bit/s], to one percent or one byte per packet.

    Raises
    ------
    ValueError
        If an argument is out of range, or no bitrate meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> edge = largest_bitrate(flow, path, Stack.linux(), Target(0.2))
    >>> edge.delay <= 0.2 < edge.delay_beyond, edge.tolerance <= 0.01
    (True, True)
    """
    return largest(bitrate_axis(flow, path, stack, grow), stack, target)
