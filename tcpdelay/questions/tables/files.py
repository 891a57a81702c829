"""Tables in files, read and written in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from tcpdelay.files import unfinished_path
from tcpdelay.questions.tables.csv_reading import csv_columns, csv_fault, one_line, reading_csv

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
    """Return the format of a file: the chosen format, or else the format of its suffix.

    Raises
    ------
    ValueError
        If the format is unknown.

    Examples
    --------
    >>> file_format(Path("users.csv")), file_format(Path("users"), "arrow")
    ('csv', 'arrow')
    """
    known = {name: name for name in get_args(FileFormat)} if chosen else SUFFIXES
    found = known.get(chosen or path.suffix.lower())
    if found is None:
        raise ValueError(f"{str(path)!r} does not end in one of {', '.join(SUFFIXES)}; name its format")
    return found


@contextmanager
def reading(
    path: Path, chosen: FileFormat, types: Mapping[str, pa.DataType] | None = None
) -> Iterator[pa.RecordBatchReader]:
    r"""Open a table, to be read in batches.

    Parameters
    ----------
    path : Path
        A file; for Parquet also a folder of Parquet files.
    chosen : {"parquet", "csv", "arrow"}
        The format. "arrow" includes Arrow streams.
    types : mapping of str to pyarrow.DataType, optional
        Columns of a CSV file that are converted from text.

    Yields
    ------
    pyarrow.RecordBatchReader
        The batches, of about `ROWS_AT_A_TIME` rows.

    Raises
    ------
    pyarrow.ArrowException
        If the file does not have this format.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "users.csv"
    ...     _ = table.write_text("rtt_ms,loss\n80,2%\n")
    ...     with reading(table, "csv") as reader:
    ...         print(reader.read_all().to_pylist())
    [{'rtt_ms': '80', 'loss': '2%'}]
    """
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
    """Return in one line why a table cannot be read.

    Parameters
    ----------
    path : Path
        The file or folder.
    chosen : {"parquet", "csv", "arrow"}
        The format in which it was read.
    error : Exception
        The error of Arrow or of the system.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "users.parquet"
    ...     _ = path.write_text("rtt_ms,loss")
    ...     table_fault(path, "parquet", pa.ArrowInvalid("Parquet magic bytes not found in footer."))
    'it is not a Parquet file'
    """
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
    try:
        opened: Any = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)
    batches = (opened.get_batch(place) for place in range(opened.num_record_batches))
    return pa.RecordBatchReader.from_batches(opened.schema, batches)


def column_names(path: Path, chosen: FileFormat) -> list[str]:
    """Return the names of a table's columns."""
    if chosen == "csv":
        return csv_columns(path)
    with reading(path, chosen) as reader:
        return list(reader.schema.names)


def chunks(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a reader in batches of a given number of rows; the last batch may be smaller.

    Examples
    --------
    >>> table = pa.table({"rtt": [0.1, 0.2, 0.3]})
    >>> [batch.num_rows for batch in chunks(table.to_reader(1), 2)]
    [2, 1]
    """
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

    Parameters
    ----------
    path : Path
        The file.
    chosen : {"parquet", "csv", "arrow"}
        The format of the file.
    schema : pyarrow.Schema
        The columns of the file.

    Raises
    ------
    OutputError
        If the file cannot be written, now or later.

    Examples
    --------
    >>> import tempfile
    >>> batch = pa.record_batch({"p95": [0.14]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "out.csv"
    ...     with TableWriter(path, "csv", batch.schema) as writer:
    ...         writer.write(batch)
    ...         before = path.exists()
    ...     print(before, path.read_text().split())
    False ['"p95"', '0.14']
    """

    def __init__(self, path: Path, chosen: FileFormat, schema: pa.Schema) -> None:
        self._given, self.path = path, path.resolve()
        self._replaces = self.path.is_file() or not self.path.exists()
        self._temporary = unfinished_path(self.path) if self._replaces else self.path
        try:
            with writing(path):
                self._writer = _writer(self._temporary, chosen, schema)
        except OutputError:
            self._discard()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        with writing(self._given):
            self._writer.write_batch(batch)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with writing(self._given):
                    self._writer.close()
                    if self._replaces:
                        self._temporary.replace(self.path)
            else:
                # A second error would hide the first.
                with suppress(OSError, pa.ArrowException):
                    self._writer.close()
        finally:
            self._discard()

    def _discard(self) -> None:
        if self._replaces:
            # A read-only file system refuses to remove even a file that is not there.
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error in writing a file into an OutputError that names the file.

    Examples
    --------
    >>> try:
    ...     with writing(Path("out.csv")), Path("/dev/null/out.csv").open("w"):
    ...         pass
    ... except OutputError as error:
    ...     print(error)
    'out.csv' cannot be written: Not a directory
    """
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
