"""Captures beside what is predicted for them: simulations, repeats, ablation, messages, QUIC, and `auto`."""

import csv
import json
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd
import pytest

import auto
import quic
from scoring import simulator_tables
from scoring.capture_comparison import error_in_captures
from scoring.delay_figures import delays_after_loss, recovery
from scoring.results import evaluate, figures
from scoring.simulator_tables import not_simulated_table
from synthetic_captures import capture, experiment, flow_run, write
from tcpdelay.accuracy.errors import QUIC_ERROR
from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.capture.flow_capture import FlowCapture, WrittenMessages, read_capture, read_captures, write_captures
from tcpdelay.declare import InvalidValueError
from tcpdelay.report.validation import validation_results
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.records import Rules
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation import predictions
from tcpdelay.study.validation.captures import measure, measure_all
from tcpdelay.study.validation.predictions import (
    LINUX,
    SIMULATOR,
    Prediction,
    Predictions,
    Score,
    captured_scenario,
    not_simulated,
    score,
    simulate_flow,
    simulated_flow,
    simulated_messages,
    simulated_runs,
)
from tcpdelay.study.validation.predictions import PACKETS as SIMULATED_PACKETS
from tcpdelay.testbed.experiment import Experiment

# The simulator asked about captures, the pattern after a loss, repeats and ablation

PACKETS = 30_000
FLOW, PATH = Flow(174, 0.020, write_jitter=0), Path(0.020, 0.03)
ROOT = FilePath(__file__).parents[1]
RESULTS = ROOT / "validation" / "results"


def simulated_capture(seed=1, **settings):
    """Return a capture of simulated delays."""
    delays = simulate(
        FLOW, PATH, Stack.linux(congestion_control="reno"), packets=PACKETS, seed=seed, exact_ties=True, trace=True
    ).read_after
    made = experiment(PACKETS, loss=0.03, duration=PACKETS * FLOW.interval, **settings)
    return capture([flow_run(delays, spacing=FLOW.interval)], made)


@pytest.fixture(scope="module")
def made():
    return simulated_capture()


@pytest.fixture(scope="module")
def measured(made):
    return measure(made)


@pytest.fixture
def shorter(monkeypatch):
    monkeypatch.setattr(predictions, "PACKETS", 100_000)
    monkeypatch.setattr(simulator_tables, "REPEATS", 5)


@pytest.mark.usefixtures("shorter")
def test_a_capture_of_simulated_delays_scores_about_zero(made, measured):
    (own,) = score([measured], Predictions([SIMULATOR]))
    for quantity in ("p50", "p95"):
        assert own.error(quantity) == pytest.approx(0, abs=1e-4)
    assert own.error("mean") == pytest.approx(0, abs=0.05)
    assert own.largest_gap < 0.01
    assert own.mean_distance < 0.06
    assert own.sustainable_call_right
    after_loss = recovery(made, measured)
    np.testing.assert_allclose(after_loss.simulated[1, :4], after_loss.measured[1, :4], atol=1e-4)


@pytest.mark.usefixtures("shorter")
def test_predictions_are_the_same_again_and_differ_by_capture(measured):
    question = simulated_flow(measured)
    one, again = simulate_flow(question), simulate_flow(question)
    np.testing.assert_array_equal(one.values, again.values)
    assert one.mean == again.mean
    other = simulated_flow(replace(measured, name="other"))
    assert other.seeds != question.seeds
    assert simulate_flow(other).mean != one.mean


@pytest.mark.usefixtures("shorter")
def test_the_question_is_the_captures(measured):
    settings = {"delayed_ack": True, "slow_start_after_idle": False, "recovery": 0, "early_retrans": 0}
    path = {"loss_burst": 3.0, "ack_loss": 0.02}
    changed = replace(measured, hz=1000, experiment=replace(measured.experiment, **settings, **path))
    question = simulated_flow(changed)
    assert question.stack == Stack.linux("reno", True, window_validation=False, hz=1000, kernel="6.1")
    assert question.path == Path(0.020, 0.03, loss_burst=3.0, ack_loss=0.02)
    assert question.rules == Rules(rack=False, tail_loss_probe=False)
    assert sum(question.packets) == 100_000
    newer = simulated_flow(replace(changed, kernel="7.3.4"))
    assert newer.stack.kernel == "7.3"
    # Since 6.17 the sysctl tcp_recovery = 0 no longer switches RACK off.
    assert newer.rules == Rules(tail_loss_probe=False)
    real = simulated_flow(replace(measured, backend="uml", rtt=0.0203, phases=(None,)))
    assert real.path.rtt == 0.0203


