"""A point of a sweep, and its parameters: the fields of source, path and stack, and the heuristics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tcpdelay.models.heuristics import MOST_CONNECTIONS, MOST_PIECES, piece_of, share_of
from tcpdelay.scenario.fields import Choice, Content, Field, Quantity, Value, declarations
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import FIELDS
from tcpdelay.scenario.source import BITRATE, Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import DEFAULT_PROFILE, PROFILES, KnownStack, profiles_with

Table = Literal["flow", "path", "stack", "heuristics", "source"]

TABLES: tuple[Table, ...] = ("flow", "path", "stack", "heuristics")
"""The tables that fix parameters, other than `[source]`."""


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Parameters
    ----------
    table : {"flow", "path", "stack", "heuristics", "source"}
        The table of a specification that fixes the parameter.
    declaration : Field
        Values, unit and meaning of the parameter.
    """

    table: Table
    declaration: Field


def _whole_up_to(most: int, meaning: str) -> Parameter:
    declaration = Quantity(kind="count", meaning=meaning, low=1, high=most, unit="", example="2")
    return Parameter("heuristics", replace(declaration, allowed=f"be a whole number from 1 to {most}"))


def _parameters() -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of each table, in the order of their declarations."""
    further: dict[Table, dict[str, Parameter]] = {
        "flow": {"bitrate": Parameter("flow", BITRATE)},
        "stack": {
            "profile": Parameter("stack", Choice(meaning="TCP model.", words=tuple(PROFILES), default=DEFAULT_PROFILE))
        },
        "heuristics": {
            "connections": _whole_up_to(MOST_CONNECTIONS, "Number of connections that the packets take turns on."),
            "pieces": _whole_up_to(MOST_PIECES, "Number of writes per packet."),
        },
    }
    for table in TABLES:
        yield from ((name, Parameter(table, field)) for name, (part, field) in FIELDS.items() if part == table)
        yield from further.get(table, {}).items()


PARAMETERS: dict[str, Parameter] = dict(_parameters())


def parameters_with(source: Source | None) -> Mapping[str, Parameter]:
    """Return the parameters of a sweep by name; with a source, its fields replace those of flow and heuristics.

    Every source has the parameter "bitrate". If the source has no field of this name, the bitrate scales the sizes of
    its messages.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.speech import Speech
    >>> [name for name, each in parameters_with(Speech(174, 0.020)).items() if each.table == "source"]
    ['bitrate', 'packet_size', 'interval', 'talk', 'silence']
    """
    if source is None:
        return PARAMETERS
    own = {
        name: Parameter("source", field)
        for name, field in declarations(type(source)).items()
        if not isinstance(field, Content)
    }
    others = {name: each for name, each in PARAMETERS.items() if each.table in ("path", "stack")}
    return {"bitrate": Parameter("source", BITRATE), **own, **others}


def source_with(source: Source, values: Mapping[str, Any]) -> Source:
    """Return a source with the values of a point of a sweep; values of path and stack have no effect.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.speech import Speech
    >>> source_with(Speech(174, 0.020), {"talk": 2.0, "rtt": 0.1}).talk
    2.0
    """
    fields = declarations(type(source))
    varied: Any = replace(source, **{name: value for name, value in values.items() if name in fields})  # type: ignore[type-var]
    found: Source = varied.at_bitrate(values["bitrate"]) if "bitrate" in values and "bitrate" not in fields else varied
    return found


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep, with all values checked.

    Attributes
    ----------
    flow : Source
        The application's packets or messages.
    path : Path
        The network.
    stack : KnownStack
        The TCP stack.
    connections, pieces : int
        Number of connections that the packets take turns on, and number of writes per packet.
    """

    flow: Source
    path: Path
    stack: KnownStack
    connections: int
    pieces: int


def read_value(name: str, written: object) -> Value:
    """Return the value of a parameter, from a text with a unit or a plain value.

    Parameters
    ----------
    name : str
        The parameter.
    written : object
        Text with a unit, such as "20ms" and "2%", or a plain value: seconds, bytes, bit/s, a fraction, a word or a
        flag.

    Raises
    ------
    ValueError
        If the parameter cannot be read so; the message begins with its name.

    Examples
    --------
    >>> read_value("rtt", "100ms"), read_value("loss", "2%"), read_value("delayed_ack", True)
    (0.1, 0.02, True)
    """
    return PARAMETERS[name].declaration.read(name, written)


def require_allowed(name: str, value: Value) -> None:
    """Raise InvalidValueError if a value of a parameter is never allowed, whatever values the other parameters have.

    Examples
    --------
    >>> require_allowed("hz", 10)
    Traceback (most recent call last):
    tcpdelay.scenario.fields.InvalidValueError: hz must lie between 100 and 1000 interrupts per second, got 10
    """
    PARAMETERS[name].declaration.require(name, value)


def point_of(values: Mapping[str, Any], source: Source | None = None) -> SweepPoint:
    """Return the point of a sweep with these values.

    Parameters
    ----------
    values : mapping
        Parameters by name: `rtt`, `loss`, two of `packet_size`, `interval` and `bitrate`, and any other parameters.
    source : Source, optional
        The source that replaces the flow. `values` has those of its fields that vary.

    Raises
    ------
    ValueError
        If the values do not go together.

    Examples
    --------
    >>> point_of({"packet_size": 160, "bitrate": 64_000.0, "rtt": 0.1, "loss": 0.02}).flow
    Flow(packet_size=160, interval=0.02)
    """
    parameters = parameters_with(source)
    given = {name: value for name, value in values.items() if parameters[name].table == "path"}
    flow, path = _flow(values) if source is None else source_with(source, values), Path(**given)
    name = values.get("profile", DEFAULT_PROFILE)
    require_allowed("profile", name)
    stack = PROFILES[name]
    settings = {key: value for key, value in values.items() if parameters[key].table == "stack" and key != "profile"}
    for setting in settings:
        if name not in profiles_with(setting):
            raise ValueError(
                f"{setting} goes with profile {' or '.join(map(repr, profiles_with(setting)))}, not {name!r}"
            )
    point = SweepPoint(flow, path, replace(stack, **settings), values.get("connections", 1), values.get("pieces", 1))
    # Raises ValueError if the packets cannot be divided so.
    if isinstance(flow, Flow):
        piece_of(share_of(flow, point.connections), point.pieces)
    return point


def _flow(values: Mapping[str, Any]) -> Flow:
    if "bitrate" not in values:
        return Flow(values["packet_size"], values["interval"])
    if "packet_size" in values:
        return Flow.from_bitrate(values["bitrate"], values["packet_size"])
    return Flow(round(values["bitrate"] * values["interval"] / 8), values["interval"])
