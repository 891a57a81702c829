"""The chain of a Linux kernel against the simulator where packets span several segments."""

import pytest

import tcpdelay as td
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario


def chain_and_simulation(size, interval, rtt, loss, stack, packets):
    flow, path = td.Flow(size, interval), td.Path(rtt, loss)
    return td.DelayModel(flow, path, stack).delay_distribution(), td.simulate(
        flow, path, stack, packets=packets, seed=1
    )


def test_a_packet_leaves_at_once_only_if_all_its_segments_fit_into_the_window():
    chain, simulated = chain_and_simulation(1719, 0.0162, 0.0835, 0.0065, td.Stack.linux(), 1_000_000)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.04)


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss", "congestion_control", "p99_error"),
    [(2599, 0.0108, 0.0089, 0.0184, "cubic", 0.02), (2606, 0.0095, 0.0062, 0.0182, "reno", 0.02)],
)
def test_later_segments_of_a_packet_detect_losses_and_lost_retransmissions(
    size, interval, rtt, loss, congestion_control, p99_error
):
    stack = td.Stack.linux(congestion_control=congestion_control, hz=250)
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, stack, 400_000)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.08)
    assert chain.quantile(0.99) == pytest.approx(simulated.quantile(0.99), rel=p99_error)


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss"), [(8877, 0.0573, 0.0329, 0.0018), (10291, 0.0103, 0.0061, 0.0013)]
)
def test_an_open_window_grows_as_in_the_simulator(size, interval, rtt, loss):
    """The window that a loss leaves is too small for a packet for a few packets: too few for the 95th percentile."""
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, td.Stack.linux(hz=250), 400_000)
    for limit in (rtt / 2 + 1e-4, rtt + 1e-4):
        assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=0.013)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.01)


def test_packets_beyond_the_initial_window_are_refused_and_simulated():
    # A window of ten segments takes a packet of twelve in two rounds after each pause: the simulator's median is 1.5
    # round-trip times, and the chain's was 0.5. Nor does the chain know up to which rate such packets are carried: of
    # flows that the simulator carries it said that TCP does not.
    path, interval = td.Path(0.1, 4e-4), 0.333
    fits, larger, endless = td.Flow(14_480, interval), td.Flow(17_376, interval), td.Flow(400_000, 0.02)
    answers = [predict(Scenario(flow, path), method="chain") for flow in (fits, larger, endless)]
    assert [answer.status for answer in answers] == ["exact", "unsupported", "not carried"]
    assert str(answers[1].refusal).startswith("packet_size must be at most 14480 bytes in the chain")
    assert td.simulate(larger, path, packets=20_000, seed=1).quantile(0.5) > 0.14
