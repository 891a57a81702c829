"""`tcpdelay testbed`: captures of the TCP of a Linux kernel."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.errors import FilesCommand, GroupedHelp, StatusLine, argument_errors, erase_progress
from tcpdelay.cli.options import OUTPUT, make_option, quantity
from tcpdelay.cli.output import refuse_other_than_chart, refuse_same_file, write_chart
from tcpdelay.declare import Quantity, declarations
from tcpdelay.report.analysis import capture_record, captures_text, draw_captures
from tcpdelay.report.result_table import facts_text, records_text
from tcpdelay.scenario.kernels import is_at_least
from tcpdelay.scenario.stack import Linux
from tcpdelay.store import error_in_words
from tcpdelay.units import format_duration, format_fraction, format_rate, format_time

if TYPE_CHECKING:
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


@app.command("run", cls=FilesCommand)
def run(
    specification: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Specification of the captures.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PLACE",
            help="Directory for the captures, or a .parquet file of all of them. Existing captures are kept.",
            show_default="captures/NAME",
        ),
    ] = None,
    backend: Annotated[
        BackendChoice | None, make_option("--backend", OUTPUT, "Kernel that runs TCP.", "that of the specification")
    ] = None,
    duration: Annotated[
        float | None, quantity("--duration", "time", OUTPUT, "Shorten every experiment to this time. Example: 30s.")
    ] = None,
    dry_run: Annotated[bool, make_option("--dry-run", OUTPUT, "List the captures, and make none.")] = False,
) -> None:
    """Make the captures of a specification. The same command continues an interrupted run."""
    from dataclasses import replace

    from tcpdelay.testbed.backends import SessionFailedError
    from tcpdelay.testbed.campaign import run_campaign
    from tcpdelay.testbed.specification import read_specification, shortened

    line = StatusLine()
    try:
        with argument_errors("SPEC.toml"):
            plan = read_specification(specification)
            if duration is not None:
                plan = shortened(plan, duration)
            if backend is not None:
                plan = replace(plan, backend=backend)
        if dry_run:
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


@app.command("show", cls=GroupedHelp)
def show(
    captures: Annotated[list[Path], typer.Argument(metavar="CAPTURE", help="Captures of the testbed, or sets.")],
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the measured distributions; for a single capture, also the predicted one: .svg, .png or .pdf.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        Literal["text", "json", "csv"],
        typer.Option("--format", help="Output format; json and csv hold seconds and fractions."),
    ] = "text",
) -> None:
    """Print the content of captures: quantiles with their 95 % intervals, loss, and the counters of the kernel."""
    refuse_other_than_chart(chart, "--chart")
    refuse_same_file([("CAPTURE", file) for file in captures], [("--chart", chart)])
    from tcpdelay.capture.flow_capture import read_captures

    with argument_errors("CAPTURE"):
        read = [capture for file in captures for capture in read_captures(file)]
        rows = [capture_record(capture) for capture in read]
    if chart is not None:
        with argument_errors("--chart"):
            figure = draw_captures(read)
        write_chart(chart, figure, "--chart")
    if output_format == "text":
        print(captures_text(rows), end="")
    else:
        print(records_text(rows, output_format), end="")


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
