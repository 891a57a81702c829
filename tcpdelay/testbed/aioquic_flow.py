"""A measured flow over QUIC with the library aioquic: both ends in one event loop."""

from __future__ import annotations

import json
import math
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aioquic.buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    DatagramFrameReceived,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
)
from aioquic.quic.logger import QuicLogger
from aioquic.quic.packet import pull_quic_header
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from tcpdelay.testbed.event_loop import NANOSECONDS, READABLE, EventLoop
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.flows import PacketLog, StreamPackets, split_evenly

# aioquic does no input or output of its own. `QuicEnd` does what its asyncio protocol does
# (aioquic/asyncio/protocol.py), with exact timers: it sends after each datagram that arrives, after each timer and
# after each write.

PROTOCOL = "tcpdelay"
UNLIMITED = 2**40
"""Flow-control windows that never limit the sender [bytes]."""
NEVER_IDLE = 172_800.0
"""Idle timeout, longer than any measurement [s]."""
DATAGRAM_OVERHEAD = 30
"""Bytes around the payload of a DATAGRAM frame in a packet: a short header with a connection ID of 8 bytes and a packet
number of 2 (11), the tag of the encryption (16), and the head of the frame (3)."""
LONGEST_FRAME = 65_535
"""Transport parameter max_datagram_frame_size (RFC 9221, section 3)."""
_HEAD = struct.Struct("!II")
"""Number of the message, and in how many datagrams it is sent."""
_RECEIVED = 65_536


