"""Working regions: the data set, the edge of what works, `tcpdelay region` and its charts."""

import csv
import io
import itertools
import json
import re
import shlex
import subprocess
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import tcpdelay as td
from cli_process import process
from tcpdelay.accuracy.errors import expected_error
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.engine import SAME_DELAY
from tcpdelay.declare import ColumnUnitWarning
from tcpdelay.models.predict import predict
from tcpdelay.models.verdict import verdict_of
from tcpdelay.quality.voice import voice_quality
from tcpdelay.report.region_charts import LEVELS, mark_measured, plot_boundaries, plot_region
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.boundary import first_failure, scattered
from tcpdelay.study.grid import run_seed
from tcpdelay.study.region import ACCURACIES, FAR_BEYOND, VERDICTS, read_measured

VOIP = td.Flow(174, 0.020)
STACKS = {"linux": td.Stack.linux(), "newreno_2008": td.Stack.newreno_2008(backlog_bound="grow")}
RTTS, LOSSES = (0.030, 0.100, 0.300), (0.001, 0.02, 0.08)


@pytest.fixture(scope="module", params=STACKS)
def stack(request):
    return STACKS[request.param]


@pytest.fixture(scope="module")
def region(stack):
    return td.working_region("voip", stack, rtt=RTTS, loss=LOSSES)


def test_every_exact_cell_is_what_a_prediction_says(region, stack):
    exact = 0
    for i, rtt in enumerate(RTTS):
        for j, loss in enumerate(LOSSES):
            cell = region.isel(rtt=i, loss=j)
            path = td.Path(rtt, loss)
            expected = td.predict_delay(VOIP, path, stack, method="chain")
            assert cell.works == (expected.quantile(0.95) <= 0.2)
            assert float(cell.utilization) == pytest.approx(connection_utilization(VOIP, path, stack), rel=1e-12)
            error = expected_error(VOIP, path, stack, expected.sustainable)
            found = [float(cell[f"expected_error_{name}"]) for name in ("median", "mean", "p90")]
            assert found == pytest.approx([error.median, error.mean, error.p90], rel=1e-9)
            assert bool(cell.sustainable) == expected.sustainable
            if cell.accuracy == 0:
                exact += 1
                for name, quantile in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("quantile", 0.95)):
                    assert float(cell[name]) == pytest.approx(expected.quantile(quantile), abs=1e-6)
                assert float(cell["mean"]) == pytest.approx(expected.mean, rel=1e-3)
                assert float(cell.late_fraction) == pytest.approx(expected.late_fraction(0.2), rel=1e-3, abs=1e-6)
                score = voice_quality(expected, "g711", playout_delay=0.2).mos
                assert float(cell.mos) == pytest.approx(score, abs=1e-3)
    assert exact >= 5


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([74, 174, 968, 1448]),
    interval=st.sampled_from([0.010, 0.020, 0.050]),
    rtt=st.floats(0.01, 0.2),
    loss=st.sampled_from([0.0, 0.001, 0.01]) | st.floats(0.001, 0.1),
    stack=st.sampled_from([*STACKS.values(), td.Stack.newreno_2008(), td.Stack.linux(congestion_control="reno")]),
)
@example(size=1448, interval=0.010, rtt=0.2, loss=0.05, stack=STACKS["newreno_2008"])  # TCP cannot carry it
@example(size=1448, interval=0.010, rtt=0.2, loss=0.05, stack=STACKS["linux"])
@example(size=1448, interval=0.010, rtt=0.1, loss=0.05, stack=td.Stack.newreno_2008())
@example(size=174, interval=0.020, rtt=0.19, loss=0.02, stack=STACKS["linux"])  # a wider bound makes it exact
def test_a_cell_is_what_a_prediction_says_to_rounding(size, interval, rtt, loss, stack):
    flow = td.Flow(size, interval)
    cell = td.working_region(flow, stack, rtt=rtt, loss=loss, limit=0.15, codec=None).squeeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", td.ValidityWarning)
        predicted = td.predict_delay(flow, td.Path(rtt, loss), stack, method="chain")
    expected = [*predicted.quantile([0.5, 0.95, 0.99]), predicted.mean, predicted.late_fraction(0.15)]
    found = [float(cell[name]) for name in ("p50", "p95", "p99", "mean", "late_fraction")]
    assert bool(cell.works) == (expected[1] <= 0.15)
    if cell.accuracy == 1 and getattr(stack, "backlog_bound", "grow") == "grow":
        assert predicted.quantile(0.95) > 0.15
        assert all(bound <= exact * (1 + SAME_DELAY) for bound, exact in zip(found, expected, strict=True))
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert bool(cell.sustainable) == predicted.sustainable


