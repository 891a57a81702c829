"""From the options to the scenario: read the measurements, and fill in presets and defaults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import typer

from tcpdelay.cli.options import (
    FLOW,
    Options,
    ScenarioOptions,
    declared_parameter,
    file_name,
    option,
)
from tcpdelay.cli.output import Named, argument_errors, option_name, print_warning
from tcpdelay.declare import bounds, declarations
from tcpdelay.scenario.media import Speech, Utterances, Video
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import WARNING, Path, PathPreset
from tcpdelay.scenario.scenario import (
    DEFAULT_LIMIT,
    FIELDS,
    SOURCE_FIELDS,
    Application,
    Part,
    Scenario,
    Target,
    constant_rate,
)
from tcpdelay.scenario.source import FRAME_RATE, USUAL_FRAME_RATE, Flow, Source
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, KnownStack, StackName, profiles_with
from tcpdelay.units import format_rate

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.scenario.encapsulation import Encapsulation


# The options of a source whose rate is not constant: a trace, a video, speech, or a voice agent's replies.
#
# They are derived from the declarations of the sources' fields.

_MAKES: Mapping[type[Source], str] = {
    Video: "Makes --bitrate a video with key frames.",
    Speech: "Makes the packets speech with silences.",
    Utterances: "Makes the packets a voice agent's replies.",
    Trace: "With --source.",
}
"""What an option of a source does, for its help."""


class SourceOptions(Options, panel=FLOW):
    """The options of a source whose rate is not constant: its file, and `values`, the given fields by name."""

    source: str | None = option(
        "Messages to send: a CSV or Parquet file with the columns time (seconds) and size (bytes), "
        "and optionally kind.",
        metavar="FILE",
        parse=file_name,
    )

    def __init__(self, source: str | None = None, **values: Any) -> None:
        """Take the file of a trace, and fields of the source in seconds and numbers."""
        self.file = source
        self.values = {name: value for name, value in values.items() if value is not None}

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the parameters of a command: the file, and the fields of all sources."""
        fields = [
            declared_parameter(name, declaration, FLOW, f" {_MAKES[source]}")
            for name, (source, declaration) in SOURCE_FIELDS.items()
        ]
        return [*super().parameters(), *fields]

    @property
    def given(self) -> bool:
        """Whether any option is given."""
        return self.file is not None or bool(self.values)

    @property
    def files(self) -> list[Named]:
        """The option and the file of a trace."""
        return [("--source", self.file)]

    @property
    def names(self) -> str:
        """The spellings of the given options."""
        return " and ".join([*(["--source"] if self.file is not None else []), *map(option_name, self.values)])

    @property
    def kind(self) -> type[Source] | None:
        """The source that the options describe; None if no option is given."""
        kinds = {SOURCE_FIELDS[name][0] for name in self.values} | ({Trace} if self.file is not None else set())
        if len(kinds) > 1:
            raise typer.BadParameter(f"{self.names}: are options of different sources")
        if kinds == {Trace} and self.file is None:
            raise typer.BadParameter("--period: goes with --source")
        return next(iter(kinds), None)

    @property
    def needs_packets(self) -> bool:
        """Whether the source has packets of one size and interval."""
        return self.kind in (None, Speech, Utterances)

    def of_packets(self, flow: Flow) -> Source:
        """Return the source that writes the packets of a flow in bursts; the flow if no option is given."""
        source: Callable[..., Source] = self.kind or Flow
        return source(flow.packet_size, flow.interval, write_jitter=flow.write_jitter, **self.values)

    def of_messages(self, options: ScenarioOptions) -> Any:
        """Return the trace or the video."""
        bitrate, fps = options.bitrate, options.fps
        if self.file is not None:
            for spelling, value in (("--bitrate", bitrate), ("--fps", fps)):
                if value is not None:
                    raise typer.BadParameter(f"{spelling}: does not go with --source")
            with argument_errors("--source"):
                return Trace.read(self.file, **self.values)
        if bitrate is None:
            raise typer.BadParameter(f"{self.names}: needs --bitrate, or --app of a video")
        return Video(bitrate, USUAL_FRAME_RATE if fps is None else fps, **self.values)


