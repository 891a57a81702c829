"""The largest bitrate, packet rate, loss or round-trip time with which a target is met."""

from __future__ import annotations

from collections.abc import Callable

from tcpdelay.models.predict import AnsweredBy
from tcpdelay.questions.edge import Edge, largest
from tcpdelay.questions.quantities import Growth, bitrate_axis, loss_axis, packet_rate_axis, rtt_axis
from tcpdelay.scenario.applications import flow_of, source_of, target_of
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Stack, checked_profile
from tcpdelay.scenario.target import Target


def largest_bitrate(
    flow: Source | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | None = None,
    grow: Growth = "segments",
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest bitrate that meets a target.

    Parameters
    ----------
    flow : Source or str
        The flow, or the name of an application; only its interval is used, or with ``grow="rate"`` only its packet
        size. For any other source, the sizes of the messages are scaled, and their times and kinds do not change
        (`Source.at_bitrate`).
    path : Path
        The path.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    target : Target, optional
        The demand on the delay; by default that of the application, or 95 % within 0.2 s.
    grow : {"segments", "size", "rate"}
        "segments": packets at the flow's interval grow up to one segment; beyond, packets of one segment become more
        frequent (as with ``--app ... --bitrate``). "size": packets at the flow's interval grow without limit. "rate":
        packets of the flow's size become more frequent; only for a `Flow`.
    on_progress : callable, optional
        Called with the number of values tried, and the largest number of values.
    method : {"chain", "simulation", "auto"}
        The model. "auto" is the chain, or the simulator where the chain refuses the scenario or is too large. Each
        simulation has 200 000 messages, or all messages of a source that ends earlier, and the same random numbers.

    Returns
    -------
    Edge
        The bitrate [bit/s], with a tolerance of one percent before packets are rounded to whole bytes.

    Raises
    ------
    ValueError
        If an argument is out of range, or no bitrate meets the target; the message names the best value.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> edge = largest_bitrate(flow, path, Stack.linux(), Target(0.2))
    >>> edge.delay <= 0.2 < edge.delay_beyond, edge.tolerance <= 0.011
    (True, True)
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(bitrate_axis(source, path, stack, grow), stack, target, on_progress, method)


def largest_packet_rate(
    flow: Flow | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest rate of packets of one size that meets a target.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of an application; only its packet size is used.
    path : Path
        The path.
    stack, target, on_progress, method
        As for `largest_bitrate`.

    Returns
    -------
    Edge
        The packet rate [1/s], with a tolerance of one percent.

    Raises
    ------
    ValueError
        If no rate meets the target; the message names the best value.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> edge = largest_packet_rate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> edge.value > 50, edge.at[0].packet_size
    (True, 174)
    """
    flow, stack, target = flow_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(packet_rate_axis(flow, path, stack), stack, target, on_progress, method)


def largest_loss(
    flow: Source | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the largest loss with which a target is met.

    Parameters
    ----------
    flow : Source or str
        The source: a `Flow`, any other source, or the name of an application.
    path : Path
        The path; its loss is not used.
    stack, target, on_progress, method
        As for `largest_bitrate`.

    Returns
    -------
    Edge
        The loss, a fraction, with a relative tolerance of one percent.

    Raises
    ------
    ValueError
        If not even a loss of 1e-6 meets the target; the message names the best value.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> edge = largest_loss(Flow(174, 0.020), Path(rtt=0.100, loss=0), Stack.linux(), Target(0.2))
    >>> 0.05 < edge.value < edge.fails < 0.07, edge.limited_by
    (True, 'delay')
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(loss_axis(source, path), stack, target, on_progress, method)


def largest_rtt(
    flow: Source | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Edge:
    """Return the longest round-trip time with which a target is met.

    Parameters
    ----------
    flow : Source or str
        The source: a `Flow`, any other source, or the name of an application.
    path : Path
        The path. Its round-trip time is only used for the share that a given one-way delay has in it.
    stack, target, on_progress, method
        As for `largest_bitrate`.

    Returns
    -------
    Edge
        The round-trip time [s], with a tolerance of one percent.

    Raises
    ------
    ValueError
        If no round-trip time meets the target; the message names the best value.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> edge = largest_rtt(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2))
    >>> 0.12 < edge.value < edge.fails < 0.15
    True
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    return largest(rtt_axis(source, path), stack, target, on_progress, method)
