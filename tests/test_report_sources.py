"""Reports with simulated figures: what has not settled, which model says what, and sources of any rate."""

import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay import guideline, largest_bitrate, largest_loss, simulate
from tcpdelay.advice.guideline import NOT_FOR_SOURCES
from tcpdelay.advice.judged_delays import loss_curve
from tcpdelay.advice.rules import APPLICATION_RULES, TCP_RULES
from tcpdelay.ask import NotSettledError
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import COMPARED_PACKETS, model_to_compare, packets_to_count, predict, simulator
from tcpdelay.models.verdict import Judgement, judge
from tcpdelay.report.content import content
from tcpdelay.report.guideline import compare_guidelines, differences_table
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target, application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.study.margins import Margin, largest_sustainable_rate, margins
from tcpdelay.units import format_fraction

# What has not settled, what the chain cannot answer, and which model says what

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
    # They are searched side by side: two may be found at the same time.
    assert told == sorted(told)
    assert (told[0], told[-1]) == ((0, 3), (3, 3))


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


def test_margins_without_a_range():
    found = guideline("voip", rtt=0.02, loss=0.01, stack=Stack.newreno_2008())
    assert {margin.within_error for margin in found.margins} == {None}
    margins = section(found, "margins")
    assert all("Within the error" not in table.columns for table in margins.tables)
    assert "has no range" not in margins.paragraphs[0]


def test_simulated_margins_have_the_range_of_the_search_unless_they_are_far(few_packets):
    path = Path(rtt=0.02, loss=0.015, reordering=0.001)
    found = guideline("voip", path)
    loss = found.margins[0]
    edge = largest_loss("voip", path)
    assert (loss.edge, loss.within_error) == (edge.value, (edge.certain, edge.impossible))
    far = [margin.quantity for margin in found.margins if margin.edge >= 10 * margin.now]
    assert [margin.quantity for margin in found.margins if margin.within_error is None] == far
    assert ("has no range" in section(found, "margins").paragraphs[0]) == bool(far)


def test_the_margin_of_the_bitrate_is_the_answer_of_the_search(few_packets):
    # The chain refuses the present frames, and answers for smaller ones.
    frames, path, target = Flow(16_684, 1 / 30), Path(rtt=0.060, loss=0.003), Target(2.0)
    found = guideline(frames, path, target=target)
    loss, _, bitrate = found.margins
    edge = largest_bitrate(frames, path, target=target)
    assert edge.method == "chain"
    assert bitrate.edge == pytest.approx(edge.value, rel=0.02)
    assert bitrate.within_error[0] < bitrate.edge < bitrate.within_error[1]
    assert loss.within_error[0] <= loss.edge < loss.within_error[1]
    # The chain refuses frames of more than ten segments, which are simulated: the upper end is not left open.
    assert bitrate.within_error[1] < 2 * bitrate.edge
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


# Sources whose rate is not constant: figures, kinds, margins, what is left out, and the command line

PATH = td.Path(rtt=0.060, loss=0.005)
VIDEO = td.Video(1_000_000)


@pytest.fixture(scope="module")
def video():
    return td.guideline(VIDEO, PATH, target=td.Target(1.0, 0.99))


@pytest.fixture(scope="module")
def speech():
    return td.guideline(td.Speech(174, 0.020), td.Path(rtt=0.100, loss=0.02))


def test_a_source_is_written_with_its_settings_in_words(video):
    (table,) = section(video, "source").tables
    assert table.rows[0] == (
        "Source",
        "video: bitrate 1 Mbit/s, frame rate 30, key interval 2 s, key ratio 8, variation 0.3, "
        "frame sizes lognormal, write jitter 1 ms",
    )


def test_the_delays_are_those_of_a_prediction(video):
    assert isinstance(video, td.SourceGuideline)
    delays = td.predict_delay(VIDEO, PATH, method="auto")
    assert video.answer.method == delays.method
    assert (video.mean, video.quantile) == (delays.mean, delays.quantile(0.99))
    assert video.late_fraction == delays.late_fraction(1.0)
    assert {kind: found.mean for kind, found in video.by_kind.items()} == {
        kind: found.mean for kind, found in delays.by_kind.items()
    }
    assert video.works == (video.quantile <= 1.0)


