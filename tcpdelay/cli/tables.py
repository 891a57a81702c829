"""Many paths: `tcpdelay batch` and `prepare` for a table of paths, `tcpdelay sweep` for the points of a grid."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.options import (
    OUTPUT,
    PATH,
    PATH_OPTIONS,
    TARGET,
    Options,
    Range,
    ScenarioOptions,
    Share,
    Size,
    Time,
    chart_option,
    command,
    memory_option,
    option,
    range_option,
    result_option,
    seconds_option,
)
from tcpdelay.cli.output import (
    INTERRUPTED,
    StatusLine,
    TimeLeft,
    announce_prediction,
    argument_errors,
    erase_progress,
    interrupted_once,
    predicting,
    print_warning,
    refuse_directory,
    refuse_missing_folder,
    refuse_other_than_chart,
    refuse_same_file,
    rendered,
    write,
    write_chart,
)
from tcpdelay.cli.scenario import SourceOptions, read_demand, read_source, varying_source
from tcpdelay.units import format_duration, format_fraction, format_time

if TYPE_CHECKING:
    from collections import Counter

    import xarray as xr

    from tcpdelay.quality.voice import CallTarget
    from tcpdelay.scenario.scenario import Application
    from tcpdelay.study.execution import Progress
    from tcpdelay.study.sweep.specification import SweepSpecification
    from tcpdelay.study.tables.columns import Source
    from tcpdelay.study.tables.predict_many import Job
    from tcpdelay.study.tables.rows import Demand, WorkingShares

# `tcpdelay batch`: predictions for a table of paths, and the share that meets the target.

Format = Literal["text", "csv", "json"]
TableFormat = Literal["parquet", "csv", "arrow"]

TERMINAL_INTERVAL = 1.0
"""Shortest time between two lines of progress on a terminal [s]."""
MOST_REASONS = 3
"""Largest number of reasons that the warning about rows without a prediction lists."""


def _column(text: str) -> str:
    name, between, column = text.partition("=")
    if not (name and between and column):
        raise ValueError(f"{text[:64]!r} is no column; write rtt=COLUMN or rtt=COLUMN:ms")
    return text


def _columns(texts: Sequence[str]) -> dict[str, str]:
    """Return the column of each quantity."""
    columns: dict[str, str] = {}
    for text in texts:
        name, _, column = text.partition("=")
        if name in columns:
            raise ValueError(f"{name} is named twice, as {columns[name]!r} and as {column!r}; name one column")
        columns[name] = column
    return columns


class Batch(Options, panel=OUTPUT):
    """How a table is read, predicted and written."""

    output: Path | None = result_option(
        "File for the rows with their predictions, or a folder, whose name ends in /.",
        "none: only the summary is printed",
    )
    column: list[str] | None = option(
        "A column that has another name, such as rtt=ping:ms; may be repeated.",
        panel=PATH,
        metavar="NAME=COLUMN[:UNIT]",
        parse=_column,
    )
    group: list[str] | None = option(
        "Count the working rows for each value of this column; may be repeated.", metavar="COLUMN"
    )
    threshold: Time | None = option("The same as --limit.", panel=TARGET)
    mos: float | None = option(
        "A row works if a call that plays out at --limit has at least this score (E-model), whatever the "
        "--quantile. Adds the column mos.",
        panel=TARGET,
    )
    codec: str | None = option(
        "Codec of the call: g711, g729a, opus-wb-15 ... Adds the column mos.",
        "that of --app, or g711",
        panel=TARGET,
        metavar="NAME",
    )
    decimal_comma: bool = option("Texts in TABLE have a decimal comma, such as 80,5.", default=False, panel=PATH)
    prefix: str = option("Prefix of the names of the added columns.", False, default="", metavar="TEXT")
    table_format: TableFormat | None = option("Format of TABLE.", "by its suffix")
    output_format: TableFormat | None = option("Format of --output.", "by its suffix, or parquet in a folder")
    summary_format: Format = option("Format of the summary.", default="text", name="--format")
    summary: Path | None = option("Write the summary to a file.", "the terminal")
    chart: Path | None = chart_option("the share of working rows by group")
    max_seconds: float = seconds_option()
    max_memory: Size | None = memory_option()
    cache: bool = option("Keep solved paths for the next run.", default=True)


@command(
    "Predict every row of a table, and count what works.",
    """
