"""`tcpdelay report`: the guideline, in the terminal or as a file; `tcpdelay paths`: the sources of the paths."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.options import (
    OPTIONS,
    Destination,
    ScenarioOptions,
    command,
    format_option,
    method_option,
    option,
    output_option,
    with_options,
)
from tcpdelay.cli.output import argument_errors, counting, counting_down, one_line, predicting, rendered, write
from tcpdelay.cli.scenario import SourceOptions, measurements, read_scenario
from tcpdelay.declare import Flag, InvalidValueError
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.report.document import FILE_WIDTH, Column, ResultTable
from tcpdelay.scenario.path import PATH_PRESETS, WARNING, PathPreset, path_preset
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.scenario import FIELDS
from tcpdelay.scenario.source import Flow

if TYPE_CHECKING:
    from tcpdelay.report.guideline import Guideline, GuidelineComparison, SourceGuideline, TwoWayGuideline

    Findings = Guideline | SourceGuideline | GuidelineComparison | TwoWayGuideline

Format = Literal["text", "markdown", "html", "json"]
_PAIR = re.compile(r"(?:--)?([a-z_-]+)=(.+)", re.DOTALL)
_FLAG_PREFIXES = {"on": "", "off": "no-"}


class ReportOutput(Destination):
    """How a report is made and written."""

    against: list[str] | None = option(
        "Compare with the scenario that has another value of an option, such as loss=1%; may be repeated. For flows of "
        "constant rate only.",
        panel="Comparison",
        metavar="OPTION=VALUE",
    )
    output_format: Format | None = format_option("Format of the report.")
    output: Path | None = output_option(".txt, .md, .html or .json")
    method: AnsweredBy = method_option(
        ", and the simulator where the chain's expected error reaches across the limit.",
        answers="Model of the verdict and the delays",
    )


@command(
    "Print the guideline: does it work, and what helps?",
    """
Examples:
  tcpdelay report --rtt 100ms --loss 2% --app voip
  tcpdelay report --rtt 100ms --loss 2% --app voip --limit 150ms -o voip.html
  tcpdelay report --rtt 80ms --loss 2% --app voip --against stack=newreno_2008
  tcpdelay report --rtt 100ms --loss 2% --app voip --against loss=1%
  tcpdelay report --path transatlantic --app voip
  tcpdelay report --ping examples/ping.txt --app voice-agent
  tcpdelay report --ss examples/ss.txt --app voip --format markdown
  tcpdelay report --rtt 60ms --loss 0.2% --bitrate 1Mbit/s --key-ratio 8
  tcpdelay report --ss examples/ss-several.txt --connection 10.0.3.2:5003 \\
      --packet-size 200 --bitrate 64kbit/s --format json

To measure a path:
  ping -c 200 HOST > ping.txt
  ss -tin > ss.txt             # at the end that sends, while it does
