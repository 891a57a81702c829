"""The declaration of a scenario's field: type, unit, range, default, meaning and command-line spelling, in one place.

A declaration is the value that a class assigns to its field: `rtt: float = in_seconds("Round-trip time.", 1e-6, 60)`.
Validation, error messages, command-line options, sweep axes, table columns and the units of data sets follow from it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from tcpdelay.units import format_fraction, format_rate, format_time, parse_fraction, parse_rate, parse_size, parse_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["time", "fraction", "size", "rate", "count", "number", "word", "flag", "content"]
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
    "content": None,
}
"""Unit of the values of each kind, in the notation of netCDF."""
WHOLE: tuple[Kind, ...] = ("size", "count")
"""Kinds whose values are whole numbers."""
PARSERS: dict[Kind, Callable[..., float]] = {
    "time": parse_time,
    "fraction": parse_fraction,
    "size": parse_size,
    "rate": parse_rate,
}
"""Functions that read a text with a unit, by the kind of value."""
FORMATS: dict[Kind, Callable[[Any], str]] = {
    "time": format_time,
    "fraction": format_fraction,
    "size": lambda size: f"{size} B",
    "rate": format_rate,
    "count": str,
    "number": lambda number: f"{number:g}",
    "word": str,
    "flag": lambda flag: "on" if flag else "off",
    "content": str,
}
"""Functions that format a value for people, by the kind of value."""


class InvalidValueError(ValueError):
    """An argument has a value that is not allowed.

    Parameters
    ----------
    name : str
        Name of the argument.
    value : object
        The given value.
    allowed : str
        Allowed values, as the message's text after the word "must".
    hint : str
        How to write the value in Python, if its unit may be wrong.

    Examples
    --------
    >>> print(InvalidValueError("rtt", 100, "lie between 1e-06 and 60 s", "100 ms is 0.100"))
    rtt must lie between 1e-06 and 60 s, got 100; 100 ms is 0.100
    """

    def __init__(self, name: str, value: object, allowed: str, hint: str = "") -> None:
        super().__init__(name, value, allowed, hint)
        self.name, self.value, self.allowed, self.hint = name, value, allowed, hint

    @property
    def fault(self) -> str:
        """The message without the name and the hint."""
        return f"must {self.allowed}, got {shown(self.value)}"

    def __str__(self) -> str:
        return f"{self.name} {self.fault}" + (f"; {self.hint}" if self.hint else "")


class UnitWarning(UserWarning):
    """A value is so large that it is probably given in another unit, such as milliseconds for seconds."""


class ColumnUnitWarning(UnitWarning):
    """Most values of a table's column are improbable in the stated unit, and another unit fits."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number; neither a text nor True is one."""
    # NumPy counts durations among the whole numbers, but they have a unit of their own.
    if isinstance(value, bool) or type(value).__name__ == "timedelta64":
        return False
    # The built-in types come first: a check against an abstract class takes ten times as long.
    return isinstance(value, (float, int, numbers.Real))


def as_numbers(name: str, value: object) -> NDArray[np.float64]:
    """Return a number or several numbers of any shape as an array; InvalidValueError for anything else."""
    import numpy as np

    try:
        found = np.asarray(value)
    except ValueError:  # lists of different lengths
        found = np.asarray(None)
    if found.dtype.kind not in "iuf" and found.size:
        raise InvalidValueError(name, value, "be a number, or an array of numbers")
    return found.astype(np.float64)


LONG_NUMBER = 10**12
"""Whole number from which error messages show six digits and the power of ten."""
_SIX_DIGITS = Context(prec=6)


