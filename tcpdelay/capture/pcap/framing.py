"""Where the messages of an application end in the stream, read from their headers.

The payload is read as it passes; nothing of it is kept but segments that came out of order.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Framing = Literal["auto", "rfc4571", "length4", "websocket"]

MAX_MESSAGE = 2**26
"""Largest message that is believed [bytes]."""
MAX_WAITING = 2**24
"""Most bytes of segments out of order that are kept."""
_MAX_HTTP = 2**16
_OVERHEAD = 100
"""What a waiting segment takes besides its payload [bytes], about."""
_END_OF_HTTP = b"\r\n\r\n"


class Framer:
    r"""Reads the headers of length-prefixed messages or WebSocket frames.

    Parameters
    ----------
    framing : {"rfc4571", "length4", "websocket"}
        A length of 2 bytes (RFC 4571, 2) or 4 bytes before each message, most significant byte first, or the frames of
        WebSocket (RFC 6455, 5.2), with or without the HTTP that precedes them. Of WebSocket, messages count, not
        frames, and no control frames.

    Raises
    ------
    ValueError
        When fed with a payload that does not have this framing, or of which a header is not in the capture.

    Examples
    --------
    >>> framer = Framer("rfc4571")
    >>> framer.feed(1000, b"\x00\x03abc\x00\x01", 7, number=1)
    >>> framer.feed(1007, b"d", 1, number=2)
    >>> framer.ends.tolist()
    [5, 8]
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
        """Position behind the last byte of each message, counted from the first byte of the stream."""
        return np.array(self._ends, np.int64)

    def take(self, limit: int) -> NDArray[np.int64]:
        """Return the ends of messages up to a position, and forget them."""
        ends = self.ends
        taken = int(np.searchsorted(ends, limit, side="right"))
        del self._ends[:taken]
        return ends[:taken]

    def feed(self, seq: int, payload: bytes, length: int, number: int) -> None:
        """Take the payload of one segment.

        Parameters
        ----------
        seq : int
            Its sequence number.
        payload : bytes
            What was captured of it, from its start.
        length : int
            How much of it there was on the wire.
        number : int
            Number of the packet, for messages.
        """
        if self._base is None:
            self._base = seq
        start = self._position + (seq - self._base - self._position + 2**31) % 2**32 - 2**31
        if start + length <= self._position:
            return
        heappush(self._waiting, (start, payload, length, number))
        self._waiting_bytes += len(payload) + _OVERHEAD
        while self._waiting and self._waiting[0][0] <= self._position:
            start, payload, length, number = heappop(self._waiting)
            self._waiting_bytes -= len(payload) + _OVERHEAD
            self._read(start, payload, length, number)
        if self._waiting_bytes > MAX_WAITING:
            raise ValueError(f"the payload from byte {self._position} of the stream on is not in the capture")

    def _read(self, start: int, payload: bytes, length: int, number: int) -> None:
        """Read on in a segment that begins at or before the position."""
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
            # The capture begins behind the handshake; what was taken for HTTP is the first frame.
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
        # A message ends with a frame that has FIN; control frames come between its frames.
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
