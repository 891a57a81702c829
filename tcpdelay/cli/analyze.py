"""`tcpdelay analyze`: what packet captures say of a connection, beside what is predicted for it."""

from __future__ import annotations

import io
import math
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.applications import Target
from tcpdelay.cli.errors import argument_errors
from tcpdelay.cli.files import format_by_suffix, refuse_other_than_chart, write_atomically, write_chart
from tcpdelay.cli.options import format_option, output_option
from tcpdelay.cli.predict import print_record
from tcpdelay.cli.progress import ERASE_LINE, counting, predicting
from tcpdelay.units import format_fraction, format_rate, format_time, parse_fraction, parse_size, parse_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.capture.pcap import ConnectionAnalysis
    from tcpdelay.distribution import DelayDistribution
    from tcpdelay.guideline import Guideline

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
            metavar="CAPTURE...", help="One or two files, pcap or pcapng: of the sender, the receiver, or both."
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
    if not report and (limit is not None or quantile is not None):
        raise typer.BadParameter(f"{'--limit' if limit is not None else '--quantile'}: goes with --report")
    if find_spec("dpkt") is None:
        raise typer.BadParameter("analyze needs the package dpkt; run: pip install 'tcpdelay[capture]'")
    from tcpdelay.capture.pcap import analyze_captures

    if len(captures) > 2:
        raise typer.BadParameter(f"CAPTURE: takes one or two files, got {len(captures)}")
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
    if not report:
        write_analysis(analysis, chosen, output)
        return
    findings = find_guideline(analysis, limit, quantile)
    if output is not None or chosen == "text":
        print_text(analysis)
    write_report(findings, chosen, output)


def refuse_other_format(chosen: Format, report: bool) -> None:
    """Raise typer.BadParameter if the analysis, or the report, cannot be written in a format."""
    if chosen == "csv" and report:
        raise typer.BadParameter("--report: is written as text, markdown, html or json, not as csv")
    if chosen in ("markdown", "html") and not report:
        raise typer.BadParameter(f"--format: {chosen} goes with --report; the analysis is written as text, json or csv")


def write_analysis(analysis: ConnectionAnalysis, chosen: Format, output: Path | None) -> None:
    """Write the analysis into a file, or print it."""
    page = io.StringIO()
    with nullcontext() if output is None else redirect_stdout(page):
        if chosen == "text":
            print_text(analysis)
        else:
            print_record(record(analysis), "csv" if chosen == "csv" else "json")
    if output is not None:
        write_atomically(output, page.getvalue().encode(), "--output")


def write_report(findings: Guideline, chosen: Format, output: Path | None) -> None:
    """Write the guideline report into a file, or print it."""
    from tcpdelay.cli.report import rendered

    assert chosen != "csv"
    if output is not None:
        write_atomically(output, rendered(findings, chosen).encode(), "--output")
    elif chosen == "text":
        from rich.console import Console

        from tcpdelay.report.text import print_report

        print()
        print_report(findings, Console())
    else:
        print(rendered(findings, chosen), end="")


def record(analysis: ConnectionAnalysis) -> dict[str, Any]:
    """Return the analysis as one flat row, in seconds, bytes and fractions; None where something is not known."""
    from tcpdelay.guideline import REPORTED_QUANTILES

    scales = analysis.window_scale or (None, None)
    clocks, delays = analysis.clocks, analysis.delays
    low, high = analysis.loss_interval
    row: dict[str, Any] = {
        "sender": analysis.sender,
        "receiver": analysis.receiver,
        "captured_at": " and ".join(analysis.captured_at),
        "duration": analysis.duration,
        "payload": analysis.payload,
        "data_segments": analysis.data_segments,
        "acknowledgements": analysis.acknowledgements,
        "rtt": analysis.rtt,
        "rtt_base": analysis.rtt_base,
        "rtt_samples": analysis.rtt_count,
        "loss": analysis.loss,
        "loss_low": low,
        "loss_high": high,
        "sent": analysis.sent,
        "lost": analysis.lost,
        "loss_counted": analysis.loss_counted,
        "retransmissions": analysis.retransmissions,
        "spurious_retransmissions": analysis.spurious_retransmissions,
        "reordered": analysis.reordered,
        "duplicates": analysis.duplicates,
        "duplicate_acks": analysis.duplicate_acks,
        "mss": analysis.mss,
        "mss_known": analysis.mss_known,
        "sack": analysis.sack,
        "timestamps": analysis.timestamps,
        "window_scale_sender": scales[0],
        "window_scale_receiver": scales[1],
        "delayed_ack": analysis.delayed_ack,
        "several_acknowledged": analysis.several_acknowledged,
        "largest_flight": analysis.largest_flight,
        "smallest_receive_window": analysis.smallest_receive_window,
        "packet_size": analysis.packet_size,
        "interval": analysis.interval,
        "fixed_size": analysis.fixed_size,
        "fixed_interval": analysis.fixed_interval,
        "messages": analysis.messages,
        "unfinished": analysis.unfinished,
        "one_way_delay": analysis.one_way_delay,
        "clock_offset": clocks and clocks.offset,
        "clock_skew": clocks and clocks.skew,
        "clock_residual": clocks and clocks.residual,
        "delay_kind": analysis.delay_kind,
        "delay_measured": analysis.delay_measured,
        "mean": delays and delays.mean,
        "jitter": delays and delays.jitter,
        **{f"p{100 * q:g}": delays and delays.quantile(q) for q in REPORTED_QUANTILES},
        "notes": "; ".join(analysis.notes),
    }
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


