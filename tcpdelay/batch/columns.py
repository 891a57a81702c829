"""Which columns of a table hold round-trip time, loss, packet size and interval, and in which unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tcpdelay.scenario import MAX_INTERVAL, MAX_PACKET_SIZE, MAX_RTT, MIN_INTERVAL, MIN_RTT
from tcpdelay.units import parse_fraction, parse_size, parse_time

_TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
_SHARES = {"fraction": 1.0, "percent": 100.0, "pct": 100.0}
_SIZES = {"bytes": 1.0}
_UNREADABLE = np.inf
"""Stands for a text that cannot be read, until rows are checked."""


@dataclass(frozen=True)
class Quantity:
    """What a column may hold.

    Parameters
    ----------
    name : str
        Its name; that of the column, alone or with a unit behind.
    units : mapping
        How many of each unit make one second, one byte, or the whole; the first one holds where none is named.
    low, high : float
        Ends of the range [s, bytes, or fraction].
    allowed : str
        The range in words.
    read : callable
        What reads a text with a unit.
    """

    name: str
    units: Mapping[str, float]
    low: float
    high: float
    allowed: str
    read: Callable[[str, str], float]


def _between(low: float, high: float, unit: str) -> str:
    return f"must lie between {low:g} and {high:g} {unit}"


QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity(
            "rtt", _TIMES, MIN_RTT, MAX_RTT, _between(MIN_RTT, MAX_RTT, "s"), partial(parse_time, allow_zero=True)
        ),
        Quantity(
            "loss", _SHARES, 0.0, float(np.nextafter(1, 0)), "must be a fraction from 0 to below 1", parse_fraction
        ),
        Quantity(
            "packet_size", _SIZES, 1, MAX_PACKET_SIZE, f"must be a whole number of 1 to {MAX_PACKET_SIZE} bytes",
            partial(parse_size, allow_zero=True),
        ),
        Quantity(
            "interval", _TIMES, MIN_INTERVAL, MAX_INTERVAL, _between(MIN_INTERVAL, MAX_INTERVAL, "s"),
            partial(parse_time, allow_zero=True),
        ),
    )
}  # fmt: skip
"""What is read, by name."""
FLOW = ("packet_size", "interval")


@dataclass(frozen=True)
class Source:
    """Where a quantity is read: the column's name, and how many of its unit make one second, byte, or the whole."""

    column: str
    per_unit: float


def find_sources(names: Iterable[str], chosen: Mapping[str, str] | None = None) -> dict[str, Source]:
    """Find the columns of all quantities that a table has.

    Parameters
    ----------
    names : iterable of str
        The columns. One called "rtt", "loss", "packet_size" or "interval", in any case, holds seconds, fractions or
        bytes; a unit may follow: rtt_ms, rtt_us, loss_percent, interval_ms.
    chosen : mapping, optional
        Quantities whose columns are called otherwise: {"rtt": "latency:ms"}; without a unit, as above.

    Returns
    -------
    dict
        The sources by quantity.

    Raises
    ------
    ValueError
        If a column is missing, a unit unknown, or several columns could be meant.

    Examples
    --------
    >>> find_sources(["user", "rtt_ms", "Loss"])
    {'rtt': Source(column='rtt_ms', per_unit=1000.0), 'loss': Source(column='Loss', per_unit=1.0)}
    >>> find_sources(["ping", "plr"], {"rtt": "ping:ms", "loss": "plr:percent"})["loss"]
    Source(column='plr', per_unit=100.0)
    """
    present = list(names)
    sources = {}
    for name, where in (chosen or {}).items():
        if name not in QUANTITIES:
            raise ValueError(f"columns must name some of {', '.join(QUANTITIES)}, got {name!r}")
        sources[name] = _chosen(QUANTITIES[name], where, present)
    for name, quantity in QUANTITIES.items():
        if name in sources:
            continue
        first = next(iter(quantity.units))
        spelled = {name: first, **{f"{name}_{unit}": unit for unit in quantity.units}}
        found = [column for column in present if column.lower() in spelled]
        if len(found) > 1:
            raise ValueError(f"columns must say which one is {name}: the table has {' and '.join(found)}")
        if found:
            sources[name] = Source(found[0], quantity.units[spelled[found[0].lower()]])
    for name in ("rtt", "loss"):
        if name not in sources:
            units = ", ".join(f"{name}_{unit}" for unit in QUANTITIES[name].units)
            raise ValueError(
                f"columns must include {name} or one of {units}, or name another, got {', '.join(present) or 'none'}"
            )
    return sources


