"""How commands declare their options; the options of a scenario, which follow from the declarations of its fields."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

import typer

from tcpdelay.budget import MOST_SECONDS
from tcpdelay.cli.output import (
    HelpAll,
    Named,
    argument_errors,
    format_by_suffix,
    option_name,
    refuse_missing_folder,
    refuse_other_than_chart,
    refuse_same_file,
)
from tcpdelay.declare import PARSERS, WHOLE, Choice, Field, Flag, InvalidValueError, Kind, Quantity, declarations
from tcpdelay.scenario.encapsulation import ENCAPSULATIONS, Encapsulation, encapsulation
from tcpdelay.scenario.path import PATH_PRESETS, PathPreset, path_preset
from tcpdelay.scenario.scenario import APPLICATIONS, FIELDS, Application, Part, application
from tcpdelay.scenario.source import BITRATE, FRAME_RATE, USUAL_FRAME_RATE
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, CongestionControl, Linux, StackName, profiles_with

if TYPE_CHECKING:
    from tcpdelay.sim.network.link_trace import LinkTrace


FLOW, PATH, OUTPUT = "What is sent", "The path it takes", "Output"
TARGET, TRANSPORT = "When it is late", "The transport that carries it"
_MEASURED_TOO = {"mss": "that of --ss, or "}
"""Source of a value that takes precedence over the default of a field."""
_PANELS: dict[Part, str] = {"flow": FLOW, "path": PATH, "stack": TRANSPORT, "target": TARGET}

Time = Annotated[float, "time"]
Share = Annotated[float, "fraction"]
Size = Annotated[int, "size"]
Rate = Annotated[float, "rate"]
"""Types of options whose values have a unit; the metadata is the `Kind` of the value."""
_METAVARS: Mapping[Any, str] = {
    "time": "TIME",
    "fraction": "SHARE",
    "size": "SIZE",
    "rate": "RATE",
    int: "NUMBER",
    float: "NUMBER",
    Path: "FILE",
}
"""What the help shows for a value, by the kind or the type of the option."""


class Option(NamedTuple):
    """The declaration of an option, the value of a class attribute, which gives it its name, unit and type."""

    meaning: str
    shown: str | bool = True  # The default in the help: a text, or whether `default` is shown
    default: Any = None  # ... if the option must be given
    panel: str = ""  # Heading in the help, by default the heading of the class
    name: str = ""  # Spelling, if it is not that of the attribute
    metavar: str | None = None
    parse: Callable[..., Any] | None = None  # Reads the text; of a value with a unit, it also takes the option's name
    words: Collection[str] = ()  # For the completion of the shell, and without `parse` the allowed words
    kind: Kind | None = None
    zero: bool = False  # Whether a value with a unit may be 0
    goes_with: Collection[Any] = ()  # Values of the command's argument that the option is for; if empty, all

    def parameter(self, attribute: str, hint: Any, panel: str) -> inspect.Parameter:
        """Return the parameter of a command for the option that is an `attribute` of a type."""
        name = self.name or option_name(attribute)
        types = [hint, *get_args(hint)]
        kind = self.kind or next((each.__metadata__[0] for each in types if hasattr(each, "__metadata__")), None)
        metavar = self.metavar or next((_METAVARS[each] for each in [kind, *types] if each in _METAVARS), None)
        parser = self.parse
        if kind in PARSERS:
            parser = partial(parser or PARSERS[kind], name=name, allow_zero=self.zero)
            hint = float if self.default is ... else float | None
        elif self.words and parser is None:
            parser, metavar = partial(_word, name=name, words=self.words), "|".join(self.words)
        elif bool in types and self.default is not False:
            name = f"{name}/--no-{name.removeprefix('--')}"
        option = typer.Option(
            *name.split(maxsplit=1),
            metavar=metavar,
            help=self.meaning,
            rich_help_panel=self.panel or panel or None,
            show_default=self.shown,
            parser=parser,
            autocompletion=(lambda: list(self.words)) if self.words else None,
        )
        default = inspect.Parameter.empty if self.default is ... else self.default
        return inspect.Parameter(
            attribute, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option]
        )


def option(meaning: str, shown: str | bool = True, **more: Any) -> Any:
    """Return an option, to be assigned to an attribute; the arguments are the fields of `Option`."""
    return Option(meaning, shown, **more)


def _word(text: str, name: str, words: Collection[str]) -> str:
    if text not in words:
        raise typer.BadParameter(f"{name}: must be one of {', '.join(words)}, got {text!r}")
    return text


class Options:
    """Base class of options that belong together: each attribute that is an `Option` is one.

    A command with a parameter of such a class has these options, and receives their values as its attributes.
    """

    panel: ClassVar[str] = ""

    def __init_subclass__(cls, panel: str | None = None) -> None:
        cls.panel = cls.panel if panel is None else panel

    def __init__(self, **values: Any) -> None:
        defaults = {name: each.default for name, each in self.declared().items()}
        vars(self).update({**defaults, **values})

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Return the options by the name of their attribute."""
        bases = reversed(cls.__mro__)
        return {name: each for base in bases for name, each in vars(base).items() if isinstance(each, Option)}

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return the parameters that a command has for these options."""
        hints = get_type_hints(cls, include_extras=True)
        return [each.parameter(name, hints[name], cls.panel) for name, each in cls.declared().items()]


class Command(NamedTuple):
    """A command: a function that takes options, and what the help says."""

    run: Callable[..., None]
    summary: str
    examples: str


def command(summary: str, examples: str, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a function a command, whose scenario lacks the options in `without`.

    The paragraphs of `examples` stand in the help as they are.
    """
    kept = "".join(f"\n\b\n{paragraph.strip(chr(10))}\n" for paragraph in examples.split("\n\n"))

    def make(function: Callable[..., None]) -> Command:
        return Command(with_options(function, without), summary, kept)

    return make


