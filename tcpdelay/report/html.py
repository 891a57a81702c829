"""Self-contained HTML pages: the report, whose charts are SVG elements with the colours of the page, and the explorer.

The explorer has predictions for a range of paths and bitrates, and sliders to select a scenario.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tcpdelay.accuracy.validity import LINUX_RANGE
from tcpdelay.advice.guideline import SourceFindings
from tcpdelay.report import phrases
from tcpdelay.report.charts import (
    BLUE,
    GREEN,
    LABEL_SIZE,
    ORANGE,
    PURPLE,
    plot_delay_parts,
    plot_distribution,
    plot_later,
    plot_quantile_against_loss,
)
from tcpdelay.report.document import code_spans
from tcpdelay.scenario.path import PATH_PRESETS, Path, PathPreset
from tcpdelay.scenario.stack import DEFAULT_STACK
from tcpdelay.study.explorer import CODECS, PROBABILITIES, knots
from tcpdelay.units import format_fraction, format_rate, format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.advice.guideline import Findings
    from tcpdelay.report.document import Content
    from tcpdelay.study.explorer import Accuracy, Surfaces

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
            lambda ax: plot_distribution(distribution, ax, thresholds=marks, counted=messages),
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
    environment.filters["code_spans"] = code_spans
    return environment


# The explorer.

SCRIPTS = ("explorer_surfaces.js", "explorer_charts.js", "explorer_sound.js", "explorer.js")
LARGEST_CODE = 65_534
"""Largest 16-bit code of a known value; the code above means that the value is not known."""
SPOKEN = ("voip", "opus", "voice-agent")
"""Applications whose packets can be heard: they carry speech without pauses."""
SENTENCES = "spoken_sentences.wav"
"""Two spoken sentences, 8000 samples of 8 bits per second; `docs/spoken_sentence.py` makes the file."""
FIGURES = (
    ("mean", "mean delay"),
    *((quantile_name(q), f"{format_fraction(q)} come within") for q in (0.5, 0.9, 0.95, 0.99, 0.999)),
    ("late", "later than the limit"),
    ("mos", "mean opinion score, G.711, at the best playout delay"),
    ("edge", "works up to a loss of"),
    ("headroom", "largest rate that TCP carries, in multiples of this bitrate"),
    ("expected-error", "expected error of the chain's p95"),
)


def to_html(explored: Sequence[tuple[Surfaces, Accuracy]], path: PathPreset | None = None) -> str:
    """Return the explorer as a self-contained page; the page's content security policy forbids all other sources."""
    if not explored:
        raise ValueError("explored must hold one application or more")
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = {
        "probabilities": PROBABILITIES.tolist(),
        "packetSizes": LINUX_RANGE.packet_size,
        "intervals": LINUX_RANGE.interval,
        "speech": _speech() if any(surfaces.application.name in SPOKEN for surfaces, _ in explored) else "",
        "paths": [
            {"name": preset.name, "title": preset.title, **_place(preset)}
            for preset in PATH_PRESETS.values()
            if in_range(preset)
        ],
        "start": {"rtt": 0.1, "loss": 0.02} if path is None else _place(path),
        "applications": [_record(surfaces, accuracy) for surfaces, accuracy in explored],
    }
    return (
        environment()
        .get_template("explorer.html.j2")
        .render(
            applications=[surfaces.application for surfaces, _ in explored],
            figures=FIGURES,
            paths=[preset for preset in PATH_PRESETS.values() if in_range(preset)],
            data=Markup(json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
        )
    )


def _place(preset: PathPreset) -> dict[str, float]:
    """Return the mean round-trip time [s] and the loss of a preset; the page has no jitter and no bad states."""
    path = Path.preset(preset.name)
    return {"rtt": path.mean_rtt, "loss": path.loss}


def in_range(preset: PathPreset) -> bool:
    """Return whether the page has the round-trip time and the loss of a preset."""
    place = _place(preset)
    ranges = (LINUX_RANGE.rtt, place["rtt"]), (LINUX_RANGE.loss, place["loss"])
    return all(low <= value <= high for (low, high), value in ranges)


def _script() -> str:
    """Return the page's scripts as one script, in a function so that it defines no global names."""
    loader = environment().loader
    assert loader is not None
    sources = [loader.get_source(environment(), name)[0] for name in SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *sources, "})();"])


def _speech() -> str:
    """Return the samples of the spoken sentences, in base 64."""
    with files("tcpdelay.report").joinpath("templates", SENTENCES).open("rb") as file, wave.open(file) as spoken:
        return base64.b64encode(spoken.readframes(spoken.getnframes())).decode()


def _record(surfaces: Surfaces, accuracy: Accuracy) -> dict[str, Any]:
    application, known = surfaces.application, knots(surfaces)
    stored = {name: values for name, values in known._asdict().items() if name != "mos" or application.name in CODECS}
    return {
        "name": application.name,
        "title": application.title,
        "spoken": application.name in SPOKEN,
        "basis": application.basis,
        "limit": application.target.limit,
        "quantile": application.target.quantile,
        "packetSize": application.flow.packet_size,
        "interval": application.flow.interval,
        "bitrateOfApp": application.flow.bitrate,
        "mss": DEFAULT_STACK.mss,
        "bitrate": surfaces.bitrate.tolist(),
        "rtt": surfaces.rtt.tolist(),
        "loss": surfaces.loss.tolist(),
        "edgeRtt": surfaces.edge_rtt.tolist(),
        "edges": [[low, high if math.isfinite(high) else None] for low, high in surfaces.edges.reshape(-1, 2).tolist()],
        "surfaces": {name: encoded(values, surfaces.cells.ndim) for name, values in stored.items()},
        "accuracy": in_words(accuracy, application.target.quantile),
    }


def encoded(values: NDArray[np.float64], dimensions: int) -> dict[str, float | int | str]:
    """Return values as 16-bit codes from the smallest to the largest value, in base 64."""
    known = ~np.isnan(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    span = high - low or 1.0
    codes = np.where(known, np.rint((np.where(known, values, low) - low) / span * LARGEST_CODE), LARGEST_CODE + 1)
    width = int(np.prod(values.shape[dimensions:]))
    return {
        "low": low,
        "high": low + span,
        "width": width,
        "codes": base64.b64encode(codes.astype("<u2").tobytes()).decode(),
    }


def in_words(accuracy: Accuracy, quantile: float) -> str:
    """Return the accuracy of the interpolation in words."""
    errors = *accuracy.quantile, *accuracy.mean, *accuracy.late_fraction
    shown = [format_fraction(float(f"{error:.2g}")) for error in errors]
    return (
        "The loss up to which it works was searched with the chain; between the points of that search it is a range. "
        f"All other figures above are interpolated. They were compared with the chain at {accuracy.points} random "
        f"points. {quantile_name(quantile)} differed by {shown[0]} in the median, and by up to {shown[1]} at nine of "
        f"ten points. The mean differed by {shown[2]} and {shown[3]}, the late fraction by {shown[4]} and {shown[5]} "
        f"of the packets. The verdict was wrong at {accuracy.wrong} points and uncertain at {accuracy.unsettled}. "
        "Where quantiles jump, the error is larger."
    )
