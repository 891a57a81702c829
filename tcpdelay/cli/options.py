"""The options that describe a scenario on the command line, declared once for all commands.

Options that take a range: two quantities with `..` between them.

A scenario but for some options, as `--against OPTION=VALUE` asks for it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from tcpdelay.cli.errors import argument_errors, one_line
from tcpdelay.scenario.applications import APPLICATIONS, Application, application
from tcpdelay.scenario.encapsulation import ENCAPSULATIONS, Encapsulation, encapsulation
from tcpdelay.scenario.path import Bottleneck, LossPattern
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, BacklogBound, CongestionControl, StackName, Variant
from tcpdelay.units import parse_fraction, parse_rate, parse_size, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable


FLOW, PATH, OUTPUT = "What is sent", "The path it takes", "What comes out"
TARGET, _TCP = "When it is late", "The TCP that carries it"
_LINUX, _PUBLISHED = "Of --stack linux", "Of --stack newreno_2008"


def quantity(
    name: str, parse: Callable[..., float], metavar: str, panel: str, description: str, default: str | bool = False
) -> Any:
    """Return an option whose value has a unit; `default` says in words what holds without it."""
    return typer.Option(
        name,
        parser=partial(parse, name=name),
        metavar=metavar,
        help=description,
        rich_help_panel=panel,
        show_default=default,
    )


def format_option(description: str) -> Any:
    """Return the option of a result's format."""
    return typer.Option(
        "--format",
        help=description,
        rich_help_panel=OUTPUT,
        show_default="by the suffix of --output, or text",
    )


def output_option(suffixes: str) -> Any:
    """Return the option of the file that a result goes to; `suffixes` says which ones there are."""
    return typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=f"Write to a file, such as one in {suffixes}.",
        rich_help_panel=OUTPUT,
        show_default="the terminal",
    )


def chart_option(what: str) -> Any:
    """Return the option of the file that a chart goes to; `what` is drawn there."""
    return typer.Option(
        "--chart",
        metavar="FILE",
        help=f"Draw {what}, as .svg, .png or .pdf.",
        rich_help_panel=OUTPUT,
        show_default=False,
    )


def _choice(name: str, panel: str, description: str, default: str | bool = True) -> Any:
    return typer.Option(name, help=description, rich_help_panel=panel, show_default=default)


def _application(name: str) -> Application:
    with argument_errors():
        return application(name)


def _application_names() -> list[str]:
    return list(APPLICATIONS)


def application_option(more: str = "") -> Any:
    """Return the option of the application; `more` is added to its help."""
    return typer.Option(
        "--app",
        parser=_application,
        metavar="|".join(APPLICATIONS),
        autocompletion=_application_names,
        help=f"A typical application: its packets, and how late they may come. Other options override it.{more}",
        rich_help_panel=FLOW,
        show_default=False,
    )


_STACK_HELP = "That of a Linux kernel, or the published one of 2008."


def _profile_name(text: str) -> str:
    if text not in PROFILES:
        raise typer.BadParameter(f"--stack: must be one of {', '.join(PROFILES)}, got {text!r}")
    return text


def stacks_option(more: str) -> Any:
    """Return the option of one or several TCP stacks; `more` is added to its help."""
    return typer.Option(
        "--stack",
        parser=_profile_name,
        metavar="|".join(PROFILES),
        autocompletion=lambda: list(PROFILES),
        help=f"{_STACK_HELP} {more}",
        rich_help_panel=_TCP,
        show_default=DEFAULT_PROFILE,
    )


def _encapsulation(name: str) -> Encapsulation:
    with argument_errors():
        return encapsulation(name)


def _encapsulation_names() -> list[str]:
    return list(ENCAPSULATIONS)


def _file_name(text: str) -> str:
    if not text:
        raise ValueError("the name of the file is empty")
    return text


