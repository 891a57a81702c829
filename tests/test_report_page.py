"""The page of a report: its elements, colours and charts, and what it loads."""

import html
import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

from report_cases import CASES, VOIP, Page
from tcpdelay import guideline
from tcpdelay.report.content import NOT_TO_DO
from tcpdelay.report.html import VARIABLES
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target
from tcpdelay.units import format_fraction


def test_folded_advice_can_be_opened(pages):
    page = Page(pages["works"])
    folded = [element for element in page.all("details") if element["attributes"].get("class") == "folded"]
    assert [element["text"].strip().split(" (")[0] for element in folded] == list(NOT_TO_DO.values())
    assert not any("open" in element["attributes"] for element in folded)


@pytest.mark.parametrize("case", CASES)
def test_page_is_well_formed(pages, case):
    page = Page(pages[case])
    assert pages[case].startswith('<!DOCTYPE html>\n<html lang="en">')
    names = [element["attributes"]["id"] for element in page.elements if "id" in element["attributes"]]
    assert len(names) == len(set(names))
    assert any(element["attributes"].get("name") == "viewport" for element in page.all("meta"))
    levels = [int(element["tag"][1]) for element in page.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(levels))
    for element in page.elements:
        for name in element["attributes"].get("aria-labelledby", "").split():
            assert name in names


@pytest.mark.parametrize("case", CASES)
def test_contents_lead_to_every_section(pages, case):
    contents = re.search(r'<nav class="contents".*?</nav>', pages[case], re.DOTALL)[0]
    links = re.findall(r'href="#([^"]+)"', contents)
    assert links == re.findall(r'<section id="([^"]+)"', pages[case])


@pytest.mark.parametrize("case", CASES)
def test_page_needs_nothing_from_elsewhere(pages, case):
    page = Page(pages[case])
    names = {element["attributes"].get("id") for element in page.elements}
    assert not page.all("script", "link", "iframe", "object", "img", "base")
    assert "http" not in pages[case]
    assert "@import" not in pages[case]
    for element in page.elements:
        for attribute in ("src", "href", "srcset", "data", "action"):
            if attribute in element["attributes"]:
                assert element["attributes"][attribute].removeprefix("#") in names
    references = re.findall(r"url\(([^)]*)\)", pages[case])
    assert {reference.removeprefix("#") for reference in references} <= names


@pytest.mark.parametrize(("case", "count"), [("works", 4), ("fails", 4), ("never", 1), ("lossless", 4)])
def test_charts_are_named_and_follow_the_page_colours(pages, case, count):
    page = Page(pages[case])
    drawings = page.all("svg")
    assert len(drawings) == count
    text = {element["attributes"].get("id"): element["text"] for element in page.elements}
    for drawing in drawings:
        assert drawing["attributes"]["role"] == "img"
        title, description = drawing["attributes"]["aria-labelledby"].split()
        assert text[title]
        assert len(text[description]) > len(text[title])
    styles = " ".join(element["attributes"].get("style", "") for element in page.elements if "svg" in element["within"])
    assert not re.search("#[0-9a-f]{3}", styles)
    assert "var(--ink)" in styles


def test_chart_text_is_text(pages, findings):
    texts = [element["text"] for element in Page(pages["works"]).all("text")]
    edge = f"works up to {format_fraction(findings['works'].margins[0].edge)}"
    for label in ("limit 200 ms", edge, "here: 2 %, 140 ms", "network 50 ms", "p95 delay"):
        assert label in texts


def test_colours_contrast_in_light_and_dark():
    sheet = files("tcpdelay.report").joinpath("templates/report.css").read_text()
    schemes = [
        dict(re.findall(r"(--\w+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    ]
    assert len(schemes) == 3

    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return np.dot(linear, [0.2126, 0.7152, 0.0722])

    for scheme in schemes:
        assert set(VARIABLES.values()) < set(scheme)
        for text in set(scheme) - {"--page", "--panel", "--line"}:
            for ground in ("--page", "--panel"):
                light, dark = sorted((luminance(scheme[text]), luminance(scheme[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground, scheme)


def test_drawing_leaves_the_settings_of_matplotlib_alone(findings):
    import matplotlib

    before = dict(matplotlib.rcParams)
    findings["lossless"].to_html()
    assert dict(matplotlib.rcParams) == before


def test_options_in_the_verdict_are_code():
    page = guideline(VOIP, Path(0.100, 0.02), target=Target(0.140, 0.95), method="chain").to_html()
    assert "<code>--method simulation</code>" in page
    assert "`" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_page_in_a_browser_asks_for_nothing_and_fits_a_phone(opened, findings, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(findings["works"].to_html())
    probe = "<script>onload=()=>{document.title=document.documentElement.scrollWidth-innerWidth}</script>"
    narrow = tmp_path / "narrow.html"
    narrow.write_text(
        f'<body style="margin:0"><iframe id="f" style="border:0;width:360px;height:900px" '
        f"srcdoc='{html.escape(page.read_text() + probe, quote=True)}'></iframe>"
        "<script>onload=()=>{document.title='wider by '+f.contentDocument.title}</script>"
    )
    elements, complaints, asked = opened(narrow)
    assert asked == set()
    assert complaints == []
    assert elements.all[[e["tag"] for e in elements.all].index("title")]["text"] == "wider by 0"


def test_everything_that_takes_the_focus_shows_it(pages):
    sheet = files("tcpdelay.report").joinpath("templates/report.css").read_text()
    assert re.search(r":focus-visible \{ outline: 2px solid", sheet)
    assert "outline: none" not in sheet
    page = Page(pages["works"])
    for element in page.all("div"):
        if "tabindex" in element["attributes"]:
            assert element["attributes"]["aria-label"]
    assert len(page.all("main")) == len(page.all("header")) == 1
    assert all(element["attributes"].get("scope") in ("col", "row") for element in page.all("th"))
