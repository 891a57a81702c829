"""Predictions on a grid, what lies between its points, and the command that writes the page."""

import base64
import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.models.predict import predict_delay
from tcpdelay.quality.voice import best_playout_delay
from tcpdelay.report.html import encoded, in_words
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import APPLICATIONS, application
from tcpdelay.scenario.stack import Stack
from tcpdelay.study.boundary import working_boundary
from tcpdelay.study.explorer import (
    CELL,
    COARSE,
    FINE,
    PROBABILITIES,
    SMALLEST_HEADROOM,
    UNSETTLED,
    WORKS,
    Accuracy,
    GridSize,
    Surfaces,
    compute_surfaces,
    edge_range,
    interpolated,
    measure_accuracy,
    predict_places,
    random_places,
    verdicts,
)
from tcpdelay.study.largest import largest_loss
from tcpdelay.study.search import at_bitrate
from test_cli_help import examples

VOIP = application("voip")
P95 = int(np.searchsorted(PROBABILITIES, 0.95))


@pytest.fixture(scope="module")
def surfaces():
    return compute_surfaces(VOIP, GridSize(rtts=5, losses=6, bitrates=3))


def predict_cell(app, bitrate, rtt, loss):
    return predict_places(app, np.array([[bitrate, rtt, loss]]))[0]


def invented(headroom, delay, grid=COARSE):
    """Surfaces made of functions of bitrate, round-trip time and loss."""
    axes = grid.bitrate(VOIP.flow.bitrate), grid.rtt, grid.loss
    places = np.meshgrid(*axes, indexing="ij")
    cells = np.full(places[0].shape, np.nan, CELL)
    cells["headroom"] = headroom(*places)
    cells["mean"] = np.where(cells["headroom"] > 1, delay(*places), np.inf)
    cells["quantiles"] = cells["mean"][..., np.newaxis] * np.linspace(0.5, 4, PROBABILITIES.size)
    cells["late_fraction"] = np.where(cells["headroom"] > 1, 0.01, 1.0)
    edges = np.tile([0.0, np.inf], (grid.bitrates, grid.edge_rtt.size, 1))
    return Surfaces(VOIP, *axes, cells, grid.edge_rtt, edges)


@pytest.mark.parametrize("grid", [COARSE, FINE])
def test_a_grid_ends_where_the_chain_was_checked_and_holds_the_applications_own_bitrate(grid):
    assert grid.rtt[[0, -1]] == pytest.approx([0.005, 0.400])
    assert grid.loss[[0, -1]] == pytest.approx([0.0001, 0.10])
    assert np.isclose(grid.bitrate(69_600), 69_600).sum() == 1


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((1, 2, 3), "rtts must be 2 or more, got 1"), ((2, 2, 4), "bitrates must be odd, got 4")],
)
def test_a_grid_without_room_between_its_points_is_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        GridSize(*numbers)


def test_the_targets_of_all_presets_are_among_the_quantiles_kept():
    assert {preset.target.quantile for preset in APPLICATIONS.values()} <= set(PROBABILITIES)


def test_a_point_is_what_the_chain_predicts():
    cell = predict_cell(VOIP, 2 * VOIP.flow.bitrate, 0.080, 0.03)
    exact = predict_delay(packet_size=348, interval=0.020, rtt=0.080, loss=0.03)
    assert cell["mean"] == exact.mean
    assert cell["quantiles"].tolist() == exact.quantile(PROBABILITIES).tolist()
    assert cell["late_fraction"] == exact.late_fraction(0.200)
    assert cell["mos"] == best_playout_delay(exact, "g711").mos
    assert cell["expected_error"] == exact.expected_error.median


def test_a_flow_that_tcp_cannot_carry_is_late_for_ever():
    cell = predict_cell(application("live-video").at_constant_rate, 10e6, 0.300, 0.05)
    assert cell["headroom"] < 1
    assert cell["mean"] == cell["quantiles"][0] == np.inf
    assert cell["late_fraction"] == 1


def test_the_brink_of_what_tcp_can_carry_is_left_out():
    headroom = [float(predict_cell(VOIP, 4 * VOIP.flow.bitrate, 0.150, loss)["headroom"]) for loss in (0.05, 0.10)]
    assert headroom[1] < 1 < headroom[0]
    low, high = 0.05, 0.10
    while not 1 < float(predict_cell(VOIP, 4 * VOIP.flow.bitrate, 0.150, (low + high) / 2)["headroom"]) < 1.09:
        middle = (low + high) / 2
        carried = predict_cell(VOIP, 4 * VOIP.flow.bitrate, 0.150, middle)["headroom"] > 1
        low, high = (middle, high) if carried else (low, middle)
    assert np.isnan(predict_cell(VOIP, 4 * VOIP.flow.bitrate, 0.150, (low + high) / 2)["mean"])
    assert SMALLEST_HEADROOM >= 1.09


