"""DelayDistribution: its statistics against NumPy's on samples, its invariants, what it refuses; and confidence."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import signal, stats

from tcpdelay.declare import UnitWarning
from tcpdelay.delays import DelayDistribution
from tcpdelay.statistics import BATCHES, Interval, are_independent, independent_block, mean_interval, quantile_interval

samples = st.lists(st.integers(0, 400).map(lambda n: n / 1000), min_size=1, max_size=200)


@given(samples)
def test_statistics_are_those_of_the_samples(delays):
    distribution = DelayDistribution.from_samples(delays, one_way_delay=0.0)
    assert distribution.mean == pytest.approx(np.mean(delays), rel=1e-12, abs=1e-15)
    assert distribution.std == pytest.approx(np.std(delays), rel=1e-9, abs=1e-9)
    for share in (0.0, 0.25, 0.5, 0.95, 1.0):
        assert distribution.quantile(share) == np.quantile(delays, share, method="inverted_cdf")
    for limit in (0.0, 0.1, 0.2505, 1.0):
        assert distribution.late_fraction(limit) == pytest.approx(np.mean(np.array(delays) > limit), abs=1e-12)
    assert distribution.worst == max(delays)


@given(samples, st.floats(0.001, 1.0))
def test_quantile_and_late_fraction_are_inverse(delays, share):
    distribution = DelayDistribution.from_samples(delays, one_way_delay=0.0)
    reached = distribution.quantile(share)
    assert distribution.late_fraction(reached) <= 1 - share + 1e-9
    assert distribution.cdf(reached) == 1 - distribution.late_fraction(reached)


@pytest.mark.parametrize(("count", "share", "known"), [(100, 0.9, True), (99, 0.9, False), (10_000, 0.999, True)])
def test_a_quantile_is_known_if_ten_samples_are_expected_beyond_it(count, share, known):
    distribution = DelayDistribution.from_samples(np.arange(count) / 1000, one_way_delay=0.0)
    assert distribution.known_quantile(share) == (
        distribution.quantile(share) if known else pytest.approx(np.nan, nan_ok=True)
    )
    assert ("p99=too few messages" in repr(distribution)) == (count < 1000)


def test_every_quantile_of_a_computed_or_endless_delay_is_known():
    computed = DelayDistribution(np.array([0.05, 0.15]), np.array([0.9, 0.1]), one_way_delay=0.05)
    assert computed.known_quantile(0.999) == 0.15
    assert DelayDistribution.unsustainable(0.05).known_quantile(0.999) == np.inf
    assert DelayDistribution.from_samples([0.1, np.inf], one_way_delay=0.05).known_quantile(0.999) == np.inf


def test_arrays_keep_their_shape():
    distribution = DelayDistribution.from_samples([0.1, 0.2, 0.3, 0.4], one_way_delay=0.1)
    assert distribution.quantile([0.25, 0.5]).tolist() == [0.1, 0.2]
    assert distribution.late_fraction(np.array([[0.1], [0.35]])).tolist() == [[0.75], [0.25]]
    assert isinstance(distribution.quantile(0.5), float)


def test_tiny_late_fractions_keep_their_digits():
    distribution = DelayDistribution(np.array([0.1, 0.2, 0.3]), np.array([1 - 2e-17, 1e-17, 1e-17]), 0.1)
    assert distribution.late_fraction(0.15) == pytest.approx(2e-17, rel=1e-12)


def test_unsustainable_is_infinitely_late():
    distribution = DelayDistribution.unsustainable(0.05)
    assert not distribution.sustainable
    assert distribution.quantile(0.01) == distribution.mean == distribution.std == np.inf
    assert distribution.late_fraction(1e9) == 1.0
    assert "unsustainable" in repr(distribution)


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ([], []),
        ([0.1, 0.1], [0.5, 0.5]),
        ([0.2, 0.1], [0.5, 0.5]),
        ([-0.1, 0.1], [0.5, 0.5]),
        ([0.1, np.nan], [0.5, 0.5]),
        ([0.1, 0.2], [0.5, 0.4]),
        ([0.1, 0.2], [1.5, -0.5]),
        ([0.1, 0.2], [1.0]),
        ([0.1], [np.nan]),
    ],
)
def test_what_is_no_distribution_is_refused(values, weights):
    with pytest.raises(ValueError, match="must"):
        DelayDistribution(np.array(values), np.array(weights), 0.0)


@pytest.mark.parametrize("probability", [-0.1, 1.1, np.nan, [0.5, 2.0]])
def test_quantiles_of_no_probability_are_refused(probability):
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        DelayDistribution.from_samples([0.1], 0.1).quantile(probability)


def test_late_fraction_of_nan_is_refused():
    with pytest.raises(ValueError, match="playout_delay"):
        DelayDistribution.from_samples([0.1], 0.1).late_fraction(float("nan"))


def test_empty_samples_are_refused():
    with pytest.raises(ValueError, match="samples must hold at least one delay"):
        DelayDistribution.from_samples([], 0.1)


def test_a_playout_delay_in_milliseconds_warns_with_the_value_to_write():
    found = DelayDistribution(np.array([0.05, 90.0]), np.array([0.9, 0.1]), one_way_delay=0.05)
    with pytest.warns(UnitWarning, match=r"playout_delay is in seconds, got 200; for 200 ms write 0\.2"):
        assert found.late_fraction(200) == 0
    with pytest.warns(UnitWarning, match="got 300"):
        found.late_fraction([0.1, 300, np.inf])
    # Neither a delay that occurs nor infinity is a slip.
    assert found.late_fraction([59.0, 90.0, np.inf]).tolist() == pytest.approx([0.1, 0, 0])


# Confidence intervals

SEEDS = 400


def coverage(intervals, true):
    """Share of the intervals that hold the true value."""
    return np.mean([interval.low <= true <= interval.high for interval in intervals])


def autoregressive(rng, size, factor):
    """A sequence with standard normal marginals in which each sample is `factor` times the last one, plus noise."""
    noise = rng.standard_normal(size) * math.sqrt(1 - factor**2)
    noise[0] /= math.sqrt(1 - factor**2)
    return signal.lfilter([1.0], [1.0, -factor], noise)


def naive_mean_interval(samples):
    half_width = stats.t.ppf(0.975, samples.size - 1) * stats.sem(samples)
    return Interval(samples.mean(), samples.mean() - half_width, samples.mean() + half_width)


def test_samples_in_batches_of_one_have_the_interval_of_the_textbook():
    samples = np.random.default_rng(1).exponential(size=BATCHES)
    interval = mean_interval([samples])
    expected = stats.t.interval(0.95, BATCHES - 1, loc=samples.mean(), scale=stats.sem(samples))
    assert interval.value == pytest.approx(samples.mean(), rel=1e-12)
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("batches", [2, 10, 50])
def test_equal_batches_have_the_interval_of_their_means(confidence, batches):
    samples = np.random.default_rng(2).exponential(size=1000)
    means = samples.reshape(batches, -1).mean(axis=1)
    expected = stats.t.interval(confidence, batches - 1, loc=means.mean(), scale=stats.sem(means))
    interval = mean_interval([samples], confidence, batches)
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-9)


# With 400 seeds the share of a true 95 % lies within 3.3 points of it, three standard deviations.
def test_independent_samples_are_covered_as_often_as_promised():
    runs = [np.random.default_rng(seed).exponential(size=2000) for seed in range(SEEDS)]
    assert coverage([mean_interval([run]) for run in runs], 1.0) == pytest.approx(0.95, abs=0.033)
    assert coverage([mean_interval([run], 0.8) for run in runs], 1.0) == pytest.approx(0.8, abs=0.06)
    for probability in (0.5, 0.95):
        intervals = [quantile_interval([run], probability) for run in runs]
        assert coverage(intervals, stats.expon.ppf(probability)) == pytest.approx(0.95, abs=0.04)


def test_dependent_samples_are_covered_where_the_naive_interval_is_far_too_narrow():
    runs = [autoregressive(np.random.default_rng(seed), 10_000, 0.95) for seed in range(SEEDS)]
    assert coverage([naive_mean_interval(run) for run in runs], 0.0) < 0.5
    assert 0.90 < coverage([mean_interval([run]) for run in runs], 0.0) < 0.985
    assert 0.90 < coverage([quantile_interval([run], 0.5) for run in runs], 0.0) < 0.985
    intervals = [quantile_interval([run], 0.95) for run in runs]
    assert 0.88 < coverage(intervals, stats.norm.ppf(0.95)) < 0.985


def test_intervals_are_as_wide_as_the_dependence_makes_them():
    factor, size = 0.9, 40_000
    runs = [autoregressive(np.random.default_rng(seed), size, factor) for seed in range(100)]
    # The variance of the mean is (1 + factor) / (1 - factor) times that of independent samples.
    exact = stats.t.ppf(0.975, BATCHES - 1) * math.sqrt((1 + factor) / (1 - factor) / size)
    widths = [(interval.high - interval.low) / 2 for interval in (mean_interval([run]) for run in runs)]
    assert np.mean(widths) == pytest.approx(exact, rel=0.05)


def test_several_runs_of_different_length_are_covered():
    intervals, medians = [], []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        runs = [autoregressive(rng, size, 0.9) for size in (8000, 4000, 1000, 500)]
        intervals.append(mean_interval(runs))
        medians.append(quantile_interval(runs, 0.5))
    assert 0.91 < coverage(intervals, 0.0) < 0.985
    assert 0.91 < coverage(medians, 0.0) < 0.985


def test_every_sample_counts_the_same_whatever_its_run():
    rng = np.random.default_rng(5)
    runs = [rng.exponential(size=size) for size in (1000, 7, 60, 333)]
    everything = np.concatenate(runs)
    assert mean_interval(runs).value == pytest.approx(everything.mean(), rel=1e-12)
    assert quantile_interval(runs, 0.9).value == np.quantile(everything, 0.9, method="inverted_cdf")


def test_no_batch_spans_two_runs():
    # Two runs that disagree, but never within themselves: every batch must hold samples of one of them alone.
    low, high = np.zeros(70), np.ones(70)
    means = np.repeat([0.0, 1.0], 4)
    half_width = stats.t.ppf(0.975, 7) * stats.sem(means)
    interval = mean_interval([low, high], batches=7)
    assert (interval.high - interval.low) / 2 == pytest.approx(half_width)


def test_an_empty_run_changes_nothing():
    samples = np.random.default_rng(6).exponential(size=100)
    assert mean_interval([samples, np.empty(0)]) == mean_interval([samples])
    assert quantile_interval([np.empty(0), samples], 0.5) == quantile_interval([samples], 0.5)


@given(
    arrays.arrays(np.float64, st.integers(BATCHES, 300), elements=st.floats(0, 10)),
    st.floats(0.01, 0.99),
)
def test_a_quantile_is_one_of_the_samples_and_within_its_interval(samples, probability):
    interval = quantile_interval([samples], probability)
    assert {interval.value, interval.low, interval.high} <= set(samples)
    assert interval.low <= interval.value <= interval.high
    assert np.mean(samples <= interval.value) >= probability - 1e-9
    assert np.mean(samples < interval.value) <= probability + 1e-9
    assert min(samples) <= mean_interval([samples]).value + 1e-12 <= max(samples) + 2e-12


def test_samples_that_are_all_equal_have_no_width():
    samples = np.full(1000, 0.1)
    assert mean_interval([samples]) == pytest.approx((0.1, 0.1, 0.1), rel=1e-12)
    assert quantile_interval([samples], 0.95) == (0.1, 0.1, 0.1)


def test_infinite_samples_make_the_mean_infinite_and_quantiles_beyond_them():
    rng = np.random.default_rng(7)
    samples = rng.exponential(size=10_000)
    samples[rng.random(10_000) < 0.03] = math.inf
    assert mean_interval([samples]) == (math.inf, math.inf, math.inf)
    median = quantile_interval([samples], 0.5)
    # Of all samples, infinite ones included.
    assert median.low < stats.expon.ppf(0.5 / 0.97) < median.high < math.inf
    border = quantile_interval([samples], 0.97)
    assert border.low < math.inf == border.high
    assert border.relative_half_width == math.inf
    assert quantile_interval([samples], 0.99) == (math.inf, math.inf, math.inf)


@pytest.mark.parametrize("interval", [mean_interval, lambda runs, **options: quantile_interval(runs, 0.5, **options)])
@pytest.mark.parametrize(
    ("runs", "batches", "message"),
    [
        ([np.ones(19)], 20, r"batches must lie between 2 and the number of samples \(19\), got 20"),
        ([np.ones(10), np.ones(9)], 20, r"batches must lie between 2 and the number of samples \(19\), got 20"),
        ([np.ones(19)], 1, r"batches must lie between 2 and the number of samples \(19\), got 1"),
        ([np.empty(0)], 20, r"batches must lie between 2 and the number of samples \(0\), got 20"),
        ([], 20, r"batches must lie between 2 and the number of samples \(0\), got 20"),
    ],
)
def test_fewer_samples_than_batches_are_refused(interval, runs, batches, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        interval(runs, batches=batches)


def test_one_in_a_hundred_independent_series_counts_as_correlated():
    rng = np.random.default_rng(3)
    rejected = np.mean([not are_independent(rng.normal(size=20)) for _ in range(5000)])
    assert 0.005 < rejected < 0.015


@pytest.mark.parametrize(("correlation", "block"), [(0.0, 1), (0.9, 16), (0.9999, None)])
def test_blocks_grow_with_the_correlation(correlation, block):
    rng, value, series = np.random.default_rng(4), 0.0, []
    for noise in rng.normal(size=2048):
        value = correlation * value + noise
        series.append(value)
    found = independent_block(np.array(series))
    if block is None:
        assert found is None
    else:
        assert block / 2 <= found <= 8 * block


def test_the_relative_half_width():
    assert Interval(0.2, 0.15, 0.27).relative_half_width == pytest.approx(0.3)
    assert Interval(0.0, 0.0, 0.0).relative_half_width == math.inf
