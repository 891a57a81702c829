"""Delays on one path: `tcpdelay predict`, `relay` through a relay, `exchange` of requests, `compare` of transports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from tcpdelay.cli.options import (
    FLOW,
    FLOW_OPTIONS,
    OTHER_STACKS,
    PATH,
    TRANSPORT,
    Destination,
    Rate,
    ScenarioOptions,
    Share,
    Size,
    Time,
    VaryingLink,
    chart_option,
    command,
    declared_parameter,
    format_option,
    memory_option,
    method_option,
    option,
    output_option,
    read_varying_link,
    seconds_option,
)
from tcpdelay.cli.output import argument_errors, counting, option_name, predicting, print_warning, write, write_chart
from tcpdelay.cli.scenario import RequestedScenario, SourceOptions, measurements, read_path, read_scenario
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import AnsweredBy, predict_with_warning
from tcpdelay.report.document import record_text, to_csv, to_json
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
from tcpdelay.scenario.path import BURST, CAPACITY, DISCIPLINE, LONGEST_QUEUE, PEAK_RATE, QUEUE_TARGET, RATE
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import format_fraction, format_time, told_apart

if TYPE_CHECKING:
    from tcpdelay.advice.judged_delays import Alternative
    from tcpdelay.sim.network.bottleneck import Bottleneck
    from tcpdelay.sim.network.sources import Source
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
        "Number of simulated packets.",
        "until the 95th percentile is known to 2 %, with a backlog to 16 %; at most 20 million",
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
    from tcpdelay.models.predict import COMPARED_PACKETS, simulator

    asked = Scenario(scenario.source, scenario.path, scenario.stack)
    simulated = simulator(COMPARED_PACKETS, progress)
    return over_kind(asked, scenario.target, scenario.path_preset, simulated if method == "simulation" else "chain")


def warn_of_precision(found: Simulation) -> None:
    """Warn on stderr if a simulation ended before it reached its precision."""
    from tcpdelay.sim.simulation import HALF_WIDTH

    reached = found.quantile_interval
    if not reached.relative_half_width > HALF_WIDTH or not found.sustainable:
        return
    precision, required = told_apart(format_fraction, reached.relative_half_width, HALF_WIDTH)
    known = f"known to {precision} only, not to {required}: {format_time(reached.low)} to {format_time(reached.high)}"
    if math.isnan(reached.low):
        known = "of unknown precision, as all delays depend on each other"
    more = 5 * found.packets
    available = None if found.scenario is None else found.scenario[0].message_count
    is_enough = available is None or more <= available
    hint = f"--packets {more} would tell more" if is_enough else "--period repeats the file"
    print_warning(f"after {found.packets} packets the 95th percentile is {known}; {hint}")


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
    with argument_errors(), predicting():
        found = simulate_relay(
            scenario.source, *legs, buffer=given.buffer, packets=given.packets, quantile=scenario.target.quantile
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
    sizes = given.request_size, given.response_size
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


# `tcpdelay compare`: transports and heuristics side by side.

ComparisonFormat = Literal["text", "markdown", "html", "json", "csv"]
FULL_PACKET = 1500
"""Packet size for the default length of the queue [bytes]."""
FEWEST_QUEUED = 10
"""Smallest default length of the queue [packets]."""
LINK = "The shared link"
_OF_LINK = {
    "link": ("rate", replace(RATE, default_words="unlimited")),
    "queue": (
        "capacity",
        replace(
            CAPACITY,
            high=LONGEST_QUEUE,
            unit="packets",
            details="Of codel, fq_codel, pie, cake and dualpi2 1 to 10 240 packets.",
            default_words="one bandwidth-delay product, 10 packets or more; for codel, fq_codel, pie, cake and dualpi2 "
            "that of Linux; none for a policer",
        ),
    ),
    "discipline": (
        "discipline",
        replace(
            DISCIPLINE,
            meaning=f"{DISCIPLINE.meaning} The transports of the literature are left out with codel, fq_codel, pie, "
            "cake and dualpi2, which do not go with --link-trace or --outage.",
        ),
    ),
    "queue_target": ("target", QUEUE_TARGET),
    "burst": ("burst", replace(BURST, default_words="none")),
    "peak_rate": ("peak_rate", PEAK_RATE),
}
"""The options of the shared link: the argument of `Bottleneck` and the declaration of each."""


class SharedLink(VaryingLink, panel=LINK):
    """The options of the shared link; those of its trace follow its rate."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the parameters of a command for the shared link."""
        rate, *others = (
            declared_parameter(name, declaration, LINK, shown=declaration.default_words)
            for name, (_, declaration) in _OF_LINK.items()
        )
        return [rate, *super().parameters(), *others]


