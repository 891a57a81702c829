"""How a field of a scenario is declared: once, with type, unit, range, default, meaning and command-line spelling.

A declaration is metadata of a type annotation. pydantic validates with it; error messages, command-line options, sweep
axes, table columns and the units of data sets are derived from it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    TypeGuard,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic.dataclasses
from annotated_types import Ge, GroupedMetadata, Le, Lt
from pydantic import BeforeValidator, ConfigDict, ValidationError

from tcpdelay.units import format_fraction, format_rate, format_time, parse_fraction, parse_rate, parse_size, parse_time

Kind = Literal["time", "fraction", "size", "rate", "count", "number", "word", "flag"]
Value = float | int | str | bool
Described = TypeVar("Described")

UNITS: dict[Kind, str | None] = {
    "time": "s",
    "fraction": "1",
    "size": "byte",
    "rate": "bit/s",
    "count": "1",
    "number": "1",
    "word": None,
    "flag": None,
}
"""Unit of the values of each kind, in the form of netCDF."""
WHOLE: tuple[Kind, ...] = ("size", "count")
PARSERS: dict[Kind, Callable[..., float]] = {
    "time": parse_time,
    "fraction": parse_fraction,
    "size": parse_size,
    "rate": parse_rate,
}
"""Reads a text with a unit, by the kind of value."""
FORMATS: dict[Kind, Callable[[Any], str]] = {
    "time": format_time,
    "fraction": format_fraction,
    "size": lambda size: f"{size} B",
    "rate": format_rate,
    "count": str,
    "number": lambda number: f"{number:g}",
    "word": str,
    "flag": lambda flag: "on" if flag else "off",
}
"""Writes a value for people, by its kind."""


class InvalidValueError(ValueError):
    """A value that an argument cannot have.

    Parameters
    ----------
    name : str
        The argument.
    value : object
        What was given.
    allowed : str
        What is allowed; follows the word "must".
    hint : str
        How to write it in Python, if that may be the mistake.

    Examples
    --------
    >>> print(InvalidValueError("rtt", 100, "lie between 1e-06 and 60 s", "100 ms is 0.100"))
    rtt must lie between 1e-06 and 60 s, got 100; 100 ms is 0.100
    """

    def __init__(self, name: str, value: object, allowed: str, hint: str = "") -> None:
        super().__init__(name, value, allowed, hint)
        self.name, self.value, self.allowed, self.hint = name, value, allowed, hint

    def __str__(self) -> str:
        return f"{self.name} must {self.allowed}, got {shown(self.value)}" + (f"; {self.hint}" if self.hint else "")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number; neither a text nor True is one.

    Examples
    --------
    >>> is_number(0.05), is_number("50ms"), is_number(True)
    (True, False, False)
    """
    # The built-in types first: the look-up of an abstract class takes ten times as long.
    return isinstance(value, (float, int, numbers.Real)) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a value as an error message writes it, whatever was given.

    Examples
    --------
    >>> shown(0.05), shown("50ms")
    ('0.05', "'50ms'")
    """
    return f"{value:g}" if is_number(value) else f"{value!r:.200}"


def require_flag(name: str, value: object) -> None:
    """Raise InvalidValueError if an argument is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidValueError(name, value, "be True or False")


def _as_number(value: object) -> float:
    if not is_number(value):
        raise ValueError("no number")
    return float(value)


def _as_whole(value: object) -> int:
    number = _as_number(value)
    if not math.isfinite(number) or number != int(number):
        raise ValueError("no whole number")
    return int(number)


@dataclass(frozen=True, kw_only=True)
class Field(GroupedMetadata):
    """What the declarations of all fields have in common.

    Parameters
    ----------
    kind : str
        Which values there are; `UNITS`, `PARSERS` and `FORMATS` follow from it.
    meaning : str
        What the field is, in one plain sentence; also the help of the command-line option.
    default_words : str
        What holds where the field is left out, if its default does not say it.
    """

    kind: Kind
    meaning: str
    default_words: str = ""

    def __iter__(self) -> Iterator[object]:
        """Yield what pydantic validates with."""
        raise TypeError("a declaration is a Quantity, a Choice or a Flag")

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that the declaration does not allow."""
        raise TypeError("a declaration is a Quantity, a Choice or a Flag")

    def read(self, name: str, written: object) -> Value:
        """Return a value as Python takes it from a text with a unit, or from what a configuration file holds.

        Raises
        ------
        ValueError
            If it is no value of this kind; the message begins with `name`.
        """
        raise TypeError("a declaration is a Quantity, a Choice or a Flag")

    def written(self, value: Any) -> str:
        """Return a value for people."""
        return FORMATS[self.kind](value)


@dataclass(frozen=True, kw_only=True)
class Quantity(Field):
    """Declaration of a number with a unit and a range.

    Parameters
    ----------
    low, high : float
        Smallest and largest value.
    unit : str
        Unit in words, as error messages give it.
    example : str
        A value as written on the command line.
    hint : str
        How to write the value in Python; shown where it is too large, as by a percentage or milliseconds.
    high_excluded : bool
        Whether `high` itself is not allowed.
    allowed : str
        What is allowed, after the word "must", where unit and range do not say it well.

    Examples
    --------
    >>> delay = Quantity(kind="time", meaning="Delay.", low=0, high=1, unit="s", example="5ms")
    >>> delay.read("delay", "5ms"), delay.written(0.005)
    (0.005, '5 ms')
    >>> print(delay.refusal("delay", 7))
    delay must lie between 0 and 1 s, got 7
    """

    low: float
    high: float
    unit: str
    example: str
    hint: str = ""
    high_excluded: bool = False
    allowed: str = ""

    def __iter__(self) -> Iterator[object]:
        """Yield what pydantic validates with."""
        yield BeforeValidator(_as_whole if self.kind in WHOLE else _as_number)
        yield Ge(self.low)
        yield Lt(self.high) if self.high_excluded else Le(self.high)

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is no number, not whole or out of range."""
        if self.allowed:
            return InvalidValueError(name, value, self.allowed)
        if not is_number(value):
            return InvalidValueError(name, value, f"be a number in {self.unit}")
        number = float(value)
        if not math.isfinite(number):
            return InvalidValueError(name, value, "be finite")
        if self.low <= number <= self.high and self.kind in WHOLE:
            return InvalidValueError(name, value, f"be a whole number of {self.unit}")
        if self.kind == "fraction":
            hint = f"for {number:g} % write {number / 100:g}" if 1 <= number < 100 else ""
            return InvalidValueError(name, value, "be a fraction from 0 to below 1", hint)
        hint = self.hint if number > self.high else ""
        return InvalidValueError(name, value, f"lie between {self.low:g} and {self.high:g} {self.unit}", hint)

    def require(self, name: str, value: object) -> None:
        """Raise InvalidValueError if a value is no number or out of range; for a quantity that is no field."""
        if not is_number(value) or not self.low <= value <= self.high:
            raise self.refusal(name, value)

    def read(self, name: str, written: object) -> Value:
        """Return a value from a text with a unit, or from a number."""
        if isinstance(written, str) and self.kind in PARSERS:
            return PARSERS[self.kind](written, name, allow_zero=True)
        if not is_number(written):
            raise InvalidValueError(name, written, "be a number, or text with a unit")
        return int(written) if self.kind in WHOLE and float(written).is_integer() else float(written)


