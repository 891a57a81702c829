"""How far a scenario is from the edge of what works: by loss, by round-trip time and by bitrate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tcpdelay.applications import Target
from tcpdelay.chain.linux.parameters import BurstsBeyondChainError
from tcpdelay.chain.model import ChainTooLargeError, DelayModel
from tcpdelay.scenario import MAX_RTT, Flow, Path, Stack

STEPS_PER_DOUBLING = 2
RELATIVE_TOLERANCE = 0.01
LARGEST_LOSS = 0.5
SMALLEST_LOSS = 1e-6
SMALLEST_RTT = 1e-3
LARGEST_SCALE = 64.0
LARGEST_LOAD = 200
"""Packets per round-trip time up to which the search goes; beyond, a single point takes too long for a report."""


@dataclass(frozen=True)
class Margin:
    """The edge of the working region along one quantity.

    Parameters
    ----------
    quantity : str
        What is varied: "loss", "rtt" or "bitrate".
    now : float
        Its value in the scenario [fraction, s, bit/s].
    edge : float or None
        Largest value up to which the target is met, going up from a scenario that meets it, or coming down from one
        that does not; None if none was found.
    at_least : bool
        True where the search ended with the target still met, or where losses come in longer bursts than the chain
        can follow beyond, so that the edge may lie beyond `edge`.
    """

    quantity: str
    now: float
    edge: float | None
    at_least: bool = False


def _edge(
    works: Callable[[float], bool | None], now: float, lowest: float, highest: float
) -> tuple[float | None, bool]:
    """Walk from `now` to where `works` changes, then bisect; return the working side and whether more may work.

    Where the chain has no answer `works` is None: the walk turns there as well, and more may work.
    """
    step = 2 ** (1 / STEPS_PER_DOUBLING)
    inside = now
    found = works(now)
    if found:
        while inside < highest:
            outside = min(inside * step, highest)
            found = works(outside)
            if not found:
                break
            inside = outside
        else:
            return highest, True
    else:
        outside = now
        while True:
            if outside <= lowest:
                return None, False
            inside = max(outside / step, lowest)
            next_found = works(inside)
            if next_found:
                break
            outside, found = inside, next_found
    while outside / inside > 1 + RELATIVE_TOLERANCE:
        middle = math.sqrt(inside * outside)
        middle_found = works(middle)
        if middle_found:
            inside = middle
        else:
            outside, found = middle, middle_found
    return inside, found is None


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


def _highest_bitrate(flow: Flow, path: Path, mss: int) -> float:
    """Bitrate up to which a search goes [bit/s]."""
    full_segments = LARGEST_LOAD * 8 * max(mss, flow.packet_size) / path.rtt
    return max(flow.bitrate, min(full_segments, LARGEST_SCALE * flow.bitrate))


def largest_sustainable_rate(flow: Flow, path: Path, stack: Stack) -> Margin:
    """Return the highest bitrate that TCP carries without a backlog that grows for ever.

    It is where the mean drift of the chain's backlog turns positive, found to one percent. Between it and what is
    comfortable lies a region of long delays: see `tcpdelay.throughput.connection_utilization`.

    Parameters
    ----------
    flow : Flow
        Its packets grow with the bitrate up to one segment; beyond, they become more frequent.
    path, stack
        The rest of the scenario.

    Returns
    -------
    Margin
        The bitrate [bit/s].

    Examples
    --------
    >>> flow, path = Flow(1448, 0.020), Path(rtt=0.100, loss=0.01)
    >>> largest_sustainable_rate(flow, path, Stack.newreno_2008()).edge > flow.bitrate
    True
    """
    mss = getattr(stack, "mss", flow.packet_size)

    def sustainable(bitrate: float) -> bool | None:
        try:
            return DelayModel(at_bitrate(flow, bitrate, mss), path, stack).backlog_drift < 0
        except BurstsBeyondChainError:
            return None

    lowest, highest = flow.bitrate / LARGEST_SCALE, _highest_bitrate(flow, path, mss)
    return Margin("bitrate", flow.bitrate, *_edge(sustainable, flow.bitrate, lowest, highest))


def margins(flow: Flow, path: Path, stack: Stack, target: Target) -> tuple[Margin, Margin, Margin]:
    """Return how far loss, round-trip time and bitrate may go, each with the others unchanged.

    The edge is found to one percent. A given one-way delay keeps its share of the round-trip time.

    Parameters
    ----------
    flow, path, stack, target
        The scenario and the demand on its delay.

    Returns
    -------
    tuple of Margin
        For the loss, the round-trip time and the bitrate.

    Examples
    --------
    >>> loss, rtt, bitrate = margins(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008(), Target(0.2))
    >>> loss.now < loss.edge < 0.1
    True
    """
    share = path.forward_delay / path.rtt

    def meets(flow: Flow, path: Path) -> bool | None:
        try:
            return DelayModel(flow, path, stack).meets(target.limit, target.quantile)
        except ChainTooLargeError:
            # What cannot be computed is not promised.
            return False
        except BurstsBeyondChainError:
            return None

    def with_loss(loss: float) -> bool | None:
        return meets(flow, replace(path, loss=loss))

    def with_rtt(rtt: float) -> bool | None:
        return meets(flow, replace(path, rtt=rtt, one_way_delay=share * rtt))

    def with_bitrate(bitrate: float) -> bool | None:
        return meets(at_bitrate(flow, bitrate, mss), path)

    mss = getattr(stack, "mss", flow.packet_size)
    longest_rtt = max(path.rtt, min(MAX_RTT, LARGEST_LOAD * flow.interval))
    first_loss = max(path.loss, SMALLEST_LOSS)
    return (
        Margin("loss", path.loss, *_edge(with_loss, first_loss, SMALLEST_LOSS, max(LARGEST_LOSS, path.loss))),
        Margin("rtt", path.rtt, *_edge(with_rtt, path.rtt, min(SMALLEST_RTT, path.rtt), longest_rtt)),
        Margin(
            "bitrate",
            flow.bitrate,
            *_edge(with_bitrate, flow.bitrate, flow.bitrate / LARGEST_SCALE, _highest_bitrate(flow, path, mss)),
        ),
    )