NO_SOURCE = SourceOptions()


_RATE = ("packet_size", "interval")
"""Fields of the flow that can follow from a bitrate."""
DEFAULT_TARGET = Target(limit=DEFAULT_LIMIT)


@dataclass(frozen=True)
class RequestedScenario(Scenario):
    """The scenario of a command; it always has a target."""

    target: Target = DEFAULT_TARGET
    estimate: PathEstimate | None = None  # The measurement from which the path is taken
    application: Application | None = None  # The application of --app
    path_preset: PathPreset | None = None

    @property
    def preset_record(self) -> dict[str, str]:
        """The name of the preset of the path as an entry of a record; nothing without a preset."""
        return {} if self.path_preset is None else {"path_preset": self.path_preset.name}


def read_scenario(options: ScenarioOptions, chosen: SourceOptions = NO_SOURCE) -> RequestedScenario:
    """Read the measurements, and return the scenario."""
    estimate = _estimate(options)
    with argument_errors():
        path = _path(options, estimate)
    source, stack, target = read_source(options, chosen, estimate)
    # The confidence intervals of a measurement do not apply to a value that an option gives.
    if options["loss"] is not None:
        estimate = None
    if estimate is not None and options["rtt"] is not None:
        estimate = replace(estimate, rtt_interval=None)
    with argument_errors():
        return RequestedScenario(source, path, stack, target, estimate, options.app, options.path)


def read_source(
    options: ScenarioOptions, chosen: SourceOptions = NO_SOURCE, estimate: PathEstimate | None = None
) -> tuple[Source, KnownStack, Target]:
    """Return source, stack and target; an `estimate` of the path may give the segment size."""
    app = options.app
    if app is not None and _varies(options) and chosen.kind in (None, type(app.content)):
        with argument_errors():
            source = _source_of(options, app, chosen)
    elif chosen.needs_packets:
        if chosen.given and app is not None and not app.constant_rate:
            instead = "give --packet-size and --interval in place of --app"
            raise typer.BadParameter(f"{chosen.names}: does not go with --app {app.name}; {instead}")
        flow, stack, target = read_demand(options, estimate)
        with argument_errors():
            return chosen.of_packets(flow), stack, target
    else:
        for name in _RATE:
            if options[name] is not None:
                raise typer.BadParameter(f"{option_name(name)}: does not go with {chosen.names}")
        with argument_errors():
            source = replace(chosen.of_messages(options), **_beside_rate(options))
    with argument_errors():
        return _with_headers(source, options.over), _stack(options, estimate), _target(options)


def _with_headers(source: Source, over: Encapsulation | None) -> Source:
    """Return a source with the headers of `over`, and print the size of a mean message with headers on stderr."""
    if over is None:
        return source
    carried = over.around(source)
    print(over.in_words(round(source.mean_size), "an average message"), file=sys.stderr)
    return carried


def read_path(options: ScenarioOptions) -> tuple[Path, KnownStack, Target]:
    """Return path, stack and target, where something else than a flow is sent."""
    estimate = _estimate(options)
    with argument_errors():
        return _path(options, estimate), _stack(options, estimate), _target(options)


def varying_source(options: ScenarioOptions, chosen: SourceOptions) -> str:
    """Return the options by which the rate of the source is not constant; an empty text if it is constant."""
    return chosen.names if chosen.given else f"--app {options.app.name}" if options.app and _varies(options) else ""


def _varies(options: ScenarioOptions) -> bool:
    """Return whether the rate of the application is not constant, and no option makes it constant."""
    return options.app is not None and not options.app.constant_rate and not _only_of_flow(options, options.app)


