"""`tcpdelay compare`: transports and heuristics side by side."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tcpdelay.cli.errors import argument_errors, counting, option_name, predicting, print_warning
from tcpdelay.cli.options import (
    OTHER_STACKS,
    Rate,
    ScenarioOptions,
    Time,
    VaryingLink,
    chart_option,
    command,
    declared_option,
    declared_parameter,
    format_option,
    option,
    output_option,
    read_varying_link,
    seconds_option,
)
from tcpdelay.cli.output import Destination, write, write_chart
from tcpdelay.cli.scenario import RequestedScenario, SourceOptions, measurements, read_scenario
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.link import BURST, CAPACITY, DISCIPLINE, LONGEST_QUEUE, PEAK_RATE, QUEUE_TARGET, RATE
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.units import format_time

if TYPE_CHECKING:
    from tcpdelay.scenario.path_presets import PathPreset
    from tcpdelay.sim.network.bottleneck import Bottleneck
    from tcpdelay.sim.network.sources import Source

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
            declared_parameter(name, declaration, declared_option(declaration, LINK, shown=declaration.default_words))
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
    if scenario.path_preset is not None:
        scenario, bulk = _with_preset(scenario, scenario.path_preset, options, shared, bulk)
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
            comparison = compare_transports(
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

    if asked.chart is not None:
        write_chart(asked.chart, comparison_figure(comparison), "--chart")
    write(rendered(comparison, chosen), asked.output)


def _with_preset(
    scenario: RequestedScenario, preset: PathPreset, options: ScenarioOptions, shared: dict[str, Any], bulk: int
) -> tuple[RequestedScenario, int]:
    """Return the scenario and the long transfers of the link as the preset has them; put the preset's link in `shared`.

    The queue of the preset's link takes the place of the delays that stand for it.
    """
    own, path = preset.link, scenario.path
    if own is not None and "rtt" not in options.values:
        loss, jitter = options["loss"] or 0.0, options["jitter"] or 0.0
        path = path.without_jitter(rtt=own.rtt, one_way_delay=own.rtt / 2, loss=loss, jitter=jitter)
        if shared["link_trace"] is None:
            shared["link"] = shared["link"] or own.rate
        shared["queue"] = own.queue if shared["queue"] is None else shared["queue"]
        shared["discipline"] = shared["discipline"] or own.discipline
        bulk = bulk or own.bulk
    elif path.jitter and options["jitter"] is None:
        mean = path.mean_jitter
        path = path.without_jitter(rtt=path.rtt + mean, one_way_delay=path.forward_delay + mean)
        print_warning(f"compare has no jitter: {format_time(mean)}, its mean, are a part of the round-trip time")
    return replace(scenario, path=path), bulk


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
