"""Simulate a relay that ends TCP on one side or on both: TURN over TCP, a WebSocket proxy, an RTMP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.declare import SEED, InvalidValueError, declarations, is_number
from tcpdelay.delays import UNKNOWN, DelayDistribution
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target, source_of
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import Linux, Stack
from tcpdelay.sim.batches import SUBBATCHES, Batches, read_share
from tcpdelay.sim.connections import WARM_UP, Connections
from tcpdelay.sim.engine import TCP, new_connection
from tcpdelay.sim.network.result import OfferedMessages
from tcpdelay.sim.network.stacks import Udp
from tcpdelay.sim.path import arrival_time, is_dropped
from tcpdelay.sim.records import Connection, WireRecord
from tcpdelay.sim.simulation import FEWEST_PACKETS, available_messages, requested_budget, source_refusals
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.statistics import Interval

# One leg of a relay: when the messages that enter it are read at its end, over TCP or as UDP datagrams.

CHUNK = 25_000
"""Messages that one call of the compiled code simulates."""
NOT_READ = -1
"""Value in place of a delay of a message that is lost or dropped."""


class Carried(NamedTuple):
    """What a leg makes of the messages that enter it."""

    # Time of each message from its entry to its read at the end of the leg [us], or `NOT_READ`
    delays: NDArray[np.int64]
    waited: NDArray[np.int64]  # Part of this time before the first transmission of the message's last byte [us]
    held: NDArray[np.int64]  # Bytes that the send buffer of a leg over TCP holds when it has taken the message


def over_tcp(
    times: NDArray[np.int64],
    sizes: NDArray[np.int64],
    path: Path,
    stack: Linux,
    seed: int,
    buffer: int | None = None,
    drops_when_full: bool = False,
) -> Carried:
    """Carry messages over a TCP connection, in their order."""
    source = Trace(times / SECOND, sizes)
    budget = requested_budget(times.size, source, stack)
    run = Connections(TCP, source, path, stack, seed, budget, warm_up=0, whole=True)
    run.state.send_buffer, run.state.drops_when_full = buffer or 0, int(drops_when_full)
    parts = [chunk.delays for chunk in run.chunks(times.size, CHUNK)]
    if budget.is_spent:
        raise budget.error(f"{run.state.packets_read} packets of a leg", "use a lower loss or fewer packets")
    delays, waited, held = np.concatenate(parts, axis=1)
    return Carried(np.maximum(delays, NOT_READ), waited, held)


def over_udp(times: NDArray[np.int64], sizes: NDArray[np.int64], path: Path, stack: Udp, seed: int) -> Carried:
    """Carry messages as datagrams that leave at once; a message is read when enough of its datagrams have arrived."""
    connection, wire = new_connection(Trace([0.0], [1]), path, Linux(), seed)
    required = -(-sizes // stack.largest_payload)
    sent = required + stack.parity
    message = np.repeat(np.arange(times.size), sent)
    starts = np.cumsum(sent) - sent
    rest = sizes[message] - (np.arange(message.size) - starts[message]) * stack.largest_payload
    # A parity datagram is as large as the largest datagram of its message.
    payloads = np.minimum(np.where(rest > 0, rest, sizes[message]), stack.largest_payload)
    delays = _datagram_delays(connection, wire.record, times[message], payloads)
    # Of the datagrams of a message, the last required one completes it.
    ordered = delays[np.lexsort((delays, message))]
    completed = ordered[starts + required - 1]
    read = np.where(np.isinf(completed), NOT_READ, completed).astype(np.int64)
    return Carried(read, np.zeros_like(times), np.zeros_like(times))


@kernel()
def _datagram_delays(
    c: Connection, wire: WireRecord, times: NDArray[np.int64], payloads: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the delays of datagrams [us], infinite if lost, that are sent at `times` [us] with `payloads` [bytes]."""
    delays = np.full(times.size, np.inf)
    for number in range(times.size):
        c.now = times[number]
        if not is_dropped(c, wire, payloads[number]):
            delays[number] = arrival_time(c, wire) - c.now
    return delays


# Simulate a relay that ends TCP on one side or on both: TURN over TCP, a WebSocket proxy, an RTMP server.

