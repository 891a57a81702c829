"""Delays in a few numbers, or as a chart: `tcpdelay predict`, `relay` through a relay, `exchange` of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from tcpdelay.cli.errors import argument_errors, counting, option_name, predicting, print_warning
from tcpdelay.cli.options import (
    FLOW,
    FLOW_OPTIONS,
    OTHER_STACKS,
    PATH,
    TRANSPORT,
    ScenarioOptions,
    Share,
    Size,
    Time,
    chart_option,
    command,
    memory_option,
    method_option,
    option,
    seconds_option,
)
from tcpdelay.cli.output import Destination, write_chart
from tcpdelay.cli.scenario import RequestedScenario, SourceOptions, measurements, read_path, read_scenario
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import AnsweredBy, predict_with_warning
from tcpdelay.report.prediction import (
    draw_prediction,
    exchange_record,
    exchange_text,
    kind_record,
    not_settled_record,
    not_settled_text,
    prediction_record,
    prediction_text,
    relay_record,
    relay_rows,
    relay_text,
)
from tcpdelay.report.result_table import record_text, to_csv, to_json
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import format_fraction, format_time, told_apart

if TYPE_CHECKING:
    from tcpdelay.advice.judged_delays import Alternative
    from tcpdelay.sim.simulation import Simulation

# `tcpdelay predict`: the delay distribution in a few numbers, or as a chart.

Format = Literal["text", "json", "csv"]


def number_format_option() -> Any:
    """Return the option for the format of a result that is text or numbers."""
    return option(
        "Output format; json and csv hold seconds, bytes, bit/s and fractions. Infinite: null in json, inf in csv.",
        default="text",
        name="--format",
    )


class PredictionOutput(Destination):
    """How a prediction is made and written."""

    output_format: Format = number_format_option()
    method: AnsweredBy = method_option(
        " where its expected error is below 10 % and the rate is not near the capacity, else the simulator."
    )
    packets: int | None = option(
        "Number of simulated packets.", "until the 95th percentile is known to 2 %, at most 20 million"
    )
    max_seconds: float = seconds_option()
    max_memory: Size | None = memory_option()
    chart: Path | None = chart_option("the distribution")


@command(
    "Predict the delay distribution in a few numbers.",
    """
Examples:
  tcpdelay predict --rtt 100ms --loss 2% --app voip
  tcpdelay predict --rtt 60ms --loss 0.5% --packet-size 160 --interval 20ms
  tcpdelay predict --rtt 60ms --loss 0.5% --bitrate 300kbit/s --format csv
  tcpdelay predict --rtt 80ms --loss 2% --app voip --jitter 5ms
  tcpdelay predict --rtt 60ms --loss 0.2% --bitrate 1Mbit/s --key-ratio 8
  tcpdelay predict --path transatlantic --loss 1% --app voip
  tcpdelay predict --rtt 100ms --loss 2% --app voip --chart delays.svg
