"""What notebooks show of a result: a table, and a chart in given axes."""

from xml.etree import ElementTree

import pytest
from IPython.core.formatters import HTMLFormatter
from matplotlib.figure import Figure

import tcpdelay as td
from tcpdelay.models.predict import predict
from tcpdelay.scenario import Flow, Path, Scenario, Stack

CALL = {"rtt": 0.100, "loss": 0.02}
LATE = Scenario(Flow(174, 0.020), Path(0.1, 0.02), Stack.newreno_2008())


@pytest.fixture(scope="module")
def results():
    call, old = (td.guideline("voip", stack=stack, **CALL) for stack in (None, Stack.newreno_2008()))
    return {
        "prediction": (td.predict_delay("voip", **CALL), "140 ms"),
        "measured": (td.DelayDistribution.from_samples([0.05, 0.15], 0.05), "by measurement"),
        "unsustainable": (td.predict_delay(rtt=0.3, loss=0.1, packet_size=1448, interval=0.005), "cannot carry"),
        "answer": (predict(LATE), "190 ms"),
        "guideline": (call, "Works, with 59.7 ms to spare"),
        "guidelines": (td.compare_guidelines(old, call), "p95 190 ms → 140 ms"),
        "comparison": (td.compare("voip", Path(**CALL), duration=60), "par-2-blind"),
        "boundary": (td.working_boundary("voip", rtt=[0.1, 0.2], tolerance=0.1), "round-trip time"),
        "boundary in rtt": (td.working_boundary("voip", loss=[0.01, 0.9], rtt=[0.05, 0.3], searched="rtt"), "–"),
    }


NAMES = ("prediction", "answer", "guideline", "guidelines", "comparison", "boundary", "boundary in rtt", "measured")


@pytest.mark.parametrize("name", [*NAMES, "unsustainable"])
def test_a_notebook_shows_a_table(results, name):
    result, words = results[name]
    shown = HTMLFormatter()(result)
    page = ElementTree.fromstring(f"<div>{shown}</div>")
    assert page.find("table") is not None
    assert words in "".join(page.itertext()).replace("\xa0", " ")


@pytest.mark.parametrize("name", [*NAMES, "unsustainable"])
def test_a_result_is_drawn_into_the_given_axes(results, name):
    figure = Figure()
    ax = figure.subplots()
    assert results[name][0].plot(ax) is ax
    assert ax.texts or ax.lines


@pytest.mark.parametrize("name", NAMES)
def test_without_axes_the_current_ones_are_used(results, name):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    _, ax = pyplot.subplots()
    assert results[name][0].plot() is ax
    pyplot.close("all")


def test_an_answer_without_a_distribution_shows_why():
    refused = predict(Scenario(Flow(174, 0.020), Path(0.1, 0.02, reordering=0.01)), method="chain")
    assert "reordering must be 0" in HTMLFormatter()(refused)


def test_regions_are_drawn_by_a_public_name():
    region = td.working_region("voip", rtt=[0.05, 0.1], loss=[0.01, 0.02])
    ax = Figure().subplots()
    assert td.plot_region(region, ax=ax) is ax
