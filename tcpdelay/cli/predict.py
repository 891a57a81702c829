"""`tcpdelay predict`: the delay distribution in a few numbers, or as a chart."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from tcpdelay.cli.errors import argument_errors, counting, predicting, print_warning
from tcpdelay.cli.options import OUTPUT, ScenarioOptions, chart_option, with_scenario
from tcpdelay.cli.output import refuse_other_than_chart, refuse_same_file, write_chart
from tcpdelay.cli.scenario import Scenario, measurements, read_scenario
from tcpdelay.models.predict import AnsweredBy, predict_delay
from tcpdelay.units import format_fraction, format_rate, format_time, told_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.distribution import DelayDistribution, ExpectedError
    from tcpdelay.models.simulator.simulation import Simulation

Format = Literal["text", "json", "csv"]

SUMMARY = "Predict the delay distribution in a few numbers."
EXAMPLES = """
\b
Examples:
  tcpdelay predict --rtt 100ms --loss 2% --app voip
  tcpdelay predict --rtt 60ms --loss 0.5% --packet-size 160 --interval 20ms
  tcpdelay predict --rtt 60ms --loss 0.5% --bitrate 300kbit/s --format csv
  tcpdelay predict --rtt 80ms --loss 2% --app voip --stack linux --method auto
  tcpdelay predict --rtt 100ms --loss 2% --app voip --chart delays.svg
"""


@with_scenario
def predict(
    options: ScenarioOptions,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="json and csv hold seconds, bytes, bit/s and fractions; infinite is null in json, inf in csv.",
            rich_help_panel=OUTPUT,
        ),
    ] = "text",
    method: Annotated[
        AnsweredBy,
        typer.Option(
            "--method",
            help="The chain, a simulation, or the chain where its expected error is below 10 % and else a simulation.",
            rich_help_panel=OUTPUT,
        ),
    ] = "chain",
    packets: Annotated[
        int | None,
        typer.Option(
            "--packets",
            metavar="NUMBER",
            help="Packets of a simulation; by default until the 95th percentile is known to 2 %, 20 million at most.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    chart: Annotated[
        Path | None,
        chart_option("the distribution"),
    ] = None,
) -> None:
    """Predict the delay from write to in-order read: mean, jitter, quantiles, and the share that comes late."""
    refuse_other_than_chart(chart, "--chart")
    refuse_same_file(measurements(options), [("--chart", chart)])
    scenario = read_scenario(options)
    with argument_errors(), predicting():
        distribution = predict_delay(
            scenario.flow,
            scenario.path,
            scenario.stack,
            method=method,
            packets=packets,
            on_progress=counting("Simulating", "packets at most"),
        )
    if packets is None and distribution.method == "simulation":
        warn_of_precision(cast("Simulation", distribution))
    if chart is not None:
        write_chart(chart, draw(distribution, scenario.target.limit), "--chart")
    if output_format == "text":
        print_text(scenario, distribution)
    else:
        print_record(record(scenario, distribution), output_format)


def warn_of_precision(found: Simulation) -> None:
    """Say on stderr if a simulation ended before it was as precise as it should be."""
    from tcpdelay.models.simulator.simulation import HALF_WIDTH

    reached = found.quantile_interval
    if reached.relative_half_width > HALF_WIDTH and found.sustainable:
        precision, wanted = told_apart(format_fraction, reached.relative_half_width, HALF_WIDTH)
        print_warning(
            f"after {found.packets} packets the 95th percentile is known to {precision} only, not to {wanted}: "
            f"{format_time(reached.low)} to {format_time(reached.high)}; "
            f"--packets {5 * found.packets} would tell more"
        )


def record(scenario: Scenario, distribution: DelayDistribution) -> dict[str, Any]:
    """Return scenario and prediction as one flat row, in seconds, bytes, bit/s and fractions."""
    from tcpdelay.advice.guideline import REPORTED_QUANTILES

    flow, path, target = scenario.flow, scenario.path, scenario.target
    return {
        "rtt": path.rtt,
        "loss": path.loss,
        "packet_size": flow.packet_size,
        "interval": flow.interval,
        "bitrate": flow.bitrate,
        "limit": target.limit,
        "quantile": target.quantile,
        "mean": distribution.mean,
        "jitter": distribution.jitter,
        **{f"p{100 * q:g}": distribution.quantile(q) for q in REPORTED_QUANTILES},
        "target_quantile": distribution.quantile(target.quantile),
        "late_fraction": distribution.late_fraction(target.limit),
        "sustainable": distribution.sustainable,
        "method": distribution.method,
        **expected_errors(distribution.expected_error),
    }


def expected_errors(error: ExpectedError | None) -> dict[str, Any]:
    """Return the expected error of a prediction by name, as fractions; None where it is not known."""
    row: dict[str, Any] = {
        "expected_error_source": error and error.source,
        "expected_error_cases": error and error.cases,
    }
    for quantity, spread in (("p95", error), ("mean", error and error.mean_delay)):
        for statistic in ("median", "mean", "p90"):
            size = math.nan if spread is None else float(getattr(spread, statistic))
            row[f"expected_error_{quantity}_{statistic}"] = None if math.isnan(size) else size
    return row


def print_record(row: dict[str, Any], output_format: Literal["json", "csv"]) -> None:
    """Print one row as a JSON object, or as CSV with a header."""
    if output_format == "json":
        print(json.dumps({key: None if value == math.inf else value for key, value in row.items()}, indent=2))
        return
    table = csv.DictWriter(sys.stdout, row, lineterminator="\n")
    table.writeheader()
    table.writerow(row)


def print_text(scenario: Scenario, distribution: DelayDistribution) -> None:
    """Print the prediction for people."""
    from tcpdelay.advice.guideline import REPORTED_QUANTILES
    from tcpdelay.models.accuracy import in_words

    flow, path, target = scenario.flow, scenario.path, scenario.target
    rows = [("mean", format_time(distribution.mean)), ("jitter", format_time(distribution.jitter))]
    for q in sorted({*REPORTED_QUANTILES, target.quantile}):
        rows.append((f"{format_fraction(q)} come within", format_time(distribution.quantile(q))))
    late = format_fraction(distribution.late_fraction(target.limit))
    rows.append((f"later than {format_time(target.limit)}", late))
    rows.append(("sustainable", "yes" if distribution.sustainable else "no: the backlog grows for ever"))
    print(
        f"{flow.packet_size} bytes every {format_time(flow.interval)} ({format_rate(flow.bitrate)}), "
        f"round-trip time {format_time(path.rtt)}, loss {format_fraction(path.loss)}"
    )
    error = distribution.expected_error
    rows.append(("method", distribution.method))
    rows.append(("expected error", "not known" if error is None else in_words(error)))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:<{width}}  {value}")


def draw(distribution: DelayDistribution, limit: float) -> Figure:
    """Return the chart of a distribution with a mark at `limit` [s]."""
    from matplotlib.figure import Figure

    from tcpdelay.report.charts import plot_distribution

    figure = Figure(layout="constrained")
    plot_distribution(distribution, figure.subplots(), thresholds={"limit": limit})
    return figure
