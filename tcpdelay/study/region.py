"""Working regions: delays over ranges of round-trip time and loss, and measured points beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import ArrayLike, NDArray

from tcpdelay import __version__
from tcpdelay.accuracy.errors import WRONG_CALL, expected_error_map, is_beyond_capacity, is_near_capacity
from tcpdelay.accuracy.throughput import utilization_map
from tcpdelay.ask import Answer, Requested
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.declare import ColumnUnitWarning, InvalidValueError, is_number
from tcpdelay.models.predict import AnsweredBy, capacity, carries, model_to_compare
from tcpdelay.models.verdict import Verdict
from tcpdelay.quality.voice import Codec, best_playout_delay, codec_named, voice_mos
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import APPLICATIONS, Scenario, Target, checked_arguments
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.source import Source as MessageSource
from tcpdelay.scenario.stack import Linux, NewReno2008, Quic, Stack, StackName, transport_name
from tcpdelay.store import one_line
from tcpdelay.study.execution import MOST_USEFUL_THREADS, Progress, Results, processors, threads, work_out
from tcpdelay.study.grid import (
    NOT_REFUSED,
    Grid,
    GridWork,
    Meaning,
    Question,
    Variables,
    evaluate,
    labelled,
    losses,
    question,
    round_trip_times,
)
from tcpdelay.study.tables.columns import (
    OUTSIDE,
    PATH,
    QUANTITIES,
    Source,
    find_sources,
    judge_bare,
    read_column,
    reasons,
)
from tcpdelay.study.tables.files import csv_fault

if TYPE_CHECKING:
    import xarray as xr


Beyond = Literal["bound", "exact"]

DEFAULT_CODEC = "g711"
"""The codec of a call if neither a codec nor an application with one is given."""

LARGEST_REGION = 1_000_000
"""Largest number of cells of a region."""
_DELAYS = ("p50", "p95", "p99", "quantile", "mean", "late_fraction", "unplayed", "playout_delay")
CELL = np.dtype(
    [*((name, np.float64) for name in _DELAYS), ("sustainable", np.bool_), ("works", np.bool_), ("accuracy", np.int8)]
)
ACCURACIES = ("exact", "lower_bound", "unsustainable", "not_computed", "estimated")
"""Meaning of the figures of a cell, by number; only simulated cells are "estimated"."""
VERDICTS: tuple[Verdict, ...] = ("fails", "works", "uncertain")
"""Meaning of the verdict of a cell, by number."""
NOT_COMPUTED = ACCURACIES.index("not_computed")
_ACCURACY_OF_STATUS = {"exact": 0, "bound": 1, "not carried": 2, "estimated": 4}
_ERRORS = ("median", "mean", "p90")
CELL_WITH_ERRORS = np.dtype([*CELL.descr, *((f"error_{statistic}", np.float64) for statistic in _ERRORS)])
"""The figures of a cell that is simulated or by the chain of QUIC: `CELL`, and the expected error of the quantile."""
CELL_MESSAGES = 50_000
"""Default number of messages in the simulation of a cell."""
FAR_BEYOND = 2.0
"""Delay of the target's quantile, in multiples of the limit, from which on a row is not followed to higher losses."""


def _fill_cell(
    target: Target, playout_delay: float, best: Codec | None, row: Any, answer: Answer, values: Mapping[str, Any]
) -> None:
    """Write an answer to a cell; with the codec `best`, the playout delay is the delay with the best rating."""
    row["p50"], row["p95"], row["p99"], row["quantile"] = answer.quantiles.tolist()
    row["mean"], (row["late_fraction"], unplayed) = answer.mean, answer.late_fractions.tolist()
    if best is None:
        row["unplayed"], row["playout_delay"] = unplayed, playout_delay
    else:
        call = best_playout_delay(answer.require(), best)
        row["unplayed"], row["playout_delay"] = call.late_fraction, call.playout_delay
    row["sustainable"], row["works"] = answer.sustainable, answer.meets(target)
    row["accuracy"] = _ACCURACY_OF_STATUS[answer.status]
    if row.dtype == CELL_WITH_ERRORS and answer.expected_error is not None:
        for statistic in _ERRORS:
            row[f"error_{statistic}"] = getattr(answer.expected_error, statistic)


