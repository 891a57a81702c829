"""Predictions for the rows of a table, in memory or from file to file; an interrupted job can continue."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tcpdelay import __version__
from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.declare import InvalidValueError
from tcpdelay.quality.voice import CallTarget
from tcpdelay.scenario.scenario import Target, application, checked_arguments
from tcpdelay.scenario.source import Source as MessageSource
from tcpdelay.scenario.stack import Stack, StackName
from tcpdelay.store import UNFINISHED, locked, one_line, written_durably
from tcpdelay.study.grid import question
from tcpdelay.study.tables.columns import Source, check_units, find_sources, require_one
from tcpdelay.study.tables.files import (
    ROWS_AT_A_TIME,
    FileFormat,
    OutputError,
    TableWriter,
    chunks,
    reading,
    writing,
)
from tcpdelay.study.tables.rows import Demand, RowPredictor, WorkingShares

TABLE_ROWS_AT_A_TIME = 1_000_000
_NOT_FOR_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""Exceptions of NumPy and Arrow for cells that fit into no column."""


@checked_arguments
def predict_many(
    table: Any,
    stack: Stack | StackName | None = None,
    *,
    flow: MessageSource | str | None = None,
    limit: float | None = None,
    quantile: float | None = None,
    target: Target | None = None,
    call: CallTarget | None = None,
    columns: Mapping[str, str] | None = None,
    prefix: str = "",
    cached: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
) -> Any:
    """Predict the delays of every row of a table.

    The first 1000 rows of each flow get the chain's answer for exactly their path. In larger tables, each row gets the
    answer for the nearest path of a lattice. Round-trip time and loss of this path differ from the row by 0.5 % at most
    (losses below 0.1 % by 0.5 % or 5e-8). The chain is solved once for each path, and the answers are remembered.

    Up to ten paths for which `predict_delay` simulates are simulated too, and have its figures. If a table has more,
    they keep the chain's figures, if it has any, and `remark` says why those of `predict_delay` are others.

    `max_seconds` and `max_memory` hold for each path that is solved. In a larger table, a path of the lattice that
    needs more has no prediction, and neither have the rows nearest to it. Each budget has its own answers in the user's
    cache. `prepare_surface` prepares those of the default budget.

    Parameters
    ----------
    table : pyarrow.Table, RecordBatch or RecordBatchReader, pandas.DataFrame, or mapping of str to array_like
        Columns rtt [s] and loss [fraction], and, if rows differ in them, packet_size [bytes], interval [s], limit [s]
        (the threshold) and quantile [fraction]. The name of a column may end in another unit, as in rtt_ms and
        loss_percent. All other columns are passed through.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel.
    flow : Source or str, optional
        Packet size and interval for tables without these columns, or the name of an application in
        `tcpdelay.scenario.scenario`, which also sets the default limit and quantile. Any other source is simulated:
        50 000 messages for each different path.
    limit : float, optional
        Latest useful arrival [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    target : Target, optional
        Limit and quantile together, in place of the two arguments before.
    call : CallTarget, optional
        The call that is rated by the E-model: it plays out each packet at the threshold. With a score in `call`, a row
        works if the call has this score, whatever the quantile.
    columns : mapping, optional
        Columns with other names, and their units: {"rtt": "ping:ms", "loss": "plr:percent"}.
    prefix : str
        Prefix of the names of the added columns.
    cached : bool
        Whether answers are read from, and written to, the user's cache.
    on_progress : callable, optional
        Called with the number of chains solved, and the number of chains to solve.
    max_seconds : float
        Processor time that the answer for one path may take [s], 0.01 to 1e6, by an estimate that does not depend on
        the machine. Rows whose chain needs more are simulated if they are few, and have no prediction if not. Of any
        other source, a path has no more messages than this time allows.
    max_memory : float, optional
        Memory that the chain of one path may take [bytes], 2**20 to 2**50; by default 1 GiB.

    Returns
    -------
    pyarrow.Table, RecordBatch or RecordBatchReader, pandas.DataFrame, or dict of ndarray
        The table, with the additional columns p50, p95, p99 and mean [s], late (fraction of the packets later than the
        limit), late_low and late_high (range of this fraction that the chain's expected error allows), with `call` the
        score mos, works, sustainable, verdict, reason, and remark. The verdict is "works" or "fails" where this whole
        range meets, or misses, the target, and otherwise "uncertain". Rows without a prediction keep their place:
        `reason` explains why there is no prediction, and the other columns are null: pandas.NA in `works` and
        `sustainable` of a DataFrame, None in those of a mapping, NaN in columns of numbers. A reader is read while its
        result is read.

    Raises
    ------
    ValueError
        If columns or the flow are missing, an argument lies outside its range, or the simulations of all paths would
        take more than an hour.

    Warns
    -----
    ValidityWarning
        If rows lie outside the range in which the model has been checked; not for a reader.
    ColumnUnitWarning
        If most values of a column are improbable in its stated unit, and another unit fits.

    Examples
    --------
    >>> answers = predict_many({"rtt_ms": [100, 20, 100], "loss": [0.02, 0.001, 7]}, flow="voip", cached=False)
    >>> answers["p95"].round(3), answers["works"]
    (array([0.14, 0.01, nan]), array([True, True, None], dtype=object))
    >>> print(answers["reason"][2])
    loss must be a fraction from 0 to below 1
    """
    asked = demand_for(flow, stack, limit, quantile, target)
    demand = replace(asked, call=call, max_seconds=max_seconds, max_memory=max_memory)
    if isinstance(table, pa.RecordBatchReader):
        rows = RowPredictor(demand, find_sources(table.schema.names, columns), prefix, cached)
        schema = rows.schema(table.schema)
        return pa.RecordBatchReader.from_batches(schema, _stream(table, rows, on_progress))
    given = _as_table(table)
    rows = RowPredictor(demand, find_sources(given.schema.names, columns), prefix, cached)
    schema = rows.schema(given.schema)
    batches = given.combine_chunks().to_batches(max_chunksize=TABLE_ROWS_AT_A_TIME)
    for batch in batches[:1]:
        check_units(batch, rows.sources, demand.stack)
    predicted = pa.Table.from_batches([rows.predict(batch, on_progress) for batch in batches], schema)
    rows.save()
    if rows.unchecked:
        warnings.warn(unchecked_message(rows.unchecked, given.num_rows), ValidityWarning, stacklevel=2)
    return _like(table, predicted, given.num_columns)


