"""Sweeps: from a specification to a data set, with finished runs kept; and an estimate of the cost of a sweep."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.accuracy.validity import validated_range
from tcpdelay.ask import Answer, Requested
from tcpdelay.declare import InvalidValueError
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.scenario.scenario import Scenario, checked_arguments
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.sim.simulation import Simulation
from tcpdelay.store import UNFINISHED, locked, written_durably
from tcpdelay.study.execution import Executor, Progress, Rows, SweepFailedError, cluster, program, threads, work_through
from tcpdelay.study.grid import MEANINGS, Grid, GridWork, Meaning, Variables, delay_dimensions, evaluate
from tcpdelay.study.sweep.specification import (
    PARAMETERS,
    Evaluation,
    SweepPoint,
    SweepSpecification,
    parameters_with,
    point_of,
    profiles_of,
    read_sweep,
)

if TYPE_CHECKING:
    import xarray as xr

ENGINE: Final = "scipy"
"""Library that writes netCDF version 3; other versions need another library."""
_CONSTANT, _MESSAGES = "constant-bit-rate flows", "the messages of a source"
SWEPT: dict[str, Meaning] = {
    "mean_delay": MEANINGS["mean_delay"],
    "standard_deviation": Meaning("s", "standard deviation of the delay"),
    "delay": MEANINGS["delay"],
    "late_fraction": MEANINGS["late_fraction"],
    "sustainable": MEANINGS["sustainable"],
    "utilization": Meaning("1", "rate of the flow, on each connection, over the fair TCP rate"),
    "validated": Meaning(None, "whether the chain has been checked for scenarios like this one"),
    "mean_half_width": Meaning("s", "half width of the 95 % interval of the mean delay of one connection"),
    "seed": Meaning("1", "seed of the simulation, a whole number"),
}
"""Units and meanings of the variables."""


def kind_variables(source: Source | None) -> dict[str, str]:
    """Return the variable with the delays of each kind of message; nothing for messages of one kind."""
    kinds = () if source is None or len(source.kinds) == 1 else source.kinds
    names = [f"delay_{re.sub(r'[^A-Za-z0-9]+', '_', kind)}" for kind in kinds]
    # The labels of a trace may differ in other characters only; their variables are numbered.
    return {
        kind: name if names.count(name) == 1 else f"{name}_{number}"
        for number, (kind, name) in enumerate(zip(kinds, names, strict=True))
    }


def row_type(asked: Evaluation, kinds: Iterable[str] = ()) -> np.dtype[np.void]:
    """Return the type of the results of one run; `kinds` are the variables of kinds of messages."""
    fields: list[Any] = [
        ("mean_delay", np.float64),
        ("standard_deviation", np.float64),
        ("delay", np.float64, (len(asked.quantiles),)),
        *((name, np.float64, (len(asked.quantiles),)) for name in kinds),
        ("late_fraction", np.float64, (len(asked.late_after),)),
        ("sustainable", np.bool_),
        ("utilization", np.float64),
    ]
    if asked.method == "chain":
        fields.append(("validated", np.bool_))
    else:
        fields += [("mean_half_width", np.float64), ("seed", np.float64)]
    return np.dtype(fields)


def sweep_runs(specification: SweepSpecification) -> GridWork:
    """Return the runs of a sweep."""
    asked, fixed, source = specification.evaluation, dict(specification.fixed), specification.messages
    simulated = asked.method == "simulation"
    requested = Requested(
        packets=asked.packets if simulated else None,
        seed=asked.seed,
        max_seconds=asked.max_seconds,
        max_memory=asked.max_memory,
    )
    of_kinds = {
        name: Meaning("s", f"delay within which a share of the kind {kind!r} arrives")
        for kind, name in kind_variables(source).items()
    }
    fields = row_type(asked, of_kinds)
    dimensions = delay_dimensions(asked.quantiles, asked.late_after)
    variables = Variables(
        fields,
        partial(_fill, asked, fixed, source),
        {name: (SWEPT | of_kinds)[name] for name in fields.names or ()},
        dimensions | dict.fromkeys(of_kinds, dimensions["delay"]),
    )
    axes = {axis.name: axis.values for axis in specification.axes}
    meanings = {name: parameters_with(source)[name].declaration for name in axes}
    grid = Grid(axes, partial(_scenario, fixed, source), asked.replications, meanings)
    return GridWork(grid, requested, asked.method, variables)


def _scenario(fixed: Mapping[str, Any], source: Source | None, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario for the model: the pieces of the packets of one connection."""
    point = point_of({**fixed, **values}, source)
    share = _share(point)
    written = piece_of(share, point.pieces) if isinstance(share, Flow) else share
    return Scenario(written, point.path, point.stack)


