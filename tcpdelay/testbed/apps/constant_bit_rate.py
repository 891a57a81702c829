"""Constant-bit-rate sources: one packet per interval over one connection or several, or as datagrams."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Sequence

from tcpdelay.testbed.apps.packet_log import PacketLog, StreamPackets, split_evenly
from tcpdelay.testbed.apps.streams import SendingStream
from tcpdelay.testbed.event_loop import READABLE, EventLoop
from tcpdelay.testbed.tcp_info import LOSS_STATE, tcp_info, unacknowledged_bytes

_NUMBER = struct.Struct("!Q")


class ConstantBitRateSource:
    """Writes a packet per interval into TCP connections.

    Parameters
    ----------
    log : PacketLog
        Where to note the writes.
    streams : sequence of SendingStream
        The connections; one packet goes to one of them.
    readers : sequence of StreamPackets
        What the other end of each connection expects.
    packet_size : int
        Bytes per packet.
    pieces : int
        Writes per packet.
    intelligent : bool
        Whether a packet goes to the connection outside a timeout that has the least unacknowledged data; else round
        robin.
    """

    def __init__(
        self,
        log: PacketLog,
        streams: Sequence[SendingStream],
        readers: Sequence[StreamPackets],
        packet_size: int,
        pieces: int,
        intelligent: bool,
    ) -> None:
        self._log = log
        self._connections = list(zip(streams, readers, strict=True))
        self._sizes = split_evenly(packet_size, pieces)
        self._round = itertools.cycle(range(len(streams)))
        self._choose: Callable[[], int] = self._least_loaded if intelligent else self._round.__next__

    def tick(self, expirations: int) -> None:
        """Write the packets that are due: one, or more after a stall."""
        for _ in range(expirations):
            stream, reader = self._connections[self._choose()]
            reader.append(self._log.write(time.monotonic_ns()))
            for size in self._sizes:
                stream.write(size)

    def _least_loaded(self) -> int:
        """Return the connection to use: outside a timeout rather than in one, then the smallest send queue."""

        def load(index: int) -> tuple[bool, int]:
            stream = self._connections[index][0]
            in_timeout = tcp_info(stream.connection).ca_state == LOSS_STATE
            return in_timeout, stream.waiting + unacknowledged_bytes(stream.connection)

        return min(range(len(self._connections)), key=load)


class DatagramSource:
    """Sends a numbered datagram per interval and notes those that arrive.

    Parameters
    ----------
    loop : EventLoop
        Where to wait for arrivals.
    log : PacketLog
        Where to note the packets.
    sender, receiver : socket
        Non-blocking UDP sockets, the first one connected to the second.
    packet_size : int
        Bytes per packet, at least 8.
    """

    def __init__(
        self, loop: EventLoop, log: PacketLog, sender: socket.socket, receiver: socket.socket, packet_size: int
    ) -> None:
        self._loop = loop
        self._log = log
        self._sender = sender
        self._receiver = receiver
        self._padding = bytes(packet_size - _NUMBER.size)
        loop.watch(receiver.fileno(), READABLE, self._read)

    def tick(self, expirations: int) -> None:
        """Send the packets that are due."""
        for _ in range(expirations):
            self._sender.send(_NUMBER.pack(self._log.write(time.monotonic_ns())) + self._padding)

    def _read(self, _: int) -> None:
        datagram = self._receiver.recv(65536)
        now = time.monotonic_ns()
        self._log.arrive(_NUMBER.unpack_from(datagram)[0], now)

    def close(self) -> None:
        """Close both sockets."""
        self._loop.forget(self._receiver.fileno())
        self._sender.close()
        self._receiver.close()