def test_at_the_points_of_the_grid_nothing_is_off(surfaces):
    axes = np.meshgrid(surfaces.bitrate, surfaces.rtt, surfaces.loss, indexing="ij")
    found = interpolated(surfaces, np.stack(axes, axis=-1).reshape(-1, 3)).reshape(surfaces.cells.shape)
    computed = ~np.isnan(surfaces.cells["mean"])
    for name in ("headroom", "mean", "mos", "expected_error"):
        np.testing.assert_allclose(found[name][computed], surfaces.cells[name][computed], rtol=1e-9)
    np.testing.assert_allclose(found["quantiles"][computed], surfaces.cells["quantiles"][computed], rtol=1e-9)
    np.testing.assert_allclose(found["late_fraction"][computed], surfaces.cells["late_fraction"][computed], atol=1.1e-6)


def test_powers_of_the_inputs_and_the_growth_towards_the_capacity_are_interpolated_exactly():
    def headroom(bitrate, rtt, loss):
        return 1e5 / bitrate / rtt / np.sqrt(loss) / 100

    def delay(bitrate, rtt, loss):
        return 3 * rtt * loss**0.2 / (1 - 1 / headroom(bitrate, rtt, loss))

    made = invented(headroom, delay)
    places = random_places(made, 200, seed=3)
    found, expected = interpolated(made, places), headroom(*places.T)
    np.testing.assert_allclose(found["headroom"], expected, rtol=1e-9)
    carried = expected > 1
    assert 20 < carried.sum() < 180
    # Where a surrounding point is beyond the capacity the others speak for it; a cell's ends are five times apart.
    inside = expected > 5.2
    assert inside.sum() > 20
    np.testing.assert_allclose(found["mean"][inside], delay(*places[inside].T), rtol=1e-9)
    np.testing.assert_allclose(found["mean"][carried], delay(*places[carried].T), rtol=0.5)
    assert np.all(found["mean"][~carried] == np.inf)
    assert np.all(found["late_fraction"][~carried] == 1)


def test_quantiles_stay_in_order_between_the_points(surfaces):
    found = interpolated(surfaces, random_places(surfaces, 2000))
    ordered = found["quantiles"][:, 1:] >= found["quantiles"][:, :-1] * (1 - 1e-12)
    assert np.all(ordered | np.isnan(found["mean"])[:, np.newaxis])
    assert np.all((found["late_fraction"] > 0) & (found["late_fraction"] <= 1))
    assert np.all((found["mos"] >= 1) & (found["mos"] <= 4.5))


def test_the_accuracy_is_that_of_the_quantile_mean_and_verdict(surfaces):
    found = measure_accuracy(surfaces, points=60)
    places = random_places(surfaces, 60)
    guessed = interpolated(surfaces, places)
    off, wrong = [], 0
    for (bitrate, rtt, loss), cell in zip(places, guessed, strict=True):
        model = DelayModel(at_bitrate(VOIP.flow, bitrate, 1448), Path(rtt=rtt, loss=loss), Stack.linux())
        exact = model.delay_distribution()
        if exact.sustainable and np.isfinite(cell["mean"]):
            off.append(abs(cell["quantiles"][P95] / exact.quantile(0.95) - 1))
        low, high = edge_range(surfaces, np.array([[bitrate, rtt, loss]]))[0]
        says = {cell["quantiles"][P95] <= 0.200, cell["late_fraction"] <= 0.05}
        says |= {loss <= low} if loss <= low or loss >= high else {True, False}
        wrong += says == {exact.quantile(0.95) > 0.200}
    assert found.quantile == pytest.approx(np.quantile(off, [0.5, 0.9]), rel=0.05)
    assert found.wrong == wrong
    assert 55 <= found.points <= 60


def test_the_edge_at_a_point_of_the_grid_is_the_exact_one(surfaces):
    rtt = surfaces.rtt[3]
    low, high = edge_range(surfaces, np.array([[VOIP.flow.bitrate, rtt, 0.01]]))[0]
    edge = largest_loss(VOIP.flow, Path(rtt, 0.01), target=VOIP.target, method="chain")
    assert (low, high) == (edge.value, edge.fails)


@pytest.mark.parametrize("name", ["voip", "game"])
def test_the_exact_edge_lies_in_the_range_that_is_shown(name):
    app = application(name)
    surfaces = compute_surfaces(app, GridSize(rtts=24, losses=4, bitrates=3))
    places, held = random_places(surfaces, 40, seed=5), 0
    for (rate, rtt, _), (low, high) in zip(places.tolist(), edge_range(surfaces, places), strict=True):
        flow = at_bitrate(app.flow, rate, 1448)
        exact = working_boundary(flow, rtt=[rtt], loss=surfaces.loss, target=app.target, method="chain")
        works, fails = np.nan_to_num(exact.works_up_to[0]), np.nan_to_num(exact.fails_from[0], nan=np.inf)
        # Two searches find an edge to a hundredth.
        held += low <= 1.011 * works and fails <= 1.011 * high
    assert held >= 39


