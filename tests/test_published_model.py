"""The published chain against the plain formulation of its equations, its printed sums, and its invariants."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from published_chain import published_chain
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.published import NEWRENO, RENO, SACK, loss_events, timeout_share_correlated
from tcpdelay.chain.solver.aggregation import gth_solve
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

AGREEMENT = 1e-9
LARGEST_TWIN = 1500

losses = st.one_of(
    st.sampled_from([0.0, 1e-5, 0.001, 0.01, 0.02, 0.05, 0.1]), st.floats(1e-5, 0.4).map(lambda p: round(p, 5))
)
intervals = st.one_of(
    st.sampled_from([0.005, 0.010, 0.020, 0.030, 0.060]), st.integers(50, 1000).map(lambda n: n / 10_000)
)
loads = st.integers(1, 9 * 4).map(lambda quarters: quarters / 4)


@st.composite
def scenarios(draw):
    interval = draw(intervals)
    # Quarters of a packet put many loads exactly on a rounding tie.
    rtt = round(draw(loads) * interval, 6)
    flow = Flow(draw(st.one_of(st.sampled_from([74, 160, 174, 724, 1448]), st.integers(20, 4000))), interval)
    path = Path(
        rtt,
        draw(losses),
        draw(st.sampled_from(["random", "correlated"])),
        draw(st.sampled_from(["packets", "bytes"])),
        draw(st.sampled_from([None, round(rtt / 4, 6)])),
    )
    stack = Stack.newreno_2008(
        draw(st.sampled_from(["newreno", "sack", "reno"])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([None, 0.2, 1.0, 3.0])),
        draw(st.sampled_from([536, 1448, 1460])),
    )
    assume(path.loss * flow.packet_size < stack.mss)
    return flow, path, stack


@settings(max_examples=250)
@given(scenarios())
def test_two_formulations_agree_on_every_statistic(scenario):
    flow, path, stack = scenario
    twin = published_chain(flow, path, stack)
    assume(len(twin.states) <= LARGEST_TWIN)
    try:
        twin_values, _ = twin.delays
    except ValueError:
        # Packets larger than any window: nothing is ever delivered.
        assert not DelayModel(flow, path, stack).delay_distribution().sustainable
        return
    model = DelayModel(flow, path, stack)
    probability = {tuple(s): p for s, p in zip(model.states.tolist(), model.stationary_distribution, strict=True)}
    assert probability.keys() == set(twin.states)
    assert max(abs(probability[s] - p) for s, p in zip(twin.states, twin.stationary, strict=True)) < AGREEMENT

    delays = model.delay_distribution()
    assert delays.mean == pytest.approx(twin.mean, rel=AGREEMENT)
    assert delays.std == pytest.approx(twin.std, rel=AGREEMENT, abs=1e-12)
    assert model.backlogged_time_fraction == pytest.approx(twin.backlogged_time_fraction, rel=AGREEMENT, abs=1e-12)
    for share in (0.05, 0.5, 0.9, 0.95, 0.99, 0.999):
        assert delays.quantile(share) == pytest.approx(twin.quantile(share), rel=AGREEMENT)
    for limit in np.append(twin_values[:-1] + np.diff(twin_values) / 2, 0.2 + np.pi / 1e4):
        assert delays.late_fraction(limit) == pytest.approx(twin.late_fraction(limit), abs=AGREEMENT)


@settings(max_examples=100)
@given(scenarios())
def test_invariants(scenario):
    flow, path, stack = scenario
    model = DelayModel(flow, path, stack)
    matrix, pi = model.transition_matrix, model.stationary_distribution
    assert np.abs(matrix.sum(axis=1) - 1).max() <= 1e-14
    assert np.abs(pi @ matrix - pi).sum() <= 1e-13
    assert model.residual <= 1e-13
    assert pi.sum() == pytest.approx(1, abs=1e-13)
    assert pi.min() >= 0
    delays = model.delay_distribution()
    assert delays.values[0] >= path.forward_delay
    assert delays.weights.sum() == pytest.approx(1, abs=1e-12)
    parts = model.delay_parts
    if np.isfinite(delays.mean):
        total = parts.network + parts.backlog + parts.head_of_line + parts.timeouts
        assert total == pytest.approx(delays.mean, rel=1e-9)
        assert min(parts.backlog, parts.timeouts) >= 0


@pytest.mark.parametrize(
    ("flow", "path", "options"),
    [
        (Flow(174, 0.020), Path(0.100, 0.02), {}),
        (Flow(1448, 0.020), Path(0.100, 0.01), {"limited_transmit": True}),
        (Flow(1448, 0.020), Path(0.140, 0.03), {}),
        (Flow(174, 0.020), Path(0.300, 0.05), {"variant": "reno"}),
        (Flow(724, 0.020), Path(0.160, 0.001, "correlated"), {"window_validation": True}),
    ],
)
def test_elimination_without_subtraction_agrees(flow, path, options):
    model = DelayModel(flow, path, Stack.newreno_2008(**options))
    assert len(model.states) <= 3000
    exact = gth_solve(model.transition_matrix.toarray())
    assert np.abs(model.stationary_distribution - exact).max() <= 1e-10


def test_voip_states_are_those_of_the_text():
    model = DelayModel(Flow(174, 0.020), Path(0.100, 0.02), Stack.newreno_2008())
    states = set(map(tuple, model.states.tolist()))
    assert model.load == 5
    assert (5, 0, 0) in states
    assert (4, 3, 1) in states  # fast recovery from application limited: floor((r + 3) / 2), backlog 3
    assert (0, 20, 1) in states  # timeout: T0 f = 4 RTT f = 20 packets written meanwhile
    assert (0, 60, 2) in states  # and 2 T0 f more at the second
    assert max(w for w, _, _ in states) <= 8 * 5
    assert max(b for _, b, _ in states) <= 16 * 5


def test_without_loss_nothing_waits():
    model = DelayModel(Flow(174, 0.020), Path(0.100, 0.0, one_way_delay=0.03), Stack.newreno_2008())
    assert model.states.tolist() == [(5, 0, 0)]
    delays = model.delay_distribution()
    assert (delays.mean, delays.std, delays.late_fraction(0.03)) == (0.03, 0.0, 0.0)
    assert model.backlogged_time_fraction == 0.0


def test_overload_depends_on_the_published_bound_and_says_so():
    flow, path = Flow(1448, 0.020), Path(0.200, 0.05)
    published = DelayModel(flow, path, Stack.newreno_2008())
    assert published.backlog_drift > 0
    cut = published.delay_distribution()
    assert not cut.sustainable
    assert cut.truncated_mass > 0.1
    assert np.isfinite(cut.quantile(0.95))
    grown = DelayModel(flow, path, Stack.newreno_2008(backlog_bound="grow"))
    assert grown.delay_distribution().quantile(0.5) == np.inf
    assert grown.backlogged_time_fraction == 1.0
    with pytest.raises(ValueError, match="no finite bound"):
        _ = grown.states


def test_growing_bound_leaves_nothing_that_depends_on_it():
    flow, path = Flow(1448, 0.020), Path(0.200, 0.012)
    published = DelayModel(flow, path, Stack.newreno_2008()).delay_distribution()
    grown = DelayModel(flow, path, Stack.newreno_2008(backlog_bound="grow"))
    delays = grown.delay_distribution()
    assert published.truncated_mass > 1e-6 > delays.truncated_mass
    assert delays.sustainable
    assert delays.mean > published.mean
    assert grown.states["b"].max() > 16 * grown.load


@pytest.mark.parametrize(
    ("flow", "path"),
    [
        (Flow(1448, 0.020), Path(0.200, 0.0195)),
        (Flow(1448, 0.00463), Path(0.100, 0.004)),
        (Flow(174, 0.020), Path(0.300, 0.1)),
    ],
)
def test_chains_near_saturation_are_solved(flow, path):
    model = DelayModel(flow, path, Stack.newreno_2008(backlog_bound="grow"))
    delays = model.delay_distribution()
    assert delays.sustainable
    assert delays.truncated_mass < 1e-6
    assert model.residual <= 1e-13
    assert len(model.states) > 80_000
    pi, matrix = model.stationary_distribution, model.transition_matrix
    assert np.abs(pi @ matrix - pi).sum() <= 1e-13


@pytest.mark.parametrize("limit", [0.15, 0.2, 0.5, 1.0, 5.0])
def test_meeting_a_target_is_what_the_quantile_says(limit):
    for loss in (0.001, 0.01, 0.0195, 0.03):
        for quantile in (0.5, 0.95, 0.999):
            model = DelayModel(Flow(1448, 0.020), Path(0.200, loss), Stack.newreno_2008(backlog_bound="grow"))
            assert model.meets(limit, quantile) == (model.delay_distribution().quantile(quantile) <= limit)


@pytest.mark.parametrize("packet_size", [174, 724, 1448])
def test_more_loss_never_helps(packet_size):
    means = [
        DelayModel(Flow(packet_size, 0.020), Path(0.100, loss), Stack.newreno_2008(backlog_bound="grow"))
        .delay_distribution()
        .mean
        for loss in np.geomspace(1e-4, 0.1, 25)
    ]
    assert means == sorted(means)


def test_memory_is_bounded_and_the_need_is_told():
    with pytest.raises(ValueError, match=r"needs about .* GiB for 1e\+08 packets per round-trip time"):
        DelayModel(Flow(174, 1e-7), Path(10.0, 0.01), Stack.newreno_2008())
    with pytest.raises(ValueError, match=r"needs about .* GiB"):
        DelayModel(Flow(1448, 1e-5), Path(0.4, 0.01), Stack.newreno_2008()).delay_distribution()


def test_byte_bottleneck_that_drops_every_packet_is_refused():
    with pytest.raises(ValueError, match="packet_size must be below mss / loss"):
        DelayModel(Flow(15_000, 0.020), Path(0.1, 0.1, bottleneck="bytes"), Stack.newreno_2008())


def test_direct_solution_takes_over_where_the_sweeps_do_not_converge(monkeypatch):
    scenario = Flow(724, 0.020), Path(0.100, 0.02), Stack.newreno_2008()
    expected = DelayModel(*scenario).delay_distribution()
    monkeypatch.setattr("tcpdelay.chain.delay_model.MAX_SWEEPS", 3)
    model = DelayModel(*scenario)
    assert model.residual <= 1e-13
    delays = model.delay_distribution()
    assert delays.mean == pytest.approx(expected.mean, rel=1e-10)
    assert delays.quantile(0.99) == expected.quantile(0.99)


# Probabilities of the loss events against their printed sums, by hand and by enumeration of all loss patterns


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
