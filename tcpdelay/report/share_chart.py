"""The chart of how many rows of each group are inside the working region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tcpdelay.report.chart_labels import LABEL_SIZE, fraction_axis, message, tidy
from tcpdelay.report.charts import BLUE, current_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tcpdelay.report.result_table import ResultTable

MOST_GROUPS = 40
"""Groups that are drawn, the first ones."""
_HEIGHT, _FRAME = 0.28, 1.1
"""Height of a group, and of all around them [inches]."""


def chart_height(counted: ResultTable) -> float:
    """Return the height that the chart of a table needs [inches]."""
    return _FRAME + _HEIGHT * max(min(len(counted.rows), MOST_GROUPS), 2)


def plot_working_shares(counted: ResultTable, keys: int, ax: Axes | None = None) -> Axes:
    """Draw the share of each group with its confidence interval.

    Parameters
    ----------
    counted : ResultTable
        The table of `tcpdelay.batch.summary.WorkingShares`.
    keys : int
        How many of its columns name the group.
    ax : Axes, optional
        Where to draw; the current axes of pyplot by default.

    Returns
    -------
    Axes
        Shares in percent, a line for each group from the top.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> import pyarrow as pa
    >>> from tcpdelay.batch.summary import WorkingShares
    >>> shares = WorkingShares(["region"])
    >>> rows = {"region": ["north", "south"], "works": [True, False], "reason": pa.nulls(2, pa.string())}
    >>> shares.add(pa.record_batch(rows))
    >>> axes = plot_working_shares(shares.table("95th percentile within 200 ms"), 1, Figure().subplots())
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['north (1)', 'south (1)', 'all (2)']
    """
    ax = current_axes() if ax is None else ax
    # All rows together come last, and are kept.
    rows = [row for row in counted.rows if row["works"] is not None]
    rows = rows[: MOST_GROUPS - 1] + rows[-1:] if len(rows) > MOST_GROUPS else rows
    if not rows:
        return message(ax, "No row has a prediction")
    names = [column.key for column in counted.columns[:keys]]
    labels = []
    for place, row in enumerate(rows):
        share, low, high = (float(row[key] or 0.0) for key in ("works", "low", "high"))
        ax.plot([low, high], [place, place], color=BLUE, linewidth=2, solid_capstyle="butt")
        ax.plot([share], [place], "o", color=BLUE, markersize=5, clip_on=False)
        group = ", ".join(str(row[name]) for name in names if row[name] != "") or "all"
        labels.append(f"{group} ({row['rows']})")
    ax.set_yticks(range(len(rows)), labels)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    fraction_axis(ax.xaxis)
    ax.set_xlabel("Share of the rows inside the working region, with its interval of 95 %")
    ax.set_title(counted.title, loc="left", fontsize=LABEL_SIZE)
    ax.grid(axis="x", alpha=0.3)
    tidy(ax)
    return ax
