"""`tcpdelay region` and its charts."""

import csv
import io
import json
import re
import shlex
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import tcpdelay as td
from cli_process import process
from tcpdelay.declare import ColumnUnitWarning
from tcpdelay.quality.voice import voice_quality
from tcpdelay.report.region_charts import mark_measured, plot_boundaries, plot_region
from tcpdelay.study.region import read_measured

SMALL = ("region", "--app", "voip", "--rtt", "50ms..200ms", "--loss", "0.1%..10%", "--points", "3")


def test_every_example_of_the_help_runs_as_written(run, tmp_path):
    with process("region", "--help", stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert (started.returncode, errors) == (0, "")
    assert max(map(len, printed.splitlines())) <= 80
    assert "--ping" not in printed
    lines = [shlex.split(line)[1:] for line in printed.splitlines() if line.strip().startswith("tcpdelay ")]
    assert len(lines) == 9
    for arguments in lines:
        status, _, errors = run(*arguments)
        warned = "warning: real paths of this kind differ widely, so measure yours with ping\n"
        assert (status, errors) == (0, warned if "--path" in arguments else ""), arguments
        if arguments[-2] in ("-o", "--chart"):
            assert (tmp_path / arguments[-1]).stat().st_size > 1000


def test_the_table_has_the_edge_at_each_round_trip_time(run):
    edge = td.working_boundary("voip", rtt=[0.05, 0.1, 0.2], loss=[0.001, 0.01, 0.1])
    status, printed, errors = run(*SMALL, "--format", "csv")
    assert (status, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [float(row["rtt"]) for row in rows] == [0.05, 0.1, 0.2]
    assert [float(row["works_up_to"]) for row in rows] == pytest.approx(edge.works_up_to.tolist(), rel=1e-5)
    assert rows[0]["fails_from"] == ""
    assert all(float(row["quantile_there"]) <= 0.2 + 1e-8 for row in rows)
    records = json.loads(run(*SMALL, "--format", "json")[1])
    assert [record["fails_from"] is None for record in records] == [True, False, False]
    text = run(*SMALL)[1]
    assert re.search(r"100 ms +6\.\d+ % +6\.\d+ % +\d+ ms", text)
    assert text.startswith("174 bytes every 20 ms (69.6 kbit/s): p95 within 200 ms")


def test_the_limit_and_the_stack_are_those_of_the_options(run):
    options = (*SMALL, "--limit", "150ms", "--quantile", "99%", "--stack", "newreno_2008")
    status, _, errors = run(*options, "-o", "own.nc")
    assert (status, errors) == (0, "")
    with xr.open_dataset("own.nc", engine="scipy") as region:
        assert (region.limit, region.attrs["quantile"]) == (0.15, 0.99)
        assert region.attrs["stack"] == repr(td.Stack.newreno_2008(backlog_bound="grow"))
        assert region.p95.shape == (3, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rtt", "100ms"), "--rtt: '100ms' is no range; write two values with .. between them"),
        (("--rtt", "200ms..100ms"), "--rtt: in '200ms..100ms' the first value is not below the second"),
        (("--loss", "0%..2%"), "--loss: 0% is 0, but the fraction must be above 0"),
        (("--rtt", "10..20"), "--rtt: '10' has no unit"),
        (("--points", "1"), "--points: must lie between 2 and 500, got 1"),
        (("--format", "netcdf"), "--format: netcdf needs --output"),
        (("--chart", "region.txt"), "--chart: 'region.txt' does not end in"),
        (("-o", "none/x.nc"), "--output: 'none/x.nc' cannot be written: the folder 'none' does not exist"),
        (("--quantile", "200%"), "--quantile: "),
        (("--app", "game", "-o", "two.nc"), "--format: netcdf is of one flow over one stack, got 2 of them"),
        (("--app", "game", "--fill", "mos", "--chart", "a.svg"), "--fill: mos is of one flow over one stack, got 2"),
        (("--stack", "bsd"), "--stack: must be one of linux, newreno_2008, quic, got bsd"),
        (("--stack", "newreno_2008", "--hz", "100"), "--hz: goes with --stack linux, not with newreno_2008"),
        (("--codec", "mp3"), "--codec: must be one of g711"),
        (("--playout", "0ms"), "--playout: 0ms is 0"),
        (("--fill", "mos"), "--fill: mos: needs --chart"),
        (("--measured", "calls.csv"), "--measured: needs --chart"),
        (("--measured", "no.csv", "--chart", "a.svg"), "--measured: no.csv cannot be read: "),
        (
            ("--measured", "calls.txt", "--chart", "a.svg"),
            "--measured: calls.txt does not end in one of .csv",
        ),
        (("--rtt", "1s..100s"), "--rtt: must be between 1e-06 and 60 s, got 62.3550734127"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(run, arguments, message):
    status, printed, errors = run("region", "--app", "voip", *arguments)
    assert (status, printed) == (2, "")
    assert errors.startswith("tcpdelay region: ")
    assert message.replace("'", "") in errors.replace("'", "")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("rtts", "losses"), [([0.05, 0.1], [0.005, 0.08]), ([0.1, 0.2, 0.3], [0.001, 0.01])])
def test_the_name_of_the_edge_stays_inside_the_chart(rtts, losses):
    region, edge = td.working_region("voip", rtt=rtts, loss=losses), td.working_boundary("voip", rtt=rtts)
    figure = Figure(figsize=(8, 5), layout="constrained")
    ax = plot_region(region, edge, figure.subplots())
    FigureCanvasAgg(figure).draw()
    (name,) = ax.texts
    inside, text = ax.get_window_extent(), name.get_window_extent()
    assert name.get_text() == "200 ms; works below"
    assert inside.x0 <= text.x0 < text.x1 <= inside.x1
    assert inside.y0 <= text.y0 < text.y1 <= inside.y1


def test_a_region_is_drawn_with_its_edge_and_measurements_over_it():
    grid = {"rtt": [0.05, 0.1, 0.2], "loss": [0.001, 0.01, 0.1]}
    region, edge = td.working_region("voip", **grid), td.working_boundary("voip", **grid)
    ax = plot_region(region, edge, Figure().subplots())
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel()) == ("log", "log", "round-trip time")
    assert ax.lines[0].get_xdata().tolist() == grid["rtt"]
    mark_measured(ax, [0.1, 0.2], [0.01, 0.1], [True, False])
    assert [line.get_ydata().tolist() for line in ax.lines[1:]] == [[0.01], [0.1]]
    with pytest.raises(ValueError, match="two round-trip times and two losses"):
        plot_region(td.working_region("voip", rtt=0.1, loss=0.01), ax=ax)


def test_edges_of_several_flows_are_drawn_in_one_chart():
    edges = {name: td.working_boundary(name, rtt=[0.05, 0.1]) for name in ("voip", "game")}
    ax = plot_boundaries(edges, Figure().subplots())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["voip", "game"]
    assert len({line.get_color() for line in ax.lines}) == 2
    with pytest.raises(ValueError, match="boundaries must hold at least one"):
        plot_boundaries({})


def test_several_flows_and_stacks_share_a_table_and_a_chart(run, tmp_path):
    both = (*SMALL, "--app", "game", "--stack", "linux", "--stack", "newreno_2008", "--hz", "1000")
    status, printed, errors = run(*both, "--format", "csv", "--chart", "edges.svg")
    assert (status, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [(row["app"], row["stack"]) for row in rows[::3]] == [
        (app, stack) for app in ("voip", "game") for stack in ("linux", "newreno_2008")
    ]
    # Timer interrupts are a setting of the kernel alone.
    edge = td.working_boundary("game", td.Stack.linux(hz=1000), rtt=[0.05, 0.1, 0.2], loss=[0.001, 0.01, 0.1])
    assert [float(row["works_up_to"]) for row in rows[6:8]] == pytest.approx(edge.works_up_to[:2], rel=1e-5)
    drawn = (tmp_path / "edges.svg").read_text()
    for name in ("voip, p95 within 200 ms; linux", "game, p95 within 100 ms; newreno_2008"):
        assert f"<!-- {name} -->" in drawn
    alone = json.loads(run(*SMALL, "--format", "json")[1])
    assert {(record["app"], record["stack"]) for record in alone} == {("voip", "linux")}


def test_a_call_is_rated_at_the_edge(run):
    rows = list(csv.DictReader(io.StringIO(run(*SMALL, "--format", "csv", "--codec", "g729a", "--playout", "best")[1])))
    path = td.Path(0.1, td.working_boundary("voip", rtt=0.1, loss=[0.001, 0.01, 0.1]).works_up_to[0])
    call = voice_quality(td.predict_delay(td.Flow(174, 0.020), path, method="chain"), "g729a")
    assert float(rows[1]["mos_there"]) == pytest.approx(call.mos, rel=1e-5)
    assert float(rows[1]["playout_there"]) == pytest.approx(call.playout_delay, rel=1e-5)
    given = json.loads(run(*SMALL, "--format", "json", "--playout", "300ms")[1])
    assert [record["playout_there"] for record in given] == [0.3, 0.3, 0.3]
    assert "mos_there" not in json.loads(run(*SMALL, "--format", "json")[1])[0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_measured_points_are_judged_by_the_target_and_drawn(run, tmp_path, suffix):
    table = pa.table(
        {
            "rtt_ms": [50, 100, 100, 200],
            "loss_percent": [1, 2, 5, 5],
            "p95": [0.1, 0.2, 0.25, None],
            "sustainable": [False, True, True, True],
        }
    )
    file = tmp_path / f"calls{suffix}"
    (pa.csv.write_csv if suffix == ".csv" else pa.parquet.write_table)(table, file)
    measured = read_measured(file)
    assert measured.meets(td.Target(0.2, 0.95)).tolist() == [False, True, False, False]
    assert measured.meets(td.Target(0.3, 0.95)).tolist() == [False, True, True, False]
    assert measured.meets(td.Target(0.2, 0.99)) is None
    for more, marks in (((), ("measured: works", "measured: does not")), (("--quantile", "99%"), ("measured",))):
        status, _, errors = run(*SMALL, *more, "--chart", "over.svg", "--measured", file.name)
        assert (status, errors) == (0, "")
        assert all(f"<!-- {mark} -->" in (tmp_path / "over.svg").read_text() for mark in marks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "rtt,p95\n0.1,0.2\n",
            "'calls.csv': columns must include loss or one of loss_fraction, loss_percent, loss_pct",
        ),
        ("rtt,loss\n", "'calls.csv': has no rows"),
        ("", "cannot be read: "),
        (b"rtt,loss,\xff\n0.1,0.02,1\n", "cannot be read: line 1 is not in UTF-8"),
        ("rtt_s,loss_pct,works,works\n0.1,2,1,1\n", "'calls.csv' has several columns works"),
        ("rtt_s,loss_fraction\n0.1,2\n", "loss must be fractions above 0 and below 1, got 2"),
        ("rtt_s,loss_fraction\n100,0.02\n", "rtt must be between 1e-06 and 60 s, got 100"),
        ("rtt,loss_pct\n100,2\n", "these look like milliseconds (median 100): write rtt_ms, or rtt_s if"),
        ("rtt_ms,loss\n100,2\n", "these look like percent (median 2): write loss_percent, or loss_fraction if"),
        ("rtt_s,loss_pct\nlong,2\n", "rtt is not a number"),
        ("rtt_s,loss_pct\n,2\n", "rtt is missing"),
        ("rtt_s,loss_pct,works\n0.1,2,maybe\n", "column works must hold true or false"),
        ("rtt_s,loss_pct,p95\n0.1,2,late\n", "column p95 must hold numbers"),
    ],
)
def test_a_wrong_file_of_measurements_is_named_in_one_line(tmp_path, content, message):
    file = tmp_path / "calls.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        read_measured(file)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_measured_points_without_a_unit_name_the_unit_that_is_assumed(tmp_path):
    file = tmp_path / "calls.csv"
    file.write_text("rtt,loss\n0.08,0.01\n0.3,0.02\n")
    with pytest.warns(ColumnUnitWarning) as told:
        read_measured(file)
    said = [str(each.message) for each in told]
    assert [text.partition(",")[0] for text in said] == [
        "column 'rtt' states no unit and is read as rtt in seconds",
        "column 'loss' states no unit and is read as loss in fractions",
    ]


def test_a_region_of_scores_is_drawn_in_their_classes():
    grid = {"rtt": [0.05, 0.1, 0.2], "loss": [0.001, 0.01, 0.1]}
    region = td.working_region("voip", **grid, codec="g729a")
    ax = plot_region(region, ax=Figure().subplots(), fill="mos")
    assert np.ma.allequal(ax.collections[0].get_array(), region.mos.values.T)
    assert [text.get_text() for text in ax.figure.axes[1].get_yticklabels()] == ["2.58", "3.10", "3.60", "4.03", "4.34"]
    with pytest.raises(ValueError, match="fill must be one of 'delay', 'mos', got 'p95'"):
        plot_region(region, fill="p95")
    with pytest.raises(ValueError, match="fill must be 'delay' for a region without scores"):
        plot_region(td.working_region("voip", **grid, codec=None), fill="mos")


def test_the_search_shows_how_much_time_is_left(run, monkeypatch):
    monkeypatch.setattr("tcpdelay.cli.output.FILE_INTERVAL", 0.0)
    status, _, errors = run("region", "--app", "voip", "--points", "4")
    assert status == 0
    lines = errors.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"Searching {n} of 4 round-trip times" for n in range(1, 5)]
    assert "left" not in lines[0]
    assert all(re.search(r", about \d+ s left, \d+ s$", line) for line in lines[1:])
    assert ", about 0 s left" in lines[-1]


def test_the_region_of_a_source_is_simulated(run):
    arguments = ("--app", "voip", "--talk", "1s", "--rtt", "100ms..150ms", "--points", "2", "--format", "csv")
    status, printed, _ = run("region", *arguments)
    assert status == 0
    edge = td.working_boundary(td.Speech(174, 0.020), rtt=[0.1, 0.15], loss=[0.001, 0.1])
    rows = list(csv.DictReader(io.StringIO(printed)))
    # The table has six digits.
    assert [float(row["works_up_to"]) for row in rows] == pytest.approx(edge.works_up_to.tolist(), rel=1e-5)
    assert {row["method"] for row in rows} == {"simulation"}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--app", "voip", "--app", "game", "--talk", "1s"), "--talk: goes with one --app and one --stack"),
        (("--app", "voip", "--talk", "1s", "--method", "chain"), ".*must be a Flow.*"),
        (("--key-ratio", "8"), "--key-ratio: needs --bitrate, or --app of a video"),
    ],
)
def test_a_region_refuses_sources_that_do_not_fit(run, arguments, fault):
    status, printed, errors = run("region", *arguments)
    assert (status, printed) == (2, "")
    assert re.fullmatch(f"tcpdelay region: {fault}\n", errors), errors
