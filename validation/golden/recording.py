"""What is written of a result: numbers and words, arrays as digests, texts without time, place and version."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import pkgutil
import re
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

import tcpdelay as td

PACKAGE = Path(td.__file__).parent
ROOT = PACKAGE.parent
"""The checkout of the package. Its examples, captures and specifications are the inputs."""
LONGEST_CASE = 600
"""Time after which a case is given up [s]; none takes a tenth of it."""
LONG_ARRAY = 40
PROPERTIES = ("mean_interval", "p95_interval")
"""Figures that are fields of some results, and that others derive."""


class TooLong(BaseException):
    """A case takes too long."""


Case = Callable[[], Any]
Cases = dict[str, Case]


@cache
def modules() -> tuple[Any, ...]:
    """Return all modules of the package that can be imported here."""
    found = [importlib.import_module("tcpdelay")]
    for module in pkgutil.walk_packages([str(PACKAGE)], "tcpdelay."):
        if not module.name.endswith("__main__"):
            try:
                found.append(importlib.import_module(module.name))
            except ImportError:  # of an extra
                continue
    return tuple(found)


@cache
def named(name: str) -> Any:
    """Return the class or function of a name, in whichever module of the package it is defined."""
    for module in modules():
        found = vars(module).get(name)
        if getattr(found, "__module__", None) == module.__name__:
            return found
    raise LookupError(f"tcpdelay has no {name}")


def digest(value: bytes | str) -> str:
    """Return a short digest."""
    return hashlib.blake2b(value.encode() if isinstance(value, str) else value, digest_size=8).hexdigest()


def of_array(values: Any) -> str:
    """Return the shape and a digest of an array: equal only if all is equal to the last bit."""
    array = np.ascontiguousarray(values)
    return f"{array.dtype} {array.shape} {digest(array.tobytes())}"


def plain(text: str) -> str:
    """Return a text without what depends on the day, the folder, the address or the version."""
    for pattern, word in (
        (r"0x[0-9a-f]{6,}", "ADDRESS"),
        (rf"\b{re.escape(td.__version__)}\b", "VERSION"),
        (r"\b20\d\d-\d\d-\d\d(T[\d:.]+(Z|[+-][\d:]+)?)?", "DATE"),
        (r"/\S*/golden-\w+/", ""),
        (r"(?m)^\d+ tried here: .*\nall: about .*", "MEASURED"),
        (re.escape(str(ROOT)), "ROOT"),
    ):
        text = re.sub(pattern, word, text)
    return text


def recorded(value: Any, exact: bool = False) -> Any:
    """Return a result as nested data: public fields, with arrays as lists if they are short, or of their statistics.

    `exact` writes a digest of each array, and is for simulations.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, np.ndarray):
        return _of_values(value, exact)
    if isinstance(value, Mapping):
        return {str(key): recorded(entry, exact) for key, entry in value.items()}
    if hasattr(value, "data_vars"):
        return {str(name): recorded(np.asarray(value[name]), exact) for name in [*value.coords, *value.data_vars]}
    if hasattr(value, "quantile") and hasattr(value, "weights"):
        return distribution(value, exact)
    if hasattr(value, "_asdict"):
        return recorded(value._asdict(), exact)
    if isinstance(value, (list, tuple)):
        return [recorded(entry, exact) for entry in value]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        names += [name for name in PROPERTIES if name not in names and hasattr(value, name)]
        return {name: recorded(getattr(value, name), exact) for name in names if not callable(getattr(value, name))}
    return plain(repr(value))


def _of_values(array: np.ndarray[Any, Any], exact: bool) -> Any:
    if exact or array.dtype.names or array.dtype.kind not in "fiub":
        return of_array(array) if array.dtype.kind != "O" and array.dtype.kind != "U" else array.tolist()
    if array.size <= LONG_ARRAY:
        return array.tolist()
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    shares = np.quantile(finite.astype(float), np.linspace(0, 1, 11)).tolist() if finite.size else []
    return {"shape": list(array.shape), "finite": int(finite.size), "sum": float(finite.sum()), "quantiles": shares}


def distribution(delays: Any, exact: bool = False) -> dict[str, Any]:
    """Return the figures of a distribution of delays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            "mean": float(delays.mean),
            "std": float(delays.std) if delays.sustainable else float("inf"),
            **{f"p{100 * share:g}": float(delays.quantile(share)) for share in (0.5, 0.9, 0.95, 0.99, 0.999)},
            "late_200ms": float(delays.late_fraction(0.2)),
            "sustainable": bool(delays.sustainable),
            "truncated_mass": float(delays.truncated_mass),
            "expected_error": recorded(delays.expected_error),
            "method": delays.method,
        }
    if exact:
        found |= {"values": of_array(delays.values), "weights": of_array(delays.weights)}
    return found


def attributes(result: Any, names: Iterable[str], exact: bool = True) -> dict[str, Any]:
    """Return attributes of a result; one that it no longer has is "absent"."""
    return {name: recorded(getattr(result, name, "absent"), exact) for name in names}


def outcome(case: Case) -> Any:
    """Return what a case gives, or its error in words."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_CASE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case()
    except TooLong:
        return f"not ended after {LONGEST_CASE} s"
    except Exception as error:
        return {"error": f"{type(error).__name__}: {plain(str(error))}"}
    finally:
        signal.alarm(0)


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TooLong


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a public function or class, without those that collect others."""
    found = inspect.signature(function).parameters
    collecting = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return {name: parameter for name, parameter in found.items() if parameter.kind not in collecting}
