import json
import math
import re
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from synthetic_captures import capture, experiment, flow_run
from tcpdelay.capture import flow_capture
from tcpdelay.capture.flow_capture import (
    MESSAGE_SCHEMA,
    NOT_READ,
    SAMPLE_FIELDS,
    SCHEMA,
    CaptureFile,
    FlowCapture,
    FlowRun,
    WrittenMessages,
    read_capture,
    read_captures,
    write_capture,
    write_captures,
)
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.testbed.experiment import Experiment

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.dictionaries(st.text(max_size=20), INT64, max_size=4)


@st.composite
def flow_runs(draw):
    # Drawn one by one, the numbers would take most of the time.
    size, stalls, samples, seed = (draw(st.integers(0, 300)) for _ in range(4))
    rng = np.random.default_rng(seed)
    bits = draw(st.sampled_from([1, 16, 40, 64]))

    def column(size):
        return rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size)

    return FlowRun(
        run=draw(st.integers(0, 100)),
        flow=draw(st.integers(0, 63)),
        backend=draw(st.sampled_from(["uml-virtual", "uml", "host"])),
        seed=draw(st.integers(0, 2**31 - 1)),
        hz=draw(st.sampled_from([0, 100, 250, 1000])),
        kernel=draw(st.text(max_size=20)),
        tool=draw(st.text(max_size=20)),
        recorded=draw(st.text(max_size=20)),
        counters=draw(COUNTS),
        packets=draw(COUNTS),
        written=column(size),
        delay=column(size),
        samples={name: column(samples) for name in SAMPLE_FIELDS},
        stall_time=column(stalls),
        stall_length=column(stalls),
        epoch=draw(INT64),
    )


def assert_same(one, other):
    """Compare two captures, arrays included."""
    assert (one.name, one.settings, len(one.runs)) == (other.name, other.settings, len(other.runs))
    for run, again in zip(one.runs, other.runs, strict=True):
        for field in fields(FlowRun):
            before, after = getattr(run, field.name), getattr(again, field.name)
            if field.name == "samples":
                assert before.keys() == after.keys()
                pairs = [(before[name], after[name]) for name in before]
            elif isinstance(before, np.ndarray):
                pairs = [(before, after)]
            else:
                assert before == after
                continue
            for left, right in pairs:
                assert right.dtype == np.int64
                np.testing.assert_array_equal(left, right)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "some.parquet"


@pytest.fixture
def written(file):
    """The file of a capture of two flows in two runs."""
    rng = np.random.default_rng(1)
    runs = [flow_run(rng.exponential(0.1, 200), run=run, flow=flow) for run in range(2) for flow in range(2)]
    made = capture(runs, experiment(400), name="some")
    write_capture(file, made)
    return file


def refusal(file):
    """What `read_capture` says against a file: one line that begins with its name; None if it reads."""
    try:
        read_capture(file)
    except ValueError as error:
        name, colon, message = str(error).partition(": ")
        return message if (name, colon) == (str(file), ": ") and "\n" not in message else repr(error)


@settings(max_examples=20)
@given(st.lists(flow_runs(), min_size=1, max_size=3))
def test_what_is_written_is_read(tmp_path_factory, runs):
    file = tmp_path_factory.getbasetemp() / "round-trip.parquet"
    made = FlowCapture("round-trip", json.loads(experiment(loss=0.05, sack=False).to_json()), runs)
    write_capture(file, made)
    assert_same(read_capture(file), made)


def of_messages(delays=(0.1, 0.2, 0.3, 0.4), numbers=(1, 0, 0, 1), run=0):
    """A run that wrote messages of two kinds every two seconds, with those delays [s]."""
    sizes = np.arange(9000, 9000 + len(delays))
    messages = WrittenMessages(sizes, np.array(numbers, np.int64), ("other frame", "key frame"))
    return flow_run(delays, run=run, messages=messages)


def video_capture(*runs):
    settings = Experiment.from_table({"source": {"kind": "video", "bitrate": 1e6}, "rtt": 0.02, "loss": 0.01})
    return FlowCapture("video", json.loads(settings.to_json()), list(runs))


