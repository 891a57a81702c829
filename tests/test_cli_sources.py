"""`tcpdelay predict` of a source whose rate is not constant."""

import json
import math
import re

import pytest

import tcpdelay as td
from tcpdelay.cli.options import ScenarioOptions
from tcpdelay.cli.scenario import SourceOptions, read_source
from tcpdelay.scenario.encapsulation import encapsulation
from tcpdelay.scenario.scenario import SOURCE_FIELDS, application
from tcpdelay.scenario.source_settings import source_parameters

PATH = ("--rtt", "60ms", "--loss", "0.5%")


@pytest.fixture
def trace(tmp_path):
    """A file of a trace: a large message and four small ones in turn."""
    file = tmp_path / "frames.csv"
    kinds = ["key", *["other"] * 4] * 1000
    rows = [f"{0.04 * number:.2f},{20_000 if kind == 'key' else 1000},{kind}" for number, kind in enumerate(kinds)]
    file.write_text("time,size,kind\n" + "\n".join(rows) + "\n")
    return file


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (("--bitrate", "1Mbit/s", "--key-ratio", "6"), td.Video(1e6, key_ratio=6)),
        (("--bitrate", "1Mbit/s", "--frame-sizes", "weibull", "--fps", "25"), td.Video(1e6, 25, frame_sizes="weibull")),
        (("--app", "live-video", "--key-interval", "4s", "--variation", "0.2"), td.Video(2.5e6, 30, 4, variation=0.2)),
        (("--app", "live-video"), td.Video(2.5e6)),
        (("--app", "live-video", "--bitrate", "1Mbit/s", "--fps", "25"), td.Video(1e6, 25)),
        (("--app", "voice-agent-reply", "--speed", "5"), td.Utterances(964, 0.020, speed=5)),
        (("--app", "remote-desktop", "--bitrate", "2Mbit/s"), td.Messages(25, td.LognormalSizes(10_000, 2.0))),
        (("--app", "voip", "--silence", "1.35s"), td.Speech(174, 0.020)),
        (("--packet-size", "60", "--interval", "20ms", "--talk", "800ms"), td.Speech(60, 0.020, talk=0.8)),
        (("--app", "voice-agent", "--speed", "5", "--pause", "2s"), td.Utterances(968, 0.020, speed=5, pause=2)),
    ],
)
def test_options_make_the_source_that_python_makes(run, arguments, source):
    # The chain may know speech and video on this path, so a simulation has to be asked for.
    chain = isinstance(source, td.Speech | td.Video)
    asked = ("--packets", "20000", "--format", "json", *(("--method", "simulation") if chain else ()))
    status, printed, errors = run("predict", *PATH, *arguments, *asked)
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    expected = td.simulate(source, td.Path(0.060, 0.005), packets=20_000)
    assert found["source"] == source_parameters(source)
    assert (found["mean"], found["p95"]) == pytest.approx((expected.mean, expected.quantile(0.95)))
    target = found["quantile"]
    assert found.get("target_quantile_by_kind", {}) == {
        kind: None if math.isnan(known := delays.known_quantile(target)) else pytest.approx(known)
        for kind, delays in expected.by_kind.items()
    }
    assert found["bitrate"] == pytest.approx(source.mean_bitrate)
    assert (found["method"], found["simulated_because"]) == (
        "simulation",
        None if chain else "the chain does not model this scenario (source)",
    )


def test_a_quantile_that_few_key_frames_do_not_show_is_not_given(run):
    video = ("--bitrate", "300kbit/s", "--key-ratio", "8", "--quantile", "99%")
    video += ("--method", "simulation", "--packets", "20000")
    status, printed, _ = run("predict", *PATH, *video)
    assert status == 0
    assert re.search(r"^key frame +99 %: too few messages$", printed, flags=re.M)
    assert re.search(r"^other frame +99 % within [\d.]+ ms$", printed, flags=re.M)
    _, printed, _ = run("predict", *PATH, *video, "--format", "json")
    by_kind = json.loads(printed)["target_quantile_by_kind"]
    assert by_kind["key frame"] is None
    assert by_kind["other frame"] > 0


def test_video_is_answered_by_the_chain(run):
    arguments = ("--bitrate", "300kbit/s", "--key-ratio", "8", "--format", "json")
    status, printed, errors = run("predict", *PATH, *arguments)
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    expected = td.predict_delay(td.Video(3e5, key_ratio=8), td.Path(0.060, 0.005))
    assert (found["method"], found["p95"]) == ("chain", pytest.approx(expected.quantile(0.95)))
    assert set(found["target_quantile_by_kind"]) == {"other frame", "key frame"}


