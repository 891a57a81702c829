"""Captures in which packets stand twice: of two interfaces, or of both ends in one file."""

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import dpkt
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
    interface,
    option,
    pcap,
    section,
    tcp,
)
from tcpdelay.capture.pcap import stretches
from tcpdelay.capture.pcap.analysis import analyze_captures

KEPT = Path(__file__).parents[1] / "validation" / "pcap"
CONNECTION = Connection(lost=frozenset({20, 57, 58, 130}), needless=frozenset({90}))
MEASURED = ("sent", "lost", "rtt_mean", "rtt_base", "retransmissions", "spurious_retransmissions")
MEASURED += ("duplicates", "messages", "packet_size", "interval", "one_way_delay", "payload", "data_segments")


def measured(analysis):
    """Return what does not depend on how many files there were."""
    numbers = {name: getattr(analysis, name) for name in MEASURED} | {"mean": analysis.delays.mean}
    return numbers | {"captured_at": " and ".join(analysis.captured_at)}


def by_time(*captures):
    return sorted((packet for packets in captures for packet in packets), key=lambda packet: packet.time)


def later(packets, time, **fields):
    return [replace(packet, time=packet.time + time, **fields) for packet in packets]


def of_interfaces(*captures):
    """Return a pcapng in which each capture has an interface of its own."""
    numbered = [(packet.time, which, packet) for which, packets in enumerate(captures) for packet in packets]
    blocks = [enhanced(packet, which) for _, which, packet in sorted(numbered, key=lambda one: one[:2])]
    return section() + interface() * len(captures) + b"".join(blocks)


@pytest.fixture
def two_files(written):
    """Return what the captures of both ends say as two files."""

    def two_files(connection=CONNECTION, **options):
        files = [written(pcap(getattr(connection, end)), f"{end}.pcap") for end in ("sender", "receiver")]
        return measured(analyze_captures(files, **options))

    return two_files


@pytest.mark.skipif(shutil.which("mergecap") is None, reason="needs mergecap of Wireshark")
@pytest.mark.parametrize("mode", ["all", "none"])
@pytest.mark.parametrize("name", ["voice", "video-delayed-ack"])
def test_merged_captures_of_the_testbed_are_those_of_both_ends(tmp_path, name, mode):
    ends = [KEPT / f"{name}.{end}.pcap.gz" for end in ("sender", "receiver")]
    # With "all", both captures come to one interface, and the stations of Ethernet tell them apart.
    merged = tmp_path / "merged.pcapng"
    subprocess.run(["mergecap", "-I", mode, "-w", merged, *ends], check=True, capture_output=True)
    found = analyze_captures([merged])
    assert measured(found) == measured(analyze_captures(ends))
    sender, receiver = (
        (f"stations 02:00:00:00:0{k}:01 and 02:00:00:00:0{k}:02" for k in (1, 2))
        if mode == "all"
        else ("interface 0", "interface 1")
    )
    assert found.notes == (f"{merged}: holds both ends, the sender's at {sender}, the receiver's at {receiver}",)


@pytest.mark.skipif(shutil.which("mergecap") is None, reason="needs mergecap of Wireshark")
def test_merged_captures_without_a_link_layer_are_refused(tmp_path):
    raw = [tmp_path / f"{end}.pcap" for end in ("sender", "receiver")]
    for file in raw:
        kept = KEPT / f"voice-clean.{file.stem}.pcap.gz"
        subprocess.run(["editcap", "-C", "14", "-T", "rawip", kept, file], check=True, capture_output=True)
    merged = tmp_path / "merged.pcapng"
    subprocess.run(["mergecap", "-w", merged, *raw], check=True, capture_output=True)
    with pytest.raises(ValueError, match="appear twice") as caught:
        analyze_captures([merged])
    assert str(caught.value) == (
        f"{merged}: packets of this connection appear twice, 50 ms apart, as where captures of two places were merged; "
        "give the captures of the two ends as two files"
    )


