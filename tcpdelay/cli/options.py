"""The options of a scenario, derived from the declarations of its fields; options with a range of RTT or loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from tcpdelay.cli.errors import HelpAll, argument_errors, option_name
from tcpdelay.declare import (
    PARSERS,
    WHOLE,
    Choice,
    Field,
    Flag,
    InvalidValueError,
    Kind,
    Quantity,
    declarations,
)
from tcpdelay.scenario.applications import APPLICATIONS, Application, application
from tcpdelay.scenario.encapsulation import ENCAPSULATIONS, Encapsulation, encapsulation
from tcpdelay.scenario.path_presets import PATH_PRESETS, PathPreset, path_preset
from tcpdelay.scenario.scenario import FIELDS, Part
from tcpdelay.scenario.source import BITRATE, FRAME_RATE, USUAL_FRAME_RATE
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, CongestionControl, Linux, StackName, profiles_with

if TYPE_CHECKING:
    from tcpdelay.sim.network.link_trace import LinkTrace


FLOW, PATH, OUTPUT = "What is sent", "The path it takes", "Output"
TARGET, TRANSPORT = "When it is late", "The transport that carries it"
_PANELS: dict[Part, str] = {"flow": FLOW, "path": PATH, "stack": TRANSPORT, "target": TARGET}
_METAVARS: dict[Kind, str] = {
    "time": "TIME",
    "fraction": "SHARE",
    "size": "SIZE",
    "rate": "RATE",
    "count": "NUMBER",
    "number": "NUMBER",
}
_MEASURED_TOO = {"mss": "that of --ss, or "}
"""Source of a value that takes precedence over the default of a field."""


def make_option(
    name: str, panel: str, description: str, default: str | bool = True, metavar: str | None = None, **more: Any
) -> Any:
    """Return an option; the help shows `default` as its default, and `metavar` for its value."""
    return typer.Option(name, metavar=metavar, help=description, rich_help_panel=panel, show_default=default, **more)


number = partial(make_option, metavar="NUMBER")
"""Make an option whose value is a number without a unit, as `make_option`."""


def quantity(
    name: str,
    kind: Kind,
    panel: str,
    description: str,
    default: str | bool = False,
    *,
    zero: bool = False,
    parse: Callable[..., float] | None = None,
) -> Any:
    """Return an option whose value has a unit; `parse` reads it, by default the function of its `kind`."""
    parser = partial(parse or PARSERS[kind], name=name, allow_zero=zero)
    return make_option(name, panel, description, default, metavar=_METAVARS[kind], parser=parser)


MaxSeconds = Annotated[
    float, number("--max-seconds", OUTPUT, "Processor time of an answer in seconds, by an estimate.", "10")
]
MaxMemory = Annotated[
    float | None,
    quantity("--max-memory", "size", OUTPUT, "Memory of the chain of an answer. Example: 500MB.", "1 GiB"),
]
"""The options for what one answer may take: of each row or cell, if there are several."""


def format_option(description: str) -> Any:
    """Return the option for the format of a result."""
    return make_option("--format", OUTPUT, description, "by the suffix of --output, or text")


def result_option(
    description: str, default: str | bool = "the terminal", metavar: str = "FILE", panel: str | None = OUTPUT
) -> Any:
    """Return the option for the file or folder of a result."""
    return typer.Option(
        "--output", "-o", metavar=metavar, help=description, rich_help_panel=panel, show_default=default
    )


def output_option(suffixes: str) -> Any:
    """Return the option for the file of a result; the help lists the allowed `suffixes`."""
    return result_option(f"Write the result to a file ({suffixes}).")


def method_option(auto: str, *, answers: str = "Model") -> Any:
    """Return the option for the model that `answers`; the help ends with what "auto" stands for."""
    return make_option("--method", OUTPUT, f"{answers}: the chain, the simulator, or auto: the chain{auto}")


def chart_option(what: str) -> Any:
    """Return the option for the file of a chart; `what` names the subject of the chart."""
    return make_option("--chart", OUTPUT, f"Draw {what}: .svg, .png or .pdf.", False, metavar="FILE")


def _application(name: str) -> Application:
    with argument_errors():
        return application(name)


def application_option(more: str = "") -> Any:
    """Return the option for the application; the help ends with `more`."""
    return make_option(
        "--app",
        FLOW,
        f"A typical application of those below: its packets and its target. Other options override it.{more}",
        False,
        metavar="NAME",
        parser=_application,
        autocompletion=lambda: list(APPLICATIONS),
    )


_STACK_HELP = "Transport: linux (TCP of a current kernel), newreno_2008 (TCP of the published chain) or quic."


def _word(text: str, name: str, words: Iterable[str]) -> str:
    if text not in words:
        raise typer.BadParameter(f"{name}: must be one of {', '.join(words)}, got {text!r}")
    return text


def words_option(name: str, description: str, words: Iterable[str], default: str) -> Any:
    """Return the option of the transport for one or several of some words."""
    return make_option(
        name,
        TRANSPORT,
        description,
        default,
        metavar="|".join(words),
        parser=partial(_word, name=name, words=words),
        autocompletion=lambda: list(words),
    )


def stacks_option(more: str) -> Any:
    """Return the option for one or several stacks; the help ends with `more`."""
    return words_option("--stack", f"{_STACK_HELP} {more}", PROFILES, DEFAULT_PROFILE)


def _encapsulation(name: str) -> Encapsulation:
    with argument_errors():
        return encapsulation(name)


def file_name(text: str) -> str:
    """Return the name of a file as it is given."""
    if not text:
        raise ValueError("the name of the file is empty")
    return text


def parse_path_preset(name: str) -> PathPreset:
    """Return the preset of a path by its name."""
    with argument_errors():
        return path_preset(name)


def path_preset_option(description: str) -> Any:
    """Return the option for a preset of the path."""
    return make_option(
        "--path",
        PATH,
        description,
        False,
        metavar="NAME",
        parser=parse_path_preset,
        autocompletion=lambda: list(PATH_PRESETS),
    )


def _measurement(name: str, description: str) -> Any:
    return make_option(name, PATH, description, False, metavar="FILE", parser=file_name)


def _compact(declaration: Field, value: Any) -> str:
    """Return a value as written on the command line."""
    return declaration.written(value).replace(" ", "")


def written_options(part: Any) -> list[str]:
    """Return the options that give a part of a scenario, without those that have their defaults."""
    defaults = {each.name: each.default for each in dataclasses.fields(part)}
    written = []
    for name, declaration in declarations(type(part)).items():
        if (value := getattr(part, name)) == defaults[name]:
            continue
        spelling = option_name(name)
        if isinstance(declaration, Flag):
            written.append(spelling if value else f"--no-{spelling.removeprefix('--')}")
        else:
            written.append(f"{spelling} {_compact(declaration, value)}")
    return written


def shown_default(name: str) -> str | bool:
    """Return the default of a field in words; False if there is no default."""
    _, declaration = FIELDS[name]
    if declaration.default_words:
        return declaration.default_words
    defaults = {profile: _compact(declaration, getattr(PROFILES[profile], name)) for profile in profiles_with(name)}
    if not defaults:
        return False if declaration.default is None else _compact(declaration, declaration.default)
    if len(set(defaults.values())) == 1:
        return _MEASURED_TOO.get(name, "") + next(iter(defaults.values()))
    return ", ".join(f"{value} for {profile}" for profile, value in defaults.items())


def _panel(name: str) -> str:
    part, _ = FIELDS[name]
    profiles = profiles_with(name)
    return f"Of --stack {profiles[0]}" if len(profiles) == 1 else _PANELS[part]


def described(declaration: Field) -> str:
    """Return the help of an option: the meaning of its declaration, and an example."""
    example = getattr(declaration, "example", "")
    return f"{declaration.meaning} Example: {example}." if example else declaration.meaning


def field_option(name: str, *, more: str = "", default: str | None = None) -> Any:
    """Return the option for a field; the help ends with `more`."""
    _, declaration = FIELDS[name]
    shown = shown_default(name) if default is None else default
    return declared_option(name, declaration, _panel(name), described(declaration) + more, shown)


def declared_option(name: str, declaration: Field, panel: str, help_text: str, shown: str | bool) -> Any:
    """Return the option for a declared field; the help shows `shown` as its default."""
    spelling = option_name(name)
    if isinstance(declaration, Quantity) and declaration.kind in PARSERS:
        zero, parse = declaration.zero_allowed, declaration.parser
        return quantity(spelling, declaration.kind, panel, help_text, shown, zero=zero, parse=parse)
    if isinstance(declaration, Quantity):
        return number(spelling, panel, help_text, shown)
    if isinstance(declaration, Flag):
        spelling = f"{spelling}/--no-{spelling.removeprefix('--')}"
    return make_option(spelling, panel, help_text, shown)


def annotated_option(name: str, declaration: Field, panel: str, more: str = "", shown: str | bool | None = None) -> Any:
    """Return the annotation of a declared field: its type, and its option, whose help ends with `more`."""
    if shown is None:
        known = declaration.default is not None
        shown = declaration.default_words or (_compact(declaration, declaration.default) if known else False)
    option = declared_option(name, declaration, panel, described(declaration) + more, shown)
    return Annotated[option_type(declaration) | None, option]


def _annotation(name: str) -> Any:
    """Return the annotation of a field of the scenario."""
    return annotated_option(name, FIELDS[name][1], _panel(name), shown=shown_default(name))


def option_type(declaration: Field) -> Any:
    """Return the type of the value of an option."""
    if isinstance(declaration, Choice):
        return Literal[declaration.words]
    if isinstance(declaration, Flag):
        return bool
    if declaration.kind == "word":
        return str
    return int if declaration.kind in WHOLE else float


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """The options of a scenario on the command line; None if an option is absent."""

    app: Annotated[Application | None, application_option()] = None
    bitrate: Annotated[
        float | None,
        quantity(
            "--bitrate",
            "rate",
            FLOW,
            f"{described(BITRATE)} Give it with one of the two above, or alone for full segments.",
        ),
    ] = None
    fps: Annotated[
        float | None,
        number(
            "--fps",
            FLOW,
            f"{described(FRAME_RATE)} Give it instead of --interval.",
            f"{USUAL_FRAME_RATE:g} for a video over rtmp or rtmps",
        ),
    ] = None
    over: Annotated[
        Encapsulation | None,
        make_option(
            "--over",
            FLOW,
            f"Protocol headers added to each packet before TCP: {', '.join(ENCAPSULATIONS)}. "
            "--packet-size and --bitrate then count the data without these headers.",
            "that of --app, or tcp",
            metavar="NAME",
            parser=_encapsulation,
            autocompletion=lambda: list(ENCAPSULATIONS),
        ),
    ] = None
    path: Annotated[
        PathPreset | None,
        path_preset_option(
            "A path that people have, one of those below, in place of --rtt and --loss. Other options override it."
        ),
    ] = None
    ping: Annotated[
        str | None,
        _measurement(
            "--ping", "Output of ping, fping, mtr or iperf3 --json; gives --rtt and --loss, unless they are given."
        ),
    ] = None
    ss: Annotated[
        str | None, _measurement("--ss", "Output of 'ss -tin'; gives --rtt, --loss and --mss, unless they are given.")
    ] = None
    connection: Annotated[
        str | None,
        make_option(
            "--connection",
            PATH,
            "Connection to read if --ss has several: the address of either end, or a part of it.",
            False,
            metavar="ADDRESS",
        ),
    ] = None
    stack: Annotated[StackName | None, make_option("--stack", TRANSPORT, _STACK_HELP, DEFAULT_PROFILE)] = None
    values: Mapping[str, Any] = field(default_factory=dict)  # Given fields in seconds, bytes, bit/s, fractions

    @classmethod
    def of(cls, **values: Any) -> ScenarioOptions:
        """Return options; the arguments are names of fields and of the other options."""
        return cls().changed(**values)

    def changed(self, **values: Any) -> ScenarioOptions:
        """Return the options with some values changed; None removes an option."""
        fields = {name: values.pop(name) for name in list(values) if name in FIELDS}
        given = {name: value for name, value in {**self.values, **fields}.items() if value is not None}
        return replace(self, values=given, **values)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field; None if the option is absent."""
        return self.values.get(name)