def test_speech_is_answered_by_the_chain(run):
    arguments = ("--app", "voip", "--silence", "1.35s", "--format", "json")
    status, printed, errors = run("predict", *PATH, *arguments)
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    expected = td.predict_delay(td.Speech(174, 0.020), td.Path(0.060, 0.005))
    assert (found["method"], found["p95"]) == ("chain", pytest.approx(expected.quantile(0.95)))
    assert set(found["target_quantile_by_kind"]) == {"packet", "first packet"}


@pytest.mark.parametrize(
    "sent",
    [
        ("--app", "voip"),
        ("--app", "voip", "--silence", "1.35s"),
        ("--app", "live-video", "--bitrate", "300kbit/s"),
        ("--bitrate", "300kbit/s", "--key-ratio", "8"),
        ("--source", "FILE", "--period", "200s"),
    ],
    ids=" ".join,
)
def test_every_source_can_write_late(run, trace, sent):
    given = [str(trace) if argument == "FILE" else argument for argument in sent]
    given += ["--write-jitter", "2ms", "--packets", "1000"]
    if sent[1] == "voip":
        # The chains of a constant rate and of speech know late writes.
        given += ["--method", "simulation"]
    status, printed, errors = run("predict", *PATH, *given)
    assert (status, errors) == (0, "")
    assert ", write jitter 2 ms, " in printed.splitlines()[0]
    _, printed, _ = run("predict", *PATH, *given, "--format", "json")
    found = json.loads(printed)
    assert found.get("source", found)["write_jitter"] == 0.002
    refused = "source" if "FILE" in sent else "write jitter"
    if "--method" not in given:
        assert found["simulated_because"] == f"the chain does not model this scenario ({refused})"


