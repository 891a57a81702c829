"""Measured points for the charts of regions, read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from tcpdelay.questions.plane import round_trip_times
from tcpdelay.scenario.target import Target

SUFFIXES = (".csv", ".parquet")
WORKS, CARRIED = "works", "sustainable"
"""Columns that say whether the target was met, and whether the backlog stayed finite."""


@dataclass(frozen=True)
class Measured:
    """Points at which a flow was measured.

    Parameters
    ----------
    rtt, loss : ndarray, shape (n,)
        Round-trip times [s], 1e-6 to 60, and losses, fractions above 0 and below 1.
    works : ndarray of bool, shape (n,), optional
        Whether the flow worked, if the file has this column.
    sustainable : ndarray of bool, shape (n,), optional
        Whether the backlog stayed finite.
    quantiles : dict of float to ndarray, shape (n,)
        Measured quantiles of the delay [s] by their probability; infinite where none was measured.
    """

    rtt: NDArray[np.float64]
    loss: NDArray[np.float64]
    works: NDArray[np.bool_] | None
    sustainable: NDArray[np.bool_] | None
    quantiles: dict[float, NDArray[np.float64]]

    def meets(self, target: Target) -> NDArray[np.bool_] | None:
        """Return at which points the flow met the target; None if the file has neither this column nor the quantile.

        Examples
        --------
        >>> at = np.array([0.1, 0.2]), np.array([0.02, 0.02])
        >>> Measured(*at, None, None, {0.95: np.array([0.15, 0.4])}).meets(Target(0.2, 0.95))
        array([ True, False])
        """
        if self.works is not None:
            return self.works
        for share, delays in self.quantiles.items():
            if np.isclose(share, target.quantile, rtol=0, atol=1e-9):
                met: NDArray[np.bool_] = np.array([*map(target.is_met_by, delays.tolist())], np.bool_)
                return met if self.sustainable is None else met & self.sustainable
        return None


def read_measured(path: str | Path) -> Measured:
    r"""Read measured points from a CSV or Parquet file with a column `rtt` [s] and a column `loss` [fraction].

    Optional columns are `works` and `sustainable`, true or false, and quantiles of the delay [s], such as `p95`.

    Parameters
    ----------
    path : str or Path
        A file whose name ends in .csv or .parquet.

    Returns
    -------
    Measured
        The points.

    Raises
    ------
    ValueError
        If the file cannot be read, lacks a column, has no rows, or holds a value outside its range.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "calls.csv"
    ...     _ = file.write_text("rtt,loss,p95\n0.1,0.02,0.15\n")
    ...     read_measured(file).quantiles
    {0.95: array([0.15])}
    """
    file = Path(path)
    table = _table(file)
    missing = [name for name in ("rtt", "loss") if name not in table.column_names]
    if missing:
        raise ValueError(
            f"{file.name!r} has no column {' and no column '.join(missing)}; it has {', '.join(table.column_names)}"
        )
    if table.num_rows == 0:
        raise ValueError(f"{file.name!r} has no rows")
    rtt, loss = (_numbers(table, name, file.name) for name in ("rtt", "loss"))
    try:
        round_trip_times(np.unique(rtt))
    except ValueError as error:
        raise ValueError(f"{file.name!r}: {error}") from None
    outside = ~((loss > 0) & (loss < 1))
    if outside.any():
        raise ValueError(f"{file.name!r}: loss must be fractions above 0 and below 1, got {loss[outside][0]:g}")
    quantiles = {}
    for name in table.column_names:
        share = _share(name)
        if share is not None:
            # A missing quantile means that too few packets arrived.
            quantiles[share] = np.nan_to_num(_numbers(table, name, file.name), nan=np.inf)
    works, carried = (_flags(table, name, file.name) for name in (WORKS, CARRIED))
    return Measured(rtt, loss, works, carried, quantiles)


def _table(file: Path) -> pa.Table:
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{str(file)!r} does not end in one of {', '.join(SUFFIXES)}")
    try:
        return pa.csv.read_csv(file) if file.suffix.lower() == ".csv" else pa.parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise ValueError(f"{str(file)!r} cannot be read: {reason}") from None


def _share(name: str) -> float | None:
    """Return the probability of the quantile in a column such as `p95` or `p99.9`; None for all other columns."""
    try:
        share = float(name.removeprefix("p")) / 100
    except ValueError:
        return None
    return share if name.startswith("p") and 0 < share < 1 else None


def _numbers(table: pa.Table, name: str, file: str) -> NDArray[np.float64]:
    try:
        return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)
    except pa.ArrowException:
        raise ValueError(f"{file!r}: column {name} must hold numbers") from None


def _flags(table: pa.Table, name: str, file: str) -> NDArray[np.bool_] | None:
    if name not in table.column_names:
        return None
    try:
        flags = table[name].cast(pa.bool_())
    except pa.ArrowException:
        flags = None
    if flags is None or flags.null_count:
        raise ValueError(f"{file!r}: column {name} must hold true or false")
    return np.asarray(flags.to_numpy(), np.bool_)
