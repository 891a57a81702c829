"""Charts and tables of working regions, their boundaries, and the share of rows of a table that meet the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.declare import InvalidValueError
from tcpdelay.report.charts import (
    BLUE,
    CYCLE,
    LABEL_SIZE,
    LINE_WIDTH,
    current_axes,
    fraction_axis,
    message,
    note_where_free,
    round_ticks,
    tidy,
    time_axis,
)
from tcpdelay.report.document import Cell, Column, ResultTable, html_table
from tcpdelay.report.prediction import source_in_words
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import checked_arguments
from tcpdelay.statistics import share_interval
from tcpdelay.study.boundary import WorkingBoundary
from tcpdelay.study.region import VERDICTS
from tcpdelay.study.tables.rows import COUNTED, group_order
from tcpdelay.units import format_fraction, format_time, quantile_name

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from tcpdelay.delays import DelayDistribution
    from tcpdelay.scenario.path import PathPreset
    from tcpdelay.study.tables.rows import WorkingShares


Fill = Literal["delay", "mos"]

LEVELS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Delays at which the colour changes, in multiples of the limit; blue up to the limit, orange above it."""
SCORES = (2.58, 3.10, 3.60, 4.03, 4.34)
"""Lowest scores of the classes of user satisfaction of narrowband calls, from "nearly all users dissatisfied" to "very
satisfied" (ITU-T G.107, table B.1); blue from the third score."""
UNCERTAIN = "uncertain, by the expected error of the model"
"""Meaning of hatched cells and shaded bands."""
MOST_INSIDE = 4
"""Largest number of names in a legend inside the chart."""
AXIS_MARGIN = 1.06
"""Factor between the outermost mark and the end of its axis."""
_COLORS = ("#08519c", "#3182bd", "#6baed6", "#c6dbef", "#fdd0a2", "#fd8d3c", "#a63603")
_SCORE_COLORS = ("#a63603", "#e6550d", "#fdd0a2", "#c6dbef", "#6baed6", "#08519c")

_STYLES = ("-", "--", "-.", ":")


