"""`tcpdelay region`: up to which loss a flow works, over a range of round-trip times."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.errors import argument_errors
from tcpdelay.cli.files import format_by_suffix, refuse_other_than_chart, write_atomically, write_chart
from tcpdelay.cli.options import (
    OUTPUT,
    PATH,
    PATH_OPTIONS,
    ScenarioOptions,
    chart_option,
    format_option,
    output_option,
    with_scenario,
)
from tcpdelay.cli.progress import ERASE_LINE, counting, predicting
from tcpdelay.cli.scenario import read_demand
from tcpdelay.units import parse_fraction, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import xarray as xr
    from numpy.typing import NDArray

    from tcpdelay.applications import Target
    from tcpdelay.region.boundary import WorkingBoundary
    from tcpdelay.report.result_table import ResultTable
    from tcpdelay.scenario import Flow
    from tcpdelay.validity import KnownStack

Format = Literal["text", "csv", "json", "netcdf"]

SUFFIXES: dict[str, Format] = {".txt": "text", ".csv": "csv", ".json": "json", ".nc": "netcdf"}
BETWEEN = ".."
FEWEST_POINTS, MOST_POINTS = 2, 500
FILE_WIDTH = 100
SUMMARY = "Show up to which loss a flow works, by round-trip time."
EXAMPLES = """
\b
Examples:
  tcpdelay region --app voip
  tcpdelay region --app game --rtt 20ms..150ms --loss 0.1%..5% --points 8
  tcpdelay region --app voip --stack newreno_2008 --points 20 --format csv
  tcpdelay region --app voip --points 20 --chart region.svg
  tcpdelay region --app voip --points 20 -o region.nc