Leg: TypeAlias = tuple[Path, Stack]
"""A leg of a relay: its path, and `Stack.linux(...)` or `Udp()`."""

USUAL_PACKETS = 100_000
"""Messages offered to a relay by default."""
MOST_PACKETS = 1_000_000
LARGEST_BUFFER = 1_000_000_000
BATCHES = 32
"""Batches of messages whose differences give the confidence intervals."""
SLICES = 64
"""Equal parts of the time that show whether as many messages leave the relay as are written."""


@dataclass(frozen=True)
class RelayedMessages(OfferedMessages):
    """What becomes of the messages of one kind, or of all kinds, that are offered to a relay.

    The delays are those from the first write to the read at the end of the second leg.
    """

    lost: tuple[int, int]  # Messages lost on the first and on the second leg; 0 for a leg over TCP
    dropped: int  # Messages that the relay drops because its buffer is full
    # first, second: Parts of these delays: from the write to the read by the relay, and from there to the end.
    first: DelayDistribution | None
    second: DelayDistribution | None
    # Mean of the part of `second` in which messages wait at the relay for transmission [s].
    relay_delay: float = np.nan
    # Smallest buffer of the relay that would have had room for each of these messages at once [bytes]: none is
    # dropped, and none waits before the relay. None with a limited buffer, or with UDP on the second leg.
    buffer_needed: int | None = None

    @property
    def lost_share(self) -> float:
        """Share of the offered messages that is lost on a leg."""
        return sum(self.lost) / self.offered

    @property
    def dropped_share(self) -> float:
        """Share of the offered messages that the relay drops."""
        return self.dropped / self.offered

    @property
    def settled(self) -> bool:
        """False if the delays depend on the length of the simulation; those of each kind and leg then say so too."""
        return self.delays is None or self.delays.settled

    @property
    def sustainable(self) -> bool:
        """False if the backlog before or at the relay grows for ever; all delays are then infinite."""
        return self.delays is None or self.delays.sustainable


@dataclass(frozen=True)
class RelayResult(RelayedMessages):
    """The result of `simulate_relay`; see also `RelayedMessages`."""

    # The same by kind of message, such as "key frame", for sources with several kinds.
    by_kind: Mapping[str, RelayedMessages] = field(default_factory=dict)
    probability: float = 0.95  # Probability of the requested quantile
    seed: int = 0  # Seed of all random numbers


