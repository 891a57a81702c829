"""Commands on captures: `analyze` reads them, `testbed` records a Linux kernel, `validate` checks the models."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.options import (
    OUTPUT,
    Destination,
    Options,
    Size,
    Time,
    application_option,
    chart_option,
    command,
    field_option,
    format_option,
    option,
    output_option,
    result_option,
    with_options,
)
from tcpdelay.cli.output import (
    FilesCommand,
    GroupedHelp,
    StatusLine,
    argument_errors,
    counting,
    erase_progress,
    predicting,
    print_warning,
    rendered,
    write,
    write_atomically,
    write_chart,
)
from tcpdelay.cli.report import write_report
from tcpdelay.cli.scenario import DEFAULT_TARGET
from tcpdelay.declare import Quantity, declarations
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
from tcpdelay.report.document import facts_text, record_text, records_text
from tcpdelay.scenario.scenario import Application, Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, is_at_least
from tcpdelay.store import error_in_words
from tcpdelay.units import format_duration, format_fraction, format_rate, format_time

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.report.guideline import Guideline, SourceGuideline, TwoWayGuideline
    from tcpdelay.report.validation import Results
    from tcpdelay.scenario.scenario import Target
    from tcpdelay.scenario.source import Source
    from tcpdelay.scenario.stack import KnownStack
    from tcpdelay.testbed.campaign import Progress, Specification
    from tcpdelay.testbed.experiment import Experiment

AnalysisFormat = Literal["text", "markdown", "html", "json", "csv"]
FramingChoice = Literal["auto", "rfc4571", "length4", "websocket"]

ANALYSIS = "The capture"


class Analysis(Destination):
    """How captures are read, what is asked about them, and how the answer is written."""

    connection: str | None = option(
        "Connection to analyze: the address of either end, or a part of it.",
        "the connection with the most payload",
        panel=ANALYSIS,
        metavar="ADDRESS",
    )
    framing: FramingChoice = option(
        "How messages are separated: by writes (auto), or by headers: 2 bytes, 4 bytes, WebSocket.",
        default="auto",
        panel=ANALYSIS,
    )
    message_size: Size | None = option(
        "Size of each message, if all have the same size; of the direction with more payload.",
        "measured",
        panel=ANALYSIS,
    )
    same_clock: bool = option("Both captures have time stamps of the same clock.", default=False, panel=ANALYSIS)
    output_format: AnalysisFormat | None = format_option(
        "Format of the analysis: text, json or csv (in seconds, bytes and fractions). With --report: format of "
        "the report: text, markdown, html or json."
    )
    output: Path | None = output_option(".txt, .json or .csv; with --report .txt, .md, .html or .json")
    chart: Path | None = chart_option("the measured delays beside the predicted ones")
    report: bool = option("Write the guideline report for the measured path and flow.", default=False)
    app: Application | None = application_option(" Here: sets the target, and the codec that rates a call.")
    limit: float | None = field_option("limit", more=" For --report and --app.", default="the limit of --app, or 200ms")
    quantile: float | None = field_option("quantile", more=" For --report.", default="the quantile of --app, or 95%")


@command(
    "Measure path, flow and delays in packet captures of a connection.",
    """
Examples:
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz \\
      validation/pcap/voice.receiver.pcap.gz --chart delays.svg
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz --report --limit 150ms
  tcpdelay analyze validation/pcap/voice.sender.pcap.gz --report -o voice.html

To capture a connection, at either end or at both:
  sudo tcpdump -i any -s 128 -w capture.pcap tcp port 5001
