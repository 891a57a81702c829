"""The quantities of a scenario that questions vary: bitrate, packet rate, loss and round-trip time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tcpdelay.scenario.fields import InvalidValueError, bounds
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Stack
from tcpdelay.units import DIGITS, format_fraction, format_rate, format_time

Quantity = Literal["bitrate", "packet rate", "loss", "rtt"]
Growth = Literal["segments", "size", "rate"]

MAX_RTT = bounds(Path, "rtt")[1]
MIN_INTERVAL, MAX_INTERVAL = bounds(Flow, "interval")
MAX_PACKET_SIZE = bounds(Flow, "packet_size")[1]
LARGEST_LOAD = 200
"""Largest number of packets per round-trip time in a search; with more packets, one chain takes too long."""
LONGEST_INTERVAL = 1.0
"""Longest interval in a search for a packet rate [s]; the chain has been checked up to a tenth of this interval."""
SMALLEST_LOSS, LARGEST_LOSS = 1e-6, 0.5
SMALLEST_RTT = 1e-3
"""Ends of a search for a loss, and lower end of a search for a round-trip time [s]."""


def format_packet_rate(rate: float, digits: int = DIGITS) -> str:
    """Return a packet rate [1/s] in words.

    Examples
    --------
    >>> format_packet_rate(50), format_packet_rate(999.7)
    ('50 packets/s', '1000 packets/s')
    """
    decimals = max(digits - len(f"{rate:.0f}"), 0)
    # Three digits of 999.5 and more would be written 1e+03.
    return f"{rate:.{digits}g} packets/s" if rate < 999.5 else f"{rate:.{decimals}f} packets/s"


FORMATS: dict[Quantity, Callable[..., str]] = {
    "bitrate": format_rate,
    "packet rate": format_packet_rate,
    "loss": format_fraction,
    "rtt": format_time,
}
"""Functions that format a value of each quantity."""


@dataclass(frozen=True)
class Axis:
    """A quantity that varies, while all other fields of a scenario keep their values.

    Parameters
    ----------
    quantity : {"bitrate", "packet rate", "loss", "rtt"}
        The quantity that is varied.
    place : callable
        Returns the source and the path that have a given value of the quantity [bit/s, 1/s, fraction, s].
    lowest, highest : float
        Range of a search, above 0.
    """

    quantity: Quantity
    place: Callable[[float], tuple[Source, Path]]
    lowest: float
    highest: float


def average_flow(source: Source) -> Flow:
    """Return the flow with the mean packet size and interval of a source; a `Flow` is its own average.

    The chain answers for such a flow in milliseconds. A search by simulation can therefore begin near the edge.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.video import Video
    >>> average_flow(Video(240_000))
    Flow(packet_size=1000, interval=0.03333333333333333)
    """
    if isinstance(source, Flow):
        return source
    size = min(max(round(source.mean_size), 1), int(MAX_PACKET_SIZE))
    return Flow(size, min(max(source.mean_interval, MIN_INTERVAL), MAX_INTERVAL))


def at_bitrate(flow: Flow, bitrate: float, mss: int) -> Flow:
    """Return the flow at another bitrate [bit/s]: packets grow up to one segment, and then become more frequent.

    Examples
    --------
    >>> at_bitrate(Flow(160, 0.020), 128_000, mss=1448)
    Flow(packet_size=320, interval=0.02)
    """
    largest = max(mss, flow.packet_size)
    if bitrate * flow.interval / 8 > largest:
        return Flow.from_bitrate(bitrate, largest)
    return flow.at_bitrate(bitrate)


def bitrate_axis(flow: Source, path: Path, stack: Stack, grow: Growth = "segments") -> Axis:
    """Return the axis of the bitrate [bit/s].

    Parameters
    ----------
    flow, path, stack
        The scenario; the flow may be any source.
    grow : {"segments", "size", "rate"}
        What grows with the bitrate, as in `tcpdelay.largest_bitrate`.

    Returns
    -------
    Axis
        From packets of one byte to 200 full segments per round-trip time; with "rate", from one packet per second to
        200 packets per round-trip time.

    Raises
    ------
    InvalidValueError
        If `grow` is another word, or "rate" for a source that is no `Flow`, or if the source cannot be scaled.

    Examples
    --------
    >>> axis = bitrate_axis(Flow(160, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), "rate")
    >>> axis.place(128_000)[0]
    Flow(packet_size=160, interval=0.01)
    """
    if grow not in get_args(Growth):
        raise InvalidValueError("grow", grow, f"be one of {', '.join(map(repr, get_args(Growth)))}")
    path = checked_path(path)
    if not isinstance(flow, Flow):
        return _scaled_axis(flow, path, stack, grow)
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
    return Axis("bitrate", lambda rate: (flow.at_bitrate(rate), path), lowest, highest)


def _scaled_axis(source: Source, path: Path, stack: Stack, grow: Growth) -> Axis:
    """Return the axis of the mean bitrate of a source: the sizes of its messages change, and their rate does not."""
    if grow == "rate":
        hint = "the messages of other sources keep their times and grow"
        raise InvalidValueError("grow", grow, "be 'segments' or 'size' unless the source is a Flow", hint)
    # Raises InvalidValueError if the source has no mean bitrate.
    source.scale_to(1.0)
    present = source.mean_bitrate
    lowest, highest = 8 * source.message_rate, LARGEST_LOAD * 8 * getattr(stack, "mss", source.mean_size) / path.rtt
    while lowest < present and not _can_have(source, lowest):
        lowest = min(2 * lowest, present)
    while highest > present and not _can_have(source, highest):
        highest = max(highest / 2, present)
    return Axis("bitrate", lambda rate: (source.at_bitrate(rate), path), lowest, max(lowest, highest))


def _can_have(source: Source, bitrate: float) -> bool:
    """Return whether the parameters of a source allow a bitrate [bit/s]."""
    try:
        source.at_bitrate(bitrate)
    except InvalidValueError:
        return False
    return True


def packet_rate_axis(flow: Flow, path: Path, stack: Stack) -> Axis:
    """Return the axis of the packet rate [1/s], from 1 packet per second to 200 packets per round-trip time.

    Examples
    --------
    >>> packet_rate_axis(Flow(160, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux()).place(100)[0]
    Flow(packet_size=160, interval=0.01)
    """
    bits = 8 * flow.packet_size
    axis = bitrate_axis(flow, path, stack, "rate")
    return Axis("packet rate", lambda rate: axis.place(rate * bits), axis.lowest / bits, axis.highest / bits)


def loss_axis(flow: Source, path: Path) -> Axis:
    """Return the axis of the loss, from 1e-6 to 0.5, or to the path's own loss if that is larger.

    Examples
    --------
    >>> loss_axis(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).place(0.01)[1].loss
    0.01
    """
    highest = max(LARGEST_LOSS, checked_path(path).loss)
    return Axis("loss", lambda loss: (flow, replace(path, loss=loss)), SMALLEST_LOSS, highest)


def at_rtt(path: Path, rtt: float) -> Path:
    """Return the path with another round-trip time [s]; a given one-way delay keeps its share of the round-trip time.

    Examples
    --------
    >>> at_rtt(Path(rtt=0.100, loss=0.02, one_way_delay=0.030), 0.200).forward_delay
    0.06
    """
    if path.one_way_delay is None:
        return replace(path, rtt=rtt)
    return replace(path, rtt=rtt, one_way_delay=min(path.one_way_delay / path.rtt * rtt, rtt))


def rtt_axis(flow: Source, path: Path) -> Axis:
    """Return the axis of the round-trip time [s], from 1 ms to 200 mean intervals of the source, or the path's own.

    Examples
    --------
    >>> rtt_axis(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).highest
    4.0
    """
    longest = max(checked_path(path).rtt, min(MAX_RTT, LARGEST_LOAD * flow.mean_interval))
    return Axis("rtt", lambda rtt: (flow, at_rtt(path, rtt)), min(SMALLEST_RTT, path.rtt), longest)
