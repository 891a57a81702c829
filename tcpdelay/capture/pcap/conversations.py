"""The first pass over a capture: which TCP connections it holds, and which of them is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dpkt.tcp import TH_ACK, TH_RST, TH_SYN

from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.decoding import LINKS, Segment, end_in_words, segment_of

MOST_CONNECTIONS = 2**15
"""Connections kept track of at a time; beyond, those that have long been idle with little payload are forgotten."""
_MOST_LISTED = 10

Pair = tuple[bytes, bytes]


@dataclass(slots=True)
class Conversation:
    """One connection of a capture.

    Attributes
    ----------
    pair : tuple of bytes
        Its two ends, the smaller one first.
    first_packet, last_packet : int
        Numbers of its first and its last packet in the capture.
    opened_by : tuple of int and bytes, optional
        Sequence number and source of its SYN, by which a later connection between the same ends is told from it.
    payload : list of int
        Bytes of payload sent by either end, retransmissions included.
    largest : list of int
        Largest payload of one segment, of either end.
    first_seq : list of int or None
        First sequence number seen of either end.
    """

    pair: Pair
    first_packet: int
    last_packet: int = 0
    opened_by: tuple[int, bytes] | None = None
    payload: list[int] = field(default_factory=lambda: [0, 0])
    largest: list[int] = field(default_factory=lambda: [0, 0])
    first_seq: list[int | None] = field(default_factory=lambda: [None, None])

    @property
    def sender(self) -> int:
        """Which end sent more payload: 0 or 1."""
        return int(self.payload[1] > self.payload[0])

    @property
    def seqs(self) -> list[int]:
        """First sequence numbers of its ends, as far as known, the smaller one first."""
        return sorted(seq for seq in self.first_seq if seq is not None)

    def in_words(self) -> str:
        """Return both ends, the sender first, and its payload."""
        sender = self.sender
        source, target = self.pair[sender], self.pair[1 - sender]
        return f"{end_in_words(source)} -> {end_in_words(target)} ({self.payload[sender]} bytes)"


@dataclass(frozen=True, slots=True)
class Overview:
    """What one capture holds.

    Attributes
    ----------
    name : str
        The file, for messages.
    conversations : list of Conversation
        Its connections, the one with the most payload first.
    forgotten : int
        How many more there were with payload, at least: idle ones with little, of a capture of very many.
    """

    name: str
    conversations: list[Conversation]
    forgotten: int = 0


class _Register:
    """The connections found so far, no more than `MOST_CONNECTIONS`."""

    def __init__(self, wanted: Callable[[Conversation], bool]) -> None:
        self._wanted = wanted
        self._current: dict[Pair, Conversation] = {}
        self._earlier: list[Conversation] = []
        self.forgotten = 0

    def of(self, segment: Segment, pair: Pair, number: int) -> Conversation:
        """Return the connection that a segment belongs to; a SYN of another number begins a new one."""
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
        """Keep those that are wanted, the quarter with the most payload, and of the rest the last quarter in use."""
        ordered = self.all()
        kept = [one for one in ordered if self._wanted(one)][: MOST_CONNECTIONS // 2]
        chosen = set(map(id, kept))
        rest = [one for one in ordered if id(one) not in chosen]
        quarter = MOST_CONNECTIONS // 4
        kept += rest[:quarter]
        idle = sorted(rest[quarter:], key=lambda one: -one.last_packet)
        kept += idle[:quarter]
        self.forgotten += sum(max(one.payload) > 0 for one in idle[quarter:])
        chosen = set(map(id, kept))
        self._current = {pair: one for pair, one in self._current.items() if id(one) in chosen}
        self._earlier = [one for one in self._earlier if id(one) in chosen]

    def all(self) -> list[Conversation]:
        """Return all, the one with the most payload first."""
        return sorted([*self._current.values(), *self._earlier], key=lambda one: -max(one.payload))


def survey(capture: CaptureFile, wanted: Callable[[Conversation], bool] | None = None) -> Overview:
    """Read a capture through and return its connections.

    Parameters
    ----------
    capture : CaptureFile
        The capture.
    wanted : callable, optional
        Which connections are not to be forgotten, however many there are.

    Returns
    -------
    Overview
        With at least one connection that carries payload.

    Raises
    ------
    ValueError
        If the file is damaged, has a link layer that is not known, or holds no TCP connection with payload.
    """
    register = _Register(wanted or (lambda one: False))
    any_packet = False
    for packet in capture:
        any_packet = True
        if packet.link not in LINKS:
            raise ValueError(
                f"{capture.name}: packet {packet.number} is of link type {packet.link}; "
                "Ethernet, Linux cooked (v1, v2), BSD loopback and raw IP are known"
            )
        segment = segment_of(packet.link, packet.data, packet.wire_length)
        if segment is None:
            continue
        source, target = segment.source, segment.target
        end = int(source > target)
        conversation = register.of(segment, (target, source) if end else (source, target), packet.number)
        conversation.last_packet = packet.number
        if segment.length:
            conversation.payload[end] += segment.length
            if segment.length > conversation.largest[end] and not segment.flags & TH_RST:
                conversation.largest[end] = segment.length
        if conversation.first_seq[end] is None:
            conversation.first_seq[end] = segment.seq
    conversations = register.all()
    if not conversations or not max(conversations[0].payload):
        what = "no TCP connection that carries payload" if any_packet else "no packet"
        raise ValueError(f"{capture.name}: holds {what}")
    return Overview(capture.name, conversations, register.forgotten)


def matches(wanted: str) -> Callable[[Conversation], bool]:
    """Return what tells whether an end of a connection has `wanted` in its address."""
    return lambda one: any(wanted in end_in_words(end) for end in one.pair)


def chosen(overview: Overview, wanted: str | None) -> Conversation:
    """Return the connection with the most payload, or the one that is wanted.

    Parameters
    ----------
    overview : Overview
        What the capture holds.
    wanted : str or None
        Either end, such as "10.0.0.2:5001", or a part of it; whole ends go first.

    Returns
    -------
    Conversation
        It carries payload.

    Raises
    ------
    ValueError
        If none or several connections match; the message lists them.
    """
    if wanted is None:
        return overview.conversations[0]
    carrying = [one for one in overview.conversations if max(one.payload)]
    whole = [one for one in carrying if wanted in map(end_in_words, one.pair)]
    matching = whole or list(filter(matches(wanted), carrying))
    if not matching:
        raise ValueError(f"{overview.name}: no connection matches {wanted!r:.60}; it holds {_listed(carrying)}")
    if len({one.pair for one in matching}) > 1:
        raise ValueError(
            f"{overview.name}: {len(matching)} connections match {wanted!r:.60}, "
            f"choose one by its address: {_listed(matching)}"
        )
    return matching[0]


def same_connection(overview: Overview, conversation: Conversation) -> Conversation:
    """Return the connection of a second capture that is `conversation` of a first.

    Addresses may differ, as behind a translation of addresses; then the first sequence numbers are looked for.

    Raises
    ------
    ValueError
        If the second capture does not hold it.
    """
    of_pair = [one for one in overview.conversations if one.pair == conversation.pair]
    of_numbers = [one for one in overview.conversations if one.seqs == conversation.seqs]
    candidates = [one for one in of_pair if one in of_numbers]
    candidates += (of_numbers if len(conversation.seqs) == 2 else []) + of_pair
    carrying = [one for one in candidates if max(one.payload)]
    if carrying:
        return carrying[0]
    raise ValueError(f"{overview.name}: does not hold the connection {conversation.in_words()} of the other capture")


def _listed(conversations: Sequence[Conversation]) -> str:
    listed = ", ".join(one.in_words() for one in conversations[:_MOST_LISTED])
    more = len(conversations) - _MOST_LISTED
    return listed + (f" and {more} more" if more > 0 else "")