@settings(max_examples=30)
@given(
    lost=st.frozensets(st.integers(1, 99), max_size=30),
    needless=st.frozensets(st.integers(1, 99), max_size=10),
    stamps=st.booleans(),
    offset=st.integers(-10_000, 10_000),
    swapped=st.booleans(),
)
def test_both_ends_at_two_interfaces_say_what_two_files_do(tmp_path_factory, lost, needless, stamps, offset, swapped):
    directory = tmp_path_factory.mktemp("both")
    connection = Connection(100, lost=lost, needless=needless - lost, stamps=stamps, offset=offset * MILLISECOND)
    files = [directory / name for name in ("sender", "receiver", "both")]
    ends = [connection.sender, connection.receiver]
    for file, packets in zip(files, ends, strict=False):
        file.write_bytes(pcap(packets))
    # pcapng counts microseconds here.
    files[2].write_bytes(of_interfaces(*(ends[::-1] if swapped else ends)))
    found, expected = measured(analyze_captures(files[2:])), measured(analyze_captures(files[:2]))
    assert found == pytest.approx(expected, abs=3e-6)


@pytest.mark.parametrize("links", [("ethernet", "ethernet"), ("sll", "ethernet"), ("sll2", "raw"), ("raw", "sll")])
def test_interfaces_with_other_clocks_links_and_snap_lengths_hold_both_ends(written, two_files, links):
    # The sender's times are in ns and its packets are whole; the receiver's are in 2^-20 s and hold only headers.
    ticks, resolutions = (10**9, 2**20), (9, 0x80 | 20)
    kept = (None, {"ethernet": 14, "sll": 16, "raw": 0}[links[1]] + 52)
    described = b"".join(
        interface(option(9, bytes([resolution])), link=LINKS[link], snap_length=length or 0)
        for resolution, link, length in zip(resolutions, links, kept, strict=True)
    )
    ends = (CONNECTION.sender, CONNECTION.receiver)
    packets = [(packet.time, which, packet) for which in (0, 1) for packet in ends[which]]
    blocks = [
        enhanced(replace(packet, kept=kept[which]), which, ticks[which], link=links[which])
        for _, which, packet in sorted(packets, key=lambda one: one[:2])
    ]
    file = written(section() + described + b"".join(blocks), "both.pcapng")
    found = analyze_captures([file])
    assert measured(found) == pytest.approx(two_files(), abs=3e-6)
    assert found.notes[0] == f"{file}: holds both ends, the sender's at interface 0, the receiver's at interface 1"


@pytest.mark.parametrize("stamps", [True, False])
def test_a_capture_of_all_interfaces_holds_both_ends_and_the_bridge_between(written, two_files, stamps):
    connection = replace(CONNECTION, stamps=stamps, sender=[], receiver=[])
    sender = later(connection.sender, 0, ifindex=7)
    # On the bridge, data and acknowledgements are 20 ms from the sender.
    bridge = [
        replace(packet, time=packet.time + (20 if packet.forward else -20) * MILLISECOND, ifindex=3)
        for packet in connection.sender
    ]
    receiver = later(connection.receiver, 0, ifindex=5)
    file = written(pcap(by_time(sender, bridge, receiver), "sll2"))
    found = analyze_captures([file])
    assert measured(found) == two_files(connection)
    assert found.notes[0] == (
        f"{file}: holds both ends, the sender's at interface index 7, the receiver's at interface index 5"
    )


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_of_two_interfaces_of_one_host_one_counts(written, end):
    once = getattr(CONNECTION, end)
    plain = analyze_captures([written(pcap(once))])
    # What goes out passes the bridge before its port, what comes in after it.
    out = end == "sender"
    port = [
        replace(packet, time=packet.time + (10_000 if packet.forward == out else -10_000), ifindex=2) for packet in once
    ]
    file = written(pcap(by_time(later(once, 0, ifindex=4), port), "sll2"), "any.pcap")
    found = analyze_captures([file])
    assert measured(found) == pytest.approx(measured(plain), abs=5e-5)
    assert f"{file}: packets occur twice, at interface index 2 and interface index 4; the packets" in found.notes[0]


