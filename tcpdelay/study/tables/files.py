"""Tables in files, read and written in batches; the faulty line of a CSV file."""

from __future__ import annotations

import codecs
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pyarrow import csv

from tcpdelay.store import one_line, written_durably

# CSV files: reading them as texts, and finding the faulty line of a file that Arrow cannot read.

CSV_BLOCK = 16 * 2**20
HEADER_BLOCK = 2**20
"""Bytes that are read at a time, and bytes that are read for the header."""
SEPARATORS = (",", ";", "\t", "|")
"""Possible separators of cells; the first separator in this list that occurs in the header is used."""
_END_OF_LINE = re.compile(rb"\n")


@contextmanager
def reading_csv(path: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatchReader]:
    r"""Open a CSV file, to be read in batches."""
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
    r"""Return the separator of the cells; a table has at least two columns."""
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
    """Return the first line with a quote that continues on the next line and is not closed at the end of a cell."""
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
    """Return the fault of a CSV file, in one line of text."""
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
    if "straddling object" in message:
        rows, header = CSV_BLOCK // 2**20, HEADER_BLOCK // 2**20
        return f"a row is too long: at most {rows} MiB are read, and {header} MiB of the first row and the names"
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


# Tables in files, read and written in batches.

FileFormat = Literal["parquet", "csv", "arrow"]

SUFFIXES: dict[str, FileFormat] = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
ROWS_AT_A_TIME = 262_144
"""Rows that are read at a time; memory holds at most a few times as many."""
_PARQUET = b"PAR1"
"""First bytes of a Parquet file."""
IN_FOLDER = (".parquet", ".pq", "")
"""Suffixes of the files of a folder that are read; some programs write files without a suffix."""


class OutputError(OSError):
    """A result cannot be written, or an earlier result cannot be read."""


def file_format(path: Path, chosen: str | None = None) -> FileFormat:
    """Return the format of a file: the chosen format, or else the format of its suffix."""
    known = {name: name for name in get_args(FileFormat)} if chosen else SUFFIXES
    found = known.get(chosen or path.suffix.lower())
    if found is None:
        raise ValueError(f"{str(path)!r} does not end in one of {', '.join(SUFFIXES)}; name its format")
    return found


@contextmanager
def reading(
    path: Path, chosen: FileFormat, types: Mapping[str, pa.DataType] | None = None
) -> Iterator[pa.RecordBatchReader]:
    r"""Open a table, to be read in batches."""
    if chosen == "parquet":
        import pyarrow.dataset as ds

        # Reading one file at a time, with little read-ahead, bounds the memory.
        scanner = ds.dataset(_parquet_files(path), format="parquet").scanner(
            batch_size=ROWS_AT_A_TIME, batch_readahead=2, fragment_readahead=1
        )
        yield scanner.to_reader()
    elif chosen == "csv":
        with reading_csv(path, types or {}) as reader:
            yield reader
    else:
        with pa.memory_map(str(path)) as file:
            yield _arrow(file)


def table_fault(path: Path, chosen: FileFormat, error: Exception) -> str:
    """Return in one line why a table cannot be read."""
    if chosen == "csv" and isinstance(error, (pa.ArrowInvalid, UnicodeDecodeError)):
        return csv_fault(path, str(error))
    if chosen == "parquet" and isinstance(error, pa.ArrowInvalid) and path.is_file():
        with path.open("rb") as file:
            if file.read(len(_PARQUET)) != _PARQUET:
                return "it is not a Parquet file"
    return one_line(error)


def _parquet_files(path: Path) -> list[str]:
    """Return the Parquet files of a table in the order of their names; a folder may also hold other files."""
    from pyarrow import fs

    if not path.is_dir():
        return [str(path)]
    found = fs.LocalFileSystem().get_file_info(fs.FileSelector(str(path), recursive=True))
    files = sorted(Path(each.path) for each in found if each.is_file)
    return [
        str(file)
        for file in files
        if file.suffix.lower() in IN_FOLDER
        and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    ]


def _arrow(file: Any) -> Any:
    """Return the reader of an Arrow file, or of an Arrow stream."""
    batches: Iterable[pa.RecordBatch]
    try:
        opened: Any = pa.ipc.open_file(file)
        batches = map(opened.get_batch, range(opened.num_record_batches))
    except pa.ArrowInvalid:
        file.seek(0)
        batches = opened = pa.ipc.open_stream(file)
    return pa.RecordBatchReader.from_batches(opened.schema, map(_validated, batches))


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of a file, whose offsets Arrow follows without a check, also out of the memory of the process."""
    batch.validate(full=True)
    return batch


def column_names(path: Path, chosen: FileFormat) -> list[str]:
    """Return the names of a table's columns."""
    if chosen == "csv":
        return csv_columns(path)
    with reading(path, chosen) as reader:
        return list(reader.schema.names)


def chunks(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a reader in batches of a given number of rows; the last batch may be smaller."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        while count + batch.num_rows >= rows:
            held.append(batch.slice(0, rows - count))
            batch = batch.slice(rows - count)
            yield _joined(held)
            held, count = [], 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class TableWriter:
    """Writes batches to a temporary file that replaces the named file once it is complete.

    Devices and pipes cannot be replaced; batches go to them directly.
    """

    def __init__(self, path: Path, chosen: FileFormat, schema: pa.Schema) -> None:
        self._given, file = path, path.resolve()
        with writing(path), ExitStack() as opened:
            replaces = file.is_file() or not file.exists()
            unfinished = opened.enter_context(written_durably(file)) if replaces else file
            self._writer = opened.enter_context(_writer(unfinished, chosen, schema))
            self._opened = opened.pop_all()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        with writing(self._given):
            self._writer.write_batch(batch)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        # A second error would hide the first.
        with writing(self._given) if kind is None else suppress(OSError, pa.ArrowException):
            self._opened.__exit__(kind, *more)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error in writing a file into an OutputError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise OutputError(f"{str(path)!r} cannot be written: {one_line(error)}") from error


def _writer(path: Path, chosen: FileFormat, schema: pa.Schema) -> Any:
    if chosen == "parquet":
        import pyarrow.parquet as pq

        # Delays rarely repeat: a dictionary would cost time and save no memory. The values of other columns repeat.
        repeated: Any = [field.name for field in schema if not pa.types.is_floating(field.type)]
        return pq.ParquetWriter(path, schema, use_dictionary=repeated, compression="lz4", write_statistics=False)
    if chosen == "csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)
