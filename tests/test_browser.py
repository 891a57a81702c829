"""Pages in a browser: the explorer's numbers and links, what fits the width of a phone, and that they ask nobody."""

import base64
import hashlib
import json
import re
from importlib.resources import files

import numpy as np
import pytest

from browser_page import Elements
from tcpdelay import compare, guideline
from tcpdelay.accuracy.errors import expected_error
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.report.answers import TitledTable, to_page
from tcpdelay.report.html import SCRIPTS, SENTENCES, to_html
from tcpdelay.report.transports import to_html as comparison_to_html
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, application
from tcpdelay.scenario.stack import Stack
from tcpdelay.study.explorer import (
    PROBABILITIES,
    GridSize,
    compute_surfaces,
    edge_range,
    interpolated,
    measure_accuracy,
    random_places,
)
from tcpdelay.study.largest import largest_loss
from tcpdelay.study.playout import playout_table
from tcpdelay.study.search import at_bitrate

# The explorer's page

VOIP, GAME = application("voip"), application("game")
IDS = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p99.9"}


@pytest.fixture(scope="module")
def explored():
    made = [compute_surfaces(preset, GridSize(rtts=9, losses=13, bitrates=3)) for preset in (VOIP, GAME)]
    return [(surfaces, measure_accuracy(surfaces, points=100)) for surfaces in made]


@pytest.fixture(scope="module")
def page(explored, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    file.write_text(to_html(explored))
    return file


def exact(bitrate, rtt, loss):
    """What the chain predicts, also outside of where it has been checked, and its expected error."""
    flow, path, stack = at_bitrate(VOIP.flow, bitrate, 1448), Path(rtt=rtt, loss=loss), Stack.linux()
    return DelayModel(flow, path, stack).delay_distribution(), expected_error(flow, path, stack).median


def numbers(elements):
    names = ("mean", *IDS.values(), "late", "mos", "headroom", "expected-error")
    return {name: float(elements[name]["data-value"]) for name in names}


def link(bitrate, rtt, loss, app="voip"):
    return f"app={app}&rtt={rtt * 1e3:.12g}ms&loss={loss * 100:.12g}%&bitrate={bitrate / 1e3:.12g}kbit/s"


def test_the_page_names_no_other_host_and_allows_only_its_own_script(page):
    text = page.read_text()
    assert not re.search(
        r"(?i)https?:|//[a-z0-9-]+\.[a-z]|\b(src|href)=|@import|url\(", re.sub(r"[A-Za-z0-9+/]{200,}", "", text)
    )
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL).group(1)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'" in text
    assert text.count("<script") == 2


def test_every_control_has_a_label_and_every_reference_a_target(page):
    elements = Elements(page.read_text())
    labelled = {element["for"] for element in elements.all if element["tag"] == "label"}
    controls = [element["id"] for element in elements.all if element["tag"] in ("input", "select")]
    assert set(controls) == labelled == {"app", "path", "rtt", "loss", "bitrate", "playout"}
    for element in elements.all:
        for reference in ("aria-labelledby", "aria-describedby", "for"):
            for name in element.get(reference, "").split():
                assert elements[name]
    assert elements["spoken"]["aria-live"] == "polite"


def test_one_application_has_nothing_to_choose(explored, page):
    alone = Elements(to_html(explored[:1]))
    (chooser,) = [before for before, this in zip(alone.all, alone.all[1:], strict=False) if this.get("for") == "app"]
    assert "hidden" in chooser
    assert "hidden" not in Elements(page.read_text())["app"]


@pytest.mark.parametrize("place", [(1, 4, 6), (0, 8, 0), (2, 2, 12)])
def test_at_the_points_of_the_grid_the_page_says_what_the_chain_does(opened, page, explored, place):
    surfaces, _ = explored[0]
    bitrate, rtt, loss = surfaces.bitrate[place[0]], surfaces.rtt[place[1]], surfaces.loss[place[2]]
    chain, error = exact(bitrate, rtt, loss)
    shown = numbers(opened(page, link(bitrate, rtt, loss))[0])
    for probability, name in IDS.items():
        assert shown[name] == pytest.approx(chain.quantile(probability), rel=1e-3)
    assert shown["mean"] == pytest.approx(chain.mean, rel=1e-3)
    assert shown["late"] == pytest.approx(chain.late_fraction(0.200), rel=1e-3, abs=1.1e-6)
    assert shown["expected-error"] == pytest.approx(error, abs=1e-4)


