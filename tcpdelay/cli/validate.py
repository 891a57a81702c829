"""`tcpdelay validate`: the models compared with captures of the testbed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcpdelay.cli.errors import counting, erase_progress, predicting, print_warning
from tcpdelay.cli.options import result_option
from tcpdelay.cli.output import rendered, write_atomically
from tcpdelay.store import error_in_words

if TYPE_CHECKING:
    from tcpdelay.report.validation import Results

Format = Literal["text", "markdown", "json", "csv"]

CAPTURES = Path("captures")
OUTPUT = Path("validation-results")
SUMMARY = "Compare the models with captures of real TCP."
EXAMPLES = """
\b
Examples:
  tcpdelay validate --captures captures/my-campaign --output my-results
  tcpdelay validate --captures captures/my-campaign --format markdown
"""


def validate(
    captures: Annotated[
        Path,
        typer.Option(
            metavar="PLACE",
            help="Captures that `tcpdelay testbed run` wrote: a .parquet file, or a directory of such files.",
        ),
    ] = CAPTURES,
    output: Annotated[Path, result_option("Directory to which all tables are written.", True, "DIR", None)] = OUTPUT,
    output_format: Annotated[
        Format, typer.Option("--format", help="Format of the printed summary; json and csv hold seconds and fractions.")
    ] = "text",
) -> None:
    """Compare the models with captures of real TCP: write all tables into a directory, and print a summary."""
    with _named("--output"):
        if output.exists() and not output.is_dir():
            raise typer.BadParameter(f"--output: {str(output)!r} is a file; name a directory")
    results = _results(captures)
    _write(results, output)
    print_summary(results, output_format)
    print(f"tables: {output}", file=sys.stderr)


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


def _write(results: Results, output: Path) -> None:
    with _named("--output"):
        output.mkdir(parents=True, exist_ok=True)
    for name, content in results.files().items():
        write_atomically(output / name, content, "--output")
