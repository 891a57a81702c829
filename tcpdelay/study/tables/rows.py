"""Columns of predictions for rows of paths and flows, and how many rows of each group meet the target."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tcpdelay.accuracy.validity import validated_range
from tcpdelay.budget import MOST_SECONDS, checked_budget
from tcpdelay.declare import InvalidValueError, require_flag
from tcpdelay.models.verdict import Verdict
from tcpdelay.quality.voice import CallTarget, voice_mos
from tcpdelay.scenario.scenario import Target
from tcpdelay.scenario.source import TYPICAL_WRITE_JITTER, Flow
from tcpdelay.scenario.source import Source as MessageSource
from tcpdelay.scenario.stack import KnownStack, NewReno2008, Quic, transport_name
from tcpdelay.study.grid import Question, question
from tcpdelay.study.region import VERDICTS
from tcpdelay.study.tables.columns import FAULTS, FLOW, QUANTITIES, ROW, TARGET, Source, read_column, reasons
from tcpdelay.study.tables.lattice import (
    COLUMNS,
    FEW_SIMULATED,
    Answers,
    Lattice,
    load_answers,
    remarks,
    require_chain,
    require_simulator,
    save_lattice,
)
from tcpdelay.study.tables.sides import Verdicts, has_sides
from tcpdelay.units import NUMBER

FLAGS = ("works", "sustainable")
WORDS = ("verdict", "reason", "remark")
COUNTED: tuple[Verdict, ...] = ("works", "uncertain")
"""Verdicts that are counted; the other rows with a prediction fail."""
NO_CHAIN = "the chain is too large to compute, or does not model this loss or packet size"
NOT_SETTLED = "the simulation does not settle: the load is near the capacity, or takes too many segments"
MOST_LATTICES = 64
"""Lattices in memory; with more flows, the least recently used lattice is dropped."""
_REASONS = ("", *(reason for name in ROW for reason in reasons(QUANTITIES[name])), NO_CHAIN, NOT_SETTLED)


@dataclass(frozen=True)
class Demand:
    """Flow, stack and target of all rows."""

    flow: MessageSource | None  # Packet size and interval of rows without their own, or another source
    stack: KnownStack
    target: Target  # Target of rows without their own
    call: CallTarget | None = None  # The rated call; if it has a score, the score decides, not the share
    max_seconds: float = MOST_SECONDS  # Most time for the answer for one path [s]
    max_memory: float | None = None  # Most memory of the chain of one path [bytes]; None: 1 GiB

    def __post_init__(self) -> None:
        checked_budget(self.max_seconds, self.max_memory)
        if self.simulated:
            require_simulator(self.flow, self.stack)
        else:
            require_chain(self.stack)

    @property
    def simulated(self) -> bool:
        """Whether the rows are simulated."""
        return self.flow is not None and Question(self.flow, self.stack, self.target).simulated


class RowPredictor:
    """Predicts batches of rows, with a lattice of answers for each flow."""

    def __init__(
        self,
        demand: Demand,
        sources: dict[str, Source],
        prefix: str = "",
        cached: bool = False,
        counted: bool = False,
    ) -> None:
        if not isinstance(prefix, str):
            raise InvalidValueError("prefix", prefix, "be a text")
        require_flag("cached", cached)
        missing = [name for name in FLOW if name not in sources]
        if missing and demand.flow is None:
            raise ValueError(f"flow must be given, as the table has no {' and no '.join(missing)}")
        if demand.simulated and (len(missing) < len(FLOW) or demand.call is not None):
            table = "for a table with packet sizes or intervals, and for the rating of a call"
            if isinstance(demand.flow, Flow) and demand.flow.write_jitter > TYPICAL_WRITE_JITTER:
                allowed = f"be at most {TYPICAL_WRITE_JITTER:g} s {table}"
                raise InvalidValueError("write_jitter", demand.flow.write_jitter, allowed)
            if isinstance(demand.flow, Flow):
                raise InvalidValueError(
                    "stack", type(demand.stack).__name__, f"be a TCP, or a QUIC that the chain knows, {table}"
                )
            raise InvalidValueError("flow", demand.flow, f"be a Flow {table}")
        self.demand, self.sources, self.prefix, self.cached = demand, sources, prefix, cached
        # Whether rows are only counted by their verdicts: other figures may then be those of neighbouring paths.
        self.counted = counted and (demand.call is None or demand.call.mos is None)
        self._simulated = 0  # Paths so far that are simulated as `predict` does
        self.unchecked = 0  # Rows so far outside the range in which the model has been checked
        self._columns = COLUMNS if demand.call is None else (*COLUMNS, "mos")
        self._lattices: OrderedDict[tuple[MessageSource, Target], Lattice] = OrderedDict()
        self._kept: dict[tuple[MessageSource, Target], int] = {}

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns of a table, followed by the added columns."""
        added: list[Any] = [pa.field(self.prefix + name, pa.float64()) for name in self._columns]
        added += [pa.field(self.prefix + name, pa.bool_()) for name in FLAGS]
        added += [pa.field(self.prefix + name, pa.string()) for name in WORDS]
        taken = [field.name for field in added if field.name in given.names]
        if taken:
            raise ValueError(
                f"prefix must be one with which no added column is in the table already: {', '.join(taken)}"
            )
        metadata: Any = given.metadata
        return pa.schema([*given, *added], metadata=metadata)

    def predict(self, batch: pa.RecordBatch, on_progress: Callable[[int, int], None] | None = None) -> pa.RecordBatch:
        """Return the batch with the added columns."""
        schema = self.schema(batch.schema)
        values = {}
        reason = np.zeros(batch.num_rows, np.int8)
        for place, name in enumerate(ROW):
            if name in self.sources:
                values[name], faults = read_column(batch, QUANTITIES[name], self.sources[name])
                if faults.any():
                    reason = np.where((reason == 0) & (faults > 0), faults + FAULTS * place, reason).astype(np.int8)
        added = {name: np.full(batch.num_rows, np.nan) for name in self._columns}
        added |= {name: np.zeros(batch.num_rows, np.bool_) for name in FLAGS}
        added |= {name: np.zeros(batch.num_rows, np.int8) for name in ("verdict", "remark")}
        simulated = np.full(batch.num_rows, self.demand.simulated)
        for flow, target, rows in self._flows(values, reason == 0):
            answers = self._predict_flow(flow, target, values["rtt"][rows], values["loss"][rows], on_progress)
            simulated[rows] |= answers["simulated"]
            for name, column in added.items():
                column[rows] = answers[name]
        unanswered = (reason == 0) & np.isnan(added["p50"])
        reason = np.where(unanswered, np.where(simulated, *map(_REASONS.index, (NOT_SETTLED, NO_CHAIN))), reason)
        bad = reason > 0
        nulls = bad if bad.any() else None
        verdicts, remark = _words(added.pop("verdict"), VERDICTS, nulls), added.pop("remark")
        said = _words(remark, remarks(transport_name(self.demand.stack)), bad | (remark == 0))
        arrays = [pa.array(column, mask=nulls) for column in added.values()]
        return pa.record_batch([*batch.columns, *arrays, verdicts, _words(reason, _REASONS, ~bad), said], schema=schema)

    def save(self, growth: float = 1.0) -> None:
        """Write the lattices that have grown by more than a factor `growth` since they were last written."""
        for key, lattice in self._lattices.items():
            self._save(key, lattice, growth)

    def _save(self, key: tuple[MessageSource, Target], lattice: Lattice, growth: float = 1.0) -> None:
        if (
            self.cached
            and not self.demand.simulated
            and lattice.size > growth * self._kept[key]
            and save_lattice(lattice)
        ):
            self._kept[key] = lattice.size

    def _lattice(self, flow: MessageSource, target: Target) -> Lattice:
        key = flow, target
        if key not in self._lattices:
            demand = self.demand
            own = (demand.max_seconds, demand.max_memory)
            asked = question(flow, demand.stack, target.limit, target.quantile, *own)
            lattice = Verdicts(asked) if self.counted and has_sides(asked) else Lattice(asked)
            if self.cached and not self.demand.simulated:
                load_answers(lattice)
            self._lattices[key], self._kept[key] = lattice, lattice.size
            if len(self._lattices) > MOST_LATTICES:
                self._save(*self._lattices.popitem(last=False))
        self._lattices.move_to_end(key)
        return self._lattices[key]

    def _flows(
        self, values: dict[str, NDArray[np.float64]], right: NDArray[np.bool_]
    ) -> list[tuple[MessageSource, Target, slice | NDArray[np.int64]]]:
        """Return the flows and targets of the valid rows, and the rows of each."""
        flow, target = self.demand.flow, self.demand.target
        if not right.any():
            return []
        if flow is not None and not {*FLOW, *TARGET} & set(values):
            return [(flow, target, slice(None) if right.all() else np.flatnonzero(right))]
        rows = np.flatnonzero(right)
        default = (flow.packet_size, flow.interval) if isinstance(flow, Flow) else (0, 0.0)
        own = [
            values[name][rows] if name in values else np.full(rows.size, given)
            for name, given in zip((*FLOW, *TARGET), (*default, target.limit, target.quantile), strict=True)
        ]
        lateness = TYPICAL_WRITE_JITTER if flow is None else flow.write_jitter
        source = flow if self.demand.simulated else None
        different, which = np.unique(np.stack(own, axis=1), axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        parts = np.split(rows[order], np.cumsum(np.bincount(which.ravel()))[:-1])
        return [
            (Flow(int(size), interval, lateness) if source is None else source, Target(limit, quantile), part)
            for (size, interval, limit, quantile), part in zip(different.tolist(), parts, strict=True)
        ]

    def _predict_flow(
        self,
        flow: MessageSource,
        target: Target,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        on_progress: Callable[[int, int], None] | None,
    ) -> Answers:
        """Return the added columns for some paths, with the number of the verdict, without the reason."""
        lattice, demand = self._lattice(flow, target), self.demand
        known = validated_range(demand.stack, method="simulation" if demand.simulated else "chain")
        is_checked = not demand.simulated and not isinstance(demand.stack, NewReno2008)
        answers = dict(self._answers(lattice, rtt, loss, known.loss[1] if is_checked else np.inf, on_progress))
        late, fewest, most = (answers[name] for name in ("late", "late_low", "late_high"))
        allowed = [target.allows(share) for share in (fewest, most)]
        call = self.demand.call
        if call is not None:
            codec = call.codec_of(flow.mean_interval)
            scores, best, worst = (
                voice_mos(target.limit + codec.delay, np.nan_to_num(share, nan=1.0), codec)
                for share in (late, fewest, most)
            )
            answers["mos"] = np.where(np.isnan(late), np.nan, scores)
            if call.mos is not None:
                answers["works"] = answers["sustainable"] & (scores >= call.mos)
                allowed = [(best >= call.mos) & (fewest < 1), (worst >= call.mos) & (most < 1)]
        answers["verdict"] = np.select(allowed[::-1], [VERDICTS.index("works"), VERDICTS.index("uncertain")])
        outside, simulated = known.exceeded_by_paths(flow, rtt, loss), np.zeros(rtt.size, np.bool_)
        if isinstance(demand.stack, Quic):
            simulated = validated_range(demand.stack, method="simulation").exceeded_by_paths(flow, rtt, loss)
        self.unchecked += int(np.count_nonzero(np.where(answers["simulated"], simulated, outside)))
        return answers

    def _answers(
        self,
        lattice: Lattice,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        largest: float,
        on_progress: Callable[[int, int], None] | None,
    ) -> Answers:
        """Return the answers for some paths.

        Where the loss is larger than the largest with which the chain is checked, all that is known is that more losses
        make more packets late.
        """
        exact, before = lattice.is_exact_for(rtt.size), lattice.simulations
        answers = lattice.answer(rtt, loss, on_progress, FEW_SIMULATED - self._simulated)
        self._simulated += lattice.simulations - before
        beyond = (loss > largest) & ~np.isnan(answers["late"]) & ~answers["simulated"]
        fewest = answers["late_low"].copy()
        if beyond.any():
            least = lattice.answer(rtt[beyond], np.full(int(beyond.sum()), largest), exact=exact)
            fewest[beyond] = least["late_low"]
        return {**answers, "late_low": fewest, "late_high": np.where(beyond, 1.0, answers["late_high"])}


def _words(numbers: NDArray[np.int8], words: Sequence[str], nulls: NDArray[np.bool_] | None) -> Any:
    """Return the words with these numbers as a column; null where `nulls` is True."""
    places: Any = pa.array(numbers, mask=nulls)
    return pa.DictionaryArray.from_arrays(places, pa.array(words)).cast(pa.string())


class WorkingShares:
    """Counts the rows with each verdict, batch by batch, in each group of the values in the columns `by`.

    The counts of a group are the number of rows, of rows with a prediction, and of rows with each verdict of `COUNTED`.
    """

    def __init__(self, by: Sequence[str] = (), prefix: str = "") -> None:
        self.by, self.prefix = tuple(by), prefix
        self.counts: dict[tuple[Any, ...], np.ndarray[Any, np.dtype[np.int64]]] = {}
        self.reasons: Counter[str] = Counter()  # Rows without a prediction, by the reason
        self.remarks: Counter[str] = Counter()  # Rows with other figures than those of `predict`, by the remark

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch of predictions."""
        verdict: Any = batch.column(self.prefix + "verdict")
        columns: dict[str, Any] = {str(place): batch.column(name) for place, name in enumerate(self.by)}
        columns["known"] = pc.cast(pc.is_valid(verdict), pa.int64())
        for word in COUNTED:
            columns[word] = pc.cast(pc.coalesce(pc.equal(verdict, pa.scalar(word)), pa.scalar(False)), pa.int64())
        keys = [str(place) for place in range(len(self.by))]
        summed = ("known", *COUNTED)
        sums: list[Any] = [("known", "count"), *((name, "sum") for name in summed)]
        grouped = pa.table(columns).group_by(keys).aggregate(sums)
        for row in grouped.to_pylist():
            group = tuple(row[key] for key in keys)
            count = np.array([row["known_count"], *(row[f"{name}_sum"] or 0 for name in summed)], np.int64)
            self.counts[group] = self.counts.get(group, np.zeros_like(count)) + count
        for name, counter in (("reason", self.reasons), ("remark", self.remarks)):
            said: Any = batch.column(self.prefix + name)
            if said.null_count < len(said):
                given = pc.value_counts(pc.drop_null(said)).to_pylist()
                counter.update({each["values"]: each["counts"] for each in given})


def group_order(group: tuple[Any, ...]) -> tuple[tuple[bool, str, Any, str], ...]:
    """Return the key that sorts groups: numbers by their value, nulls last.

    >>> sorted([("b",), (None,), ("10",), ("9",)], key=group_order)
    [('9',), ('10',), ('b',), (None,)]
    """
    return tuple(map(_rank, group))


def _rank(value: Any) -> tuple[bool, str, Any, str]:
    # The numbers of a CSV file are texts.
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return False, "", float(value), value
    return value is None, type(value).__name__, 0 if value is None else value, ""
