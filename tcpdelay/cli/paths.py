"""`tcpdelay paths`: the presets of --path, and the sources of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.options import OUTPUT, format_option, output_option
from tcpdelay.cli.output import format_by_suffix, refuse_missing_folder, rendered, write
from tcpdelay.declare import InvalidValueError
from tcpdelay.report.result_table import Column, ResultTable
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.path_presets import PATH_PRESETS, WARNING, path_preset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tcpdelay.scenario.path_presets import PathPreset

Format = Literal["text", "markdown", "csv", "json"]
FIELDS = ("rtt", "one_way_delay", "jitter", "in_order", "loss", "bad_time", "bad_loss")
"""Fields of a path that presets set."""
SUMMARY = "List the paths of --path, with the source of each value."
EXAMPLES = """
\b
Examples:
  tcpdelay paths
  tcpdelay paths starlink
  tcpdelay paths -o paths.csv
"""


def _preset(name: str) -> PathPreset:
    """Return a preset by its name, which is no option here."""
    try:
        return path_preset(name)
    except InvalidValueError as error:
        raise typer.BadParameter(error.fault) from None


def paths(
    name: Annotated[
        Any,
        typer.Argument(
            parser=_preset,
            autocompletion=lambda: list(PATH_PRESETS),
            metavar="[NAME]",
            help="The path whose sources are printed; without it, a table of all paths.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[Format | None, format_option("Format; csv and json hold seconds and fractions.")] = None,
    output: Annotated[Path | None, output_option(".md, .csv, .json or .txt")] = None,
) -> None:
    """List the presets of paths, or print where the values of one of them come from."""
    preset: PathPreset | None = name
    chosen = output_format or format_by_suffix(output, Format)
    refuse_missing_folder(output, "--output")
    if preset is not None and chosen == "text":
        write(preset_text(preset), output)
        return
    table = presets_table([preset] if preset else list(PATH_PRESETS.values()))
    write(table.to_page() if chosen == "markdown" else rendered(table, chosen), output)


def presets_table(presets: Sequence[PathPreset]) -> ResultTable:
    """Return the parameters of presets, one row for each; seconds and fractions in files."""
    rows = []
    for preset in presets:
        path = NetworkPath.preset(preset.name)
        values = {name: getattr(path, name) for name in FIELDS} | {"one_way_delay": path.forward_delay}
        if not path.jitter:
            values["in_order"] = None
        if not path.bad_time:
            values |= {"bad_time": None, "bad_loss": None}
        rows.append({"name": preset.name, "title": preset.title, **values})
    columns = [
        Column("name", "path"),
        Column("title", "what it is"),
        Column("rtt", "RTT", "time"),
        Column("jitter", "jitter", "time"),
        Column("in_order", "in order"),
        Column("loss", "loss", "fraction"),
        Column("bad_time", "bad time", "time"),
        Column("bad_loss", "bad loss", "fraction"),
    ]
    note = (
        f"Take care: {WARNING}. The jitter is the largest additional delay; in order, no segment overtakes another "
        "one. All losses are in bad states of this mean duration, or random without a bad time. tcpdelay paths "
        "NAME has the source of each value."
    )
    return ResultTable("paths", "Paths that people have", columns, rows, note)


def preset_text(preset: PathPreset) -> str:
    """Return the values of a preset with their sources, as text."""
    from tcpdelay.report.content import preset_rows, preset_section, ranges_in_words

    path = NetworkPath.preset(preset.name)
    lines = [*preset_section(preset, path).paragraphs, ranges_in_words(preset), ""]
    for values, statement, source in preset_rows(preset, path):
        lines += [values, f"    {statement}", *([] if source == "none" else [f"    {source}"])]
    return "\n".join(lines) + "\n"
