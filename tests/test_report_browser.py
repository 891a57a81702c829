"""Pages of reports in a browser: what fits the width of a phone, and what scrolls."""

import json
import re

import pytest

from tcpdelay import compare, guideline
from tcpdelay.report.transports import to_html
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import application

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
}), "*");
</script></body>"""


@pytest.fixture(scope="module")
def pages():
    call = application("voip")
    return {
        "fails": guideline(application=call, rtt=0.250, loss=0.03).to_html(),
        "compare": to_html(compare("voip", Path(0.100, 0.02), duration=600)),
    }


@pytest.fixture
def measured(pages, opened, tmp_path):
    """Return the sizes in a page that is shown in a frame of the given width [px]."""

    def measured(name, width):
        (tmp_path / "page.html").write_text(pages[name].replace("</body>", MEASURE), encoding="utf-8")
        frame = tmp_path / "frame.html"
        # Windows are at least 500 px wide, frames are not.
        frame.write_text(
            f'<pre id="found"></pre><iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
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
