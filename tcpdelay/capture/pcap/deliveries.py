"""When each message was written, sent and read, and the delays in between."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.clocks import ClockFit
from tcpdelay.capture.pcap.condensed import Delays, Table
from tcpdelay.capture.pcap.connection_analysis import DelayKind
from tcpdelay.capture.pcap.coverage import NEVER, Coverage
from tcpdelay.capture.pcap.round_trips import Side
from tcpdelay.capture.pcap.source import MessageFinder, Schedule, ScheduleFinder
from tcpdelay.capture.pcap.stretches import shift_between
from tcpdelay.capture.pcap.trace import Integers, Trace

NANOSECONDS = 1e9


class MeasuredDelays(NamedTuple):
    """The delays of the messages.

    Attributes
    ----------
    kind : str or None
        Between which moments; None where there are none.
    how : str
        How they were measured, in words.
    delays : Delays
        The delays.
    unfinished : int
        Messages whose delivery lies beyond the capture.
    """

    kind: DelayKind | None
    how: str
    delays: Delays
    unfinished: int


class Deliveries:
    """The messages of a connection, stretch by stretch.

    Parameters
    ----------
    sides : tuple of Side
        Where the captures were made; the first is the one that tells when messages were sent.
    messages : MessageFinder
        What finds the messages.
    """

    def __init__(self, sides: tuple[Side, ...], messages: MessageFinder) -> None:
        self._sides, self._messages = sides, messages
        self._transmissions = ScheduleFinder()
        self._times = Table()

    def take(
        self, framed: Integers, source: Trace, sent: Coverage | None, receiver: Trace | None, arrived: Coverage | None
    ) -> None:
        """Find the messages of a stretch.

        Parameters
        ----------
        framed : ndarray of int64
            Where messages end by their headers, as far as not given before.
        source : Trace
            The stretch in the first capture.
        sent : Coverage or None
            The pieces of it.
        receiver : Trace or None
            The stretch at the receiver, if there is such a capture.
        arrived : Coverage or None
            The pieces of that.
        """
        if sent is None:
            return
        complete = None if arrived is None else arrived.complete
        for ends in self._messages.ends(source.data, source.span, framed):
            transmitted = sent.time[sent.holding(ends)]
            if receiver is None:
                read = np.append(source.acks.time, NEVER)[source.acks.first_covering(ends)]
            elif arrived is None or complete is None:
                read = np.full(ends.size, NEVER)
            else:
                shifted = ends - shift_between(receiver.base, source.base)
                read = np.where(arrived.within(shifted), complete[arrived.holding(shifted)], NEVER)
            self._transmissions.add(transmitted)
            self._times.add(transmitted, read)

    def schedule(self, one_way: float) -> Schedule | None:
        """Return when the messages were written, by the sender's clock, if they follow a schedule.

        Parameters
        ----------
        one_way : float
            Smallest delay from sender to receiver [s].
        """
        if self._transmissions.span[1] >= NEVER // 2:
            return None
        return self._transmissions.schedule(self._way_there(one_way))

    def _way_there(self, one_way: float) -> int:
        """How much earlier the messages were sent than the first capture shows them [ns]."""
        return 0 if "sender" in self._sides else _nanoseconds(one_way)

    def mean_interval(self) -> float:
        """Return the mean time from one message to the next [s]; nan where that is not known."""
        (first, last), count = self._transmissions.span, self._transmissions.count
        return float(last - first) / (count - 1) / NANOSECONDS if count > 1 and last > first else math.nan

    def delays(self, schedule: Schedule | None, one_way: float, clocks: ClockFit | None) -> MeasuredDelays:
        """Return the delays.

        Parameters
        ----------
        schedule : Schedule or None
            What `schedule` returned.
        one_way : float
            Smallest delay from sender to receiver [s].
        clocks : ClockFit or None
            How the clocks of two captures differ.
        """
        earlier = self._way_there(one_way)
        origin = self._transmissions.first - earlier
        known = schedule is not None or "sender" in self._sides
        delays, unfinished, number, any_finished = Delays(), 0, 0, False
        for transmitted, read in self._times.blocks():
            finished = (read != NEVER) & (transmitted < NEVER // 2)
            unfinished += int(np.count_nonzero(read == NEVER))
            any_finished |= bool(finished.any())
            if known:
                came = self._by_sender(read[finished], one_way, clocks)
                if schedule is None:
                    since = (came - transmitted[finished]).astype(np.float64)
                else:
                    written = schedule.first - origin + schedule.writes(number, transmitted.size)
                    since = (came - origin) - written[finished]
                delays.add(np.maximum(since / NANOSECONDS, 0.0))
            number += transmitted.size
        if not any_finished:
            return MeasuredDelays(None, "no message was delivered within the capture", delays, unfinished)
        if not known:
            how = "a capture at the receiver does not show when messages of no fixed interval were sent"
            return MeasuredDelays(None, how, delays, unfinished)
        ends_at = {
            ("sender", "receiver"): "to the arrival of its last byte and all before it, by both captures",
            ("sender",): "to its acknowledgement at the sender, less half the smallest round-trip time",
            ("receiver",): "to the arrival of its last byte and all before it; half the smallest round-trip time is "
            "assumed for the way there",
        }[self._sides]
        if schedule is None:
            how = f"from the first transmission of a message's last byte {ends_at}"
            return MeasuredDelays("transmission to read", how, delays, unfinished)
        how = f"from a message's write, as the fixed interval places it, {ends_at}"
        return MeasuredDelays("write to read", how, delays, unfinished)

    def close(self) -> None:
        """Remove what is on disk."""
        self._times.close()

    def _by_sender(self, read: NDArray[np.int64], one_way: float, clocks: ClockFit | None) -> Integers:
        """Return when messages were read, by the sender's clock, from what their captures show [ns]."""
        if "receiver" not in self._sides:
            return read - _nanoseconds(one_way)
        return read if clocks is None else clocks.to_sender(read)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS) if math.isfinite(seconds) else 0
