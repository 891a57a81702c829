"""`tcpdelay region`: up to which loss a flow works, over a range of round-trip times."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.budget import MOST_SECONDS
from tcpdelay.cli.errors import argument_errors, counting_down, predicting, print_warning
from tcpdelay.cli.options import (
    OUTPUT,
    PATH_OPTIONS,
    MaxMemory,
    MaxSeconds,
    Range,
    ScenarioOptions,
    application_option,
    chart_option,
    format_option,
    make_option,
    method_option,
    number,
    output_option,
    path_preset_option,
    range_option,
    stacks_option,
    with_scenario,
)
from tcpdelay.cli.output import (
    format_by_suffix,
    refuse_missing_folder,
    refuse_other_than_chart,
    refuse_same_file,
    rendered,
    write,
    write_atomically,
    write_chart,
)
from tcpdelay.cli.scenario import NO_SOURCE, SourceOptions, read_demands, read_source, varying_source, with_source
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.path_presets import WARNING
from tcpdelay.scenario.stack import checked_profile
from tcpdelay.units import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tcpdelay.delays import DelayDistribution
    from tcpdelay.report.region_charts import Edge
    from tcpdelay.scenario.sources.message_stream import Source
    from tcpdelay.scenario.stack import KnownStack, StackName
    from tcpdelay.scenario.target import Target

Format = Literal["text", "csv", "json", "netcdf"]
BEST = "best"
FEWEST_POINTS, MOST_POINTS = 2, 500
CALLS = "How a call is rated"
SUMMARY = "Show up to which loss a flow works, by round-trip time."
EXAMPLES = """
\b
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

\b
The table has the largest loss that works at each round-trip time, to 1 %.
A .nc file and a chart have the delays at --points values of RTT and loss.
With several --app or --stack, a chart has only the edges of the regions.
"""


def _parse_playout(text: str, name: str) -> float | str:
    """Return a playout delay [s], or the word for the best playout delay."""
    return BEST if text == BEST else parse_time(text, name)


@partial(with_scenario, left_out=(*PATH_OPTIONS, "app", "stack"))
@with_source
def region(
    options: ScenarioOptions,
    source: SourceOptions = NO_SOURCE,
    app: Annotated[list[Application] | None, application_option(" Give several to compare them.")] = None,
    stack: Annotated[list[Any] | None, stacks_option("Give both to compare them.")] = None,
    path: Annotated[
        list[Any] | None,
        path_preset_option("Mark this path in the chart; may be repeated. Its jitter and bad states are left out."),
    ] = None,
    rtt: Annotated[Range | None, range_option("rtt", "10ms..400ms")] = None,
    loss: Annotated[Range | None, range_option("loss", "0.1%..10%")] = None,
    codec: Annotated[
        str | None,
        make_option(
            "--codec",
            CALLS,
            "Rate calls with this codec (E-model): g711, g729a, opus-wb-15 ...",
            "that of --app, or g711, in .nc and with --fill mos",
            metavar="NAME",
        ),
    ] = None,
    playout: Annotated[
        Any,
        make_option(
            "--playout",
            CALLS,
            "Playout delay of a call, from write to playout; best maximises the score.",
            "the target's limit",
            metavar="TIME|best",
            parser=partial(_parse_playout, name="--playout"),
        ),
    ] = None,
    points: Annotated[int, number("--points", OUTPUT, "Number of points in each range.")] = 40,
    output_format: Annotated[
        Format | None,
        format_option("Output format; csv and json hold seconds and fractions, netcdf the delays over rtt and loss."),
    ] = None,
    method: Annotated[
        AnsweredBy,
        method_option(
            ", and the simulator where the chain is too large. The delays of a chart or .nc file are the chain's for "
            "packets of one size and interval; other sources are simulated, which takes minutes.",
            answers="Model of the edge",
        ),
    ] = "auto",
    max_seconds: MaxSeconds = MOST_SECONDS,
    max_memory: MaxMemory = None,
    output: Annotated[Path | None, output_option(".nc, .csv, .json or .txt")] = None,
    chart: Annotated[Path | None, chart_option("the region, or the edges of several regions")] = None,
    fill: Annotated[
        Literal["delay", "mos"],
        make_option("--fill", OUTPUT, "Quantity shown by the colours of a chart of one region."),
    ] = "delay",
    measured: Annotated[
        Path | None,
        make_option(
            "--measured",
            OUTPUT,
            "Mark measurements in the chart: .csv or .parquet with the columns rtt and loss, and works or p95.",
            False,
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Find the largest loss at which a flow meets its target, over a range of round-trip times."""
    refuse_other_than_chart(chart, "--chart")
    chosen = output_format or format_by_suffix(output, Format)
    refuse_same_file([("--measured", measured)], [("--output", output), ("--chart", chart)])
    refuse_missing_folder(output, "--output")
    if chosen == "netcdf" and output is None:
        raise typer.BadParameter("--format: netcdf needs --output, such as -o region.nc")
    if not FEWEST_POINTS <= points <= MOST_POINTS:
        raise typer.BadParameter(f"--points: must lie between {FEWEST_POINTS} and {MOST_POINTS}, got {points}")
    demands = _demands(options, source, app or (), stack or ())
    for option, given in (("--format: netcdf", chosen == "netcdf"), ("--fill: mos", fill == "mos")):
        if given and len(demands) > 1:
            raise typer.BadParameter(f"{option} is of one flow over one stack, got {len(demands)} of them")
    for option, given in (("--measured", measured is not None), ("--fill: mos", fill == "mos"), ("--path", bool(path))):
        if given and chart is None:
            raise typer.BadParameter(f"{option}: needs --chart, such as --chart region.svg")
    rated = codec is not None or playout is not None
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
        points_measured = None if measured is None else read_measured(measured)
    with argument_errors():
        if codec is not None:
            from tcpdelay.quality.voice import codec_named

            codec_named(codec)
    ends = {"rtt": rtt or Range(SHORTEST_RTT, LONGEST_RTT), "loss": loss or Range(LOWEST_LOSS, HIGHEST_LOSS)}
    grid: dict[str, Any] = {name: np.geomspace(own.low, own.high, points) for name, own in ends.items()}
    allowed: dict[str, Any] = {"max_seconds": max_seconds, "max_memory": max_memory}
    usual = usual_codec(app[0].name if app else None)
    call: dict[str, Any] = {"codec": codec or usual, "playout_delay": playout or "limit"}
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
                method=method,
            )
            edges.append(_with_delays(Edge(own.app.name if own.app else None, own.stack or "", boundary), allowed))
    if chosen == "netcdf" or (chart is not None and len(edges) == 1):
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
    if chart is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5), layout="constrained")
        if len(edges) == 1:
            ax = plot_region(cells, edges[0].boundary, figure.subplots(), fill=fill)
        else:
            ax = plot_boundaries({edge.name(edges): edge.boundary for edge in edges}, figure.subplots())
        if points_measured is not None:
            targets = {edge.boundary.target for edge in edges}
            works = points_measured.meets(targets.pop()) if len(targets) == 1 else points_measured.works
            mark_measured(ax, points_measured.rtt, points_measured.loss, works)
        if path:
            mark_paths(ax, path)
            print_warning(WARNING)
        write_chart(chart, figure, "--chart")
    if chosen != "netcdf":
        write(rendered(edge_table(edges, call if rated else None), chosen), output)
    elif output is not None:
        write_atomically(output, bytes(cells.to_netcdf(engine="scipy")), "--output")


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
