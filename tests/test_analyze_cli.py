"""`tcpdelay analyze`: of one direction, and of calls in both."""

import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli_process import ROOT
from pcap_files import ACK, MILLISECOND, START, Connection, Packet, pcap
from tcpdelay.capture.pcap.analysis import analyze_captures, analyze_directions
from tcpdelay.report.analysis import Expected, analysis_text
from tcpdelay.statistics import Interval
from two_way_call import TwoWayCall

KEPT = ROOT / "validation" / "pcap"
SENDER, RECEIVER = KEPT / "voice-clean.sender.pcap.gz", KEPT / "voice-clean.receiver.pcap.gz"


@pytest.fixture
def run(run):
    """Run the command in an empty directory; return its status, what it printed, and its errors."""
    return partial(run, "analyze")


@pytest.fixture
def refused(refused):
    """Return the one line with which the command refuses its arguments."""
    return lambda *arguments: refused(*arguments).removeprefix("tcpdelay analyze: ").removesuffix("\n")


def test_the_text_says_path_flow_and_delays(run):
    status, printed, errors = run(SENDER, RECEIVER)
    assert (status, errors) == (0, "")
    first, *lines = printed.splitlines()
    assert first.endswith("-> 10.0.2.2:5001, captured at the sender and at the receiver: 522000 bytes in 60.8 s")
    assert "round-trip time  100 ms, at least 100 ms" in lines
    assert any(line.startswith("loss             0 % (0 of 3000 packets; 95 % confidence 0 % to 0.1") for line in lines)
    assert "packet size      174 B always" in lines
    assert "interval         20 ms always, which is 69.6 kbit/s" in lines
    assert "99 % within      50 ms, predicted 50 ms" in lines


@pytest.mark.parametrize("output_format", ["json", "csv"])
def test_numbers_for_programs(run, output_format):
    status, printed, _ = run(SENDER, "--format", output_format)
    assert status == 0
    row = json.loads(printed) if output_format == "json" else next(csv.DictReader(io.StringIO(printed)))
    assert float(row["rtt"]) == pytest.approx(0.1, rel=1e-3)
    assert (float(row["packet_size"]), float(row["interval"])) == (174, pytest.approx(0.020))
    assert float(row["p99"]) == pytest.approx(0.050, abs=1e-4)
    assert row["clock_offset"] in (None, "")
    assert row["captured_at"] == "sender"


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("game", "174 B every 20 ms, but game sends 100 B every 33.3 ms"),
        ("live-video", "69.6 kbit/s, but live-video sends 2.5 Mbit/s"),
        ("opus", "174 B every 20 ms, but opus sends 74 B every 20 ms"),
        ("voip", None),
    ],
)
def test_a_flow_unlike_the_application_is_named(run, app, said):
    capture = KEPT / "voice.sender.pcap.gz"
    status, printed, errors = run(capture, "--app", app)
    note = f"note: the flow measured is {said}; the prediction is for the flow measured\n"
    assert (status, errors) == (0, "")
    assert note in printed if said else "the flow measured" not in printed
    notes = json.loads(run(capture, "--app", app, "--format", "json")[1])["notes"]
    assert said in notes if said else "the flow measured" not in notes


def test_a_call_is_rated_as_measured_and_as_predicted(run):
    lossy = KEPT / "voice.sender.pcap.gz"
    status, printed, errors = run(lossy, "--app", "voip", "--limit", "150ms", "--format", "json")
    row = json.loads(printed)
    assert (status, errors) == (0, "")
    assert 0 < abs(row["p95"] - row["predicted_p95"]) < 0.01
    assert row["mos"] == pytest.approx(row["predicted_mos"], abs=0.3)
    text = run(lossy, "--app", "voip", "--limit", "150ms")[1]
    rated = f"{row['mos']:.2f}, predicted {row['predicted_mos']:.2f}, of g711 played after 150 ms"
    assert f"MOS              {rated}" in text
    assert "MOS" not in run(lossy, "--app", "live-video")[1]
    assert json.loads(run(lossy, "--app", "voip", "--report", "--format", "json")[1])["call"] is not None


def test_a_capture_within_chance_is_no_disagreement(run):
    both = KEPT / "video.sender.pcap.gz", KEPT / "video.receiver.pcap.gz"
    row = json.loads(run(*both, "--format", "json")[1])
    # Two minutes near the capacity: the prediction for a long time differs by 100 ms, and is no contradiction.
    assert row["predicted_p95"] + 0.1 < row["p95"]
    assert row["p95_lowest_by_chance"] < row["p95"] < row["p95_highest_by_chance"]
    lines = run(*both)[1].splitlines()
    assert lines[1].startswith("round-trip time")
    assert any(line.startswith("95 % by chance   within ") for line in lines)


