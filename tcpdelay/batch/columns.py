"""Which columns of a table hold round-trip time, loss, packet size and interval, and in which unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tcpdelay.scenario import MAX_INTERVAL, MAX_PACKET_SIZE, MAX_RTT, MIN_INTERVAL, MIN_RTT
from tcpdelay.units import parse_fraction, parse_size, parse_time

_TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
_SHARES = {"fraction": 1.0, "percent": 100.0, "pct": 100.0}
_SIZES = {"bytes": 1.0}
_KNOWN_TIMES = "use s, ms, us or min"


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
    known_units : str
        What to write behind a number, in words.
    whole : bool
        Whether only whole numbers are allowed.
    """

    name: str
    units: Mapping[str, float]
    low: float
    high: float
    allowed: str
    read: Callable[[str, str], float]
    known_units: str
    whole: bool = False


def _between(low: float, high: float, unit: str) -> str:
    return f"must lie between {low:g} and {high:g} {unit}"


QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity(
            "rtt", _TIMES, MIN_RTT, MAX_RTT, _between(MIN_RTT, MAX_RTT, "s"), partial(parse_time, allow_zero=True),
            _KNOWN_TIMES,
        ),
        Quantity(
            "loss", _SHARES, 0.0, float(np.nextafter(1, 0)), "must be a fraction from 0 to below 1", parse_fraction,
            "write 2% or 0.02",
        ),
        Quantity(
            "packet_size", _SIZES, 1, MAX_PACKET_SIZE, f"must be a whole number of 1 to {MAX_PACKET_SIZE} bytes",
            partial(parse_size, allow_zero=True), "use B, kB, MB, KiB or MiB", whole=True,
        ),
        Quantity(
            "interval", _TIMES, MIN_INTERVAL, MAX_INTERVAL, _between(MIN_INTERVAL, MAX_INTERVAL, "s"),
            partial(parse_time, allow_zero=True), _KNOWN_TIMES,
        ),
    )
}  # fmt: skip
"""What is read, by name."""
FLOW = ("packet_size", "interval")


@dataclass(frozen=True)
class Source:
    """Where a quantity is read.

    Parameters
    ----------
    column : str
        The name of the column.
    per_unit : float
        How many of its unit make one second, one byte, or the whole.
    decimal : str
        What separates decimals in texts.
    """

    column: str
    per_unit: float
    decimal: str = "."


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
    >>> find_sources(["user", "rtt_ms", "Loss"])["rtt"]
    Source(column='rtt_ms', per_unit=1000.0, decimal='.')
    >>> find_sources(["ping", "plr"], {"rtt": "ping:ms", "loss": "plr:percent"})["loss"]
    Source(column='plr', per_unit=100.0, decimal='.')
    """
    given: Any = {} if chosen is None else chosen
    if not (isinstance(given, Mapping) and all(isinstance(each, str) for each in given.values())):
        raise ValueError(f'columns must be a mapping of names, such as {{"rtt": "ping:ms"}}, got {chosen!r}')
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
        found = [column for column in present if column.strip().lower() in spelled]
        if len(found) > 1:
            raise ValueError(f"columns must say which one is {name}: the table has {' and '.join(found)}")
        if found:
            sources[name] = Source(found[0], quantity.units[spelled[found[0].strip().lower()]])
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
    require_one("columns", column or where, present)
    if not column or not unit:
        lower = where.lower()
        ending = next((unit for unit in quantity.units if lower.endswith(f"_{unit}")), next(iter(quantity.units)))
        return Source(where, quantity.units[ending])
    if unit not in quantity.units:
        raise ValueError(f"columns must be in {', '.join(quantity.units)} for {quantity.name}, got {unit!r}")
    return Source(column, quantity.units[unit])


def require_one(argument: str, name: str, present: Sequence[str]) -> None:
    """Raise ValueError if several columns have the name that an argument gives.

    Examples
    --------
    >>> require_one("group", "isp", ["isp", "region", "isp"])
    Traceback (most recent call last):
    ValueError: group must name one column, got 'isp', which the table has 2 times
    """
    if (count := present.count(name)) > 1:
        raise ValueError(f"{argument} must name one column, got {name!r}, which the table has {count} times")
