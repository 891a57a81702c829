"""What is wrong with a file of CSV that Arrow cannot read, and in which line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from pathlib import Path

from tcpdelay.batch.csv_reading import separator
from tcpdelay.batch.files import one_line
from tcpdelay.batch.quotes import unclosed_quote

BLOCK = 16 * 2**20
_RAGGED = re.compile(r"Expected (\d+) columns, got (\d+)(?:: (?P<row>.*))?", re.DOTALL)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def csv_fault(path: Path, message: str) -> str:
    r"""Return what is wrong with a file of CSV, in one line.

    Parameters
    ----------
    path : Path
        The file.
    message : str
        What Arrow says.

    Returns
    -------
    str
        The fault and its line, or what Arrow says if it is none of those known.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "users.csv"
    ...     _ = path.write_bytes(b"user,rtt_ms,loss\na,80,1%\nM\xfcller,90,1%\n")
    ...     print(csv_fault(path, "invalid UTF8 data"))
    line 3 is not in UTF-8; convert the file, as by iconv -f latin1 -t utf-8
    """
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_UTF16):
        return "it is in UTF-16, not in UTF-8; convert it, as by iconv -f utf-16 -t utf-8"
    if not start.strip():
        return "it is empty"
    if (line := _line_of(path, _not_utf8)) is not None:
        return f"line {line} is not in UTF-8; convert the file, as by iconv -f latin1 -t utf-8"
    if (line := unclosed_quote(path, separator(path))) is not None:
        return f"line {line} opens a quote that is not closed at the end of its cell"
    if ragged := _RAGGED.search(message):
        row = (ragged["row"] or "").encode()
        line = _line_of(path, lambda block: _place_of_line(block, row)) if row else None
        where = f"line {line}" if line is not None else "a line"
        return f"{where} has {ragged[2]} cells, but the first one names {_columns(int(ragged[1]))}"
    if "cannot infer number of columns" in message:
        return "it has no rows"
    return one_line(message)


def _columns(count: int) -> str:
    return f"{count} column" if count == 1 else f"{count} columns"


def _not_utf8(block: bytes) -> int | None:
    try:
        block.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _place_of_line(block: bytes, row: bytes) -> int | None:
    found = re.search(rb"(?:^|[\r\n])" + re.escape(row) + rb"(?:[\r\n]|$)", block)
    return None if found is None else found.end() - 1


def _line_of(path: Path, find: Callable[[bytes], int | None]) -> int | None:
    """Return the number of the line, from 1 on, with the first place that `find` returns in blocks of whole lines."""
    before = 1
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            block += file.readline()
            place = find(block)
            if place is not None:
                return before + block.count(b"\n", 0, place)
            before += block.count(b"\n")
    return None
