"""Bytes around the data: against messages built byte by byte, and on the command line."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.encapsulation import (
    ENCAPSULATIONS,
    RTMP_CHUNK,
    SEND_INDICATION,
    TLS_1_2,
    TLS_1_3,
    TLS_RECORD,
    WEBSOCKET_SERVER,
    Encapsulation,
    encapsulation,
)
from tcpdelay.scenario.media import Speech, Video
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.scenario import APPLICATIONS
from tcpdelay.scenario.source import Flow

payloads = st.integers(1, 65_512)


def rtp(payload):
    return struct.pack("!BBHII", 0x80, 111, 1, 2, 3) + payload


def srtp(payload):
    return rtp(payload) + bytes(10)


def rfc4571(message):
    return struct.pack("!H", len(message)) + message


def padded(message):
    while len(message) % 4:
        message += b"\0"
    return message


def channel_data(message):
    return padded(struct.pack("!HH", 0x4000, len(message)) + message)


def send_indication(message):
    peer = struct.pack("!HHBBH4s", 0x0012, 8, 0, 1, 40_000, bytes(4))
    attributes = peer + padded(struct.pack("!HH", 0x0013, len(message)) + message)
    return struct.pack("!HHI12s", 0x0016, len(attributes), 0x2112A442, bytes(12)) + attributes


def web_socket(message, mask=bytes(4)):
    size = len(message)
    if size < 126:
        header = struct.pack("!BB", 0x82, size)
    elif size < 65_536:
        header = struct.pack("!BBH", 0x82, 126, size)
    else:
        header = struct.pack("!BBQ", 0x82, 127, size)
    return header + mask + message


def tls_records(message, nonce=b"", inner_type=b"\x17"):
    records = b""
    for start in range(0, len(message), 16_384):
        content = nonce + message[start : start + 16_384] + inner_type + bytes(16)
        records += struct.pack("!BHH", 23, 0x0303, len(content)) + content
    return records


def rtmp(frame):
    tag = b"\x27\x01\0\0\0" + frame
    # Format 1 and chunk stream 4; time, length, type of message.
    chunks = bytes([0x44]) + bytes(3) + len(tag).to_bytes(3, "big") + b"\x09" + tag[:RTMP_CHUNK]
    for start in range(RTMP_CHUNK, len(tag), RTMP_CHUNK):
        chunks += bytes([0xC4]) + tag[start : start + RTMP_CHUNK]
    return chunks


BUILT = {
    "tcp": lambda data: data,
    "rtp-tcp": lambda data: rfc4571(rtp(data)),
    "ice-tcp": lambda data: rfc4571(srtp(data)),
    "turn-tcp": lambda data: channel_data(srtp(data)),
    "turn-tls": lambda data: tls_records(channel_data(srtp(data))),
    "websocket": web_socket,
    "wss": lambda data: tls_records(web_socket(data)),
    "websocket-down": lambda data: web_socket(data, mask=b""),
    "wss-down": lambda data: tls_records(web_socket(data, mask=b"")),
    "tls": tls_records,
    "rtmp": rtmp,
    "rtmps": lambda data: tls_records(rtmp(data)),
}


def test_every_encapsulation_is_built_here_too():
    assert BUILT.keys() == ENCAPSULATIONS.keys()


def test_headers_are_added_to_the_messages_of_every_source():
    over = encapsulation("rtmp")
    assert over.around(Speech(160, 0.020)) == Speech(over.packet_size(160), 0.020)
    trace = Trace([0.0, 0.1, 0.2], [100, 5000, 100])
    assert over.around(trace).sizes.tolist() == [over.packet_size(size) for size in (100, 5000, 100)]
    video = Video(4_000_000, key_interval=1.0)
    carried = over.around(video)
    assert carried.mean_size == pytest.approx(over.packet_size(round(video.mean_size)), rel=1e-4)
    assert (carried.key_interval, encapsulation("tcp").around(video)) == (1.0, video)
    with pytest.raises(InvalidValueError, match=r"^over must carry whole frames or messages, as websocket, .*: desc"):
        encapsulation("ice-tcp").around(video)


def test_a_video_with_key_frames_has_the_headers_of_rtmp(run):
    status, printed, said = run(
        *("predict", "--rtt", "60ms", "--loss", "0.01%", "--bitrate", "1Mbit/s", "--over", "rtmp"),
        *("--key-interval", "2s", "--packets", "5000", "--method", "simulation", "--format", "json"),
    )
    assert status == 0
    assert (
        "rtmp adds 14 bytes to an average message of 4167 bytes, 4181 in total: video tag 5 + RTMP chunk headers 9"
        in said
    )
    assert json.loads(printed)["bitrate"] == pytest.approx(1_000_000 * 4181 / 4167)


@pytest.mark.parametrize("name", ENCAPSULATIONS)
@pytest.mark.parametrize(
    "payload", [1, 2, 3, 4, 59, 60, 61, 125, 126, 160, 960, 1448, 4091, 4092, 16_384, 16_385, 65_495, 65_513]
)
def test_sizes_are_those_of_messages_built_byte_by_byte(name, payload):
    assert encapsulation(name).packet_size(payload) == len(BUILT[name](bytes(payload)))


@given(st.integers(65_514, 100_000))
def test_what_a_field_of_two_bytes_cannot_count_is_refused(payload):
    for name in ("ice-tcp", "turn-tcp", "turn-tls"):
        with pytest.raises(ValueError, match=f"packet_size must be at most 65513 bytes over {name}, got {payload}"):
            encapsulation(name).packet_size(payload)
        with pytest.raises(struct.error):
            BUILT[name](bytes(payload))


@given(st.integers(65_517, 100_000))
def test_an_indication_holds_no_more_than_its_length_can_say(payload):
    with pytest.raises(ValueError, match="at most 65516 bytes"):
        Encapsulation("indications", "TURN without a channel", (SEND_INDICATION,)).packet_size(payload)
    with pytest.raises(struct.error):
        send_indication(bytes(payload))


@given(st.integers(1, 65_516))
def test_layers_outside_the_list_are_those_of_built_messages(payload):
    data = bytes(payload)
    assert payload + SEND_INDICATION.overhead(payload) == len(send_indication(data))
    assert payload + TLS_1_2.overhead(payload) == len(tls_records(data, nonce=bytes(8), inner_type=b""))
    assert payload + TLS_1_3.overhead(payload) == len(tls_records(data))
    assert payload + WEBSOCKET_SERVER.overhead(payload) == len(web_socket(data, mask=b""))


@pytest.mark.parametrize("payload", [65_535, 65_536, 1_000_000])
def test_frames_and_messages_may_be_larger(payload):
    for name in ("websocket", "wss", "tls", "rtmp", "rtmps"):
        assert encapsulation(name).packet_size(payload) == len(BUILT[name](bytes(payload)))


@given(payloads, st.sampled_from(list(ENCAPSULATIONS)))
def test_parts_add_up_and_larger_payloads_are_never_smaller_packets(payload, name):
    over = encapsulation(name)
    size = over.packet_size(payload)
    assert size == payload + sum(added for _, added in over.parts(payload))
    assert size <= over.packet_size(payload + 1)
    assert over.around(Flow(payload, 0.020)) == Flow(size, 0.020)


@given(st.integers(88, 65_495), st.sampled_from(list(ENCAPSULATIONS)))
def test_the_largest_payload_fits_and_one_byte_more_does_not(mss, name):
    over = encapsulation(name)
    payload = over.largest_payload(mss)
    assert over.packet_size(payload) <= mss < over.packet_size(payload + 1)


def test_where_nothing_fits_it_is_said():
    with pytest.raises(ValueError, match="packet_size must be at least 28 bytes over turn-tcp, got 20"):
        encapsulation("turn-tcp").largest_payload(20)


def test_layers_can_be_put_together_by_hand():
    indications = Encapsulation("indications", "TURN without a channel", (SEND_INDICATION, TLS_1_2))
    assert indications.packet_size(82) == len(tls_records(send_indication(bytes(82)), bytes(8), b""))
    assert TLS_RECORD == 2**14


@pytest.mark.parametrize(("name", "size"), [("voip", 174), ("opus", 74), ("voice-agent", 968), ("live-video", 1448)])
def test_presets_hold_what_is_around_their_data(name, size):
    assert APPLICATIONS[name].at_constant_rate.flow.packet_size == size


@pytest.mark.parametrize(
    ("given", "size", "interval", "said"),
    [
        (
            ["--app", "opus"],
            88,
            0.020,
            "28 bytes to a message of 60 bytes, 88 in total: RTP header 12 + SRTP tag 10 + ",
        ),
        (
            ["--packet-size", "80", "--interval", "20ms"],
            108,
            0.020,
            "28 bytes to a message of 80 bytes, 108 in total: ",
        ),
        (
            ["--bitrate", "64kbit/s", "--interval", "20ms"],
            188,
            0.020,
            "28 bytes to a message of 160 bytes, 188 in total: ",
        ),
        (["--app", "opus", "--bitrate", "48kbit/s"], 148, 0.020, "28 bytes to a message of 120 bytes, 148 in total: "),
        (
            ["--app", "live-video", "--packet-size", "1422"],
            1448,
            8 * 1422 / 2_500_000,
            "26 bytes to a message of 1422 bytes, 1448 in total: ",
        ),
        (["--bitrate", "1Mbit/s"], 1448, 8 * 1422 / 1_000_000, "26 bytes to a message of 1422 bytes, 1448 in total: "),
        (
            ["--bitrate", "1Mbit/s", "--mss", "536"],
            536,
            8 * 510 / 1_000_000,
            "26 bytes to a message of 510 bytes, 536 in total: ",
        ),
    ],
)
def test_the_command_line_takes_sizes_for_those_of_the_data(run, given, size, interval, said):
    status, printed, errors = run(
        "predict", "--rtt", "100ms", "--loss", "1%", *given, "--over", "turn-tcp", "--format", "json"
    )
    assert status == 0
    replaced = "live-video as a flow of constant rate, because only a constant rate has --packet-size\n"
    assert errors.removeprefix(replaced).startswith(f"turn-tcp adds {said}")
    assert (replaced in errors) == ("live-video" in given)
    answer = json.loads(printed)
    assert answer["packet_size"] == size
    assert answer["interval"] == pytest.approx(interval)


def test_with_a_presets_own_encapsulation_nothing_changes(run):
    scenario = ["predict", "--rtt", "100ms", "--loss", "1%", "--app", "voice-agent"]
    assert run(*scenario)[:2] == run(*scenario, "--over", "websocket")[:2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["predict", "--app", "opus", "--over", "quic"],
            "tcpdelay predict: --over: must be one of tcp, rtp-tcp, ice-tcp, turn-tcp, turn-tls, websocket, wss, "
            "websocket-down, wss-down, tls, rtmp, rtmps, got 'quic'",
        ),
        (
            ["predict", "--bitrate", "4Mbit/s", "--fps", "30", "--interval", "20ms"],
            "tcpdelay predict: --fps and --interval: give one of them",
        ),
        (
            ["predict", "--bitrate", "4Mbit/s", "--fps", "30", "--packet-size", "1448"],
            "tcpdelay predict: --fps, --packet-size and --bitrate: give two of them; the third follows from these",
        ),
        (
            ["predict", "--fps", "30"],
            "tcpdelay predict: --fps needs --bitrate, --packet-size or --app beside it",
        ),
        (
            ["predict", "--bitrate", "4Mbit/s", "--fps", "0"],
            "tcpdelay predict: --fps: must lie between 0.0166667 and 1e+07 1/s, got 0",
        ),
        (
            ["solve", "interval", "--bitrate", "64kbit/s", "--over", "tls"],
            "tcpdelay solve: --over: does not go with solve interval; give the bytes around the data as --header",
        ),
    ],
)
def test_what_does_not_go_is_refused_in_one_line(run, arguments, message):
    assert run(*arguments, "--rtt", "100ms", "--loss", "1%") == (2, "", message + "\n")


RATE_SAID = "30 frames a second over rtmp; --fps sets another rate"


@pytest.mark.parametrize(
    ("given", "frame", "interval"),
    [
        (["--app", "live-video", "--over", "rtmp", "--interval", "40ms", "--bitrate", "4Mbit/s"], 20_000, 0.040),
        (["--over", "rtmp", "--bitrate", "4Mbit/s"], 16_667, 1 / 30),
        (["--over", "rtmp", "--packet-size", "9000", "--fps", "50"], 9000, 1 / 50),
        (["--over", "rtmp", "--packet-size", "9000", "--interval", "40ms"], 9000, 0.040),
        (["--over", "rtmp", "--app", "voip"], 160, 0.020),
    ],
)
def test_over_rtmp_each_frame_has_headers_once(run, given, frame, interval):
    status, printed, errors = run("predict", "--rtt", "20ms", "--loss", "0.1%", *given, "--format", "json")
    answer, over = json.loads(printed), given[given.index("--over") + 1]
    assert status == 0
    assert answer["packet_size"] == len(BUILT[over](bytes(frame)))
    assert answer["interval"] == pytest.approx(interval)
    # A frame rate that nobody stated is named.
    stated = {"--fps", "--interval"} & set(given) or "voip" in given
    assert (RATE_SAID in errors) == (not stated)


@pytest.mark.parametrize(
    ("given", "header"),
    [(["--over", "rtmp"], "rtmp"), (["--over", "rtmp", "--fps", "25"], "rtmp"), (["--over", "tls"], "tls")],
)
def test_the_largest_bitrate_is_stated_with_and_without_headers(run, given, header):
    asked = ["solve", "bitrate", "--rtt", "30ms", "--loss", "2%", "--limit", "150ms"]
    status, printed, _ = run(*asked, *given, "--format", "json")
    answer = json.loads(printed)
    assert status == 0
    data = round(answer["data_bitrate"] * answer["interval"] / 8)
    assert len(BUILT[header](bytes(data))) == answer["packet_size"]
    assert 8 * answer["packet_size"] / answer["interval"] == pytest.approx(answer["value"], rel=0.001)
    status, printed, _ = run(*asked, *given)
    assert f"without the headers of {header}" in printed
    assert "headers" not in run(*asked, "--interval", "33ms")[1]


def test_the_largest_bitrate_over_rtmp_is_that_of_frames(run):
    asked = ["solve", "bitrate", "--rtt", "60ms", "--loss", "0.5%", "--limit", "2s", "--quantile", "99%"]
    frames = json.loads(run(*asked, "--interval", "40ms", "--grow", "size", "--format", "json")[1])
    over_rtmp = json.loads(run(*asked, "--over", "rtmp", "--fps", "25", "--format", "json")[1])
    assert over_rtmp["interval"] == 0.040
    assert over_rtmp["value"] == pytest.approx(frames["value"], rel=0.01)


def test_the_packet_rate_asked_for_is_that_of_whole_packets(run):
    status, printed, errors = run(
        "solve", "packet-rate", "--rtt", "100ms", "--loss", "1%", "--over", "tls", "--format", "json"
    )
    assert (status, errors) == (0, "tls adds 22 bytes to a message of 1426 bytes, 1448 in total: TLS 1.3 record 22\n")
    assert json.loads(printed)["value"] > 1