@checked_arguments
def working_region(
    flow: MessageSource | str,
    stack: Stack | StackName | None = None,
    *,
    rtt: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    limit: float | None = None,
    quantile: float | None = None,
    target: Target | None = None,
    codec: str | None = "default",
    playout_delay: float | Literal["limit", "best"] = "limit",
    beyond: Beyond = "bound",
    packets: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
) -> xr.Dataset:
    """Predict the delay at every round-trip time and loss of a range, and whether the flow works there.

    Parameters
    ----------
    flow : Source or str
        A `Flow`, any other source, which is simulated, or the name of an application in
        `tcpdelay.scenario.scenario`, which also sets the default limit and quantile.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel.
    rtt : array_like, optional
        Round-trip times [s], ascending; by default 40 from 10 ms to 400 ms. The one-way delay is half of each.
    loss : array_like, optional
        Losses, ascending fractions from 0 to below 1; by default 40 from 0.1 % to 10 %.
    limit : float, optional
        Latest useful arrival [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    target : Target, optional
        Limit and quantile together, in place of the two arguments before.
    codec : str, optional
        Codec of the call that is rated, as in `tcpdelay.quality`. "default" is the codec of the application, and G.711
        without one; with None, no call is rated.
    playout_delay : float or {"limit", "best"}
        Time from write to playout of the call that is rated [s], above 0. "best" is the delay with the best rating in
        each cell, as in `tcpdelay.quality.voice.best_playout_delay`; it takes two to four times as long.
    beyond : {"bound", "exact"}
        How cells that miss the target are computed. With "bound", their delays may be lower bounds: within a narrow
        bound of the backlog, or, beyond a loss at which the quantile exceeds two limits, the delays at that loss.
        "exact" takes at least ten times as long.
    packets : int, optional
        Number of messages in the simulation of each cell, 1000 to 1e9; by default 50 000, or fewer if `max_seconds`
        allow only these. Only for a source that is no `Flow`, and for a QUIC that no chain knows. A cell takes some
        tenths of a second, so that 40 x 40 cells take minutes.
    on_progress : callable, optional
        Called with the number of round-trip times done, and the number of all round-trip times.
    max_seconds : float
        Processor time that the answer for one cell may take [s], 0.01 to 1e6, by an estimate that does not depend on
        the machine. A cell whose chain needs more is too large.
    max_memory : float, optional
        Memory that the chain of one cell may take [bytes], 2**20 to 2**50; by default 1 GiB.

    Returns
    -------
    xarray.Dataset
        Over rtt and loss: p50, p95, p99, the chosen quantile and the mean delay [s], infinite where TCP cannot carry
        the flow; late_fraction at the limit; mos and playout_delay [s] of the call; utilization, sustainable, works,
        verdict; median, mean and 90 % quantile of the expected relative error of the 95th percentile; and accuracy.
        The verdict is fails (0), works (1), or uncertain (2): the expected error of the quantile reaches across the
        limit, or a lower bound of the delay does not decide. The accuracy marks exact cells (0), lower bounds of
        delays, with an upper bound of the score (1), flows that TCP cannot carry (2), chains too large to compute or
        simulations that do not settle (3, all NaN), and simulated cells (4).

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or outside its range.

    Examples
    --------
    >>> region = working_region("voip", rtt=[0.05, 0.15], loss=[0.001, 0.02])
    >>> region.works.values
    array([[ True,  True],
           [ True, False]])
    >>> round(float(region.p95.sel(rtt=0.05, loss=0.02)), 3), region.p95.units
    (0.055, 's')
    """
    asked = question(flow, stack, limit, quantile, max_seconds, max_memory, target)
    rtts, lost = round_trip_times(rtt), losses(loss, allow_zero=True)
    if rtts.size * lost.size > LARGEST_REGION:
        raise ValueError(f"rtt and loss may span at most {LARGEST_REGION} cells, got {rtts.size} x {lost.size}")
    wait = _playout_delay(playout_delay, asked.target.limit)
    codec = usual_codec(flow) if codec == "default" else codec
    rated = None if codec is None else codec_named(codec)
    simulated = asked.simulated
    if packets is not None and not simulated:
        raise InvalidValueError(
            "packets", packets, "be left out for a Flow that the chain answers, which is not simulated"
        )
    cells = _cells(asked, rtts, lost, beyond, wait, rated, packets, on_progress)
    # Importing xarray takes longer than a small region.
    import xarray as xr

    computed = np.where(cells.accuracy == NOT_COMPUTED, np.nan, 1.0)
    variables: dict[str, Any] = {
        name: cells[name].variable for name in CELL.names or () if name not in ("unplayed", "playout_delay", "accuracy")
    }
    utilization = utilization_map(asked.flow, rtts, lost, asked.stack)
    variables["utilization"] = (
        DIMENSIONS,
        utilization,
        Meaning("1", "rate of the flow over the fair TCP rate").attributes,
    )
    meanings = {
        "long_name": "what the delays are",
        "flag_values": np.arange(len(ACCURACIES) if simulated else NOT_COMPUTED + 1, dtype=np.int8),
        "flag_meanings": " ".join(ACCURACIES if simulated else ACCURACIES[: NOT_COMPUTED + 1]),
    }
    variables["accuracy"] = (DIMENSIONS, cells.accuracy.values, meanings)
    if rated is not None:
        when = f"after {wait:g} s" if wait is not None else "when its rating is best"
        name = f"mean opinion score of a call with {codec} that plays out {when}, by the E-model"
        scores = voice_mos(
            np.nan_to_num(cells.playout_delay.values, nan=0.0, posinf=np.inf) + rated.delay,
            np.nan_to_num(cells.unplayed.values, nan=1.0),
            rated,
        )
        variables["mos"] = (DIMENSIONS, scores * computed, Meaning("1", name).attributes)
        variables["playout_delay"] = cells.playout_delay.variable
    errors = _errors(asked, rtts, lost, cells)
    variables["verdict"] = (DIMENSIONS, _verdicts(asked, cells, errors[..., _ERRORS.index("p90")]), _VERDICT_MEANINGS)
    for i, statistic in enumerate(_ERRORS):
        text = f"{statistic} of the expected relative error of the target's quantile"
        variables[f"expected_error_{statistic}"] = (
            DIMENSIONS,
            errors[..., i] * computed,
            Meaning("1", text).attributes,
        )
    return xr.Dataset(
        variables,
        coords={
            "rtt": ("rtt", rtts, Meaning("s", "round-trip time").attributes),
            "loss": ("loss", lost, Meaning("1", "probability that a data segment is lost").attributes),
        },
        attrs=_attributes(asked, codec, playout_delay, beyond),
    )


