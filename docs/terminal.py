"""Commands as a reader runs them, shown on a page of the documentation with their output."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from IPython.display import Markdown, display

SOURCE = Path(__file__).parents[1]
WIDEST = 100
"""Columns that a page has at 1280 px."""


def wrapped(line: str) -> str:
    """Return a line of sentences, or of a name and its value, in lines that fit a page; others as they are."""
    gaps = list(re.finditer(r"(?<=\S) {2,}", line))
    if len(line) <= WIDEST or len(gaps) > 1:
        return line
    indent = gaps[0].end() if gaps else len(line) - len(line.lstrip())
    value = textwrap.wrap(line[indent:], WIDEST - indent, break_on_hyphens=False, break_long_words=False)
    return line[:indent] + f"\n{' ' * indent}".join(value)


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
    shown = "\n".join(map(wrapped, printed.split("\n")))
    display(Markdown(f"```console\n$ {command}\n{shown}```"))
