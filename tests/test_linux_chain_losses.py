"""Losses in bursts and of a drop-tail queue in the chain of a Linux kernel: probabilities, and the simulator."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import tcpdelay as td
import tcpdelay.sim.simulation as simulation
from chain_structure import assert_complete, assert_one_event_stays, profile_of
from tcpdelay.ask import UnsupportedError
from tcpdelay.chain.linux.bursts import (
    burst_chance,
    burst_length,
    followed_losses,
    outage_chance,
    probe_time,
    repair_rounds,
    times_after_rest,
)
from tcpdelay.chain.linux.detection import (
    first_sack_wait,
    most_lost,
    rest_chance,
    rest_timeout,
    retransmission_times,
    typical_lost,
)
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.transitions import linux_transitions
from tcpdelay.study.search import bracket

# Losses in bursts

LINUX = td.Stack.linux()
VOICE = td.Flow(174, 0.020)
PACKETS = 500_000
SIMULATED = "; tcpdelay.simulate takes it into account"

flows = st.builds(td.Flow, st.sampled_from([60, 174, 724, 1448]), st.sampled_from([0.010, 0.020, 0.050, 0.100]))
bursts = st.floats(1.001, 2.0)
windows = st.integers(2, 40)


def parameters(burst, flow=VOICE, rtt=0.400, loss=0.001):
    """Return the parameters of a scenario that the chain answers."""
    try:
        return linux_parameters(flow, td.Path(rtt, loss, loss_burst=burst), LINUX)
    except UnsupportedError:
        assume(False)


# Whole microseconds, so that the packets of a round-trip time are counted without rounding.
@given(bursts, flows, st.integers(10_000, 400_000), st.sampled_from([0.0001, 0.001, 0.01, 0.05]))
@example(2.0, td.Flow(60, 0.050), 300_000, 0.0001)
def test_losses_are_those_of_the_gilbert_model(burst, flow, rtt_us, loss):
    p = parameters(burst, flow, rtt_us * 1e-6, loss)
    # In the stationary state as many bursts begin as end, and each has a geometric length.
    assert p.loss * (1 - loss) == pytest.approx(loss * (1 - p.next_loss), rel=1e-12)
    assert 1 / (1 - p.next_loss) == pytest.approx(burst, rel=1e-9)
    matrix = np.array([[1 - p.loss, p.loss], [1 - p.next_loss, p.next_loss]])
    steps = np.linalg.matrix_power(matrix, rtt_us // round(flow.interval * 1e6) + 1)
    assert p.repeated_loss == pytest.approx(steps[0, 1], rel=1e-9)


@given(bursts, flows, st.floats(0.01, 0.4), windows)
def test_lengths_of_bursts_are_complete(burst, flow, rtt, window):
    p = parameters(burst, flow, rtt)
    chances = [burst_chance(p, window, lost) for lost in range(1, followed_losses(p, window) + 1)]
    assert min(chances) >= 0
    assert sum(chances) + outage_chance(p, window) == pytest.approx(1, abs=1e-12)


@given(st.lists(bursts, min_size=2, max_size=5, unique=True), windows)
def test_long_bursts_and_small_windows_lose_whole_windows(lengths, window):
    chances = [outage_chance(parameters(burst), window) for burst in sorted(lengths)]
    assert chances == sorted(chances)
    p = parameters(lengths[0])
    assert (
        outage_chance(p, window + 1) < outage_chance(p, window) == pytest.approx(p.next_loss ** (window - 1), rel=1e-9)
    )


def test_a_probe_comes_two_round_trips_after_the_last_packet_and_before_the_timeout():
    p = parameters(2.0, td.Flow(174, 0.020), 0.100)
    # Three packets, 20 ms apart: two round-trip times of 5 intervals after the last one, and the timer's slack.
    assert probe_time(p, 3) == pytest.approx(2 + 2 * 5 + p.probe_slack)
    # The first packet's timeout, RTT + 200 ms, ends a longer wait.
    assert probe_time(p, 9) == pytest.approx(15)


def test_slow_start_repairs_one_then_two_then_four():
    assert [repair_rounds(segments) for segments in range(1, 9)] == [0, 1, 1, 2, 2, 2, 2, 3]


def test_a_burst_of_one_is_an_independent_loss():
    answers = [
        td.DelayModel(VOICE, path, LINUX).delay_distribution()
        for path in (td.Path(0.1, 0.02), td.Path(0.1, 0.02, loss_burst=1.0))
    ]
    assert np.array_equal(answers[0].values, answers[1].values)
    assert np.array_equal(answers[0].weights, answers[1].weights)
    p = linux_parameters(VOICE, td.Path(0.1, 0.02, loss_burst=1.0), LINUX)
    assert (p.loss, p.next_loss, p.repeated_loss, p.followed_losses) == (0.02, 0.02, 0.02, 0)


def test_bursts_spare_most_packets_where_windows_are_large():
    """The same losses in fewer events delay fewer packets at the one-way delay + a round-trip time."""
    late = [
        td.DelayModel(VOICE, td.Path(0.2, 0.01, loss_burst=burst), LINUX).delay_distribution().late_fraction(0.2)
        for burst in (1.0, 1.25, 1.5, 2.0)
    ]
    assert late == sorted(late, reverse=True)


@pytest.mark.parametrize(
    ("flow", "path", "message"),
    [
        (
            VOICE,
            td.Path(0.4, 0.001, loss_burst=3.1),
            "loss_burst must be at most 2 in the chain, got 3.1" + SIMULATED,
        ),
        (
            VOICE,
            td.Path(0.02, 0.02, loss_burst=2.0),
            "loss_burst must be shorter in the chain: .*, and at most 2% are .*",
        ),
        (
            td.Flow(1449, 0.02),
            td.Path(0.1, 0.001, loss_burst=1.5),
            "packet_size must be at most 1448 bytes in the chain with a loss_burst of 1.5, got 1449" + SIMULATED,
        ),
        (
            td.Flow(174, 0.5),
            td.Path(0.1, 0.001, loss_burst=1.5),
            r"interval must be at most 0\.3 s in the chain with a loss_burst of 1\.5, got 0\.5" + SIMULATED,
        ),
        # Windows open wide enough are hardly ever lost as a whole, but losses this frequent do not let them open.
        (
            td.Flow(209, 0.01),
            td.Path(0.098, 0.049, loss_burst=1.5),
            "loss_burst must be shorter in the chain: losses of whole windows delay 4.*%.*",
        ),
        (
            VOICE,
            td.Path(0.1, 0.001, bottleneck="bytes", loss_burst=1.5),
            "bottleneck must be 'packets' in the chain with a loss_burst of 1.5, got 'bytes'",
        ),
        (
            td.Flow(1449, 0.020),
            td.Path(0.1, 0.01, "correlated"),
            "packet_size must be at most 1448 bytes in the chain with correlated losses, got 1449" + SIMULATED,
        ),
        (
            td.Flow(174, 0.5),
            td.Path(0.1, 0.01, "correlated"),
            r"interval must be at most 0\.3 s in the chain with correlated losses, got 0\.5" + SIMULATED,
        ),
    ],
)
def test_losses_beyond_the_chain_are_refused(flow, path, message):
    with pytest.raises(UnsupportedError, match=f"^{message}$"):
        td.DelayModel(flow, path, LINUX)


def test_auto_simulates_only_bursts_that_are_too_long_for_the_chain(monkeypatch):
    monkeypatch.setattr(simulation, "MOST_PACKETS", 20_000)
    methods = [
        td.predict_delay(VOICE, td.Path(0.201, 0.01, loss_burst=burst), LINUX, method="auto").method
        for burst in (1.5, 3.0)
    ]
    assert methods == ["chain", "simulation"]


def test_an_edge_where_the_answer_is_not_known_is_a_lower_bound():
    def works(known_to, met_to):
        return lambda value: None if value > known_to else value - met_to

    for start in (1.0, 20.0):
        found = bracket(works(8.0, 4.0), start, 0.1, 100.0)
        assert (found.inside, found.known) == (pytest.approx(4.0, rel=0.01), True)
        found = bracket(works(3.0, 4.0), start, 0.1, 100.0)
        assert (found.inside, found.known) == (pytest.approx(3.0, rel=0.01), False)
    assert bracket(works(0.01, 0.0), 1.0, 0.1, 100.0).inside is None


def test_a_report_goes_as_far_as_the_chain_knows_bursts():
    found = td.guideline(VOICE, td.Path(0.1, 0.02, loss_burst=1.5), LINUX)
    assert found.verdict == "works"
    assert found.expected_error.source.startswith("simulations of losses in bursts")
    assert (found.margins[0].method, found.margins[0].at_least) == ("simulation", False)
    loss = td.guideline(VOICE, td.Path(0.1, 0.02, loss_burst=1.5), LINUX, method="chain").margins[0]
    assert loss.at_least
    with pytest.raises(UnsupportedError):
        td.DelayModel(VOICE, td.Path(0.1, loss.edge * 1.02, loss_burst=1.5), LINUX)
    curve = found.loss_curve
    assert curve.critical is None
    assert curve.loss[-1] == pytest.approx(loss.edge, rel=0.2)
    assert "in bursts of 1.5 segments in the mean" in found.to_markdown()
    with pytest.raises(UnsupportedError, match="loss_burst must be at most 2 in the chain, got 3"):
        td.guideline(VOICE, td.Path(0.1, 0.02, loss_burst=3.0), LINUX, method="chain")


# Losses of a drop-tail queue

losses = st.sampled_from([0.0001, 0.001, 0.01, 0.05, 0.2])


def correlated(rtt, loss, **fields):
    """Return a path with correlated losses."""
    return td.Path(rtt, loss, loss_pattern="correlated", **fields)


@given(st.integers(1, 60), st.floats(0.0001, 0.9), st.data())
def test_the_chance_of_a_rest_is_that_of_its_first_loss(segments, loss, data):
    fewer = data.draw(st.integers(0, segments - 1))
    most = data.draw(st.integers(fewer + 1, segments))
    # The rest has j segments if the segments before it arrive and its first segment is lost.
    first = [loss * (1 - loss) ** (segments - lost) for lost in range(1, segments + 1)]
    expected = math.fsum(first[fewer:most]) / math.fsum(first)
    assert rest_chance(loss, segments, fewer, most) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 100), st.integers(3, 12))
def test_groups_cover_all_numbers_of_losses_once(segments, largest):
    groups = min(segments, largest)
    edges = [most_lost(segments, groups, group) for group in range(groups + 1)]
    assert (edges[0], edges[-1]) == (0, segments)
    assert np.all(np.diff(edges) >= 1)
    # A single loss and the loss of the whole round are groups of their own.
    assert edges[1] == 1
    assert groups == 1 or edges[-2] == segments - 1
    for group in range(1, groups + 1):
        assert edges[group - 1] < typical_lost(segments, groups, group) <= edges[group]


@given(flows, st.floats(0.01, 0.4), losses, st.integers(2, 60))
@example(td.Flow(174, 0.020), 0.1, 0.05, 6)
def test_the_losses_in_an_open_window_are_complete(flow, rtt, loss, window):
    p = linux_parameters(flow, correlated(rtt, loss), LINUX)
    assume(window >= p.load)
    groups = followed_losses(p, window)
    chances = [burst_chance(p, window, group) for group in range(1, groups + 1)]
    assert min(chances) >= 0
    assert sum(chances) + outage_chance(p, window) == pytest.approx(1, abs=1e-12)
    assert all(burst_length(p, group) < window for group in range(1, groups + 1))


kinds_of_losses = st.one_of(
    st.fixed_dictionaries({"loss_burst": bursts}),
    st.fixed_dictionaries({"loss_pattern": st.just("correlated"), "bottleneck": st.sampled_from(["packets", "bytes"])}),
)


@settings(max_examples=50, deadline=None)
@given(flows, st.floats(0.01, 0.2), losses, kinds_of_losses, st.sampled_from(["cubic", "reno"]))
def test_events_of_every_phase_are_complete(flow, rtt, loss, kind, congestion_control):
    stack = td.Stack.linux(congestion_control=congestion_control)
    try:
        phases, transitions = profile_of(flow, td.Path(rtt, loss, **kind), stack).structure
    except UnsupportedError:
        assert "loss_burst" in kind
        assume(False)
    assert_complete(phases, transitions)
    assert_one_event_stays(phases, transitions)


def test_the_first_sack_after_the_reordering_window_detects_the_losses():
    p = linux_parameters(VOICE, correlated(0.4, 0.01), LINUX)
    assert p.reordering_wait == 5
    assert first_sack_wait(p, 6.0, 1.0, 10) == 6.0
    # The third SACK comes before the reordering window ends; with two SACKs only RACK's timer is left.
    assert first_sack_wait(p, 2.0, 1.0, 10) == 4.0
    assert first_sack_wait(p, 2.0, 1.0, 2) == pytest.approx(p.timer)


def test_a_repair_with_few_sacks_takes_further_round_trips():
    p = linux_parameters(td.Flow(1448, 0.020), correlated(0.2, 0.01), LINUX)
    # Two segments per ACK of a retransmission: 2, 4, 8 of 14 retransmissions in three round-trip times.
    assert retransmission_times(p, 14, 2, 1.0, 20, True)[0] == pytest.approx(2 * p.load + 7 * 2 / 8)
    # Once the window is full, as many in each round-trip time.
    assert retransmission_times(p, 14, 2, 1.0, 4, True)[0] == pytest.approx(3 * p.load + 3 * 2 / 4)


def test_a_timeout_follows_if_the_first_retransmission_of_a_round_trip_is_lost():
    p = linux_parameters(VOICE, correlated(0.2, 0.03), LINUX)
    # The SACK that begins a round releases the retransmission, and the rest of this round is lost with it.
    assert rest_timeout(p, 0, 0.0) == pytest.approx(0.03)
    # One SACK came before: its segment leaves in the next round, and is lost as well with the probability p.
    assert rest_timeout(p, 1, 0.0) == pytest.approx(0.03**2)
    # In each further round-trip time of the repair, the first retransmission may be lost.
    assert rest_timeout(p, 0, 2.5 * p.load) == pytest.approx(1 - 0.97**3)


def test_segments_leave_with_the_acks_of_both_rounds_until_the_place_of_the_loss():
    p = linux_parameters(td.Flow(1448, 0.020), correlated(0.2, 0.01), LINUX)
    _, _, layout = linux_transitions(p)
    phases = [phase for phase in layout.sending if phase["place"] > 1]
    assert len(phases) > 100
    for s in phases:
        count, window = int(s["openings"]), s["place"] + s["lost"] - 1
        times = np.zeros(count)
        times_after_rest(p, s, count, times)
        assert np.all(np.diff(times) >= -1e-9)
        assert 0 <= times[0] <= times[-1] <= p.load + s["wait"] + 1e-9
        # A round of evenly spaced ACKs: no gap until the ACK of the lost segment, which does not come.
        if s["run"] == 0:
            np.testing.assert_allclose(times[: window - 1], np.arange(1, window) * p.load / window)


def test_more_loss_means_more_delay():
    means = [td.DelayModel(VOICE, correlated(0.1, loss), LINUX).delay_distribution().mean for loss in (0, 0.005, 0.02)]
    assert means[0] == pytest.approx(0.05)
    assert means == sorted(means)
    assert means[2] > td.DelayModel(VOICE, td.Path(0.1, 0.02), LINUX).delay_distribution().mean


def test_a_queue_in_bytes_spares_small_packets():
    means = [
        td.DelayModel(VOICE, correlated(0.1, 0.02, bottleneck=unit), LINUX).delay_distribution().mean
        for unit in ("bytes", "packets")
    ]
    assert means[0] - 0.05 < 0.3 * (means[1] - 0.05)


@pytest.mark.parametrize(
    ("size", "interval", "path", "mean_error", "p95_error"),
    [
        # Errors are those measured, 0.05, 0.00, 0.02; 0.04, 0.05, 0.00 of the 95th percentile, and a reserve.
        (174, 0.020, td.Path(0.100, 0.02, loss_burst=1.5), 0.10, 0.08),
        (174, 0.020, td.Path(0.200, 0.02, loss_burst=2.0), 0.05, 0.08),
        (1200, 0.020, td.Path(0.100, 0.01, loss_burst=1.5), 0.06, 0.08),
        # With correlated losses they are -0.06, -0.12; -0.04, -0.07; 0.00, 0.03; -0.03, 0.00.
        (174, 0.020, correlated(0.100, 0.02), 0.10, 0.15),
        (174, 0.020, correlated(0.200, 0.01), 0.08, 0.12),
        (1200, 0.020, correlated(0.100, 0.005), 0.06, 0.10),
        (160, 0.050, correlated(0.050, 0.02), 0.06, 0.05),
    ],
)
def test_delays_are_those_of_the_simulator(size, interval, path, mean_error, p95_error):
    flow = td.Flow(size, interval)
    chain = td.DelayModel(flow, path, LINUX).delay_distribution()
    simulated = td.simulate(flow, path, LINUX, packets=PACKETS, seed=1)
    assert chain.mean == pytest.approx(simulated.mean, rel=mean_error)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=p95_error)


@pytest.mark.parametrize(("rtt", "loss"), [(0.2, 0.0002), (0.1, 0.0005)])
def test_rare_losses_add_the_simulated_delay_each(rtt, loss):
    path = correlated(rtt, loss)
    chain = td.DelayModel(VOICE, path, LINUX).delay_distribution()
    simulated = td.simulate(VOICE, path, LINUX, packets=2_000_000, seed=1)
    # Both are known to some percent: a thousand losses, and the chain's own error.
    assert chain.mean - rtt / 2 == pytest.approx(simulated.mean - rtt / 2, rel=0.12)


def test_the_chain_of_bbr_has_independent_losses():
    message = "loss_pattern must be 'random' in the chain with BBR, got 'correlated'"
    with pytest.raises(UnsupportedError, match=f"^{message}{SIMULATED}$"):
        td.DelayModel(VOICE, correlated(0.1, 0.01), td.Stack.linux("bbr"))


def test_a_prediction_quotes_the_error_with_correlated_losses():
    quoted = td.predict_delay(VOICE, correlated(0.1, 0.001), method="auto")
    assert quoted.method == "chain"
    assert quoted.expected_error.source.startswith("simulations of correlated losses")
    independent = td.predict_delay(VOICE, td.Path(0.1, 0.001), method="chain").expected_error
    assert quoted.expected_error.mean >= independent.mean
