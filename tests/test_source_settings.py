"""Sources as settings: of experiments, of applications by name, and of `tcpdelay predict`."""

import json
import math
import os
import re
from itertools import islice

import numpy as np
import pandas as pd
import pytest

import tcpdelay as td
from tcpdelay import Path, Stack, Target
from tcpdelay.cli.options import ScenarioOptions
from tcpdelay.cli.scenario import SourceOptions, read_source
from tcpdelay.scenario import InvalidValueError
from tcpdelay.scenario.encapsulation import encapsulation
from tcpdelay.scenario.scenario import APPLICATIONS, SOURCE_FIELDS, application
from tcpdelay.scenario.source_settings import SourceSettings, source_parameters
from tcpdelay.testbed.flows import first_messages, read_messages, write_messages

# Settings of an experiment: tables of TOML and of captures, names, and the messages handed to a session

TABLES = {
    "flow": ({"packet_size": "174B", "interval": "20ms"}, td.Flow(174, 0.020)),
    "video": ({"bitrate": "2.5Mbit/s", "key_ratio": 5}, td.Video(2.5e6, key_ratio=5)),
    "speech": ({"packet_size": 174, "interval": "20ms", "silence": "2s"}, td.Speech(174, 0.020, silence=2)),
    "utterances": ({"packet_size": 160, "interval": "20ms", "speed": 4}, td.Utterances(160, 0.020, speed=4)),
    "messages": ({"rate": 50, "sizes": "1.2kB"}, td.Messages(50, 1200)),
}
SIZES = [
    ({"distribution": "lognormal", "mean": "1kB", "variation": 0.3}, td.LognormalSizes(1000, 0.3)),
    ({"distribution": "pareto", "smallest": 500}, td.ParetoSizes(500)),
    ({"distribution": "empirical", "values": [100, 100, 400]}, td.EmpiricalSizes([100, 100, 400])),
]
TIMES = [0.0, 0.033, 0.066]


@pytest.fixture
def frames(tmp_path):
    file = tmp_path / "frames 1.csv"
    file.write_text("time,size,kind\n0,9000,key\n0.033,1200,other\n0.066,1100,other\n")
    return file


def trace_settings(file, **more):
    return SourceSettings.from_table({"kind": "trace", "file": file.name, **more}, file.parent)


@pytest.mark.parametrize(("kind", "parameters", "source"), [(kind, *each) for kind, each in TABLES.items()])
def test_a_table_is_the_source_of_its_parameters(kind, parameters, source):
    settings = SourceSettings.from_table({"kind": kind, **parameters, "seed": 3})
    assert (settings.source, settings.seed) == (source, 3)
    assert SourceSettings.from_table({"kind": kind, **parameters}).seed == 0
    again = SourceSettings.from_table(json.loads(json.dumps(settings.table)))
    assert (again, again.label, hash(again)) == (settings, settings.label, hash(settings))


@pytest.mark.parametrize(("table", "sizes"), SIZES)
def test_sizes_have_a_distribution(table, sizes):
    settings = SourceSettings.from_table({"kind": "messages", "rate": 5, "sizes": table})
    assert settings.source == td.Messages(5, sizes)
    assert SourceSettings.from_table(json.loads(json.dumps(settings.table))) == settings


def test_a_trace_is_the_content_of_its_file(frames, tmp_path):
    settings = trace_settings(frames, period="100ms")
    assert settings.source == td.Trace(TIMES, [9000, 1200, 1100], 0.1, labels=["key", "other", "other"])
    # A capture has no path, and a moved file is the same trace.
    kept = SourceSettings.from_table(json.loads(json.dumps(settings.table)))
    assert kept == settings
    with pytest.raises(ValueError, match=r"^the trace 'frames 1.csv' is not at hand; a capture has its messages$"):
        _ = kept.source
    (tmp_path / "moved").mkdir()
    assert trace_settings(frames.rename(tmp_path / "moved" / frames.name), period=0.1) == settings


