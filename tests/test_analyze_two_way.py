import csv
import io
import json
import re
from dataclasses import replace

import pytest

from pcap_files import ACK, MILLISECOND, START, Packet, pcap
from tcpdelay.capture.pcap.analysis import analyze_captures, analyze_directions
from tcpdelay.cli.program import main
from two_way_call import TwoWayCall

CALLER, CALLED = "10.0.0.1:4000", "10.0.0.2:5001"


@pytest.fixture
def files(tmp_path):
    """Write the captures of a call at the given ends into files."""

    def files(call, *ends):
        for end in ends:
            (tmp_path / f"{end}.pcap").write_bytes(pcap(getattr(call, end)))
        return [tmp_path / f"{end}.pcap" for end in ends]

    return files


@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize(
    ("ends", "sides"),
    [
        (("caller",), [("sender",), ("receiver",)]),
        (("called",), [("receiver",), ("sender",)]),
        (("caller", "called"), [("sender", "receiver")] * 2),
        (("called", "caller"), [("sender", "receiver")] * 2),
    ],
)
def test_both_directions_are_measured_from_either_end(files, ends, sides, stamps):
    found = analyze_directions(files(TwoWayCall(stamps=stamps), *ends))
    assert [(each.sender, each.receiver) for each in found] == [(CALLER, CALLED), (CALLED, CALLER)]
    assert [each.captured_at for each in found] == sides
    assert [each.flow().packet_size for each in found] == [174, 120]
    assert [each.flow().interval for each in found] == [0.020, 0.030]
    assert [(each.sent, each.lost) for each in found] == [(300, 0), (200, 0)]
    assert all(each.carried_acks == 1 for each in found)


@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize("end", ["caller", "called"])
def test_carried_acks_bound_the_round_trip_time_and_say_so(files, end, stamps):
    # The next write of the other end is never in the moment of an arrival.
    for found in analyze_directions(files(TwoWayCall(stamps=stamps), end)):
        assert found.rtt == found.rtt_base
        assert 0.050 < found.rtt < 0.050 + 0.030
        assert found.rtt_kind == "upper bound"
        assert any(note.startswith("the round-trip time is an upper bound") for note in found.notes)
        assert found.estimate().rtt_interval is None
        late = any("measured delays are too long" in note for note in found.notes)
        assert late == (found.captured_at == ("sender",))


@pytest.mark.parametrize("end", ["caller", "called"])
def test_the_handshake_shows_the_round_trip_time(files, end):
    for found in analyze_directions(files(TwoWayCall(handshake=True), end)):
        assert found.rtt == pytest.approx(0.050, abs=2e-6)
        assert (found.rtt_kind, found.rtt_measured) == ("smallest", "time of the handshake")
        assert not any("upper bound" in note for note in found.notes)


@pytest.mark.parametrize("ends", [("caller", "called"), ("called", "caller")])
def test_a_server_that_answers_within_the_nanosecond_did_not_open_the_connection(files, ends):
    found = analyze_directions(files(TwoWayCall(handshake=True, answer_time=0), *ends))
    assert [each.sender for each in found] == [CALLER, CALLED]
    for each in found:
        assert each.captured_at == ("sender", "receiver")
        assert each.rtt == pytest.approx(0.050, abs=1e-6)
        assert each.notes == ()


@pytest.mark.parametrize("offset", [0, 3_600_000_000_000])
def test_captures_of_both_ends_show_the_path_without_waiting(files, offset):
    for found in analyze_directions(files(TwoWayCall(offset=offset), "caller", "called")):
        assert found.rtt == pytest.approx(0.050, abs=1e-6)
        assert found.delays.quantile([0.01, 0.99]) == pytest.approx([0.025, 0.025], abs=1e-6)
        assert found.notes == ()


