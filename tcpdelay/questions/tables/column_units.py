"""Units of columns that do not agree with their values: refused if nobody stated the unit, else a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tcpdelay.models.validity import ValidatedRange, validated_range
from tcpdelay.questions.tables.columns import OUTSIDE, QUANTITIES, Source, read_column
from tcpdelay.scenario.fields import ColumnUnitWarning, InvalidValueError
from tcpdelay.scenario.stack import Stack

_DOUBTFUL = {
    "rtt": (2.0, "ms", "milliseconds", "s", "seconds"),
    "loss": (1.0, "percent", "percent", "fraction", "fractions"),
    "limit": (20.0, "ms", "milliseconds", "s", "seconds"),
    "quantile": (1.0, "percent", "percent", "fraction", "fractions"),
}
"""Smallest median with which a column without a unit looks like it has another unit; this unit; the default unit."""
_USUAL = {"limit": (0.001, 20.0), "quantile": (0.5, 1.0)}
"""Usual values of the fields that have no validated range [s, or a fraction]."""
FAR = 5.0
"""Factor beyond the validated range from which most values of a column count as improbable."""


def check_units(batch: pa.RecordBatch, sources: Mapping[str, Source], stack: Stack) -> None:
    """Compare the units of columns with the values of the first rows.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The first rows of a table.
    sources : mapping of str to Source
        Columns of the quantities.
    stack : Stack
        The TCP stack, whose validated range says which values are usual.

    Raises
    ------
    ValueError
        If the unit of a column is not stated, and its values look like milliseconds or percent.

    Warns
    -----
    ColumnUnitWarning
        If the unit of a column is stated, most values lie far outside the validated range, and another unit fits.

    Examples
    --------
    >>> from tcpdelay.questions.tables.columns import find_sources
    >>> linux, batch = Stack.linux(), pa.record_batch({"rtt": [80, 40, 20], "loss": [0.01, 0.02, 0.02]})
    >>> check_units(batch, find_sources(batch.schema.names), linux)
    Traceback (most recent call last):
    tcpdelay.scenario.fields.InvalidValueError: columns must state the unit of rtt, because these look like
    milliseconds (median 40): write rtt=rtt:ms, or rtt=rtt:s if they are seconds, got 'rtt'
    >>> check_units(batch, find_sources(batch.schema.names, {"rtt": "rtt:ms"}), linux)
    """
    for name, source in sources.items():
        middle = _median(batch, name, source)
        if not source.unit_given:
            _refuse_other_unit(name, source, middle)
        elif advice := _other_unit(name, source, middle, validated_range(stack)):
            warnings.warn(advice, ColumnUnitWarning, stacklevel=3)


def _median(batch: pa.RecordBatch, name: str, source: Source) -> float:
    """Return the median of the numbers in a column [s, fraction or bytes]; 0 without numbers."""
    cells = read_column(batch, QUANTITIES[name], source)
    numbers = cells.values[((cells.faults == 0) | (cells.faults == OUTSIDE)) & np.isfinite(cells.values)]
    return float(np.median(numbers)) if numbers.size else 0.0


def _refuse_other_unit(name: str, source: Source, middle: float) -> None:
    """Raise ValueError if a column without a stated unit looks like it has another unit."""
    if name not in _DOUBTFUL:
        return
    smallest, unit, words, default, default_words = _DOUBTFUL[name]
    if middle >= smallest:
        allowed = (
            f"state the unit of {name}, because these look like {words} (median {middle:g}): "
            f"write {name}={source.column}:{unit}, or {name}={source.column}:{default} if they are {default_words}"
        )
        raise InvalidValueError("columns", source.column, allowed)


def _other_unit(name: str, source: Source, middle: float, known: ValidatedRange) -> str:
    """Return a warning if the median is far outside the usual values and another unit fits; else an empty text."""
    low, high = _USUAL[name] if name in _USUAL else getattr(known, name)
    largest = high if name in _USUAL else FAR * high
    # Paths without loss are in the validated range.
    if middle <= 0 or low / FAR <= middle <= largest:
        return ""
    units = QUANTITIES[name].units
    written = middle * source.per_unit
    unit = next(unit for unit, per_unit in units.items() if per_unit == source.per_unit)
    fitting = next((other for other, per_unit in units.items() if low <= written / per_unit <= high), None)
    if fitting is None:
        return ""
    return (
        f"column {source.column!r} is read as {name} in {unit}, with a median of {written:g}; "
        f"usual are {low * source.per_unit:g} to {high * source.per_unit:g}. "
        f"If the values are in {fitting}, name the column as {name}={source.column}:{fitting}"
    )