@pytest.mark.parametrize(("low", "high", "word"), [(0.01, 0.1, "longer"), (0.3, 0.4, "shorter")])
def test_a_capture_beyond_chance_is_said_first(low, high, word):
    analysis = analyze_captures([KEPT / "voice.sender.pcap.gz", KEPT / "voice.receiver.pcap.gz"])
    text = analysis_text(analysis, Expected(analysis.delays, Interval(low, low, high)))
    first = text.splitlines()[1]
    assert first.startswith(f"The measured 95th percentile, 142 ms, is {word} than in simulations of this path, ")
    assert "Likely reasons: losses that" in first


def test_what_is_not_known_is_null(run, tmp_path):
    file = tmp_path / "one.pcap"
    file.write_bytes(pcap([Packet(10**18, True, 1, length=100)]))
    status, printed, errors = run(file, "--format", "json")
    assert (status, errors) == (0, "")
    row = json.loads(printed)
    assert row["rtt"] is None
    assert row["interval"] is None
    assert row["p95"] is None
    status, printed, errors = run(file)
    assert (status, errors) == (0, "")
    assert "round-trip time  not known\n" in printed
    assert "one-way delay    not known\n" in printed
    assert "delay            not known: no message was delivered within the capture" in printed


def test_the_chart_shows_measured_and_predicted(run, tmp_path):
    chart = tmp_path / "delays.svg"
    status, _, errors = run(KEPT / "voice.sender.pcap.gz", "--chart", chart)
    assert (status, errors) == (0, "")
    root = ElementTree.parse(chart).getroot()
    assert root.tag.endswith("svg")
    text = chart.read_text()
    assert "measured, write to read" in text
    assert "predicted" in text


def test_the_report_is_that_of_the_measured_path(run):
    status, printed, errors = run(SENDER, "--report", "--limit", "40ms")
    assert (status, errors) == (0, "")
    assert "Flow              174 B every 20 ms, 69.6 kbit/s" in printed
    assert "Measured by         pcap" in printed
    assert "95 % of the packets within 40 ms" in printed
    assert printed.count("95 % by chance") == 1


def test_the_report_is_written_in_every_format(run, tmp_path):
    for suffix, output_format, begin in (
        (".md", "markdown", "# "),
        (".html", "html", "<!DOCTYPE"),
        (".json", "json", "{"),
    ):
        file = tmp_path / f"report{suffix}"
        status, analysed, errors = run(SENDER, "--report", "-o", file)
        assert (status, errors) == (0, "")
        assert "packet size      174 B always" in analysed
        assert file.read_text().startswith(begin)
        assert run(SENDER, "--report", "--format", output_format) == (0, file.read_text(), "")
        assert file.read_text().replace("\u00a0", " ").count("95 % by chance") == (suffix != ".json")
    captured = json.loads(file.read_text())["captured"]
    assert captured["by_chance"][1] <= captured["by_chance"][0] <= captured["by_chance"][2]
    analysis = tmp_path / "analysis.csv"
    assert run(SENDER, "-o", analysis) == (0, "", "")
    assert run(SENDER, "--format", "csv")[1] == analysis.read_text()


def test_a_capture_of_the_testbed_is_measured_drawn_and_reported(run, tmp_path):
    chart, report = tmp_path / "delays.svg", tmp_path / "report.json"
    status, printed, errors = run(KEPT / "voice.parquet", "--report", "-o", report, "--chart", chart)
    assert (status, errors) == (0, "")
    assert "loss 1.97 % (111 segments dropped; configured 2 %)" in printed
    assert "predicted" in chart.read_text()
    assert '"testbed"' in report.read_text()
    status, printed, _ = run(KEPT / "voice.parquet", "--format", "json")
    assert json.loads(printed)[0]["p95"] == pytest.approx(0.1417, abs=1e-4)


def test_what_cannot_be_is_said_in_one_line(refused, tmp_path):
    assert refused("no-such.pcap") == "CAPTURE: no-such.pcap: cannot be read: No such file or directory"
    text = tmp_path / "text.pcap"
    text.write_text("hello, world")
    assert refused(text) == f"CAPTURE: {text}: is neither pcap nor pcapng: it begins with 68656c6c"
    assert refused(SENDER, SENDER, SENDER) == "CAPTURE: takes one or two files, got 3"
    assert "captured at the same place" in refused(SENDER, SENDER)
    assert refused(SENDER, "--connection", "1.2.3.4").startswith(f"CAPTURE: {SENDER}: no connection matches '1.2.3.4'")
    assert refused(SENDER, "--limit", "1s") == "--limit: goes with --report or --app"
    assert refused(SENDER, "--report", "--format", "csv").startswith("--report: is written as text, markdown, html")
    assert refused(SENDER, "-o", "report.html").startswith("--format: html goes with --report; ")
    assert refused(SENDER, "-o", "report.doc").startswith("--output: 'report.doc' does not end in one of .txt, ")
    assert refused(KEPT / "voice.parquet", SENDER).startswith("CAPTURE: a capture of the testbed goes alone")
    assert refused(KEPT / "voice.parquet", "--same-clock").startswith("CAPTURE: a capture of the testbed goes alone")
    assert refused(SENDER, "--chart", "x.doc").startswith("--chart: 'x.doc' does not end in one of .svg")
    # Refused before the capture is read.
    for option, file in (("--chart", "none/x.svg"), ("--output", "none/x.json")):
        assert refused("no-such.pcap", option, file) == (
            f"{option}: {file!r} cannot be written: the folder 'none' does not exist"
        )
    assert refused(SENDER, "--framing", "fixed").startswith("--framing: 'fixed' is not one of")
    assert refused(SENDER, "--message-size", "0").startswith("--message-size: ")
    assert refused(SENDER, "--message-size", "20MB").startswith("--message-size: must lie between 1 and 1e+07 bytes")
    together = refused(SENDER, "--message-size", "174", "--framing", "length4")
    assert together.startswith("--message-size: goes with --framing auto only, got --framing length4")
    assert refused(SENDER, "--framing", "rfc4571").startswith(f"CAPTURE: {SENDER}: ")
    one = tmp_path / "one.pcap"
    one.write_bytes(pcap([Packet(10**18, True, 1, length=100)]))
    assert refused(one, "--chart", tmp_path / "x.svg") == (
        "--chart: nothing to draw: no message was delivered within the capture"
    )


