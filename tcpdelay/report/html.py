"""The report as one self-contained HTML page; its charts are SVG elements with the colours of the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tcpdelay.advice.guideline import SourceFindings
from tcpdelay.report import phrases
from tcpdelay.report.chart_labels import LABEL_SIZE
from tcpdelay.report.charts import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    plot_delay_parts,
    plot_distribution,
    plot_later,
    plot_quantile_against_loss,
)
from tcpdelay.units import format_fraction, format_rate, format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.advice.guideline import Findings
    from tcpdelay.report.document import Content


INK = "#1b1b1f"
VARIABLES = {BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", PURPLE: "--purple", INK: "--ink"}
"""CSS variables of the page that replace the colours of the drawing."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": LABEL_SIZE,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_NAMESPACE = re.compile(r"^\{.*\}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(
    draw: Callable[[Axes], object], name: str, title: str, description: str, size: tuple[float, float]
) -> Markup:
    """Draw a chart and return it as an SVG element for an HTML page."""
    image = io.BytesIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        figure.savefig(image, format="svg", metadata={"Date": None})
    return Markup(_embedded(image.getvalue(), name, title, description))


def _embedded(image: bytes, name: str, title: str, description: str) -> str:
    """Return an SVG file as an element of a page: without metadata and style sheet, with its own identifiers."""
    drawn = ElementTree.fromstring(image)
    svg = ElementTree.Element(
        "svg",
        {
            "viewBox": drawn.attrib["viewBox"],
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-description",
            "class": "chart",
        },
    )
    ElementTree.SubElement(svg, "title", id=f"{name}-title").text = title
    ElementTree.SubElement(svg, "desc", id=f"{name}-description").text = description
    svg.extend(child for child in drawn if _local(child.tag) != "metadata")
    for parent in svg.iter():
        # The style sheet of the SVG file would apply to the whole page.
        for style in [child for child in parent if _local(child.tag) == "style"]:
            parent.remove(style)
    for element in svg.iter():
        element.tag = _local(element.tag)
        element.attrib = dict(_attributes(element, name))
    return ElementTree.tostring(svg, encoding="unicode")


def _local(tag: str) -> str:
    """Return the name of a tag or an attribute without its namespace."""
    return _NAMESPACE.sub("", tag)


def _attributes(element: ElementTree.Element, name: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes of an element with identifiers of their own and with the page's colours."""
    for key, value in element.attrib.items():
        key = _local(key)
        if key == "id" and not value.startswith(f"{name}-"):
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value.removeprefix('#')}"
        elif key != "aria-labelledby":
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
            for color, variable in VARIABLES.items():
                value = value.replace(color, f"var({variable})")
        yield key, value


CHART_WIDTH, CHART_HEIGHT, BAR_HEIGHT, PART_HEIGHT = 4.6, 3.0, 0.8, 0.2
"""Sizes of the charts [inches]. On a phone, their text is about as large as the page's text."""


_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:[mµ]?s|B|[kMG]?bit/s)\b|%)")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page, and its caption."""

    caption: str
    svg: Markup


def as_page(report: Content, charts: dict[str, list[Chart]]) -> str:
    """Return the content of a report as a page that contains its style, and the charts of each section."""
    return environment().get_template("report.html.j2").render(report=report, charts=charts)


SHOWN_MESSAGES = 600
"""Mean number of messages that the chart of the source shows."""
SHORTEST, LONGEST = 0.5, 60.0
"""Shortest and longest time that the chart of the source shows [s]."""


def charts(found: Findings | SourceFindings, suffix: str = "") -> dict[str, list[Chart]]:
    """Return the charts of each section, without the charts of the delays if there are none or they never settle."""
    target, parts, messages = found.target, found.parts, found.messages
    limit, quantile = format_time(target.limit), quantile_name(target.quantile)
    drawn: dict[str, list[Chart]] = {}
    if isinstance(found, SourceFindings):
        source = found.source
        duration = min(max(SHOWN_MESSAGES / source.message_rate, SHORTEST), LONGEST)
        drawn["source"] = [
            chart(
                f"source-chart{suffix}",
                "Size of each message",
                f"The messages of the first {format_time(duration)}: {format_rate(source.mean_bitrate)} in the mean, "
                f"{format_rate(source.peak_bitrate)} in the busiest second.",
                lambda ax: source.plot(ax, duration=duration),
            )
        ]
    # There is no curve where no loss around the scenario has a finite delay.
    if found.loss_curve.loss.size:
        drawn["margins"] = [
            chart(
                f"loss-chart{suffix}",
                f"{quantile} delay against loss",
                f"The {quantile} delay rises with the loss. {' '.join(phrases.verdict(found))}".replace("`", ""),
                lambda ax: plot_quantile_against_loss(found, ax),
            )
        ]
    if found.endless:
        return drawn
    distribution, marks = found.distribution, {"limit": target.limit}
    timeouts = f", timeouts {format_time(parts.timeouts)}" if found.tells_timeouts else ""
    drawn["delays"] = [
        chart(
            f"shares-chart{suffix}",
            "Distribution of the delay",
            f"Half of the {messages} arrive within {format_time(distribution.quantile(0.5))}, "
            f"{format_fraction(target.quantile)} within {format_time(found.quantile)}.",
            lambda ax: plot_distribution(distribution, ax, thresholds=marks),
        ),
        chart(
            f"survival-chart{suffix}",
            f"{messages.capitalize()} that come later{', by kind' if found.by_kind else ''}",
            f"{format_fraction(found.late_fraction)} of the {messages} come later than {limit}.",
            lambda ax: plot_later(found, ax),
        ),
    ]
    if math.isinf(found.mean):
        return drawn
    drawn["parts"] = [
        chart(
            f"parts-chart{suffix}",
            "Parts of the mean delay",
            f"Network {format_time(parts.network)}, backlog {format_time(parts.backlog)}, "
            f"head of line {format_time(parts.head_of_line)}{timeouts}.",
            lambda ax: plot_delay_parts(found, ax),
            height=BAR_HEIGHT + PART_HEIGHT * sum(delay > 0 for delay in astuple(parts)),
        )
    ]
    return drawn


def chart(
    name: str, caption: str, description: str, draw: Callable[[Axes], object], height: float = CHART_HEIGHT
) -> Chart:
    """Return a chart of the page; its parameters are those of `tcpdelay.report.html.inline_svg`."""
    return Chart(caption, inline_svg(draw, name, caption, description, (CHART_WIDTH, height)))


def keep_units(text: object) -> object:
    r"""Return `text` with non-breaking spaces before units; markup does not change."""
    return _UNIT_SPACE.sub("\u00a0", text) if isinstance(text, str) and not hasattr(text, "__html__") else text


@cache
def environment() -> Environment:
    """Return the environment in which the templates of the pages are rendered."""
    environment = Environment(
        loader=PackageLoader("tcpdelay.report"),
        autoescape=True,
        finalize=keep_units,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code_spans"] = phrases.code_spans
    return environment
