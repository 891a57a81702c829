"""Rows of sweeps and tables, and cells of regions, keep within the time and the memory that their user allows."""

import csv
import io

import numpy as np
import pytest
import xarray as xr

import tcpdelay as td
from tcpdelay.declare import InvalidValueError
from tcpdelay.study.grid import question
from tcpdelay.study.sweep.run import sweep_runs
from tcpdelay.study.sweep.specification import read_sweep
from tcpdelay.study.tables.lattice import EXACT_ROWS, lattice_path

STREAM = td.Flow(1448, 0.005)
RTT, LOSS = 0.05, 0.002
"""A path on which the chain of the stream takes more than 10 ms and 1 MiB, and less than 10 s and 1 GiB."""
LITTLE = [{"max_seconds": 0.01}, {"max_memory": 2**20}]


def swept(evaluate):
    flow = {"packet_size": STREAM.packet_size, "interval": STREAM.interval}
    return {"flow": flow, "grid": {"rtt": [RTT, 0.001], "loss": [LOSS]}, "evaluate": evaluate}


@pytest.mark.parametrize("little", LITTLE)
def test_a_run_of_a_sweep_beyond_its_budget_is_refused_with_the_reason(little):
    found = td.sweep(swept(little))
    assert found.refused.values.ravel().tolist() == [1, 0]
    assert "the chain needs about" in found.refusals.values[1]
    assert np.isnan(found.mean_delay.values[0, 0])
    assert not td.sweep(swept({})).refused.any()


def test_the_budget_of_a_sweep_has_units_and_tells_kept_runs_apart():
    written = read_sweep(swept({"max_seconds": "20 ms", "max_memory": "1 GiB"}))
    requested = sweep_runs(written).requested
    assert (requested.max_seconds, requested.max_memory) == (0.02, 2**30)
    assert written.digest == read_sweep(swept({"max_seconds": 0.02, "max_memory": 2**30})).digest
    others = ({}, {"max_seconds": 0.02}, {"max_seconds": 0.03, "max_memory": 2**30})
    assert len({written.digest, *(read_sweep(swept(each)).digest for each in others)}) == 4


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"max_seconds": 0}, "max_seconds must lie between 0.01 and 1e+06 s, got 0"),
        ({"max_seconds": "1 ms"}, "max_seconds must lie between 0.01 and 1e+06 s, got 0.001"),
        ({"max_seconds": "2"}, "max_seconds: '2' has no unit; write 2ms or 2s"),
        ({"max_seconds": [2]}, "max_seconds must be a number, or text with a unit, got [2]"),
        ({"max_memory": "1kB"}, "max_memory must lie between 1 MiB and 1 PiB (in bytes), got 1000"),
        ({"max_memory": "much"}, "max_memory: 'much' is no size; write 174, 1448B or 1.4kB"),
        ({"max_seconds": 2, "method": "simulation"}, "max_seconds: goes with method = 'chain', not with 'simulation'"),
    ],
)
def test_a_wrong_budget_of_a_sweep_is_refused_in_one_line(evaluate, message):
    with pytest.raises(ValueError, match=r"^specification: ") as caught:
        read_sweep(swept(evaluate))
    assert str(caught.value) == f"specification: [evaluate] {message}"


@pytest.mark.parametrize("little", LITTLE)
@pytest.mark.parametrize("rows", [1, EXACT_ROWS + 1])
def test_a_row_beyond_its_budget_has_the_reason(little, rows):
    table = {"rtt": [RTT] * rows, "loss": [LOSS] * rows}
    found = td.predict_many(table, flow=STREAM, cached=False, **little)
    assert set(found["reason"]) == {"the chain is too large to compute, or does not model this loss or packet size"}
    assert np.isnan(found["p95"]).all()
    assert set(td.predict_many(table, flow=STREAM, cached=False)["reason"]) == {None}


def test_cached_answers_are_those_of_the_same_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = EXACT_ROWS + 1
    table = {"rtt": [RTT] * rows, "loss": [LOSS] * rows}
    known = [np.isfinite(td.predict_many(table, flow=STREAM, **each)["p95"][0]) for each in ({}, *LITTLE, {})]
    assert known == [True, False, False, True]
    budgets = [(), (10,), (10, 2**30), (9,)]
    assert len({lattice_path(question(STREAM, None, None, None, *each)) for each in budgets}) == 3


