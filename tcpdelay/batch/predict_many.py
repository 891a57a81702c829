"""The front door for tables: paths, and flows, to predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tcpdelay.applications import application
from tcpdelay.batch.columns import find_sources
from tcpdelay.batch.rows import Demand, RowPredictor
from tcpdelay.region.question import question
from tcpdelay.scenario import Flow, Stack
from tcpdelay.validity import ValidityWarning

if TYPE_CHECKING:
    import pandas as pd

ROWS_AT_A_TIME = 1_000_000
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
        Packet size and interval that the table does not have, or the name of one of `tcpdelay.applications`, which
        brings its threshold and quantile along.
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
    batches = given.combine_chunks().to_batches(max_chunksize=ROWS_AT_A_TIME)
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
            raise ValueError(f"table must have columns of one length, got lengths {sorted(lengths)}")
        return pa.table(columns)
    if _is_data_frame(table):
        try:
            return pa.Table.from_pandas(table)
        except _NOT_FOR_ARROW as error:
            # Arrow's last words name the column.
            raise ValueError(f"table must have columns that Arrow can hold: {_one_line(*error.args[::-1])}") from error
    raise ValueError(f"table must be of pyarrow, a pandas DataFrame or a mapping of arrays, got {type(table).__name__}")


def _column(name: Any, given: Any) -> Any:
    """Return a column of a mapping for Arrow."""
    if not isinstance(name, str):
        raise ValueError(f"table must have columns whose names are texts, got {name!r}")
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
