"""`tcpdelay predict`: the delay distribution in a few numbers, or as a chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from tcpdelay.budget import MOST_SECONDS
from tcpdelay.cli.errors import argument_errors, counting, predicting, print_warning
from tcpdelay.cli.options import (
    OUTPUT,
    MaxMemory,
    MaxSeconds,
    ScenarioOptions,
    chart_option,
    make_option,
    number,
    with_scenario,
)
from tcpdelay.cli.output import refuse_other_than_chart, refuse_same_file, write_chart
from tcpdelay.cli.scenario import NO_SOURCE, SourceOptions, measurements, read_scenario, with_source
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import AnsweredBy, predict_with_warning
from tcpdelay.report.prediction import (
    draw_prediction,
    not_settled_record,
    not_settled_text,
    prediction_record,
    prediction_text,
)
from tcpdelay.report.result_table import record_text
from tcpdelay.units import format_fraction, format_time, told_apart

if TYPE_CHECKING:
    from tcpdelay.sim.simulation import Simulation

Format = Literal["text", "json", "csv"]
FORMAT_HELP = (
    "Output format; json and csv hold seconds, bytes, bit/s and fractions. Infinite: null in json, inf in csv."
)

SUMMARY = "Predict the delay distribution in a few numbers."
EXAMPLES = """
\b
Examples:
  tcpdelay predict --rtt 100ms --loss 2% --app voip
  tcpdelay predict --rtt 60ms --loss 0.5% --packet-size 160 --interval 20ms
  tcpdelay predict --rtt 60ms --loss 0.5% --bitrate 300kbit/s --format csv
  tcpdelay predict --rtt 80ms --loss 2% --app voip --jitter 5ms
  tcpdelay predict --rtt 60ms --loss 0.2% --bitrate 1Mbit/s --key-ratio 8
  tcpdelay predict --path transatlantic --loss 1% --app voip
  tcpdelay predict --rtt 100ms --loss 2% --app voip --chart delays.svg
"""


@with_scenario
@with_source
def predict(
    options: ScenarioOptions,
    source: SourceOptions = NO_SOURCE,
    output_format: Annotated[Format, make_option("--format", OUTPUT, FORMAT_HELP)] = "text",
    method: Annotated[
        AnsweredBy,
        make_option(
            "--method",
            OUTPUT,
            "Model: the chain, the simulator, or auto: the chain where its expected error is below 10 % and the "
            "rate is not near the capacity, else the simulator.",
        ),
    ] = "auto",
    packets: Annotated[
        int | None,
        number(
            "--packets",
            OUTPUT,
            "Number of simulated packets.",
            "until the 95th percentile is known to 2 %, at most 20 million",
        ),
    ] = None,
    max_seconds: MaxSeconds = MOST_SECONDS,
    max_memory: MaxMemory = None,
    chart: Annotated[Path | None, chart_option("the distribution")] = None,
) -> None:
    """Predict the delay from write to in-order read: mean, jitter, quantiles, and the share of late packets."""
    # Imported here, because the help waits for no NumPy.
    from tcpdelay.ask import NotSettledError
    from tcpdelay.scenario.scenario import Scenario

    refuse_other_than_chart(chart, "--chart")
    refuse_same_file([*measurements(options), *source.files], [("--chart", chart)])
    scenario = read_scenario(options, source)
    asked = (scenario.source, scenario.path, scenario.target)
    progress = counting("Simulating", "packets at most")
    with argument_errors():
        with predicting():
            answer = predict_with_warning(
                Scenario(scenario.source, scenario.path, scenario.stack),
                method,
                packets,
                progress,
                max_seconds,
                max_memory,
            )
        if packets is not None and answer.method == "chain":
            allowed = "be left out unless something is simulated (method 'chain')"
            raise InvalidValueError("packets", packets, allowed, "--method simulation simulates")
        because = answer.simulated_because
        if isinstance(answer.refusal, NotSettledError) and chart is None:
            if output_format == "text":
                print(not_settled_text(scenario.source, scenario.path, answer.refusal, because), end="")
            else:
                record = not_settled_record(*asked, answer.refusal, because)
                print(record_text(scenario.preset_record | record, output_format), end="")
            return
        distribution = answer.require()
    if packets is None and distribution.method == "simulation":
        warn_of_precision(cast("Simulation", distribution))
    if chart is not None:
        write_chart(chart, draw_prediction(distribution, scenario.target.limit), "--chart")
    if output_format == "text":
        print(prediction_text(*asked, distribution, because), end="")
    else:
        record = prediction_record(*asked, distribution, because)
        print(record_text(scenario.preset_record | record, output_format), end="")


def warn_of_precision(found: Simulation) -> None:
    """Warn on stderr if a simulation ended before it reached its precision."""
    from tcpdelay.sim.simulation import HALF_WIDTH

    reached = found.quantile_interval
    if reached.relative_half_width > HALF_WIDTH and found.sustainable:
        precision, required = told_apart(format_fraction, reached.relative_half_width, HALF_WIDTH)
        print_warning(
            f"after {found.packets} packets the 95th percentile is known to {precision} only, not to {required}: "
            f"{format_time(reached.low)} to {format_time(reached.high)}; "
            f"--packets {5 * found.packets} would tell more"
        )