def test_late_writes_are_a_setting_of_each_source_and_leave_others_as_they_were(frames):
    # The record of a capture leaves out a lateness of 0; the hash of the settings is part of its name.
    tables = [{"kind": kind, **parameters} for kind, (parameters, _) in TABLES.items()]
    for table in tables:
        assert SourceSettings.from_table(table).table["write_jitter"] == 0.001
        exact = SourceSettings.from_table({**table, "write_jitter": 0})
        assert "write_jitter" not in exact.table
        assert "writejitter" not in exact.label
        assert SourceSettings.from_table(exact.table, recorded=True) == exact
    late = [SourceSettings.from_table({**table, "write_jitter": "2ms"}) for table in tables]
    late.append(trace_settings(frames, write_jitter="2ms", period="100ms"))
    for settings in late:
        assert settings.source.write_jitter == 0.002
        assert "writejitter0.002" in settings.label
        assert SourceSettings.from_table(json.loads(json.dumps(settings.table))) == settings
        assert source_parameters(settings.source)["write_jitter"] == 0.002


def test_a_trace_that_changes_is_another_trace(frames):
    before = trace_settings(frames)
    frames.write_text("time,size\n0,9000\n0.033,1201\n")
    assert trace_settings(frames) != before
    with pytest.raises(ValueError, match=r"frames 1\.csv: has changed since it was read first$"):
        _ = before.source


def test_labels_are_fit_for_files_and_distinguish_sources(frames):
    tables = [
        *({"kind": kind, **parameters} for kind, (parameters, _) in TABLES.items()),
        *({"kind": "messages", "rate": 5, "sizes": table} for table, _ in SIZES),
        {"kind": "messages", "rate": 5, "sizes": {"distribution": "empirical", "values": [100, 400, 100]}},
        {"kind": "video", "bitrate": 2_500_001},
        {"kind": "video", "bitrate": 2_500_001, "seed": 1},
        {"kind": "video", "bitrate": 2_500_001, "frame_sizes": "weibull"},
        {"kind": "video", "bitrate": 2_500_001, "write_jitter": 0},
    ]
    labels = [SourceSettings.from_table(table).label for table in tables]
    labels += [trace_settings(frames).label, trace_settings(frames, period=1).label]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[A-Za-z0-9.+-]{1,120}", label) for label in labels)
    assert SourceSettings.from_table({"kind": "video", "bitrate": "2Mbit/s", "seed": 7}).label == (
        "video-bitrate2000000-writejitter0.001-seed7"
    )


WRONG = [
    (5, "source must be a table with the keys kind and seed, and the source's own, got 5"),
    ({}, "source.kind must be one of 'flow', 'video', 'speech', 'utterances', 'messages', 'trace', got None"),
    ({"kind": ["video"]}, "source.kind must be one of .*"),
    ({"kind": "video", "bitrate": 1e6, "seed": -1}, "source.seed must be a whole number from 0 to 2147483647, got -1"),
    ({"kind": "video", "bitrate": 1e6, "seed": True}, "source.seed must be a whole number .*, got True"),
    ({"kind": "video"}, "source: bitrate missing for 'video'"),
    ({"kind": "speech", "talk": "1s"}, "source: packet_size and interval missing for 'speech'"),
    ({"kind": "video", "bitrate": 1e6, "fps": 30}, "source: 'fps' is no parameter of 'video'; there are bitrate, .*"),
    ({"kind": "video", "bitrate": "2.5"}, "source: bitrate: '2.5' has no unit; .*"),
    ({"kind": "video", "bitrate": 1e12}, r"source: bitrate must lie between 1 and 1e\+11 bit/s, got 1e\+12"),
    ({"kind": "video", "bitrate": 100}, "source: bitrate must be .* so that a frame has at least one byte .*"),
    ({"kind": "video", "bitrate": [1e6]}, r"source: bitrate must be a number, .*, got \[1000000.0\]"),
    (
        {"kind": "flow", "packet_size": 9, "interval": "0.9ms"},
        "source: at most 1000 messages .*, got 1111.11",
    ),
    ({"kind": "messages", "rate": 5, "sizes": "many"}, "source: sizes: 'many' is no size.*"),
    ({"kind": "messages", "rate": 5, "sizes": [5]}, "source: sizes must be one size, or a table .*"),
    (
        {"kind": "messages", "rate": 5, "sizes": {}},
        "source: sizes.distribution must be one of .*, got None",
    ),
    (
        {"kind": "messages", "rate": 5, "sizes": {"distribution": "pareto", "mean": 5}},
        "source: 'mean' is no parameter of 'pareto'; there are largest, shape, smallest",
    ),
    (
        {"kind": "messages", "rate": 5, "sizes": {"distribution": "empirical", "values": [0]}},
        r"source: sizes\[0\] must be a whole number of bytes from 1 to 1000000000, got 0",
    ),
    ({"kind": "trace"}, "source: file must be the name of a CSV or Parquet file, got None"),
    ({"kind": "trace", "file": "none.csv"}, "source: .*none.csv: cannot be read: No such file or directory"),
    ({"kind": "trace", "file": ".", "period": "1s"}, "source: .*: cannot be read: Is a directory"),
    (
        {"kind": "trace", "file": "a.csv", "speed": 2},
        "source: 'speed' is no parameter of 'trace'; there are .*",
    ),
]