\b
A table has the largest loss that works at each round-trip time, to 1 %.
A file in .nc and a chart have all delays over both, at as many points.
"""


@dataclass(frozen=True)
class Range:
    """Two ends of a range, in seconds or as fractions."""

    low: float
    high: float


def parse_range(text: str, name: str, parse: Callable[..., float]) -> Range:
    """Read two quantities with `..` between them.

    Raises
    ------
    ValueError
        If there are not two, or the second is not the larger one.

    Examples
    --------
    >>> parse_range("10ms..400ms", "--rtt", parse_time)
    Range(low=0.01, high=0.4)
    >>> parse_range("2%", "--loss", parse_fraction)
    Traceback (most recent call last):
    ValueError: --loss: '2%' is no range; write two values with .. between them
    """
    first, between, last = text.partition(BETWEEN)
    if not between:
        raise ValueError(f"{name}: {text[:64]!r} is no range; write two values with {BETWEEN} between them")
    low, high = parse(first, name), parse(last, name)
    if not low < high:
        raise ValueError(f"{name}: in {text[:64]!r} the first value is not below the second")
    return Range(low, high)


def _range(
    name: str, parse: Callable[..., float], metavar: str, description: str, default: str
) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        name,
        parser=partial(parse_range, name=name, parse=parse),
        metavar=f"{metavar}{BETWEEN}{metavar}",
        help=description,
        rich_help_panel=PATH,
        show_default=default,
    )
    return option


@partial(with_scenario, left_out=PATH_OPTIONS)
def region(
    options: ScenarioOptions,
    rtt: Annotated[
        Range | None, _range("--rtt", parse_time, "TIME", "Range of the round-trip time.", "10ms..400ms")
    ] = None,
    loss: Annotated[
        Range | None,
        _range(
            "--loss",
            partial(parse_fraction, allow_zero=False),
            "SHARE",
            "Range of the share of the segments that is lost.",
            "0.1%..10%",
        ),
    ] = None,
    points: Annotated[
        int, typer.Option("--points", metavar="NUMBER", help="Points in each range.", rich_help_panel=OUTPUT)
    ] = 40,
    output_format: Annotated[
        Format | None,
        format_option("csv and json hold seconds and fractions; netcdf holds the delays over both."),
    ] = None,
    output: Annotated[
        Path | None,
        output_option(".nc, .csv, .json or .txt"),
    ] = None,
    chart: Annotated[
        Path | None,
        chart_option("the region"),
    ] = None,
) -> None:
    """Find the largest loss at which a flow meets its target, over a range of round-trip times."""
    refuse_other_than_chart(chart, "--chart")
    chosen = output_format or format_by_suffix(output, SUFFIXES)
    if chosen == "netcdf" and output is None:
        raise typer.BadParameter("--format: netcdf needs --output, such as -o region.nc")
    if not FEWEST_POINTS <= points <= MOST_POINTS:
        raise typer.BadParameter(f"--points: must lie between {FEWEST_POINTS} and {MOST_POINTS}, got {points}")
    flow, stack, target = read_demand(options)
    from tcpdelay.region.question import HIGHEST_LOSS, LONGEST_RTT, LOWEST_LOSS, SHORTEST_RTT

    rtts = _points(rtt or Range(SHORTEST_RTT, LONGEST_RTT), points)
    losses = _points(loss or Range(LOWEST_LOSS, HIGHEST_LOSS), points)
    boundary, cells = _computed(flow, stack, target, rtts, losses, chosen, chart is not None)
    if chart is not None and cells is not None:
        from matplotlib.figure import Figure

        from tcpdelay.report.region_charts import plot_region

        figure = Figure(figsize=(8, 5), layout="constrained")
        plot_region(cells, boundary, figure.subplots())
        write_chart(chart, figure, "--chart")
    content = _netcdf(cells) if chosen == "netcdf" and cells is not None else _rendered(boundary, chosen).encode()
    if output is not None:
        write_atomically(output, content, "--output")
    else:
        print(content.decode(), end="")


def _points(ends: Range, points: int) -> NDArray[np.float64]:
    import numpy as np

    return np.geomspace(ends.low, ends.high, points)


def _computed(
    flow: Flow,
    stack: KnownStack,
    target: Target,
    rtts: NDArray[np.float64],
    losses: NDArray[np.float64],
    chosen: Format,
    charted: bool,
) -> tuple[WorkingBoundary, xr.Dataset | None]:
    """Return the boundary, and the region where it is needed."""
    from tcpdelay.region.boundary import working_boundary
    from tcpdelay.region.dataset import working_region

    asked: dict[str, Any] = {"rtt": rtts, "loss": losses, "threshold": target.limit, "quantile": target.quantile}
    try:
        with argument_errors(), predicting():
            what = "round-trip times"
            boundary = working_boundary(flow, stack, **asked, on_progress=counting("Searching", what))
            if not charted and chosen != "netcdf":
                return boundary, None
            return boundary, working_region(flow, stack, **asked, on_progress=counting("Solving", what))
    finally:
        if sys.stderr.isatty():
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)


def _netcdf(cells: xr.Dataset) -> bytes:
    return bytes(cells.to_netcdf(engine="scipy"))


def _rendered(boundary: WorkingBoundary, chosen: Format) -> str:
    table = _table(boundary)
    if chosen == "csv":
        return table.to_csv()
    if chosen == "json":
        return json.dumps(table.to_records(), indent=2) + "\n"
    from rich.console import Console

    page = io.StringIO()
    width = max(Console().width, 80) if sys.stdout.isatty() else FILE_WIDTH
    table.print_text(Console(file=page, width=width, force_terminal=False, color_system=None))
    return page.getvalue().rstrip("\n") + "\n"


def _table(boundary: WorkingBoundary) -> ResultTable:
    from tcpdelay.chain.model import DelayModel
    from tcpdelay.report.phrases import quantile_name
    from tcpdelay.report.result_table import Column, ResultTable
    from tcpdelay.units import format_rate, format_time

    flow, target = boundary.flow, boundary.target
    rows = []
    for i, (rtt, works, fails) in enumerate(
        zip(boundary.at.tolist(), boundary.works_up_to.tolist(), boundary.fails_from.tolist(), strict=True)
    ):
        delay = None
        if not math.isnan(works):
            model = DelayModel(flow, boundary.path(i, works), boundary.stack)
            delay = model.delay_distribution().quantile(target.quantile)
        rows.append({"rtt": rtt, "works_up_to": works, "fails_from": fails, "quantile_there": delay})
    columns = (
        Column("rtt", "round-trip time", "time"),
        Column("works_up_to", "works up to a loss of", "fraction"),
        Column("fails_from", "fails from", "fraction"),
        Column("quantile_there", f"{quantile_name(target.quantile)} at the edge", "time"),
    )
    title = (
        f"{flow.packet_size} bytes every {format_time(flow.interval)} ({format_rate(flow.bitrate)}): "
        f"{quantile_name(target.quantile)} within {format_time(target.limit)}"
    )
    note = (
        "The edge is the first failure on the way up, to 1 %.\n"
        "Without an edge, the smallest loss of the range fails, or the largest one works."
    )
    return ResultTable("region", title, columns, rows, note)
