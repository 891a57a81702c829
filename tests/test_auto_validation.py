"""The comparison of what "auto" answers with captures: groups, and the coverage of the stated errors."""

from pathlib import Path as FilePath

import numpy as np
import pandas as pd
import pytest

import auto
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.scenario.path import Path
from tcpdelay.study.validation.captures import measure
from tcpdelay.study.validation.predictions import captured_scenario

CAPTURES = FilePath(__file__).parents[1] / "validation" / "captures"


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
