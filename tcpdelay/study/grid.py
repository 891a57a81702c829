"""Answers at every point of a grid over any fields of a scenario, as a labelled data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.ask import WHOLE_DISTRIBUTION, Answer, Requested
from tcpdelay.budget import MOST_SECONDS, checked_budget
from tcpdelay.declare import Field, InvalidValueError, as_numbers, bounds, declarations
from tcpdelay.models.predict import AnsweredBy, predict, supports
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import FIELDS, Scenario, Target, source_of, target_of
from tcpdelay.scenario.source import TYPICAL_WRITE_JITTER, Flow, Source
from tcpdelay.scenario.stack import KnownStack, Quic, Stack, StackName, checked_profile
from tcpdelay.study.execution import Executor, Progress, Results, Rows, Schedule, threads

if TYPE_CHECKING:
    import xarray as xr


SEED_BITS = 53
"""Bits of a seed: netCDF 3 stores it as a double, which holds whole numbers of this length."""
NOT_REFUSED = ""


class Meaning(NamedTuple):
    """Unit and meaning of a variable or an axis."""

    unit: str | None  # Unit as netCDF writes it; None for words and flags
    text: str  # Meaning in a few words

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of a variable in a data set."""
        return {"long_name": self.text, **({} if self.unit is None else {"units": self.unit})}


@dataclass(frozen=True)
class Grid:
    """The points of a grid; the last axis varies fastest."""

    axes: Mapping[str, tuple[Any, ...]]  # Values of each axis
    scenario_at: Callable[[Mapping[str, Any]], Scenario]  # Raises ValueError for impossible values; can be pickled
    replications: int = 1  # Runs at each point; only the runs of a simulation differ
    meanings: Mapping[str, Meaning | Field] = field(default_factory=dict)  # Axes that are no fields of a scenario

    @classmethod
    def around(cls, scenario: Scenario, **axes: ArrayLike) -> Grid:
        """Return the grid of a scenario in which some fields of flow, path and stack vary."""
        parts: dict[str, dict[str, Any]] = {}
        for name in axes:
            part = None if name not in FIELDS else getattr(scenario, FIELDS[name][0])
            if part is None or name not in declarations(type(part)):
                raise InvalidValueError("axes", name, "be fields of the scenario")
            # Without the defaults, the validation at every point takes less time.
            given = ((each.name, getattr(part, each.name), each.default) for each in fields(part))
            parts[FIELDS[name][0]] = {key: value for key, value, default in given if value != default}
        values = {name: tuple(np.asarray(axis).tolist()) for name, axis in axes.items()}
        return cls(values, partial(_with, scenario, parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""
        return tuple(map(len, self.axes.values()))

    @cached_property
    def size(self) -> int:
        """Number of runs: points times replications."""
        return math.prod(self.shape) * self.replications

    def values_at(self, point: int) -> dict[str, Any]:
        """Return the values of all axes at a point."""
        values: dict[str, Any] = {}
        for name, axis in reversed([*self.axes.items()]):
            point, place = divmod(point, len(axis))
            values[name] = axis[place]
        return {name: values[name] for name in self.axes}

    def meaning(self, name: str) -> Meaning | Field:
        """Return the meaning of an axis."""
        return self.meanings[name] if name in self.meanings else FIELDS[name][1]


def _with(scenario: Scenario, parts: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]) -> Scenario:
    """Return the scenario with other values of some fields; `parts` has the fields of its varied parts, by part."""
    changed = {part: dict(given) for part, given in parts.items()}
    for name, value in values.items():
        changed[FIELDS[name][0]][name] = value
    made: dict[str, Any] = {"flow": scenario.source, "path": scenario.path, "stack": scenario.stack}
    made |= {part: type(made[part])(**given) for part, given in changed.items()}
    return Scenario(made["flow"], made["path"], made["stack"], scenario.target)


@dataclass(frozen=True)
class Dimension:
    """A dimension of variables that hold several values for each point."""

    name: str  # The name of the dimension
    values: tuple[float, ...]  # The coordinates
    meaning: Meaning  # Unit and meaning of the coordinates


@dataclass(frozen=True)
class Variables:
    """The figures of each answer that the data set keeps."""

    row_type: np.dtype[np.void]  # Fields of a row, one for each variable
    # Writes these figures to a row, given the row, the answer, and the values of the axes. It raises ValueError if it
    # refuses the answer. Processes and clusters need a callable that can be pickled.
    fill: Callable[[Any, Answer, Mapping[str, Any]], None]
    meanings: Mapping[str, Meaning]  # Units and meanings of all fields
    # The additional dimension of each field that holds several values.
    dimensions: Mapping[str, Dimension] = field(default_factory=dict)
    # Called with a row and its scenario before `predict`; returns whether to call `predict`. It raises ValueError if
    # it refuses the scenario.
    prepare: Callable[[Any, Scenario], bool] | None = None


def requested_variables(requested: Requested) -> Variables:
    """Return the variables that hold the requested figures of an answer."""
    quantiles, late_after = requested.quantiles, requested.late_after
    fields: list[Any] = [
        ("mean_delay", np.float64),
        ("delay", np.float64, (len(quantiles),)),
        ("late_fraction", np.float64, (len(late_after),)),
        ("sustainable", np.bool_),
    ]
    meanings = {name: MEANINGS[name] for name, *_ in fields}
    if requested.target is not None:
        fields.append(("works", np.bool_))
        share, limit = requested.target.quantile, requested.target.limit
        meanings["works"] = Meaning(None, f"whether {share:g} of the packets arrive within {limit:g} s")
    return Variables(np.dtype(fields), fill_requested, meanings, delay_dimensions(quantiles, late_after))


MEANINGS = {
    "mean_delay": Meaning("s", "mean delay"),
    "delay": Meaning("s", "delay within which a share of the packets arrives"),
    "late_fraction": Meaning("1", "share of the packets that arrive later"),
    "sustainable": Meaning(None, "whether TCP can carry the flow"),
}


def delay_dimensions(quantiles: tuple[float, ...], late_after: tuple[float, ...]) -> dict[str, Dimension]:
    """Return the dimensions of the quantiles of the delay and of the late fractions."""
    return {
        "delay": Dimension("quantile", quantiles, Meaning("1", "share of the packets")),
        "late_fraction": Dimension(
            "late_after", late_after, Meaning("s", "delay beyond which a packet counts as late")
        ),
    }


def fill_requested(row: Any, answer: Answer, values: Mapping[str, Any]) -> None:
    """Write the requested figures of an answer to a row."""
    row["mean_delay"], row["delay"], row["late_fraction"] = answer.mean, answer.quantiles, answer.late_fractions
    row["sustainable"] = answer.sustainable
    if answer.requested.target is not None:
        row["works"] = answer.meets(answer.requested.target)


@dataclass(frozen=True)
class GridWork:
    """The runs of a grid."""

    grid: Grid  # The points
    # The figures requested at each point. Every run of a simulation has its own seed, derived from the seed here.
    requested: Requested
    method: AnsweredBy  # The model, as in `tcpdelay.models.predict.predict`
    variables: Variables  # The figures of each answer to keep

    @property
    def size(self) -> int:
        """Number of runs."""
        return self.grid.size

    @property
    def row_type(self) -> np.dtype[np.void]:
        """Type of the results of one run."""
        return self.variables.row_type

    def fill(self, row: Any, number: int) -> str:
        """Write the results of one run to `row`; return why the run is refused, or an empty text."""
        point, replication = divmod(number, self.grid.replications)
        values, requested = self.grid.values_at(point), self.requested
        if self.method != "chain":
            requested = replace(requested, seed=run_seed(requested.seed, point, replication))
        try:
            scenario = self.grid.scenario_at(values)
            if self.variables.prepare is not None and not self.variables.prepare(row, scenario):
                return NOT_REFUSED
            answer = predict(scenario, requested, self.method)
            if answer.refusal is None:
                self.variables.fill(row, answer, values)
                return NOT_REFUSED
            refusal: ValueError = answer.refusal
        except ValueError as error:
            # The values do not go together, or `fill` refuses the answer.
            refusal = error
        blank_row(row)
        return str(refusal)


def blank_row(row: Any) -> None:
    """Set a row to NaN and False."""
    for name in row.dtype.names:
        row[name] = np.nan if row.dtype[name].base.kind == "f" else 0


def run_seed(seed: int, point: int, replication: int) -> int:
    """Return the seed of one simulation; it depends on the arguments alone."""
    sequence = np.random.SeedSequence(seed, spawn_key=(point, replication))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(64 - SEED_BITS))


