"""Text recordings on disk: opened, bounded in size and decoded, or refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

MAX_RECORDING_SIZE = 64 * 2**20


def read_recording(path: str | os.PathLike[str], program: str) -> str:
    """Return the text that `program` printed into the file at `path`.

    Parameters
    ----------
    path : str or path-like
        The file, at most 64 MiB of text. Bytes that are not UTF-8 are replaced: only host names and the words of a
        translation can hold such, and neither is read.
    program : str
        The program whose output is expected, for the messages.

    Returns
    -------
    str
        The text of the file.

    Raises
    ------
    ValueError
        If the file cannot be read, is empty, is larger than 64 MiB or holds no text.

    Examples
    --------
    >>> read_recording("no-such-file.txt", "ping")
    Traceback (most recent call last):
    ValueError: no-such-file.txt: cannot be read: No such file or directory
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A pipe or a device has no size beforehand, so what is read is bounded as well.
            content = file.read(MAX_RECORDING_SIZE + 1) if size <= MAX_RECORDING_SIZE else b""
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ValueError(f"{name!r} is no valid file name") from None
    if size > MAX_RECORDING_SIZE or len(content) > MAX_RECORDING_SIZE:
        shown = f"{max(size, len(content)) / 2**20:.0f} MiB"
        raise ValueError(f"{name}: {shown} are too many for the output of {program}; at most 64 MiB are read")
    if b"\0" in content:
        raise ValueError(f"{name}: holds binary data, not the text that {program} prints")
    if not content.strip():
        raise ValueError(f"{name}: is empty; the text that {program} prints is expected")
    return content.decode("utf-8-sig", errors="replace")
