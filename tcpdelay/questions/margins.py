"""How far a scenario is from the edge of what works: by loss, by round-trip time and by bitrate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import UnsupportedError
from tcpdelay.questions.largest import Axis
from tcpdelay.questions.quantities import SMALLEST_LOSS, bitrate_axis, loss_axis, rtt_axis
from tcpdelay.questions.search import Bracket, bracket
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.scenario.target import Target

LARGEST_SCALE = 64.0


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


def _margin(quantity: str, now: float, found: Bracket) -> Margin:
    return Margin(quantity, now, found.inside, at_least=found.outside is None or not found.known)


def _bitrates(flow: Flow, path: Path, stack: Stack) -> Axis:
    """Return the axis of the bitrate, as far as it is of interest from the present one."""
    axis = bitrate_axis(flow, path, stack)
    highest = max(flow.bitrate, min(axis.highest, LARGEST_SCALE * flow.bitrate))
    return replace(axis, lowest=flow.bitrate / LARGEST_SCALE, highest=highest)


def largest_sustainable_rate(flow: Flow, path: Path, stack: Stack) -> Margin:
    """Return the highest bitrate that TCP carries without a backlog that grows for ever.

    It is where the mean drift of the chain's backlog turns positive, found to one percent. Between it and what is
    comfortable lies a region of long delays: see `tcpdelay.models.throughput.connection_utilization`.

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
    axis = _bitrates(flow, path, stack)

    def sustainable(bitrate: float) -> bool | None:
        try:
            return DelayModel(*axis.place(bitrate), stack).backlog_drift < 0
        except UnsupportedError:
            return None

    found = bracket(sustainable, flow.bitrate, axis.lowest, axis.highest)
    return _margin("bitrate", flow.bitrate, found)


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
    first_loss = max(path.loss, SMALLEST_LOSS)
    return (
        _margin("loss", path.loss, loss_axis(flow, path).search(stack, target, first_loss)),
        _margin("rtt", path.rtt, rtt_axis(flow, path).search(stack, target, path.rtt)),
        _margin("bitrate", flow.bitrate, _bitrates(flow, path, stack).search(stack, target, flow.bitrate)),
    )
