"""The sizes of the packets of implementations of QUIC, which decide how much data a packet carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

QuicImplementation = Literal["rfc9002", "aioquic", "quic-go"]


@dataclass(frozen=True)
class QuicPacket:
    """The sizes of a full packet [bytes of UDP payload].

    Parameters
    ----------
    datagram_size : int
        Largest UDP payload [bytes] (RFC 9000, 14); windows are multiples of it.
    packet_overhead, frame_overhead : int
        Bytes of a packet besides its frames: short header, connection ID, packet number and authentication tag; and of
        a STREAM or DATAGRAM frame besides its data [bytes].

    Examples
    --------
    >>> QuicPacket().payload
    1165
    """

    datagram_size: int = 1200
    packet_overhead: int = 27
    frame_overhead: int = 8

    @property
    def payload(self) -> int:
        """Most bytes of data of a packet with one frame."""
        return self.datagram_size - self.packet_overhead - self.frame_overhead


QUIC_PACKETS: Mapping[QuicImplementation, QuicPacket] = {
    "rfc9002": QuicPacket(),
    "aioquic": QuicPacket(),
    "quic-go": QuicPacket(datagram_size=1280, packet_overhead=23),
}
"""The sizes by implementation: of aioquic 1.7 and quic-go 0.59, and by RFC 9002 the smallest datagram that a path of
QUIC must carry."""
