"""Sources of messages: their rates, their seeds, the distributions of their sizes, and what they refuse."""

import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tcpdelay as td
from tcpdelay.scenario.source import BLOCK

SOURCES = {
    "flow": td.Flow(174, 0.020),
    "lognormal video": td.Video(2_500_000),
    "Weibull video": td.Video.ieee80211ax(4e6),
    "speech": td.Speech(174, 0.020),
    "utterances": td.Utterances(960, 0.020),
    "lognormal messages": td.Messages(50, td.LognormalSizes(1000)),
    "Pareto messages": td.Messages(50, td.ParetoSizes(500)),
    "measured messages": td.Messages(50, td.EmpiricalSizes([100, 100, 1500])),
    "equal messages": td.Messages(50, 800),
    "trace": td.Trace([0.0, 0.01, 0.5], [100, 2000, 7], period=0.7, labels=["a", "b", "a"]),
}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def sources():
    """Return a strategy of sources with random parameters, which write exactly or late."""
    lateness = st.one_of(st.just(0.0), st.floats(0, 1))
    return st.builds(lambda source, late: dataclasses.replace(source, write_jitter=late), exact_sources(), lateness)


def exact_sources():
    """Return a strategy of sources with random parameters."""
    size, interval = st.integers(1, 20_000), st.floats(0.001, 0.2)
    mean = st.floats(0.05, 5.0)
    sizes = st.one_of(
        st.builds(td.LognormalSizes, st.floats(1, 1e5), st.floats(0, 3)),
        st.builds(td.ParetoSizes, st.floats(1, 1000), st.floats(0.1, 10), st.floats(1e4, 1e6)),
        st.builds(td.EmpiricalSizes, st.lists(size, min_size=1, max_size=20)),
        size,
    )
    return st.one_of(
        st.builds(td.Flow, size, interval),
        st.builds(
            td.Video,
            st.floats(1e5, 1e8),
            st.floats(1, 120),
            st.floats(0.1, 10),
            st.floats(1, 30),
            st.floats(0, 3),
            st.sampled_from(["lognormal", "weibull"]),
        ),
        st.builds(td.Speech, size, interval, mean, mean),
        st.builds(td.Utterances, size, interval, st.floats(1, 20), mean, mean),
        st.builds(td.Messages, st.floats(0.1, 1000), sizes),
    )