def simulate_relay(
    source: Source | str,
    first: Leg,
    second: Leg,
    *,
    buffer: int | None = None,
    packets: int | None = None,
    seed: int = 0,
    quantile: float = 0.95,
) -> RelayResult:
    """Simulate the messages of a source over two legs, with a relay between them that ends both transports.

    The relay forwards a message at the time at which it has read the message's last byte, without delay of its own.
    The second leg is a connection of its own: the times at which the first leg delivers are the times of its writes.

    With UDP on the first leg, the relay drops a message that does not fit into a full buffer. With TCP on the first
    leg, the relay reads no further message until its buffer has room for the last one that it has read. Messages then
    wait in the receive buffer of the first leg, which has no limit here; the receive window never closes.

    Parameters
    ----------
    source : Source or str
        A `Flow` or any other source, or the name of an application. The size of a message is the same on both legs.
    first, second : tuple of Path and Stack
        The legs: each a path with `Stack.linux(...)`, or with `Udp()`. A UDP leg has no reordering beside its jitter.
    buffer : int, optional
        Size of the relay's buffer towards a second leg over TCP [bytes], 1 to 1e9: what the relay has accepted and the
        receiver has not acknowledged. An empty buffer accepts a message of any size. No limit by default.
    packets : int, optional
        Number of messages offered, 1000 to 1e6; 100 000 by default, or the messages of a trace that ends. The 2000
        messages before them are not counted.
    seed : int
        Seed of all random numbers, 0 or more; the same seed gives the same result.
    quantile : float
        Probability of the quantile whose interval is requested, above 0 and below 1.

    Returns
    -------
    RelayResult
        Delays, losses and drops. Each offered message is counted once: as delivered, lost or dropped.

    Raises
    ------
    InvalidValueError
        If a value is out of its range, or a leg cannot carry the source; a ValueError.

    Examples
    --------
    A peer sends a call over UDP to a TURN server, from which the client receives it over TCP:

    >>> from tcpdelay.scenario.source import Flow
    >>> udp, tcp = (Path(rtt=0.040, loss=0.01), Udp()), (Path(rtt=0.080, loss=0.01), Stack.linux())
    >>> relayed = simulate_relay(Flow(174, 0.020), udp, tcp, buffer=2000, packets=20_000)
    >>> relayed.offered == relayed.delivered + sum(relayed.lost) + relayed.dropped
    True
    >>> round(relayed.delays.quantile(0.5), 3), round(relayed.lost_share, 3)
    (0.06, 0.01)
    """
    source = source_of(source, "source")
    for name, leg in (("first", first), ("second", second)):
        _check_leg(source, name, leg)
    unlimited = buffer is None and not isinstance(second[1], Udp)
    if buffer is not None:
        if not is_number(buffer) or not 1 <= buffer <= LARGEST_BUFFER or buffer != int(buffer):
            raise InvalidValueError("buffer", buffer, f"be a whole number from 1 to {LARGEST_BUFFER:g} bytes")
        if isinstance(second[1], Udp):
            raise InvalidValueError("buffer", buffer, "be left out with UDP on the second leg, where nothing waits")
    whole = is_number(packets) and FEWEST_PACKETS <= packets <= MOST_PACKETS and packets == int(packets)
    if packets is not None and not whole:
        raise InvalidValueError("packets", packets, f"be a whole number between {FEWEST_PACKETS} and {MOST_PACKETS}")
    declarations(Target)["quantile"].require("quantile", quantile)
    seed = SEED.require("seed", seed)
    available = available_messages(source, WARM_UP, packets)
    count = min(packets or USUAL_PACKETS, MOST_PACKETS if available is None else available)
    messages = next(source.blocks(seed, WARM_UP + count))
    written = np.rint(messages["time"] * SECOND).astype(np.int64)
    seeds = np.random.SeedSequence(seed).generate_state(2)
    arrival = _carry(written, messages["size"], first, int(seeds[0]))
    # The relay gets the messages in the order of their arrival.
    arrived = np.flatnonzero(arrival.delays != NOT_READ)
    reached = written + arrival.delays
    arrived = arrived[np.argsort(reached[arrived], kind="stable")]
    drops = isinstance(first[1], Udp)
    onward = _carry(reached[arrived], messages["size"][arrived], second, int(seeds[1]), buffer, drops)
    fates = _Fates.of(arrival, onward, arrived)
    counted = np.arange(messages.size) >= WARM_UP
    carried = _carried(written, fates)
    if carried.high < 1:
        return _unsustainable(fates.only(counted), first, second, quantile, seed)
    delivered = fates.only(counted & (fates.second != NOT_READ))
    batches = _batches(delivered.first + delivered.second)
    known = {"probability": quantile, "settled": batches.is_settled(quantile), "carried": carried}
    overall = _relayed(fates.only(counted), first, second, unlimited, known, batches)
    kinds = source.kinds if len(source.kinds) > 1 else ()
    of_kind = {kind: counted & (messages["kind"] == number) for number, kind in enumerate(kinds)}
    return RelayResult(
        **vars(overall),
        by_kind={
            kind: _relayed(fates.only(some), first, second, unlimited, known)
            for kind, some in of_kind.items()
            if some.any()
        },
        probability=quantile,
        seed=seed,
    )


def _check_leg(source: Source, name: str, leg: object) -> None:
    """Raise InvalidValueError if an argument is no leg, or the leg cannot carry the source."""
    path, stack = leg if isinstance(leg, tuple) and len(leg) == 2 else (None, None)
    if not isinstance(path, Path):
        raise InvalidValueError(name, leg, "be a pair of a Path and a Stack")
    if isinstance(stack, Linux):
        for refused in source_refusals(source, path, stack):
            raise refused
    elif isinstance(stack, Udp):
        for what in ("ack_loss", "reordering"):
            if getattr(path, what):
                raise InvalidValueError(f"{what} of the {name} leg", getattr(path, what), "be 0 with UDP")
    else:
        raise InvalidValueError(f"stack of the {name} leg", stack, "be one of Stack.linux(...), or Udp()")


