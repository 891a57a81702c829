"""Protocol headers that are added to an application's data before TCP: RTP, TURN, WebSocket, TLS, RTMP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tcpdelay.declare import InvalidValueError, documented, meaning
from tcpdelay.scenario.media import Speech, Utterances
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.source import Flow, Source

Sent = TypeVar("Sent", bound=Source)

TLS_RECORD = 16_384
"""Largest content of a TLS record [bytes] (RFC 8446, section 5.1)."""
RTMP_CHUNK = 4096
"""Chunk size that encoders commonly announce [bytes]; the default of RTMP is 128."""


@documented()
class Layer:
    """One protocol layer: the bytes that it adds to each packet.

    Examples
    --------
    >>> CHANNEL_DATA.overhead(82)
    6
    """

    name: str = meaning("The added header or trailer, in words.")
    overhead: Callable[[int], int] = meaning("Returns the added bytes for the bytes of the content, 1 or more.")
    source: str = meaning("Specification of the format.")
    largest: int | None = meaning("Largest content [bytes]; unlimited by default.", default=None)


def _fixed(size: int) -> Callable[[int], int]:
    return lambda _: size


def _padded(header: int) -> Callable[[int], int]:
    """Return the overhead of a header [bytes] and of padding to a multiple of four bytes."""
    return lambda size: header + -size % 4


def _web_socket(mask: int) -> Callable[[int], int]:
    """Return the overhead of a WebSocket header with a masking key of `mask` bytes."""
    return lambda size: 2 + (0 if size <= 125 else 2 if size <= 65_535 else 8) + mask


def _records(overhead: int) -> Callable[[int], int]:
    """Return the overhead of the TLS records of one write: `overhead` [bytes] for each record of 16 384 bytes."""
    return lambda size: overhead * -(-size // TLS_RECORD)


RTP = Layer("RTP header", _fixed(12), "RFC 3550, section 5.1, without extensions")
SRTP = Layer("SRTP tag", _fixed(10), "RFC 3711, section 4.2 (HMAC-SHA1, 80 bits)")
FRAMING = Layer("length", _fixed(2), "RFC 4571, section 2", 65_535)
CHANNEL_DATA = Layer(
    "ChannelData header and padding",
    _padded(4),
    "RFC 8656, sections 12.4 and 12.5: multiples of four bytes over TCP",
    65_535,
)
SEND_INDICATION = Layer(
    "Send indication and padding",
    _padded(36),
    "RFC 8489, sections 5 and 14: STUN header 20, XOR-PEER-ADDRESS of IPv4 12, DATA 4 (RFC 8656, section 11.1)",
    65_516,
)
WEBSOCKET_CLIENT = Layer("WebSocket header, masked", _web_socket(4), "RFC 6455, section 5.2")
WEBSOCKET_SERVER = Layer("WebSocket header", _web_socket(0), "RFC 6455, section 5.2")
TLS_1_3 = Layer("TLS 1.3 record", _records(22), "RFC 8446, section 5.2: header 5, content type 1, AEAD tag 16")
TLS_1_2 = Layer("TLS 1.2 record", _records(29), "RFC 5288, section 3: header 5, explicit nonce 8, AES-GCM tag 16")
AVC_TAG = Layer("video tag", _fixed(5), "Adobe Flash Video File Format 10.1, E.4.3: VideoTagHeader of AVC")
RTMP_MESSAGE = Layer(
    "RTMP chunk headers",
    lambda size: 8 + (size - 1) // RTMP_CHUNK,
    "Adobe RTMP 1.0, section 5.3.1: type 1 before a message, type 3 before its later chunks of 4096 bytes",
)

RTP_SPLITS = "RTP splits them into packets: describe these as a flow of constant rate, or as recorded messages"
"""The way round for messages that RTP does not carry as they are."""


@documented()
class Encapsulation:
    """The protocols between the application's data and TCP.

    Examples
    --------
    >>> over = encapsulation("turn-tcp")
    >>> over.packet_size(60), over.parts(60)
    (88, [('RTP header', 12), ('SRTP tag', 10), ('ChannelData header and padding', 6)])
    """

    name: str = meaning("Name on the command line.")
    title: str = meaning("Title for people.")
    layers: tuple[Layer, ...] = meaning("Protocol layers from the innermost to the outermost; may be empty.")
    whole_frames: bool = meaning(
        "Whether a message carries a whole video frame, so that its headers come once per frame and not per segment.",
        default=False,
    )

    def parts(self, payload: int) -> list[tuple[str, int]]:
        """Return the name of each layer and the bytes that it adds to `payload` [bytes, 1 or more].

        Raises
        ------
        ValueError
            If the payload is too large for a layer.
        """
        size, parts = payload, []
        for layer in self.layers:
            if layer.largest is not None and size > layer.largest:
                most = layer.largest - (size - payload)
                raise InvalidValueError("packet_size", payload, f"be at most {most} bytes over {self.name}")
            added = layer.overhead(size)
            parts.append((layer.name, added))
            size += added
        return parts

    def packet_size(self, payload: int) -> int:
        """Return the bytes that are written to TCP for `payload` [bytes, 1 or more]."""
        return payload + sum(added for _, added in self.parts(payload))

    def largest_payload(self, packet_size: int) -> int:
        """Return the largest payload [bytes] whose packet fits into `packet_size` [bytes, 1 to 65495].

        Raises
        ------
        ValueError
            If not even a payload of one byte fits.

        Examples
        --------
        >>> encapsulation("turn-tls").largest_payload(1448)
        1398
        """
        for payload in range(packet_size, 0, -1):
            if self.packet_size(payload) <= packet_size:
                return payload
        raise InvalidValueError("packet_size", packet_size, f"be at least {self.packet_size(1)} bytes over {self.name}")

    def around(self, source: Sent) -> Sent:
        """Return the source that TCP carries, for a source of payloads without headers.

        Each packet or recorded message gets its own headers. The sizes of a video and of random messages are scaled to
        the bitrate with the headers of a message of mean size.

        Raises
        ------
        InvalidValueError
            If a payload is too large for a layer, or RTP would split the messages into packets; a ValueError.

        Examples
        --------
        >>> encapsulation("wss").around(Flow(960, 0.020))
        Flow(packet_size=990, interval=0.02)
        """
        carried: Any = source
        if not self.layers:
            return source
        if isinstance(source, Flow | Speech | Utterances):
            carried = replace(source, packet_size=self.packet_size(source.packet_size))
        elif isinstance(source, Trace):
            added = {size: self.packet_size(size) for size in set(source.sizes.tolist())}
            carried = replace(source, sizes=[added[size] for size in source.sizes.tolist()])
        elif RTP in self.layers:
            whole = ", ".join(known.name for known in _KNOWN if known.layers and RTP not in known.layers)
            raise InvalidValueError("over", self.name, f"carry whole frames or messages, as {whole} do", RTP_SPLITS)
        else:
            size = round(source.mean_size)
            carried = source.at_bitrate(source.mean_bitrate * self.packet_size(size) / size)
        result: Sent = carried
        return result

    def in_words(self, payload: int, message: str = "a message") -> str:
        """Return in one line the bytes that the headers add to `message`, which has `payload` bytes [1 or more].

        Examples
        --------
        >>> encapsulation("websocket").in_words(960)
        'websocket adds 8 bytes to a message of 960 bytes, 968 in total: WebSocket header, masked 8'
        """
        total, added = self.packet_size(payload), " + ".join(f"{name} {size}" for name, size in self.parts(payload))
        if not added:
            return f"{self.name} adds no bytes to {message} of {payload} bytes"
        return f"{self.name} adds {total - payload} bytes to {message} of {payload} bytes, {total} in total: {added}"


_KNOWN = (
    Encapsulation("tcp", "no headers", ()),
    Encapsulation("rtp-tcp", "RTP over TCP", (RTP, FRAMING)),
    Encapsulation("ice-tcp", "WebRTC over ICE-TCP", (RTP, SRTP, FRAMING)),
    Encapsulation("turn-tcp", "WebRTC over TURN over TCP", (RTP, SRTP, CHANNEL_DATA)),
    Encapsulation("turn-tls", "WebRTC over TURN over TLS", (RTP, SRTP, CHANNEL_DATA, TLS_1_3)),
    Encapsulation("websocket", "WebSocket, from the client", (WEBSOCKET_CLIENT,)),
    Encapsulation("wss", "WebSocket over TLS, from the client", (WEBSOCKET_CLIENT, TLS_1_3)),
    Encapsulation("websocket-down", "WebSocket, from the server", (WEBSOCKET_SERVER,)),
    Encapsulation("wss-down", "WebSocket over TLS, from the server", (WEBSOCKET_SERVER, TLS_1_3)),
    Encapsulation("tls", "TLS 1.3", (TLS_1_3,)),
    Encapsulation("rtmp", "RTMP, a frame of H.264 in a message", (AVC_TAG, RTMP_MESSAGE), whole_frames=True),
    Encapsulation("rtmps", "RTMP over TLS", (AVC_TAG, RTMP_MESSAGE, TLS_1_3), whole_frames=True),
)

ENCAPSULATIONS = {known.name: known for known in _KNOWN}
"""The encapsulations by name."""


def encapsulation(name: str) -> Encapsulation:
    """Return the encapsulation called `name`.

    Raises
    ------
    ValueError
        If there is no such encapsulation; the message lists the known ones.

    Examples
    --------
    >>> encapsulation("rtp-tcp").packet_size(160)
    174
    """
    if name not in ENCAPSULATIONS:
        raise InvalidValueError("over", name, f"be one of {', '.join(ENCAPSULATIONS)}")
    return ENCAPSULATIONS[name]
