"""From the options to the scenario: measurements are read, presets and defaults filled in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import typer

from tcpdelay.cli.errors import argument_errors
from tcpdelay.cli.options import ScenarioOptions
from tcpdelay.cli.output import Named
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.fields import bounds
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, KnownStack, Linux, NewReno2008, StackName
from tcpdelay.scenario.target import Target

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.scenario.encapsulation import Encapsulation

SIMULATED = ("loss_burst", "ack_loss", "jitter")
"""Options of the path that no chain knows, or only short bursts."""
_SETTINGS = tuple(dict.fromkeys(field.name for profile in (Linux, NewReno2008) for field in fields(profile)))
"""The settings of all stacks, which the options are named after."""


@dataclass(frozen=True)
class Scenario:
    """What a prediction needs: flow, path, TCP, the demand on the delay, and the measurement behind the path."""

    flow: Flow
    path: Path
    stack: KnownStack
    target: Target
    estimate: PathEstimate | None
    application: Application | None = None


def read_scenario(options: ScenarioOptions) -> Scenario:
    """Return the scenario, measurements read in.

    Raises
    ------
    typer.BadParameter
        If options are missing, contradict each other or have values out of range, or a file cannot be used.
    """
    estimate = _estimate(options)
    with argument_errors():
        path = _path(options, estimate)
    flow, stack, target = read_demand(options, estimate)
    # The intervals of a measurement say nothing about what was given in its place.
    if options.loss is not None:
        estimate = None
    if estimate is not None and options.rtt is not None:
        estimate = replace(estimate, rtt_interval=None)
    return Scenario(flow, path, stack, target, estimate, options.app)


def read_demand(options: ScenarioOptions, estimate: PathEstimate | None = None) -> tuple[Flow, KnownStack, Target]:
    """Return all of a scenario but its path; an `estimate` of that may know the segment size.

    Raises
    ------
    typer.BadParameter
        As `read_scenario`.
    """
    with argument_errors():
        stack = _stack(options, estimate)
        flow = _flow(options, stack.mss) if options.over is None else _encapsulated(options, options.over, stack.mss)
        target = options.app.target if options.app else Target(limit=0.200)
        if options.limit is not None:
            target = replace(target, limit=options.limit)
        if options.quantile is not None:
            target = replace(target, quantile=options.quantile)
    return flow, stack, target


def read_demands(
    options: ScenarioOptions, apps: Sequence[Application], stacks: Sequence[StackName]
) -> list[tuple[ScenarioOptions, Flow, KnownStack, Target]]:
    """Return the demand of each of the `apps` over each of the `stacks`, which `options` leaves out, and its options.

    A setting that one of several stacks does not know holds for the others.

    Raises
    ------
    typer.BadParameter
        As `read_scenario`.
    """
    demands = []
    for app in dict.fromkeys(apps) or [None]:
        for stack in dict.fromkeys(stacks) or [DEFAULT_PROFILE]:
            others = {field.name for name in stacks if name != stack for field in fields(PROFILES[name])}
            foreign = others - {field.name for field in fields(PROFILES[stack])}
            absent: dict[str, Any] = dict.fromkeys(foreign & set(_SETTINGS))
            own = replace(options, app=app, stack=stack, **absent)
            demands.append((own, *read_demand(own)))
    return demands


def measurements(options: ScenarioOptions) -> list[Named]:
    """Return the files that the path is measured from."""
    return [("--ping", options.ping), ("--ss", options.ss)]


def _estimate(options: ScenarioOptions) -> PathEstimate | None:
    if options.ping is not None and options.ss is not None:
        raise typer.BadParameter("--ping and --ss: give one measurement, not both")
    if options.connection is not None and options.ss is None:
        raise typer.BadParameter("--connection: chooses from what --ss holds, but --ss is missing")
    if options.ping is not None:
        from tcpdelay.capture.ping import read_ping

        with argument_errors("--ping"):
            return read_ping(options.ping)
    if options.ss is not None:
        from tcpdelay.capture.ss import read_ss

        with argument_errors("--ss"):
            return read_ss(options.ss, options.connection).estimate()
    return None


def _path(options: ScenarioOptions, estimate: PathEstimate | None) -> Path:
    measured = {"rtt": options.rtt, "loss": options.loss}
    missing = [f"--{name}" for name, value in measured.items() if value is None]
    if missing and estimate is None:
        verb = "is" if len(missing) == 1 else "are"
        raise typer.BadParameter(
            f"{' and '.join(missing)} {verb} missing; write --rtt 100ms --loss 2%, or measure with --ping or --ss"
        )
    arguments: dict[str, Any] = {
        **{name: value for name, value in measured.items() if value is not None},
        "loss_pattern": options.loss_pattern,
        "bottleneck": options.bottleneck,
        "one_way_delay": options.one_way_delay,
        **{name: value for name in SIMULATED if (value := getattr(options, name)) is not None},
    }
    return Path(**arguments) if estimate is None else estimate.path(**arguments)


def _encapsulated(options: ScenarioOptions, over: Encapsulation, mss: int) -> Flow:
    """Return the flow inside `over`, and say on stderr what became of a packet."""
    room = over.largest_payload(mss)
    app = options.app
    if app is not None:
        content = app.content
        if content.packet_size > room:
            content = Flow.from_bitrate(content.bitrate, room)
        options = replace(options, app=replace(app, content=content, over="tcp"))
    bare = _flow(options, room)
    print(over.in_words(bare.packet_size), file=sys.stderr)
    return over.around(bare)


def _flow(options: ScenarioOptions, mss: int) -> Flow:
    size, interval, bitrate = options.packet_size, options.interval, options.bitrate
    if size and interval and bitrate:
        raise typer.BadParameter(
            "--packet-size, --interval and --bitrate: give two of them; the third follows from these"
        )
    if bitrate and interval:
        return Flow(_packet_size(bitrate, interval), interval)
    if bitrate and size is None and options.app is not None:
        _packet_size(bitrate, options.app.flow.interval)
        # As for the margin of the bitrate in the report, so that its edge can be tried out.
        from tcpdelay.questions.quantities import at_bitrate

        return at_bitrate(options.app.flow, bitrate, mss)
    if bitrate:
        return Flow.from_bitrate(bitrate, size or mss)
    if options.app is not None:
        size, interval = size or options.app.flow.packet_size, interval or options.app.flow.interval
    if size and interval:
        return Flow(size, interval)
    if size or interval:
        given, other = ("--packet-size", "--interval") if size else ("--interval", "--packet-size")
        raise typer.BadParameter(f"{given} needs {other}, --bitrate or --app beside it")
    raise typer.BadParameter(
        "the flow is missing; write --app voip, two of --packet-size, --interval and --bitrate, or --bitrate alone"
    )


def _stack(options: ScenarioOptions, estimate: PathEstimate | None) -> KnownStack:
    name = options.stack or DEFAULT_PROFILE
    settings: dict[str, Any] = {
        setting: getattr(options, setting) for setting in _SETTINGS if getattr(options, setting) is not None
    }
    known = {field.name for field in fields(PROFILES[name])}
    for setting in settings:
        if setting not in known:
            option = f"--{setting.replace('_', '-')}"
            others = " or ".join(f"--stack {other}" for other, stack in PROFILES.items() if hasattr(stack, setting))
            raise typer.BadParameter(f"{option}: goes with {others}, not with {name}")
    if estimate is not None and estimate.mss is not None:
        settings.setdefault("mss", estimate.mss)
    return replace(PROFILES[name], **settings)


def _packet_size(bitrate: float, interval: float) -> int:
    size = bitrate * interval / 8
    low, high = bounds(Flow, "packet_size")
    if not low <= size <= high:
        raise typer.BadParameter(
            f"--bitrate: {bitrate:g} bit/s at an interval of {interval:g} s make packets of {size:g} bytes, "
            f"which must be {low} to {high}"
        )
    return round(size)