def _file(name: str, description: str) -> Any:
    return typer.Option(
        name, parser=_file_name, metavar="FILE", help=description, rich_help_panel=PATH, show_default=False
    )


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """A scenario as given on the command line; None where an option is absent.

    Quantities are in seconds, bytes, bit/s and fractions, as their parsers return them.
    """

    app: Annotated[Application | None, application_option()] = None
    packet_size: Annotated[
        int | None, quantity("--packet-size", parse_size, "SIZE", FLOW, "Bytes per packet, such as 174.")
    ] = None
    interval: Annotated[
        float | None,
        quantity("--interval", parse_time, "TIME", FLOW, "Time from one packet to the next, such as 20ms."),
    ] = None
    bitrate: Annotated[
        float | None,
        quantity(
            "--bitrate",
            parse_rate,
            "RATE",
            FLOW,
            "Such as 64kbit/s; beside one of the two above, or alone for full segments.",
        ),
    ] = None
    over: Annotated[
        Encapsulation | None,
        typer.Option(
            "--over",
            parser=_encapsulation,
            metavar="NAME",
            autocompletion=_encapsulation_names,
            help=f"What stands around the data inside TCP: {', '.join(ENCAPSULATIONS)}. Sizes and rates above are then "
            "those of the data alone.",
            rich_help_panel=FLOW,
            show_default="that of --app, or tcp",
        ),
    ] = None

    rtt: Annotated[float | None, quantity("--rtt", parse_time, "TIME", PATH, "Round-trip time, such as 100ms.")] = None
    loss: Annotated[
        float | None,
        quantity("--loss", parse_fraction, "SHARE", PATH, "Share of the segments that is lost, such as 2%."),
    ] = None
    ping: Annotated[
        str | None, _file("--ping", "What ping printed; measures --rtt and --loss, unless they are given.")
    ] = None
    ss: Annotated[
        str | None, _file("--ss", "What 'ss -tin' printed; measures --rtt, --loss and --mss, unless they are given.")
    ] = None
    connection: Annotated[
        str | None,
        typer.Option(
            "--connection",
            metavar="ADDRESS",
            help="Which one, if --ss shows several: either end of it, or a part of that.",
            rich_help_panel=PATH,
            show_default=False,
        ),
    ] = None
    loss_pattern: Annotated[
        LossPattern,
        _choice(
            "--loss-pattern",
            PATH,
            "Independent losses, or the rest of a round with its first, which newreno_2008 knows.",
        ),
    ] = "random"
    bottleneck: Annotated[
        Bottleneck, _choice("--bottleneck", PATH, "What its queue counts; one of bytes spares small packets.")
    ] = "packets"
    one_way_delay: Annotated[
        float | None,
        quantity(
            "--one-way-delay",
            partial(parse_time, allow_zero=True),
            "TIME",
            PATH,
            "Delay to the receiver without TCP.",
            "half the round-trip time",
        ),
    ] = None
    loss_burst: Annotated[
        float | None,
        typer.Option(
            "--loss-burst",
            help="Mean number of segments lost in a row; simulated, or up to 2 by the chain.",
            rich_help_panel=PATH,
            metavar="NUMBER",
            show_default="1",
        ),
    ] = None
    ack_loss: Annotated[
        float | None,
        quantity(
            "--ack-loss", parse_fraction, "SHARE", PATH, "Share of the acknowledgements that is lost; simulated.", "0%"
        ),
    ] = None
    jitter: Annotated[
        float | None,
        quantity(
            "--jitter",
            partial(parse_time, allow_zero=True),
            "TIME",
            PATH,
            "Largest additional delay of a segment; simulated.",
            "0ms",
        ),
    ] = None

    limit: Annotated[
        float | None,
        quantity("--limit", parse_time, "TIME", TARGET, "Largest delay of any use.", "that of --app, or 200ms"),
    ] = None
    quantile: Annotated[
        float | None,
        quantity(
            "--quantile",
            partial(parse_fraction, allow_zero=False),
            "SHARE",
            TARGET,
            "Share of the packets that must arrive by then.",
            "that of --app, or 95%",
        ),
    ] = None

    stack: Annotated[StackName | None, _choice("--stack", _TCP, _STACK_HELP, DEFAULT_PROFILE)] = None
    mss: Annotated[
        int | None,
        quantity("--mss", parse_size, "SIZE", _TCP, "Largest segment payload.", "that of --ss, or 1448B"),
    ] = None
    window_validation: Annotated[
        bool | None,
        _choice(
            "--window-validation/--no-window-validation",
            _TCP,
            "Smaller windows after idling (RFC 2861).",
            "on for linux, off for newreno_2008",
        ),
    ] = None

    congestion_control: Annotated[
        CongestionControl | None,
        _choice("--congestion-control", _LINUX, "How the window grows and shrinks.", "cubic"),
    ] = None
    delayed_ack: Annotated[
        bool | None,
        _choice("--delayed-ack/--no-delayed-ack", _LINUX, "Acknowledgements by the kernel's rules for delays.", "off"),
    ] = None
    hz: Annotated[
        int | None,
        typer.Option("--hz", help="Timer interrupts per second.", rich_help_panel=_LINUX, show_default="250"),
    ] = None
    rto_min: Annotated[
        float | None,
        quantity("--rto-min", parse_time, "TIME", _LINUX, "Least of a timeout beyond the round-trip time.", "200ms"),
    ] = None

    variant: Annotated[
        Variant | None, _choice("--variant", _PUBLISHED, "How several losses of one window are repaired.", "newreno")
    ] = None
    limited_transmit: Annotated[
        bool | None,
        _choice(
            "--limited-transmit/--no-limited-transmit",
            _PUBLISHED,
            "New data on the first duplicate ACKs (RFC 3042).",
            "off",
        ),
    ] = None
    initial_timeout: Annotated[
        float | None,
        quantity(
            "--initial-timeout", parse_time, "TIME", _PUBLISHED, "First retransmission timeout.", "4 round-trip times"
        ),
    ] = None
    backlog_bound: Annotated[
        BacklogBound | None,
        _choice("--backlog-bound", _PUBLISHED, "Cut the send buffer off as published, or let it grow.", "grow"),
    ] = None


