"""Specifications of sweeps and their points, as TOML files or mappings, checked before anything is computed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any, Literal, get_args

import numpy as np

from tcpdelay.budget import MEMORY, MOST_SECONDS, TIME
from tcpdelay.declare import (
    WHOLE,
    Choice,
    Content,
    Field,
    InvalidValueError,
    Quantity,
    Value,
    choice,
    content,
    declarations,
    described,
    is_number,
    like,
    read,
    whole_number,
)
from tcpdelay.models.heuristics import MOST_CONNECTIONS, MOST_PIECES, piece_of, share_of
from tcpdelay.models.predict import supports
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import FIELDS, Scenario
from tcpdelay.scenario.source import BITRATE, Flow, Source
from tcpdelay.scenario.source_settings import KINDS, SourceSettings
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, KnownStack, profiles_with
from tcpdelay.sim.simulation import LARGEST_MESSAGE_RATE
from tcpdelay.store import read_toml
from tcpdelay.units import parse_fraction, parse_time

# A point of a sweep, and its parameters: the fields of source, path and stack, and the heuristics.

Table = Literal["flow", "path", "stack", "heuristics", "source"]

TABLES: tuple[Table, ...] = ("flow", "path", "stack", "heuristics")
"""The tables that fix parameters, other than `[source]`."""


@dataclass(frozen=True)
class Parameter:
    """One parameter."""

    table: Table  # The table of a specification that fixes the parameter
    declaration: Field  # Values, unit and meaning of the parameter


def _parameters() -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of each table, in the order of their declarations."""
    further: dict[Table, dict[str, Parameter]] = {
        "flow": {"bitrate": Parameter("flow", BITRATE)},
        "stack": {
            "profile": Parameter("stack", Choice(meaning="TCP model.", words=tuple(PROFILES), default=DEFAULT_PROFILE))
        },
        "heuristics": {
            name: Parameter("heuristics", whole_number(meaning, 1, most, example="2"))
            for name, meaning, most in (
                ("connections", "Number of connections that the packets take turns on.", MOST_CONNECTIONS),
                ("pieces", "Number of writes per packet.", MOST_PIECES),
            )
        },
    }
    for table in TABLES:
        yield from ((name, Parameter(table, field)) for name, (part, field) in FIELDS.items() if part == table)
        yield from further.get(table, {}).items()


PARAMETERS: dict[str, Parameter] = dict(_parameters())


def parameters_with(source: Source | None) -> Mapping[str, Parameter]:
    """Return the parameters of a sweep by name; with a source, its fields replace those of flow and heuristics.

    Every source has the parameter "bitrate". If the source has no field of this name, the bitrate scales the sizes of
    its messages.
    """
    if source is None:
        return PARAMETERS
    own = {
        name: Parameter("source", field)
        for name, field in declarations(type(source)).items()
        if not isinstance(field, Content)
    }
    others = {name: each for name, each in PARAMETERS.items() if each.table in ("path", "stack")}
    return {"bitrate": Parameter("source", BITRATE), **own, **others}


