"""Ways to send the same data: the packetization interval, writes per packet, and connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tcpdelay.models.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.quality.voice import CallTarget
from tcpdelay.questions.best import Choice, Way, best, whole_numbers, wire_rate
from tcpdelay.scenario.applications import flow_of, target_of
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownTcp, Quic, Stack, checked_profile
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target

INTERVALS = (0.010, 0.020, 0.030, 0.040, 0.060)
"""Common packetization intervals of voice [s] (RFC 3551)."""
RTP_HEADER = 14
"""Bytes of the RTP header, and of its framing over TCP (RFC 3550, RFC 4571)."""


def best_interval(
    bitrate: float,
    path: Path,
    stack: Stack | None = None,
    target: Target | CallTarget | None = None,
    intervals: Sequence[float] = INTERVALS,
    header: int = RTP_HEADER,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the best packetization interval for data of a constant bitrate.

    Short intervals mean more headers and more frequent losses. With long intervals, a packet takes longer to fill, and
    fewer duplicate ACKs follow a loss. The best interval has the smallest sum of interval and target quantile of the
    delay: the age of a packet's first byte when it is read. For a call, the best interval has the best score, which
    takes the interval into account.

    Parameters
    ----------
    bitrate : float
        Bit rate of the data without headers [bit/s], above 0.
    path : Path
        The path.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    target : Target or CallTarget, optional
        The demand on the delay from write to read, without the interval; or the demand on a call; by default 95 %
        within 0.2 s.
    intervals : sequence of float
        Candidates [s], each 1e-7 to 60.
    header : int
        Bytes that the application puts before the data of each packet, 0 or more.
    on_progress : callable, optional
        Called after each interval with the number of intervals done and the number of all intervals.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain; all ways are simulated if the chain refuses them, or leaves a verdict open.

    Returns
    -------
    Choice
        The best interval [s]. The wire rates include the headers of TCP and IP.

    Raises
    ------
    ValueError
        If a value is out of its range; or if no interval meets the target, and the message names the best interval.

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
        raise InvalidValueError("intervals", tuple(intervals), "hold at least one interval")
    stack, target = _tcp(stack), Target(DEFAULT_LIMIT) if target is None else target
    flows = [_packed(bitrate, interval, header) for interval in sorted(set(intervals))]
    ways = [Way(flow.interval, flow, flow, wire_rate(flow, stack.mss), lambda delays: delays) for flow in flows]
    return best("interval", ways, path, stack, target, on_progress, method)


def _packed(bitrate: float, interval: float, header: int) -> Flow:
    """Return the flow whose packets hold the data of one interval and a header."""
    if not interval > 0:
        raise InvalidValueError("intervals", interval, "lie above 0 s")
    return Flow(max(1, round(bitrate * interval / 8)) + header, interval)


def _tcp(stack: Stack | None) -> KnownTcp:
    """Return the stack, which must be a TCP: the rates on the network and the joined delays hold for TCP alone."""
    known = checked_profile(stack)
    if isinstance(known, Quic):
        raise InvalidValueError("stack", "Quic", "be a TCP in this question")
    return known


PIECES = (1, 2, 4)
"""Default candidates for the number of writes per packet."""


def best_split(
    flow: Flow | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | CallTarget | None = None,
    pieces: Sequence[int] = PIECES,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the number of writes per packet with the shortest delay.

    Parameters
    ----------
    flow : Flow or str
        The application's packets, or the name of an application in `tcpdelay.scenario.applications`.
    path : Path
        The path.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    target : Target or CallTarget, optional
        The demand on the delay or on the call; by default that of the application, or 95 % within 0.2 s.
    pieces : sequence of int
        Candidates, each from 1 to 64 and at most the packet size in bytes.
    on_progress : callable, optional
        Called after each number with the count of numbers done and the count of all numbers.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain; all ways are simulated if the chain refuses them, or leaves a verdict open.

    Returns
    -------
    Choice
        The best number; the smallest number if several are equally good. The expected error is the error of the chain;
        it does not include the approximation in `tcpdelay.models.heuristics.split_delay`.

    Raises
    ------
    ValueError
        If a value is out of its range; or if no number meets the target, and the message names the best number.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: packet splitting.

    Examples
    --------
    >>> best_split(Flow(1448, 0.020), Path(rtt=0.100, loss=0.01), Stack.linux(), Target(0.2)).value > 1
    True
    """
    demand: Target | CallTarget = target_of(flow) if target is None else target
    flow, stack = flow_of(flow), _tcp(stack)
    ways = []
    for number in whole_numbers("pieces", pieces):
        piece = piece_of(flow, number)
        combined = partial(joined_delay, interval=flow.interval, pieces=number)
        ways.append(Way(number, flow, piece, wire_rate(piece, stack.mss), combined))
    return best("pieces", ways, path, stack, demand, on_progress, method)


CONNECTIONS = (1, 2, 4)
"""Default candidates for the number of connections."""


def best_connections(
    flow: Flow | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | CallTarget | None = None,
    connections: Sequence[int] = CONNECTIONS,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Choice:
    """Return the number of connections with the shortest delay, if they take turns and packets are read in order.

    Parameters
    ----------
    flow : Flow or str
        The application's packets, or the name of an application in `tcpdelay.scenario.applications`.
    path : Path
        The path.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    target : Target or CallTarget, optional
        The demand on the delay or on the call; by default that of the application, or 95 % within 0.2 s.
    connections : sequence of int
        Candidates, each from 1 to 64.
    on_progress : callable, optional
        Called after each number with the count of numbers done and the count of all numbers.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain; all ways are simulated if the chain refuses them, or leaves a verdict open.

    Returns
    -------
    Choice
        The best number; the smallest number if several are equally good.

    Raises
    ------
    ValueError
        If a value is out of its range; or if no number meets the target, and the message names the best number.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: parallel connections.

    Examples
    --------
    >>> best_connections(Flow(1448, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2)).value > 1
    True
    """
    demand: Target | CallTarget = target_of(flow) if target is None else target
    flow, stack = flow_of(flow), _tcp(stack)
    ways = []
    for number in whole_numbers("connections", connections):
        share = share_of(flow, number)
        combined = partial(striped_delay, interval=flow.interval, connections=number)
        ways.append(Way(number, flow, share, wire_rate(flow, stack.mss), combined))
    return best("connections", ways, path, stack, demand, on_progress, method)