class GroupedHelp(TyperCommand):
    """A command whose help shows its options under the headings they were declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options into the help."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            entry = option.get_help_record(ctx)
            if entry is not None:
                groups.setdefault(getattr(option, "rich_help_panel", None) or "Other", []).append(entry)
        for heading, entries in groups.items():
            with formatter.section(heading):
                formatter.write_dl(entries)


PATH_OPTIONS = (
    "rtt",
    "loss",
    "ping",
    "ss",
    "connection",
    "loss_pattern",
    "bottleneck",
    "one_way_delay",
    "loss_burst",
    "ack_loss",
    "jitter",
)
"""The options that describe the path, by the names of their fields."""


def with_scenario(command: Callable[..., None], left_out: tuple[str, ...] = ()) -> Callable[..., None]:
    """Give `command` the options of a scenario but those `left_out`; its first argument takes them together."""
    scenario_hints = get_type_hints(ScenarioOptions, include_extras=True)
    own_hints = get_type_hints(command, include_extras=True)
    offered = [field for field in fields(ScenarioOptions) if field.name not in left_out]
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=scenario_hints[field.name]
        )
        for field in offered
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own_hints[name])
        for name, parameter in list(inspect.signature(command).parameters.items())[1:]
    ]

    @wraps(command)
    def take_options(**values: Any) -> None:
        command(ScenarioOptions(**{field.name: values.pop(field.name) for field in offered}), **values)

    take_options.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return take_options


BETWEEN = ".."


@dataclass(frozen=True)
class Range:
    """Two ends of a range, in seconds or as fractions."""

    low: float
    high: float


def parse_range(text: str, name: str, parse: Callable[..., float]) -> Range:
    """Read two quantities with `..` between them.

    Raises
    ------
    ValueError
        If there are not two, or the second is not the larger one.

    Examples
    --------
    >>> from tcpdelay.units import parse_fraction, parse_time
    >>> parse_range("10ms..400ms", "--rtt", parse_time)
    Range(low=0.01, high=0.4)
    >>> parse_range("2%", "--loss", parse_fraction)
    Traceback (most recent call last):
    ValueError: --loss: '2%' is no range; write two values with .. between them
    """
    first, between, last = text.partition(BETWEEN)
    if not between:
        raise ValueError(f"{name}: {text[:64]!r} is no range; write two values with {BETWEEN} between them")
    low, high = parse(first, name), parse(last, name)
    if not low < high:
        raise ValueError(f"{name}: in {text[:64]!r} the first value is not below the second")
    return Range(low, high)


def range_option(
    name: str, parse: Callable[..., float], metavar: str, description: str, default: str
) -> typer.models.OptionInfo:
    """Return an option with a range of the path."""
    option: typer.models.OptionInfo = typer.Option(
        name,
        parser=partial(parse_range, name=name, parse=parse),
        metavar=f"{metavar}{BETWEEN}{metavar}",
        help=description,
        rich_help_panel=PATH,
        show_default=default,
    )
    return option


_PAIR = re.compile(r"(?:--)?([a-z_-]+)=(.+)", re.DOTALL)
_FLAGS = {name for name, hint in get_type_hints(ScenarioOptions).items() if hint == bool | None}
_ON_OFF = {"on": "", "off": "no-"}


def changed_options(options: ScenarioOptions, changes: Sequence[str]) -> ScenarioOptions:
    """Return `options` with those changed that `changes` name, each read as the option of the command is.

    Parameters
    ----------
    options : ScenarioOptions
        What was asked for.
    changes : sequence of str
        Such as "loss=1%"; the last word on an option counts. A flag takes "on" or "off".

    Returns
    -------
    ScenarioOptions
        The other scenario's options.

    Raises
    ------
    typer.BadParameter
        If a change is no OPTION=VALUE, names no option of a scenario, or its value is none.

    Examples
    --------
    >>> changed_options(ScenarioOptions(rtt=0.1, loss=0.02), ["loss=1%"]).loss
    0.01
    """
    known = {field.name for field in fields(ScenarioOptions)}
    values: dict[str, Any] = {}
    for change in changes:
        pair = _PAIR.fullmatch(change)
        if pair is None:
            raise typer.BadParameter(f"--against: must be OPTION=VALUE, such as loss=1%, got {change!r}")
        name = pair[1].replace("-", "_")
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            meant = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise typer.BadParameter(f"--against: {pair[1]!r} is no option of a scenario{meant}")
        values[name] = _read(name, pair[2])
    return replace(options, **values)


def _read(name: str, value: str) -> object:
    """Return the value of one option, read by the same declaration as on the command line."""
    option, words = name.replace("_", "-"), [value]
    if name in _FLAGS:
        if value not in _ON_OFF:
            raise typer.BadParameter(f"--against: {option} must be on or off, got {value!r}")
        option, words = f"{_ON_OFF[value]}{option}", []
    read: list[ScenarioOptions] = []
    reader = typer.Typer(add_completion=False)

    def keep(options: ScenarioOptions) -> None:
        read.append(options)

    reader.command()(with_scenario(keep))
    try:
        typer.main.get_command(reader).main([f"--{option}", *words], standalone_mode=False)
    except typer.BadParameter as error:
        said = one_line(error, "").partition("--")[2]
        raise typer.BadParameter(f"--against: {said}") from error
    return getattr(read[0], name)