def usual_codec(flow: MessageSource | str | None) -> str:
    """Return the codec whose calls are rated unless another is named: the application's, or G.711."""
    application = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    return (application.codec if application else None) or DEFAULT_CODEC


def _errors(
    asked: Question, rtts: NDArray[np.float64], lost: NDArray[np.float64], cells: xr.Dataset
) -> NDArray[np.float64]:
    """Return median, mean and 90 % quantile of the expected relative error of each cell."""
    if not isinstance(asked.flow, Flow) or asked.simulated or isinstance(asked.stack, Quic):
        return np.stack([cells[f"error_{statistic}"].values for statistic in _ERRORS], axis=-1)
    carried = cells.sustainable.values
    errors = expected_error_map(asked.flow, rtts, lost, asked.stack, carried, asked.target.quantile).copy()
    near, far_beyond = _by_capacity(asked, rtts, lost, carried)
    errors[near, _ERRORS.index("p90")] = np.maximum(errors[near, _ERRORS.index("p90")], WRONG_CALL)
    errors[far_beyond] = 0.0
    return errors


DIMENSIONS = ("rtt", "loss")
_VERDICT_MEANINGS = {
    "long_name": "whether the target is met, as far as the expected error allows a statement",
    "flag_values": np.arange(len(VERDICTS), dtype=np.int8),
    "flag_meanings": " ".join(VERDICTS),
}


