"""The comparison of captures with the models, and `tcpdelay validate`."""

import csv
import io
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring import capture_pairs
from scoring.capture_pairs import ratio_interval
from scoring.drop_tail import drop_tail_table, published_figures
from scoring.results import HALVED_MODELS, evaluate, figures, halves_table, held_out
from synthetic_captures import capture, experiment, flow_run, shuffled, write
from tcpdelay.capture.flow_capture import CaptureFile
from tcpdelay.delays import DelayDistribution
from tcpdelay.report.document import Column, ResultTable
from tcpdelay.report.validation import error_row, errors_table, settings_table, summary_table
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.statistics import Interval
from tcpdelay.study.validation import predictions
from tcpdelay.study.validation.captures import measure, measure_all
from tcpdelay.study.validation.predictions import (
    MODELS,
    Prediction,
    Predictions,
    Score,
    chain,
    largest_gap,
    mean_distance,
    score,
    solve,
)

VALIDATION = FilePath(__file__).parents[1] / "validation"
PACKETS = 4000
FLAT = np.full(PACKETS, 0.010)
LINUX = MODELS[1].name
CHAINS = MODELS[:2]


def asked(flow, path):
    """Return what the published chain says."""
    return solve(Scenario(flow, path, Stack.newreno_2008(backlog_bound="grow")))


@pytest.fixture(scope="module")
def published():
    """The published model's own delays: 174 B every 20 ms, RTT 20 ms, loss 1 %."""
    return asked(Flow(174, 0.020), Path(0.020, 0.01)).distribution


@pytest.fixture(scope="module")
def of_the_model(published):
    """A capture of those delays."""
    return measure(capture(shuffled(published, PACKETS), experiment(PACKETS)))


def test_a_capture_of_the_models_own_delays_scores_zero(of_the_model):
    own, other = score([of_the_model], Predictions(CHAINS))
    assert own.model == "newreno_2008"
    for quantity in ("p50", "p95", "p99"):
        assert own.error(quantity) == pytest.approx(0, abs=1e-4)
    assert own.error("mean") == pytest.approx(0, abs=0.03)
    assert own.error_beyond_interval("mean") == 0
    assert own.inside_interval("mean")
    assert own.mean_distance == pytest.approx(0, abs=0.03)
    assert own.largest_gap == pytest.approx(0, abs=1e-3)
    assert abs(own.standard_errors_apart) < 2.5
    assert other.mean_distance > 0.5
    assert other.largest_gap > 0.01
    assert other.standard_errors_apart > 5
    assert own.sustainable_call_right
    assert own.comparable
    # First timeouts of 220 ms instead of 80 ms.
    assert other.error("mean") > 0.5


def test_the_summary_tells_the_models_apart(of_the_model):
    own, other = summary_table(score([of_the_model], Predictions(CHAINS))).rows
    assert (own["cases"], own["sustainable_right"], own["never"]) == (1, 1, 0)
    assert own["median_p95"] == pytest.approx(0, abs=1e-4)
    assert other["median_mean"] > 0.5


def test_measured_numbers_are_those_of_the_delays(published, of_the_model):
    assert of_the_model.p95.value == pytest.approx(published.quantile(0.95))
    assert of_the_model.mean.low < published.mean < of_the_model.mean.high
    assert of_the_model.late[0.150].value == pytest.approx(published.late_fraction(0.150), abs=2e-3)
    assert of_the_model.loss == pytest.approx(0.01)
    assert of_the_model.offered == PACKETS
    assert of_the_model.sustainable
    assert of_the_model.growth == pytest.approx(0, abs=1e-6)
    assert of_the_model.utilization == pytest.approx(0.0162, rel=0.05)
    assert math.isnan(of_the_model.rtt)


def test_the_start_is_left_out():
    delays = FLAT.copy()
    delays[:5] = 1.9
    assert measure(capture(delays)).mean.value == pytest.approx(0.010)
    delays[5] = 1.9
    assert measure(capture(delays)).mean.value > 0.010


