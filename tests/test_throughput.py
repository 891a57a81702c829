import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.accuracy.throughput import (
    connection_utilization,
    largest_rule_of_thumb_rate,
    padhye_rate,
    square_root_rate,
    tfrc_rate,
    utilization_map,
)
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

losses = st.floats(1e-9, 0.9)
rtts = st.floats(1e-4, 10.0)
segments_per_ack = st.sampled_from([1, 2])

# Brosh et al. 2010, drop-tail measurements: packet size [bytes], loss [%], RTT [s], utilization; 20 ms per packet.
PUBLISHED_UTILIZATIONS = np.array(
    [
        (174, 1.02, 0.317, 0.272),
        (174, 1.60, 0.380, 0.408),
        (174, 2.31, 0.371, 0.479),
        (174, 3.39, 0.383, 0.601),
        (174, 5.61, 0.385, 0.774),
        (174, 0.20, 0.172, 0.065),
        (174, 0.55, 0.178, 0.112),
        (174, 0.81, 0.180, 0.137),
        (174, 1.24, 0.182, 0.172),
        (174, 2.41, 0.185, 0.244),
        (1448, 0.75, 0.101, 0.618),
        (1448, 0.81, 0.101, 0.642),
        (1448, 0.90, 0.101, 0.677),
        (1448, 1.20, 0.101, 0.782),
        (1448, 2.91, 0.101, 1.218),
        (1448, 1.25, 0.101, 0.798),
        (1448, 1.28, 0.101, 0.808),
        (1448, 1.34, 0.101, 0.826),
        (1448, 1.79, 0.101, 0.955),
        (1448, 3.18, 0.101, 1.273),
    ]
)


def printed_formula(p, window, rounds, timeout):
    """Segments per round-trip time by Padhye's formula in exact fractions, where its square root is rational."""
    kept = 1 - p
    q = (1 - kept**3) * (1 + kept**3 * (1 - kept ** (window - 3))) / (1 - kept**window)
    f = 1 + p + 2 * p**2 + 4 * p**3 + 8 * p**4 + 16 * p**5 + 32 * p**6
    return (kept / p + window + min(q, 1) / kept) / (rounds + min(q, 1) * timeout * f / kept)


def test_padhye_rate_where_the_window_is_whole():
    # p = 1/10, b = 1: W = 1 + sqrt(24 + 1) = 6. By hand: Q = 0.692631, B = 15.76959 / (4 + 3.463130) = 2.112999.
    assert padhye_rate(1.0, 0.1, 4.0, mss=1) == pytest.approx(2.112999, abs=1e-6)
    exact = printed_formula(Fraction(1, 10), 6, Fraction(6, 2) + 1, 4)
    assert padhye_rate(1.0, 0.1, 4.0, mss=1) == pytest.approx(float(exact), rel=1e-12)
    # p = 1/9, b = 2: W = 2/3 + sqrt(32/3 + 4/9) = 4.
    exact = printed_formula(Fraction(1, 9), 4, 4 + 1, 4)
    assert padhye_rate(0.1, 1 / 9, mss=1448, segments_per_ack=2) == pytest.approx(float(exact) * 14480, rel=1e-12)


def test_padhye_rate_with_a_limited_window():
    p, limit = Fraction(1, 10), 4
    exact = printed_formula(p, limit, Fraction(limit, 8) + (1 - p) / (p * limit) + 2, 4)
    assert padhye_rate(1.0, 0.1, 4.0, mss=1, max_window=limit) == pytest.approx(float(exact), rel=1e-12)
    # The limit does not matter where loss keeps the window below it, and alone matters where nothing is lost.
    assert padhye_rate(1.0, 0.1, max_window=7) == padhye_rate(1.0, 0.1)
    assert padhye_rate(0.1, 0.0, mss=1000, max_window=45) == 450_000
    assert padhye_rate(0.1, 1e-12, mss=1000, max_window=45) == pytest.approx(450_000, rel=1e-6)


def test_a_loss_at_three_segments_is_always_a_timeout():
    # W(p) is 3 at p = 8/17 for b = 1; the probability reaches 1 there and stays.
    above, below = padhye_rate(1.0, 8 / 17 + 1e-9, mss=1), padhye_rate(1.0, 8 / 17 - 1e-9, mss=1)
    p = Fraction(8, 17)
    assert above == pytest.approx(below, rel=1e-6)
    assert above == pytest.approx(float(printed_formula(p, 3, Fraction(3, 2) + 1, 4)), rel=1e-6)
    # With nearly all lost only the timer sends: a segment each T0 f(1) = 64 T0.
    assert padhye_rate(1.0, 1 - 1e-9, 4.0, mss=1) == pytest.approx(1 / (64 * 4), rel=1e-6)


