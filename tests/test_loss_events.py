"""Probabilities of the loss events against their printed sums, by hand and by enumeration of all loss patterns."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.chain.published import NEWRENO, RENO, SACK, loss_events, timeout_share_correlated


@pytest.mark.parametrize("one_packet", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 11])
@pytest.mark.parametrize("variant", [NEWRENO, SACK, RENO])
def test_every_pattern_of_losses_is_counted(window, variant, one_packet):
    p = 0.07
    repaired = 0.0
    for pattern in itertools.product([0, 1], repeat=window):
        if one_packet and not pattern[0]:
            continue
        losses = sum(pattern)
        if losses == 0 or losses > window - 3:
            continue
        if variant == RENO and (losses > 2 or (losses == 2 and window < 10)):
            continue
        repaired += p**losses * (1 - p) ** (window - losses) * (1 - p) ** losses
    events = loss_events(window, p, one_packet, variant, False, False)
    assert events.fast_retransmit[window] == pytest.approx(repaired, rel=1e-12, abs=1e-16)
    assert events.success[window] == pytest.approx(1 - p if one_packet else (1 - p) ** window, rel=1e-14)


@given(
    st.floats(1e-9, 0.99),
    st.integers(1, 400),
    st.booleans(),
    st.sampled_from([NEWRENO, SACK, RENO]),
    st.booleans(),
    st.booleans(),
)
def test_events_are_probabilities(loss, window, one_packet, variant, correlated, limited_transmit):
    events = loss_events(window, loss, one_packet, variant, correlated, limited_transmit)
    for event in events:
        assert np.all((event[1:] >= 0) & (event[1:] <= 1))
    total = events.success + events.fast_retransmit + events.timeout
    assert np.abs(total[1:] - 1).max() <= 1e-15 * 8
    if not limited_transmit:
        assert np.all(events.fast_retransmit[1:4] == 0)


@given(st.floats(1e-6, 0.5), st.integers(4, 200))
def test_limited_transmit_only_spares_timeouts(loss, window):
    without = loss_events(window, loss, False, NEWRENO, False, False).timeout[window]
    with_it = loss_events(window, loss, False, NEWRENO, False, True).timeout[window]
    assert with_it <= without


def test_small_losses_keep_their_digits():
    # w = 4, one loss is repaired unless its retransmission is lost; two or more losses are not: P_TO = 4 p^2 + 6 p^2.
    p = 1e-9
    events = loss_events(4, p, False, NEWRENO, False, False)
    assert events.timeout[4] == pytest.approx(10 * p**2, rel=1e-7)


def test_drop_tail_share_is_that_of_padhye():
    # Q(w) of Padhye et al. 1998, equation 24, is near 3 / w for small p.
    assert timeout_share_correlated(30, 1e-7, False) == pytest.approx(3 / 30, rel=1e-5)
    assert timeout_share_correlated(3, 0.1, False) == 1.0
    # By hand for p = 1/2, w = 4: 7/8 (1 + 1/8 * 1/2) / (15/16).
    assert timeout_share_correlated(4, 0.5, False) == pytest.approx(7 / 8 * 17 / 16 / (15 / 16), rel=1e-14)


def test_limited_transmit_after_drop_tail_losses_by_hand():
    # p = 1/2, w = 2: one of the two arrives with probability 1/3, and then three segments one after the other.
    assert timeout_share_correlated(2, 0.5, True) == pytest.approx(1 - 1 / 3 / 8, rel=1e-14)
    # Without further losses only the loss of a whole round ends in a timeout, one of w places of the first loss.
    assert timeout_share_correlated(5, 1e-9, True) == pytest.approx(1 / 5, rel=1e-6)


@given(st.floats(1e-6, 0.5), st.integers(2, 200))
def test_larger_windows_are_safer_after_drop_tail_losses(loss, window):
    for limited_transmit in (False, True):
        smaller, larger = (timeout_share_correlated(w, loss, limited_transmit) for w in (window, window + 1))
        assert larger <= smaller + 1e-15
    assert timeout_share_correlated(window, loss, True) < timeout_share_correlated(window, loss, False)


def arrivals(draws, segments, loss):
    """Draw how many of the segments of a round arrive, for each entry of `segments`: none after the first loss."""
    before_first_loss = draws.geometric(loss, segments.size) - 1
    return np.minimum(before_first_loss, segments)


@pytest.mark.parametrize("limited_transmit", [False, True])
@pytest.mark.parametrize(
    ("window", "loss"), [(2, 0.1), (3, 0.02), (4, 0.02), (5, 0.02), (5, 0.3), (10, 0.02), (30, 0.1)]
)
def test_drop_tail_share_in_drawn_rounds(window, loss, limited_transmit):
    draws = np.random.default_rng(window)
    first = arrivals(draws, np.full(4_000_000 if loss < 0.1 else 1_000_000, window), loss)
    released = first[first < window]
    duplicates = arrivals(draws, released, loss)
    if limited_transmit:
        # A duplicate ACK releases a segment while there are fewer than three; each may be lost by itself.
        sent = np.zeros_like(duplicates)
        while np.any(waiting := (duplicates < 3) & (sent < np.minimum(duplicates, 2))):
            sent[waiting] += 1
            duplicates[waiting] += draws.random(np.count_nonzero(waiting)) >= loss
    drawn = np.mean(duplicates < 3)
    error = np.sqrt(drawn * (1 - drawn) / released.size)
    assert timeout_share_correlated(window, loss, limited_transmit) == pytest.approx(drawn, abs=4 * error)