def test_between_the_points_the_page_interpolates_as_we_do_and_is_as_accurate_as_it_says(opened, page, explored):
    surfaces, accuracy = explored[0]
    places = random_places(surfaces, 4, seed=7)
    off = []
    for place, expected in zip(places, interpolated(surfaces, places), strict=True):
        elements, complaints, _ = opened(page, link(*place))
        assert complaints == []
        shown = numbers(elements)
        for probability, name in IDS.items():
            quantile = expected["quantiles"][int(np.searchsorted(PROBABILITIES, probability))]
            assert shown[name] == pytest.approx(quantile, rel=1e-3)
        for name in ("mean", "headroom", "mos"):
            assert shown[name] == pytest.approx(float(expected[name]), rel=1e-3)
        assert shown["late"] == pytest.approx(float(expected["late_fraction"]), rel=2e-3)
        chain, _ = exact(*place)
        off.append((abs(shown["p95"] / chain.quantile(0.95) - 1), abs(shown["mean"] / chain.mean - 1)))
    # Half of four points lie within the 90 % quantile by far, unless the accuracy is not that of this page.
    assert np.median(off, axis=0)[0] <= accuracy.quantile[1]
    assert np.median(off, axis=0)[1] <= accuracy.mean[1]


def test_the_page_shows_the_range_that_contains_the_exact_edge(opened, page, explored):
    surfaces, _ = explored[0]
    rate, rtt = 1.2 * surfaces.bitrate[1], 0.12
    low, high = edge_range(surfaces, np.array([[rate, rtt, 0.01]]))[0]
    flow = at_bitrate(VOIP.flow, rate, 1448)
    exact = largest_loss(flow, Path(rtt, 0.01), target=VOIP.target, method="chain")
    assert low <= exact.value < exact.fails <= high
    elements, complaints, _ = opened(page, link(rate, rtt, exact.value))
    assert complaints == []
    assert (float(elements["edge"]["data-low"]), float(elements["edge"]["data-high"])) == (low, high)
    assert elements["edge"]["text"].startswith("between ")
    assert elements["verdict"]["data-verdict"] == "unsettled"
    assert elements["sentence"]["text"].startswith(
        f"At this bitrate and round-trip time it works up to a loss that is {elements['edge']['text']}."
    )
    # At a point of the grid the edge is exact.
    rtt = surfaces.rtt[6]
    low, high = edge_range(surfaces, np.array([[VOIP.flow.bitrate, rtt, 0.01]]))[0]
    for loss, verdict in ((0.5 * low, "works"), (2 * high, "late")):
        elements, _, _ = opened(page, link(VOIP.flow.bitrate, rtt, loss))
        assert elements["verdict"]["data-verdict"] == verdict
        assert [float(elements["edge"][f"data-{side}"]) for side in ("low", "high")] == [low, high]
        assert "between" not in elements["edge"]["text"]


@pytest.mark.parametrize(
    ("fragment", "verdict", "headline"),
    [
        ("rtt=50ms&loss=1%", "works", "Works, with "),
        ("rtt=0.3s&loss=0.05", "late", "Does not work: "),
        ("rtt=300ms&loss=10%25&bitrate=278.4kbit/s", "endless", "Does not work: TCP cannot carry this flow"),
    ],
)
def test_the_verdict_follows_the_link(opened, page, fragment, verdict, headline):
    elements, complaints, _ = opened(page, fragment)
    assert complaints == []
    assert elements["verdict"]["data-verdict"] == verdict
    assert elements["headline"]["text"].startswith(headline)
    assert elements["spoken"]["text"].startswith(headline)
    drawn = {element["class"] for element in elements.all if element.get("class", "").startswith("region ")}
    assert {"region works", "region late"} <= drawn


