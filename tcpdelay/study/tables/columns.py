"""Columns of a table: field, unit, and values of cells; units that do not agree with the values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tcpdelay.accuracy.validity import ValidatedRange, validated_range
from tcpdelay.declare import PARSERS, WHOLE, ColumnUnitWarning, InvalidValueError, Kind, Quantity
from tcpdelay.scenario.scenario import FIELDS
from tcpdelay.scenario.stack import Stack
from tcpdelay.units import NUMBER, SIZE_ROUNDING

# Columns of a table: the field and the unit of each column, and the values of its cells.
#
# Cells are read as seconds, fractions or bytes. A cell without a valid value has one of a few faults.

MISSING, NO_NUMBER, COMMA, UNKNOWN_UNIT, OUTSIDE = range(1, 6)
"""Faults of a cell; 0 means no fault."""
FAULTS = 5
PROBED = 64
"""Cells that are tried first, to see whether a column has plain numbers: Arrow is slow on other texts."""
_MISSING_WORDS = frozenset({"", "nan", "na", "n/a", "null", "none"})
_INFINITE_WORDS = frozenset({"inf", "infinity"})
_PARTS = rf"^\s*(?P<number>{NUMBER.pattern})(?P<behind>(?s:.*))$"
_NOT_OF_A_UNIT = tuple("0123456789.+-")


class Cells(NamedTuple):
    """Values and faults of the cells of a column."""

    values: NDArray[np.float64]  # Seconds, fractions or bytes; without meaning where there is a fault
    faults: NDArray[np.int8]  # `MISSING`, `NO_NUMBER`, `COMMA`, `UNKNOWN_UNIT` or `OUTSIDE`; 0 without a fault


def reasons(quantity: ColumnQuantity) -> tuple[str, ...]:
    """Return the messages for the faults of a cell, in the order from `MISSING` to `OUTSIDE`."""
    name = quantity.name
    return (
        f"{name} is missing",
        f"{name} is not a number",
        f"{name} has a comma where a decimal point is needed",
        f"{name} has an unknown unit: {quantity.known_units}",
        f"{name} must {quantity.declared.range_in_words}",
    )


def read_column(batch: pa.RecordBatch, quantity: ColumnQuantity, source: Source) -> Cells:
    """Read a column.

    A text may have its own unit, as on the command line ("100ms", "2%"). A text without a unit has the unit of the
    column, like a number.
    """
    column: Any = batch.column(source.column)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _read_texts(pc.cast(column, pa.string()), quantity, source)
    if pa.types.is_null(kind):
        return Cells(np.full(len(column), np.nan), np.full(len(column), MISSING, np.int8))
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        raise InvalidValueError("columns", f"{source.column}: {kind}", "hold numbers or texts")
    return _checked(pc.cast(column, pa.float64(), safe=False), quantity, source)


def _checked(column: Any, quantity: ColumnQuantity, source: Source) -> Cells:
    """Return values and faults of a column of numbers."""
    values: NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
    if source.per_unit != 1:
        # A division gives the float nearest to the written decimal: 7 ms is 0.007.
        values = values / source.per_unit
    return Cells(values, _faults(values, quantity))


def _faults(values: NDArray[np.float64], quantity: ColumnQuantity) -> NDArray[np.int8]:
    """Return the faults of numbers: missing, or outside the range."""
    found = np.zeros(values.size, np.int8)
    right = quantity.inside(values)
    if not right.all():
        found[~right] = OUTSIDE
        found[np.isnan(values)] = MISSING
    return found


def _read_texts(texts: Any, quantity: ColumnQuantity, source: Source) -> Cells:
    """Return values and faults of texts: of all at once if they are plain numbers, else of each different text."""
    if source.decimal != ".":
        texts = pc.replace_substring(texts, source.decimal, ".")
    with suppress(pa.ArrowInvalid):
        pc.cast(texts.slice(0, PROBED), pa.float64())
        return _checked(pc.cast(texts, pa.float64()), quantity, source)
    encoded: Any = pc.dictionary_encode(texts)
    different = _read_different(encoded.dictionary, quantity, source)
    # Nulls refer to the last entry.
    values, faults = np.append(different.values, np.nan), np.append(different.faults, np.int8(MISSING))
    places = pc.fill_null(encoded.indices, len(values) - 1).to_numpy(zero_copy_only=False)
    return Cells(values[places], faults[places])


def _read_different(texts: Any, quantity: ColumnQuantity, source: Source) -> Cells:
    """Return values and faults of texts that have a number and perhaps a unit."""
    parts: Any = pc.extract_regex(texts, _PARTS)
    numbers: Any = pc.cast(pc.struct_field(parts, "number"), pa.float64())
    behind: Any = pc.dictionary_encode(pc.struct_field(parts, "behind"))
    units = [_unit(text, quantity, source) for text in behind.dictionary.to_pylist()]
    # Texts that do not begin with a number refer to the last entry.
    per_unit, wrong = (np.array(each) for each in zip(*units, (np.nan, NO_NUMBER), strict=True))
    which = pc.fill_null(behind.indices, len(units)).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        values = numbers.to_numpy(zero_copy_only=False) / per_unit[which]
        if quantity.whole:
            # 1.001 kB is 1000.9999999999999 in floating point.
            nearest = np.round(values)
            values = np.where(np.abs(values - nearest) <= SIZE_ROUNDING * np.maximum(values, 1.0), nearest, values)
    faults = np.where(wrong[which] > 0, wrong[which], _faults(values, quantity)).astype(np.int8)
    for place in np.flatnonzero(which == len(units)).tolist():
        faults[place] = _word_fault(texts[place].as_py())
    return Cells(values, faults)


def _unit(behind: str, quantity: ColumnQuantity, source: Source) -> tuple[float, int]:
    """Return how many of the unit after a number make one second, one byte or the whole; and its fault, or 0."""
    unit = behind.strip()
    if not unit:
        return source.per_unit, 0
    if unit.startswith(","):
        return np.nan, COMMA
    if unit.startswith(_NOT_OF_A_UNIT):
        return np.nan, NO_NUMBER
    try:
        # Without the space, a unit such as "e3s" would become an exponent.
        one = quantity.read(f"1 {unit}")
    except ValueError:
        return np.nan, UNKNOWN_UNIT
    return 1 / one, 0


def _word_fault(text: str) -> int:
    """Return the fault of a text that does not begin with a number."""
    word = text.strip().lower()
    if word in _MISSING_WORDS:
        return MISSING
    return OUTSIDE if word.lstrip("+-") in _INFINITE_WORDS else NO_NUMBER


_UNITS: dict[Kind, Mapping[str, float]] = {
    "time": {"s": 1.0, "ms": 1e3, "us": 1e6},
    "fraction": {"fraction": 1.0, "percent": 100.0, "pct": 100.0},
    "size": {"bytes": 1.0},
    "rate": {"bps": 1.0, "kbps": 1e-3, "mbps": 1e-6},
    "count": {"number": 1.0},
    "number": {"number": 1.0},
}
"""Units in the names of columns, by kind: how many of each unit make one second, byte or bit/s, or the whole."""
_KNOWN_UNITS: dict[Kind, str] = {
    "time": "use s, ms, us or min",
    "fraction": "write 2% or 0.02",
    "size": "use B, kB, MB, KiB or MiB",
    "rate": "use bit/s, kbit/s or Mbit/s",
}


@dataclass(frozen=True)
class ColumnQuantity:
    """A declared field that a column may hold."""

    name: str  # The field; also the name of the column, alone or followed by a unit
    declared: Quantity  # The declaration of the field

    @property
    def units(self) -> Mapping[str, float]:
        """How many of each unit make one second, one byte or the whole; the first unit is the default."""
        return _UNITS[self.declared.kind]

    @property
    def known_units(self) -> str:
        """The units that may follow a number, in words."""
        return _KNOWN_UNITS.get(self.declared.kind, "write the number alone")

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return self.declared.kind in WHOLE

    def read(self, text: str) -> float:
        """Return the value of a text with a unit; raise ValueError if the unit is unknown."""
        if self.declared.kind not in PARSERS:
            raise InvalidValueError(self.name, text, "be a number")
        return self.declared.parser(text, self.name, allow_zero=True)

    def inside(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which values are in the range."""
        declared = self.declared
        right = values > declared.low if declared.low_excluded else values >= declared.low
        right &= values < declared.high if declared.high_excluded else values <= declared.high
        return right & (values == np.floor(values)) if self.whole else right


