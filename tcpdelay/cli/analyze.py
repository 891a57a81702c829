"""`tcpdelay analyze`: what packet captures say of a connection, beside what is predicted for it."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.errors import ERASE_LINE, argument_errors, counting, predicting
from tcpdelay.cli.options import format_option, output_option
from tcpdelay.cli.output import (
    format_by_suffix,
    refuse_other_than_chart,
    refuse_same_file,
    write_atomically,
    write_chart,
)
from tcpdelay.cli.predict import print_record
from tcpdelay.report.analysis import print_text, record
from tcpdelay.scenario.target import Target
from tcpdelay.units import parse_fraction, parse_size, parse_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis
    from tcpdelay.distribution import DelayDistribution
    from tcpdelay.report.guideline import Guideline
    from tcpdelay.scenario.source import Flow
    from tcpdelay.scenario.stack import KnownStack

Format = Literal["text", "markdown", "html", "json", "csv"]
SUFFIXES: dict[str, Format] = {".txt": "text", ".md": "markdown", ".html": "html", ".json": "json", ".csv": "csv"}
FramingChoice = Literal["auto", "rfc4571", "length4", "websocket"]

SUMMARY = "Measure path, flow and delays in packet captures of a connection."
EXAMPLES = """
\b
Examples:
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz \\
      validation/pcap/voice.receiver.pcap.gz --chart delays.svg
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz --report --limit 150ms
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz --report -o voice.html

\b
To capture a connection, at either end or at both:
  sudo tcpdump -i any -s 128 -w capture.pcap tcp port 5001
"""


def analyze(
    captures: Annotated[
        list[Path],
        typer.Argument(
            metavar="CAPTURE...",
            help="One or two files, pcap or pcapng: of the sender, the receiver, or both; "
            "or one capture of the testbed.",
        ),
    ],
    connection: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Which connection: either end of it, or a part of that.",
            show_default="the one with most payload",
        ),
    ] = None,
    framing: Annotated[
        FramingChoice,
        typer.Option(help="What tells messages apart: writes, or headers of 2 bytes, 4 bytes or WebSocket."),
    ] = "auto",
    message_size: Annotated[
        int | None,
        typer.Option(
            parser=lambda text: parse_size(text, "--message-size"),
            metavar="SIZE",
            help="Bytes of each message, if all are of one size.",
            show_default="found out",
        ),
    ] = None,
    same_clock: Annotated[
        bool, typer.Option("--same-clock", help="Both captures were stamped by one clock, so nothing is fitted.")
    ] = False,
    output_format: Annotated[
        Format | None,
        format_option(
            "How to write the analysis: text, or json or csv in seconds, bytes and fractions. With --report, how to "
            "write that: text, markdown, html or json."
        ),
    ] = None,
    output: Annotated[
        Path | None, output_option(".txt, .json or .csv; with --report in .txt, .md, .html or .json")
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the measured delays beside the predicted ones, as .svg, .png or .pdf.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the guideline report for the measured path and flow.")
    ] = False,
    limit: Annotated[
        float | None,
        typer.Option(
            parser=lambda text: parse_time(text, "--limit"),
            metavar="TIME",
            help="Largest delay of any use, for --report.",
            show_default="200ms",
        ),
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option(
            parser=lambda text: parse_fraction(text, "--quantile", allow_zero=False),
            metavar="SHARE",
            help="Share of the messages that must arrive by then, for --report.",
            show_default="95%",
        ),
    ] = None,
) -> None:
    """Measure round-trip time, loss, packets and delays of one TCP connection in packet captures."""
    refuse_other_than_chart(chart, "--chart")
    chosen = output_format or format_by_suffix(output, SUFFIXES)
    refuse_other_format(chosen, report)
    refuse_same_file([("CAPTURE", file) for file in captures], [("--output", output), ("--chart", chart)])
    if not report and (limit is not None or quantile is not None):
        raise typer.BadParameter(f"{'--limit' if limit is not None else '--quantile'}: goes with --report")
    if len(captures) > 2:
        raise typer.BadParameter(f"CAPTURE: takes one or two files, got {len(captures)}")
    if any(map(is_of_testbed, captures)):
        if len(captures) > 1 or connection or message_size or same_clock or framing != "auto":
            raise typer.BadParameter("CAPTURE: a capture of the testbed goes alone, without options on packets")
        analyze_testbed(captures[0], chosen, output, chart, find_target(limit, quantile) if report else None)
        return
    if find_spec("dpkt") is None:
        raise typer.BadParameter("analyze needs the package dpkt; run: pip install 'tcpdelay[capture]'")
    from tcpdelay.capture.pcap.analysis import analyze_captures, check_message_size

    if message_size is not None and framing != "auto":
        raise typer.BadParameter(f"--message-size: goes with --framing auto only, got --framing {framing}")
    with argument_errors():
        check_message_size(message_size, framing)
    try:
        with argument_errors("CAPTURE"):
            analysis = analyze_captures(
                captures,
                connection,
                framing=framing,
                message_size=message_size,
                same_clock=same_clock,
                on_progress=counting("Read", "MB"),
            )
    finally:
        if sys.stderr.isatty():
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)
    if chart is not None:
        with argument_errors("--chart"), predicting():
            predicted = predict(analysis)
        write_chart(chart, draw(analysis, predicted), "--chart")

    def printed(chosen: Literal["text", "json", "csv"]) -> None:
        if chosen == "text":
            print_text(analysis)
        else:
            print_record(record(analysis), chosen)

    findings = None
    if report:
        with argument_errors("--report"):
            findings = find_guideline(
                analysis.flow(), analysis.estimate(), analysis.stack(), find_target(limit, quantile)
            )
    write_results(printed, findings, chosen, output)


def refuse_other_format(chosen: Format, report: bool) -> None:
    """Raise typer.BadParameter if the analysis, or the report, cannot be written in a format."""
    if chosen == "csv" and report:
        raise typer.BadParameter("--report: is written as text, markdown, html or json, not as csv")
    if chosen in ("markdown", "html") and not report:
        raise typer.BadParameter(f"--format: {chosen} goes with --report; the analysis is written as text, json or csv")


def is_of_testbed(file: Path) -> bool:
    """Return whether a file is in the format of the testbed's captures."""
    # To open a pipe would wait for its other end.
    if not file.is_file():
        return False
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(4) == b"PAR1"
    return False


