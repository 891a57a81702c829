"""The parameters of a video from its frames."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay import Messages, ParetoSizes, Speech, Trace, Utterances, Video
from tcpdelay.declare import InvalidValueError

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
