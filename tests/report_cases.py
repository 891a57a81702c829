"""Guidelines whose reports and charts are tested, and what reads the reports."""

import io
import re
from functools import cache
from html.parser import HTMLParser

from rich.console import Console

from tcpdelay import guideline
from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.report.document import print_content
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target
from tcpdelay.scenario.source import Flow

VOIP = Flow(174, 0.020)
NOTHING_LOST = PathEstimate(source="ping", rtt=0.1, sent=20, lost=0, rtt_interval=(0.098, 0.102))
FORMATS = ("html", "markdown", "text")
CASES = {
    "works": lambda: guideline(VOIP, Path(rtt=0.100, loss=0.02)),
    "fails": lambda: guideline(VOIP, Path(rtt=0.250, loss=0.03), target=Target(0.3, 0.99)),
    "never": lambda: guideline(Flow(968, 0.020), Path(rtt=0.250, loss=0.2)),
    "estimated": lambda: guideline(VOIP, NOTHING_LOST.path(), estimate=NOTHING_LOST),
    "lossless": lambda: guideline(VOIP, Path(rtt=0.100, loss=0)),
}


@cache
def guidelines():
    return {name: make() for name, make in CASES.items()}


def as_text(found, width=100, **options):
    page = io.StringIO()
    print_content(found.content(), Console(file=page, width=width, **options))
    return page.getvalue()


def rendered(found, output_format, width=100):
    if output_format == "text":
        return as_text(found, width)
    return found.to_html() if output_format == "html" else found.to_markdown()


class Page(HTMLParser):
    """The elements of a page, each with its attributes and text; an end tag that closes nothing is an error."""

    EMPTY = frozenset({"meta", "br", "img", "link", "hr", "input"})

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.elements = [], []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attributes": dict(attrs), "text": "", "within": tuple(e["tag"] for e in self.open)}
        assert len(element["attributes"]) == len(attrs), f"attribute of {tag} given twice"
        self.elements.append(element)
        if tag not in self.EMPTY:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()["tag"] == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.handle_endtag(tag)

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data.replace("\u00a0", " ")

    def all(self, *tags):
        return [element for element in self.elements if element["tag"] in tags]

    def rows(self):
        """Return the cells of all table rows by the first cell."""
        cells = []
        for element in self.all("tr", "th", "td"):
            if element["tag"] == "tr":
                cells.append([])
            else:
                cells[-1].append(element["text"])
        return cells


def markdown_rows(source):
    lines = [line for line in source.splitlines() if line.startswith("|")]
    return [
        [re.sub(r"\\(.)", r"\1", cell.strip().strip("*")) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    ]
