"""Commands as a reader runs them, shown on a page of the documentation with their output."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from IPython.display import Markdown, display

SOURCE = Path(__file__).parents[1]


def show(command: str, until: str | None = None) -> None:
    """Run a `tcpdelay` command in the folder of the source, and display it with its output.

    Parameters
    ----------
    command : str
        The command, as a reader types it.
    until : str, optional
        The output is shown up to the line before this line; by default all of it.

    Raises
    ------
    ValueError
        If the output has no such line.
    """
    environment = {**os.environ, "COLUMNS": "90", "TERM": "dumb", "NO_COLOR": "1"}
    printed = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=SOURCE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    if until is not None:
        before, found, _ = printed.partition(f"\n{until}")
        if not found:
            raise ValueError(f"until must be a line of the output, got {until!r}")
        printed = f"{before.rstrip()}\n...\n"
    display(Markdown(f"```console\n$ {command}\n{printed}```"))