""",
)
def report(options: ScenarioOptions, source: SourceOptions, result: ReportOutput) -> None:
    """Print the guideline report: whether the flow works, within which limits, and what to set or change."""
    against = result.against
    asked = [options, changed_options(options, against)] if against else [options]
    files = [file for own in asked for file in measurements(own)]
    chosen = result.checked_format(Format, *files, *source.files)
    scenarios = [read_scenario(own, source) for own in asked]
    if against and not all(isinstance(each.source, Flow) for each in scenarios):
        instead = "for this source, make a report of each scenario"
        raise typer.BadParameter(f"--against: compares reports on flows of constant rate only; {instead}")
    with argument_errors(), predicting():
        from tcpdelay.report.guideline import compare_guidelines, guideline

        found = [
            guideline(
                s.source,
                s.path,
                s.stack,
                s.target,
                s.estimate,
                s.application,
                method=result.method,
                on_progress=counting("Simulating", "packets at most"),
                on_margin=counting_down("Found", "margins"),
                path_preset=s.path_preset,
            )
            for s in scenarios
        ]
        findings = compare_guidelines(*found) if against else found[0]
    write_report(findings, chosen, result.output)


def write_report(findings: Findings, chosen: Format, output: Path | None) -> None:
    """Write a report, a comparison of two reports, or the reports on both directions to a file, or print it."""
    if chosen != "text":
        render = {"markdown": findings.to_markdown, "html": findings.to_html, "json": findings.to_json}[chosen]
        write(render().rstrip("\n") + "\n", output)
        return
    from rich.console import Console

    from tcpdelay.report.document import print_content

    page = io.StringIO()
    in_file = Console(file=page, width=FILE_WIDTH, force_terminal=False, color_system=None)
    print_content(findings.content(), Console() if output is None else in_file)
    if output is not None:
        write(page.getvalue(), output)


def changed_options(options: ScenarioOptions, changes: Sequence[str]) -> ScenarioOptions:
    """Return `options` with the changes of `--against`."""
    values: dict[str, Any] = {}
    for change in changes:
        pair = _PAIR.fullmatch(change)
        if pair is None:
            raise typer.BadParameter(f"--against: must be OPTION=VALUE, such as loss=1%, got {change!r}")
        name = pair[1].replace("-", "_")
        if name not in OPTIONS:
            near = get_close_matches(name, sorted(OPTIONS), n=1)
            meant = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise typer.BadParameter(f"--against: {pair[1]!r} is no option of a scenario{meant}")
        values[name] = _read(name, pair[2])
    return options.changed(**values)


def _read(name: str, value: str) -> object:
    """Return the value of one option, read as on the command line."""
    option, words = name.replace("_", "-"), [value]
    if name in FIELDS and isinstance(FIELDS[name][1], Flag):
        if value not in _FLAG_PREFIXES:
            raise typer.BadParameter(f"--against: {option} must be on or off, got {value!r}")
        option, words = f"{_FLAG_PREFIXES[value]}{option}", []
    read: list[ScenarioOptions] = []
    reader = typer.Typer(add_completion=False)

    def keep(options: ScenarioOptions) -> None:
        read.append(options)

    reader.command()(with_options(keep))
    try:
        typer.main.get_command(reader).main([f"--{option}", *words], standalone_mode=False)
    except typer.BadParameter as error:
        said = one_line(error, "").partition("--")[2]
        raise typer.BadParameter(f"--against: {said}") from error
    return read[0][name] if name in FIELDS else getattr(read[0], name)


# `tcpdelay paths`: the presets of --path, and the sources of each.

TableFormat = Literal["text", "markdown", "csv", "json"]
PRESET_FIELDS = ("rtt", "one_way_delay", "jitter", "in_order", "loss", "bad_time", "bad_loss")
"""Fields of a path that presets set."""


class PathsOutput(Destination):
    """How the presets are written."""

    output_format: TableFormat | None = format_option("Format; csv and json hold seconds and fractions.")
    output: Path | None = output_option(".md, .csv, .json or .txt")


def _preset(name: str) -> PathPreset:
    """Return a preset by its name, which is no option here."""
    try:
        return path_preset(name)
    except InvalidValueError as error:
        raise typer.BadParameter(error.fault) from None


@command(
    "List the paths of --path, with the source of each value.",
    """
Examples:
  tcpdelay paths
  tcpdelay paths starlink
  tcpdelay paths -o paths.csv
""",
)
def paths(
    result: PathsOutput,
    name: Annotated[
        Any,
        typer.Argument(
            parser=_preset,
            autocompletion=lambda: list(PATH_PRESETS),
            metavar="[NAME]",
            help="The path whose sources are printed; without it, a table of all paths.",
        ),
    ] = None,
) -> None:
    """List the presets of paths, or print where the values of one of them come from."""
    preset: PathPreset | None = name
    chosen = result.checked_format(TableFormat)
    if preset is not None and chosen == "text":
        write(preset_text(preset), result.output)
        return
    table = presets_table([preset] if preset else list(PATH_PRESETS.values()))
    write(table.to_page() if chosen == "markdown" else rendered(table, chosen), result.output)


def presets_table(presets: Sequence[PathPreset]) -> ResultTable:
    """Return the parameters of presets, one row for each; seconds and fractions in files."""
    rows = []
    for preset in presets:
        path = NetworkPath.preset(preset.name)
        values = {name: getattr(path, name) for name in PRESET_FIELDS} | {"one_way_delay": path.forward_delay}
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
