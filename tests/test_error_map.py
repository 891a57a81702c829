"""The map of the chain's error: random scenarios, their simulations, and what is made of them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path as FilePath
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoring import error_map
from scoring.error_map import (
    SimulatedScenario,
    extend,
    random_scenario,
    read_simulated,
    simulate_scenario,
    write_simulated,
)
from scoring.error_map_scores import (
    LOSS,
    UTILIZATION,
    error_table,
    expected_table,
    groups_table,
    score_map,
    worst_table,
)
from scoring.error_map_scores import error_map as drawn_map
from tcpdelay.accuracy.validity import LINUX_RANGE
from tcpdelay.delays import DelayDistribution
from tcpdelay.study.validation.predictions import Prediction

ROOT = FilePath(__file__).parents[1]
SCENARIOS = [random_scenario(number) for number in range(400)]


def simulated(number, p95=0.2, sustainable=True):
    """Return a made-up simulation: a tenth of the packets take `p95` [s], the others half of that."""
    p95 = p95 if sustainable else np.inf
    times = dict.fromkeys(("p95", "p95_low", "p95_high", "p99", "p99.9"), p95)
    times |= {"p50": p95 / 2, "p90": p95 / 2, "mean": 0.55 * p95, "mean_low": 0.5 * p95, "mean_high": 0.6 * p95}
    times |= {"sender_delay": 0.01, "head_of_line_delay": 0.01}
    return SimulatedScenario(SCENARIOS[number], 1000, sustainable, times)


def answering(p95):
    """Return a chain that says about any scenario that a tenth of its packets take `p95` [s], the others half."""

    def answer(question):
        if p95 is None:
            return Prediction(None)
        if np.isinf(p95):
            return Prediction(DelayDistribution.unsustainable(0.05))
        return Prediction(DelayDistribution(np.array([p95 / 2, p95]), np.array([0.9, 0.1]), 0.05))

    return answer


def test_scenarios_lie_in_the_validated_range_and_off_ties():
    for one in SCENARIOS:
        assert LINUX_RANGE.exceeded_by(one.flow, replace(one.path, rtt=one.path.rtt - 1e-5)) in ([], ["rtt"])
        assert one.utilization < error_map.LARGEST_UTILIZATION
        periods = one.packets_per_rtt
        assert abs(periods - round(periods)) * one.flow.interval > 1e-6
    kinds = {(one.stack.congestion_control, one.stack.hz) for one in SCENARIOS}
    assert kinds == {(control, hz) for control in ("cubic", "reno") for hz in (250, 1000)}
    share = np.mean([one.flow.packet_size <= 1448 for one in SCENARIOS])
    assert 0.65 < share < 0.85


def test_a_round_trip_of_whole_intervals_is_moved():
    assert error_map.off_multiples(0.100, 0.020) == 0.100007
    assert error_map.off_multiples(0.101, 0.020) == 0.101


def test_the_file_is_extended_and_not_simulated_anew(tmp_path, monkeypatch):
    file, seen = tmp_path / "simulated.parquet", []
    monkeypatch.setattr(error_map, "BATCH", 2)

    def interrupted(done, total):
        seen.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend(file, 5, 2000, interrupted)
    kept = read_simulated(file)
    assert [one.scenario.number for one in kept] == [0, 1]
    seen.clear()
    extend(file, 5, 2000, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 5), (3, 5), (4, 5)]
    found = read_simulated(file)
    assert found[:2] == kept
    assert [one.scenario for one in found] == SCENARIOS[:5]
    assert found[4] == simulate_scenario(SCENARIOS[4], 2000)
    assert not list(tmp_path.glob("*.part"))


def test_other_files_are_refused(tmp_path):
    text, other = tmp_path / "text.parquet", tmp_path / "other.parquet"
    text.write_text("no Parquet")
    with pytest.raises(ValueError, match=r"text\.parquet: cannot be read"):
        read_simulated(text)
    pq.write_table(pa.table({"number": [1]}), other)
    with pytest.raises(ValueError, match=r"other\.parquet: holds no simulated scenarios, as there is no column 'rtt'"):
        read_simulated(other)


def test_infinite_delays_survive_the_file(tmp_path):
    file, known = tmp_path / "simulated.parquet", [simulated(0), simulated(1, sustainable=False)]
    write_simulated(file, known[::-1])
    assert read_simulated(file) == known


def test_errors_are_relative_to_the_simulator():
    (score,) = score_map([simulated(0, 0.2)], answering(0.3))
    assert score.error("p95") == pytest.approx(0.5)
    assert score.error("mean") == pytest.approx(0.5)
    assert score.both_carried


@pytest.mark.parametrize(
    ("sustainable", "p95", "error"), [(False, np.inf, 0.0), (False, 0.3, -1.0), (True, np.inf, 1.0)]
)
def test_wrong_calls_count_as_a_hundred_percent(sustainable, p95, error):
    (score,) = score_map([simulated(0, sustainable=sustainable)], answering(p95))
    assert score.error("p95") == score.error("mean") == error
    assert score.call_right == (error == 0)
    table = error_table([score])
    assert (table.quantiles[0.95][0], table.carried[0]) == (error, np.isfinite(p95))


def test_what_the_chain_does_not_solve_is_left_out():
    assert score_map([simulated(0)], answering(None)) == []


def test_a_simulation_that_has_not_settled_is_left_out():
    carried, endless = simulated(0), simulated(1, sustainable=False)
    drifting = replace(carried, times=carried.times | {"p95_low": np.nan, "p95_high": np.nan})
    assert [one.settled for one in (carried, endless, drifting)] == [True, True, False]
    assert len(score_map([carried, endless, drifting], answering(0.25))) == 2


def test_the_table_for_predictions_holds_the_scenario():
    scores = score_map([simulated(number) for number in range(20)], answering(0.25))
    table = error_table(scores)
    for row, scenario in zip(table.features, SCENARIOS[:20], strict=True):
        at = (scenario.path.rtt, scenario.path.loss, scenario.utilization, scenario.packets_per_rtt)
        assert tuple(row) == pytest.approx(at)
    assert table.cubic.tolist() == [one.stack.congestion_control == "cubic" for one in SCENARIOS[:20]]
    assert table.quantiles[0.99] == pytest.approx(np.full(20, 0.25))


def test_groups_count_every_scenario_once_per_grouping():
    known = [simulated(number, 1.0, sustainable=number % 10 != 0) for number in range(100)]
    scores = score_map(known, answering(1.1))
    rows = {row["group"]: row for row in groups_table(scores).rows}
    assert rows["all"]["scenarios"] == 100
    assert (rows["all"]["cases"], rows["all"]["wrongly_carried"], rows["all"]["call_right"]) == (90, 10, 0.9)
    assert rows["all"]["median_p95"] == rows["all"]["p90_p95"] == pytest.approx(0.1)
    for kinds in (("cubic", "reno"), ("packets of one segment", "packets of several segments")):
        assert sum(rows[kind]["scenarios"] for kind in kinds) == 100
    for kind in ("RTT", "loss", "utilization 0", "utilization below 0.1"):
        assert any(name.startswith(kind) for name in rows)
    for prefix in ("RTT ", "loss "):
        assert sum(row["scenarios"] for name, row in rows.items() if name.startswith(prefix)) == 100


def test_the_worst_cases_come_first_and_are_below_the_limit():
    known = [simulated(number, 0.1 + 0.01 * number) for number in range(60)]
    scores = score_map(known, answering(0.3))
    rows = worst_table(scores, count=10).rows
    assert len(rows) == 10
    assert all(row["utilization"] < 0.9 for row in rows)
    assert all(abs(before["error_p95"]) >= abs(after["error_p95"]) for before, after in pairwise(rows))
    eligible = [score for score in scores if score.comparable]
    assert abs(rows[0]["error_p95"]) == max(abs(score.error("p95")) for score in eligible)


def test_expected_errors_are_compared_with_errors_of_other_scenarios():
    scores = score_map([simulated(number, 1.0) for number in range(200)], answering(1.03))
    (row,) = expected_table(scores).rows
    assert (row["expected"], row["cases"], row["within_p90"]) == ("2 % to 5 %", 100, 1.0)
    assert [row[name] for name in ("expected_mean", "mean", "median")] == pytest.approx([0.03] * 3)


def test_the_map_is_an_svg_that_comes_out_the_same_again():
    scores = score_map([simulated(number) for number in range(60)], answering(0.25))
    drawn = drawn_map(scores)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn == drawn_map(scores)
    assert b">25<" in drawn.replace(b"<!-- 25 -->", b"")
    for scale in (UTILIZATION, LOSS):
        assert {scale.cell(score) for score in scores} <= set(range(len(scale.edges) - 1))


def test_simulations_of_the_project_are_those_of_the_random_scenarios():
    known = read_simulated(ROOT / "validation" / "error-map" / "simulated.parquet")
    assert len(known) >= 2000
    assert [one.scenario for one in known[:50]] == SCENARIOS[:50]
