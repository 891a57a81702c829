"""Tables in the format that is asked for."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcpdelay.report.result_table import ResultTable

FILE_WIDTH = 100
"""Characters of a line of text that no terminal shows."""


def rendered(table: ResultTable, chosen: str) -> str:
    """Return a table as CSV, JSON or text."""
    if chosen == "csv":
        return table.to_csv()
    if chosen == "json":
        return json.dumps(table.to_records(), indent=2) + "\n"
    from rich.console import Console

    page = io.StringIO()
    width = max(Console().width, 80) if sys.stdout.isatty() else FILE_WIDTH
    table.print_text(Console(file=page, width=width, force_terminal=False, color_system=None))
    return page.getvalue().rstrip("\n") + "\n"