""",
)
def analyze(
    captures: Annotated[
        list[Path],
        typer.Argument(
            metavar="CAPTURE",
            help="One or two pcap or pcapng files, captured at the sender, the receiver, or both; "
            "or one capture of the testbed.",
        ),
    ],
    asked: Analysis,
) -> None:
    """Measure round-trip time, loss, packets and delays of one TCP connection, in each direction with a flow."""
    chosen = asked.checked_format(AnalysisFormat, *(("CAPTURE", file) for file in captures))
    refuse_other_format(chosen, asked.report)
    if not (asked.report or asked.app) and (asked.limit is not None or asked.quantile is not None):
        raise typer.BadParameter(
            f"{'--limit' if asked.limit is not None else '--quantile'}: goes with --report or --app"
        )
    if len(captures) > 2:
        raise typer.BadParameter(f"CAPTURE: takes one or two files, got {len(captures)}")
    if any(map(is_of_testbed, captures)):
        on_packets = (asked.connection, asked.message_size, asked.same_clock, asked.app, asked.framing != "auto")
        if len(captures) > 1 or any(on_packets):
            raise typer.BadParameter("CAPTURE: a capture of the testbed goes alone, without options on packets")
        target = find_target(None, asked.limit, asked.quantile) if asked.report else None
        analyze_testbed(captures[0], asked, chosen, target)
        return
    from tcpdelay.capture.pcap.analysis import analyze_directions, check_message_size

    if asked.message_size is not None and asked.framing != "auto":
        raise typer.BadParameter(f"--message-size: goes with --framing auto only, got --framing {asked.framing}")
    with argument_errors():
        check_message_size(asked.message_size, asked.framing)
    try:
        with argument_errors("CAPTURE"):
            analyses = analyze_directions(
                captures,
                asked.connection,
                framing=asked.framing,
                message_size=asked.message_size,
                same_clock=asked.same_clock,
                on_progress=counting("Read", "MB"),
            )
    finally:
        erase_progress()
    if asked.chart is not None:
        with argument_errors("--chart"), predicting():
            drawn = [
                (found, predicted(found)) for found in analyses if found.delays is not None or found is analyses[0]
            ]
        write_chart(asked.chart, draw_analyses(drawn), "--chart")

    target = find_target(asked.app, asked.limit, asked.quantile)
    with predicting():
        expected = [find_expected(found, asked.app, target) for found in analyses]

    def written(chosen: Literal["text", "json", "csv"]) -> str:
        pairs = zip(analyses, expected, strict=True)
        if chosen == "text":
            return "\n".join(analysis_text(*pair) for pair in pairs)
        rows = [record(*pair) for pair in pairs]
        if chosen == "csv":
            return records_text(rows, chosen)
        return record_text({**rows[0], "backward": rows[1] if len(rows) > 1 else None}, chosen)

    findings: Guideline | SourceGuideline | TwoWayGuideline | None = None
    if asked.report:
        with argument_errors("--report"):
            each = [
                find_guideline(found.source(), found.estimate(), found.stack(), target, asked.app) for found in analyses
            ]
        if asked.output is not None or chosen != "text":
            # In text, the analysis stands above the report and says the same of the captured delays.
            captured = map(captured_delays, analyses, expected)
            each = [replace(one, captured=delays) for one, delays in zip(each, captured, strict=True)]
        if len(each) == 1:
            findings = each[0]
        else:
            from tcpdelay.report.guideline import TwoWayGuideline

            findings = TwoWayGuideline(each[0], each[1], (analyses[0].sender, analyses[0].receiver))
    write_results(written, findings, chosen, asked.output)


def refuse_other_format(chosen: AnalysisFormat, report: bool) -> None:
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


def analyze_testbed(file: Path, asked: Analysis, chosen: AnalysisFormat, target: Target | None) -> None:
    """Print the content of a capture of the testbed; with a target, also the guideline report for its path."""
    from tcpdelay.capture.flow_capture import read_capture
    from tcpdelay.scenario.stack import DEFAULT_STACK

    with argument_errors("CAPTURE"):
        capture = read_capture(file)
        row = capture_record(capture)
    if asked.chart is not None:
        with argument_errors("--chart"), predicting():
            figure = draw_captures([capture])
        write_chart(asked.chart, figure, "--chart")
    findings = None
    if target is not None:
        with argument_errors("--report"):
            findings = find_guideline(capture.flow, capture.estimate(), DEFAULT_STACK, target)

    def written(chosen: Literal["text", "json", "csv"]) -> str:
        return captures_text([row]) if chosen == "text" else records_text([row], chosen)

    write_results(written, findings, chosen, asked.output)


def write_results(
    written: Callable[[Literal["text", "json", "csv"]], str],
    findings: Guideline | SourceGuideline | TwoWayGuideline | None,
    chosen: AnalysisFormat,
    output: Path | None,
) -> None:
    """Write the analysis, or the report if there is one, to a file, or print it.

    If the report is text or goes to a file, the analysis is also printed as text.
    """
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


def predicted(analysis: ConnectionAnalysis) -> DelayDistribution:
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
            found = predicted(analysis)
    except ValueError:
        return Expected(notes=tuple(notes))
    if not isinstance(analysis.source(), Flow):
        notes.append("prediction: the captured messages are simulated, as their sizes or intervals vary")
    path, stack = analysis.estimate().path(), analysis.stack()
    beyond = [] if found.method == "simulation" else validated_range(stack).exceeded_by(flow, path)
    chance = range_by_chance(
        Scenario(analysis.source(), path, stack), analysis.messages, analysis.loss_interval, USUAL_QUANTILE
    )
    return Expected(
        found,
        chance,
        call_experience(app, flow, target, analysis.delays),
        call_experience(app, flow, target, found),
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


# `tcpdelay testbed`: captures of the TCP of a Linux kernel.

BackendChoice = Literal["uml-virtual", "uml", "host"]
QuicLibrary = Literal["quic-go", "quinn"]
SUMMARY = "Capture real Linux TCP under netem, in a guest or on this machine."
EXAMPLES = """
\b
Examples:
  tcpdelay testbed check
  tcpdelay testbed run examples/first-capture.toml --dry-run
  tcpdelay testbed run examples/first-capture.toml
  tcpdelay testbed show captures/first-capture/*.parquet --chart delays.svg
  tcpdelay testbed build-kernel
  tcpdelay testbed build-kernel --kernel 7.3 --hz 250
  tcpdelay testbed build-quic
"""

app = typer.Typer(help=SUMMARY, epilog=EXAMPLES, rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def _only_where_it_runs(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
    if context.invoked_subcommand in (None, "show"):
        return
    if sys.platform != "linux":
        raise typer.BadParameter(f"the testbed runs on Linux only, not on {sys.platform!r}")
    if find_spec("pyroute2") is None:
        raise typer.BadParameter("the testbed needs the package pyroute2; run: pip install 'tcpdelay[testbed]'")


@app.command("check", cls=FilesCommand)
def check() -> None:
    """List the usable kernels, and the requirements of the other kernels; exit with 1 if no kernel is usable."""
    from tcpdelay.testbed.backends import Backend, HostBackend, UmlBackend, VirtualTimeBackend
    from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL, KERNEL_HZ, build_requirements, built_kernels

    releases = {(built.kernel, built.hz): built.release for built in built_kernels()}
    guests = dict.fromkeys([*((DEFAULT_KERNEL, hz) for hz in KERNEL_HZ), *releases])
    backends: list[tuple[str, Backend, str]] = [
        ("uml          a guest in real time", UmlBackend(), ""),
        *[
            (
                f"uml-virtual  a guest in virtual time, Linux {kernel}, {hz} Hz",
                VirtualTimeBackend(hz, kernel),
                releases.get((kernel, hz), ""),
            )
            for kernel, hz in guests
        ],
        ("host         this machine's kernel", HostBackend(), ""),
    ]
    found = [(label, backend.problems(), release) for label, backend, release in backends]
    facts = [
        (label, f"does not work: {'; '.join(problems)}" if problems else f"works{release and f': {release}'}")
        for label, problems, release in found
    ]
    print(facts_text(facts), end="")
    missing = build_requirements()
    if missing:
        print(f"\nTo build a kernel for virtual time, first run: sudo apt-get install {' '.join(missing)}")
    if all(problems for _, problems, _ in found):
        raise typer.Exit(1)


def _build_hz(text: str) -> int:
    declared = declarations(Linux)["hz"]
    assert isinstance(declared, Quantity)
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and declared.allows(int(text))):
        raise typer.BadParameter(f"--hz: must {declared.range_in_words}, got {text!r}")
    return int(text)


@app.command("build-kernel", cls=FilesCommand)
def build_kernel(
    hz: Annotated[
        list[int] | None,
        typer.Option(
            parser=_build_hz,
            metavar="HZ",
            help=f"{declarations(Linux)['hz'].meaning} May be repeated.",
            show_default="250 and 1000",
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|TARBALL",
            help="Version of Linux, such as 6.12, of at least 5.15; or a file with its source. The source of a version "
            "is Debian's package linux-source-VERSION; it is fetched if it is not installed.",
            show_default="6.1",
        ),
    ] = None,
) -> None:
    """Build the guest kernels that run in virtual time, into the user's cache. This takes some minutes."""
    from tcpdelay.testbed.virtual_kernel import KERNEL_HZ, OLDEST, KernelBuildError, build_kernels

    version = kernel if kernel is not None and is_at_least(kernel, OLDEST) else None
    tarball = Path(kernel) if kernel is not None and version is None else None
    if tarball is not None and not tarball.is_file():
        raise typer.BadParameter(
            f"--kernel: must be a version of Linux of at least 5.15, such as 6.1, or a file with its source, "
            f"got {kernel!r}"
        )
    line = StatusLine()
    try:
        with argument_errors():
            kernels = build_kernels(
                hz or KERNEL_HZ,
                kernel=version,
                source=tarball,
                on_progress=lambda stage, share: line.show(f"{stage} {share:.0%}"),
            )
    except KernelBuildError as error:
        raise typer.BadParameter(str(error)) from error
    finally:
        erase_progress()
    for program in kernels:
        print(program)


@app.command("build-quic")
def build_quic(
    implementation: Annotated[QuicLibrary, typer.Argument(help="Library of the program.")] = "quic-go",
) -> None:
    """Build the program that speaks QUIC with a library, into the user's cache. This takes a few minutes."""
    from tcpdelay.testbed.quic_program import QuicBuildError, build_quic_program

    try:
        print(build_quic_program(implementation))
    except QuicBuildError as error:
        raise typer.BadParameter(str(error)) from error


class Campaign(Options, panel=OUTPUT):
    """Where and how the captures of a specification are made."""

    output: Path | None = result_option(
        "Directory for the captures, or a .parquet file of all of them. Existing captures are kept.",
        "captures/NAME",
        "PLACE",
    )
    backend: BackendChoice | None = option("Kernel that runs TCP.", "that of the specification")
    duration: Time | None = option("Shorten every experiment to this time. Example: 30s.")
    dry_run: bool = option("List the captures, and make none.", default=False)


@app.command("run", cls=FilesCommand)
@with_options
def run(
    specification: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Specification of the captures.")],
    asked: Campaign,
) -> None:
    """Make the captures of a specification. The same command continues an interrupted run."""
    from dataclasses import replace

    from tcpdelay.testbed.backends import SessionFailedError
    from tcpdelay.testbed.campaign import read_specification, run_campaign, shortened

    line, output = StatusLine(), asked.output
    try:
        with argument_errors("SPEC.toml"):
            plan = read_specification(specification)
            if asked.duration is not None:
                plan = shortened(plan, asked.duration)
            if asked.backend is not None:
                plan = replace(plan, backend=asked.backend)
        if asked.dry_run:
            with argument_errors("SPEC.toml"):
                print(_planned(plan), end="")
            return
        output = output or Path("captures", plan.name)
        with argument_errors("testbed"):
            files = run_campaign(plan, output, lambda progress: line.show(_progress_line(progress)))
    except SessionFailedError as error:
        raise typer.BadParameter(f"testbed: {error}") from error
    except OSError as error:
        raise typer.BadParameter(f"testbed: {error_in_words(error, output)}") from error
    finally:
        erase_progress()
    for file in files:
        print(file)


class ShowOutput(Destination, panel=""):
    """How the content of captures is written."""

    chart: Path | None = option(
        "Draw the measured distributions; for a single capture, also the predicted one: .svg, .png or .pdf."
    )
    output_format: Literal["text", "json", "csv"] = option(
        "Output format; json and csv hold seconds and fractions.", default="text", name="--format"
    )


@app.command("show", cls=GroupedHelp)
@with_options
def show(
    captures: Annotated[list[Path], typer.Argument(metavar="CAPTURE", help="Captures of the testbed, or sets.")],
    result: ShowOutput,
) -> None:
    """Print the content of captures: quantiles with their 95 % intervals, loss, and the counters of the kernel."""
    result.checked_format(None, *(("CAPTURE", file) for file in captures))
    from tcpdelay.capture.flow_capture import read_captures

    with argument_errors("CAPTURE"):
        read = [capture for file in captures for capture in read_captures(file)]
        rows = [capture_record(capture) for capture in read]
    if result.chart is not None:
        with argument_errors("--chart"):
            figure = draw_captures(read)
        write_chart(result.chart, figure, "--chart")
    if result.output_format == "text":
        print(captures_text(rows), end="")
    else:
        print(records_text(rows, result.output_format), end="")


def _planned(specification: Specification) -> str:
    """Return the captures of a specification: name, source, path and duration of each."""
    from tcpdelay.testbed.campaign import targets_of

    targets = targets_of(specification)
    facts = [(target.name, _experiment_in_words(target.experiment)) for target in targets]
    total = format_duration(sum(target.experiment.duration for target in targets))
    return facts_text(facts) + f"{len(targets)} captures, {total} in all\n"


def _experiment_in_words(experiment: Experiment) -> str:
    if experiment.source is not None:
        source = experiment.source.source
        size = f"messages of {source.mean_size:.0f} B in the mean, {format_rate(source.mean_bitrate)}"
        written = f"{size}, seed {experiment.source.seed}"
    elif experiment.application == "adaptive":
        written = f"packets of {experiment.packet_size} B as fast as the socket accepts them"
    else:
        written = f"packets of {experiment.packet_size} B every {format_time(experiment.interval)}"
    path = f"round-trip time {format_time(experiment.rtt)}, loss {format_fraction(experiment.loss)}"
    return f"{written}; {path}; {format_duration(experiment.duration)}"


def _progress_line(progress: Progress) -> str:
    """Return the progress of a campaign in words."""
    stage = "capturing" if progress.round == 0 else f"prolonging, round {progress.round}"
    return f"{stage}: {progress.done:.1f} of {progress.total} experiments"


# `tcpdelay validate`: the models compared with captures of the testbed.

SummaryFormat = Literal["text", "markdown", "json", "csv"]


class Validation(Options):
    """The captures, and the results."""

    captures: Path = option(
        "Captures that `tcpdelay testbed run` wrote: a .parquet file, or a directory of such files.",
        default=Path("captures"),
        name="--captures",
        metavar="PLACE",
    )
    output: Path = result_option(
        "Directory to which all tables are written.", True, "DIR", default=Path("validation-results")
    )
    output_format: SummaryFormat = option(
        "Format of the printed summary; json and csv hold seconds and fractions.", default="text", name="--format"
    )


@command(
    "Compare the models with captures of real TCP.",
    """
Examples:
  tcpdelay validate --captures captures/my-campaign --output my-results
  tcpdelay validate --captures captures/my-campaign --format markdown
""",
)
def validate(asked: Validation) -> None:
    """Compare the models with captures of real TCP: write all tables into a directory, and print a summary."""
    output = asked.output
    with _named("--output"):
        if output.exists() and not output.is_dir():
            raise typer.BadParameter(f"--output: {str(output)!r} is a file; name a directory")
    results = _results(asked.captures)
    with _named("--output"):
        output.mkdir(parents=True, exist_ok=True)
    for name, content in results.files().items():
        write_atomically(output / name, content, "--output")
    print_summary(results, asked.output_format)
    print(f"tables: {output}", file=sys.stderr)


def print_summary(results: Results, output_format: SummaryFormat) -> None:
    """Print each model's errors over all cases."""
    summary = results.summary
    if output_format == "text":
        from rich.console import Console

        summary.print_text(Console(), transposed=True)
    elif output_format == "markdown":
        print(summary.to_markdown())
    else:
        print(rendered(summary, output_format), end="")


def _results(captures: Path) -> Results:
    from tcpdelay.report.validation import validation_results
    from tcpdelay.study.validation.captures import measure_all
    from tcpdelay.study.validation.predictions import Predictions, predictable, score

    try:
        with _named("--captures"):
            measured = measure_all(captures, print_warning, counting("Measuring", "captures"))
        with predicting():
            scores = score(predictable(measured), Predictions(), counting("Predicting", "captures"))
    except ValueError as error:
        raise typer.BadParameter(f"--captures: {error}") from error
    finally:
        erase_progress()
    return validation_results(measured, scores)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Turn an error of the system into one line that names the option and the file."""
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{option}: {error_in_words(error)}") from error
