"""How long a receiver has to wait: the smallest playout buffer for a share of late packets, or for a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import expected_error
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.validity import validated_range
from tcpdelay.quality.video import smallest_buffer
from tcpdelay.quality.voice import CallTarget, VoiceQuality, best_playout_delay, voice_mos, voice_quality
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, Stack, checked_profile
from tcpdelay.units import format_fraction


@dataclass(frozen=True)
class SmallestBuffer:
    """The smallest playout buffer that does.

    Parameters
    ----------
    value : float
        The buffer, from the write of a packet to its playout [s].
    fails : float or None
        The largest delay below it that occurs [s], which is too short, as is all between; None where the buffer is the
        shortest delay that occurs.
    limited_by : {"late packets", "score", "network"}
        What is wrong with a shorter buffer: too many late packets, too low a score, or that nothing arrives earlier.
    tolerance : float
        0: a buffer is found exactly, as delays are of distinct values.
    late_fraction, late_beyond : float
        Share of late packets with the buffer, and with one a little shorter.
    quality, quality_beyond : VoiceQuality or None
        The call with the buffer, and with that of `fails`; None where no call was asked about.
    flow, path, stack
        The scenario.
    expected_error : ExpectedError
        How far the prediction is probably off.
    """

    value: float
    fails: float | None
    limited_by: Literal["late packets", "score", "network"]
    tolerance: float
    late_fraction: float
    late_beyond: float
    quality: VoiceQuality | None
    quality_beyond: VoiceQuality | None
    flow: Flow
    path: Path
    stack: KnownStack
    expected_error: ExpectedError

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the scenario lies outside the range in which the model has been checked."""
        return tuple(validated_range(self.stack).exceeded_by(self.flow, self.path))


def playout_for_late_fraction(flow: Flow, path: Path, stack: Stack, late_fraction: float) -> SmallestBuffer:
    """Return the smallest playout buffer with which no more than a given share of the packets is late.

    Parameters
    ----------
    flow, path, stack
        The scenario.
    late_fraction : float
        Largest share of late packets, from 0 to below 1.

    Returns
    -------
    SmallestBuffer
        The buffer [s].

    Raises
    ------
    ValueError
        If the share is out of its range, or TCP cannot carry the flow, so that all packets are late in the end.

    Examples
    --------
    >>> found = playout_for_late_fraction(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), 0.01)
    >>> found.late_fraction <= 0.01 < found.late_beyond, found.fails < found.value
    (True, True)
    """
    stack = checked_profile(stack)
    distribution = _carried(flow, path, stack, f"a late fraction of {format_fraction(late_fraction)}")
    value = smallest_buffer(distribution, late_fraction)
    if value == np.inf:
        raise ValueError(
            f"no playout buffer has a late fraction of {format_fraction(late_fraction)} or less: "
            f"at best, {format_fraction(distribution.late_fraction(1e9))} are late"
        )
    return _answer(distribution, value, None, flow, path, stack)


def playout_for_call(flow: Flow, path: Path, stack: Stack, target: CallTarget | None = None) -> SmallestBuffer:
    """Return the smallest playout buffer with which a call has a given score, or the best it can have.

    Parameters
    ----------
    flow, path, stack
        The scenario; the flow's interval is also that of the codec's packets.
    target : CallTarget, optional
        Codec and least score; by default the best score of G.711.

    Returns
    -------
    SmallestBuffer
        The buffer [s].

    Raises
    ------
    ValueError
        If TCP cannot carry the flow, or no buffer gives the score; the message says what the best is.

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
    stack, target = checked_profile(stack), target or CallTarget()
    codec = target.codec_of(flow.interval)
    distribution = _carried(flow, path, stack, "a call")
    best = best_playout_delay(distribution, codec)
    if target.mos is None:
        return _answer(distribution, best.playout_delay, target, flow, path, stack)
    if best.mos < target.mos:
        raise ValueError(
            f"no playout buffer gives a score of {target.mos:g}: at best, with {1e3 * best.playout_delay:.3g} ms, "
            f"it is {best.mos:.2f}"
        )
    buffers = distribution.values[np.isfinite(distribution.values)]
    scores = voice_mos(buffers + codec.delay, distribution.late_fraction(buffers), codec)
    return _answer(distribution, float(buffers[np.argmax(scores >= target.mos)]), target, flow, path, stack)


def _carried(flow: Flow, path: Path, stack: Stack, wanted: str) -> DelayDistribution:
    """Return the prediction, if TCP can carry the flow."""
    distribution = DelayModel(flow, path, stack).delay_distribution()
    if not distribution.sustainable:
        raise ValueError(f"no playout buffer does for {wanted}: TCP cannot carry this flow, and all packets come late")
    return distribution


def _answer(
    distribution: DelayDistribution, value: float, target: CallTarget | None, flow: Flow, path: Path, stack: KnownStack
) -> SmallestBuffer:
    """Return the answer for a buffer that is one of the delays that occur."""
    place = int(np.searchsorted(distribution.values, value))
    fails = None if place == 0 else float(distribution.values[place - 1])
    quality = beyond = None
    if target is not None:
        codec = target.codec_of(flow.interval)
        quality = voice_quality(distribution, codec, value)
        beyond = None if fails is None else voice_quality(distribution, codec, fails)
    reason: Literal["late packets", "score"] = "late packets" if target is None else "score"
    return SmallestBuffer(
        value=value,
        fails=fails,
        limited_by="network" if fails is None else reason,
        tolerance=0.0,
        late_fraction=distribution.late_fraction(value),
        late_beyond=1.0 if fails is None else distribution.late_fraction(fails),
        quality=quality,
        quality_beyond=beyond,
        flow=flow,
        path=path,
        stack=stack,
        expected_error=expected_error(flow, path, stack),
    )
