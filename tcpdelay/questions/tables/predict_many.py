"""The front door for tables: paths, and flows, to predictions.

Surfaces solved before there are rows, so that the first table of a flow is answered at full speed.

A whole table from file to file: read, predicted and written at the same time, and taken up again if interrupted.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tcpdelay import __version__
from tcpdelay.models.validity import ValidityWarning, validated_range
from tcpdelay.questions.region.question import question
from tcpdelay.questions.tables.columns import Source, find_sources, require_one
from tcpdelay.questions.tables.csv_reading import one_line
from tcpdelay.questions.tables.files import (
    ROWS_AT_A_TIME,
    FileFormat,
    OutputError,
    TableWriter,
    chunks,
    reading,
    writing,
)
from tcpdelay.questions.tables.interpolation import LARGEST_LOSS, LARGEST_RTT, SMALLEST_RTT
from tcpdelay.questions.tables.rows import Demand, RowPredictor, WorkingShares
from tcpdelay.questions.tables.surface import WORTH_PREPARING, OnPrepared, load_surface, save_surface, surface_path
from tcpdelay.scenario.applications import application
from tcpdelay.scenario.fields import InvalidValueError, is_number
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

if TYPE_CHECKING:
    import pandas as pd


TABLE_ROWS_AT_A_TIME = 1_000_000
_NOT_FOR_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What NumPy and Arrow raise for cells that fit no column."""


