"""The measured flows of an experiment: their records, and the applications that write and read.

A record holds the write and read time of each packet, and samples of the socket option TCP_INFO. The session hands it
over as plain files in its directory: in a guest, the import of the Parquet library takes longer than a short run.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import random
import socket
import struct
import time
from array import array
from collections import deque, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tcpdelay.scenario.source import BLOCK, Source
from tcpdelay.testbed.event_loop import NANOSECONDS, READABLE, WRITABLE, EventLoop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOT_READ = -1
SIOCOUTQ = 0x5411
LOSS_STATE = 4
"""Congestion control state after a retransmission timeout (linux/tcp.h, TCP_CA_Loss)."""
# struct tcp_info of linux/tcp.h up to tcpi_snd_wnd, as of Linux 5.4 and later.
_LAYOUT = struct.Struct("=8B 24I 4Q 6I 4Q 2I 2Q 4I")
_FIELDS = [
    *("state", "ca_state", "retransmits", "probes", "backoff", "options", "wscale", "app_limited"),
    *("rto", "ato", "snd_mss", "rcv_mss", "unacked", "sacked", "lost", "retrans", "fackets"),
    *("last_data_sent", "last_ack_sent", "last_data_recv", "last_ack_recv"),
    *("pmtu", "rcv_ssthresh", "rtt", "rttvar", "snd_ssthresh", "snd_cwnd", "advmss", "reordering"),
    *("rcv_rtt", "rcv_space", "total_retrans"),
    *("pacing_rate", "max_pacing_rate", "bytes_acked", "bytes_received"),
    *("segs_out", "segs_in", "notsent_bytes", "min_rtt", "data_segs_in", "data_segs_out"),
    *("delivery_rate", "busy_time", "rwnd_limited", "sndbuf_limited", "delivered", "delivered_ce"),
    *("bytes_sent", "bytes_retrans", "dsack_dups", "reord_seen", "rcv_ooopack", "snd_wnd"),
]
SUFFIX = ".flow"


class PacketLog:
    """Write and read times of the packets of one flow, in the order of writing [ns, monotonic clock]."""

    def __init__(self) -> None:
        self.written = array("q")
        self.read = array("q")  # `NOT_READ` for a packet that has not been read
        self.outstanding = 0

    def write(self, when: int) -> int:
        """Log the write of a packet, with the time before the write, and return the packet's number."""
        self.written.append(when)
        self.read.append(NOT_READ)
        self.outstanding += 1
        return len(self.written) - 1

    def arrive(self, number: int, when: int) -> None:
        """Log the read of a packet; a second copy is ignored."""
        if self.read[number] == NOT_READ:
            self.read[number] = when
            self.outstanding -= 1


class StreamPackets:
    """The packets in one byte stream; the number of received bytes shows which are complete."""

    def __init__(self, log: PacketLog) -> None:
        self._log = log
        self._outstanding: deque[tuple[int, int]] = deque()
        self._end = 0

    def append(self, number: int, size: int) -> None:
        """Append the packet with this number, of `size` bytes, to the stream."""
        self._end += size
        self._outstanding.append((self._end, number))

    def on_data(self, received: int, now: int) -> None:
        """Log the packets that are complete after `received` bytes, at time `now` [ns]."""
        while self._outstanding and self._outstanding[0][0] <= received:
            self._log.arrive(self._outstanding.popleft()[1], now)


def split_evenly(size: int, pieces: int) -> Sequence[int]:
    """Return `pieces` sizes that differ by at most one byte and add up to `size`."""
    quotient, rest = divmod(size, pieces)
    return [quotient + 1] * rest + [quotient] * (pieces - rest)


TcpInfo = namedtuple(
    "TcpInfo",
    "ca_state backoff snd_cwnd snd_ssthresh unacked rtt rttvar rto total_retrans reordering notsent_bytes delivered "
    "delivery_rate dsack_dups reord_seen data_segs_out snd_mss",
)
"""Fields of TCP_INFO, with the kernel's names; times in us, windows in segments, rates in bytes/s."""
_POSITIONS = [_FIELDS.index(field) for field in TcpInfo._fields]


