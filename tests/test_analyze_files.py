import gzip
import lzma
import os
import re
import struct
import zlib
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import dpkt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcap_files import (
    ACK,
    LINKS,
    MILLISECOND,
    PSH,
    START,
    Connection,
    Packet,
    enhanced,
    frame,
    interface,
    option,
    pcap,
    section,
    tcp,
)
from tcpdelay.capture.pcap import decoding
from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.decoding import Framer, Options, options_of
from tcpdelay.cli.captures import is_of_testbed

CONNECTION = Connection(lost=frozenset({57}))


@pytest.fixture
def refused(written):
    """Return why the analysis of a file is refused, without the file's name."""

    def refused(content, **options):
        file = written(content)
        with pytest.raises(ValueError, match=r"capture\.pcap: ") as caught:
            analyze_captures([file], **options)
        line = str(caught.value)
        assert line.isprintable()
        return line.removeprefix(f"{file}: ")

    return refused


@pytest.mark.parametrize(("back", "seconds"), [(3_600_000_000_000, "3600"), (1_500_000_000, r"1\.\d+")])
def test_a_clock_that_was_set_back_is_named(refused, back, seconds):
    packets = CONNECTION.sender
    late = [replace(packet, time=packet.time - back) for packet in packets[150:]]
    assert re.fullmatch(
        rf"packet 161 and the 10 before it were captured {seconds} s before others in front of them: the clock was set "
        r"back, or captures were joined; cut the file there, or sort it with reordercap",
        refused(pcap([*packets[:150], *late])),
    )


@pytest.mark.parametrize("link", LINKS)
def test_all_link_layers_carry_the_same_connection(written, link):
    found = analyze_captures([written(pcap(CONNECTION.sender, link))])
    assert found.sender == ("[::1]:4000" if link == "raw-ipv6" else "10.0.0.1:4000")
    assert (found.payload, found.sent, found.lost, found.packet_size) == (200 * 174, 201, 1, 174)
    assert found.delay_samples == pytest.approx(CONNECTION.delays(), abs=2e-6)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("nano", [True, False])
