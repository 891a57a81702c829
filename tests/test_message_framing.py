"""The size of framed messages beside frames that are built byte by byte, and the lengths that the RFCs print."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.applications import application
from tcpdelay.message_framing import turn_size, websocket_size


def frame(payload, masked):
    """Return a binary WebSocket frame as RFC 6455, section 5.2, draws it."""
    bit = 0x80 if masked else 0
    if payload < 126:
        header = struct.pack("!BB", 0x82, bit | payload)
    elif payload < 1 << 16:
        header = struct.pack("!BBH", 0x82, bit | 126, payload)
    else:
        header = struct.pack("!BBQ", 0x82, bit | 127, payload)
    return header + (b"mask" if masked else b"") + bytes(payload)


def records(content):
    """Return TLS 1.3 records of RFC 8446, section 5.2, with zeros in place of what is encrypted."""
    parts = [content[start : start + (1 << 14)] for start in range(0, len(content), 1 << 14)]
    return b"".join(struct.pack("!BHH", 23, 0x0303, len(part) + 1 + 16) + part + b"\x17" + bytes(16) for part in parts)


@given(payload=st.integers(1, 200_000), masked=st.booleans())
def test_a_websocket_message_is_as_long_as_its_frame(payload, masked):
    built = frame(payload, masked)
    assert websocket_size(payload, masked=masked, tls=False) == len(built)
    assert websocket_size(payload, masked=masked) == len(records(built))


@pytest.mark.parametrize("payload", [125, 126, 65_535, 65_536])
def test_the_length_field_grows_where_the_rfc_says(payload):
    assert websocket_size(payload, masked=True, tls=False) == len(frame(payload, masked=True))


def test_the_examples_of_rfc_6455():
    # Section 5.7: "Hello" unmasked and masked, 256 bytes and 64 KiB of binary data, unmasked.
    sizes = [websocket_size(5, masked=False, tls=False), websocket_size(5, masked=True, tls=False)]
    sizes += [websocket_size(size, masked=False, tls=False) for size in (256, 65_536)]
    assert sizes == [7, 11, 260, 65_546]


@given(payload=st.integers(1, 1400))
def test_a_relayed_packet_is_padded_to_four_bytes(payload):
    # Channel number and length; RTP; its authentication tag; zeros up to a multiple of four.
    message = struct.pack("!HH", 0x4000, 12 + payload + 10) + bytes(12 + payload + 10)
    message += bytes(-len(message) % 4)
    assert turn_size(payload, tls=False) == len(message)
    assert turn_size(payload) == len(records(message))


def test_the_preset_of_the_voice_agent_is_what_the_frame_makes_of_its_speech():
    assert application("voice-agent").flow.packet_size == websocket_size(960, masked=True, tls=False)


@pytest.mark.parametrize("payload", [0, -1, 10_000_001, 60.5, True, "60"])
def test_a_size_that_cannot_be_is_refused(payload):
    for size in (lambda: websocket_size(payload, masked=True), lambda: turn_size(payload)):
        with pytest.raises(ValueError, match=r"^payload must be a whole number of bytes from 1 to 10000000, got "):
            size()
