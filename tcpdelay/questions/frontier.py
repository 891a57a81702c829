"""The largest loss with which a target is met, at each of several round-trip times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tcpdelay.models.predict import AnsweredBy, model_to_compare
from tcpdelay.questions.edge import Edge, largest_or_none, nothing_meets
from tcpdelay.questions.quantities import MAX_RTT, at_rtt, loss_axis
from tcpdelay.scenario.applications import source_of, target_of
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Stack, checked_profile
from tcpdelay.scenario.target import Target

POINTS = 12
SHORTEST_RTT = 0.010
FARTHEST_SHARE = 0.9
"""One-way delay at the longest default round-trip time, as a share of the limit."""


@dataclass(frozen=True)
class Frontier:
    """The edge of the working region in the plane of round-trip time and loss.

    Parameters
    ----------
    rtts : tuple of float
        Round-trip times [s].
    edges : tuple of Edge or None
        The largest loss at each round-trip time; None where no loss meets the target.
    target : Target
        The demand on the delay.
    """

    rtts: tuple[float, ...]
    edges: tuple[Edge | None, ...]
    target: Target

    @property
    def method(self) -> str:
        """Name of the model that answered: "chain" or "simulation"."""
        return next(edge.method for edge in self.edges if edge is not None)

    @property
    def losses(self) -> tuple[float, ...]:
        """The largest losses, fractions; 0 where no loss meets the target."""
        return tuple(0.0 if edge is None else edge.value for edge in self.edges)


def loss_rtt_frontier(
    flow: Source | str,
    path: Path,
    stack: Stack | None = None,
    target: Target | None = None,
    rtts: Sequence[float] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> Frontier:
    """Return the largest loss that meets a target at each of several round-trip times.

    Parameters
    ----------
    flow : Source or str
        The source: a `Flow`, any other source, or the name of an application.
    path : Path
        The path. Its loss is not used, and its round-trip time only for the share that a given one-way delay has in it.
    stack, target, method
        As for `largest_bitrate`.
    rtts : sequence of float, optional
        Round-trip times [s], 1e-6 to 60, at least one; by default twelve, from 10 ms to the round-trip time whose
        one-way delay is nine tenths of the limit.
    on_progress : callable, optional
        Called after each round-trip time with the number of round-trip times done and the number of all.

    Returns
    -------
    Frontier
        The losses, each with a relative tolerance of one percent.

    Raises
    ------
    ValueError
        If a value is out of range, or no loss meets the target at any of the round-trip times.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", ToN 2010, section V: the working region.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> path = Path(rtt=0.100, loss=0.02)
    >>> found = loss_rtt_frontier(Flow(174, 0.020), path, Stack.linux(), Target(0.2), rtts=(0.05, 0.1, 0.2, 0.5))
    >>> found.losses[0] > found.losses[1] > found.losses[2] > found.losses[3]
    True
    """
    source, stack, target = source_of(flow), checked_profile(stack), target_of(flow, target)
    chosen = _default_rtts(path, target) if rtts is None else tuple(rtts)
    if not chosen:
        raise InvalidValueError("rtts", chosen, "hold at least one round-trip time")
    edges: list[Edge | None] = []
    axes = [loss_axis(source, at_rtt(path, rtt)) for rtt in chosen]
    model = model_to_compare(Scenario(*axes[0].place(axes[0].lowest), stack), method, solved=False)
    for done, axis in enumerate(axes, 1):
        edges.append(largest_or_none(axis, stack, target, model, method))
        if on_progress is not None:
            on_progress(done, len(chosen))
    if not any(edges):
        raise ValueError(nothing_meets(axes[0], stack, target, model))
    return Frontier(chosen, tuple(edges), target)


def _default_rtts(path: Path, target: Target) -> tuple[float, ...]:
    """Return round-trip times in equal ratios [s]."""
    share = checked_path(path).forward_delay / path.rtt
    longest = min(MAX_RTT, FARTHEST_SHARE * target.limit / share if share > 0 else math.inf)
    shortest = min(SHORTEST_RTT, longest / 2)
    return tuple(float(f"{rtt:.3g}") for rtt in np.geomspace(shortest, longest, POINTS))
