"""What a proxy has done: a log of JSON lines, and the delays of all writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any, Literal

import numpy as np

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.tcp import SECOND
from tcpdelay.proxy.stream import Delivery

Direction = Literal["to target", "to client"]
DIRECTIONS: tuple[Direction, ...] = ("to target", "to client")
RESOLUTION = 100
"""Resolution of the delays that are counted [us]."""
SUMMARY_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""Quantiles of the delays in the summary."""


@dataclass
class Delays:
    """The delays of the writes of one direction, of all connections.

    Attributes
    ----------
    counts, lags : Counter
        Number of writes by delay, and by the time that the proxy was late [`RESOLUTION`].
    bytes : int
        Size of all writes [bytes].
    sizes : set of int
        Sizes of the writes, at most two of them.
    pauses : int
        How often the send buffer was full, so that the writer had to wait.
    intervals, time : int
        Number of the intervals between two writes of a connection, and their sum [us].
    """

    counts: Counter[int] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    sizes: set[int] = field(default_factory=set)
    pauses: int = 0
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
    """Counts the delays of a proxy, and writes its log.

    Parameters
    ----------
    log : file, optional
        Text file for the log.

    Examples
    --------
    >>> import sys
    >>> activity = Activity(sys.stdout)
    >>> activity.note("opened", 0.5, connection=1)
    {"event": "opened", "time": 0.5, "connection": 1}
    >>> activity.deliver(1, "to target", [Delivery(1000, 41_000, 200)], 41_300, 0.5)
    {"event": "delivered", "time": 0.5413, "connection": 1, "direction": "to target", "size": 200,
     "delay": 0.0403, "late": 0.0003}
    >>> activity.delays["to target"].writes
    1
    """

    def __init__(self, log: IO[str] | None = None) -> None:
        self._log = log
        self.delays: dict[Direction, Delays] = {direction: Delays() for direction in DIRECTIONS}
        self.connections = 0

    def note(self, event: str, time: float, **more: Any) -> None:
        """Write an event at a time since the start of the proxy [s] into the log."""
        if self._log is not None:
            print(json.dumps({"event": event, "time": round(time, 6), **more}), file=self._log)

    def deliver(
        self, connection: int, direction: Direction, deliveries: Iterable[Delivery], released: int, start: float
    ) -> None:
        """Add writes that were passed on.

        Parameters
        ----------
        connection : int
            Number of the connection.
        direction : {"to target", "to client"}
            The direction.
        deliveries : iterable of Delivery
            The writes.
        released : int
            Time at which they were passed on, since the start of the connection [us].
        start : float
            Time at which the connection started, since the start of the proxy [s].
        """
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
        return {"connections": self.connections, "directions": directions}
