"""How much loss a flow can bear at its path's round-trip time."""

from __future__ import annotations

from dataclasses import replace

from tcpdelay.applications import Target
from tcpdelay.inverse.edge import Axis, Edge, largest
from tcpdelay.scenario import Flow, Path, Stack

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