class Comparison(Destination):
    """The other flows on the link, the contenders, and how the comparison is written."""

    bulk: int = option("Number of long transfers on the link.", default=0, panel=LINK)
    web: int = option("Number of web users on the link.", default=0, panel=LINK)
    cbr: Rate | None = option("Bitrate of a datagram flow on the link.", "none", panel=LINK)
    parity: int = option(
        "Parity datagrams per packet, for a further contender over UDP (forward error correction): "
        "a packet is lost if more of its datagrams than this number are.",
        default=0,
        panel="The contenders",
    )
    duration: Time | None = option(
        "Simulated time of each transport.", "as long as a million packets take; less on fast links"
    )
    seed: int = option("Seed of the random numbers.", default=0)
    output_format: ComparisonFormat | None = format_option(
        "Output format; json and csv hold seconds, bit/s and fractions."
    )
    output: Path | None = output_option(".html, .md, .csv, .json or .txt")
    chart: Path | None = chart_option("the delays")
    max_seconds: float = seconds_option()


@command(
    "Compare transports and heuristics on one path.",
    """
Examples:
  tcpdelay compare --rtt 100ms --loss 2% --app voip
  tcpdelay compare --rtt 60ms --loss 0.5% --app voice-agent --chart ways.svg
  tcpdelay compare --rtt 100ms --loss 2% --app voip --parity 1
  tcpdelay compare --path home-bufferbloat --app voip --duration 2min
  tcpdelay compare --rtt 50ms --loss 0% --app voip \\
      --link-trace examples/link-traces/lte.up --bulk 1
  tcpdelay compare --rtt 60ms --loss 0.2% --bitrate 1Mbit/s --key-ratio 8
  tcpdelay compare --rtt 100ms --loss 0% --app voip --link 3Mbit/s --bulk 2 \\
      --web 10 --duration 5min -o ways.html

The path's own losses are random. A shared link adds those of its queue;
beside one, --loss may be left out, and the path loses nothing.
""",
    without=OTHER_STACKS,
)
def compare(options: ScenarioOptions, source: SourceOptions, link: SharedLink, asked: Comparison) -> None:
    """Simulate TCP, what applications can do on top of it, and other transports, each carrying the same flow."""
    shared, bulk = link.values, asked.bulk
    link_trace = shared["link_trace"]
    if shared["link"] is not None and link_trace is not None:
        raise typer.BadParameter("--link and --link-trace: give one of them")
    if (shared["outage_every"] is None) != (shared["outage"] is None):
        raise typer.BadParameter("--outage-every and --outage: give both or none")
    chosen = asked.checked_format(ComparisonFormat, *measurements(options), *source.files, ("--link-trace", link_trace))
    shares_link = shared["link"] is not None or link_trace is not None
    path_is_known = options.path is not None or any(file for _, file in measurements(options))
    if shares_link and not path_is_known:
        # The queue of the link has losses of its own.
        options = options.changed(loss=options["loss"] or 0.0)
    scenario = read_scenario(options, source)
    scenario, bulk, mean_jitter = _with_preset(scenario, options, shared, bulk)
    shares_link = shared["link"] is not None or link_trace is not None  # A preset may have a link
    if not shares_link:
        others = {"bulk": bulk, "web": asked.web, "cbr": asked.cbr}
        for name, given in ({name: shared[name] for name in ("outage", *_OF_LINK)} | others).items():
            if given is not None and given != 0:
                raise typer.BadParameter(f"{option_name(name)}: needs --link or --link-trace, the link that is shared")
    with argument_errors():
        bottleneck = _link(shared, scenario) if shares_link else None
        sources = _others(scenario, bottleneck, bulk, asked.web, asked.cbr)
        from tcpdelay.study.transports import compare as compare_transports

        with predicting():
            found = compare_transports(
                scenario.source,
                scenario.path,
                scenario.stack,
                scenario.target,
                link=bottleneck,
                others=sources,
                duration=asked.duration,
                seed=asked.seed,
                parity=asked.parity,
                application=scenario.application,
                path_preset=scenario.path_preset,
                max_seconds=asked.max_seconds,
                on_progress=counting("Simulating", "ways"),
            )
    from tcpdelay.report.transports import comparison_figure, rendered

    comparison = replace(found, mean_jitter=mean_jitter)
    if asked.chart is not None:
        write_chart(asked.chart, comparison_figure(comparison), "--chart")
    write(rendered(comparison, chosen), asked.output)