def _share(point: SweepPoint) -> Source:
    """Return what one connection carries: the packets of its turn, or the messages of a source."""
    return share_of(point.flow, point.connections) if isinstance(point.flow, Flow) else point.flow


def _fill(
    asked: Evaluation,
    fixed: Mapping[str, Any],
    source: Source | None,
    row: Any,
    answer: Answer,
    values: Mapping[str, Any],
) -> None:
    """Write the results of a run to a row."""
    flow, path, stack = answer.scenario.source, answer.scenario.path, answer.scenario.stack
    point = point_of({**fixed, **values}, source)
    share = _share(point)
    row["utilization"] = connection_utilization(share, path, stack)
    delays: DelayDistribution = answer.require()
    if isinstance(delays, Simulation):
        interval = delays.mean_interval
        row["mean_half_width"] = (interval.high - interval.low) / 2 if delays.sustainable else np.nan
        row["seed"] = answer.requested.seed
    else:
        row["validated"] = not validated_range(stack).exceeded_by(flow, path)
    if point.pieces > 1:
        delays = joined_delay(delays, share.mean_interval, point.pieces)
    if point.connections > 1:
        delays = striped_delay(delays, point.flow.mean_interval, point.connections)
    row["mean_delay"], row["standard_deviation"] = delays.mean, delays.std
    row["sustainable"] = delays.sustainable
    row["delay"] = delays.quantile(np.array(asked.quantiles))
    row["late_fraction"] = delays.late_fraction(np.array(asked.late_after))
    by_kind: Mapping[str, DelayDistribution] = getattr(delays, "by_kind", {})
    for kind, name in kind_variables(source).items():
        known = by_kind.get(kind, delays).known_quantile
        row[name] = [known(share) if kind in by_kind else np.nan for share in asked.quantiles]


