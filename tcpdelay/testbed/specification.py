"""Specifications of measurement campaigns: TOML files; a list of values stands for several experiments."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from tcpdelay.declare import (
    InvalidValueError,
    Quantity,
    declarations,
    described,
    in_seconds,
    read,
    require_keys,
    whole_number,
)
from tcpdelay.scenario.link import fraction
from tcpdelay.scenario.sources.source_settings import MAX_SEED, SourceSettings
from tcpdelay.store import read_toml
from tcpdelay.testbed.backends import BackendName
from tcpdelay.testbed.experiment import MAX_DURATION, Experiment
from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL, check_version

MAX_EXPERIMENTS = 10_000


def _below_1(meaning: str) -> Quantity:
    """Return the declaration of a share above 0 and below 1."""
    return fraction(meaning=meaning, low_excluded=True, unit="", allowed="lie between 0 and 1")


@described
class Precision:
    """The precision up to which an experiment is prolonged."""

    half_width: Annotated[
        float,
        _below_1("Largest half width of the 95 % interval of the 95th percentile, relative to the percentile."),
    ]
    utilization: Annotated[float, _below_1("Largest connection utilization at which the precision is required.")]
    # A round is at most as long as all earlier rounds, and no round may exceed an experiment's longest duration.
    max_duration: Annotated[
        float,
        in_seconds(
            "Total time of all runs after which an experiment is not prolonged.", 0, 2 * MAX_DURATION, low_excluded=True
        ),
    ]


@dataclass(frozen=True)
class Specification:
    """A campaign: its experiments, backend and precision.

    Attributes
    ----------
    name : str
        Name of the campaign: letters, digits, dots and hyphens.
    experiments : tuple of Experiment
        The experiments; no two are equal.
    backend : {"uml-virtual", "uml", "host"}
        The kernel that runs TCP: a guest in virtual time, a guest in real time, or the kernel of this machine.
    hz : tuple of int
        Timer interrupts per second of the kernels in virtual time, 100 to 1000; every experiment runs on each kernel.
    kernel : tuple of str
        Versions of Linux of the kernels in virtual time, such as "7.3"; every experiment runs on each version.
    seed : int
        Seed of all random numbers, 0 to 2147483647.
    side_by_side : int
        Number of experiments that share a guest, 1 to 64.
    pcap : bool
        Whether to keep packet traces of both ends.
    qlog : bool
        Whether to keep the qlogs of both ends of QUIC.
    precision : Precision, optional
        The required precision; None: no experiment is prolonged.
    """

    name: str
    experiments: tuple[Experiment, ...]
    backend: BackendName = "uml-virtual"
    hz: tuple[int, ...] = (250,)
    seed: int = 1
    side_by_side: int = 8
    pcap: bool = False
    precision: Precision | None = None
    kernel: tuple[str, ...] = (DEFAULT_KERNEL,)
    qlog: bool = False


def read_specification(file: str | os.PathLike[str]) -> Specification:
    """Read a specification."""
    path = Path(file)
    content = read_toml(path)
    try:
        return _specification(content, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


_KEYS = sorted(["source", *(field.name for field in fields(Specification))])


def _specification(content: dict[str, Any], folder: Path) -> Specification:
    require_keys(content, _KEYS, "key of a specification")
    name = content.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,60}", name):
        raise InvalidValueError("name", name, "be up to 61 letters, digits, dots and hyphens")
    backend = content.get("backend", Specification.backend)
    if backend not in get_args(BackendName):
        raise InvalidValueError("backend", backend, f"be one of {', '.join(map(repr, get_args(BackendName)))}")
    for trace in ("pcap", "qlog"):
        if not isinstance(content.get(trace, False), bool):
            raise InvalidValueError(trace, content[trace], "be true or false")
    ticks = _different("hz", content, Specification.hz, "whole number", "whole numbers")
    kernels = _different("kernel", content, Specification.kernel, "version of Linux", "versions of Linux")
    for kernel in kernels:
        check_version(kernel)
    if backend != "uml-virtual" and "kernel" in content:
        raise ValueError(f"kernel is for the backend 'uml-virtual', not {backend!r}")
    source = SourceSettings.from_table(content["source"], folder) if "source" in content else None
    return Specification(
        name,
        tuple(_experiments(content.get("experiments"), source, folder)),
        backend,
        tuple(whole_number("", 100, 1000).require("hz", tick) for tick in ticks),
        whole_number("", 0, MAX_SEED).require("seed", content.get("seed", Specification.seed)),
        whole_number("", 1, 64).require("side_by_side", content.get("side_by_side", Specification.side_by_side)),
        content.get("pcap", False),
        _precision(content["precision"]) if "precision" in content else None,
        tuple(kernels),
        content.get("qlog", False),
    )


def _different(name: str, content: dict[str, Any], default: tuple[Any, ...], one: str, several: str) -> list[Any]:
    """Return the values of a key that takes one value or a list of different values."""
    values = content.get(name, list(default))
    values = values if isinstance(values, list) else [values]
    if not values or any(values.count(value) > 1 for value in values):
        raise InvalidValueError(name, values, f"be a {one} or a list of different {several}")
    return values


def _precision(table: object) -> Precision:
    names = declarations(Precision)
    if not isinstance(table, dict) or sorted(table) != sorted(names):
        raise InvalidValueError("precision", table, f"have the keys {', '.join(names)}")
    try:
        return read(Precision, table)
    except ValueError as error:
        raise ValueError(f"precision.{error}") from None


def _experiments(tables: object, source: SourceSettings | None, folder: Path) -> list[Experiment]:
    if not isinstance(tables, list) or not tables:
        raise ValueError("there must be at least one table [[experiments]]")
    experiments: dict[Experiment, int] = {}
    for number, table in enumerate(tables, start=1):
        try:
            for combination in _combinations(table, folder):
                if source is not None and not {"source", "application"} & combination.keys():
                    combination["source"] = source
                experiment = Experiment.from_table(combination)
                if experiment in experiments:
                    raise ValueError(
                        f"{experiment.name!r} is already requested by experiments {experiments[experiment]}"
                    )
                experiments[experiment] = number
        except ValueError as error:
            raise ValueError(f"experiments {number}: {error}") from None
    for name, count in Counter(experiment.name for experiment in experiments).items():
        if count > 1:
            raise ValueError(
                f"{count} experiments differ only in settings that names do not show and would be named {name!r}"
            )
    return list(experiments)


def _combinations(table: object, folder: Path) -> list[dict[str, Any]]:
    if not isinstance(table, dict):
        raise ValueError(f"a table of settings is expected, got {table!r}")
    choices = []
    for name, value in table.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ValueError(f"{name} is an empty list")
        choices.append([(name, _value(name, choice, folder)) for choice in values])
    count = math.prod(map(len, choices))
    if count > MAX_EXPERIMENTS:
        raise ValueError(f"the lists span {count} experiments; at most {MAX_EXPERIMENTS} are allowed")
    return [dict(combination) for combination in itertools.product(*choices)]


def _value(name: str, value: Any, folder: Path) -> Any:
    """Return the value of a setting, from a text with a unit or a plain value; the table of a source is read."""
    if name == "source":
        return SourceSettings.from_table(value, folder)
    declaration = declarations(Experiment).get(name)
    return value if declaration is None else declaration.read(name, value)


def shortened(specification: Specification, duration: float) -> Specification:
    """Return the specification with all experiments limited to `duration` [s], and without a required precision."""
    experiments = tuple(
        replace(experiment, duration=min(duration, experiment.duration)) for experiment in specification.experiments
    )
    return replace(specification, experiments=experiments, precision=None)