@dataclass(eq=False)
class QuicEnd:
    """One end of a connection: a UDP socket and timers."""

    loop: EventLoop
    udp: socket.socket  # A non-blocking UDP socket
    # Called with each event of the connection and the time at which its datagram was read [ns].
    on_event: Callable[[QuicEvent, int], None]
    # Makes the connection of a server from its first datagram.
    accept: Callable[[bytes], QuicConnection] | None = None

    def __post_init__(self) -> None:
        self.connection: QuicConnection | None = None
        self._timer: float | None = None
        self._alarm: int | None = None
        self._closed = False
        self.loop.watch(self.udp.fileno(), READABLE, self._read)

    def connect(self, connection: QuicConnection, address: tuple[str, int]) -> None:
        """Begin the handshake as a client."""
        self.connection = connection
        connection.connect(address, now=time.monotonic())
        self.transmit(time.monotonic())

    def transmit(self, now: float) -> None:
        """Send what the connection has to send at a time [s], and set its timer."""
        if self.connection is None:
            return
        for datagram, address in self.connection.datagrams_to_send(now=now):
            self.udp.sendto(datagram, address)
        self._timer = self.connection.get_timer()
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake at the timer; an alarm that is set for an earlier time sets the next one."""
        if self._timer is not None:
            when = math.ceil(self._timer * NANOSECONDS)
            if self._alarm is None or when < self._alarm:
                self._alarm = when
                self.loop.at(when, self._wake)

    def _wake(self) -> None:
        if self._closed or self.connection is None:
            return
        ticks = time.monotonic_ns()
        if self._alarm is not None and ticks >= self._alarm:
            self._alarm = None
        if self._timer is not None and ticks >= math.ceil(self._timer * NANOSECONDS):
            # A time that was rounded down would come before the timer.
            now = max(ticks / NANOSECONDS, self._timer)
            self.connection.handle_timer(now=now)
            self._hand_over_events(ticks)
            self.transmit(now)
        else:
            self._set_alarm()

    def _read(self, _: int) -> None:
        try:
            datagram, address = self.udp.recvfrom(_RECEIVED)
        except (BlockingIOError, ConnectionError):
            return
        ticks = time.monotonic_ns()
        if self.connection is None and self.accept is not None:
            self.connection = self.accept(datagram)
        if self.connection is not None:
            self.connection.receive_datagram(datagram, address, now=ticks / NANOSECONDS)
            self._hand_over_events(ticks)
            self.transmit(ticks / NANOSECONDS)

    def _hand_over_events(self, now: int) -> None:
        assert self.connection is not None
        while (event := self.connection.next_event()) is not None:
            if isinstance(event, ConnectionTerminated):
                raise OSError(f"aioquic ended the connection: {event.reason_phrase}")
            self.on_event(event, now)

    def close(self) -> None:
        """Close the socket."""
        self._closed = True
        self.loop.forget(self.udp.fileno())
        self.udp.close()


@dataclass(eq=False)
class AioquicFlow:
    """A measured flow: a client that writes messages, and a server that reads them."""

    loop: EventLoop
    log: PacketLog  # The log of the messages
    experiment: Experiment  # Congestion control, delivery and groups
    # sender, receiver: Non-blocking UDP sockets; `receiver` is bound.
    sender: socket.socket
    receiver: socket.socket
    address: tuple[str, int]  # Address and port of the receiver
    on_ready: Callable[[], None]  # Called once, when the handshake is complete at both ends
    qlog: Path | None = None  # Path of the qlogs of both ends; `.sender.qlog` and `.receiver.qlog` are appended

    def __post_init__(self) -> None:
        self._completed = 0
        self._streams: dict[int, tuple[StreamPackets, list[int]]] = {}
        self._stream: int | None = None
        self._parts: Counter[int] = Counter()
        self._loggers = {"sender": QuicLogger(), "receiver": QuicLogger()} if self.qlog is not None else {}
        self._client = QuicEnd(self.loop, self.sender, self._on_event)
        self._server = QuicEnd(self.loop, self.receiver, self._on_event, self._accept)

    def connect(self) -> None:
        """Begin the handshake."""
        configuration = self._configuration("sender")
        # Nobody else is on the path, and the certificate of the server is made anew for each flow.
        configuration.verify_mode = ssl.CERT_NONE
        self._client.connect(QuicConnection(configuration=configuration), self.address)

    def _configuration(self, end: str) -> QuicConfiguration:
        return QuicConfiguration(
            is_client=end == "sender",
            alpn_protocols=[PROTOCOL],
            congestion_control_algorithm=self.experiment.congestion_control,
            idle_timeout=NEVER_IDLE,
            max_data=UNLIMITED,
            max_stream_data=UNLIMITED,
            max_datagram_frame_size=LONGEST_FRAME,
            quic_logger=self._loggers.get(end),
        )

    def _accept(self, datagram: bytes) -> QuicConnection:
        configuration = self._configuration("receiver")
        configuration.certificate, configuration.private_key = self_signed_certificate()
        header = pull_quic_header(Buffer(data=datagram), host_cid_length=configuration.connection_id_length)
        return QuicConnection(configuration=configuration, original_destination_connection_id=header.destination_cid)

    def write(self, size: int, kind: int) -> None:
        """Write a message of `size` bytes, and send what may be sent."""
        connection = self._client.connection
        assert connection is not None
        now = time.monotonic_ns()
        number = self.log.write(now)
        delivery = self.experiment.delivery
        if delivery == "datagram":
            largest = connection.configuration.max_datagram_size - DATAGRAM_OVERHEAD
            size = max(size, _HEAD.size)
            parts = -(-size // largest)
            for part in split_evenly(size, parts):
                connection.send_datagram_frame(_HEAD.pack(number, parts) + bytes(part - _HEAD.size))
        else:
            if self._stream is None or delivery == "stream_per_message" or self._begins_group(number, kind):
                self._begin_stream(connection)
            assert self._stream is not None
            self._streams[self._stream][0].append(number, size)
            connection.send_stream_data(self._stream, bytes(size), end_stream=delivery == "stream_per_message")
        self._client.transmit(now / NANOSECONDS)

    def _begins_group(self, number: int, kind: int) -> bool:
        if self.experiment.delivery != "stream_per_group":
            return False
        key_kind = self.experiment.key_kind
        return number % self.experiment.group == 0 if key_kind is None else kind == key_kind

    def _begin_stream(self, connection: QuicConnection) -> None:
        if self._stream is not None and self.experiment.delivery == "stream_per_group":
            # The end of a group is known when the next group begins.
            connection.send_stream_data(self._stream, b"", end_stream=True)
        self._stream = connection.get_next_available_stream_id(is_unidirectional=True)
        self._streams[self._stream] = StreamPackets(self.log), [0]

    def _on_event(self, event: QuicEvent, now: int) -> None:
        if isinstance(event, HandshakeCompleted):
            self._completed += 1
            if self._completed == 2:
                self.on_ready()
        elif isinstance(event, StreamDataReceived):
            reader, received = self._streams[event.stream_id]
            received[0] += len(event.data)
            reader.on_data(received[0], now)
            if event.end_stream:
                del self._streams[event.stream_id]
        elif isinstance(event, DatagramFrameReceived):
            number, parts = _HEAD.unpack_from(event.data)
            self._parts[number] += 1
            if self._parts[number] == parts:
                del self._parts[number]
                self.log.arrive(number, now)

    def close(self) -> None:
        """Close both ends, and write their qlogs."""
        self._client.close()
        self._server.close()
        if self.qlog is not None:
            for end, logger in self._loggers.items():
                file = self.qlog.with_name(f"{self.qlog.name}.{end}.qlog")
                file.write_text(json.dumps(logger.to_dict()), encoding="utf-8")


def self_signed_certificate() -> tuple[Any, Any]:
    """Return a certificate that is made now, and its key; signatures of Ed25519 always have the same size."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, PROTOCOL)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=2))
        .sign(key, None)
    )
    return certificate, key
