"""The smallest playout buffer for a given share of late packets, or for a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tcpdelay.distribution import UNKNOWN_ERROR, ExpectedError
from tcpdelay.models.interface import Answer, Requested
from tcpdelay.models.predict import AnsweredBy, predict, supports
from tcpdelay.models.validity import validated_range
from tcpdelay.models.verdict import late_range, relative_error
from tcpdelay.quality.video import smallest_buffer
from tcpdelay.quality.voice import CallTarget, VoiceQuality, best_playout_delay, voice_mos, voice_quality
from tcpdelay.scenario.applications import flow_of, source_of
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import KnownStack, Stack, checked_profile
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target
from tcpdelay.units import format_fraction


@dataclass(frozen=True)
class SmallestBuffer:
    """The smallest sufficient playout buffer.

    Parameters
    ----------
    value : float
        The buffer, from the write of a packet to its playout [s].
    fails : float or None
        The largest delay below `value` that occurs [s]. A buffer from `fails` to just below `value` is too short. None
        if `value` is the shortest delay that occurs.
    limited_by : {"late packets", "score", "network"}
        Why a shorter buffer is too short: too many late packets, too low a score, or no packet that arrives earlier.
    tolerance : float
        Always 0: the buffer is exact, because delays have discrete values.
    late_fraction, late_beyond : float
        Share of late packets with the buffer, and with the buffer `fails`, or 1 if that is None.
    late_range : tuple of float
        Smallest and largest share of late packets with the buffer that the expected error of the prediction allows.
    value_range : tuple of float
        Shortest and longest buffer [s] that may be the smallest sufficient one, by the expected error.
    quality, quality_beyond : VoiceQuality or None
        Quality of the call with the buffer, and with the buffer `fails`; None if there is no call.
    flow, path, stack
        The scenario.
    expected_error : ExpectedError
        Expected error of the prediction.
    method : str
        Name of the model: "chain" or "simulation".
    quantile : float or None
        Share of the packets that must be on time; None if a call is rated.
    assumptions : tuple of str
        One sentence for each field of the scenario that the model ignores.
    """

    value: float
    fails: float | None
    limited_by: Literal["late packets", "score", "network"]
    tolerance: float
    late_fraction: float
    late_beyond: float
    late_range: tuple[float, float]
    value_range: tuple[float, float]
    quality: VoiceQuality | None
    quality_beyond: VoiceQuality | None
    flow: Source
    path: Path
    stack: KnownStack
    expected_error: ExpectedError
    method: str
    quantile: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Fields that lie outside the range in which the model has been checked, and fields that it ignores."""
        if not isinstance(self.flow, Flow):
            return self.assumptions
        return (*validated_range(self.stack, method=self.method).exceeded_by(self.flow, self.path), *self.assumptions)