def test_a_predicted_flow_that_never_settles_is_drawn_as_such(run, tmp_path):
    connection = Connection(count=300, size=60_000, rtt=200_000_000, lost=frozenset(range(0, 300, 3)))
    file = tmp_path / "heavy.pcap"
    file.write_bytes(pcap(connection.sender))
    chart = tmp_path / "delays.svg"
    status, _, _ = run(file, "--chart", chart)
    assert status == 0
    assert "predicted: never settles" in chart.read_text()
    assert math.isfinite(connection.delays()[-1])


def test_quickly_damaged_captures():
    script = Path(KEPT, "mutations.py")
    finished = subprocess.run(
        [sys.executable, "-W", "error", script, "300", "11"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "300 mutations" in finished.stdout
    assert " analysed" in finished.stdout


# Both directions of a call

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
def analyzed(run):
    """Return what the command printed, without errors."""

    def analyzed(*arguments):
        status, printed, errors = run(*arguments)
        assert (status, errors) == (0, "")
        return printed

    return analyzed


def test_every_format_has_both_directions(analyzed, files, tmp_path):
    captures = files(TwoWayCall(handshake=True), "caller", "called")
    options = (*captures, "--app", "voip")
    first, second = analyzed(*options).split("\n\n")
    for block, sender in ((first, CALLER), (second, CALLED)):
        assert block.startswith(f"{sender} -> ")
        assert re.search(r"^round-trip time  50 ms$", block, re.MULTILINE)
        assert re.search(r"^99 % within      25 ms, predicted 25 ms$", block, re.MULTILINE)
        rated = r"4\.\d\d, predicted 4\.\d\d, of g711 played after 200 ms"
        assert re.search(f"^MOS              {rated}$", block, re.MULTILINE)
    row = json.loads(analyzed(*options, "--format", "json"))
    assert (row["sender"], row["backward"]["sender"]) == (CALLER, CALLED)
    assert row["mos"] > 4 < row["backward"]["mos"]
    rows = list(csv.DictReader(io.StringIO(analyzed(*options, "--format", "csv"))))
    assert [row["sender"] for row in rows] == [CALLER, CALLED]
    assert [float(row["interval"]) for row in rows] == pytest.approx([0.020, 0.030])
    chart = tmp_path / "chart.svg"
    analyzed(*options, "--chart", chart)
    for sender in (CALLER, CALLED):
        assert f"from {sender}: measured" in chart.read_text()
        assert f"from {sender}: predicted" in chart.read_text()


def test_the_report_has_both_directions(analyzed, files):
    options = (*files(TwoWayCall(handshake=True), "caller"), "--report", "--app", "voip", "--format")
    page = analyzed(*options, "html")
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert page.count("<svg") == 8
    for text in (page.replace("\u00a0", " "), analyzed(*options, "markdown"), analyzed(*options, "text")):
        words = " ".join(text.split())
        assert f"Forward is from {CALLER} to {CALLED}, backward from {CALLED} to {CALLER}." in words
        assert all(f"{way}: works, with" in words for way in ("Forward", "backward"))
        assert all(f"margins, {way}" in words.lower() for way in ("forward", "backward"))
    found = json.loads(analyzed(*options, "json"))
    assert (found["flow"]["packet_size"], found["backward"]["flow"]["packet_size"]) == (174, 120)


def test_one_direction_has_no_backward_figures(analyzed, files):
    call = TwoWayCall()
    call.caller = [packet for packet in call.caller if packet.forward] + [
        Packet(START + 55 * MILLISECOND, False, 901, 1175, flags=ACK)
    ]
    assert json.loads(analyzed(*files(call, "caller"), "--format", "json"))["backward"] is None
