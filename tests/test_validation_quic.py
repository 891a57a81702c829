"""Captures of QUIC: what is simulated for each, and the comparison of stored captures with the simulator."""

from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd
import pytest

import quic
from scoring.capture_comparison import error_in_captures
from tcpdelay.accuracy.errors import QUIC_ERROR
from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.capture.flow_capture import read_capture, read_captures, write_captures
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Stack
from tcpdelay.study.validation.captures import measure
from tcpdelay.study.validation.predictions import SIMULATOR, Predictions, simulated_messages

CAPTURES = FilePath(__file__).parents[1] / "validation" / "quic-captures" / "voice.parquet"
STREAM = "{}-stream-174B-20ms-rtt60ms-loss3pct-reno-hz250"


@pytest.fixture(scope="module")
def captured():
    """The same flow over both implementations."""
    return {name: measure(read_capture(CAPTURES, STREAM.format(name)), "voice") for name in ("aioquic", "quic-go")}


def test_the_question_is_the_implementation_and_the_delivery_of_the_capture(captured):
    own = captured["quic-go"]
    assert simulated_messages(own).stack == Stack.quic("quic-go", delivery="stream")
    assert simulated_messages(own).path == Path(0.060, 0.03)
    grouped = replace(own, experiment=replace(own.experiment, delivery="stream_per_group", group=5))
    assert simulated_messages(grouped).stack == Stack.quic("quic-go", delivery="stream_per_group", group=5)
    cubic = replace(captured["aioquic"].experiment, congestion_control="cubic")
    assert simulated_messages(replace(captured["aioquic"], experiment=cubic)).stack == Stack.quic("aioquic", "cubic")


def test_the_simulator_agrees_with_the_captures_and_each_with_its_own_implementation(captured):
    predictions = Predictions((SIMULATOR,))
    for name, other in (("aioquic", "quic-go"), ("quic-go", "aioquic")):
        found = quic.row(captured[name], predictions, captured[other])
        for quantity in ("p50", "p95", "p99", "mean"):
            assert abs(found[f"{quantity}_beyond"]) < 0.005
            assert found[f"{quantity}_low"] <= found[quantity] <= found[f"{quantity}_high"]
        assert found["lost"] == found["simulator_lost"] == 0
    slower = replace(captured["aioquic"], mean=captured["aioquic"].mean._replace(value=0.2, low=0.19, high=0.21))
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
    write_captures(tmp_path / "voice.parquet", read_captures(CAPTURES, STREAM.format("*")))
    monkeypatch.setattr("sys.argv", ["quic.py", "--captures", str(tmp_path), "--output", str(tmp_path)])
    quic.main()
    table = pd.read_csv(tmp_path / "quic.csv")
    assert sorted(table["implementation"]) == ["aioquic", "quic-go"]
    assert table["p95_other"].notna().all()
    assert "| voice    | aioquic" in (tmp_path / "quic.md").read_text()
