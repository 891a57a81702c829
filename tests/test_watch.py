"""Samples of live connections, browsers and recordings; the delay by the backlog; the rule of the advice."""

import json
import os
import shutil
import socket
import struct
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tcpdelay import http_service
from tcpdelay.advice.guideline import MoveAdvice
from tcpdelay.capture.estimate import PathSample, PathWindow
from tcpdelay.capture.flow_capture import read_capture, read_replay, run_samples
from tcpdelay.capture.get_stats import read_reports, stream_samples
from tcpdelay.capture.ss import SsQuery, read_ss
from tcpdelay.cli.watch import metrics_server
from tcpdelay.http_service import Address
from tcpdelay.report.analysis import prometheus_metrics

EXAMPLES = Path(__file__).parents[1] / "examples"
CAPTURES = Path(__file__).parents[1] / "validation" / "captures" / "random-loss.parquet"
RECORDED = EXAMPLES / "ss-minute.txt"
VOIP = ("--app", "voip")


def test_one_sample_gives_the_estimate_of_a_report():
    connection = read_ss(EXAMPLES / "ss.txt")
    window = PathWindow(60.0, whole_connection=True)
    window.add(connection.sample(0.0))
    found, reported = window.estimate(), connection.estimate()
    assert (found.rtt, found.sent, found.lost) == (reported.rtt, reported.sent, reported.lost)
    assert found.loss_interval == reported.loss_interval


def test_the_backlog_gives_the_delays_of_a_queue_that_releases_in_order():
    # Delays are known: a stall of up to 1 s every 10 s, from which all waiting packets are released together.
    interval, size = 0.02, 174
    written = np.arange(0.0, 600.0, interval)
    phase = written % 10.0
    delays = np.where(phase >= 9.0, 10.0 - phase + 0.1, 0.1)
    acknowledged = written + delays
    window = PathWindow(600.0)
    for time in np.sort(np.random.default_rng(3).uniform(5.0, 595.0, 2000)):
        done, before = np.searchsorted(acknowledged, time), np.searchsorted(written, time)
        counts = {"sent": int(before), "lost": 0, "backlog": int(before - done) * size}
        window.add(PathSample(source="ss", time=float(time), rtt=0.1, acknowledged=int(done) * size, **counts))
    found = window.delays(way_back=0.05, quantile=0.95)
    assert found.mean.low < delays.mean() - 0.05 < found.mean.high
    assert found.quantile.value == pytest.approx(np.quantile(delays, 0.95) - 0.05, abs=0.06)


def test_the_recording_has_the_counters_of_the_kernel():
    samples = [sample for sample, _ in read_replay(str(RECORDED))]
    assert len(samples) == 60
    assert (samples[-1].sent, samples[-1].lost, samples[-1].mss) == (2789, 2789 - (2729 - 1) - 5, 1448)
    assert samples[-1].time - samples[0].time == pytest.approx(59.0, abs=0.1)


@pytest.mark.parametrize("case", ["rtt100ms-loss10pct-cubic", "rtt20ms-loss2pct-reno"])
def test_the_losses_are_those_that_the_path_dropped(case):
    # One retransmission repeats several segments in the first capture; a third of them is spurious in the second.
    capture = read_capture(CAPTURES, f"cbr-174B-20ms-{case}-hz250")
    last, dropped = run_samples(capture, capture.runs[0])[-1], capture.runs[0].packets["data_dropped"]
    assert last.lost == pytest.approx(dropped, rel=0.005)
    assert abs(capture.runs[0].counters["RetransSegs"] - dropped) > 100


def test_the_interval_of_losses_in_bursts_contains_the_loss():
    # A second of 50 packets loses each with a chance of 2 % in the mean: none, or 40 % in one of twenty seconds.
    rng = np.random.default_rng(5)
    contained = {True: 0, False: 0}
    for _ in range(200):
        chance = np.where(rng.random(300) < 0.05, 0.4, 0.0)
        lost, window = np.cumsum(rng.binomial(50, chance)), PathWindow(300.0)
        for second in range(300):
            window.add(PathSample(source="ss", time=second, rtt=0.1, sent=50 * (second + 1), lost=int(lost[second])))
        for estimate in ((found := window.estimate()), replace(found, dispersion=1.0)):
            low, high = estimate.loss_interval
            contained[estimate is found] += low <= 0.02 <= high
    assert contained[True] >= 180 > 150 > contained[False]


