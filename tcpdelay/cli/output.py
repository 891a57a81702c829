"""Results into files, in the format that is asked for."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.report.result_table import ResultTable


Format = TypeVar("Format", bound=str)

Named = tuple[str, str | Path | None]
"""An option or argument, and the file or folder that it names, if it is given."""

CHART_SUFFIXES = (".svg", ".png", ".pdf")


def refuse_other_than_chart(path: Path | None, option: str) -> None:
    """Raise typer.BadParameter if `option` names a file that is no chart by its suffix."""
    if path is not None and path.suffix.lower() not in CHART_SUFFIXES:
        raise typer.BadParameter(f"{option}: {str(path)!r} does not end in one of {', '.join(CHART_SUFFIXES)}")


def write_chart(path: Path, figure: Figure, option: str) -> None:
    """Write a figure in the format that the file's suffix names, as `write_atomically` does."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lower().removeprefix("."))
    write_atomically(path, image.getvalue(), option)


def format_by_suffix(output: Path | None, suffixes: Mapping[str, Format]) -> Format | Literal["text"]:
    """Return the format that the name of --output asks for, or text for the terminal.

    Raises
    ------
    typer.BadParameter
        If the name's suffix is none of `suffixes`.
    """
    if output is None:
        return "text"
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
    """Raise typer.BadParameter if `option` names a file in a folder that does not exist."""
    # A name that is too long, say, is left to the writing.
    with suppress(OSError):
        if path is None:
            return
        # A link is written to where it leads.
        folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            what = f"{str(folder)!r} is no folder" if folder.exists() else f"the folder {str(folder)!r} does not exist"
            raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {what}")


def refuse_same_file(inputs: Iterable[Named], outputs: Iterable[Named]) -> None:
    """Raise typer.BadParameter if an output would replace a file that is read, or another output.

    Parameters
    ----------
    inputs : iterable of (str, str or Path or None)
        What is read. A folder counts with all that is in it.
    outputs : iterable of (str, str or Path or None)
        What is written. A device or a pipe is never replaced, and may be named twice.

    Raises
    ------
    typer.BadParameter
        If two names, also through links, lead to one file.

    Examples
    --------
    >>> try:
    ...     refuse_same_file([("TABLE", "users.csv")], [("--output", None), ("--summary", "./users.csv")])
    ... except typer.BadParameter as error:
    ...     print(error.message)
    --summary: 'users.csv' is the table itself; name another file
    """
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
    """Return whether two names are of one file or folder, be it there already or not."""
    try:
        return path.samefile(other) and (path.is_file() or path.is_dir())
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _is_in_folder(path: Path, folder: Path) -> bool:
    """Return whether a file would be in a folder that is there, or below it."""
    with suppress(OSError):
        return folder.is_dir() and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return False


def write_atomically(path: Path, content: bytes, option: str) -> None:
    """Write a file so that it holds either what it held before or all of the new content.

    Parameters
    ----------
    path : Path
        The file. A device or a pipe cannot be replaced and is written to as it is.
    content : bytes
        Its new content.
    option : str
        The option that named the file, for the message.

    Raises
    ------
    typer.BadParameter
        If the path is a directory or cannot be written.
    """
    try:
        if path.exists():
            # Replacing a file asks only its directory, so a write-protected one, or a directory, has to show itself.
            with path.open("ab") as file:
                if not path.is_file():
                    file.write(content)
                    return
        target = path.resolve()
        temporary = target.with_name(f".tcpdelay-{secrets.token_hex(8)}.tmp")
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


def write(content: str, output: Path | None) -> None:
    """Write a text to the file of --output, or print it."""
    if output is None:
        print(content, end="")
    else:
        write_atomically(output, content.encode(), "--output")
