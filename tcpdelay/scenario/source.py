"""The interface of a source, a sequence of messages, each with its time, size and kind; and the constant-rate flow.

NumPy is imported where it is used, because the command line reads the sources' declarations for its help.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from tcpdelay.declare import (
    SEED,
    InvalidValueError,
    Quantity,
    declarations,
    described,
    in_bytes,
    in_seconds,
    is_number,
    like,
    number,
    whole_number,
)
from tcpdelay.drawing import drawn

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

Blocks: TypeAlias = "Iterator[NDArray[np.void]]"

MESSAGE = [("time", "f8"), ("size", "i8"), ("kind", "u1")]
"""Type of a message: time of its write [s], size [bytes], and the number of its kind in `Source.kinds`."""
BLOCK = 4096
"""Messages of a block by default."""
PEAK_TIME = 1.0
"""Time over which the peak bitrate is measured [s]."""
PEAK_DURATION, PEAK_MESSAGES = 600.0, 1_000_000
"""Duration [s] and number of the messages in which the peak bitrate is searched, whichever ends first."""
SHOWN_DURATION = 10.0
"""Duration that a chart shows by default [s]."""
TYPICAL_WRITE_JITTER = 0.001
"""Largest lateness of the writes of a program that waits in `epoll_wait`, whose timeout is in milliseconds [s]."""
WRITE_JITTER: Quantity = in_seconds(
    "Largest lateness of a write: each write is late by a random time up to this.",
    0.0,
    1.0,
    details="See `Source.write_jitter`.",
    example="1ms",
    hint="the time is given in seconds",
    no_effect=0.0,
)
"""Declaration of `Source.write_jitter`."""
_DURATION: Quantity = in_seconds("Time since the start of a source.", 0, 1e9, allowed="lie between 0 and 1e9 s")
_BLOCK_SIZE: Quantity = whole_number(
    "Messages of a block.", 1, sys.float_info.max, allowed="be a whole number, 1 or more"
)
LATENESS = 1 << 20
"""Number of the random stream from which lateness is drawn; a source draws from the streams with smaller numbers."""


class Source(ABC):
    """A source of messages: what an application writes to the socket, and when.

    The delay of a message is the time from its write to the in-order read of its last byte. A source describes a random
    process; equal seeds give equal messages, wherever they are used. A longer sequence begins with the messages of a
    shorter sequence of the same seed.
    """

    __slots__ = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of messages; the field `kind` of a message is the number of its kind here."""
        return ("message",)

    @property
    def write_jitter(self) -> float:
        """Largest lateness of a write [s]: of each it is uniform from 0 to this; writes keep their order.

        Timers of applications fire late: by up to a millisecond if a program waits in `epoll_wait`, whose timeout is in
        milliseconds, which is the default of sources with parameters. A delay counts from the late write.
        """
        return 0.0

    @abstractmethod
    def generate(self, seed: int) -> Blocks:
        """Yield all messages of a seed in arrays of type `MESSAGE` and of any lengths, in the order of time.

        The times are those of punctual writes.
        """

    @property
    @abstractmethod
    def message_rate(self) -> float:
        """Mean number of messages per second [1/s]."""

    @property
    @abstractmethod
    def mean_bitrate(self) -> float:
        """Mean application bits per second [bit/s]."""

    @property
    def mean_interval(self) -> float:
        """Mean time between two messages [s]."""
        return 1 / self.message_rate

    @property
    def message_count(self) -> int | None:
        """Number of messages; None for a source that does not end."""
        return None

    @property
    def mean_size(self) -> float:
        """Mean size of a message [bytes]."""
        return self.mean_bitrate / 8 / self.message_rate

    @property
    def peak_bitrate(self) -> float:
        """Largest bitrate over a second [bit/s]: in the first ten minutes, or million messages, of seed 0."""
        import numpy as np

        first = self._first(PEAK_DURATION, PEAK_MESSAGES, seed=0)
        written = np.append(0, np.cumsum(first["size"]))
        until = np.searchsorted(first["time"], first["time"] + PEAK_TIME)
        return float(8 * (written[until] - written[:-1]).max() / PEAK_TIME) if first.size else 0.0

    def at_bitrate(self, bitrate: float) -> Source:
        """Return the source at another mean bitrate: the sizes of its messages are scaled, their times stay.

        Sizes are whole bytes, at least 1 byte, so that small messages reach the bitrate only roughly.

        Parameters
        ----------
        bitrate : float
            Mean application bits per second [bit/s], above 0.

        Raises
        ------
        InvalidValueError
            If the bitrate, or a size that follows from it, is out of its range, or if a class of sources has no such
            method; a ValueError.
        """
        raise InvalidValueError("source", self, "have a method at_bitrate to be scaled to another bitrate")

    def scale_to(self, bitrate: float) -> float:
        """Return a bitrate [bit/s] relative to the mean bitrate.

        Raises
        ------
        InvalidValueError
            If the bitrate is not above 0, or the mean bitrate is not known; a ValueError.
        """
        if not is_number(bitrate) or not 0 < bitrate <= sys.float_info.max:
            raise InvalidValueError("bitrate", bitrate, "be a number of bit/s above 0")
        if not self.mean_bitrate > 0:
            raise InvalidValueError("source", self, "have a mean bitrate to be scaled to another bitrate")
        return bitrate / self.mean_bitrate

    def messages(self, duration: float, seed: int = 0) -> NDArray[np.void]:
        """Return the messages that are written before a time.

        Parameters
        ----------
        duration : float
            Time since the start of the source [s], 0 to 1e9.
        seed : int
            Seed of the random numbers, 0 or more.

        Returns
        -------
        structured array
            `time` of the write [s], ascending, `size` [bytes], and `kind`, the number of the kind in `kinds`.

        Raises
        ------
        InvalidValueError
            If an argument is out of its range; a ValueError.
        """
        _DURATION.require("duration", duration)
        return self._first(duration, None, seed)

    def blocks(self, seed: int = 0, size: int = BLOCK) -> Blocks:
        """Yield the messages in blocks, so that memory stays bounded; endless unless the source ends.

        Parameters
        ----------
        seed : int
            Seed of the random numbers, 0 or more.
        size : int
            Messages of each block, 1 or more; the last block of a source that ends may be shorter.

        Raises
        ------
        InvalidValueError
            If an argument is out of its range; a ValueError.
        """
        import numpy as np

        SEED.require("seed", seed)
        _BLOCK_SIZE.require("size", size)
        waiting: list[NDArray[np.void]] = []
        count = 0
        for part in self._written(seed):
            waiting.append(part)
            count += part.size
            if count >= size:
                together = np.concatenate(waiting)
                whole = count - count % size
                yield from together[:whole].reshape(-1, size)
                waiting, count = [together[whole:]], count - whole
        if count:
            yield np.concatenate(waiting)

    def _written(self, seed: int) -> Blocks:
        """Yield the messages of a seed at the times of their writes, which are late."""
        import numpy as np

        if self.write_jitter == 0:
            yield from self.generate(seed)
            return
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(LATENESS,)))
        latest = 0.0
        for part in self.generate(seed):
            written = part.copy()
            late = part["time"] + self.write_jitter * random.random(part.size)
            # A write waits for the write before it.
            written["time"] = np.maximum.accumulate(np.append(latest, late))[1:]
            latest = max(latest, *written["time"][-1:])
            yield written

    def plot(self, ax: Axes | None = None, *, duration: float = SHOWN_DURATION, seed: int = 0) -> Axes:
        """Draw the size of each message as a line at the time of its write, in the colour of its kind.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; the current axes of pyplot by default.
        duration : float
            End of the time axis [s], above 0.
        seed : int
            Seed of the messages, 0 or more.

        Returns
        -------
        Axes
            Times in seconds against sizes in bytes.

        Examples
        --------
        >>> from matplotlib.figure import Figure
        >>> from tcpdelay.scenario.media import Video
        >>> ax = Video(2_500_000).plot(Figure().subplots(), duration=5)
        """
        messages = self.messages(duration, seed)
        axes: Axes = drawn("charts.plot_messages", messages, self.kinds, duration, self.mean_bitrate, ax)
        return axes

    def _first(self, duration: float, most: int | None, seed: int) -> NDArray[np.void]:
        """Return the messages before a time [s], at most `most` of them."""
        import numpy as np

        parts, count = [np.empty(0, MESSAGE)], 0
        for block in self.blocks(seed):
            parts.append(block[: np.searchsorted(block["time"], duration)])
            count += parts[-1].size
            if parts[-1].size < block.size or (most is not None and count >= most):
                break
        return np.concatenate(parts)[:most]


