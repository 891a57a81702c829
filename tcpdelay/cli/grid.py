"""Grids of round-trip time and loss: `tcpdelay region`, the tables of `playout`, and the page of `explore`."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer

from tcpdelay.cli.options import (
    FLOW,
    OUTPUT,
    PATH,
    PATH_OPTIONS,
    TRANSPORT,
    Destination,
    Options,
    Range,
    ScenarioOptions,
    Size,
    application_option,
    chart_option,
    command,
    format_option,
    memory_option,
    method_option,
    option,
    output_option,
    path_preset_option,
    range_option,
    result_option,
    seconds_option,
    stacks_option,
)
from tcpdelay.cli.output import (
    announce_prediction,
    argument_errors,
    counting,
    counting_down,
    erase_progress,
    interrupted_once,
    predicting,
    print_warning,
    refuse_directory,
    refuse_missing_folder,
    rendered,
    write,
    write_atomically,
    write_chart,
)
from tcpdelay.cli.scenario import SourceOptions, read_demands, read_source, varying_source
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.scenario.path import WARNING
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.scenario import APPLICATIONS, Application, Scenario, application
from tcpdelay.scenario.stack import DEFAULT_PROFILE, CongestionControl, checked_profile
from tcpdelay.units import parse_fraction, parse_time

if TYPE_CHECKING:
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.report.answers import TitledTable
    from tcpdelay.report.region_charts import Edge
    from tcpdelay.scenario.path import PathPreset
    from tcpdelay.scenario.scenario import Target
    from tcpdelay.scenario.source import Source
    from tcpdelay.scenario.stack import KnownStack, StackName

# `tcpdelay region`: up to which loss a flow works, over a range of round-trip times.

RegionFormat = Literal["text", "csv", "json", "netcdf"]
BEST = "best"
FEWEST_POINTS, MOST_POINTS = 2, 500
CALLS = "How a call is rated"


def _parse_playout(text: str, name: str) -> float | str:
    """Return a playout delay [s], or the word for the best playout delay."""
    return BEST if text == BEST else parse_time(text, name)


class Region(Destination):
    """What a region is asked about, and how it is written."""

    app: list[Application] | None = application_option(" Give several to compare them.")
    stack: list[Any] | None = stacks_option("Give both to compare them.")
    path: list[Any] | None = path_preset_option(
        "Mark this path in the chart; may be repeated. Its jitter and bad states are left out."
    )
    rtt: Range | None = range_option("rtt", "10ms..400ms")
    loss: Range | None = range_option("loss", "0.1%..10%")
    codec: str | None = option(
        "Rate calls with this codec (E-model): g711, g729a, opus-wb-15 ...",
        "that of --app, or g711, in .nc and with --fill mos",
        panel=CALLS,
        metavar="NAME",
    )
    playout: Any = option(
        "Playout delay of a call, from write to playout; best maximises the score.",
        "the target's limit",
        panel=CALLS,
        metavar="TIME|best",
        parse=partial(_parse_playout, name="--playout"),
    )
    points: int = option("Number of points in each range.", default=40)
    output_format: RegionFormat | None = format_option(
        "Output format; csv and json hold seconds and fractions, netcdf the delays over rtt and loss."
    )
    method: AnsweredBy = method_option(
        ", and the simulator where the chain is too large. The delays of a chart or .nc file are the chain's for "
        "packets of one size and interval; other sources are simulated, which takes minutes.",
        answers="Model of the edge",
    )
    max_seconds: float = seconds_option()
    max_memory: Size | None = memory_option()
    output: Path | None = output_option(".nc, .csv, .json or .txt")
    chart: Path | None = chart_option("the region, or the edges of several regions")
    fill: Literal["delay", "mos"] = option("Quantity shown by the colours of a chart of one region.", default="delay")
    measured: Path | None = option(
        "Mark measurements in the chart: .csv or .parquet with the columns rtt and loss, and works or p95."
    )


@command(
    "Show up to which loss a flow works, by round-trip time.",
    """
Examples:
  tcpdelay region --app voip
  tcpdelay region --app game --rtt 20ms..150ms --loss 0.1%..5% --points 8
  tcpdelay region --app voip --stack newreno_2008 --points 20 --format csv
  tcpdelay region --app voip --points 20 --chart region.svg
  tcpdelay region --app voip --points 20 --path lte --chart paths.svg
  tcpdelay region --app voip --points 20 -o region.nc
  tcpdelay region --app voip --app game --points 20 --chart edges.svg
  tcpdelay region --app voip --stack linux --stack newreno_2008 --points 8
  tcpdelay region --app voip --codec g729a --playout best --points 8

