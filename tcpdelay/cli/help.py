"""The help of the commands: usual options first, rare options on request, and the presets of `--app`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tcpdelay.scenario.applications import APPLICATIONS
from tcpdelay.scenario.path_presets import PATH_PRESETS
from tcpdelay.scenario.scenario import FIELDS, SOURCE_FIELDS
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.units import format_fraction, format_rate, format_time

USUAL_FIELDS = frozenset(
    {"packet_size", "interval", "rtt", "loss", "limit", "quantile", "congestion_control", "delivery"},
)
"""Fields of a scenario whose options `--help` explains."""
RARE_FIELDS = (FIELDS.keys() | SOURCE_FIELDS.keys()) - USUAL_FIELDS
"""Fields whose options `--help` only names."""
_EVERYTHING = "tcpdelay: help of all options"
"""Key in the context of a command whose help explains all options."""


def presets() -> list[tuple[str, str]]:
    """Return name, packets and target of each application.

    Examples
    --------
    >>> presets()[0]
    ('voip', 'Telephony, G.711: 174 B every 20 ms (69.6 kbit/s); 95 % within 200 ms')
    """
    return [
        (
            preset.name,
            f"{preset.title}: {_sent(preset.source)}; {format_fraction(preset.target.quantile)} within "
            f"{format_time(preset.target.limit)}",
        )
        for preset in APPLICATIONS.values()
    ]


def _sent(source: Source) -> str:
    """Return what an application sends: its packets, or the mean bitrate if its rate is not constant."""
    if isinstance(source, Flow):
        return f"{source.packet_size} B every {format_time(source.interval)} ({format_rate(source.bitrate)})"
    return f"{type(source).__name__} ({format_rate(source.mean_bitrate)} in the mean)"


def _print_everything(context: typer.Context, requested: bool) -> None:
    if requested:
        context.meta[_EVERYTHING] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_print_everything, is_eager=True, help="Explain all options and exit."),
]
"""Annotation of the parameter `help_all`: the option that explains rare options too."""


class FilesCommand(TyperCommand):
    """A command that refuses an empty name of a file: as a path, it would be the working directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        # Behind "--", `run` has the command lines of programs.
        own = args[: args.index("--")] if "--" in args else args
        any_empty = any(not word or (word.startswith("--") and word.endswith("=")) for word in own)
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx) if any_empty else ():
            value = ctx.params.get(param.name)
            if Path() in (value if isinstance(value, list | tuple) else [value]):
                name = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name
                raise typer.BadParameter(f"{name}: the name of the file is empty")
        return rest


class GroupedHelp(FilesCommand):
    """A command whose help groups the options by the headings of their declarations.

    Of a command with `HelpAll`, `--help` explains the usual options and names the rest; `--help-all` explains all.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and presets into the help."""
        folded = any(option.name == "help_all" for option in self.params) and _EVERYTHING not in ctx.meta
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        only_named = []
        for option in self.get_params(ctx):
            entry = option.get_help_record(ctx)
            if entry is None:
                continue
            if option.param_type_name == "argument":
                # Typer adds the type of the language to the name.
                groups["Arguments"].append((option.metavar or option.name, entry[1]))
            elif folded and option.name in RARE_FIELDS:
                only_named.append(option.opts[0])
            else:
                groups.setdefault(getattr(option, "rich_help_panel", None) or "Other", []).append(entry)
        for heading, entries in groups.items():
            if entries:
                with formatter.section(heading):
                    formatter.write_dl(entries)
        if only_named:
            with formatter.section("More options (explained by --help-all)"):
                # click's own wrapping breaks the names of options at their hyphens.
                indent, width = " " * formatter.current_indent, formatter.width - formatter.current_indent
                for line in textwrap.wrap(", ".join(only_named), width, break_on_hyphens=False):
                    formatter.write(f"{indent}{line}\n")
        if any(option.name == "app" for option in self.params):
            _write_presets(formatter)
        if any(option.name == "path" for option in self.params):
            _write_paths(formatter)


class ProgramHelp(TyperGroup):
    """The program, whose help lists the presets below the commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write commands and presets into the help."""
        super().format_commands(ctx, formatter)
        _write_presets(formatter)


def _write_presets(formatter: Any) -> None:
    with formatter.section("Applications of --app"):
        formatter.write_dl(presets())


def _write_paths(formatter: Any) -> None:
    with formatter.section("Paths of --path, whose sources tcpdelay paths prints"):
        formatter.write_dl([(preset.name, preset.title) for preset in PATH_PRESETS.values()])
