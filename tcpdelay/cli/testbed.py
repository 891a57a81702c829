"""`tcpdelay testbed`: captures of the kernel's own TCP."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.errors import StatusLine, argument_errors
from tcpdelay.cli.output import refuse_other_than_chart, refuse_same_file, write_chart
from tcpdelay.units import format_fraction, format_time, parse_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.capture.flow_capture import FlowCapture
    from tcpdelay.testbed.campaign import Progress

BackendChoice = Literal["uml-virtual", "uml", "host"]
SUMMARY = "Capture real Linux TCP under netem, in a guest or on this machine."
EXAMPLES = """
\b
Examples:
  tcpdelay testbed check
  tcpdelay testbed run examples/first-capture.toml
  tcpdelay testbed show captures/first-capture/*.parquet --chart delays.svg
  tcpdelay testbed build-kernel
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


@app.command("check")
def check() -> None:
    """Say which kernels can be used here, and what to install for the others; exits with 1 if there is none."""
    from tcpdelay.testbed.backends import Backend, HostBackend, UmlBackend, VirtualTimeBackend
    from tcpdelay.testbed.virtual_kernel import KERNEL_HZ, build_requirements

    backends: list[tuple[str, Backend]] = [
        ("uml          a guest in real time", UmlBackend()),
        *[(f"uml-virtual  a guest in virtual time, {hz} Hz", VirtualTimeBackend(hz)) for hz in KERNEL_HZ],
        ("host         this machine's kernel", HostBackend()),
    ]
    working = 0
    width = max(len(label) for label, _ in backends)
    for label, backend in backends:
        problems = backend.problems()
        working += not problems
        print(f"{label:<{width}}  {'works' if not problems else 'does not work: ' + '; '.join(problems)}")
    missing = build_requirements()
    if missing:
        print(f"\nTo build a kernel for virtual time, first run: sudo apt-get install {' '.join(missing)}")
    if not working:
        raise typer.Exit(1)


def _build_hz(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 100 <= int(text) <= 1000:
        raise ValueError(f"--hz: {text!r} is no whole number from 100 to 1000")
    return int(text)


@app.command("build-kernel")
def build_kernel(
    hz: Annotated[
        list[int] | None,
        typer.Option(
            parser=_build_hz,
            metavar="HZ",
            help="Timer interrupts per second; may be given several times. 250 and 1000 if absent.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="TARBALL",
            help="Source of Linux 6.1; that of Debian's package linux-source-6.1 if absent.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Build the guest kernels that run in virtual time, into the user's cache; takes some minutes."""
    from tcpdelay.testbed.virtual_kernel import KERNEL_HZ, KernelBuildError, build_kernels

    line = StatusLine()
    try:
        with argument_errors():
            kernels = build_kernels(
                hz or KERNEL_HZ, source=source, on_progress=lambda stage, share: line.show(f"{stage} {share:.0%}")
            )
    except KernelBuildError as error:
        raise typer.BadParameter(str(error)) from error
    finally:
        line.erase()
    for kernel in kernels:
        print(kernel)


@app.command("run")
def run(
    specification: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to capture.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where the captures go; captures/NAME if absent. Those that are there already are kept.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        BackendChoice | None, typer.Option(help="Overrides the specification's.", show_default=False)
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=lambda text: parse_time(text, "--duration"),
            metavar="TIME",
            help="Cuts every experiment to this length, such as 30s.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make the captures that a specification asks for; a run that was interrupted goes on where it was."""
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
        with argument_errors("testbed"):
            files = run_campaign(
                plan, output or Path("captures", plan.name), lambda progress: line.show(_told(progress))
            )
    except (SessionFailedError, OSError) as error:
        raise typer.BadParameter(f"testbed: {error}") from error
    finally:
        line.erase()
    for file in files:
        print(file)


@app.command("show")
def show(
    captures: Annotated[list[Path], typer.Argument(metavar="CAPTURE...", help="Captures of the testbed.")],
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the distributions measured, and the one predicted if there is but one capture: "
            "as .svg, .png or .pdf.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        Literal["text", "json", "csv"], typer.Option("--format", help="json and csv hold seconds and fractions.")
    ] = "text",
) -> None:
    """Print what captures hold: quantiles with their 95 % intervals, loss, and the kernel's own counts."""
    refuse_other_than_chart(chart, "--chart")
    refuse_same_file([("CAPTURE", file) for file in captures], [("--chart", chart)])
    from tcpdelay.capture.flow_capture import read_capture

    with argument_errors("CAPTURE"):
        read = [read_capture(file) for file in captures]
        rows = [capture_row(capture) for capture in read]
    if chart is not None:
        write_chart(chart, draw_captures(read), "--chart")
    if output_format == "text":
        print_captures(rows)
    else:
        print_rows(rows, output_format)


def _told(progress: Progress) -> str:
    """Return how far a campaign is."""
    stage = "capturing" if progress.round == 0 else f"prolonging, round {progress.round}"
    return f"{stage}: {progress.done:.1f} of {progress.total} experiments"


def capture_row(capture: FlowCapture) -> dict[str, Any]:
    """Return what a capture holds as one flat row, in seconds and fractions."""
    from tcpdelay.confidence import BATCHES, mean_interval, quantile_interval

    if capture.offered < BATCHES:
        raise ValueError(f"{capture.name}: holds {capture.offered} packets; intervals take at least {BATCHES}")
    delays = capture.delays()
    first = capture.runs[0]
    row: dict[str, Any] = {
        "capture": capture.name,
        "backend": first.backend,
        "kernel": first.kernel,
        "hz": first.hz,
        "offered": capture.offered,
        "not_read": sum(int((run.delay < 0).sum()) for run in capture.runs),
    }
    for name, interval in (
        ("mean", mean_interval(delays)),
        *((f"p{100 * q:g}", quantile_interval(delays, q)) for q in (0.5, 0.95, 0.99)),
    ):
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    # The flows of one run share the queues of the path.
    of_runs = {run.run: run for run in capture.runs}.values()
    dropped = sum(run.packets["data_dropped"] for run in of_runs)
    sent = sum(run.packets["data_sent"] for run in of_runs)
    row |= {
        "configured_loss": capture.settings["loss"],
        "measured_loss": dropped / max(sent + dropped, 1),
        "dropped": dropped,
        "retransmitted": sum(run.counters.get("RetransSegs", 0) for run in of_runs),
        "timeouts": sum(run.counters.get("TCPTimeouts", 0) for run in of_runs),
        "longest_stall": max((int(run.stall_length.max(initial=0)) for run in capture.runs), default=0) * 1e-6,
    }
    return row


def print_captures(rows: list[dict[str, Any]]) -> None:
    """Print what captures hold for people."""
    for row in rows:
        print(f"{row['capture']}: {row['backend']}, Linux {row['kernel']}, {row['hz']} Hz")
        for name in ("mean", "p50", "p95", "p99"):
            low, high = format_time(row[f"{name}_low"]), format_time(row[f"{name}_high"])
            print(f"  {name:<6}{format_time(row[name])} ({low} to {high})")
        print(f"  {row['offered']} packets offered, {row['not_read']} not read before the end")
        print(
            f"  loss {format_fraction(row['measured_loss'])} ({row['dropped']} segments dropped; configured "
            f"{format_fraction(row['configured_loss'])}), {row['retransmitted']} retransmitted, "
            f"{row['timeouts']} timeouts"
        )
        if row["longest_stall"] > 0:
            print(f"  the guest stalled, for {format_time(row['longest_stall'])} at the longest")


def print_rows(rows: list[dict[str, Any]], output_format: Literal["json", "csv"]) -> None:
    """Print what captures hold as JSON or CSV."""
    import csv
    import json

    if output_format == "json":
        finite = [
            {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in row.items()
            }
            for row in rows
        ]
        print(json.dumps(finite, indent=2))
        return
    table = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


def draw_captures(captures: list[FlowCapture]) -> Figure:
    """Return a chart of the shares of packets later than a delay, beside the prediction if there is one capture."""
    from matplotlib.figure import Figure

    from tcpdelay.models.predict import predict_delay
    from tcpdelay.report.charts import plot_distribution

    alone = len(captures) == 1
    curves = [("measured" if alone else capture.name, capture.delay_distribution()) for capture in captures]
    settings = captures[0].settings
    if alone and settings["application"] == "cbr" and settings["bottleneck_rate"] is None:
        curves.append(("predicted", predict_delay(captures[0].flow, captures[0].path)))
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for label, distribution in curves:
        if math.isfinite(distribution.values[0]):
            plot_distribution(distribution, axes, kind="survival")
            axes.lines[-1].set_label(label)
    if axes.lines:
        axes.legend(fontsize="small", frameon=False)
    else:
        # Says that nothing ever arrived.
        plot_distribution(curves[0][1], axes, kind="survival")
    if alone:
        axes.set_title(captures[0].name, fontsize="medium")
    return figure
