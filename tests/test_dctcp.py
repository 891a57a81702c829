"""DCTCP: alpha and the window, against the formulas of RFC 8257."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay.compiling.compilation import records
from tcpdelay.sim.records import CONNECTION
from tcpdelay.sim.tcp.window import MAX_ALPHA, marked_threshold, react_to_loss, update_alpha


def connection(window=100):
    """Return a connection with DCTCP at its start."""
    (c,) = records(1, CONNECTION)
    c.dctcp, c.dctcp_alpha, c.snd_cwnd = 1, MAX_ALPHA, window
    return c


@settings(max_examples=30, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1)), min_size=1, max_size=60))
def test_alpha_is_the_moving_average_of_the_marked_share(rounds):
    c, alpha, delivered = connection(), 1.0, 0
    for segments, share in rounds:
        marked = round(share * segments)
        delivered += segments
        c.delivered_ce += marked
        c.snd_nxt += 1448 * segments
        update_alpha(c, c.next_seq, delivered)
        # RFC 8257, 3.3: DCTCP.Alpha = DCTCP.Alpha * (1 - g) + g * M, g = 1/16.
        alpha = alpha * (1 - 1 / 16) + marked / segments / 16
        # The kernel rounds to units of 1/1024 in each round, and the rounding errors of 16 rounds add up.
        assert c.dctcp_alpha / MAX_ALPHA == pytest.approx(alpha, abs=17 / MAX_ALPHA)


def test_alpha_is_updated_once_per_round_trip():
    c = connection()
    c.snd_nxt = 10_000
    update_alpha(c, 0, 10)
    before = c.dctcp_alpha
    for acknowledged in (1448, 5000, 9999):
        update_alpha(c, acknowledged, 20)
        assert c.dctcp_alpha == before
    update_alpha(c, 10_000, 30)
    assert c.dctcp_alpha < before


@pytest.mark.parametrize(("alpha", "window"), [(1.0, 50), (0.5, 75), (0.0, 100), (0.25, 88)])
def test_the_window_shrinks_by_half_of_alpha(alpha, window):
    # RFC 8257, 3.3: cwnd = cwnd * (1 - DCTCP.Alpha / 2); after a loss as any TCP (3.5).
    c = connection()
    c.dctcp_alpha = round(alpha * MAX_ALPHA)
    assert marked_threshold(c) == window
    react_to_loss(c)
    assert c.snd_ssthresh == 50
    c.snd_cwnd = 2
    assert marked_threshold(c) == 2
