"""Working regions: the data set, and the edge of what works."""

import itertools
import warnings

import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

import tcpdelay as td
from tcpdelay.accuracy.errors import expected_error
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.chain.delay_model import SAME_DELAY, DelayModel
from tcpdelay.models.predict import predict
from tcpdelay.models.verdict import verdict_of
from tcpdelay.quality.voice import voice_quality
from tcpdelay.report.region_charts import plot_region
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.boundary import first_failure, scattered
from tcpdelay.study.grid import run_seed
from tcpdelay.study.region import VERDICTS

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
    assert "uncertain" in ax.get_title(loc="left")
    certain = td.working_region("voip", rtt=[0.01, 0.02], loss=[0.001, 0.002])
    ax = plot_region(certain, ax=Figure().subplots())
    assert [mesh for mesh in ax.collections if mesh.get_hatch()] == []


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
