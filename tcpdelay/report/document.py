"""A report as a document: verdict, sections, tables and advice, in Markdown and on a terminal; tables of results.

Programs read the records of a table as JSON or CSV, people read aligned text or Markdown.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table as RichTable
from rich.text import Text

from tcpdelay.units import format_fraction, format_rate, format_time, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import RenderableType

    from tcpdelay.models.verdict import Verdict
    from tcpdelay.statistics import Interval


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

_CODE = re.compile(
    r"`([^`]+)`|(setsockopt\([^()`]*\)|sysctl [\w.]+(?:=\w+)?|net\.ipv4\.\w+(?:=\w+)?|ioctl \w+|\b(?:TCP|SO)_\w+"
    r"|(?:send|poll|kqueue)\(\)|(?:tc qdisc|ip route) [^,;()`]*?\w(?= in |[,;()`]| \(|$))"
)
_SPECIAL = re.compile(r"([\\`*\[\]<>|&]|(?<!\w)_|_(?!\w))")
_BLOCK_START = re.compile(r"^([#+=~-]|\d+(?=[.)](?:\s|$)))")


def code_spans(text: str) -> list[tuple[str, bool]]:
    """Split a setting into prose and code: pairs of a text and whether it is code."""
    spans: list[tuple[str, bool]] = []
    end = 0
    for match in _CODE.finditer(text):
        spans += [(text[end : match.start()], False), (match[1] or match[2], True)]
        end = match.end()
    return [(part, code) for part, code in [*spans, (text[end:], False)] if part]


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
    for part, typed in code_spans(" ".join(text.split())):
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
    return Text.assemble(*((part, "cyan" if typed else "") for part, typed in code_spans(text)))


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


# Tables and records of results.

Cell = str | float | int | bool | None
UNKNOWN = "–"
DIGITS = 6
"""Significant digits of numbers in files; no measurement is more precise."""
FILE_WIDTH = 100
"""Width of a text that is not printed on a terminal [characters]."""
UNBROKEN = 10_000
"""Width of a text whose lines must not be broken [characters]."""


def to_json(content: Any) -> str:
    """Return content as JSON; a number that is infinite or not known becomes null."""
    return json.dumps(to_jsonable_python(content, inf_nan_mode="null"), indent=2, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]], keys: Sequence[str] | None = None) -> str:
    """Return records as CSV: "inf" if infinite, an empty cell if not known, semicolons between several texts."""
    page = io.StringIO()
    columns = keys or list(dict.fromkeys(key for row in rows for key in row))
    table = csv.DictWriter(page, columns, lineterminator="\n", restval="")
    table.writeheader()
    table.writerows({key: _csv_cell(value) for key, value in row.items()} for row in rows)
    return page.getvalue()


def _csv_cell(value: Any) -> Any:
    if value is None or value != value:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(_entries(value))
    return "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _entries(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the entries of a mapping, and of the mappings in it, as texts such as "sizes.mean=1000"."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_csv_cell(value)}"


def attributes(found: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object as entries of a record."""
    return {name: getattr(found, name) for name in names}


def interval_cells(name: str, interval: Interval | None) -> dict[str, Any]:
    """Return an estimate and the ends of its interval as entries of a record; their keys begin with `name`."""
    value, low, high = (None, None, None) if interval is None else interval
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def with_interval(interval: Interval, written: Callable[[float], str]) -> str:
    """Return an estimate in words, with the ends of its interval unless they look the same."""
    value, low, high = map(written, interval)
    return value if low == high else f"{value} ({low} to {high})"


def record_text(record: Mapping[str, Any], chosen: Literal["json", "csv"]) -> str:
    """Return one record as a JSON object, or as CSV with a header."""
    return to_json(record) if chosen == "json" else to_csv([record])


def records_text(records: Sequence[Mapping[str, Any]], chosen: Literal["json", "csv"]) -> str:
    """Return records as a JSON array, or as CSV with a header."""
    return to_json(records) if chosen == "json" else to_csv(records)


def facts_table(facts: Sequence[tuple[str, str]]) -> RichTable:
    """Return a table of facts: a column of names and a column of values."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for fact in facts:
        table.add_row(*map(Text, fact))
    return table


def facts_text(facts: Sequence[tuple[str, str]]) -> str:
    """Return facts as text: a line for each."""
    return as_text(facts_table(facts), width=UNBROKEN)


def cells_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    *,
    wrap: bool = False,
    words: Collection[int] = (0,),
) -> RenderableType:
    """Return a table of cells below headings; columns of `words`, and those without any digit, begin at the left."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        figures = i not in words and any(char.isdigit() for row in rows for char in row[i])
        table.add_column(Text(heading), justify="right" if figures else "left", no_wrap=i == 0 and not wrap)
    for row in rows:
        table.add_row(*map(Text, row))
    # The title of a `RichTable` is no wider than the table.
    return Group(Text(title, "table.title"), table) if title else table