# f(p) = segment size / (RTT X) in millionths, from the table of the Linux kernel's DCCP (CCID 3), made for RFC 3448
# with b = 1 and a timeout of 4 RTT.
@pytest.mark.parametrize(
    ("loss", "millionths"),
    [(0.0001, 8172), (0.002, 37172), (0.01, 89021), (0.05, 271305), (0.1, 564939), (0.998, 241651183)],
)
def test_tfrc_rate_is_that_of_the_kernels_table(loss, millionths):
    assert 1e6 / tfrc_rate(1.0, loss, mss=1) == pytest.approx(millionths, abs=1)


def test_square_root_law_is_that_of_rfc_3649():
    # Table 1 there: average windows of standard TCP, with the rounder constant 1.2 in place of sqrt(3/2).
    windows = square_root_rate(1.0, [1e-2, 1e-3, 1e-4, 1e-5, 1e-6], mss=1)
    np.testing.assert_allclose(windows, [12, 38, 120, 379, 1200], rtol=0.03)


@given(loss=st.floats(1e-200, 1e-7), rtt=rtts, b=segments_per_ack)
def test_at_small_loss_all_tend_to_the_square_root_law(loss, rtt, b):
    limit = square_root_rate(rtt, loss, segments_per_ack=b)
    assert padhye_rate(rtt, loss, segments_per_ack=b) == pytest.approx(limit, rel=2e-4)
    assert tfrc_rate(rtt, loss, segments_per_ack=b) == pytest.approx(limit, rel=2e-4)


@given(loss=st.floats(1e-5, 0.02), rtt=rtts, b=segments_per_ack)
def test_tfrc_approximates_the_full_model(loss, rtt, b):
    assert tfrc_rate(rtt, loss, segments_per_ack=b) == pytest.approx(
        padhye_rate(rtt, loss, segments_per_ack=b), rel=0.1
    )


@pytest.mark.parametrize("rate", [padhye_rate, tfrc_rate, square_root_rate])
@given(loss=losses, factor=st.floats(1.001, 100), rtt=rtts, b=segments_per_ack)
def test_rate_falls_with_loss_rtt_and_delayed_acks(rate, loss, factor, rtt, b):
    here = rate(rtt, loss, segments_per_ack=b)
    assert 0 < here < np.inf
    assert rate(rtt, min(loss * factor, 0.95), segments_per_ack=b) < here
    assert rate(rtt * factor, loss, segments_per_ack=b) < here
    assert rate(rtt, loss, segments_per_ack=b + 1) <= here
    assert rate(rtt, loss, mss=2896, segments_per_ack=b) == pytest.approx(2 * here)


@given(loss=losses, factor=st.floats(1.001, 100), rtt=rtts)
def test_rate_falls_with_the_timeout_and_rises_with_the_window(loss, factor, rtt):
    for rate in (padhye_rate, tfrc_rate):
        assert rate(rtt, loss, timeout=rtt * factor) < rate(rtt, loss, timeout=rtt)
    narrow, wide = padhye_rate(rtt, loss, segments_per_ack=2, max_window=[5, 5 * factor])
    assert narrow <= wide * (1 + 1e-12)


def test_arguments_broadcast():
    rates = padhye_rate(np.array([0.05, 0.1, 0.2])[:, None], [0.0, 0.01], mss=1000, max_window=45)
    assert rates.shape == (3, 2)
    assert rates[1, 1] == padhye_rate(0.1, 0.01, mss=1000, max_window=45)
    np.testing.assert_allclose(rates[:, 0], [900e3, 450e3, 225e3])
    assert isinstance(padhye_rate(0.1, 0.01), float)


@pytest.mark.parametrize("rate", [padhye_rate, tfrc_rate, square_root_rate])
def test_without_loss_the_rate_is_unlimited(rate):
    assert rate(0.1, 0.0) == math.inf
    assert rate(0.1, 5e-324) > 1e150


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rtt": 0.0}, "rtt must be finite and above 0, got 0"),
        ({"rtt": [0.1, -0.2]}, "rtt must be finite and above 0, got -0.2"),
        ({"rtt": math.inf}, "rtt must be finite and above 0, got inf"),
        ({"rtt": "fast"}, "rtt must be a number or an array of numbers, got 'fast'"),
        ({"loss": -0.1}, "loss must be finite and at least 0, got -0.1"),
        ({"loss": [0.1, 2.0]}, "loss must be a fraction from 0 to below 1, got 2"),
        ({"loss": math.nan}, "loss must be finite and at least 0, got nan"),
        ({"timeout": 0}, "timeout must be finite and above 0, got 0"),
        ({"mss": 0}, "mss must be finite and above 0, got 0"),
        ({"segments_per_ack": 0.5}, "segments_per_ack must be finite and at least 1, got 0.5"),
        ({"max_window": 0}, "max_window must be finite and at least 1, got 0"),
    ],
)
def test_a_value_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        padhye_rate(**{"rtt": 0.1, "loss": 0.01, **arguments})