def test_a_trace_is_simulated_and_shown_by_kind(run, trace, tmp_path):
    status, printed, errors = run("predict", *PATH, "--source", str(trace), "--period", "200s", "--packets", "10000")
    assert (status, errors) == (0, "")
    assert printed.startswith("trace of 960 kbit/s in the mean, ")
    assert re.search(r"^key +95 % within [\d.]+ ms$", printed, flags=re.M)
    assert re.search(r"^other +95 % within", printed, flags=re.M)
    status, printed, _ = run("predict", *PATH, "--source", str(trace), "--format", "csv")
    names, values = (line.split(",") for line in printed.splitlines())
    assert (status, values[names.index("packet_size")]) == (0, "4800.0")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--app", "voice-agent-reply", "--fps", "25"), "--fps: does not go with --app voice-agent-reply"),
        (("--key-ratio", "8"), "--key-ratio: needs --bitrate, or --app of a video"),
        (("--bitrate", "1Mbit/s", "--key-ratio", "8", "--fps", "0"), "--fps: must lie between 0.1 and 1000 1/s, got 0"),
        (("--bitrate", "100Gbit/s", "--key-ratio", "8"), "--rtt: must span less than .* segments of the flow .*"),
        (
            ("--app", "live-video", "--over", "turn-tcp"),
            "--over: must carry whole frames or messages, as websocket, .* do, got 'turn-tcp'; RTP splits them into "
            "packets: describe these as a flow of constant rate, or as recorded messages [(]--packet-size, --source[)]",
        ),
        (
            ("--app", "live-video", "--talk", "1s", "--packet-size", "60", "--interval", "20ms"),
            "--talk: does not go with --app live-video; give --packet-size and --interval in place of --app",
        ),
        (
            ("--app", "voice-agent-reply", "--packet-size", "480", "--bitrate", "1Mbit/s"),
            "--packet-size and --bitrate: give one of them with --app voice-agent-reply",
        ),
        (("--app", "voip", "--key-ratio", "8"), "--key-ratio: needs --bitrate, or --app of a video"),
        (("--bitrate", "1Mbit/s", "--key-ratio", "0.5"), "--key-ratio: must lie between 1 and 1000 times, got 0.5"),
        (("--bitrate", "100bit/s", "--key-ratio", "8"), "--bitrate: must be 268 bit/s or more, so that a frame .*"),
        (
            ("--packet-size", "9", "--bitrate", "1Mbit/s", "--key-ratio", "8"),
            "--packet-size: does not go with --key-r.*",
        ),
        (
            ("--bitrate", "1Mbit/s", "--over", "turn-tcp", "--key-ratio", "8"),
            "--over: must carry whole frames or messages, as websocket, wss, .* do, got 'turn-tcp'; RTP .*",
        ),
        (("--bitrate", "1Mbit/s", "--key-ratio", "8", "--talk", "1s"), "--key-ratio and --talk: are options of diff.*"),
        (("--silence", "1s"), "the flow is missing; .*"),
        (("--app", "voip", "--period", "1s"), "--period: goes with --source"),
        (("--source", "none.csv"), "--source: none.csv: cannot be read: No such file or directory"),
        (("--source", "FILE", "--bitrate", "1Mbit/s"), "--bitrate: does not go with --source"),
        (("--source", "FILE", "--fps", "25"), "--fps: does not go with --source"),
        (("--source", "FILE", "--interval", "20ms"), "--interval: does not go with --source"),
        (
            ("--source", "FILE", "--period", "1s"),
            "--source: FILE: period must be later than the last time, 199.96 s, .*",
        ),
        (("--source", "FILE", "--method", "chain"), "--source: must be a Flow, .*; tcpdelay predict .* models it"),
        (
            ("--source", "FILE", "--packets", "9000"),
            "--source: must have at least 11000 messages, or a period, got Trace.*",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(run, trace, arguments, fault):
    given = [str(trace) if argument == "FILE" else argument for argument in arguments]
    status, printed, errors = run("predict", *PATH, *given)
    assert (status, printed) == (2, "")
    assert re.fullmatch(f"tcpdelay predict: {fault}\n", errors.replace(str(trace), "FILE")), errors


def test_the_help_explains_every_option_of_a_source(run):
    _, usual, _ = run("predict", "--help")
    _, everything, _ = run("predict", "--help-all")
    assert "--source FILE" in usual
    for name in (each.name for each in SourceOptions.parameters()):
        assert f"--{name.replace('_', '-')} " in everything
    assert all(f"--{name.replace('_', '-')}" in usual for name in SOURCE_FIELDS)
    assert "Makes --bitrate a video with key frames." not in " ".join(usual.split())


def test_solve_answers_for_a_trace_as_python_does(run, trace):
    given = ("--source", str(trace), "--limit", "300ms", "--format", "json")
    status, printed, _ = run("solve", "loss", "--rtt", "60ms", *given)
    assert status == 0
    found, expected = (
        json.loads(printed),
        td.largest_loss(td.Trace.read(trace), td.Path(0.060, 0), target=td.Target(0.3)),
    )
    assert (found["value"], found["fails"], found["method"]) == (expected.value, expected.fails, "simulation")
    assert found["bitrate"] == pytest.approx(960_000, rel=1e-3)


def test_solve_needs_no_bitrate_of_a_video_whose_bitrate_is_asked(run):
    arguments = ("--key-ratio", "6", "--fps", "10", "--limit", "300ms", "--format", "json")
    status, printed, _ = run("solve", "bitrate", "--rtt", "60ms", "--loss", "3%", *arguments)
    assert status == 0
    found = json.loads(printed)
    assert found["source"] == source_parameters(td.Video(found["value"], 10, key_ratio=6))


@pytest.mark.parametrize(
    "command", [("predict",), ("solve", "loss"), ("relay", "--second-rtt", "9ms", "--second-loss", "0")]
)
def test_a_trace_without_a_rate_is_refused_in_one_line(run, tmp_path, command):
    (tmp_path / "one.csv").write_text("time,size\n5,100\n")
    status, printed, errors = run(*command, *PATH, "--source", str(tmp_path / "one.csv"))
    assert (status, printed) == (2, "")
    said = "--source: must have a message later than the time 0, or a period, got Trace(1 messages in 0 s)"
    assert errors == f"tcpdelay {command[0]}: {said}\n"


@pytest.mark.parametrize(
    ("question", "arguments", "fault"),
    [
        (
            "interval",
            ("--app", "voip", "--talk", "1s"),
            "--talk: goes with solve bitrate, .*frontier, .*, not with interval",
        ),
        ("packet-rate", ("--packet-size", "99", "--talk", "1s"), "--talk: goes with solve .*, not with packet-rate"),
        ("sensitivity", ("--source", "FILE"), "--source: goes with solve .*, not with sensitivity"),
        ("playout", ("--app", "voip", "--talk", "1s", "--codec", "g711"), "--codec: does not go with --talk"),
        ("bitrate", ("--key-ratio", "6", "--grow", "rate"), "--grow: must be 'segments' or 'size' unless .*"),
        ("loss", ("--key-ratio", "6"), "--key-ratio: needs --bitrate, or --app of a video"),
    ],
)
def test_solve_refuses_what_has_no_meaning_for_the_source(run, trace, question, arguments, fault):
    given = [str(trace) if argument == "FILE" else argument for argument in arguments]
    status, printed, errors = run("solve", question, *PATH, *given)
    assert (status, printed) == (2, "")
    assert re.fullmatch(f"tcpdelay solve: {fault}\n", errors.replace(str(trace), "FILE")), errors


def test_several_demands_refuse_an_application_without_a_constant_rate(run):
    status, printed, errors = run("region", "--app", "voip", "--app", "live-video")
    assert (status, printed) == (2, "")
    said = "--app: the rate of live-video is not constant, as it must be here; in place of it, --packet-size 1448 "
    assert errors == f"tcpdelay region: {said}--bitrate 2.5Mbit/s is a flow of constant rate\n"


def test_an_application_without_a_constant_rate_is_a_source_for_solve_and_for_a_table_of_paths(run, tmp_path):
    status, printed, _ = run("solve", "bitrate", *PATH, "--app", "remote-desktop", "--limit", "5s", "--format", "json")
    assert status == 0
    found = json.loads(printed)
    assert (found["source"]["kind"], found["method"]) == ("messages", "simulation")
    table = tmp_path / "paths.csv"
    table.write_text("rtt,loss\n0.06,0.001\n")
    status, _, _ = run("batch", str(table), "--app", "voice-agent-reply", "-o", str(tmp_path / "answers.csv"))
    assert status == 0
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 2
    status, printed, errors = run("solve", "sensitivity", *PATH, "--app", "live-video")
    assert (status, printed) == (2, "")
    assert errors.startswith("tcpdelay solve: --app live-video: goes with solve bitrate, ")


def test_given_packets_make_a_constant_rate_and_the_output_says_so(run):
    chain = ("--packet-size", "1448", "--method", "chain", "--format", "json")
    status, printed, errors = run("predict", *PATH, "--app", "live-video", *chain)
    assert status == 0
    replaced = "live-video as a flow of constant rate, because only a constant rate has --packet-size"
    assert errors.splitlines()[0] == replaced
    assert json.loads(printed)["bitrate"] == pytest.approx(2.5e6)


REPLY = td.Utterances(960, 0.020)


@pytest.mark.parametrize(
    ("app", "over", "given", "content"),
    [
        ("live-video", "rtmp", {}, td.Video(2.5e6)),
        ("live-video", "rtmps", {"bitrate": 4e6, "fps": 25}, td.Video(4e6, 25)),
        ("live-video", "tcp", {"fps": 25}, td.Video(2.5e6, 25)),
        ("live-video", "rtmp", {"key_interval": 4}, td.Video(2.5e6, key_interval=4)),
        ("remote-desktop", "wss", {}, td.Messages(25, td.LognormalSizes(5000, 2.0))),
        ("voice-agent-reply", "wss", {}, REPLY),
        ("voice-agent-reply", "wss", {"speed": 3}, REPLY),
        ("voice-agent-reply", "turn-tcp", {"packet_size": 480}, td.Utterances(480, 0.020)),
        ("voice-agent-reply", "wss-down", {"packet_size": 960, "interval": 0.020, "speed": 3}, REPLY),
        ("voice-agent-reply", "wss", {"interval": 0.040, "bitrate": 5e5}, td.Utterances(9, 0.040).at_bitrate(5e5)),
    ],
)
def test_the_source_of_an_application_stays_with_headers_around_its_messages(capsys, app, over, given, content):
    chosen = SourceOptions(**{name: value for name, value in given.items() if name in SOURCE_FIELDS})
    others = {name: value for name, value in given.items() if name not in SOURCE_FIELDS}
    options = ScenarioOptions(app=application(app), over=encapsulation(over), **others)
    source, _, _ = read_source(options, chosen)
    assert source_parameters(source) == source_parameters(encapsulation(over).around(content))
    assert "constant rate" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("predict", *PATH, "--packets", "5000", "--format", "json"),
        ("solve", "playout", *PATH, "--late-fraction", "10%", "--format", "json"),
    ],
    ids=lambda command: command[0],
)
def test_commands_take_the_source_with_headers_alike(run, command):
    status, printed, errors = run(*command, "--app", "voice-agent-reply", "--over", "wss")
    assert status == 0
    assert json.loads(printed)["source"] == source_parameters(td.Utterances(990, 0.020))
    assert errors.splitlines()[0].startswith("in the mean 960 bytes over wss are 990: ")


def test_a_report_says_that_a_constant_rate_takes_the_place_of_messages(run, tmp_path):
    file = tmp_path / "report.json"
    status, _, errors = run("report", *PATH, "--app", "live-video", "--packet-size", "1448", "-o", str(file))
    assert status == 0
    assert errors.startswith("live-video as a flow of constant rate, because only a constant rate has --packet-size\n")
    said = "a flow of constant rate takes the place of the messages of live-video, which are not equal"
    assert said in json.loads(file.read_text())["notes"]
