"""Sources that fill what TCP gives them: the adaptive one, whose packets are measured, and a long bulk transfer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tcpdelay.testbed.apps.packet_log import PacketLog, StreamPackets
from tcpdelay.testbed.apps.streams import RETRY_INTERVAL
from tcpdelay.testbed.event_loop import WRITABLE, EventLoop

BULK_WRITE = 65536


class GreedySource:
    """Writes fixed amounts whenever the socket has room for them.

    With TCP_NOTSENT_LOWAT the socket has room only while little of what was written is still unsent, so that each
    write is of fresh data: Linux's relative of MIN_BUF (Goel et al. 2002).

    Parameters
    ----------
    loop : EventLoop
        Where to wait for room.
    connection : socket
        A connected, non-blocking socket.
    size : int
        Bytes per write.
    on_packet : callable
        Called with the time [ns] before the write, once the socket has taken a new packet or a part of it.
    """

    def __init__(
        self, loop: EventLoop, connection: socket.socket, size: int, on_packet: Callable[[int], object]
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._payload = memoryview(bytes(size))
        self._rest = 0
        self._on_packet = on_packet
        self._watching = False

    def start(self) -> None:
        """Begin to write."""
        self._watching = True
        self._loop.watch(self._connection.fileno(), WRITABLE, self._write)

    def _write(self, _: int) -> None:
        # A packet of which a part has been taken is finished before the next one is begun.
        begun = self._rest > 0
        size = self._rest if begun else len(self._payload)
        now = time.monotonic_ns()
        try:
            taken = self._connection.send(self._payload[:size])
        except BlockingIOError:
            self._loop.pause(self._connection.fileno(), RETRY_INTERVAL)
            return
        self._rest = size - taken
        if not begun:
            self._on_packet(now)

    def stop(self) -> None:
        """Write no more."""
        if self._watching:
            self._loop.forget(self._connection.fileno())
            self._watching = False


def adaptive_source(
    loop: EventLoop,
    log: PacketLog,
    reader: StreamPackets,
    connection: socket.socket,
    packet_size: int,
    notsent_lowat: int | None,
) -> GreedySource:
    """Return a source of measured packets that writes as fast as the connection allows.

    Parameters
    ----------
    loop : EventLoop
        Where to wait for room.
    log, reader
        Where to note the packets.
    connection : socket
        A connected, non-blocking socket.
    packet_size : int
        Bytes per packet.
    notsent_lowat : int, optional
        TCP_NOTSENT_LOWAT [bytes]; without it the send buffer is filled.
    """
    if notsent_lowat is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, notsent_lowat)
    return GreedySource(loop, connection, packet_size, lambda now: reader.append(log.write(now)))


def bulk_source(loop: EventLoop, connection: socket.socket) -> GreedySource:
    """Return a long transfer, not measured."""
    return GreedySource(loop, connection, BULK_WRITE, lambda _: None)
