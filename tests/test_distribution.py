"""DelayDistribution: its statistics against NumPy's on samples, its invariants, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.declare import UnitWarning
from tcpdelay.delays import DelayDistribution

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
