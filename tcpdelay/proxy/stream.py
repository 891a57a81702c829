"""One direction of a connection, which holds bytes until the simulated TCP makes readable; the log of writes."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.engine import MOST_WRITES, LiveConnection
from tcpdelay.sim.path import is_reordering
from tcpdelay.sim.tcp.constants import INITIAL_WINDOW, NEVER, SECOND

LARGEST_SEND_BUFFER = 4 << 20
"""Largest send buffer that the kernel gives without SO_SNDBUF [bytes] (sysctl net.ipv4.tcp_wmem)."""
BUFFERED_WINDOWS = {"bbr": 3}
"""Congestion windows that the send buffer holds (`sndbuf_expand` of the congestion control), 2 by default."""


class Delivery(NamedTuple):
    """A write whose last byte is delivered."""

    # written, due: Times of the write, and at which its last byte becomes readable [us].
    written: int
    due: int
    size: int  # Size [bytes]


class Stream:
    """The bytes that one end has written and the other end cannot read yet; all times are us since its start.

    By default the send buffer grows with the congestion window, to `LARGEST_SEND_BUFFER` (`tcp_sndbuf_expand`). Only
    payload counts, not the kernel's memory for each segment. `notsent_lowat` is TCP_NOTSENT_LOWAT.
    """

    def __init__(
        self, path: Path, stack: Linux, seed: int, send_buffer: int | None = None, notsent_lowat: int | None = None
    ) -> None:
        self._connection = LiveConnection(path, stack, seed)
        self._mss, self._windows = stack.mss, BUFFERED_WINDOWS.get(stack.congestion_control, 2)
        self._fixed_buffer, self._lowat = send_buffer, notsent_lowat
        self._deferred = False
        self._held = bytearray()
        self._delivered = self._written = self._largest_window = 0
        self._readable: deque[tuple[int, int]] = deque()
        self._writes: deque[tuple[int, int, int]] = deque()
        self._last_due = self._next_event = 0
        self._full = False
        self._ended_at: int | None = None
        self._take_path(path)
        self._advance(0)

    def write(self, data: bytes | bytearray | memoryview, now: int) -> None:
        """Write at least one byte. The caller heeds `free`."""
        self._held += data
        self._written += len(data)
        self._writes.append((now, self._written, len(data)))
        self._advance(now, len(data))

    def end(self, now: int) -> None:
        """Note that nothing more is written. The end travels in order behind the data; it is not lost."""
        self._ended_at = now

    def take(self, now: int) -> tuple[bytes, list[Delivery]]:
        """Return the bytes that have become readable, and the writes that are complete with them."""
        self._advance(now)
        deliveries = []
        position = self._delivered
        while self._readable and self._readable[0][0] <= now:
            self._last_due, position = self._readable.popleft()
            while self._writes and self._writes[0][1] <= position:
                written, _, size = self._writes.popleft()
                deliveries.append(Delivery(written, self._last_due, size))
        count = position - self._delivered
        data = bytes(self._held[:count])
        del self._held[:count]
        self._delivered = position
        return data, deliveries

    def change_path(self, path: Path, now: int) -> None:
        """Continue on another path; what is in the network arrives as it would have."""
        self._advance(now)
        self._connection.change_path(path)
        self._take_path(path)
        # The time of the next event may have changed.
        self._next_event = now
        self._advance(now)

    def is_finished(self, now: int) -> bool:
        """Return whether the end of the stream has arrived behind all data."""
        arrival = self._end_arrival
        return arrival is not None and arrival <= now

    @property
    def held(self) -> int:
        """Bytes written that the other end cannot read yet."""
        return len(self._held)

    @property
    def free(self) -> int:
        """Bytes that may be written now."""
        return 0 if self._full else min(self._free, self._unsent_free)

    @property
    def wake(self) -> int | None:
        """Time at which `take` must be called [us]; None if nothing will happen without a write.

        An event at the sender makes no byte readable earlier than the delay of the path, so it may be late by this
        time, unless it frees space in the send buffer.
        """
        times = [self._next_event + (0 if self._full else self._lookahead)] if self._next_event < NEVER else []
        if self._readable:
            times.append(self._readable[0][0])
        if (arrival := self._end_arrival) is not None:
            times.append(arrival)
        return min(times, default=None)

    @property
    def _buffer(self) -> int:
        """Size of the send buffer [bytes]."""
        if self._fixed_buffer is not None:
            return self._fixed_buffer
        expanded = self._windows * max(INITIAL_WINDOW, self._largest_window) * self._mss
        return min(expanded, LARGEST_SEND_BUFFER)

    @property
    def _end_arrival(self) -> int | None:
        """Time at which the end of the stream arrives [us]; None while data is held, or before the end."""
        if self._ended_at is None or self._held:
            return None
        return max(self._last_due, self._ended_at + self._one_way_delay)

    def _take_path(self, path: Path) -> None:
        self._one_way_delay = round(path.forward_delay * SECOND)
        self._deferred = self._deferred or is_reordering(path)
        self._lookahead = 0 if self._deferred else self._one_way_delay

    def _advance(self, now: int, size: int = 0) -> None:
        """Advance the simulated connection, and write a number of bytes."""
        if not size and now < self._next_event:
            return
        found = self._connection.advance(now, size)
        for time, position in found.readable:
            # On a path that has become shorter, nothing overtakes what was sent before.
            earliest = self._readable[-1][0] if self._readable else self._last_due
            self._readable.append((max(time, earliest), position))
        self._next_event = found.next_event
        self._largest_window = max(self._largest_window, found.window)
        self._note_space(found.unacknowledged, found.unsent)

    def _note_space(self, unacknowledged: int, unsent: int) -> None:
        """Note how many bytes the send buffer takes.

        As in the kernel, a buffer that has been full takes bytes again when a third of it is free
        (`sk_stream_is_writeable`), and with TCP_NOTSENT_LOWAT when less than half of that is unsent
        (`__tcp_stream_memory_free`).
        """
        buffer, unsent_free = self._buffer, NEVER if self._lowat is None else self._lowat - unsent
        free = buffer - unacknowledged if len(self._writes) < MOST_WRITES - 1 else 0
        self._free, self._unsent_free = free, unsent_free
        if self._full:
            self._full = 3 * free < buffer or (self._lowat is not None and 2 * unsent_free <= self._lowat)
        else:
            self._full = min(free, unsent_free) <= 0


# What a proxy has done: a log of JSON lines, and the delays of all writes.

Direction = Literal["to target", "to client"]
DIRECTIONS: tuple[Direction, ...] = ("to target", "to client")
RESOLUTION = 100
"""Resolution of the delays that are counted [us]."""
SUMMARY_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""Quantiles of the delays in the summary."""