""",
)
def predict(options: ScenarioOptions, source: SourceOptions, result: PredictionOutput) -> None:
    """Predict the delay from write to in-order read: mean, jitter, quantiles, and the share of late packets."""
    # Imported here, because the help waits for no NumPy.
    from tcpdelay.ask import NotSettledError
    from tcpdelay.scenario.scenario import Scenario

    chosen = result.checked_format(Format, *measurements(options), *source.files)
    scenario = read_scenario(options, source)
    asked = (scenario.source, scenario.path, scenario.target)
    progress = counting("Simulating", "packets at most")
    with argument_errors():
        with predicting():
            answer = predict_with_warning(
                Scenario(scenario.source, scenario.path, scenario.stack),
                result.method,
                result.packets,
                progress,
                result.max_seconds,
                result.max_memory,
            )
        if result.packets is not None and answer.method == "chain":
            allowed = "be left out unless something is simulated (method 'chain')"
            raise InvalidValueError("packets", result.packets, allowed, "--method simulation simulates")
        because = answer.simulated_because
        if isinstance(answer.refusal, NotSettledError) and result.chart is None:
            if chosen == "text":
                print(not_settled_text(scenario.source, scenario.path, answer.refusal, because), end="")
            else:
                record = not_settled_record(*asked, answer.refusal, because)
                print(record_text(scenario.preset_record | record, chosen), end="")
            return
        distribution = answer.require()
    if result.packets is None and distribution.method == "simulation":
        warn_of_precision(cast("Simulation", distribution))
    if result.chart is not None:
        write_chart(result.chart, draw_prediction(distribution, scenario.target.limit), "--chart")
    with argument_errors(), predicting():
        kind = paths_of_kind(scenario, distribution.method, progress)
    if chosen == "text":
        print(prediction_text(*asked, distribution, because, kind), end="")
    else:
        record = prediction_record(*asked, distribution, because)
        print(record_text(scenario.preset_record | kind_record(kind) | record, chosen), end="")


def paths_of_kind(
    scenario: RequestedScenario, method: str, progress: Callable[[int, int], None] | None
) -> tuple[Alternative, ...]:
    """Return the predictions for the best and the worst path of a preset's kind, by the model of the prediction."""
    if scenario.path_preset is None:
        return ()
    from tcpdelay.advice.judged_delays import over_kind
    from tcpdelay.models.predict import COMPARED_PACKETS, packets_to_count, simulator
    from tcpdelay.scenario.scenario import Scenario

    asked = Scenario(scenario.source, scenario.path, scenario.stack)
    simulated = simulator(packets_to_count(asked, COMPARED_PACKETS), progress)
    return over_kind(asked, scenario.target, scenario.path_preset, simulated if method == "simulation" else "chain")


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


# `tcpdelay relay`: the delay through a relay that ends TCP on one side, or on both.

Transport = Literal["tcp", "udp"]
STACK_FIELDS = {field.name for field in fields(Linux)}


class Relay(Destination):
    """The second leg, the transports of both legs, and the output."""

    second_rtt: Time = option("Round-trip time of the second leg. Example: 80ms.", False, default=..., panel=PATH)
    second_loss: Share = option(
        "Probability that a segment or datagram is lost on the second leg. Example: 1%.",
        False,
        default=...,
        panel=PATH,
        zero=True,
    )
    first: Transport = option(
        "Transport of the first leg, whose path is --rtt and --loss.", default="tcp", panel=TRANSPORT
    )
    second: Transport = option("Transport of the second leg.", default="tcp", panel=TRANSPORT)
    buffer: Size | None = option(
        "Buffer of the relay towards a second leg over TCP. If it is full, messages from UDP are dropped, and "
        "messages from TCP wait. Example: 64kB.",
        "no limit",
        panel=TRANSPORT,
    )
    packets: int | None = option("Number of simulated messages.", "100000")
    output_format: Format = number_format_option()
    chart: Path | None = chart_option("the distribution")