QUANTITIES = {
    name: ColumnQuantity(name, declared)
    for name, (part, declared) in FIELDS.items()
    if part in ("flow", "path", "target") and isinstance(declared, Quantity)
}
"""The fields that a column may hold, by name."""
PATH, FLOW, TARGET = ("rtt", "loss"), ("packet_size", "interval"), ("limit", "quantile")
_ALSO = {"rtt": ("rtt", "ping", "latency", "round_trip"), "loss": ("loss", "plr", "lost", "drop")}
"""What names of columns contain that probably hold a field of the path."""
ROW = (*PATH, *FLOW, *TARGET)
"""The fields that each row of a table may have; the other fields are the same for all rows."""


@dataclass(frozen=True)
class Source:
    """The column of a quantity.

    Parameters
    ----------
    column : str
        The name of the column.
    per_unit : float
        How many of its unit make one second, one byte or the whole.
    decimal : str
        Decimal separator in texts.
    unit_given : bool
        Whether the name of the column, or the user, states the unit.
    """

    column: str
    per_unit: float
    decimal: str = "."
    unit_given: bool = True


def find_sources(names: Iterable[str], chosen: Mapping[str, str] | None = None) -> dict[str, Source]:
    """Find the columns of all quantities that a table has."""
    given: Any = {} if chosen is None else chosen
    if not (isinstance(given, Mapping) and all(isinstance(each, str) for each in given.values())):
        raise InvalidValueError("columns", chosen, 'be a mapping of names, such as {"rtt": "ping:ms"}')
    present = list(names)
    sources = {}
    for name, where in (chosen or {}).items():
        if name not in ROW:
            raise InvalidValueError("columns", name, f"name some of {', '.join(ROW)}")
        sources[name] = _chosen(QUANTITIES[name], where, present)
    for name in ROW:
        if name in sources:
            continue
        quantity = QUANTITIES[name]
        first = next(iter(quantity.units))
        spelled = {name: first, **{f"{name}_{unit}": unit for unit in quantity.units}}
        found = [column for column in present if column.strip().lower() in spelled]
        if len(found) > 1:
            raise InvalidValueError("columns", found, f"say which column is {name}")
        if found:
            spelling = found[0].strip().lower()
            sources[name] = Source(found[0], quantity.units[spelled[spelling]], unit_given=spelling != name)
    if missing := [name for name in PATH if name not in sources]:
        columns = [
            f"{name} or one of {', '.join(f'{name}_{unit}' for unit in QUANTITIES[name].units)}" for name in missing
        ]
        like = ", ".join(
            f"{name}={column}" for name in missing for column in present if any(map(column.lower().count, _ALSO[name]))
        )
        other = "another column" if len(missing) == 1 else "other columns"
        allowed = f"include {', and '.join(columns)}, or name {other}{f' such as {like}' if like else ''}"
        raise InvalidValueError("columns", present, allowed)
    return sources


