"""Rows of paths, and where the table has them of flows, to columns of predictions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tcpdelay.applications import Target
from tcpdelay.batch.cache import load_surface, save_surface
from tcpdelay.batch.cell_values import FAULTS, read_column, reasons
from tcpdelay.batch.columns import FLOW, QUANTITIES, Source
from tcpdelay.batch.outcome import COLUMNS
from tcpdelay.batch.surface import Surface
from tcpdelay.region.question import Question
from tcpdelay.scenario import Flow, require_flag
from tcpdelay.validity import KnownStack, validated_range

FLAGS = ("works", "sustainable")
ANSWERS = (*COLUMNS, *FLAGS, "reason")
"""The columns that are added."""
TOO_LARGE = "the chain is too large to compute"
MOST_SURFACES = 64
"""Surfaces in memory; beyond, the one that has not been used for longest goes."""
_REASONS = ("", *(reason for quantity in QUANTITIES.values() for reason in reasons(quantity)), TOO_LARGE)


@dataclass(frozen=True)
class Demand:
    """What holds for all rows.

    Parameters
    ----------
    flow : Flow, optional
        Packet size and interval of rows that have none of their own.
    stack : KnownStack
        The TCP implementation.
    target : Target
        The limit that makes a packet late, and the share that must not be.
    """

    flow: Flow | None
    stack: KnownStack
    target: Target


class RowPredictor:
    """Predicts batches of rows, with a surface for each flow among them.

    Parameters
    ----------
    demand : Demand
        What holds for all rows.
    sources : dict of str to Source
        Where the quantities are; packet size and interval may be missing if the demand has a flow.
    prefix : str
        What the names of the added columns begin with.
    cached : bool
        Whether surfaces are taken from, and kept in, the user's cache.

    Attributes
    ----------
    unchecked : int
        Rows so far outside the range in which the model has been checked.
    solved : int
        Rows so far that no cell could answer, so that the chain was solved.

    Raises
    ------
    ValueError
        If there is no flow, or another argument is of the wrong kind.

    Examples
    --------
    >>> from tcpdelay.applications import application
    >>> from tcpdelay.batch.columns import find_sources
    >>> from tcpdelay.scenario import Stack
    >>> voip = application("voip")
    >>> table = pa.record_batch({"rtt_ms": [100, 100], "loss": [0.02, -1.0]})
    >>> rows = RowPredictor(Demand(voip.flow, Stack.linux(), voip.target), find_sources(table.schema.names))
    >>> rows.predict(table).select(["p95", "works", "reason"]).to_pylist()[1]
    {'p95': None, 'works': None, 'reason': 'loss must be a fraction from 0 to below 1'}
    """

    def __init__(self, demand: Demand, sources: dict[str, Source], prefix: str = "", cached: bool = False) -> None:
        if not isinstance(prefix, str):
            raise ValueError(f"prefix must be a text, got {prefix!r}")
        require_flag("cached", cached)
        missing = [name for name in FLOW if name not in sources]
        if missing and demand.flow is None:
            raise ValueError(f"flow must be given, as the table has no {' and no '.join(missing)}")
        self.demand, self.sources, self.prefix, self.cached = demand, sources, prefix, cached
        self.unchecked = self.solved = 0
        self._surfaces: OrderedDict[Flow, Surface] = OrderedDict()
        self._kept: dict[Flow, int] = {}

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns of a table with those that are added.

        Raises
        ------
        ValueError
            If a table has one of them already.
        """
        added: list[Any] = [pa.field(self.prefix + name, pa.float64()) for name in COLUMNS]
        added += [pa.field(self.prefix + name, pa.bool_()) for name in FLAGS]
        added.append(pa.field(self.prefix + "reason", pa.string()))
        taken = [field.name for field in added if field.name in given.names]
        if taken:
            raise ValueError(f"prefix must keep apart {', '.join(taken)}, which the table has already")
        metadata: Any = given.metadata
        return pa.schema([*given, *added], metadata=metadata)

    def predict(self, batch: pa.RecordBatch, on_progress: Callable[[int, int], None] | None = None) -> pa.RecordBatch:
        """Return the batch with the added columns.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Rows.
        on_progress : callable, optional
            Called with the number of chains solved, and to be solved, in a step of the work.
        """
        schema = self.schema(batch.schema)
        values = {}
        reason = np.zeros(batch.num_rows, np.int8)
        for place, (name, quantity) in enumerate(QUANTITIES.items()):
            if name in self.sources:
                values[name], faults = read_column(batch, quantity, self.sources[name])
                if faults.any():
                    reason = np.where((reason == 0) & (faults > 0), faults + FAULTS * place, reason).astype(np.int8)
        columns = np.full((len(COLUMNS), batch.num_rows), np.nan)
        flags = np.zeros((len(FLAGS), batch.num_rows), np.bool_)
        for flow, rows in self._flows(values, reason == 0):
            self._predict_flow(flow, rows, values["rtt"], values["loss"], columns, flags, on_progress)
        reason[(reason == 0) & np.isnan(columns[0])] = len(_REASONS) - 1
        bad = reason > 0
        nulls = bad if bad.any() else None
        arrays = [pa.array(column, mask=nulls) for column in (*columns, *flags)]
        numbers: Any = pa.array(reason, mask=~bad)
        texts = pa.DictionaryArray.from_arrays(numbers, pa.array(_REASONS)).cast(pa.string())
        return pa.record_batch([*batch.columns, *arrays, texts], schema=schema)

    def save(self, growth: float = 1.0) -> None:
        """Keep the surfaces that have grown by more than this factor since they were last kept."""
        for flow, surface in self._surfaces.items():
            self._save(flow, surface, growth)

    def _save(self, flow: Flow, surface: Surface, growth: float = 1.0) -> None:
        if self.cached and len(surface.node_at) > growth * self._kept[flow] and save_surface(surface):
            self._kept[flow] = len(surface.node_at)

    def _surface(self, flow: Flow) -> Surface:
        if flow not in self._surfaces:
            asked = Question(flow, self.demand.stack, self.demand.target)
            surface = load_surface(asked) if self.cached else Surface(asked)
            self._surfaces[flow], self._kept[flow] = surface, len(surface.node_at)
            if len(self._surfaces) > MOST_SURFACES:
                self._save(*self._surfaces.popitem(last=False))
        self._surfaces.move_to_end(flow)
        return self._surfaces[flow]

    def _flows(
        self, values: dict[str, NDArray[np.float64]], right: NDArray[np.bool_]
    ) -> list[tuple[Flow, NDArray[np.int64] | None]]:
        """Return the flows of the rows that are right, and the rows of each; None for all of them."""
        flow = self.demand.flow
        if not right.any():
            return []
        if flow is not None and not set(FLOW) & set(values):
            return [(flow, None if right.all() else np.flatnonzero(right))]
        rows = np.flatnonzero(right)
        default = (0, 0.0) if flow is None else (flow.packet_size, flow.interval)
        own = [
            values[name][rows] if name in values else np.full(rows.size, given)
            for name, given in zip(FLOW, default, strict=True)
        ]
        both = np.stack(own, axis=1)
        flows, which = np.unique(both, axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        parts = np.split(rows[order], np.cumsum(np.bincount(which.ravel()))[:-1])
        return [(Flow(int(size), float(interval)), part) for (size, interval), part in zip(flows, parts, strict=True)]

    def _predict_flow(
        self,
        flow: Flow,
        rows: NDArray[np.int64] | None,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        columns: NDArray[np.float64],
        flags: NDArray[np.bool_],
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        if rows is not None:
            rtt, loss = rtt[rows], loss[rows]
        answers = self._surface(flow).answer(rtt, loss, on_progress)
        everything = slice(None) if rows is None else rows
        columns[:, everything] = answers.columns
        flags[0, everything], flags[1, everything] = answers.works, answers.sustainable
        known = validated_range(self.demand.stack)
        inside = (rtt >= known.rtt[0]) & (rtt <= known.rtt[1]) & (loss >= known.loss[0]) & (loss <= known.loss[1])
        unusual = not (
            known.packet_size[0] <= flow.packet_size <= known.packet_size[1]
            and known.interval[0] <= flow.interval <= known.interval[1]
        )
        self.unchecked += rtt.size if unusual else int(rtt.size - inside.sum())
        self.solved += answers.solved