def test_prompt_acks_between_carried_acks_show_the_round_trip_time(files):
    call = TwoWayCall(interval_back=100 * MILLISECOND)
    for k in range(3, 293, 10):
        time = START + k * call.interval + call.rtt // 2 + 1000
        written = (time - START - call.first) // call.interval_back + 1
        ack = Packet(time + call.rtt // 2, False, 901 + written * 120, 1001 + (k + 1) * 174, tsval=time // MILLISECOND)
        call.caller.append(ack)
    call.caller.sort(key=lambda packet: packet.time)
    forward, backward = analyze_directions(files(call, "caller"))
    assert 0.1 < forward.carried_acks < 1
    assert forward.rtt_kind == backward.rtt_kind == "mean"
    assert forward.rtt == backward.rtt == pytest.approx(0.050001, abs=1e-9)


def test_the_end_of_the_capture_is_in_doubt_where_both_ends_answer_late(files):
    call = TwoWayCall(rtt=8 * MILLISECOND, interval_back=20 * MILLISECOND, first=3 * MILLISECOND)
    for found in analyze_directions(files(call, "called")):
        assert any("does not clearly show at which end" in note for note in found.notes)


def test_a_few_segments_of_the_other_end_are_no_flow(files):
    call = TwoWayCall(interval_back=320 * MILLISECOND)
    assert len(analyze_directions(files(call, "caller"))) == 1
    call = TwoWayCall(interval_back=300 * MILLISECOND)
    assert len(analyze_directions(files(call, "caller"))) == 2
    assert analyze_captures(files(call, "caller")).sender == CALLER


def test_a_direction_that_cannot_be_analysed_is_named(files, tmp_path):
    call = TwoWayCall()
    headers = {True: (172).to_bytes(2), False: (0xFFFF).to_bytes(2)}
    framed = [
        replace(packet, payload=headers[packet.forward] + b"\xff" * (packet.length - 2)) for packet in call.caller
    ]
    file = tmp_path / "framed.pcap"
    file.write_bytes(pcap(framed))
    (found,) = analyze_directions([file], framing="rfc4571")
    assert found.fixed_size
    assert any(note.startswith(f"the data from {CALLED} are not analysed: ") for note in found.notes)


@pytest.fixture
def run(capfd):
    """Run `tcpdelay analyze` and return what it printed."""

    def run(*arguments):
        capfd.readouterr()
        status = main(["analyze", *map(str, arguments)])
        printed, errors = capfd.readouterr()
        assert (status, errors) == (0, "")
        return printed

    return run


def test_every_format_has_both_directions(run, files, tmp_path):
    captures = files(TwoWayCall(handshake=True), "caller", "called")
    options = (*captures, "--app", "voip")
    first, second = run(*options).split("\n\n")
    for block, sender in ((first, CALLER), (second, CALLED)):
        assert block.startswith(f"{sender} -> ")
        assert re.search(r"^round-trip time  50 ms$", block, re.MULTILINE)
        assert re.search(r"^99 % within      25 ms, predicted 25 ms$", block, re.MULTILINE)
        rated = r"4\.\d\d, predicted 4\.\d\d, of g711 played after 200 ms"
        assert re.search(f"^MOS              {rated}$", block, re.MULTILINE)
    row = json.loads(run(*options, "--format", "json"))
    assert (row["sender"], row["backward"]["sender"]) == (CALLER, CALLED)
    assert row["mos"] > 4 < row["backward"]["mos"]
    rows = list(csv.DictReader(io.StringIO(run(*options, "--format", "csv"))))
    assert [row["sender"] for row in rows] == [CALLER, CALLED]
    assert [float(row["interval"]) for row in rows] == pytest.approx([0.020, 0.030])
    chart = tmp_path / "chart.svg"
    run(*options, "--chart", chart)
    for sender in (CALLER, CALLED):
        assert f"from {sender}: measured" in chart.read_text()
        assert f"from {sender}: predicted" in chart.read_text()


def test_the_report_has_both_directions(run, files):
    options = (*files(TwoWayCall(handshake=True), "caller"), "--report", "--app", "voip", "--format")
    page = run(*options, "html")
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert page.count("<svg") == 8
    for text in (page.replace("\u00a0", " "), run(*options, "markdown"), run(*options, "text")):
        words = " ".join(text.split())
        assert f"Forward is from {CALLER} to {CALLED}, backward from {CALLED} to {CALLER}." in words
        assert all(f"{way}: works, with" in words for way in ("Forward", "backward"))
        assert all(f"margins, {way}" in words.lower() for way in ("forward", "backward"))
    found = json.loads(run(*options, "json"))
    assert (found["flow"]["packet_size"], found["backward"]["flow"]["packet_size"]) == (174, 120)


def test_one_direction_has_no_backward_figures(run, files):
    call = TwoWayCall()
    call.caller = [packet for packet in call.caller if packet.forward] + [
        Packet(START + 55 * MILLISECOND, False, 901, 1175, flags=ACK)
    ]
    assert json.loads(run(*files(call, "caller"), "--format", "json"))["backward"] is None