def as_text(*parts: RenderableType, width: int = FILE_WIDTH) -> str:
    """Return rich's output as plain text, as wide as the terminal, or `width` columns wide without a terminal."""
    page = io.StringIO()
    columns = max(Console().width, 80) if sys.stdout.isatty() else width
    console = Console(file=page, width=columns, force_terminal=False, color_system=None)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()).rstrip("\n") + "\n"


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return a table of formatted cells for notebooks; the first cell of a row names the row."""
    headings = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = ""
    for first, *cells in rows:
        figures = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{html.escape(first)}</th>{figures}</tr>'
    below = f"<p>{html.escape(note)}</p>" if note else ""
    head = f"<thead><tr>{headings}</tr></thead>" if any(columns) else ""
    return f"<table><caption>{html.escape(caption)}</caption>{head}<tbody>{body}</tbody></table>{below}"


def _text(value: Cell) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else printable(str(value))


def _rounded(value: Cell) -> Cell:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _percent(value: float, sign: str = "") -> str:
    """Return a fraction in percent, with more decimals for small values; `sign` is a sign option of `format`."""
    decimals = 0 if abs(value) >= 0.0995 else 1 if abs(value) >= 0.00995 else 2
    return "never" if math.isinf(value) else f"{100 * value:{sign}.{decimals}f} %"


FORMATS: dict[str, Callable[..., str]] = {
    "text": _text,
    "count": lambda value: f"{value:d}",
    "time": format_time,
    "fraction": format_fraction,
    "error": lambda value: _percent(value, "+"),
    "distance": _percent,
    "rate": format_rate,
    "ratio": lambda value: f"{value:.3g}",
    "score": lambda value: f"{value:.2f}",
}
"""Functions that format a cell for people: a time [s], a rate [bit/s], a fraction or a relative error."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str  # Name of the column in CSV and JSON
    heading: str  # Name of the column for people
    kind: str = "text"  # Kind of the values, a key of `FORMATS`
    # low, high: Keys of the ends of an interval, which is shown after the value.
    low: str | None = None
    high: str | None = None

    def shown(self, row: Mapping[str, Cell]) -> str:
        """Return the cell of `row`, formatted for people."""
        value = row.get(self.key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return UNKNOWN
        show = FORMATS[self.kind]
        if self.low is None or self.high is None:
            return show(value)
        low, high = row.get(self.low), row.get(self.high)
        if low is None or low == high:
            return show(value)
        return f"{show(value)} ({show(low)} … {show(high)})"


@dataclass(frozen=True)
class ResultTable:
    """A table of results."""

    name: str  # Name of the table's file, without the suffix
    title: str
    columns: Sequence[Column]  # The columns for people
    rows: Sequence[Mapping[str, Cell]]  # All values by key; there may be values without a column
    note: str = ""  # Explanation of the table

    def to_csv(self) -> str:
        """Return all values as CSV, in seconds and fractions: "inf" if infinite, an empty cell if not known."""
        rows = [{key: _rounded(value) for key, value in row.items()} for row in self.rows]
        return to_csv(rows, None if rows else [column.key for column in self.columns])

    def to_records(self) -> list[dict[str, Cell]]:
        """Return all values in the types of JSON: None if a value is infinite or not known."""
        rows = [{key: _rounded(value) for key, value in row.items()} for row in self.rows]
        records: list[dict[str, Cell]] = to_jsonable_python(rows, inf_nan_mode="null")
        return records

    def to_json(self) -> str:
        """Return all values as JSON."""
        return to_json(self.to_records())

    def to_text(self, width: int = FILE_WIDTH) -> str:
        """Return the columns for people as aligned text, as wide as the terminal if there is one."""
        return as_text(*self._parts(transposed=False), width=width)

    def to_markdown(self) -> str:
        """Return the columns for people as a table in Markdown."""
        lines = [[column.heading for column in self.columns]]
        rules = ["---" if column.kind == "text" else "---:" for column in self.columns]
        lines += [[column.shown(row) for column in self.columns] for row in self.rows]
        written = ["| " + " | ".join(str(escape(cell)) for cell in line) + " |" for line in lines]
        written.insert(1, "|" + "|".join(rules) + "|")
        return "\n".join(written)

    def to_page(self) -> str:
        """Return the table in Markdown with its note; a sentence if the table has no rows."""
        if not self.rows:
            return "No captures of this kind.\n"
        return "\n\n".join(part for part in (self.to_markdown(), self.note) if part) + "\n"

    def print_text(self, console: Console, *, transposed: bool = False) -> None:
        """Print the columns for people on a terminal; `transposed` prints one column per row of the table."""
        for part in self._parts(transposed=transposed):
            console.print(part)

    def _parts(self, *, transposed: bool) -> list[RenderableType]:
        columns = [[column.heading, *(column.shown(row) for row in self.rows)] for column in self.columns]
        lines = columns if transposed else [list(line) for line in zip(*columns, strict=True)]
        words = [0, *(() if transposed else (i for i, column in enumerate(self.columns) if column.kind == "text"))]
        table = cells_table(lines[0], lines[1:], self.title, wrap=transposed, words=words)
        return [table, Text(self.note)] if self.note else [table]
