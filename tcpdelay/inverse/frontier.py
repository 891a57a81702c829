"""What a path may be like: the largest loss at each round-trip time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tcpdelay.applications import Target
from tcpdelay.inverse.edge import Edge
from tcpdelay.inverse.loss import largest_loss
from tcpdelay.inverse.rtt import at_rtt
from tcpdelay.scenario import MAX_RTT, Flow, Path, Stack

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
        raise ValueError("rtts must hold at least one round-trip time")
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
