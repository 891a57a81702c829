"""Verdicts: what the expected error of a prediction allows to say about a target."""

import math
from dataclasses import replace

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.ask import Answer, Requested
from tcpdelay.models import verdict
from tcpdelay.models.predict import capacity, predict
from tcpdelay.models.verdict import Judgement, judge, late_range, late_range_within, verdict_of
from tcpdelay.scenario.applications import application
from tcpdelay.scenario.scenario import Scenario

CALL = Scenario(td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02))


def with_error(answer: Answer, p90: float) -> Answer:
    """Return the answer with another expected error."""
    error = replace(answer.expected_error, p90=p90)
    changed = replace(answer, look_up_error=lambda quantile: error)
    return changed


@pytest.mark.parametrize(
    ("p90", "limit", "expected"),
    [
        (0.0, 0.141, "works"),
        (0.0, 0.139, "fails"),
        (0.1, 0.160, "works"),
        (0.1, 0.150, "uncertain"),
        (0.1, 0.135, "uncertain"),
        (0.1, 0.110, "fails"),
        (1.0, 5.000, "uncertain"),
        (math.nan, 0.139, "fails"),
    ],
)
def test_a_verdict_leaves_open_what_the_expected_error_does(p90, limit, expected):
    answer = with_error(predict(CALL, method="chain"), p90)
    assert answer.require().quantile(0.95) == pytest.approx(0.140, abs=1e-3)
    assert verdict_of(answer, td.Target(limit)) == expected


def test_the_range_of_late_packets_is_that_of_delays_wrong_by_the_expected_error():
    answer = with_error(predict(CALL, method="chain"), 0.25)
    delays = answer.require()
    assert late_range(answer, 0.2) == (delays.late_fraction(0.25), delays.late_fraction(0.15))
    assert late_range(with_error(answer, 1.5), 0.2)[1] == 1.0


def test_not_carried_is_certain_only_where_the_chain_is_seldom_wrong_about_it():
    answer = predict(replace(CALL, source=td.Flow(1448, 0.004)), method="chain")
    assert not answer.sustainable
    assert verdict_of(with_error(answer, 0.0), td.Target(5.0)) == "fails"
    assert verdict_of(with_error(answer, 1.0), td.Target(5.0)) == "uncertain"


@pytest.mark.parametrize(("load", "near"), [(0.6, False), (0.95, True), (1.08, True)])
def test_the_chain_alone_decides_nothing_near_its_capacity(load, near):
    # In an hour of Linux 6.1, TCP carried 1.04 times what the chain expects here (1448 B every 10.732 ms).
    path = td.Path(0.040, 0.05)
    flow = td.Flow(1448, 1 / (load * capacity(Scenario(td.Flow(1448, 0.010732), path))))
    answer = predict(Scenario(flow, path), method="chain")
    assert answer.sustainable == (load < 1)
    assert (answer.expected_error.p90 >= 1) == near
    assert (judge(Scenario(flow, path), td.Target(5.0), "chain").verdict == "uncertain") == near
    if near:
        assert predict(Scenario(flow, path), Requested(packets=100_000)).method == "simulation"


def test_a_simulation_decides_where_the_chain_does_not():
    agent = application("voice-agent")
    scenario = Scenario(agent.flow, td.Path(rtt=0.100, loss=0.025))
    assert judge(scenario, agent.target, "chain").verdict == "uncertain"
    found = judge(scenario, agent.target)
    assert (found.verdict, found.answer.method) == ("works", "simulation")


def test_a_limit_at_the_quantile_itself_stays_uncertain(monkeypatch):
    monkeypatch.setattr(verdict, "SIMULATED_PACKETS", (50_000, 100_000))
    agent = application("voice-agent")
    scenario = Scenario(agent.flow, td.Path(rtt=0.100, loss=0.025))
    share = 1 - td.simulate(scenario.flow, scenario.path, packets=100_000).late_fraction(0.200)
    found = judge(scenario, td.Target(0.200, share))
    assert found.verdict == "uncertain"
    assert found.answer.require().packets == 100_000


def test_the_chain_decides_alone_where_it_can():
    asked: list[int] = []
    found = judge(CALL, td.Target(0.200), on_progress=lambda done, total: asked.append(done))
    assert isinstance(found, Judgement)
    assert (found.verdict, found.answer.method, asked) == ("works", "chain", [])


def test_what_the_chain_refuses_is_simulated():
    scenario = replace(CALL, path=td.Path(rtt=0.100, loss=0.02, reordering=0.01))
    found = judge(scenario, td.Target(0.200), requested=Requested())
    assert (found.verdict, found.answer.method) == ("works", "simulation")
    assert judge(scenario, td.Target(0.200), "chain").verdict == "uncertain"


def test_a_report_says_what_leaves_it_open_and_simulates_unless_told_otherwise():
    agent, path = application("voice-agent"), td.Path(rtt=0.100, loss=0.025)
    chain = td.guideline(path=path, application=agent, method="chain")
    assert (chain.verdict, chain.settled, chain.distribution.method) == ("uncertain", False, "chain")
    assert "the prediction does not settle it" in chain.to_markdown().splitlines()[0]
    auto = td.guideline(path=path, application=agent)
    assert (auto.verdict, auto.settled, auto.distribution.method) == ("works", True, "simulation")
    assert auto.to_dict()["delay"]["method"] == "simulation"
    fewest, most = auto.late_range
    assert fewest <= auto.late_fraction <= most < 0.05


def test_the_range_of_late_packets_covers_other_simulations():
    """Few outages fall into a simulation: the share of late packets is less certain than the delays."""
    flow, path, limit = td.Flow(968, 0.020), td.Path(rtt=0.070, loss=0.01, bad_time=0.2, jitter=0.020), 0.3
    found = [td.simulate(flow, path, packets=200_000, seed=seed) for seed in range(20)]
    found = [one for one in found if one.settled]
    truth = np.mean([one.late_fraction(limit) for one in found])
    ranges = [late_range_within(one, one.expected_error.p90, limit) for one in found]
    assert sum(low <= truth <= high for low, high in ranges) >= 0.8 * len(ranges)


def test_a_longer_simulation_knows_the_share_of_late_packets_better():
    short, long = (td.simulate("voip", td.Path(0.100, 0.02), packets=packets, seed=1) for packets in (50_000, 800_000))
    assert 0 < long.late_error(0.15) < short.late_error(0.15) / 2
    assert short.late_error(10.0) == 0
    assert td.predict_delay("voip", td.Path(0.100, 0.02)).late_error(0.15) == 0
