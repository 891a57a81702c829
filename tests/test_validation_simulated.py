"""The simulator asked about captures, the pattern after a loss, repeats and ablation."""

import csv
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest

from scoring import simulator_tables
from scoring.delay_figures import delays_after_loss, recovery
from scoring.results import evaluate, figures
from scoring.simulator_tables import not_simulated_table
from synthetic_captures import capture, experiment, flow_run
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.records import Rules
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation import predictions
from tcpdelay.study.validation.captures import measure
from tcpdelay.study.validation.predictions import PACKETS as SIMULATED_PACKETS
from tcpdelay.study.validation.predictions import (
    SIMULATOR,
    Prediction,
    Predictions,
    Score,
    not_simulated,
    score,
    simulate_flow,
    simulated_flow,
    simulated_runs,
)

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


@pytest.fixture(autouse=True)
def shorter(monkeypatch):
    monkeypatch.setattr(predictions, "PACKETS", 100_000)
    monkeypatch.setattr(simulator_tables, "REPEATS", 5)


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


def test_predictions_are_the_same_again_and_differ_by_capture(measured):
    question = simulated_flow(measured)
    one, again = simulate_flow(question), simulate_flow(question)
    np.testing.assert_array_equal(one.values, again.values)
    assert one.mean == again.mean
    other = simulated_flow(replace(measured, name="other"))
    assert other.seeds != question.seeds
    assert simulate_flow(other).mean != one.mean


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


def test_packets_over_several_connections_are_read_in_order(measured):
    question = replace(simulated_flow(measured), connections=2)
    spread = simulate_flow(question)
    (delays,) = simulated_runs(question)
    read = np.arange(delays.size) * FLOW.interval + delays
    assert (np.diff(read) >= -1e-9).all()
    alone = simulate_flow(replace(question, connections=1))
    assert spread.late_fraction(0.011) != pytest.approx(alone.late_fraction(0.011), rel=0.01)


def test_a_flow_that_no_run_carries_is_unsustainable(measured):
    question = simulated_flow(measured)
    delays = simulate_flow(replace(question, flow=Flow(1448, 0.020), path=Path(0.300, 0.10)))
    assert not delays.sustainable


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


def test_repeats_enclose_a_simulated_capture_and_not_another(measured):
    table = simulator_tables.repeats_table("r", "Repeats", [measured])
    (row,) = table.rows
    assert row["between_p50"]
    assert row["between_p95"]
    slower = replace(measured, p95=measured.p95._replace(value=0.5))
    (row,) = simulator_tables.repeats_table("r", "Repeats", [slower]).rows
    assert not row["between_p95"]
    assert "3 are between" in simulator_tables.repeats_table("r", "Repeats", [slower]).note


def test_a_range_by_chance_encloses_a_simulation_of_this_length_and_not_another_path():
    scenario = Scenario(Flow(174, 0.020), Path(0.100, 0.02), Stack.linux())
    found = predictions.range_by_chance(scenario, 6000, (0.016, 0.024), 0.95)
    own = simulate(scenario.source, scenario.path, scenario.stack, packets=6000, seed=77).quantile(0.95)
    other = simulate(scenario.source, Path(0.140, 0.02), scenario.stack, packets=6000, seed=77).quantile(0.95)
    assert found.low < own < found.high < other
    assert found.low < found.value < found.high
    assert predictions.range_by_chance(scenario, 999, (0.016, 0.024), 0.95) is None


def test_the_farthest_captures_are_those_beyond_their_intervals(measured):
    near = Score(measured, SIMULATOR.name, Prediction(measured.distribution))
    off = replace(measured, name="off", p95=measured.p95._replace(value=0.5, low=0.4, high=0.6))
    assert [one.name for one in simulator_tables.farthest([near, Score(off, SIMULATOR.name, near.prediction)])] == [
        "off"
    ]


def test_leaving_a_rule_out_shows_in_the_errors(measured, monkeypatch):
    monkeypatch.setattr(simulator_tables, "variants", lambda: {"all rules": Rules(), "all but rack": Rules(rack=False)})
    every, without = simulator_tables.ablation_table([measured]).rows
    assert every["cases"] == every["few_cases"] == 1
    assert every["mean_mean"] < without["mean_mean"]


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


def test_the_page_says_what_was_done():
    page = (ROOT / "docs" / "appendix" / "validation.md").read_text()
    assert f"{SIMULATED_PACKETS:,} packets per capture".replace(",", " ") in page
    assert simulator_tables.FARTHEST == len(committed("farthest")) == 12
    assert "the twelve captures" in page
    quiet = [row for row in committed("captures") if row["backend"] == "uml" and float(row["loss"]) == 0]
    assert quiet
    assert all(float(row["p95"]) > float(row["rtt"]) / 2 + 0.001 for row in quiet)
