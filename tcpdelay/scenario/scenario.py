"""One scenario: source, path, stack and target; the presets of applications; the check of arguments without a range."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, overload

from tcpdelay.declare import (
    Choice,
    Content,
    Field,
    InvalidValueError,
    alternatives_of,
    as_numbers,
    declarations,
    described,
    documented,
    fraction,
    in_seconds,
    is_number,
    meaning,
)
from tcpdelay.scenario.encapsulation import encapsulation
from tcpdelay.scenario.media import Speech, Utterances, Video
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.source import Flow, Source, with_rate
from tcpdelay.scenario.source_settings import SourceSettings
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
from tcpdelay.store import read_toml
from tcpdelay.units import format_rate, format_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The demand on the delay.

ROUNDING = 1e-9
"""Relative rounding error by which a delay may exceed the limit; it depends on the order of a sum."""
SHARE_ROUNDING = 1e-12
"""Rounding error by which a share of late packets may exceed the allowed share: the error of a sum of probabilities."""
REPORTED_QUANTILES = (0.5, 0.95, 0.99)
"""Quantiles of the delay that every report gives, whatever the target."""
DEFAULT_LIMIT = 0.200
"""The limit [s] if neither a limit nor an application is given."""


@described
class Target:
    """A demand on the delay: the quantile of the delay must not exceed the limit.

    Examples
    --------
    >>> Target(limit=0.2).quantile
    0.95
    """

    limit: float = in_seconds(
        "Latest useful arrival: packets later than this count as late.",
        0.0,
        1e300,
        low_excluded=True,
        example="200ms",
        default_words="the limit of --app, or 200ms",
        allowed="be a number of seconds above 0",
    )
    quantile: float = fraction(
        "Share of the packets that must arrive within the limit.",
        low_excluded=True,
        unit="fraction of packets",
        example="95%",
        default_words="the quantile of --app, or 95%",
        allowed="lie between 0 and 1",
        default=0.95,
    )

    def is_met_by(self, delay: float) -> bool:
        """Return whether the quantile of the delay [s] is within the limit.

        A delay that exceeds the limit only by a rounding error is within the limit.

        Examples
        --------
        >>> Target(limit=0.2).is_met_by(0.2 + 1e-15), Target(limit=0.2).is_met_by(0.201)
        (True, False)
        """
        return delay <= self.latest

    @property
    def latest(self) -> float:
        """Longest delay [s] that counts as within the limit: the limit and a rounding error."""
        return self.limit * (1 + ROUNDING)

    @overload
    def allows(self, late_fraction: float) -> bool: ...
    @overload
    def allows(self, late_fraction: NDArray[np.float64]) -> NDArray[np.bool_]: ...
    def allows(self, late_fraction: float | NDArray[np.float64]) -> bool | NDArray[np.bool_]:
        """Return whether the target is met with this share of packets later than `latest`.

        This is equivalent to `is_met_by`: the quantile is within the limit exactly if the share of packets later than
        the limit is at most 1 - quantile.

        Examples
        --------
        >>> Target(limit=0.2).allows(0.05), Target(limit=0.2).allows(0.051)
        (True, False)
        """
        # Searches ask with a float, thousands of times.
        late = late_fraction if isinstance(late_fraction, float) else as_numbers("late_fraction", late_fraction)
        allowed = late <= 1 - self.quantile + SHARE_ROUNDING
        return allowed if isinstance(allowed, bool) or allowed.ndim else bool(allowed)


# Typical applications: what they send, and their target; the presets are in `applications.toml`.

CLEAR_DIFFERENCE = 1.5
"""Factor from which packet sizes, intervals or bitrates differ clearly."""


@dataclass(frozen=True)
class Application:
    """A preset: the source of a typical application, its encapsulation, and the target."""

    name: str
    title: str
    content: Source  # Output of the codec
    target: Target
    basis: str  # Where the values come from
    over: str = "tcp"  # Encapsulation that is added to each packet
    codec: str | None = None  # Key of `tcpdelay.quality.voice.CODECS` for the rating of a call; None without rating
    stands_in: bool = False  # Whether `codec` is the closest codec that can be rated, not the codec in use
    video: bool = False  # Whether the application is a video, which plays from a buffer as long as the target's limit

    @property
    def source(self) -> Source:
        """What TCP carries: the content, with the headers of the encapsulation."""
        return encapsulation(self.over).around(self.content)

    @property
    def constant_rate(self) -> bool:
        """Whether the application sends packets of one size at one interval."""
        return isinstance(self.content, Flow)

    @property
    def flow(self) -> Flow:
        """The flow that TCP carries."""
        return constant_rate(self.source)

    @property
    def at_constant_rate(self) -> Application:
        """The application with full segments at its mean bitrate, unless its rate is constant; the title says so."""
        if self.constant_rate:
            return self
        flow = Flow.from_bitrate(self.source.mean_bitrate)
        return replace(self, title=f"{self.title}, as a constant rate", content=flow, over="tcp")

    def unlike(self, flow: Flow) -> str:
        """Return how the packets of a flow differ clearly from those of the application; else an empty text.

        A difference is clear from a factor of `CLEAR_DIFFERENCE` on: other headers change small packets by less. Of an
        application whose rate is not constant, only the mean bitrate is compared.
        """
        own = self.source
        pairs = [(flow.bitrate, own.mean_bitrate)]
        if isinstance(own, Flow):
            pairs = [(flow.packet_size, own.packet_size), (flow.interval, own.interval)]
        if all(max(pair) < CLEAR_DIFFERENCE * min(pair) for pair in pairs):
            return ""
        if not isinstance(own, Flow):
            return f"{format_rate(flow.bitrate)}, but {self.name} sends {format_rate(own.mean_bitrate)}"
        given, usual = (f"{each.packet_size} B every {format_time(each.interval)}" for each in (flow, own))
        return f"{given}, but {self.name} sends {usual}"


def _presets() -> dict[str, Application]:
    """Return the presets of `applications.toml`, by name."""
    found = {}
    for name, table in read_toml(FilePath(__file__).with_name("applications.toml")).items():
        content = SourceSettings.from_table(table.pop("content")).source
        found[name] = Application(name=name, content=content, target=Target(**table.pop("target")), **table)
    return found


APPLICATIONS = _presets()
"""The presets by name."""


OTHER_APPLICATIONS = "describe another application by what it sends; a cloud game sends a video of 60 frames a second"
"""Hint at the way round for an application without a preset."""


def application(name: str) -> Application:
    """Return the preset called `name`."""
    if name not in APPLICATIONS:
        raise InvalidValueError("app", name, f"be one of {', '.join(APPLICATIONS)}", OTHER_APPLICATIONS)
    return APPLICATIONS[name]


def source_of(flow: Source | str, name: str = "flow") -> Source:
    """Return a source that is given as a `Source` or as the name of an application, in the argument called `name`."""
    preset = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    if preset is not None:
        return preset.source
    if not isinstance(flow, Source):
        sources = "a Source, such as a Flow, a Video or a Trace"
        raise InvalidValueError(name, flow, f"be {sources}, or one of {', '.join(APPLICATIONS)}")
    if isinstance(flow, Trace) and flow.times[0] > 0:
        flow = replace(flow, times=flow.times - flow.times[0])  # As those of a file: equal answers to equal messages
    return with_rate(flow)


def constant_rate(source: Source) -> Flow:
    """Return a source that must be a `Flow`."""
    if not isinstance(source, Flow):
        hint = "tcpdelay.simulate and predict_delay(method='simulation') take any source"
        raise InvalidValueError("flow", source, "be a Flow, which has a constant rate", hint)
    return source


def flow_of(flow: Source | str) -> Flow:
    """Return a flow that is given as a `Flow` or as the name of an application.

    Examples
    --------
    >>> flow_of("game").packet_size, flow_of(Flow(174, 0.020)).packet_size
    (100, 174)
    """
    return constant_rate(source_of(flow))


def target_of(flow: Source | str, target: Target | None = None) -> Target:
    """Return the target; if it is not given, the target of the application, or 95 % within 200 ms for a `Flow`.

    Examples
    --------
    >>> target_of("game"), target_of(Flow(174, 0.020)), target_of("game", Target(0.15)).limit
    (Target(limit=0.1), Target(limit=0.2), 0.15)
    """
    if target is not None:
        return target
    preset = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    return Target(DEFAULT_LIMIT) if preset is None else preset.target


# One scenario.

Part = Literal["flow", "path", "stack", "target"]


@documented()
class Scenario:
    """The input of a model.

    Raises
    ------
    InvalidValueError
        If a part has the wrong type.

    Examples
    --------
    >>> Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).stack.hz
    250
    """

    source: Source = meaning("The source of the messages: a `Flow` of constant rate, or any other `Source`.")
    path: Path = meaning("The network.")
    stack: KnownStack = meaning(
        "The transport: a TCP implementation, by default a current Linux kernel, or QUIC.", default=DEFAULT_STACK
    )
    target: Target | None = meaning("The demand on the delay.", default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.source, Source):
            raise InvalidValueError("source", self.source, "be a Flow or another Source")
        # Refuses a source without a rate.
        object.__setattr__(self, "source", source_of(self.source))
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
    for part, declared in _PARTS:
        for name, field in declarations(declared).items():
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
    name: (declared, field)
    for declared in (Video, Speech, Utterances, Trace)
    for name, field in declarations(declared).items()
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