The table has the largest loss that works at each round-trip time, to 1 %.
A .nc file and a chart have the delays at --points values of RTT and loss.
With several --app or --stack, a chart has only the edges of the regions.
""",
    without=(*PATH_OPTIONS, "app", "stack"),
)
def region(options: ScenarioOptions, source: SourceOptions, asked: Region) -> None:
    """Find the largest loss at which a flow meets its target, over a range of round-trip times."""
    chosen = asked.checked_format(RegionFormat, ("--measured", asked.measured))
    if chosen == "netcdf" and asked.output is None:
        raise typer.BadParameter("--format: netcdf needs --output, such as -o region.nc")
    if not FEWEST_POINTS <= asked.points <= MOST_POINTS:
        raise typer.BadParameter(f"--points: must lie between {FEWEST_POINTS} and {MOST_POINTS}, got {asked.points}")
    demands = _demands(options, source, asked.app or (), asked.stack or ())
    of_one = {"--format: netcdf": chosen == "netcdf", "--fill: mos": asked.fill == "mos"}
    for name in (name for name, given in of_one.items() if given and len(demands) > 1):
        raise typer.BadParameter(f"{name} is of one flow over one stack, got {len(demands)} of them")
    of_chart = {"--measured": asked.measured, "--fill: mos": asked.fill == "mos", "--path": asked.path}
    for name in (name for name, given in of_chart.items() if given and asked.chart is None):
        raise typer.BadParameter(f"{name}: needs --chart, such as --chart region.svg")
    rated = asked.codec is not None or asked.playout is not None
    import numpy as np

    from tcpdelay.ask import solved_once
    from tcpdelay.report.region_charts import (
        Edge,
        edge_table,
        mark_measured,
        mark_paths,
        plot_boundaries,
        plot_region,
    )
    from tcpdelay.study.boundary import working_boundary
    from tcpdelay.study.grid import HIGHEST_LOSS, LONGEST_RTT, LOWEST_LOSS, SHORTEST_RTT
    from tcpdelay.study.region import read_measured, usual_codec, working_region

    with argument_errors("--measured"):
        points_measured = None if asked.measured is None else read_measured(asked.measured)
    with argument_errors():
        if asked.codec is not None:
            from tcpdelay.quality.voice import codec_named

            codec_named(asked.codec)
    ends = {
        "rtt": asked.rtt or Range(SHORTEST_RTT, LONGEST_RTT),
        "loss": asked.loss or Range(LOWEST_LOSS, HIGHEST_LOSS),
    }
    grid: dict[str, Any] = {name: np.geomspace(own.low, own.high, asked.points) for name, own in ends.items()}
    allowed: dict[str, Any] = {"max_seconds": asked.max_seconds, "max_memory": asked.max_memory}
    usual = usual_codec(asked.app[0].name if asked.app else None)
    call: dict[str, Any] = {"codec": asked.codec or usual, "playout_delay": asked.playout or "limit"}
    edges = []
    for own, flow, carried_by, target in demands:
        with argument_errors(), predicting(), solved_once():
            boundary = working_boundary(
                flow,
                carried_by,
                **grid,
                **allowed,
                limit=target.limit,
                quantile=target.quantile,
                on_progress=counting_down("Searching", "round-trip times"),
                method=asked.method,
            )
            edges.append(_with_delays(Edge(own.app.name if own.app else None, own.stack or "", boundary), allowed))
    if chosen == "netcdf" or (asked.chart is not None and len(edges) == 1):
        with argument_errors(), predicting():
            cells = working_region(
                boundary.flow,
                boundary.stack,
                **grid,
                **allowed,
                **call,
                limit=boundary.target.limit,
                quantile=boundary.target.quantile,
                on_progress=counting_down("Solving", "round-trip times"),
            )
    if asked.chart is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5), layout="constrained")
        if len(edges) == 1:
            ax = plot_region(cells, edges[0].boundary, figure.subplots(), fill=asked.fill)
        else:
            ax = plot_boundaries({edge.name(edges): edge.boundary for edge in edges}, figure.subplots())
        if points_measured is not None:
            targets = {edge.boundary.target for edge in edges}
            works = points_measured.meets(targets.pop()) if len(targets) == 1 else points_measured.works
            mark_measured(ax, points_measured.rtt, points_measured.loss, works)
        if asked.path:
            mark_paths(ax, asked.path)
            print_warning(WARNING)
        write_chart(asked.chart, figure, "--chart")
    if chosen != "netcdf":
        write(rendered(edge_table(edges, call if rated else None), chosen), asked.output)
    elif asked.output is not None:
        write_atomically(asked.output, bytes(cells.to_netcdf(engine="scipy")), "--output")


def _demands(
    options: ScenarioOptions, source: SourceOptions, apps: Sequence[Application], stacks: Sequence[StackName]
) -> list[tuple[ScenarioOptions, Source, KnownStack, Target]]:
    """Return the options and the demand of each application over each stack, or of the source."""
    own = options.changed(app=next(iter(apps), None), stack=next(iter(stacks), None))
    varying = varying_source(own, source)
    if not varying:
        return [*read_demands(options, apps, stacks)]
    if max(len(apps), len(stacks)) > 1:
        raise typer.BadParameter(f"{varying}: goes with one --app and one --stack")
    return [(own, *read_source(own, source))]


def _with_delays(edge: Edge, allowed: dict[str, Any]) -> Edge:
    """Return an edge with the delays at each point that has an answer within what one may take."""
    from tcpdelay.ask import Requested
    from tcpdelay.models.predict import model_to_compare, predict
    from tcpdelay.scenario.scenario import Scenario

    boundary = edge.boundary
    requested = Requested(target=boundary.target, **allowed)  # As in the search: no point is simulated again

    def delays(place: int, loss: float) -> DelayDistribution | None:
        scenario = Scenario(boundary.flow, boundary.path(place, loss), checked_profile(boundary.stack))
        method: AnsweredBy = "simulation" if boundary.simulated[place] else "chain"
        return predict(scenario, requested, model_to_compare(scenario, method)).distribution

    found = [None if math.isnan(loss) else delays(i, loss) for i, loss in enumerate(boundary.works_up_to.tolist())]
    return replace(edge, delays=found)


# `tcpdelay playout`: the playout buffer at every round-trip time and loss of a table.

PlayoutFormat = Literal["text", "markdown", "html", "json", "csv"]
RTTS, LOSSES = "20ms,50ms,100ms,200ms,300ms", "0.1%,0.5%,1%,2%,5%"
"""Round-trip times and losses of a table by default."""


def _values(text: str, name: str, parse: Callable[[str, str], float]) -> tuple[float, ...]:
    """Read values with commas between them."""
    return tuple(parse(part, name) for part in text.split(","))


class PlayoutTables(Destination):
    """What a table of playout buffers is asked about, and how it is written."""

    app: list[Application] | None = application_option(" May be repeated: each makes a table.")
    congestion_control: list[Any] | None = option(
        "Congestion control of the sender. May be repeated: each makes a table.",
        "cubic",
        panel=TRANSPORT,
        words=get_args(CongestionControl),
    )
    rtt: Any = option(
        "Round-trip times, with commas between them.",
        default=RTTS,
        panel=PATH,
        metavar="TIMES",
        parse=partial(_values, name="--rtt", parse=parse_time),
    )
    loss: Any = option(
        "Losses of data segments, with commas between them.",
        default=LOSSES,
        panel=PATH,
        metavar="SHARES",
        parse=partial(_values, name="--loss", parse=parse_fraction),
    )
    method: AnsweredBy = method_option(
        ", and the simulator where the chain has no answer or an expected error of 10 % or more.",
        answers="Model of each cell",
    )
    max_seconds: float = seconds_option()
    max_memory: Size | None = memory_option()
    output_format: PlayoutFormat | None = format_option(
        "Output format; csv and json hold a row for each cell, in seconds and fractions."
    )
    output: Path | None = output_option(".html, .md, .csv, .json or .txt")


@command(
    "Make a table of playout buffers by round-trip time and loss.",
    """