def test_the_record_has_every_field_except_those_without_a_plain_form(video):
    found = video, td.guideline(rtt=0.100, loss=0.02, packet_size=174, interval=0.020, method="chain")
    changes = ({"unchanged", "utilization"}, {"by_kind"}), (set(), {"fair_rate"})
    for each, (left_out, added) in zip(found, changes, strict=True):
        fields = {field.name for field in dataclasses.fields(each)} - {"answer", "simulated"}
        assert set(each.to_dict()) == fields - left_out | {"delay"} | added


def test_margins_are_edges_of_simulations_with_a_fixed_number_of_messages(video):
    assert video.compared == packets_to_count(Scenario(VIDEO, PATH), COMPARED_PACKETS)
    changed = {
        "loss": lambda value: (VIDEO, td.Path(0.060, value)),
        "rtt": lambda value: (VIDEO, td.Path(value, 0.005)),
        "bitrate": lambda value: (td.Video(value), PATH),
    }
    assert [margin.quantity for margin in video.margins] == list(changed)
    for margin in video.margins:
        inside, outside = (
            td.simulate(*changed[margin.quantity](value), packets=video.compared).late_fraction(1.0)
            for value in (margin.edge, 1.2 * margin.edge)
        )
        assert inside <= 0.01 < outside


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (td.Flow(14_480, 0.1), COMPARED_PACKETS),
        (td.Speech(174, 0.020), COMPARED_PACKETS),
        (td.Messages(50, 2896), COMPARED_PACKETS),
        (td.Messages(50, 28_960), 3 * COMPARED_PACKETS // 10),
        (td.Trace(np.arange(9000) / 50, np.full(9000, 100)), 7000),
        (td.Trace(np.arange(9000) / 50, np.full(9000, 100), period=180), COMPARED_PACKETS),
    ],
)
def test_large_messages_are_fewer_and_a_trace_has_only_its_own(source, messages):
    assert packets_to_count(Scenario(source, PATH), COMPARED_PACKETS) == messages


def test_what_only_a_constant_rate_has_is_left_out_in_all_formats(video, speech):
    left_out = {rule.key for rule in (*TCP_RULES, *APPLICATION_RULES) if not rule.any_source}
    assert {"nagle", "split", "parallel", "segment-ratio", "playout-loss", "silence", "byte-queue"} <= left_out
    for found in (video, speech):
        assert not {rule.key for rule in found.recommendations} & left_out
        assert {"window-validation", "bitrate"} <= {rule.key for rule in found.recommendations}
        plain = json.loads(found.to_json())
        assert not {"flow", "fair_rate", "utilization", "playout", "backlogged_time_fraction"} & set(plain)
        for text in (found.to_markdown(), found.to_html()):
            assert "Fair TCP rate" not in text
            assert "Utilization" not in text
            assert "nan" not in text.lower().replace("nano", "")
            assert all(words in text for words in NOT_FOR_SOURCES)
        titles = [part.key for part in found.content().sections]
        assert titles == ["advice", "transport", "scenario", "source", "delays", "margins", "parts", "rules", "trust"]


def test_the_record_has_the_source_and_its_kinds(speech):
    plain = json.loads(speech.to_json())
    assert plain["source"]["kind"] == "Speech"
    assert plain["source"]["mean_bitrate"] == speech.source.mean_bitrate
    assert list(plain["by_kind"]) == ["packet", "first packet"]
    counts = [found["messages"] for found in plain["by_kind"].values()]
    assert sum(counts) == speech.simulated.distribution.packets
    means = [found["mean"] for found in plain["by_kind"].values()]
    assert np.average(means, weights=counts) == pytest.approx(speech.simulated.distribution.mean, rel=1e-6)
    assert plain["delay"]["mean"] == td.predict_delay(speech.source, speech.path).mean
    assert plain["verdict"] == speech.verdict


