"""The record of a measured flow, and its transfer to the process that writes captures.

A record holds the write and read time of each packet, and samples of the socket option TCP_INFO. The session hands it
over as plain files in its directory: in a guest, the import of the Parquet library takes longer than a short run.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
from array import array
from collections import deque, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
