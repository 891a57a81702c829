"""`tcpdelay validate`: the models against captures of the testbed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.errors import ERASE_LINE, counting, predicting, print_warning
from tcpdelay.cli.output import rendered, write_atomically

if TYPE_CHECKING:
    from tcpdelay.validation.results import Results

Format = Literal["text", "markdown", "json", "csv"]

CAPTURES = Path("validation", "captures")
OUTPUT = Path("validation", "results")
PUBLISHED = Path("published", "brosh_droptail.csv")
"""The published figures, relative to the directory that holds the one of the captures."""
SUMMARY = "Score the models against captures of real TCP."
EXAMPLES = """
\b
Examples:
  tcpdelay validate                            # in a checkout of the project
  tcpdelay validate --captures my-captures --output my-results --format markdown
"""


def validate(
    captures: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory with captures of the testbed (.parquet), with its subdirectories."),
    ] = CAPTURES,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory for all tables and figures.")
    ] = OUTPUT,
    output_format: Annotated[
        Format, typer.Option("--format", help="Format of the summary; json and csv hold seconds and fractions.")
    ] = "text",
) -> None:
    """Score the models against captures of real TCP: tables and figures into a directory, a summary here."""
    if not captures.exists() and captures == CAPTURES:
        raise typer.BadParameter(
            f"--captures: there is no {str(CAPTURES)!r} here; run this in a checkout of the project, or name a "
            "directory with captures"
        )
    if output.exists() and not output.is_dir():
        raise typer.BadParameter(f"--output: {str(output)!r} is a file; name a directory")
    results = _results(captures)
    _write(results, output)
    print_summary(results, output_format)
    print(f"tables and figures: {output}", file=sys.stderr)


def print_summary(results: Results, output_format: Format) -> None:
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
    from tcpdelay.validation.collection import measure_all
    from tcpdelay.validation.drop_tail import published_figures
    from tcpdelay.validation.results import evaluate

    try:
        published = published_figures(captures.resolve().parent / PUBLISHED)
        measured = measure_all(captures, print_warning, counting("Measuring", "captures"))
        with predicting():
            return evaluate(measured, published, on_progress=counting("Predicting", "captures"))
    except ValueError as error:
        raise typer.BadParameter(f"--captures: {error}") from error
    finally:
        if sys.stderr.isatty():
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)


def _write(results: Results, output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--output: {str(output)!r} cannot be made: {error.strerror or error}") from error
    if sys.stderr.isatty():
        print("Drawing ...", end="", file=sys.stderr, flush=True)
    files = results.files()
    if sys.stderr.isatty():
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)
    for name, content in files.items():
        write_atomically(output / name, content, "--output")