@settings(max_examples=50)
@given(sources(), st.integers(0, 2**32), st.floats(0, 20), st.floats(0, 20), st.integers(1, 10_000))
def test_equal_seeds_give_equal_messages_whatever_the_block_and_the_duration(source, seed, shorter, longer, block):
    shorter, longer = sorted((shorter, longer))
    messages = source.messages(longer, seed)
    assert (np.diff(messages["time"]) >= 0).all()
    assert (messages["size"] >= 1).all()
    assert (messages["time"] < longer).all()
    assert messages["kind"].max(initial=0) < len(source.kinds)
    np.testing.assert_array_equal(source.messages(shorter, seed), messages[messages["time"] < shorter])
    blocks = list(itertools.islice(source.blocks(seed, block), -(-messages.size // block)))
    assert all(len(each) == block for each in blocks)
    np.testing.assert_array_equal(np.concatenate([messages[:0], *blocks])[: messages.size], messages)


@settings(max_examples=50)
@given(exact_sources(), st.integers(0, 2**32), st.floats(0, 1))
def test_late_writes_keep_their_order_and_are_late_by_at_most_the_jitter(source, seed, jitter):
    exact = next(dataclasses.replace(source, write_jitter=0).blocks(seed, 1000))
    late = next(dataclasses.replace(source, write_jitter=jitter).blocks(seed, 1000))
    assert (np.diff(late["time"]) >= 0).all()
    assert (late["time"] >= exact["time"]).all()
    assert (late["time"] <= exact["time"] + jitter).all()
    for name in ("size", "kind"):
        np.testing.assert_array_equal(late[name], exact[name])


def test_the_lateness_is_uniform_and_independent_from_write_to_write():
    written = next(td.Flow(174, 0.020, write_jitter=0.001).blocks(seed=5, size=20_000))["time"]
    lateness = (written - 0.020 * np.arange(written.size)) / 0.001
    assert stats.kstest(lateness, "uniform").pvalue > 0.001
    # The correlation of independent neighbours has a standard deviation of 1 / sqrt(n).
    assert abs(np.corrcoef(lateness[1:], lateness[:-1])[0, 1]) < 4 / np.sqrt(lateness.size)
    assert td.Flow(174, 0.020, write_jitter=0).messages(0.05)["time"].tolist() == [0.0, 0.02, 0.04]


def test_a_source_shows_its_lateness_only_if_it_is_not_the_usual_one():
    assert td.Flow(174, 0.020) == td.Flow(174, 0.020, write_jitter=0.001)
    assert repr(td.Flow(174, 0.020)) == "Flow(packet_size=174, interval=0.02)"
    assert repr(td.Flow(174, 0.020, 0)) == "Flow(packet_size=174, interval=0.02, write_jitter=0.0)"
    assert repr(td.Trace([0.0, 0.5], [9, 9], write_jitter=0.001)) == "Trace(2 messages in 0.5 s, write_jitter=0.001)"
    with pytest.raises(ValueError, match=r"^write_jitter must lie between 0 and 1 s, got 20; the time is given in sec"):
        td.Video(1e6, write_jitter=20)


@each_source
def test_other_seeds_give_other_messages_unless_nothing_is_random(source):
    same = np.array_equal(source.messages(30, seed=1), source.messages(30, seed=2))
    assert same == isinstance(source, td.Trace)
    if isinstance(source, td.Flow):
        exact = dataclasses.replace(source, write_jitter=0)
        np.testing.assert_array_equal(exact.messages(30, seed=1), exact.messages(30, seed=2))


@each_source
def test_mean_rates_agree_with_the_messages(source):
    parts, duration = 200, 20_000.0
    messages = source.messages(duration, seed=3)
    places = (messages["time"] / duration * parts).astype(int)
    for weights, expected in ((None, source.message_rate), (8 * messages["size"], source.mean_bitrate)):
        rates = np.bincount(places, weights, parts) * parts / duration
        error = rates.std(ddof=1) / math.sqrt(parts)
        # Sizes are rounded to whole bytes; a fixed period need not divide a part.
        assert rates.mean() == pytest.approx(expected, abs=4 * error + 2e-4 * expected)
    assert source.mean_size == pytest.approx(source.mean_bitrate / 8 / source.message_rate)


def relative(source, kind, count=200_000):
    """Return the sizes of the messages of a kind, relative to their mean by the source's parameters."""
    chosen = [block[block["kind"] == kind]["size"] for block in itertools.islice(source.blocks(5), count // 4096)]
    return np.concatenate(chosen) / source.mean_sizes[kind]


@pytest.mark.parametrize("kind", [0, 1])
def test_frames_have_the_lognormal_distribution_of_their_mean_and_variation(kind):
    video = td.Video(50e6, key_interval=0.1, key_ratio=5, variation=0.4)
    found = relative(video, kind)
    sigma = math.sqrt(math.log(1 + 0.4**2))
    assert found.mean() == pytest.approx(1, abs=4 * 0.4 / math.sqrt(found.size))
    assert stats.kstest(found, stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2)).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("bitrate", "scale"),
    [(2e6, 6950), (4e6, 13900), (6e6, 20850), (8e6, 27800), (10e6, 34750), (15.6e6, 54210)],
)
def test_weibull_frames_have_the_parameters_of_the_evaluation_methodology(bitrate, scale):
    video = td.Video.ieee80211ax(bitrate)
    published = stats.weibull_min(0.8099, scale=scale)
    assert video.mean_sizes[0] == pytest.approx(published.mean(), rel=1e-4)
    found = relative(video, 0) * video.mean_sizes[0]
    assert found.mean() == pytest.approx(published.mean(), abs=4 * published.std() / math.sqrt(found.size))
    # A size is rounded to whole bytes: the distance to the continuous distribution has that much more.
    assert stats.kstest(found, lambda size: published.cdf(size + 0.5)).pvalue > 1e-4


def test_key_frames_come_at_their_interval_and_have_their_ratio():
    video = td.Video(2_500_000, frame_rate=25, key_interval=2, key_ratio=8, variation=0, write_jitter=0)
    frames = video.messages(100)
    key = frames["kind"] == video.kinds.index("key frame")
    assert frames["time"][key].tolist() == list(range(0, 100, 2))
    assert frames["size"][key][0] / frames["size"][~key][0] == pytest.approx(8, rel=1e-3)
    assert 8 * frames["size"].sum() / 100 == pytest.approx(2_500_000, rel=1e-4)


@pytest.mark.parametrize("source", [td.Speech(174, 0.02, 0.8, 1.7), td.Utterances(960, 0.02, 4, 3.0, 2.0)])
def test_bursts_and_pauses_have_exponential_lengths(source):
    packets = dataclasses.replace(source, write_jitter=0).messages(20_000, seed=7)
    begins = np.flatnonzero(packets["kind"])
    counts = np.diff(begins)
    spacing = source.interval / getattr(source, "speed", 1)
    inner = np.delete(np.diff(packets["time"]), begins[1:] - 1)
    np.testing.assert_allclose(inner, spacing, atol=1e-9)
    length, pause = (source.talk, source.silence) if isinstance(source, td.Speech) else (source.length, source.pause)
    # A burst has n packets if its audio ends within the n-th interval: geometric, for an exponential length.
    share = -math.expm1(-source.interval / length)
    expected = stats.geom(share)
    assert counts.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / math.sqrt(counts.size))
    edges = expected.ppf(np.arange(1, 10) / 10)
    observed = np.bincount(np.searchsorted(edges, counts), minlength=10)
    shares = np.diff(expected.cdf(edges), prepend=0, append=1)
    assert stats.chisquare(observed, shares * counts.size).pvalue > 1e-4
    # The time from burst to burst is the sum of two exponential times.
    cycles = np.diff(packets["time"][begins])
    deviation = math.hypot(length, pause)
    assert cycles.mean() == pytest.approx(length + pause, abs=4 * deviation / math.sqrt(cycles.size))
    assert cycles.std() == pytest.approx(deviation, rel=0.1)


def test_bursts_of_minutes_come_in_blocks():
    # 256 bursts of this source have a hundred million packets.
    source = td.Utterances(11_500, 0.000366, speed=65.0, length=159.0, pause=0.09)
    blocks = list(itertools.islice(source.generate(0), 3))
    assert [block.size for block in blocks] == [BLOCK] * 3
    assert np.diff(np.concatenate([block["time"] for block in blocks])) == pytest.approx(0.000366 / 65, rel=1e-3)


def test_messages_arrive_at_random_times():
    waits = np.diff(td.Messages(20, 100).messages(5000, seed=9)["time"], prepend=0)
    assert stats.kstest(waits, stats.expon(scale=1 / 20).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("sizes", "published"),
    [
        (td.LognormalSizes(5000, 0.7), stats.lognorm(math.sqrt(math.log(1.49)), scale=5000 / math.sqrt(1.49))),
        (td.ParetoSizes(1000, 1.2, 1e6), stats.truncpareto(1.2, 1000, scale=1000)),
        (td.ParetoSizes(1000, 1.0, 1e5), stats.truncpareto(1.0, 100, scale=1000)),
    ],
)
def test_sizes_have_their_distribution(sizes, published):
    found = np.concatenate([block["size"] for block in itertools.islice(td.Messages(1, sizes).blocks(11), 50)])
    assert sizes.mean_size == pytest.approx(published.mean(), rel=1e-9)
    assert found.mean() == pytest.approx(published.mean(), abs=4 * published.std() / math.sqrt(found.size))
    assert stats.kstest(found, lambda size: published.cdf(size + 0.5)).pvalue > 1e-4


def test_measured_sizes_occur_as_often_as_in_the_measurement():
    found = td.Messages(100, td.EmpiricalSizes([40, 1500, 40, 700])).messages(1000)["size"]
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [40, 700, 1500]
    assert stats.chisquare(counts, np.array([0.5, 0.25, 0.25]) * found.size).pvalue > 1e-4


@pytest.mark.parametrize(
    ("source", "peak"),
    [
        (td.Flow(1000, 0.01), 800_000),
        (td.Flow(1000, 0.3), 4 * 8000),
        (td.Trace([0.0, 0.5, 1.0, 1.2], [10, 20, 30, 40]), 8 * 90),
        (td.Trace([0.0, 0.5], [10, 20], period=0.8), 8 * 50),
    ],
)
def test_the_peak_bitrate_is_that_of_the_busiest_second(source, peak):
    assert source.peak_bitrate == peak


@each_source
def test_the_peak_bitrate_is_not_below_the_mean(source):
    assert source.peak_bitrate >= 0.999 * source.mean_bitrate


@each_source
def test_a_source_is_a_value(source):
    copied = pickle.loads(pickle.dumps(source))
    assert copied == source
    assert hash(copied) == hash(source)
    for field in dataclasses.fields(source):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(source, field.name, 3)


@each_source
def test_a_chart_has_a_line_for_each_message(source):
    from matplotlib.figure import Figure

    ax = source.plot(Figure().subplots(), duration=3, seed=2)
    messages = source.messages(3, seed=2)
    assert sum(len(lines.get_segments()) for lines in ax.collections) == messages.size
    assert {text.get_text() for text in ax.texts} == (
        {source.kinds[kind] for kind in messages["kind"]} if len(set(messages["kind"])) > 1 else set()
    )


def test_a_chart_without_messages_says_so():
    from matplotlib.figure import Figure

    ax = td.Trace([5.0], [10]).plot(Figure().subplots(), duration=1)
    assert [text.get_text() for text in ax.texts] == ["no message in this time"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: td.Video(100), "bitrate must be 268 bit/s or more, so that a frame has at least one byte in the mean"),
        (lambda: td.Video(0), "bitrate must lie between 1 and 1e.11 bit/s, got 0"),
        (lambda: td.Video(1e6, frame_rate=0), "frame_rate must lie between 0.1 and 1000 1/s, got 0"),
        (lambda: td.Video(1e6, key_ratio=0.5), "key_ratio must lie between 1 and 1000 times, got 0.5"),
        (
            lambda: td.Video(1e6, frame_sizes="normal"),
            "frame_sizes must be one of 'lognormal', 'weibull', got 'normal'",
        ),
        (lambda: td.Video(1e6, variation=-1), "variation must lie between 0 and 3 times the mean, got -1"),
        (lambda: td.Speech(0, 0.02), "packet_size must lie between 1 and 1e.07 bytes, got 0"),
        (lambda: td.Speech(174, 0.02, talk=0), "talk must lie between 0.001 and 1000 s, got 0"),
        (lambda: td.Speech(174, 20, silence=1350), "silence must lie between .*; the time is given in seconds"),
        (lambda: td.Utterances(960, 0.02, speed=0.5), "speed must lie between 1 and 1000 times, got 0.5"),
        (lambda: td.Messages(0, 100), "rate must lie between 0.0001 and 1e.06 1/s, got 0"),
        (lambda: td.Messages(10, 0), r"sizes\[0\] must be a whole number of bytes from 1 to 1000000000, got 0"),
        (lambda: td.Messages(10, "big"), "sizes must be LognormalSizes, ParetoSizes, .*, got 'big'"),
        (lambda: td.LognormalSizes(0.5), "mean must lie between 1 and 1e.06 bytes, got 0.5"),
        (lambda: td.ParetoSizes(1000, largest=1000), "largest must be above smallest, 1000 bytes, got 1000"),
        (lambda: td.EmpiricalSizes([]), "sizes must be a list or array of one or more sizes in bytes"),
        (lambda: td.EmpiricalSizes([10, math.nan]), r"sizes\[1\] must be a whole number of bytes .*, got nan"),
        (lambda: td.Flow(174, 0.02).messages(-1), "duration must lie between 0 and 1e9 s, got -1"),
        (lambda: td.Flow(174, 0.02).messages(1, seed=-1), "seed must be a whole number, 0 or more, got -1"),
        (lambda: next(td.Flow(174, 0.02).blocks(size=0)), "size must be a whole number, 1 or more, got 0"),
    ],
)
def test_wrong_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        make()
    assert "\n" not in str(error.value)