def message_array(times: Any, sizes: Any, kinds: Any = 0) -> NDArray[np.void]:
    """Return messages as an array of type `MESSAGE`."""
    import numpy as np

    result = np.empty(len(times), MESSAGE)
    result["time"], result["size"], result["kind"] = times, sizes, kinds
    return result


def whole_bytes(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return sizes rounded to whole bytes, at least 1 byte each."""
    import numpy as np

    return np.maximum(np.rint(sizes), 1).astype(np.int64)


def with_rate(source: Source) -> Source:
    """Return a source; raise InvalidValueError if it has no rate, without which no model answers."""
    # The messages of a trace may all have the time 0.
    if math.isnan(source.message_rate):
        raise InvalidValueError("source", source, "have a message later than the time 0, or a period")
    return source


@described
class Flow(Source):
    """A constant-bit-rate source: one packet of fixed size per interval.

    Examples
    --------
    >>> Flow(packet_size=174, interval=0.020).bitrate
    69600.0
    """

    packet_size: int = in_bytes("Application bytes per packet.", 1, 10_000_000, example="174")
    interval: float = in_seconds(
        "Time between two packets.", 1e-7, 60.0, example="20ms", hint="the interval is given in seconds: 20 ms is 0.020"
    )
    write_jitter: float = like(WRITE_JITTER, default=TYPICAL_WRITE_JITTER)

    @classmethod
    def from_bitrate(cls, bitrate: float, packet_size: int = 1448) -> Flow:
        """Return the flow with a bitrate and a packet size.

        Parameters
        ----------
        bitrate : float
            Application bits per second [bit/s], 0.133 to 8e14.
        packet_size : int
            Application bytes per packet [bytes], 1 to 10 000 000.

        Raises
        ------
        InvalidValueError
            If a value, or the interval that follows from both, is out of its range; a ValueError.

        Examples
        --------
        >>> Flow.from_bitrate(64_000, packet_size=160).interval
        0.02
        """
        size = cls(packet_size, 1.0).packet_size
        interval = declarations(cls)["interval"]
        assert isinstance(interval, Quantity)
        BITRATE.require("bitrate", bitrate)
        if not interval.low <= 8 * size / bitrate <= interval.high:
            raise InvalidValueError(
                "bitrate",
                bitrate,
                f"lie between {8 * size / interval.high:g} and {8 * size / interval.low:g} bit/s "
                f"for packets of {size} bytes",
            )
        return cls(size, 8 * size / bitrate)

    @property
    def packet_rate(self) -> float:
        """Packets per second [1/s]."""
        return 1.0 / self.interval

    @property
    def bitrate(self) -> float:
        """Application bits per second [bit/s]."""
        return 8 * self.packet_size / self.interval

    @property
    def message_rate(self) -> float:
        """Packets per second [1/s], as `packet_rate`."""
        return self.packet_rate

    @property
    def mean_interval(self) -> float:
        """Time between two packets [s], as `interval`."""
        return self.interval

    @property
    def mean_size(self) -> float:
        """Application bytes per packet [bytes], as `packet_size`."""
        return float(self.packet_size)

    @property
    def mean_bitrate(self) -> float:
        """Application bits per second [bit/s], as `bitrate`."""
        return self.bitrate

    @property
    def peak_bitrate(self) -> float:
        """Bits of the packets of a second [bit/s]; more than `bitrate` unless a second has a whole number of them."""
        return 8 * self.packet_size * math.ceil(PEAK_TIME / self.interval) / PEAK_TIME

    def at_bitrate(self, bitrate: float) -> Flow:
        """Return the flow at another bitrate [bit/s]: the size of its packets changes, to whole bytes.

        Examples
        --------
        >>> Flow(160, 0.020).at_bitrate(128_000)
        Flow(packet_size=320, interval=0.02)
        """
        BITRATE.require("bitrate", bitrate)
        return replace(self, packet_size=max(1, round(bitrate * self.interval / 8)))

    def generate(self, seed: int) -> Blocks:
        """Yield the packets at their punctual times, which are the same for each seed."""
        import numpy as np

        first = 0
        while True:
            yield message_array(np.arange(first, first + BLOCK) * self.interval, self.packet_size)
            first += BLOCK


def is_exact(source: object) -> TypeGuard[Flow]:
    """Return whether a source writes packets of one size at exact multiples of an interval."""
    return isinstance(source, Flow) and source.write_jitter == 0


_SIZE, _INTERVAL, _ = (declared for declared in declarations(Flow).values() if isinstance(declared, Quantity))
BITRATE = Quantity(
    kind="rate",
    meaning="Application bits per second.",
    low=8 * _SIZE.low / _INTERVAL.high,
    high=8 * _SIZE.high / _INTERVAL.low,
    unit="bit/s",
    example="64kbit/s",
)
"""Declaration of the bitrate, which can be given instead of a flow's packet size or its interval."""
FRAME_RATE: Quantity = number(
    "Frames per second of a video; each packet is then a whole frame.",
    1 / _INTERVAL.high,
    1 / _INTERVAL.low,
    "1/s",
    example="30",
)
"""Declaration of the frame rate, which can be given instead of a flow's interval."""
USUAL_FRAME_RATE = 30.0
"""Frames per second of a video over a protocol that carries whole frames, if nobody states another rate [1/s]."""