def shown(value: object) -> str:
    """Return a value of any type in the form of an error message."""
    if isinstance(value, numbers.Integral) and is_number(value):
        # Python refuses to write a whole number of thousands of digits.
        whole = int(value)
        return f"{whole}" if abs(whole) < LONG_NUMBER else f"{_SIX_DIGITS.create_decimal(whole).normalize():g}"
    if is_number(value):
        return f"{float(value):.12g}"
    if isinstance(value, str):
        return f"{value!r:.200}"
    # The text of an array has several lines; join them.
    text = " ".join(repr(value).split())
    # The fields of a large object hide what is wrong.
    return type(value).__name__ if dataclasses.is_dataclass(value) and len(text) > 80 else f"{text:.200}"


def alternatives_of(declared: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the single type."""
    return get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)


def require_flag(name: str, value: object) -> None:
    """Raise InvalidValueError if an argument is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidValueError(name, value, "be True or False")


def require_keys(table: Iterable[str], allowed: Collection[str], what: str, place: str = "") -> None:
    """Raise ValueError for a key of a configuration file that is not allowed.

    `what` names the allowed keys, and `place` begins the message.
    """
    for key in table:
        if key not in allowed:
            near = get_close_matches(str(key), allowed, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{place}{key!r:.64} is no {what}; there are {', '.join(allowed)}{meant}")


def _has_several(value: object) -> bool:
    """Return whether a value is a list, an array or a column of a table."""
    return isinstance(value, (list, tuple)) or bool(getattr(value, "ndim", 0))


def _is_huge(value: object) -> bool:
    """Return whether a whole number is beyond the range of floating-point numbers."""
    return isinstance(value, numbers.Integral) and abs(int(value)) > sys.float_info.max


@dataclass(frozen=True, kw_only=True)
class Field(ABC):
    """Base class of the declarations: a Quantity, a Choice, a Flag or a Content."""

    kind: Kind  # Kind of the values: the key of `UNITS`, `PARSERS` and `FORMATS`
    meaning: str  # Meaning of the field in one plain sentence; also the help of the command-line option
    details: str = ""  # Further sentences for the docstring of the class
    default_words: str = ""  # The default in words, if `default` does not show it
    # The default of the field, from the class; None if the field has no default, or None as default.
    default: Any = None
    # Value with which the field has no effect. `effective_fields` leaves out a field with this value; None if there
    # is no such value.
    no_effect: Any = None
    required: bool = True  # Whether a class that assigns the declaration to a field gives the field no default

    @property
    def long_name(self) -> str:
        """The meaning as a heading: its first clause, with a small initial letter."""
        clause = self.meaning.partition(". ")[0].partition(":")[0].removesuffix(".")
        return clause if clause[:2].isupper() else clause[0].lower() + clause[1:]

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of a coordinate of a data set: name, and the unit if the values have one."""
        units = UNITS[self.kind]
        return {"long_name": self.long_name, **({} if units is None else {"units": units})}

    @property
    def type_in_words(self) -> str:
        """The type of the values, as in a docstring."""
        return {"flag": "bool", "word": "str"}.get(self.kind, "int" if self.kind in WHOLE else "float")

    @property
    def allowed_in_words(self) -> str:
        """The allowed values as a sentence of a docstring; empty if the type says it all."""
        return ""

    @abstractmethod
    def allows(self, value: object) -> bool:
        """Return whether a value is allowed, regardless of the other fields."""

    @abstractmethod
    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that the declaration does not allow."""

    def require(self, name: str, value: Any) -> Any:
        """Return what a field holds for an allowed value; raise InvalidValueError if it is not allowed."""
        if not self.allows(value):
            raise self.refusal(name, value)
        return value

    def read(self, name: str, written: Any) -> Value:
        """Return the value of a text with a unit, or of an entry of a configuration file."""
        value: Value = self.require(name, written)
        return value

    def written(self, value: Any) -> str:
        """Return a value, formatted for people."""
        return FORMATS[self.kind](value)


@dataclass(frozen=True, kw_only=True)
class Quantity(Field):
    """Declaration of a number with a unit and a range."""

    low: float  # Smallest value
    high: float  # Largest value
    unit: str  # In words, for error messages
    example: str = ""  # A value in the notation of the command line; empty for a field that is no option
    hint: str = ""  # How to write the value in Python; shown with a value that is too large, such as 100 for 100 ms
    low_excluded: bool = False  # Whether `low` itself is not allowed
    high_excluded: bool = False  # Whether `high` itself is not allowed
    allowed: str = ""  # Text after "must" in messages, if unit and range do not describe the values well

    @property
    def allowed_in_words(self) -> str:
        """The range as a sentence of a docstring."""
        if self.allowed or self.kind == "fraction":
            return f"Must {self.range_in_words}."
        first = self._first_in_words.capitalize()
        return f"{first} to {self.high:g}{self.unit and f' {self.unit}'}."

    @property
    def _first_in_words(self) -> str:
        """The lower end of the range."""
        return f"above {self.low:g}, up" if self.low_excluded else f"from {self.low:g}"

    @property
    def range_in_words(self) -> str:
        """The allowed values, as the message's text after the word "must"."""
        if self.allowed:
            return self.allowed
        if self.kind == "fraction":
            below = "below " if self.high_excluded else ""
            return f"be a fraction {self._first_in_words} to {below}{self.high:g}"
        if self.kind in WHOLE:
            return f"be a whole number of {self.unit} from {self.low:.0f} to {self.high:.0f}"
        return f"lie between {self.low:g} and {self.high:g} {self.unit}"

    @property
    def zero_allowed(self) -> bool:
        """Whether 0 is allowed."""
        return self.allows(0)

    @property
    def parser(self) -> Callable[..., float]:
        """The function that reads a text with a unit."""
        parse = PARSERS[self.kind]
        return functools.partial(parse, allow_one=True) if self.kind == "fraction" and self.allows(1) else parse

    def require(self, name: str, value: Any) -> Any:
        """Return a number in the range, as an int or as a float."""
        found = super().require(name, value)
        return int(found) if self.kind in WHOLE else float(found)

    def allows(self, value: object) -> bool:
        """Return whether a value is a number in the range, and a whole number if the kind requires it."""
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        if (self.low_excluded and value == self.low) or (self.high_excluded and value == self.high):
            return False
        return self.kind not in WHOLE or value == int(value)

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is not a number, not a whole number, or out of range."""
        if self.allowed:
            return InvalidValueError(name, value, self.allowed)
        if not is_number(value):
            hint = "for several values call tcpdelay.predict_many, which takes a table" if _has_several(value) else ""
            return InvalidValueError(name, value, f"be a number in {self.unit}", hint)
        if _is_huge(value) or not math.isfinite(value):
            return InvalidValueError(name, value, "be finite")
        number = float(value)
        if self.low <= number <= self.high and self.kind in WHOLE:
            return InvalidValueError(name, value, f"be a whole number of {self.unit}")
        if self.kind == "fraction":
            hint = f"for {number:g} % write {number / 100:g}" if 1 <= number < 100 else ""
            return InvalidValueError(name, value, self.range_in_words, hint)
        hint = self.hint if number > self.high else ""
        return InvalidValueError(name, value, f"lie between {self.low:g} and {self.high:g} {self.unit}", hint)

    def read(self, name: str, written: object) -> Value:
        """Return a value from a text with a unit, or from a number."""
        if isinstance(written, str) and self.kind in PARSERS:
            return self.parser(written, name, allow_zero=True)
        if not is_number(written) or _is_huge(written):
            if self.allowed or self.kind not in PARSERS:
                raise self.refusal(name, written)
            raise InvalidValueError(name, written, "be a number, or text with a unit")
        return int(written) if self.kind in WHOLE and float(written).is_integer() else float(written)


def quantity(meaning: str, low: float, high: float, unit: str, kind: Kind, **more: Any) -> Any:
    """Declare a number with a unit and a range; `more` are further fields of the declaration.

    This function and those below return the value of a field of a `described` class. Its default is `default`; a field
    without one must be given.
    """
    required = "default" not in more
    return Quantity(kind=kind, unit=unit, meaning=meaning, low=low, high=high, required=required, **more)


def in_seconds(meaning: str, low: float, high: float, **more: Any) -> Any:
    """Declare a time in seconds; `more` are further fields of the declaration."""
    return quantity(meaning, low, high, "s", "time", **more)


def in_bytes(meaning: str, low: float, high: float, **more: Any) -> Any:
    """Declare a whole number of bytes; `more` are further fields of the declaration."""
    return quantity(meaning, low, high, "bytes", "size", **more)


def number(meaning: str, low: float, high: float, unit: str, **more: Any) -> Any:
    """Declare a number with a unit of its own; `more` are further fields of the declaration."""
    return quantity(meaning, low, high, unit, "number", **more)


def fraction(meaning: str, low: float = 0.0, high: float = 1.0, *, high_excluded: bool = True, **more: Any) -> Any:
    """Declare a fraction, which is below 1 unless told otherwise; `more` are further fields of the declaration."""
    return quantity(meaning, low, high, kind="fraction", high_excluded=high_excluded, **more)


def whole_number(meaning: str, low: int, high: float, **more: Any) -> Any:
    """Declare a whole number without a unit; `more` are further fields of the declaration."""
    allowed = {"allowed": f"be a whole number from {low} to {high}"}
    return quantity(meaning, low, high, "", "count", **allowed | more)


SEED: Quantity = whole_number(
    "Seed of all random numbers.", 0, sys.float_info.max, example="1", allowed="be a whole number, 0 or more"
)
"""Declaration of the seed of a simulation."""


@dataclass(frozen=True, kw_only=True)
class Choice(Field):
    """Declaration of a choice among several words."""

    kind: Kind = "word"
    words: tuple[str, ...] = ()  # Filled in from the annotated `Literal`

    @property
    def type_in_words(self) -> str:
        """The words, as in a docstring."""
        return f"{{{', '.join(map(repr, self.words))}}}"

    def allows(self, value: object) -> bool:
        """Return whether a value is one of the words."""
        return isinstance(value, str) and value in self.words

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a word that is not allowed."""
        return InvalidValueError(name, value, f"be one of {', '.join(map(repr, self.words))}")


@dataclass(frozen=True, kw_only=True)
class Flag(Field):
    """Declaration of a switch."""

    kind: Kind = "flag"

    def allows(self, value: object) -> bool:
        """Return whether a value is a flag."""
        return isinstance(value, bool)

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is neither True nor False."""
        return InvalidValueError(name, value, "be True or False")

    def read(self, name: str, written: object) -> Value:
        """Return a flag."""
        if not isinstance(written, bool):
            raise InvalidValueError(name, written, "be true or false")
        return written


@dataclass(frozen=True, kw_only=True)
class Content(Field):
    """Declaration of a field that holds more than one value, such as an array or a distribution.

    It has no text form, so it is no command-line option and no sweep axis.
    """

    kind: Kind = "content"
    check: Callable[[Any], Any]  # Function that returns the content to store, or raises InvalidValueError
    type_name: str = "object"  # Type of the content, for the docstring of the class

    @property
    def type_in_words(self) -> str:
        """The type of the content, as in a docstring."""
        return self.type_name

    def require(self, name: str, value: Any) -> Any:
        """Return the content that the check makes of a value."""
        return self.check(value)

    def allows(self, value: object) -> bool:
        """Return whether the check accepts a value."""
        try:
            self.check(value)
        except InvalidValueError:
            return False
        return True

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is not allowed."""
        try:
            self.check(value)
        except InvalidValueError as error:
            return error
        return InvalidValueError(name, value, "be given in Python")

    def read(self, name: str, written: object) -> Value:
        """Refuse a text: the content is given in Python."""
        raise InvalidValueError(name, written, "be given in Python")


def choice(meaning: str, **more: Any) -> Any:
    """Declare a choice among the words of the field's type; `more` are further fields of the declaration."""
    return Choice(meaning=meaning, required="default" not in more, **more)


def flag(meaning: str, **more: Any) -> Any:
    """Declare a switch; `more` are further fields of the declaration."""
    return Flag(meaning=meaning, required="default" not in more, **more)


def content(meaning: str, check: Callable[[Any], Any], type_name: str = "object", **more: Any) -> Any:
    """Declare a field whose content a function checks; `more` are further fields of the declaration."""
    return Content(meaning=meaning, check=check, type_name=type_name, required="default" not in more, **more)


def like(declaration: Field, **changes: Any) -> Any:
    """Declare a field as another declaration has it, but for some changes and the default."""
    return dataclasses.replace(declaration, required="default" not in changes, **changes)


def instance_of(name: str, *classes: type) -> Callable[[object], object]:
    """Return a check of a `Content` that accepts only objects of some classes."""

    def checked(value: object) -> object:
        if not isinstance(value, classes):
            raise InvalidValueError(name, value, f"be a {' or a '.join(each.__name__ for each in classes)}")
        return value

    return checked


_DECLARATIONS: dict[type, Mapping[str, Field]] = {}
_SECTION = re.compile(r"\n\n\w[\w ]*\n---")
"""The end of a docstring's text, where its first section begins."""
_FAULTS = "If a value has a wrong type, is out of its range, or is none of the allowed words; a ValueError."


def declarations(described: type) -> Mapping[str, Field]:
    """Return the declarations of a class by field name, in the order of its arguments."""
    return _DECLARATIONS[described]


def _ordered_fields(described: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a described class in the order of their declarations."""
    fields = {field.name: field for field in dataclasses.fields(described)}
    return [fields[name] for name in declarations(described)]


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or `dataclasses.MISSING`."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _declared_fields(described: Any, own: Mapping[str, Field]) -> Iterator[tuple[str, Field]]:
    """Yield names and declarations of the fields: fields by position, inherited keywords, then its own keywords."""
    hints = get_type_hints(described)
    by_order = sorted(dataclasses.fields(described), key=lambda each: (each.kw_only, each.kw_only and each.name in own))
    for field in by_order:
        inherited = (_DECLARATIONS[base] for base in described.__mro__ if base in _DECLARATIONS)
        declaration = own.get(field.name) or next(found[field.name] for found in inherited)
        if isinstance(declaration, Choice):
            literal = next(each for each in alternatives_of(hints[field.name]) if get_origin(each) is Literal)
            declaration = dataclasses.replace(declaration, words=get_args(literal))
        default = _default(field)
        yield field.name, dataclasses.replace(declaration, default=None if default is dataclasses.MISSING else default)


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(quantity, in_seconds, in_bytes, number, fraction, whole_number, choice, flag, content, like),
)
def described(cls: type[Described]) -> type[Described]:
    """Make a class a frozen dataclass whose values are checked: a value that is not allowed raises `InvalidValueError`.

    The value of every field in the class is its declaration, such as `in_seconds("Round-trip time.", 1e-6, 60)`.
    """
    own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
    for name, declared in own.items():
        if declared.required:
            delattr(cls, name)
        else:
            setattr(cls, name, declared.default)
    has_repr = "__repr__" in vars(cls)
    check_together = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:  # noqa: N807
        for name, field, default, optional in checks:
            value = getattr(self, name)
            if value is not default and not (optional and value is None):
                object.__setattr__(self, name, field.require(name, value))
        if check_together is not None:
            check_together(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    result: Any = dataclass(frozen=True, slots=True)(cls)
    _DECLARATIONS[result] = dict(_declared_fields(result, own))
    hints = get_type_hints(result)
    checks = [
        (field.name, declarations(result)[field.name], field.default, NoneType in alternatives_of(hints[field.name]))
        for field in _ordered_fields(result)
    ]
    if not has_repr:
        result.__repr__ = _repr
    _show_plainly(result)
    _document(result)
    described_class: type[Described] = result
    return described_class


def _document(described: Any) -> None:
    """Describe the fields of a class, and the errors of their values, in its docstring before the other sections."""
    lines = []
    for field in _ordered_fields(described):
        declared = declarations(described)[field.name]
        optional = ", optional" if field.default is None else ""
        default = f"By default {declared.default!r}." if declared.default not in (None, {}) else ""
        sentences = filter(None, (declared.meaning, declared.details, declared.allowed_in_words, default))
        lines += [f"{field.name} : {declared.type_in_words}{optional}", f"    {' '.join(sentences)}"]
    if "\nRaises\n---" not in inspect.cleandoc(described.__doc__ or ""):
        lines += ["", "Raises", "------", "InvalidValueError", f"    {_FAULTS}"]
    _add_parameters(described, lines)


def _add_parameters(described: Any, lines: list[str]) -> None:
    """Add a section with the parameters to the docstring of a class, before the other sections."""
    text = inspect.cleandoc(described.__doc__ or "")
    first = _SECTION.search(text)
    place = len(text) if first is None else first.start()
    described.__doc__ = text[:place] + "\n".join(["", "", "Parameters", "----------", *lines]) + text[place:]


def meaning(text: str, **options: Any) -> Any:
    """Return the value of a field of a `documented` class; `options` are those of `dataclasses.field`."""
    return dataclasses.field(metadata={"meaning": text}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(meaning, dataclasses.field))
def documented(**options: bool) -> Callable[[type[Described]], type[Described]]:
    """Return a decorator that makes a class a frozen dataclass, whose docstring has the `meaning` of each field.

    `options` are those of `dataclasses.dataclass`.
    """

    def decorated(cls: type[Described]) -> type[Described]:
        made: Any = dataclass(frozen=True, **options)(cls)
        lines = []
        for field in dataclasses.fields(made):
            if text := field.metadata.get("meaning"):
                lines += [f"{field.name} : {field.type}", f"    {text}"]
        _add_parameters(made, lines)
        result: type[Described] = made
        return result

    return decorated


def read(described: type[Described], table: Mapping[str, object]) -> Described:
    """Return an object of a described class whose fields are in a table of a file, with texts for units."""
    values = {}
    for name, value in table.items():
        declared = declarations(described)[name]
        values[name] = value if isinstance(declared, Content) else declared.read(name, value)
    return described(**values)


def effective_fields(described: Any) -> dict[str, Any]:
    """Return the values of the fields by name, without those that have no effect."""
    return {
        name: value
        for name, declared in declarations(type(described)).items()
        for value in [getattr(described, name)]
        if declared.no_effect is None or value != declared.no_effect
    }


def _repr(described: Any) -> str:
    """Return the call that makes this object, without arguments that have their default."""
    given = [
        f"{field.name}={value!r}"
        for field in _ordered_fields(type(described))
        for value in [getattr(described, field.name)]
        if (default := _default(field)) is dataclasses.MISSING or value != default
    ]
    return f"{type(described).__qualname__}({', '.join(given)})"


def _show_plainly(described: Any) -> None:
    """Remove the declarations from the signature and the annotations, so that `help` shows types and defaults."""
    types = get_type_hints(described)
    arguments = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if (default := _default(field)) is dataclasses.MISSING else default,
            annotation=types[field.name],
        )
        for field in _ordered_fields(described)
    ]
    described.__signature__ = inspect.Signature(arguments)
    described.__annotations__ = {field.name: types[field.name] for field in _ordered_fields(described)}


def bounds(described: type, name: str) -> tuple[float, float]:
    """Return the smallest and the largest value of a field."""
    declared = declarations(described)[name]
    if not isinstance(declared, Quantity):
        raise TypeError(f"{described.__name__}.{name} has no bounds")
    return declared.low, declared.high