@pytest.mark.parametrize("codec", ["g711", "opus-wb-15"])
def test_a_call_is_rated_as_the_quality_of_its_predicted_delays(codec, stack):
    grid = {"rtt": [0.03, 0.1], "loss": [0.0, 0.01, 0.05]}
    for playout_delay in (0.12, "best"):
        region = td.working_region("voip", stack, **grid, codec=codec, playout_delay=playout_delay, beyond="exact")
        for i, rtt in enumerate(grid["rtt"]):
            for j, loss in enumerate(grid["loss"]):
                cell = region.isel(rtt=i, loss=j)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", td.ValidityWarning)
                    predicted = td.predict_delay(VOIP, td.Path(rtt, loss), stack, method="chain")
                call = voice_quality(predicted, codec, None if playout_delay == "best" else playout_delay)
                assert float(cell.mos) == pytest.approx(call.mos, rel=1e-9)
                assert float(cell.playout_delay) == pytest.approx(call.playout_delay, rel=1e-9)


def test_what_misses_the_target_may_be_a_lower_bound_and_never_more(stack):
    losses = (0.05, 0.08, 0.1)
    bounded = td.working_region(VOIP, stack, rtt=[0.3, 0.4], loss=losses)
    exact = td.working_region(VOIP, stack, rtt=[0.3, 0.4], loss=losses, beyond="exact")
    assert (exact.accuracy == 0).all()
    assert (bounded.accuracy == 1).any()
    assert not bounded.works.values[bounded.accuracy == 1].any()
    assert bounded.works.equals(exact.works)
    for name in ("p50", "p95", "p99", "mean", "late_fraction"):
        assert (bounded[name].values <= exact[name].values * (1 + 1e-6)).all(), name


def test_cells_behind_one_far_beyond_the_limit_have_its_delays_as_bounds(stack):
    # A chart has one colour for all of them.
    assert LEVELS[-1] == FAR_BEYOND
    grid = {"rtt": 0.4, "loss": [0.001, 0.01, 0.05, 0.08, 0.1, 0.3, 0.4], "limit": 0.25}
    bounded, exact = (td.working_region(VOIP, stack, **grid, beyond=beyond) for beyond in ("bound", "exact"))
    for name in ("verdict", "works", "sustainable", "utilization"):
        assert bounded[name].equals(exact[name]), name
    carried = exact.sustainable.values[0]
    first = int(np.argmax(bounded["quantile"].values[0] > FAR_BEYOND * 0.25))
    assert 0 < first < carried.sum() - 1
    assert not carried[-1]
    assert np.isinf(bounded.p95.values[0, ~carried]).all()
    for name in ("p50", "p95", "p99", "mean", "late_fraction"):
        assert (bounded[name].values <= exact[name].values * (1 + SAME_DELAY)).all(), name
        assert np.unique(bounded[name].values[0, carried][first:]).size == 1
    assert (bounded.accuracy.values[0, carried][first + 1 :] == ACCURACIES.index("lower_bound")).all()
    assert (bounded.mos.values >= exact.mos.values - 1e-9).all()