@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sack": False}, "recovery without SACK"),
        ({"nodelay": False}, "Nagle's algorithm"),
        ({"pieces": 2}, "writes at the same instant"),
        ({"connections": 2, "scheduling": "intelligent"}, "connections chosen by their state"),
        ({"congestion_control": "vegas"}, "congestion control vegas"),
        ({"congestion_control": "bbr"}, ""),
        ({"application": "udp"}, "no TCP"),
        ({"bottleneck_rate": 1e6, "queue_packets": 10}, "a queue shared with other flows"),
        ({"recovery": 5}, "a setting of RACK between on and off"),
        ({"connections": 2}, ""),
        ({"loss_burst": 2.0, "ack_loss": 0.1}, ""),
    ],
)
def test_what_is_not_simulated_is_named(measured, settings, reason):
    own = replace(measured, experiment=replace(measured.experiment, **settings))
    assert not_simulated(own.experiment) == reason
    assert (simulated_flow(own) is None) == bool(reason)
    assert [row["reason"] for row in not_simulated_table([own]).rows] == ([reason] if reason else [])


@pytest.mark.usefixtures("shorter")
def test_packets_over_several_connections_are_read_in_order(measured):
    question = replace(simulated_flow(measured), connections=2)
    spread = simulate_flow(question)
    (delays,) = simulated_runs(question)
    read = np.arange(delays.size) * FLOW.interval + delays
    assert (np.diff(read) >= -1e-9).all()
    alone = simulate_flow(replace(question, connections=1))
    assert spread.late_fraction(0.011) != pytest.approx(alone.late_fraction(0.011), rel=0.01)


@pytest.mark.usefixtures("shorter")
def test_a_flow_that_no_run_carries_is_unsustainable(measured):
    question = simulated_flow(measured)
    delays = simulate_flow(replace(question, flow=Flow(1448, 0.020), path=Path(0.300, 0.10)))
    assert not delays.sustainable


@pytest.mark.usefixtures("shorter")
def test_the_pattern_after_a_loss_needs_losses_that_are_alone():
    delays = np.full(60_000, 0.010)
    delays[100::200], delays[101::200] = 0.080, 0.060
    pattern = delays_after_loss([delays], FLOW, PATH)
    assert pattern.shape == (3, 12)
    assert pattern[1, :3].tolist() == [0.080, 0.060, 0.010]
    # A loss that comes every 10 packets is never alone, and few are too few.
    delays[::10] = 0.080
    assert delays_after_loss([delays], FLOW, PATH).shape == (3, 0)
    assert delays_after_loss([delays[:50]], FLOW, PATH).shape == (3, 0)


@pytest.mark.usefixtures("shorter")
def test_repeats_enclose_a_simulated_capture_and_not_another(measured):
    table = simulator_tables.repeats_table("r", "Repeats", [measured])
    (row,) = table.rows
    assert row["between_p50"]
    assert row["between_p95"]
    slower = replace(measured, p95=measured.p95._replace(value=0.5))
    (row,) = simulator_tables.repeats_table("r", "Repeats", [slower]).rows
    assert not row["between_p95"]
    assert "3 are between" in simulator_tables.repeats_table("r", "Repeats", [slower]).note


@pytest.mark.usefixtures("shorter")
def test_a_range_by_chance_encloses_a_simulation_of_this_length_and_not_another_path():
    scenario = Scenario(Flow(174, 0.020), Path(0.100, 0.02), Stack.linux())
    found = predictions.range_by_chance(scenario, 6000, (0.016, 0.024), 0.95)
    own = simulate(scenario.source, scenario.path, scenario.stack, packets=6000, seed=77).quantile(0.95)
    other = simulate(scenario.source, Path(0.140, 0.02), scenario.stack, packets=6000, seed=77).quantile(0.95)
    assert found.low < own < found.high < other
    assert found.low < found.value < found.high
    assert predictions.range_by_chance(scenario, 999, (0.016, 0.024), 0.95) is None


@pytest.mark.usefixtures("shorter")
def test_the_farthest_captures_are_those_beyond_their_intervals(measured):
    near = Score(measured, SIMULATOR.name, Prediction(measured.distribution))
    off = replace(measured, name="off", p95=measured.p95._replace(value=0.5, low=0.4, high=0.6))
    assert [one.name for one in simulator_tables.farthest([near, Score(off, SIMULATOR.name, near.prediction)])] == [
        "off"
    ]