@checked_arguments
def plot_region(
    region: xr.Dataset, boundary: WorkingBoundary | None = None, ax: Axes | None = None, *, fill: Fill = "delay"
) -> Axes:
    """Draw the target's quantile of the delay, or the score of a call, over round-trip time and loss.

    Parameters
    ----------
    region : xarray.Dataset
        Result of `tcpdelay.working_region`, with at least two round-trip times and two losses; all losses above 0.
    boundary : WorkingBoundary, optional
        The boundary of the working region, to be drawn as a line.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.
    fill : {"delay", "mos"}
        Meaning of the colours: the delay in multiples of the limit, or the mean opinion score in the classes of
        user satisfaction of ITU-T G.107, Annex B. Hatched cells are those with the verdict "uncertain".

    Returns
    -------
    Axes
        Round-trip time [s] against loss, both logarithmic, with a scale of colours beside them.

    Raises
    ------
    ValueError
        If the region is not an area on logarithmic axes, or has no scores to draw.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from tcpdelay.study.region import working_region
    >>> plot_region(working_region("voip", rtt=[0.05, 0.1], loss=[0.01, 0.02]), ax=Figure().subplots()).get_xscale()
    'log'
    """
    from matplotlib.colors import BoundaryNorm, ListedColormap

    if not {"rtt", "loss"} <= set(getattr(region, "sizes", ())):
        raise InvalidValueError("region", region, "be a Dataset of working_region")
    ax = current_axes(ax)
    if min(region.sizes["rtt"], region.sizes["loss"]) < 2 or not region.loss[0] > 0:
        raise ValueError("region must have two round-trip times and two losses above 0 or more to be drawn")
    if fill == "mos" and "mos" not in region:
        raise InvalidValueError("fill", fill, "be 'delay' for a region without scores")
    limit = float(region.attrs["limit"])
    colors: tuple[str, ...]
    if fill == "delay":
        levels, colors, values = [limit * level for level in LEVELS], _COLORS, region["quantile"]
        name, ticks = f"{quantile_name(region.attrs['quantile'])} of the delay", list(map(format_time, levels))
    else:
        levels, colors, values = list(SCORES), _SCORE_COLORS, region["mos"]
        name, ticks = f"mean opinion score, {region.attrs['codec']}", [f"{level:.2f}" for level in levels]
    # Where the chain is too large to solve, the delay is not known, and nothing is drawn.
    shades = np.ma.masked_invalid(np.where(np.isposinf(values), 2 * levels[-1], values).T)
    shown = ax.pcolormesh(
        region.rtt,
        region.loss,
        shades,
        norm=BoundaryNorm(levels, len(colors), extend="both"),
        cmap=ListedColormap(list(colors)),
        shading="nearest",
    )
    _axes(ax, region.rtt.values, region.loss.values)
    _hatch_uncertain(ax, region)
    figure = ax.get_figure()
    assert figure is not None
    scale = figure.colorbar(shown, ax=ax, ticks=levels, extend="both", spacing="uniform")
    scale.set_label(name, size=LABEL_SIZE)
    scale.ax.set_yticklabels(ticks)
    if boundary is not None:
        _draw_boundary(ax, boundary, "black", "-")
        points = _from_the_middle(boundary)
        if points:
            note_where_free(ax, f"{format_time(limit)}; works below", points, "black")
            # The colours below may be dark.
            ax.texts[-1].set_bbox({"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5})
    return ax


def _hatch_uncertain(ax: Axes, region: xr.Dataset) -> None:
    """Hatch the cells in which the expected error reaches across the limit, and name them above the chart."""
    from matplotlib.colors import ListedColormap

    uncertain = (region.verdict == VERDICTS.index("uncertain")).values.T
    if not uncertain.any():
        return
    cells = np.ma.masked_where(~uncertain, uncertain)
    look: dict[str, Any] = {"cmap": ListedColormap(["none"]), "edgecolor": "black", "hatch": "////", "linewidth": 0}
    ax.pcolor(region.rtt, region.loss, cells, shading="nearest", **look)
    ax.set_title(f"hatched: {UNCERTAIN}", fontsize=LABEL_SIZE, loc="left")


@checked_arguments
def plot_boundaries(boundaries: Mapping[str, WorkingBoundary], ax: Axes | None = None) -> Axes:
    """Draw the boundaries of the working regions of several flows or stacks.

    Parameters
    ----------
    boundaries : mapping of str to WorkingBoundary
        The boundaries by name; each flow works below its line.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.

    Returns
    -------
    Axes
        Round-trip time [s] against loss, both logarithmic.

    Raises
    ------
    ValueError
        If there is no boundary.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from tcpdelay.study.boundary import working_boundary
    >>> edge = working_boundary("voip", rtt=[0.05, 0.1, 0.2])
    >>> [line.get_label() for line in plot_boundaries({"a call": edge}, Figure().subplots()).lines]
    ['a call']
    """
    ax = current_axes(ax)
    _require_boundaries(boundaries)
    sides = [_sides(each) for each in boundaries.values()]
    for i, (name, each) in enumerate(boundaries.items()):
        _draw_boundary(ax, each, CYCLE[i % len(CYCLE)], _STYLES[i // len(CYCLE) % len(_STYLES)], name)
    rtts, losses = (np.concatenate([side[which] for side in sides]) for which in (0, 1))
    _axes(ax, rtts, losses[np.isfinite(losses)])
    _legend(ax)
    return ax


def boundary_html(boundary: WorkingBoundary) -> str:
    """Return both sides of a boundary at each of its points."""
    target = boundary.target
    demand = f"{format_fraction(target.quantile)} of the packets within {format_time(target.limit)}"
    formats, names = [format_time, format_fraction], ["round-trip time", "loss"]
    if boundary.searched == "rtt":
        formats, names = formats[::-1], names[::-1]
    at, searched = formats
    rows = [
        (at(point), *("–" if np.isnan(side) else searched(side) for side in (works, fails)))
        for point, works, fails in zip(
            boundary.at.tolist(), boundary.works_up_to.tolist(), boundary.fails_from.tolist(), strict=True
        )
    ]
    columns = (names[0], f"{names[1]}: works up to", f"{names[1]}: fails from")
    return html_table(f"Boundary of the working region, {demand}", columns, rows)


def _require_boundaries(given: object) -> None:
    """Raise InvalidValueError if an argument holds anything but boundaries."""
    boundaries = given.values() if isinstance(given, Mapping) else ()
    if not boundaries or not all(isinstance(each, WorkingBoundary) for each in boundaries):
        raise InvalidValueError("boundaries", given, "hold at least one boundary of working_boundary by its name")


def mark_measured(ax: Axes, rtt: ArrayLike, loss: ArrayLike, works: ArrayLike | None = None) -> Axes:
    """Draw measurements at round-trip times [s] and losses on a chart of a region or its boundaries.

    A circle means that the target was met, a cross that it was missed; without `works`, all points have the same mark.
    """
    rtts, losses = np.asarray(rtt, np.float64), np.asarray(loss, np.float64)
    _widen(ax, rtts, losses)
    ring: dict[str, Any] = {"color": "black", "markersize": 5, "markerfacecolor": "white"}
    if works is None:
        ax.plot(rtts, losses, "D", label="measured", **ring)
    else:
        met = np.asarray(works, np.bool_)
        ax.plot(rtts[met], losses[met], "o", label="measured: works", **ring)
        ax.plot(rtts[~met], losses[~met], "x", color="black", markersize=6, label="measured: does not")
    _legend(ax)
    return ax


def mark_paths(ax: Axes, presets: Sequence[PathPreset]) -> Axes:
    """Draw presets of paths on the chart of a region or its boundaries: their mean round-trip times and losses."""
    paths = [Path.preset(preset.name) for preset in presets]
    rtts, losses = np.array([path.mean_rtt for path in paths]), np.array([path.loss for path in paths])
    _widen(ax, rtts, losses)
    ax.plot(rtts, losses, "D", color="black", markersize=5, markerfacecolor="white")
    for preset, rtt, loss in zip(presets, rtts, losses, strict=True):
        place: dict[str, Any] = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": LABEL_SIZE}
        ax.annotate(
            preset.name, (rtt, loss), **place, bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
        )
    return ax


def _legend(ax: Axes) -> None:
    """Add the legend: inside the chart if it has few names, otherwise beside it."""
    shown: dict[str, Any] = {"fontsize": LABEL_SIZE, "edgecolor": "none"}
    if len(ax.get_legend_handles_labels()[1]) > MOST_INSIDE:
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), **shown)
    else:
        ax.legend(loc="best", framealpha=0.9, **shown)


def _widen(ax: Axes, rtts: NDArray[np.float64], losses: NDArray[np.float64]) -> None:
    """Extend logarithmic axes so that they contain all marks."""
    for axis, limits, set_limits, values in (
        (ax.xaxis, ax.get_xlim(), ax.set_xlim, rtts),
        (ax.yaxis, ax.get_ylim(), ax.set_ylim, losses),
    ):
        if values.size and axis.get_scale() == "log":
            low, high = min(limits[0], values.min() / AXIS_MARGIN), max(limits[1], values.max() * AXIS_MARGIN)
            set_limits(low, high)
            round_ticks(axis, low, high)


def _sides(boundary: WorkingBoundary) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return round-trip times [s] and losses of a boundary."""
    if boundary.searched == "loss":
        return boundary.at, boundary.works_up_to
    return boundary.works_up_to, boundary.at


def _draw_boundary(ax: Axes, boundary: WorkingBoundary, color: str, style: str, label: str | None = None) -> None:
    """Draw a boundary, and a band where the verdict is uncertain; say above the chart what the band means."""
    rtts, losses = _sides(boundary)
    ax.plot(rtts, losses, color=color, linewidth=LINE_WIDTH, linestyle=style, label=label)
    # The verdict is uncertain between the two ends that the expected error allows.
    along = ax.fill_between if boundary.searched == "loss" else ax.fill_betweenx
    along(boundary.at, boundary.certain_up_to, boundary.impossible_from, color=color, alpha=0.15, linewidth=0)
    if np.isfinite(boundary.certain_up_to + boundary.impossible_from).any():
        marks = "hatched or shaded" if any(each.get_hatch() for each in ax.collections) else "shaded"
        ax.set_title(f"{marks}: {UNCERTAIN}", fontsize=LABEL_SIZE, loc="left")


def _from_the_middle(boundary: WorkingBoundary) -> list[tuple[float, float]]:
    """Return the points of a boundary, those in the middle first."""
    rtts, losses = _sides(boundary)
    known = np.flatnonzero(np.isfinite(boundary.fails_from) & np.isfinite(boundary.works_up_to))
    outward = known[np.argsort(np.abs(np.arange(known.size) - known.size // 2), kind="stable")]
    return list(zip(rtts[outward].tolist(), losses[outward].tolist(), strict=True))


def _axes(ax: Axes, rtts: NDArray[np.float64], losses: NDArray[np.float64]) -> None:
    """Set logarithmic axes with units over the range of the values."""
    tidy(ax)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis, set_limits, values in ((ax.xaxis, ax.set_xlim, rtts), (ax.yaxis, ax.set_ylim, losses)):
        known = values[np.isfinite(values)]
        if known.size and known.min() < known.max():
            low, high = float(known.min()), float(known.max())
            set_limits(low, high)
            round_ticks(axis, 0.999 * low, 1.001 * high)
    time_axis(ax.xaxis)
    fraction_axis(ax.yaxis)
    ax.set_xlabel("round-trip time")
    ax.set_ylabel("loss")


ALL = "all"
MOST_GROUPS = 40
"""Largest number of groups in a chart: the first groups of the table, and all rows together."""
_HEIGHT, _FRAME = 0.28, 1.1
"""Height of a group, and height above and below the groups [inches]."""


def chart_height(counted: ResultTable) -> float:
    """Return the height that the chart of a table needs [inches]."""
    return _FRAME + _HEIGHT * max(min(len(counted.rows), MOST_GROUPS), 2)


def working_shares_table(shares: WorkingShares, title: str) -> ResultTable:
    """Return the shares of rows that work, are uncertain and fail, by group and in all rows."""
    names = shares.by
    groups = [(group, shares.counts[group]) for group in sorted(shares.counts, key=group_order)]
    if names or not groups:
        everything = (
            np.sum(list(shares.counts.values()), axis=0) if shares.counts else np.zeros(2 + len(COUNTED), np.int64)
        )
        groups.append(((ALL, *[""] * (len(names) - 1))[: len(names)], everything))
    columns = (
        *(Column(name, name) for name in names),
        Column("rows", "rows", "count"),
        Column("without_prediction", "without prediction", "count"),
        Column("works", "works", "fraction", "low", "high"),
        Column("uncertain", "uncertain", "fraction"),
        Column("fails", "fails", "fraction"),
    )
    note = (
        "Shares of the rows with a prediction. A row works if its delays meet the target, and fails if they miss it; "
        "it is uncertain if the chain's expected error allows both. "
        "In brackets: interval of 95 % if the rows are a random sample of their group (Clopper and Pearson)."
    )
    rows = [_shares_row(names, group, *counts.tolist()) for group, counts in groups]
    return ResultTable("working-shares", title, columns, rows, note)


def _shares_row(
    names: tuple[str, ...], group: tuple[Any, ...], rows: int, known: int, working: int, uncertain: int
) -> dict[str, Any]:
    share = share_interval(working, known)
    return {
        **{name: "none" if value is None else str(value) for name, value in zip(names, group, strict=True)},
        "rows": rows,
        "without_prediction": rows - known,
        "works": share.value if known else None,
        "low": share.low if known else None,
        "high": share.high if known else None,
        "uncertain": uncertain / known if known else None,
        "fails": (known - working - uncertain) / known if known else None,
    }


def plot_working_shares(counted: ResultTable, keys: int, ax: Axes | None = None) -> Axes:
    """Draw the share of working rows of each group with its confidence interval, and the share of uncertain rows.

    `counted` is a `working_shares_table`, whose first `keys` columns name the group.
    """
    ax = current_axes(ax)
    # The last row of the table, all rows together, is always drawn.
    rows = [row for row in counted.rows if row["works"] is not None]
    rows = rows[: MOST_GROUPS - 1] + rows[-1:] if len(rows) > MOST_GROUPS else rows
    if not rows:
        return message(ax, "No row has a prediction")
    names = [column.key for column in counted.columns[:keys]]
    labels = []
    for place, row in enumerate(rows):
        share, low, high = (float(row[key] or 0.0) for key in ("works", "low", "high"))
        uncertain = float(row["uncertain"] or 0.0)
        ax.barh(place, uncertain, left=share, height=0.3, color="0.5", alpha=0.4, linewidth=0)
        ax.plot([low, high], [place, place], color=BLUE, linewidth=2, solid_capstyle="butt")
        ax.plot([share], [place], "o", color=BLUE, markersize=5, clip_on=False)
        group = ", ".join(str(row[name]) for name in names if row[name] != "") or "all"
        labels.append(f"{group} ({row['rows']})")
    ax.set_yticks(range(len(rows)), labels)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    fraction_axis(ax.xaxis)
    ax.set_xlabel("Share of the rows that work, with its interval of 95 %; grey: uncertain rows beside them")
    ax.set_title(counted.title, loc="left", fontsize=LABEL_SIZE)
    ax.grid(axis="x", alpha=0.3)
    tidy(ax)
    return ax


# The edges of working regions, as a table.


@dataclass(frozen=True)
class Edge:
    """The edge of the working region of one flow over one stack."""

    app: str | None  # The application that sends the flow, if there is one
    stack: str  # Name of the TCP profile
    boundary: WorkingBoundary  # The boundary at which the flow first misses its target
    # The delays at the largest loss that works, for each round-trip time; None if no loss works, or the chain of the
    # whole distribution is too large.
    delays: Sequence[DelayDistribution | None] = ()

    def name(self, among: Sequence[Edge]) -> str:
        """Return a name that distinguishes this edge from the other edges of a chart."""
        parts = []
        if len({edge.app for edge in among}) > 1:
            target = self.boundary.target
            parts.append(f"{self.app}, {quantile_name(target.quantile)} within {format_time(target.limit)}")
        if len({edge.stack for edge in among}) > 1:
            parts.append(self.stack)
        return "; ".join(parts)


def edge_table(edges: Sequence[Edge], call: Mapping[str, Any] | None = None) -> ResultTable:
    """Return a table with a row for each edge and round-trip time, and with the score of a call, if `call` is given.

    `call` has the entries "codec" and "playout_delay". The playout delay is in seconds, "limit" or "best".
    """
    rows = [row for edge in edges for row in _rows(edge, call)]
    first = edges[0].boundary
    apps, stacks = {edge.app for edge in edges}, {edge.stack for edge in edges}
    targets = {edge.boundary.target for edge in edges}
    delay = quantile_name(first.target.quantile) if len(targets) == 1 else "delay"
    columns = [
        *([Column("app", "application")] if len(apps) > 1 else []),
        *([Column("stack", "stack")] if len(stacks) > 1 else []),
        Column("rtt", "round-trip time", "time"),
        Column("works_up_to", "works up to a loss of", "fraction"),
        Column("fails_from", "fails from", "fraction"),
        Column("quantile_there", f"{delay} at the edge", "time"),
        Column("certain_up_to", "certain up to", "fraction"),
        Column("impossible_from", "impossible from", "fraction"),
        *([Column("mos_there", "score", "ratio"), Column("playout_there", "playout", "time")] if call else []),
    ]
    target = first.target
    within = f"{quantile_name(target.quantile)} within {format_time(target.limit)}"
    title = f"{source_in_words(first.flow)}: {within}"
    if len(apps) > 1:
        title = "The largest loss that works" if len(targets) > 1 else f"The largest loss that works: {within}"
    note = (
        "The edge is the smallest loss that fails, within 1 %.\n"
        "Without an edge, the smallest loss of the range fails, or the largest loss works.\n"
        "Between “certain” and “impossible”, the expected error of the prediction leaves the verdict open."
    )
    if len({row["method"] for row in rows}) > 1:
        columns.append(Column("method", "method"))
        note += "\nWhere the chain is too large, the edge is simulated."
    return ResultTable("region", title, columns, rows, note)


def _rows(edge: Edge, call: Mapping[str, Any] | None) -> list[dict[str, Cell]]:
    boundary = edge.boundary
    target = boundary.target
    rows = []
    sides = (boundary.works_up_to, boundary.fails_from, boundary.certain_up_to, boundary.impossible_from)
    known = (column.tolist() for column in (boundary.at, *sides, boundary.simulated))
    for rtt, works, fails, certain, impossible, simulated, delays in zip(*known, edge.delays, strict=True):
        row: dict[str, Cell] = {
            "app": edge.app,
            "stack": edge.stack,
            "rtt": rtt,
            "works_up_to": works,
            "fails_from": fails,
            "quantile_there": None,
            "certain_up_to": certain,
            "impossible_from": impossible,
            "method": "simulation" if simulated else "chain",
        }
        scored = dict.fromkeys(("mos_there", "playout_there")) if call else {}
        if delays is not None:
            row["quantile_there"] = delays.quantile(target.quantile)
            scored = _scored(delays, target.limit, call) if call else {}
        rows.append({**row, **scored})
    return rows


def _scored(delays: DelayDistribution, limit: float, call: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the score of a call, and its playout delay."""
    # Imported here, because the command line's help must not wait for numpy.
    from tcpdelay.quality.voice import voice_quality

    playout = {"limit": limit, "best": None}.get(call["playout_delay"], call["playout_delay"])
    quality = voice_quality(delays, call["codec"], playout)
    return {"mos_there": quality.mos, "playout_there": quality.playout_delay}