def test_what_tcp_cannot_carry_never_arrives():
    # At 10 % loss and 300 ms the rate of 16 Mbit/s is far beyond what Padhye's formula gives a transfer.
    region = td.working_region(td.Flow(1448, 0.005), STACKS["newreno_2008"], rtt=0.3, loss=0.1)
    cell = region.isel(rtt=0, loss=0)
    assert float(cell.utilization) > 10
    assert (bool(cell.sustainable), bool(cell.works), int(cell.accuracy)) == (False, False, 2)
    assert float(cell.p50) == float(cell["mean"]) == np.inf
    assert float(cell.late_fraction) == 1
    assert float(cell.mos) == pytest.approx(1, abs=0.01)


def test_a_chain_too_large_is_not_promised():
    region = td.working_region(td.Flow(100, 1e-6), rtt=[1.0], loss=[0.01])
    assert region.accuracy.item() == 3
    assert not region.works.item()
    assert all(np.isnan(region[name].item()) for name in ("p95", "mean", "mos", "expected_error_median"))
    edge = td.working_boundary(td.Flow(100, 1e-6), rtt=[1.0], loss=[0.01])
    assert np.isnan(edge.works_up_to)
    assert edge.fails_from == [0.01]


def test_every_variable_has_its_meaning_and_the_data_set_survives_a_file(region, tmp_path):
    for name, variable in region.variables.items():
        assert variable.attrs["long_name"], name
        assert variable.dtype in (bool, np.int8) or variable.attrs["units"] in ("s", "1"), name
    assert region.attrs["source"] == f"tcpdelay {td.__version__}"
    file = tmp_path / "region.nc"
    region.to_netcdf(file, engine="scipy")
    with xr.open_dataset(file, engine="scipy") as read:
        xr.testing.assert_identical(read.load().drop_attrs(), region.drop_attrs())
        assert read.attrs["stack"] == region.attrs["stack"]
        assert (read.works.dtype, read.rtt.units) == (bool, "s")


def test_the_edge_is_where_predictions_change_sides(stack):
    edge = td.working_boundary("voip", stack, rtt=[0.08, 0.1, 0.2], tolerance=0.002)
    assert (edge.fails_from <= 1.002 * edge.works_up_to).all()
    for i in range(3):
        below, above = (edge.path(i, sides[i]) for sides in (edge.works_up_to, edge.fails_from))
        # A delay of exactly the limit carries the rounding of its bin.
        assert td.predict_delay(VOIP, below, stack, method="chain").quantile(0.95) <= 0.2 + 1e-8
        assert td.predict_delay(VOIP, above, stack, method="chain").quantile(0.95) > 0.2


def test_both_searches_meet_at_the_same_edge():
    by_loss = td.working_boundary("voip", rtt=[0.12], tolerance=1e-4)
    by_rtt = td.working_boundary("voip", loss=by_loss.works_up_to, searched="rtt", tolerance=1e-4)
    assert by_rtt.path(0, 0.1) == td.Path(0.1, float(by_loss.works_up_to[0]))
    assert by_rtt.works_up_to[0] == pytest.approx(0.12, rel=0.01)


def test_a_stricter_target_never_works_further(stack):
    rtts = np.array([0.04, 0.06, 0.08, 0.1, 0.2])

    def edge(limit, quantile):
        found = td.working_boundary(VOIP, stack, rtt=rtts, limit=limit, quantile=quantile, tolerance=1e-3)
        return np.nan_to_num(found.works_up_to)

    assert (edge(0.4, 0.95) >= edge(0.2, 0.95) / 1.001).all()
    assert (edge(0.2, 0.95) >= edge(0.2, 0.99) / 1.001).all()
    assert (edge(0.4, 0.95) > edge(0.2, 0.99)).any()


def test_a_longer_path_works_less_far_once_a_window_is_many_packets():
    rtts = np.arange(4, 13) * 0.020
    edge = td.working_boundary(VOIP, rtt=rtts, loss=np.geomspace(0.001, 0.2, 30), tolerance=1e-3)
    assert np.isfinite(edge.fails_from).all()
    assert (np.diff(edge.works_up_to) < 0).all()


