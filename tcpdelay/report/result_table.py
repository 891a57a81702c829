"""A table of results: numbers for programs (CSV, JSON) and formatted for people (text, Markdown)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcpdelay.units import format_fraction, format_rate, format_time

if TYPE_CHECKING:
    from rich.console import Console

Cell = str | float | int | bool | None
UNKNOWN = "–"
DIGITS = 6
"""Significant digits of numbers in files; no measurement is more precise."""


def _text(value: Cell) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _rounded(value: Cell) -> Cell:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _error(value: float) -> str:
    return "never" if math.isinf(value) else f"{100 * value:+.{_decimals(value)}f} %"


def _distance(value: float) -> str:
    return "never" if math.isinf(value) else f"{100 * value:.{_decimals(value)}f} %"


def _decimals(fraction: float) -> int:
    """Return how many decimals a fraction shows in percent: small ones tell more."""
    return 0 if abs(fraction) >= 0.0995 else 1 if abs(fraction) >= 0.00995 else 2


FORMATS: dict[str, Callable[..., str]] = {
    "text": _text,
    "count": lambda value: f"{value:d}",
    "time": format_time,
    "fraction": format_fraction,
    "error": _error,
    "distance": _distance,
    "rate": format_rate,
    "ratio": lambda value: f"{value:.3g}",
}
"""How the cells of a column are shown: times in s, rates in bit/s, fractions and relative errors in percent."""


@dataclass(frozen=True)
class Column:
    """A column.

    Parameters
    ----------
    key : str
        Its name in CSV and JSON.
    heading : str
        Its name for people.
    kind : str
        One of `FORMATS`.
    low, high : str, optional
        Keys of the ends of the interval to show behind the value.
    """

    key: str
    heading: str
    kind: str = "text"
    low: str | None = None
    high: str | None = None

    def shown(self, row: Mapping[str, Cell]) -> str:
        """Return the cell of `row` for people."""
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
    """A table of results.

    Parameters
    ----------
    name : str
        Name of its file, without the suffix.
    title : str
        What it shows.
    columns : sequence of Column
        What people see.
    rows : sequence of mapping
        All values by key; there can be more than people see.
    note : str
        How to read it.

    Examples
    --------
    >>> table = ResultTable("t", "Delays", (Column("p95", "p95", "time"),), [{"p95": 0.19, "n": 3}])
    >>> print(table.to_markdown())
    | p95 |
    |---:|
    | 190 ms |
    >>> print(table.to_csv(), end="")
    p95,n
    0.19,3
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    note: str = ""

    def to_csv(self) -> str:
        """Return all values as CSV: seconds and fractions; inf is infinite, empty is not known."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row)) or [column.key for column in self.columns]
        page = io.StringIO()
        table = csv.DictWriter(page, keys, lineterminator="\n", restval="")
        table.writeheader()
        for row in self.rows:
            known = {key: _rounded(value) for key, value in row.items()}
            table.writerow({key: "" if value is None or value != value else value for key, value in known.items()})
        return page.getvalue()

    def to_records(self) -> list[dict[str, Cell]]:
        """Return all values as JSON takes them: None where a value is infinite or not known."""
        return [
            {
                key: None if isinstance(value, float) and not math.isfinite(value) else _rounded(value)
                for key, value in row.items()
            }
            for row in self.rows
        ]

    def to_markdown(self) -> str:
        """Return what people see as a table in Markdown."""
        from tcpdelay.report.markdown import escape

        lines = [[column.heading for column in self.columns]]
        rules = ["---" if column.kind == "text" else "---:" for column in self.columns]
        lines += [[column.shown(row) for column in self.columns] for row in self.rows]
        written = ["| " + " | ".join(str(escape(cell)) for cell in line) + " |" for line in lines]
        written.insert(1, "|" + "|".join(rules) + "|")
        return "\n".join(written)

    def to_page(self) -> str:
        """Return the table in Markdown with its note, or a sentence where it has no rows."""
        if not self.rows:
            return "No captures of this kind.\n"
        return "\n\n".join(part for part in (self.to_markdown(), self.note) if part) + "\n"

    def print_text(self, console: Console, *, transposed: bool = False) -> None:
        """Print what people see on a terminal; `transposed` with one column per row, for broad tables of few rows."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        shown = [[column.heading, *(column.shown(row) for row in self.rows)] for column in self.columns]
        lines = shown if transposed else list(zip(*shown, strict=True))
        for i, heading in enumerate(lines[0]):
            table.add_column(Text(heading), justify="right" if i else "left", no_wrap=i == 0 and not transposed)
        for line in lines[1:]:
            table.add_row(*map(Text, line))
        console.print(table)
        if self.note:
            console.print(Text(self.note))
