"""Headers: from the bytes of a packet to its TCP segment, and from the TCP stream to the application's messages.

Link layers, IP and TCP: the code reads fixed offsets and builds no objects. It takes about 4 us per packet; the
complete decoding by dpkt takes 40 us.

Messages: the payload is read segment by segment. Only segments that arrive out of order are stored.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from ipaddress import IPv6Address
from typing import Literal, NamedTuple

import numpy as np
from dpkt import ethernet, ip, pcap, tcp
from dpkt.tcp import TH_ACK, TH_RST, TH_SYN
from numpy.typing import NDArray

from tcpdelay.capture.pcap.container import CaptureFile

VLAN_TAGS = frozenset(
    [ethernet.ETH_TYPE_8021Q, ethernet.ETH_TYPE_8021AD, ethernet.ETH_TYPE_QINQ1, ethernet.ETH_TYPE_QINQ2]
)
_TCP = struct.Struct(">HHIIHH")
_IP4 = struct.Struct(">BBHHHBB")
_SHORT = struct.Struct(">H")
_PORTS = struct.Struct(">HH")
_TWO_WORDS = struct.Struct(">II")
_ONLY_TIMESTAMPS = b"\x01\x01\x08\x0a"
_EXTENSIONS = frozenset([ip.IP_PROTO_HOPOPTS, ip.IP_PROTO_ROUTING, ip.IP_PROTO_DSTOPTS])
_TUNNELS_OVER_LINK = {ethernet.ETH_TYPE_PPPoE: "PPPoE", ethernet.ETH_TYPE_MPLS: "MPLS"}
_TUNNELS_OVER_IP = {
    ip.IP_PROTO_IPIP: "IP in IP", ip.IP_PROTO_IP6: "IPv6 in IP", ip.IP_PROTO_GRE: "GRE", ip.IP_PROTO_ESP: "IPsec",
}  # fmt: skip
_TUNNELS_OVER_UDP = {4789: "VXLAN", 8472: "VXLAN", 6081: "Geneve", 4500: "IPsec", 51820: "WireGuard"}
"""By port of UDP. 8472 is the port of VXLAN that Linux takes unless it is told another."""
Framing = Literal["auto", "rfc4571", "length4", "websocket"]
MAX_MESSAGE = 2**26
"""Largest credible message [bytes]."""
MAX_WAITING = 2**24
"""Largest number of bytes of segments that arrived out of order and are stored."""
_MAX_HTTP = 2**16
_SEGMENT_OVERHEAD = 100
"""Approximate memory of a stored segment, without its payload [bytes]."""
_END_OF_HTTP = b"\r\n\r\n"


class Segment(NamedTuple):
    """One TCP segment."""

    # source, target: Address and port of both ends, as in the packet.
    source: bytes
    target: bytes
    # seq, ack: Sequence and acknowledgement number, modulo 2^32.
    seq: int
    ack: int
    # flags, window: Flags, and the window as in the header, without its scale.
    flags: int
    window: int
    length: int  # Size of the payload on the wire [bytes]; the capture may hold fewer bytes
    ip_id: int  # Identification of the IPv4 packet; 0 for IPv6
    options: bytes  # Options of TCP
    payload: int  # Offset of the payload in the captured bytes


class Options(NamedTuple):
    """The options of one segment; None where an option is absent."""

    timestamps: tuple[int, int] | None = None  # TSval and TSecr
    sack: tuple[tuple[int, int], ...] = ()  # Left and right edge of each block
    # mss, window_scale: Maximum segment size [bytes], and logarithm (base 2) of the window's scale; only in a SYN.
    mss: int | None = None
    window_scale: int | None = None
    sack_permitted: bool = False  # Whether the end offers SACK; only in a SYN


LINKS: dict[int, tuple[int | None, int]] = {
    pcap.DLT_EN10MB: (12, 14),
    pcap.DLT_LINUX_SLL: (14, 16),
    pcap.DLT_LINUX_SLL2: (0, 20),
    **dict.fromkeys((pcap.DLT_NULL, pcap.DLT_LOOP), (None, 4)),
    # Raw IP is 12 or 14 in old files, depending on the system that wrote the file.
    **dict.fromkeys((12, 14, 101, pcap.DLT_IPV4, pcap.DLT_IPV6), (None, 0)),
}
"""By link layer, the offsets of the protocol number (None: the IP version shows it) and of the network layer."""


def segment_of(link: int, data: bytes, wire_length: int) -> Segment | None:
    """Return the TCP segment in a packet."""
    try:
        protocol, start = _network_layer(link, data)
        if protocol == ethernet.ETH_TYPE_IP:
            head, _, total, ip_id, fragment, _, transport = _IP4.unpack_from(data, start)
            if head >> 4 != 4 or transport != ip.IP_PROTO_TCP or fragment & 0x3FFF:
                return None
            end, addresses, width = start + total if total else wire_length, start + 12, 4
            start += (head & 15) * 4
            if start < addresses + 8:
                return None
        elif protocol == ethernet.ETH_TYPE_IP6:
            transport, found = _after_extensions(data, start)
            if transport != ip.IP_PROTO_TCP:
                return None
            (total,) = _SHORT.unpack_from(data, start + 4)
            end, addresses, width, ip_id = start + 40 + total if total else wire_length, start + 8, 16, 0
            start = found
        else:
            return None
        source_port, target_port, seq, ack, flags, window = _TCP.unpack_from(data, start)
    except (struct.error, IndexError):
        return None
    payload = start + (flags >> 12) * 4
    if payload < start + 20 or end < payload:
        return None
    return Segment(
        data[addresses : addresses + width] + source_port.to_bytes(2),
        data[addresses + width : addresses + 2 * width] + target_port.to_bytes(2),
        seq,
        ack,
        flags & 0x1FF,
        window,
        end - payload,
        ip_id,
        data[start + 20 : payload],
        payload,
    )


def _network_layer(link: int, data: bytes) -> tuple[int, int]:
    """Return the protocol of the network layer (a number of Ethernet), and its offset in a packet."""
    place, start = LINKS[link]
    if place is not None:
        (protocol,) = _SHORT.unpack_from(data, place)
    else:
        protocol = ethernet.ETH_TYPE_IP6 if data[start] >> 4 == 6 else ethernet.ETH_TYPE_IP
    while protocol in VLAN_TAGS:
        protocol, start = _SHORT.unpack_from(data, start + 2)[0], start + 4
    return protocol, start


def _after_extensions(data: bytes, start: int) -> tuple[int, int]:
    """Return the protocol of the transport layer in an IPv6 packet, and its offset."""
    following, place = data[start + 6], start + 40
    while following in _EXTENSIONS:
        following, place = data[place], place + 8 * (data[place + 1] + 1)
    return following, place


def tunnel_of(link: int, data: bytes) -> str | None:
    """Return the kind of tunnel that a packet belongs to, by its headers and ports; None if it belongs to none."""
    try:
        protocol, start = _network_layer(link, data)
        if protocol == ethernet.ETH_TYPE_IP:
            transport, start = data[start + 9], start + (data[start] & 15) * 4
        elif protocol == ethernet.ETH_TYPE_IP6:
            transport, start = _after_extensions(data, start)
        else:
            return _TUNNELS_OVER_LINK.get(protocol)
        if transport == ip.IP_PROTO_UDP:
            return next(
                (_TUNNELS_OVER_UDP[port] for port in _PORTS.unpack_from(data, start) if port in _TUNNELS_OVER_UDP), None
            )
    except (struct.error, IndexError):
        return None
    return _TUNNELS_OVER_IP.get(transport)


def options_of(options: bytes) -> Options:
    """Return the options of a segment, without malformed or cut options."""
    if len(options) == 12 and options[:4] == _ONLY_TIMESTAMPS:
        return Options(_TWO_WORDS.unpack_from(options, 4))
    timestamps = mss = scale = None
    sack: tuple[tuple[int, int], ...] = ()
    permitted = False
    for found in tcp.parse_opts(options):
        if found is None:
            break
        kind, value = found
        if kind == tcp.TCP_OPT_EOL:
            break
        if kind == tcp.TCP_OPT_TIMESTAMP and len(value) == 8:
            timestamps = _TWO_WORDS.unpack(value)
        elif kind == tcp.TCP_OPT_SACK:
            sack = tuple(_TWO_WORDS.unpack_from(value, place) for place in range(0, len(value) - 7, 8))
        elif kind == tcp.TCP_OPT_MSS and len(value) == 2:
            (mss,) = _SHORT.unpack(value)
        elif kind == tcp.TCP_OPT_WSCALE and len(value) == 1:
            # RFC 7323, 2.3: a larger scale counts as 14.
            scale = min(value[0], 14)
        elif kind == tcp.TCP_OPT_SACKOK:
            permitted = True
    return Options(timestamps, sack, mss, scale, permitted)


def end_in_words(end: bytes) -> str:
    """Return address and port of one end in words."""
    address, port = end[:-2], int.from_bytes(end[-2:])
    if len(address) == 4:
        return f"{'.'.join(map(str, address))}:{port}"
    return f"[{IPv6Address(address).compressed}]:{port}"


class Framer:
    """Reads the headers of length-prefixed messages or WebSocket frames; ValueError if the payload has no such headers.

    A length of 2 bytes (RFC 4571, 2) or 4 bytes before each message, most significant byte first, or the frames of
    WebSocket (RFC 6455, 5.2), with or without the HTTP handshake before them. A WebSocket message may have several
    frames. Control frames are no messages.
    """

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._base: int | None = None
        self._position = 0
        self._header = bytearray()
        self._body: int | None = None
        self._ends_message = True
        self._in_http = framing == "websocket"
        self._waiting: list[tuple[int, bytes, int, int]] = []
        self._waiting_bytes = 0
        self._ends = array("q")

    @property
    def ends(self) -> NDArray[np.int64]:
        """Position behind the last byte of each message, relative to the first byte of the stream."""
        return np.array(self._ends, np.int64)

    def take(self, limit: int) -> NDArray[np.int64]:
        """Return and forget the ends of messages up to a position."""
        ends = self.ends
        taken = int(np.searchsorted(ends, limit, side="right"))
        del self._ends[:taken]
        return ends[:taken]

    def feed(self, seq: int, payload: bytes, length: int, number: int) -> None:
        """Read the payload of one segment."""
        if self._base is None:
            self._base = seq
        start = self._position + (seq - self._base - self._position + 2**31) % 2**32 - 2**31
        if start + length <= self._position:
            return
        heappush(self._waiting, (start, payload, length, number))
        self._waiting_bytes += len(payload) + _SEGMENT_OVERHEAD
        while self._waiting and self._waiting[0][0] <= self._position:
            start, payload, length, number = heappop(self._waiting)
            self._waiting_bytes -= len(payload) + _SEGMENT_OVERHEAD
            self._read(start, payload, length, number)
        if self._waiting_bytes > MAX_WAITING:
            raise ValueError(f"the payload from byte {self._position} of the stream on is not in the capture")

    def _read(self, start: int, payload: bytes, length: int, number: int) -> None:
        """Continue to read, in a segment that begins at or before the current position."""
        while (place := self._position - start) < length:
            if self._body is not None:
                step = min(self._body, length - place)
                self._body -= step
                self._position += step
                if not self._body:
                    self._finish()
                continue
            if place >= len(payload):
                raise ValueError(
                    f"the header of a message at byte {self._position} of the stream was not kept in packet {number}"
                )
            self._header.append(payload[place])
            self._position += 1
            if self._in_http:
                self._read_http()
            elif self._framing == "websocket":
                self._read_frame()
            elif len(self._header) == (2 if self._framing == "rfc4571" else 4):
                self._begin_body(int.from_bytes(self._header))

    def _read_http(self) -> None:
        if len(self._header) == 4 and bytes(self._header) not in (b"GET ", b"HTTP"):
            # The capture begins behind the handshake: these bytes are the first frame, not HTTP.
            held, self._in_http = bytes(self._header), False
            self._header.clear()
            self._position -= len(held)
            self._read(self._position, held, len(held), 0)
        elif self._header.endswith(_END_OF_HTTP):
            self._in_http = False
            self._header.clear()
        elif len(self._header) > _MAX_HTTP:
            raise ValueError(f"no WebSocket: the HTTP header does not end within {_MAX_HTTP} bytes")

    def _read_frame(self) -> None:
        """Begin the body of a frame once its header is complete (RFC 6455, 5.2)."""
        header = self._header
        if header[0] & 0x0F not in (0, 1, 2, 8, 9, 10):
            raise ValueError(f"no WebSocket frame at byte {self._position - len(header)} of the stream")
        if len(header) < 2:
            return
        extended = {126: 2, 127: 8}.get(header[1] & 0x7F, 0)
        if len(header) < 2 + extended + 4 * (header[1] >> 7):
            return
        # A message ends with a frame that has FIN. Control frames may be between its frames.
        self._ends_message = header[0] & 0x88 == 0x80
        self._begin_body(int.from_bytes(header[2 : 2 + extended]) if extended else header[1] & 0x7F)

    def _begin_body(self, length: int) -> None:
        if length > MAX_MESSAGE:
            start = self._position - len(self._header)
            raise ValueError(f"no {self._framing} framing: a message of {length} bytes at byte {start} of the stream")
        self._header.clear()
        self._body = length
        if not length:
            self._finish()

    def _finish(self) -> None:
        self._body = None
        if self._ends_message:
            self._ends.append(self._position)


# The TCP connections of a capture: a first pass lists the connections, and one connection is chosen.

MOST_CONNECTIONS = 2**15
"""Largest number of tracked connections; beyond this number, idle connections with little payload are forgotten."""
_FEWEST_SEGMENTS = 20
"""Smallest number of segments with payload from which the payload of an end counts as a flow."""
_MOST_LISTED = 10
"""Largest number of connections in a message."""

Pair = tuple[bytes, bytes]


@dataclass(slots=True, eq=False)
class Conversation:
    """One connection of a capture."""

    pair: Pair  # The two ends, in ascending order
    # first_packet, last_packet: Numbers of the first and the last packet of the connection in the capture.
    first_packet: int
    last_packet: int = 0
    # Sequence number and source of the SYN; they distinguish a later connection between the same ends.
    opened_by: tuple[int, bytes] | None = None
    # Bytes of payload sent by either end, retransmissions included.
    payload: list[int] = field(default_factory=lambda: [0, 0])
    # Number of segments with payload sent by either end, retransmissions included.
    segments: list[int] = field(default_factory=lambda: [0, 0])
    largest: list[int] = field(default_factory=lambda: [0, 0])  # Largest payload of one segment, for each end
    # First sequence number seen, for each end.
    first_seq: list[int | None] = field(default_factory=lambda: [None, None])

    @property
    def sender(self) -> int:
        """Index of the end that sent more payload: 0 or 1."""
        return int(self.payload[1] > self.payload[0])

    @property
    def senders(self) -> list[bytes]:
        """The ends whose payload is a flow: the sender, and the other end if it sent enough segments with payload."""
        other = 1 - self.sender
        ends = [self.sender, *([other] if self.segments[other] >= _FEWEST_SEGMENTS else [])]
        return [self.pair[end] for end in ends]

    @property
    def seqs(self) -> list[int]:
        """Known first sequence numbers of both ends, in ascending order."""
        return sorted(seq for seq in self.first_seq if seq is not None)

    def in_words(self) -> str:
        """Return a description of the connection: both ends, the sender first, and the sender's payload."""
        sender = self.sender
        source, target = self.pair[sender], self.pair[1 - sender]
        return f"{end_in_words(source)} -> {end_in_words(target)} ({self.payload[sender]} bytes)"


