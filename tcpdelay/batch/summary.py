"""How many rows of each group meet the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tcpdelay.confidence import share_interval
from tcpdelay.report.result_table import Column, ResultTable
from tcpdelay.units import NUMBER

ALL = "all"


class WorkingShares:
    """Counts the rows that meet the target, as they come in.

    Parameters
    ----------
    by : sequence of str
        Columns that tell groups apart; without any, there is only one group.
    prefix : str
        What the names of the added columns begin with.

    Attributes
    ----------
    counts : dict
        By group, a tuple: rows, rows with a prediction, and rows that meet the target.
    reasons : Counter
        Rows without a prediction, by the reason.

    Examples
    --------
    >>> shares = WorkingShares(["region"])
    >>> answers = {"works": [True, False, None], "reason": [None, None, "rtt is missing"]}
    >>> shares.add(pa.record_batch({"region": ["north", "north", "south"], **answers}))
    >>> [(row["region"], row["works"], row["without_prediction"]) for row in shares.table("Title").rows]
    [('north', 0.5, 0), ('south', None, 1), ('all', 0.5, 1)]
    >>> shares.reasons
    Counter({'rtt is missing': 1})
    """

    def __init__(self, by: Sequence[str] = (), prefix: str = "") -> None:
        self.by, self.prefix = tuple(by), prefix
        self.counts: dict[tuple[Any, ...], np.ndarray[Any, np.dtype[np.int64]]] = {}
        self.reasons: Counter[str] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch of predictions."""
        works: Any = batch.column(self.prefix + "works")
        columns: dict[str, Any] = {str(place): batch.column(name) for place, name in enumerate(self.by)}
        columns["known"] = pc.cast(pc.is_valid(works), pa.int64())
        columns["works"] = pc.cast(pc.coalesce(works, pa.scalar(False)), pa.int64())
        keys = [str(place) for place in range(len(self.by))]
        grouped = pa.table(columns).group_by(keys).aggregate([("known", "count"), ("known", "sum"), ("works", "sum")])
        for row in grouped.to_pylist():
            group = tuple(row[key] for key in keys)
            count = np.array([row["known_count"], row["known_sum"] or 0, row["works_sum"] or 0], np.int64)
            self.counts[group] = self.counts.get(group, np.zeros(3, np.int64)) + count
        reason: Any = batch.column(self.prefix + "reason")
        if reason.null_count < len(reason):
            given = pc.value_counts(pc.drop_null(reason)).to_pylist()
            self.reasons.update({each["values"]: each["counts"] for each in given})

    def table(self, title: str) -> ResultTable:
        """Return the shares by group and of all rows, with confidence intervals of 95 %."""
        rows = [self._row(group, self.counts[group]) for group in sorted(self.counts, key=_order)]
        if self.by or not rows:
            everything = np.sum(list(self.counts.values()), axis=0) if self.counts else np.zeros(3, np.int64)
            rows.append(self._row((ALL, *[""] * (len(self.by) - 1))[: len(self.by)], everything))
        columns = (
            *(Column(name, name) for name in self.by),
            Column("rows", "rows", "count"),
            Column("without_prediction", "without prediction", "count"),
            Column("works", "inside the working region", "fraction", "low", "high"),
        )
        note = "In brackets the interval of 95 % if the rows are a random sample of their group (Clopper and Pearson)."
        return ResultTable("working-shares", title, columns, rows, note)

    def _row(self, group: tuple[Any, ...], counts: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
        rows, known, working = counts.tolist()
        share = share_interval(working, known)
        return {
            **{name: "none" if value is None else str(value) for name, value in zip(self.by, group, strict=True)},
            "rows": rows,
            "without_prediction": rows - known,
            "works": share.value if known else None,
            "low": share.low if known else None,
            "high": share.high if known else None,
        }


def _order(group: tuple[Any, ...]) -> tuple[tuple[bool, str, Any, str], ...]:
    """Return what sorts groups: numbers as such, nulls last."""
    return tuple(map(_rank, group))


def _rank(value: Any) -> tuple[bool, str, Any, str]:
    # CSV has its numbers as texts.
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return False, "", float(value), value
    return value is None, type(value).__name__, 0 if value is None else value, ""