def test_a_capture_of_messages_keeps_sizes_and_kinds(file):
    made = video_capture(of_messages(), of_messages([0.5, math.inf], [0, 0], run=1))
    write_capture(file, made)
    found = read_capture(file)
    assert found.settings == made.settings
    assert [run.delay.tolist() for run in found.runs] == [run.delay.tolist() for run in made.runs]
    assert [run.messages.sizes.tolist() for run in found.runs] == [[9000, 9001, 9002, 9003], [9000, 9001]]
    assert [run.messages.kind_numbers.tolist() for run in found.runs] == [[1, 0, 0, 1], [0, 0]]
    assert found.runs[0].messages.kinds == ("other frame", "key frame")


def test_the_columns_of_constant_flows_are_as_before(written):
    assert pq.read_schema(written).equals(SCHEMA)
    assert SCHEMA.names[-1] == "epoch"


def test_delays_by_kind_are_parts_of_the_delays():
    made = video_capture(of_messages(), of_messages([0.5, math.inf], [0, 0], run=1))
    found = {kind: [part.tolist() for part in parts] for kind, parts in made.delays_by_kind().items()}
    assert found == {"other frame": [[0.2, 0.3], [0.5, math.inf]], "key frame": [[0.1, 0.4], []]}
    late = {kind: [part.tolist() for part in parts] for kind, parts in made.delays_by_kind(skip=3.0).items()}
    assert late == {"other frame": [[0.3], []], "key frame": [[0.4], []]}
    assert video_capture(of_messages(numbers=[0, 0, 0, 0])).delays_by_kind().keys() == {"other frame"}
    assert capture([0.1, 0.2]).delays_by_kind() == {}


def test_the_messages_of_a_capture_are_a_source():
    made = video_capture(of_messages())
    assert made.trace(9.0) == td.Trace(
        [0, 2, 4, 6], [9000, 9001, 9002, 9003], 9.0, labels=["key frame", "other frame", "other frame", "key frame"]
    )
    assert capture([0.1, 0.2]).trace() == td.Trace([0, 2], [174, 174])
    with pytest.raises(ValueError, match=r"^capture must have packets of one size and interval, got 'video'; use"):
        _ = made.flow
    with pytest.raises(ValueError, match=r"^period must be later than the last time, 6 s"):
        made.trace(5.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"message_size": [1, 2]}, "row 0 has 4 writes, 2 sizes and 4 kinds"),
        ({"message_kind": [0, 0, 1, 2]}, "row 0 has 4 writes, 4 sizes and 4 kinds"),
        ({"message_kind": [0, 0, 1, -1]}, "row 0 has 4 writes"),
        ({"message_kind": None}, "column 'message_kind' has gaps"),
        ({"kinds": None}, ""),
    ],
)
def test_damaged_messages_are_told(file, change, message):
    write_capture(file, video_capture(of_messages()))
    (row,) = pq.read_table(file).to_pylist()
    pq.write_table(pa.Table.from_pylist([row | change], schema=MESSAGE_SCHEMA), file)
    assert refusal(file).startswith(f"is a damaged capture: {message}")


def test_runs_without_samples_read_with_empty_ones(file):
    made = capture([0.1, 0.2])
    write_capture(file, made)
    (run,) = read_capture(file).runs
    assert {name: values.size for name, values in run.samples.items()} == dict.fromkeys(SAMPLE_FIELDS, 0)


def test_the_same_capture_is_the_same_file(written, tmp_path):
    again = tmp_path / "again.parquet"
    write_capture(again, read_capture(written))
    assert again.read_bytes() == written.read_bytes()


def test_a_capture_knows_its_flow_and_path(written):
    found = read_capture(written)
    assert (found.name, found.offered) == ("some", 800)
    assert found.flow == Flow(174, 0.020, write_jitter=0)
    assert found.path == Path(0.020, 0.01)


def test_delays_in_microseconds_become_seconds():
    made = capture([flow_run([0.123456, 7.000001])])
    assert made.delays()[0].tolist() == pytest.approx([0.123456, 7.000001], rel=1e-15)


def in_microseconds(written, delay, **options):
    """A capture whose one flow wrote and delayed its packets so [us]."""
    delay = np.array(delay, np.int64)
    run = replace(flow_run(np.zeros(delay.size)), written=np.array(written, np.int64), delay=delay)
    return capture([run], experiment(**options))


def test_an_overtaken_packet_waits_for_those_before_it():
    # The second connection is faster: what was written at 20 and 40 ms has come before what was written at 0.
    made = in_microseconds([0, 20_000, 40_000, 60_000], [90_000, 50_000, 50_000, 50_000], connections=2)
    assert made.delays()[0].tolist() == pytest.approx([0.090, 0.070, 0.050, 0.050], rel=1e-12)