@settings(max_examples=50)
@given(sources(), st.floats(1, 4))
def test_a_source_at_another_bitrate_has_its_mean_its_times_and_sizes_in_proportion(source, factor):
    scaled = source.at_bitrate(factor * source.mean_bitrate)
    assert type(scaled) is type(source)
    before, after = source.messages(5, seed=3), scaled.messages(5, seed=3)
    np.testing.assert_array_equal(after["time"], before["time"])
    np.testing.assert_array_equal(after["kind"], before["kind"])
    # A size is rounded to whole bytes before and after it is scaled, and is at least one byte.
    np.testing.assert_allclose(after["size"], factor * before["size"], atol=1 + factor, rtol=1e-9)
    if source.mean_size > 1000:
        assert scaled.mean_bitrate == pytest.approx(factor * source.mean_bitrate, rel=2e-3)


def test_a_trace_at_another_bitrate_keeps_its_kinds_and_its_period():
    scaled = SOURCES["trace"].at_bitrate(2 * SOURCES["trace"].mean_bitrate)
    assert scaled == td.Trace([0.0, 0.01, 0.5], [200, 4000, 14], period=0.7, labels=["a", "b", "a"])


@pytest.mark.parametrize("bitrate", [0, -1, float("nan"), float("inf"), "64k", None])
@each_source
def test_another_bitrate_must_be_a_number_above_zero(source, bitrate):
    with pytest.raises(ValueError, match=r"^bitrate"):
        source.at_bitrate(bitrate)


def test_sources_that_cannot_be_scaled_say_so():
    class Silent(td.Source):
        message_rate, mean_bitrate = 1.0, 8.0

        def generate(self, seed):
            yield td.Flow(1, 1.0).messages(10)

    with pytest.raises(ValueError, match="must have a method at_bitrate"):
        Silent().at_bitrate(16)
    with pytest.raises(ValueError, match="must have a mean bitrate"):
        td.Trace([0.0], [100]).at_bitrate(16)