@checked_arguments
def sweep(
    specification: SweepSpecification | str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str] | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> xr.Dataset:
    """Evaluate a model or the simulator at every point of a grid.

    A folder beside the output keeps finished runs, and a repeated call continues from there. The result depends on the
    specification alone, not on the workers, the order of the runs, or interrupts.

    Parameters
    ----------
    specification : SweepSpecification, str, path-like or mapping
        The sweep: a TOML file, or its content.
    output : str or path-like, optional
        File of the result, whose name ends in ".nc"; by default the file that the specification names. Without a file,
        nothing is written to the disk.
    scheduler : str, optional
        Address of a Dask scheduler whose workers evaluate the runs, such as "tcp://127.0.0.1:8786"; by default this
        process evaluates them.
    workers : int, optional
        Number of threads of this process, 1 to 256; by default the number of processors. Not with `scheduler`.
    on_progress : callable, optional
        Called with a `Progress` about twice a second.

    Returns
    -------
    xarray.Dataset
        Over the axes, in the order of the specification: mean, standard deviation and quantiles of the delay [s],
        late fraction, utilization, and whether TCP can carry the flow; at a refused point NaN, and the reason.

    Raises
    ------
    ValueError
        If the specification or an argument is wrong, or the output file has other content.
    SweepFailedError
        If the workers fail, or a file cannot be written; finished runs are kept.

    Warns
    -----
    DamagedCheckpointWarning
        If files of finished runs are damaged; their runs are done again.

    Examples
    --------
    >>> voice = {"packet_size": 174, "interval": "20ms"}
    >>> grid = {"rtt": ["50ms", "100ms"], "loss": ["1%", "2%"]}
    >>> result = sweep({"flow": voice, "grid": grid, "evaluate": {"quantiles": [0.95]}})
    >>> result.delay.sel(rtt=0.1, loss=0.02, quantile=0.95).item().__round__(3), result.delay.units
    (0.14, 's')
    """
    asked = specification if isinstance(specification, SweepSpecification) else read_sweep(specification)
    if scheduler is not None and workers is not None:
        raise InvalidValueError("workers", workers, "be left out with a scheduler")
    file = result_file(asked, output)
    if file is not None and file.exists():
        found = finished_result(asked, file)
        if checkpoint_folder(file).exists():
            # An earlier sweep was killed after it wrote the result and before it removed the folder.
            with checkpoint(file, asked) as left:
                left.remove()
        return found
    with ExitStack() as stack:
        # First the workers: if there are none, no folder is made.
        executor = stack.enter_context(threads(workers) if scheduler is None else cluster(scheduler))
        if file is None:
            return _evaluated(asked, executor, None, on_progress)
        kept = stack.enter_context(checkpoint(file, asked))
        found = _evaluated(asked, executor, kept, on_progress)
        with writing(file), written_durably(file) as unfinished:
            found.to_netcdf(str(unfinished), engine=ENGINE)
        kept.remove()
    return found


def _evaluated(
    asked: SweepSpecification,
    executor: Executor,
    kept: Checkpoint | None,
    on_progress: Callable[[Progress], None],
) -> xr.Dataset:
    """Return the results of all runs, with the fixed parameters, the specification and the program."""
    runs = sweep_runs(asked)
    found = evaluate(
        runs.grid,
        runs.requested,
        nullcontext(executor),
        method=runs.method,
        variables=runs.variables,
        checkpoint=kept,
        on_progress=on_progress,
    )
    fixed: dict[str, Any] = {name: ((), value, PARAMETERS[name].declaration.attributes) for name, value in asked.fixed}
    what = _CONSTANT if asked.source is None else _MESSAGES
    transports = sorted({"QUIC" if name == "quic" else "TCP" for name in profiles_of(dict(asked.fixed), asked.axes)})
    attributes = {
        "title": f"Delay, from write to in-order read, of {what} over {' and '.join(transports)}",
        "method": asked.evaluation.method,
        "source": program(),
        "specification": json.dumps(json.loads(asked.canonical)),
        "specification_sha256": asked.digest,
    }
    return found.assign_coords(fixed).assign_attrs(attributes)


def result_file(specification: SweepSpecification, output: str | os.PathLike[str] | None) -> Path | None:
    """Return the file of the result: `output`, or else the file that the specification names, or None."""
    named = specification.file if output is None else output
    if named is None:
        return None
    file = Path(named)
    if file.suffix != ".nc":
        raise InvalidValueError("output", str(file), "be the name of a file that ends in .nc")
    if not file.parent.is_dir():
        raise InvalidValueError("output", str(file), "be in a folder that exists")
    return file


def finished_result(specification: SweepSpecification, file: Path) -> xr.Dataset:
    """Return the result in a file."""
    import xarray as xr

    try:
        with xr.open_dataset(file, engine=ENGINE) as opened:
            found = opened.load()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: exists, and is not the result of a sweep; name another output") from error
    if found.attrs.get("specification_sha256") != specification.digest:
        raise ValueError(f"{file}: holds the result of another specification; remove it, or name another output")
    if found.attrs.get("source") != program():
        raise ValueError(f"{file}: was made by {found.attrs.get('source')}; remove it, or name another output")
    return found


