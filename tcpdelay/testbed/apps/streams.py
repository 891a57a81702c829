"""The two ends of a TCP connection in an event loop: one that never blocks, one that stamps what it reads."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tcpdelay.testbed.event_loop import READABLE, WRITABLE, EventLoop

READ_SIZE = 256 * 1024
RETRY_INTERVAL = 1_000_000
"""Pause after a write of which the kernel took nothing [ns]."""
_ZEROS = memoryview(bytes(READ_SIZE))


class SendingStream:
    """The writing end: what the send buffer does not take waits here, counted rather than stored.

    Parameters
    ----------
    loop : EventLoop
        Where to wait for room in the send buffer.
    connection : socket
        A connected, non-blocking socket.
    """

    def __init__(self, loop: EventLoop, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting = 0
        self._loop = loop

    def write(self, size: int) -> None:
        """Write `size` bytes, at most 256 KiB, in one call, behind whatever waits."""
        if self.waiting == 0:
            size -= self._send(size)
            if size:
                self._loop.watch(self.connection.fileno(), WRITABLE, self._flush)
        self.waiting += size

    def _send(self, size: int) -> int:
        try:
            return self.connection.send(_ZEROS[:size])
        except BlockingIOError:
            return 0

    def _flush(self, _: int) -> None:
        taken = self._send(min(self.waiting, READ_SIZE))
        self.waiting -= taken
        if self.waiting == 0:
            self._loop.forget(self.connection.fileno())
        elif taken == 0:
            self._loop.pause(self.connection.fileno(), RETRY_INTERVAL)

    def close(self) -> None:
        """Close the connection; what has not been written is lost."""
        if self.waiting:
            self._loop.forget(self.connection.fileno())
        self.connection.close()


class ReceivingStream:
    """The reading end.

    Parameters
    ----------
    loop : EventLoop
        Where to wait for data.
    connection : socket
        A connected, non-blocking socket.
    on_data : callable
        Called with the bytes read so far and the time [ns] after the read; with 0 bytes more at the end of the stream.
    quick_ack : bool
        Whether every segment is to be acknowledged at once.
    """

    def __init__(
        self,
        loop: EventLoop,
        connection: socket.socket,
        on_data: Callable[[int, int], None],
        quick_ack: bool,
    ) -> None:
        self.connection = connection
        self.received = 0
        self.ended = False
        self._loop = loop
        self._on_data = on_data
        self._quick_ack = quick_ack
        self._buffer = bytearray(READ_SIZE)
        if quick_ack:
            self._acknowledge_at_once()
        loop.watch(connection.fileno(), READABLE, self._read)

    def _acknowledge_at_once(self) -> None:
        # The kernel falls back to delayed acknowledgements by itself, so this is set again after each read.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _read(self, _: int) -> None:
        try:
            size = self.connection.recv_into(self._buffer)
        except (BlockingIOError, ConnectionError):
            return
        # After the read: a stamp taken before it would make the delay too small.
        now = time.monotonic_ns()
        if size:
            if self._quick_ack:
                self._acknowledge_at_once()
            self.received += size
        else:
            self.ended = True
            self._loop.forget(self.connection.fileno())
        self._on_data(self.received, now)

    def close(self) -> None:
        """Close the connection."""
        if not self.ended:
            self._loop.forget(self.connection.fileno())
            self.ended = True
        self.connection.close()