@given(
    edge=st.floats(0.0005, 0.2), again=st.floats(1.0, 4.0), points=st.integers(1, 12), tolerance=st.floats(1e-4, 0.5)
)
def test_the_search_finds_the_first_failure_even_if_more_loss_works_again(edge, again, points, tolerance):
    grid = np.geomspace(0.001, 0.1, points)

    def works(loss):
        return loss < edge or loss >= again * 4 * edge

    inside, outside = first_failure(lambda loss: -1.0 if works(loss) else 1.0, grid, tolerance)
    failing = [loss for loss in grid if not works(loss)]
    if not failing:
        assert (inside, np.isnan(outside)) == (grid[-1], True)
    elif failing[0] == grid[0]:
        assert (np.isnan(inside), outside) == (True, grid[0])
    else:
        assert inside < edge <= outside <= inside * (1 + tolerance)


def test_the_edge_of_a_long_limit_needs_no_whole_distribution(monkeypatch):
    for whole in ("distribution_up_to", "delay_distribution"):
        monkeypatch.setattr(DelayModel, whole, lambda *_: pytest.fail("a decision suffices"))
    flow = td.Flow.from_bitrate(2_500_000)
    edge = td.working_boundary(flow, rtt=[0.0287], loss=[0.01, 0.1], limit=5.0, quantile=0.999)
    monkeypatch.undo()
    target = td.Target(5.0, 0.999)
    for loss, works in ((edge.works_up_to[0], True), (edge.fails_from[0], False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", td.ValidityWarning)
            delays = td.predict_delay(flow, edge.path(0, loss), method="chain")
        assert delays.meets(target) == works


@given(st.integers(1, 500))
def test_points_are_done_in_an_order_that_is_spread_over_all_of_them(size):
    order = scattered(size)
    assert sorted(order) == list(range(size))
    # Of the first half of the points, about half are in the lower half.
    half = order[: (size + 1) // 2]
    assert abs(2 * np.sum(half < size / 2) - half.size) <= max(3, size / 8)


@settings(max_examples=15, deadline=None)
@given(
    rtt=st.lists(st.floats(0.02, 0.2), min_size=1, max_size=3, unique=True).map(sorted),
    loss=st.lists(st.floats(0, 0.03), min_size=1, max_size=3, unique=True).map(sorted),
    codec=st.sampled_from(["g711", "g729a", None]),
)
def test_a_region_has_the_shape_that_was_asked_for(rtt, loss, codec):
    region = td.working_region(VOIP, STACKS["newreno_2008"], rtt=rtt, loss=loss, codec=codec)
    assert (region.rtt.values.tolist(), region.loss.values.tolist()) == (rtt, loss)
    assert all(variable.shape == (len(rtt), len(loss)) for variable in region.data_vars.values())
    assert ("mos" in region) == (codec is not None)
    assert (region.p50.values <= region.p95.values).all()
    assert (region.p95.values <= region.p99.values).all()
    assert ((region.late_fraction.values <= 0.05 + 1e-9) == region.works.values).all()
    assert (region.p50.values >= region.rtt.values[:, None] / 2).all()


def test_an_application_brings_its_target_and_arguments_override_it():
    game = td.working_region("game", rtt=0.05, loss=0.01)
    assert (game.attrs["limit"], game.attrs["quantile"], game.attrs["packet_size"]) == (0.1, 0.95, 100)
    own = td.working_region("game", rtt=0.05, loss=0.01, limit=0.03, quantile=0.5)
    assert (own.attrs["limit"], own.attrs["quantile"]) == (0.03, 0.5)
    assert own["quantile"].item() == own.p50.item()


def test_progress_counts_every_round_trip_time():
    seen = []
    td.working_region("voip", rtt=[0.03, 0.05], loss=0.01, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    td.working_boundary("voip", rtt=[0.03], loss=[0.01], on_progress=lambda done, total: seen.append((done, total)))
    assert seen[2:] == [(1, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rtt": []}, "rtt must be a number or a list of at least one number"),
        ({"rtt": [[0.1]]}, "rtt must be a number or a list of at least one number, got [[0.1]]"),
        ({"rtt": "fast"}, "rtt must be a number or a list of at least one number, got 'fast'"),
        ({"rtt": 100}, "rtt must be between 1e-06 and 60 s, got 100"),
        ({"rtt": [0.1, np.nan]}, "rtt must be between 1e-06 and 60 s, got nan"),
        ({"rtt": [0.2, 0.1]}, "rtt must ascend, got array([0.2, 0.1])"),
        ({"loss": 2}, "loss must be fractions from 0 and below 1, got 2"),
        ({"limit": 0}, "limit must be a number of seconds above 0, got 0"),
        ({"quantile": 95}, "quantile must lie between 0 and 1, got 95"),
        ({"beyond": "x"}, "beyond must be one of 'bound', 'exact', got 'x'"),
        ({"rtt": np.arange(1, 1100) / 1e3, "loss": np.arange(1000) / 1e3}, "at most 1000000 cells, got 1099 x 1000"),
        ({"limit": "50ms"}, "limit must be a number of seconds above 0, got '50ms'"),
        ({"limit": True}, "limit must be a number of seconds above 0, got True"),
        ({"quantile": "95%"}, "quantile must lie between 0 and 1, got '95%'"),
        ({"quantile": [0.9, 0.95]}, "quantile must lie between 0 and 1, got [0.9, 0.95]"),
        ({"flow": "tv"}, "flow must be a Source, such as a Flow, a Video or a Trace, or one of voip, opus, "),
        ({"flow": 174}, "remote-control, remote-desktop, game, got 174"),
        ({"codec": "mp3"}, "codec must be one of"),
        ({"playout_delay": 0}, "playout_delay must be a number of seconds above 0, 'limit' or 'best', got 0"),
        ({"playout_delay": "soon"}, "playout_delay must be a number of seconds above 0, 'limit' or 'best'"),
        ({"stack": "linus"}, "stack must come from one of the profiles"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(arguments, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        td.working_region(**{"flow": VOIP, "loss": [0.01], "rtt": [0.1], **arguments})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": 0}, "loss must be fractions above 0 and below 1, got 0"),
        ({"tolerance": 0}, "tolerance must lie between 1e-09 and 1, got 0"),
        ({"searched": "mss"}, "searched must be one of 'loss', 'rtt', got 'mss'"),
    ],
)
def test_a_wrong_argument_of_the_search_is_named_in_one_line(arguments, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        td.working_boundary(**{"flow": VOIP, "loss": [0.01], "rtt": [0.1], **arguments})
    assert message in str(raised.value)


def test_verdicts_of_cells_are_those_of_a_prediction_near_the_capacity_too():
    flow, target = td.Flow(1448, 0.010), td.Target(0.4)
    region = td.working_region(flow, rtt=[0.05, 0.1], loss=np.geomspace(0.001, 0.1, 19), limit=0.4, beyond="exact")
    verdicts = [
        [verdict_of(predict(Scenario(flow, td.Path(rtt, loss)), method="chain"), target) for loss in region.loss.values]
        for rtt in region.rtt.values
    ]
    found = np.array(VERDICTS)[region.verdict.values]
    assert found.tolist() == verdicts
    assert {"works", "uncertain", "fails"} == set(found.flat)
    # Near the capacity, the delay alone would fail.
    near = (region.expected_error_p90 >= 1) & (region["quantile"] > 2 * 0.4)
    assert near.any()
    assert (region.verdict.values[near.values] == VERDICTS.index("uncertain")).all()


def test_chart_hatches_uncertain_cells():
    region = td.working_region("voip", rtt=np.geomspace(0.05, 0.3, 8), loss=np.geomspace(0.005, 0.1, 8))
    ax = plot_region(region, ax=Figure().subplots())
    hatched = [mesh for mesh in ax.collections if mesh.get_hatch()]
    (cells,) = hatched
    assert (~np.ma.getmaskarray(cells.get_array())).sum() == (region.verdict == VERDICTS.index("uncertain")).sum()
    assert ax.get_title(loc="left").startswith("hatched: uncertain")
    boundary = td.working_boundary("voip", rtt=np.geomspace(0.05, 0.3, 8))
    both = plot_region(region, boundary, Figure().subplots())
    assert both.get_title(loc="left").startswith("hatched or shaded: uncertain")
    edges = plot_boundaries({"voip": boundary}, Figure().subplots())
    assert edges.get_title(loc="left").startswith("shaded: uncertain")
    certain = td.working_region("voip", rtt=[0.01, 0.02], loss=[0.001, 0.002])
    ax = plot_region(certain, ax=Figure().subplots())
    assert [mesh for mesh in ax.collections if mesh.get_hatch()] == []
    assert ax.get_title(loc="left") == ""


SPEECH = td.Speech(174, 0.020)


def test_the_region_of_a_source_has_the_delays_of_simulations():
    region = td.working_region(SPEECH, rtt=[0.05, 0.2], loss=[0.001, 0.02], packets=20_000)
    assert region.accuracy.flag_meanings.split()[4] == "estimated"
    assert (region.accuracy == 4).all()
    assert region.works.values.tolist() == [[True, True], [True, False]]
    assert region.verdict.values.tolist() == [[1, 1], [1, 0]]
    for place, (rtt, loss) in enumerate(itertools.product([0.05, 0.2], [0.001, 0.02])):
        delays = td.simulate(SPEECH, td.Path(rtt, loss), packets=20_000, seed=run_seed(0, place, 0))
        cell = region.sel(rtt=rtt, loss=loss)
        assert (cell.p95, cell["mean"]) == (delays.quantile(0.95), delays.mean)
        assert cell.expected_error_p90 == delays.expected_error.p90
    assert cell.utilization == connection_utilization(SPEECH, td.Path(0.2, 0.02), td.Stack.linux())


def test_a_source_that_tcp_cannot_carry_fails_and_has_no_finite_delay():
    region = td.working_region(td.Video(5e6), rtt=[0.1], loss=[0.05], packets=2000)
    assert region.verdict.item() == 0
    assert not region.works.item()
    assert np.isinf(region.p95.item()) or region.accuracy.item() == 4


def test_a_flow_is_not_simulated_and_takes_no_number_of_packets():
    with pytest.raises(ValueError, match="packets must be left out for a Flow"):
        td.working_region("voip", rtt=[0.1], loss=[0.01], packets=5000)
    with pytest.raises(ValueError, match=r"Stack\.linux"):
        td.working_region(SPEECH, td.Stack.newreno_2008(), rtt=[0.1], loss=[0.01])


def test_the_boundary_of_a_source_is_its_largest_loss():
    edge = td.working_boundary(SPEECH, rtt=[0.15], loss=[0.01, 0.03, 0.1])
    assert edge.simulated.all()
    works, fails = (
        td.simulate(SPEECH, td.Path(0.15, value), packets=200_000).quantile(0.95)
        for value in (edge.works_up_to.item(), edge.fails_from.item())
    )
    assert works <= 0.2 < fails
    assert edge.certain_up_to <= edge.works_up_to < edge.fails_from <= edge.impossible_from


def test_a_call_is_rated_by_the_codec_of_its_application():
    grid = {"rtt": [0.05], "loss": [0.001]}
    opus = td.working_region("opus", **grid)
    assert opus.codec == "opus-wb-15"
    assert opus.mos.equals(td.working_region("opus", **grid, codec="opus-wb-15").mos)
    assert td.working_region(VOIP, **grid).codec == "g711"


# `tcpdelay region`

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
def test_a_wrong_option_is_named_in_one_line(refused, arguments, message):
    errors = refused("region", "--app", "voip", *arguments)
    assert errors.startswith("tcpdelay region: ")
    assert message.replace("'", "") in errors.replace("'", "")


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
def test_a_region_refuses_sources_that_do_not_fit(refused, arguments, fault):
    errors = refused("region", *arguments)
    assert re.fullmatch(f"tcpdelay region: {fault}\n", errors), errors
