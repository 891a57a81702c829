"""All captures below a directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path as FilePath

from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.validation.measured import MeasuredDelay, measure

SUFFIX = ".parquet"


def measure_all(
    directory: str | os.PathLike[str],
    on_broken: Callable[[str], None],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[MeasuredDelay]:
    """Measure every capture in a directory and in those below it.

    Parameters
    ----------
    directory : str or path-like
        Where the captures are, in files ending in .parquet; the name of the directory that one is in becomes its
        `collection`.
    on_broken : callable
        Called with one line for each file that cannot be used, which names it; the file is left out.
    on_progress : callable, optional
        Called before each file with the number of those done and of all.

    Returns
    -------
    list of MeasuredDelay
        In the order of the file names.

    Raises
    ------
    ValueError
        If there is no such directory, no capture in it, or none that can be used.

    Examples
    --------
    >>> measure_all("no-such-directory", on_broken=print)
    Traceback (most recent call last):
    ValueError: 'no-such-directory' is no directory
    """
    root = FilePath(directory)
    if not root.is_dir():
        raise ValueError(f"{str(root)!r} is {'a file' if root.exists() else 'no directory'}")
    files = sorted(file for file in root.rglob(f"*{SUFFIX}") if not file.name.startswith("."))
    if not files:
        raise ValueError(f"{str(root)!r} holds no capture, that is, no file ending in {SUFFIX}")
    measured = []
    for done, file in enumerate(files):
        on_progress(done, len(files))
        collection = "" if file.parent == root else file.parent.name
        try:
            capture = read_capture(file)
        except ValueError as error:
            on_broken(str(error))
            continue
        try:
            measured.append(measure(capture, collection))
        except ValueError as error:
            on_broken(f"{file}: cannot be used: {error}")
    if not measured:
        raise ValueError(f"{str(root)!r} holds no capture that can be used: all {len(files)} files are broken")
    return measured
