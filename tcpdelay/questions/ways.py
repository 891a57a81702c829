"""How much to put into one packet: the best packetization interval at a given bitrate.

Into how many pieces to write each packet.

Over how many connections to spread the packets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tcpdelay.models.heuristics import parallel_delay, split_delay
from tcpdelay.models.predict import predict_delay
from tcpdelay.questions.best import CallTarget, Choice, Way, choose, whole_numbers, wire_rate
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack, checked_profile
from tcpdelay.scenario.target import Target

INTERVALS = (0.010, 0.020, 0.030, 0.040, 0.060)
"""Intervals in use for voice [s] (RFC 3551)."""
RTP_HEADER = 14
"""Bytes of RTP, and of framing over TCP (RFC 3550, RFC 4571)."""


def best_interval(
    bitrate: float,
    path: Path,
    stack: Stack,
    target: Target | CallTarget,
    intervals: Sequence[float] = INTERVALS,
    header: int = RTP_HEADER,
    on_progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Return the interval at which data of a constant bitrate is best packed into packets.

    Short intervals mean headers and losses more often, long ones a wait for the packet to fill and fewer duplicate
    acknowledgements. The best is that with the oldest byte the youngest when it is read: the interval, and the target's
    quantile of the delay, together are shortest. Of a call the best score counts, which has the interval in it.

    Parameters
    ----------
    bitrate : float
        The data alone, without headers [bit/s], above 0.
    path : Path
        The path.
    stack : Stack
        The TCP implementation.
    target : Target or CallTarget
        The demand on the delay from write to read, without the interval, as in all predictions; or on a call.
    intervals : sequence of float
        What to choose from [s], each 1e-7 to 60.
    header : int
        Bytes that the application puts before the data of each packet, from 0 on.
    on_progress : callable, optional
        Is told after each interval how many are done, and of how many.

    Returns
    -------
    Choice
        The best interval [s]; the rate on the network of each holds the headers of TCP and IP too.

    Raises
    ------
    ValueError
        If a value is out of its range, or no interval meets the target; the message says what the best is.

    References
    ----------
    RFC 3551, section 4.2 (packetization intervals), RFC 3550 and RFC 4571 (headers).

    Examples
    --------
    >>> found = best_interval(64_000, Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> found.value, found.candidates[1].flow
    (0.06, Flow(packet_size=174, interval=0.02))
    """
    if not 0 < bitrate < float("inf"):
        raise InvalidValueError("bitrate", bitrate, "be a number above 0 bit/s")
    if header != int(header) or header < 0:
        raise InvalidValueError("header", header, "be a whole number of bytes from 0 on")
    if not intervals:
        raise InvalidValueError("intervals", intervals, "hold at least one interval")
    stack = checked_profile(stack)
    flows = [_packed(bitrate, interval, header) for interval in sorted(set(intervals))]
    ways = [
        Way(flow.interval, flow, flow, wire_rate(flow, stack.mss), partial(predict_delay, flow, path, stack))
        for flow in flows
    ]
    return choose("interval", ways, path, stack, target, on_progress)


def _packed(bitrate: float, interval: float, header: int) -> Flow:
    """Return the flow whose packets hold the data of one interval, and a header."""
    if not interval > 0:
        raise InvalidValueError("intervals", interval, "lie above 0 s")
    return Flow(max(1, round(bitrate * interval / 8)) + header, interval)


PIECES = (1, 2, 4)


def best_split(
    flow: Flow,
    path: Path,
    stack: Stack,
    target: Target | CallTarget,
    pieces: Sequence[int] = PIECES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Return the number of pieces to write each packet in, so that it is read soonest.

    Parameters
    ----------
    flow : Flow
        The application's packets.
    path : Path
        The path.
    stack : Stack
        The TCP implementation.
    target : Target or CallTarget
        What is demanded.
    pieces : sequence of int
        What to choose from, each 1 to 64 and at most the bytes of a packet.
    on_progress : callable, optional
        Is told after each number how many are done, and of how many.

    Returns
    -------
    Choice
        The best number; among equals the smallest. Its expected error is that of the chain, not of the approximation
        that `tcpdelay.models.heuristics.split_delay` makes beyond it.

    Raises
    ------
    ValueError
        If a value is out of its range, or no number meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: packet splitting.

    Examples
    --------
    >>> best_split(Flow(1448, 0.020), Path(rtt=0.100, loss=0.01), Stack.linux(), Target(0.2)).value > 1
    True
    """
    stack = checked_profile(stack)
    ways = []
    for number in whole_numbers("pieces", pieces):
        piece = Flow(-(-flow.packet_size // number), flow.interval / number)
        predict = partial(split_delay, flow, path, stack, number)
        ways.append(Way(number, flow, piece, wire_rate(piece, stack.mss), predict))
    return choose("pieces", ways, path, stack, target, on_progress)


CONNECTIONS = (1, 2, 4)


def best_connections(
    flow: Flow,
    path: Path,
    stack: Stack,
    target: Target | CallTarget,
    connections: Sequence[int] = CONNECTIONS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Return the number of connections on which packets in turn are read, in order, soonest.

    Parameters
    ----------
    flow : Flow
        The application's packets.
    path : Path
        The path.
    stack : Stack
        The TCP implementation.
    target : Target or CallTarget
        What is demanded.
    connections : sequence of int
        What to choose from, each 1 to 64.
    on_progress : callable, optional
        Is told after each number how many are done, and of how many.

    Returns
    -------
    Choice
        The best number; among equals the smallest.

    Raises
    ------
    ValueError
        If a value is out of its range, or no number meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: parallel connections.

    Examples
    --------
    >>> best_connections(Flow(1448, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2)).value > 1
    True
    """
    stack = checked_profile(stack)
    ways = []
    for number in whole_numbers("connections", connections):
        share = Flow(flow.packet_size, flow.interval * number)
        predict = partial(parallel_delay, flow, path, stack, number)
        ways.append(Way(number, flow, share, wire_rate(flow, stack.mss), predict))
    return choose("connections", ways, path, stack, target, on_progress)
