"""A simulation that has not settled says so wherever its delays are shown."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

import tcpdelay as td
from tcpdelay import DelayDistribution, Simulation
from tcpdelay.delays import UnsettledWarning
from tcpdelay.report.notebook import distribution_html
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.statistics import Interval
from tcpdelay.study.transports import UNLIMITED

SETTLED = Simulation(
    np.array([0.05, 70.0]), np.array([0.5, 0.5]), 0.05, packets=500_000, carried=Interval(0.968, 0.925, 1.014)
)
UNSETTLED = replace(SETTLED, settled=False)
NOTE = "not settled after 500000 packets: between 92.5 % and 101 % of the rate is carried"


def test_its_repr_says_so():
    assert repr(UNSETTLED).endswith(f", {NOTE})")
    assert "settled" not in repr(SETTLED)


def test_its_quantiles_warn():
    with pytest.warns(UnsettledWarning, match=NOTE):
        assert UNSETTLED.quantile(0.95) == 70.0
    # Where warnings are errors, as in this test, no other distribution warns.
    assert SETTLED.quantile(0.95) == DelayDistribution(SETTLED.values, SETTLED.weights, 0.05).quantile(0.95) == 70.0


def test_its_chart_and_its_table_say_so():
    for kind in ("both", "cdf", "density", "survival"):
        assert UNSETTLED.plot(Figure().subplots(), kind=kind).get_title("left") == NOTE
        assert SETTLED.plot(Figure().subplots(), kind=kind).get_title("left") == ""
    assert NOTE in distribution_html(UNSETTLED, "simulation")
    assert "settled" not in distribution_html(SETTLED, "simulation")


NEAR_CAPACITY = td.Flow(1448, 0.0046336), td.Path(rtt=0.078, loss=0.005)
"""About the rate that TCP carries: the chain says a little less."""
FREE = td.Path(rtt=0.001, loss=0.0), td.Udp()


def over_network(flow: td.Flow, path: td.Path, packets: int):
    shared = td.SharedPath(access_delay=path.rtt / 2, loss=path.loss)
    source = td.ConstantRate(flow=flow, path=shared, stack=td.Stack.linux())
    return simulate_network([source], UNLIMITED, duration=packets * flow.interval).flows[0]


def over_relay(flow: td.Flow, path: td.Path, packets: int):
    return td.simulate_relay(flow, FREE, (path, td.Stack.linux()), packets=packets)


def test_an_isolated_loss_in_twenty_is_settled_in_every_simulator():
    # Either side of the 95th percentile lies a delay: its interval is wide, but the share of later packets is known.
    flow, path = td.Flow(174, 1.0), td.Path(rtt=0.1, loss=0.049)
    network = over_network(flow, path, 20_000)
    assert network.p95_interval.high > 3 * network.p95_interval.value
    assert network.settled
    assert over_relay(flow, path, 20_000).settled
    assert td.simulate(flow, path, packets=20_000).settled


@pytest.mark.parametrize("simulated", [over_network, over_relay])
def test_networks_and_relays_say_so_wherever_they_show_delays(simulated):
    found = simulated(*NEAR_CAPACITY, 200_000)
    assert not found.settled
    note = found.delays.unsettled_note
    assert re.fullmatch(r"not settled after \d+ packets: between 9\S+ % and 1\S+ % of the rate is carried", note)
    assert note in repr(found.delays)
    page = distribution_html(found.delays, found.delays.method)
    assert "by simulation" in page
    assert note in page
    assert found.delays.plot(Figure().subplots()).get_title("left") == note
    with pytest.warns(UnsettledWarning, match=note):
        found.delays.quantile(0.95)


def test_key_frames_of_an_unsettled_video_are_not_settled_either():
    path = td.Path(rtt=0.080, loss=0.005)
    flows = td.simulate(td.Video(2.5e6), path, packets=20_000, seed=1), over_relay(td.Video(2.5e6), path, 20_000)
    for found in flows:
        kinds = [getattr(kind, "delays", kind) for kind in found.by_kind.values()]
        assert {found.settled, *(kind.settled for kind in kinds)} == {False}


def test_a_relay_prints_no_delay_that_has_not_settled(run):
    first = ["--rtt", "1ms", "--loss", "0", "--first", "udp"]
    asked = ["relay", "--packet-size", "1448", "--interval", "4.6336ms", *first, "--second-rtt", "78ms"]
    status, printed, _ = run(*asked, "--second-loss", "0.5%", "--format", "json")
    record = json.loads(printed)
    assert status == 0
    assert (record["settled"], record["p95"], record["mean"], record["mean_second"]) == (False, None, None, None)
    assert record["carried_low"] < 1 < record["carried_high"]
    _, printed, _ = run(*asked, "--second-loss", "0.5%")
    assert "not settled after 100000 packets" in printed
    assert "come within" not in printed