def test_what_is_not_read_makes_the_mean_infinite():
    delays = np.where(np.arange(PACKETS) >= 0.97 * PACKETS, np.inf, FLAT)
    measured = measure(capture(delays))
    assert measured.mean.value == measured.p99.value == math.inf
    assert measured.p95.value == pytest.approx(0.010)
    assert measured.unread == pytest.approx(0.03, abs=2e-3)
    assert not measured.sustainable
    assert measured.late[0.400].value == pytest.approx(measured.unread)


def test_the_end_is_left_out():
    delays = FLAT.copy()
    delays[-2:] = np.inf
    assert measure(capture(delays)).unread == 0
    delays[-10] = np.inf
    assert measure(capture(delays)).unread > 0


def test_delays_that_grow_are_of_a_flow_that_tcp_does_not_carry():
    delays = 0.010 + 0.1 * np.arange(PACKETS)
    measured = measure(capture(delays))
    assert not measured.sustainable
    assert measured.growth == pytest.approx(0.05, rel=0.02)
    back = delays.copy()
    back[-100:] = 0.010
    # In the order of reading nothing overtakes what came before.
    assert not measure(capture(back)).sustainable
    emptied = np.concatenate([0.010 + 0.0001 * np.arange(PACKETS // 2)] * 2)
    assert measure(capture(emptied)).sustainable


def test_flows_of_one_run_count_its_losses_once_and_share_its_batches(published):
    delays = shuffled(published, PACKETS)
    alone = measure(capture([flow_run(delays)]))
    together = measure(capture([flow_run(delays), flow_run(delays, flow=1)], experiment(PACKETS, flows=2)))
    assert together.loss == alone.loss
    assert together.runs == alone.runs == 1
    assert together.mean.high - together.mean.low == pytest.approx(alone.mean.high - alone.mean.low, rel=0.02)
    apart = measure(capture([flow_run(delays), flow_run(delays, run=1)], experiment(PACKETS)))
    assert apart.runs == 2


def test_losses_of_the_path_and_of_the_bottleneck_add_up():
    packets = {"data_sent": 90, "data_dropped": 10, "bottleneck_sent": 50, "bottleneck_dropped": 50, "ack_dropped": 9}
    assert measure(capture([flow_run(FLAT, packets=packets)])).loss == pytest.approx(0.55)
    assert math.isnan(measure(capture([flow_run(FLAT, packets={})])).loss)


ROUTED = {"bottleneck_rate": 3e6, "queue_packets": 100, "loss": 0.0, "rtt": 0.100, "flows": 5, "bulk_flows": 5}


def test_behind_a_router_the_models_get_the_measured_path():
    settings = experiment(PACKETS, web_flows=10, **ROUTED)
    samples = {"rtt": np.array([0, 300_000, 460_000])}
    packets = {"bottleneck_sent": 3, "bottleneck_dropped": 1}
    measured = measure(capture([flow_run(FLAT, samples=samples, packets=packets)], settings))
    assert measured.path == Path(0.380, 0.25, "correlated", "packets", 0.330)
    in_bytes = replace(settings, queue_packets=None, queue_bytes=50_000)
    assert measure(capture([flow_run(FLAT, samples=samples)], in_bytes)).path.bottleneck == "bytes"
    assert not measured.plain


def test_the_drop_tail_table_puts_ours_beside_the_published_figures(tmp_path):
    file = tmp_path / "published.csv"
    figures = ("loss,%,1.60", "round-trip time,s,0.380", '"p95, measured",s,0.498', '"p95, model",s,0.690')
    lines = [f'Table V,"queue in packets, 10 web flows",{figure},,printed' for figure in figures]
    file.write_text("\n".join(["item,condition,quantity,unit,value,error,kind", *lines]) + "\n")
    samples, packets = {"rtt": np.array([380_000])}, {"bottleneck_sent": 984, "bottleneck_dropped": 16}
    runs = [flow_run(np.full(PACKETS, 0.5), samples=samples, packets=packets)]
    measured = [measure(capture(runs, experiment(PACKETS, web_flows=web, **ROUTED))) for web in (10, 11)]
    row, unpublished = drop_tail_table(measured, published_figures(file), Predictions()).rows
    assert (row["published_measured_p95"], row["published_model_p95"], row["web_flows"]) == (0.498, 0.690, 10)
    assert row["p95"] == pytest.approx(0.5)
    path = Path(0.380, 0.016, "correlated", one_way_delay=0.330)
    assert row["newreno_2008"] == pytest.approx(asked(Flow(174, 0.020), path).quantile(0.95), rel=1e-3)
    assert row["error_newreno_2008"] == pytest.approx(row["newreno_2008"] / 0.5 - 1)
    assert unpublished["published_measured_p95"] is None


def test_a_damaged_table_of_published_figures_is_named(tmp_path):
    (tmp_path / "published.csv").write_text('item,condition,quantity,value\nTable V,"queue in packets, many",loss,1\n')
    with pytest.raises(ValueError, match=r"published\.csv: is no table of published figures"):
        published_figures(tmp_path / "published.csv")
    assert published_figures(tmp_path / "none.csv") == {}


def test_each_prediction_is_computed_once(of_the_model):
    asked = []
    counting = [replace(model, answer=lambda question: asked.append(question) or Prediction(None)) for model in CHAINS]
    cubic = replace(of_the_model, hz=1000, experiment=replace(of_the_model.experiment, congestion_control="cubic"))
    assert len(score([of_the_model, cubic], Predictions(counting))) == 4
    assert len(asked) == len(CHAINS)


def test_another_model_is_one_more_entry(of_the_model):
    own = chain("later", "a later model", lambda capture: Stack.newreno_2008("sack"))
    results = evaluate([of_the_model], {}, [*CHAINS, own])
    assert [row["model"] for row in results.summary.rows] == [*(model.name for model in CHAINS), "later"]


def test_a_flow_beyond_what_tcp_carries_is_never_solved(monkeypatch):
    monkeypatch.setattr(predictions, "predict", None)
    prediction = asked(Flow(1448, 0.020), Path(0.300, 0.10))
    assert not prediction.sustainable
    assert prediction.quantile(0.5) == prediction.mean == math.inf
    assert prediction.late_fraction(10) == 1


def test_a_flow_just_below_what_tcp_carries_is_not_solved():
    prediction = asked(Flow(1448, 0.030), Path(0.100, 0.10))
    assert prediction.distribution is None
    assert prediction.sustainable
    assert math.isnan(prediction.quantile(0.95))


def test_what_is_predicted_never_to_settle_is_counted_and_left_out_of_the_mean(of_the_model):
    never = Prediction(DelayDistribution.unsustainable(0.01))
    twice = Prediction(DelayDistribution(np.array([2 * of_the_model.p95.value]), np.ones(1), 0.01))
    scores = [Score(of_the_model, "m", prediction) for prediction in (never, never, twice)]
    row = error_row(scores)
    assert (row["cases"], row["never"]) == (3, 2)
    assert row["median_p95"] == math.inf
    assert row["mean_p95"] == pytest.approx(1)
    assert summary_table(scores).rows[0]["wrongly_unsustainable"] == 2
    assert error_row([])["median_p95"] is None


def test_errors_are_grouped(of_the_model):
    far = replace(of_the_model, experiment=replace(of_the_model.experiment, rtt=0.300), hz=1000)
    rows = errors_table(score([of_the_model, far], Predictions(CHAINS))).rows
    groups = {(row["by"], row["group"]): row["cases"] for row in rows if row["model"] == LINUX}
    assert groups["RTT", "below 50 ms"] == groups["RTT", "above 160 ms"] == 1
    assert groups["HZ", "250"] == groups["HZ", "1000"] == 1
    assert groups["packet size", "174 B"] == groups["loss", "1 %"] == groups["congestion control", "reno"] == 2


def test_only_plain_captures_are_scored(of_the_model):
    others = [
        replace(of_the_model, backend="uml"),
        replace(of_the_model, experiment=replace(of_the_model.experiment, sack=False)),
        replace(of_the_model, experiment=replace(of_the_model.experiment, congestion_control="bbr")),
        replace(of_the_model, experiment=replace(of_the_model.experiment, loss_burst=3)),
    ]
    scores = evaluate([of_the_model, *others], {}, CHAINS).scores
    assert [(one.measured, one.model) for one in scores] == [(of_the_model, model.name) for model in CHAINS]


def test_errors_of_the_linux_chain_are_split_into_halves(of_the_model):
    own = chain(HALVED_MODELS[0], "own", lambda capture: Stack.newreno_2008(backlog_bound="grow"))
    captures = [replace(of_the_model, name=f"capture-{number}") for number in range(20)]
    scores = score(captures, Predictions([MODELS[0], own]))
    out, seen = halves_table(scores).rows
    assert (out["half"], out["model"]) == ("held out", "linux")
    assert out["cases"] == sum(held_out(capture.name) for capture in captures)
    assert out["cases"] + seen["cases"] == 20
    assert 0 < out["cases"] < 20


def test_about_half_of_the_grid_is_held_out():
    names = CaptureFile(VALIDATION / "captures" / "random-loss.parquet").names
    assert len(names) == 504
    assert 0.4 < sum(map(held_out, names)) / len(names) < 0.6
    assert all(held_out(name) == held_out(name.replace("-hz250", "-hz1000")) for name in names)


def test_captures_with_other_settings_have_a_table_of_their_own(of_the_model):
    off = replace(of_the_model, experiment=replace(of_the_model.experiment, slow_start_after_idle=False))
    real = replace(of_the_model, backend="uml", hz=100)
    scores = [Score(capture, "m", Prediction(capture.distribution)) for capture in (off, real)]
    rows = settings_table(scores).rows
    assert [row["set"] for row in rows] == ["slow_start_after_idle off", "real time, HZ 100"]
    assert all(row["cases"] == row["sustainable_right"] == 1 for row in rows)


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0.001, 10)), min_size=1, max_size=30))
def test_the_mean_distance_of_equally_many_samples_is_that_of_the_sorted_ones(pairs):
    one, other = (np.sort(np.array(column)) for column in zip(*pairs, strict=True))
    distance = mean_distance(*(DelayDistribution.from_samples(samples, 0.0) for samples in (one, other)))
    assert distance == pytest.approx(np.abs(one - other).mean() / other.mean(), abs=1e-9)