@dataclass(frozen=True, slots=True)
class Overview:
    """The connections of one capture."""

    name: str  # The file, for messages
    conversations: list[Conversation]  # The connections, by descending payload
    forgotten: int = 0  # Lower bound of the number of forgotten connections with payload


class _Register:
    """The connections found so far, at most `MOST_CONNECTIONS`."""

    def __init__(self, requested: Callable[[Conversation], bool]) -> None:
        self._requested = requested
        self._current: dict[Pair, Conversation] = {}
        self._earlier: list[Conversation] = []
        self.forgotten = 0

    def of(self, segment: Segment, pair: Pair, number: int) -> Conversation:
        """Return the connection of a segment; a SYN with another sequence number begins a new connection."""
        known = self._current.get(pair)
        if segment.flags & (TH_SYN | TH_ACK) == TH_SYN:
            opened_by = (segment.seq, segment.source)
            if known is not None and known.opened_by != opened_by and (known.opened_by or max(known.payload)):
                self._earlier.append(known)
                known = None
            if known is None:
                known = self._begin(pair, number)
            known.opened_by = opened_by
        return known or self._begin(pair, number)

    def _begin(self, pair: Pair, number: int) -> Conversation:
        if len(self._current) + len(self._earlier) >= MOST_CONNECTIONS:
            self._forget()
        conversation = self._current[pair] = Conversation(pair, number)
        return conversation

    def _forget(self) -> None:
        """Keep the requested connections, the quarter with the most payload, and the quarter that was used last."""
        ordered, quarter = self.all(), MOST_CONNECTIONS // 4
        kept = set([found for found in ordered if self._requested(found)][: 2 * quarter])
        rest = [found for found in ordered if found not in kept]
        idle = sorted(rest[quarter:], key=lambda found: -found.last_packet)
        kept.update(rest[:quarter], idle[:quarter])
        self.forgotten += sum(max(found.payload) > 0 for found in idle[quarter:])
        self._current = {pair: found for pair, found in self._current.items() if found in kept}
        self._earlier = [found for found in self._earlier if found in kept]

    def all(self) -> list[Conversation]:
        """Return all connections by descending payload."""
        return sorted([*self._current.values(), *self._earlier], key=lambda found: -max(found.payload))