Examples:
  tcpdelay batch examples/users.csv --app voip
  tcpdelay batch users.parquet -o predicted.parquet --app voip --group region
  tcpdelay batch users.csv -o out.parquet --app game --column rtt=ping:ms
  tcpdelay batch users.csv --app voip --mos 3.6 --group region
  tcpdelay batch big/ -o predicted/ --app voip

Columns are rtt and loss, in seconds and fractions unless their names end in
a unit: rtt_ms, rtt_us, loss_percent. A text may have its own unit, such as
100ms or 2%. The columns packet_size, interval, limit and quantile (limit_ms,
quantile_percent) override the options. If the output is a folder, the rows are written in parts, and the
same command continues an interrupted run.
""",
    # Its own --group names columns; messages in groups are for the other commands.
    without=(*PATH_OPTIONS, "group"),
)
def batch(
    options: ScenarioOptions,
    source: SourceOptions,
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Rows of paths: .parquet, .csv or .arrow, or a folder of .parquet.")
    ],
    asked: Batch,
) -> None:
    """Predict the delays of every row of a table, and count the rows that meet the target."""
    refuse_other_than_chart(asked.chart, "--chart")
    for path, name in ((asked.summary, "--summary"), (asked.chart, "--chart")):
        if path is not None:
            refuse_directory(path, name)
            refuse_missing_folder(path, name)
    refuse_same_file(
        [("TABLE", table)], [("--output", asked.output), ("--summary", asked.summary), ("--chart", asked.chart)]
    )
    if asked.threshold is not None and options["limit"] is not None:
        raise typer.BadParameter("--threshold: is the same as --limit; give one of them")
    job = _job(table, asked.table_format, asked.output, asked.output_format)
    if asked.summary is not None and job.writes(asked.summary):
        raise typer.BadParameter(f"--summary: {str(asked.summary)!r} is a file that --output writes; name another file")
    with interrupted_once() as raise_swallowed:
        # Arrow would import pandas with its first numbers, and would swallow an interrupt during the import.
        with suppress(ImportError):
            import_module("pandas")
        from tcpdelay.study.tables.columns import find_sources
        from tcpdelay.study.tables.files import column_names
        from tcpdelay.study.tables.rows import WorkingShares

        with _readable(job):
            names = column_names(job.source, job.source_format)
        if not names and table.is_dir():
            raise typer.BadParameter(f"TABLE: {str(table)!r} holds no .parquet")
        with argument_errors("--column"):
            sources = find_sources(names, _columns(asked.column or ()))
        if asked.decimal_comma:
            sources = {name: replace(column_of, decimal=",") for name, column_of in sources.items()}
        own = options.changed(limit=asked.threshold or options["limit"])
        with argument_errors():
            demand = replace(
                _demand(own, source, sources, _call(options.app, asked.codec, asked.mos)),
                max_seconds=asked.max_seconds,
                max_memory=asked.max_memory,
            )
        shares = WorkingShares(asked.group or (), asked.prefix)
        _run(job, demand, sources, shares, asked.cache, raise_swallowed)
    from tcpdelay.report.region_charts import chart_height, plot_working_shares, working_shares_table

    counted = working_shares_table(shares, _title(demand, sources))
    if asked.chart is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, chart_height(counted)), layout="constrained")
        plot_working_shares(counted, len(shares.by), figure.subplots())
        write_chart(asked.chart, figure, "--chart")
    write(rendered(counted, asked.summary_format), asked.summary, "--summary")


def _job(table: Path, table_format: TableFormat | None, output: Path | None, output_format: TableFormat | None) -> Job:
    """Return the files of the table and of the result."""
    from tcpdelay.study.tables.files import file_format
    from tcpdelay.study.tables.predict_many import Job

    if not table.exists():
        raise typer.BadParameter(f"TABLE: {str(table)!r} does not exist")
    with argument_errors("TABLE"):
        source_format = file_format(table, table_format or ("parquet" if table.is_dir() else None))
    if output is None:
        return Job(table, source_format)
    in_parts = output.is_dir() or not output.suffix
    if not in_parts:
        refuse_missing_folder(output, "--output")
    elif output.exists() and not output.is_dir():
        raise typer.BadParameter(f"--output: {str(output)!r} is a file; name a folder, or a file with a suffix")
    with argument_errors("--output"):
        return Job(
            table,
            source_format,
            output,
            file_format(output, output_format or ("parquet" if in_parts else None)),
            in_parts,
        )


def _call(app: Application | None, codec: str | None, mos: float | None) -> CallTarget | None:
    """Return the call of --mos and --codec; None without these options."""
    from tcpdelay.quality.voice import CallTarget

    if codec is None and mos is None:
        return None
    with argument_errors():
        return CallTarget(codec or (app.codec if app is not None else None) or "g711", mos)


def _demand(
    options: ScenarioOptions, source: SourceOptions, sources: Mapping[str, Source], call: CallTarget | None
) -> Demand:
    """Return the demand of all rows; options may be missing for quantities that the table has."""
    from tcpdelay.study.tables.columns import FLOW
    from tcpdelay.study.tables.rows import Demand

    in_table = [name for name in FLOW if name in sources]
    if varying := varying_source(options, source):
        if in_table:
            column = sources[in_table[0]].column
            raise typer.BadParameter(f"{varying}: does not go with a table that has the column {column!r}")
        chosen, stack, target = read_source(options, source)
        with argument_errors():
            return Demand(chosen, stack, target, call)
    for name, given in (("--bitrate", options.bitrate), ("--fps", options.fps)):
        if not in_table or given is None:
            continue
        raise typer.BadParameter(
            f"{name}: does not go with a table that has the column {sources[in_table[0]].column!r}"
        )
    if options.app is None:
        # These values are never used: every row has its own.
        size = 1 if "packet_size" in sources and options["packet_size"] is None else options["packet_size"]
        interval = 1.0 if "interval" in sources and options["interval"] is None else options["interval"]
        options = options.changed(packet_size=size, interval=interval)
    flow, stack, target = read_demand(options)
    with argument_errors():
        return Demand(flow, stack, target, call)


def _run(
    job: Job,
    demand: Demand,
    sources: Mapping[str, Source],
    shares: WorkingShares,
    cache: bool,
    raise_swallowed: Callable[[], None],
) -> None:
    """Predict the rows, and show the progress."""
    progress = _Progress()
    announce_prediction()
    try:
        with argument_errors(), _readable(job):
            from tcpdelay.study.tables.predict_many import run_job, unchecked_message

            def on_rows(rows: int) -> None:
                raise_swallowed()
                progress.rows_done(rows)

            def on_progress(done: int, total: int) -> None:
                raise_swallowed()
                progress.chains(done, total)

            raise_swallowed()
            predictor = run_job(job, demand, sources, shares, cached=cache, on_rows=on_rows, on_progress=on_progress)
    except KeyboardInterrupt:
        progress.end()
        print(f"tcpdelay batch: {_interrupted(job, cache)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    progress.end()
    if predictor.unchecked:
        print_warning(unchecked_message(predictor.unchecked, progress.rows))
    if shares.remarks:
        rows = sum(int(count[0]) for count in shares.counts.values())
        print_warning(_counted("have other figures than predict", shares.remarks, rows))
    if shares.reasons:
        print_warning(_refused(shares))


def _refused(shares: WorkingShares) -> str:
    """Return the number of rows without a prediction, the most frequent reasons, and the option that may help."""
    from tcpdelay.study.tables.columns import COMMA, QUANTITIES, reasons

    rows = sum(int(count[0]) for count in shares.counts.values())
    with_comma = any(reasons(quantity)[COMMA - 1] in shares.reasons for quantity in QUANTITIES.values())
    remedy = "; if it is a decimal comma, add --decimal-comma" if with_comma else ""
    return f"{_counted('have no prediction', shares.reasons, rows)}{remedy}"


def _counted(what: str, causes: Counter[str], rows: int) -> str:
    """Return how many of all rows are so, and the most frequent causes."""
    commonest = causes.most_common(MOST_REASONS)
    listed = "; ".join(f"{cause} ({count})" for cause, count in commonest)
    more = "; ..." if len(commonest) < len(causes) else ""
    return f"{causes.total()} of {rows} rows {what}: {listed}{more}"


def _interrupted(job: Job, cache: bool) -> str:
    kept = "; solved paths are kept for the next run" if cache else ""
    if job.target is None:
        return f"interrupted{kept}"
    if job.in_parts:
        return f"interrupted: {job.parts_done()} parts are complete, and the same command continues after them{kept}"
    return f"interrupted: {str(job.target)!r} has not been written{kept}"


@contextmanager
def _readable(job: Job) -> Iterator[None]:
    """Turn Arrow's errors about a file into one line."""
    import pyarrow as pa

    from tcpdelay.study.tables.files import OutputError, table_fault

    table = f"TABLE: {str(job.source)!r} cannot be read"
    try:
        yield
    except OutputError as error:
        raise typer.BadParameter(f"--output: {error}") from error
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise typer.BadParameter(f"{table}: {table_fault(job.source, job.source_format, error)}") from error


