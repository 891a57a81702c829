"""The smallest playout buffer for a given share of late packets or for a call, on one path or in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tcpdelay.accuracy.validity import ValidatedRange, validated_range
from tcpdelay.ask import Answer, Requested
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.declare import InvalidValueError
from tcpdelay.delays import UNKNOWN_ERROR, ExpectedError
from tcpdelay.models.predict import AnsweredBy, predict, supports
from tcpdelay.models.verdict import Verdict, late_range, relative_error, verdict_of
from tcpdelay.quality.experience import require_share, smallest_buffer
from tcpdelay.quality.voice import CallTarget, VoiceQuality, best_playout_delay, voice_mos, voice_quality
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import DEFAULT_LIMIT, Scenario, Target, checked_arguments, flow_of, source_of
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, Stack, StackName, checked_profile
from tcpdelay.study.execution import MOST_USEFUL_THREADS, counts_of, processors, threads
from tcpdelay.study.grid import Grid, Meaning, Variables, evaluate
from tcpdelay.units import format_fraction

if TYPE_CHECKING:
    import xarray as xr


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


@checked_arguments
def playout_for_late_fraction(
    flow: Source | str,
    path: Path,
    stack: Stack | StackName | None,
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
    >>> round(found.late_fraction, 9) <= 0.01 < found.late_beyond, found.fails < found.value
    (True, True)
    """
    require_share("late_fraction", late_fraction)
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


@checked_arguments
def playout_for_call(
    flow: Flow | str,
    path: Path,
    stack: Stack | StackName | None = None,
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


# The playout buffer that a path needs, at every round-trip time and loss of a table.

CellVerdict = Literal[Verdict, "not carried", "no answer"]
"""Verdict on a cell: that on the target, or "not carried" by TCP, or "no answer" of the model."""
CELL_VERDICTS: tuple[CellVerdict, ...] = ("works", "uncertain", "fails", "not carried", "no answer")
MOST_VALUES = 50
"""Largest number of round-trip times, and of losses, in a table."""
_METHODS = ("chain", "simulation")
_ROW = np.dtype([("delay", np.float64), ("error", np.float64), ("verdict", np.int8), ("method", np.int8)])
_MEANINGS = {
    "delay": Meaning("s", "delay within which the target's share of the packets arrives"),
    "error": Meaning("1", "relative error of the delay that nine of ten predictions do not exceed"),
    "verdict": Meaning(None, "number of the verdict"),
    "method": Meaning(None, "number of the model"),
}


@dataclass(frozen=True)
class PlayoutCell:
    """The playout buffer on one path."""

    path: Path
    delay: float  # Target's quantile, write to read [s]; infinite: TCP does not carry the flow, NaN: no answer
    error: float  # Relative error of the delay that nine of ten predictions do not exceed; NaN where it is not known
    verdict: CellVerdict  # Whether the target is met, as far as the error allows a statement
    method: str  # "chain" or "simulation"; an empty text where there is no answer
    outside: tuple[str, ...] = ()  # A sentence for each input outside the checked range of the chain
    refusal: str = ""  # Why there is no answer

    @property
    def buffer(self) -> float:
        """The playout buffer [s]: the delay less the one-way delay of the path."""
        # A delay is at least the one-way delay; only rounding makes it shorter.
        return self.delay if math.isnan(self.delay) else max(self.delay - self.path.forward_delay, 0.0)

    @property
    def buffer_in_rtts(self) -> float:
        """The playout buffer in round-trip times."""
        return self.buffer / self.path.rtt

    @property
    def buffer_error(self) -> float:
        """Error of the playout buffer [s], the same as that of the delay; NaN where it is not known."""
        return self.error * self.delay if math.isfinite(self.delay) else math.nan


@dataclass(frozen=True)
class PlayoutTable:
    """The playout buffers of one source over one stack."""

    scenario: Scenario  # Source, stack and target, with the path of the first cell
    validated: ValidatedRange  # Range in which the chain has been compared with measurements
    # A row for each round-trip time, with a cell for each loss, both ascending.
    rows: tuple[tuple[PlayoutCell, ...], ...]


def playout_table(
    scenario: Scenario,
    rtt: Sequence[float],
    loss: Sequence[float],
    method: AnsweredBy = "auto",
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PlayoutTable:
    """Return the playout buffer at every round-trip time and loss."""
    if scenario.target is None:
        raise InvalidValueError("target", None, "be given")
    for name, values in (("rtt", rtt), ("loss", loss)):
        if not 1 <= len(values) <= MOST_VALUES:
            raise InvalidValueError(name, values, f"have 1 to {MOST_VALUES} values")
    rtts, losses = sorted({*rtt}), sorted({*loss})
    # A value out of its range is the user's mistake, and not a cell without an answer.
    grid = Grid.around(scenario, rtt=rtts, loss=losses)
    paths = [grid.scenario_at(grid.values_at(point)).path for point in range(grid.size)]
    target = scenario.target

    def fill(row: Any, answer: Answer, values: Mapping[str, Any]) -> None:
        carried = answer.require().sustainable
        row["delay"] = answer.require().quantile(target.quantile)
        known = answer.expected_error
        row["error"] = math.nan if known is None else relative_error(answer.scenario.stack, known)
        row["verdict"] = CELL_VERDICTS.index(verdict_of(answer, target) if carried else "not carried")
        row["method"] = _METHODS.index(answer.method)

    found = evaluate(
        grid,
        Requested(target=target, max_seconds=max_seconds, max_memory=max_memory),
        threads(min(processors(), MOST_USEFUL_THREADS)),
        method=method,
        variables=Variables(_ROW, fill, _MEANINGS),
        on_progress=counts_of(on_progress),
    )
    known = validated_range(scenario.stack, type(scenario.source))
    cells = [_cell(found, known, scenario, path, point) for point, path in enumerate(paths)]
    rows = (tuple(cells[start : start + len(losses)]) for start in range(0, len(cells), len(losses)))
    return PlayoutTable(scenario, known, tuple(rows))


def _cell(found: xr.Dataset, known: ValidatedRange, scenario: Scenario, path: Path, point: int) -> PlayoutCell:
    """Return a cell of the grid."""
    delay, error, verdict, method, refused = (
        found[name].values.flat[point] for name in ("delay", "error", "verdict", "method", "refused")
    )
    outside = tuple(known.exceeded_by(scenario.source, path))
    if refused:
        refusal = str(found.refusals.values[refused])
        return PlayoutCell(path, math.nan, math.nan, "no answer", "", outside, refusal)
    return PlayoutCell(path, float(delay), float(error), CELL_VERDICTS[verdict], _METHODS[method], outside)
