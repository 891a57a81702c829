"""What a recording says about a path: round-trip time and loss with their confidence intervals.

Also how a text recording is read from disk: its size is bounded, and a file that is no text is refused in one line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

from scipy.special import betaincinv

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path

Source = Literal["ping", "ss", "pcap", "testbed"]
MAX_RECORDING_SIZE = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEstimate:
    """Round-trip time and loss of a path, estimated from counts.

    Parameters
    ----------
    source : {"ping", "ss", "pcap", "testbed"}
        The program that measured, the packet capture, or the capture of the testbed.
    rtt : float
        Mean round-trip time [s], above 0; from `ss` the kernel's smoothed one.
    sent : int
        Packets or segments sent, at least 1.
    lost : int
        Number of lost packets or segments, 0 to `sent`.
    rtt_min, rtt_max : float, optional
        Smallest and largest round-trip time [s].
    rtt_deviation : float, optional
        Standard deviation from `ping`, smoothed mean deviation from `ss` [s].
    rtt_interval : tuple of float, optional
        95 % confidence interval of the mean round-trip time [s].
    mss : int, optional
        Largest segment payload in use [bytes].
    congestion_window : int, optional
        Congestion window at the time of recording [segments].

    Raises
    ------
    ValueError
        If `rtt`, `sent` or `lost` lies outside its range.

    Examples
    --------
    >>> estimate = PathEstimate(source="ping", rtt=0.1, sent=20, lost=0)
    >>> estimate.loss, round(estimate.loss_interval[1], 3), round(estimate.loss_for_prediction, 4)
    (0.0, 0.168, 0.0112)
    """

    source: Source
    rtt: float
    sent: int
    lost: int
    rtt_min: float | None = None
    rtt_max: float | None = None
    rtt_deviation: float | None = None
    rtt_interval: tuple[float, float] | None = None
    mss: int | None = None
    congestion_window: int | None = None

    def __post_init__(self) -> None:
        if not self.rtt > 0:
            raise InvalidValueError("rtt", self.rtt, "be above 0 s")
        if self.sent < 1:
            raise InvalidValueError("sent", self.sent, "be at least 1")
        if not 0 <= self.lost <= self.sent:
            raise InvalidValueError("lost", self.lost, f"lie between 0 and sent = {self.sent}")

    @property
    def loss(self) -> float:
        """Point estimate of the loss: the lost share of the packets, a fraction from 0 to 1."""
        return self.lost / self.sent

    @property
    def loss_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the loss, two fractions from 0 to 1.

        The exact interval of Clopper and Pearson, Biometrika 26, 1934, doi 10.1093/biomet/26.4.404. It takes the
        losses as independent; on a path that loses several packets in a row the true interval is wider.
        """
        kept = self.sent - self.lost
        low = float(betaincinv(self.lost, kept + 1, 0.025)) if self.lost else 0.0
        high = float(betaincinv(self.lost + 1, kept, 0.975)) if kept else 1.0
        return low, high

    @property
    def loss_for_prediction(self) -> float:
        """The loss for predictions: the point estimate, or a small positive loss if nothing was lost.

        Nothing lost in n packets does not make a path free of loss, and a prediction at loss 0 would promise that no
        packet is ever late. Then the median of the loss given the count under Jeffreys' prior is taken, that is of
        Beta(1/2, n + 1/2): about 0.23 / n, as likely too high as too low. The prior is the one recommended for
        binomial proportions by Brown, Cai and DasGupta, Statistical Science 16(2), 2001, doi 10.1214/ss/1009213286.
        """
        return self.loss if self.lost else float(betaincinv(0.5, self.sent + 0.5, 0.5))

    def path(self, **changes: Any) -> Path:
        """Return the path for predictions.

        Parameters
        ----------
        **changes
            Arguments of `Path` that replace what was estimated (`rtt`, `loss`) or add to it.

        Returns
        -------
        tcpdelay.scenario.path.Path
            The path with this round-trip time and `loss_for_prediction`.

        Raises
        ------
        ValueError
            If everything was lost, or a value lies outside the range of `Path`.

        Examples
        --------
        >>> PathEstimate(source="ping", rtt=0.1, sent=200, lost=4).path(loss_pattern="correlated").loss
        0.02
        """
        return Path(**{"rtt": self.rtt, "loss": self.loss_for_prediction, **changes})


def read_recording(path: str | os.PathLike[str], program: str) -> str:
    """Return the text that `program` printed into the file at `path`.

    Parameters
    ----------
    path : str or path-like
        The file, at most 64 MiB of text. Bytes that are not UTF-8 are replaced: only host names and the words of a
        translation can hold such, and neither is read.
    program : str
        The program whose output is expected, for the messages.

    Returns
    -------
    str
        The text of the file.

    Raises
    ------
    ValueError
        If the file cannot be read, is empty, is larger than 64 MiB or holds no text.

    Examples
    --------
    >>> read_recording("no-such-file.txt", "ping")
    Traceback (most recent call last):
    ValueError: no-such-file.txt: cannot be read: No such file or directory
    """
    name = os.fspath(path)
    try:
        with FilePath(name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A pipe or a device has no size beforehand, so what is read is bounded as well.
            content = file.read(MAX_RECORDING_SIZE + 1) if size <= MAX_RECORDING_SIZE else b""
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ValueError(f"{name!r} is no valid file name") from None
    if size > MAX_RECORDING_SIZE or len(content) > MAX_RECORDING_SIZE:
        shown = f"{max(size, len(content)) / 2**20:.0f} MiB"
        raise ValueError(f"{name}: {shown} are too many for the output of {program}; at most 64 MiB are read")
    if b"\0" in content:
        raise ValueError(f"{name}: holds binary data, not the text that {program} prints")
    if not content.strip():
        raise ValueError(f"{name}: is empty; the text that {program} prints is expected")
    return content.decode("utf-8-sig", errors="replace")
