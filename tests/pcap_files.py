"""Packets and capture files, written byte by byte, and a connection whose every packet is known."""

import struct
from dataclasses import dataclass, field, replace

SYN, FIN, PSH, ACK = 0x02, 0x01, 0x08, 0x10
LINKS = {"ethernet": 1, "raw": 101, "raw-ipv6": 101, "loopback": 0, "sll": 113, "sll2": 276, "vlan": 1, "qinq": 1}
MILLISECOND = 1_000_000
START = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Packet:
    """A TCP packet at one time [ns]; `kept` bytes of it are in the capture."""

    time: int
    forward: bool
    seq: int = 0
    ack: int = 0
    length: int = 0
    flags: int = ACK
    tsval: int | None = None
    tsecr: int = 0
    sack: tuple = ()
    window: int = 500
    ip_id: int = 0
    options: bytes = b""
    payload: bytes | None = None
    ends: tuple = ("10.0.0.1:4000", "10.0.0.2:5001")
    kept: int | None = None
    ifindex: int = 0
    total_length: int | None = None


def tcp(packet):
    options = packet.options
    if packet.tsval is not None:
        options += b"\x01\x01\x08\x0a" + struct.pack(">II", packet.tsval % 2**32, packet.tsecr % 2**32)
    if packet.sack:
        blocks = b"".join(struct.pack(">II", left % 2**32, right % 2**32) for left, right in packet.sack)
        options += b"\x01\x01\x05" + bytes([2 + len(blocks)]) + blocks
    options += b"\x01" * (-len(options) % 4)
    ports = [int(end.rpartition(":")[2]) for end in packet.ends]
    source, target = ports if packet.forward else ports[::-1]
    offset = (20 + len(options)) // 4 << 12
    numbers = (source, target, packet.seq % 2**32, packet.ack % 2**32, offset | packet.flags, packet.window, 0, 0)
    payload = bytes(packet.length) if packet.payload is None else packet.payload
    return struct.pack(">HHIIHHHH", *numbers) + options + payload


def ip4(packet):
    body = tcp(packet)
    total = 20 + len(body) if packet.total_length is None else packet.total_length
    hosts = [bytes(map(int, end.rpartition(":")[0].split("."))) for end in packet.ends]
    source, target = hosts if packet.forward else hosts[::-1]
    return struct.pack(">BBHHHBBH", 0x45, 0, total, packet.ip_id, 0x4000, 64, 6, 0) + source + target + body


def ip6(packet):
    # A hop-by-hop header of eight bytes stands before TCP.
    body = bytes([6, 0, 1, 4, 0, 0, 0, 0]) + tcp(packet)
    hosts = [bytes(15) + b"\x01", bytes(15) + b"\x02"]
    source, target = hosts if packet.forward else hosts[::-1]
    return struct.pack(">IHBB", 0x60000000, len(body), 0, 64) + source + target + body


def frame(packet, link):
    if link == "raw-ipv6":
        return ip6(packet)
    prefix = {
        "ethernet": bytes(12) + b"\x08\x00",
        "vlan": bytes(12) + b"\x81\x00\x00\x07\x08\x00",
        "qinq": bytes(12) + b"\x88\xa8\x00\x07\x81\x00\x00\x08\x08\x00",
        "sll": bytes(14) + b"\x08\x00",
        "sll2": b"\x08\x00\0\0" + packet.ifindex.to_bytes(4) + bytes(12),
        "loopback": b"\x02\0\0\0",
        "raw": b"",
    }[link]
    # Short frames of Ethernet are filled up, which is no payload.
    return (prefix + ip4(packet)).ljust(60 if link in ("ethernet", "vlan") else 0, b"\0")


