"""A page for each command with all its options, and a table of the commands; `conf.py` makes them at each build."""

import io
import os
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

from typer.core import TyperCommand, TyperGroup

from tcpdelay.cli.program import main, program

TERMINAL = {"COLUMNS": "90", "TERM": "dumb", "NO_COLOR": "1"}


def write_command_pages(folder: Path) -> None:
    """Write `commands.inc`, a table of the commands, and a page `commands/NAME.rst` for each."""
    (folder / "commands").mkdir(parents=True, exist_ok=True)
    rows, contents = [".. list-table::", ""], [".. toctree::", "   :hidden:", ""]
    for name, command in program().commands.items():
        summary = command.get_short_help_str(limit=200)
        rows += [f"   * - :doc:`{name} </generated/commands/{name}>`", f"     - {summary}"]
        contents.append(f"   /generated/commands/{name}")
        helps = "\n\n".join(help_texts(name, command))
        write_changed(folder / "commands" / f"{name}.rst", f"{name}\n{'=' * len(name)}\n\n{helps}\n")
    write_changed(folder / "commands.inc", "\n".join([*rows, "", *contents, ""]))


def help_texts(words: str, command: TyperCommand | TyperGroup) -> Iterator[str]:
    """Give the help of a command, and of all commands below it, as literal blocks for a terminal of 90 columns."""
    whole = any(option.name == "help_all" for option in command.params)
    shown = io.StringIO()
    with patch.dict(os.environ, TERMINAL), redirect_stdout(shown):
        main([*words.split(), "--help-all" if whole else "--help"])
    yield ".. code-block:: text\n\n" + textwrap.indent(shown.getvalue().strip("\n"), "   ")
    for name, below in getattr(command, "commands", {}).items():
        yield from help_texts(f"{words} {name}", below)


def write_changed(file: Path, text: str) -> None:
    """Write a file unless it has this content: Sphinx reads changed files again."""
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
