"""The presets of paths: their data, in Python, and in every command that takes a path."""

import json
import re

import pytest
from matplotlib.figure import Figure

import tcpdelay as td
from tcpdelay.advice.judged_delays import ends_of_kind
from tcpdelay.report.html import in_range
from tcpdelay.report.region_charts import mark_paths
from tcpdelay.scenario import InvalidValueError
from tcpdelay.scenario.path import PATH_PRESETS, WARNING, path_preset
from tcpdelay.study.search import loss_axis
from tcpdelay.study.transports import shared_path

NAMES = (
    *("home-fq-codel", "home-bufferbloat", "lte", "5g", "wifi-busy", "starlink", "geo-satellite", "transatlantic"),
    "same-city",
)


def test_all_promised_paths_are_there():
    assert set(PATH_PRESETS) == set(NAMES)


@pytest.mark.parametrize("preset", PATH_PRESETS.values(), ids=PATH_PRESETS)
def test_every_value_has_a_basis_and_every_source_a_date(preset):
    path = td.Path.preset(preset.name)
    assert {name for basis in preset.basis for name in basis.fields} == set(preset.values)
    assert all(getattr(path, name) == value for name, value in preset.values.items())
    for basis in preset.basis:
        assert bool(basis.source) == bool(basis.date)
        assert basis.source or "assumed" in basis.statement
    assert preset.not_modelled


@pytest.mark.parametrize("preset", PATH_PRESETS.values(), ids=PATH_PRESETS)
def test_every_kind_of_path_has_a_best_and_a_worst_one_on_both_sides_of_the_preset(preset):
    assert preset.ranges_from
    assert {"rtt", "loss"} <= set(preset.ranges) <= set(preset.values)
    for name, (best, worst) in preset.ranges.items():
        assert best < worst
        assert best <= preset.values[name] <= worst
    best, worst = ends_of_kind(td.Path.preset(preset.name), preset).values()
    assert (best.rtt, worst.rtt) == tuple(preset.ranges["rtt"])
    # The way back takes as long as before: the range is that of the queue on the way there.
    if "one_way_delay" in preset.values:
        backward = preset.values["rtt"] - preset.values["one_way_delay"]
        assert [path.rtt - path.forward_delay for path in (best, worst)] == pytest.approx([backward, backward])


@pytest.mark.parametrize("name", PATH_PRESETS)
def test_a_search_for_the_loss_stays_below_that_of_bad_states(name):
    # Reports of presets whose bad states lose half of the packets ended in an error.
    axis = loss_axis(td.Flow(174, 0.020), td.Path.preset(name))
    assert axis.place(axis.highest)[1].loss == axis.highest >= 0.49


def test_what_is_given_beside_a_preset_is_the_same_on_every_path_of_the_kind():
    lte = path_preset("lte")
    best, worst = ends_of_kind(td.Path.preset("lte", loss=0.01), lte).values()
    assert (best.loss, worst.loss, worst.rtt, worst.jitter) == (0.01, 0.01, 0.056, 0.02)


def test_predict_and_report_tell_the_range_over_paths_of_the_kind(run):
    options = ("--path", "transatlantic", "--app", "voip")
    ends = [
        td.predict_delay("voip", td.Path.preset("transatlantic", rtt=rtt, loss=loss), method="chain").quantile(0.95)
        for rtt, loss in ((0.078, 0.0), (0.09, 0.005))
    ]
    record = json.loads(run("predict", *options, "--format", "json")[1])
    assert [record["target_quantile_best_path"], record["target_quantile_worst_path"]] == pytest.approx(ends)
    report = json.loads(run("report", *options, "--format", "json")[1])
    assert [end["quantile"] for end in report["alternatives"]] == pytest.approx(ends)
    assert "Other paths of this kind" in run("report", *options, "--format", "markdown")[1]


def test_starlink_has_its_changes_of_the_satellite_every_15_s_and_the_measured_jitter():
    path = td.Path.preset("starlink")
    assert path.good_time + path.bad_time == pytest.approx(15)
    # Two independent uniform delays differ by a third of the jitter in the mean.
    assert path.jitter / 3 == pytest.approx(0.0067, rel=0.01)


@pytest.mark.parametrize(("name", "cycle"), [("lte", 25), ("5g", 50), ("wifi-busy", 5)])
def test_bad_states_come_as_often_as_the_basis_says(name, cycle):
    path = td.Path.preset(name)
    assert path.good_time + path.bad_time == pytest.approx(cycle)
    assert any(f"every {cycle} s" in basis.statement for basis in path_preset(name).basis)


def test_values_given_beside_a_preset_replace_its_own():
    path = td.Path.preset("lte", loss=0.01, jitter=0)
    assert (path.rtt, path.loss, path.jitter, path.bad_time) == (0.045, 0.01, 0, 0.05)
    # The one-way delay of a preset is that of its own round-trip time.
    assert td.Path.preset("home-bufferbloat", rtt=0.050).forward_delay == 0.025
    assert td.Path.preset("home-bufferbloat", loss=0).forward_delay == 0.180


