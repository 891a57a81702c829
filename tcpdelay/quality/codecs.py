"""Speech codecs as data: how much each one costs, and how well it bears what is missing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Codec:
    """A speech codec as the E-model knows it.

    Parameters
    ----------
    name : str
        Short name.
    ie : float
        Equipment impairment factor without losses, Ie or Ie,WB, from 0 to below 95.
    bpl : float
        Packet-loss robustness factor, Bpl or Bpl,WB, above 0.
    packet_interval : float
        Speech in a packet [s], 0.0025 to 1; it has to be spoken before the packet is sent.
    lookahead : float
        Speech beyond the packet that the encoder waits for [s], 0 to 1.
    wideband : bool
        Whether the factors are those of the wideband E-model (ITU-T G.107.1).
    approximate : bool
        True where a factor is not an ITU-T planning value for this very codec; `basis` says what it is.
    basis : str
        Where the numbers come from.

    Raises
    ------
    ValueError
        If a value lies outside its range.

    Examples
    --------
    >>> Codec("mine", ie=5, bpl=15, packet_interval=0.020, lookahead=0.005).delay
    0.025
    """

    name: str
    ie: float
    bpl: float
    packet_interval: float
    lookahead: float = 0.0
    wideband: bool = False
    approximate: bool = False
    basis: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.ie < 95:
            raise ValueError(f"ie must lie between 0 and 95, got {self.ie}")
        if not 0 < self.bpl < float("inf"):
            raise ValueError(f"bpl must be a number above 0, got {self.bpl}")
        if not 0.0025 <= self.packet_interval <= 1:
            raise ValueError(f"packet_interval must lie between 0.0025 s and 1 s, got {self.packet_interval}")
        if not 0 <= self.lookahead <= 1:
            raise ValueError(f"lookahead must lie between 0 s and 1 s, got {self.lookahead}")

    @property
    def delay(self) -> float:
        """Time from the first sound of a packet until it can be sent [s] (ITU-T G.114, without processing)."""
        return self.packet_interval + self.lookahead


_APPENDIX_I = "ITU-T G.113 Appendix I (05/2002)"
_DIOTIC = "ITU-T G.113 (09/2024) Tables IV.3 and IV.4, two ears"
_OPUS = "fitted values in published code of M. Alahmadi for random losses; no paper confirmed, not of ITU-T"

_ALL = (
    Codec("g711", 0, 25.1, 0.020, basis=f"{_APPENDIX_I}, with concealment (G.711 Appendix I), packets of 10 ms"),
    Codec("g711-no-plc", 0, 4.3, 0.020, basis=f"{_APPENDIX_I}, without concealment, packets of 10 ms"),
    Codec("g729a", 11, 19.0, 0.020, 0.005, basis=f"{_APPENDIX_I}, G.729A with VAD, 8 kbit/s"),
    Codec("g723.1", 15, 16.1, 0.030, 0.0075, basis=f"{_APPENDIX_I}, with VAD, 6.3 kbit/s"),
    Codec("gsm-efr", 5, 10.0, 0.020, basis=f"{_APPENDIX_I}, 12.2 kbit/s"),
    Codec("amr-12.2", 5, 10.0, 0.020, approximate=True, basis="as GSM-EFR, whose speech coder it is (3GPP TS 26.071)"),
    Codec("amr-wb-12.65", 20, 4.3, 0.020, 0.005, wideband=True, basis=_DIOTIC),
    Codec("amr-wb-23.05", 8, 4.6, 0.020, 0.005, wideband=True, basis=_DIOTIC),
    Codec("amr-wb-23.85", 10, 4.9, 0.020, 0.005, wideband=True, basis=_DIOTIC),
    Codec(
        "g722",
        13,
        4.3,
        0.020,
        0.0015,
        wideband=True,
        approximate=True,
        basis="Ie,WB of 64 kbit/s, one ear (ITU-T G.113 Appendix IV); Bpl,WB is that of AMR-WB 12.65, having none",
    ),
    Codec("opus-nb-11", 2.0, 16.0, 0.020, 0.0065, approximate=True, basis=_OPUS),
    Codec("opus-wb-15", 18.1, 18.7, 0.020, 0.0065, wideband=True, approximate=True, basis=_OPUS),
)

CODECS = {codec.name: codec for codec in _ALL}
"""The codecs by name."""


def codec_named(name: str) -> Codec:
    """Return the codec called `name`.

    Parameters
    ----------
    name : str
        A key of `CODECS`.

    Returns
    -------
    Codec
        Its numbers and where they come from.

    Raises
    ------
    ValueError
        If there is no such codec; the message lists those that there are.

    Examples
    --------
    >>> codec_named("g729a").ie, codec_named("g729a").bpl
    (11, 19.0)
    """
    if name not in CODECS:
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, got {name!r}")
    return CODECS[name]
