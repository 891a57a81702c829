"""The front door of sweeps: from a specification to a data set, and everything kept on the way.

What a sweep will take, from a sample of its points tried here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tcpdelay.files import written_durably
from tcpdelay.questions.sweep.checkpoint import checkpoint, checkpoint_folder
from tcpdelay.questions.sweep.evaluation import Results, Rows, evaluate, labelled, program, row_type
from tcpdelay.questions.sweep.schedule import Progress, Schedule, SweepFailedError, cluster, threads
from tcpdelay.questions.sweep.specification import SweepSpecification, read_sweep
from tcpdelay.scenario.fields import InvalidValueError

if TYPE_CHECKING:
    import xarray as xr


ENGINE: Final = "scipy"
"""What writes netCDF: version 3, for which nothing more needs to be installed."""


def sweep(
    specification: SweepSpecification | str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str] | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> xr.Dataset:
    """Evaluate a model or the simulator at every point of a grid.

    What is finished is kept in a folder beside the output; a call that is repeated goes on from there. The result
    depends on the specification alone, not on who works it out, in which order, or how often that is interrupted.

    Parameters
    ----------
    specification : SweepSpecification, str, path-like or mapping
        What to do: a TOML file, or what one holds.
    output : str or path-like, optional
        File of the result, which ends in ".nc"; by default the one that the specification names. Without either,
        nothing is kept, and the result is only returned.
    scheduler : str, optional
        Address of a Dask scheduler whose workers are to do it, such as "tcp://127.0.0.1:8786"; this process by default.
    workers : int, optional
        Threads of this process, 1 to 256; by default as many as it has processors. Not with `scheduler`.
    on_progress : callable, optional
        Called with a `Progress` about twice a second.

    Returns
    -------
    xarray.Dataset
        Over the axes, in the order of the specification: mean, standard deviation and quantiles of the delay [s],
        late fraction, utilization, whether TCP can carry the flow; where a point was refused, NaN, and the reason.

    Raises
    ------
    ValueError
        If the specification or an argument is wrong, or the output belongs to something else.
    SweepFailedError
        If the workers fail, or nothing more can be written; what is finished is kept.

    Warns
    -----
    DamagedCheckpointWarning
        If some of what was kept is damaged; it is done again.

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
        raise InvalidValueError("workers", workers, "be left to the scheduler")
    file = result_file(asked, output)
    if file is not None and file.exists():
        found = finished_result(asked, file)
        if checkpoint_folder(file).exists():
            # A sweep was killed between the last two things it does.
            with checkpoint(file, asked) as left:
                left.remove()
        return found
    with ExitStack() as stack:
        # Without hands, no folder is left behind.
        hands = stack.enter_context(threads(workers) if scheduler is None else cluster(scheduler))
        results = Results(asked)
        if file is None:
            Schedule(asked, results, hands, lambda rows: None, on_progress).run()
            return labelled(asked, results)
        folder = checkpoint_folder(file)
        with _writing(folder):
            kept = stack.enter_context(checkpoint(file, asked))
            for rows in kept.stored():
                results.add(rows)

        def store(rows: Rows) -> None:
            with _writing(folder):
                kept.store(rows)

        Schedule(asked, results, hands, store, on_progress).run()
        found = labelled(asked, results)
        with _writing(file), written_durably(file) as unfinished:
            found.to_netcdf(str(unfinished), engine=ENGINE)
        with _writing(folder):
            kept.remove()
    return found


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Name the file or folder that cannot be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise SweepFailedError(f"{place}: cannot be written: {error.strerror or error}") from error


def result_file(specification: SweepSpecification, output: str | os.PathLike[str] | None) -> Path | None:
    """Return the file of the result: the one given, or the one that the specification names, or None.

    Raises
    ------
    ValueError
        If its name does not end in ".nc", or its folder does not exist.
    """
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
    """Return the result that a file holds.

    Raises
    ------
    ValueError
        If it is none, or that of another specification or program.
    """
    import xarray as xr

    try:
        with xr.open_dataset(file, engine=ENGINE) as opened:
            found = opened.load()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: exists, and is no result of a sweep; name another output") from error
    if found.attrs.get("specification_sha256") != specification.digest:
        raise ValueError(f"{file}: holds the result of another specification; remove it, or name another output")
    if found.attrs.get("source") != program():
        raise ValueError(f"{file}: was made by {found.attrs.get('source')}; remove it, or name another output")
    return found


TRIAL_TIME = 5.0
MOST_TRIED = 200


@dataclass(frozen=True)
class Cost:
    """What the runs of a sweep take on one processor of this machine.

    Attributes
    ----------
    tried, refused : int
        Runs tried, drawn at random, and how many of them were refused.
    mean, least, most : float
        Time of each [s].
    runs : int
        Runs of the sweep.
    size : int
        Size of the result [bytes], texts left out.
    """

    tried: int
    refused: int
    mean: float
    least: float
    most: float
    runs: int
    size: int

    @property
    def total(self) -> float:
        """Time of all runs together [s]."""
        return self.mean * self.runs


def estimated_cost(specification: SweepSpecification, trial_time: float = TRIAL_TIME) -> Cost:
    """Try some points of a sweep.

    Near saturation a chain takes a thousand times as long as elsewhere, so that a sample says little where such points
    are few.

    Parameters
    ----------
    specification : SweepSpecification
        The sweep.
    trial_time : float
        Time after which no further point is tried [s].

    Returns
    -------
    Cost
        Of at least one run.

    Examples
    --------
    >>> from tcpdelay.questions.sweep.specification import read_sweep
    >>> voice = {"packet_size": 174, "interval": "20ms"}
    >>> cost = estimated_cost(read_sweep({"flow": voice, "grid": {"rtt": ["50ms", "100ms"], "loss": ["1%", "2%"]}}), 0)
    >>> cost.tried, cost.runs, cost.least <= cost.mean <= cost.most
    (1, 4, True)
    """
    runs = specification.runs
    drawn = np.random.default_rng(0).permutation(min(runs, MOST_TRIED)) * runs // min(runs, MOST_TRIED)
    # Kernels are compiled or loaded before anything is timed.
    evaluate(specification, int(drawn[0]), int(drawn[0]) + 1, program())
    times, refused = [], 0
    begun = time.monotonic()
    for run in drawn.tolist():
        before = time.monotonic()
        rows = evaluate(specification, run, run + 1, program())
        times.append(time.monotonic() - before)
        refused += int(rows.refusals[0] != "")
        if time.monotonic() - begun > trial_time:
            break
    size = runs * (row_type(specification.evaluation).itemsize + np.dtype(np.int32).itemsize)
    return Cost(len(times), refused, float(np.mean(times)), min(times), max(times), runs, size)