@dataclass(frozen=True, kw_only=True)
class Choice(Field):
    """Declaration of one word out of several.

    Parameters
    ----------
    words : tuple of str
        The allowed words; filled in from the annotated `Literal`.
    """

    kind: Kind = "word"
    words: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[object]:
        """Yield nothing: pydantic knows the words from the type."""
        return iter(())

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a word that is not allowed."""
        return InvalidValueError(name, value, f"be one of {', '.join(map(repr, self.words))}")

    def read(self, name: str, written: object) -> Value:
        """Return a word."""
        if not isinstance(written, str):
            raise InvalidValueError(name, written, "be a word in quotes")
        return written


@dataclass(frozen=True, kw_only=True)
class Flag(Field):
    """Declaration of a switch."""

    kind: Kind = "flag"

    def __iter__(self) -> Iterator[object]:
        """Yield what pydantic validates with: a number is no flag."""
        yield pydantic.Strict()

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is neither True nor False."""
        return InvalidValueError(name, value, "be True or False")

    def read(self, name: str, written: object) -> Value:
        """Return a flag."""
        if not isinstance(written, bool):
            raise InvalidValueError(name, written, "be true or false")
        return written


_DECLARATIONS: dict[type, Mapping[str, Field]] = {}


def declarations(described: type) -> Mapping[str, Field]:
    """Return the declarations of a class by field name, in the order of its arguments.

    Examples
    --------
    >>> from tcpdelay.scenario import Path
    >>> declarations(Path)["rtt"].high
    60.0
    """
    return _DECLARATIONS[described]


def _declared_fields(described: Any) -> Iterator[tuple[str, Field]]:
    """Yield the names and declarations of the fields of a dataclass."""
    hints = get_type_hints(described, include_extras=True)
    for field in dataclasses.fields(described):
        hint = hints[field.name]
        # An optional field is a union of what is declared and None.
        declared = next(part for part in (hint, *get_args(hint)) if get_origin(part) is Annotated)
        declaration = next(entry for entry in declared.__metadata__ if isinstance(entry, Field))
        if isinstance(declaration, Choice):
            declaration = dataclasses.replace(declaration, words=get_args(declared.__origin__))
        yield field.name, declaration


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def described(cls: type[Described]) -> type[Described]:
    """Make a frozen dataclass that pydantic validates, and whose errors are `InvalidValueError`.

    Every field is annotated with its declaration, such as `Annotated[float, Quantity(...)]`.
    """
    validated: Any = pydantic.dataclasses.dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
    construct = validated.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            construct(self, *args, **kwargs)
        except ValidationError as error:
            raise _first_fault(validated, error) from None

    validated.__init__ = __init__
    _DECLARATIONS[validated] = dict(_declared_fields(validated))
    result: type[Described] = validated
    return result


def _first_fault(described: type, error: ValidationError) -> Exception:
    """Return the error to raise for what pydantic has found first."""
    fault = error.errors(include_url=False)[0]
    if isinstance(cause := fault.get("ctx", {}).get("error"), InvalidValueError):
        return cause
    name = fault["loc"][0] if fault["loc"] else ""
    if isinstance(name, int):
        name = list(declarations(described))[name]
    if str(fault["type"]).startswith(("missing", "unexpected", "multiple")):
        return TypeError(f"{described.__name__}(): {fault['msg'].lower()}: {name}")
    return declarations(described)[name].refusal(name, fault["input"])


def bounds(described: type, name: str) -> tuple[float, float]:
    """Return the smallest and the largest value of a field.

    Examples
    --------
    >>> from tcpdelay.scenario import Path
    >>> bounds(Path, "rtt")
    (1e-06, 60.0)
    """
    declared = declarations(described)[name]
    if not isinstance(declared, Quantity):
        raise TypeError(f"{described.__name__}.{name} has no bounds")
    return declared.low, declared.high