def survey(capture: CaptureFile, requested: Callable[[Conversation], bool] | None = None) -> Overview:
    """Read a whole capture and return its connections."""
    register = _Register(requested or (lambda found: False))
    any_packet = False
    tunnel: str | None = None
    for packet in capture:
        any_packet = True
        if packet.link not in LINKS:
            raise ValueError(
                f"{capture.name}: packet {packet.number} is of link type {packet.link}; "
                "Ethernet, Linux cooked (v1, v2), BSD loopback and raw IP are known"
            )
        segment = segment_of(packet.link, packet.data, packet.wire_length)
        if segment is None:
            tunnel = tunnel or tunnel_of(packet.link, packet.data)
            continue
        source, target = segment.source, segment.target
        end = int(source > target)
        conversation = register.of(segment, (target, source) if end else (source, target), packet.number)
        conversation.last_packet = packet.number
        if segment.length:
            conversation.payload[end] += segment.length
            conversation.segments[end] += 1
            if segment.length > conversation.largest[end] and not segment.flags & TH_RST:
                conversation.largest[end] = segment.length
        if conversation.first_seq[end] is None:
            conversation.first_seq[end] = segment.seq
    conversations = register.all()
    if not conversations or not max(conversations[0].payload):
        what = "no TCP connection that carries payload" if any_packet else "no packet"
        inside = f"; packets inside of tunnels (here: {tunnel}) are not read" if tunnel else ""
        raise ValueError(f"{capture.name}: holds {what}{inside}")
    return Overview(capture.name, conversations, register.forgotten)