TRIAL_TIME = 5.0
MOST_TRIED = 200


@dataclass(frozen=True)
class Cost:
    """Time and memory that the runs of a sweep take on one processor of this machine."""

    # tried, refused: Number of random runs that were tried, and number of refused runs among them.
    tried: int
    refused: int
    # mean, least, most: Mean, shortest and longest time of a tried run [s].
    mean: float
    least: float
    most: float
    runs: int  # Number of runs of the sweep
    size: int  # Size of the result without its texts [bytes]

    @property
    def total(self) -> float:
        """Time of all runs together [s]."""
        return self.mean * self.runs


def estimated_cost(specification: SweepSpecification, trial_time: float = TRIAL_TIME) -> Cost:
    """Return the cost of a sweep, estimated from at least one of its runs; no run is tried after `trial_time` [s].

    Near saturation a chain takes a thousand times longer than elsewhere. If only few points are near saturation, the
    estimate is poor.
    """
    runs = specification.runs
    drawn = np.random.default_rng(0).permutation(min(runs, MOST_TRIED)) * runs // min(runs, MOST_TRIED)
    work = sweep_runs(specification)
    # This run compiles or loads the kernels; it is not timed.
    work_through(work, int(drawn[0]), int(drawn[0]) + 1)
    times, refused = [], 0
    begun = time.monotonic()
    for run in drawn.tolist():
        before = time.monotonic()
        rows = work_through(work, run, run + 1)
        times.append(time.monotonic() - before)
        refused += int(rows.refusals[0] != "")
        if time.monotonic() - begun > trial_time:
            break
    size = runs * (work.row_type.itemsize + np.dtype(np.int32).itemsize)
    return Cost(len(times), refused, float(np.mean(times)), min(times), max(times), runs, size)


# Finished runs of a sweep, in a folder beside its result: every part is on the disk before it counts as done.

MANIFEST = "sweep.json"
PARTS = "runs-*.npz.gz"


class DamagedCheckpointWarning(UserWarning):
    """Files of an unfinished sweep were damaged; the sweep goes on without them."""


@dataclass(frozen=True)
class Origin:
    """Origin of finished runs: a specification and a program."""

    specification: str  # SHA-256 of the specification, as in `SweepSpecification.digest`
    program: str  # The program that evaluated them, as in `tcpdelay.study.execution.program`


@dataclass(frozen=True)
class Part:
    """Content of a file of finished runs."""

    rows: Rows  # The runs
    origin: Origin  # The specification and the program of the runs


def write_part(file: Path, part: Part) -> None:
    """Write finished runs to a file; after an interrupt, the file is complete or missing."""
    packed = io.BytesIO()
    rows, origin = part.rows, part.origin
    np.savez(
        packed,
        start=np.array(rows.start),
        values=rows.values,
        refusals=rows.refusals,
        specification=np.array(origin.specification),
        program=np.array(origin.program),
    )
    with written_durably(file) as unfinished:
        unfinished.write_bytes(gzip.compress(packed.getvalue(), compresslevel=1, mtime=0))