def tcp_info(connection: socket.socket) -> TcpInfo:
    """Return the kernel's state of a TCP connection."""
    values = _LAYOUT.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size))
    return TcpInfo(*[values[position] for position in _POSITIONS])


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Return the number of unacknowledged bytes in the send buffer, sent or unsent (ioctl SIOCOUTQ, tcp(7))."""
    answer = fcntl.ioctl(connection.fileno(), SIOCOUTQ, bytes(4))
    return int.from_bytes(answer, "little")


@dataclass(frozen=True)
class FlowRecord:
    """The measurements of one flow."""

    flow: int  # Number of the flow within the experiment
    started: int  # Start of writing [ns, monotonic clock]
    epoch: int  # Calendar time of the start of writing [ns since 1970]
    # The kernel's TCP counters of both ends, by the names of `nstat`; the receiver's have `receiver_` in front.
    counters: dict[str, int]
    packets: dict[str, int]  # Numbers of packets that the queues of the path sent and dropped
    # written, read: Time of each packet's write and read [ns, monotonic clock]; -1 if it was not read.
    written: array[int]
    read: array[int]
    samples: dict[str, array[int]]  # Samples of TCP_INFO, by field


def write_records(directory: Path, experiment: int, records: list[FlowRecord]) -> None:
    """Hand over the flows of the experiment with this number in the plan: all flows or no flow."""
    lines = []
    with (directory / f"{experiment}.bin").open("wb") as file:
        for record in records:
            columns = {"written": record.written, "read": record.read, **record.samples}
            for column in columns.values():
                column.tofile(file)
            lengths = {name: len(column) for name, column in columns.items()}
            lines.append([record.flow, record.started, record.epoch, record.counters, record.packets, lengths])
    # The index is written last and atomically. Without the index, the flows count as absent.
    unfinished = directory / f"{experiment}.part"
    unfinished.write_text(json.dumps(lines), encoding="utf-8")
    unfinished.replace(directory / f"{experiment}{SUFFIX}")


def is_handed_over(directory: Path, experiment: int) -> bool:
    """Return whether the flows of the experiment with this number were handed over."""
    return (directory / f"{experiment}{SUFFIX}").exists()


def read_records(directory: Path, experiment: int) -> list[FlowRecord] | None:
    """Return the flows of the experiment with this number; None if they have not been handed over."""
    if not is_handed_over(directory, experiment):
        return None
    index = directory / f"{experiment}{SUFFIX}"
    records = []
    with (directory / f"{experiment}.bin").open("rb") as file:
        for flow, started, epoch, counters, packets, lengths in json.loads(index.read_text(encoding="utf-8")):
            columns = {name: array("q") for name in lengths}
            for name, column in columns.items():
                column.fromfile(file, lengths[name])
            written, read = columns.pop("written"), columns.pop("read")
            records.append(FlowRecord(flow, started, epoch, counters, packets, written, read, columns))
    return records


# The applications: measured sources, bulk transfers, web users, and messages of a source.

READ_SIZE = 256 * 1024
RETRY_INTERVAL = 1_000_000
"""Pause after a write of which the kernel accepted no byte [ns]."""
_ZEROS = memoryview(bytes(READ_SIZE))
_NUMBER = struct.Struct("!Q")
BULK_WRITE = 65536
"""Size of a write of a long transfer [bytes]."""
MEAN_THINK_TIME = 1.0
"""Mean pause of a web user between two objects [s]."""
MEAN_OBJECT = 12_000
"""Mean size of a web object [bytes], before sizes are limited to `LARGEST_OBJECT`."""
PARETO_SHAPE = 1.2
LARGEST_OBJECT = 1_000_000
Connect = Callable[[Callable[[socket.socket, socket.socket], None]], None]


class SendingStream:
    """The writing end. Bytes that the send buffer does not accept wait here; they are counted, not stored."""

    def __init__(self, loop: EventLoop, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting = 0
        self._loop = loop

    def write(self, size: int) -> None:
        """Write `size` bytes behind the waiting bytes; more than 256 KiB take several calls."""
        if self.waiting == 0:
            while size:
                taken = self._send(size)
                size -= taken
                if taken < READ_SIZE:
                    break
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
        """Close the connection; waiting bytes are lost."""
        if self.waiting:
            self._loop.forget(self.connection.fileno())
        self.connection.close()


class ReceivingStream:
    """The reading end."""

    def __init__(
        self,
        loop: EventLoop,
        connection: socket.socket,  # A connected, non-blocking socket
        # Called after each read with the number of bytes read so far and the time after the read [ns]. At the end of
        # the stream, it is called with the same number of bytes again.
        on_data: Callable[[int, int], None],
        quick_ack: bool,  # Whether every segment is acknowledged at once (TCP_QUICKACK)
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
        # The kernel falls back to delayed acknowledgements, so the option is set again after each read.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _read(self, _: int) -> None:
        try:
            size = self.connection.recv_into(self._buffer)
        except (BlockingIOError, ConnectionError):
            return
        # The time is taken after the read: a time before it would make the delay too small.
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


class ConstantBitRateSource:
    """Writes one packet per interval to one of several TCP connections."""

    def __init__(
        self,
        log: PacketLog,  # The log of the writes
        streams: Sequence[SendingStream],  # The connections; each packet is sent over one connection
        readers: Sequence[StreamPackets],  # For each connection, the packets in its byte stream
        packet_size: int,  # Bytes per packet
        pieces: int,  # Writes per packet
        # Whether to choose, among the connections outside a retransmission timeout, the connection with the least
        # unacknowledged data; else round robin.
        intelligent: bool,
    ) -> None:
        self._log = log
        self._connections = list(zip(streams, readers, strict=True))
        self._packet_size = packet_size
        self._sizes = split_evenly(packet_size, pieces)
        self._round = itertools.cycle(range(len(streams)))
        self._choose: Callable[[], int] = self._least_loaded if intelligent else self._round.__next__

    def tick(self, expirations: int) -> None:
        """Write the packets that are due: one packet, or several packets after a stall."""
        for _ in range(expirations):
            stream, reader = self._connections[self._choose()]
            reader.append(self._log.write(time.monotonic_ns()), self._packet_size)
            for size in self._sizes:
                stream.write(size)

    def _least_loaded(self) -> int:
        """Return the connection to use: preferably outside a timeout, then the smallest send queue."""

        def load(index: int) -> tuple[bool, int]:
            stream = self._connections[index][0]
            in_timeout = tcp_info(stream.connection).ca_state == LOSS_STATE
            return in_timeout, stream.waiting + unacknowledged_bytes(stream.connection)

        return min(range(len(self._connections)), key=load)


class DatagramSource:
    """Sends a numbered datagram per interval from one UDP socket to another, and logs the datagrams that arrive."""

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


class GreedySource:
    """Writes packets of `size` bytes whenever the socket accepts data; `on_packet` gets the time before each one [ns].

    With TCP_NOTSENT_LOWAT, the socket accepts data only while few written bytes are unsent, so each write is of new
    data. This is the equivalent of MIN_BUF (Goel et al. 2002) in Linux.
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
        """Start to write."""
        self._watching = True
        self._loop.watch(self._connection.fileno(), WRITABLE, self._write)

    def _write(self, _: int) -> None:
        # If the socket accepted a part of a packet, the rest is written before the next packet.
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
        """Stop writing."""
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
    """Return a source of measured packets that writes as fast as the connection accepts data."""
    if notsent_lowat is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, notsent_lowat)
    return GreedySource(loop, connection, packet_size, lambda now: reader.append(log.write(now), packet_size))


