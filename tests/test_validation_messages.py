"""Captures of messages: their figures by kind, and the models' predictions beside them."""

import json

import numpy as np
import pytest

from synthetic_captures import flow_run, write
from tcpdelay.capture.flow_capture import FlowCapture, WrittenMessages
from tcpdelay.declare import InvalidValueError
from tcpdelay.report.validation import validation_results
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation.captures import measure, measure_all
from tcpdelay.study.validation.predictions import LINUX, SIMULATOR, Predictions, score, simulated_flow
from tcpdelay.testbed.experiment import Experiment

FRAMES = 36_000
VIDEO = Experiment.from_table(
    {
        "source": {"kind": "video", "bitrate": 800_000, "seed": 3},
        "rtt": 0.060,
        "loss": 0.005,
        "congestion_control": "reno",
        "duration": FRAMES / 30,
    }
)


def captured(experiment, messages, delays, name="film"):
    """Return a capture of messages with these delays [s]."""
    kinds = experiment.source.source.kinds if experiment.source.kind != "trace" else ("small", "large")
    written = WrittenMessages(messages["size"].astype(np.int64), messages["kind"].astype(np.int64), kinds)
    run = flow_run(delays, spacing=experiment.duration / messages.size, messages=written)
    return FlowCapture(name, json.loads(experiment.to_json()), [run])


@pytest.fixture(scope="module")
def film():
    """A capture of simulated delays of a video."""
    path, stack = VIDEO.path, Stack.linux("reno")
    found = simulate(VIDEO.source.source, path, stack, packets=FRAMES, seed=8, trace=True)
    return captured(VIDEO, found.messages, found.read_after)


@pytest.fixture(scope="module")
def measured(film):
    return measure(film, "films")


@pytest.fixture(scope="module")
def scores(measured):
    return score([measured], Predictions())


def test_the_kinds_of_a_capture_are_measured_apart(film, measured):
    assert list(measured.by_kind) == ["other frame", "key frame"]
    assert [part.words for part in (measured, *measured.by_kind.values())] == [
        "video",
        "video, other frame",
        "video, key frame",
    ]
    counted = film.delays_by_kind(10.0)["key frame"][0]
    key = measured.by_kind["key frame"]
    assert key.mean.value == pytest.approx(counted.mean(), rel=0.01)
    assert key.p95.value == pytest.approx(np.quantile(counted, 0.95), rel=0.01)
    assert key.mean.value > measured.mean.value
    assert measured.sustainable


def test_the_utilization_counts_the_mean_bitrate(measured):
    # f a RTT sqrt(2 p) / MSS, the square-root law with two segments per ACK, here within a tenth.
    assert measured.utilization == pytest.approx(1e5 * 0.060 * np.sqrt(2 * 0.005 * 2 / 3) / 1448, rel=0.15)


def test_simulated_messages_score_about_zero_in_each_kind(scores):
    simulated = {each.measured.kind: each for each in scores if each.model == SIMULATOR.name}
    assert list(simulated) == ["", "other frame", "key frame"]
    for each in simulated.values():
        assert abs(each.error_beyond_interval("p95")) < 0.03
        assert abs(each.error_beyond_interval("mean")) < 0.03
        assert abs(each.error("mean")) < 0.1
        assert each.sustainable_call_right
    assert simulated["key frame"].predicted("p95") > simulated["other frame"].predicted("p95")


def test_the_published_chain_is_not_asked(scores):
    assert {each.model for each in scores} <= {SIMULATOR.name, LINUX.name}


def test_the_tables_have_a_row_for_each_kind(measured, scores):
    results = {table.name: table for table in validation_results([measured], scores).tables}
    settings = [row for row in results["sources"].rows if row["model"] == SIMULATOR.name]
    assert [row["set"] for row in settings] == ["video", "video, other frame", "video, key frame"]
    assert {row["collection"] for row in settings} == {"films"}
    assert results["other-settings"].rows == []
    assert [row["messages"] for row in results["captures"].rows] == [row["set"] for row in settings]
    # A capture counts once in the summary, not once for each kind.
    assert {row["cases"] for row in results["summary"].rows} == {1}
    groups = {row["group"] for row in results["errors"].rows if row["by"] == "messages"}
    assert groups == {"video"}


def test_a_capture_of_a_trace_is_simulated_from_one_period_of_its_own_messages():
    sizes = np.tile([100, 100, 100, 3000], 500)
    settings = {
        "source": {"kind": "trace", "file": "t.csv", "digest": "0" * 12, "period": 4.0},
        "rtt": 0.06,
        "loss": 0.01,
        "duration": 2000.0,
    }
    experiment = Experiment.from_table(settings)
    messages = np.empty(2000, [("size", "i8"), ("kind", "u1")])
    messages["size"], messages["kind"] = sizes, sizes > 1000
    measured = measure(captured(experiment, messages, np.full(2000, 0.03)))
    assert isinstance(measured.source, Trace)
    assert (measured.source.period, measured.source.sizes.tolist()) == (4.0, [100, 100, 100, 3000])
    assert set(measured.source.kinds) == {"small", "large"}
    assert list(measured.by_kind) == ["small", "large"]


def test_messages_have_no_constant_rate(measured):
    assert simulated_flow(measured) is None
    with pytest.raises(InvalidValueError, match="flow"):
        _ = measured.flow


def test_captures_of_messages_are_found_beside_others(tmp_path, film):
    write(tmp_path / "films", film)
    (found,) = measure_all(tmp_path, pytest.fail)
    assert (found.name, found.collection, len(found.by_kind)) == ("film", "films", 2)