def print_text(analysis: ConnectionAnalysis) -> None:
    """Print the analysis for people."""
    rows = [*_path_rows(analysis), *_tcp_rows(analysis), *_flow_rows(analysis), *_delay_rows(analysis)]
    print(
        f"{analysis.sender} -> {analysis.receiver}, captured at the {' and at the '.join(analysis.captured_at)}: "
        f"{analysis.payload} bytes in {format_time(analysis.duration)}"
    )
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:<{width}}  {value}")
    for note in analysis.notes:
        print(f"note: {note}")


def _time(seconds: float) -> str:
    return "not known" if math.isnan(seconds) else format_time(seconds)


def _path_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    low, high = analysis.loss_interval
    rows = [
        ("round-trip time", f"{_time(analysis.rtt)}, at least {_time(analysis.rtt_base)}"),
        ("one-way delay", f"{_time(analysis.one_way_delay)} at least, if the way back takes as long"),
        (
            "loss",
            f"{format_fraction(analysis.loss)} ({analysis.lost} of {analysis.sent} packets; "
            f"95 % confidence {format_fraction(low)} to {format_fraction(high)})",
        ),
        ("counted as", analysis.loss_counted),
    ]
    if analysis.reordered is not None:
        rows.append(("reordered", f"{analysis.reordered} segments overtaken, {analysis.duplicates} duplicates"))
    if analysis.clocks is not None:
        clocks = analysis.clocks
        rows.append(
            (
                "clocks",
                f"the receiver's ahead by {clocks.offset:.6f} s, gaining {1e6 * clocks.skew:.3g} us/s; "
                f"the two ways disagree by {1e6 * clocks.residual:.3g} us",
            )
        )
    return rows


def _tcp_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    scales = analysis.window_scale
    known = "" if analysis.mss_known else ", as far as seen without the handshake"
    window = analysis.smallest_receive_window
    return [
        (
            "retransmitted",
            f"{analysis.retransmissions} packets, {analysis.spurious_retransmissions} of them in vain",
        ),
        ("duplicate ACKs", f"{analysis.duplicate_acks}"),
        ("segment size", f"{analysis.mss} B{known}"),
        (
            "options",
            f"SACK {'on' if analysis.sack else 'off'}, timestamps {'on' if analysis.timestamps else 'off'}, window "
            f"scales {'not known' if scales is None else f'{scales[0]} and {scales[1]}'}",
        ),
        (
            "delayed ACKs",
            f"{'yes' if analysis.delayed_ack else 'no'}: {format_fraction(analysis.several_acknowledged)} "
            "acknowledge two or more segments",
        ),
        ("largest flight", f"{analysis.largest_flight} B"),
        ("receive window", "not known" if math.isnan(window) else f"{window:.0f} B at least"),
    ]


def _flow_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    if math.isnan(analysis.interval):
        return [("messages", f"{analysis.messages}, too few to tell their interval")]
    size, interval = ("always" if fixed else "in the mean" for fixed in (analysis.fixed_size, analysis.fixed_interval))
    rate = format_rate(8 * analysis.packet_size / analysis.interval) if analysis.interval else "not known"
    return [
        ("messages", f"{analysis.messages}, {analysis.unfinished} not delivered within the capture"),
        ("packet size", f"{analysis.packet_size:.6g} B {size}"),
        ("interval", f"{format_time(analysis.interval)} {interval}, thus {rate}"),
    ]


def _delay_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    from tcpdelay.guideline import REPORTED_QUANTILES

    delays = analysis.delays
    if delays is None or analysis.delay_kind is None:
        return [("delay", f"not known: {analysis.delay_measured}")]
    return [
        ("delay", f"{analysis.delay_kind}: {analysis.delay_measured}"),
        ("mean", format_time(delays.mean)),
        ("jitter", format_time(delays.jitter)),
        *((f"{format_fraction(q)} within", format_time(delays.quantile(q))) for q in REPORTED_QUANTILES),
    ]


def predict(analysis: ConnectionAnalysis) -> DelayDistribution:
    """Return the delays that are predicted for the measured path and flow."""
    from tcpdelay.predict import predict_delay

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


def find_guideline(analysis: ConnectionAnalysis, limit: float | None, quantile: float | None) -> Guideline:
    """Return the guideline for the measured path and flow."""
    target = Target(limit=0.200 if limit is None else limit)
    if quantile is not None:
        target = replace(target, quantile=quantile)
    with argument_errors("--report"), predicting():
        from tcpdelay.guideline import guideline

        estimate = analysis.estimate()
        return guideline(analysis.flow(), estimate.path(), analysis.stack(), target, estimate)