def test_distances_of_delays_that_never_end():
    never = DelayDistribution.unsustainable(0.01)
    known = DelayDistribution.from_samples([0.01, 0.02], 0.01)
    assert mean_distance(never, known) == math.inf
    assert math.isnan(mean_distance(known, never))
    assert largest_gap(never, known) == largest_gap(known, never) == 1
    assert largest_gap(known, DelayDistribution.from_samples([0.0105, 0.02], 0.01)) == 0
    assert largest_gap(known, DelayDistribution.from_samples([0.0115, 0.02], 0.01)) == 0.5


def test_a_rare_delay_of_minutes_is_no_delay_in_a_wrong_unit():
    rare = DelayDistribution(np.array([0.02, 125.0]), np.array([1.0, 1e-17]), 0.01)
    assert largest_gap(rare, DelayDistribution.from_samples([0.02], 0.01)) == pytest.approx(0, abs=1e-12)


def test_runs_longer_than_the_first_are_used_to_their_end():
    first, longer = FLAT[:1000], np.concatenate([FLAT[:1000], np.full(1000, 0.050)])
    measured = measure(capture([flow_run(first), flow_run(longer, run=1)], experiment(1000)))
    assert measured.mean.value == pytest.approx(0.010 + 0.040 / 3, rel=0.01)
    assert measured.sizes == (1000, 2000)