def with_options(function: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Return `function` with options in place of its parameters of `Options`."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    bundles: dict[str, tuple[type[Options], list[str]]] = {}
    for own in inspect.signature(function).parameters.values():
        hint = hints[own.name]
        if isinstance(hint, type) and issubclass(hint, Options):
            offered = hint.parameters(without) if hint is ScenarioOptions else hint.parameters()
            parameters += offered
            bundles[own.name] = hint, [each.name for each in offered]
        else:
            parameters.append(own.replace(kind=own.KEYWORD_ONLY, annotation=hint))
    if any(bundle is ScenarioOptions for bundle, _ in bundles.values()):
        whole_help = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
        parameters.append(whole_help)

    @wraps(function)
    def take_options(**values: Any) -> None:
        values.pop("help_all", None)
        given = {
            name: bundle(**{each: values.pop(each) for each in offered}) for name, (bundle, offered) in bundles.items()
        }
        function(**values, **given)

    take_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    take_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return take_options


# Options that several commands have.


def seconds_option() -> Any:
    """Return the option for the processor time that one answer may take: of each row or cell, if there are several."""
    what = "Processor time of an answer in seconds, by an estimate."
    return option(what, "10", default=MOST_SECONDS)


def memory_option() -> Any:
    """Return the option for the memory that one answer may take: of each row or cell, if there are several."""
    return option("Memory of the chain of an answer. Example: 500MB.", "1 GiB")


def format_option(meaning: str) -> Any:
    """Return the option for the format of a result."""
    return option(meaning, "by the suffix of --output, or text", name="--format")


def result_option(meaning: str, shown: str | bool = "the terminal", metavar: str = "FILE", **more: Any) -> Any:
    """Return the option for the file or folder of a result."""
    return option(meaning, shown, name="--output -o", metavar=metavar, **more)


def output_option(suffixes: str) -> Any:
    """Return the option for the file of a result; the help lists the allowed `suffixes`."""
    return result_option(f"Write the result to a file ({suffixes}).")


def method_option(auto: str, *, answers: str = "Model") -> Any:
    """Return the option for the model that `answers`; the help ends with what "auto" stands for."""
    meaning = f"{answers}: the chain, the simulator, or auto: the chain{auto}"
    return option(meaning, default="auto")


def chart_option(what: str) -> Any:
    """Return the option for the file of a chart; `what` names the subject of the chart."""
    return option(f"Draw {what}: .svg, .png or .pdf.", False)


def _named(find: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return `find`, which looks up a name, with its error as one of the command line."""

    def parse(name: str) -> Any:
        with argument_errors():
            return find(name)

    return parse


def application_option(more: str = "") -> Any:
    """Return the option for the application; the help ends with `more`."""
    meaning = f"A typical application of those below: its packets and its target. Other options override it.{more}"
    return option(meaning, panel=FLOW, name="--app", metavar="NAME", parse=_named(application), words=APPLICATIONS)


_STACK_HELP = "Transport: linux (TCP of a current kernel), newreno_2008 (TCP of the published chain) or quic."


def stacks_option(more: str) -> Any:
    """Return the option for one or several stacks; the help ends with `more`."""
    return option(f"{_STACK_HELP} {more}", DEFAULT_PROFILE, panel=TRANSPORT, words=PROFILES)


def file_name(text: str) -> str:
    """Return the name of a file as it is given."""
    if not text:
        raise ValueError("the name of the file is empty")
    return text


def path_preset_option(meaning: str) -> Any:
    """Return the option for a preset of the path."""
    return option(meaning, panel=PATH, metavar="NAME", parse=_named(path_preset), words=PATH_PRESETS)


def _measurement(meaning: str) -> Any:
    return option(meaning, panel=PATH, metavar="FILE", parse=file_name)


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
    shown = shown_default(name) if default is None else default
    return declared_option(FIELDS[name][1], _panel(name), more, shown)


def declared_option(declaration: Field, panel: str, more: str = "", shown: str | bool | None = None) -> Option:
    """Return the option for a declared field, whose help ends with `more` and shows `shown` as the default."""
    if shown is None:
        known = declaration.default is not None
        shown = declaration.default_words or (_compact(declaration, declaration.default) if known else False)
    meaning = described(declaration) + more
    if isinstance(declaration, Quantity) and declaration.kind in PARSERS:
        kind, zero = declaration.kind, declaration.zero_allowed
        return Option(meaning, shown, panel=panel, parse=declaration.parser, kind=kind, zero=zero)
    return Option(meaning, shown, panel=panel)


def declared_parameter(
    name: str, declaration: Field, panel: str, more: str = "", shown: str | bool | None = None
) -> inspect.Parameter:
    """Return the option of a declared field as a parameter of a command; see `declared_option`."""
    return declared_option(declaration, panel, more, shown).parameter(name, option_type(declaration) | None, panel)


def option_type(declaration: Field) -> Any:
    """Return the type of the value of an option."""
    if isinstance(declaration, Choice):
        return Literal[declaration.words]
    if isinstance(declaration, Flag):
        return bool
    if declaration.kind == "word":
        return str
    return int if declaration.kind in WHOLE else float


class ScenarioOptions(Options):
    """The options of a scenario on the command line; None if an option is absent."""

    app: Application | None = application_option()
    bitrate: Rate | None = option(
        f"{described(BITRATE)} Give it with one of the two above, or alone for full segments.", panel=FLOW
    )
    fps: float | None = option(
        f"{described(FRAME_RATE)} Give it instead of --interval.",
        f"{USUAL_FRAME_RATE:g} for a video over rtmp or rtmps",
        panel=FLOW,
    )
    over: Encapsulation | None = option(
        f"Protocol headers added to each packet before TCP: {', '.join(ENCAPSULATIONS)}. "
        "--packet-size and --bitrate then count the data without these headers.",
        "that of --app, or tcp",
        panel=FLOW,
        metavar="NAME",
        parse=_named(encapsulation),
        words=ENCAPSULATIONS,
    )
    path: PathPreset | None = path_preset_option(
        "A path that people have, one of those below, in place of --rtt and --loss. Other options override it."
    )
    ping: str | None = _measurement(
        "Output of ping, fping, mtr or iperf3 --json; gives --rtt and --loss, unless they are given."
    )
    ss: str | None = _measurement("Output of 'ss -tin'; gives --rtt, --loss and --mss, unless they are given.")
    connection: str | None = option(
        "Connection to read if --ss has several: the address of either end, or a part of it.",
        panel=PATH,
        metavar="ADDRESS",
    )
    stack: StackName | None = option(_STACK_HELP, DEFAULT_PROFILE, panel=TRANSPORT)

    def __init__(self, **values: Any) -> None:
        """Take values of fields and of the other options by name."""
        fields = {name: values.pop(name) for name in list(values) if name in FIELDS}
        super().__init__(**values)
        # Given fields in seconds, bytes, bit/s, fractions
        self.values: Mapping[str, Any] = {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def parameters(cls, without: Collection[str] = ()) -> list[inspect.Parameter]:
        """Return the parameters of a command for the options of a scenario, in the order of the help."""
        offered = {name: each for name, each in OPTIONS.items() if name not in without}
        if set(OTHER_STACKS) <= set(without):
            meaning = f"Congestion control of the sender: {', '.join(get_args(CongestionControl))}."
            of_linux = Option(meaning, Linux().congestion_control, panel=TRANSPORT)
            offered["congestion_control"] = of_linux.parameter("congestion_control", CongestionControl | None, "")
        return list(offered.values())

    def changed(self, **values: Any) -> ScenarioOptions:
        """Return the options with some values changed; None removes an option."""
        others = {name: getattr(self, name) for name in self.declared()}
        return ScenarioOptions(**{**others, **self.values, **values})

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field; None if the option is absent."""
        return self.values.get(name)


def _fields_of(part: Part) -> list[str]:
    return [name for name, (own, _) in FIELDS.items() if own == part]


PATH_OPTIONS = ("path", *_fields_of("path"), "ping", "ss", "connection")
"""The options that describe the path."""
FLOW_OPTIONS = ("app", *_fields_of("flow"), "bitrate", "fps", "over")
"""The options that describe a flow."""


def _options() -> dict[str, inspect.Parameter]:
    """Return the parameter for each option of a scenario by name, in the order of the help."""
    others = {each.name: each for each in super(ScenarioOptions, ScenarioOptions).parameters()}
    of_stacks = sorted(_fields_of("stack"), key=lambda name: _panel(name) != TRANSPORT)
    order = [*FLOW_OPTIONS, *PATH_OPTIONS, *_fields_of("target"), "stack", *of_stacks]
    return {
        name: others.get(name) or declared_parameter(name, FIELDS[name][1], _panel(name), shown=shown_default(name))
        for name in order
    }


OPTIONS = _options()
"""The options of a scenario: the fields of its parts, and the options of `ScenarioOptions`."""


def options_only_of(*profiles: StackName) -> tuple[str, ...]:
    """Return the options of stacks that no profile other than these has."""
    return tuple(name for name in OPTIONS if (having := profiles_with(name)) and set(having) <= set(profiles))


OTHER_STACKS = ("stack", *options_only_of("newreno_2008", "quic"))
"""Options that a command leaves out which simulates Linux only."""

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
    declaration = FIELDS[name][1]
    metavar = _METAVARS[declaration.kind]
    parse = partial(PARSERS[declaration.kind], allow_zero=zero)
    return option(
        f"{declaration.meaning} Give the smallest and the largest value.",
        default,
        panel=PATH,
        metavar=f"{metavar}{BETWEEN}{metavar}",
        parse=partial(parse_range, name=option_name(name), parse=parse),
    )


class VaryingLink(Options):
    """The options of a link whose rate varies."""

    link_trace: Path | None = option(
        "Link whose rate varies: a trace of mahimahi (.up, .down), or a .csv with the columns time (s), rate "
        "(bit/s) and optionally delay (s). The trace repeats.",
    )
    outage_every: Time | None = option(
        "Time between two outages of the link, such as handovers; the first is at the start. Example: 15s.", "none"
    )
    outage: Time | None = option("Duration of each outage. Example: 300ms.", "none")


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


class Destination(Options, panel=OUTPUT):
    """Base class of the options of a result: those of its format, its file and its chart that a command has."""

    output_format: Any = None
    output: Path | None = None
    chart: Path | None = None

    def checked_format(self, formats: object, *inputs: Named) -> Any:
        """Return the format, one of a `Literal` of `formats`, before the work begins.

        Raise typer.BadParameter if a file cannot be written, or would replace one of the `inputs`.
        """
        refuse_other_than_chart(self.chart, "--chart")
        chosen = self.output_format or format_by_suffix(self.output, formats)
        refuse_same_file(inputs, [("--output", self.output), ("--chart", self.chart)])
        refuse_missing_folder(self.output, "--output")
        return chosen
