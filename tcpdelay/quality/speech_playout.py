"""The playout of speech and of a voice agent's replies: the buffer without gaps, and when each chunk is played."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.quality.player import Player
from tcpdelay.scenario.fields import InvalidValueError, bounds, is_number

LONGEST_BUFFER = bounds(Player, "startup")[1]
"""Largest playout buffer [s], as of a video player."""


@dataclass(frozen=True)
class PlayedBursts:
    """How the chunks of talk spurts or replies are played.

    Attributes
    ----------
    starts : ndarray of int, shape (bursts,)
        Number of the first chunk of each burst.
    required : ndarray, shape (bursts,)
        Smallest playout buffer with which a burst has no gap [s]: the time from the arrival of the first chunk of the
        burst to its playout.
    played : ndarray, shape (chunks,)
        Time at which each chunk begins to play [s].
    """

    starts: NDArray[np.int64]
    required: NDArray[np.float64]
    played: NDArray[np.float64]


def play_bursts(
    read: NDArray[np.float64], starts: NDArray[np.int64], interval: float, buffer: float = 0.0
) -> PlayedBursts:
    r"""Play bursts of audio, such as talk spurts, in chunks of equal length.

    The chunks of a burst have the length :math:`\Delta` and are read at :math:`r_0, r_1, \dots`. The playout begins B
    after :math:`r_0`, so chunk k is due at :math:`r_0 + B + k \Delta`. The burst has no gap if

    .. math:: B \ge \max_k (r_k - r_0 - k \Delta).

    If a chunk is late, the player waits for this chunk, and plays the rest of the burst later: chunk k begins at

    .. math:: p_k = \max(r_0 + B + k \Delta, \max_{i \le k} (r_i + (k - i) \Delta)).

    Parameters
    ----------
    read : ndarray, shape (chunks,)
        Time at which each chunk was read in order [s].
    starts : ndarray of int, shape (bursts,)
        Number of the first chunk of each burst, in ascending order from 0 on.
    interval : float
        Length Δ of the audio in a chunk [s], above 0.
    buffer : float
        Time B from the arrival of the first chunk of a burst to its playout [s], 0 to 3600.

    Returns
    -------
    PlayedBursts
        The buffer that each burst requires, and the playout with the given buffer.

    Raises
    ------
    InvalidValueError
        If a value is out of its range.

    Examples
    --------
    The third of four chunks of 20 ms comes 50 ms late, at the same time as the fourth chunk:

    >>> bursts = play_bursts(np.array([0.05, 0.07, 0.14, 0.14]), np.array([0]), interval=0.020)
    >>> bursts.required.round(3).tolist(), bursts.played.round(3).tolist()
    ([0.05], [0.05, 0.07, 0.14, 0.16])
    """
    if not is_number(interval) or not 0 < interval < np.inf:
        raise InvalidValueError("interval", interval, "be a number of seconds above 0")
    if not is_number(buffer) or not 0 <= buffer <= LONGEST_BUFFER:
        raise InvalidValueError("buffer", buffer, f"be a number of seconds from 0 to {LONGEST_BUFFER:g}")
    if not starts.size or starts[0] != 0 or np.any(np.diff(starts) <= 0) or starts[-1] >= read.size:
        raise InvalidValueError("starts", starts, "ascend from 0 to below the number of chunks")
    lengths = np.diff(np.append(starts, read.size))
    place = np.arange(read.size) - np.repeat(starts, lengths)
    # Lateness of each chunk if the burst played from the arrival of its first chunk on.
    late = read - np.repeat(read[starts], lengths) - place * interval
    required = np.maximum.reduceat(late, starts)
    # Each burst is raised above all earlier bursts, so that the running maximum begins anew with each burst.
    step = float(late.max() - late.min()) + buffer + 1.0
    burst = np.repeat(np.arange(starts.size), lengths)
    waited = np.maximum.accumulate(np.maximum(late, buffer) + step * burst) - step * burst
    return PlayedBursts(starts, required, np.repeat(read[starts], lengths) + waited + place * interval)