estimates = st.floats(1e-3, 1e3).flatmap(
    lambda value: st.tuples(st.just(value), st.floats(value / 10, value), st.floats(value, 10 * value))
)


@given(estimates, estimates)
def test_the_interval_of_a_ratio_holds_it_and_turns_with_it(one, other):
    one, other = Interval(*one), Interval(*other)
    ratio, inverse = ratio_interval(one, other), ratio_interval(other, one)
    assert ratio.low <= ratio.value * (1 + 1e-9)
    assert ratio.value <= ratio.high * (1 + 1e-9)
    assert inverse.low == pytest.approx(1 / ratio.high)
    assert inverse.high == pytest.approx(1 / ratio.low)


def test_the_interval_of_a_ratio_covers_it_as_often_as_said():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        one, other = rng.normal(10, 0.5), rng.normal(5, 0.25)
        ratio = ratio_interval(Interval(one, one - 0.98, one + 0.98), Interval(other, other - 0.49, other + 0.49))
        covered += ratio.low <= 2 <= ratio.high
    assert 0.92 < covered / 400 < 0.98


def test_switches_stand_beside_the_default_on_their_path(of_the_model):
    default = of_the_model.experiment
    off = replace(
        of_the_model, experiment=replace(default, sack=False, recovery=0, duration=60.0), p95=Interval(2, 2, 2)
    )
    elsewhere = replace(of_the_model, experiment=replace(default, sack=False, rtt=0.3))
    faster = replace(of_the_model, experiment=replace(default, nodelay=False), hz=1000)
    (pair,) = capture_pairs.switches([off, elsewhere, faster, of_the_model])
    assert (pair.measured, pair.reference, pair.changed) == (off, of_the_model, "sack off, recovery 0")
    assert pair.ratio("p95").value == pytest.approx(2 / of_the_model.p95.value)
    assert pair.apart("p95")