class _Progress(StatusLine):
    """Progress while a table is predicted."""

    def __init__(self) -> None:
        super().__init__(on_terminal=TERMINAL_INTERVAL)
        self._estimate = TimeLeft()
        self.rows = 0

    def rows_done(self, rows: int) -> None:
        """Show the number of rows predicted so far."""
        self.rows = rows
        self.show_text(f"{rows} rows, {rows / max(self.seconds, 1e-9):.3g} a second ...")

    def chains(self, done: int, total: int) -> None:
        """Show the number of chains solved so far, and about how long the other chains of these rows take."""
        rows = f"{self.rows} rows; " if self.rows else ""
        self.show_text(f"{rows}solving {done} of {total} chains{self._estimate.in_words(done, total)} ...")

    def end(self) -> None:
        """Erase the progress; after a long job, print the number of rows and the time."""
        seconds = self.seconds
        erase_progress()
        if seconds >= self._interval:
            print(f"{self.rows} rows in {seconds:.3g} s, {self.rows / seconds:.3g} a second", file=sys.stderr)


def _title(demand: Demand, sources: Mapping[str, Source]) -> str:
    """Return the demand in words; columns of the table take precedence over options."""
    from tcpdelay.units import format_time, quantile_name

    limit = "the limit of the row" if "limit" in sources else format_time(demand.target.limit)
    if demand.call is not None and demand.call.mos is not None:
        return f"MOS of at least {demand.call.mos:g}, played out after {limit}"
    quantile = "quantile of the row" if "quantile" in sources else quantile_name(demand.target.quantile)
    return f"{quantile} within {limit}"