Examples:
  tcpdelay playout --app voip
  tcpdelay playout --app voip --rtt 40ms,80ms --loss 1%,2% -o wall.html
  tcpdelay playout --app voip --congestion-control cubic \\
      --congestion-control reno --method chain -o wall.md
  tcpdelay playout --app game --method chain --format csv

The buffer is the delay within which the application's share of packets
arrives, less the one-way delay. "solve playout" answers for one path.
""",
    without=(*PATH_OPTIONS, "app", "congestion_control"),
)
def playout(options: ScenarioOptions, context: typer.Context, asked: PlayoutTables) -> None:
    """Make a table of playout buffers by round-trip time and loss, for each application and congestion control."""
    from tcpdelay.report.answers import long_table, to_markdown, to_page, to_text

    chosen = asked.checked_format(PlayoutFormat)
    # None stands for an option that was not given: the other options then say what is sent, or over which TCP.
    apps: list[Application | None] = [*dict.fromkeys(asked.app or ())] or [None]
    controls: list[CongestionControl | None] = [*dict.fromkeys(asked.congestion_control or ())] or [None]
    titled = [
        _playout_table(options.changed(app=each, congestion_control=control), asked)
        for each, control in product(apps, controls)
    ]
    made_by = shlex.join(["tcpdelay", *context.obj])
    render: dict[PlayoutFormat, Callable[[], str]] = {
        "text": lambda: to_text(titled),
        "markdown": lambda: to_markdown(titled, made_by),
        "html": lambda: to_page(titled, made_by),
        "json": lambda: long_table(titled).to_json(),
        "csv": lambda: long_table(titled).to_csv(),
    }
    write(render[chosen](), asked.output)


def _playout_table(options: ScenarioOptions, asked: PlayoutTables) -> TitledTable:
    """Return the table of one application over one stack."""
    from tcpdelay.report.answers import TitledTable
    from tcpdelay.study.playout import playout_table

    source, stack, target = read_source(options)
    app = options.app.name if options.app else None
    with argument_errors(), predicting():
        scenario = Scenario(source, NetworkPath(asked.rtt[0], asked.loss[0]), stack, target)
        table = playout_table(
            scenario,
            asked.rtt,
            asked.loss,
            asked.method,
            asked.max_seconds,
            asked.max_memory,
            on_progress=counting_down("Predicting", f"paths of {app or 'the flow'}"),
        )
    return TitledTable(app, getattr(stack, "congestion_control", options.stack or DEFAULT_PROFILE), table)


# `tcpdelay explore`: a page with sliders that works without a server.

Points = Literal["coarse", "fine"]

ALL = "all"
DEFAULT = "voip"
DEFAULT_POINTS: Points = "fine"
SUFFIXES = (".html", ".htm")
OFFERED = [preset for preset in APPLICATIONS.values() if preset.constant_rate or preset.video]
"""Applications of a constant rate, and videos, which the page takes as a constant rate and says so."""
NAMES = [*(preset.name for preset in OFFERED), ALL]


def _applications(name: str) -> tuple[Application, ...]:
    """Return the applications that a page has, by the value of --app."""
    if name == ALL:
        return tuple(preset.at_constant_rate for preset in OFFERED)
    if name not in NAMES:
        raise typer.BadParameter(f"must be one of {', '.join(NAMES[:-1])} or {ALL}, got {name!r}")
    return (application(name).at_constant_rate,)


class Explorer(Options, panel=OUTPUT):
    """What the page is asked about, and its file."""

    app: Any = option(
        "A typical application: its packets and its target.",
        DEFAULT,
        panel=FLOW,
        metavar="|".join(NAMES),
        parse=_applications,
        words=NAMES,
    )
    path: Any = path_preset_option(
        "The path at which the page opens, one of tcpdelay paths: its mean RTT and its loss."
    )
    points: Points | None = option("Spacing of the points that are predicted; the page interpolates.", DEFAULT_POINTS)
    output: Path = result_option("File of the page.", True, default=Path("explorer.html"))


@command(
    "Write a page with sliders for paths and bitrates.",
    """
