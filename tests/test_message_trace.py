"""Traces of messages: what they hold, how files are read, what is refused; the parameters of a video."""

import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay import Flow, Messages, ParetoSizes, Path, Speech, Trace, Utterances, Video, predict_delay, simulate
from tcpdelay.declare import InvalidValueError

TABLE = pa.table(
    {
        "note": ["", "x", "y"],
        "size": pa.array([9000, 1200, 1100], pa.int32()),
        "kind": ["key", "other", "other"],
        "time": [0.0, 0.033, 0.066],
    }
)


def messages(trace, count):
    return next(trace.blocks(size=count))


def test_a_trace_holds_its_messages_and_ends():
    trace = Trace([0.0, 0.5, 0.5], [10, 20, 30])
    assert messages(trace, 100).tolist() == [(0.0, 10, 0), (0.5, 20, 0), (0.5, 30, 0)]
    assert len(list(trace.blocks(size=2))) == 2
    assert trace.messages(0.5).size == 1
    assert trace.duration == 0.75
    assert trace.mean_bitrate == 8 * 60 / 0.75


def test_a_trace_with_a_period_repeats():
    trace = Trace([0.1, 0.2], [10, 20], period=0.5)
    found = messages(trace, 5)
    assert found["time"] == pytest.approx([0.1, 0.2, 0.6, 0.7, 1.1])
    assert found["size"].tolist() == [10, 20, 10, 20, 10]
    assert (trace.message_rate, trace.mean_bitrate) == (4, 480)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.data())
def test_any_sorted_times_are_played_back(times, data):
    times = sorted(times)
    sizes = data.draw(st.lists(st.integers(1, 10**9), min_size=len(times), max_size=len(times)))
    found = messages(Trace(times, sizes), len(times))
    assert (found["time"].tolist(), found["size"].tolist()) == (times, sizes)


def test_a_trace_of_a_flow_has_its_messages():
    flow = Flow(174, 0.020)
    written = flow.messages(100)
    trace = Trace(written["time"], written["size"], period=100.0)
    assert trace.mean_bitrate == pytest.approx(flow.mean_bitrate)
    np.testing.assert_array_equal(trace.messages(100), written)


def test_traces_are_equal_by_their_content():
    trace = Trace([0, 1], [5, 6], labels=["a", "b"])
    assert trace == Trace([0.0, 1.0], np.array([5.0, 6.0]), labels=("a", "b"))
    assert hash(trace) == hash(Trace([0.0, 1.0], [5, 6], labels=("a", "b")))
    others = [Trace([0, 1], [5, 6]), Trace([0, 1], [5, 7], labels=["a", "b"]), Trace([0, 1], [5, 6], 3, ["a", "b"]), 7]
    assert all(trace != other for other in others)


