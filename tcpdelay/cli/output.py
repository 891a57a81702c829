"""Write results to files in the requested format; refuse output files before the work begins."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer

from tcpdelay.cli.options import OUTPUT, Options
from tcpdelay.store import unfinished_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.report.result_table import ResultTable


Named = tuple[str, str | Path | None]
"""An option or argument, and the file or folder that it names, if it is given."""

CHART_SUFFIXES = (".svg", ".png", ".pdf")
SUFFIXES = {"text": ".txt", "markdown": ".md", "html": ".html", "json": ".json", "csv": ".csv", "netcdf": ".nc"}
"""The suffix of the files of each format."""


class Destination(Options, panel=OUTPUT):
    """Base class of the options of a result: those of its format, its file and its chart that a command has."""

    output_format: Any = None
    output: Path | None = None
    chart: Path | None = None

    def checked_format(self, formats: object, *inputs: Named) -> Any:
        """Return the format, one of a `Literal` of `formats`, before the work begins.

        Raise typer.BadParameter if a file cannot be written, or would replace one of the `inputs`.
        """
        refuse_other_than_chart(self.chart, "--chart")
        chosen = self.output_format or format_by_suffix(self.output, formats)
        refuse_same_file(inputs, [("--output", self.output), ("--chart", self.chart)])
        refuse_missing_folder(self.output, "--output")
        return chosen


def refuse_other_than_chart(path: Path | None, option: str) -> None:
    """Raise typer.BadParameter if `option` names a file without the suffix of a chart, or in a missing folder."""
    if path is None:
        return
    if path.suffix.lower() not in CHART_SUFFIXES:
        raise typer.BadParameter(f"{option}: {str(path)!r} does not end in one of {', '.join(CHART_SUFFIXES)}")
    refuse_missing_folder(path, option)


def write_chart(path: Path, figure: Figure, option: str) -> None:
    """Write a figure atomically, in the format that the file's suffix stands for."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lower().removeprefix("."))
    write_atomically(path, image.getvalue(), option)


def format_by_suffix(output: Path | None, formats: object) -> Any:
    """Return the format, one of a `Literal` of formats, of the file in `--output`; text without this option."""
    if output is None:
        return "text"
    suffixes = {SUFFIXES[name]: name for name in get_args(formats)}
    suffix = output.suffix.lower()
    if suffix not in suffixes:
        refuse_directory(output, "--output")
        raise typer.BadParameter(
            f"--output: {str(output)!r} does not end in one of {', '.join(suffixes)}; choose with --format"
        )
    return suffixes[suffix]


def refuse_directory(path: Path, option: str) -> None:
    """Raise typer.BadParameter if `option` names a directory."""
    with suppress(OSError):
        if path.is_dir():
            raise typer.BadParameter(f"{option}: {str(path)!r} is a directory; name a file")


def refuse_missing_folder(path: Path | None, option: str) -> None:
    """Raise typer.BadParameter if `option` names a new file in a folder that does not exist, or that is read-only."""
    if path is None:
        return
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {error.strerror}") from None
    # Any other fault, such as too long a name, is reported when the file is written.
    with suppress(OSError):
        # For a symbolic link, the folder of its target counts.
        folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            what = f"{str(folder)!r} is no folder" if folder.exists() else f"the folder {str(folder)!r} does not exist"
            raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {what}")
        if not path.exists() and not os.access(folder, os.W_OK):
            raise typer.BadParameter(
                f"{option}: {str(path)!r} cannot be written: the folder {str(folder)!r} is read-only"
            )


def refuse_same_file(inputs: Iterable[Named], outputs: Iterable[Named]) -> None:
    """Raise typer.BadParameter if an output would replace a file that is read, or another output."""
    read = [(name, Path(path)) for name, path in inputs if path is not None]
    written: list[tuple[str, Path]] = []
    for option, path in ((name, Path(path)) for name, path in outputs if path is not None):
        for name, other in (*read, *written):
            if _is_same_file(path, other):
                what = f"what {name} names" if name.startswith("--") else f"the {name.lower()} itself"
                raise typer.BadParameter(f"{option}: {str(path)!r} is {what}; name another file")
        for name, folder in read:
            if _is_in_folder(path, folder):
                raise typer.BadParameter(
                    f"{option}: {str(path)!r} is in the folder that {name} names; name a file elsewhere"
                )
        written.append((option, path))


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths denote the same file or folder, which need not exist."""
    try:
        return path.samefile(other) and (path.is_file() or path.is_dir())
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _is_in_folder(path: Path, folder: Path) -> bool:
    """Return whether a file would be within an existing folder, at any depth."""
    with suppress(OSError):
        return folder.is_dir() and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return False


def write_atomically(path: Path, content: bytes, option: str) -> None:
    """Write a file so that it holds either its previous content or all of the new content."""
    try:
        if path.exists():
            # To replace a file needs permission for its directory only. Opening the file raises an error if it is
            # write-protected or a directory.
            with path.open("ab") as file:
                if not path.is_file():
                    file.write(content)
                    return
        target = path.resolve()
        temporary = unfinished_path(target)
        try:
            temporary.write_bytes(content)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {error.strerror or error}") from error


def rendered(table: ResultTable, chosen: Literal["text", "csv", "json"]) -> str:
    """Return a table as CSV, JSON or text."""
    return {"csv": table.to_csv, "json": table.to_json, "text": table.to_text}[chosen]()


def write(content: str, output: Path | None, option: str = "--output") -> None:
    """Write a text to the file that `option` names, or print it if there is none."""
    if output is None:
        print(content, end="")
    else:
        write_atomically(output, content.encode(), option)
