"""One leg of a relay: when the messages that enter it are read at its end, over TCP or as UDP datagrams."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.engine import advance, new_connection
from tcpdelay.models.simulator.path import is_dropped
from tcpdelay.models.simulator.writes import WriteSchedule
from tcpdelay.models.tcp import SECOND
from tcpdelay.network.stacks import Udp
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.sources.message_trace import Trace
from tcpdelay.scenario.stack import Linux

CHUNK = 25_000
"""Messages that one call of the compiled code simulates."""
NOT_READ = -1
"""Value in place of a delay of a message that is lost or dropped."""


class Carried(NamedTuple):
    """What a leg makes of the messages that enter it.

    Attributes
    ----------
    delays : ndarray of int64
        Time of each message from its entry to its read at the end of the leg [us], or `NOT_READ`.
    waited : ndarray of int64
        Part of this time before the first transmission of the message's last byte [us].
    held : ndarray of int64
        Bytes that the send buffer of a leg over TCP holds when it has taken the message.
    """

    delays: NDArray[np.int64]
    waited: NDArray[np.int64]
    held: NDArray[np.int64]


def over_tcp(
    times: NDArray[np.int64],
    sizes: NDArray[np.int64],
    path: Path,
    stack: Linux,
    seed: int,
    buffer: int | None = None,
    drops_when_full: bool = False,
) -> Carried:
    """Carry messages over a TCP connection, in their order.

    Parameters
    ----------
    times : ndarray of int64
        Time at which each message enters the leg [us], ascending.
    sizes : ndarray of int64
        Size of each message [bytes].
    path, stack : Path, Linux
        The path and the TCP of the leg.
    seed : int
        Seed of all random numbers, 0 or more.
    buffer : int, optional
        Size of the send buffer [bytes], which holds what is written and not acknowledged; no limit by default.
    drops_when_full : bool
        Whether a message that finds no room is dropped. By default it waits for room, and later messages behind it.

    Examples
    --------
    >>> times = np.array([0, 20_000, 40_000, 60_000])
    >>> path = Path(rtt=0.050, loss=0.0)
    >>> over_tcp(times, np.full(4, 100), path, Linux(), seed=0, buffer=100, drops_when_full=True).delays.tolist()
    [25000, -1, -1, 25000]
    >>> over_tcp(times, np.full(4, 100), path, Linux(), seed=0, buffer=100).delays.tolist()
    [25000, 55001, 85002, 115003]
    """
    source = Trace(times / SECOND, sizes)
    connection, wire = new_connection(source, path, stack, seed)
    connection.send_buffer, connection.drops_when_full = buffer or 0, int(drops_when_full)
    schedule = WriteSchedule(source, seed)
    schedule.begin(connection)
    parts = []
    while (first := int(connection.packets_read)) < times.size:
        # Flow and kernel have no common clock.
        connection.tick_phase += int(wire.random.integers(connection.tick))
        advance(connection, wire, min(first + CHUNK, times.size), schedule)
        parts.append(wire.delays_of(first, int(connection.packets_read) - first))
    delays, waited, held = np.concatenate(parts, axis=1)
    return Carried(np.maximum(delays, NOT_READ), waited, held)


def over_udp(times: NDArray[np.int64], sizes: NDArray[np.int64], path: Path, stack: Udp, seed: int) -> Carried:
    """Carry messages as datagrams; the parameters are as for `over_tcp`.

    The datagrams of a message leave at once. The message is read when enough of them have arrived, and lost if too
    many of them are lost.

    Examples
    --------
    >>> times, sizes = np.array([0, 20_000]), np.array([100, 3000])
    >>> over_udp(times, sizes, Path(rtt=0.050, loss=0.0), Udp(), seed=0).delays.tolist()
    [25000, 25000]
    """
    random = np.random.default_rng(seed)
    connection, wire = new_connection(Trace([0.0], [1]), path, Linux(), seed)
    required = -(-sizes // stack.largest_payload)
    sent = required + stack.parity
    message = np.repeat(np.arange(times.size), sent)
    starts = np.cumsum(sent) - sent
    rest = sizes[message] - (np.arange(message.size) - starts[message]) * stack.largest_payload
    # A parity datagram is as large as the largest datagram of its message.
    payloads = np.minimum(np.where(rest > 0, rest, sizes[message]), stack.largest_payload)
    delays = np.full(message.size, connection.one_way_delay, np.float64)
    if connection.jitter:
        delays += random.integers(connection.jitter + 1, size=message.size)
    delays[_losses(connection, wire.record, times[message], payloads)] = np.inf
    # Of the datagrams of a message, the last required one completes it.
    ordered = delays[np.lexsort((delays, message))]
    completed = ordered[starts + required - 1]
    read = np.where(np.isinf(completed), NOT_READ, completed).astype(np.int64)
    return Carried(read, np.zeros_like(times), np.zeros_like(times))


@kernel()
def _losses(c: Any, wire: Any, times: Any, payloads: Any) -> Any:
    """Return which datagrams are lost, given the time at which each is sent [us] and its payload [bytes]."""
    lost = np.zeros(times.size, np.bool_)
    for number in range(times.size):
        c.now = times[number]
        lost[number] = is_dropped(c, wire, payloads[number])
    return lost