def bulk_source(loop: EventLoop, connection: socket.socket) -> GreedySource:
    """Return the source of a long transfer, which is not measured."""
    return GreedySource(loop, connection, BULK_WRITE, lambda _: None)


class WebUser:
    """Fetches objects of Pareto-distributed size, with exponentially distributed pauses, until stopped.

    Crovella, Bestavros, "Self-Similarity in World Wide Web Traffic", IEEE/ACM Transactions on Networking, 1997: sizes
    of transferred files are Pareto-distributed with a shape of about 1.2.
    """

    def __init__(self, loop: EventLoop, connect: Connect, seed: int) -> None:
        self.fetched = 0
        self._loop = loop
        self._connect = connect
        self._random = random.Random(seed)
        self._stopped = False
        self._streams: tuple[SendingStream, ReceivingStream] | None = None

    def think(self) -> None:
        """Pause, then fetch."""
        pause = self._random.expovariate(1 / MEAN_THINK_TIME)
        self._loop.at(time.monotonic_ns() + round(pause * NANOSECONDS), self.fetch)

    def fetch(self) -> None:
        """Fetch one object over a new connection, unless stopped."""
        if not self._stopped:
            self._connect(self._serve)

    def _serve(self, server: socket.socket, browser: socket.socket) -> None:
        if self._stopped:
            server.close()
            browser.close()
            return
        smallest = MEAN_OBJECT * (PARETO_SHAPE - 1) / PARETO_SHAPE
        size = min(round(smallest * self._random.paretovariate(PARETO_SHAPE)), LARGEST_OBJECT)

        def on_data(received: int, _: int) -> None:
            if received == size:
                self.fetched += 1
                self._hang_up()
                if not self._stopped:
                    self.think()

        sending = SendingStream(self._loop, server)
        self._streams = sending, ReceivingStream(self._loop, browser, on_data, quick_ack=False)
        for start in range(0, size, READ_SIZE):
            sending.write(min(size - start, READ_SIZE))

    def _hang_up(self) -> None:
        if self._streams is not None:
            for stream in self._streams:
                stream.close()
            self._streams = None

    def stop(self) -> None:
        """Stop fetching, and abort the current object."""
        self._stopped = True
        self._hang_up()


# The messages of a source: the host generates them, and an application of the experiment writes them.
#
# They are handed over in a file in the directory of the session, block by block, so that neither side holds all
# messages. NumPy is imported where the host uses it: in a guest, its import takes longer than a short run.

_ROW = struct.Struct("<qqB")
_ROW_TYPE = [("time", "<i8"), ("size", "<i8"), ("kind", "u1")]


def message_file(directory: Path, experiment: int, flow: int) -> Path:
    """Return the file with the messages of a flow of the experiment with this number in the plan."""
    return directory / f"{experiment}.{flow}.messages"


def write_messages(file: Path, source: Source, seed: int, duration: float) -> None:
    """Write the messages before a time to a file."""
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
    """Return the function that writes messages to one TCP connection, for `MessageSource`."""

    def write(size: int, _: int) -> None:
        reader.append(log.write(time.monotonic_ns()), size)
        stream.write(size)

    return write


class MessageSource:
    """Writes messages at their times [ns since the start] by `write`, which gets the size and the kind of each."""

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
