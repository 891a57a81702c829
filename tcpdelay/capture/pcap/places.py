"""Captures that show a connection at several places: the interface or the stations separate the places."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpkt import pcap

from tcpdelay.capture.pcap.container import CaptureFile, Packet
from tcpdelay.capture.pcap.conversations import Conversation
from tcpdelay.capture.pcap.decoding import Framer, Framing, Segment
from tcpdelay.capture.pcap.round_trips import captured_at, distance_to_receiver, distance_to_sender
from tcpdelay.capture.pcap.segments import ConnectionSegments
from tcpdelay.capture.pcap.stretches import Copies, FirstOnly, StretchSource
from tcpdelay.capture.pcap.trace import NANOSECONDS
from tcpdelay.units import format_time

_SMALLEST_SHARE = 0.1
"""Smallest number of packets of a place, in either direction, as a share of the packets of the busiest place."""
_MOST_PLACES = 8
"""Largest number of places that are distinguished; places with more packets come first."""
_LARGEST_COPY_DISTANCE = 0.02
"""Largest distance of copies captured at one place, as a share of the round-trip time."""

Kept = Callable[[Packet, Segment], bool]


class Place(NamedTuple):
    """The place at which a packet was captured.

    Attributes
    ----------
    interface : int
        Number of the interface in a pcapng file.
    ifindex : int, optional
        Interface index of the system, in Linux cooked v2.
    stations : tuple of bytes
        Both Ethernet addresses, sorted, so that they are equal in both directions.
    """

    interface: int
    ifindex: int | None = None
    stations: tuple[bytes, ...] = ()

    def in_words(self, among: list[Place]) -> str:
        """Return a description that distinguishes this place from the other places in `among`.

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
    """Return a function that returns whether a packet was captured at a place."""
    return lambda packet, segment: place_of(packet) == place


def place_of(packet: Packet) -> Place:
    """Return the place at which a packet was captured."""
    data = packet.data
    if packet.link == pcap.DLT_LINUX_SLL2:
        return Place(packet.interface, int.from_bytes(data[4:8]))
    if packet.link == pcap.DLT_EN10MB:
        return Place(packet.interface, stations=tuple(sorted((data[:6], data[6:12]))))
    return Place(packet.interface)


@dataclass(frozen=True)
class ConnectionInFile:
    """The connection in one file, which shows it at one or several places.

    Parameters
    ----------
    capture : CaptureFile
        The file.
    conversation : Conversation
        The connection in it.
    sender : bytes
        The end whose payload is analysed.
    framing : Framing
        Way to find the ends of messages.
    copies : Copies, optional
        Copies that an earlier reading found; they need not be among the first segments.
    """

    capture: CaptureFile
    conversation: Conversation
    sender: bytes
    framing: Framing = "auto"
    copies: Copies | None = None

    def sources(self, notes: list[str]) -> list[StretchSource]:
        """Return the captures in the file: one capture, or a capture at the sender and a capture at the receiver.

        Parameters
        ----------
        notes : list of str
            List to which notes on separated captures and omitted packets are appended.

        Raises
        ------
        ValueError
            If packets occur twice with a part of the path between the copies, and nothing shows the place of a copy.
        """
        source = self._source()
        source.begin()
        # An earlier reading that omitted second copies has counted no copies. The first segments show them again.
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
            several = " and ".join(words.values())
            notes.append(f"{name}: packets occur twice, at {several}; the packets of {words[far]} count")
            return [self._chosen(views[far], at(far), labels[far], notes)]
        notes.append(f"{name}: holds both ends, the sender's at {words[far]}, the receiver's at {words[near]}")
        # The capture at the sender gives the positions of messages.
        return [
            self._chosen(views[far], at(far), labels[far], notes),
            unframed._chosen(views[near], at(near), labels[near], notes),
        ]

    def _chosen(self, view: StretchSource, kept: Kept, label: str, notes: list[str]) -> StretchSource:
        """Return the capture at one place, whose first segments were read without a framer."""
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
        least = [_SMALLEST_SHARE * max(counted.values(), default=0) for counted in packets.values()]
        most = packets[True].most_common(_MOST_PLACES)
        return sorted(place for place, sent in most if sent >= least[0] and packets[False][place] >= max(least[1], 1))

    def _first_only(self, lags: tuple[int, int], kept: Kept | None, label: str, notes: list[str]) -> StretchSource:
        """Return the connection without second copies, if the copies are close enough to be from one place."""
        first = FirstOnly(2 * max(lags))
        source = self._again(
            first if kept is None else lambda packet, segment: kept(packet, segment) and first(packet, segment), label
        )
        trace = source.beginning()
        distances = distance_to_receiver(trace), distance_to_sender(trace)
        apart = format_time(max(lags) / NANOSECONDS)
        if (
            source.copies.many
            or sum(lags) > _LARGEST_COPY_DISTANCE * sum(filter(math.isfinite, distances)) * NANOSECONDS
        ):
            raise ValueError(
                f"{source.name}: packets of this connection appear twice, {apart} apart, as where captures of two "
                "places were merged; give the captures of the two ends as two files"
            )
        notes.append(f"{source.name}: packets occur twice, {apart} apart; the second copies are left out")
        return source
