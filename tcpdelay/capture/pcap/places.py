"""Captures that show a connection at several places: told apart by interface or stations, or one place chosen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpkt import pcap

from tcpdelay.capture.pcap.container import CaptureFile, Packet
from tcpdelay.capture.pcap.decoding import Framer, Framing, Segment
from tcpdelay.capture.pcap.measurement import NANOSECONDS
from tcpdelay.capture.pcap.round_trips import captured_at, distance_to_receiver, distance_to_sender
from tcpdelay.capture.pcap.segments import ConnectionSegments, Conversation
from tcpdelay.capture.pcap.stretches import Copies, FirstOnly, StretchSource
from tcpdelay.units import format_time

_WHOLE = 0.1
"""Share of the packets of the fullest place, in either direction, from which a place counts as one."""
_MOST_PLACES = 8
"""Places that are told apart, those with most packets: of each, the beginning is read."""
_NEAR = 0.02
"""Share of the round-trip time by which copies may be apart without a part of the path between them."""

Kept = Callable[[Packet, Segment], bool]


class Place(NamedTuple):
    """What a capture tells of where it saw a packet.

    Attributes
    ----------
    interface : int
        Which interface of a pcapng.
    ifindex : int, optional
        The system's number of the interface, in Linux cooked v2.
    stations : tuple of bytes
        Both addresses of Ethernet, in either direction the same.
    """

    interface: int
    ifindex: int | None = None
    stations: tuple[bytes, ...] = ()

    def in_words(self, among: list[Place]) -> str:
        """Return what tells this place from others.

        Examples
        --------
        >>> here, there = Place(0, stations=(bytes(6), bytes([2] * 6))), Place(0)
        >>> here.in_words([here, Place(1)]), here.in_words([here, there])
        ('interface 0', 'stations 00:00:00:00:00:00 and 02:02:02:02:02:02')
        """
        interfaces = {place.interface for place in among}
        if len(interfaces) == len(among):
            return f"interface {self.interface}"
        stations = f"stations {' and '.join(station.hex(':') for station in self.stations)}"
        words = stations if self.ifindex is None else f"interface index {self.ifindex}"
        return words if len(interfaces) == 1 else f"interface {self.interface}, {words}"


def at(place: Place) -> Kept:
    """Return what tells the packets of a place."""
    return lambda packet, segment: place_of(packet) == place


def place_of(packet: Packet) -> Place:
    """Return where a packet was captured."""
    data = packet.data
    if packet.link == pcap.DLT_LINUX_SLL2:
        return Place(packet.interface, int.from_bytes(data[4:8]))
    if packet.link == pcap.DLT_EN10MB:
        return Place(packet.interface, stations=tuple(sorted((data[:6], data[6:12]))))
    return Place(packet.interface)


@dataclass(frozen=True)
class ConnectionInFile:
    """The connection in one file, which may show it at one place or at several.

    Parameters
    ----------
    capture : CaptureFile
        The file.
    conversation : Conversation
        The connection in it.
    sender : bytes
        The end whose payload is analysed.
    framing : Framing
        How messages are told apart.
    copies : Copies, optional
        Those that an earlier reading has found, which need not be in the first segments.
    """

    capture: CaptureFile
    conversation: Conversation
    sender: bytes
    framing: Framing = "auto"
    copies: Copies | None = None

    def sources(self, notes: list[str]) -> list[StretchSource]:
        """Return the captures that the file holds: one, or that at the sender and that at the receiver.

        Parameters
        ----------
        notes : list of str
            What was told apart or left out is added to it.

        Raises
        ------
        ValueError
            If packets occur twice with a part of the path between them, and nothing tells which were captured where.
        """
        source = self._source()
        source.begin()
        # Where that reading had left second copies out, it counted none; the first segments show them again.
        copies = self.copies if self.copies is not None and self.copies.many else source.copies
        if not copies.many:
            return [source]
        self.capture.readings += 1
        places = self._places()
        if len(places) < 2:
            return [self._first_only(copies.lags, None, "", notes)]
        words = {place: place.in_words(places) for place in places}
        labels = {place: f" ({words[place]})" for place in places}
        unframed = replace(self, framing="auto")
        views = {place: unframed._again(at(place), labels[place]) for place in places}
        traces = {place: view.beginning() for place, view in views.items()}
        far, *_, near = sorted(places, key=lambda place: -distance_to_receiver(traces[place]))
        name = self.capture.name
        if captured_at(traces[far]) != ("sender", True) or captured_at(traces[near]) != ("receiver", True):
            notes.append(f"{name}: packets occur twice, at {' and '.join(words.values())}; those of {words[far]} count")
            return [self._chosen(views[far], at(far), labels[far], notes)]
        notes.append(f"{name}: holds both ends, the sender's at {words[far]}, the receiver's at {words[near]}")
        # Positions of messages are told by the sender's.
        return [
            self._chosen(views[far], at(far), labels[far], notes),
            unframed._chosen(views[near], at(near), labels[near], notes),
        ]

    def _chosen(self, view: StretchSource, kept: Kept, label: str, notes: list[str]) -> StretchSource:
        """Return the capture at one place, which has been begun without a framer."""
        if view.copies.many:
            return self._first_only(view.copies.lags, kept, label, notes)
        return view if self.framing == "auto" else self._again(kept, label)

    def _again(self, kept: Kept, label: str) -> StretchSource:
        self.capture.readings += 1
        return self._source(kept, label)

    def _source(self, kept: Kept | None = None, label: str = "") -> StretchSource:
        framer = None if self.framing == "auto" else Framer(self.framing)
        return StretchSource(ConnectionSegments(self.capture, self.conversation, self.sender, framer, kept, label))

    def _places(self) -> list[Place]:
        """Return the places at which most of the connection was captured, in both directions."""
        packets = {True: Counter[Place](), False: Counter[Place]()}

        def count(packet: Packet, segment: Segment) -> bool:
            packets[segment.source == self.sender][place_of(packet)] += 1
            return False

        for _ in ConnectionSegments(self.capture, self.conversation, self.sender, kept=count).batches():
            pass
        least = [_WHOLE * max(counted.values(), default=0) for counted in packets.values()]
        most = packets[True].most_common(_MOST_PLACES)
        return sorted(one for one, count in most if count >= least[0] and packets[False][one] >= max(least[1], 1))

    def _first_only(self, lags: tuple[int, int], kept: Kept | None, label: str, notes: list[str]) -> StretchSource:
        """Return the connection without the second copies, if they are so near that both were made at one place."""
        first = FirstOnly(2 * max(lags))
        source = self._again(
            first if kept is None else lambda packet, segment: kept(packet, segment) and first(packet, segment), label
        )
        trace = source.beginning()
        distances = distance_to_receiver(trace), distance_to_sender(trace)
        apart = format_time(max(lags) / NANOSECONDS)
        if source.copies.many or sum(lags) > _NEAR * sum(filter(math.isfinite, distances)) * NANOSECONDS:
            raise ValueError(
                f"{source.name}: packets of this connection appear twice, {apart} apart, as where captures of two "
                "places were merged; give the captures of the two ends as two files"
            )
        notes.append(f"{source.name}: packets occur twice, {apart} apart; the second ones are left out")
        return source