def matches(requested: str) -> Callable[[Conversation], bool]:
    """Return a function that returns whether the address of either end of a connection contains `requested`."""
    return lambda found: any(requested in end_in_words(end) for end in found.pair)


def chosen(overview: Overview, requested: str | None) -> Conversation:
    """Return the connection with the most payload, or the requested connection."""
    if requested is None:
        return overview.conversations[0]
    carrying = [found for found in overview.conversations if max(found.payload)]
    whole = [found for found in carrying if requested in map(end_in_words, found.pair)]
    matching = whole or list(filter(matches(requested), carrying))
    if not matching:
        raise ValueError(f"{overview.name}: no connection matches {requested!r:.60}; it holds {_listed(carrying)}")
    if len({found.pair for found in matching}) > 1:
        raise ValueError(
            f"{overview.name}: {len(matching)} connections match {requested!r:.60}, "
            f"choose one by its address: {_listed(matching)}"
        )
    return matching[0]


def same_connection(overview: Overview, conversation: Conversation) -> Conversation:
    """Return the connection of a second capture that is the same; behind NAT the first sequence numbers decide."""
    of_pair = [found for found in overview.conversations if found.pair == conversation.pair]
    of_numbers = [found for found in overview.conversations if found.seqs == conversation.seqs]
    candidates = [found for found in of_pair if found in of_numbers]
    candidates += (of_numbers if len(conversation.seqs) == 2 else []) + of_pair
    carrying = [found for found in candidates if max(found.payload)]
    if carrying:
        return carrying[0]
    raise ValueError(f"{overview.name}: does not hold the connection {conversation.in_words()} of the other capture")


def _listed(conversations: Sequence[Conversation]) -> str:
    listed = ", ".join(found.in_words() for found in conversations[:_MOST_LISTED])
    more = len(conversations) - _MOST_LISTED
    return listed + (f" and {more} more" if more > 0 else "")