class Region(Options, panel=OUTPUT):
    """The region that is solved ahead."""

    rtt: Range | None = range_option("rtt", "5ms..400ms")
    loss: Range | None = range_option("loss", "0.01%..10%", zero=True)
    left: Share | None = option("Share of the region that may be left unsolved.", "0.01%", zero=True)


@command(
    "Solve a region ahead, so that batch answers at full speed.",
    """
Examples:
  tcpdelay prepare --app voip --rtt 20ms..200ms --loss 0.1%..5%
  tcpdelay prepare --app voip
  tcpdelay prepare --packet-size 1200 --interval 20ms --limit 150ms --left 1%

Rows in this region are then answered at once, except in the share of --left.
The whole region takes a few minutes for voip, longer for larger packets.
Ctrl-C keeps all solved paths.
""",
    without=(*PATH_OPTIONS, "group"),
)
def prepare(options: ScenarioOptions, region: Region) -> None:
    """Solve the paths of a whole region ahead, and keep their answers for the tables of `tcpdelay batch`."""
    flow, stack, target = read_demand(options)
    from tcpdelay.study.tables.lattice import WORTH_PREPARING, prepare_surface

    line = StatusLine()
    try:
        with argument_errors(), interrupted_once() as raise_swallowed:

            def on_progress(share: float, chains: int) -> None:
                raise_swallowed()
                line.show(f"{chains} paths, {format_fraction(share)} left")

            prepared = prepare_surface(
                flow,
                stack,
                limit=target.limit,
                quantile=target.quantile,
                rtt=None if region.rtt is None else (region.rtt.low, region.rtt.high),
                loss=None if region.loss is None else (region.loss.low, region.loss.high),
                left=WORTH_PREPARING if region.left is None else region.left,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        erase_progress()
        print("tcpdelay prepare: interrupted; all solved paths are kept, and the next run continues", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    erase_progress()
    left_over = format_fraction(prepared.left)
    print(f"{left_over} of the region is left unsolved; the answers for {prepared.chains} paths are kept in")
    print(prepared.path)


# `tcpdelay sweep`: the chain or the simulator at every point of a grid, on this machine or on a Dask cluster.


class Sweep(Options):
    """Where a sweep runs, and its result."""

    output: Path | None = result_option("File of the result (netCDF); the specification may name it.", False, "FILE.nc")
    scheduler: str | None = option(
        "Scheduler of a Dask cluster. Example: tcp://127.0.0.1:8786.", "this machine", metavar="ADDRESS"
    )
    workers: int | None = option("Threads on this machine.", "one for each processor")
    dry_run: bool = option("Only print the number of points and the expected time.", default=False)


@command(
    "Ask the chain or the simulator at every point of a grid.",
    """
Examples:
  tcpdelay sweep examples/sweep.toml --dry-run
  tcpdelay sweep examples/sweep.toml -o sweep.nc
  tcpdelay sweep examples/sweep.toml -o sweep.nc --workers 1

A specification:
  [flow]
  packet_size = 174
  interval = "20ms"
  [grid]
  rtt = { from = "20ms", to = "200ms", points = 13, spacing = "log" }
  loss = ["1%", "2%"]
  [evaluate]
  method = "chain"

In place of [flow], any source that [grid] may vary:
  [source]
  kind = "video"
  bitrate = "500kbit/s"
  [grid]
  key_ratio = [4, 8]
  [evaluate]
  method = "simulation"

On a cluster: dask scheduler on one machine, dask worker on all, and then
  tcpdelay sweep examples/sweep.toml -o sweep.nc --scheduler tcp://HOST:8786
""",
)
def sweep(
    specification: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Fixed parameters and axes of the sweep.")],
    asked: Sweep,
) -> None:
    """Ask the chain or the simulator at every point of a grid. The same command continues an interrupted sweep."""
    from tcpdelay.study.sweep.run import result_file
    from tcpdelay.study.sweep.specification import read_sweep

    with argument_errors():
        try:
            grid = read_sweep(specification)
        except ValueError as error:
            raise ValueError(f"{error}; tcpdelay sweep --help shows a specification") from error
        if asked.dry_run:
            _print_cost(specification, grid)
            return
        file = result_file(grid, asked.output)
    if file is None:
        raise typer.BadParameter(
            f"--output: is missing, and {specification} names no file in [output]; write -o sweep.nc"
        )
    refuse_same_file([("SPECIFICATION", specification)], [("--output", file)])
    found = _swept(grid, file, asked)
    _warn_of_refusals(found)
    print(file)


def _swept(grid: SweepSpecification, file: Path, asked: Sweep) -> xr.Dataset:
    """Run the sweep and show its progress; if the sweep ends early, print how to continue."""
    from tcpdelay.study.execution import SweepFailedError
    from tcpdelay.study.sweep.run import DamagedCheckpointWarning, checkpoint_folder
    from tcpdelay.study.sweep.run import sweep as run_sweep

    line = StatusLine()
    last: list[Progress] = []
    warnings.simplefilter("always", DamagedCheckpointWarning)

    kept = f"finished runs are kept in {checkpoint_folder(file)}; the same command continues from there"
    try:
        with argument_errors(), interrupted_once() as raise_swallowed:

            def show(progress: Progress) -> None:
                raise_swallowed()
                last[:] = [progress]
                line.show(_sweep_line(progress))

            return run_sweep(grid, file, scheduler=asked.scheduler, workers=asked.workers, on_progress=show)
    except SweepFailedError as error:
        raise typer.BadParameter(f"{error}; {kept}") from error
    except KeyboardInterrupt:
        erase_progress()
        done = f"interrupted after {last[0].done} of {last[0].total} runs; " if last else "interrupted; "
        print(f"tcpdelay sweep: {done}{kept}", file=sys.stderr)
        raise
    finally:
        erase_progress()


def _sweep_line(progress: Progress) -> str:
    workers = "waiting for workers" if progress.workers == 0 else f"{progress.workers} at a time"
    left = "" if math.isnan(progress.seconds_left) else f", about {format_duration(progress.seconds_left)} left"
    return f"sweeping: {progress.done} of {progress.total} runs, {workers}{left}"


def _warn_of_refusals(found: xr.Dataset) -> None:
    refused = int((found.refused > 0).sum())
    if refused:
        first = str(found.refusals.values[1])
        print_warning(f"{refused} of {found.refused.size} runs were refused, the first because {first}")


def _print_cost(file: Path, asked: SweepSpecification) -> None:
    from tcpdelay.study.execution import processors
    from tcpdelay.study.sweep.run import estimated_cost

    with predicting():
        cost = estimated_cost(asked)
    grid = " x ".join(f"{len(axis.values)} {axis.name}" for axis in asked.axes)
    times = "" if asked.evaluation.replications == 1 else f", {asked.evaluation.replications} times each"
    print(f"{file}: {grid} = {asked.points} points{times}, by {asked.evaluation.method}")
    refused = f"; {cost.refused} refused" if cost.refused else ""
    print(
        f"{cost.tried} tried here: {format_time(cost.mean)} each on average, {format_time(cost.least)} to "
        f"{format_time(cost.most)}{refused}"
    )
    print(
        f"all: about {format_duration(cost.total)} of one processor, "
        f"{format_duration(cost.total / processors())} on the {processors()} here, and {cost.size / 1e6:.3g} MB"
    )