def pcap(packets, link="ethernet", order="<", nano=True):
    parts = [struct.pack(f"{order}IHHIIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, 65535, LINKS[link])]
    for packet in packets:
        whole = frame(packet, link)
        data = whole[: packet.kept]
        seconds, rest = divmod(packet.time, 10**9)
        parts += [struct.pack(f"{order}IIII", seconds, rest if nano else rest // 1000, len(data), len(whole)), data]
    return b"".join(parts)


def block(kind, body, order="<"):
    body += bytes(-len(body) % 4)
    length = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + length + body + length


def section(order="<"):
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def option(code, value, order="<"):
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def interface(options=b"", order="<", link=1, snap_length=0):
    return block(1, struct.pack(f"{order}HHI", link, 0, snap_length) + options, order)


def enhanced(packet, which=0, ticks=10**6, offset=0, order="<", link="ethernet"):
    whole = frame(packet, link)
    data = whole[: packet.kept]
    stamp = (packet.time - offset * 10**9) * ticks // 10**9
    head = struct.pack(f"{order}IIIII", which, stamp >> 32, stamp & 0xFFFFFFFF, len(data), len(whole))
    return block(6, head + data, order)


@dataclass
class Connection:
    """A source of one message per interval, whose segments arrive after half the round-trip time, or are lost.

    `lost` are the numbers of messages whose first transmission is lost; each is sent again 1.5 round-trip times after
    it. `needless` ones are sent again though they arrived, `overtaken` ones arrive 1.5 intervals late. The receiver
    acknowledges each segment at once, with SACK and D-SACK. Times in ns; timestamps count milliseconds.
    """

    count: int = 200
    size: int = 174
    interval: int = 20 * MILLISECOND
    rtt: int = 50 * MILLISECOND
    isn: int = 1000
    lost: frozenset = frozenset()
    needless: frozenset = frozenset()
    overtaken: frozenset = frozenset()
    stamps: bool = True
    handshake: bool = True
    dsack: bool = True
    offset: int = 0
    skew: float = 0.0
    sender: list = field(default_factory=list)
    receiver: list = field(default_factory=list)
    read: list = field(default_factory=list)

    def __post_init__(self):
        one_way = self.rtt // 2
        if self.handshake:
            self._handshake(one_way)
        sent = [(START + k * self.interval, k, k) for k in range(self.count)]
        sent += [(START + k * self.interval + 3 * self.rtt // 2, k, -1) for k in self.lost | self.needless]
        arrivals = []
        for number, (time, k, first) in enumerate(sorted(sent)):
            begin = self.isn + 1 + k * self.size
            stamp = {"tsval": time // MILLISECOND, "tsecr": (time - one_way) // MILLISECOND} if self.stamps else {}
            packet = Packet(time, True, begin, 900, self.size, ACK | PSH, ip_id=(number + 1) % 65536, **stamp)
            self.sender.append(packet)
            if not (first >= 0 and k in self.lost):
                late = 3 * self.interval // 2 if first >= 0 and k in self.overtaken else 0
                arrivals.append((time + one_way + late, k, packet))
        self._deliver(sorted(arrivals, key=lambda one: one[0]), one_way)
        self.sender.sort(key=lambda packet: packet.time)
        self.receiver.sort(key=lambda packet: packet.time)

    def _handshake(self, one_way):
        begin = START - 2 * self.rtt
        options = b"\x02\x04\x05\xb4\x04\x02\x01\x03\x03\x07"
        stamp = {"tsval": begin // MILLISECOND} if self.stamps else {}
        syn = Packet(begin, True, self.isn, 0, flags=SYN, options=options, **stamp)
        answer = Packet(begin + one_way, False, 899, self.isn + 1, flags=SYN | ACK, options=options, **stamp)
        last = Packet(begin + self.rtt, True, self.isn + 1, 900, **stamp)
        self.sender += [syn, self.at(answer, begin + 2 * one_way), last]
        self.receiver += [self.shown(syn, begin + one_way), self.shown(answer, begin + one_way)]
        self.receiver.append(self.shown(last, begin + self.rtt + one_way))

    def _deliver(self, arrivals, one_way):
        have, edge, echo = set(), 0, 0
        self.read = [None] * self.count
        for time, k, packet in arrivals:
            self.receiver.append(self.shown(packet, time))
            duplicate = k in have
            have.add(k)
            if k == edge:
                echo = packet.tsval or 0
            while edge in have:
                self.read[edge] = time
                edge += 1
            at = self.isn + 1
            blocks = ((at + k * self.size, at + (k + 1) * self.size),)
            if not (k > edge or (duplicate and self.dsack)):
                blocks = ()
            stamp = {"tsval": time // MILLISECOND, "tsecr": echo} if self.stamps else {}
            number = len(self.receiver) % 65536
            answer = Packet(time + 1000, False, 900, at + edge * self.size, sack=blocks, ip_id=number, **stamp)
            self.receiver.append(self.shown(answer, time + 1000))
            self.sender.append(self.at(answer, time + 1000 + one_way))

    @staticmethod
    def at(packet, time):
        return replace(packet, time=time)

    def shown(self, packet, time):
        """Return a packet as the receiver's clock stamps it."""
        return replace(packet, time=round(time + self.offset + self.skew * (time - START)))

    def delays(self):
        """Return the delay of each message from its write [s]."""
        return [(read - START - k * self.interval) / 1e9 for k, read in enumerate(self.read) if read is not None]