def analyze_testbed(file: Path, chosen: Format, output: Path | None, chart: Path | None, target: Target | None) -> None:
    """Print what a capture of the testbed holds, with the guideline report for its path if there is a target."""
    from tcpdelay.capture.flow_capture import read_capture
    from tcpdelay.cli.testbed import capture_row, draw_captures, print_captures, print_rows
    from tcpdelay.scenario.stack import DEFAULT_STACK

    with argument_errors("CAPTURE"):
        capture = read_capture(file)
        row = capture_row(capture)
    if chart is not None:
        write_chart(chart, draw_captures([capture]), "--chart")
    findings = None
    if target is not None:
        with argument_errors("--report"):
            findings = find_guideline(capture.flow, capture.estimate(), DEFAULT_STACK, target)

    def printed(chosen: Literal["text", "json", "csv"]) -> None:
        if chosen == "text":
            print_captures([row])
        else:
            print_rows([row], chosen)

    write_results(printed, findings, chosen, output)


def write_results(
    printed: Callable[[Literal["text", "json", "csv"]], None],
    findings: Guideline | None,
    chosen: Format,
    output: Path | None,
) -> None:
    """Write the analysis, or if there is one the report, in a format into a file, or print it.

    With a report as text, or in a file, the analysis is printed as text as well.
    """
    from tcpdelay.cli.report import rendered

    if findings is None:
        assert chosen in ("text", "json", "csv")
        page = io.StringIO()
        with nullcontext() if output is None else redirect_stdout(page):
            printed(chosen)
        if output is not None:
            write_atomically(output, page.getvalue().encode(), "--output")
        return
    assert chosen != "csv"
    if output is not None:
        printed("text")
        write_atomically(output, rendered(findings, chosen).encode(), "--output")
    elif chosen == "text":
        from rich.console import Console

        from tcpdelay.report.text import print_report

        printed("text")
        print()
        print_report(findings, Console())
    else:
        print(rendered(findings, chosen), end="")


def predict(analysis: ConnectionAnalysis) -> DelayDistribution:
    """Return the delays that are predicted for the measured path and flow."""
    from tcpdelay.models.predict import predict_delay

    if analysis.delays is None:
        raise ValueError(f"nothing to draw: {analysis.delay_measured}")
    return predict_delay(analysis.flow(), analysis.estimate().path(), analysis.stack())


def draw(analysis: ConnectionAnalysis, predicted: DelayDistribution) -> Figure:
    """Return the chart of the shares of messages later than a delay, measured and predicted."""
    from matplotlib.figure import Figure

    from tcpdelay.report.charts import plot_distribution

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    assert analysis.delays is not None
    for label, delays in ((f"measured, {analysis.delay_kind}", analysis.delays), ("predicted", predicted)):
        if math.isfinite(delays.values[0]):
            plot_distribution(delays, axes, kind="survival")
            axes.lines[-1].set_label(label)
        else:
            axes.plot([], [], " ", label=f"{label}: never settles")
    axes.legend(fontsize="small", frameon=False)
    axes.set_title(f"{analysis.sender} to {analysis.receiver}", fontsize="medium")
    return figure


def find_target(limit: float | None, quantile: float | None) -> Target:
    """Return the target of the report."""
    target = Target(limit=0.200 if limit is None else limit)
    return target if quantile is None else replace(target, quantile=quantile)


def find_guideline(flow: Flow, estimate: PathEstimate, stack: KnownStack, target: Target) -> Guideline:
    """Return the guideline for a measured path and flow."""
    with predicting():
        from tcpdelay.report.guideline import guideline

        return guideline(flow, estimate.path(), stack, target, estimate)
