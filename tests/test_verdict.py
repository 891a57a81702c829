"""Verdicts: what the expected error of a prediction allows to say about a target."""

import math
from dataclasses import replace

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.ask import Answer, Requested
from tcpdelay.models.predict import capacity, predict
from tcpdelay.models.verdict import Judgement, judge, late_range, late_range_within, verdict_of
from tcpdelay.scenario.scenario import Scenario, application
from tcpdelay.sim import simulation

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


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        (td.Path(rtt=0.100, loss=0.02), 0.138),
        (td.Path(rtt=0.100, loss=0.02, reordering=0.01), 0.200),
        (td.Path(rtt=0.060, loss=0.003, ack_loss=0.01), 0.100),
    ],
)
@pytest.mark.parametrize("share", [0.95, 0.999])
def test_a_verdict_rests_on_the_answer_that_every_command_gives(monkeypatch, path, limit, share):
    monkeypatch.setattr(simulation, "MOST_PACKETS", 40_000)
    scenario, target = replace(CALL, path=path), td.Target(limit, share)
    found = judge(scenario, target)
    predicted = td.predict_delay(scenario.flow, path, method="auto")
    assert (found.answer.method, found.answer.require().quantile(share)) == (
        predicted.method,
        predicted.quantile(share),
    )
    assert found.answer.expected_error == predicted.expected_error_of(share)
    assert found.verdict == verdict_of(predict(scenario, Requested(target=target)), target)


def test_a_simulation_knows_the_error_of_each_quantile():
    path = td.Path(rtt=0.100, loss=0.02)
    found, asked = (td.simulate(CALL.flow, path, packets=50_000, quantile=share) for share in (0.95, 0.999))
    assert found.expected_error_of(0.95) == found.expected_error
    other = found.expected_error_of(0.999)
    assert other.quantile == 0.999
    assert other.sampling == pytest.approx(asked.expected_error.sampling, rel=0.5)
    assert other.sampling > found.expected_error.sampling


def test_the_chain_decides_alone_where_it_can():
    asked: list[int] = []
    found = judge(CALL, td.Target(0.200), requested=Requested(on_progress=lambda done, total: asked.append(done)))
    assert isinstance(found, Judgement)
    assert (found.verdict, found.answer.method, asked) == ("works", "chain", [])


def test_what_the_chain_refuses_is_simulated():
    scenario = replace(CALL, path=td.Path(rtt=0.100, loss=0.02, reordering=0.01))
    found = judge(scenario, td.Target(0.200), requested=Requested())
    assert (found.verdict, found.answer.method) == ("works", "simulation")
    assert judge(scenario, td.Target(0.200), "chain").verdict == "uncertain"


def test_a_report_says_what_leaves_it_open_and_simulates_on_request(no_search):
    agent, path = application("voice-agent"), td.Path(rtt=0.100, loss=0.025)
    chain = td.guideline(path=path, application=agent, method="chain")
    assert (chain.verdict, chain.settled, chain.distribution.method) == ("uncertain", False, "chain")
    assert "the prediction does not settle it" in chain.to_markdown().splitlines()[0]
    assert "A simulation may decide: \\`--method simulation\\`." in chain.to_markdown()
    simulated = td.guideline(path=path, application=agent, method="simulation")
    assert (simulated.verdict, simulated.settled, simulated.distribution.method) == ("works", True, "simulation")
    assert simulated.to_dict()["delay"]["method"] == "simulation"
    assert {rule.effect.basis for rule in simulated.recommendations if rule.effect} >= {"simulation"}
    assert not {rule.effect.basis for rule in simulated.recommendations if rule.effect} & {"chain"}
    fewest, most = simulated.late_range
    assert fewest <= simulated.late_fraction <= most < 0.05


@pytest.mark.parametrize("loss", [0.003, 0.02])
def test_a_report_has_the_figures_of_a_prediction(no_search, monkeypatch, loss):
    """Without a report's own number of packets: frames of 16 684 bytes, of which all is simulated."""
    monkeypatch.setattr(simulation, "MOST_SEGMENTS", 100_000)
    flow, path, target = td.Flow(16_684, 1 / 30), td.Path(rtt=0.060, loss=loss), td.Target(2.0, 0.999)
    report, predicted = td.guideline(flow, path, target=target), td.predict_delay(flow, path, method="auto")
    assert report.answer.method == predicted.method == "simulation"
    assert (report.quantile, report.late_fraction) == (predicted.quantile(0.999), predicted.late_fraction(2.0))
    assert (report.works, report.unchanged) == (predicted.meets(target), report.quantile)
    here = report.loss_curve.quantile[report.loss_curve.loss == loss]
    assert set(here) <= {report.quantile}


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


def test_a_target_below_the_delay_of_the_network_alone_fails_whatever_the_error():
    flow, path, target = td.Flow(60, 0.040), td.Path(rtt=0.3012, loss=0.001), td.Target(0.150)
    assert judge(Scenario(flow, path), target).verdict == "fails"
    unknown = with_error(predict(Scenario(flow, path), method="chain"), 1.0)
    assert late_range(unknown, target.latest) == (1.0, 1.0)
    region = td.working_region(flow, rtt=[0.29, 0.3012], loss=[1e-4, 1e-3], limit=target.limit, quantile=0.95)
    assert (region.verdict.values[1] == region.verdict.attrs["flag_meanings"].split().index("fails")).all()
    assert td.largest_rtt(flow, path, target=target).impossible <= 0.303
