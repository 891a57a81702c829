"""How many bytes of TCP's stream a message takes, with all that real-time applications put around it."""

from __future__ import annotations

MASK = 4
SMALL_MESSAGE, MEDIUM_MESSAGE = 125, 65_535
"""Largest payloads of a WebSocket frame whose length takes one byte, and three."""
RECORD = 16_384
"""Largest content of a TLS record [bytes]."""
RECORD_OVERHEAD = 22
"""Bytes around it: header, type of the content and the tag of AES-GCM or ChaCha20-Poly1305."""
RTP_HEADER, SRTP_TAG = 12, 10
CHANNEL_HEADER, CHANNEL_ALIGNMENT = 4, 4


def websocket_size(payload: int, *, masked: bool, tls: bool = True) -> int:
    """Return the bytes in TCP's stream of one WebSocket message, sent as one frame without compression.

    Parameters
    ----------
    payload : int
        Bytes of the message, 1 to 10 000 000.
    masked : bool
        Whether it goes from the client to the server, which masks it with four bytes.
    tls : bool
        Whether it goes over TLS 1.3 (``wss:``), in records of its own.

    Returns
    -------
    int
        Payload, frame header and TLS [bytes]: the `packet_size` of a `Flow`.

    Raises
    ------
    ValueError
        If `payload` lies outside its range.

    References
    ----------
    RFC 6455, section 5.2 (frames); RFC 8446, sections 5.1 and 5.2, and RFC 5116 (records).

    Examples
    --------
    Speech in 16 bits at 24 kHz, 20 ms a message, from a client, and 60 bytes of Opus back over TLS:

    >>> websocket_size(960, masked=True, tls=False), websocket_size(60, masked=False)
    (968, 84)
    """
    _check_payload(payload)
    length = 1 if payload <= SMALL_MESSAGE else 3 if payload <= MEDIUM_MESSAGE else 9
    return _in_records(1 + length + (MASK if masked else 0) + payload, tls)


def turn_size(payload: int, *, tls: bool = True) -> int:
    """Return the bytes in TCP's stream of one RTP packet that is relayed by a TURN server over TCP.

    Parameters
    ----------
    payload : int
        Bytes of speech or video in the packet, 1 to 10 000 000.
    tls : bool
        Whether the server is reached over TLS 1.3 (``turns:``), each message in records of its own.

    Returns
    -------
    int
        Payload, SRTP header and tag of 80 bits, and the padded ChannelData message of TURN [bytes].

    Raises
    ------
    ValueError
        If `payload` lies outside its range.

    References
    ----------
    RFC 8656, section 12.5 (ChannelData over TCP); RFC 3550, section 5.1; RFC 3711, section 4.2 (HMAC-SHA1-80);
    RFC 8446, section 5.2.

    Examples
    --------
    >>> turn_size(60, tls=False), turn_size(60)
    (88, 110)
    """
    _check_payload(payload)
    packet = RTP_HEADER + payload + SRTP_TAG
    padded = -(-packet // CHANNEL_ALIGNMENT) * CHANNEL_ALIGNMENT
    return _in_records(CHANNEL_HEADER + padded, tls)


def _in_records(size: int, tls: bool) -> int:
    return size + -(-size // RECORD) * RECORD_OVERHEAD if tls else size


def _check_payload(payload: int) -> None:
    if type(payload) is not int or not 1 <= payload <= 10_000_000:
        raise ValueError(f"payload must be a whole number of bytes from 1 to 10000000, got {payload!r}")