def demand_for(
    flow: MessageSource | str | None,
    stack: Stack | StackName | None,
    limit: float | None,
    quantile: float | None,
    target: Target | None = None,
) -> Demand:
    """Return flow, stack and target of all rows, with the defaults of `predict_many` filled in."""
    asked = question(flow if flow is not None else application("voip").flow, stack, limit, quantile, target=target)
    return Demand(None if flow is None else asked.flow, asked.stack, asked.target)


def unchecked_message(rows: int, of: int) -> str:
    """Return the warning for rows outside the range in which the model has been checked."""
    checked = "lie outside the range in which the model has been checked"
    return f"{rows} of {of} rows {checked}; at a larger loss, only a failure is certain"


def _stream(
    reader: pa.RecordBatchReader, rows: RowPredictor, on_progress: Callable[[int, int], None] | None
) -> Iterator[pa.RecordBatch]:
    try:
        for number, batch in enumerate(reader):
            if number == 0:
                check_units(batch, rows.sources, rows.demand.stack)
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
            raise ValueError(f"table must have columns of one length, got lengths {sorted(lengths)}")
        return pa.table(columns)
    if _is_data_frame(table):
        try:
            return pa.Table.from_pandas(table)
        except _NOT_FOR_ARROW as error:
            # The end of Arrow's message names the column.
            raise ValueError(f"table must have columns that Arrow can hold: {_one_line(*error.args[::-1])}") from error
    raise InvalidValueError("table", table, "be a table of pyarrow, a pandas DataFrame or a mapping of arrays")


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
        raise ValueError(f"table must have columns of one dimension, got the shape {array.shape} for {name!r}")
    return column


def _one_line(*texts: Any) -> str:
    return " ".join(": ".join(map(str, texts)).split())


def _is_data_frame(table: Any) -> bool:
    return any(kind.__module__.startswith("pandas") and kind.__name__ == "DataFrame" for kind in type(table).__mro__)


def _like(given: Any, predicted: pa.Table, columns: int) -> Any:
    """Return the answers in the type of the given table."""
    if isinstance(given, pa.Table):
        return predicted
    if isinstance(given, pa.RecordBatch):
        batches = predicted.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], predicted.schema)
    added = predicted.select(range(columns, predicted.num_columns))
    arrays = {name: added.column(name).to_numpy() for name in added.column_names}
    if isinstance(given, Mapping):
        return {**{name: np.asarray(column) for name, column in given.items()}, **arrays}
    import pandas as pd

    # A column of pandas has one type, whether or not a row of this table is without a prediction.
    flags = {
        field.name: pd.array(arrays[field.name], dtype="boolean")
        for field in added.schema
        if pa.types.is_boolean(field.type)
    }
    return given.assign(**{**arrays, **flags})