def test_byte_orders_and_resolutions_of_pcap(written, order, nano):
    packets = list(CaptureFile(written(pcap(CONNECTION.sender, order=order, nano=nano))))
    unit = 1 if nano else 1000
    assert [packet.time for packet in packets] == [packet.time // unit * unit for packet in CONNECTION.sender]
    assert [packet.number for packet in packets] == list(range(1, len(packets) + 1))


@pytest.mark.parametrize("order", "<>")
def test_pcapng_has_clocks_of_its_own_for_each_interface(written, order):
    # A comment need not be UTF-8; times have powers of ten or two, or an offset in seconds.
    described = [
        interface(option(1, b"\xff\xfe", order) + option(9, b"\x09", order) + option(0, b"", order), order),
        interface(option(9, b"\x94", order), order),
        interface(option(14, struct.pack(f"{order}q", 1_000_000), order), order, link=101),
    ]
    kinds = [(10**9, 0, "ethernet"), (2**20, 0, "ethernet"), (10**6, 1_000_000, "raw")]
    # A block of statistics, of no interest, and a second section, whose interfaces are described anew.
    other = struct.pack(f"{order}III", 5, 16, 0) + struct.pack(f"{order}I", 16)
    content = section(order) + b"".join(described) + other
    for number, packet in enumerate(CONNECTION.sender):
        which = number % 3
        ticks, offset, link = kinds[which]
        if number == 100:
            content += section(order) + b"".join(described)
        content += enhanced(packet, which, ticks, offset, order, link)
    file = written(content, "capture.pcapng")
    times = np.array([packet.time for packet in CaptureFile(file)])
    expected = np.array([packet.time for packet in CONNECTION.sender])
    assert (times[::3] == expected[::3]).all()
    assert (abs(times - expected) <= 1000).all()
    found = analyze_captures([file])
    assert (found.lost, found.sent) == (1, 201)
    assert found.delay_samples == pytest.approx(CONNECTION.delays(), abs=5e-6)


def test_compressed_captures(written):
    assert analyze_captures([written(gzip.compress(pcap(CONNECTION.sender)), "capture.pcap.gz")]).sent == 201


def test_payload_counts_though_it_was_not_kept(written):
    cut = [replace(packet, kept=66) for packet in CONNECTION.sender]
    found = analyze_captures([written(pcap(cut))])
    assert (found.payload, found.packet_size) == (200 * 174, 174)


def test_a_length_of_zero_left_by_offloading_is_that_of_the_frame(written):
    packets = [replace(packet, total_length=0) for packet in CONNECTION.sender]
    assert analyze_captures([written(pcap(packets, "raw"))]).payload == 200 * 174


def test_a_capture_that_ends_within_a_packet_is_read_up_to_there(written):
    whole = pcap(CONNECTION.sender)
    cut = written(whole[:-5])
    found = analyze_captures([cut])
    last = len(CONNECTION.sender)
    offset = len(pcap(CONNECTION.sender[:-1]))
    assert found.notes == (f"{cut}: ends within packet {last} at byte {offset}, which is left out",)


def unpacked_by_zlib(packed):
    return zlib.decompressobj(31).decompress(packed)


@settings(max_examples=40)
@given(st.floats(0.1, 1))
def test_a_compressed_capture_that_breaks_off_is_read_up_to_there(tmp_path_factory, share):
    packed = gzip.compress(pcap(CONNECTION.sender))
    packed = packed[: min(int(share * len(packed)), len(packed) - 1)]
    left = unpacked_by_zlib(packed)
    ends = np.cumsum([len(pcap([])), *(len(pcap([packet])) - len(pcap([])) for packet in CONNECTION.sender)])
    count = int(np.searchsorted(ends, len(left), side="right")) - 1
    where = f"within packet {count + 1} at byte {ends[count]} unpacked, which is left out"
    if ends[count] == len(left):
        where = f"behind packet {count} at byte {len(left)} unpacked"
    file = tmp_path_factory.mktemp("cut") / "capture.pcap.gz"
    file.write_bytes(packed)
    read = CaptureFile(file)
    assert len(list(read)) == len(list(read)) == count
    assert read.cut == f"{file}: ends {where}; the gzip file breaks off there, {count} packets were read"
    plain = file.with_name("capture.pcap")
    plain.write_bytes(left)
    found, same = analyze_captures([file]), analyze_captures([plain])
    assert found.notes[0] == read.cut
    assert (found.sent, found.messages, found.rtt_mean) == (same.sent, same.messages, same.rtt_mean)


def test_a_compressed_capture_without_its_checksum_is_complete(written):
    file = written(gzip.compress(pcap(CONNECTION.sender))[:-3])
    found, count = analyze_captures([file]), len(CONNECTION.sender)
    assert found.sent == 201
    end = f"{file}: ends behind packet {count} at byte {len(pcap(CONNECTION.sender))} unpacked; "
    assert found.notes == (f"{end}the gzip file breaks off there, {count} packets were read",)


def test_members_of_gzip_follow_one_another(written):
    whole = pcap(CONNECTION.sender)
    parts = [gzip.compress(whole[:5000]), bytes(70_000), gzip.compress(b""), gzip.compress(whole[5000:]), bytes(9)]
    found = analyze_captures([written(b"".join(parts))])
    assert (found.sent, found.notes) == (201, ())
    assert len(list(CaptureFile(written(b"".join(parts[:-1])[:-2000])))) < len(CONNECTION.sender)


def test_a_damaged_gzip_file_is_said_with_its_byte_and_packet(refused):
    head = pcap(CONNECTION.sender[:60])
    packed = gzip.compress(head)
    last = len(packed)
    # Of a second member, the third byte is the method of compression, which zlib judges with the fourth.
    assert refused(packed + packed[:2] + b"\x07" + packed[3:]) == (
        f"is damaged: gzip reports 'unknown compression method' at byte {last + 3} of the file, behind packet 60"
    )
    assert refused(packed + b"no gzip") == (
        f"is damaged: gzip reports 'incorrect header check' at byte {last + 1} of the file, behind packet 60"
    )
    wrong = packed[:-8] + bytes(4) + packed[-4:]
    assert refused(wrong).startswith("is damaged: gzip reports 'incorrect data check' at byte ")
    # A block of a type that does not exist, behind intact ones.
    compressor = zlib.compressobj(wbits=31)
    begin = compressor.compress(head) + compressor.flush(zlib.Z_FULL_FLUSH)
    assert refused(begin + b"\xff" * 1000) == (
        f"is damaged: gzip reports 'invalid block type' at byte {len(begin)} of the file, behind packet 60"
    )


def test_files_that_are_no_captures(tmp_path, refused):
    for captures in ([], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="captures must be one or two files"):
            analyze_captures(captures)
    with pytest.raises(ValueError, match="no regular file"):
        analyze_captures([tmp_path])
    assert refused(b"") == "is empty or too short for a capture"
    assert refused(b"RIFF0000") == "is neither pcap nor pcapng: it begins with 52494646"
    assert refused(pcap([])[:20]) == "ends within the header of the file"
    assert refused(pcap([])) == "holds no packet"
    assert refused(pcap([Packet(START, True)])) == "holds no TCP connection that carries payload"
    assert refused(gzip.compress(pcap(CONNECTION.sender))[:9]) == "is empty or too short for a capture"


@pytest.mark.parametrize(
    ("link", "protocol", "head", "tunnel"),
    [
        ("raw", 4, b"", "IP in IP"),
        ("ethernet", 47, bytes.fromhex("00000800"), "GRE"),
        ("sll2", 17, struct.pack(">HHHH", 40_000, 4789, 0, 0) + bytes.fromhex("0800000000000700"), "VXLAN"),
        ("sll", 17, struct.pack(">HHHH", 8472, 40_000, 0, 0) + bytes.fromhex("0800000000000700"), "VXLAN"),
        ("raw", 17, struct.pack(">HHHH", 53, 53, 0, 0), None),
    ],
)
def test_a_connection_in_a_tunnel_is_not_found_but_the_tunnel_is(refused, link, protocol, head, tunnel):
    outer = struct.pack(">BBHHHBBH", 0x45, 0, 0, 0, 0, 64, protocol, 0) + bytes(8) + head
    inner = frame(CONNECTION.sender[5], "ethernet" if tunnel == "VXLAN" else "raw")
    prefix = frame(CONNECTION.sender[5], link)[: {"raw": 0, "ethernet": 14, "sll": 16, "sll2": 20}[link]]
    packet = prefix + outer + inner
    record = struct.pack("<IIII", 1_700_000_000, 0, len(packet), len(packet)) + packet
    seen = f"; packets inside of tunnels (here: {tunnel}) are not read" if tunnel else ""
    assert refused(pcap([], link) + record) == f"holds no TCP connection that carries payload{seen}"


def test_what_is_damaged_is_said_with_packet_and_byte(refused):
    head, first = pcap([]), pcap(CONNECTION.sender[:1])
    assert refused(first + struct.pack("<IIII", 0, 0, 2**31, 60)) == (
        f"is damaged: a packet of {2**31} captured bytes at packet 2, byte {len(first)}"
    )
    assert refused(head[:20] + struct.pack("<I", 147) + first[24:]).startswith("packet 1 is of link type 147; ")
    assert refused(head[:4] + b"\x07\0" + head[6:]) == "is pcap of version 7.4; 2 is known"
    begin = section() + interface()
    block = enhanced(CONNECTION.sender[0])
    place = len(begin)
    assert refused(begin + block[:-4] + bytes(4)) == (
        f"is damaged: a block whose two lengths differ at packet 1, byte {place}"
    )
    assert refused(section() + block) == (
        f"is damaged: a packet of the undescribed interface 0 at packet 1, byte {len(section())}"
    )
    assert refused(begin + struct.pack("<II", 6, 3)) == f"is damaged: a block of 3 bytes at packet 1, byte {place}"


def other(packets, ends, length=None):
    return [
        replace(packet, ends=ends, length=packet.length if length is None else min(length, packet.length))
        for packet in packets
    ]


def test_the_connection_with_most_payload_is_taken_or_the_wanted_one(written, refused):
    small = Connection(size=20).sender
    packets = [
        *CONNECTION.sender,
        *other(small, ("10.0.0.1:4001", "10.0.0.2:5001")),
        *other(small, ("10.0.0.1:4002", "10.0.0.9:5002")),
    ]
    file = written(pcap(sorted(packets, key=lambda packet: packet.time)))
    found = analyze_captures([file])
    assert found.sender == "10.0.0.1:4000"
    assert found.notes == ("2 more connections with payload are in the capture; choose one by its address",)
    for wanted in ("10.0.0.9", "10.0.0.1:4002"):
        found = analyze_captures([file], wanted)
        assert (found.sender, found.packet_size) == ("10.0.0.1:4002", 20)
        assert found.notes == ()
    content = file.read_bytes()
    assert refused(content, connection="10.0.0.2:5001") == (
        "2 connections match '10.0.0.2:5001', choose one by its address: 10.0.0.1:4000 -> 10.0.0.2:5001 (34974 bytes), "
        "10.0.0.1:4001 -> 10.0.0.2:5001 (4000 bytes)"
    )
    assert refused(content, connection="::2").startswith("no connection matches '::2'; it holds 10.0.0.1:4000 -> ")


def test_a_second_connection_between_the_same_ends_is_another_one(written):
    later = [replace(packet, time=packet.time + 10**11) for packet in Connection(isn=77_000, count=300).sender]
    found = analyze_captures([written(pcap([*CONNECTION.sender, *later]))])
    assert (found.messages, found.lost) == (300, 0)


def test_the_other_capture_may_show_translated_addresses(written):
    ends = ("192.168.7.7:999", "10.0.0.2:5001")
    sender, receiver = written(pcap(CONNECTION.sender), "a"), written(pcap(other(CONNECTION.receiver, ends)), "b")
    found = analyze_captures([sender, receiver])
    assert (found.sent, found.lost, found.captured_at) == (201, 1, ("sender", "receiver"))
    stranger = written(pcap(other(Connection(isn=5).receiver, ends)), "b")
    with pytest.raises(ValueError, match=r"does not hold the connection 10\.0\.0\.1:4000 -> "):
        analyze_captures([sender, stranger])


def test_the_number_of_connections_kept_track_of_is_bounded(written, monkeypatch):
    monkeypatch.setattr(decoding, "MOST_CONNECTIONS", 8)
    scan = [Packet(START + k, True, ends=("10.0.0.7:1", f"10.0.{k // 200}.{k % 200}:9")) for k in range(500)]
    found = decoding.survey(CaptureFile(written(pcap([*CONNECTION.sender, *scan]))))
    assert len(found.conversations) <= 8
    assert found.conversations[0].payload[0] == 201 * 174


def test_options_that_are_malformed_are_left_out():
    assert options_of(b"\x08\x0a\0\0") == Options()
    assert options_of(b"\x02\x04\x05\xb4\x05\x00") == Options(mss=1460)
    assert options_of(b"\x03\x03\x28") == Options(window_scale=14)


def framed_ends(framing, stream, cuts, order=None, isn=2**32 - 7):
    """Feed a stream in segments, and return where its messages end."""
    framer = Framer(framing)
    edges = [0, *cuts, len(stream)]
    segments = list(pairwise(edges))
    for number in order or range(len(segments)):
        low, high = segments[number]
        framer.feed((isn + low) % 2**32, stream[low:high], high - low, number + 1)
    return framer.ends.tolist()


def test_length_prefixes_of_two_and_four_bytes():
    bodies = [b"a" * 300, b"", b"b" * 5]
    for framing, width in (("rfc4571", 2), ("length4", 4)):
        stream = b"".join(len(body).to_bytes(width) + body for body in bodies)
        ends = [width + 300, 2 * width + 300, 3 * width + 305]
        assert framed_ends(framing, stream, [1, 100, 200, 303]) == ends
        assert framed_ends(framing, stream, [1, 100, 200, 303], order=[0, 3, 1, 3, 4, 0, 2]) == ends
        # The last message is not complete.
        assert framed_ends(framing, stream[:-1], []) == ends[:-1]


def test_websocket_messages():
    http = b"GET /voice HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
    masked = b"\x82\x83" + b"mask" + b"xyz"
    long = b"\x82\x7e\x01\x00" + bytes(256)
    longer = b"\x82\x7f" + (70_000).to_bytes(8) + bytes(70_000)
    ping, first, last = b"\x89\x01p", b"\x01\x02ab", b"\x80\x01c"
    frames = masked + long + first + ping + last + longer + b"\x88\x00"
    ends = np.cumsum([len(masked), len(long), len(first + ping + last), len(longer)]).tolist()
    assert framed_ends("websocket", frames, [1, 3, 12, 300]) == ends
    assert framed_ends("websocket", http + frames, [10, len(http) + 1]) == [len(http) + end for end in ends]


def framed_connection(prefix):
    """Return the connection's packets with a length before each message, of which the head is kept."""
    payload = (174 - prefix).to_bytes(prefix) + bytes(174 - prefix)
    return {
        end: [replace(packet, payload=payload if packet.length else None) for packet in getattr(CONNECTION, end)]
        for end in ("sender", "receiver")
    }


def test_framed_messages_of_a_capture_cut_to_their_headers(written):
    packets = framed_connection(2)
    kept = {end: [replace(packet, kept=70) for packet in packets[end]] for end in packets}
    files = [written(pcap(kept[end]), end) for end in ("receiver", "sender")]
    for captures in (files, files[1:]):
        found = analyze_captures(captures, framing="rfc4571")
        assert (found.messages, found.packet_size, found.constant_rate) == (200, 174, True)
        assert found.delay_samples == pytest.approx(CONNECTION.delays(), abs=2e-6)


def test_payload_without_the_framing_is_refused(refused):
    packets = framed_connection(4)["sender"]
    short = [replace(packet, kept=66) for packet in packets]
    assert refused(pcap(short), framing="rfc4571") == (
        "the header of a message at byte 0 of the stream was not kept in packet 4"
    )
    huge = [replace(packet, payload=b"\xff" * packet.length) for packet in packets]
    assert refused(pcap(huge), framing="length4") == (
        "no length4 framing: a message of 4294967295 bytes at byte 0 of the stream"
    )
    assert refused(pcap(huge), framing="websocket") == "no WebSocket frame at byte 0 of the stream"
    single = [Packet(START, True, 1, length=10, payload=b"\x7f" * 10)]
    assert refused(pcap(single), framing="rfc4571") == "holds no complete message with the framing 'rfc4571'"


def test_a_message_size_that_cannot_be(written):
    file = written(pcap(CONNECTION.sender))
    for size in (0, 10_000_001):
        with pytest.raises(ValueError, match="message_size must lie between 1 and 1e"):
            analyze_captures([file], message_size=size)
    with pytest.raises(ValueError, match="message_size must be left out with the framing 'rfc4571', got 174"):
        analyze_captures([file], message_size=174, framing="rfc4571")
    assert analyze_captures([file], message_size=87).messages == 400


def test_payload_that_the_capture_lacks_leaves_the_framing_open(refused, monkeypatch):
    monkeypatch.setattr("tcpdelay.capture.pcap.decoding.MAX_WAITING", 10_000)
    packets = [packet for packet in framed_connection(2)["sender"] if packet.seq != 1001 + 30 * 174]
    assert refused(pcap(packets), framing="rfc4571") == (
        f"the payload from byte {30 * 174} of the stream on is not in the capture"
    )


def test_a_few_segments_are_too_few_for_anything_but_counts(written):
    packets = [
        Packet(START, True, 1, 1, 100, ACK | PSH),
        Packet(START + 40 * MILLISECOND, False, 1, 101),
    ]
    found = analyze_captures([written(pcap(packets))])
    assert (found.rtt, found.messages, found.constant_rate) == (pytest.approx(0.040), 1, False)
    with pytest.raises(ValueError, match="1 messages, too few"):
        found.flow()
    alone = analyze_captures([written(pcap(packets[:1]))])
    with pytest.raises(ValueError, match="no acknowledgement that shows the round-trip time"):
        alone.estimate()
    assert alone.delays is None


@pytest.mark.parametrize("pcapng", [False, True])
def test_packets_that_another_library_built_and_wrote(tmp_path, pcapng):
    file = tmp_path / "dpkt.pcap"
    hosts = bytes(15) + b"\x01", bytes(15) + b"\x02"
    with file.open("wb") as out:
        writer = dpkt.pcapng.Writer(out) if pcapng else dpkt.pcap.Writer(out, nano=True)
        for packet in CONNECTION.sender:
            source, target = (0, 1) if packet.forward else (1, 0)
            segment = dpkt.tcp.TCP(tcp(packet))
            network = dpkt.ip6.IP6(src=hosts[source], dst=hosts[target], nxt=6, plen=len(segment), data=segment)
            tagged = dpkt.ethernet.Ethernet(type=dpkt.ethernet.ETH_TYPE_IP6, data=network)
            tagged.vlan_tags = [dpkt.ethernet.VLANtag8021Q(id=7, type=dpkt.ethernet.ETH_TYPE_IP6)]
            writer.writepkt(bytes(tagged), packet.time / 1e9 if pcapng else Decimal(packet.time) / 10**9)
    found = analyze_captures([file])
    assert (found.sender, found.sent, found.lost) == ("[::1]:4000", 201, 1)
    assert found.delay_samples == pytest.approx(CONNECTION.delays(), abs=5e-6)


@pytest.mark.parametrize("framing", ["rfc4571", "length4", "websocket"])
def test_each_framing_finds_the_messages_of_a_capture(written, framing):
    prefix = {
        "rfc4571": (172).to_bytes(2),
        "length4": (170).to_bytes(4),
        "websocket": b"\x82\x7e" + (170).to_bytes(2),
    }[framing]
    payload = prefix + bytes(174 - len(prefix))
    # Without PSH nothing but the headers tells where messages end.
    packets = [
        replace(packet, payload=payload if packet.length else None, flags=packet.flags & ~PSH)
        for packet in CONNECTION.sender
    ]
    file = written(pcap(packets))
    assert analyze_captures([file]).messages == 0
    found = analyze_captures([file], framing=framing)
    assert (found.messages, found.packet_size, found.constant_rate) == (200, 174, True)
    assert found.delay_samples == pytest.approx(CONNECTION.delays(), abs=2e-6)


def test_files_packed_otherwise_are_named(refused):
    assert refused(lzma.compress(pcap(CONNECTION.sender))) == (
        "is neither pcap nor pcapng but a file packed by xz; unpack it first, or pack it by gzip"
    )


def test_a_wanted_connection_is_not_forgotten_and_the_others_are_counted(written, monkeypatch):
    monkeypatch.setattr(decoding, "MOST_CONNECTIONS", 8)
    wanted = Packet(START, True, 1, length=1, ends=("10.9.9.9:9", "10.0.0.2:5001"))
    scan = [
        Packet(START + 1 + k, True, 1, length=5, ends=("10.0.0.7:1", f"10.0.{k // 200}.{k % 200}:9"))
        for k in range(500)
    ]
    file = written(pcap([wanted, *scan, *later(CONNECTION.sender)]))
    assert analyze_captures([file], "10.9.9.9").payload == 1
    found = analyze_captures([file])
    assert found.sent == 201
    assert found.notes == ("at least 501 more connections with payload are in the capture; choose one by its address",)


def later(packets):
    return [replace(packet, time=packet.time + 10**9) for packet in packets]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is no regular file"):
        analyze_captures([tmp_path / "pipe"])
    assert not is_of_testbed(tmp_path / "pipe")
