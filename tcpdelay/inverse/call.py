"""A demand on a call: its mean opinion score, in place of a limit of the delay."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tcpdelay.quality.codecs import CODECS, Codec, codec_named


@dataclass(frozen=True)
class CallTarget:
    """What a call over TCP has to be worth.

    Parameters
    ----------
    codec : str or Codec
        A name in `tcpdelay.quality.CODECS`, or a codec of one's own. Its packets are taken to be as long as the flow's
        interval.
    mos : float, optional
        Least mean opinion score, 1 to 4.5; by default the best that can be had is asked for.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    ITU-T G.107 (the E-model).

    Examples
    --------
    >>> CallTarget("g711", mos=4.0).codec_of(0.040).packet_interval
    0.04
    """

    codec: str | Codec = "g711"
    mos: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.codec, str):
            codec_named(self.codec)
        if self.mos is not None and not 1 <= self.mos <= 4.5:
            raise ValueError(f"mos must lie between 1 and 4.5, got {self.mos}")

    def codec_of(self, interval: float) -> Codec:
        """Return the codec with packets of `interval` [s], 0.0025 to 1."""
        codec = CODECS[self.codec] if isinstance(self.codec, str) else self.codec
        return replace(codec, packet_interval=interval)
