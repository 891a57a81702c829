"""How much can be sent: the largest bitrate and the largest packet rate that meet a target.

How often packets can be sent: the largest packet rate that meets a target.

How much loss a flow can bear at its path's round-trip time.

How long a round-trip time a flow can bear at its path's loss.

What a path may be like: the largest loss at each round-trip time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from tcpdelay.questions.largest import LARGEST_LOAD, Axis, Edge, largest
from tcpdelay.scenario.fields import InvalidValueError, bounds
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.scenario.target import Target

MAX_RTT = bounds(Path, "rtt")[1]
MIN_INTERVAL = bounds(Flow, "interval")[0]
MAX_PACKET_SIZE = bounds(Flow, "packet_size")[1]
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
        raise InvalidValueError("grow", grow, f"be one of {', '.join(map(repr, get_args(Growth)))}")
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


LARGEST_LOSS = 0.5
SMALLEST_LOSS = 1e-6


def loss_axis(flow: Flow, path: Path) -> Axis:
    """Return the axis of the loss, from 1e-6 to 0.5, or the path's own if that is larger.

    Examples
    --------
    >>> loss_axis(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).place(0.01)[1].loss
    0.01
    """
    highest = max(LARGEST_LOSS, path.loss)
    return Axis("loss", lambda loss: (flow, replace(path, loss=loss)), SMALLEST_LOSS, highest)


def largest_loss(flow: Flow, path: Path, stack: Stack, target: Target) -> Edge:
    """Return the largest loss with which a target is met.

    Parameters
    ----------
    flow : Flow
        The flow.
    path : Path
        Everything but its loss counts.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.

    Returns
    -------
    Edge
        The loss, a fraction, to one percent of it.

    Raises
    ------
    ValueError
        If not even a loss of 1e-6 meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> edge = largest_loss(Flow(174, 0.020), Path(rtt=0.100, loss=0), Stack.linux(), Target(0.2))
    >>> 0.05 < edge.value < edge.fails < 0.07, edge.limited_by
    (True, 'delay')
    """
    return largest(loss_axis(flow, path), stack, target)


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


POINTS = 12
SHORTEST_RTT = 0.010
FARTHEST_SHARE = 0.9
"""Share of the limit that the one-way delay takes at the longest of the round-trip times by default."""


@dataclass(frozen=True)
class Frontier:
    """The edge of the working region in the plane of round-trip time and loss.

    Parameters
    ----------
    rtts : tuple of float
        Round-trip times [s].
    edges : tuple of Edge or None
        The largest loss at each; None where no loss meets the target.
    target : Target
        The demand on the delay.
    """

    rtts: tuple[float, ...]
    edges: tuple[Edge | None, ...]
    target: Target

    @property
    def losses(self) -> tuple[float, ...]:
        """The largest losses, fractions; 0 where even the smallest is too much."""
        return tuple(0.0 if edge is None else edge.value for edge in self.edges)


def loss_rtt_frontier(
    flow: Flow,
    path: Path,
    stack: Stack,
    target: Target,
    rtts: Sequence[float] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Frontier:
    """Return the largest loss that meets a target at each of some round-trip times.

    Parameters
    ----------
    flow : Flow
        The flow.
    path : Path
        Everything but its loss and round-trip time counts; of that, only the share that a given one-way delay has.
    stack : Stack
        The TCP implementation.
    target : Target
        The demand on the delay.
    rtts : sequence of float, optional
        Round-trip times [s], 1e-6 to 60, one at least; by default twelve, from 10 ms to where the network alone takes
        nine tenths of the limit.
    on_progress : callable, optional
        Is told after each round-trip time how many are done, and of how many.

    Returns
    -------
    Frontier
        The losses, each to one percent.

    Raises
    ------
    ValueError
        If a value is out of range, or no loss meets the target at any of the round-trip times.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> path = Path(rtt=0.100, loss=0.02)
    >>> found = loss_rtt_frontier(Flow(174, 0.020), path, Stack.linux(), Target(0.2), rtts=(0.05, 0.1, 0.2, 0.5))
    >>> found.losses[0] > found.losses[1] > found.losses[2] > found.losses[3]
    True
    """
    chosen = _default_rtts(path, target) if rtts is None else tuple(rtts)
    if not chosen:
        raise InvalidValueError("rtts", chosen, "hold at least one round-trip time")
    edges: list[Edge | None] = []
    refusal: ValueError | None = None
    paths = [at_rtt(path, rtt) for rtt in chosen]
    for done, at in enumerate(paths, 1):
        try:
            edges.append(largest_loss(flow, at, stack, target))
        except ValueError as error:
            edges.append(None)
            refusal = refusal or error
        if on_progress is not None:
            on_progress(done, len(chosen))
    if refusal is not None and not any(edges):
        raise refusal
    return Frontier(chosen, tuple(edges), target)


def _default_rtts(path: Path, target: Target) -> tuple[float, ...]:
    """Return round-trip times in equal ratios [s]."""
    share = path.forward_delay / path.rtt
    longest = min(MAX_RTT, FARTHEST_SHARE * target.limit / share if share > 0 else math.inf)
    shortest = min(SHORTEST_RTT, longest / 2)
    return tuple(float(f"{rtt:.3g}") for rtt in np.geomspace(shortest, longest, POINTS))
