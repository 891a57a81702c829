"""The types of arguments that have no declaration: what is allowed, in one line."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from tcpdelay.declare import is_number


def alternatives_of(declared: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the single type."""
    return get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,)


def is_of_type(value: object, declared: Any) -> bool:
    """Return whether a value has a type: a class, a literal, a callable, or a number, which may be of NumPy."""
    kind = get_origin(declared) or declared
    if kind is Literal:
        return isinstance(value, str) and value in get_args(declared)
    if kind in (int, float):
        return is_number(value) and (kind is float or float(value).is_integer())
    return callable(value) if kind is Callable else isinstance(value, kind)


def types_in_words(alternatives: tuple[Any, ...]) -> str:
    """Return what is allowed in words; an optional argument is left out, and not given as None."""
    return " or ".join(_type_in_words(declared) for declared in alternatives if declared is not types.NoneType)


def _type_in_words(declared: Any) -> str:
    kind = get_origin(declared) or declared
    if kind is Literal:
        return f"one of {', '.join(map(repr, get_args(declared)))}"
    known: dict[Any, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    known |= {Callable: "a function", Mapping: "a mapping"}
    return known.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
