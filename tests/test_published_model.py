"""The compiled chain against the plain formulation of the same published equations, and against their invariants."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from published_chain import published_chain
from tcpdelay.chain.delay_model import DelayModel
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
