"""CSV as texts: what separates its cells, its columns, and its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from tcpdelay.batch.quotes import unclosed_quote

CSV_BLOCK = 16 * 2**20
HEADER_BLOCK = 2**20
"""Bytes that are read at a time, and to see the header."""
SEPARATORS = (",", ";", "\t", "|")
"""What may stand between the cells: the first of them that is in the header."""
_END_OF_LINE = re.compile(rb"\n")


@contextmanager
def reading_csv(path: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatchReader]:
    r"""Open a file of CSV, to be read a batch at a time.

    Parameters
    ----------
    path : Path
        The file.
    types : mapping of str to pyarrow.DataType
        Columns that do not stay texts. Those that do are what stands in the file, and no cell of them is at fault.

    Yields
    ------
    pyarrow.RecordBatchReader
        Its batches.

    Raises
    ------
    pyarrow.ArrowInvalid
        If this is no CSV, or a quote takes in rows because it is not closed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "users.csv"
    ...     _ = table.write_text("isp,rtt_ms,loss\nNA,080,\n")
    ...     with reading_csv(table, {}) as reader:
    ...         print(reader.read_all().to_pylist())
    [{'isp': 'NA', 'rtt_ms': '080', 'loss': None}]
    """
    columns = {**dict.fromkeys(csv_columns(path), pa.string()), **types}
    # A blank is as good as nothing. What else stands for it is not known, and NA may be Namibia.
    convert = csv.ConvertOptions(
        column_types=columns, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    with csv.open_csv(path, csv.ReadOptions(block_size=CSV_BLOCK), _parsing(path), convert) as reader:
        yield pa.RecordBatchReader.from_batches(reader.schema, _whole_rows(reader, path))


def csv_columns(path: Path) -> list[str]:
    """Return the names of the columns."""
    with csv.open_csv(path, csv.ReadOptions(block_size=HEADER_BLOCK), _parsing(path)) as table:
        return list(table.schema.names)


def separator(path: Path) -> str:
    r"""Return what stands between the cells; a table has two columns at least.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "users.csv"
    ...     _ = table.write_text("rtt_ms;loss\n80,5;2%\n")
    ...     separator(table)
    ';'
    """
    with path.open("rb") as file:
        header = next((line for line in file.read(CSV_BLOCK).splitlines() if line.strip()), b"")
    return next((separator for separator in SEPARATORS if separator.encode() in header), SEPARATORS[0])


def _parsing(path: Path) -> csv.ParseOptions:
    return csv.ParseOptions(delimiter=separator(path), newlines_in_values=True)


def _whole_rows(reader: Any, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches; where a cell has several lines, make sure that it was meant to."""
    sure = False
    for batch in reader:
        texts = (buffer for column in batch.columns for buffer in column.buffers()[2:] if buffer)
        if not sure and any(map(_END_OF_LINE.search, texts)):
            if (line := unclosed_quote(path, separator(path))) is not None:
                raise pa.ArrowInvalid(f"the quote in line {line} is not closed")
            sure = True
        yield batch
