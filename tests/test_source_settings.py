"""Sources as settings of an experiment: tables of TOML and of captures, names, and the messages handed to a session."""

import json
import os
import re
from itertools import islice

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.scenario.source_settings import SourceSettings, source_parameters
from tcpdelay.testbed.flows import first_messages, read_messages, write_messages

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
