"""Reports on sources whose rate is not constant: figures, kinds, margins, what is left out, and the command line."""

import dataclasses
import json
import math

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.advice.guideline import NOT_FOR_SOURCES
from tcpdelay.advice.rules import APPLICATION_RULES, TCP_RULES
from tcpdelay.models.predict import COMPARED_PACKETS, packets_to_count
from tcpdelay.scenario.scenario import Scenario

PATH = td.Path(rtt=0.060, loss=0.005)
VIDEO = td.Video(1_000_000)


@pytest.fixture(scope="module")
def video():
    return td.guideline(VIDEO, PATH, target=td.Target(1.0, 0.99))


@pytest.fixture(scope="module")
def speech():
    return td.guideline(td.Speech(174, 0.020), td.Path(rtt=0.100, loss=0.02))


def section(found, key):
    return next(section for section in found.content().sections if section.key == key)


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
        (td.Messages(50, 28_960), COMPARED_PACKETS // 10),
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
