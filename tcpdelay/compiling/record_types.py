"""Records as classes: a reader and mypy see their fields, and NumPy's record type follows from the annotations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


class Record:
    """A record of a structured array; its fields are attributes, and outside kernels also items."""

    if TYPE_CHECKING:

        def __getitem__(self, name: str) -> Any: ...
        def __setitem__(self, name: str, value: Any) -> None: ...


class Truncated:
    """A field of whole numbers that is set to any number, less its fraction."""

    if TYPE_CHECKING:

        def __get__(self, record: object, owner: type[object]) -> int: ...
        def __set__(self, record: object, value: float) -> None: ...


class Array(Generic[Item]):
    """An array of records, or an array in a record: `Annotated[Array[Item], shape, type of the numbers]`."""

    if TYPE_CHECKING:
        size: int
        shape: tuple[int, ...]

        @overload
        def __getitem__(self, place: int | tuple[int, int]) -> Item: ...
        @overload
        def __getitem__(self, place: str | slice | NDArray[np.int64]) -> Any: ...
        def __getitem__(self, place: Any) -> Any: ...
        def __setitem__(self, place: int | tuple[int, int] | str | slice, value: Any) -> None: ...
        def __iter__(self) -> Iterator[Item]: ...


def record_type(record: type[Record], **shapes: int | tuple[int, ...]) -> np.dtype[np.void]:
    """Return NumPy's type of a record: the fields of its bases, from left to right, and then its own.

    A field that several of them declare stands where it is declared first. Fields of type `int` and `bool` have 64
    bits. `shapes` replaces the declared shapes of arrays, by name.

    >>> class Runner(Record):
    ...     number: int
    >>> class Run(Runner):
    ...     laps: Annotated[Array[float], 20]
    >>> record_type(Run, laps=3)
    dtype([('number', '<i8'), ('laps', '<f8', (3,))])
    """
    hints = get_type_hints(record, include_extras=True)
    return np.dtype([(name, *_form(hints[name], shapes.get(name))) for name in dict.fromkeys(_names(record))])


def _names(record: type) -> Iterator[str]:
    """Yield the names of the fields of a record, in their order."""
    for base in record.__bases__:
        yield from _names(base)
    yield from inspect.get_annotations(record)


def _form(hint: Any, shape: int | tuple[int, ...] | None) -> tuple[Any, ...]:
    """Return the type of a field, and its shape if it is an array."""
    if get_origin(hint) is Annotated:
        array, declared, *numbers = get_args(hint)
        return (*(numbers or _form(array, None)), declared if shape is None else shape)
    if get_origin(hint) is Array:
        return _form(get_args(hint)[0], None)
    if isinstance(hint, type) and issubclass(hint, Record):
        return (record_type(hint),)
    return (np.dtype({bool: np.int64, int: np.int64, Truncated: np.int64}.get(hint, hint)),)
