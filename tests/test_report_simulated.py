"""Reports with simulated figures: what has not settled, what the chain cannot answer, and which model says what."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tcpdelay import guideline, largest_bitrate, largest_loss, simulate
from tcpdelay.advice.judged_delays import loss_curve
from tcpdelay.ask import NotSettledError
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import COMPARED_PACKETS, model_to_compare, predict, simulator
from tcpdelay.models.verdict import Judgement, judge
from tcpdelay.report.content import content
from tcpdelay.report.guideline import compare_guidelines, differences_table
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target, application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.study.margins import Margin, largest_sustainable_rate, margins
from tcpdelay.units import format_fraction

NEAR_CAPACITY = Path(rtt=0.080, loss=0.0048, jitter=0.005)
"""TCP carries about the rate of live video here, and the chain knows no jitter of packets of several segments."""


FEW = 20_000
"""Packets of the simulations for margins, where only the words of a report are in question."""


@pytest.fixture
def few_packets(monkeypatch):
    """Let reports be simulated with few packets."""
    monkeypatch.setattr("tcpdelay.models.predict.COMPARED_PACKETS", FEW)
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 20 * FEW)


def live_video(path, **options):
    """Return the guideline for live video as a flow of constant rate."""
    return guideline(path=path, application=application("live-video").at_constant_rate, **options)


@pytest.fixture(scope="module")
def unsettled():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tcpdelay.models.predict.COMPARED_PACKETS", FEW)
        patched.setattr("tcpdelay.sim.simulation.MOST_PACKETS", COMPARED_PACKETS)
        return live_video(NEAR_CAPACITY)


def only(delay):
    return DelayDistribution(np.array([delay]), np.array([1.0]), 0.075)


def section(found, key):
    return next(section for section in content(found).sections if section.key == key)


def test_report_on_a_simulation_that_has_not_settled(unsettled):
    assert unsettled.verdict == "uncertain"
    assert not unsettled.works
    assert math.isnan(unsettled.quantile)
    assert math.isnan(unsettled.late_fraction)
    assert unsettled.late_range == (0.0, 1.0)
    report = content(unsettled)
    assert report.headline == "Uncertain: the simulation does not settle"
    said = " ".join(report.explanation)
    assert "TCP carries between" in said
    assert "A capture of the flow on this path would decide" in said
    assert ("p99.9 delay", "not settled") in report.key_figures
    # What does not depend on the delays is there: margins, delays at lower losses, effects of changes.
    assert all(margin.edge < margin.now for margin in unsettled.margins)
    assert unsettled.loss_curve.loss.size > 3
    spread = next(rule for rule in unsettled.recommendations if rule.key == "parallel")
    assert spread.place == "do"
    assert math.isnan(spread.effect.without)
    assert math.isfinite(spread.effect.with_rule)
    assert "has not settled" in section(unsettled, "delays").paragraphs[0]


def test_report_that_has_not_settled_in_all_formats(unsettled):
    assert unsettled.to_markdown().startswith("# Uncertain: the simulation does not settle")
    assert "not settled" in unsettled.to_html()
    delay = json.loads(unsettled.to_json())["delay"]
    assert delay["mean"] is delay["p95"] is delay["target_quantile"] is delay["sustainable"] is None
    assert delay["settled"] is False
    assert delay["carried_low"] < 1 < delay["carried_high"]
    with pytest.raises(NotSettledError):
        _ = unsettled.distribution


def test_the_range_of_a_margin_agrees_with_a_verdict_that_is_certain(monkeypatch):
    """The chain alone leaves the verdict open here, and a simulation decides it."""
    flow, path, target = Flow(1200, 0.020), Path(rtt=0.150, loss=0.01), Target(0.4)
    for simulated, verdict in ((0.3, "works"), (0.6, "fails")):
        monkeypatch.setattr(
            "tcpdelay.advice.guideline.judge",
            lambda scenario, target, method, requested, delay=simulated, verdict=verdict: Judgement(
                verdict, replace(predict(scenario, requested, "chain"), distribution=only(delay))
            ),
        )
        for margin in guideline(flow, path, target=target).margins:
            low, high = margin.within_error
            assert (low if verdict == "works" else -high) >= (margin.now if verdict == "works" else -margin.now)


def test_the_loss_curve_ends_where_the_chain_has_no_finite_delay():
    """At 0.42 % of loss, TCP carries the flow, but the backlog is too large for the chain."""
    video = application("live-video").at_constant_rate
    for loss in (0.003, 0.005):
        scenario = Scenario(video.flow, Path(rtt=0.080, loss=loss))
        curve = loss_curve(scenario, video.target, Margin("loss", loss, 0.004))
        assert curve.quantile.size
        assert np.isfinite(curve.quantile).all()


def test_margins_say_how_many_are_found():
    told = []
    guideline("voip", Path(rtt=0.100, loss=0.01), on_margin=lambda done, count: told.append((done, count)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("path", "method", "said"),
    [
        (Path(rtt=0.250, loss=0.05), "chain", "In at least nine of ten similar scenarios, a simulation agrees"),
        (Path(rtt=0.250, loss=0.05), "simulation", "In the simulation, the backlog grows over the whole time."),
        (Path(rtt=0.080, loss=0.005), "chain", "In some similar scenarios, TCP carries the flow in a simulation;"),
    ],
)
def test_the_error_of_an_endless_delay_is_in_words(no_search, few_packets, path, method, said):
    found = guideline(Flow(1448, 0.0046336), path, method=method)
    assert said in " ".join(content(found).explanation)


def test_margins_are_found_where_a_quantile_lies_between_two_groups_of_delays():
    """Few bad times fall into a short simulation: its p95 is between the packets with a loss and those without."""
    path, flow = Path(rtt=0.070, loss=0.01, bad_time=0.2, jitter=0.02), Flow(1350, 0.020)
    stack = Stack.linux()
    model = model_to_compare(Scenario(flow, path, stack), "auto")
    delays = simulate(flow, path, stack, packets=COMPARED_PACKETS)
    assert delays.settled
    assert delays.quantile_interval.relative_half_width > 0.05
    assert predict(Scenario(flow, path, stack), method=model).answered
    bitrate = margins(Scenario(flow, path, stack), Target(0.3), model)[-1]
    # Both are known to some percent. A margin that took "not settled" for the capacity was 60 % too small.
    assert bitrate.edge == pytest.approx(largest_bitrate(flow, path, stack, Target(0.3)).value, rel=0.15)


def test_comparison_with_a_report_that_has_not_settled(unsettled, no_search, few_packets, monkeypatch):
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", FEW)
    calm = live_video(Path(rtt=0.020, loss=0.001, jitter=0.001))
    for before, after in ((calm, unsettled), (unsettled, calm)):
        compared = compare_guidelines(before, after)
        assert "not settled" in compared.to_markdown().splitlines()[0]
        jitter = next(row for row in differences_table(compared).rows if row[0] == "Jitter")
        assert {value.split(" per")[0] for value in jitter[1:]} == {"up to 1 ms", "up to 5 ms"}
        assert "not settled" in compared.to_html()
        assert json.loads(compared.to_json())["differs"]


def test_comparison_with_jitter(no_search, few_packets):
    without, jittery = (guideline("voip", Path(rtt=0.100, loss=0.01, jitter=jitter)) for jitter in (0.0, 0.005))
    (row,) = differences_table(compare_guidelines(without, jittery)).rows
    assert row == ("Jitter", "–", "up to 5 ms per segment, 2.5 ms in the mean")


def test_longer_simulation_decides_a_verdict():
    # 200 000 packets leave it open whether TCP carries the flow; 900 000 do not.
    video = application("live-video").at_constant_rate
    found = judge(Scenario(video.flow, Path(rtt=0.080, loss=0.0052, jitter=0.005)), video.target)
    assert found.verdict == "fails"
    assert not found.answer.distribution.sustainable
    assert found.answer.distribution.packets > COMPARED_PACKETS


def test_effects_start_from_the_delay_of_the_report_where_all_is_simulated(few_packets, monkeypatch):
    # The report's delays are those of a longer simulation than those of the margins.
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 4 * FEW)
    found = guideline("voip", Path(rtt=0.100, loss=0.02, reordering=0.01), target=Target(0.1463))
    assert found.distribution.packets > FEW
    effects = [rule.effect for rule in found.recommendations if rule.effect is not None]
    before = [effect.without for effect in effects if effect.basis == "simulation" and effect.quantity == "quantile"]
    assert before
    assert set(before) == {found.quantile} == {found.unchanged}


def test_margins_have_the_range_in_which_the_expected_error_places_them():
    found = guideline("voip", Path(rtt=0.100, loss=0.02))
    loss = found.margins[0]
    edge = largest_loss("voip", Path(rtt=0.100, loss=0.02))
    certain, impossible = loss.within_error
    assert certain < loss.edge < impossible
    assert loss.within_error == pytest.approx((edge.certain, edge.impossible), rel=0.06)
    assert json.loads(found.to_json())["margins"][0]["within_error"] == [certain, impossible]
    _, table, *_ = section(found, "margins").tables
    assert table.columns == ("Within the error", "Works up to", "Fails from")
    assert table.rows[0] == ("Loss", format_fraction(certain), format_fraction(impossible))


@pytest.mark.parametrize("options", [{"stack": Stack.newreno_2008()}, {"reordering": 0.001}])
def test_margins_without_a_range(options):
    found = guideline("voip", rtt=0.02, loss=0.01, **options)
    assert {margin.within_error for margin in found.margins} == {None}
    margins = section(found, "margins")
    assert all("Within the error" not in table.columns for table in margins.tables)
    assert ("Simulated margins have no range" in margins.paragraphs[0]) == ("reordering" in options)


def test_the_margin_of_the_bitrate_is_the_answer_of_the_search(few_packets):
    # The chain refuses the present frames, and answers for smaller ones.
    frames, path, target = Flow(16_684, 1 / 30), Path(rtt=0.060, loss=0.003), Target(2.0)
    found = guideline(frames, path, target=target)
    loss, _, bitrate = found.margins
    edge = largest_bitrate(frames, path, target=target)
    assert edge.method == "chain"
    assert bitrate.edge == pytest.approx(edge.value, rel=0.02)
    assert bitrate.within_error[0] < bitrate.edge < bitrate.within_error[1]
    assert loss.within_error is None
    assert "so all figures except the margin of the bitrate are simulated" in found.to_markdown()


@pytest.mark.parametrize(("flow", "loss"), [(Flow(174, 0.020), 0.02), (Flow(7240, 0.040), 0.005)])
def test_what_a_simulation_carries_of_a_growing_backlog_is_the_capacity(flow, loss):
    path, stack = Path(rtt=0.100, loss=loss), Stack.linux()
    chain = largest_sustainable_rate(flow, path, stack)
    simulated = largest_sustainable_rate(flow, path, stack, simulator(COMPARED_PACKETS))
    assert simulated.edge == pytest.approx(chain.edge, rel=0.06)
    assert not simulated.at_least


def test_few_simulations_find_what_tcp_carries(monkeypatch):
    asked = []
    monkeypatch.setattr("tcpdelay.study.margins.predict", lambda *a, **k: asked.append(a) or predict(*a, **k))
    path, stack, model = Path(rtt=0.100, loss=0.005), Stack.linux(), simulator(FEW)
    found = largest_sustainable_rate(Flow(174, 0.100), path, stack, model)
    # The walk up from 14 kbit/s, by the square root of two, has more steps.
    assert len(asked) < 2 * math.log2(found.edge / 13_920)
    again = largest_sustainable_rate(Flow(174, 0.100 / math.sqrt(2)), path, stack, model)
    assert again.edge == pytest.approx(found.edge, rel=0.05)


def test_without_loss_no_backlog_grows():
    found = largest_sustainable_rate(Flow(174, 0.020), Path(rtt=0.100, loss=0.0), Stack.linux(), simulator(FEW))
    assert found.at_least
