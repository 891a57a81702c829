"""Scenarios that need more memory than a chain may take: the method "auto" simulates them, and says why."""

import json

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.budget import TooLargeError
from tcpdelay.models.predict import predict
from tcpdelay.quality.voice import CallTarget
from tcpdelay.report.region_charts import Edge, edge_table
from tcpdelay.scenario.scenario import Scenario

CALL, PATH = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02)
REASON = "the chain needs about"


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr("tcpdelay.chain.delay_model.LARGEST_MEMORY", 1)


@pytest.fixture
def little_memory(monkeypatch):
    """Let the chain of a call fit with a round-trip time of 80 ms, and not with 100 ms."""
    monkeypatch.setattr("tcpdelay.chain.delay_model.LARGEST_MEMORY", 100_000)


def test_a_prediction_says_why_it_is_simulated(no_memory, run):
    answer = predict(Scenario(CALL, PATH))
    assert (answer.method, answer.simulated_because[: len(REASON)]) == ("simulation", REASON)
    status, printed, errors = run("predict", "--rtt", "100ms", "--loss", "2%", "--app", "voip")
    assert (status, errors) == (0, "")
    assert f"simulation: {REASON}" in printed
    with pytest.raises(TooLargeError):
        td.predict_delay(CALL, PATH, method="chain")


def test_a_report_says_why_it_is_simulated(no_memory):
    found = td.guideline("voip", PATH)
    assert found.verdict == "works"
    assert "so all figures are simulated" in found.to_markdown()
    assert json.loads(found.to_json())["simulated_because"].startswith(REASON)
    with pytest.raises(TooLargeError):
        td.guideline("voip", PATH, method="chain")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: td.largest_loss(CALL, PATH),
        lambda: td.sensitivities(CALL, PATH),
        lambda: td.playout_for_late_fraction(CALL, PATH, None, 0.02),
        lambda: td.best_split(CALL, PATH),
        lambda: td.best_connections(CALL, PATH, target=CallTarget()),
    ],
)
def test_questions_say_why_they_are_simulated(no_memory, ask):
    found = ask()
    assert found.method == "simulation"
    assert any(REASON in note for note in found.notes)


def test_an_edge_beyond_the_largest_chain_is_simulated(little_memory):
    alone = td.largest_rtt(CALL, PATH, method="chain")
    assert alone.limited_by == "size of the chain"
    found = td.largest_rtt(CALL, PATH)
    assert (found.method, found.limited_by) == ("simulation", "delay")
    assert found.value > 1.1 * alone.value
    assert any(REASON in note for note in found.notes)


def test_points_of_a_region_beyond_the_largest_chain_are_simulated(little_memory):
    found = td.working_boundary(CALL, rtt=[0.08, 0.12], loss=np.geomspace(0.001, 0.04, 8), limit=0.1)
    assert found.simulated.tolist() == [False, True]
    assert 0.001 < found.works_up_to[1] < found.works_up_to[0] < 0.04
    table = edge_table([Edge("voip", "linux", found, (None, None))])
    assert [row["method"] for row in table.to_records()] == ["chain", "simulation"]
    assert "Where the chain is too large, the edge is simulated." in table.to_text()