@command(
    "Simulate two legs with a relay between them.",
    """
Examples:
  tcpdelay relay --app voip --rtt 40ms --loss 1% --first udp \\
      --second-rtt 80ms --second-loss 2% --buffer 100kB
  tcpdelay relay --app voip --rtt 80ms --loss 2% \\
      --second-rtt 40ms --second-loss 1% --second udp
  tcpdelay relay --bitrate 2Mbit/s --key-ratio 8 --rtt 30ms --loss 0.1% \\
      --second-rtt 60ms --second-loss 0.5%
""",
)
def relay(options: ScenarioOptions, source: SourceOptions, given: Relay) -> None:
    """Simulate messages that a relay reads from one connection, or from UDP, and writes to another.

    The options of the path describe the first leg. The options of TCP hold for both legs.
    """
    # Imported here, because the help waits for no NumPy.
    from tcpdelay.sim.network.relay import simulate_relay
    from tcpdelay.sim.network.stacks import Udp

    chosen = given.checked_format(Format, *measurements(options), *source.files)
    if given.first == given.second == "udp":
        for name in options.values:
            if name in STACK_FIELDS:
                raise typer.BadParameter(f"{option_name(name)}: does not go with UDP on both legs")
    scenario = read_scenario(options, source)
    with argument_errors("--second-rtt"):
        onward = NetworkPath(given.second_rtt, 0.0)
    with argument_errors("--second-loss"):
        onward = NetworkPath(given.second_rtt, given.second_loss)
    stacks = {"tcp": scenario.stack, "udp": Udp()}
    legs = (scenario.path, stacks[given.first]), (onward, stacks[given.second])
    size = None if given.buffer is None else int(given.buffer)
    with argument_errors(), predicting():
        found = simulate_relay(
            scenario.source, *legs, buffer=size, packets=given.packets, quantile=scenario.target.quantile
        )
    if given.chart is not None and found.delays is not None:
        write_chart(given.chart, draw_prediction(found.delays, scenario.target.limit), "--chart")
    if chosen == "text":
        print(relay_text(scenario.source, *legs, scenario.target, found), end="")
    else:
        record = relay_record(scenario.source, *legs, scenario.target, found)
        print(to_json(record) if chosen == "json" else to_csv(relay_rows(record)), end="")


# `tcpdelay exchange`: how long a request and its response take.


class Exchange(Destination):
    """The exchanged messages, and the output."""

    request_size: Size = option("Size of a request. Example: 800B.", False, default=..., panel=FLOW)
    response_size: Size = option("Size of a response. Example: 40kB.", False, default=..., panel=FLOW)
    think_time: Time | None = option("From a response to the next request.", "0s", panel=FLOW, zero=True)
    answer_time: Time | None = option("From a request to its response, at the server.", "0s", panel=FLOW, zero=True)
    writes: int = option("Number of writes of each message.", "1", default=1, panel=FLOW)
    exchanges: int = option("Number of simulated exchanges.", "40000", default=40_000)
    seed: int = option("Seed of the random numbers.", "0", default=0)
    output_format: Format = number_format_option()
    chart: Path | None = chart_option("the distribution")


@command(
    "Simulate requests and responses, one after the other.",
    """
Examples:
  tcpdelay exchange --rtt 10ms --loss 1% --request-size 800B --response-size 800B
  tcpdelay exchange --rtt 10ms --loss 1% --request-size 800B --response-size 800B --writes 2
  tcpdelay exchange --rtt 80ms --loss 1% --request-size 300B --response-size 40kB \\
      --think-time 1s --answer-time 50ms --format json
""",
    without=(*FLOW_OPTIONS, *OTHER_STACKS),
)
def exchange(options: ScenarioOptions, given: Exchange) -> None:
    """Simulate a client that asks, waits for the whole response, and asks again.

    --loss holds for both directions; --ack-loss gives the direction of the responses a loss of its own. --limit and
    --quantile are about the time from the write of a request to the read of its response.
    """
    # Imported here, because the help waits for no NumPy.
    from tcpdelay.sim.exchanges import simulate_exchanges

    chosen = given.checked_format(Format, *measurements(options))
    path, stack, target = read_path(options)
    if options["ack_loss"] is None:
        path = replace(path, ack_loss=path.loss)
    sizes = int(given.request_size), int(given.response_size)
    with argument_errors(), predicting():
        found = simulate_exchanges(
            *sizes,
            path,
            stack,
            think_time=given.think_time or 0.0,
            answer_time=given.answer_time or 0.0,
            writes=given.writes,
            exchanges=given.exchanges,
            seed=given.seed,
            quantile=target.quantile,
        )
    if given.chart is not None:
        write_chart(given.chart, draw_prediction(found, target.limit, "exchanges"), "--chart")
    if chosen == "text":
        print(exchange_text(path, sizes, target, found), end="")
    else:
        print(record_text(exchange_record(path, sizes, target, found), chosen), end="")
