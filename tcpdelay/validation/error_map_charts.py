"""The map of the chain's error: its mean size by utilization and packets per round-trip time, and by path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

from tcpdelay.report.chart_labels import LABEL_SIZE, tidy
from tcpdelay.report.charts import ORANGE
from tcpdelay.units import format_fraction, format_time
from tcpdelay.validation.chart_parts import INK
from tcpdelay.validation.charts import draw_svg
from tcpdelay.validation.error_map_scores import MapScore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FIGURE = "error-map.svg"
SIZE = (12.0, 5.0)
LARGEST_SHOWN = 0.30
"""Error at which the colour is deepest."""
ROUNDED_FROM = 9.95
"""Percentage from which on it is shown without decimals."""
FEW = 5
"""Cases below which a cell's figure is drawn faintly."""
COLORS = LinearSegmentedColormap.from_list("errors", ["white", ORANGE])


@dataclass(frozen=True)
class Scale:
    """One axis of the map.

    Parameters
    ----------
    label : str
        What it shows.
    of : callable
        Returns the value of a score.
    edges : sequence of float
        Edges of its cells, ascending; what lies outside belongs to the nearest cell.
    shown : callable
        Returns an edge in words.
    """

    label: str
    of: Callable[[MapScore], float]
    edges: Sequence[float]
    shown: Callable[[float], str]

    def cell(self, score: MapScore) -> int:
        """Return the number of the cell that a score lies in."""
        place = int(np.searchsorted(self.edges, self.of(score), side="right")) - 1
        return min(max(place, 0), len(self.edges) - 2)


UTILIZATION = Scale(
    "utilization",
    lambda score: score.scenario.utilization,
    (0.01, 0.03, 0.1, 0.2, 1 / 3, 0.5, 2 / 3, 0.9, 1.2),
    lambda edge: f"{edge:.2g}",
)
PACKETS_PER_RTT = Scale(
    "packets per round-trip time",
    lambda score: score.scenario.packets_per_rtt,
    (0.25, 0.5, 1, 2, 4, 8, 16, 32),
    lambda edge: f"{edge:g}",
)
RTT = Scale(
    "round-trip time", lambda score: score.scenario.path.rtt, (0.005, 0.010, 0.020, 0.050, 0.1, 0.16, 0.4), format_time
)
LOSS = Scale(
    "loss", lambda score: score.scenario.path.loss, (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), format_fraction
)
PANELS = ((UTILIZATION, PACKETS_PER_RTT), (RTT, LOSS))


def error_map(scores: Sequence[MapScore]) -> bytes:
    """Return the map as SVG: mean |chain / simulator - 1| of the 95th percentile where both say that TCP carries it."""
    return draw_svg(lambda figure: _draw_panels(figure, [one for one in scores if one.both_carried]), SIZE)


def _draw_panels(figure: Figure, scores: Sequence[MapScore]) -> None:
    panels: Sequence[Axes] = figure.subplots(1, len(PANELS))
    for ax, (across, up) in zip(panels, PANELS, strict=True):
        _draw_panel(ax, scores, across, up)
    panels[0].set_title("mean error of the 95th percentile [%]", fontsize=LABEL_SIZE, loc="left")


def _draw_panel(ax: Axes, scores: Sequence[MapScore], across: Scale, up: Scale) -> None:
    errors: dict[tuple[int, int], list[float]] = {}
    for score in scores:
        errors.setdefault((up.cell(score), across.cell(score)), []).append(abs(score.error("p95")))
    means = np.full((len(up.edges) - 1, len(across.edges) - 1), np.nan)
    for place, sizes in errors.items():
        means[place] = np.mean(sizes)
    tidy(ax)
    ax.pcolormesh(
        np.arange(len(across.edges)),
        np.arange(len(up.edges)),
        means,
        cmap=COLORS,
        norm=PowerNorm(0.5, 0, LARGEST_SHOWN, clip=True),
        edgecolors="white",
    )
    for (row, column), sizes in errors.items():
        percent = 100 * means[row, column]
        ax.text(
            column + 0.5,
            row + 0.5,
            f"{percent:.0f}" if percent >= ROUNDED_FROM else f"{percent:.1f}",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            color=INK,
            alpha=1.0 if len(sizes) >= FEW else 0.5,
        )
    for axis, scale in ((ax.xaxis, across), (ax.yaxis, up)):
        _label(axis, scale)


def _label(axis: Axis, scale: Scale) -> None:
    inner = scale.edges[1:-1]
    axis.set_ticks(range(1, len(inner) + 1), [scale.shown(edge) for edge in inner])
    axis.set_label_text(scale.label)