Examples:
  tcpdelay explore --points coarse
  tcpdelay explore --path lte --points coarse
  tcpdelay explore --app game --points coarse -o game.html

The page is one file for any browser. It needs no server and no network.
Fine points take about a minute for voip and much longer for live-video.
""",
)
def explore(asked: Explorer) -> None:
    """Write a page with sliders for round-trip time, loss and bitrate: what works, and the delays."""
    path, output = asked.path, asked.output
    refuse_directory(output, "--output")
    if output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"--output: {str(output)!r} does not end in one of {', '.join(SUFFIXES)}")
    refuse_missing_folder(output, "--output")
    from tcpdelay.report.html import in_range

    if path is not None and not in_range(path):
        raise typer.BadParameter(f"--path: the page has no round-trip time or loss as that of {path.name}")
    if asked.app is None and asked.points is None:
        print(
            f"predicting {DEFAULT}, {DEFAULT_POINTS} points, for {output}; --app chooses another application, "
            "--points coarse is quicker, --help has examples",
            file=sys.stderr,
        )
    page = _page(asked.app or _applications(DEFAULT), asked.points or DEFAULT_POINTS, path).encode()
    write_atomically(output, page, "--output")
    print(f"{output}: {len(page) / 1e6:.1f} MB, for any browser")


def _page(applications: Sequence[Application], points: Points, path: PathPreset | None) -> str:
    announce_prediction()
    try:
        # The processes that predict end with this one, and release what they share.
        with interrupted_once():
            from tcpdelay.report.html import to_html
            from tcpdelay.study.explorer import COARSE, FINE, compute_surfaces, measure_accuracy

            grid, processes = {"coarse": COARSE, "fine": FINE}[points], os.cpu_count() or 1
            explored = []
            for chosen in applications:
                show = counting("Predicting", f"points for {chosen.name}")
                surfaces = compute_surfaces(chosen, grid, processes, show)
                show = counting("Checking", f"points for {chosen.name}")
                explored.append((surfaces, measure_accuracy(surfaces, processes=processes, on_progress=show)))
            return to_html(explored, path)
    finally:
        erase_progress()
