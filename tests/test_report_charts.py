import dataclasses
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.path import Path

from tcpdelay import guideline
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import capacity
from tcpdelay.report import charts
from tcpdelay.report.html import CHART_HEIGHT, CHART_WIDTH
from tcpdelay.scenario.scenario import Scenario

DISTRIBUTION = DelayDistribution(np.array([0.05, 0.15, 0.4]), np.array([0.9, 0.0995, 0.0005]), one_way_delay=0.05)


def curve_at(ax, place):
    """Return the height of the axes' step curve at a delay."""
    line = next(line for line in ax.lines if line.get_drawstyle() == "steps-post")
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    return y[np.searchsorted(x, place, side="right") - 1]


@pytest.mark.parametrize("kind", ["both", "cdf", "survival"])
def test_distribution_chart_shows_the_distribution(kind):
    ax = charts.plot_distribution(DISTRIBUTION, Figure().subplots(), kind=kind)
    for delay in (0.01, 0.06, 0.149, 0.151):
        late = DISTRIBUTION.late_fraction(delay)
        assert curve_at(ax, delay) == pytest.approx(late if kind == "survival" else 1 - late)
    assert ax.get_yscale() == ("log" if kind == "survival" else "linear")


def test_density_chart_shows_each_probability():
    ax = charts.plot_distribution(DISTRIBUTION, Figure().subplots(), kind="density")
    stems = {tuple(segment[1]) for segment in ax.collections[0].get_segments()}
    assert stems == set(zip(DISTRIBUTION.values.tolist(), DISTRIBUTION.weights.tolist(), strict=True))


def test_density_chart_of_many_delays_counts_them_in_bins():
    samples = np.random.default_rng(1).exponential(0.1, 10_000)
    measured = DelayDistribution.from_samples(samples, one_way_delay=0.0)
    ax = charts.plot_distribution(measured, Figure().subplots(), kind="density")
    shares = ax.patches[0].get_data().values
    assert shares.size == charts.BINS
    assert shares.sum() == pytest.approx(charts.SHOWN_SHARE, abs=1e-3)
    assert shares.max() < ax.get_ylim()[1] < 1.5 * shares.max()


def test_curve_of_a_flow_with_lost_packets_is_named_where_it_runs():
    lossy = DelayDistribution.from_samples([0.05] * 90 + [0.1] * 8 + [math.inf] * 2, one_way_delay=0.05)
    ax = charts.plot_distribution(lossy, Figure().subplots(), kind="survival", label="datagrams")
    (name,) = (text for text in ax.texts if text.get_text() == "datagrams")
    assert name.xy[0] in (0.05, 0.1)
    assert curve_at(ax, 0.2) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("thresholds", "labels"),
    [({"limit": 0.2, "buffer": 0.21}, {"limit 200 ms", "buffer 210 ms"}), ([0.2, 0.6], {"200 ms", "600 ms"})],
)
def test_thresholds_are_marked_and_within_the_axes(thresholds, labels):
    ax = charts.plot_distribution(DISTRIBUTION, Figure().subplots(), thresholds=thresholds, kind="survival")
    places = thresholds.values() if isinstance(thresholds, dict) else thresholds
    marks = {line.get_xdata()[0] for line in ax.lines if line.get_drawstyle() == "default"}
    assert marks == set(places)
    assert labels <= {text.get_text() for text in ax.texts}
    assert ax.get_xlim()[1] > max(places)


def test_labels_above_the_axes_do_not_overlap():
    figure = Figure(figsize=(4, 3))
    thresholds = {"first threshold": 0.10, "second threshold": 0.11, "third threshold": 0.22, "fourth": 0.39}
    ax = charts.plot_distribution(DISTRIBUTION, figure.subplots(), thresholds=thresholds, kind="cdf")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def covered(ax):
    """Return the names in the axes that lie on a dashed line, a curve or another name."""
    ax.get_figure().draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts if text.get_text()}
    found = [(one, other) for one in boxes for other in boxes if one < other and boxes[one].overlaps(boxes[other])]
    for name, box in boxes.items():
        for line in ax.lines:
            corners = np.column_stack([line.get_xdata(), line.get_ydata()])
            if line.get_drawstyle() == "steps-post":
                corners = np.column_stack([np.repeat(corners[:, 0], 2)[1:], np.repeat(corners[:, 1], 2)[:-1]])
            path = Path(line.get_transform().transform(corners))
            if line.get_marker() == "None" and path.intersects_bbox(box, filled=False):
                found.append((name, line.get_label()))
    return found


