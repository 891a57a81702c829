"""The margins of a scenario: the largest loss, round-trip time and bitrate with which its target is met."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tcpdelay.models.interface import Model
from tcpdelay.models.predict import AnsweredBy, carries, predict
from tcpdelay.questions.quantities import SMALLEST_LOSS, Axis, bitrate_axis, loss_axis, rtt_axis
from tcpdelay.questions.search import Bracket, bracket, edge_of
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, Stack, checked_profile
from tcpdelay.scenario.target import Target

LARGEST_RATIO = 64.0
"""Largest ratio between the present bitrate and a bitrate of the search."""


@dataclass(frozen=True)
class Margin:
    """The edge of the working region along one quantity.

    Parameters
    ----------
    quantity : str
        The quantity that is varied: "loss", "rtt" or "bitrate".
    now : float
        The value in the scenario [fraction, s, bit/s].
    edge : float or None
        Largest value found with which the target is met. The search goes up if the scenario meets the target, and down
        if it misses the target. None if no value meets the target.
    at_least : bool
        Whether larger values may also meet the target: the search ended at its largest value, or the model refuses
        longer loss bursts.
    """

    quantity: str
    now: float
    edge: float | None
    at_least: bool = False


def _margin(quantity: str, now: float, found: Bracket) -> Margin:
    return Margin(quantity, now, found.inside, at_least=found.outside is None or not found.known)


def _bitrates(flow: Flow, path: Path, stack: KnownStack) -> Axis:
    """Return the axis of the bitrate, limited to bitrates near the present bitrate.

    Packets of several segments are frames: they grow, and their rate stays.
    """
    axis = bitrate_axis(flow, path, stack, "size" if flow.packet_size > stack.mss else "segments")
    highest = max(flow.bitrate, min(axis.highest, LARGEST_RATIO * flow.bitrate))
    return replace(axis, lowest=flow.bitrate / LARGEST_RATIO, highest=highest)


def largest_sustainable_rate(flow: Flow, path: Path, stack: Stack, model: AnsweredBy | Model = "chain") -> Margin:
    """Return the highest bitrate that TCP can carry without a backlog that grows for as long as the flow sends.

    Above this bitrate, the mean drift of the backlog is positive. The tolerance is one percent. At slightly
    lower bitrates, delays are already long: see `tcpdelay.models.throughput.connection_utilization`.

    Parameters
    ----------
    flow : Flow
        The flow. Its packets grow with the bitrate up to one segment; at higher bitrates they become more frequent.
        Packets of several segments only grow.
    path, stack
        The path and the TCP stack.
    model : {"chain"} or Model
        The model, as from `tcpdelay.models.predict.model_to_compare`.

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
    stack = checked_profile(stack)
    axis = _bitrates(flow, path, stack)

    def excess(bitrate: float) -> float | None:
        scenario = Scenario(*axis.place(bitrate), stack)
        # A simulation does not know the capacity.
        carried = carries(scenario) if model == "chain" else predict(scenario, method=model).sustainable
        return None if carried is None else -1.0 if carried else 1.0

    return _margin("bitrate", flow.bitrate, bracket(excess, flow.bitrate, axis.lowest, axis.highest))


def margins(
    flow: Flow, path: Path, stack: Stack, target: Target, model: AnsweredBy | Model = "chain"
) -> tuple[Margin, Margin, Margin]:
    """Return the largest loss, round-trip time and bitrate with which a target is met, each with the others unchanged.

    The tolerance is one percent. A given one-way delay keeps its share of the round-trip time.

    Parameters
    ----------
    flow, path, stack, target
        The scenario, and the demand on the delay.
    model : {"chain"} or Model
        The model, as from `tcpdelay.models.predict.model_to_compare`.

    Returns
    -------
    tuple of Margin
        The margins of the loss, the round-trip time and the bitrate.

    Examples
    --------
    >>> loss, rtt, bitrate = margins(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008(), Target(0.2))
    >>> loss.now < loss.edge < 0.1
    True
    """
    stack = checked_profile(stack)
    first_loss = max(path.loss, SMALLEST_LOSS)
    return (
        _margin("loss", path.loss, edge_of(loss_axis(flow, path), stack, target, first_loss, model)),
        _margin("rtt", path.rtt, edge_of(rtt_axis(flow, path), stack, target, path.rtt, model)),
        _margin("bitrate", flow.bitrate, edge_of(_bitrates(flow, path, stack), stack, target, flow.bitrate, model)),
    )
