"""The chain of a Linux kernel against the simulator where packets span several segments."""

import pytest

import tcpdelay as td


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
    [(2599, 0.0108, 0.0089, 0.0184, "cubic", 0.02), (4445, 0.0384, 0.0263, 0.0237, "reno", 0.05)],
)
def test_later_segments_of_a_packet_detect_losses_and_lost_retransmissions(
    size, interval, rtt, loss, congestion_control, p99_error
):
    stack = td.Stack.linux(congestion_control=congestion_control, hz=250)
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, stack, 400_000)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.08)
    assert chain.quantile(0.99) == pytest.approx(simulated.quantile(0.99), rel=p99_error)
