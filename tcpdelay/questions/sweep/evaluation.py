"""What a worker does: a range of the runs of a sweep, one after the other, each by itself.

The results of all runs in one table, filled in any order.

The result of a sweep as a data set: every quantity over the axes, with its unit and what it means.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.models.interface import Requested
from tcpdelay.models.predict import predict
from tcpdelay.models.simulator.simulation import Simulation
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.models.validity import validated_range
from tcpdelay.questions.sweep.specification import (
    PARAMETERS,
    Evaluation,
    Scenario,
    SweepSpecification,
    scenario_of,
)
from tcpdelay.scenario.scenario import Scenario as TcpScenario
from tcpdelay.scenario.stack import checked_profile

if TYPE_CHECKING:
    import xarray as xr


SEED_BITS = 53
"""Bits of a whole number that a double holds, as netCDF 3 has no integers that long."""
PACKAGE = FilePath(__file__).parents[2]


class OtherProgramError(Exception):
    """A worker runs another program than the one that asks it."""


@dataclass(frozen=True)
class Rows:
    """Results of consecutive runs.

    Attributes
    ----------
    start : int
        Number of the first run.
    values : structured ndarray, shape (n,)
        Fields of `row_type`; of refused runs NaN and False.
    refusals : ndarray of str, shape (n,)
        Why a run was refused; empty where it was not.
    """

    start: int
    values: NDArray[np.void]
    refusals: NDArray[np.str_]

    @property
    def stop(self) -> int:
        """Number of the run after the last one."""
        return self.start + self.values.size


@cache
def program() -> str:
    """Return what a result depends on beside the specification: this package to the letter, and what compiles it.

    Examples
    --------
    >>> program() == program()
    True
    """
    sources = sha256()
    for file in sorted((*PACKAGE.rglob("*.py"), *PACKAGE.glob("models/data/*.csv"))):
        sources.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    packages = ("tcpdelay", "numba", "numpy", "scipy")
    versions = [f"{package} {metadata.version(package)}" for package in packages]
    return ", ".join([f"{versions[0]} ({sources.hexdigest()[:12]})", *versions[1:], platform.machine()])


def row_type(asked: Evaluation) -> np.dtype[np.void]:
    """Return the type of a run's results.

    Examples
    --------
    >>> row_type(Evaluation()).names
    ('mean_delay', 'standard_deviation', 'delay', 'late_fraction', 'sustainable', 'utilization', 'validated')
    """
    fields: list[Any] = [
        ("mean_delay", np.float64),
        ("standard_deviation", np.float64),
        ("delay", np.float64, (len(asked.quantiles),)),
        ("late_fraction", np.float64, (len(asked.late_after),)),
        ("sustainable", np.bool_),
        ("utilization", np.float64),
    ]
    if asked.method == "chain":
        fields.append(("validated", np.bool_))
    else:
        fields += [("mean_half_width", np.float64), ("seed", np.float64)]
    return np.dtype(fields)


def run_seed(asked: Evaluation, point: int, replication: int) -> int:
    """Return the seed of one simulation; it depends on nothing else.

    Parameters
    ----------
    asked : Evaluation
        Has the seed of the sweep.
    point, replication : int
        Which simulation, from 0 on.

    Returns
    -------
    int
        0 to 2⁵³ - 1.

    Examples
    --------
    >>> run_seed(Evaluation(seed=1), 0, 0) != run_seed(Evaluation(seed=1), 0, 1)
    True
    """
    sequence = np.random.SeedSequence(asked.seed, spawn_key=(point, replication))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(64 - SEED_BITS))


def evaluate(
    specification: SweepSpecification,
    start: int,
    stop: int,
    expected_program: str,
    budget: float = math.inf,
    stopped: Callable[[], bool] | None = None,
) -> Rows:
    """Evaluate the runs from `start` to before `stop`, or as many of them as there is time for.

    Parameters
    ----------
    specification : SweepSpecification
        The sweep.
    start, stop : int
        Numbers of runs: a point's number times the replications, plus the replication's.
    expected_program : str
        What `program` must return here.
    budget : float
        Time [s] after which no further run is begun.
    stopped : callable, optional
        Asked before every run but the first whether to begin no further one.

    Returns
    -------
    Rows
        Of at least one run.

    Raises
    ------
    OtherProgramError
        If this process runs another program.

    Examples
    --------
    >>> from tcpdelay.questions.sweep.specification import read_sweep
    >>> flow = {"packet_size": 174, "interval": "20ms"}
    >>> spec = read_sweep({"flow": flow, "path": {"loss": 0.02}, "grid": {"rtt": ["100ms"]}})
    >>> rows = evaluate(spec, 0, 1, program())
    >>> rows.values["delay"].round(3)
    array([[0.05, 0.14, 0.18]])
    """
    if program() != expected_program:
        raise OtherProgramError(f"a worker runs {program()}, but the sweep {expected_program}")
    deadline = time.monotonic() + budget
    asked = specification.evaluation
    values = np.zeros(stop - start, row_type(asked))
    refusals: list[str] = []
    for run in range(start, stop):
        if run > start and (time.monotonic() > deadline or (stopped is not None and stopped())):
            break
        point, replication = divmod(run, asked.replications)
        try:
            fill_row(values[run - start], scenario_of(specification.values_at(point)), asked, point, replication)
            refusals.append("")
        except ValueError as error:
            blank_row(values[run - start])
            refusals.append(str(error))
    return Rows(start, values[: len(refusals)], np.array(refusals, np.str_))


def blank_row(row: Any) -> None:
    """Set a row to NaN and False."""
    for name in row.dtype.names:
        row[name] = False if row.dtype[name].kind == "b" else np.nan


def fill_row(row: Any, scenario: Scenario, asked: Evaluation, point: int, replication: int) -> None:
    """Work out one run.

    Raises
    ------
    ValueError
        If the model or the simulator refuses the scenario.
    """
    path, stack = scenario.path, checked_profile(scenario.stack)
    share = share_of(scenario.flow, scenario.connections)
    flow = piece_of(share, scenario.pieces)
    row["utilization"] = connection_utilization(share, path, stack)
    delays: DelayDistribution
    if asked.method == "chain":
        delays = predict(TcpScenario(flow, path, stack), method="chain").require()
        row["validated"] = not validated_range(stack).exceeded_by(flow, path)
    else:
        seed = run_seed(asked, point, replication)
        requested = Requested(packets=asked.packets, seed=seed)
        delays = predict(TcpScenario(flow, path, stack), requested, "simulation").require()
        assert isinstance(delays, Simulation)
        half_width = (delays.mean_interval.high - delays.mean_interval.low) / 2 if delays.sustainable else np.nan
        row["mean_half_width"], row["seed"] = half_width, seed
    if scenario.pieces > 1:
        delays = joined_delay(delays, share.interval, scenario.pieces)
    if scenario.connections > 1:
        delays = striped_delay(delays, scenario.flow.interval, scenario.connections)
    row["mean_delay"], row["standard_deviation"] = delays.mean, delays.std
    row["sustainable"] = delays.sustainable
    row["delay"] = delays.quantile(np.array(asked.quantiles))
    row["late_fraction"] = delays.late_fraction(np.array(asked.late_after))


class Results:
    """Results by the number of the run.

    Attributes
    ----------
    values : structured ndarray, shape (runs,)
        Fields of `row_type`.
    done : ndarray of bool, shape (runs,)
        Which runs have been evaluated.
    refusals : dict
        Why runs were refused, by number.

    Examples
    --------
    >>> from tcpdelay.questions.sweep.specification import Axis, Evaluation
    >>> results = Results(SweepSpecification((), (Axis("rtt", (0.1, 0.2, 0.3)),), Evaluation()))
    >>> results.add(Rows(1, results.values[1:2], np.array([""])))
    >>> list(results.gaps())
    [(0, 1), (2, 3)]
    """

    def __init__(self, specification: SweepSpecification) -> None:
        self.values: NDArray[np.void] = np.zeros(specification.runs, row_type(specification.evaluation))
        self.done: NDArray[np.bool_] = np.zeros(specification.runs, np.bool_)
        self.refusals: dict[int, str] = {}

    def add(self, rows: Rows) -> None:
        """Fill in the results of some runs."""
        self.values[rows.start : rows.stop] = rows.values
        self.done[rows.start : rows.stop] = True
        for place in np.flatnonzero(rows.refusals != ""):
            self.refusals[rows.start + int(place)] = str(rows.refusals[place])

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Return the ranges of runs that are missing: the first, and the one after the last."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self.done, [True]]).astype(np.int8)))
        yield from ((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))


MEANINGS = {
    "mean_delay": ("s", "mean delay"),
    "standard_deviation": ("s", "standard deviation of the delay"),
    "delay": ("s", "delay within which a share of the packets arrives"),
    "late_fraction": ("1", "share of the packets that come later"),
    "sustainable": (None, "whether TCP can carry the flow"),
    "utilization": ("1", "rate of the flow, on each connection, over the fair TCP rate"),
    "validated": (None, "whether the chain has been checked for scenarios like this one"),
    "mean_half_width": ("s", "half width of the 95 % interval of the mean delay of one connection"),
    "seed": (None, "seed of the simulation, a whole number"),
}
"""Units and meanings of what is worked out."""
FURTHER_DIMENSIONS = {"delay": "quantile", "late_fraction": "late_after"}
NOT_REFUSED = ""


def labelled(specification: SweepSpecification, results: Results) -> xr.Dataset:
    """Return the results of all runs by the values of the axes.

    Parameters
    ----------
    specification : SweepSpecification
        The sweep.
    results : Results
        Complete.

    Returns
    -------
    xarray.Dataset
        As `tcpdelay.sweep` returns it.

    Examples
    --------
    >>> from tcpdelay.questions.sweep.specification import Axis, Evaluation
    >>> spec = SweepSpecification((("loss", 0.02),), (Axis("rtt", (0.1, 0.2)),), Evaluation())
    >>> labelled(spec, Results(spec)).delay.dims
    ('rtt', 'quantile')
    """
    import xarray as xr

    asked = specification.evaluation
    dimensions, shape = tuple(axis.name for axis in specification.axes), specification.shape
    if asked.replications > 1:
        dimensions, shape = (*dimensions, "replication"), (*shape, asked.replications)
    variables: dict[str, Any] = {}
    for name in results.values.dtype.names or ():
        column = results.values[name]
        further = (FURTHER_DIMENSIONS[name],) if name in FURTHER_DIMENSIONS else ()
        filled = np.ascontiguousarray(column).reshape(*shape, *column.shape[1:])
        variables[name] = ((*dimensions, *further), filled, _attributes(*MEANINGS[name]))
    numbers, texts = _numbered(results)
    meaning = {"long_name": "number of the reason in refusals why nothing was worked out, or 0"}
    variables["refused"] = (dimensions, numbers.reshape(shape), meaning)
    variables["refusals"] = ("refusal", texts, {"long_name": "reasons why nothing was worked out"})
    coordinates: dict[str, Any] = {
        axis.name: (axis.name, np.array(axis.values), _of_parameter(axis.name)) for axis in specification.axes
    }
    coordinates |= {name: ((), value, _of_parameter(name)) for name, value in specification.fixed}
    coordinates["quantile"] = ("quantile", np.array(asked.quantiles), _attributes("1", "share of the packets"))
    late = _attributes("s", "delay beyond which a packet counts as late")
    coordinates["late_after"] = ("late_after", np.array(asked.late_after), late)
    title = "Delay, from write to in-order read, of constant-bit-rate flows over TCP"
    attributes = {
        "title": title,
        "method": asked.method,
        "source": program(),
        "specification": json.dumps(json.loads(specification.canonical)),
        "specification_sha256": specification.digest,
    }
    return xr.Dataset(variables, coordinates, attributes)


def _numbered(results: Results) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the number of each run's reason, and the reasons in the order of the runs that they occur first in."""
    numbers = np.zeros(results.done.size, np.int32)
    known = {NOT_REFUSED: 0}
    for run in sorted(results.refusals):
        numbers[run] = known.setdefault(results.refusals[run], len(known))
    return numbers, np.array(list(known), object)


def _attributes(unit: str | None, meaning: str) -> dict[str, str]:
    return {"long_name": meaning, **({} if unit is None else {"units": unit})}


def _of_parameter(name: str) -> dict[str, str]:
    return PARAMETERS[name].declaration.attributes
