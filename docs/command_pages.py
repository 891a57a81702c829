"""A page for each command with all its options, and a table of the commands; `conf.py` makes them at each build."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.core import TyperCommand, TyperGroup

from tcpdelay.cli.program import main, program

CONTEXT = TyperCommand.context_class
TerminalFormatter = CONTEXT.formatter_class


class PageFormatter(TerminalFormatter):
    """Writes the help of a command as reStructuredText, where a terminal would have columns."""

    def __init__(self, **_: Any) -> None:
        """Make a formatter that cuts off no sentence for want of columns."""
        super().__init__(width=1000)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how a command is called."""
        self.write_literal(f"{prog} {args}")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write a heading above what follows."""
        self.write(f".. rubric:: {escaped(name)}\n\n")
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: Any) -> None:
        """Write options or words with their meanings."""
        for term, meaning in rows:
            self.write(f"``{term}``\n   {escaped(' '.join(meaning.split()))}\n\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; one below a title and a backspace keeps its lines."""
        for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
            lines = paragraph.removeprefix("\b\n").splitlines()
            if lines[0].endswith(":"):
                self.write(f".. rubric:: {escaped(lines[0].strip(' :'))}\n\n")
                self.write_literal("\n".join(lines[1:]))
            else:
                self.write(f"{escaped(' '.join(' '.join(lines).split()))}\n\n")

    def write_literal(self, text: str) -> None:
        """Write lines as they are."""
        self.write(".. code-block:: sh\n\n" + textwrap.indent(textwrap.dedent(text).rstrip(), "   ") + "\n\n")


def write_command_pages(folder: Path) -> None:
    """Write `commands.inc`, a table of the commands, and a page `commands/NAME.rst` for each."""
    (folder / "commands").mkdir(parents=True, exist_ok=True)
    rows, contents = [".. list-table::", ""], [".. toctree::", "   :hidden:", ""]
    for name, command in program().commands.items():
        summary = escaped(command.get_short_help_str(limit=200))
        rows += [f"   * - :doc:`{name} </generated/commands/{name}>`", f"     - {summary}"]
        contents.append(f"   /generated/commands/{name}")
        write_changed(folder / "commands" / f"{name}.rst", "\n".join(page(name, command, "=")))
    write_changed(folder / "commands.inc", "\n".join([*rows, "", *contents, ""]))


def page(words: str, command: TyperCommand | TyperGroup, underline: str) -> Iterator[str]:
    """Give the help of a command, and of all commands below it, each under its name."""
    option = "--help-all" if any(each.name == "help_all" for each in command.params) else "--help"
    shown = io.StringIO()
    with patch.object(CONTEXT, "formatter_class", PageFormatter), redirect_stdout(shown):
        main([*words.split(), option])
    yield from (words, underline * len(words), "", shown.getvalue())
    for name, below in getattr(command, "commands", {}).items():
        yield from page(f"{words} {name}", below, "-")


def escaped(text: str) -> str:
    """Return text in which no character is markup, and options do not break at their hyphens."""
    plain = re.sub(r"([\\*`|_])", r"\\\1", text)
    return re.sub(r"(?<![\w-])(--?[a-z][a-z-]*)(?![\w\\])", r"``\1``", plain)


def write_changed(file: Path, text: str) -> None:
    """Write a file unless it has this content: Sphinx reads changed files again."""
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