def predict_many(
    table: Any,
    stack: Stack | None = None,
    *,
    flow: Flow | str | None = None,
    threshold: float | None = None,
    quantile: float | None = None,
    columns: Mapping[str, str] | None = None,
    prefix: str = "",
    cached: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Predict the delays of every row of a table.

    Rows are answered from a surface of predictions that is refined where rows fall, and by the chain itself near jumps
    and edges. Each answer is what `predict_delay` says, but for: p50, p95 and p99 within 1 % or one packet interval;
    the mean within 2 % or a tenth of an interval; the late fraction within 5 % or 0.0005 of that for some threshold
    within a sixteenth as far. Cells are tested to 60 % of that at nine points, and so these are no proven bounds:
    how often they are missed has been measured.

    Parameters
    ----------
    table : pyarrow.Table, RecordBatch or RecordBatchReader, pandas.DataFrame, or mapping of str to array_like
        Columns rtt [s] and loss [fraction], and packet_size [bytes] and interval [s] where rows differ in them; other
        units by their ending, such as rtt_ms and loss_percent. All other columns are passed through.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    flow : Flow or str, optional
        Packet size and interval that the table does not have, or the name of one of
        `tcpdelay.scenario.applications`, which brings its threshold and quantile along.
    threshold : float, optional
        Largest delay of any use [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    columns : mapping, optional
        Columns with names of their own, and their units: {"rtt": "ping:ms", "loss": "plr:percent"}.
    prefix : str
        What the names of the added columns begin with.
    cached : bool
        Whether surfaces are taken from, and kept in, the user's cache.
    on_progress : callable, optional
        Called with the number of chains solved, and to be solved, in a step of the work.

    Returns
    -------
    pyarrow.Table, RecordBatch or RecordBatchReader, pandas.DataFrame, or dict of ndarray
        What was given, with the columns p50, p95, p99 and mean [s], late (fraction of the packets later than the
        threshold), works, sustainable, and reason. Rows without a prediction keep their place: their reason says why,
        and the other columns are null, NaN or False. A reader is read as its result is.

    Raises
    ------
    ValueError
        If columns or the flow are missing, or an argument lies outside its range.

    Warns
    -----
    ValidityWarning
        If rows lie outside the range in which the model has been checked; not for a reader.

    Examples
    --------
    >>> answers = predict_many({"rtt_ms": [100, 20, 100], "loss": [0.02, 0.001, 7]}, flow="voip", cached=False)
    >>> answers["p95"].round(3), answers["works"]
    (array([0.14, 0.01, nan]), array([ True,  True, False]))
    >>> print(answers["reason"][2])
    loss must be a fraction from 0 to below 1
    """
    demand = demand_for(flow, stack, threshold, quantile)
    if isinstance(table, pa.RecordBatchReader):
        rows = RowPredictor(demand, find_sources(table.schema.names, columns), prefix, cached)
        schema = rows.schema(table.schema)
        return pa.RecordBatchReader.from_batches(schema, _stream(table, rows, on_progress))
    given = _as_table(table)
    rows = RowPredictor(demand, find_sources(given.schema.names, columns), prefix, cached)
    schema = rows.schema(given.schema)
    batches = given.combine_chunks().to_batches(max_chunksize=TABLE_ROWS_AT_A_TIME)
    predicted = pa.Table.from_batches([rows.predict(batch, on_progress) for batch in batches], schema)
    rows.save()
    if rows.unchecked:
        warnings.warn(unchecked_message(rows.unchecked, given.num_rows), ValidityWarning, stacklevel=2)
    return _like(table, predicted, given.num_columns)


def demand_for(flow: Flow | str | None, stack: Stack | None, threshold: float | None, quantile: float | None) -> Demand:
    """Return what holds for all rows, with the defaults of `predict_many` filled in.

    Examples
    --------
    >>> demand_for("game", None, None, None).target
    Target(limit=0.1, quantile=0.95)
    """
    asked = question(flow if flow is not None else application("voip").flow, stack, threshold, quantile)
    return Demand(None if flow is None else asked.flow, asked.stack, asked.target)


def unchecked_message(rows: int, of: int) -> str:
    """Return the warning for rows outside the range in which the model has been checked."""
    return f"{rows} of {of} rows lie outside the range in which the model has been checked"


def _stream(
    reader: pa.RecordBatchReader, rows: RowPredictor, on_progress: Callable[[int, int], None] | None
) -> Iterator[pa.RecordBatch]:
    try:
        for batch in reader:
            yield rows.predict(batch, on_progress)
    finally:
        rows.save()


def _as_table(table: Any) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if isinstance(table, Mapping):
        columns = {name: _column(name, column) for name, column in table.items()}
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise InvalidValueError("table", sorted(lengths), "have columns of one length")
        return pa.table(columns)
    if _is_data_frame(table):
        try:
            return pa.Table.from_pandas(table)
        except _NOT_FOR_ARROW as error:
            # Arrow's last words name the column.
            raise ValueError(f"table must have columns that Arrow can hold: {_one_line(*error.args[::-1])}") from error
    raise InvalidValueError("table", table, "be of pyarrow, a pandas DataFrame or a mapping of arrays")


def _column(name: Any, given: Any) -> Any:
    """Return a column of a mapping for Arrow."""
    if not isinstance(name, str):
        raise InvalidValueError("table", name, "have columns whose names are texts")
    try:
        array = np.asarray(given)
        column: Any = pa.array(array.tolist() if array.dtype == object else array) if array.ndim == 1 else None
    except _NOT_FOR_ARROW as error:
        raise ValueError(f"table must have columns that Arrow can hold: {_one_line(name, *error.args)}") from error
    if column is None:
        raise InvalidValueError("table", array.shape, f"have columns of one dimension, as {name!r}")
    return column


def _one_line(*texts: Any) -> str:
    return " ".join(": ".join(map(str, texts)).split())


def _is_data_frame(table: Any) -> bool:
    return any(kind.__module__.startswith("pandas") and kind.__name__ == "DataFrame" for kind in type(table).__mro__)


def _like(given: Any, predicted: pa.Table, columns: int) -> Any:
    """Return the answers in the form of what was given."""
    if isinstance(given, pa.Table):
        return predicted
    if isinstance(given, pa.RecordBatch):
        batches = predicted.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], predicted.schema)
    added = predicted.select(range(columns, predicted.num_columns))
    arrays = {name: _array(added.column(name)) for name in added.column_names}
    if isinstance(given, Mapping):
        return {**{name: np.asarray(column) for name, column in given.items()}, **arrays}
    frame: pd.DataFrame = given.assign(**arrays)
    return frame


def _array(column: Any) -> Any:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy()
    return column.to_numpy()


SAVED_EVERY = 30.0
"""Time after which what has been solved is kept [s]."""


class Prepared(NamedTuple):
    """What has been prepared.

    Attributes
    ----------
    left : float
        Share of the region, in the logarithms of round-trip time and loss, whose rows are still solved one by one.
    chains : int
        Chains that the surface holds.
    path : str
        Where it is kept.
    """

    left: float
    chains: int
    path: str


def prepare_surface(
    flow: Flow | str,
    stack: Stack | None = None,
    *,
    threshold: float | None = None,
    quantile: float | None = None,
    rtt: tuple[float, float] | None = None,
    loss: tuple[float, float] | None = None,
    left: float = WORTH_PREPARING,
    on_progress: OnPrepared = None,
) -> Prepared:
    """Solve ahead what `predict_many` interpolates between, over a region of round-trip times and losses.

    The surface goes to the user's cache, from which `predict_many` and `tcpdelay batch` take it for the same flow, TCP
    and target. What an earlier run or table has solved counts; an interrupt keeps what has been solved.

    Parameters
    ----------
    flow : Flow or str
        Packet size and interval, or the name of one of `tcpdelay.scenario.applications`, which brings its target along.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    threshold : float, optional
        Largest delay of any use [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    rtt, loss : tuple of float, optional
        Round-trip times [s], within 1e-4 to 2, and losses, within 0 to 0.5, from and to; by default the range in which
        the model has been checked.
    left : float
        Share of that region, in the logarithms of both, that may be left to be solved row by row, above 0 and below 1.
    on_progress : callable, optional
        Called with the share that is left, and the number of chains solved so far.

    Returns
    -------
    Prepared
        What is left, how many chains the surface holds, and where it is.

    Raises
    ------
    ValueError
        If an argument lies outside its range.
    OSError
        If the surface cannot be kept.

    Examples
    --------
    >>> prepare_surface("voip", rtt=(0.02, 0.021), loss=(0.001, 0.0011), left=0.1).left
    0.0
    """
    asked = question(flow, stack, threshold, quantile)
    known = validated_range(asked.stack)
    rtt = known.rtt if rtt is None else _checked("rtt", rtt, SMALLEST_RTT, LARGEST_RTT, " s")
    loss = known.loss if loss is None else _checked("loss", loss, 0.0, LARGEST_LOSS)
    if not (is_number(left) and 0 < left < 1):
        raise InvalidValueError("left", left, "lie above 0 and below 1")
    surface, path = load_surface(asked), surface_path(asked)

    def keep() -> None:
        if not save_surface(surface):
            raise OSError(f"{path} cannot be written")

    # What cannot be kept is solved for nothing.
    keep()
    saved = time.monotonic()

    def prepared(share: float, chains: int) -> None:
        nonlocal saved
        if time.monotonic() - saved > SAVED_EVERY:
            keep()
            saved = time.monotonic()
        if on_progress is not None:
            on_progress(share, chains)

    try:
        share = surface.prepare(rtt, loss, left, prepared)
    except BaseException:
        save_surface(surface)
        raise
    keep()
    return Prepared(share, len(surface.node_at), str(path))


def _checked(name: str, given: Any, lowest: float, highest: float, unit: str = "") -> tuple[float, float]:
    """Return the two ends of a range."""
    ends = list(given) if np.iterable(given) else [given]
    if len(ends) == 2 and all(map(is_number, ends)) and lowest <= ends[0] < ends[1] <= highest:
        return float(ends[0]), float(ends[1])
    raise InvalidValueError(name, given, f"be a range, from low to high, within {lowest:g} to {highest:g}{unit}")


ROWS_PER_PART = 4 * ROWS_AT_A_TIME
GROWTH = 1.25
"""Growth of a surface between two times at which it is kept while the work goes on."""
QUESTION = "question.json"
"""The file in a folder of parts that says what they answer."""


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Parameters
    ----------
    source : Path
        The table: a file, or a folder of Parquet files.
    source_format : {"parquet", "csv", "arrow"}
        Its format.
    target : Path, optional
        Where the predictions go; without, they are only counted.
    target_format : {"parquet", "csv", "arrow"}
        Their format.
    in_parts : bool
        Whether `target` is a folder that gets one file for every `ROWS_PER_PART` rows, and keeps them if interrupted.
    """

    source: Path
    source_format: FileFormat
    target: Path | None = None
    target_format: FileFormat = "parquet"
    in_parts: bool = False

    def part(self, number: int) -> Path:
        """Return the file of a part; `target` is a folder."""
        return (self.target or Path()) / f"part-{number:06d}.{self.target_format}"

    def writes(self, path: Path) -> bool:
        """Return whether a file is one of those that go into the folder `target`.

        Examples
        --------
        >>> job = Job(Path("users.csv"), "csv", Path("predicted"), in_parts=True)
        >>> job.writes(Path("predicted/part-000007.parquet")), job.writes(Path("predicted/shares.csv"))
        (True, False)
        """
        if not self.in_parts or self.target is None:
            return False
        file = path.resolve()
        is_part = file.name.startswith("part-") and file.suffix == f".{self.target_format}"
        return file.parent == self.target.resolve() and (is_part or file.name == QUESTION)

    def parts_done(self) -> int:
        """Return how many parts there are already."""
        number = 0
        while self.in_parts and self.part(number).exists():
            number += 1
        return number


OnRows = Callable[[int], None]


def run_job(
    job: Job,
    demand: Demand,
    sources: Mapping[str, Source],
    shares: WorkingShares,
    *,
    cached: bool = True,
    on_rows: OnRows | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RowPredictor:
    """Predict a table.

    Parameters
    ----------
    job : Job
        From where to where.
    demand : Demand
        What holds for all rows.
    sources : mapping of str to Source
        Where the quantities are.
    shares : WorkingShares
        Counts the rows that meet the target.
    cached : bool
        Whether surfaces are taken from, and kept in, the user's cache; also if interrupted.
    on_rows : callable, optional
        Called with the number of rows predicted so far.
    on_progress : callable, optional
        Called with the number of chains solved, and to be solved, in a step of the work.

    Returns
    -------
    RowPredictor
        What has predicted, with its counts.

    Raises
    ------
    ValueError
        If the table does not fit, or the folder holds parts of another question.
    OutputError
        If the target cannot be written.
    """
    predictor = RowPredictor(demand, dict(sources), shares.prefix, cached)
    if job.in_parts and job.target is not None:
        with writing(job.target):
            _keep_question(job, job.target, demand, sources, shares.prefix)
    done = 0
    with reading(job.source, job.source_format) as reader:
        schema = predictor.schema(reader.schema)
        missing = [name for name in shares.by if name not in schema.names]
        if missing:
            raise InvalidValueError("group", missing[0], f"be one of {', '.join(reader.schema.names)}")
        for name in shares.by:
            require_one("group", name, schema.names)
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice and job.target is not None and job.target_format == "parquet":
            raise InvalidValueError(
                "output", str(job.target), f"be CSV, as the table has several columns of the name {twice[0]!r}"
            )

        def predicted(batch: pa.RecordBatch) -> pa.RecordBatch:
            nonlocal done
            answers = predictor.predict(batch, on_progress)
            shares.add(answers)
            predictor.save(GROWTH)
            done += batch.num_rows
            if on_rows is not None:
                on_rows(done)
            return answers

        try:
            if job.in_parts:
                _write_parts(job, reader, schema, predicted, shares)
            elif job.target is None:
                for batch in chunks(reader, ROWS_AT_A_TIME):
                    predicted(batch)
            else:
                with TableWriter(job.target, job.target_format, schema) as writer:
                    _write(writer, (predicted(batch) for batch in chunks(reader, ROWS_AT_A_TIME)))
        finally:
            predictor.save()
    return predictor


def _write(writer: TableWriter, batches: Iterator[pa.RecordBatch]) -> None:
    """Write each batch while the next one is predicted."""
    with ThreadPoolExecutor(1) as background:
        last: Future[None] | None = None
        for batch in batches:
            if last is not None:
                last.result()
            last = background.submit(writer.write, batch)
        if last is not None:
            last.result()


def _write_parts(
    job: Job,
    reader: pa.RecordBatchReader,
    schema: pa.Schema,
    predicted: Callable[[pa.RecordBatch], pa.RecordBatch],
    shares: WorkingShares,
) -> None:
    """Write the parts that are missing; count the rows of those that are there."""
    already = job.parts_done()
    for number in range(already):
        _count_part(job, number, schema, shares)
    with ExitStack() as open_part:
        writer = None
        for place, batch in enumerate(chunks(reader, ROWS_AT_A_TIME)):
            number, first = divmod(place, ROWS_PER_PART // ROWS_AT_A_TIME)
            if number < already:
                continue
            if first == 0:
                open_part.close()
                writer = open_part.enter_context(TableWriter(job.part(number), job.target_format, schema))
            if writer is not None:
                writer.write(predicted(batch))


def _count_part(job: Job, number: int, schema: pa.Schema, shares: WorkingShares) -> None:
    """Count the rows of a part that is there."""
    part = job.part(number)
    types = {name: schema.field(name).type for name in (*shares.by, f"{shares.prefix}works")}
    try:
        with reading(part, job.target_format, types) as reader:
            for batch in reader:
                shares.add(batch)
    except (pa.ArrowException, OSError) as error:
        raise OutputError(
            f"{str(part)!r} cannot be read: {one_line(error)}; remove it, and it is written again"
        ) from error


def _keep_question(job: Job, folder: Path, demand: Demand, sources: Mapping[str, Source], prefix: str) -> None:
    """Write down what is asked, or make sure that what is in the folder answers the same."""
    status = job.source.stat()
    asked = json.dumps(
        {
            "tcpdelay": __version__,
            "table": [str(job.source.resolve()), status.st_size, status.st_mtime_ns],
            "demand": repr(demand),
            "columns": {name: repr(source) for name, source in sources.items()},
            "prefix": prefix,
            "format": job.target_format,
        },
        indent=2,
    )
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / QUESTION
    if kept.exists():
        if kept.read_text(encoding="utf-8") != asked:
            raise ValueError(f"{str(folder)!r} holds the answers to another question; name another folder")
    elif any(folder.iterdir()):
        raise ValueError(f"{str(folder)!r} holds other files; name an empty or a new folder")
    else:
        kept.write_text(asked, encoding="utf-8")
