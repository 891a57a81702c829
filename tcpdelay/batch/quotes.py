"""Quotes in CSV that are opened and never closed, and take in the rows behind them."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

BLOCK = 16 * 2**20


def unclosed_quote(path: Path, separator: str) -> int | None:
    r"""Return the line in which a quote is opened that runs over its end and is not closed at the end of a cell.

    Parameters
    ----------
    path : Path
        A file of CSV, not empty.
    separator : str
        What stands between its cells.

    Returns
    -------
    int or None
        The first such line, from 1 on. A cell of several lines is none, nor is a quote inside a cell.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "users.csv"
    ...     _ = path.write_text('user,rtt_ms,loss\na,80,1%\n"b,90,1%\nc,70,1%\n')
    ...     print(unclosed_quote(path, ","))
    ...     _ = path.write_text('user,rtt_ms,loss\n6" pipe,80,1%\n"b\nor c",90,1%\n')
    ...     print(unclosed_quote(path, ","))
    3
    None
    """
    beside = re.escape(separator).encode()
    quoted = re.compile(
        rb'(?<![^%b\r\n])"[^"]*+(?:""[^"]*+)*+(?P<end>" *+(?=[%b\r\n]|\Z))?' % (beside, beside),
    )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for cell in quoted.finditer(content):
            if cell["end"] is None and content.find(b"\n", cell.start(), cell.end()) >= 0:
                starts = range(0, cell.start(), BLOCK)
                return 1 + sum(content[start : min(start + BLOCK, cell.start())].count(b"\n") for start in starts)
    return None