def test_no_verdict_is_given_within_the_range_of_the_edge(surfaces):
    places = random_places(surfaces, 2000, seed=6)
    found, edge = verdicts(surfaces, places, interpolated(surfaces, places)), edge_range(surfaces, places)
    within = (places[:, 2] > edge[:, 0]) & (places[:, 2] < edge[:, 1])
    assert 50 < within.sum() < 1000
    assert (found[within] == UNSETTLED).all()
    assert (found == WORKS).sum() > 500
    assert (places[found == WORKS, 2] <= edge[found == WORKS, 0]).all()


def test_a_denser_grid_is_more_accurate(surfaces):
    denser = compute_surfaces(VOIP, GridSize(rtts=9, losses=16, bitrates=3))
    coarse, fine = (measure_accuracy(made, points=400) for made in (surfaces, denser))
    assert fine.mean[1] < coarse.mean[1]
    assert fine.late_fraction[1] < coarse.late_fraction[1]


def test_several_processes_find_the_same(surfaces):
    places = random_places(surfaces, 60)
    seen = []
    found = predict_places(VOIP, places, processes=2, on_progress=lambda done, total: seen.append((done, total)))
    assert found.tobytes() == predict_places(VOIP, places).tobytes()
    assert seen[-1] == (60, 60)
    assert seen == sorted(seen)


@pytest.mark.parametrize(("name", "value"), [("processes", 0), ("points", 0)])
def test_counts_below_one_are_refused(surfaces, name, value):
    with pytest.raises(ValueError, match=f"{name} must be 1 or more, got 0"):
        measure_accuracy(surfaces, **{"points": 1, name: value})


@given(st.lists(st.floats(-20, 20) | st.just(np.nan), min_size=1, max_size=40))
def test_codes_are_off_by_half_a_step_at_most(numbers):
    surface = encoded(np.array(numbers), 1)
    codes = np.frombuffer(base64.b64decode(surface["codes"]), "<u2").astype(float)
    codes[codes == 65_535] = np.nan
    span = surface["high"] - surface["low"]
    np.testing.assert_allclose(surface["low"] + codes / 65_534 * span, numbers, atol=0.5001 * span / 65_534 + 1e-12)


def test_the_accuracy_in_words_names_each_number():
    words = in_words(Accuracy(497, (0.0021, 0.0664), (0.001, 0.0123), (0.00004, 0.0031), wrong=3, unsettled=5), 0.999)
    for part in ("497 random", "p99.9", "0.21 %", "6.6 %", "1.2 %", "0.31 %", "wrong at 3", "uncertain at 5"):
        assert part in words


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("tcpdelay.study.explorer.COARSE", GridSize(rtts=2, losses=2, bitrates=3))
    monkeypatch.setattr("tcpdelay.study.explorer.EDGE_SECONDS", 0.1)
    monkeypatch.setattr("tcpdelay.study.explorer.measure_accuracy", functools.partial(measure_accuracy, points=3))
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_every_example_of_the_help_runs_as_written(run, tmp_path, quick):
    status, printed, errors = run("explore", "--help")
    assert (status, errors) == (0, "")
    assert max(map(len, printed.splitlines())) <= 80
    found = examples(printed)
    assert len(found) >= 2
    for arguments in found:
        status, printed, errors = run(*arguments)
        assert (status, errors) == (0, ""), arguments
        name = arguments[-1] if "-o" in arguments else "explorer.html"
        assert printed.startswith(f"{name}: 0.")
        assert (tmp_path / name).stat().st_size > 20_000


def test_one_page_holds_all_presets(run, tmp_path, quick):
    status, _, errors = run("explore", "--app", "all", "--points", "coarse")
    assert (status, errors) == (0, "")
    page = (tmp_path / "explorer.html").read_text()
    for preset in APPLICATIONS.values():
        offered = preset.constant_rate or preset.video
        assert (f'<option value="{preset.name}">{preset.title[:12]}' in page) == offered
    assert "Live video uplink, 2.5 Mbit/s, as a constant rate" in page


def test_sources_without_a_constant_rate_are_not_offered(run):
    status, _, errors = run("explore", "--app", "remote-desktop")
    assert status == 2
    assert "must be one of voip, opus, voice-agent, live-video, remote-control, game or all" in errors


def test_without_options_it_says_first_what_it_does(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tcpdelay.study.explorer.compute_surfaces", interrupted)
    status, printed, errors = run("explore")
    assert (status, printed) == (130, "")
    assert errors.startswith("predicting voip, fine points, for explorer.html; --app chooses another application")
    assert run("explore", "--app", "voip") == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--app", "pigeon"], "tcpdelay explore: --app: must be one of voip, opus, voice-agent"),
        (["-o", "."], "tcpdelay explore: --output: '.' is a directory; name a file"),
        (["-o", "page.pdf"], "tcpdelay explore: --output: 'page.pdf' does not end in one of .html, .htm"),
        (["-o", "none/x.html"], "tcpdelay explore: --output: 'none/x.html' cannot be written: the folder 'none' "),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_any_work(refused, arguments, message):
    assert refused("explore", *arguments).startswith(message)
