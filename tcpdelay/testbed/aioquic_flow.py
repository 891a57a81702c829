"""Measured flows over QUIC: with the library aioquic, and with a program at each end."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from importlib.util import find_spec
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

from tcpdelay.testbed.event_loop import NANOSECONDS, READABLE, EventLoop, die_with_parent
from tcpdelay.testbed.experiment import QUIC_CONGESTION_CONTROLS, Experiment, Implementation
from tcpdelay.testbed.flow_log import PacketLog, StreamPackets, split_evenly
from tcpdelay.testbed.kernel_source import cache_directory
from tcpdelay.testbed.network import PORT, Network, Node

# A measured flow over QUIC with the library aioquic: both ends in one event loop.
#
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


class QuicEnd:
    """One end of a connection: a UDP socket and timers.

    Parameters
    ----------
    loop : EventLoop
        The event loop.
    udp : socket
        A non-blocking UDP socket.
    on_event : callable
        Called with each event of the connection and the time at which its datagram was read [ns].
    accept : callable, optional
        Makes the connection of a server from its first datagram.
    """

    def __init__(
        self,
        loop: EventLoop,
        udp: socket.socket,
        on_event: Callable[[QuicEvent, int], None],
        accept: Callable[[bytes], QuicConnection] | None = None,
    ) -> None:
        self.connection: QuicConnection | None = None
        self._loop = loop
        self._udp = udp
        self._on_event = on_event
        self._accept = accept
        self._timer: float | None = None
        self._alarm: int | None = None
        self._closed = False
        loop.watch(udp.fileno(), READABLE, self._read)

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
            self._udp.sendto(datagram, address)
        self._timer = self.connection.get_timer()
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake at the timer; an alarm that is set for an earlier time sets the next one."""
        if self._timer is not None:
            when = math.ceil(self._timer * NANOSECONDS)
            if self._alarm is None or when < self._alarm:
                self._alarm = when
                self._loop.at(when, self._wake)

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
            datagram, address = self._udp.recvfrom(_RECEIVED)
        except (BlockingIOError, ConnectionError):
            return
        ticks = time.monotonic_ns()
        if self.connection is None and self._accept is not None:
            self.connection = self._accept(datagram)
        if self.connection is not None:
            self.connection.receive_datagram(datagram, address, now=ticks / NANOSECONDS)
            self._hand_over_events(ticks)
            self.transmit(ticks / NANOSECONDS)

    def _hand_over_events(self, now: int) -> None:
        assert self.connection is not None
        while (event := self.connection.next_event()) is not None:
            if isinstance(event, ConnectionTerminated):
                raise OSError(f"aioquic ended the connection: {event.reason_phrase}")
            self._on_event(event, now)

    def close(self) -> None:
        """Close the socket."""
        self._closed = True
        self._loop.forget(self._udp.fileno())
        self._udp.close()