def test_sliders_texts_and_command_follow_the_link(opened, page):
    elements, _, _ = opened(page, "app=game&rtt=40ms&loss=0.5%&bitrate=48kbit/s")
    shown = [elements[name]["aria-valuetext"] for name in ("rtt", "loss", "bitrate")]
    assert shown == ["40\N{NO-BREAK SPACE}ms", "0.5\N{NO-BREAK SPACE}%", "48\N{NO-BREAK SPACE}kbit/s"]
    assert [elements[f"{name}-value"]["text"] for name in ("rtt", "loss", "bitrate")] == shown
    assert elements["command"]["text"] == "tcpdelay predict --rtt 40ms --loss 0.5% --app game --bitrate 48kbit/s"
    assert elements["packets"]["text"] == "200\N{NO-BREAK SPACE}B every 33.3\N{NO-BREAK SPACE}ms"
    assert elements["late-label"]["text"] == "later than 100\N{NO-BREAK SPACE}ms"
    assert "hidden" in elements["mos-row"]


def test_nonsense_in_the_link_leaves_the_defaults(opened, page):
    elements, complaints, _ = opened(page, "app=__proto__&rtt=-5&loss=<script>&bitrate=1e9Mbit/s")
    assert complaints == []
    assert elements["command"]["text"] == "tcpdelay predict --rtt 100ms --loss 2% --app voip --bitrate 278.4kbit/s"


def test_the_command_shown_is_one_that_runs(opened, page, run):
    elements, _, _ = opened(page, "rtt=47ms&loss=0.35%&bitrate=100kbit/s")
    status, _, errors = run(*elements["command"]["text"].split()[1:])
    assert (status, errors) == (0, "")


def test_nothing_is_asked_of_any_host(opened, page, tmp_path):
    _, complaints, asked = opened(page, "rtt=60ms")
    assert (complaints, asked) == ([], set())
    chatty = tmp_path / "chatty.html"
    chatty.write_text(page.read_text().replace("</main>", '<img src="http://elsewhere.invalid/"></main>'))
    _, complaints, asked = opened(chatty)
    assert len(complaints) == 1
    assert asked == set()
    chatty.write_text(chatty.read_text().replace("default-src 'none'; ", ""))
    _, _, asked = opened(chatty)
    assert asked == {"http://elsewhere.invalid/"}


@pytest.mark.parametrize("width", [500, 1280])
def test_the_charts_are_as_wide_as_there_is_room(opened, page, width):
    elements, _, _ = opened(page, "rtt=60ms", f"--window-size={width},900")
    shown = {elements[name]["viewbox"].split()[2] for name in ("region", "survival")}
    # A page's edges are 16 px wide each; beside the charts stand the controls where there is room.
    assert shown == {str({500: 468, 1280: 664}[width])}


def test_what_the_page_needs_comes_with_the_package():
    templates = files("tcpdelay.report").joinpath("templates")
    pages = ("explorer.html.j2", "explorer.css")
    for name in (*pages, *SCRIPTS, SENTENCES):
        assert templates.joinpath(name).is_file()


@pytest.mark.parametrize(("playout", "place"), [("50ms", (1, 4, 6)), ("200ms", (1, 7, 6))])
def test_as_many_packets_are_silent_as_are_late(opened, page, explored, playout, place):
    surfaces, _ = explored[0]
    bitrate, rtt, loss = surfaces.bitrate[place[0]], surfaces.rtt[place[1]], surfaces.loss[place[2]]
    chain, _ = exact(bitrate, rtt, loss)
    elements, complaints, _ = opened(page, f"{link(bitrate, rtt, loss)}&playout={playout}")
    assert complaints == []
    assert elements["playout-value"]["text"] == playout.replace("ms", "\N{NO-BREAK SPACE}ms")
    late = chain.late_fraction(float(playout.removesuffix("ms")) / 1e3)
    # Of the predicted distribution the page has 24 quantiles, and it plays 252 packets.
    share = float(elements["hearing"]["data-late"])
    assert share > 0
    assert share == pytest.approx(late, abs=0.015)


def test_what_is_no_speech_or_has_no_end_is_not_played(opened, page):
    elements, _, _ = opened(page, "app=voip&rtt=300ms&loss=10%25&bitrate=278.4kbit/s")
    assert "disabled" in elements["hear"]
    assert elements["hearing"]["text"] == "There is no delay to play."
    assert [elements[name]["text"] for name in ("mean", "p95", "expected-error")] == [
        "grows for ever",
        "never",
        "not computed",
    ]
    assert "hidden" not in elements["hear-section"]
    assert "hidden" in opened(page, "app=game")[0]["hear-section"]


