"""The output of programs: kept byte by byte, and line by line with the time at which each line was written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

Stream = Literal["stdout", "stderr"]

LINES = "output.jsonl"
PIECE = 65536


@dataclass(frozen=True)
class Line:
    """One line that a program has written.

    Attributes
    ----------
    time : float
        Time since the start of the client [s]; negative for a server that writes before.
    end : str
        Name of the program: "client" or "server" in a run of two programs.
    stream : {"stdout", "stderr"}
        Where it has written.
    text : str
        The line, without its end.
    """

    time: float
    end: str
    stream: Stream
    text: str


class OutputFiles:
    """Keeps what programs write: a file for each stream, and one file with the lines of all.

    Parameters
    ----------
    directory : Path
        Directory of the files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lines = (directory / LINES).open("w", encoding="utf-8")
        self._streams: dict[tuple[str, Stream], BinaryIO] = {}
        self._begun: dict[tuple[str, Stream], bytes] = {}

    def open(self, end: str) -> None:
        """Make the files of a program."""
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for stream in streams:
            self._streams[end, stream] = (self._directory / f"{end}.{stream}").open("wb", buffering=0)
            self._begun[end, stream] = b""

    def add(self, time: float, end: str, stream: Stream, data: bytes) -> None:
        """Keep what a program has written; `time` is that of the lines that end here."""
        self._streams[end, stream].write(data)
        # A progress display ends its lines with a carriage return.
        *whole, begun = (self._begun[end, stream] + data).replace(b"\r", b"\n").split(b"\n")
        if len(begun) > PIECE:
            whole, begun = [*whole, begun], b""
        self._begun[end, stream] = begun
        self._write(time, end, stream, whole)

    def close(self, time: float) -> None:
        """Keep the last lines, which may lack an end, and close the files."""
        for (end, stream), begun in self._begun.items():
            self._write(time, end, stream, [begun])
        self._lines.close()
        for file in self._streams.values():
            file.close()

    def _write(self, time: float, end: str, stream: Stream, lines: list[bytes]) -> None:
        for text in filter(None, lines):
            row = [round(time, 6), end, stream, text.decode(errors="replace")]
            self._lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._lines.flush()


class LineReader:
    """Reads the lines of a run while they are written.

    Parameters
    ----------
    directory : Path
        Directory of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / LINES
        self._position = 0

    def new(self) -> Iterator[Line]:
        """Yield the lines that have been written since the last call."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._position)
            for row in file:
                # The guest may be in the middle of a line.
                if row.endswith(b"\n"):
                    self._position += len(row)
                    yield Line(*json.loads(row))


def read_available(descriptor: int) -> bytes | None:
    """Return what can be read at once from a pipe that does not block; empty at its end, None if nothing is there."""
    try:
        return os.read(descriptor, PIECE)
    except BlockingIOError:
        return None
