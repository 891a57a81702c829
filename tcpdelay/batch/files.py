"""Tables in files, read and written a part at a time."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

FileFormat = Literal["parquet", "csv", "arrow"]

SUFFIXES: dict[str, FileFormat] = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
ROWS_AT_A_TIME = 262_144
"""Rows that are read at a time, and in memory at most a few times."""
CSV_BLOCK = 16 * 2**20
SEPARATORS = (",", ";", "\t", "|")
"""What may stand between the cells of CSV: the first of them that is in the header."""


def file_format(path: Path, chosen: str | None = None) -> FileFormat:
    """Return the format of a file: the chosen one, or what its suffix says.

    Raises
    ------
    ValueError
        If neither is known.

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
def reading(path: Path, chosen: FileFormat, as_text: tuple[str, ...] = ()) -> Iterator[pa.RecordBatchReader]:
    r"""Open a table, to be read a batch at a time.

    Parameters
    ----------
    path : Path
        A file; for Parquet also a folder of such files.
    chosen : {"parquet", "csv", "arrow"}
        Its format. Arrow is the file format or a stream of it.
    as_text : tuple of str
        Columns of CSV that are left as texts, so that one bad cell does not end the reading.

    Yields
    ------
    pyarrow.RecordBatchReader
        Its batches, of `ROWS_AT_A_TIME` rows or so.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "users.csv"
    ...     _ = table.write_text("rtt_ms,loss\n80,2%\n")
    ...     with reading(table, "csv", ("rtt_ms", "loss")) as reader:
    ...         print(reader.read_all().to_pylist())
    [{'rtt_ms': '80', 'loss': '2%'}]
    """
    if chosen == "parquet":
        import pyarrow.dataset as ds

        # One file at a time, and little in advance: memory is bounded by that.
        scanner = ds.dataset(path, format="parquet").scanner(
            batch_size=ROWS_AT_A_TIME, batch_readahead=2, fragment_readahead=1
        )
        yield scanner.to_reader()
    elif chosen == "csv":
        from pyarrow import csv

        texts = dict.fromkeys(as_text, pa.string())
        # A blank is as good as nothing; what stands for it otherwise is only known of numbers.
        convert = csv.ConvertOptions(column_types=texts, strings_can_be_null=True, quoted_strings_can_be_null=False)
        parse = csv.ParseOptions(delimiter=_separator(path))
        with csv.open_csv(path, csv.ReadOptions(block_size=CSV_BLOCK), parse, convert) as reader:
            yield reader
    else:
        with pa.memory_map(str(path)) as file:
            try:
                opened: Any = pa.ipc.open_file(file)
                yield pa.RecordBatchReader.from_batches(
                    opened.schema, (opened.get_batch(place) for place in range(opened.num_record_batches))
                )
            except pa.ArrowInvalid:
                file.seek(0)
                yield pa.ipc.open_stream(file)


def _separator(path: Path) -> str:
    """Return what stands between the cells of CSV; a table has two columns at least."""
    with path.open("rb") as file:
        header = next((line for line in file.read(CSV_BLOCK).splitlines() if line.strip()), b"")
    return next((separator for separator in SEPARATORS if separator.encode() in header), SEPARATORS[0])


def column_names(path: Path, chosen: FileFormat) -> list[str]:
    """Return the names of a table's columns."""
    with reading(path, chosen) as reader:
        return list(reader.schema.names)


def chunks(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a reader, as many at a time; fewer at the end alone.

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
    """Writes batches to a file that has its name only once it is complete.

    Parameters
    ----------
    path : Path
        The file.
    chosen : {"parquet", "csv", "arrow"}
        Its format.
    schema : pyarrow.Schema
        Its columns.

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
        self.path = path.resolve()
        self._temporary = self.path.with_name(f".tcpdelay-{secrets.token_hex(8)}.tmp")
        self._writer = _writer(self._temporary, chosen, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._writer.write_batch(batch)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._writer.close()
            if kind is None:
                self._temporary.replace(self.path)
        finally:
            self._temporary.unlink(missing_ok=True)


def _writer(path: Path, chosen: FileFormat, schema: pa.Schema) -> Any:
    if chosen == "parquet":
        import pyarrow.parquet as pq

        # Answers hardly repeat: a dictionary of them costs time and saves no room. That of the reasons does.
        repeated: Any = [field.name for field in schema if not pa.types.is_floating(field.type)]
        return pq.ParquetWriter(path, schema, use_dictionary=repeated, compression="lz4", write_statistics=False)
    if chosen == "csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)