ROWS_PER_PART = 4 * ROWS_AT_A_TIME
GROWTH = 1.25
"""Growth of a lattice after which a running job writes it to the cache."""
QUESTION = "question.json"
"""File in a folder of parts, with the question that the parts answer."""


@dataclass(frozen=True)
class Job:
    """A table to predict, and the place of the result."""

    source: Path  # The table: a file, or a folder of Parquet files
    source_format: FileFormat  # Format of the table
    target: Path | None = None  # File or folder of the predictions; without it, rows are only counted
    target_format: FileFormat = "parquet"  # Format of the predictions
    # Whether `target` is a folder with one file for every `ROWS_PER_PART` rows. After an interrupt, the files stay.
    in_parts: bool = False

    def part(self, number: int) -> Path:
        """Return the file of a part in the folder `target`."""
        return (self.target or Path()) / f"part-{number:06d}.{self.target_format}"

    def writes(self, path: Path) -> bool:
        """Return whether the job writes a file to its folder `target`."""
        if not self.in_parts or self.target is None:
            return False
        file = path.resolve()
        is_part = file.name.startswith("part-") and file.suffix == f".{self.target_format}"
        return file.parent == self.target.resolve() and (is_part or file.name == QUESTION)

    def parts_done(self) -> int:
        """Return the number of finished parts."""
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
    """Predict a table, count its working rows in `shares`, and return the predictor with its counts.

    `on_rows` is called with the number of rows predicted so far, `on_progress` with the numbers of chains solved and to
    solve. With `cached`, answers are read from, and written to, the user's cache, also after an interrupt.
    """
    predictor = RowPredictor(demand, dict(sources), shares.prefix, cached, counted=job.target is None)
    with reading(job.source, job.source_format) as reader:
        for batch in chunks(reader, ROWS_AT_A_TIME):
            check_units(batch, sources, demand.stack)
            break
    done = 0
    with (
        _folder_of_parts(job, demand, sources, shares.prefix),
        reading(job.source, job.source_format) as reader,
    ):
        schema = predictor.schema(reader.schema)
        missing = [name for name in shares.by if name not in schema.names]
        if missing:
            raise InvalidValueError("group", missing[0], f"be one of {', '.join(reader.schema.names)}")
        for name in shares.by:
            require_one("group", name, schema.names)
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice and job.target is not None and job.target_format == "parquet":
            allowed = f"be CSV, as the table has several columns of the name {twice[0]!r}"
            raise InvalidValueError("output", str(job.target), allowed)

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
    """Write the missing parts; count the rows of the parts that exist."""
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
    """Count the rows of a part that exists."""
    part = job.part(number)
    types = {name: schema.field(name).type for name in (*shares.by, f"{shares.prefix}verdict")}
    try:
        with reading(part, job.target_format, types) as reader:
            for batch in reader:
                shares.add(batch)
    except (pa.ArrowException, OSError) as error:
        raise OutputError(
            f"{str(part)!r} cannot be read: {one_line(error)}; remove it, and it is written again"
        ) from error


@contextmanager
def _folder_of_parts(job: Job, demand: Demand, sources: Mapping[str, Source], prefix: str) -> Iterator[None]:
    """Make the folder of a job in parts, and lock other processes out; do nothing for any other job."""
    folder = job.target
    if not job.in_parts or folder is None:
        yield
        return
    with ExitStack() as open_folder:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            open_folder.enter_context(locked(folder, "another batch writes its parts there"))
            for unfinished in folder.glob(UNFINISHED):
                unfinished.unlink()
            _keep_question(job, folder, demand, sources, prefix)
        yield


def _keep_question(job: Job, folder: Path, demand: Demand, sources: Mapping[str, Source], prefix: str) -> None:
    """Write the question to the folder, or check that its parts answer the same question."""
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
    kept = folder / QUESTION
    if kept.exists():
        if kept.read_text(encoding="utf-8") != asked:
            raise ValueError(f"{str(folder)!r} holds the answers to another question; name another folder")
    elif any(folder.iterdir()):
        raise ValueError(f"{str(folder)!r} holds other files; name an empty or a new folder")
    else:
        with written_durably(kept) as unfinished:
            unfinished.write_text(asked, encoding="utf-8")
