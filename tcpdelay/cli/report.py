"""`tcpdelay report`: the guideline, in the terminal or as a file."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.errors import argument_errors, counting, counting_down, one_line, predicting
from tcpdelay.cli.options import (
    OPTIONS,
    ScenarioOptions,
    format_option,
    make_option,
    method_option,
    output_option,
    with_scenario,
)
from tcpdelay.cli.output import format_by_suffix, refuse_missing_folder, refuse_same_file, write
from tcpdelay.cli.scenario import NO_SOURCE, SourceOptions, measurements, read_scenario, with_source
from tcpdelay.declare import Flag
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.report.result_table import FILE_WIDTH
from tcpdelay.scenario.scenario import FIELDS
from tcpdelay.scenario.source import Flow

if TYPE_CHECKING:
    from tcpdelay.report.guideline import Guideline, GuidelineComparison, SourceGuideline, TwoWayGuideline

    Findings = Guideline | SourceGuideline | GuidelineComparison | TwoWayGuideline

Format = Literal["text", "markdown", "html", "json"]
_PAIR = re.compile(r"(?:--)?([a-z_-]+)=(.+)", re.DOTALL)
_FLAG_PREFIXES = {"on": "", "off": "no-"}
SUMMARY = "Print the guideline: does it work, and what helps?"
EXAMPLES = """
\b
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

\b
To measure a path:
  ping -c 200 HOST > ping.txt
  ss -tin > ss.txt             # at the end that sends, while it does
"""


@with_scenario
@with_source
def report(
    options: ScenarioOptions,
    source: SourceOptions = NO_SOURCE,
    against: Annotated[
        list[str] | None,
        make_option(
            "--against",
            "Comparison",
            "Compare with the scenario that has another value of an option, such as loss=1%; may be repeated.",
            False,
            metavar="OPTION=VALUE",
        ),
    ] = None,
    output_format: Annotated[Format | None, format_option("Format of the report.")] = None,
    output: Annotated[Path | None, output_option(".txt, .md, .html or .json")] = None,
    method: Annotated[
        AnsweredBy,
        method_option(
            ", and the simulator where the chain's expected error reaches across the limit.",
            answers="Model of the verdict and the delays",
        ),
    ] = "auto",
) -> None:
    """Print the guideline report: whether the flow works, within which limits, and what to set or change."""
    chosen = output_format or format_by_suffix(output, Format)
    asked = [options, changed_options(options, against)] if against else [options]
    files = [file for own in asked for file in measurements(own)]
    refuse_same_file([*files, *source.files], [("--output", output)])
    refuse_missing_folder(output, "--output")
    scenarios = [read_scenario(own, source) for own in asked]
    if against and not all(isinstance(each.source, Flow) for each in scenarios):
        raise typer.BadParameter("--against: compares reports on flows of constant rate only")
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
                method=method,
                on_progress=counting("Simulating", "packets at most"),
                on_margin=counting_down("Found", "margins"),
                path_preset=s.path_preset,
            )
            for s in scenarios
        ]
        findings = compare_guidelines(*found) if against else found[0]
    write_report(findings, chosen, output)


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

    reader.command()(with_scenario(keep))
    try:
        typer.main.get_command(reader).main([f"--{option}", *words], standalone_mode=False)
    except typer.BadParameter as error:
        said = one_line(error, "").partition("--")[2]
        raise typer.BadParameter(f"--against: {said}") from error
    return read[0][name] if name in FIELDS else getattr(read[0], name)
