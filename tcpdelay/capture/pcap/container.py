"""Capture files: read packets from pcap and pcapng, plain or compressed by gzip, with bounded memory.

The constants and headers of the formats are dpkt's, but its readers are not used: they apply the clock and link layer
of the first interface to all packets of a pcapng, drop the length on the wire, round times to a float, and allocate
the memory for any damaged length. gzip.GzipFile is not used either: it does not report the place of a damage, and does
not return the bytes before the damage.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import dpkt

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_PIECE = 2**16
_HEADER_AND_CHECKSUM = 31
"""Value of `wbits` with which zlib reads the header of gzip and compares the checksum."""
MAX_CAPTURED = 2**20
"""Largest credible size of a packet [bytes]; four times the limit of libpcap."""
MAX_BLOCK = 2**24
"""Largest credible size of a pcapng block [bytes]."""
LEAST_UNPACKED, LARGEST_PACKING = 2**24, 400
"""Size up to which any gzip file is unpacked [bytes], and the ratio beyond it up to which a file may be a capture.

Zeros are packed 1030 times. A capture has a header with its own time for each packet.
"""
BUFFER_SIZE = 2**20
PACKETS_PER_REPORT = 2**14
_LINK_MASK = 0x03FFFFFF
_LAST_TIME = 2**62
_GZIP = b"\x1f\x8b"
_OTHER_FORMATS = {
    b"\x28\xb5\x2f\xfd": "a file packed by zstd; unpack it first, or pack it by gzip",
    b"\xfd7zX": "a file packed by xz; unpack it first, or pack it by gzip",
    b"BZh9": "a file packed by bzip2; unpack it first, or pack it by gzip",
    b"PK\x03\x04": "a ZIP archive; unpack it first",
    b"snoo": "a capture by snoop; convert it with editcap",
}
_NANO = (dpkt.pcap.TCPDUMP_MAGIC_NANO, dpkt.pcap.PMUDPCT_MAGIC_NANO)
_SWAPPED = (dpkt.pcap.PMUDPCT_MAGIC, dpkt.pcap.PMUDPCT_MAGIC_NANO, dpkt.pcap.PACPDOM_MAGIC)
_WITH_CAPTURED_LENGTH = (dpkt.pcapng.PCAPNG_BT_EPB, dpkt.pcapng.PCAPNG_BT_PB)


class DamagedPackingError(Exception):
    """A gzip file is damaged; the message holds the fault and its place."""


class Unpacked(io.RawIOBase):
    """The content of a gzip file of one or several members, as a file; a damage raises behind the last intact byte."""

    def __init__(self, packed: BinaryIO) -> None:
        self.cut = False  # Whether the file ends within a member; known at its end
        self.count = 0  # Bytes unpacked so far
        self._packed = packed
        self._taken = 0
        self._waiting = b""
        self._member = zlib.decompressobj(_HEADER_AND_CHECKSUM)
        self._broken: DamagedPackingError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Unpack at least one byte into a buffer, and return the number of bytes; 0 at the end of the file."""
        free = memoryview(buffer)
        while True:
            if self._broken is not None:
                raise self._broken
            if self._member.eof and not self._next_member():
                return 0
            if not self._waiting:
                self._waiting = self._packed.read(_PIECE)
                self._taken += len(self._waiting)
            ended = not self._waiting
            data = self._unpack(len(free))
            if data:
                free[: len(data)] = data
                self.count += len(data)
                if self.count > max(LEAST_UNPACKED, LARGEST_PACKING * self._taken):
                    raise DamagedPackingError(
                        f"it unpacks to more than {LARGEST_PACKING} times its size, which no capture does, and "
                        f"{self.count // 2**20} MiB of it were read"
                    )
                return len(data)
            if ended and self._broken is None:
                self.cut = True
                return 0

    def _next_member(self) -> bool:
        """Begin the next member, and return whether there is one; zeros may separate members."""
        waiting = self._member.unused_data
        while True:
            waiting = waiting.lstrip(b"\0")
            if waiting:
                break
            waiting = self._packed.read(_PIECE)
            self._taken += len(waiting)
            if not waiting:
                return False
        self._waiting, self._member = waiting, zlib.decompressobj(_HEADER_AND_CHECKSUM)
        return True

    def _unpack(self, most: int) -> bytes:
        before, waiting = self._member.copy(), self._waiting
        try:
            data = self._member.decompress(waiting, most)
        except zlib.error:
            return self._unpack_up_to_damage(before, waiting)
        self._waiting = self._member.unconsumed_tail
        return data

    def _unpack_up_to_damage(self, member: zlib._Decompress, waiting: bytes) -> bytes:
        """Unpack byte by byte, because zlib drops all unpacked bytes of a call in which it finds a damage."""
        data = b""
        for place in range(len(waiting)):
            try:
                data += member.decompress(waiting[place : place + 1])
            except zlib.error as error:
                # "Error -3 while decompressing data: invalid distance too far back"
                reason = str(error).rpartition(": ")[2]
                at = self._taken - len(waiting) + place
                self._broken = DamagedPackingError(f"gzip reports '{reason}' at byte {at} of the file")
                break
        return data


