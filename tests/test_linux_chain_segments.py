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
