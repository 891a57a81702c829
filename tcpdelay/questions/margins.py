"""The margins of a scenario: the largest loss, round-trip time and bitrate with which its target is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tcpdelay.models.interface import Model
from tcpdelay.models.predict import AnsweredBy, carries, predict
from tcpdelay.questions.quantities import Axis, bitrate_axis, loss_axis, rtt_axis
from tcpdelay.questions.search import RELATIVE_TOLERANCE, Bracket, bracket, edge_of, edges_within_error
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import KnownStack, Linux, Stack, checked_profile
from tcpdelay.scenario.target import Target

LARGEST_RATIO = 64.0
"""Largest ratio between the present bitrate and a bitrate of the search."""
LARGEST_RATIO_OF_SOURCE = 8.0
"""Largest ratio for a source whose rate is not constant: its larger messages take long to simulate."""
SOURCE_TOLERANCE = 0.02
"""Relative tolerance of the margins of a source whose rate is not constant."""
RANGE_TOLERANCE = 0.05
"""Relative tolerance of the ends of the range in which the expected error places an edge."""


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
    within_error : tuple of float or None, optional
        The range in which the expected error of the predictions places the edge: the largest value with which the
        target is met whatever the expected error, and the smallest value with which it is missed whatever the expected
        error, both to 5 %; None for a side without such a value. The range itself is None where it is not computed:
        without an edge, for simulations, and for the TCP of 2008, whose chain has no error against itself.
    """

    quantity: str
    now: float
    edge: float | None
    at_least: bool = False
    within_error: tuple[float | None, float | None] | None = None

    def moved_to(self, edge: float) -> Margin:
        """Return the margin with another edge; the range is extended to it."""
        within = self.within_error
        return replace(self, edge=edge, at_least=False, within_error=within and _around(edge, edge, within))

    def agreeing(self, works: bool, certain: bool) -> Margin:
        """Return a margin whose edge does not contradict a verdict.

        The verdict and the margin can come from two models, which can disagree near the limit. In that case the edge is
        moved to the value in the scenario. If the verdict is certain, `within_error` is cut at this value too.

        Parameters
        ----------
        works : bool
            Whether the target is met in the scenario.
        certain : bool
            Whether `works` is certain, whatever the expected error.
        """
        now, inside = self.now, self.edge is not None and self.edge >= self.now
        moved = self if inside == works else self.moved_to(now)
        if not certain or moved.within_error is None:
            return moved
        low, high = moved.within_error
        if works:
            low = now if low is None else max(low, now)
        else:
            high = now if high is None else min(high, now)
        return replace(moved, within_error=(low, high))


def _margin(quantity: str, now: float, found: Bracket) -> Margin:
    return Margin(quantity, now, found.inside, at_least=found.outside is None or not found.known)


def _around(
    inside: float, outside: float | None, within: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    """Return a range extended to both sides of an edge; each search has a tolerance."""
    low, high = within
    return (
        None if low is None else min(low, inside),
        None if high is None else max(high, inside if outside is None else outside),
    )


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
    scenario: Scenario,
    target: Target,
    model: AnsweredBy | Model = "chain",
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[Margin, ...]:
    """Return the largest loss, round-trip time and bitrate with which a target is met, each with the others unchanged.

    The tolerance of an edge is one percent for a `Flow` and two percent for other sources. The tolerance of the range
    in which the expected error places the edge is 5 %. A given one-way delay keeps its share of the round-trip time. If
    the rate of the source is not constant, another bitrate scales the sizes of its messages, and no times change.

    Parameters
    ----------
    scenario, target
        The scenario, and the demand on the delay.
    model : {"chain"} or Model
        The model, as from `tcpdelay.models.predict.model_to_compare`.
    on_progress : callable, optional
        Called with the number of margins found, and the number of all margins.

    Returns
    -------
    tuple of Margin
        The margins of the loss, the round-trip time and the bitrate. A source that cannot be scaled has no margin of
        the bitrate.

    Examples
    --------
    >>> call = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008())
    >>> loss, rtt, bitrate = margins(call, Target(0.2))
    >>> loss.now < loss.edge < 0.1
    True

    >>> from tcpdelay.models.predict import model_to_compare
    >>> from tcpdelay.scenario.sources.speech import Speech
    >>> speech = Scenario(Speech(174, 0.020), Path(rtt=0.100, loss=0.02))
    >>> loss, *_ = margins(speech, Target(0.2), model_to_compare(speech, "simulation"))
    >>> loss.now < loss.edge
    True
    """
    source, path, stack = scenario.source, scenario.path, scenario.stack
    axes = [(path.loss, loss_axis(source, path)), (path.rtt, rtt_axis(source, path))]
    if isinstance(source, Flow):
        axes.append((source.bitrate, _bitrates(source, path, stack)))
    elif type(source).at_bitrate is not Source.at_bitrate:
        now, ratio = source.mean_bitrate, LARGEST_RATIO_OF_SOURCE
        scaled = Axis("bitrate", lambda bitrate: (source.at_bitrate(bitrate), path), now / ratio, now * ratio)
        axes.append((now, scaled))
    tolerance = RELATIVE_TOLERANCE if isinstance(source, Flow) else SOURCE_TOLERANCE
    found: list[Margin] = []
    for now, axis in axes:
        if on_progress is not None:
            on_progress(len(found), len(axes))
        edge = edge_of(axis, stack, target, max(now, axis.lowest), model, tolerance=tolerance)
        margin = _margin(axis.quantity, now, edge)
        if edge.inside is not None and model == "chain" and isinstance(stack, Linux):
            within = edges_within_error(axis, stack, target, edge.inside, model, RANGE_TOLERANCE)
            margin = replace(margin, within_error=_around(edge.inside, edge.outside, within))
        found.append(margin)
    if on_progress is not None:
        on_progress(len(found), len(axes))
    return tuple(found)