def _verdicts(asked: Question, cells: xr.Dataset, error: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return the number of the verdict on each cell, as `tcpdelay.models.verdict.verdict_of` gives it."""
    latest, known = (
        asked.target.latest,
        np.nan_to_num(error) if not isinstance(asked.stack, NewReno2008) else 0.0 * error,
    )
    works = cells["quantile"].values <= latest * (1 - known)
    fails = (cells["quantile"].values > latest * (1 + known)) & (known < WRONG_CALL)
    fails &= cells.accuracy.values != NOT_COMPUTED
    alone = np.array([Path(rtt, 0.0).forward_delay for rtt in cells["rtt"].values.tolist()])
    # However wrong the chain is, no message arrives earlier than the network lets it.
    fails |= (alone > latest)[:, None]
    return np.select(
        [works, fails], [VERDICTS.index("works"), VERDICTS.index("fails")], VERDICTS.index("uncertain")
    ).astype(np.int8)


def _by_capacity(
    asked: Question, rtts: NDArray[np.float64], losses: NDArray[np.float64], sustainable: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the cells in which the flow's rate is near the capacity, and those in which it is far beyond.

    Near the capacity, the chain may be wrong about whether TCP carries the flow; far beyond, it is not. The capacity
    falls as the loss grows: the cells near it are on both sides of the first loss that TCP does not carry.
    """
    near, far_beyond = np.zeros((2, *sustainable.shape), np.bool_)
    if not isinstance(asked.stack, Linux):
        return near, far_beyond
    for place, rtt in enumerate(rtts.tolist()):

        def share(column: int, rtt: float = rtt) -> float:
            scenario = Scenario(asked.flow, Path(rtt, float(losses[column])), asked.stack)
            return capacity(scenario) / asked.flow.message_rate

        edge = int(np.argmin(sustainable[place])) if not sustainable[place].all() else losses.size
        for column in range(edge - 1, -1, -1):
            near[place, column] = is_near_capacity(share(column))
            if not near[place, column]:
                break
        for column in range(edge, losses.size):
            carried = share(column)
            near[place, column] = is_near_capacity(carried)
            if is_beyond_capacity(carried):
                far_beyond[place, column:] = True
                break
    return near, far_beyond


def _playout_delay(given: float | str, limit: float) -> float | None:
    """Return the time from write to playout [s], or None for the best one."""
    if isinstance(given, str) and given in ("limit", "best"):
        return limit if given == "limit" else None
    if not is_number(given) or not 0 < given < float("inf"):
        raise InvalidValueError("playout_delay", given, "be a number of seconds above 0, 'limit' or 'best'")
    return float(given)


def _cells(
    asked: Question,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    beyond: Beyond,
    playout_delay: float | None,
    rated: Codec | None,
    packets: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> xr.Dataset:
    """Return the figures of `CELL`, or of `CELL_WITH_ERRORS`, at every round-trip time and loss."""
    target = asked.target
    limit, share = target.limit, target.quantile
    best = rated if playout_delay is None else None
    played = limit if playout_delay is None else playout_delay
    requested = Requested(
        (0.5, 0.95, 0.99, share),
        (limit, played),
        beyond,
        target,
        distribution=best is not None,
        max_seconds=asked.max_seconds,
        max_memory=asked.max_memory,
    )
    method: AnsweredBy = "chain"
    if asked.simulated:
        # Raises an error if the stack or the source cannot be simulated.
        model_to_compare(Scenario(asked.flow, Path(float(rtt[0]), float(loss[0])), asked.stack), "simulation")
        from tcpdelay.sim.simulation import packets_within

        assert isinstance(asked.stack, Linux | Quic)
        most = min(CELL_MESSAGES, packets_within(asked.max_seconds, asked.flow, asked.stack))
        requested, method = replace(requested, packets=packets or most), "simulation"
    meanings = {
        "p50": Meaning("s", "median delay"),
        "p95": Meaning("s", "95th percentile of the delay"),
        "p99": Meaning("s", "99th percentile of the delay"),
        "quantile": Meaning("s", f"delay within which a share of {share:g} of the packets arrives"),
        "mean": Meaning("s", "mean delay"),
        "late_fraction": Meaning("1", f"share of the packets later than {limit:g} s"),
        "unplayed": Meaning("1", "share of the packets of the call that are not played"),
        "playout_delay": Meaning("s", "time from write to playout of the call"),
        "sustainable": Meaning(None, "whether TCP can carry the flow at all"),
        "works": Meaning(None, f"whether {share:g} of the packets arrive within {limit:g} s"),
        "accuracy": Meaning(None, "what the delays are"),
    }
    start = Scenario(asked.flow, Path(float(rtt[0]), float(loss[0])), asked.stack, target)
    meanings |= {f"error_{name}": Meaning("1", f"{name} of the expected relative error") for name in _ERRORS}
    of_tcp = method == "chain" and not isinstance(asked.stack, Quic)
    grid = Grid.around(start, rtt=rtt, loss=loss)
    variables = Variables(CELL if of_tcp else CELL_WITH_ERRORS, partial(_fill_cell, target, played, best), meanings)
    if of_tcp and beyond == "bound":
        cells = _by_rows(GridWork(grid, requested, method, variables), FAR_BEYOND * limit, on_progress)
    else:
        workers = threads(min(processors(), MOST_USEFUL_THREADS))
        shown = _by_line(on_progress, loss.size)
        cells = evaluate(grid, requested, workers, method=method, variables=variables, on_progress=shown)
    cells["accuracy"] = cells.accuracy.where(cells.refused == 0, NOT_COMPUTED)
    return cells


@dataclass(frozen=True)
class _RowWork:
    """The cells of a region, a round-trip time after the other, without the cells that miss the target by far."""

    cells: GridWork
    # Delay of the target's quantile [s] from which on a cell's delays are lower bounds of those with higher losses. The
    # mean delay and the share of late packets grow with the loss, and quantiles do, to a relative 1e-5.
    far: float
    refusals: dict[int, str]  # Reasons why cells are refused, by the number of the cell

    @property
    def columns(self) -> int:
        """Number of losses."""
        return self.cells.grid.shape[1]

    @property
    def size(self) -> int:
        """Number of round-trip times."""
        return self.cells.grid.shape[0]

    @property
    def row_type(self) -> np.dtype[np.void]:
        """Type of the results of one round-trip time."""
        return np.dtype([("cells", self.cells.row_type, (self.columns,))])

    def fill(self, row: Any, number: int) -> str:
        """Write the cells of one round-trip time to `row`."""
        cells, column = row["cells"], 0
        while column < self.columns:
            carried = self._fill_cell(cells, number, column)
            column += 1
            if carried and cells["quantile"][column - 1] > self.far:
                end = self._end_of_carried(number, column)
                cells[column:end] = cells[column - 1]
                cells["accuracy"][column:end] = ACCURACIES.index("lower_bound")
                column = end
        return NOT_REFUSED

    def _fill_cell(self, cells: NDArray[np.void], number: int, column: int) -> bool:
        """Write one cell; return whether it has an answer, and TCP carries the flow."""
        place = number * self.columns + column
        if refusal := self.cells.fill(cells[column], place):
            self.refusals[place] = refusal
        return not refusal and bool(cells["sustainable"][column])

    def _end_of_carried(self, number: int, first: int) -> int:
        """Return the end of the columns from `first` on at which TCP carries the flow: its capacity falls with loss."""
        for column in range(self.columns, first, -1):
            values = self.cells.grid.values_at(number * self.columns + column - 1)
            if carries(self.cells.grid.scenario_at(values)):
                return column
        return first


def _by_rows(work: GridWork, far: float, on_progress: Callable[[int, int], None] | None) -> xr.Dataset:
    """Return the cells of a region row by row, with bounds behind cells whose quantile exceeds `far` [s]."""
    rows = _RowWork(work, far, {})
    found, results = work_out(rows, on_progress), Results(work.size, work.row_type)
    results.values, results.refusals = found.values["cells"].reshape(-1), rows.refusals
    return labelled(work, results)


def _by_line(on_progress: Callable[[int, int], None] | None, columns: int) -> Callable[[Progress], None] | None:
    """Return a function that reports progress in round-trip times, each with `columns` losses."""
    if on_progress is None:
        return None
    reported = 0

    def report(progress: Progress) -> None:
        nonlocal reported
        if progress.done // columns > reported:
            reported = progress.done // columns
            on_progress(reported, progress.total // columns)

    return report


def _attributes(asked: Question, codec: str | None, playout_delay: float | str, beyond: Beyond) -> dict[str, Any]:
    """Return the question as attributes that netCDF can hold."""
    what = "a constant-bit-rate flow" if isinstance(asked.flow, Flow) else "the messages of a source"
    return {
        "title": f"Predicted delay, from write to in-order read, of {what} over {transport_name(asked.stack)}",
        "source": f"tcpdelay {__version__}",
        "flow": repr(asked.flow),
        "packet_size": asked.flow.packet_size if isinstance(asked.flow, Flow) else asked.flow.mean_size,
        "interval": asked.flow.mean_interval,
        "stack": repr(asked.stack),
        "limit": asked.target.limit,
        "quantile": asked.target.quantile,
        "codec": codec or "none",
        "playout_delay": playout_delay,
        "beyond": beyond,
        "comment": "delays in s; where accuracy is lower_bound, delays and late fraction are at least what is given",
    }


# Measured points for the charts of regions, read from a file.

SUFFIXES = (".csv", ".parquet")
WORKS, CARRIED = "works", "sustainable"
"""Columns that say whether the target was met, and whether the backlog stayed finite."""


@dataclass(frozen=True)
class Measured:
    """Points at which a flow was measured: arrays of shape (n,)."""

    rtt: NDArray[np.float64]  # Round-trip times [s], 1e-6 to 60
    loss: NDArray[np.float64]  # Fractions above 0 and below 1
    works: NDArray[np.bool_] | None  # Whether the flow worked, if the file has this column
    sustainable: NDArray[np.bool_] | None  # Whether the backlog stayed finite, if the file has this column
    quantiles: dict[float, NDArray[np.float64]]  # Delays [s] by their probability; infinite where none was measured

    def meets(self, target: Target) -> NDArray[np.bool_] | None:
        """Return at which points the flow met the target; None if the file has neither this column nor the quantile."""
        if self.works is not None:
            return self.works
        for share, delays in self.quantiles.items():
            if np.isclose(share, target.quantile, rtol=0, atol=1e-9):
                met: NDArray[np.bool_] = np.array([*map(target.is_met_by, delays.tolist())], np.bool_)
                return met if self.sustainable is None else met & self.sustainable
        return None


def read_measured(path: str | FilePath) -> Measured:
    r"""Read measured points from a CSV or Parquet file with a column `rtt` and a column `loss`.

    Their names may have a unit, such as `rtt_ms` and `loss_percent`; without one, times are in seconds, and losses are
    fractions. Optional columns are `works` and `sustainable`, true or false, and quantiles of the delay [s], such as
    `p95`.

    Parameters
    ----------
    path : str or Path
        A file whose name ends in .csv or .parquet.

    Returns
    -------
    Measured
        The points.

    Raises
    ------
    ValueError
        If the file cannot be read, lacks a column, has no rows, holds a value outside its range, or the unit of a
        column is not stated, and its values look like milliseconds or percent.

    Warns
    -----
    ColumnUnitWarning
        If the unit of a column is not stated, and its values are possible in two units.

    Examples
    --------
    >>> import pathlib
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "calls.csv"
    ...     _ = file.write_text("rtt_ms,loss_percent,p95\n100,2,0.15\n")
    ...     read_measured(file).quantiles
    {0.95: array([0.15])}
    """
    file = FilePath(path)
    table = _table(file)
    for name in sorted({name for name in table.column_names if table.column_names.count(name) > 1}):
        raise ValueError(f"{file.name!r} has several columns {name}")
    try:
        sources = find_sources(table.column_names)
        if table.num_rows == 0:
            raise ValueError("has no rows")
        rtt, loss = (_path_field(table, name, sources[name]) for name in PATH)
        round_trip_times(np.unique(rtt))
    except ValueError as error:
        raise ValueError(f"{file.name!r}: {error}") from None
    outside = ~((loss > 0) & (loss < 1))
    if outside.any():
        raise ValueError(f"{file.name!r}: loss must be fractions above 0 and below 1, got {loss[outside][0]:g}")
    quantiles = {}
    for name in table.column_names:
        share = _share(name)
        if share is not None:
            # A missing quantile means that too few packets arrived.
            quantiles[share] = np.nan_to_num(_numbers(table, name, file.name), nan=np.inf)
    works, carried = (_flags(table, name, file.name) for name in (WORKS, CARRIED))
    return Measured(rtt, loss, works, carried, quantiles)


def _table(file: FilePath) -> pa.Table:
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{str(file)!r} does not end in one of {', '.join(SUFFIXES)}")
    is_csv = file.suffix.lower() == ".csv"
    try:
        table = pa.csv.read_csv(file) if is_csv else pa.parquet.read_table(file)
        # Arrow decodes the names only here.
        _ = table.column_names
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        fault = one_line(error) if isinstance(error, OSError) or not is_csv else csv_fault(file, str(error))
        raise ValueError(f"{str(file)!r} cannot be read: {fault}") from None
    return table


def _share(name: str) -> float | None:
    """Return the probability of the quantile in a column such as `p95` or `p99.9`; None for all other columns."""
    try:
        share = float(name.removeprefix("p")) / 100
    except ValueError:
        return None
    return share if name.startswith("p") and 0 < share < 1 else None


def _path_field(table: pa.Table, name: str, source: Source) -> NDArray[np.float64]:
    """Return the round-trip times [s] or the losses of a table, whose unit is judged as in a table of rows."""
    batch = table.select([source.column]).combine_chunks().to_batches()[0]
    cells = read_column(batch, QUANTITIES[name], source)
    if (faults := cells.faults[(cells.faults != 0) & (cells.faults != OUTSIDE)]).size:
        raise ValueError(reasons(QUANTITIES[name])[faults[0] - 1])
    if not source.unit_given:
        positive = cells.values[cells.values > 0]
        middle = float(np.median(positive)) if positive.size else 0.0
        if advice := judge_bare(name, source.column, middle, True, f"{name}_{{}}"):
            warnings.warn(advice, ColumnUnitWarning, stacklevel=4)
    return cells.values


def _numbers(table: pa.Table, name: str, file: str) -> NDArray[np.float64]:
    try:
        return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)
    except pa.ArrowException:
        raise ValueError(f"{file!r}: column {name} must hold numbers") from None


def _flags(table: pa.Table, name: str, file: str) -> NDArray[np.bool_] | None:
    if name not in table.column_names:
        return None
    try:
        flags = table[name].cast(pa.bool_())
    except pa.ArrowException:
        flags = None
    if flags is None or flags.null_count:
        raise ValueError(f"{file!r}: column {name} must hold true or false")
    return np.asarray(flags.to_numpy(), np.bool_)
