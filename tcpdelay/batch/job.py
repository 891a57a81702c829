"""A whole table from file to file: read, predicted and written at the same time, and taken up again if interrupted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tcpdelay import __version__
from tcpdelay.batch.columns import Source, require_one
from tcpdelay.batch.files import (
    ROWS_AT_A_TIME,
    FileFormat,
    OutputError,
    TableWriter,
    chunks,
    one_line,
    reading,
    writing,
)
from tcpdelay.batch.rows import Demand, RowPredictor
from tcpdelay.batch.summary import WorkingShares

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
            raise ValueError(f"group must be one of {', '.join(reader.schema.names)}, got {missing[0]!r}")
        for name in shares.by:
            require_one("group", name, schema.names)
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice and job.target is not None and job.target_format == "parquet":
            raise ValueError(f"output must be CSV, as the table has several columns of the name {twice[0]!r}")

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