def test_the_rows_of_a_kind_have_its_quantiles_unless_its_messages_are_too_few(speech):
    rows = {row[0]: row for row in section(speech, "delays").tables[1].rows}
    delays = speech.by_kind["first packet"]
    assert rows["first packet"][-2] == f"{1e3 * delays.quantile(0.95):.3g} ms"
    assert math.isnan(speech.quantile_of_kind("first packet", 1 - 9 / delays.packets))
    assert speech.quantile_of_kind("first packet", 0.95) == delays.quantile(0.95)


def test_a_source_of_one_kind_that_cannot_be_scaled():
    class Even(td.Source):
        message_rate, mean_bitrate = 50.0, 69_600.0

        def generate(self, seed):
            yield from td.Flow(174, 0.020).generate(seed)

    found = td.guideline(Even(), td.Path(rtt=0.100, loss=0.02))
    assert [margin.quantity for margin in found.margins] == ["loss", "rtt"]
    assert found.by_kind == {}
    assert "cannot be scaled" in found.to_markdown()
    # The messages are those of a flow, so its simulation has the same delays.
    assert (
        found.mean
        == td.simulate(
            td.Flow(174, 0.020, write_jitter=0), td.Path(0.100, 0.02), packets=found.answer.distribution.packets
        ).mean
    )


def test_a_source_that_tcp_cannot_carry():
    found = td.guideline(td.Video(50_000_000), td.Path(rtt=0.100, loss=0.02))
    assert (found.verdict, found.quantile) == ("fails", math.inf)
    assert found.content().headline == "Does not work: TCP cannot carry this flow"
    assert json.loads(found.to_json())["delay"]["p95"] is None
    assert set(found.charts()) == {"source", "margins"}
    assert "50 Mbit/s" in " ".join(found.content().explanation)


def test_refusals_are_one_line(video):
    with pytest.raises(ValueError, match=r"^method must be 'simulation' or 'auto' for a source whose rate") as raised:
        td.guideline(VIDEO, PATH, method="chain")
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=r"^stack must be Stack.linux\(\) or Stack.quic\(\) in a simulation"):
        td.guideline(VIDEO, PATH, td.Stack.newreno_2008())
    flow = td.guideline(td.Flow(174, 0.020), PATH)
    for pair in ((flow, video), (video, flow)):
        with pytest.raises(ValueError, match="must be a guideline for a flow of constant rate, got 'SourceGuideline'"):
            td.compare_guidelines(*pair)


def test_the_page_has_a_chart_of_the_source_and_of_each_kind(video):
    charts = video.charts()
    assert {key: len(drawn) for key, drawn in charts.items()} == {"source": 1, "margins": 1, "delays": 2, "parts": 1}
    assert "key frame" in charts["source"][0].svg
    assert "key frame" in charts["delays"][1].svg
    assert "other frame" in charts["delays"][1].svg


def test_report_of_the_options_of_a_source(run, video, tmp_path):
    path = ("--rtt", "60ms", "--loss", "0.5%")
    options = (*path, "--bitrate", "1Mbit/s", "--key-ratio", "8", "--limit", "1s", "--quantile", "0.99")
    status, printed, errors = run("report", *options, "--format", "json")
    assert status == 0
    assert "Traceback" not in errors
    assert json.loads(printed) == video.to_dict()
    status, printed, errors = run("report", *options, "--against", "loss=1%")
    assert (status, printed) == (2, "")
    assert "--against: compares reports on flows of constant rate only" in errors
    status, _, errors = run("report", *options, "--method", "chain")
    assert status == 2
    assert "--method: must be 'simulation' or 'auto'" in errors
    trace = tmp_path / "frames.csv"
    trace.write_text("time,size\n" + "".join(f"{number / 50},{100 + number % 7}\n" for number in range(5000)))
    status, printed, _ = run("report", *path, "--source", str(trace))
    assert status == 0
    assert "Trace(5000 messages in 99.98 s)" in printed
    trace.write_text("time,size\n0,100\n1,100\n")
    status, _, errors = run("report", *path, "--source", str(trace))
    assert status == 2
    assert "must have at least 3000 messages, or a period" in errors