def _carry(
    times: NDArray[np.int64],
    sizes: NDArray[np.int64],
    leg: Leg,
    seed: int,
    buffer: int | None = None,
    drops_when_full: bool = False,
) -> Carried:
    """Carry messages that enter a leg at times [us]."""
    path, stack = leg
    if not times.size:
        return Carried(*np.empty((3, 0), np.int64))
    if isinstance(stack, Udp):
        return over_udp(times, sizes, path, stack, seed)
    assert isinstance(stack, Linux)
    return over_tcp(times, sizes, path, stack, seed, buffer, drops_when_full)


class _Fates(NamedTuple):
    """What becomes of each message, in the order of writing: delays [us] or `NOT_READ`, and bytes in the relay."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    waited: NDArray[np.int64]
    held: NDArray[np.int64]

    @classmethod
    def of(cls, arrival: Carried, onward: Carried, arrived: NDArray[np.int64]) -> _Fates:
        """Return the fates, given the numbers of the messages that arrive at the relay."""
        second, waited, held = np.full_like(arrival.delays, NOT_READ), *np.zeros((2, arrival.delays.size), np.int64)
        second[arrived], waited[arrived], held[arrived] = onward
        return cls(arrival.delays, second, waited, held)

    def only(self, chosen: NDArray[np.bool_]) -> _Fates:
        """Return the fates of some messages."""
        return _Fates(*(values[chosen] for values in self))


def _carried(written: NDArray[np.int64], fates: _Fates) -> Interval:
    """Return the rate at which messages leave (read, lost or dropped) divided by the rate of writes."""
    delays = np.where(fates.second == NOT_READ, 0, fates.first + fates.second)
    ends = np.linspace(written[WARM_UP], written[-1], SLICES + 1)
    entered, left = (np.histogram(times, ends)[0] for times in (written, written + delays))
    return read_share((left / entered).tolist()) if entered.min() else UNKNOWN


def _counts(fates: _Fates, second: Leg) -> dict[str, Any]:
    """Return how many messages are offered, delivered, lost on each leg, and dropped by the relay."""
    lost, delivered = int((fates.first == NOT_READ).sum()), int((fates.second != NOT_READ).sum())
    gone = fates.first.size - lost - delivered
    over_udp = isinstance(second[1], Udp)
    ends = {"lost": (lost, gone), "dropped": 0} if over_udp else {"lost": (lost, 0), "dropped": gone}
    return {"offered": fates.first.size, "delivered": delivered, **ends}


def _relayed(
    fates: _Fates, first: Leg, second: Leg, unlimited: bool, known: dict[str, Any], total: Batches | None = None
) -> RelayedMessages:
    """Return the counts and the delays of messages, and the buffer that they need if the relay's has no limit.

    `total` are the delays over both legs, if they are in batches already.
    """
    counts = _counts(fates, second)
    delivered = fates.only(fates.second != NOT_READ)
    if not delivered.first.size:
        return RelayedMessages(**counts, delays=None, first=None, second=None)
    there, onward = first[0].forward_delay, second[0].forward_delay
    total = total or _batches(delivered.first + delivered.second)
    return RelayedMessages(
        **counts,
        delays=total.delays(DelayDistribution, there + onward, **known),
        first=_batches(delivered.first).delays(DelayDistribution, there, **known),
        second=_batches(delivered.second).delays(DelayDistribution, onward, **known),
        relay_delay=float(delivered.waited.mean() / SECOND),
        buffer_needed=int(delivered.held.max()) if unlimited else None,
    )


def _batches(delays: NDArray[np.int64]) -> Batches:
    """Return delays [us] in the order of time in batches; in a single one if they are too few."""
    batches = Batches()
    for part in np.array_split(delays, BATCHES if delays.size >= BATCHES * SUBBATCHES else 1):
        batches.add(part)
    return batches


def _unsustainable(fates: _Fates, first: Leg, second: Leg, quantile: float, seed: int) -> RelayResult:
    """Return the result for messages whose backlog grows for ever."""
    there, onward = first[0].forward_delay, second[0].forward_delay
    return RelayResult(
        **_counts(fates, second),
        delays=DelayDistribution.unsustainable(there + onward),
        first=DelayDistribution.unsustainable(there),
        second=DelayDistribution.unsustainable(onward),
        relay_delay=np.inf,
        probability=quantile,
        seed=seed,
    )
