"""Tables of playout buffers by round-trip time and loss: a page to print, Markdown, text, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tcpdelay.report.prediction import source_in_words
from tcpdelay.report.result_table import FILE_WIDTH, Cell, Column, ResultTable, as_text, cells_table
from tcpdelay.study.playout import PlayoutCell, PlayoutTable
from tcpdelay.units import format_fraction, format_time

TITLE = "Playout buffer by round-trip time and loss"
DEFINITION = (
    "The buffer is the delay from write to read within which the application's share of packets arrives, less the "
    "one-way delay of the path (half the round-trip time)."
)
MARKS = {"works": "", "uncertain": "?", "fails": "✗", "not carried": "", "no answer": ""}
"""What follows the buffer in a cell, by verdict."""
OUTSIDE = "*"


@dataclass(frozen=True)
class TitledTable:
    """A table of playout buffers, and what it is about."""

    app: str | None  # The application, if there is one
    stack: str  # Congestion control, or the name of the TCP profile
    table: PlayoutTable  # The buffers

    @property
    def title(self) -> str:
        """Application and TCP."""
        return f"{self.app or 'flow'} over {self.stack}"

    @property
    def subtitle(self) -> str:
        """What is sent, and what counts as in time."""
        target = self.table.scenario.target
        assert target is not None
        sent = source_in_words(self.table.scenario.source)
        return f"{sent}; {format_fraction(target.quantile)} within {format_time(target.limit)}"

    @property
    def headings(self) -> list[str]:
        """The heading of the first column, and the losses."""
        return ["RTT", *(f"{format_fraction(cell.path.loss)} loss" for cell in self.table.rows[0])]

    @property
    def lines(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """The lines of the matrix: a round-trip time, and class, main text and further text of each cell."""
        return [
            (
                format_time(row[0].path.rtt),
                [(cell.verdict.replace(" ", "-"), _in_rtts(cell), _in_time(cell)) for cell in row],
            )
            for row in self.table.rows
        ]

    def matrix(self, separator: str) -> list[list[str]]:
        """Return the lines of the matrix with one text for each cell; `separator` is between its two parts."""
        return [[rtt, *(separator.join(filter(None, cell[1:])) for cell in cells)] for rtt, cells in self.lines]


def _in_rtts(cell: PlayoutCell) -> str:
    """Return the buffer in round-trip times with its marks, or why there is none."""
    outside = OUTSIDE if cell.outside else ""
    if not math.isfinite(cell.buffer):
        return f"{cell.verdict}{outside}"
    mark = MARKS[cell.verdict]
    return f"{cell.buffer_in_rtts:.2f} RTT{f' {mark}' if mark else ''}{outside}"


def _in_time(cell: PlayoutCell) -> str:
    """Return the buffer with its error; an empty text if there is no buffer."""
    if not math.isfinite(cell.buffer):
        return ""
    if math.isnan(cell.buffer_error):
        return f"{1e3 * cell.buffer:.0f} ms"
    return f"{1e3 * cell.buffer:.0f} ± {1e3 * cell.buffer_error:.0f} ms"


def notes(titled: Sequence[TitledTable]) -> list[str]:
    """Return the sentences below the tables: what the figures and marks mean that occur in them."""
    cells = [cell for each in titled for row in each.table.rows for cell in row]
    verdicts = {cell.verdict for cell in cells}
    said = [DEFINITION, "± is the error that nine of ten predictions do not exceed."]
    meanings = {
        "fails": "✗ The delay exceeds the application's target.",
        "uncertain": "? The error leaves open whether the target is met.",
        "not carried": "not carried: TCP cannot carry the flow, and the delay grows without end.",
        "no answer": "no answer: " + "; ".join(dict.fromkeys(cell.refusal for cell in cells if cell.refusal)) + ".",
    }
    said += [text for verdict, text in meanings.items() if verdict in verdicts]
    ranges = dict.fromkeys(
        each.table.validated for each in titled if any(cell.outside for row in each.table.rows for cell in row)
    )
    for known in ranges:
        (shortest, longest), (lowest, highest) = known.rtt, known.loss
        said.append(
            f"{OUTSIDE} Outside the range that is validated: round-trip times of {format_time(shortest)} to "
            f"{format_time(longest)}, losses of {format_fraction(lowest)} to {format_fraction(highest)}, packets of "
            f"{known.packet_size[0]:g} to {known.packet_size[1]:g} bytes every {format_time(known.interval[0])} to "
            f"{format_time(known.interval[1])}."
        )
    return said


def to_page(titled: Sequence[TitledTable], command: str) -> str:
    """Return the tables as an HTML page that prints on A4."""
    from tcpdelay.report.html import environment

    template = environment().get_template("playout.html.j2")
    return template.render(title=TITLE, tables=titled, notes=notes(titled), command=command) + "\n"


def to_markdown(titled: Sequence[TitledTable], command: str) -> str:
    """Return the tables in Markdown, with the command that made them."""
    from tcpdelay.report.markdown import escape

    parts = [f"# {TITLE}"]
    for each in titled:
        columns = [Column(str(place), heading, "text") for place, heading in enumerate(each.headings)]
        rows = [{str(place): text for place, text in enumerate(line)} for line in each.matrix(", ")]
        table = ResultTable("playout", each.title, columns, rows)
        parts += [f"## {escape(each.title)}", str(escape(each.subtitle)), table.to_markdown()]
    parts += ["\n".join(f"- {escape(note)}" for note in notes(titled)), f"```sh\n{command}\n```"]
    return "\n\n".join(parts) + "\n"


def to_text(titled: Sequence[TitledTable]) -> str:
    """Return the tables as aligned text."""
    from rich.text import Text

    tables = [cells_table(each.headings, each.matrix("\n"), f"{each.title}: {each.subtitle}") for each in titled]
    return as_text(*tables, *map(Text, notes(titled)), width=FILE_WIDTH)


def long_table(titled: Sequence[TitledTable]) -> ResultTable:
    """Return a table with a row for each cell, for CSV and JSON, with the units in the names."""
    rows = [_record(each, cell) for each in titled for row in each.table.rows for cell in row]
    return ResultTable("playout", TITLE, [Column(key, key) for key in rows[0]], rows)


def _record(titled: TitledTable, cell: PlayoutCell) -> dict[str, Cell]:
    target = titled.table.scenario.target
    assert target is not None
    return {
        "app": titled.app,
        "stack": titled.stack,
        "rtt_s": cell.path.rtt,
        "loss_fraction": cell.path.loss,
        "quantile_fraction": target.quantile,
        "limit_s": target.limit,
        "delay_s": cell.delay,
        "buffer_s": cell.buffer,
        "buffer_rtts": cell.buffer_in_rtts,
        "buffer_error_s": cell.buffer_error,
        "verdict": cell.verdict,
        "method": cell.method,
        "outside_validated_range": "; ".join(cell.outside),
        "refusal": cell.refusal,
    }