def utilizations(b):
    return np.array(
        [
            connection_utilization(Flow(int(size), 0.020), Path(rtt, loss / 100), Stack.newreno_2008(), b)
            for size, loss, rtt, _ in PUBLISHED_UTILIZATIONS
        ]
    )


def test_published_utilizations_follow_a_square_root_law():
    size, loss, rtt, published = PUBLISHED_UTILIZATIONS.T
    # b = 3 makes the law f a RTT sqrt(2 p) / MSS, in bytes; inputs and results are rounded to two or three digits.
    law = size / 0.020 / square_root_rate(rtt, loss / 100, segments_per_ack=3)
    np.testing.assert_allclose(law, size / 0.020 * rtt * np.sqrt(2 * loss / 100) / 1448)
    np.testing.assert_allclose(law, published, rtol=0.006)


def test_distance_of_the_utilization_to_the_published_ones():
    published = PUBLISHED_UTILIZATIONS[:, 3]
    distance = utilizations(2) / published - 1
    assert distance.min() == pytest.approx(-0.15, abs=0.01)
    assert distance.max() == pytest.approx(0.22, abs=0.01)
    assert np.median(np.abs(distance)) == pytest.approx(0.074, abs=0.001)
    assert ((utilizations(1) / published - 1) < -0.13).all()
    # Packets against segments would be more than six times too high for the small packets.
    _, loss, rtt, _ = PUBLISHED_UTILIZATIONS[:10].T
    in_packets = 50 / padhye_rate(rtt, loss / 100, mss=1, segments_per_ack=2)
    assert (in_packets / published[:10] > 6).all()


def test_the_stacks_timeout_and_segment_size_count():
    flow, path = Flow(174, 0.020), Path(rtt=0.1, loss=0.05)
    usual = connection_utilization(flow, path, Stack.newreno_2008())
    assert connection_utilization(flow, path, Stack.newreno_2008(initial_timeout=1.0)) > usual
    assert connection_utilization(flow, path, Stack.newreno_2008(mss=724)) == pytest.approx(2 * usual)


@given(rtt=rtts, loss=losses)
def test_a_fair_rate_is_that_of_padhye_with_four_round_trips_of_timeout_for_linux_too(rtt, loss):
    flow, path = Flow(174, 0.020), Path(rtt, loss)
    linux = connection_utilization(flow, path, Stack.linux(mss=536))
    assert linux == pytest.approx(174 / 0.020 / padhye_rate(rtt, loss, 4 * rtt, mss=536, segments_per_ack=2))
    assert utilization_map(flow, np.array([rtt]), np.array([loss]), Stack.linux(mss=536))[0, 0] == pytest.approx(linux)
    assert largest_rule_of_thumb_rate(path, Stack.linux(mss=536)) == pytest.approx(flow.bitrate / 3 / linux)


def test_only_a_known_stack_has_a_fair_rate():
    with pytest.raises(ValueError, match=r"^stack must come from one of the profiles, .*, got 'linus'$"):
        connection_utilization(Flow(174, 0.020), Path(0.1, 0.02), "linus")


@given(rtt=rtts, loss=losses, size=st.integers(100, 1448))
def test_the_rule_of_thumb_rate_uses_a_third(rtt, loss, size):
    path, stack = Path(rtt, loss), Stack.newreno_2008()
    rate = largest_rule_of_thumb_rate(path, stack)
    interval = 8 * size / rate
    if 1e-7 <= interval <= 60:
        assert connection_utilization(Flow.from_bitrate(rate, size), path, stack) == pytest.approx(1 / 3)
    assert largest_rule_of_thumb_rate(path, stack, utilization=0.1) == pytest.approx(0.3 * rate)


def test_a_path_without_loss_sets_no_limit():
    path, stack = Path(rtt=0.1, loss=0.0), Stack.newreno_2008()
    assert connection_utilization(Flow(174, 0.020), path, stack) == 0
    assert largest_rule_of_thumb_rate(path, stack) == math.inf
    with pytest.raises(ValueError, match="utilization must be finite and above 0, got 0"):
        largest_rule_of_thumb_rate(path, stack, utilization=0)
