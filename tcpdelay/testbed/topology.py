"""What the testbed emulates: a link, the path between two programs, and programs on the hosts of a topology."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tcpdelay.declare import (
    Choice,
    Flag,
    InvalidValueError,
    Quantity,
    choice,
    content,
    declarations,
    described,
    documented,
    flag,
    fraction,
    in_seconds,
    like,
    meaning,
    quantity,
    require_keys,
    whole_number,
)
from tcpdelay.scenario.path import BURST, LINK_DEFAULTS, PEAK_RATE, QUEUE_TARGET, RATE, LinkSettings
from tcpdelay.store import read_toml
from tcpdelay.units import parse_time

if TYPE_CHECKING:
    from tcpdelay.sim.network.link_trace import LinkTrace

# A link: delay, losses, and a rate with a queue before it, in one direction or in both.

QueueKind = Literal["fifo", "codel", "fq_codel", "red", "pie", "cake", "dualpi2", "policer"]


EMULATED = frozenset(
    {"loss_burst", "bad_time", "bad_loss", "jitter", "jitter_distribution", "jitter_correlation", "in_order"}
)
"""Settings of a link that the testbed applies (`queues`, `network`). It refuses others unless they have no effect."""


@dataclass(frozen=True)
class Schedule:
    """What a link carries over time; it repeats."""

    times: list[int]  # Times of the opportunities, or times from which on the rates hold [ns], ascending
    period: int  # Time after which the schedule repeats [ns]
    # Rates [bit/s]; if it is empty, each time is an opportunity to send 1500 bytes.
    rates: list[int] = field(default_factory=list)
    # Further delays after the link while each rate holds [ns]; empty without rates.
    delays: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Link(LinkSettings):
    """One direction of an emulated path: the settings of `EmulatedPath` and `Experiment`, which check them."""

    delay: float  # Constant delay [s], 0 to 274
    loss: float = 0.0
    rate: float | None = None
    queue: QueueKind = "fifo"
    # A fifo before a rate has one of the two limits.
    queue_packets: int | None = None
    queue_bytes: int | None = None
    queue_target: float | None = None
    ecn: bool = False
    l4s: bool = False
    burst: int | None = None
    peak_rate: float | None = None
    reordering: float = 0.0
    trace: Schedule | None = None

    @classmethod
    def of(cls, settings: object, **changed: Any) -> Link:
        """Return the link with the settings of an `EmulatedPath` or an `Experiment` that it has too, some changed."""
        shared = {each.name: getattr(settings, each.name) for each in fields(cls) if hasattr(settings, each.name)}
        return cls(**(shared | changed))


@dataclass(frozen=True)
class DuplexLink:
    """A link in both directions, between two hosts or routers."""

    # first, second: Names of its ends.
    first: str
    second: str
    # forward, backward: The way from the first to the second end, and the way back.
    forward: Link
    backward: Link
    name: str = ""  # Name in the counts of packets; empty for the only link of a network


# The path between two programs in a guest, alike in both directions unless told otherwise.


def _checked_trace(value: object) -> LinkTrace | None:
    if value is None:
        return None
    # Imported here: it loads NumPy, which the help and most guests do without.
    from tcpdelay.sim.network.link_trace import LinkTrace

    if not isinstance(value, LinkTrace):
        raise InvalidValueError("trace", value, "be a LinkTrace")
    return value


PATH_RTT: Quantity = in_seconds(
    "Round-trip time.",
    1e-6,
    10.0,
    details="Each direction has half of this delay, and the queues add to it.",
    example="100ms",
    hint="the round-trip time is given in seconds: 100 ms is 0.100",
)
BOTTLENECK_RATE = replace(RATE, meaning="Rate of a bottleneck.", low=1e4, high=1e9, example="5Mbit/s")
QUEUE: Choice = choice(
    "Queue discipline at the bottleneck: fifo, or a discipline that keeps the queue short.",
    details="A policer has no queue: it drops what exceeds its token bucket of `burst` bytes.",
)
QUEUE_PACKETS: Quantity = quantity(
    "Limit of this queue in packets.",
    1,
    100_000,
    "packets",
    "count",
    details="Without it, a fifo and red have 1000, and the other queues have the kernel's limit. red counts packets of "
    "1514 B. cake has a limit of its own.",
    example="100",
    default_words="1000 for a fifo and red, or the kernel's",
)
KERNEL_QUEUE_TARGET = replace(
    QUEUE_TARGET, meaning="Queueing delay at which the queue aims; not for a fifo.", low=0.001, high=1.0
)
NEGOTIATE_ECN: Flag = flag("Negotiate ECN: the queue marks packets instead of dropping them. Not with fifo.")
TOKEN_BUCKET = replace(
    BURST,
    details="One packet without it (net/sched/sch_tbf.c). Not with cake, which has no token bucket.",
    low=2000,
    default_words="one packet",
)
BUCKET_PEAK_RATE = replace(
    PEAK_RATE, details=f"{PEAK_RATE.details} Its own bucket holds one packet.", low=1e4, high=1e10
)
_loss = partial(
    fraction,
    high=0.5,
    high_excluded=False,
    unit="fraction of packets",
    allowed="be a fraction from 0 to 0.5",
)


def refuse_settings(settings: LinkSettings) -> None:
    """Raise InvalidValueError for a setting of a link that the testbed does not apply."""
    for name, default in LINK_DEFAULTS.items():
        if name not in EMULATED and (value := getattr(settings, name)) != default:
            raise InvalidValueError(name, value, f"be {default} in the testbed")


@described
class EmulatedPath(LinkSettings):
    """The path between a client and a server in a guest. All values hold for each direction.

    Raises
    ------
    InvalidValueError
        If a value is not a number, is out of its range or contradicts another value; a ValueError.

    Examples
    --------
    >>> path = EmulatedPath(rtt=0.1, loss=0.01, server_loss=0)
    >>> path.forward.loss, path.backward.loss, path.backward.delay
    (0.01, 0.0, 0.05)
    """

    rtt: float = like(PATH_RTT)
    loss: float = _loss("Probability that a packet is lost, in each direction.", example="1%", default=0.0)
    server_loss: float | None = _loss(
        "Probability that a packet from the server is lost.",
        details="`loss` without it.",
        example="0%",
        default_words="that of --loss",
        default=None,
    )
    _: KW_ONLY
    reordering: float = _loss(
        "Share of the packets that pass without the delay of the path, and overtake the packets in flight.",
        example="1%",
        default=0.0,
    )
    rate: float | None = like(BOTTLENECK_RATE, default=None)
    burst: int | None = like(TOKEN_BUCKET, default=None)
    peak_rate: float | None = like(BUCKET_PEAK_RATE, default=None)
    trace: Any = content(
        "What the bottleneck carries over time, in place of a rate.",
        _checked_trace,
        "LinkTrace",
        details="It begins with the run and repeats, and its queue is a fifo. "
        "`tcpdelay.sim.network.link_trace.read_link_trace` reads one.",
        default=None,
    )
    queue: QueueKind = like(QUEUE, default="fifo")
    queue_packets: int | None = like(QUEUE_PACKETS, default=None)
    queue_target: float | None = like(KERNEL_QUEUE_TARGET, default=None)
    ecn: bool = like(NEGOTIATE_ECN, default=False)

    def __post_init__(self) -> None:
        refuse_settings(self)
        for loss in (self.loss, self.forward.loss, self.backward.loss):
            self._check_losses(loss)
        self._check_jitter(self.reordering)
        if self.jitter_correlation > 0 and self.reordering > 0:
            raise InvalidValueError("reordering", self.reordering, "be 0 with correlated jitter")
        if self.trace is not None:
            if self.rate is not None:
                raise InvalidValueError("rate", self.rate, "be absent with a trace of the link")
            if self.queue != "fifo":
                raise InvalidValueError("queue", self.queue, "be 'fifo' with a trace of the link or outages")
        elif self.rate is None and (self.queue != "fifo" or self.queue_packets is not None):
            name = "queue" if self.queue != "fifo" else "queue_packets"
            raise InvalidValueError(name, getattr(self, name), "go with a rate")
        for name in ("burst", "peak_rate"):
            if getattr(self, name) is not None:
                if self.trace is not None:
                    raise InvalidValueError(name, getattr(self, name), "be absent with a trace of the link or outages")
                if self.rate is None:
                    raise InvalidValueError(name, getattr(self, name), "go with a rate")
        if self.rate is not None:
            check_buckets(self.queue, self.rate, self.burst, self.peak_rate)
        for name in ("queue_target", "ecn"):
            if self.queue not in MANAGED and getattr(self, name):
                raise InvalidValueError(name, getattr(self, name), f"go with a queue of {', '.join(MANAGED)}")
        without_limit = {"cake": "cake, which limits its memory", "policer": "a policer, which has no queue"}
        if self.queue in without_limit and self.queue_packets is not None:
            allowed = f"be absent with {without_limit[self.queue]}"
            raise InvalidValueError("queue_packets", self.queue_packets, allowed)

    @property
    def forward(self) -> Link:
        """The way from the client to the server."""
        return self._link(self.loss)

    @property
    def backward(self) -> Link:
        """The way from the server to the client."""
        return self._link(self.loss if self.server_loss is None else self.server_loss)

    def _link(self, loss: float) -> Link:
        limit = DEVICE_LIMIT if self.queue_packets is None and self.queue in ("fifo", "red") else self.queue_packets
        trace = None if self.trace is None else _schedule(self.trace)
        return Link.of(self, delay=self.rtt / 2, loss=loss, queue_packets=limit, trace=trace)


def check_buckets(queue: QueueKind, rate: float, burst: int | None, peak_rate: float | None) -> None:
    """Raise InvalidValueError unless the token buckets of a bottleneck [bytes, bit/s] suit its queue and its rate."""
    if burst is not None and queue == "cake":
        raise InvalidValueError("burst", burst, "be absent with cake, which has no token bucket")
    if burst is not None and 8 * burst / rate > LONGEST_BURST:
        raise InvalidValueError("burst", burst, f"last at most {LONGEST_BURST} s at the rate")
    if burst is None and queue == "policer":
        raise InvalidValueError("burst", burst, "go with a policer")
    if peak_rate is None:
        return
    if burst is None or queue == "policer":
        raise InvalidValueError("peak_rate", peak_rate, "go with a burst, and not with a policer")
    if peak_rate <= rate:
        raise InvalidValueError("peak_rate", peak_rate, f"be above the rate, {rate:g} bit/s")


def _schedule(trace: LinkTrace) -> Schedule:
    return Schedule(trace.times.tolist(), trace.period, trace.rates.tolist(), trace.delays.tolist())


DEVICE_LIMIT = 1000
"""Length of the queue of a device in Linux [packets]."""
LONGEST_BURST = 274
"""Longest time that a token bucket lasts in the kernel [s]: 32 bits in units of 64 ns."""
MANAGED = tuple(kind for kind in get_args(QueueKind) if kind not in ("fifo", "policer"))
"""Queues that the kernel keeps short."""


# Programs on hosts, and the links between hosts and routers; also from a TOML file.

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


@documented()
class Program:
    """A program on a host."""

    name: str = meaning("Name of the program in the output.")
    command: list[str] = meaning("The program, then its arguments.")
    host: str = meaning("Host on which it runs.")
    after: list[str] = meaning("Programs that must be ready before this one starts.")
    port: int | None = meaning(
        "The program is ready when its host listens on this TCP port, or receives on this UDP port; by default, a "
        "second after its start.",
        default=None,
    )
    start: float = meaning(
        "Time from the moment at which all programs of `after` are ready, or from the start of the run [s].",
        default=0.0,
    )


@documented()
class Topology:
    """Programs on hosts, and links between hosts and routers.

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

    programs: Sequence[Program] = meaning(
        "The programs. Those for which no other waits are clients: the run is over when all of them have ended."
    )
    links: Sequence[DuplexLink] = meaning("The links. A host has one link, a router two or more.")
    ecn: bool = meaning("Whether the hosts negotiate ECN.", default=False)

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
