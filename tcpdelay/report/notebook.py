"""Results as HTML fragments for notebooks, which show what `_repr_html_` of a result returns."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import NOT_CARRIED, format_fraction, format_known_time, format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.study.boundary import WorkingBoundary


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return a table of formatted cells; the first cell of a row names the row."""
    headings = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    below = f"<p>{escape(note)}</p>" if note else ""
    head = f"<thead><tr>{headings}</tr></thead>" if any(columns) else ""
    return f"<table><caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table>{below}"


def distribution_html(distribution: DelayDistribution, method: str) -> str:
    r"""Return mean, jitter and quantiles of the delay; `method` names the model."""
    delays = [("mean", distribution.mean), ("jitter", distribution.jitter)]
    delays += [(quantile_name(q), distribution.known_quantile(q)) for q in REPORTED_QUANTILES]
    rows = [(name, format_known_time(delay)) for name, delay in delays]
    note = "; ".join(filter(None, (_carried(distribution), distribution.ended_note)))
    return html_table(f"Delay from write to in-order read, by {method}", ("", ""), rows, note)


def _carried(distribution: DelayDistribution) -> str:
    return distribution.unsettled_note if distribution.sustainable else NOT_CARRIED


def boundary_html(boundary: WorkingBoundary) -> str:
    """Return both sides of a boundary at each of its points."""
    target = boundary.target
    demand = f"{format_fraction(target.quantile)} of the packets within {format_time(target.limit)}"
    formats, names = [format_time, format_fraction], ["round-trip time", "loss"]
    if boundary.searched == "rtt":
        formats, names = formats[::-1], names[::-1]
    at, searched = formats
    rows = [
        (
            at(point),
            "–" if works != works else searched(works),
            "–" if fails != fails else searched(fails),
        )
        for point, works, fails in zip(
            boundary.at.tolist(), boundary.works_up_to.tolist(), boundary.fails_from.tolist(), strict=True
        )
    ]
    columns = (names[0], f"{names[1]}: works up to", f"{names[1]}: fails from")
    return html_table(f"Boundary of the working region, {demand}", columns, rows)
