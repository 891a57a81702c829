"""One scenario: source, path, stack and target; the check of arguments without a range."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from tcpdelay.argument_types import alternatives_of, is_of_type, types_in_words
from tcpdelay.declare import (
    Choice,
    Content,
    Field,
    InvalidValueError,
    declarations,
)
from tcpdelay.scenario.applications import constant_rate, source_of
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.sources.message_trace import Trace
from tcpdelay.scenario.sources.speech import Speech, Utterances
from tcpdelay.scenario.sources.video import Video
from tcpdelay.scenario.stack import (
    DEFAULT_STACK,
    KnownStack,
    Linux,
    NewReno2008,
    Quic,
    Stack,
    StackName,
    checked_profile,
)
from tcpdelay.scenario.target import Target

Part = Literal["flow", "path", "stack", "target"]


@dataclass(frozen=True)
class Scenario:
    """The input of a model.

    Parameters
    ----------
    source : Source
        The source of the messages: a `Flow` of constant rate, or any other `Source`.
    path : Path
        The network.
    stack : Stack
        The transport: a TCP implementation, by default a current Linux kernel, or QUIC.
    target : Target, optional
        The demand on the delay.

    Raises
    ------
    InvalidValueError
        If a part has the wrong type.

    Examples
    --------
    >>> Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).stack.hz
    250
    """

    source: Source
    path: Path
    stack: KnownStack = DEFAULT_STACK
    target: Target | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, Source):
            raise InvalidValueError("source", self.source, "be a Flow or another Source")
        # Refuses a source without a rate.
        source_of(self.source)
        checked_path(self.path)
        checked_profile(self.stack)

    @property
    def flow(self) -> Flow:
        """The source, which must be a constant-rate `Flow`.

        Raises
        ------
        InvalidValueError
            If it is another source.
        """
        return constant_rate(self.source)

    def value(self, name: str) -> Any:
        """Return the value of a field of the source, the path or the stack; None if none of them has this field."""
        parts: tuple[Any, ...] = (self.source, self.path, self.stack)
        part = next((part for part in parts if name in declarations(type(part))), None)
        return None if part is None else getattr(part, name)


_PARTS: tuple[tuple[Part, type], ...] = (
    ("flow", Flow),
    ("path", Path),
    ("stack", Linux),
    ("stack", NewReno2008),
    ("stack", Quic),
    ("target", Target),
)


def _declared_fields() -> dict[str, tuple[Part, Field]]:
    """Return each field by name; the congestion control has the words of all stacks, of which each refuses some."""
    found: dict[str, tuple[Part, Field]] = {}
    for part, described in _PARTS:
        for name, field in declarations(described).items():
            known = found[name][1] if name in found else None
            if isinstance(field, Choice) and isinstance(known, Choice):
                field = replace(known, words=tuple(dict.fromkeys((*known.words, *field.words))))
            found[name] = part, field
    return found


FIELDS: Mapping[str, tuple[Part, Field]] = _declared_fields()
"""The part and the declaration of each field of a flow, a path, a stack and a target, by the field's name."""
_OTHERWISE_GIVEN = frozenset({*FIELDS, "bitrate", "frame_rate"})
"""Fields of sources that a flow has too, or that have an option of their own."""
SOURCE_FIELDS: Mapping[str, tuple[type[Source], Field]] = {
    name: (described, field)
    for described in (Video, Speech, Utterances, Trace)
    for name, field in declarations(described).items()
    if name not in _OTHERWISE_GIVEN and not isinstance(field, Content)
}
"""The class and the declaration of each field that only other sources than `Flow` have, by the field's name.

Fields without a text form, such as the times of a trace, are left out.
"""


def scenario_from_options(
    flow: Source | str | None, path: Path | None, stack: Stack | StackName | None, options: Mapping[str, Any]
) -> Scenario:
    """Return the scenario of a source or the name of an application; `options` make a flow or path that is None."""
    source = None if flow is None else source_of(flow)
    if source is None or path is None or options:
        source, path = _source_and_path(source, path, options)
    return Scenario(source, path, checked_profile(stack))


def _source_and_path(source: Source | None, path: Path | None, options: Mapping[str, Any]) -> tuple[Source, Path]:
    """Return source and path, each as given or made from its keyword arguments."""
    known = {"flow": tuple(declarations(Flow)), "path": tuple(declarations(Path))}
    allowed = known["flow"] + known["path"]
    if unknown := set(options).difference(allowed):
        raise ValueError(f"unknown argument {min(unknown)!r}; allowed are {', '.join(allowed)}")
    needed = {"flow": ("packet_size", "interval"), "path": ("rtt", "loss")}
    for name, given in (("flow", source), ("path", path)):
        parts = [option for option in known[name] if option in options]
        if given is not None and parts:
            raise ValueError(f"give either {name} or {', '.join(parts)}, not both")
        missing = [option for option in needed[name] if option not in options]
        if given is None and missing:
            raise ValueError(f"{' and '.join(missing)} missing: give {name}, or {' and '.join(needed[name])}")
    if source is None:
        source = Flow(**{name: options[name] for name in known["flow"] if name in options})
    if path is None:
        path = Path(**{name: options[name] for name in known["path"] if name in options})
    return source, path


# The check of those arguments of a public function that have no range: switches, choices, functions and objects.
#
# Numbers, texts, paths, stacks and sources are left to the function: its own message names what it allows.

P = ParamSpec("P")
R = TypeVar("R")
CHECKED_BY_FUNCTION = (int, float, tuple, Path, Source, Stack)
"""Types of arguments with a range or a message of their own; arrays have one too, and texts and mappings alone."""


def checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that refuses arguments of a wrong type in one line, before it computes anything.

    The types are those of the annotations: switches, choices, functions, classes and mappings.
    """
    parameters = inspect.signature(function).parameters.values()
    by_position = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        # Not `Signature.bind`, which takes a tenth of a small prediction. Python itself refuses a wrong call below.
        given: dict[str, Any] = {**dict(zip(by_position, args, strict=False)), **kwargs}
        for name, alternatives in _checkable_types(function).items():
            if name in given and not any(is_of_type(given[name], declared) for declared in alternatives):
                raise InvalidValueError(name, given[name], f"be {types_in_words(alternatives)}")
        return function(*args, **kwargs)

    return checked


@functools.cache
def _checkable_types(function: Callable[..., Any]) -> Mapping[str, tuple[Any, ...]]:
    """Return the allowed types of those parameters of a function that are checked here."""
    # The help waits for no heavy import.
    from numpy.typing import ArrayLike

    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        try:
            declared = eval(parameter.annotation, vars(sys.modules[function.__module__]))
        except NameError:
            # The class is imported for type checkers only.
            continue
        alternatives = alternatives_of(declared)
        if set(get_args(ArrayLike)) <= set(alternatives):
            continue
        own = all((get_origin(each) or each) in (str, Mapping, types.NoneType) for each in alternatives)
        if not own and all(map(_is_checkable, alternatives)):
            found[name] = alternatives
    return found


def _is_checkable(declared: Any) -> bool:
    """Return whether values of a type are recognized here, and the function has no message of its own for them."""
    kind = get_origin(declared) or declared
    if kind in (Literal, Callable, Mapping) or declared is bool:
        return True
    return isinstance(kind, type) and kind is not Any and not issubclass(kind, CHECKED_BY_FUNCTION)