def _chosen(quantity: ColumnQuantity, where: str, present: list[str]) -> Source:
    column, _, unit = where.rpartition(":")
    if where in present:
        column, unit = where, ""
    if (column or where) not in present:
        raise InvalidValueError("columns", column or where, f"be some of {', '.join(present)} for {quantity.name}")
    require_one("columns", column or where, present)
    if not column or not unit:
        lower = where.lower()
        ending = next((unit for unit in quantity.units if lower.endswith(f"_{unit}")), None)
        return Source(where, quantity.units[ending or next(iter(quantity.units))], unit_given=ending is not None)
    if unit not in quantity.units:
        raise InvalidValueError("columns", unit, f"be in {', '.join(quantity.units)} for {quantity.name}")
    return Source(column, quantity.units[unit])


def require_one(argument: str, name: str, present: Sequence[str]) -> None:
    """Raise ValueError if several columns have the name that an argument gives."""
    if present.count(name) > 1:
        raise InvalidValueError(argument, name, "name a column that the table has once")


# Units of columns that do not agree with their values: refused if nobody stated the unit, else a warning.

_DOUBTFUL = {
    # A millisecond is a usual round-trip time of a LAN, a second is unusual anywhere.
    "rtt": (1.0, "ms", "milliseconds", "s", "seconds"),
    "one_way_delay": (1.0, "ms", "milliseconds", "s", "seconds"),
    "interval": (1.0, "ms", "milliseconds", "s", "seconds"),
    # Models were checked up to a loss of 10 %; 0.1 % is usual.
    "loss": (0.1, "percent", "percent", "fraction", "fractions"),
    "limit": (20.0, "ms", "milliseconds", "s", "seconds"),
    "quantile": (1.0, "percent", "percent", "fraction", "fractions"),
}
"""Smallest median with which a column without a unit looks like it has another unit; this unit; the default unit."""
_UNCERTAIN = {"rtt": 0.5, "one_way_delay": 0.5, "interval": 0.5, "loss": 0.05, "limit": 5.0}
"""Smallest median with which another unit is possible: half a millisecond or half a second."""
_EITHER_IN_FILES = ("rtt", "loss")
"""Fields whose every value in a file is possible in two units: 0.08 ms is a LAN, and a loss of 0.01 % is usual.

A program, unlike a file, has times in seconds.
"""
_PLAIN = rf"^\s*{NUMBER.pattern}\s*$"
"""A text without a unit of its own."""
_USUAL = {"limit": (0.001, 20.0), "quantile": (0.5, 1.0)}
"""Usual values of the fields that have no validated range [s, or a fraction]."""
FAR = 5.0
"""Factor beyond the validated range from which most values of a column count as improbable."""


