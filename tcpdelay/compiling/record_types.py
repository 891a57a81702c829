"""Records as classes: a reader and mypy see their fields, and NumPy's record type follows from the annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar, get_args, get_origin, get_type_hints, overload

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
        copy: Callable[[], Self]
        max: Callable[[], Item]

        @overload
        def __getitem__(self, place: int | tuple[int, int]) -> Item: ...
        @overload
        def __getitem__(self, place: slice) -> Self: ...
        @overload
        def __getitem__(self, place: str | list[int] | NDArray[Any]) -> Any: ...
        def __getitem__(self, place: Any) -> Any: ...
        def __setitem__(self, place: int | tuple[int, int] | str | slice | NDArray[Any], value: Any) -> None: ...
        def __iter__(self) -> Iterator[Item]: ...
        def __len__(self) -> int: ...
        def __array__(self) -> NDArray[Any]: ...


class Column(Generic[Item]):
    """A field of a record, and of an array of such records, where it is an array."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, place: Record, owner: type[object]) -> Item: ...
        @overload
        def __get__(self, place: Array[Any], owner: type[object]) -> Array[Item]: ...
        def __get__(self, place: Any, owner: type[object]) -> Any: ...
        def __set__(self, place: Record, value: Item) -> None: ...


def record_type(record: type[Record], align: bool = False, **shapes: int | tuple[int, ...]) -> np.dtype[np.void]:
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
    fields = [(name, *_form(hints[name], shapes.get(name))) for name in dict.fromkeys(_names(record))]
    return np.dtype(fields, align=align)


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
    if get_origin(hint) in (Array, Column):
        return _form(get_args(hint)[0], None)
    if isinstance(hint, type) and issubclass(hint, Record):
        return (record_type(hint),)
    return (np.dtype({bool: np.int64, int: np.int64, Truncated: np.int64}.get(hint, hint)),)
