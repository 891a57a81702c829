"""`tcpdelay sweep`: the chain or the simulator at every point of a grid, on this machine or on a Dask cluster."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcpdelay.cli.errors import (
    StatusLine,
    argument_errors,
    erase_progress,
    interrupted_once,
    predicting,
    print_warning,
)
from tcpdelay.cli.options import result_option
from tcpdelay.cli.output import refuse_same_file
from tcpdelay.units import format_duration, format_time

if TYPE_CHECKING:
    import xarray as xr

    from tcpdelay.study.execution import Progress
    from tcpdelay.study.sweep.specification import SweepSpecification

SUMMARY = "Ask the chain or the simulator at every point of a grid."
EXAMPLES = """
\b
Examples:
  tcpdelay sweep examples/sweep.toml --dry-run
  tcpdelay sweep examples/sweep.toml -o sweep.nc
  tcpdelay sweep examples/sweep.toml -o sweep.nc --workers 1

\b
A specification:
  [flow]
  packet_size = 174
  interval = "20ms"
  [grid]
  rtt = { from = "20ms", to = "200ms", points = 13, spacing = "log" }
  loss = ["1%", "2%"]
  [evaluate]
  method = "chain"

\b
In place of [flow], any source that [grid] may vary:
  [source]
  kind = "video"
  bitrate = "500kbit/s"
  [grid]
  key_ratio = [4, 8]
  [evaluate]
  method = "simulation"

\b
On a cluster: dask scheduler on one machine, dask worker on all, and then
  tcpdelay sweep examples/sweep.toml -o sweep.nc --scheduler tcp://HOST:8786
"""


def sweep(
    specification: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Fixed parameters and axes of the sweep.")],
    output: Annotated[
        Path | None,
        result_option("File of the result (netCDF); the specification may name it.", False, "FILE.nc", None),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Scheduler of a Dask cluster. Example: tcp://127.0.0.1:8786.",
            show_default="this machine",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Threads on this machine.", show_default="one for each processor"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the number of points and the expected time.")
    ] = False,
) -> None:
    """Ask the chain or the simulator at every point of a grid. The same command continues an interrupted sweep."""
    from tcpdelay.study.sweep.run import result_file
    from tcpdelay.study.sweep.specification import read_sweep

    with argument_errors():
        try:
            asked = read_sweep(specification)
        except ValueError as error:
            raise ValueError(f"{error}; tcpdelay sweep --help shows a specification") from error
        if dry_run:
            _print_cost(specification, asked)
            return
        file = result_file(asked, output)
    if file is None:
        raise typer.BadParameter(
            f"--output: is missing, and {specification} names no file in [output]; write -o sweep.nc"
        )
    refuse_same_file([("SPECIFICATION", specification)], [("--output", file)])
    found = _swept(asked, file, scheduler, workers)
    _warn_of_refusals(found)
    print(file)


def _swept(asked: SweepSpecification, file: Path, scheduler: str | None, workers: int | None) -> xr.Dataset:
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
                line.show(_progress_line(progress))

            return run_sweep(asked, file, scheduler=scheduler, workers=workers, on_progress=show)
    except SweepFailedError as error:
        raise typer.BadParameter(f"{error}; {kept}") from error
    except KeyboardInterrupt:
        erase_progress()
        done = f"interrupted after {last[0].done} of {last[0].total} runs; " if last else "interrupted; "
        print(f"tcpdelay sweep: {done}{kept}", file=sys.stderr)
        raise
    finally:
        erase_progress()


def _progress_line(progress: Progress) -> str:
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
