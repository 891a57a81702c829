"""The validated range and the known error that stand beside every prediction."""

import csv
import runpy
from pathlib import Path as FilePath

import pytest

from tcpdelay import Flow, Path, Stack, ValidityWarning, predict_delay
from tcpdelay.validity import PUBLISHED_RANGE, validated_range

COMPARISON = FilePath(__file__).parents[1] / "validation" / "published_droptail.py"


@pytest.fixture(scope="module")
def comparison():
    module = runpy.run_path(str(COMPARISON), run_name="published_droptail")
    return module, module["comparisons"]()


def test_the_distance_to_the_published_measurements_is_the_documented_one(comparison):
    module, rows = comparison
    assert len(rows) == 15
    assert module["median_error"](rows) == pytest.approx(1.09, abs=0.005)


def test_byte_queues_at_low_loss_give_the_published_model_column(comparison):
    """Where every published assumption is printed, our chain prints the published figure to its last digit."""
    _, rows = comparison
    low_loss = [row for row in rows if row.queue == "byte" and row.loss < 0.01]
    assert len(low_loss) == 3
    for row in low_loss:
        assert row.ours_implied == pytest.approx(row.published_model, abs=0.0005)


def test_predictions_outside_the_range_warn_and_name_it():
    with pytest.warns(ValidityWarning, match=r"rtt 0.5 s lies outside the validated range of 0.02 to 0.3 s"):
        predict_delay(rtt=0.5, loss=0.02, packet_size=174, interval=0.020)
    predict_delay(rtt=0.3, loss=0.1, packet_size=1448, interval=0.030)


def test_every_input_is_checked():
    beyond = PUBLISHED_RANGE.exceeded_by(Flow(15_000, 0.1), Path(rtt=0.001, loss=0.5))
    assert [sentence.split()[0] for sentence in beyond] == ["rtt", "loss", "packet_size", "interval"]


def test_unknown_stacks_have_no_range():
    with pytest.raises(ValueError, match="stack must come from one of the profiles"):
        validated_range(Stack())


def test_the_known_error_is_the_one_that_was_measured():
    summary = FilePath(__file__).parents[1] / "validation" / "results" / "summary.csv"
    with summary.open(newline="") as lines:
        measured = {row["model"]: row for row in csv.DictReader(lines)}["newreno_2008"]
    assert f"{float(measured['median_p95']):.2f}" == f"{PUBLISHED_RANGE.known_error:.2f}"
    assert f"{measured['cases']} captures" in PUBLISHED_RANGE.known_error_basis
