"""The path in a recording: round-trip time and loss with their confidence intervals.

`read_recording` reads a text recording from disk, up to a largest size, and refuses a file that is no text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

from scipy.special import betaincinv

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path

Source = Literal["ping", "ss", "pcap", "testbed", "getStats"]
MAX_RECORDING_SIZE = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEstimate:
    """Round-trip time and loss of a path, estimated from counts.

    Parameters
    ----------
    source : {"ping", "ss", "pcap", "testbed", "getStats"}
        Source of the measurement: a program, a packet capture, a capture of the testbed, or a browser's statistics.
    rtt : float
        Mean round-trip time [s], above 0; from `ss`, the kernel's smoothed RTT.
    sent : int
        Number of packets or segments sent, at least 1.
    lost : int
        Number of lost packets or segments, 0 to `sent`.
    rtt_min, rtt_max : float, optional
        Smallest and largest round-trip time [s].
    rtt_deviation : float, optional
        Standard deviation of the round-trip time [s]; from `ss`, its smoothed mean deviation.
    rtt_interval : tuple of float, optional
        95 % confidence interval of the mean round-trip time [s].
    dispersion : float
        Variance of the number of losses, divided by its variance with independent losses, at least 1.
    mss : int, optional
        Largest segment payload in use [bytes].
    congestion_window : int, optional
        Congestion window at the time of recording [segments].

    Raises
    ------
    ValueError
        If `rtt`, `sent` or `lost` is out of range.

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
    dispersion: float = 1.0
    mss: int | None = None
    congestion_window: int | None = None

    def __post_init__(self) -> None:
        if not self.rtt > 0:
            raise InvalidValueError("rtt", self.rtt, "be above 0 s")
        if self.sent < 1:
            raise InvalidValueError("sent", self.sent, "be at least 1")
        if not 0 <= self.lost <= self.sent:
            raise InvalidValueError("lost", self.lost, f"lie between 0 and sent = {self.sent}")
        if not self.dispersion >= 1:
            raise InvalidValueError("dispersion", self.dispersion, "be 1 or more")

    @property
    def loss(self) -> float:
        """Point estimate of the loss: the lost share of the packets, a fraction from 0 to 1."""
        return self.lost / self.sent

    @property
    def loss_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the loss, two fractions from 0 to 1.

        The exact interval of Clopper and Pearson, Biometrika 26, 1934, doi 10.1093/biomet/26.4.404. Losses in bursts
        tell as much as fewer independent packets: both counts are divided by `dispersion` (Rao and Scott, "A Simple
        Method for the Analysis of Clustered Binary Data", Biometrics 48(2), 1992). At a dispersion of 1 the losses
        count as independent, and on a path that loses several packets in a row the true interval is wider.
        """
        lost, kept = self.lost / self.dispersion, (self.sent - self.lost) / self.dispersion
        low = float(betaincinv(lost, kept + 1, 0.025)) if lost else 0.0
        high = float(betaincinv(lost + 1, kept, 0.975)) if kept else 1.0
        return low, high

    @property
    def loss_for_prediction(self) -> float:
        """The loss for predictions: the point estimate, or a small positive loss if nothing was lost.

        A path that lost none of n packets may still lose packets, and a prediction at loss 0 would promise that no
        packet is ever late. The loss is then the median of Beta(1/2, n + 1/2), the distribution of the loss under
        Jeffreys' prior: about 0.23 / n, too high or too low with equal probability. Brown, Cai and DasGupta recommend
        this prior for binomial proportions (Statistical Science 16(2), 2001, doi 10.1214/ss/1009213286).
        """
        return self.loss if self.lost else float(betaincinv(0.5, self.sent + 0.5, 0.5))

    def path(self, **changes: Any) -> Path:
        """Return the path for predictions.

        Parameters
        ----------
        **changes
            Arguments of `Path`; `rtt` and `loss` replace the estimates.

        Returns
        -------
        tcpdelay.scenario.path.Path
            The path with this round-trip time and `loss_for_prediction`.

        Raises
        ------
        ValueError
            If all packets were lost, or a value is outside the range of `Path`.

        Examples
        --------
        >>> PathEstimate(source="ping", rtt=0.1, sent=200, lost=4).path(loss_pattern="correlated").loss
        0.02
        """
        return Path(**{"rtt": self.rtt, "loss": self.loss_for_prediction, **changes})


def read_recording(path: str | os.PathLike[str], program: str) -> str:
    """Return the text in a file that holds the output of `program`.

    Parameters
    ----------
    path : str or path-like
        The file, at most 64 MiB of text. Bytes that are not UTF-8 are replaced: only host names and translated words
        can hold such bytes, and the parsers read neither.
    program : str
        Name of the program, for messages.

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
            # The size of a pipe or a device is unknown, so the read has a limit as well.
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
