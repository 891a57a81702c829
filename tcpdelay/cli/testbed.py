"""`tcpdelay testbed`: captures of the TCP of a Linux kernel; `tcpdelay validate`: the models compared with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.errors import (
    FilesCommand,
    GroupedHelp,
    StatusLine,
    argument_errors,
    counting,
    erase_progress,
    predicting,
    print_warning,
)
from tcpdelay.cli.options import OUTPUT, Options, Time, command, option, result_option, with_options
from tcpdelay.cli.output import Destination, rendered, write_atomically, write_chart
from tcpdelay.declare import Quantity, declarations
from tcpdelay.report.analysis import capture_record, captures_text, draw_captures
from tcpdelay.report.result_table import facts_text, records_text
from tcpdelay.scenario.stack import Linux
from tcpdelay.store import error_in_words
from tcpdelay.units import format_duration, format_fraction, format_rate, format_time

if TYPE_CHECKING:
    from tcpdelay.report.validation import Results
    from tcpdelay.testbed.campaign import Progress
    from tcpdelay.testbed.experiment import Experiment
    from tcpdelay.testbed.specification import Specification

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
    from tcpdelay.testbed.kernel_source import DEFAULT_KERNEL, KERNEL_HZ, built_kernels
    from tcpdelay.testbed.virtual_kernel import build_requirements

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
    from tcpdelay.testbed.kernel_source import KERNEL_HZ, is_version
    from tcpdelay.testbed.virtual_kernel import KernelBuildError, build_kernels

    version = kernel if kernel is not None and is_version(kernel) else None
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
    from tcpdelay.testbed.campaign import run_campaign
    from tcpdelay.testbed.specification import read_specification, shortened

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
