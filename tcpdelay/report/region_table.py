"""The edges of working regions, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tcpdelay.report.prediction import source_in_words
from tcpdelay.report.result_table import Cell, Column, ResultTable
from tcpdelay.units import format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.study.boundary import WorkingBoundary


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