def _only_of_flow(options: ScenarioOptions, app: Application) -> list[str]:
    """Return the given options that only a flow of constant rate has, and not the source of the application."""
    own = declarations(type(app.content))
    return [option_name(name) for name in _RATE if options[name] is not None and name not in own]


def _source_of(options: ScenarioOptions, app: Application, chosen: SourceOptions) -> Any:
    """Return the source of an application whose rate is not constant, with the given values."""
    # With --over, sizes and --bitrate count the data without headers.
    carried: Any = app.source if options.over is None else app.content
    source = replace(carried, **_given(options, "flow"), **chosen.values)
    if options.fps is not None:
        if not isinstance(source, Video):
            raise typer.BadParameter(f"--fps: does not go with --app {app.name}")
        source = replace(source, frame_rate=options.fps)
    if options.bitrate is not None and options["packet_size"] is not None:
        raise typer.BadParameter(f"--packet-size and --bitrate: give one of them with --app {app.name}")
    return source if options.bitrate is None else source.at_bitrate(options.bitrate)


def _at_constant_rate(options: ScenarioOptions) -> ScenarioOptions:
    """Return the options with an application of constant rate."""
    app = options.app
    if app is None or app.constant_rate:
        return options
    if _varies(options):
        rate = format_rate(app.source.mean_bitrate).replace(" ", "")
        raise typer.BadParameter(
            f"--app: the rate of {app.name} is not constant, as it must be here; in place of it, --packet-size 1448 "
            f"--bitrate {rate} is a flow of constant rate"
        )
    because = " and ".join(_only_of_flow(options, app))
    print(f"{app.name} as a flow of constant rate, because only a constant rate has {because}", file=sys.stderr)
    return options.changed(app=app.at_constant_rate)


def read_demand(options: ScenarioOptions, estimate: PathEstimate | None = None) -> tuple[Flow, KnownStack, Target]:
    """Return flow, stack and target; an `estimate` of the path may give the segment size."""
    with argument_errors():
        stack = _stack(options, estimate)
        options = in_frames(_at_constant_rate(options))
        flow = _flow(options, stack.mss) if options.over is None else _encapsulated(options, options.over, stack.mss)
        flow = replace(flow, **_beside_rate(options))
        target = _target(options)
    return flow, stack, target


def _target(options: ScenarioOptions) -> Target:
    """Return the target of the application or by default, with the given changes."""
    return replace(options.app.target if options.app else DEFAULT_TARGET, **_given(options, "target"))


def in_frames(options: ScenarioOptions) -> ScenarioOptions:
    """Return the options with an interval in place of --fps; a bitrate over RTMP has frames in any case."""
    fps, app = options.fps, options.app
    if fps is None:
        given = app or options["packet_size"] or options["interval"]
        if given or not (options.bitrate and options.over is not None and options.over.whole_frames):
            return options
        fps = USUAL_FRAME_RATE
        print(f"{fps:g} frames a second over {options.over.name}; --fps sets another rate", file=sys.stderr)
    elif options["interval"] is not None:
        raise typer.BadParameter("--fps and --interval: give one of them")
    FRAME_RATE.require("fps", fps)
    bitrate, size = options.bitrate, options["packet_size"]
    if bitrate is not None and size is not None:
        raise typer.BadParameter("--fps, --packet-size and --bitrate: give two of them; the third follows from these")
    if bitrate is None and size is None and app is None:
        raise typer.BadParameter("--fps needs --bitrate, --packet-size or --app beside it")
    if app is not None and bitrate is None and size is None:
        bitrate = (app.flow if options.over is None else app.content).mean_bitrate
    return options.changed(fps=None, interval=1 / fps, bitrate=bitrate)