class Checkpoint(Protocol):
    """Keeps the results of finished runs."""

    def stored(self) -> Iterator[Rows]:
        """Yield all kept results."""
        ...

    def store(self, rows: Rows) -> None:
        """Keep the results of some runs."""
        ...


def evaluate(
    grid: Grid,
    requested: Requested = WHOLE_DISTRIBUTION,
    executor: AbstractContextManager[Executor] | None = None,
    *,
    method: AnsweredBy = "chain",
    variables: Variables | None = None,
    checkpoint: Checkpoint | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> xr.Dataset:
    """Return the requested figures, or those in `variables`, at every point of a grid, over the axes of the grid.

    At refused points they are NaN and False, and `refused` has the number of the reason in `refusals`; at all other
    points `refused` is 0. The `checkpoint` keeps finished runs, also if the workers fail, and yields the runs of an
    earlier attempt.
    """
    work = GridWork(grid, requested, method, requested_variables(requested) if variables is None else variables)
    results = Results(work.size, work.row_type)
    with threads() if executor is None else executor as workers:
        for rows in () if checkpoint is None else checkpoint.stored():
            results.add(rows)
        Schedule(work, results, workers, None if checkpoint is None else checkpoint.store, on_progress).run()
    return labelled(work, results)


def labelled(work: GridWork, results: Results) -> xr.Dataset:
    """Return the results of all runs by the values of the axes."""
    import xarray as xr

    grid, described = work.grid, work.variables
    dimensions, shape = tuple(grid.axes), grid.shape
    if grid.replications > 1:
        dimensions, shape = (*dimensions, "replication"), (*shape, grid.replications)
    variables: dict[str, Any] = {}
    for name in work.row_type.names or ():
        column = results.values[name]
        further = (described.dimensions[name].name,) if name in described.dimensions else ()
        filled = np.ascontiguousarray(column).reshape(*shape, *column.shape[1:])
        variables[name] = ((*dimensions, *further), filled, described.meanings[name].attributes)
    numbers, texts = _numbered(results)
    meaning = {"long_name": "number of the reason in refusals why there is no result, or 0"}
    variables["refused"] = (dimensions, numbers.reshape(shape), meaning)
    variables["refusals"] = ("refusal", texts, {"long_name": "reasons why there is no result"})
    coordinates: dict[str, Any] = {
        name: (name, np.array(values), grid.meaning(name).attributes) for name, values in grid.axes.items()
    }
    for dimension in described.dimensions.values():
        coordinates[dimension.name] = (dimension.name, np.array(dimension.values), dimension.meaning.attributes)
    return xr.Dataset(variables, coordinates)


def _numbered(results: Results) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the number of each run's reason, and the different reasons in the order in which they first occur."""
    numbers = np.zeros(results.done.size, np.int32)
    known = {NOT_REFUSED: 0}
    for run in sorted(results.refusals):
        numbers[run] = known.setdefault(results.refusals[run], len(known))
    return numbers, np.array(list(known), object)


# Questions over ranges of round-trip time and loss: source, stack and target, and the values of both ranges.

SHORTEST_RTT, LONGEST_RTT = 0.010, 0.400
LOWEST_LOSS, HIGHEST_LOSS = 0.001, 0.10
"""Default range of round-trip times [s] and losses."""
DEFAULT_POINTS = 40
ORDINARY_PATH = Path(rtt=0.1, loss=0.01)
"""A path that all chains know."""


@dataclass(frozen=True)
class Question:
    """A checked question: a source, its transport, the demand on its delay, and what an answer may take [s, bytes]."""

    flow: Source
    stack: KnownStack
    target: Target
    max_seconds: float = MOST_SECONDS
    max_memory: float | None = None

    @property
    def simulated(self) -> bool:
        """Whether no chain answers: the source is no `Flow`, or the chain refuses writes that are so late, or QUIC."""
        late = self.flow.write_jitter > TYPICAL_WRITE_JITTER
        if isinstance(self.flow, Flow) and (late or isinstance(self.stack, Quic)):
            return bool(supports(Scenario(self.flow, ORDINARY_PATH, self.stack)).refused)
        return not isinstance(self.flow, Flow)


def question(
    flow: Source | str,
    stack: Stack | StackName | None,
    limit: float | None,
    quantile: float | None,
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
    target: Target | None = None,
) -> Question:
    """Return the checked question; its default target is the target of the application, or 95 % within 200 ms."""
    if target is not None and (limit, quantile) != (None, None):
        raise ValueError("give either target, or limit and quantile, not both")
    default = target_of(flow, target)
    target = Target(
        default.limit if limit is None else limit,
        default.quantile if quantile is None else quantile,
    )
    checked_budget(max_seconds, max_memory)
    # The name of a cached answer has these numbers: 10 and 10.0 are the same.
    memory = None if max_memory is None else float(max_memory)
    return Question(source_of(flow), checked_profile(stack), target, float(max_seconds), memory)


def round_trip_times(rtt: ArrayLike | None) -> NDArray[np.float64]:
    """Return round-trip times [s], ascending; by default 40 from 10 ms to 400 ms, in equal ratios."""
    if rtt is None:
        return np.geomspace(SHORTEST_RTT, LONGEST_RTT, DEFAULT_POINTS)
    return _ascending("rtt", rtt, *bounds(Path, "rtt"), "s")


def losses(loss: ArrayLike | None, *, allow_zero: bool = False) -> NDArray[np.float64]:
    """Return losses, ascending; by default 40 from 0.1 % to 10 %, in equal ratios."""
    if loss is None:
        return np.geomspace(LOWEST_LOSS, HIGHEST_LOSS, DEFAULT_POINTS)
    smallest = 0.0 if allow_zero else float(np.nextafter(0, 1))
    return _ascending("loss", loss, smallest, float(np.nextafter(1, 0)), "")


def _ascending(name: str, values: ArrayLike, low: float, high: float, unit: str) -> NDArray[np.float64]:
    """Return a number, or a list of ascending numbers, from `low` to `high` as an array."""
    try:
        array = np.atleast_1d(as_numbers(name, values))
    except InvalidValueError:
        array = np.empty(0)
    if array.ndim != 1 or array.size == 0:
        raise InvalidValueError(name, values, "be a number or a list of at least one number")
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        allowed = (
            f"between {low:g} and {high:g} {unit}"
            if unit
            else f"fractions {'from' if low == 0 else 'above'} 0 and below 1"
        )
        raise InvalidValueError(name, array[outside][0], f"be {allowed}")
    if not np.all(np.diff(array) > 0):
        raise InvalidValueError(name, array, "ascend")
    return array