def test_a_trace_does_not_change_with_the_arrays_it_was_made_from():
    times, sizes = np.array([0.0, 1.0]), np.array([5, 6])
    trace = Trace(times, sizes)
    times[:], sizes[:] = 7, 8
    assert messages(trace, 2)["time"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        trace.sizes[0] = 3


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("columns", [["time", "size"], ["note", "size", "kind", "time"]])
def test_a_trace_is_read_from_a_file(tmp_path, suffix, columns):
    file = tmp_path / f"trace.{suffix}"
    (pyarrow.csv.write_csv if suffix == "csv" else pq.write_table)(TABLE.select(columns), file)
    trace = Trace.read(file, period=0.1)
    assert trace.times.tolist() == [0.0, 0.033, 0.066]
    assert trace.sizes.tolist() == [9000, 1200, 1100]
    assert trace.period == 0.1
    kinds = [trace.kinds[kind] for kind in messages(trace, 3)["kind"]]
    assert kinds == (["key", "other", "other"] if "kind" in columns else ["message"] * 3)


def test_times_of_a_clock_count_from_the_first_message(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time,size\n1700000000.25,9000\n1700000000.5,1200\n1700000001.25,1100\n")
    trace = Trace.read(file, period=2)
    assert trace.times.tolist() == [0.0, 0.25, 1.0]
    assert Trace.read(file).mean_bitrate == 8 * 11300 / 1.5


def test_messages_have_the_same_answer_from_a_file_and_from_memory(tmp_path):
    rng = np.random.default_rng(56)
    times, sizes = np.round(np.cumsum(rng.exponential(0.03, 2000)), 4), rng.integers(40, 3000, 2000)
    pyarrow.csv.write_csv(pa.table({"time": times, "size": sizes}), tmp_path / "trace.csv")
    path = Path(rtt=0.05, loss=0.00737, loss_burst=2)
    read, made = (
        predict_delay(trace, path, packets=20_000)
        for trace in (Trace.read(tmp_path / "trace.csv", period=70), Trace(times, sizes, period=70))
    )
    assert times[0] > 0
    assert read.mean == made.mean
    assert read.quantile([0.5, 0.95, 0.99]).tolist() == made.quantile([0.5, 0.95, 0.99]).tolist()
    # So do the commands that simulate for themselves.
    assert simulate(Trace(times, sizes, period=70), path, packets=20_000).mean == made.mean


def test_blanks_in_a_file_belong_to_no_name(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time, size , kind, note\n0.0, 9000.0, key, a\n0.5, 1200,other,b\n")
    trace = Trace.read(file)
    assert (trace.times.tolist(), trace.sizes.tolist(), trace.kinds) == ([0.0, 0.5], [9000, 1200], ("key", "other"))


def test_kinds_are_the_same_across_batches(tmp_path):
    file = tmp_path / "trace.parquet"
    kinds = [["other", "other"], ["key", "other"], ["audio", "key"]]
    with pq.ParquetWriter(file, TABLE.select(["time", "size", "kind"]).schema) as writer:
        for number, pair in enumerate(kinds):
            times = [2.0 * number, 2.0 * number + 1]
            writer.write_table(pa.table({"time": times, "size": pa.array([1, 2], pa.int32()), "kind": pair}))
    trace = Trace.read(file)
    assert [trace.kinds[kind] for kind in messages(trace, 6)["kind"]] == [kind for pair in kinds for kind in pair]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Trace([], []), r"times must be a list or array of one or more times in seconds, got \[\]"),
        (lambda: Trace("ab", [1]), "times must be a list or array of one or more times in seconds, got 'ab'"),
        (lambda: Trace([[0.0]], [1]), "times must be a list or array of one or more times"),
        (lambda: Trace([-1.0], [1]), r"times\[0\] must lie between 0 and 1e.09 s, got -1"),
        (lambda: Trace([0, math.nan], [1, 1]), r"times\[1\] must lie between 0 and 1e.09 s, got nan"),
        (
            lambda: Trace([1.7e9], [1]),
            r"times\[0\] must lie between 0 and 1e.09 s, got 1700000000; subtract the first time",
        ),
        (lambda: Trace([0, 2, 1], [1, 1, 1]), r"times\[2\] must be 2 s or later, as the time before, got 1; sort"),
        (lambda: Trace([0, 1], [1, 0]), r"sizes\[1\] must be a whole number of bytes from 1 to 1000000000, got 0"),
        (lambda: Trace([0, 1], [1, 2.5]), r"sizes\[1\] must be a whole number of bytes .*, got 2.5"),
        (lambda: Trace([0, 1], [1]), "sizes must have as many values as times, 2, got 1"),
        (lambda: Trace([0, 1], [1, 1], labels=["a"]), "labels must have as many values as times, 2, got 1"),
        (lambda: Trace([0, 1], [1, 1], labels=[1, 2]), r"labels must be a list or array of texts, got \[1, 2\]"),
        (lambda: Trace(range(300), [1] * 300, labels=list(map(str, range(300)))), "labels must have at most 256 diff"),
        (lambda: Trace([0, 1], [1, 1], period=1), "period must be later than the last time, 1 s, got 1"),
        (lambda: Trace([0, 1], [1, 1], period=-1), "period must lie between 0 and 1e.09 s, got -1"),
    ],
)
def test_a_faulty_trace_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no trace: Empty CSV file"),
        (b"time,size,size\n0,1,1\n", "has more than one column 'size'"),
        (b"time,bytes\n0,1\n", "lacks a column 'size'; required are time and size, it has 'time, bytes'"),
        (b"time,size\n", "has no messages"),
        (b"time,size\n0,1.5\n", "is no trace: Float value 1.500000 was truncated"),
        (b"time,size\n0,1\n1,\n", "column 'size' has empty cells"),
        (b"time,size\n0,x\n", "is no trace: In CSV column #1: .*conversion error to double: invalid value 'x'"),
        (b"time,size\n0,1\n1\n", "is no trace: CSV parse error: Expected 2 columns, got 1"),
        (b"time,size\n1,1\n0,1\n", r"times\[1\] must be 1 s or later"),
        (b"time,size\n1700000000000,1\n1700000000033,1\n", r"times\[0\] must .*; the unit is probably milliseconds"),
        (b"time, size\n-2,1\n0,1\n", r"times\[0\] must lie between 0 and 1e.09 s, got -2"),
        (b"time,size\n1700000001,1\n1700000000,1\n", r"times\[1\] must be 1700000001 s or later"),
        (b"PAR1 and nothing else", "is no trace: "),
        (b"PAR1" + bytes(100) + b"\x08\0\0\0PAR1", "cannot be read: .*deserialize thrift"),
        (b"time,size,\xff\n0,1,1\n", "is neither Parquet nor text in UTF-8"),
    ],
)
def test_a_faulty_file_is_named_in_one_line(tmp_path, content, message):
    file = tmp_path / "trace.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{file}: {message}") as error:
        Trace.read(file)
    assert "\n" not in str(error.value)