@pytest.mark.parametrize(("table", "message"), WRONG, ids=[str(table)[:60] for table, _ in WRONG])
def test_a_wrong_source_is_refused_in_one_line(table, message):
    with pytest.raises(ValueError, match=f"^{message}$") as caught:
        SourceSettings.from_table(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("time,size\n1,5\n0,5\n", r"times\[1\] must be 1 s or later, as the time before"),
        ("time,size\n-1,5\n", r"times\[0\] must lie between 0 and 1e\+09 s, got -1"),
        ("time,size\n0,0\n", r"sizes\[0\] must be a whole number of bytes"),
        ("time,size\n", "has no messages"),
        ("time,size\n0,5\n", "source must have a message later than the time 0, or a period"),
        ("time\n0\n", r"lacks a column 'size'"),
        ("time,size\n" + "".join(f"{n / 2000},5\n" for n in range(4000)), "at most 1000 messages per second"),
    ],
)
def test_a_file_with_no_usable_trace_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(ValueError, match=rf"^source: .*{message}") as caught:
        trace_settings(tmp_path / "bad.csv")
    assert "\n" not in str(caught.value)


# The messages handed to a session


@pytest.mark.parametrize(("source", "duration"), [(td.Speech(174, 0.020), 400.0), (td.Video(1e6), 0.05)])
def test_a_session_gets_the_messages_of_the_seed(tmp_path, source, duration):
    file = tmp_path / "0.0.messages"
    write_messages(file, source, 5, duration)
    expected = source.messages(duration, 5)
    times, sizes, kinds = zip(*read_messages(file), strict=True)
    np.testing.assert_allclose(np.array(times) / 1e9, expected["time"], rtol=0, atol=1e-9)
    assert list(sizes) == expected["size"].tolist()
    assert list(kinds) == expected["kind"].tolist()
    first = first_messages(file, 2)
    assert first["kind"].tolist() == expected["kind"][:2].tolist()


def test_a_trace_that_ends_early_ends_the_messages(tmp_path):
    write_messages(tmp_path / "file", td.Trace([0.5, 0.5, 7.0], [1, 2, 3]), 0, 7.0)
    assert list(read_messages(tmp_path / "file")) == [(500_000_000, 1, 0), (500_000_000, 2, 0)]
    write_messages(tmp_path / "file", td.Trace([0.5, 0.5, 7.0], [1, 2, 3]), 0, 60.0)
    assert len(list(read_messages(tmp_path / "file"))) == 3


def test_messages_are_read_in_blocks(tmp_path, monkeypatch):
    write_messages(tmp_path / "file", td.Flow(1, 0.001, write_jitter=0), 0, 20.0)
    messages = read_messages(tmp_path / "file")
    assert list(islice(messages, 5000))[-1] == (4_999_000_000, 1, 0)
    # What is not read yet is still in the file.
    os.truncate(tmp_path / "file", 17 * 2 * 4096)
    assert len(list(messages)) == 2 * 4096 - 5000


# The name of an application stands for its flow and its target in every question