@dataclass
class Delays:
    """The delays of the writes of one direction, of all connections."""

    # counts, lags: Number of writes by delay, and by the time that the proxy was late [`RESOLUTION`].
    counts: Counter[int] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)
    bytes: int = 0  # Size of all writes [bytes]
    sizes: set[int] = field(default_factory=set)  # Sizes of the writes, at most two of them
    pauses: int = 0  # How often the send buffer was full, so that the writer had to wait
    # intervals, time: Number of the intervals between two writes of a connection, and their sum [us].
    intervals: int = 0
    time: int = 0
    _last_writes: dict[int, int] = field(default_factory=dict)

    def add(self, connection: int, delivery: Delivery, released: int) -> None:
        """Add a write of a connection that the proxy has passed on at a time [us]."""
        self.counts[round((released - delivery.written) / RESOLUTION)] += 1
        self.lags[round((released - delivery.due) / RESOLUTION)] += 1
        self.bytes += delivery.size
        if len(self.sizes) < 2:
            self.sizes.add(delivery.size)
        if (last := self._last_writes.get(connection)) is not None:
            self.intervals += 1
            self.time += delivery.written - last
        self._last_writes[connection] = delivery.written

    def forget(self, connection: int) -> None:
        """Forget a connection that has ended; its delays remain."""
        self._last_writes.pop(connection, None)

    @property
    def mean_interval(self) -> float | None:
        """Mean time between two writes of a connection [s]; None without two writes."""
        return self.time / self.intervals / SECOND if self.intervals else None

    @property
    def writes(self) -> int:
        """Number of writes."""
        return self.counts.total()

    def distribution(self, one_way_delay: float) -> DelayDistribution:
        """Return the delays of at least one write, on a path of a one-way delay [s]."""
        return _distribution(self.counts, one_way_delay)

    @property
    def lateness(self) -> DelayDistribution:
        """The time by which the proxy itself was late, for at least one write."""
        return _distribution(self.lags, 0.0)

    def record(self, one_way_delay: float) -> dict[str, Any]:
        """Return the summary in seconds and bytes, on a path of a one-way delay [s]."""
        found: dict[str, Any] = {"writes": self.writes, "bytes": self.bytes, "pauses": self.pauses}
        if not self.counts:
            return found
        delays, lags = self.distribution(one_way_delay), self.lateness
        quantiles = {f"{probability:g}": round(delays.quantile(probability), 4) for probability in SUMMARY_QUANTILES}
        late = {"mean": round(lags.mean, 6), "0.95": round(lags.quantile(0.95), 4), "largest": float(lags.values[-1])}
        return found | {"mean": round(delays.mean, 6), "quantiles": quantiles, "late": late}


def _distribution(counts: Counter[int], one_way_delay: float) -> DelayDistribution:
    values = np.array(sorted(counts))
    weights = np.array([counts[value] for value in values]) / counts.total()
    return DelayDistribution(
        values * (RESOLUTION / SECOND), weights, one_way_delay, method="proxy", packets=counts.total()
    )


class Activity:
    """Counts the delays of a proxy, and writes its log; `on_fault` gets the error if that ends."""

    def __init__(self, log: IO[str] | None = None, on_fault: Callable[[OSError], None] | None = None) -> None:
        self._log, self._on_fault = log, on_fault
        self.delays: dict[Direction, Delays] = {direction: Delays() for direction in DIRECTIONS}
        self.connections = self.refused = 0

    def note(self, event: str, time: float, **more: Any) -> None:
        """Write an event at a time since the start of the proxy [s] into the log."""
        if self._log is None:
            return
        try:
            print(json.dumps({"event": event, "time": round(time, 6), **more}), file=self._log)
        except OSError as error:
            # Closing it writes the rest of the line, or fails once more.
            with suppress(OSError):
                self._log.close()
            self._log = None
            if self._on_fault is not None:
                self._on_fault(error)

    def deliver(
        self, connection: int, direction: Direction, deliveries: Iterable[Delivery], released: int, start: float
    ) -> None:
        """Add writes that were passed on."""
        for delivery in deliveries:
            self.delays[direction].add(connection, delivery, released)
            if self._log is not None:
                self.note(
                    "delivered",
                    start + released / SECOND,
                    connection=connection,
                    direction=direction,
                    size=delivery.size,
                    delay=(released - delivery.written) / SECOND,
                    late=(released - delivery.due) / SECOND,
                )

    def summary(self, one_way_delays: dict[Direction, float]) -> dict[str, Any]:
        """Return the summary, given the one-way delay of each direction [s]."""
        directions = {name: delays.record(one_way_delays[name]) for name, delays in self.delays.items()}
        return {"connections": self.connections, "refused": self.refused, "directions": directions}
