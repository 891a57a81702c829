"""The playout buffer that a path needs, at every round-trip time and loss of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tcpdelay.models.budget import MOST_SECONDS
from tcpdelay.models.interface import Answer, Requested
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.models.validity import ValidatedRange, validated_range
from tcpdelay.models.verdict import Verdict, relative_error, verdict_of
from tcpdelay.questions.execution import MOST_USEFUL_THREADS, Progress, processors, threads
from tcpdelay.questions.grid import Grid, Meaning, Variables, evaluate
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario

if TYPE_CHECKING:
    import xarray as xr

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
    """The playout buffer on one path.

    Parameters
    ----------
    path : Path
        The path.
    delay : float
        Delay, from write to read, within which the target's share of the packets arrives [s]; infinite where TCP does
        not carry the flow, NaN where there is no answer.
    error : float
        Relative error of the delay that nine of ten predictions do not exceed; NaN where it is not known.
    verdict : {"works", "uncertain", "fails", "not carried", "no answer"}
        Whether the target is met, as far as the error allows a statement.
    method : {"chain", "simulation", ""}
        The model; an empty text where there is no answer.
    outside : tuple of str
        One sentence for each input outside the range in which the chain has been compared with measurements.
    refusal : str
        Why there is no answer.

    Examples
    --------
    >>> cell = PlayoutCell(Path(rtt=0.100, loss=0.02), 0.14, 0.1, "works", "chain")
    >>> round(cell.buffer, 3), round(cell.buffer_in_rtts, 2), round(cell.buffer_error, 3)
    (0.09, 0.9, 0.014)
    """

    path: Path
    delay: float
    error: float
    verdict: CellVerdict
    method: str
    outside: tuple[str, ...] = ()
    refusal: str = ""

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
    """The playout buffers of one source over one stack.

    Parameters
    ----------
    scenario : Scenario
        Source, stack and target, with the path of the first cell.
    validated : ValidatedRange
        Range in which the chain has been compared with measurements.
    rows : tuple of tuple of PlayoutCell
        A row for each round-trip time, with a cell for each loss, both ascending.
    """

    scenario: Scenario
    validated: ValidatedRange
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
    """Return the playout buffer at every round-trip time and loss.

    Parameters
    ----------
    scenario : Scenario
        Source, stack and target, and the path, whose round-trip time and loss are replaced.
    rtt, loss : sequence of float
        Round-trip times [s] and losses [fraction], 1 to 50 of each.
    method : {"chain", "simulation", "auto"}
        The model of each cell, as for `tcpdelay.predict_delay`.
    max_seconds, max_memory
        Time [s] and memory [bytes] of each cell, as for `tcpdelay.predict_delay`.
    on_progress : callable, optional
        Called with the numbers of finished cells and of all cells.

    Returns
    -------
    PlayoutTable
        The cells, in ascending order.

    Raises
    ------
    ValueError
        If a round-trip time or a loss is out of its range, there are too many of them, or there is no target.

    Examples
    --------
    >>> from tcpdelay.scenario import Flow, Target
    >>> call = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), target=Target(0.200))
    >>> table = playout_table(call, [0.1], [0.001, 0.02], method="chain")
    >>> [round(cell.buffer, 3) for cell in table.rows[0]]
    [0.0, 0.09]
    """
    if scenario.target is None:
        raise InvalidValueError("target", None, "be given")
    for name, values in (("rtt", rtt), ("loss", loss)):
        if not 1 <= len(values) <= MOST_VALUES:
            raise InvalidValueError(name, values, f"have 1 to {MOST_VALUES} values")
    rtts, losses = sorted({*rtt}), sorted({*loss})
    # A value out of its range is the user's mistake, and not a cell without an answer.
    grid = Grid.around(scenario, rtt=rtts, loss=losses)
    paths = [grid.scenario_at(grid.values_at(point)).path for point in range(grid.size)]
    target, (tell, total) = scenario.target, (on_progress, grid.size)

    def report(progress: Progress) -> None:
        if tell is not None:
            tell(progress.done, total)

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
        on_progress=report,
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
