"""CSV files: reading them as texts, and finding the faulty line of a file that Arrow cannot read."""

from __future__ import annotations

import codecs
import mmap
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

LONGEST_MESSAGE = 300
"""Largest number of characters of a message of Arrow; some repeat a whole row."""
CSV_BLOCK = 16 * 2**20
HEADER_BLOCK = 2**20
"""Bytes that are read at a time, and bytes that are read for the header."""
SEPARATORS = (",", ";", "\t", "|")
"""Possible separators of cells; the first separator in this list that occurs in the header is used."""
_END_OF_LINE = re.compile(rb"\n")


@contextmanager
def reading_csv(path: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatchReader]:
    r"""Open a CSV file, to be read in batches.

    Parameters
    ----------
    path : Path
        The file.
    types : mapping of str to pyarrow.DataType
        Columns that are converted from text. All other columns stay texts, as in the file.

    Yields
    ------
    pyarrow.RecordBatchReader
        The batches.

    Raises
    ------
    pyarrow.ArrowInvalid
        If the file is not CSV, or a quote is not closed.

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
    # Only empty cells are null: NA may be Namibia.
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
    r"""Return the separator of the cells; a table has at least two columns.

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
    """Yield the batches; if a cell has several lines, check that all quotes are closed."""
    sure = False
    for batch in reader:
        texts = (buffer for column in batch.columns for buffer in column.buffers()[2:] if buffer)
        if not sure and any(map(_END_OF_LINE.search, texts)):
            if (line := unclosed_quote(path, separator(path))) is not None:
                raise pa.ArrowInvalid(f"the quote in line {line} is not closed")
            sure = True
        yield batch


def unclosed_quote(path: Path, separator: str) -> int | None:
    r"""Return the first line with a quote that continues on the next line and is not closed at the end of a cell.

    Parameters
    ----------
    path : Path
        A CSV file, not empty.
    separator : str
        Separator of the cells.

    Returns
    -------
    int or None
        The number of the line, from 1. Closed cells of several lines and quotes inside a cell do not count.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "users.csv"
    ...     _ = path.write_text('user,rtt_ms,loss\na,80,1%\n"b,90,1%\nc,70,1%\n')
    ...     print(unclosed_quote(path, ","))
    ...     _ = path.write_text('user,rtt_ms,loss\n6" pipe,80,1%\n"b\nor c",90,1%\n')
    ...     print(unclosed_quote(path, ","))
    3
    None
    """
    beside = re.escape(separator).encode()
    quoted = re.compile(
        rb'(?<![^%b\r\n])"[^"]*+(?:""[^"]*+)*+(?P<end>" *+(?=[%b\r\n]|\Z))?' % (beside, beside),
    )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for cell in quoted.finditer(content):
            if cell["end"] is None and content.find(b"\n", cell.start(), cell.end()) >= 0:
                starts = range(0, cell.start(), CSV_BLOCK)
                return 1 + sum(content[start : min(start + CSV_BLOCK, cell.start())].count(b"\n") for start in starts)
    return None


_RAGGED = re.compile(r"Expected (\d+) columns, got (\d+)(?:: (?P<row>.*))?", re.DOTALL)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def csv_fault(path: Path, message: str) -> str:
    r"""Return the fault of a CSV file, in one line of text.

    Parameters
    ----------
    path : Path
        The file.
    message : str
        Arrow's error message.

    Returns
    -------
    str
        The fault and the number of its line; Arrow's message if the fault is unknown.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "users.csv"
    ...     _ = path.write_bytes(b"user,rtt_ms,loss\na,80,1%\nM\xfcller,90,1%\n")
    ...     print(csv_fault(path, "invalid UTF8 data"))
    line 3 is not in UTF-8; convert the file, as by iconv -f latin1 -t utf-8
    """
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_UTF16):
        return "it is in UTF-16, not in UTF-8; convert it, as by iconv -f utf-16 -t utf-8"
    if not start.strip():
        return "it is empty"
    if (line := _line_of(path, _not_utf8)) is not None:
        return f"line {line} is not in UTF-8; convert the file, as by iconv -f latin1 -t utf-8"
    if (line := unclosed_quote(path, separator(path))) is not None:
        return f"line {line} opens a quote that is not closed at the end of its cell"
    if ragged := _RAGGED.search(message):
        row = (ragged["row"] or "").encode()
        line = _line_of(path, lambda block: _place_of_line(block, row)) if row else None
        where = f"line {line}" if line is not None else "a line"
        return f"{where} has {ragged[2]} cells, but the first one names {_columns(int(ragged[1]))}"
    if "cannot infer number of columns" in message:
        return "it has no rows"
    return one_line(message)


def _columns(count: int) -> str:
    return f"{count} column" if count == 1 else f"{count} columns"


def _not_utf8(block: bytes) -> int | None:
    try:
        block.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _place_of_line(block: bytes, row: bytes) -> int | None:
    found = re.search(rb"(?:^|[\r\n])" + re.escape(row) + rb"(?:[\r\n]|$)", block)
    return None if found is None else found.end() - 1


def _line_of(path: Path, find: Callable[[bytes], int | None]) -> int | None:
    """Return the number of the line, from 1, with the first place that `find` returns in blocks of whole lines."""
    before = 1
    with path.open("rb") as file:
        while block := file.read(CSV_BLOCK):
            block += file.readline()
            place = find(block)
            if place is not None:
                return before + block.count(b"\n", 0, place)
            before += block.count(b"\n")
    return None


def one_line(error: Exception | str) -> str:
    """Return the message of an error in one line: the message of the system if there is one.

    Examples
    --------
    >>> one_line(OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device"))
    'No space left on device'
    """
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return textwrap.shorten(str(error), LONGEST_MESSAGE, placeholder=" ...")