def source_with(source: Source, values: Mapping[str, Any]) -> Source:
    """Return a source with the values of a point of a sweep; values of path and stack have no effect."""
    fields = declarations(type(source))
    varied: Any = replace(source, **{name: value for name, value in values.items() if name in fields})  # type: ignore[type-var]
    found: Source = varied.at_bitrate(values["bitrate"]) if "bitrate" in values and "bitrate" not in fields else varied
    return found


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep, with all values checked."""

    flow: Source  # The application's packets or messages
    path: Path  # The network
    stack: KnownStack  # The TCP stack
    # connections, pieces: Number of connections that the packets take turns on, and number of writes per packet.
    connections: int
    pieces: int


def point_of(values: Mapping[str, Any], source: Source | None = None) -> SweepPoint:
    """Return the point of a sweep with these values."""
    parameters = parameters_with(source)
    given = {name: value for name, value in values.items() if parameters[name].table == "path"}
    flow, path = _flow(values) if source is None else source_with(source, values), Path(**given)
    name = values.get("profile", DEFAULT_PROFILE)
    PARAMETERS["profile"].declaration.require("profile", name)
    stack = PROFILES[name]
    settings = {key: value for key, value in values.items() if parameters[key].table == "stack" and key != "profile"}
    for setting in settings:
        if name not in profiles_with(setting):
            raise ValueError(
                f"{setting} goes with profile {' or '.join(map(repr, profiles_with(setting)))}, not {name!r}"
            )
    point = SweepPoint(flow, path, replace(stack, **settings), values.get("connections", 1), values.get("pieces", 1))
    # Raises ValueError if the packets cannot be divided so.
    if isinstance(flow, Flow):
        piece_of(share_of(flow, point.connections), point.pieces)
    return point


def _flow(values: Mapping[str, Any]) -> Flow:
    if "bitrate" not in values:
        flow = Flow(values["packet_size"], values["interval"])
    elif "packet_size" in values:
        flow = Flow.from_bitrate(values["bitrate"], values["packet_size"])
    else:
        flow = Flow(round(values["bitrate"] * values["interval"] / 8), values["interval"])
    others = declarations(Flow).keys() - {"packet_size", "interval"}
    return replace(flow, **{name: values[name] for name in others if name in values})


# Specifications of sweeps, as TOML files or mappings, read and checked before anything is computed.
#
# A sweep may fix or vary every field of flow, path and stack, as declared in `tcpdelay.scenario`, and the heuristics. A
# table `[source]`, as in a campaign of the testbed, replaces the flow, and the fields of the source may vary too.

Method = Literal["chain", "simulation"]
Spacing = Literal["linear", "log"]

MOST_RUNS = 50_000_000
"""Largest number of runs of a sweep: some 5 GiB of results."""
MOST_VALUES = 100_000
MOST_QUANTILES = 50
_SPAN_KEYS = ("from", "to", "points", "spacing")
_KEYS_OF = {"simulation": ("packets", "seed", "replications"), "chain": ("max_seconds", "max_memory")}
"""Keys of `[evaluate]` that go with one method. A simulation has its packets, whatever time they take."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid."""

    name: str  # The parameter
    values: tuple[Value, ...]  # The different values: seconds, bytes, bit/s, fractions, words or flags


def _several(name: str, parse: Callable[..., float], below: float, values: object) -> tuple[float, ...]:
    """Return several ascending numbers above 0, or texts with their units."""
    if not isinstance(values, list | tuple) or len(values) > MOST_QUANTILES:
        raise InvalidValueError(name, values, f"be a list of at most {MOST_QUANTILES} values")
    found = [parse(value, name) if isinstance(value, str) else value for value in values]
    for value in found:
        if not is_number(value) or not 0 < value < below:
            allowed = "seconds above 0" if below == math.inf else "fractions above 0 and below 1"
            raise InvalidValueError(name, value, f"be {allowed}")
    if any(later <= earlier for earlier, later in pairwise(found)):
        raise InvalidValueError(name, values, "ascend")
    return tuple(float(value) for value in found)


@described
class Evaluation:
    """The figures that are predicted at each point, and the method."""

    method: Method = choice("The model.", default="chain")
    quantiles: tuple[float, ...] = content(
        "Quantiles of the delay.", partial(_several, "quantiles", parse_fraction, 1.0), default=(0.5, 0.95, 0.99)
    )
    late_after: tuple[float, ...] = content(
        "Delays [s] beyond which packets count as late.",
        partial(_several, "late_after", parse_time, math.inf),
        default=(0.2,),
    )
    packets: int = whole_number("Number of packets of a simulation.", 1000, 10**9, default=100_000)
    seed: int = whole_number("Seed from which the seeds of all simulations are derived.", 0, 2**63 - 1, default=0)
    replications: int = whole_number(
        "Number of simulations at each point, each with its own seed.", 1, 10_000, default=1
    )
    max_seconds: float = like(TIME, default=MOST_SECONDS)
    max_memory: float | None = like(MEMORY, default=None)