def read_part(file: Path) -> Part | None:
    """Read finished runs."""
    try:
        written = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{file}: cannot be read: {error.strerror or error}; make it readable, or remove it to repeat its runs"
        ) from None
    try:
        content = gzip.decompress(written)
    except (OSError, EOFError, zlib.error):
        return None
    if not content:
        # An empty file is damaged too; gzip reads it as empty content.
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as held:
        rows = Rows(int(held["start"]), held["values"], held["refusals"])
        return Part(rows, Origin(str(held["specification"]), str(held["program"])))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an OSError, for example on a full disk, into a SweepFailedError that names the file or folder."""
    try:
        yield
    except OSError as error:
        raise SweepFailedError(f"{place}: cannot be written: {error.strerror or error}") from error


def checkpoint_folder(output: Path) -> Path:
    """Return the folder that belongs to a result."""
    return output.with_name(f"{output.name}.parts")


class Checkpoint:
    """The finished parts of one sweep."""

    def __init__(self, folder: Path, specification: SweepSpecification) -> None:
        self.folder = folder
        self._specification = specification
        self._origin = Origin(specification.digest, program())

    def store(self, rows: Rows) -> None:
        """Keep the results of some runs."""
        with writing(self.folder):
            write_part(self.folder / f"runs-{rows.start:010}-{rows.stop:010}.npz.gz", Part(rows, self._origin))

    def stored(self) -> Iterator[Rows]:
        """Yield all kept results; damaged parts are removed with a warning, and their runs are done again."""
        files, damaged = self._files(), 0
        for file in files:
            part = read_part(file)
            if part is None:
                with writing(self.folder):
                    file.unlink()
                damaged += 1
            else:
                self._require_own(part.origin)
                yield part.rows
        if damaged:
            warnings.warn(
                f"{self.folder}: {damaged} of {len(files)} parts were damaged; their runs are done again",
                DamagedCheckpointWarning,
                stacklevel=2,
            )

    def remove(self) -> None:
        """Remove the folder."""
        with writing(self.folder):
            shutil.rmtree(self.folder)

    def claim(self) -> None:
        """Mark the folder as the folder of this sweep.

        Every part names its sweep. If the file that marks the folder is damaged or missing, the parts decide.
        """
        manifest = self.folder / MANIFEST
        marked = _marked(manifest)
        if marked == self._origin:
            return
        was_there = manifest.exists()
        origins = {part.origin for part in map(read_part, self._files()) if part is not None}
        for origin in origins or ({marked} if marked is not None else set()):
            self._require_own(origin)
        if not origins and marked is None and self._holds_other_files():
            raise ValueError(f"{self.folder}: is not the folder of a sweep; name another output")
        with written_durably(manifest) as unfinished:
            mark = {"program": self._origin.program, "specification": json.loads(self._specification.canonical)}
            unfinished.write_text(json.dumps(mark, indent=1), encoding="utf-8")
        if was_there or origins:
            wrong = "damaged" if was_there else "missing"
            warnings.warn(
                f"{manifest}: was {wrong}, and is written again; every part is checked separately",
                DamagedCheckpointWarning,
                stacklevel=2,
            )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(PARTS))

    def _holds_other_files(self) -> bool:
        own = (MANIFEST, PARTS, UNFINISHED)
        return not all(any(file.match(pattern) for pattern in own) for file in self.folder.iterdir())

    def _require_own(self, origin: Origin) -> None:
        if origin.specification != self._origin.specification:
            raise ValueError(f"{self.folder}: holds another specification's points; remove it, or name another output")
        if origin.program != self._origin.program:
            raise ValueError(
                f"{self.folder}: was begun by {origin.program:.200}, but this is {self._origin.program}; "
                "finish it there, or remove it"
            )


def _marked(manifest: Path) -> Origin | None:
    """Return the origin that marks a folder; None if the mark is missing or damaged."""
    try:
        held = json.loads(manifest.read_text(encoding="utf-8"))
        specification, begun_by = json.dumps(held["specification"], sort_keys=True), held["program"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{manifest}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Origin(sha256(specification.encode()).hexdigest(), begun_by) if isinstance(begun_by, str) else None


@contextmanager
def checkpoint(output: Path, specification: SweepSpecification) -> Iterator[Checkpoint]:
    """Open the checkpoint of a result, and lock out other processes."""
    folder = checkpoint_folder(output)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be created: {error.strerror or error}") from None
    with locked(folder, "another sweep writes its points there"):
        kept = Checkpoint(folder, specification)
        with writing(folder):
            kept.claim()
            for unfinished in folder.glob(UNFINISHED):
                unfinished.unlink()
        yield kept
