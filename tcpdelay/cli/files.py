"""Results into files."""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = TypeVar("Format", bound=str)

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