def test_other_congestion_controls_stand_beside_cubic(of_the_model):
    cubic = replace(of_the_model, experiment=replace(of_the_model.experiment, congestion_control="cubic"))
    bbr = replace(of_the_model, experiment=replace(of_the_model.experiment, congestion_control="bbr"))
    assert [(pair.measured, pair.reference) for pair in capture_pairs.switches([of_the_model, bbr, cubic])] == [
        (bbr, cubic)
    ]
    (pair,) = capture_pairs.congestion_controls([of_the_model, bbr, cubic])
    assert (pair.measured, pair.reference) == (cubic, of_the_model)
    assert not pair.apart("p95")


def test_heuristics_stand_beside_the_same_without(of_the_model):
    settings = of_the_model.experiment
    split = replace(of_the_model, experiment=replace(settings, pieces=2))
    spread = replace(of_the_model, experiment=replace(settings, connections=5, scheduling="intelligent"))
    found = capture_pairs.heuristics([split, of_the_model, spread])
    assert [pair.changed for pair in found] == ["pieces 2", "connections 5, scheduling intelligent"]
    assert all(pair.reference is of_the_model for pair in found)


def test_real_time_stands_beside_virtual_time_with_the_same_clock_if_there_is_one(of_the_model):
    fast = replace(of_the_model, hz=1000)
    real = replace(fast, backend="uml")
    host = replace(of_the_model, backend="host", hz=0)
    found = capture_pairs.real_time([fast, of_the_model, real, host])
    assert [(pair.measured, pair.reference) for pair in found] == [(real, fast), (host, of_the_model)]
    (pair,) = capture_pairs.clock_rates([real, fast, of_the_model])
    assert (pair.measured, pair.reference, pair.changed) == (fast, of_the_model, "HZ 1000 beside HZ 250")


@pytest.fixture(scope="module")
def files(of_the_model):
    """The files of the results of a few captures."""
    cubic = replace(of_the_model, name="cubic", experiment=replace(of_the_model.experiment, congestion_control="cubic"))
    large = replace(of_the_model.experiment, packet_size=1448, loss=0.02)
    full = replace(of_the_model, name="full", experiment=large, source=large.flow)
    results = evaluate([of_the_model, cubic, full], {}, CHAINS)
    return results.files(figures(results.scores, lambda measured: capture(FLAT)))