def _fields_of(part: Part) -> list[str]:
    return [name for name, (own, _) in FIELDS.items() if own == part]


PATH_OPTIONS = ("path", *_fields_of("path"), "ping", "ss", "connection")
"""The options that describe the path."""
FLOW_OPTIONS = ("app", *_fields_of("flow"), "bitrate", "fps", "over")
"""The options that describe a flow."""


def _options() -> dict[str, Any]:
    """Return the annotation of each option of a scenario by name, in the order of the help."""
    others = get_type_hints(ScenarioOptions, include_extras=True)
    of_parts = {part: _fields_of(part) for part in _PANELS}
    shared = [name for name in of_parts["stack"] if _panel(name) == TRANSPORT]
    order = [
        *FLOW_OPTIONS,
        *PATH_OPTIONS,
        *of_parts["target"],
        *("stack", *shared, *(name for name in of_parts["stack"] if name not in shared)),
    ]
    return {name: others[name] if name in others else _annotation(name) for name in order}


OPTIONS = _options()
"""The options of a scenario: the fields of its parts, and the options of `ScenarioOptions`."""


def options_only_of(*profiles: StackName) -> tuple[str, ...]:
    """Return the options of stacks that no profile other than these has."""
    return tuple(name for name in OPTIONS if (having := profiles_with(name)) and set(having) <= set(profiles))


