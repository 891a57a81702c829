"""The messages of a source: the host generates them, and an application of the experiment writes them.

They are handed over in a file in the directory of the session, block by block, so that neither side holds all
messages. NumPy is imported where the host uses it: in a guest, its import takes longer than a short run.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tcpdelay.scenario.sources.message_stream import BLOCK, Source
from tcpdelay.testbed.apps import SendingStream
from tcpdelay.testbed.event_loop import NANOSECONDS, EventLoop
from tcpdelay.testbed.flow_log import PacketLog, StreamPackets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROW = struct.Struct("<qqB")
_ROW_TYPE = [("time", "<i8"), ("size", "<i8"), ("kind", "u1")]


def message_file(directory: Path, experiment: int, flow: int) -> Path:
    """Return the file with the messages of a flow of the experiment with this number in the plan."""
    return directory / f"{experiment}.{flow}.messages"


def write_messages(file: Path, source: Source, seed: int, duration: float) -> None:
    """Write the messages before a time to a file.

    Parameters
    ----------
    file : Path
        The file.
    source : Source
        The source.
    seed : int
        Seed of the messages, 0 or more.
    duration : float
        Time before which the messages are written [s].
    """
    import numpy as np

    with file.open("wb") as opened:
        for block in source.blocks(seed):
            before = block[: np.searchsorted(block["time"], duration)]
            rows = np.empty(before.size, _ROW_TYPE)
            rows["time"] = np.rint(before["time"] * NANOSECONDS)
            rows["size"], rows["kind"] = before["size"], before["kind"]
            opened.write(rows.tobytes())
            if before.size < block.size:
                break


def read_messages(file: Path) -> Iterator[tuple[int, int, int]]:
    """Yield time since the start [ns], size [bytes] and kind of each message in a file of `write_messages`."""
    with file.open("rb") as opened:
        while block := opened.read(BLOCK * _ROW.size):
            yield from _ROW.iter_unpack(block)


def first_messages(file: Path, count: int) -> NDArray[np.void]:
    """Return the first messages in a file of `write_messages`: `time` [ns], `size` [bytes] and `kind`."""
    import numpy as np

    return np.fromfile(file, _ROW_TYPE, count)


def writer_to_stream(log: PacketLog, stream: SendingStream, reader: StreamPackets) -> Callable[[int, int], None]:
    """Return the function that writes messages to one TCP connection, for `MessageSource`.

    Parameters
    ----------
    log : PacketLog
        The log of the writes.
    stream : SendingStream
        The connection.
    reader : StreamPackets
        The messages in the byte stream of the connection.
    """

    def write(size: int, _: int) -> None:
        reader.append(log.write(time.monotonic_ns()), size)
        stream.write(size)

    return write


class MessageSource:
    """Writes messages at their times to one connection.

    Parameters
    ----------
    loop : EventLoop
        The event loop.
    messages : iterator of tuple of int
        Time since the start [ns], ascending, size [bytes] and kind of each message.
    write : callable
        Called with size and kind of a message at its time; it logs and writes the message.
    """

    def __init__(
        self, loop: EventLoop, messages: Iterator[tuple[int, int, int]], write: Callable[[int, int], None]
    ) -> None:
        self._loop = loop
        self._write_message = write
        self._messages = messages
        self._started = 0
        self._stopped = False

    def start(self, first: int) -> None:
        """Begin to write; `first` is the start of the source [ns, monotonic clock]."""
        self._started = first
        self._wait()

    def _wait(self) -> None:
        """Take the next message, and wait for its time."""
        following = next(self._messages, None)
        if following is not None:
            time_since_start, size, kind = following
            self._loop.at(self._started + time_since_start, lambda: self._write(size, kind))

    def _write(self, size: int, kind: int) -> None:
        if not self._stopped:
            self._write_message(size, kind)
            self._wait()

    def stop(self) -> None:
        """Stop writing."""
        self._stopped = True