def test_the_files_hold_tables_figures_and_a_report(files):
    assert {name for name in files if name.endswith(".svg")} == {
        "p95-scatter.svg",
        "error-by-utilization.svg",
        "distributions.svg",
        "p95-by-loss-small.svg",
        "p95-by-loss-large.svg",
    }
    rows = list(csv.DictReader(io.StringIO(files["captures.csv"].decode())))
    assert [row["capture"] for row in rows] == ["synthetic", "cubic", "full"]
    record = json.loads(files["results.json"])
    assert record["summary"][0]["cases"] == 3
    assert record["models"].keys() == {model.name for model in CHAINS}
    report = files["report.md"].decode()
    assert "CUBIC beside Reno" in report
    for name in files:
        assert not name.endswith(".svg") or f"]({name})" in report


def test_the_figures_say_what_they_show_and_come_out_the_same_again(files, of_the_model):
    scatter = files["p95-scatter.svg"].decode()
    assert "newreno_2008" in scatter
    assert "RTT below 50 ms" in scatter
    assert "174 B, RTT 20 ms, loss 1 %" in files["distributions.svg"].decode()
    scores = evaluate([of_the_model], {}, CHAINS).scores
    again, once_more = (figures(scores, lambda measured: capture(FLAT)) for _ in range(2))
    assert again == once_more


def test_infinite_and_unknown_numbers_in_tables():
    columns = (Column("a", "a", "error"), Column("b", "b", "time", "low", "high"))
    rows = [
        {"a": math.inf, "b": 0.1, "low": 0.09, "high": 0.12},
        {"a": math.nan, "b": 0.1, "low": 0.1, "high": 0.1},
        {"a": None, "b": math.inf},
    ]
    table = ResultTable("t", "t", columns, rows)
    assert table.to_markdown().splitlines()[2:] == [
        "| never | 100 ms (90 ms … 120 ms) |",
        "| – | 100 ms |",
        "| – | never |",
    ]
    assert table.to_csv().splitlines() == ["a,b,low,high", "inf,0.1,0.09,0.12", ",0.1,0.1,0.1", ",inf,,"]
    assert [row["a"] for row in table.to_records()] == [None, None, None]
    assert table.to_records()[2]["b"] is None


def test_captures_are_found_in_directories_and_broken_ones_are_named(tmp_path):
    write(tmp_path, capture(FLAT, name="here"))
    write(tmp_path / "random-loss", capture(FLAT, name="below"))
    (tmp_path / ".here.part.parquet").write_bytes(b"unfinished")
    (tmp_path / "broken.parquet").write_bytes(b"nonsense")
    write(tmp_path, capture(FLAT[:10], name="short"))
    unknown = capture(FLAT, name="unknown")
    unknown.settings["colour"] = "blue"
    write(tmp_path, unknown)
    broken, progress = [], []
    measured = measure_all(tmp_path, broken.append, lambda *done: progress.append(done))
    assert [(one.collection, one.name) for one in measured] == [("", "here"), ("random-loss", "below")]
    assert progress == [(done, 4) for done in range(4)]
    assert [line.partition(":")[0].rpartition("/")[2] for line in broken] == [
        "broken.parquet",
        "short.parquet",
        "unknown.parquet",
    ]
    assert all("\n" not in line for line in broken)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no capture, that is, no file ending in .parquet"),
        (lambda path: path.write_text("x"), "is no Parquet file"),
    ],
)
def test_a_directory_without_captures_is_refused(tmp_path, prepare, message):
    prepare(tmp_path / "captures")
    with pytest.raises(ValueError, match=message):
        measure_all(tmp_path / "captures", print)


# `tcpdelay validate`


