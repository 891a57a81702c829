"""Figures of errors, and the common parts of all figures: colours, bars of intervals, the style of SVG files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.report.charts import BLUE, GREEN, LABEL_SIZE, ORANGE, PURPLE, round_ticks, tidy, time_axis
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.predictions import Score, rtt_group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK = "#1b1b1f"
COLORS = (BLUE, ORANGE, GREEN, PURPLE)
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tcpdelay",
    "font.size": LABEL_SIZE,
    "legend.frameon": False,
    "legend.fontsize": LABEL_SIZE - 1,
    "figure.facecolor": "white",
}


def with_ends(intervals: Sequence[Interval]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values, and the lengths of the bars below and above them, shape (2, n)."""
    table = np.array(intervals, np.float64).reshape(-1, 3)
    return table[:, 0], np.array([table[:, 0] - table[:, 1], table[:, 2] - table[:, 0]])


def model_names(scores: Iterable[Score]) -> list[str]:
    """Return the names of the models without repetition."""
    return list(dict.fromkeys(score.model for score in scores))


def draw_svg(draw: Callable[[Figure], None], size: tuple[float, float]) -> bytes:
    """Return a figure of a given size [inches] as SVG, drawn by `draw`."""
    image = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()


def draw_scatter(figure: Figure, scores: Sequence[Score]) -> None:
    """Draw predicted against measured 95th percentiles, with one panel for each model."""
    models = model_names(scores)
    panels: Sequence[Axes] = figure.subplots(1, len(models), squeeze=False, sharex=True, sharey=True)[0]
    shown = [score.measured.p95.value for score in scores]
    shown += [delay for score in scores if math.isfinite(delay := score.predicted("p95"))]
    low, high = min(shown) / 1.3, max(shown) * 1.3
    for ax, model in zip(panels, models, strict=True):
        _log_log(ax, low, high)
        ax.xaxis.set_major_locator(LogLocator())  # more labels than powers of ten would run together
        ax.plot([low, high], [low, high], color=INK, linewidth=0.8)
        for place, group in _rtt_groups(scores, model):
            points = [score for score in group if math.isfinite(score.predicted("p95"))]
            _points(
                ax,
                [score.measured.p95 for score in points],
                [score.predicted("p95") for score in points],
                COLORS[place[0]],
                f"RTT {place[1]}",
            )
        ax.set_title(model, fontsize=LABEL_SIZE)
        ax.set_xlabel("measured 95th percentile")
    panels[0].set_ylabel("predicted 95th percentile")
    panels[0].legend(loc="upper left")


def draw_errors(figure: Figure, scores: Sequence[Score]) -> None:
    """Draw predicted over measured 95th percentiles; infinite predictions are at the upper edge."""
    models = model_names(scores)
    panels: Sequence[Axes] = figure.subplots(1, len(models), squeeze=False, sharex=True, sharey=True)[0]
    carried = [score for score in scores if score.measured.sustainable and score.measured.utilization > 0]
    ratios = [1 + error for score in carried if math.isfinite(error := score.error("p95"))]
    low, high = min([0.5, *ratios]) / 1.3, max([2.0, *ratios]) * 1.8
    for ax, model in zip(panels, models, strict=True):
        tidy(ax)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        ax.axhline(1, color=INK, linewidth=0.8)
        ax.axvline(LARGEST_SUSTAINABLE_UTILIZATION, color=INK, linewidth=0.8, linestyle="dotted")
        for place, group in _rtt_groups(carried, model):
            color, known = COLORS[place[0]], [one for one in group if 1 + one.error("p95") > 0]
            never = [one.measured.utilization for one in known if math.isinf(one.error("p95"))]
            ax.plot(never, [high / 1.15] * len(never), "^", markersize=4, color=color)
            _ratios(ax, [one for one in known if math.isfinite(one.error("p95"))], color, f"RTT {place[1]}")
        round_ticks(ax.xaxis, *ax.get_xlim())
        round_ticks(ax.yaxis, low, high)
        _plain_numbers(ax)
        ax.set_title(f"{model}; ▲ never", fontsize=LABEL_SIZE)
        ax.set_xlabel("utilization")
    panels[0].set_ylabel("p95: predicted / measured")
    panels[0].legend(loc="upper left")


def _points(ax: Axes, measured: Sequence[Interval], predicted: Sequence[float], color: str, label: str) -> None:
    values, ends = with_ends(measured)
    ax.errorbar(values, predicted, xerr=ends, fmt="o", markersize=3, linewidth=0.8, color=color, label=label)


def _ratios(ax: Axes, scores: Sequence[Score], color: str, label: str) -> None:
    """Draw predicted / measured with the interval that follows from the measurement's interval."""
    ratios = np.array([1 + score.error("p95") for score in scores])
    intervals = np.array([score.measured.p95 for score in scores]).reshape(-1, 3)
    # The upper end of the measurement's interval gives the lower end of the ratio.
    ends = [ratios * (1 - intervals[:, 0] / intervals[:, 2]), ratios * (intervals[:, 0] / intervals[:, 1] - 1)]
    utilizations = [score.measured.utilization for score in scores]
    ax.errorbar(utilizations, ratios, yerr=ends, fmt="o", markersize=3, linewidth=0.8, color=color, label=label)


def _log_log(ax: Axes, low: float, high: float) -> None:
    tidy(ax)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    for axis in (ax.xaxis, ax.yaxis):
        round_ticks(axis, low, high)
        time_axis(axis)


def _plain_numbers(ax: Axes) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")


def _rtt_groups(scores: Sequence[Score], model: str) -> list[tuple[tuple[int, str], list[Score]]]:
    groups: dict[tuple[int, str], list[Score]] = {}
    for score in scores:
        if score.model == model:
            groups.setdefault(rtt_group(score.measured.path.rtt), []).append(score)
    return sorted(groups.items(), key=lambda item: item[0])