@pytest.mark.usefixtures("shorter")
def test_leaving_a_rule_out_shows_in_the_errors(measured, monkeypatch):
    monkeypatch.setattr(simulator_tables, "variants", lambda: {"all rules": Rules(), "all but rack": Rules(rack=False)})
    every, without = simulator_tables.ablation_table([measured]).rows
    assert every["cases"] == every["few_cases"] == 1
    assert every["mean_mean"] < without["mean_mean"]


@pytest.mark.usefixtures("shorter")
def test_the_figure_of_recoveries_is_drawn(made, measured):
    cubic = replace(measured.experiment, congestion_control="cubic", loss=0.01)
    scores = evaluate([replace(measured, experiment=cubic)], {}, [SIMULATOR]).scores
    caption, content = figures(scores, lambda capture: made)["after-loss.svg"]
    assert caption.startswith("Delay of the packets after a single loss")
    drawn = content.decode()
    assert "packets after the lost one" in drawn
    assert "174 B, RTT 20 ms, loss 1 %" in drawn


def committed(name):
    with (RESULTS / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.usefixtures("shorter")
def test_the_committed_results_keep_what_the_page_says():
    row = next(row for row in committed("summary") if row["model"] == SIMULATOR.name)
    assert float(row["median_p95"]) < 0.005
    assert float(row["mean_p95"]) < 0.03
    assert float(row["mean_p95_beyond_interval"]) < 0.005
    assert float(row["median_p99"]) < 0.03
    assert float(row["inside_mean"]) > 0.95
    assert abs(float(row["average_standard_errors"])) < 0.2
    assert float(row["spread_standard_errors"]) < 1.4
    assert float(row["sustainable_right"]) > 0.98
    for name in ("bursts", "farthest"):
        rows = committed(name)
        between = [row[f"between_{quantity}"] == "True" for row in rows for quantity in ("p50", "p95", "p99", "mean")]
        assert sum(between) / len(between) > 0.9


@pytest.mark.usefixtures("shorter")
def test_the_committed_ablation_names_every_rule():
    rows = {row["rules"]: row for row in committed("ablation")}
    assert rows.keys() == simulator_tables.variants().keys()
    every = rows.pop("all rules")
    assert float(every["mean_mean"]) <= min(float(row["mean_mean"]) for row in rows.values()) * 1.1
    few = {name: float(row["few_median_p95"]) for name, row in rows.items()}
    assert max(few, key=few.__getitem__) == "all but rack"
    assert few["all but rack"] > 0.3
    for name in ("all but ticks", "all but f_rto", "all but collapsing"):
        assert float(rows[name]["median_p95"]) < 0.01
    carrying = {name: int(row["never"]) for name, row in rows.items()}
    assert [name for name, never in carrying.items() if never] == ["all but coalescing"]


@pytest.mark.usefixtures("shorter")
def test_the_page_says_what_was_done():
    page = (ROOT / "docs" / "appendix" / "validation.md").read_text()
    assert f"{SIMULATED_PACKETS:,} packets per capture".replace(",", " ") in page
    assert simulator_tables.FARTHEST == len(committed("farthest")) == 12
    assert "the twelve captures" in page
    quiet = [row for row in committed("captures") if row["backend"] == "uml" and float(row["loss"]) == 0]
    assert quiet
    assert all(float(row["p95"]) > float(row["rtt"]) / 2 + 0.001 for row in quiet)


# Captures of messages: their figures by kind, and the models' predictions beside them

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


def capture_of_messages(experiment, messages, delays, name="film"):
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
    return capture_of_messages(VIDEO, found.messages, found.read_after)


@pytest.fixture(scope="module")
def measured_film(film):
    return measure(film, "films")


@pytest.fixture(scope="module")
def scores(measured_film):
    return score([measured_film], Predictions())


def test_the_kinds_of_a_capture_are_measured_apart(film, measured_film):
    assert list(measured_film.by_kind) == ["other frame", "key frame"]
    assert [part.words for part in (measured_film, *measured_film.by_kind.values())] == [
        "video",
        "video, other frame",
        "video, key frame",
    ]
    counted = film.delays_by_kind(10.0)["key frame"][0]
    key = measured_film.by_kind["key frame"]
    assert key.mean.value == pytest.approx(counted.mean(), rel=0.01)
    assert key.p95.value == pytest.approx(np.quantile(counted, 0.95), rel=0.01)
    assert key.mean.value > measured_film.mean.value
    assert measured_film.sustainable


def test_the_utilization_counts_the_mean_bitrate(measured_film):
    # f a RTT sqrt(2 p) / MSS, the square-root law with two segments per ACK, here within a tenth.
    assert measured_film.utilization == pytest.approx(1e5 * 0.060 * np.sqrt(2 * 0.005 * 2 / 3) / 1448, rel=0.15)


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


def test_the_tables_have_a_row_for_each_kind(measured_film, scores):
    results = {table.name: table for table in validation_results([measured_film], scores).tables}
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
    measured = measure(capture_of_messages(experiment, messages, np.full(2000, 0.03)))
    assert isinstance(measured.source, Trace)
    assert (measured.source.period, measured.source.sizes.tolist()) == (4.0, [100, 100, 100, 3000])
    assert set(measured.source.kinds) == {"small", "large"}
    assert list(measured.by_kind) == ["small", "large"]


def test_messages_have_no_constant_rate(measured_film):
    assert simulated_flow(measured_film) is None
    with pytest.raises(InvalidValueError, match="flow"):
        _ = measured_film.flow


def test_captures_of_messages_are_found_beside_others(tmp_path, film):
    write(tmp_path / "films", film)
    (found,) = measure_all(tmp_path, pytest.fail)
    assert (found.name, found.collection, len(found.by_kind)) == ("film", "films", 2)


# Captures of QUIC: what is simulated for each, and the comparison of stored captures with the simulator

QUIC_CAPTURES = ROOT / "validation" / "quic-captures" / "voice.parquet"
STREAM = "{}-stream-174B-20ms-rtt60ms-loss3pct-reno-hz250"


@pytest.fixture(scope="module")
def captured_quic():
    """The same flow over both implementations."""
    return {name: measure(read_capture(QUIC_CAPTURES, STREAM.format(name)), "voice") for name in ("aioquic", "quic-go")}


def test_the_question_is_the_implementation_and_the_delivery_of_the_capture(captured_quic):
    own = captured_quic["quic-go"]
    assert simulated_messages(own).stack == Stack.quic("quic-go", delivery="stream")
    assert simulated_messages(own).path == Path(0.060, 0.03)
    grouped = replace(own, experiment=replace(own.experiment, delivery="stream_per_group", group=5))
    assert simulated_messages(grouped).stack == Stack.quic("quic-go", delivery="stream_per_group", group=5)
    cubic = replace(captured_quic["aioquic"].experiment, congestion_control="cubic")
    assert simulated_messages(replace(captured_quic["aioquic"], experiment=cubic)).stack == Stack.quic(
        "aioquic", "cubic"
    )


def test_the_simulator_agrees_with_the_captures_and_each_with_its_own_implementation(captured_quic):
    predictions = Predictions((SIMULATOR,))
    for name, other in (("aioquic", "quic-go"), ("quic-go", "aioquic")):
        found = quic.row(captured_quic[name], predictions, captured_quic[other])
        for quantity in ("p50", "p95", "p99", "mean"):
            assert abs(found[f"{quantity}_beyond"]) < 0.005
            assert found[f"{quantity}_low"] <= found[quantity] <= found[f"{quantity}_high"]
        assert found["lost"] == found["simulator_lost"] == 0
    slower = replace(
        captured_quic["aioquic"], mean=captured_quic["aioquic"].mean._replace(value=0.2, low=0.19, high=0.21)
    )
    assert quic.row(slower, predictions, None)["mean_beyond"] < -0.7
    assert np.isnan(quic.row(slower, predictions, None)["mean_other"])


def test_the_stated_error_is_that_of_the_captures():
    table = pd.read_csv(quic.RESULTS / "quic.csv")
    own = table[table["utilization"] < LARGEST_SUSTAINABLE_UTILIZATION]
    assert len(own) == QUIC_ERROR.cases
    for name, stated in (("p95", QUIC_ERROR), ("mean", QUIC_ERROR.mean_delay)):
        found = error_in_captures(own[f"simulator_{name}"], own, name)
        for statistic, value in vars(found).items():
            assert value == pytest.approx(getattr(stated, statistic), abs=1e-4)


def test_the_script_writes_a_table_and_a_page(tmp_path, monkeypatch):
    write_captures(tmp_path / "voice.parquet", read_captures(QUIC_CAPTURES, STREAM.format("*")))
    monkeypatch.setattr("sys.argv", ["quic.py", "--captures", str(tmp_path), "--output", str(tmp_path)])
    quic.main()
    table = pd.read_csv(tmp_path / "quic.csv")
    assert sorted(table["implementation"]) == ["aioquic", "quic-go"]
    assert table["p95_other"].notna().all()
    assert "| voice    | aioquic" in (tmp_path / "quic.md").read_text()


# What `auto` answers beside captures: groups, and the coverage of the stated errors

CAPTURES = ROOT / "validation" / "captures"


def rows(stated, model=0.02, sampling=0.01, count=2000):
    """Return captures with nine of ten errors of the model within `model`, and with sampling errors of their own."""
    random = np.random.default_rng(1)
    table = pd.DataFrame({"case": [f"case {number}" for number in range(count)]})
    table = table.assign(carried=True, utilization=0.2, one_way=0.05, method="simulation", path="random losses")
    for name in auto.QUANTITIES:
        errors = random.normal(0, np.hypot(model / auto.NINE_OF_TEN, sampling), count)
        table = table.assign(
            **{
                name: 0.1,
                f"{name}_error": errors,
                f"{name}_beyond": 0.0,
                f"{name}_sampling": sampling,
                f"{name}_stated": stated,
            }
        )
    return table


@pytest.mark.parametrize(("stated", "side"), [(0.02, 0), (0.0, -1), (0.2, 1)])
def test_the_sampling_error_of_captures_does_not_count_for_the_answer(stated, side):
    groups = auto.grouped(auto.counted(rows(stated)), ["load"])
    assert groups["load"].tolist() == ["0 to 0.33"]
    assert auto.outside(groups).tolist() == [side]
    if side == 0:
        assert groups["p95_coverage"][0] == pytest.approx(0.9, abs=0.02)


def test_captures_of_one_case_count_once_and_trivial_ones_do_not_count():
    table = pd.concat([rows(0.2, count=10)] * 3 + [rows(0.2, count=5).assign(p95=0.0501, case="trivial")])
    (found,) = auto.grouped(auto.counted(table), ["method"]).to_dict("records")
    assert (found["captures"], found["p95_cases"], found["mean_cases"]) == (35, 10, 11)
    assert found["p95_high"] == 1


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (Path(0.1, 0.02), "random losses"),
        (Path(0.1, 0.02, jitter=0.01), "jitter below the interval"),
        (Path(0.1, 0.02, jitter=0.03), "jitter above the interval"),
        (Path(0.1, 0.02, jitter=0.03, in_order=True), "jitter in order"),
        (Path(0.1, 0.02, ack_loss=0.1), "lost ACKs"),
        (Path(0.1, 0.02, loss_burst=3), "loss bursts"),
    ],
)
def test_paths_are_grouped_by_what_they_do(path, kind):
    assert auto.path_kind(path, 0.020) == kind


