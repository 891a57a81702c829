"""`tcpdelay region` and its charts."""

import csv
import io
import json
import re
import shlex
import subprocess

import pytest
import xarray as xr
from matplotlib.figure import Figure

import tcpdelay as td
from cli_process import process
from tcpdelay.report.region_charts import mark_measured, plot_boundaries, plot_region

SMALL = ("region", "--app", "voip", "--rtt", "50ms..200ms", "--loss", "0.1%..10%", "--points", "3")


def test_every_example_of_the_help_runs_as_written(run, tmp_path):
    with process("region", "--help", stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert (started.returncode, errors) == (0, "")
    assert max(map(len, printed.splitlines())) <= 80
    assert "--ping" not in printed
    lines = [shlex.split(line)[1:] for line in printed.splitlines() if line.strip().startswith("tcpdelay ")]
    assert len(lines) == 5
    for arguments in lines:
        status, _, errors = run(*arguments)
        assert (status, errors) == (0, ""), arguments
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
    assert re.search(r"100 ms +5\.\d+ % +5\.\d+ % +\d+ ms", text)
    assert text.startswith("174 bytes every 20 ms (69.6 kbit/s): p95 within 200 ms")


def test_the_limit_and_the_stack_are_those_of_the_options(run):
    options = (*SMALL, "--limit", "150ms", "--quantile", "99%", "--stack", "newreno_2008")
    status, _, errors = run(*options, "-o", "own.nc")
    assert (status, errors) == (0, "")
    with xr.open_dataset("own.nc", engine="scipy") as region:
        assert (region.threshold, region.attrs["quantile"]) == (0.15, 0.99)
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
        (("--quantile", "200%"), "--quantile: "),
        (("--rtt", "1s..100s"), "--rtt: must be between 1e-06 and 60 s, got 62.3551"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(run, arguments, message):
    status, printed, errors = run("region", "--app", "voip", *arguments)
    assert (status, printed) == (2, "")
    assert errors.startswith("tcpdelay region: ")
    assert message.replace("'", "") in errors.replace("'", "")
    assert errors.count("\n") == 1


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