OTHER_STACKS = ("stack", *options_only_of("newreno_2008", "quic"))
"""Options that a command leaves out which simulates Linux only."""


def with_options(
    command: Callable[..., None], bundle: str, options: Mapping[str, Any], gather: Callable[[dict[str, Any]], Any]
) -> Callable[..., None]:
    """Give `command` several options in place of its parameter `bundle`.

    `options` has the annotation of each option by name. The parameter receives what `gather` makes of the values of
    all of them, where None stands for an absent option.
    """
    hints = get_type_hints(command, include_extras=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in options.items()
    ]
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command).parameters.values():
        parameters += added if own.name == bundle else [own.replace(kind=own.KEYWORD_ONLY, annotation=hints[own.name])]

    @wraps(command)
    def take_options(**values: Any) -> None:
        given = {name: values.pop(name) for name in options}
        command(**values, **{bundle: gather(given)})

    take_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    take_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return take_options


def with_scenario(command: Callable[..., None], left_out: tuple[str, ...] = ()) -> Callable[..., None]:
    """Give `command` the options of a scenario, except the options in `left_out`, as its parameter `options`."""
    offered = {name: hint for name, hint in OPTIONS.items() if name not in left_out}
    if set(OTHER_STACKS) <= set(left_out):
        meaning = "Congestion control of the sender: cubic, reno or bbr."
        option = make_option("--congestion-control", TRANSPORT, meaning, Linux().congestion_control)
        offered["congestion_control"] = Annotated[CongestionControl | None, option]

    taking = with_options(command, "options", offered, lambda values: ScenarioOptions.of(**values))
    own = inspect.signature(taking)
    whole_help = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)

    @wraps(taking)
    def with_whole_help(help_all: bool, **values: Any) -> None:
        taking(**values)

    with_whole_help.__signature__ = own.replace(parameters=[*own.parameters.values(), whole_help])  # type: ignore[attr-defined]
    return with_whole_help


