"""`tcpdelay analyze`: path, flow and delays of a connection in packet captures, and the prediction for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.errors import argument_errors, counting, erase_progress, predicting
from tcpdelay.cli.options import (
    OUTPUT,
    application_option,
    chart_option,
    field_option,
    format_option,
    make_option,
    output_option,
    quantity,
)
from tcpdelay.cli.output import (
    format_by_suffix,
    refuse_missing_folder,
    refuse_other_than_chart,
    refuse_same_file,
    write,
    write_chart,
)
from tcpdelay.cli.scenario import DEFAULT_TARGET
from tcpdelay.report.analysis import (
    UNKNOWN,
    Expected,
    analysis_text,
    capture_record,
    captured_delays,
    captures_text,
    draw_analyses,
    draw_captures,
    record,
)
from tcpdelay.report.result_table import record_text, records_text
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.report.guideline import Guideline, SourceGuideline, TwoWayGuideline
    from tcpdelay.scenario.applications import Application
    from tcpdelay.scenario.sources.message_stream import Source
    from tcpdelay.scenario.stack import KnownStack
    from tcpdelay.scenario.target import Target

Format = Literal["text", "markdown", "html", "json", "csv"]
FramingChoice = Literal["auto", "rfc4571", "length4", "websocket"]

ANALYSIS = "The capture"
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
            metavar="CAPTURE",
            help="One or two pcap or pcapng files, captured at the sender, the receiver, or both; "
            "or one capture of the testbed.",
        ),
    ],
    connection: Annotated[
        str | None,
        make_option(
            "--connection",
            ANALYSIS,
            "Connection to analyze: the address of either end, or a part of it.",
            "the connection with the most payload",
            metavar="ADDRESS",
        ),
    ] = None,
    framing: Annotated[
        FramingChoice,
        make_option(
            "--framing",
            ANALYSIS,
            "How messages are separated: by writes (auto), or by headers: 2 bytes, 4 bytes, WebSocket.",
        ),
    ] = "auto",
    message_size: Annotated[
        int | None,
        quantity(
            "--message-size",
            "size",
            ANALYSIS,
            "Size of each message, if all have the same size; of the direction with more payload.",
            "measured",
        ),
    ] = None,
    same_clock: Annotated[
        bool, make_option("--same-clock", ANALYSIS, "Both captures have time stamps of the same clock.")
    ] = False,
    output_format: Annotated[
        Format | None,
        format_option(
            "Format of the analysis: text, json or csv (in seconds, bytes and fractions). With --report: format of "
            "the report: text, markdown, html or json."
        ),
    ] = None,
    output: Annotated[
        Path | None, output_option(".txt, .json or .csv; with --report .txt, .md, .html or .json")
    ] = None,
    chart: Annotated[Path | None, chart_option("the measured delays beside the predicted ones")] = None,
    report: Annotated[
        bool, make_option("--report", OUTPUT, "Write the guideline report for the measured path and flow.")
    ] = False,
    app: Annotated[Any, application_option(" Here: sets the target, and the codec that rates a call.")] = None,
    limit: Annotated[
        float | None, field_option("limit", more=" For --report and --app.", default="the limit of --app, or 200ms")
    ] = None,
    quantile: Annotated[
        float | None, field_option("quantile", more=" For --report.", default="the quantile of --app, or 95%")
    ] = None,
) -> None:
    """Measure round-trip time, loss, packets and delays of one TCP connection, in each direction with a flow."""
    refuse_other_than_chart(chart, "--chart")
    chosen = output_format or format_by_suffix(output, Format)
    refuse_other_format(chosen, report)
    refuse_same_file([("CAPTURE", file) for file in captures], [("--output", output), ("--chart", chart)])
    refuse_missing_folder(output, "--output")
    if not (report or app) and (limit is not None or quantile is not None):
        raise typer.BadParameter(f"{'--limit' if limit is not None else '--quantile'}: goes with --report or --app")
    if len(captures) > 2:
        raise typer.BadParameter(f"CAPTURE: takes one or two files, got {len(captures)}")
    if any(map(is_of_testbed, captures)):
        if len(captures) > 1 or connection or message_size or same_clock or app or framing != "auto":
            raise typer.BadParameter("CAPTURE: a capture of the testbed goes alone, without options on packets")
        analyze_testbed(captures[0], chosen, output, chart, find_target(None, limit, quantile) if report else None)
        return
    from tcpdelay.capture.pcap.analysis import analyze_directions, check_message_size

    if message_size is not None and framing != "auto":
        raise typer.BadParameter(f"--message-size: goes with --framing auto only, got --framing {framing}")
    with argument_errors():
        check_message_size(message_size, framing)
    try:
        with argument_errors("CAPTURE"):
            analyses = analyze_directions(
                captures,
                connection,
                framing=framing,
                message_size=message_size,
                same_clock=same_clock,
                on_progress=counting("Read", "MB"),
            )
    finally:
        erase_progress()
    if chart is not None:
        with argument_errors("--chart"), predicting():
            drawn = [(found, predict(found)) for found in analyses if found.delays is not None or found is analyses[0]]
        write_chart(chart, draw_analyses(drawn), "--chart")

    target = find_target(app, limit, quantile)
    with predicting():
        expected = [find_expected(found, app, target) for found in analyses]

    def written(chosen: Literal["text", "json", "csv"]) -> str:
        pairs = zip(analyses, expected, strict=True)
        if chosen == "text":
            return "\n".join(analysis_text(*pair) for pair in pairs)
        rows = [record(*pair) for pair in pairs]
        if chosen == "csv":
            return records_text(rows, chosen)
        return record_text({**rows[0], "backward": rows[1] if len(rows) > 1 else None}, chosen)

    findings: Guideline | SourceGuideline | TwoWayGuideline | None = None
    if report:
        with argument_errors("--report"):
            each = [find_guideline(found.source(), found.estimate(), found.stack(), target, app) for found in analyses]
        if output is not None or chosen != "text":
            # In text, the analysis stands above the report and says the same of the captured delays.
            captured = map(captured_delays, analyses, expected)
            each = [replace(one, captured=delays) for one, delays in zip(each, captured, strict=True)]
        if len(each) == 1:
            findings = each[0]
        else:
            from tcpdelay.report.guideline import TwoWayGuideline

            findings = TwoWayGuideline(each[0], each[1], (analyses[0].sender, analyses[0].receiver))
    write_results(written, findings, chosen, output)


def refuse_other_format(chosen: Format, report: bool) -> None:
    """Raise typer.BadParameter if the analysis, or the report, cannot be written in a format."""
    if chosen == "csv" and report:
        raise typer.BadParameter("--report: is written as text, markdown, html or json, not as csv")
    if chosen in ("markdown", "html") and not report:
        raise typer.BadParameter(f"--format: {chosen} goes with --report; the analysis is written as text, json or csv")


def is_of_testbed(file: Path) -> bool:
    """Return whether a file is in the format of the testbed's captures."""
    # Opening a pipe would wait for the process at its other end.
    if not file.is_file():
        return False
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(4) == b"PAR1"
    return False