HOMES: Mapping[str, str] = {
    **{name: "source" for kind in KINDS.values() for name in ("kind", *declarations(kind))},
    **{name: parameter.table for name, parameter in PARAMETERS.items()},
    **dict.fromkeys(declarations(Evaluation), "evaluate"),
    "file": "output",
}
"""The table in which each key belongs; a key of `[source]` that other tables have too belongs there."""


@dataclass(frozen=True)
class SweepSpecification:
    """A sweep: its fixed parameters, its axes, and the figures that are predicted."""

    fixed: tuple[tuple[str, Value], ...]  # Parameters that are the same at all points
    axes: tuple[Axis, ...]  # The parameters that vary; the last axis varies fastest
    evaluation: Evaluation  # The figures that are predicted at each point
    file: str | None = None  # The file that the specification names for the result
    # The source that replaces the flow. Its fields that vary have the first values of their axes.
    source: SourceSettings | None = None

    @property
    def messages(self) -> Source | None:
        """The source that replaces the flow; None for a flow."""
        return None if self.source is None else self.source.source

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def points(self) -> int:
        """Number of points of the grid."""
        return math.prod(self.shape)

    @property
    def runs(self) -> int:
        """Number of runs: points times replications."""
        return self.points * self.evaluation.replications

    @cached_property
    def canonical(self) -> str:
        """All settings that the result depends on, as JSON."""
        asked = {"fixed": self.fixed, "axes": [asdict(axis) for axis in self.axes], "evaluate": asdict(self.evaluation)}
        return json.dumps(asked | ({} if self.source is None else {"source": self.source.table}), sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 of `canonical`, in hexadecimal."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()


def read_sweep(source: str | os.PathLike[str] | Mapping[str, Any]) -> SweepSpecification:
    """Return the specification of a sweep from a TOML file or its content, in seconds, bytes, bit/s and fractions.

    `[flow]`, `[path]`, `[stack]` and `[heuristics]` fix parameters. `[source]`, with a `kind` and the fields of a
    source, takes the place of `[flow]`; the `file` of a trace is relative to the specification. `[grid]` gives the
    values of the varied parameters, as a list or as a table with `from`, `to`, `points` and optionally `spacing`
    ("linear" or "log"). `[evaluate]` gives the method and the figures, `[output]` the `file` of the result.
    """
    place = "specification" if isinstance(source, Mapping) else str(source)
    content, folder = source, FilePath()
    if not isinstance(source, Mapping):
        content, folder = read_toml(FilePath(source)), FilePath(source).parent
    assert isinstance(content, Mapping)
    try:
        return _specification(content, folder)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _specification(content: Mapping[str, Any], folder: FilePath) -> SweepSpecification:
    allowed = (*TABLES, "source", "grid", "evaluate", "output")
    for key, held in content.items():
        if key in HOMES:
            raise ValueError(f"{key}: belongs in the table [{HOMES[key]}]")
        if key not in allowed:
            raise ValueError(f"unknown table [{key:.64}]; allowed are {', '.join(f'[{name}]' for name in allowed)}")
        if not isinstance(held, Mapping):
            raise InvalidValueError(key, held, "be a table")
    source = _source(content, folder) if "source" in content else None
    messages = None if source is None else source.source
    parameters = parameters_with(messages)
    fixed: dict[str, Value] = {}
    for table in TABLES:
        with _in_table(table):
            fixed |= _fixed(table, content.get(table, {}))
    with _in_table("grid"):
        axes = _axes(content.get("grid", {}), fixed, parameters)
    _require_complete({*fixed, *(axis.name for axis in axes)}, messages)
    _require_known_profile(fixed, axes)
    with _in_table("evaluate"):
        evaluation = _evaluation(content.get("evaluate", {}))
        if messages is not None:
            _require_model(messages, evaluation.method)
    with _in_table("output"):
        file = _file(content.get("output", {}))
    specification = SweepSpecification(tuple(fixed.items()), axes, evaluation, file, source)
    if specification.runs > MOST_RUNS:
        raise ValueError(f"[grid] spans {specification.runs} points with their replications; at most {MOST_RUNS}")
    return specification


def _source(content: Mapping[str, Any], folder: FilePath) -> SourceSettings:
    """Return the source of a specification; fields that `[grid]` varies have their first values."""
    for name in ("flow", "heuristics"):
        if name in content:
            raise ValueError(f"[{name}] does not go with [source]")
    table = content["source"]
    if "seed" in table:
        raise ValueError("[source] seed: belongs in [evaluate], whose seed gives all random numbers")
    own = declarations(KINDS.get(str(table.get("kind")), Trace))
    first: dict[str, Any] = {}
    for name, values in content.get("grid", {}).items():
        if name in own and name in table:
            raise ValueError(f"[grid] {name}: is fixed by [source] already")
        if name in own:
            with _in_table("grid"):
                axis = _axis(name, values, own[name])
            first[name] = axis.values[0]
    return SourceSettings.from_table({**table, **first}, folder, LARGEST_MESSAGE_RATE)


def _require_model(source: Source, method: Method) -> None:
    """Raise ValueError if the model refuses the kind of source."""
    if any(error.name == "source" for error in supports(Scenario(source, Path(0.1, 0.01)), method).refused):
        raise ValueError("method: the chain does not model this source; write method = 'simulation'")


@contextmanager
def _in_table(name: str) -> Iterator[None]:
    """Name the table in the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"[{name}] {error}") from None


def _require_keys(table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in table:
        if key not in allowed:
            if HOMES.get(key) in ("evaluate", "output"):
                raise ValueError(f"{key}: belongs in the table [{HOMES[key]}]")
            near = get_close_matches(str(key), allowed, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; allowed are {', '.join(allowed)}"
            raise ValueError(f"unknown key {key!r:.64}{meant}")


def _fixed(table: str, content: Mapping[str, Any]) -> dict[str, Value]:
    declared = {name: parameter.declaration for name, parameter in PARAMETERS.items() if parameter.table == table}
    _require_keys(content, tuple(declared))
    fixed = {name: declared[name].read(name, value) for name, value in content.items()}
    for name, value in fixed.items():
        declared[name].require(name, value)
    return fixed


def _axes(
    content: Mapping[str, Any], fixed: Mapping[str, Value], parameters: Mapping[str, Parameter]
) -> tuple[Axis, ...]:
    _require_keys(content, tuple(parameters))
    if not content:
        raise ValueError("must vary at least one parameter, such as loss = ['1%', '2%']")
    axes = []
    for name, values in content.items():
        if name in fixed:
            raise ValueError(f"{name}: is fixed by [{parameters[name].table}] already")
        axes.append(_axis(name, values, parameters[name].declaration))
    return tuple(axes)


def _axis(name: str, values: object, declaration: Field) -> Axis:
    axis = Axis(name, (_span if isinstance(values, Mapping) else _list)(name, values, declaration))
    for value in axis.values:
        declaration.require(name, value)
    if len(set(axis.values)) < len(axis.values):
        twice = next(value for value in axis.values if axis.values.count(value) > 1)
        raise ValueError(f"{name}: has the value {twice!r} more than once")
    return axis


def _list(name: str, values: Any, declaration: Field) -> tuple[Value, ...]:
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MOST_VALUES:
        raise InvalidValueError(
            name, values, f"be a list of 1 to {MOST_VALUES} values or a table with {', '.join(_SPAN_KEYS)}"
        )
    return tuple(declaration.read(name, value) for value in values)


def _span(name: str, table: Any, declaration: Field) -> tuple[Value, ...]:
    """Return evenly spaced values, both ends included."""
    if not isinstance(declaration, Quantity):
        raise ValueError(f"{name}: cannot have a range of values; write a list")
    unknown = [key for key in table if key not in _SPAN_KEYS]
    missing = [key for key in _SPAN_KEYS[:3] if key not in table]
    if unknown or missing:
        wrong = f"unknown key {unknown[0]!r:.64}" if unknown else f"{missing[0]} is missing"
        raise ValueError(f"{name}: {wrong}; a range has {', '.join(_SPAN_KEYS)}")
    points = whole_number("", 2, MOST_VALUES).require(f"{name}.points", table["points"])
    spacing = table.get("spacing", "linear")
    if spacing not in get_args(Spacing):
        raise ValueError(f"{name}.spacing must be 'linear' or 'log', got {spacing!r:.64}")
    low, high = (float(declaration.read(name, table[end])) for end in ("from", "to"))
    if not low < high or (spacing == "log" and low <= 0):
        least = "above 0 and " if spacing == "log" else ""
        raise ValueError(f"{name}: from must be {least}below to, got {table['from']!r:.64} and {table['to']!r:.64}")
    # Before the points are computed: a value out of range could overflow there.
    declaration.require(name, declaration.read(name, table["to"]))
    values = (np.linspace if spacing == "linear" else np.geomspace)(low, high, points)
    if declaration.kind not in WHOLE:
        return tuple(values.tolist())
    whole = tuple(round(value) for value in values.tolist())
    if len(set(whole)) < points:
        raise ValueError(f"{name}: the range has fewer than {points} different whole numbers with this spacing")
    return whole


def _require_complete(given: set[str], source: Source | None) -> None:
    flow = [name for name in ("packet_size", "interval", "bitrate") if name in given]
    if source is None and len(flow) != 2:
        raise ValueError(
            f"[flow] and [grid] must give two of packet_size, interval and bitrate, got {', '.join(flow) or 'none'}"
        )
    for name in ("rtt", "loss"):
        if name not in given:
            raise ValueError(f"{name} is missing; give it in [path] or [grid]")


def profiles_of(fixed: Mapping[str, Value], axes: tuple[Axis, ...]) -> tuple[Value, ...]:
    """Return the profiles of the transport in a sweep."""
    varied = next((axis.values for axis in axes if axis.name == "profile"), None)
    return varied or (fixed.get("profile", DEFAULT_PROFILE),)


def _require_known_profile(fixed: Mapping[str, Value], axes: tuple[Axis, ...]) -> None:
    """Raise ValueError if a setting belongs to none of the profiles of the sweep."""
    profiles = profiles_of(fixed, axes)
    for name in (*fixed, *(axis.name for axis in axes)):
        owners = profiles_with(name)
        of_stack = name in PARAMETERS and PARAMETERS[name].table == "stack" and name != "profile"
        if of_stack and not set(owners) & set(profiles):
            raise ValueError(
                f"{name}: goes with profile {' or '.join(map(repr, owners))}, which the sweep does not have"
            )


def _evaluation(table: Mapping[str, Any]) -> Evaluation:
    _require_keys(table, tuple(declarations(Evaluation)))
    found = read(Evaluation, table)
    for owner, keys in _KEYS_OF.items():
        for key in keys:
            if key in table and found.method != owner:
                raise ValueError(f"{key}: goes with method = {owner!r}, not with {found.method!r}")
    return found


def _file(table: Mapping[str, Any]) -> str | None:
    _require_keys(table, ("file",))
    file = table.get("file")
    if file is not None and not (isinstance(file, str) and file.endswith(".nc") and "\0" not in file):
        raise InvalidValueError("file", file, "be the name of a file that ends in .nc")
    return file