@pytest.fixture
def run_validate(run, monkeypatch):
    """Run `tcpdelay validate` in an empty directory; return its exit status, what it printed, and its errors."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(predictions, "PACKETS", 20_000)
    return partial(run, "validate")


@pytest.fixture
def captures(tmp_path):
    """A directory with two captures, where the command looks for them."""
    directory = tmp_path / "captures"
    rng = np.random.default_rng(3)
    for name in ("one", "two"):
        write(directory / "random-loss", capture(rng.choice([0.010, 0.030], 2000, p=[0.97, 0.03]), name=name))
    return directory


def test_results_go_where_asked_and_the_summary_is_printed(run_validate, captures, tmp_path):
    status, printed, errors = run_validate("--output", "results")
    assert (status, errors) == (0, "tables: results\n")
    assert "newreno_2008-rto" in printed
    assert "2 captures with 4000 packets" in (tmp_path / "results" / "report.md").read_text()
    assert not (tmp_path / "validation-results").exists()


def test_the_default_directories_are_here(run_validate, captures, tmp_path):
    assert run_validate()[0] == 0
    assert {file.name for file in (tmp_path / "validation-results").iterdir()} == {
        "report.md",
        "results.json",
        "captures.csv",
        "scores.csv",
        *(f"{table}.{kind}" for table in ("summary", "errors", "other-settings", "sources") for kind in ("csv", "md")),
    }


def test_the_summary_comes_in_each_format(run_validate, captures):
    _, printed, _ = run_validate("--format", "csv")
    assert [row["cases"] for row in csv.DictReader(io.StringIO(printed))] == ["2"] * len(MODELS)
    _, printed, _ = run_validate("--format", "json")
    assert [row["cases"] for row in json.loads(printed)] == [2] * len(MODELS)
    _, printed, _ = run_validate("--format", "markdown")
    assert printed.startswith("| model | cases |")


def test_captures_in_real_time_are_summarized_if_there_are_no_others(run_validate, tmp_path):
    delays = np.random.default_rng(3).choice([0.010, 0.030], 2000, p=[0.97, 0.03])
    write(tmp_path / "captures", capture([flow_run(delays, backend="uml")]))
    _, printed, _ = run_validate("--format", "json")
    (row,) = json.loads(printed)
    assert (row["model"], row["cases"]) == ("simulator", 1)


def test_a_broken_capture_is_named_and_left_out(run_validate, captures):
    (captures / "broken.parquet").write_bytes(b"nonsense")
    status, _, errors = run_validate()
    assert status == 0
    warning, _ = errors.splitlines()
    assert warning.startswith("warning: captures/broken.parquet: is no Parquet file")


def refused(result):
    status, printed, errors = result
    assert (status, printed) == (2, "")
    return errors


def test_captures_that_are_not_there(run_validate, tmp_path):
    hint = "name a folder or a set to which 'tcpdelay testbed run' wrote captures\n"
    assert refused(run_validate()) == f"tcpdelay validate: --captures: 'captures' does not exist; {hint}"
    assert refused(run_validate("--captures", "nowhere")).endswith(f"'nowhere' does not exist; {hint}")
    (tmp_path / "empty").mkdir()
    assert refused(run_validate("--captures", "empty")).startswith(
        "tcpdelay validate: --captures: 'empty' holds no capture, "
    )


@pytest.mark.parametrize("option", ["--captures", "--output"])
def test_a_name_that_the_system_refuses_is_one_line(run_validate, captures, option):
    long = "x" * 300
    assert refused(run_validate(option, long)) == f"tcpdelay validate: {option}: '{long}': File name too long\n"


def test_nothing_but_broken_captures(run_validate, tmp_path):
    (tmp_path / "broken").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "broken" / f"{name}.parquet").write_bytes(b"nonsense")
    (error,) = refused(run_validate("--captures", "broken")).splitlines()
    said = "tcpdelay validate: --captures: 'broken' holds no capture that can be used among 3 files"
    assert error.startswith(f"{said}, the first of which is a.parquet: is no Parquet file")
    assert error.endswith("; name a folder or a set to which 'tcpdelay testbed run' wrote captures")


def test_an_output_that_is_a_file(run_validate, captures, tmp_path):
    (tmp_path / "results").write_text("mine")
    assert refused(run_validate("--output", "results")) == (
        "tcpdelay validate: --output: 'results' is a file; name a directory\n"
    )
    below = refused(run_validate("--output", "results/below"))
    assert below == "tcpdelay validate: --output: 'results/below': Not a directory\n"
    assert (tmp_path / "results").read_text() == "mine"
