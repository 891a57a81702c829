"""The first pass over a capture: which TCP connections it holds, and which of them is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpkt.tcp import TH_ACK, TH_SYN

from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.decoding import LINKS, Segment, end_in_words, segment_of

MOST_CONNECTIONS = 100_000
"""Connections kept track of at a time; beyond, the half with the least payload is forgotten."""
_MOST_LISTED = 10

Pair = tuple[bytes, bytes]


@dataclass(slots=True)
class Conversation:
    """One connection of a capture.

    Attributes
    ----------
    pair : tuple of bytes
        Its two ends, the smaller one first.
    generation : int
        How many connections between the same two ends came before it.
    payload : list of int
        Bytes of payload sent by either end, retransmissions included.
    first_seq : list of int or None
        First sequence number seen of either end.
    segments : int
        Its segments in the capture.
    """

    pair: Pair
    generation: int
    payload: list[int] = field(default_factory=lambda: [0, 0])
    first_seq: list[int | None] = field(default_factory=lambda: [None, None])
    segments: int = 0

    @property
    def sender(self) -> int:
        """Which end sent more payload: 0 or 1."""
        return int(self.payload[1] > self.payload[0])

    def in_words(self) -> str:
        """Return both ends, the sender first, and its payload."""
        sender = self.sender
        source, target = self.pair[sender], self.pair[1 - sender]
        return f"{end_in_words(source)} -> {end_in_words(target)} ({self.payload[sender]} bytes)"


class Generations:
    """Tells a new connection between two ends from an earlier one by the sequence number of its SYN."""

    def __init__(self) -> None:
        self._last: dict[Pair, tuple[int, int, bytes]] = {}

    def number(self, pair: Pair, segment: Segment) -> int:
        """Return how many connections between the two ends came before that of `segment`."""
        if segment.flags & (TH_SYN | TH_ACK) != TH_SYN:
            known = self._last.get(pair)
            return known[0] if known else 0
        known = self._last.get(pair)
        if known is None or (known[1:] != (segment.seq, segment.source)):
            if len(self._last) >= 2 * MOST_CONNECTIONS:
                self._last.clear()
                known = None
            self._last[pair] = (known[0] + 1 if known else 0, segment.seq, segment.source)
        return self._last[pair][0]


@dataclass(frozen=True, slots=True)
class Overview:
    """What one capture holds.

    Attributes
    ----------
    name : str
        The file, for messages.
    conversations : list of Conversation
        Its connections, the one with the most payload first.
    """

    name: str
    conversations: list[Conversation]


def survey(capture: CaptureFile) -> Overview:
    """Read a capture through and return its connections.

    Parameters
    ----------
    capture : CaptureFile
        The capture.

    Returns
    -------
    Overview
        With at least one connection that carries payload.

    Raises
    ------
    ValueError
        If the file is damaged, has a link layer that is not known, or holds no TCP connection with payload.
    """
    generations = Generations()
    found: dict[tuple[Pair, int], Conversation] = {}
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
        pair = (target, source) if end else (source, target)
        key = (pair, generations.number(pair, segment))
        conversation = found.get(key)
        if conversation is None:
            if len(found) >= MOST_CONNECTIONS:
                found = _largest_half(found)
            conversation = found[key] = Conversation(*key)
        conversation.payload[end] += segment.length
        conversation.segments += 1
        if conversation.first_seq[end] is None:
            conversation.first_seq[end] = segment.seq
    conversations = sorted(found.values(), key=lambda one: -max(one.payload))
    if not conversations or not max(conversations[0].payload):
        what = "no TCP connection that carries payload" if any_packet else "no packet"
        raise ValueError(f"{capture.name}: holds {what}")
    return Overview(capture.name, conversations)


def _largest_half(found: dict[tuple[Pair, int], Conversation]) -> dict[tuple[Pair, int], Conversation]:
    kept = sorted(found.items(), key=lambda one: -max(one[1].payload))[: MOST_CONNECTIONS // 2]
    return dict(kept)


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
    matching = whole or [one for one in carrying if any(wanted in end_in_words(end) for end in one.pair)]
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
    seqs = sorted(seq for seq in conversation.first_seq if seq is not None)
    of_numbers = [
        one for one in overview.conversations if sorted(seq for seq in one.first_seq if seq is not None) == seqs
    ]
    candidates = [one for one in of_pair if one in of_numbers] + (of_numbers if len(seqs) == 2 else []) + of_pair
    carrying = [one for one in candidates if max(one.payload)]
    if carrying:
        return carrying[0]
    raise ValueError(f"{overview.name}: does not hold the connection {conversation.in_words()} of the other capture")


def _listed(conversations: Sequence[Conversation]) -> str:
    listed = ", ".join(one.in_words() for one in conversations[:_MOST_LISTED])
    more = len(conversations) - _MOST_LISTED
    return listed + (f" and {more} more" if more > 0 else "")