def test_a_capture_is_asked_about_as_its_user_would_ask():
    def asked(place, name):
        return captured_scenario(measure(read_capture(CAPTURES / place, name)))

    routed = asked("drop-tail.parquet", "cbr-1448B-20ms-rtt100ms-loss0pct-cubic-flows5-rate3e+07-queue100p-bulk5-hz250")
    assert routed.path.loss_pattern == "random"
    assert routed.path.rtt > 0.1 > routed.path.loss > 0
    assert asked("stack-switches.parquet", "cbr-174B-20ms-rtt300ms-loss2pct-cubic-sack-off-hz1000") is None
    assert (
        asked("stack-switches.parquet", "cbr-174B-20ms-rtt300ms-loss2pct-bbr-hz1000").stack.congestion_control == "bbr"
    )


def test_an_answer_that_is_far_off_is_repeated_at_the_length_of_the_capture():
    # A message every 500 ms, and a loss of 5 %: p95 is the one-way delay or a repair, each in half of all captures.
    name = "quic-go-stream-per-message-174B-500ms-rtt20ms-loss5pct-reno-hz250"
    measured = measure(read_capture(CAPTURES.parent / "quic-captures" / "sparse.parquet", name))
    row = auto.compared("quic-captures/sparse.parquet", measured, captured_scenario(measured))
    assert row["p95_beyond"] > 4
    assert row["p95_lowest"] == pytest.approx(0.010, abs=1e-4)
    assert row["p95_highest"] == pytest.approx(0.057, abs=1e-3)
    table = pd.DataFrame([row, row | {"p95_lowest": 0.05}, row | {"p95_lowest": np.nan}])
    said = auto.by_chance(table)
    assert "2 simulated answers are more than 2 % beyond" in said[1]
    assert "of these in 1: there it is chance" in said[1]
    assert auto.by_chance(table[2:]) == []
