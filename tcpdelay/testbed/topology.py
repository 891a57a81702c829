"""The description of a run: programs on hosts, and the links between hosts and routers; also from a TOML file."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpdelay.declare import InvalidValueError, declarations, in_seconds, require_keys, whole_number
from tcpdelay.store import read_toml
from tcpdelay.testbed.emulated_path import DuplexLink, EmulatedPath
from tcpdelay.units import parse_time

CLIENT, SERVER = "client", "server"
MOST_LINKS = 32
"""Largest number of links: each has up to four segments, whose numbers are below 160 (`network`)."""
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
ALLOWED_NAME = "be a small letter, then up to 30 small letters, digits and hyphens"
PORT = whole_number("Port that tells that a program is ready.", 1, 65_535)
START = in_seconds("Time from when a program may start until it does.", 0, 3600)
_PROGRAM_KEYS = ("run", "host", "after", "port", "start")
_VARYING_KEYS = ("link_trace", "outage_every", "outage")
"""Keys of a link whose rate varies, as the options of `tcpdelay run`."""
_LINK_KEYS = (*(name for name in declarations(EmulatedPath) if name not in ("server_loss", "trace")), *_VARYING_KEYS)
_ONE_VALUE = ("rtt",)
"""Keys of a link that hold for both directions together."""
_OPTIONAL_KEYS = (
    *(key for key in _LINK_KEYS if key in _VARYING_KEYS or declarations(EmulatedPath)[key].default is None),
)
"""Keys of a link that may be absent in one direction."""


@dataclass(frozen=True)
class Program:
    """A program on a host.

    Attributes
    ----------
    name : str
        Name of the program in the output.
    command : list of str
        The program, then its arguments.
    host : str
        Host on which it runs.
    after : list of str
        Programs that must be ready before this one starts.
    port : int, optional
        The program is ready when its host listens on this TCP port, or receives on this UDP port; by default, a second
        after its start.
    start : float
        Time from the moment at which all programs of `after` are ready, or from the start of the run [s].
    """

    name: str
    command: list[str]
    host: str
    after: list[str]
    port: int | None = None
    start: float = 0.0


@dataclass(frozen=True)
class Topology:
    """Programs on hosts, and links between hosts and routers.

    Parameters
    ----------
    programs : sequence of Program
        The programs. Those for which no other waits are clients: the run is over when all of them have ended.
    links : sequence of DuplexLink
        The links. A host has one link, a router two or more.
    ecn : bool
        Whether the hosts negotiate ECN.

    Raises
    ------
    InvalidValueError
        If a name is unknown, a host has no link or several, a router has only one, or programs wait for each other.

    Examples
    --------
    >>> topology = two_hosts(["true"], ["cat"], EmulatedPath(rtt=0.1))
    >>> [program.name for program in topology.clients]
    ['client']
    """

    programs: Sequence[Program]
    links: Sequence[DuplexLink]
    ecn: bool = False

    def __post_init__(self) -> None:
        names = [program.name for program in self.programs]
        for program in self.programs:
            for other in program.after:
                if other not in names or other == program.name:
                    raise InvalidValueError(f"programs.{program.name}.after", other, "name another program")
        started: set[str] = set()
        while ready := [one for one in self.programs if one.name not in started and started.issuperset(one.after)]:
            started.update(program.name for program in ready)
        if waiting := [name for name in names if name not in started]:
            raise InvalidValueError(f"programs.{waiting[0]}.after", waiting, "not wait for each other in a circle")
        if not 1 <= len(self.links) <= MOST_LINKS:
            raise InvalidValueError("links", len(self.links), f"be 1 to {MOST_LINKS} tables [[links]]")
        ends = Counter(end for link in self.links for end in (link.first, link.second))
        hosts = {program.host for program in self.programs}
        for program in self.programs:
            if ends[program.host] != 1:
                allowed = f"be the end of one of the links, and is that of {ends[program.host]}"
                raise InvalidValueError(f"programs.{program.name}.host", program.host, allowed)
        for number, link in enumerate(self.links, start=1):
            for end in (link.first, link.second):
                if end not in hosts and ends[end] == 1:
                    allowed = "be hosts with programs, or routers with two or more links"
                    raise InvalidValueError(f"links {number}: between", end, allowed)

    @property
    def clients(self) -> list[Program]:
        """The programs for which no other program waits."""
        awaited = {name for program in self.programs for name in program.after}
        return [program for program in self.programs if program.name not in awaited]


def two_hosts(client: Sequence[str], server: Sequence[str], path: EmulatedPath) -> Topology:
    """Return a client and a server at the two ends of a path; the server starts a second before the client."""
    programs = [Program(CLIENT, list(client), CLIENT, [SERVER]), Program(SERVER, list(server), SERVER, [])]
    return Topology(programs, [DuplexLink(CLIENT, SERVER, path.forward, path.backward)], path.ecn)


def read_topology(file: Path) -> Topology:
    """Return the topology in a TOML file.

    Parameters
    ----------
    file : Path
        A TOML file. Each table `[programs.NAME]` has a program: `run`, its command line; `host`, by default its name;
        `after`, the programs that must be ready before; `port`, on which it is ready; `start`, a further time. Each
        table of `[[links]]` has the names of its ends, `between`, and settings of `EmulatedPath`; `link_trace` names a
        file, from the folder of this one, and `outage_every` and `outage` are times. A setting other than rtt may be a
        list of two values: from the first end to the second, and back. An empty text in such a list leaves the setting
        out in one direction.

    Returns
    -------
    Topology
        The programs and links.

    Raises
    ------
    ValueError
        If the file cannot be read, is no TOML, or has an invalid value; the message names the file, table and key.

    Examples
    --------
    >>> [program.name for program in read_topology(Path("examples/shared-link.toml")).clients]
    ['caller', 'laptop']
    """
    content = read_toml(file)
    try:
        for key in content:
            if key not in ("programs", "links"):
                raise ValueError(f"{key!r} is no table of a topology; there are [programs.NAME] and [[links]]")
        programs, links = content.get("programs"), content.get("links")
        if not isinstance(programs, dict) or not programs:
            raise ValueError("there must be at least one table [programs.NAME]")
        if not isinstance(links, list):
            raise ValueError("there must be at least one table [[links]]")
        joined = [_link(f"links {number}", table, file.parent) for number, table in enumerate(links, start=1)]
        ecn = any(link.forward.ecn or link.backward.ecn for link in joined)
        return Topology([_program(name, table) for name, table in programs.items()], joined, ecn)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _program(name: str, table: object) -> Program:
    place = f"programs.{name}"
    _name(place, name)
    content = _keys(place, table, _PROGRAM_KEYS)
    command = content.get("run")
    if isinstance(command, str):
        command = shlex.split(command)
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise InvalidValueError(f"{place}.run", content.get("run"), "be a command line, as text or as a list of words")
    host = _name(f"{place}.host", content.get("host", name))
    after = content.get("after", [])
    after = [after] if isinstance(after, str) else after
    if not isinstance(after, list) or not all(isinstance(other, str) for other in after):
        raise InvalidValueError(f"{place}.after", after, "be the name of a program, or a list of names")
    port = PORT.require(f"{place}.port", content["port"]) if "port" in content else None
    start = START.require(f"{place}.start", START.read(f"{place}.start", content.get("start", 0.0)))
    return Program(name, command, host, after, port, float(start))


def _link(place: str, table: object, folder: Path) -> DuplexLink:
    content = _keys(place, table, ("between", *_LINK_KEYS))
    between = content.pop("between", None)
    if not isinstance(between, list) or len(between) != 2 or between[0] == between[1]:
        raise InvalidValueError(f"{place}: between", between, "be a list of two different names")
    first, second = (_name(f"{place}: between", end) for end in between)
    if "rtt" not in content:
        raise ValueError(f"{place}: rtt is missing")
    ways: list[dict[str, Any]] = [{}, {}]
    for key, value in content.items():
        values = value if isinstance(value, list) and key not in _ONE_VALUE else [value, value]
        if len(values) != 2:
            raise InvalidValueError(f"{place}: {key}", value, "be one value, or a list of two, one for each direction")
        for way, one in zip(ways, values, strict=True):
            if one == "" and key in _OPTIONAL_KEYS and isinstance(value, list):
                continue
            way[key] = _setting(f"{place}: {key}", key, one, folder)
    try:
        forward, backward = (EmulatedPath(**_with_trace(way)) for way in ways)
    except InvalidValueError as error:
        raise InvalidValueError(f"{place}: {error.name}", error.value, error.allowed, error.hint) from None
    except ValueError as error:
        raise ValueError(f"{place}: link_trace: {error}") from None
    return DuplexLink(first, second, forward.forward, backward.forward, f"{first}-{second}")


def _setting(place: str, key: str, written: object, folder: Path) -> Any:
    """Return a setting of a link; the file of a trace is looked for from the folder of the topology."""
    if key not in _VARYING_KEYS:
        return declarations(EmulatedPath)[key].read(place, written)
    if not isinstance(written, str):
        raise InvalidValueError(place, written, "be the name of a file" if key == "link_trace" else "be a time")
    return folder / written if key == "link_trace" else parse_time(written, place)


def _with_trace(way: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of one direction of a link, with its trace in place of the file, the rate and the outages."""
    file, every, outage = (way.pop(key, None) for key in _VARYING_KEYS)
    if file is None and every is None and outage is None:
        return way
    # Imported here: it loads NumPy, which the help and the guests do without.
    from tcpdelay.sim.network.link_trace import varying_link

    trace = varying_link(way.get("rate"), file, every, outage)
    return way if trace is None else way | {"rate": None, "trace": trace}


def _keys(place: str, table: object, allowed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ValueError(f"{place} must be a table, got {table!r}")
    require_keys(table, allowed, "key", f"{place}: ")
    return dict(table)


def _name(place: str, name: object) -> str:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidValueError(place, name, ALLOWED_NAME)
    return name
