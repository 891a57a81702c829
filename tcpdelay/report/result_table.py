"""Tables and records of results, for programs (JSON, CSV) and for people (aligned text, Markdown)."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from tcpdelay.units import format_fraction, format_rate, format_time, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from tcpdelay.statistics import Interval

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


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return a table of facts: a column of names and a column of values."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for fact in facts:
        table.add_row(*map(Text, fact))
    return table


def facts_text(facts: Sequence[tuple[str, str]]) -> str:
    """Return facts as text: a line for each."""
    return as_text(facts_table(facts), width=UNBROKEN)


def cells_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", *, wrap: bool = False
) -> Table:
    """Return a table of cells below headings; the first column contains names, the other columns values."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if i else "left", no_wrap=i == 0 and not wrap)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def as_text(*parts: RenderableType, width: int = FILE_WIDTH) -> str:
    """Return rich's output as plain text, as wide as the terminal, or `width` columns wide without a terminal."""
    from rich.console import Console

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
        from tcpdelay.report.document import escape

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
        from rich.text import Text

        columns = [[column.heading, *(column.shown(row) for row in self.rows)] for column in self.columns]
        lines = columns if transposed else [list(line) for line in zip(*columns, strict=True)]
        table = cells_table(lines[0], lines[1:], self.title, wrap=transposed)
        return [table, Text(self.note)] if self.note else [table]