def test_the_window_forgets():
    window = PathWindow(10.0)
    for second in range(30):
        window.add(PathSample(source="ss", time=second, rtt=0.1, sent=100 * second, lost=second if second < 15 else 14))
    assert (window.span, window.estimate().sent, window.estimate().lost) == (10.0, 1000, 0)


def test_a_verdict_must_hold_before_the_advice_changes():
    advice = MoveAdvice("udp", hold=30.0)
    told = [advice.update(time, "works") for time in (0.0, 29.0, 30.0)]
    assert told == ["none yet", "none yet", "move to TCP"]
    for time in range(31, 300):
        verdict = "too early to say" if time % 20 == 0 else "does not work"
        assert advice.update(float(time), verdict) == "move to TCP"
    assert [advice.update(time, "does not work") for time in (301.0, 340.0)][-1] == "stay away from TCP"


def report(second, lost, kind="audio"):
    received = {"type": "remote-inbound-rtp", "localId": kind, "kind": kind, "roundTripTime": 0.08, "jitter": 0.004}
    received |= {"packetsLost": lost, "timestamp": 1e3 * second}
    return [received, {"type": "outbound-rtp", "id": kind, "kind": kind, "packetsSent": 50 * second}]


def test_every_form_of_getstats_says_the_same():
    reports = [report(second, second // 2) for second in range(1, 6)]
    saved = {
        "audio-packetsSent": {"statsType": "outbound-rtp", "values": json.dumps([50, 100, 150, 200, 250])},
        **{
            f"R-{member}": {
                "statsType": "remote-inbound-rtp",
                "values": json.dumps([each[0][member] for each in reports]),
            }
            for member in ("roundTripTime", "packetsLost", "timestamp", "localId", "jitter")
        },
    }
    forms = [
        [f"{json.dumps(each)}\n" for each in reports],
        [json.dumps(reports)],
        json.dumps(reports, indent=1).splitlines(keepends=True),
        [json.dumps({"PeerConnections": {"1-1": {"stats": saved}}})],
    ]
    found = [list(stream_samples(read_reports(form, "x"), "x")) for form in forms]
    assert [(sample.time, sample.sent, sample.lost) for sample in found[0]][-1] == (5.0, 250, 2)
    assert found[1:] == found[:1] * 3


def test_a_stream_is_chosen_by_its_kind():
    both = [[*report(1, 1), *report(1, 0, "video")]]
    with pytest.raises(ValueError, match="2 streams, choose one by its kind or SSRC: audio, video"):
        list(stream_samples(both, "x"))
    assert next(stream_samples(both, "x", "audio")).lost == 1


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss of iproute2")
def test_a_live_connection_is_found_by_process_and_by_host(connect):
    sender, _ = connect()
    sender.send(bytes(5000))
    port = sender.getpeername()[1]
    own = f"127.0.0.1:{sender.getsockname()[1]}"
    for query in (SsQuery.of_process(os.getpid(), own), SsQuery.of_host(f"localhost:{port}", own)):
        connection = query.find()
        sample, _ = query.sample(connection)
        assert connection.local == own
        assert (sample.sent > 0, sample.rtt > 0) == (True, True)
    sender.close()
    # Until the end is acknowledged `ss` has the state, and from FIN-WAIT-2 on the addresses alone.
    closed = query.sample(connection)
    assert closed is None or closed[0].sent > 0


def answered(address, **headers):
    """Return status, headers and content of the metrics, or of an error."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_metrics_are_served(capsys, host):
    with metrics_server(Address(host, 0)) as publish:
        address = capsys.readouterr().err.split()[-1]
        assert answered(address)[2] == b""
        publish(prometheus_metrics({"rtt": 0.1, "verdict": "works"}))
        status, headers, content = answered(address)
        assert (status, headers.get_content_type()) == (200, "text/plain")
        assert content.splitlines()[2::3] == [b"tcpdelay_rtt_seconds 0.1", b'tcpdelay_verdict{verdict="works"} 1.0']
        status, headers, content = answered(address, Accept="application/openmetrics-text; version=1.0.0")
        assert (headers.get_content_type(), content[-6:]) == ("application/openmetrics-text", b"# EOF\n")


def test_metrics_are_for_this_host_within_limits(capsys, caplog, monkeypatch):
    monkeypatch.setattr(http_service, "PATIENCE", 0.5)
    with metrics_server(Address("127.0.0.1", 0)):
        address = capsys.readouterr().err.split()[-1]
        port = urlsplit(address).port
        for wrong in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            status, headers, content = answered(address, **wrong)
            assert (status, headers.get_content_type(), list(json.loads(content))) == (
                403,
                "application/json",
                ["error"],
            )
        head = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(head, timeout=30) as answer:
            assert (answer.status, answer.read()) == (200, b"")
        # A client that sends nothing, and clients that reset.
        with socket.create_connection(("127.0.0.1", port), 30) as idle:
            assert idle.recv(1) == b""
        for _ in range(http_service.MOST_CONNECTIONS // 2):
            with socket.create_connection(("127.0.0.1", port), 30) as client:
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert answered(address)[0] == 200
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


def test_a_replay_ends_with_a_summary(run):
    status, printed, errors = run("watch", "--replay", RECORDED, *VOIP, "--format", "jsonl", "--hold", "5s")
    assert (status, errors) == (0, "")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["event"] for line in lines] == ["sample"] * 60 + ["summary"]
    last = lines[-1]
    assert (last["verdict"], last["advice"], last["changes_of_advice"]) == ("works", "stay on TCP", 0)
    assert last["predicted_low"] <= last["predicted_quantile"] <= last["predicted_high"]
    # The range is at least as wide as the expected error of the chain on either side.
    factor = 1 + last["expected_error_p95_p90"]
    assert last["predicted_low"] * factor <= last["predicted_quantile"] * (1 + 1e-9)
    assert last["predicted_quantile"] <= last["predicted_high"] / factor * (1 + 1e-9)
    # The packet captures of the recorded run: 95 % within 140 ms, to within a packet interval and 60 samples.
    assert last["measured_quantile_low"] - 0.02 <= 0.140 <= last["measured_quantile_high"] + 0.02


@pytest.mark.parametrize("over", ["tcp", "rtmp"])
def test_a_video_is_predicted_as_frames_of_one_size(run, over):
    arguments = ("watch", "--replay", RECORDED, "--format", "jsonl", "--quantile", "0.95", "--limit", "5s")
    arguments += ("--over", over)
    status, printed, errors = run(*arguments, "--app", "live-video", "--bitrate", "300kbit/s", "--fps", "15")
    assert status == 0
    assert "frames of one size" in errors
    # 300 kbit/s in 15 frames a second are 2500 B a frame.
    _, same, _ = run(*arguments, "--packet-size", "2500B", "--interval", f"{1000 / 15}ms")
    video, flow = (json.loads(each.splitlines()[-1]) for each in (printed, same))
    assert video["predicted_quantile"] == pytest.approx(flow["predicted_quantile"], rel=1e-6)
    assert video["predicted_quantile"] is not None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--ss, --dst, --get-stats, --replay: give exactly one of them; none is given"),
        (["--ss", 1, "--dst", "a"], "--ss, --dst, --get-stats, --replay: give exactly one of them; got --ss and --dst"),
        (["--ss", 99999999], "--ss: there is no process 99999999"),
        (["--dst", "127.0.0.1:99999"], "--dst: '127.0.0.1:99999': the port must lie between 1 and 65535"),
        (["--replay", EXAMPLES / "ss.txt"], "no line with a time, as 'date +%s.%N' prints it"),
        (["--replay", "missing"], "--replay: missing: cannot be read: No such file or directory"),
        (["--get-stats", EXAMPLES / "ss.txt"], "no JSON as getStats or chrome://webrtc-internals gives it"),
        (["--replay", RECORDED, "--prometheus", "here"], "--prometheus: must be HOST:PORT"),
        (["--replay", RECORDED, "--ack-loss", "1%"], "--ack-loss: must be 0"),
        (["--replay", RECORDED, "--path", "lte"], "no such option: --path"),
        (["--replay", RECORDED, "--stack", "quic"], "--stack: watch predicts the delays over TCP, got 'quic'"),
    ],
)
def test_bad_input_is_one_line(run, arguments, complaint):
    status, printed, errors = run("watch", *VOIP, *arguments)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert complaint in errors


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
def test_a_missing_ss_is_one_line(run, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    status, _, errors = run("watch", "--ss", os.getpid(), *VOIP)
    assert (status, errors) == (
        2,
        "tcpdelay watch: --ss: the program ss is missing; Linux has it in the package iproute2\n",
    )


def saved_by_page(connections):
    """Return a file of chrome://webrtc-internals with the series of each connection."""
    return [json.dumps({"PeerConnections": connections})]


@pytest.mark.parametrize(
    "times",
    [
        [1.7e12, 1.7e12 + 60_000],
        [1.7e9, 1.7e9 + 60],
        [1.7e15, 1.7e15 + 60e6],
        [1.7e18, 1.7e18 + 60e9],
        [5_000.0, 65_000.0],
        [0.0, 5.0, 60.0],
    ],
)
def test_time_stamps_are_read_in_their_unit(times):
    reports = [report(second, 0) for second in range(1, 1 + len(times))]
    for each, time in zip(reports, times, strict=True):
        each[0]["timestamp"] = time
    found = [sample.time for sample in stream_samples(reports, "x")]
    assert len(found) == len(times)
    assert found[-1] - found[0] == pytest.approx(60.0)


@pytest.mark.parametrize("member", ["roundTripTime", "jitter", "timestamp"])
def test_a_number_below_zero_is_refused(member):
    (received, sent) = report(1, 0)
    with pytest.raises(ValueError, match=rf"^x: {member} of remote-inbound-rtp must be 0 or more, got -1$"):
        list(stream_samples([[received | {member: -1}, sent]], "x"))


def test_a_round_trip_time_in_milliseconds_is_refused():
    (received, sent) = report(1, 0)
    with pytest.raises(ValueError, match="roundTripTime must be in seconds, at most 60, got 80"):
        list(stream_samples([[received | {"roundTripTime": 80}, sent]], "x"))


def page_series(reports):
    """Return the series of one connection, as the page saves them."""
    series = {
        "A-packetsSent": {
            "statsType": "outbound-rtp",
            "values": json.dumps([each[1]["packetsSent"] for each in reports]),
        }
    }
    for member in ("roundTripTime", "packetsLost", "timestamp", "jitter"):
        values = json.dumps([each[0][member] for each in reports])
        series[f"R-{member}"] = {"statsType": "remote-inbound-rtp", "values": values}
    series["R-localId"] = {"statsType": "remote-inbound-rtp", "values": json.dumps(["A"] * len(reports))}
    return series


def test_a_connection_without_streams_is_left_out():
    stats = {"stats": page_series([report(second, 0) for second in range(1, 6)])}
    alone = list(stream_samples(read_reports(saved_by_page({"1": stats}), "x"), "x"))
    assert len(alone) == 5
    pair = {"stats": {"P-timestamp": {"statsType": "candidate-pair", "values": "[1, 2]"}}}
    no_receiver = {"stats": {"B-packetsSent": {"statsType": "outbound-rtp", "values": "[0, 0]"}}}
    for empty in ({}, {"stats": {}}, {"stats": None, "rtcConfiguration": ""}, pair, no_receiver):
        for connections in ({"1": stats, "2": empty}, {"0": empty, "1": stats}):
            assert list(stream_samples(read_reports(saved_by_page(connections), "x"), "x")) == alone
    with pytest.raises(ValueError, match="2 of 2 peer connections send a stream; save the page with one open"):
        list(read_reports(saved_by_page({"1": stats, "2": stats}), "x"))
    with pytest.raises(ValueError, match="0 of 1 peer connections send a stream; save the page with one open"):
        list(read_reports(saved_by_page({"1": pair}), "x"))


GOOG = [{"type": "ssrc", "id": "ssrc_1_send", "googRtt": "20", "packetsSent": "50", "packetsLost": "1", "timestamp": 1}]
OLD_FIREFOX = [
    {"type": "outboundrtp", "id": "outbound_1", "isRemote": False, "packetsSent": 50, "timestamp": 1},
    {"type": "inboundrtp", "id": "in_1", "isRemote": True, "mozRtt": 20, "packetsLost": 1, "timestamp": 1},
]
RECEIVER = [{"type": "inbound-rtp", "id": "I", "packetsReceived": 50, "packetsLost": 1, "timestamp": 1}]


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        (GOOG, r"\(goog...\) that Chrome had before version 117 .*; save await peerConnection.getStats\(\)"),
        (
            {"PeerConnections": {"1": {"stats": {"ssrc_1_send-googRtt": {"values": "[20]"}}}}},
            r"choose the standardized get",
        ),
        (OLD_FIREFOX, r"statistics of an old Firefox \(before 68\) .*; save them in a newer browser"),
        (RECEIVER, "statistics of the end that receives .*; save them at the end that sends"),
        ([{"type": "codec", "id": "C"}], "no report of a receiver"),
    ],
)
def test_statistics_of_another_form_are_refused_with_the_right_reason(dump, message):
    with pytest.raises(ValueError, match=message):
        list(stream_samples(read_reports([json.dumps(dump)], "x"), "x"))