# Pages of reports: what fits the width of a phone, and what scrolls

MEASURE = """<script>
const box = (element) => { const { left, width, top } = element.getBoundingClientRect(); return { left, width, top }; };
const all = (selector) => [...document.querySelectorAll(selector)];
parent.postMessage(JSON.stringify({
  page: document.documentElement.scrollWidth,
  figures: all(".key div").map(box),
  scrolling: all(".scroll").map((area) => [area.scrollWidth, area.clientWidth, getComputedStyle(area).overflowX]),
  labels: all(".chart text").map((text) => text.getBoundingClientRect().height),
  main: box(document.querySelector("main")),
  charts: all(".chart").map(box),
  cells: all("tbody td").map((cell) => [cell.scrollWidth, cell.clientWidth]),
}), "*");
</script></body>"""


@pytest.fixture(scope="module")
def pages(page):
    call, scenario = application("voip"), Scenario(VOIP.flow, Path(0.1, 0.01), target=VOIP.target)
    buffers = playout_table(scenario, rtt=[0.1, 0.3], loss=[0.001, 0.01, 0.05])
    return {
        # Its own policy would forbid the script that measures.
        "explorer": re.sub(r"<meta http-equiv[^>]*>", "", page.read_text()),
        "fails": guideline(application=call, rtt=0.250, loss=0.03).to_html(),
        "compare": comparison_to_html(compare("voip", Path(0.100, 0.02), duration=600)),
        "buffers": to_page([TitledTable("voip", "cubic", buffers)], "tcpdelay playout"),
    }


@pytest.fixture
def measured(pages, opened, tmp_path):
    """Return the sizes in a page that is shown in a frame of the given width [px]."""

    def measured(name, width, fragment=""):
        (tmp_path / "page.html").write_text(pages[name].replace("</body>", MEASURE), encoding="utf-8")
        frame = tmp_path / "frame.html"
        # Windows are at least 500 px wide, frames are not.
        frame.write_text(
            f'<pre id="found"></pre><iframe src="page.html#{fragment}" '
            f'style="width:{width}px;height:900px;border:0"></iframe>'
            "<script>onmessage = (event) => { found.textContent = event.data; };</script>"
        )
        elements, _, _ = opened(frame)
        return json.loads(elements["found"]["text"])

    return measured


@pytest.mark.parametrize("name", ["fails", "compare"])
def test_a_phone_shows_the_page_without_scrolling_sideways(measured, name):
    found = measured(name, 390)
    assert found["page"] == 390
    assert all(overflow == "auto" for content, room, overflow in found["scrolling"] if content > room)
    # At 16 px, the text of the page has lines of 24 px.
    assert min(found["labels"]) > 10


def test_a_phone_shows_all_figures_of_the_explorer(measured, opened, page):
    # Between the points of the grid, the largest loss that works is a range: the longest of the figures.
    place = link(1.2 * VOIP.flow.bitrate, 0.12, 0.02)
    assert opened(page, place)[0]["edge"]["text"].startswith("between ")
    (table,) = measured("explorer", 390, place)["scrolling"]
    assert table[0] <= table[1]


def test_cells_of_a_table_of_buffers_do_not_cover_each_other_on_a_phone(measured):
    found = measured("buffers", 390)
    assert found["page"] == 390
    assert len(found["cells"]) == 6
    assert all(content <= room for content, room in found["cells"])


def test_key_figures_are_in_two_columns_on_a_phone(measured):
    figures = measured("fails", 390)["figures"]
    assert len(figures) == 4
    assert len({figure["left"] for figure in figures}) == len({figure["top"] for figure in figures}) == 2


def test_the_chart_of_a_comparison_fills_the_page(measured):
    found = measured("compare", 1280)
    (chart,) = found["charts"]
    assert chart["width"] == pytest.approx(found["main"]["width"], abs=1)
    assert all(content <= room for content, room, _ in found["scrolling"]), found["scrolling"]


def test_the_chart_of_a_comparison_can_be_scrolled(pages):
    assert re.search(r'<div class="scroll"[^>]*tabindex="0"><svg', pages["compare"])
