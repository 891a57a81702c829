"""`tcpdelay report`: the guideline, in the terminal or as a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tcpdelay.cli.errors import argument_errors
from tcpdelay.cli.files import format_by_suffix, write_atomically
from tcpdelay.cli.options import ScenarioOptions, format_option, output_option, with_scenario
from tcpdelay.cli.progress import predicting
from tcpdelay.cli.scenario import read_scenario

if TYPE_CHECKING:
    from tcpdelay.guideline import Guideline

Format = Literal["text", "markdown", "html", "json"]

SUFFIXES: dict[str, Format] = {".txt": "text", ".md": "markdown", ".html": "html", ".json": "json"}
TEXT_FILE_WIDTH = 100
"""Columns of a text report in a file."""
SUMMARY = "Print the guideline: does it work, and what helps?"
EXAMPLES = """
\b
Examples:
  tcpdelay report --rtt 100ms --loss 2% --app voip
  tcpdelay report --rtt 100ms --loss 2% --app voip --limit 150ms -o voip.html
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
    output_format: Annotated[
        Format | None,
        format_option("How to write the report."),
    ] = None,
    output: Annotated[
        Path | None,
        output_option(".txt, .md, .html or .json"),
    ] = None,
) -> None:
    """Print the guideline report: whether it works, how far that holds, and what to set or change."""
    chosen = output_format or format_by_suffix(output, SUFFIXES)
    scenario = read_scenario(options)
    with argument_errors(), predicting():
        from tcpdelay.guideline import guideline

        findings = guideline(scenario.flow, scenario.path, scenario.stack, scenario.target, scenario.estimate)
    if output is not None:
        write_atomically(output, rendered(findings, chosen).encode(), "--output")
    elif chosen == "text":
        from rich.console import Console

        from tcpdelay.report.text import print_report

        print_report(findings, Console())
    else:
        print(rendered(findings, chosen), end="")


def rendered(findings: Guideline, chosen: Format) -> str:
    """Return the report as the text of a file."""
    if chosen == "text":
        from rich.console import Console

        from tcpdelay.report.text import print_report

        page = io.StringIO()
        print_report(findings, Console(file=page, width=TEXT_FILE_WIDTH, force_terminal=False, color_system=None))
        return page.getvalue()
    render = {"markdown": findings.to_markdown, "html": findings.to_html, "json": findings.to_json}[chosen]
    return render().rstrip("\n") + "\n"