def test_behind_a_packet_that_was_not_read_none_is_of_use():
    made = in_microseconds([0, 20_000, 40_000], [50_000, NOT_READ, 50_000])
    assert made.delays()[0].tolist() == pytest.approx([0.05, math.inf, math.inf])
    distribution = made.delay_distribution()
    assert distribution.cdf(0.051) == pytest.approx(1 / 3)
    assert distribution.quantile(0.5) == math.inf


def test_datagrams_do_not_wait():
    made = in_microseconds(
        [0, 20_000, 40_000, 60_000], [90_000, 50_000, NOT_READ, 50_000], application="udp", packet_size=174
    )
    assert made.delays()[0].tolist() == pytest.approx([0.09, 0.05, math.inf, 0.05])


@given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(-1, 10**6)), min_size=1, max_size=50))
def test_delays_in_order_are_those_of_the_last_packet_needed(steps):
    written = np.cumsum([step for step, _ in steps])
    delays = [delay for _, delay in steps]
    found = in_microseconds(written, delays).delays()[0]
    read = -math.inf
    for start, delay, got in zip(written.tolist(), delays, found, strict=True):
        read = max(read, math.inf if delay == NOT_READ else start + delay)
        assert got == pytest.approx((read - start) / 1e6, abs=1e-9)


def test_the_beginning_can_be_left_out():
    runs = [flow_run([0.1, 0.2, 0.3], spacing=1.0), flow_run([0.4], run=1)]
    made = capture(runs)
    assert [part.tolist() for part in made.delays(skip=1.0)] == [pytest.approx([0.2, 0.3]), []]
    assert made.delay_distribution(skip=2.0).values.tolist() == pytest.approx([0.3])
    with pytest.raises(ValueError, match="at least one"):
        made.delay_distribution(skip=3.0)


def test_the_distribution_counts_every_packet_of_every_run():
    made = capture([flow_run([0.1, 0.1, 0.1]), flow_run([0.2], run=1)])
    distribution = made.delay_distribution()
    assert distribution.values.tolist() == pytest.approx([0.1, 0.2])
    assert distribution.weights.tolist() == [0.75, 0.25]
    assert distribution.one_way_delay == pytest.approx(0.010)


def test_files_that_cannot_be_read_are_told(tmp_path):
    assert refusal(tmp_path / "none.parquet") == "cannot be read: No such file or directory"
    (tmp_path / "directory.parquet").mkdir()
    assert refusal(tmp_path / "directory.parquet") == "cannot be read: Is a directory"


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 4, b"name = 1\n", bytes(10_000)])
def test_other_files_are_told(file, content):
    file.write_bytes(content)
    assert refusal(file).startswith("is no Parquet file: ")


def test_a_truncated_file_is_told(written):
    content = written.read_bytes()
    for length in range(0, len(content), 97):
        written.write_bytes(content[:length])
        assert refusal(written).startswith("is no Parquet file: ")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("small") / "small.parquet"
    write_capture(file, capture([flow_run(np.linspace(0.1, 0.2, 50))]))
    return file.read_bytes()


@settings(max_examples=500)
@given(data=st.data())
def test_a_changed_byte_ends_in_no_other_error(tmp_path_factory, small_file, data):
    file = tmp_path_factory.getbasetemp() / "changed.parquet"
    content = bytearray(small_file)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    # What is changed within a column may read as another number.
    assert re.match("cannot be read: |is no |is a damaged capture: |None", str(refusal(file)))


def test_foreign_parquet_is_told(file):
    pq.write_table(pa.table({"delay": [1, 2, 3]}), file)
    assert "is no capture of the testbed: its columns differ" in refusal(file)
    pq.write_table(SCHEMA.empty_table(), file)
    assert "it has no row" in refusal(file)