def analyze_testbed(file: Path, chosen: Format, output: Path | None, chart: Path | None, target: Target | None) -> None:
    """Print the content of a capture of the testbed; with a target, also the guideline report for its path."""
    from tcpdelay.capture.flow_capture import read_capture
    from tcpdelay.scenario.stack import DEFAULT_STACK

    with argument_errors("CAPTURE"):
        capture = read_capture(file)
        row = capture_record(capture)
    if chart is not None:
        with argument_errors("--chart"), predicting():
            figure = draw_captures([capture])
        write_chart(chart, figure, "--chart")
    findings = None
    if target is not None:
        with argument_errors("--report"):
            findings = find_guideline(capture.flow, capture.estimate(), DEFAULT_STACK, target)

    def written(chosen: Literal["text", "json", "csv"]) -> str:
        return captures_text([row]) if chosen == "text" else records_text([row], chosen)

    write_results(written, findings, chosen, output)


def write_results(
    written: Callable[[Literal["text", "json", "csv"]], str],
    findings: Guideline | SourceGuideline | TwoWayGuideline | None,
    chosen: Format,
    output: Path | None,
) -> None:
    """Write the analysis, or the report if there is one, to a file, or print it.

    If the report is text or goes to a file, the analysis is also printed as text.
    """
    from tcpdelay.cli.report import write_report

    if findings is None:
        assert chosen in ("text", "json", "csv")
        write(written(chosen), output)
        return
    assert chosen != "csv"
    if output is not None:
        print(written("text"), end="")
    elif chosen == "text":
        print(written("text"))
    write_report(findings, chosen, output)


def predict(analysis: ConnectionAnalysis) -> DelayDistribution:
    """Return the predicted delays of what the application sent, for the measured path."""
    from tcpdelay.models.predict import predict_delay

    if analysis.delays is None:
        raise ValueError(f"nothing to draw: {analysis.delay_measured}")
    return predict_delay(analysis.source(), analysis.estimate().path(), analysis.stack())


def find_expected(analysis: ConnectionAnalysis, app: Application | None, target: Target) -> Expected:
    """Return the prediction for the measured path and flow, and the ratings of a call, as far as they are known."""
    from tcpdelay.accuracy.validity import ValidityWarning, validated_range
    from tcpdelay.delays import USUAL_QUANTILE
    from tcpdelay.quality.experience import call_experience
    from tcpdelay.study.validation.predictions import range_by_chance

    try:
        flow = analysis.flow()
    except ValueError:
        return UNKNOWN
    unlike = "" if app is None else app.unlike(flow)
    notes = [f"the flow measured is {unlike}; the prediction is for the flow measured"] if unlike else []
    if analysis.delays is None:
        return Expected(notes=tuple(notes))
    try:
        with warnings.catch_warnings():
            # The range is named in a note of the analysis.
            warnings.simplefilter("ignore", ValidityWarning)
            predicted = predict(analysis)
    except ValueError:
        return Expected(notes=tuple(notes))
    if not isinstance(analysis.source(), Flow):
        notes.append("prediction: the captured messages are simulated, as their sizes or intervals vary")
    path, stack = analysis.estimate().path(), analysis.stack()
    beyond = [] if predicted.method == "simulation" else validated_range(stack).exceeded_by(flow, path)
    chance = range_by_chance(
        Scenario(analysis.source(), path, stack), analysis.messages, analysis.loss_interval, USUAL_QUANTILE
    )
    return Expected(
        predicted,
        chance,
        call_experience(app, flow, target, analysis.delays),
        call_experience(app, flow, target, predicted),
        (*notes, *(f"prediction: {text}" for text in beyond)),
    )


def find_target(app: Application | None, limit: float | None, quantile: float | None) -> Target:
    """Return the target of the report and of the ratings."""
    given = {"limit": limit, "quantile": quantile}
    return replace(
        DEFAULT_TARGET if app is None else app.target,
        **{name: value for name, value in given.items() if value is not None},
    )


def find_guideline(
    source: Source, estimate: PathEstimate, stack: KnownStack, target: Target, app: Application | None = None
) -> Guideline | SourceGuideline:
    """Return the guideline for a measured path and what was sent there."""
    with predicting():
        from tcpdelay.report.guideline import guideline

        return guideline(source, estimate.path(), stack, target, estimate, app)
