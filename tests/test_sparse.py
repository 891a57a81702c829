"""Sparse flows: the chain's own delays, against closed forms and the simulator."""

import numpy as np
import pytest

from tcpdelay import Flow, Path, Stack, predict_delay, simulate
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.linux.parameters import is_sparse, timeout_ticks
from tcpdelay.scenario.stack import Linux

pytestmark = pytest.mark.filterwarnings("ignore::tcpdelay.ValidityWarning")


def chain(interval, rtt, loss, **stack):
    return predict_delay(Flow(174, interval), Path(rtt, loss), Stack.linux(**stack), method="chain")


def test_a_single_loss_waits_for_the_timer():
    # 10 ms and 200 ms make 53 ticks of 4 ms; the timer fires up to one tick later, and half of the RTT follows.
    delays = chain(10.0, 0.010, 0.02)
    repaired = delays.quantile(1 - 0.02 + np.array([1e-4, 0.0195]))
    assert 0.005 + 53 * 0.004 <= repaired[0] <= repaired[1] <= 0.005 + 54 * 0.004
    assert delays.late_fraction(0.0051) == pytest.approx(0.02, rel=1e-4)


def test_a_lost_probe_waits_for_a_second_timeout():
    delays = chain(10.0, 0.010, 0.1)
    # The second timer starts at a tick, so it takes exactly 54 ticks.
    assert delays.late_fraction(0.230) == pytest.approx(0.01, rel=1e-3)
    assert delays.quantile(1 - 0.001 - 1e-5) <= 0.005 + 108 * 0.004
    # The third timer is twice as long.
    assert delays.quantile(1 - 0.001 + 1e-5) >= 0.005 + (108 + 106) * 0.004


@pytest.mark.parametrize(("interval", "rtt"), [(1.0, 5e-5), (60.0, 5e-3), (60.0, 1e-5)])
def test_a_flow_over_a_short_path_needs_no_bins(interval, rtt):
    # A bin of 1/32 slot would be longer than all delays, and bins as fine as the path's delay would take gigabytes.
    delays = chain(interval, rtt, 0.02)
    assert delays.late_fraction(rtt) == pytest.approx(0.02, rel=1e-3)
    assert 0.2 < delays.quantile(0.99) < 0.22


def test_the_interval_between_sparse_packets_does_not_matter_much():
    means = [chain(interval, 0.1, 0.02).mean for interval in (1.0, 10.0)]
    assert means[0] == pytest.approx(means[1], rel=1e-3)


@pytest.mark.parametrize(
    ("rtt", "rto_min", "hz", "ticks"),
    [(0.01, 0.005, 250, 5), (0.01, 0.005, 1000, 16), (0.1, 0.2, 250, 76), (0.1, 0.2, 1000, 301)],
)
def test_the_smallest_timeout_is_a_whole_number_of_ticks(rtt, rto_min, hz, ticks):
    assert timeout_ticks(Path(rtt, 0.02), Linux(hz=hz, rto_min=rto_min)) == ticks


def test_denser_and_larger_and_lossless_flows_are_left_to_the_slots():
    path, stack = Path(0.1, 0.02), Linux()
    assert is_sparse(Flow(174, 0.4), path, stack)
    assert not is_sparse(Flow(174, 0.3), path, stack)
    assert not is_sparse(Flow(1449, 0.4), path, stack)
    assert not is_sparse(Flow(174, 0.4), Path(0.1, 0.0), stack)


def test_the_parts_add_up_to_the_mean():
    model = DelayModel(Flow(174, 0.5), Path(0.1, 0.2), Linux())
    parts = model.delay_parts
    total = parts.network + parts.backlog + parts.head_of_line + parts.timeouts
    assert total == pytest.approx(model.delay_distribution().mean, rel=1e-9)
    assert parts.timeouts > 0


@pytest.mark.parametrize(
    ("interval", "rtt", "loss", "settings"),
    [
        (0.4, 0.1, 0.02, {}),
        (0.2, 0.01, 0.02, {"rto_min": 0.005}),
        (0.2, 0.05, 0.04, {"rto_min": 0.02, "hz": 1000}),
        (1.0, 0.1, 0.04, {"congestion_control": "reno"}),
        (1.0, 0.03, 0.04, {}),
        (10.0, 0.01, 0.02, {"congestion_control": "bbr"}),
    ],
)
def test_the_simulator_agrees(interval, rtt, loss, settings):
    found = chain(interval, rtt, loss, **settings)
    simulated = simulate(Flow(174, interval), Path(rtt, loss), Stack.linux(**settings), packets=200_000, seed=3)
    assert found.mean == pytest.approx(simulated.mean, rel=0.01)
    for quantile in (0.95, 0.99, 0.999):
        assert found.quantile(quantile) == pytest.approx(simulated.quantile(quantile), rel=0.03)
