"""What a sweep may fix or vary: every parameter of flow, path, TCP and heuristics, and how its values are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tcpdelay.heuristics import piece_of, share_of
from tcpdelay.predict import PROFILES, default_profile_name
from tcpdelay.scenario import MAX_PACKET_SIZE, MAX_RTT, Flow, Path, Stack
from tcpdelay.units import parse_fraction, parse_rate, parse_size, parse_time

Table = Literal["flow", "path", "stack", "heuristics"]
Kind = Literal["time", "fraction", "size", "rate", "count", "number", "word", "flag"]
Value = float | int | str | bool

TABLES: tuple[Table, ...] = ("flow", "path", "stack", "heuristics")
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
"""Units of the values by their kind, in the form of netCDF."""
WHOLE: tuple[Kind, ...] = ("size", "count")
SPANNED: tuple[Kind, ...] = ("time", "fraction", "rate", "number", *WHOLE)
"""Kinds that have values between two others."""
_PARSERS: dict[Kind, Callable[..., float]] = {
    "time": parse_time,
    "fraction": parse_fraction,
    "size": parse_size,
    "rate": parse_rate,
}


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Parameters
    ----------
    table : {"flow", "path", "stack", "heuristics"}
        Where a specification fixes it.
    kind : str
        Which values it has.
    meaning : str
        What it is, in a few words.
    """

    table: Table
    kind: Kind
    meaning: str


PARAMETERS: dict[str, Parameter] = {
    "packet_size": Parameter("flow", "size", "application bytes per packet"),
    "interval": Parameter("flow", "time", "time between two packets"),
    "bitrate": Parameter("flow", "rate", "application bits per second"),
    "rtt": Parameter("path", "time", "round-trip time"),
    "loss": Parameter("path", "fraction", "probability that a data segment is lost"),
    "loss_pattern": Parameter("path", "word", "how losses follow one another"),
    "bottleneck": Parameter("path", "word", "what the bottleneck's queue is kept in"),
    "one_way_delay": Parameter("path", "time", "delay from sender to receiver without TCP"),
    "loss_burst": Parameter("path", "number", "mean number of segments lost in a row"),
    "ack_loss": Parameter("path", "fraction", "probability that an acknowledgement is lost"),
    "jitter": Parameter("path", "time", "largest additional delay of a data segment"),
    "profile": Parameter("stack", "word", "TCP implementation"),
    "congestion_control": Parameter("stack", "word", "how the congestion window moves"),
    "delayed_ack": Parameter("stack", "flag", "whether acknowledgements are delayed"),
    "window_validation": Parameter("stack", "flag", "whether an unused window decays"),
    "hz": Parameter("stack", "count", "timer interrupts per second"),
    "rto_min": Parameter("stack", "time", "least addition of the retransmission timeout"),
    "mss": Parameter("stack", "size", "largest segment payload"),
    "variant": Parameter("stack", "word", "how several losses of one window are repaired"),
    "limited_transmit": Parameter("stack", "flag", "whether duplicate ACKs release new segments"),
    "initial_timeout": Parameter("stack", "time", "first retransmission timeout"),
    "backlog_bound": Parameter("stack", "word", "where the backlog of the chain is cut"),
    "connections": Parameter("heuristics", "count", "connections that packets take turns on"),
    "pieces": Parameter("heuristics", "count", "writes per packet"),
}


@dataclass(frozen=True)
class Scenario:
    """A point of a sweep, all values resolved and checked.

    Attributes
    ----------
    flow : Flow
        The application's packets.
    path, stack : Path, Stack
        Network and TCP.
    connections, pieces : int
        Connections that the packets take turns on, and writes per packet.
    """

    flow: Flow
    path: Path
    stack: Stack
    connections: int
    pieces: int


def read_value(name: str, written: object) -> Value:
    """Return a value of a parameter, its unit applied if it is written with one.

    Parameters
    ----------
    name : str
        The parameter.
    written : object
        Text with a unit, such as "20ms" and "2%", or what Python takes: seconds, bytes, bit/s, fractions, words.

    Raises
    ------
    ValueError
        If it is no such value; the message begins with the name.

    Examples
    --------
    >>> read_value("rtt", "100ms"), read_value("loss", "2%"), read_value("delayed_ack", True)
    (0.1, 0.02, True)
    """
    kind = PARAMETERS[name].kind
    if isinstance(written, str) and kind in _PARSERS:
        return _PARSERS[kind](written, name, allow_zero=True)
    if isinstance(written, str) == (kind == "word") and isinstance(written, bool) == (kind == "flag"):
        if kind in WHOLE and isinstance(written, float) and written.is_integer():
            return int(written)
        if isinstance(written, int | float | str):
            return float(written) if kind in SPANNED and kind not in WHOLE else written
    wanted = {"word": "a word in quotes", "flag": "true or false"}.get(kind, "a number, or text with a unit")
    raise ValueError(f"{name} must be {wanted}, got {written!r:.64}")


def require_allowed(name: str, value: Value) -> None:
    """Say in a ValueError if a value of a parameter is allowed with no values of the others.

    Examples
    --------
    >>> require_allowed("hz", 10)
    Traceback (most recent call last):
    ValueError: hz must lie between 100 and 1000 interrupts per second, got 10
    """
    roomy: dict[str, Any] = {"packet_size": 10_000, "interval": 1.0, "rtt": MAX_RTT, "loss": 0.0}
    if name == "bitrate":
        # With packets of about a second.
        Flow.from_bitrate(float(value), min(max(round(float(value) / 8), 1), MAX_PACKET_SIZE))
        return
    if PARAMETERS[name].table == "stack" and name != "profile":
        roomy["profile"] = profiles_with(name)[0]
    scenario_of(roomy | {name: value})


def profiles_with(name: str) -> list[str]:
    """Return the profiles of TCP that have a setting of that name.

    Examples
    --------
    >>> profiles_with("hz"), profiles_with("mss")
    (['linux'], ['linux', 'newreno_2008'])
    """
    return [profile for profile, stack in PROFILES.items() if name in {field.name for field in fields(stack)}]


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    """Return what is asked at one point.

    Parameters
    ----------
    values : mapping
        Parameters by name: two of `packet_size`, `interval` and `bitrate`, `rtt`, `loss`, and any others.

    Raises
    ------
    ValueError
        If the values do not go together.

    Examples
    --------
    >>> scenario_of({"packet_size": 160, "bitrate": 64_000.0, "rtt": 0.1, "loss": 0.02}).flow
    Flow(packet_size=160, interval=0.02)
    """
    given = {name: value for name, value in values.items() if PARAMETERS[name].table == "path"}
    flow, path = _flow(values), Path(**given)
    name = values.get("profile", default_profile_name())
    if name not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(map(repr, PROFILES))}, got {name!r}")
    stack = PROFILES[name]
    settings = {key: value for key, value in values.items() if PARAMETERS[key].table == "stack" and key != "profile"}
    for setting in settings:
        if name not in profiles_with(setting):
            raise ValueError(
                f"{setting} goes with profile {' or '.join(map(repr, profiles_with(setting)))}, not {name!r}"
            )
    scenario = Scenario(flow, path, replace(stack, **settings), values.get("connections", 1), values.get("pieces", 1))
    piece_of(share_of(flow, scenario.connections), scenario.pieces)
    return scenario


def _flow(values: Mapping[str, Any]) -> Flow:
    if "bitrate" not in values:
        return Flow(values["packet_size"], values["interval"])
    if "packet_size" in values:
        return Flow.from_bitrate(values["bitrate"], values["packet_size"])
    return Flow(round(values["bitrate"] * values["interval"] / 8), values["interval"])
