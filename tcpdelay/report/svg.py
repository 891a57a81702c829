"""A chart as an SVG element inside an HTML page: it follows the page's colours and has a name for those who hear it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tcpdelay.report.chart_labels import LABEL_SIZE
from tcpdelay.report.charts import BLUE, GREEN, ORANGE, PURPLE

INK = "#1b1b1f"
VARIABLES = {BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", PURPLE: "--purple", INK: "--ink"}
"""CSS variables of the page that take the place of the colours drawn with."""

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
    """Draw a chart and return it as an SVG element for an HTML page.

    Parameters
    ----------
    draw : callable
        Draws into the axes it is given.
    name : str
        Identifier that is unique within the page; all identifiers inside start with it.
    title, description : str
        What the chart shows, in a few words and with its main numbers.
    size : tuple of float
        Width and height [inches]; the page scales the chart.

    Returns
    -------
    markupsafe.Markup
        The element; text stays text, and colours are the CSS variables of `VARIABLES`.

    Examples
    --------
    >>> svg = inline_svg(lambda ax: ax.plot([1, 2]), "line", "A line", "It rises from 1 to 2.", (4, 3))
    >>> svg[:41]
    Markup('<svg viewBox="0 0 288 216" role="img" ari')
    """
    image = io.BytesIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        figure.savefig(image, format="svg", metadata={"Date": None})
    return Markup(_embedded(image.getvalue(), name, title, description))


def _embedded(image: bytes, name: str, title: str, description: str) -> str:
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
        # The renderer's style sheet would hold for the whole page.
        for style in [child for child in parent if _local(child.tag) == "style"]:
            parent.remove(style)
    for element in svg.iter():
        element.tag = _local(element.tag)
        element.attrib = dict(_attributes(element, name))
    return ElementTree.tostring(svg, encoding="unicode")


def _local(tag: str) -> str:
    return _NAMESPACE.sub("", tag)


def _attributes(element: ElementTree.Element, name: str) -> Iterator[tuple[str, str]]:
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