REPORTED = [(0.100, 0.02), (0.200, 0.03), (0.250, 0.03), (0.150, 0.004), (0.050, 0.08), (0.300, 0.0005), (0.130, 0.02)]


@pytest.mark.parametrize(("rtt", "loss"), REPORTED)
def test_no_name_lies_on_a_line_or_another_name(rtt, loss):
    found = guideline("voip", rtt=rtt, loss=loss)
    size = {"figsize": (CHART_WIDTH, CHART_HEIGHT), "layout": "constrained"}
    ax = Figure(**size).subplots()
    assert covered(charts.plot_distribution(found.distribution, ax, thresholds={"limit": 0.2})) == []
    assert covered(charts.plot_quantile_against_loss(found, Figure(**size).subplots())) == []


def test_second_curve_has_another_colour_and_keeps_the_first_in_view():
    ax = charts.plot_distribution(DISTRIBUTION, Figure().subplots(), kind="cdf", label="first")
    nearer = DelayDistribution(np.array([0.01, 0.02]), np.array([0.5, 0.5]), one_way_delay=0.01)
    before = ax.get_xlim()
    charts.plot_distribution(nearer, ax, kind="cdf", label="second")
    assert len({line.get_color() for line in ax.lines}) == 2
    assert ax.get_xlim() == before


def test_plot_without_axes_uses_the_current_ones():
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    _, ax = pyplot.subplots()
    assert DISTRIBUTION.plot() is ax
    pyplot.close("all")


def test_chart_of_an_unsustainable_flow_says_so(findings):
    for ax in (
        charts.plot_distribution(DelayDistribution.unsustainable(0.05), Figure().subplots()),
        charts.plot_delay_parts(findings["never"], Figure().subplots()),
    ):
        assert [text.get_text() for text in ax.texts] == ["never settles: TCP cannot carry this flow"]


def test_unknown_kind_of_chart_is_refused():
    with pytest.raises(ValueError, match="kind must be one of both, cdf, density, survival, got 'pie'"):
        charts.plot_distribution(DISTRIBUTION, Figure().subplots(), kind="pie")


def test_parts_chart_adds_up_to_the_mean(findings):
    found = findings["works"]
    ax = charts.plot_delay_parts(found, Figure().subplots())
    assert [bar.get_width() for bar in ax.patches] == pytest.approx(dataclasses.astuple(found.parts))
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == pytest.approx(found.distribution.mean)


@pytest.mark.parametrize("case", ["works", "fails", "lossless"])
def test_loss_curve_crosses_the_limit_at_the_edge(findings, case):
    found = findings[case]
    edge, curve = found.margins[0].edge, found.loss_curve
    met = curve.quantile <= found.target.limit
    assert np.array_equal(met, curve.loss <= edge * (1 + 1e-9))
    assert met.any()
    assert not met.all()
    # Each bin of delays has its mean, which moves a little.
    assert np.all(np.diff(curve.quantile) >= -1e-4 * curve.quantile[1:])
    if curve.lowest < found.path.loss < curve.loss[-1]:
        assert curve.quantile[np.searchsorted(curve.loss, found.path.loss)] == found.quantile


def test_loss_curve_ends_where_tcp_cannot_carry_the_flow(findings):
    never = findings["never"]
    found = guideline(never.flow, never.path, never.stack, never.target, method="chain")
    curve = found.loss_curve
    largest, smaller = (
        capacity(Scenario(found.flow, dataclasses.replace(found.path, loss=loss), found.stack))
        for loss in (0.99 * curve.critical, curve.critical)
    )
    assert smaller <= found.flow.packet_rate < largest
    assert np.all(curve.loss < curve.critical)
    ax = charts.plot_quantile_against_loss(found, Figure().subplots())
    assert f"TCP cannot carry it from {100 * curve.critical:.3g} %" in {text.get_text() for text in ax.texts}
    assert "here: 20 %, never settles" in {text.get_text() for text in ax.texts}