ROWS = 10_000_000
READ = """
import resource, sys
import numpy, pyarrow.compute, pyarrow.csv, pyarrow.parquet
from tcpdelay.scenario import Trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = Trace.read(sys.argv[1], period=3e5)
count = sum(block.size for block, _ in zip(trace.blocks(), range(5000)))
print(trace.times.size, count, trace.message_rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("write", [pyarrow.csv.write_csv, pq.write_table])
def test_a_long_trace_is_read_in_bounded_memory(tmp_path, write):
    file = tmp_path / "long"
    times = np.arange(ROWS) * 0.02
    write(pa.table({"time": times, "size": np.full(ROWS, 174), "note": np.full(ROWS, 7)}), file)
    del times
    done = subprocess.run([sys.executable, "-c", READ, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows, count, rate, grown = map(float, done.stdout.split())
    assert (rows, count) == (ROWS, 5000 * 4096)
    assert rate == pytest.approx(ROWS / 3e5)
    assert grown < 50 * ROWS / 1000 + 100_000


# The parameters of a video from its frames

COUNT = 9000
NUMBERS = np.arange(COUNT)
TIMES = NUMBERS / 30


def trace_of(source, duration, labelled=False):
    frames = source.messages(duration)
    labels = np.array(source.kinds)[frames["kind"]] if labelled else None
    return Trace(frames["time"], frames["size"], labels=labels)


def varied(means, variation=0.3):
    """Sizes with these means and, relative to them, this standard deviation."""
    variance = math.log1p(variation**2)
    factors = np.random.default_rng(1).lognormal(-variance / 2, math.sqrt(variance), means.size)
    return np.maximum(np.rint(means * factors), 1).astype(int)


@settings(deadline=None, max_examples=25)
@given(
    st.floats(3, 20),
    st.floats(0.05, 0.6),
    st.integers(10, 100),
    st.sampled_from([24.0, 30.0, 60.0]),
    st.booleans(),
)
def test_parameters_are_found_within_their_standard_errors(key_ratio, variation, group, frame_rate, labelled):
    video = Video(2.5e6, frame_rate, group / frame_rate, key_ratio, variation, write_jitter=0)
    count = 100 * group
    found = Video.fit(trace_of(video, count / frame_rate, labelled))
    assert found.frame_rate == pytest.approx(frame_rate)
    assert found.group == group
    # 100 key frames: the standard error of a ratio of means, and of a deviation from `count` lognormal sizes.
    assert found.key_ratio == pytest.approx(key_ratio, rel=4.5 * variation * math.sqrt(1 / 100 + 1 / (count - 100)))
    assert found.variation == pytest.approx(variation, rel=6 * (1 + 2 * variation) / math.sqrt(2 * count))
    assert found.bitrate == pytest.approx(2.5e6, rel=4.5 * (0.05 * variation + variation / math.sqrt(count)))


@pytest.mark.parametrize("variation", [0.0, 0.3, 1.0])
def test_without_key_frames_none_are_found(variation):
    found = Video.fit(trace_of(Video(2.5e6, key_ratio=1, variation=variation), 300))
    assert found.key_ratio == 1
    assert found.variation == pytest.approx(variation, rel=0.1)


def test_heavy_tails_are_no_key_frames():
    # The coefficient of variation of a Weibull variable with shape 0.8099.
    expected = math.sqrt(math.gamma(1 + 2 / 0.8099) / math.gamma(1 + 1 / 0.8099) ** 2 - 1)
    found = Video.fit(trace_of(Video.ieee80211ax(2e6), 300))
    assert found.key_ratio == 1
    assert found.variation == pytest.approx(expected, rel=0.05)
    assert found.frame_rate == pytest.approx(32.02, abs=0.01)


def test_bidirectional_frames_do_not_hide_key_frames():
    others = np.where(NUMBERS % 3 == 0, 9000, 2500)
    found = Video.fit(Trace(TIMES, varied(np.where(NUMBERS % 60 == 0, 40_000, others))))
    assert found.group == 60
    assert found.key_ratio == pytest.approx(40_000 / ((19 * 9000 + 40 * 2500) / 59), rel=0.1)


def test_a_trace_may_begin_between_key_frames():
    found = Video.fit(Trace(TIMES, varied(np.where(NUMBERS % 60 == 17, 12_000, 4000), 0.6)))
    assert found.group == 60
    assert found.key_ratio == pytest.approx(3, rel=0.2)


def test_key_frames_without_a_period_are_found_by_their_sizes():
    key = np.random.default_rng(2).random(COUNT) < 0.01
    found = Video.fit(Trace(TIMES, varied(np.where(key, 40_000, 4000))))
    first, *_, last = np.flatnonzero(key)
    assert found.key_interval == pytest.approx((last - first) / (key.sum() - 1) / 30, rel=0.02)
    assert found.key_ratio == pytest.approx(10, rel=0.1)


def test_slow_changes_of_the_content_are_no_key_frames():
    content = 4000 * np.exp(0.6 * np.sin(NUMBERS / 700))
    assert Video.fit(Trace(TIMES, varied(content))).key_ratio == 1
    assert Video.fit(Trace(TIMES, varied(np.where(NUMBERS % 60 == 0, 8, 1) * content))).group == 60


def test_labels_decide_before_sizes():
    sizes = varied(np.where(NUMBERS % 60 == 0, 40_000, 4000))
    labels = np.where(NUMBERS % 90 == 0, "I", "P")
    assert Video.fit(Trace(TIMES, sizes, labels=labels)).group == 90
    unrelated = np.where(NUMBERS % 90 == 0, "left", "right")
    assert Video.fit(Trace(TIMES, sizes, labels=unrelated)).group == 60


def test_a_period_counts_the_pause_behind_the_last_frame():
    assert Video.fit(Trace([0.0, *np.arange(1, 20) / 10], [1000] * 20, period=2.0)).frame_rate == pytest.approx(10)


@pytest.mark.parametrize(
    "source",
    [Speech(174, 0.02), Utterances(960, 0.02), Messages(50, ParetoSizes(500))],
    ids=lambda each: type(each).__name__,
)
def test_what_is_no_video_is_refused_in_one_line(source):
    with pytest.raises(InvalidValueError, match=r"^trace must have messages at a constant rate") as failure:
        Video.fit(trace_of(source, 60))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("times", [[0.0], np.arange(9) / 30])
def test_short_traces_are_refused(times):
    with pytest.raises(InvalidValueError, match=r"^trace must have 10 or more messages"):
        Video.fit(Trace(times, [1000] * len(times)))


def test_another_source_is_no_trace():
    with pytest.raises(InvalidValueError, match=r"^trace must be a Trace, got Speech"):
        Video.fit(Speech(174, 0.02))


def test_messages_written_at_once_are_refused():
    with pytest.raises(InvalidValueError, match="add up the messages of each frame"):
        Video.fit(Trace(np.repeat(TIMES[:100], 3), [1000] * 300))
