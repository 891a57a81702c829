"""Results as HTML fragments for notebooks, which show what `_repr_html_` of a result returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tcpdelay.report.document import html_table
from tcpdelay.scenario.scenario import REPORTED_QUANTILES
from tcpdelay.units import NOT_CARRIED, format_known_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.delays import DelayDistribution


def distribution_html(distribution: DelayDistribution, method: str) -> str:
    r"""Return mean, jitter and quantiles of the delay; `method` names the model."""
    delays = [("mean", distribution.mean), ("jitter", distribution.jitter)]
    delays += [(quantile_name(q), distribution.known_quantile(q)) for q in REPORTED_QUANTILES]
    rows = [(name, format_known_time(delay)) for name, delay in delays]
    note = "; ".join(filter(None, (_carried(distribution), distribution.ended_note)))
    return html_table(f"Delay from write to in-order read, by {method}", ("", ""), rows, note)


def _carried(distribution: DelayDistribution) -> str:
    return distribution.unsettled_note if distribution.sustainable else NOT_CARRIED