class Packet(NamedTuple):
    """One packet of a capture."""

    number: int  # Number of the packet in the file, from 1 on
    time: int  # Time of capture [ns since 1970]
    link: int  # Type of the link layer (LINKTYPE_ numbers of libpcap)
    wire_length: int  # Length on the link [bytes]
    data: bytes  # The captured bytes
    interface: int = 0  # Number of the interface in a pcapng file, from 0 on


class _Interface(NamedTuple):
    link: int
    snap_length: int
    ticks: int
    offset: int


class CaptureFile:
    """A pcap or pcapng file, optionally compressed by gzip, that can be read several times."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.size = 0
        # A note on the place at which the file ends, if it ends within a packet or the data of gzip; known at its end.
        self.cut: str | None = None
        self.on_progress: Callable[[int], None] | None = None  # Gets the bytes read so far, in all readings together
        self.readings = 2  # Expected number of readings
        self._read = 0
        self._end = ""
        try:
            if not Path(path).is_file():
                # A pipe cannot be read twice.
                Path(path).stat()
                raise ValueError(f"{self.name}: is no regular file")
            with Path(path).open("rb") as file:
                self._unpacked = " unpacked" if file.read(2) == _GZIP else ""
                self.size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ValueError(f"{self.name}: cannot be read: {error.strerror or error}") from None

    def __iter__(self) -> Iterator[Packet]:
        """Yield the packets in the order of the file."""
        self._end = ""
        number = seen = 0
        unpacked: Unpacked | None = None
        try:
            with Path(self.name).open("rb", buffering=BUFFER_SIZE) as raw:
                file: BinaryIO = raw
                if self._unpacked:
                    unpacked = Unpacked(raw)
                    file = BufferedReader(unpacked, BUFFER_SIZE)
                for packet in self._packets(file):
                    number = packet.number
                    if not number % PACKETS_PER_REPORT and self.on_progress is not None:
                        self._read += raw.tell() - seen
                        seen = raw.tell()
                        self.on_progress(self._read)
                    yield packet
        except OSError as error:
            raise ValueError(f"{self.name}: cannot be read: {error.strerror or error}") from None
        except DamagedPackingError as error:
            raise ValueError(f"{self.name}: is damaged: {error}, behind packet {number}") from None
        end = self._end
        if unpacked is not None and unpacked.cut:
            end = end or f"ends behind packet {number} at byte {unpacked.count} unpacked"
            end += f"; the gzip file breaks off there, {number} packets were read"
        if end:
            self.cut = f"{self.name}: {end}"

    def _packets(self, file: BinaryIO) -> Iterator[Packet]:
        magic = file.read(4)
        if len(magic) < 4:
            raise ValueError(f"{self.name}: is empty or too short for a capture")
        if int.from_bytes(magic) == dpkt.pcapng.PCAPNG_BT_SHB:
            return self._pcapng(file)
        if int.from_bytes(magic) in dpkt.pcap.MAGIC_TO_PKT_HDR:
            return self._pcap(file, int.from_bytes(magic))
        if magic in _OTHER_FORMATS:
            raise ValueError(f"{self.name}: is neither pcap nor pcapng but {_OTHER_FORMATS[magic]}")
        raise ValueError(f"{self.name}: is neither pcap nor pcapng: it begins with {magic.hex()}")

    def _pcap(self, file: BinaryIO, magic: int) -> Iterator[Packet]:
        kind = dpkt.pcap.LEFileHdr if magic in _SWAPPED else dpkt.pcap.FileHdr
        rest = file.read(kind.__hdr_len__ - 4)
        if len(rest) < kind.__hdr_len__ - 4:
            raise ValueError(f"{self.name}: ends within the header of the file")
        header = kind(magic.to_bytes(4) + rest)
        if header.v_major != dpkt.pcap.PCAP_VERSION_MAJOR:
            raise ValueError(f"{self.name}: is pcap of version {header.v_major}.{header.v_minor}; 2 is known")
        link, fraction = header.linktype & _LINK_MASK, 1 if magic in _NANO else 1000
        record = struct.Struct(dpkt.pcap.MAGIC_TO_PKT_HDR[magic].__hdr_fmt__)
        read, size, unpack = file.read, record.size, record.unpack
        number, offset = 0, kind.__hdr_len__
        while head := read(size):
            number += 1
            if len(head) < size:
                self._cut_at(number, offset)
                return
            seconds, parts, captured, wire_length = unpack(head)[:4]
            if captured > MAX_CAPTURED:
                raise self._damaged(number, offset, f"a packet of {captured} captured bytes")
            if not wire_length:
                raise self._damaged(number, offset, "a packet of no bytes")
            data = read(captured)
            if len(data) < captured:
                self._cut_at(number, offset)
                return
            yield Packet(number, seconds * 1_000_000_000 + parts * fraction, link, wire_length, data)
            offset += size + captured

    def _pcapng(self, file: BinaryIO) -> Iterator[Packet]:
        order, number, offset = "<", 0, 0
        interfaces: list[_Interface] = []
        # The first four bytes were read to recognize the format.
        head = struct.pack(">I", dpkt.pcapng.PCAPNG_BT_SHB) + file.read(4)
        while head:
            if len(head) < 8:
                self._cut_at(number + 1, offset)
                return
            body = b""
            if int.from_bytes(head[:4]) == dpkt.pcapng.PCAPNG_BT_SHB:
                body = file.read(4)
                order = self._byte_order(body, number, offset)
                interfaces = []
            kind, length = struct.unpack(f"{order}II", head)
            if length % 4 or not 12 <= length <= MAX_BLOCK:
                raise self._damaged(number + 1, offset, f"a block of {length} bytes")
            body += file.read(length - 8 - len(body))
            if len(body) < length - 8:
                self._cut_at(number + 1, offset)
                return
            if struct.unpack(f"{order}I", body[-4:])[0] != length:
                raise self._damaged(number + 1, offset, "a block whose two lengths differ")
            if kind == dpkt.pcapng.PCAPNG_BT_IDB:
                interfaces.append(self._interface(body[:-4], order, number, offset))
            elif kind in (*_WITH_CAPTURED_LENGTH, dpkt.pcapng.PCAPNG_BT_SPB):
                number += 1
                yield self._block_packet(kind, body[:-4], order, interfaces, number, offset)
            offset += length
            head = file.read(8)

    def _byte_order(self, magic: bytes, number: int, offset: int) -> str:
        for order in "<>":
            if magic == struct.pack(f"{order}I", dpkt.pcapng.BYTE_ORDER_MAGIC):
                return order
        raise self._damaged(number + 1, offset, "a section header without a byte order")

    def _interface(self, body: bytes, order: str, number: int, offset: int) -> _Interface:
        if len(body) < 8:
            raise self._damaged(number + 1, offset, "an interface description that is too short")
        link, _, snap_length = struct.unpack_from(f"{order}HHI", body)
        ticks, seconds, place = 1_000_000, 0, 8
        # dpkt fails on a comment that is not UTF-8.
        while place + 4 <= len(body):
            code, length = struct.unpack_from(f"{order}HH", body, place)
            value = body[place + 4 : place + 4 + length]
            if code == dpkt.pcapng.PCAPNG_OPT_ENDOFOPT:
                break
            if code == dpkt.pcapng.PCAPNG_OPT_IF_TSRESOL and len(value) == 1:
                ticks = 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
            elif code == dpkt.pcapng.PCAPNG_OPT_IF_TSOFFSET and len(value) == 8:
                (seconds,) = struct.unpack(f"{order}q", value)
            place += 4 + (length + 3) // 4 * 4
        return _Interface(link, snap_length, ticks, seconds)

    def _block_packet(
        self, kind: int, body: bytes, order: str, interfaces: list[_Interface], number: int, offset: int
    ) -> Packet:
        if kind == dpkt.pcapng.PCAPNG_BT_SPB:
            raise self._damaged(
                number, offset, "a simple packet block, which has no time;", "cannot be analysed: holds"
            )
        if len(body) < 20:
            raise self._damaged(number, offset, "a packet block that is too short")
        fields = "I" if kind == dpkt.pcapng.PCAPNG_BT_EPB else "HH"
        which, *_, high, low, captured, wire_length = struct.unpack_from(f"{order}{fields}IIII", body)
        if captured > min(len(body) - 20, MAX_CAPTURED):
            raise self._damaged(number, offset, f"a packet of {captured} captured bytes")
        if which >= len(interfaces):
            raise self._damaged(number, offset, f"a packet of the undescribed interface {which}")
        interface = interfaces[which]
        time = (high << 32 | low) * 1_000_000_000 // interface.ticks + interface.offset * 1_000_000_000
        if not 0 <= time < _LAST_TIME:
            raise self._damaged(number, offset, "a packet of an impossible time")
        return Packet(number, time, interface.link, wire_length, body[20 : 20 + captured], which)

    def _cut_at(self, number: int, offset: int) -> None:
        self._end = f"ends within packet {number} at byte {offset}{self._unpacked}, which is left out"

    def _damaged(self, number: int, offset: int, what: str, verdict: str = "is damaged:") -> ValueError:
        return ValueError(f"{self.name}: {verdict} {what} at packet {number}, byte {offset}{self._unpacked}")