PATH = Path(rtt=0.050, loss=0.01)
GAME = application("game")
QUESTIONS = {
    "largest_bitrate": lambda flow, *target: td.largest_bitrate(flow, PATH, None, *target).value,
    "largest_packet_rate": lambda flow, *target: td.largest_packet_rate(flow, PATH, None, *target).value,
    "largest_loss": lambda flow, *target: td.largest_loss(flow, PATH, None, *target).value,
    "largest_rtt": lambda flow, *target: td.largest_rtt(flow, PATH, None, *target).value,
    "loss_rtt_frontier": lambda flow, *target: td.loss_rtt_frontier(flow, PATH, None, *target, rtts=(0.05,)).losses,
    "sensitivities": lambda flow, *target: td.sensitivities(flow, PATH, None, *target).entries,
    "best_split": lambda flow, *target: td.best_split(flow, PATH, None, *target).candidates,
    "best_connections": lambda flow, *target: td.best_connections(flow, PATH, None, *target).candidates,
    "compare": lambda flow, *target: [
        row.result.mean_interval for row in td.compare(flow, PATH, None, *target, duration=20).rows
    ],
    "guideline": lambda flow, *target: td.guideline(flow, PATH, None, *target).margins,
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_name_stands_for_flow_and_target(ask):
    assert ask("game") == ask(GAME.flow, GAME.target)


def test_a_name_stands_for_the_flow_where_there_is_no_target():
    assert td.predict_delay("game", PATH).mean == td.predict_delay(GAME.flow, PATH).mean
    assert td.predict_delay("voip", rtt=0.05, loss=0.01).scenario[0] == application("voip").flow
    assert td.simulate("game", PATH, packets=2000).mean == td.simulate(GAME.flow, PATH, packets=2000).mean
    named, given = (td.playout_for_late_fraction(flow, PATH, None, 0.01) for flow in ("game", GAME.flow))
    assert named.value == given.value
    assert td.playout_for_call("voip", PATH).value == td.playout_for_call(application("voip").flow, PATH).value


def test_a_guideline_by_name_rates_the_call():
    assert td.guideline("voip", rtt=0.1, loss=0.02).call is not None
    assert td.guideline("voip", rtt=0.1, loss=0.02, target=Target(limit=0.3)).target.limit == 0.3


@pytest.mark.parametrize("ask", [*QUESTIONS.values(), lambda flow: td.predict_delay(flow, PATH)])
def test_an_unknown_name_is_refused_with_the_known_ones(ask):
    with pytest.raises(
        InvalidValueError,
        match=r"flow must be a Source, .*, or one of voip, opus, .*, got 'chess'",
    ):
        ask("chess")


@pytest.mark.parametrize("ask", [td.simulate, td.guideline, td.largest_loss, td.video_stalls])
@pytest.mark.parametrize("count", [1, 5000])
def test_a_trace_without_duration_is_refused_in_one_line(ask, count):
    with pytest.raises(InvalidValueError, match=r"^source must have a message later than the time 0, or a period, got"):
        ask(td.Trace([0.0] * count, [1000] * count), PATH)


@pytest.mark.parametrize("several", [[0.1, 0.2], pd.Series([0.1, 0.2])])
def test_several_values_at_once_point_to_the_function_for_tables(several):
    with pytest.raises(InvalidValueError, match=r"rtt must be a number in s, got .*; .* call tcpdelay\.predict_many"):
        td.predict_delay("voip", rtt=several, loss=0.02)


def test_the_limit_has_one_name_in_all_grids():
    rows = {"rtt": [0.1], "loss": [0.02]}
    assert not td.predict_many(rows, flow="voip", limit=0.1, cached=False)["works"][0]
    assert td.working_region("voip", rtt=0.1, loss=0.02, limit=0.3).attrs["limit"] == 0.3
    assert td.working_boundary("voip", Stack.linux(), rtt=0.1, limit=0.3).target == Target(0.3)


OTHER_SOURCES = {"live-video": td.Video, "voice-agent-reply": td.Utterances, "remote-desktop": td.Messages}


def test_applications_whose_rate_is_not_constant_are_the_sources_that_they_are():
    found = {name: type(preset.source) for name, preset in APPLICATIONS.items() if not preset.constant_rate}
    assert found == OTHER_SOURCES
    assert APPLICATIONS["live-video"].source.mean_bitrate == 2_500_000
    # A frame of a WebSocket server with 126 to 65535 bytes has a header of 4 bytes, RFC 6455.
    assert APPLICATIONS["voice-agent-reply"].source == td.Utterances(960 + 4, 0.020)
    assert APPLICATIONS["remote-desktop"].source.mean_bitrate == pytest.approx(1e6)


ASKING_FOR_A_FLOW = ("largest_packet_rate", "sensitivities", "best_split", "best_connections")


@pytest.mark.parametrize("name", OTHER_SOURCES)
@pytest.mark.parametrize("question", ASKING_FOR_A_FLOW)
def test_questions_about_a_constant_rate_refuse_the_others_in_one_line(question, name):
    with pytest.raises(InvalidValueError, match="flow must be a Flow, which has a constant rate") as raised:
        QUESTIONS[question](name)
    assert "\n" not in str(raised.value)


def test_a_chain_refuses_and_auto_simulates():
    with pytest.raises(ValueError, match="must be a Flow, which has a constant rate, in the chain"):
        td.predict_delay("remote-desktop", PATH, method="chain")
    found = td.predict_delay("remote-desktop", PATH, packets=2000)
    assert found.mean == td.simulate(APPLICATIONS["remote-desktop"].source, PATH, packets=2000).mean


def test_an_application_at_constant_rate_has_the_mean_and_says_so():
    video = APPLICATIONS["live-video"].at_constant_rate
    assert video.flow == td.Flow.from_bitrate(2_500_000, 1448)
    assert video.title == "Live video uplink, 2.5 Mbit/s, as a constant rate"
    assert GAME.at_constant_rate is GAME
    with pytest.raises(InvalidValueError, match="constant rate"):
        _ = APPLICATIONS["live-video"].flow
    assert APPLICATIONS["live-video"].unlike(td.Flow(174, 0.020)) == "69.6 kbit/s, but live-video sends 2.5 Mbit/s"


# `tcpdelay predict` of a source whose rate is not constant

PATH_OPTIONS = ("--rtt", "60ms", "--loss", "0.5%")


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
    status, printed, errors = run("predict", *PATH_OPTIONS, *arguments, *asked)
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
    status, printed, _ = run("predict", *PATH_OPTIONS, *video)
    assert status == 0
    assert re.search(r"^key frame +99 %: too few messages$", printed, flags=re.M)
    assert re.search(r"^other frame +99 % within [\d.]+ ms$", printed, flags=re.M)
    _, printed, _ = run("predict", *PATH_OPTIONS, *video, "--format", "json")
    by_kind = json.loads(printed)["target_quantile_by_kind"]
    assert by_kind["key frame"] is None
    assert by_kind["other frame"] > 0


def test_video_is_answered_by_the_chain(run):
    arguments = ("--bitrate", "300kbit/s", "--key-ratio", "8", "--format", "json")
    status, printed, errors = run("predict", *PATH_OPTIONS, *arguments)
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    expected = td.predict_delay(td.Video(3e5, key_ratio=8), td.Path(0.060, 0.005))
    assert (found["method"], found["p95"]) == ("chain", pytest.approx(expected.quantile(0.95)))
    assert set(found["target_quantile_by_kind"]) == {"other frame", "key frame"}


def test_speech_is_answered_by_the_chain(run):
    arguments = ("--app", "voip", "--silence", "1.35s", "--format", "json")
    status, printed, errors = run("predict", *PATH_OPTIONS, *arguments)
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
    status, printed, errors = run("predict", *PATH_OPTIONS, *given)
    assert (status, errors) == (0, "")
    assert ", write jitter 2 ms, " in printed.splitlines()[0]
    _, printed, _ = run("predict", *PATH_OPTIONS, *given, "--format", "json")
    found = json.loads(printed)
    assert found.get("source", found)["write_jitter"] == 0.002
    refused = "source" if "FILE" in sent else "write jitter must be at most 0.001 s"
    if "--method" not in given:
        assert found["simulated_because"] == f"the chain does not model this scenario ({refused})"


def test_a_trace_is_simulated_and_shown_by_kind(run, trace, tmp_path):
    status, printed, errors = run(
        "predict", *PATH_OPTIONS, "--source", str(trace), "--period", "200s", "--packets", "10000"
    )
    assert (status, errors) == (0, "")
    assert printed.startswith("trace of 960 kbit/s in the mean, ")
    assert re.search(r"^key +95 % within [\d.]+ ms$", printed, flags=re.M)
    assert re.search(r"^other +95 % within", printed, flags=re.M)
    status, printed, _ = run("predict", *PATH_OPTIONS, "--source", str(trace), "--format", "csv")
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
def test_options_that_do_not_fit_are_named(refused, trace, arguments, fault):
    given = [str(trace) if argument == "FILE" else argument for argument in arguments]
    errors = refused("predict", *PATH_OPTIONS, *given)
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
def test_a_trace_without_a_rate_is_refused_in_one_line(refused, tmp_path, command):
    (tmp_path / "one.csv").write_text("time,size\n5,100\n")
    errors = refused(*command, *PATH_OPTIONS, "--source", str(tmp_path / "one.csv"))
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
def test_solve_refuses_what_has_no_meaning_for_the_source(refused, trace, question, arguments, fault):
    given = [str(trace) if argument == "FILE" else argument for argument in arguments]
    errors = refused("solve", question, *PATH_OPTIONS, *given)
    assert re.fullmatch(f"tcpdelay solve: {fault}\n", errors.replace(str(trace), "FILE")), errors


def test_several_demands_refuse_an_application_without_a_constant_rate(refused):
    errors = refused("region", "--app", "voip", "--app", "live-video")
    said = "--app: the rate of live-video is not constant, as it must be here; in place of it, --packet-size 1448 "
    assert errors == f"tcpdelay region: {said}--bitrate 2.5Mbit/s is a flow of constant rate\n"


def test_an_application_without_a_constant_rate_is_a_source_for_solve_and_for_a_table_of_paths(run, tmp_path):
    status, printed, _ = run(
        "solve", "bitrate", *PATH_OPTIONS, "--app", "remote-desktop", "--limit", "5s", "--format", "json"
    )
    assert status == 0
    found = json.loads(printed)
    assert (found["source"]["kind"], found["method"]) == ("messages", "simulation")
    table = tmp_path / "paths.csv"
    table.write_text("rtt,loss\n0.06,0.001\n")
    status, _, _ = run("batch", str(table), "--app", "voice-agent-reply", "-o", str(tmp_path / "answers.csv"))
    assert status == 0
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 2
    status, printed, errors = run("solve", "sensitivity", *PATH_OPTIONS, "--app", "live-video")
    assert (status, printed) == (2, "")
    assert errors.startswith("tcpdelay solve: --app live-video: goes with solve bitrate, ")


def test_given_packets_make_a_constant_rate_and_the_output_says_so(run):
    chain = ("--packet-size", "1448", "--method", "chain", "--format", "json")
    status, printed, errors = run("predict", *PATH_OPTIONS, "--app", "live-video", *chain)
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
        ("predict", *PATH_OPTIONS, "--packets", "5000", "--format", "json"),
        ("solve", "playout", *PATH_OPTIONS, "--late-fraction", "10%", "--format", "json"),
    ],
    ids=lambda command: command[0],
)
def test_commands_take_the_source_with_headers_alike(run, command):
    status, printed, errors = run(*command, "--app", "voice-agent-reply", "--over", "wss")
    assert status == 0
    assert json.loads(printed)["source"] == source_parameters(td.Utterances(990, 0.020))
    assert errors.splitlines()[0].startswith("wss adds 30 bytes to an average message of 960 bytes, 990 in total: ")


def test_a_report_says_that_a_constant_rate_takes_the_place_of_messages(run, tmp_path):
    file = tmp_path / "report.json"
    status, _, errors = run("report", *PATH_OPTIONS, "--app", "live-video", "--packet-size", "1448", "-o", str(file))
    assert status == 0
    assert errors.startswith("live-video as a flow of constant rate, because only a constant rate has --packet-size\n")
    said = "a flow of constant rate takes the place of the messages of live-video, which are not equal"
    assert said in json.loads(file.read_text())["notes"]