def read_demands(
    options: ScenarioOptions, apps: Sequence[Application], stacks: Sequence[StackName]
) -> list[tuple[ScenarioOptions, Flow, KnownStack, Target]]:
    """Return the options and the demand of each application over each stack.

    A setting that only some of the stacks have applies to these stacks alone.
    """
    demands = []
    for app in dict.fromkeys(apps) or [None]:
        for stack in dict.fromkeys(stacks) or [DEFAULT_PROFILE]:
            foreign = [
                name
                for name in _given(options, "stack")
                if stack not in profiles_with(name) and set(stacks) & set(profiles_with(name))
            ]
            own = options.changed(app=app, stack=stack, **dict.fromkeys(foreign))
            demands.append((own, *read_demand(own)))
    return demands


def measurements(options: ScenarioOptions) -> list[Named]:
    """Return the measurements of the path: options and files."""
    return [("--ping", options.ping), ("--ss", options.ss)]


def _given(options: ScenarioOptions, part: Part) -> dict[str, Any]:
    """Return the given values of one part of the scenario."""
    return {name: value for name, value in options.values.items() if FIELDS[name][0] == part}


def _beside_rate(options: ScenarioOptions) -> dict[str, Any]:
    """Return the given values of the flow that all sources have: those beside packet size and interval."""
    return {name: value for name, value in _given(options, "flow").items() if name not in _RATE}


def _estimate(options: ScenarioOptions) -> PathEstimate | None:
    if options.ping is not None and options.ss is not None:
        raise typer.BadParameter("--ping and --ss: give one measurement, not both")
    if options.path is not None and (measured := [name for name, file in measurements(options) if file is not None]):
        raise typer.BadParameter(f"--path and {measured[0]}: give one of them")
    if options.connection is not None and options.ss is None:
        raise typer.BadParameter("--connection: chooses a connection of --ss, but --ss is missing")
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
    given = _given(options, "path")
    if options.path is not None:
        name = options.path.name
        print_warning(f"path {name} ({options.path.title}): {WARNING}. Its sources: tcpdelay paths {name}")
        return Path(**options.path.changed(**given))
    missing = [f"--{name}" for name in ("rtt", "loss") if name not in given]
    if missing and estimate is None:
        verb = "is" if len(missing) == 1 else "are"
        raise typer.BadParameter(
            f"{' and '.join(missing)} {verb} missing; write --rtt 100ms --loss 2%, or --path lte, or "
            "measure with --ping or --ss"
        )
    return Path(**given) if estimate is None else estimate.path(**given)


def _encapsulated(options: ScenarioOptions, over: Encapsulation, mss: int) -> Flow:
    """Return the flow with the headers of `over`, and print the size of a packet with headers on stderr."""
    largest = over.largest_payload(mss)
    app = options.app
    if app is not None:
        content = constant_rate(app.content)
        if content.packet_size > largest:
            content = Flow.from_bitrate(content.bitrate, largest)
        options = options.changed(app=replace(app, content=content, over="tcp"))
    bare = _flow(options, largest)
    print(over.in_words(bare.packet_size), file=sys.stderr)
    return over.around(bare)


def _flow(options: ScenarioOptions, mss: int) -> Flow:
    size, interval, bitrate = options["packet_size"], options["interval"], options.bitrate
    if size and interval and bitrate:
        raise typer.BadParameter(
            "--packet-size, --interval and --bitrate: give two of them; the third follows from these"
        )
    if bitrate and interval:
        return Flow(_packet_size(bitrate, interval), interval)
    if bitrate and size is None and options.app is not None:
        _packet_size(bitrate, options.app.flow.interval)
        # The report computes the margin of the bitrate in the same way, so its edge can be tried with --bitrate.
        from tcpdelay.study.search import at_bitrate

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
    settings = _given(options, "stack")
    for setting in settings:
        owners = profiles_with(setting)
        if name not in owners:
            allowed = " or ".join(f"--stack {owner}" for owner in owners)
            raise typer.BadParameter(f"{option_name(setting)}: goes with {allowed}, not with {name}")
    if estimate is not None:
        measured = {"mss": estimate.mss, "rto_min": estimate.timeout_beyond_rtt}
        fields = declarations(type(PROFILES[name]))
        settings = {key: value for key, value in measured.items() if value is not None and key in fields} | settings
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
