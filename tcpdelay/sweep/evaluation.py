"""What a worker does: a range of the runs of a sweep, one after the other, each by itself."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.predict import require_simulable
from tcpdelay.sweep.parameters import Scenario, scenario_of
from tcpdelay.sweep.specification import Evaluation, SweepSpecification
from tcpdelay.throughput import connection_utilization
from tcpdelay.validity import checked_profile, validated_range

SEED_BITS = 53
"""Bits of a whole number that a double holds, as netCDF 3 has no integers that long."""
PACKAGE = FilePath(__file__).parents[1]


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
    for file in sorted((*PACKAGE.rglob("*.py"), *PACKAGE.glob("data/*.csv"))):
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
    >>> from tcpdelay.sweep.specification import read_sweep
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
        from tcpdelay.chain.model import DelayModel

        delays = DelayModel(flow, path, stack).delay_distribution()
        row["validated"] = not validated_range(stack).exceeded_by(flow, path)
    else:
        from tcpdelay.sim.simulation import simulate

        seed = run_seed(asked, point, replication)
        delays = simulate(flow, path, require_simulable(path, stack), packets=asked.packets, seed=seed)
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
