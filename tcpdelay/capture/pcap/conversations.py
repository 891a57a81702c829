"""The TCP connections of a capture: a first pass lists the connections, and one connection is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dpkt.tcp import TH_ACK, TH_RST, TH_SYN

from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.decoding import LINKS, Segment, end_in_words, segment_of, tunnel_of

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