def test_an_unknown_path_is_refused_with_the_known_ones(run):
    with pytest.raises(InvalidValueError, match=r"path must be one of same-city, .*, got 'mars'"):
        td.Path.preset("mars")
    _, _, errors = run("predict", "--path", "mars", "--app", "voip")
    assert errors.startswith("tcpdelay predict: --path: must be one of same-city, transatlantic, ")
    _, _, errors = run("predict", "--path", "lte", "--ping", "ping.txt", "--app", "voip")
    assert errors == "tcpdelay predict: --path and --ping: give one of them\n"
    _, _, errors = run("paths", "mars")
    assert errors.startswith("tcpdelay paths: name: must be one of same-city, transatlantic, ")


def test_a_prediction_takes_the_preset_and_its_changes(run):
    status, printed, errors = run(
        "predict", "--path", "transatlantic", "--loss", "1%", "--app", "voip", "--format", "json"
    )
    found = json.loads(printed)
    assert (status, found["path_preset"], found["rtt"], found["loss"]) == (0, "transatlantic", 0.09, 0.01)
    assert found["p95"] == td.predict_delay("voip", rtt=0.09, loss=0.01).quantile(0.95)
    assert errors.startswith("warning: path transatlantic, ")
    assert WARNING in errors
    _, printed, _ = run("solve", "loss", "--path", "transatlantic", "--app", "voip", "--format", "json")
    assert json.loads(printed)["path_preset"] == "transatlantic"


def test_the_report_has_the_sources(no_search):
    preset = path_preset("transatlantic")
    report = td.guideline("voip", td.Path.preset(preset.name, loss=0.01), path_preset=preset)
    written = report.to_markdown()
    assert "given instead: loss 1 %" in written
    assert "WonderProxy" in written
    assert json.loads(report.to_json())["path_preset"]["name"] == preset.name
    assert td.guideline("voip", path_preset=preset).path == td.Path.preset(preset.name)
    assert "preset" not in td.guideline("voip", td.Path.preset(preset.name)).to_markdown()


def test_fq_codel_beside_an_upload_delays_as_measured(run):
    _, printed, _ = run("compare", "--path", "home-fq-codel", "--app", "voip", "--duration", "10s", "--format", "json")
    found = json.loads(printed)
    assert [found["scenario"][name] for name in ("rtt", "queue", "discipline")] == [0.02, 10_240, "fq_codel"]
    (udp,) = [row for row in found["contenders"] if row["name"] == "udp"]
    # validation/results/home-queues.md: a p95 of 21.3 ms there and back; the way back takes 10 ms of them.
    assert udp["p95"] == pytest.approx(0.0213 - 0.010, abs=0.0003)


def test_a_comparison_simulates_the_queue_of_the_preset(run):
    given = ["--app", "voip", "--duration", "10s", "--format", "json"]
    _, printed, _ = run("compare", "--path", "home-bufferbloat", *given)
    found = json.loads(printed)["scenario"]
    assert (found["path_preset"], found["rtt"], found["link"], found["queue"]) == ("home-bufferbloat", 0.02, 10e6, 206)
    assert found["others"] == ["Bulk"]
    _, printed, errors = run("compare", "--path", "5g", *given)
    assert json.loads(printed)["scenario"]["rtt"] == pytest.approx(0.030)
    assert "compare has no jitter: 5 ms, its mean, are a part of the round-trip time" in errors
    assert json.loads(printed)["scenario"]["mean_jitter"] == pytest.approx(0.005)


@pytest.mark.parametrize("written", ["text", "markdown", "html"])
def test_a_comparison_says_under_its_table_that_its_path_has_no_jitter(run, written):
    given = ["--path", "wifi-busy", "--app", "game", "--duration", "10s", "--format", written]
    said = "The simulated path has no jitter: [0-9.]+ ms, the mean of the jitter, are a part of its round-trip time[.]"
    _, printed, _ = run("compare", *given)
    assert re.search(said, " ".join(printed.split()))
    _, printed, _ = run("compare", *given, "--rtt", "30ms", "--jitter", "0ms")
    assert "has no jitter" not in printed


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_link_takes_every_preset_without_its_jitter(name):
    assert shared_path(td.Path.preset(name, jitter=0)).loss == path_preset(name).values["loss"]


def test_the_paths_are_listed_with_their_sources(run):
    _, printed, _ = run("paths")
    assert all(f" {name} " in printed for name in NAMES)
    _, printed, _ = run("paths", "--format", "csv")
    assert [line.partition(",")[0] for line in printed.splitlines()[1:]] == list(PATH_PRESETS)
    _, printed, _ = run("paths", "starlink")
    assert "https://blog.apnic.net/2024/05/17/" in printed
    assert run("paths", "mars")[0] == 2


def test_a_chart_marks_paths_at_their_mean_round_trip_time(run):
    ax = mark_paths(Figure().subplots(), [path_preset("lte"), path_preset("starlink")])
    assert list(ax.lines[0].get_xdata()) == pytest.approx([0.055, 0.040])
    assert [text.get_text() for text in ax.texts] == ["lte", "starlink"]
    status, _, errors = run("region", "--app", "voip", "--path", "lte")
    assert (status, errors) == (2, "tcpdelay region: --path: needs --chart, such as --chart region.svg\n")


def test_the_explorer_opens_at_a_path_in_its_range(run):
    assert [name for name in NAMES if not in_range(path_preset(name))] == ["geo-satellite"]
    status, _, errors = run("explore", "--path", "geo-satellite")
    assert (status, "no round-trip time or loss as that of geo-satellite" in errors) == (2, True)