class AioquicFlow:
    """A measured flow: a client that writes messages, and a server that reads them.

    Parameters
    ----------
    loop : EventLoop
        The event loop.
    log : PacketLog
        The log of the messages.
    experiment : Experiment
        Congestion control, delivery and groups.
    sender, receiver : socket
        Non-blocking UDP sockets; `receiver` is bound.
    address : tuple
        Address and port of the receiver.
    on_ready : callable
        Called once, when the handshake is complete at both ends.
    qlog : Path, optional
        Path of the qlogs of both ends; `.sender.qlog` and `.receiver.qlog` are appended.
    """

    def __init__(
        self,
        loop: EventLoop,
        log: PacketLog,
        experiment: Experiment,
        sender: socket.socket,
        receiver: socket.socket,
        address: tuple[str, int],
        on_ready: Callable[[], None],
        qlog: Path | None = None,
    ) -> None:
        self._log = log
        self._experiment = experiment
        self._address = address
        self._on_ready = on_ready
        self._qlog = qlog
        self._completed = 0
        self._streams: dict[int, tuple[StreamPackets, list[int]]] = {}
        self._stream: int | None = None
        self._parts: Counter[int] = Counter()
        self._loggers = {"sender": QuicLogger(), "receiver": QuicLogger()} if qlog is not None else {}
        self._client = QuicEnd(loop, sender, self._on_event)
        self._server = QuicEnd(loop, receiver, self._on_event, self._accept)

    def connect(self) -> None:
        """Begin the handshake."""
        configuration = self._configuration("sender")
        # Nobody else is on the path, and the certificate of the server is made anew for each flow.
        configuration.verify_mode = ssl.CERT_NONE
        self._client.connect(QuicConnection(configuration=configuration), self._address)

    def _configuration(self, end: str) -> QuicConfiguration:
        return QuicConfiguration(
            is_client=end == "sender",
            alpn_protocols=[PROTOCOL],
            congestion_control_algorithm=self._experiment.congestion_control,
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
        number = self._log.write(now)
        delivery = self._experiment.delivery
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
        if self._experiment.delivery != "stream_per_group":
            return False
        key_kind = self._experiment.key_kind
        return number % self._experiment.group == 0 if key_kind is None else kind == key_kind

    def _begin_stream(self, connection: QuicConnection) -> None:
        if self._stream is not None and self._experiment.delivery == "stream_per_group":
            # The end of a group is known when the next group begins.
            connection.send_stream_data(self._stream, b"", end_stream=True)
        self._stream = connection.get_next_available_stream_id(is_unidirectional=True)
        self._streams[self._stream] = StreamPackets(self._log), [0]

    def _on_event(self, event: QuicEvent, now: int) -> None:
        if isinstance(event, HandshakeCompleted):
            self._completed += 1
            if self._completed == 2:
                self._on_ready()
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
                self._log.arrive(number, now)

    def close(self) -> None:
        """Close both ends, and write their qlogs."""
        self._client.close()
        self._server.close()
        if self._qlog is not None:
            for end, logger in self._loggers.items():
                file = self._qlog.with_name(f"{self._qlog.name}.{end}.qlog")
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


# The programs of the testbed that speak QUIC with a library: their sources, and their builds.

MISSING_AIOQUIC = "the package aioquic is missing; run: pip install 'tcpdelay[quic]'"
BUILD_TIME = 900.0
"""Longest time of a build, which first fetches the library [s]."""


class QuicBuildError(RuntimeError):
    """The program could not be built; the message is one line."""


@dataclass(frozen=True)
class QuicProgram:
    """A program that speaks QUIC with a library; `build` makes `product` of the sources in `folder`."""

    folder: str
    sources: tuple[str, ...]
    build: tuple[str, ...]
    build_settings: Mapping[str, str]
    product: str
    tool_hint: str
    settings: Mapping[str, str]
    """Environment in which the program runs."""

    @property
    def missing(self) -> str | None:
        """What the build lacks, in one line; None if it can run, or the program has been built."""
        if self.path.is_file() or shutil.which(self.build[0]) is not None:
            return None
        library = self.folder.replace("_", "-")
        return f"the program {self.build[0]} is missing, which builds {library}; install {self.tool_hint}"

    @property
    def path(self) -> Path:
        """Path of the program in the user's cache; its name has a hash of its sources, so a change is built."""
        content = hashlib.sha256()
        for name, text in self.texts():
            content.update(f"{name}\0{len(text)}\0{text}".encode())
        return cache_directory().parent / "quic" / f"{self.folder}-{content.hexdigest()[:8]}"

    def texts(self) -> list[tuple[str, str]]:
        """Return the names and texts of the sources."""
        folder = resources.files("tcpdelay.testbed") / self.folder
        return [(name, (folder / name).read_text(encoding="utf-8")) for name in self.sources]


PROGRAMS: Mapping[Implementation, QuicProgram] = {
    "quic-go": QuicProgram(
        folder="quic_go",
        sources=("go.mod", "go.sum", "main.go", "messages.go", "receiver.go", "sender.go"),
        build=("go", "build", "-o", "quic_go", "."),
        # Without cgo the program is one static file. -mod=readonly refuses what go.sum does not list.
        build_settings={"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false"},
        product="quic_go",
        tool_hint="Go 1.24 or later, such as Debian's golang-go",
        settings={
            # netem would delay and drop several packets as one.
            "QUIC_GO_DISABLE_GSO": "true",
            "QUIC_GO_DISABLE_ECN": "true",
            "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING": "true",
        },
    ),
    "quinn": QuicProgram(
        folder="quinn",
        sources=("Cargo.toml", "Cargo.lock", "src/main.rs", "src/messages.rs"),
        # --locked refuses what Cargo.lock does not list.
        build=("cargo", "build", "--release", "--locked", "--quiet", "--target-dir", "target"),
        build_settings={},
        product="target/release/quinn_flow",
        tool_hint="Rust 1.85 or later from rustup.rs",
        settings={},
    ),
}
"""The programs by implementation; aioquic runs in the session's own process."""


def build_quic_program(implementation: Implementation) -> Path:
    """Build the program of an implementation, unless it has been built from the same sources, and return its path.

    The first build fetches the library from Go's module proxy or crates.io, and checks it against `go.sum` or
    `Cargo.lock`. It takes a minute or two.
    """
    program = PROGRAMS[implementation]
    path = program.path
    if path.is_file():
        return path
    if program.missing is not None:
        raise QuicBuildError(program.missing)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            for name, text in program.texts():
                file = Path(work, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")
            environment = {**os.environ, **program.build_settings}
            done = subprocess.run(
                program.build,
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_TIME,
                check=False,
            )
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
                raise QuicBuildError(f"the build of {implementation} failed: {lines[-1]}")
            Path(work, program.product).replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QuicBuildError(f"{implementation} cannot be built in {path.parent}: {error}") from error
    return path


def quic_problems(experiments: Iterable[Experiment]) -> list[str]:
    """Return what is missing for the QUIC implementations of experiments, one line each; empty if nothing is."""
    needed = {experiment.implementation for experiment in experiments if experiment.application == "quic"}
    problems = []
    if "aioquic" in needed and find_spec("aioquic") is None:
        problems.append(MISSING_AIOQUIC)
    return problems + [
        program.missing for name, program in PROGRAMS.items() if name in needed and program.missing is not None
    ]


# A measured flow over QUIC with a program at each end, which the session starts and stops.

ENDS = ("sender", "receiver")


class QuicProgramFlow:
    """A measured flow between two programs.

    Parameters
    ----------
    loop : EventLoop
        The event loop.
    log : PacketLog
        The log of the messages; it is filled when both programs have ended.
    experiment : Experiment
        Implementation, delivery and groups.
    network : Network
        The network of the experiment.
    program : Path
        The program that `build_quic_program` has built.
    messages : Path
        File with the messages of the flow.
    number : int
        Number of the flow within the experiment.
    on_ready : callable
        Called once, when the handshake is complete at both ends.
    qlog : Path, optional
        Path of the qlogs of both ends; `.sender.qlog` and `.receiver.qlog` are appended.
    """

    def __init__(
        self,
        loop: EventLoop,
        log: PacketLog,
        experiment: Experiment,
        network: Network,
        program: Path,
        messages: Path,
        number: int,
        on_ready: Callable[[], None],
        qlog: Path | None = None,
    ) -> None:
        self.complete = False
        self._loop = loop
        self._log = log
        self._network = network
        self._on_ready = on_ready
        self._files = {end: messages.with_suffix(f".{end}.times") for end in ENDS}
        self._errors = {end: messages.with_suffix(f".{end}.error") for end in ENDS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._buffers = dict.fromkeys(ENDS, b"")
        self._ready = 0
        self._implementation = experiment.implementation
        key_kind = experiment.key_kind
        self._command = [
            str(program),
            f"-address={network.receiver_address}:{PORT + number}",
            f"-messages={messages}",
            f"-delivery={experiment.delivery}",
            f"-group={experiment.group}",
            f"-key-kind={-1 if key_kind is None else key_kind}",
        ]
        if len(QUIC_CONGESTION_CONTROLS[experiment.implementation]) > 1:
            self._command.append(f"-congestion-control={experiment.congestion_control}")
        self._qlog = qlog

    def connect(self) -> None:
        """Start the receiver; the sender starts when the receiver listens."""
        self._start("receiver", self._network.receiver)

    def _start(self, end: str, node: Node) -> None:
        options = [f"-times={self._files[end]}"]
        if end == "sender":
            options.append("-sender")
        if self._qlog is not None:
            options.append(f"-qlog={self._qlog.with_name(f'{self._qlog.name}.{end}.qlog')}")
        with self._errors[end].open("wb") as errors, node.entered():
            process = subprocess.Popen(
                [*self._command, *options],
                env={**os.environ, **PROGRAMS[self._implementation].settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        self._processes[end] = process
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        self._loop.watch(descriptor, READABLE, lambda _: self._read(end, descriptor))

    def _read(self, end: str, descriptor: int) -> None:
        data = os.read(descriptor, 4096)
        if not data:
            self._loop.forget(descriptor)
            self._end(end)
            return
        *lines, self._buffers[end] = (self._buffers[end] + data).split(b"\n")
        for line in lines:
            if line == b"listening":
                self._start("sender", self._network.sender)
            elif line == b"ready":
                self._ready += 1
                if self._ready == len(ENDS):
                    self._on_ready()
            elif line == b"complete":
                self.complete = True

    def _end(self, end: str) -> None:
        process = self._processes.pop(end)
        if process.wait() != 0:
            lines = self._errors[end].read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise OSError(
                f"{self._implementation}'s {end} failed: {lines[-1] if lines else f'status {process.returncode}'}"
            )
        if not self._processes:
            times = {}
            for side, file in self._files.items():
                times[side] = array("q", file.read_bytes())
            self._log.written, self._log.read = times["sender"], times["receiver"][: len(times["sender"])]

    @property
    def ended(self) -> bool:
        """Whether both programs have ended, and the log is filled."""
        return not self._processes

    def start(self, first: int) -> None:
        """Let the sender begin to write at a time [ns, monotonic clock]."""
        self._tell("sender", str(first))

    def stop(self) -> None:
        """Let both programs end."""
        for end in tuple(self._processes):
            self._tell(end, "stop")

    def _tell(self, end: str, line: str) -> None:
        process = self._processes[end]
        assert process.stdin is not None
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()

    def close(self) -> None:
        """End the programs, if they still run."""
        for process in self._processes.values():
            assert process.stdout is not None
            self._loop.forget(process.stdout.fileno())
            process.kill()
            process.wait()
        self._processes.clear()
