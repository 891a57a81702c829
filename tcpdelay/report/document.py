"""A report as a document: verdict, sections, tables and advice; in Markdown, and on a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table as RichTable
from rich.text import Text

from tcpdelay.report import phrases

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console, RenderableType

    from tcpdelay.models.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of formatted cells under named columns."""

    columns: tuple[str, ...]  # Headings
    rows: tuple[tuple[str, ...], ...]  # Cells; the first cell of a row names the row
    numeric: tuple[int, ...] = ()  # Columns of numbers, aligned right
    emphasis: int | None = None  # The row on which the verdict rests

    @property
    def headed(self) -> bool:
        """Whether the columns need headings; the two columns of names and values need none."""
        return len(self.columns) > 2


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation in words; `elsewhere` has the names and settings of systems other than Linux."""

    title: str
    status: str
    reason: str
    condition: str
    effect: str | None
    setting: str
    elsewhere: tuple[tuple[str, str], ...]
    evidence: str


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a report: its heading, and its parts in the order of the fields."""

    key: str  # Stable name
    title: str  # Heading
    paragraphs: tuple[str, ...] = ()  # Text
    tables: tuple[Table, ...] = ()  # Figures
    advice: tuple[Advice, ...] = ()  # What to do, the largest effect first
    # Titles of lists that are of less interest, each with its items.
    folded: tuple[tuple[str, tuple[str, ...]], ...] = ()
    points: tuple[str, ...] = ()  # Items of a list


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a report."""

    verdict: Verdict
    # headline, explanation: The verdict in words, and the sentences that explain the verdict.
    headline: str
    explanation: tuple[str, ...]
    key_figures: tuple[tuple[str, str], ...]  # Labels and values of the most important figures
    sections: tuple[Section, ...]  # The other parts of the report in reading order
    transport: str = "TCP"  # The transport, "TCP" or "QUIC"


# The report in Markdown.

_SPECIAL = re.compile(r"([\\`*\[\]<>|&]|(?<!\w)_|_(?!\w))")
_BLOCK_START = re.compile(r"^([#+=~-]|\d+(?=[.)](?:\s|$)))")


class Verbatim(str):
    """Text that is already Markdown, so that nothing in it is escaped."""

    __slots__ = ()


def in_markdown(report: Content) -> str:
    """Return the content of a report in GitHub's Markdown."""
    return _environment().get_template("report.md.j2").render(report=report)


def escape(text: object) -> object:
    r"""Return Markdown that displays `text` literally, on one line."""
    if not isinstance(text, str) or isinstance(text, Verbatim):
        return text
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return _BLOCK_START.sub(lambda start: f"{start[1]}\\" if start[1].isdigit() else f"\\{start[1]}", line)


def code(text: str) -> Verbatim:
    """Return a setting in Markdown, with its literal parts as code."""
    parts = []
    for part, typed in phrases.code_spans(" ".join(text.split())):
        if typed:
            parts.append(f"`{part}`")
        else:
            # `escape` removes the spaces next to code; restore them.
            before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
            parts.append(f"{before}{escape(part)}{after}")
    return Verbatim("".join(parts))


@cache
def _environment() -> Environment:
    # Imported here, because text needs no templates.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tcpdelay.report"),
        autoescape=False,
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = code
    environment.filters["verbatim"] = Verbatim
    return environment


# The report on a terminal.

WIDEST = 100
"""Largest width of a line [characters]; longer lines are hard to read."""
VERDICT_STYLE = {"works": "bold green", "uncertain": "bold yellow", "fails": "bold red"}


def print_content(report: Content, console: Console) -> None:
    """Print the content of a report; no information is in the colours alone."""
    width = min(console.width, WIDEST)
    _print(Text(report.headline, VERDICT_STYLE[report.verdict]), console, width)
    for sentence in report.explanation:
        _print(_with_code(sentence), console, width)
    for section in report.sections:
        console.print()
        _print_section(section, console, width)


def _print_section(section: Section, console: Console, width: int) -> None:
    _print(Text(section.title.upper(), "bold"), console, width)
    for paragraph in section.paragraphs:
        _print(Text(paragraph), console, width)
    for i, table in enumerate(section.tables):
        if i:
            console.print()
        _print(_figures(table), console, width)
    for rule in section.advice:
        _print_rule(rule, console, width)
    for title, points in section.folded:
        console.print()
        _print(Text(title, "bold underline"), console, width)
        _print_points(points, console, width)
    _print_points(section.points, console, width)


def _print_points(points: tuple[str, ...], console: Console, width: int) -> None:
    for point in points:
        _print(_hanging("-", _with_code(point), 2), console, width)


def _print_rule(rule: Advice, console: Console, width: int) -> None:
    title = Text.assemble((rule.title, "bold"), f" [{rule.status}]")
    _print(_hanging("-", title, 2), console, width)
    lines = [("why", Text(rule.reason)), ("when", Text(rule.condition))]
    if rule.effect:
        lines.append(("effect", Text(rule.effect)))
    lines.append(("how", _with_code(rule.setting)))
    for name, text in lines:
        _print(Padding(_hanging(name, text, 7), (0, 0, 0, 2)), console, width)


def _with_code(text: str) -> Text:
    """Return a text in which commands and settings are coloured."""
    return Text.assemble(*((part, "cyan" if typed else "") for part, typed in phrases.code_spans(text)))


def _print(renderable: RenderableType, console: Console, width: int) -> None:
    """Print without the trailing blanks that pad the lines of a table."""
    for line in console.render_lines(renderable, console.options.update_width(width), pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
        console.print(Segments([*line, Segment.line()]), end="")


def _hanging(name: str, text: Text, indent: int) -> RichTable:
    """Return `text` with `name` to the left of its first line."""
    grid = RichTable.grid()
    grid.add_column(width=indent)
    grid.add_column()
    grid.add_row(Text(name), text)
    return grid


def _figures(table: Table) -> RichTable:
    """Return a table of a report as rich prints it."""
    figures = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim", show_header=table.headed
    )
    for i, column in enumerate(table.columns):
        figures.add_column(
            Text(column), justify="right" if i in table.numeric else "left", no_wrap=i == 0 or i in table.numeric
        )
    for i, row in enumerate(table.rows):
        figures.add_row(*map(Text, row), style="bold" if i == table.emphasis else "")
    return figures