def check_units(batch: pa.RecordBatch, sources: Mapping[str, Source], stack: Stack) -> None:
    """Compare the units of columns with the values of the first rows."""
    for column in batch.schema.names:
        for name in (name for name in QUANTITIES if name not in ROW and name not in sources):
            if column.strip().lower() in {name, *(f"{name}_{unit}" for unit in QUANTITIES[name].units)}:
                told = f"column {column!r} is not read: the rows of a table have no {name}, and are predicted without"
                warnings.warn(told, ColumnUnitWarning, stacklevel=3)
    for name, source in sources.items():
        texts = _texts(batch, source)
        if not source.unit_given:
            given = batch
            if texts is not None:
                plain: Any = pc.if_else(pc.match_substring_regex(texts, _PLAIN), texts, None)
                given = pa.RecordBatch.from_arrays([plain], [source.column])
            middle = _median(given, name, source)
            if advice := judge_bare(name, source.column, middle, texts is not None, f"{name}={source.column}:{{}}"):
                warnings.warn(advice, ColumnUnitWarning, stacklevel=3)
        elif advice := _other_unit(name, source, _median(batch, name, source), validated_range(stack)):
            warnings.warn(advice, ColumnUnitWarning, stacklevel=3)


def _texts(batch: pa.RecordBatch, source: Source) -> Any:
    """Return the texts of a column, with decimal points; None if it holds no texts."""
    column: Any = batch.column(source.column)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    return pc.replace_substring(column, source.decimal, ".")


def _median(batch: pa.RecordBatch, name: str, source: Source) -> float:
    """Return the median of the numbers above 0 in a column [s, fraction or bytes]; 0 without such numbers.

    Paths without loss, which may be most of the rows, say nothing of the unit.
    """
    cells = read_column(batch, QUANTITIES[name], source)
    numbers = cells.values[
        ((cells.faults == 0) | (cells.faults == OUTSIDE)) & np.isfinite(cells.values) & (cells.values > 0)
    ]
    # The sum of the two numbers in the middle must not be too large for a float.
    return float(np.median(np.minimum(numbers, 1e300))) if numbers.size else 0.0


def judge_bare(name: str, column: str, middle: float, in_file: bool, spelled: str) -> str:
    """Return a warning if the median of a column without a stated unit is possible in two units; else an empty text.

    `spelled` is a format that states a unit. A median that looks like another unit is an InvalidValueError.
    """
    if name not in _DOUBTFUL or not middle > 0:
        return ""
    smallest, unit, words, default, default_words = _DOUBTFUL[name]
    if middle > smallest:
        allowed = (
            f"state the unit of {name}, because these look like {words} (median {middle:g}): "
            f"write {spelled.format(unit)}, or {spelled.format(default)} if they are {default_words}"
        )
        raise InvalidValueError("columns", column, allowed)
    if not (in_file and name in _EITHER_IN_FILES) and middle < _UNCERTAIN.get(name, math.inf):
        return ""
    return (
        f"column {column!r} states no unit and is read as {name} in {default_words}, with a median of {middle:g}. "
        f"If the values are in {words}, name the column as {spelled.format(unit)}"
    )


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
