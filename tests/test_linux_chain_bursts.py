"""The chain of a Linux kernel under losses in bursts: against probability theory, and against the simulator."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import tcpdelay as td
import tcpdelay.sim.simulation as simulation
from chain_structure import assert_complete, profile_of
from tcpdelay.ask import UnsupportedError
from tcpdelay.chain.linux.bursts import burst_chance, followed_losses, outage_chance, probe_time, repair_rounds
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.study.search import bracket

LINUX = td.Stack.linux()
VOICE = td.Flow(174, 0.020)
PACKETS = 500_000

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


@settings(max_examples=25, deadline=None)
@given(bursts, flows, st.floats(0.01, 0.2), st.sampled_from([0.001, 0.01, 0.02]), st.sampled_from(["cubic", "reno"]))
def test_events_of_every_phase_are_complete(burst, flow, rtt, loss, congestion_control):
    stack = td.Stack.linux(congestion_control=congestion_control)
    try:
        phases, transitions = profile_of(flow, td.Path(rtt, loss, loss_burst=burst), stack).structure
    except UnsupportedError:
        assume(False)
    assert_complete(phases, transitions)


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
    ("size", "rtt", "loss", "burst", "mean_error", "p95_error"),
    [
        # Errors are those measured, 0.05, 0.00, 0.02; 0.04, 0.05, 0.00 of the 95th percentile, and a reserve.
        (174, 0.100, 0.02, 1.5, 0.10, 0.08),
        (174, 0.200, 0.02, 2.0, 0.05, 0.08),
        (1200, 0.100, 0.01, 1.5, 0.06, 0.08),
    ],
)
def test_delays_are_those_of_the_simulator(size, rtt, loss, burst, mean_error, p95_error):
    flow, path = td.Flow(size, 0.020), td.Path(rtt, loss, loss_burst=burst)
    chain = td.DelayModel(flow, path, LINUX).delay_distribution()
    simulated = td.simulate(flow, path, LINUX, packets=PACKETS, seed=1)
    assert chain.mean == pytest.approx(simulated.mean, rel=mean_error)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=p95_error)


@pytest.mark.parametrize(
    ("flow", "path", "message"),
    [
        (
            VOICE,
            td.Path(0.4, 0.001, loss_burst=3.1),
            "loss_burst must be at most 2 in the chain, got 3.1; tcpdelay.sim",
        ),
        (VOICE, td.Path(0.02, 0.02, loss_burst=2.0), "loss_burst must be shorter in the chain: .*, and at most 2% are"),
        (
            td.Flow(1449, 0.02),
            td.Path(0.1, 0.001, loss_burst=1.5),
            "packet_size must be at most 1448 bytes in the chain with a loss_burst of 1.5, got 1449",
        ),
        (
            td.Flow(174, 0.5),
            td.Path(0.1, 0.001, loss_burst=1.5),
            r"interval must be at most 0\.3 s in the chain with a loss_burst of 1\.5, got 0\.5",
        ),
        # Windows open wide enough are hardly ever lost as a whole, but losses this frequent do not let them open.
        (td.Flow(209, 0.01), td.Path(0.098, 0.049, loss_burst=1.5), "losses of whole windows delay 4.*%"),
        (
            VOICE,
            td.Path(0.1, 0.001, bottleneck="bytes", loss_burst=1.5),
            "bottleneck must be 'packets' in the chain with",
        ),
    ],
)
def test_bursts_beyond_the_chain_are_refused(flow, path, message):
    with pytest.raises(UnsupportedError, match=message):
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