def _with_preset(
    scenario: RequestedScenario, options: ScenarioOptions, shared: dict[str, Any], bulk: int
) -> tuple[RequestedScenario, int, float]:
    """Return the scenario and the long transfers of the link as the preset has them; put the preset's link in `shared`.

    The queue of the preset's link replaces the delays that stand for it. The mean of other jitter [s] is returned too.
    """
    preset, path, mean = scenario.path_preset, scenario.path, 0.0
    own = None if preset is None else preset.link
    if own is not None and "rtt" not in options.values:
        loss, jitter = options["loss"] or 0.0, options["jitter"] or 0.0
        path = path.without_jitter(rtt=own.rtt, one_way_delay=own.rtt / 2, loss=loss, jitter=jitter)
        if shared["link_trace"] is None:
            shared["link"] = shared["link"] or own.rate
        shared["queue"] = own.queue if shared["queue"] is None else shared["queue"]
        shared["discipline"] = shared["discipline"] or own.discipline
        bulk = bulk or own.bulk
    elif preset is not None and path.jitter and options["jitter"] is None:
        mean = path.mean_jitter
        path = path.without_jitter(rtt=path.rtt + mean, one_way_delay=path.forward_delay + mean)
        print_warning(f"compare has no jitter: {format_time(mean)}, its mean, are a part of the round-trip time")
    return replace(scenario, path=path), bulk, mean


def _link(shared: dict[str, Any], scenario: Scenario) -> Bottleneck:
    """Return the shared link of the options, of which one has a rate or a trace."""
    from tcpdelay.sim.network.bottleneck import MANAGED, Bottleneck

    trace = read_varying_link(*(shared[name] for name in ("link", "link_trace", "outage_every", "outage")))
    given = {of: shared[name] for name, (of, _) in _OF_LINK.items() if shared[name] is not None} | {"trace": trace}
    rate = given["rate"] = shared["link"] if trace is None else trace.mean_rate
    if given.get("discipline") not in (*MANAGED, "policer"):
        product = max(rate * scenario.path.rtt / 8 / FULL_PACKET, FEWEST_QUEUED)
        capacity = given.setdefault("capacity", round(2 * product if given.get("discipline") == "dred" else product))
        # Floyd and Jacobson: the upper threshold is at least twice the lower threshold, and well below the capacity.
        given |= {"min_th": capacity / 6, "max_th": capacity / 2, "bandwidth_delay_product": product}
    try:
        return Bottleneck(**given)
    except InvalidValueError as error:
        option = next((name for name, (of, _) in _OF_LINK.items() if of == error.name), error.name)
        raise InvalidValueError(option, error.value, error.allowed, error.hint) from None


def _others(scenario: Scenario, link: Bottleneck | None, bulk: int, web: int, cbr: float | None) -> list[Source]:
    from tcpdelay.scenario.source import Flow
    from tcpdelay.scenario.stack import Stack
    from tcpdelay.sim.network.sources import Bulk, ConstantRate, Web
    from tcpdelay.sim.network.stacks import Udp
    from tcpdelay.study.transports import shared_path

    for name, count in (("--bulk", bulk), ("--web", web)):
        if count < 0:
            raise typer.BadParameter(f"{name}: must be 0 or more, got {count}")
    path, stack = shared_path(scenario.path), Stack.linux(delayed_ack=True)
    others: list[Source] = [Bulk(path=path, stack=stack)] * bulk
    others += [Web(path=path, stack=stack)] * web
    if cbr is not None:
        others.append(ConstantRate(flow=Flow.from_bitrate(cbr, 1000), path=path, stack=Udp()))
    return others