BETWEEN = ".."


@dataclass(frozen=True)
class Range:
    """The two ends of a range [s, or a fraction]."""

    low: float
    high: float


def parse_range(text: str, name: str, parse: Callable[..., float]) -> Range:
    """Read two quantities with `..` between them."""
    first, between, last = text.partition(BETWEEN)
    if not between:
        raise ValueError(f"{name}: {text[:64]!r} is no range; write two values with {BETWEEN} between them")
    low, high = parse(first, name), parse(last, name)
    if not low < high:
        raise ValueError(f"{name}: in {text[:64]!r} the first value is not below the second")
    return Range(low, high)


def range_option(name: str, default: str, *, zero: bool = False) -> Any:
    """Return an option for a range of a field of the path."""
    _, declaration = FIELDS[name]
    spelling, metavar = option_name(name), _METAVARS[declaration.kind]
    return make_option(
        spelling,
        PATH,
        f"{declaration.meaning} Give the smallest and the largest value.",
        default,
        metavar=f"{metavar}{BETWEEN}{metavar}",
        parser=partial(parse_range, name=spelling, parse=partial(PARSERS[declaration.kind], allow_zero=zero)),
    )


# Options of a link whose rate varies.


def varying_link_options(panel: str) -> dict[str, Any]:
    """Return the annotations of the options of a link whose rate varies, by name."""
    trace = (
        "Link whose rate varies: a trace of mahimahi (.up, .down), or a .csv with the columns time (s), rate "
        "(bit/s) and optionally delay (s). The trace repeats."
    )
    every = "Time between two outages of the link, such as handovers; the first is at the start. Example: 15s."
    lasting = quantity("--outage", "time", panel, "Duration of each outage. Example: 300ms.", "none")
    return {
        "link_trace": Annotated[Path | None, make_option("--link-trace", panel, trace, False, metavar="FILE")],
        "outage_every": Annotated[float | None, quantity("--outage-every", "time", panel, every, "none")],
        "outage": Annotated[float | None, lasting],
    }


def read_varying_link(
    rate: float | None, file: Path | None, outage_every: float | None, outage: float | None
) -> LinkTrace | None:
    """Return the trace of a link by the options; None for a link that never varies."""
    # Imported here: it loads NumPy, which the help does without.
    from tcpdelay.sim.network.link_trace import varying_link

    with argument_errors():
        try:
            return varying_link(rate, file, outage_every, outage)
        except InvalidValueError:
            raise
        except ValueError as error:
            raise ValueError(f"--link-trace: {error}") from error
