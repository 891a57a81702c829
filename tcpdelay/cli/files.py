"""Results into files."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

import typer


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