@pytest.mark.parametrize("little", LITTLE)
def test_a_cell_beyond_its_budget_is_too_large_and_the_edge_there_is_simulated(little):
    cells = td.working_region(STREAM, rtt=[RTT], loss=[LOSS], codec=None, **little)
    assert (cells.accuracy.item(), bool(cells.works.item())) == (3, False)
    edge = {"rtt": [RTT], "loss": [LOSS, 0.5]}
    assert td.working_boundary(STREAM, **edge, **little).simulated.item()
    assert not td.working_boundary(STREAM, **edge).simulated.item()


@pytest.mark.parametrize(("little", "far"), [*((little, True) for little in LITTLE), ({}, False)])
def test_the_values_beside_an_edge_have_its_budget(little, far):
    edge = td.working_boundary(STREAM, rtt=[RTT], loss=[LOSS / 10, 0.5], method="chain", **little)
    # A chain that is too large does not show that its loss is impossible.
    assert (edge.impossible_from.item() > 0.01) == far


def test_a_simulated_cell_and_row_have_no_more_messages_than_their_time_allows(monkeypatch):
    seen = []

    def simulated(*arguments, packets, **options):
        seen.append(packets)
        raise ValueError("seen enough")

    monkeypatch.setattr("tcpdelay.sim.simulation.simulate", simulated)
    speech = td.Speech(174, 0.020)
    for seconds in (10.0, 0.02):
        td.working_region(speech, rtt=[0.1], loss=[0.01], max_seconds=seconds)
        td.predict_many({"rtt": [0.1], "loss": [0.01]}, flow=speech, max_seconds=seconds, cached=False)
    assert seen == [50_000, 50_000, 40_000, 40_000]
    td.working_region(speech, rtt=[0.1], loss=[0.01], max_seconds=0.02, packets=60_000)
    assert seen[-1] == 60_000


@pytest.mark.parametrize(
    "ask",
    [
        lambda **little: td.predict_many({"rtt": [RTT], "loss": [LOSS]}, flow=STREAM, cached=False, **little),
        lambda **little: td.working_region(STREAM, rtt=[RTT], loss=[LOSS], **little),
        lambda **little: td.working_boundary(STREAM, rtt=[RTT], loss=[LOSS], **little),
    ],
)
@pytest.mark.parametrize(("name", "value"), [("max_seconds", 0), ("max_memory", 5)])
def test_a_budget_out_of_range_is_refused_everywhere_alike(ask, name, value):
    with pytest.raises(InvalidValueError, match=rf"^{name} must lie between .*, got {value}$"):
        ask(**{name: value})


@pytest.mark.parametrize("command", [["predict", "--rtt", "50ms", "--loss", "1%"], ["region"], ["batch", "users.csv"]])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-seconds", "1e-3", "must lie between 0.01 and 1e+06 s, got 0.001"),
        ("--max-memory", "5", "must lie between 1 MiB and 1 PiB (in bytes), got 5"),
        ("--max-memory", "much", "'much' is no size; write 174, 1448B or 1.4kB"),
    ],
)
def test_options_have_one_message(run, tmp_path, command, option, value, message):
    (tmp_path / "users.csv").write_text("rtt,loss\n0.05,0.001\n")
    status, _, errors = run(*command, "--app", "voip", option, value)
    assert (status, errors) == (2, f"tcpdelay {command[0]}: {option}: {message}\n")


def test_options_reach_the_rows_and_the_cells(run, tmp_path):
    (tmp_path / "users.csv").write_text(f"rtt,loss\n{RTT},{LOSS}\n")
    stream = ("--packet-size", "1448", "--interval", "5ms")
    status, _, errors = run("batch", "users.csv", *stream, "--no-cache", "--max-memory", "1MiB")
    assert (status, "1 of 1 rows have no prediction: the chain is too large" in errors) == (0, True)
    asked = ("region", *stream, "--rtt", "50ms..60ms", "--loss", "0.2%..0.5%", "--points", "2", "--max-seconds", "0.01")
    status, printed, _ = run(*asked, "--method", "chain", "--format", "csv")
    assert status == 0
    assert [row["works_up_to"] for row in csv.DictReader(io.StringIO(printed))] == ["", ""]
    assert run(*asked, "--method", "chain", "-o", "region.nc")[0] == 0
    assert (xr.open_dataset("region.nc", engine="scipy").accuracy.values[:, 0] == 3).all()