@pytest.mark.parametrize("link", ["ethernet", "sll", "raw-ipv6"])
@pytest.mark.parametrize("end", ["sender", "receiver"])
@pytest.mark.parametrize("stamps", [True, False])
def test_near_copies_that_nothing_tells_apart_are_left_out(written, link, end, stamps):
    once = getattr(replace(CONNECTION, stamps=stamps, sender=[], receiver=[]), end)
    plain = analyze_captures([written(pcap(once, link))])
    file = written(pcap(by_time(once, later(once, 2000)), link), "twice.pcap")
    found = analyze_captures([file])
    assert measured(found) == measured(plain)
    assert found.notes[0] == f"{file}: packets occur twice, 2 µs apart; the second copies are left out"


def test_copies_are_refused_where_nothing_tells_how_long_the_path_is(written):
    once = replace(CONNECTION, stamps=False, handshake=False, sender=[], receiver=[]).receiver
    with pytest.raises(ValueError, match="appear twice, 2 µs apart"):
        analyze_captures([written(pcap(by_time(once, later(once, 2000))))])


@pytest.mark.parametrize("rtt", [MILLISECOND // 5, 5 * MILLISECOND, 300 * MILLISECOND])
@pytest.mark.parametrize("link", ["raw", "sll", "raw-ipv6"])
@pytest.mark.parametrize("handshake", [True, False])
def test_both_ends_that_nothing_tells_apart_are_refused(written, rtt, link, handshake):
    connection = Connection(rtt=rtt, lost=frozenset({3, 50}), handshake=handshake, stamps=handshake)
    file = written(pcap(by_time(connection.sender, connection.receiver), link))
    with pytest.raises(ValueError, match=r"appear twice, .* apart.*; give the captures of the two ends as two files$"):
        analyze_captures([file])


def test_of_packets_that_offloading_cut_differently_the_acknowledgements_tell(written):
    pairs = zip(*(iter([packet for packet in CONNECTION.sender if packet.length]),) * 2, strict=False)
    large = [replace(one, length=one.length + two.length) for one, two in pairs if two.seq == one.seq + one.length]
    acks = [packet for packet in CONNECTION.sender if not packet.length]
    file = written(pcap(by_time(large, acks, CONNECTION.receiver), "raw"))
    with pytest.raises(ValueError, match="appear twice"):
        analyze_captures([file])


@settings(max_examples=40)
@given(
    lost=st.frozensets(st.integers(1, 99), max_size=60),
    needless=st.frozensets(st.integers(1, 99), max_size=20),
    stamps=st.booleans(),
    link=st.sampled_from(["raw", "raw-ipv6"]),
    end=st.sampled_from(["sender", "receiver"]),
)
def test_retransmissions_are_no_copies(tmp_path_factory, lost, needless, stamps, link, end):
    connection = Connection(100, lost=lost, needless=(needless - lost), stamps=stamps)
    file = tmp_path_factory.mktemp("once") / "capture.pcap"
    file.write_bytes(pcap(getattr(connection, end), link))
    found = analyze_captures([file])
    assert not any("twice" in note for note in found.notes)
    if end == "sender":
        assert found.retransmissions == len(lost | needless)


@pytest.mark.parametrize("ip_id", [7, 0])
def test_a_segment_repeated_after_minutes_is_no_copy(written, ip_id):
    # A small device uses one identification; its peer went away for five minutes.
    packets = []
    for k in range(5):
        time = START + k * 1000 * MILLISECOND
        packets += [Packet(time, True, 1 + 10 * k, 1, 10, ACK | PSH, ip_id=ip_id)]
        packets += [Packet(time + 30 * MILLISECOND, False, 1, 11 + 10 * k, ip_id=ip_id)] * (k < 4)
    late = packets[-1].time + 300_000 * MILLISECOND
    packets += [replace(packets[-1], time=late), Packet(late + 30 * MILLISECOND, False, 1, 51, ip_id=ip_id)]
    analysis = analyze_captures([written(pcap(packets))])
    assert (analysis.retransmissions, analysis.lost, analysis.sent) == (1, 1, 6)
    assert not any("twice" in note for note in analysis.notes)


def test_a_packet_that_the_network_doubles_is_no_copy_of_another_place(written):
    # In a public capture of 22 packets, the SYN and its answer stand twice.
    sender = Connection(count=4).sender
    doubled = [packet for place, packet in enumerate(sender) for packet in [packet] * (1 + (place < 2))]
    analysis = analyze_captures([written(pcap(doubled))])
    assert (analysis.lost, analysis.messages) == (0, 4)


def test_a_segment_sent_over_and_over_is_no_copy(written):
    packets = [Packet(START + 200 * 2**k * MILLISECOND, True, 1, 1, 100, ACK | PSH) for k in range(9)]
    assert analyze_captures([written(pcap(packets))]).retransmissions == 8


def test_framed_messages_of_both_ends(written, two_files):
    body = (172).to_bytes(2) + bytes(172)
    ends = [
        [replace(packet, payload=body if packet.length else None) for packet in packets]
        for packets in (CONNECTION.sender, CONNECTION.receiver)
    ]
    framed = replace(CONNECTION, sender=[], receiver=[])
    framed.sender, framed.receiver = ends
    found = analyze_captures([written(of_interfaces(*ends[::-1]))], framing="rfc4571")
    assert measured(found) == pytest.approx(two_files(framed, framing="rfc4571"), abs=3e-6)
    assert found.messages == 200


def test_one_file_of_both_ends_goes_alone(written):
    both = written(of_interfaces(CONNECTION.sender, CONNECTION.receiver), "both.pcapng")
    receiver = written(pcap(CONNECTION.receiver), "receiver.pcap")
    for files in ([both, receiver], [receiver, both]):
        with pytest.raises(ValueError, match=r"both\.pcapng: holds both ends of the connection; give it alone$"):
            analyze_captures(files)


@pytest.fixture
def small_batches(monkeypatch):
    """Read so few segments together that a short connection takes many readings."""
    monkeypatch.setattr(stretches, "AT_A_TIME", 128)
    monkeypatch.setattr(stretches, "FEWEST_SEGMENTS", 40)


@pytest.mark.parametrize("end", ["sender", "receiver"])
@pytest.mark.parametrize("copied", [slice(150, None), slice(330, None), slice(200, 240)])
def test_copies_that_begin_late_are_left_out_as_well(written, small_batches, end, copied):
    once = getattr(CONNECTION, end)
    plain = analyze_captures([written(pcap(once))])
    file = written(pcap(by_time(once, later(once[copied], 2000))), "twice.pcap")
    shown = []
    found = analyze_captures([file], on_progress=lambda done, total: shown.append((done, total)))
    assert measured(found) == measured(plain)
    assert found.notes == (f"{file}: packets occur twice, 2 µs apart; the second copies are left out",)
    assert all(done <= total for done, total in shown)


def test_a_second_end_that_begins_late_is_found(written, small_batches):
    begin = CONNECTION.receiver[200].time
    ends = [CONNECTION.sender, [packet for packet in CONNECTION.receiver if packet.time >= begin]]
    two = analyze_captures([written(pcap(packets), f"{k}.pcap") for k, packets in enumerate(ends)])
    file = written(of_interfaces(*ends), "both.pcapng")
    found = analyze_captures([file])
    assert measured(found) == pytest.approx(measured(two), abs=3e-6)
    assert found.notes[0] == f"{file}: holds both ends, the sender's at interface 0, the receiver's at interface 1"


def test_late_copies_far_apart_that_nothing_tells_apart_are_refused(written, small_batches):
    begin = CONNECTION.receiver[200].time
    file = written(pcap(by_time(CONNECTION.sender, [one for one in CONNECTION.receiver if one.time >= begin]), "raw"))
    with pytest.raises(ValueError, match="appear twice, 25 ms apart"):
        analyze_captures([file])


def test_late_copies_at_one_of_two_ends_are_counted_in_a_note(written, small_batches):
    half = CONNECTION.sender[150:]
    file = written(of_interfaces(by_time(CONNECTION.sender, later(half, 2000)), CONNECTION.receiver))
    _, note = analyze_captures([file]).notes
    count = sum(bool(packet.length) or packet.ip_id > 0 for packet in half)
    assert note.startswith(f"{file} (interface 0): ")
    # Those whose copy came to the next batch are not seen.
    assert int(note.partition(": ")[2].split()[0]) == pytest.approx(count, abs=4)
    assert note.endswith("and count as sent again; loss and round-trip time are not reliable")


def test_copies_that_begin_late_in_one_of_two_files_are_left_out_of_both(written, small_batches, two_files):
    ends = {
        "sender": by_time(CONNECTION.sender, later(CONNECTION.sender, 2000)),
        "receiver": by_time(CONNECTION.receiver, later(CONNECTION.receiver[150:], 2000)),
    }
    files = [written(pcap(packets), f"{end}-twice.pcap") for end, packets in ends.items()]
    found = analyze_captures(files)
    assert measured(found) == two_files()
    left_out = "packets occur twice, 2 µs apart; the second copies are left out"
    assert found.notes == tuple(f"{file}: {left_out}" for file in files)


def test_progress_reaches_no_more_than_its_end(written, monkeypatch):
    monkeypatch.setattr("tcpdelay.capture.pcap.container.PACKETS_PER_REPORT", 1)
    monkeypatch.setattr("tcpdelay.capture.pcap.container.BUFFER_SIZE", 512)
    connection = Connection(count=1500, size=1400)
    shown = []
    file = written(of_interfaces(connection.sender, connection.receiver))
    analyze_captures([file], on_progress=lambda done, total: shown.append((done, total)))
    assert all(done <= total for done, total in shown)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    # Looked through, begun, looked through for places, and read once for each end.
    assert shown[-1][0] >= shown[-1][1] - 1
    assert shown[-1][1] == math.floor(5 * file.stat().st_size / 1e6)


def test_stations_of_packets_that_another_library_wrote(tmp_path):
    stations = {"sender": (b"\x02\0\0\0\0\1", b"\x02\0\0\0\0\2"), "receiver": (b"\x02\0\0\0\1\1", b"\x02\0\0\0\1\2")}
    packets = [(packet.time, end, packet) for end in stations for packet in getattr(CONNECTION, end)]
    hosts = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    file = tmp_path / "dpkt.pcapng"
    with file.open("wb") as out:
        writer = dpkt.pcapng.Writer(out)
        for time, end, packet in sorted(packets, key=lambda one: one[0]):
            source, target = (0, 1) if packet.forward else (1, 0)
            segment = dpkt.tcp.TCP(tcp(packet))
            network = dpkt.ip.IP(src=hosts[source], dst=hosts[target], p=6, id=packet.ip_id, data=segment)
            network.len = len(network)
            link = dpkt.ethernet.Ethernet(src=stations[end][source], dst=stations[end][target], data=network)
            writer.writepkt(bytes(link), time / 1e9)
    found = analyze_captures([file])
    assert (found.captured_at, found.lost, found.sent) == (("sender", "receiver"), 4, 205)
    assert found.rtt == pytest.approx(0.050001, abs=3e-6)
    assert found.delay_samples == pytest.approx(CONNECTION.delays(), abs=5e-6)