def _chosen(quantity: Quantity, where: str, present: list[str]) -> Source:
    column, _, unit = where.rpartition(":")
    if where in present:
        column, unit = where, ""
    if (column or where) not in present:
        raise ValueError(f"columns must be some of {', '.join(present)}, got {column or where!r} for {quantity.name}")
    if not column or not unit:
        lower = where.lower()
        ending = next((unit for unit in quantity.units if lower.endswith(f"_{unit}")), next(iter(quantity.units)))
        return Source(where, quantity.units[ending])
    if unit not in quantity.units:
        raise ValueError(f"columns must be in {', '.join(quantity.units)} for {quantity.name}, got {unit!r}")
    return Source(column, quantity.units[unit])


def read_column(batch: pa.RecordBatch, quantity: Quantity, source: Source) -> NDArray[np.float64]:
    """Return a column in seconds, fractions or bytes; NaN where it is null, infinite where a text cannot be read.

    A text may have its own unit, as on the command line ("100ms", "2%"); one without is taken as a number would be.

    Raises
    ------
    ValueError
        If the column holds neither numbers nor texts.

    Examples
    --------
    >>> batch = pa.record_batch({"rtt_ms": ["80", "0.1 s", None, "?"]})
    >>> read_column(batch, QUANTITIES["rtt"], Source("rtt_ms", 1e3))
    array([0.08, 0.1 , nan, inf])
    """
    column = batch.column(source.column)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        with suppress(pa.ArrowInvalid):
            # Nothing but numbers, as in most batches.
            plain: NDArray[np.float64] = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
            return plain / source.per_unit
        texts: Any = pc.dictionary_encode(column)
        values = np.array([_read_text(text, quantity, source) for text in texts.dictionary.to_pylist()] + [np.nan])
        places = pc.fill_null(texts.indices, len(values) - 1).to_numpy(zero_copy_only=False)
        read: NDArray[np.float64] = values[places]
        return read
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_decimal(column.type)):
        if pa.types.is_null(column.type):
            return np.full(len(column), np.nan)
        raise ValueError(f"{source.column} must be a column of numbers or texts, got {column.type}")
    numbers = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    # Dividing gives the float nearest to the decimal that was written: 7 ms is 0.007.
    return numbers / source.per_unit if source.per_unit != 1 else numbers


def _read_text(text: str, quantity: Quantity, source: Source) -> float:
    try:
        return float(text) / source.per_unit
    except ValueError:
        pass
    try:
        return float(quantity.read(text, quantity.name))
    except ValueError:
        return np.nan if not text.strip() else _UNREADABLE


def reasons(name: str) -> tuple[str, str, str]:
    """Return why a row has no prediction for its `name`: missing, no number, or out of range."""
    return f"{name} is missing", f"{name} is no number", f"{name} {QUANTITIES[name].allowed}"


def faults(name: str, values: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return 0 for values that are right, and else which of `reasons` they have, from 1 on.

    Examples
    --------
    >>> faults("loss", np.array([0.02, np.nan, np.inf, 1.0])).tolist()
    [0, 1, 2, 3]
    """
    quantity = QUANTITIES[name]
    found = np.zeros(values.size, np.int8)
    right = (values >= quantity.low) & (values <= quantity.high)
    if name == "packet_size":
        right &= values == np.floor(values)
    if not right.all():
        found[~right] = 3
        found[np.isinf(values)] = 2
        found[np.isnan(values)] = 1
    return found
