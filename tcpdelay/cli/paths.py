"""`tcpdelay paths`: the presets of --path, and the sources of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.options import OUTPUT, format_option, output_option
from tcpdelay.cli.output import format_by_suffix, refuse_missing_folder, rendered, write
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.path_presets import PATH_PRESETS, path_preset

if TYPE_CHECKING:
    from tcpdelay.scenario.path_presets import PathPreset

Format = Literal["text", "markdown", "csv", "json"]
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
    from tcpdelay.report.path_table import preset_text, presets_table

    preset: PathPreset | None = name
    chosen = output_format or format_by_suffix(output, Format)
    refuse_missing_folder(output, "--output")
    if preset is not None and chosen == "text":
        write(preset_text(preset), output)
        return
    table = presets_table([preset] if preset else list(PATH_PRESETS.values()))
    write(table.to_page() if chosen == "markdown" else rendered(table, chosen), output)