CHANGES = {
    "settings that are no JSON": ({"settings": "{"}, "is a damaged capture: Expecting property name"),
    "no settings": ({"settings": None}, "is a damaged capture: "),
    "settings in a list": ({"settings": "[]"}, "is a damaged capture: "),
    "settings without a flow": ({"settings": "{}"}, "is a damaged capture: 'packet_size'"),
    "settings without an application": (
        {"settings": '{"packet_size": 174, "interval": 0.02, "rtt": 0.1, "loss": 0.02}'},
        "is a damaged capture: 'application'",
    ),
    "settings out of range": (
        {"settings": '{"packet_size": 174, "interval": 0.02, "rtt": -1, "loss": 0.02, "application": "cbr"}'},
        "is a damaged capture: rtt must lie between",
    ),
    "no delays": ({"delay": None}, "is a damaged capture: column 'delay' has gaps"),
    "a gap in the delays": ({"delay": [1, None, 3]}, "is a damaged capture: column 'delay' has gaps"),
    "a gap in the samples": ({"sample_cwnd": [None]}, "is a damaged capture: column 'sample_cwnd' has gaps"),
    "too few values of the samples": ({"sample_rtt": [1]}, "is a damaged capture: row 0 has samples without some"),
    "too few delays": ({"delay": [1, 2]}, "is a damaged capture: row 0 has 3 writes and 2 delays"),
    "too few packets": ({"offered": 2}, "is a damaged capture: row 0 has 3 writes and 3 delays"),
    "no counters": ({"counters": None}, "is a damaged capture: "),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_damaged_captures_are_told(file, change, message):
    write_capture(file, capture([0.1, 0.2, 0.3]))
    (row,) = pq.read_table(file).to_pylist()
    pq.write_table(pa.Table.from_pylist([row | change], schema=SCHEMA), file)
    assert refusal(file).startswith(message)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("failing", ["writing", "fsync"])
def test_an_exception_while_writing_leaves_the_old_file(written, monkeypatch, failing):
    before = written.read_bytes()
    write_table = pq.ParquetWriter.write_table

    def fail_late(writer, table):
        write_table(writer, table)
        # By this name a campaign finds what is left when a process is killed here.
        (unfinished,) = set(names_in(written.parent)) - {"some.parquet"}
        assert re.fullmatch(r"\..*\.part", unfinished)
        raise KeyboardInterrupt

    def fail(*_):
        raise OSError("disk full")

    if failing == "writing":
        monkeypatch.setattr(flow_capture.pq.ParquetWriter, "write_table", fail_late)
    else:
        monkeypatch.setattr(flow_capture.os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, OSError)):
        write_capture(written, capture([0.1]))
    assert written.read_bytes() == before
    assert names_in(written.parent) == ["some.parquet"]


def test_captures_of_a_set_are_read_one_by_one(tmp_path):
    one = replace(capture([flow_run([0.1, 0.2]), flow_run([0.3], run=1)]), name="cbr-rtt20ms")
    video = video_capture(of_messages())
    for each in (one, video):
        write_capture(tmp_path / f"{each.name}.parquet", each)
    one = read_capture(tmp_path / "cbr-rtt20ms.parquet")
    file = tmp_path / "sets" / "calls.parquet"
    file.parent.mkdir()
    write_captures(file, read_captures(tmp_path))
    assert CaptureFile(file).names == ["cbr-rtt20ms", "video"]
    for found in (list(read_captures(file)), [read_capture(file, "cbr-rtt20ms"), read_capture(file, "video")]):
        assert_same(found[0], one)
        assert found[1].delays_by_kind()["key frame"][0].tolist() == video.delays_by_kind()["key frame"][0].tolist()
    assert [found.name for found in read_captures(tmp_path, "cbr-*20ms")] == ["cbr-rtt20ms"] * 2
    for wrong in (None, "audio"):
        with pytest.raises(ValueError, match=f"calls.parquet: name must be one of its 2 captures.*got {wrong!r}"):
            read_capture(file, wrong)


def test_a_damaged_capture_of_a_set_is_named(tmp_path):
    made = capture([flow_run([0.1])])
    broken = replace(made, name="broken", settings={"application": "cbr"})
    write_captures(tmp_path / "set.parquet", [made, broken])
    found = read_captures(tmp_path / "set.parquet")
    assert next(found).name == made.name
    with pytest.raises(ValueError, match=r"set\.parquet: broken: is a damaged capture: "):
        next(found)
    write_captures(tmp_path / "twice.parquet", [made, made])
    with pytest.raises(ValueError, match="is a damaged set: each row group must have one name of its own"):
        read_capture(tmp_path / "twice.parquet")


def test_what_cannot_be_stored_leaves_nothing(file):
    run = replace(flow_run([0.1]), kernel=5)
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        write_capture(file, capture([run]))
    assert names_in(file.parent) == []