def playout_for_late_fraction(
    flow: Source | str,
    path: Path,
    stack: Stack | None,
    late_fraction: float,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> SmallestBuffer:
    """Return the smallest playout buffer with at most a given share of late packets.

    Parameters
    ----------
    flow, path, stack
        The scenario; the flow may be any source, or the name of an application. None stands for the default stack. The
        delays of a source with messages, such as the frames of a video, are those of whole messages.
    late_fraction : float
        Largest share of late packets, from 0 to below 1.
    on_progress : callable, optional
        Called in a simulation with the number of packets simulated, and the largest number of packets.
    method : {"chain", "simulation", "auto"}
        The model. "auto" simulates where the expected error of the chain allows a larger share of late packets with the
        buffer that the chain finds.

    Returns
    -------
    SmallestBuffer
        The buffer [s].

    Raises
    ------
    ValueError
        If the share is out of its range, or TCP cannot carry the flow.

    Examples
    --------
    >>> found = playout_for_late_fraction(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), 0.01)
    >>> found.late_fraction <= 0.01 < found.late_beyond, found.fails < found.value
    (True, True)
    """
    demand = f"a late fraction of {format_fraction(late_fraction)}"
    scenario = Scenario(source_of(flow), path, checked_profile(stack))
    requested = Requested(on_progress=on_progress)
    if 0 < 1 - late_fraction < 1:
        requested = replace(requested, target=Target(DEFAULT_LIMIT, 1 - late_fraction))
    answer = _carried(scenario, demand, method, requested)
    value = smallest_buffer(answer.require(), late_fraction)
    undecided = method == "auto" and answer.method == "chain" and late_range(answer, value)[1] > late_fraction
    if undecided and not supports(scenario, "simulation").refused:
        answer = _carried(scenario, demand, "simulation", requested)
        value = smallest_buffer(answer.require(), late_fraction)
    distribution = answer.require()
    if value == np.inf:
        raise ValueError(
            f"no playout buffer has a late fraction of {format_fraction(late_fraction)} or less: "
            f"at best, {format_fraction(float(distribution.weights[-1]))} are late"
        )
    return replace(_buffer(answer, value, None), quantile=1 - late_fraction)


def playout_for_call(
    flow: Flow | str,
    path: Path,
    stack: Stack | None = None,
    target: CallTarget | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    method: AnsweredBy = "auto",
) -> SmallestBuffer:
    """Return the smallest playout buffer for a given score of a call, or for its best score.

    Parameters
    ----------
    flow, path, stack
        The scenario; the flow may be the name of an application. The codec sends one packet per interval of the flow.
    target : CallTarget, optional
        Codec and smallest score; by default G.711 with its best score.
    on_progress : callable, optional
        Called in a simulation with the number of packets simulated, and the largest number of packets.
    method : {"chain", "simulation", "auto"}
        The model, as for `tcpdelay.predict`.

    Returns
    -------
    SmallestBuffer
        The buffer [s].

    Raises
    ------
    ValueError
        If TCP cannot carry the flow; or if no buffer gives the score, and the message names the best score.

    References
    ----------
    ITU-T G.107; `tcpdelay.quality.voice`.

    Examples
    --------
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> best = playout_for_call(flow, path, Stack.linux())
    >>> enough = playout_for_call(flow, path, Stack.linux(), CallTarget(mos=3.8))
    >>> enough.value < best.value, enough.quality.mos >= 3.8 > enough.quality_beyond.mos
    (True, True)
    """
    flow, target = flow_of(flow), target or CallTarget()
    codec = target.codec_of(flow.interval)
    scenario = Scenario(flow, path, checked_profile(stack))
    answer = _carried(scenario, "a call", method, Requested(on_progress=on_progress))
    distribution = answer.require()
    best = best_playout_delay(distribution, codec)
    if target.mos is None:
        return _buffer(answer, best.playout_delay, target)
    if not target.is_met_by(best):
        raise ValueError(
            f"no playout buffer gives a score of {target.mos:g}: at best, with {1e3 * best.playout_delay:.3g} ms, "
            f"it is {best.mos:.2f}"
        )
    buffers = distribution.values[np.isfinite(distribution.values)]
    scores = voice_mos(buffers + codec.delay, distribution.late_fraction(buffers), codec)
    return _buffer(answer, float(buffers[np.argmax(scores >= target.mos)]), target)


def _carried(scenario: Scenario, demand: str, method: AnsweredBy, requested: Requested) -> Answer:
    """Return the prediction; raise ValueError if TCP cannot carry the flow."""
    answer = predict(scenario, requested, method)
    if not answer.require().sustainable:
        raise ValueError(
            f"no playout buffer suffices for {demand}: TCP cannot carry this flow, and all packets are late"
        )
    return answer


def _buffer(answer: Answer, value: float, target: CallTarget | None) -> SmallestBuffer:
    """Return the result for a buffer whose length is a delay that occurs."""
    scenario, distribution = answer.scenario, answer.require()
    place = int(np.searchsorted(distribution.values, value))
    fails = None if place == 0 else float(distribution.values[place - 1])
    quality = beyond = None
    if target is not None:
        codec = target.codec_of(scenario.flow.interval)
        quality = voice_quality(distribution, codec, value)
        beyond = None if fails is None else voice_quality(distribution, codec, fails)
    error = relative_error(scenario.stack, answer.expected_error)
    reason: Literal["late packets", "score"] = "late packets" if target is None else "score"
    return SmallestBuffer(
        value=value,
        fails=fails,
        limited_by="network" if fails is None else reason,
        tolerance=0.0,
        late_fraction=distribution.late_fraction(value),
        late_beyond=1.0 if fails is None else distribution.late_fraction(fails),
        late_range=late_range(answer, value),
        value_range=(value / (1 + error), value / (1 - error) if error < 1 else np.inf),
        quality=quality,
        quality_beyond=beyond,
        flow=scenario.source,
        path=scenario.path,
        stack=scenario.stack,
        expected_error=answer.expected_error or UNKNOWN_ERROR,
        method=answer.method,
        assumptions=answer.assumptions,
    )
