"""`tcpdelay report`: the guideline, in the terminal or as a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.errors import argument_errors, predicting
from tcpdelay.cli.options import ScenarioOptions, changed_options, format_option, output_option, with_scenario
from tcpdelay.cli.output import format_by_suffix, refuse_same_file, write_atomically
from tcpdelay.cli.scenario import measurements, read_scenario
from tcpdelay.report.result_table import FILE_WIDTH

if TYPE_CHECKING:
    from rich.console import Console

    from tcpdelay.report.guideline import Guideline, GuidelineComparison

Format = Literal["text", "markdown", "html", "json"]

SUFFIXES: dict[str, Format] = {".txt": "text", ".md": "markdown", ".html": "html", ".json": "json"}
SUMMARY = "Print the guideline: does it work, and what helps?"
EXAMPLES = """
\b
Examples:
  tcpdelay report --rtt 100ms --loss 2% --app voip
  tcpdelay report --rtt 100ms --loss 2% --app voip --limit 150ms -o voip.html
  tcpdelay report --rtt 80ms --loss 2% --app voip --against stack=newreno_2008
  tcpdelay report --rtt 100ms --loss 2% --app voip --against loss=1%
  tcpdelay report --ping examples/ping.txt --app voice-agent
  tcpdelay report --ss examples/ss.txt --app voip --format markdown
  tcpdelay report --ss examples/ss-several.txt --connection 10.0.3.2:5003 \\
      --packet-size 200 --bitrate 64kbit/s --format json

\b
To measure a path:
  ping -c 200 HOST > ping.txt
  ss -tin > ss.txt             # at the end that sends, while it does
"""


@with_scenario
def report(
    options: ScenarioOptions,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="OPTION=VALUE",
            help="Compare with the scenario that has another value of an option, such as loss=1%; may be repeated.",
            rich_help_panel="Comparison",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        Format | None,
        format_option("Format of the report."),
    ] = None,
    output: Annotated[
        Path | None,
        output_option(".txt, .md, .html or .json"),
    ] = None,
) -> None:
    """Print the guideline report: whether it works, how far that holds, and what to set or change."""
    chosen = output_format or format_by_suffix(output, SUFFIXES)
    asked = [options, changed_options(options, against)] if against else [options]
    refuse_same_file((file for own in asked for file in measurements(own)), [("--output", output)])
    scenarios = [read_scenario(own) for own in asked]
    with argument_errors(), predicting():
        from tcpdelay.report.guideline import compare_guidelines, guideline

        found = [guideline(s.flow, s.path, s.stack, s.target, s.estimate, s.application) for s in scenarios]
        findings = compare_guidelines(*found) if against else found[0]
    if output is not None:
        write_atomically(output, rendered(findings, chosen).encode(), "--output")
    elif chosen == "text":
        from rich.console import Console

        print_text(findings, Console())
    else:
        print(rendered(findings, chosen), end="")


def print_text(findings: Guideline | GuidelineComparison, console: Console) -> None:
    """Print a report, or a comparison of two."""
    from tcpdelay.report.guideline import Guideline
    from tcpdelay.report.text import print_content, print_report

    if isinstance(findings, Guideline):
        print_report(findings, console)
        return
    from tcpdelay.report.against import changes_content

    print_content(changes_content(findings), console)


def rendered(findings: Guideline | GuidelineComparison, chosen: Format) -> str:
    """Return the report as the text of a file."""
    if chosen == "text":
        from rich.console import Console

        page = io.StringIO()
        print_text(findings, Console(file=page, width=FILE_WIDTH, force_terminal=False, color_system=None))
        return page.getvalue()
    render = {"markdown": findings.to_markdown, "html": findings.to_html, "json": findings.to_json}[chosen]
    return render().rstrip("\n") + "\n"
