"""The constant-rate source: a flow of packets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, TypeGuard

from tcpdelay.declare import InvalidValueError, Quantity, declarations, described, in_bytes, in_seconds, number
from tcpdelay.scenario.sources.message_stream import (
    BLOCK,
    PEAK_TIME,
    TYPICAL_WRITE_JITTER,
    Blocks,
    Source,
    WriteJitter,
    message_array,
)


@described
class Flow(Source):
    """A constant-bit-rate source: one packet of fixed size per interval.

    Examples
    --------
    >>> Flow(packet_size=174, interval=0.020).bitrate
    69600.0
    """

    packet_size: Annotated[
        int,
        in_bytes("Application bytes per packet.", 1, 10_000_000, example="174"),
    ]
    interval: Annotated[
        float,
        in_seconds(
            "Time between two packets.",
            1e-7,
            60.0,
            example="20ms",
            hint="the interval is given in seconds: 20 ms is 0.020",
        ),
    ]
    write_jitter: WriteJitter = TYPICAL_WRITE_JITTER

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
FRAME_RATE = number(
    "Frames per second of a video; each packet is then a whole frame.",
    1 / _INTERVAL.high,
    1 / _INTERVAL.low,
    "1/s",
    example="30",
)
"""Declaration of the frame rate, which can be given instead of a flow's interval."""
USUAL_FRAME_RATE = 30.0
"""Frames per second of a video over a protocol that carries whole frames, if nobody states another rate [1/s]."""
