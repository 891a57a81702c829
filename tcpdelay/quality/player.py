"""A video player that fills its buffer at the start and after each stall, and the stalls that it has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.declare import InvalidValueError, described, documented, in_seconds, meaning, quantity

RESOLUTION = 2e-6
"""A frame or a chunk counts as late from this lateness on [s]; simulated times are rounded to 1 us."""


_IN_SECONDS = "the time is given in seconds"


@described
class Player:
    """A player of live video.

    Media time is the time in the video: a frame that is written 2 s after the first frame has the media time 2 s. The
    player starts once its buffer holds `startup` of media time, from the first frame to the last frame that has
    arrived. If a frame is due and has not arrived, the picture stands still until the buffer holds `rebuffer` of media
    time from this frame on; by default this is `startup`. Each stall increases the delay from the write of a frame to
    its display. With `catch_up`, the player then plays faster, until this delay is as short as at the start.

    Examples
    --------
    >>> Player(2.0).resumes_at, Player(2.0, rebuffer=0.5).resumes_at
    (2.0, 0.5)
    """

    startup: float = in_seconds(
        "Media time in the buffer at which the player starts.", 0.0, 3600.0, example="2s", hint=_IN_SECONDS
    )
    rebuffer: float | None = in_seconds(
        "Media time in the buffer at which the player resumes after a stall.",
        0.0,
        3600.0,
        example="2s",
        hint=_IN_SECONDS,
        default_words="as at the start",
        default=None,
    )
    catch_up: float = quantity(
        "Speed above real time while the player is further behind than at its start.",
        0.0,
        10.0,
        "fraction of real time",
        "fraction",
        details="0.05 plays 5 % faster than real time. With 0, the player never catches up.",
        example="5%",
        default=0.0,
    )

    @property
    def resumes_at(self) -> float:
        """Media time in the buffer at which the player resumes after a stall [s]."""
        return self.startup if self.rebuffer is None else self.rebuffer


@documented()
class Playback:
    """How a player showed the frames of several sessions."""

    startup_delays: NDArray[np.float64] = meaning(
        "Time from the write of the first frame of a session to its display [s]."
    )
    stall_before: NDArray[np.float64] = meaning(
        "Length of the stall that began when a frame was due [s]; 0 without a stall."
    )
    behind: NDArray[np.float64] = meaning("Time from the write of a frame to its display [s].")


def play(
    written: NDArray[np.float64], read: NDArray[np.float64], player: Player, starts: NDArray[np.int64] | None = None
) -> Playback:
    """Play the frames of one or several sessions.

    A frame is due as long after the display of the first frame of its session as it was written after that frame. All
    stalls of the session before the frame are added, and the time by which the player has caught up is subtracted.

    Parameters
    ----------
    written, read : ndarray, shape (frames,)
        Times at which each frame was written, and was read in order [s]. `written` is also the media time.
    player : Player
        The player.
    starts : ndarray of int, optional
        Number of the first frame of each session, in ascending order from 0 on. By default there is one session.

    Returns
    -------
    Playback
        Start-up delays and stalls. If a session ends during a stall, the stall lasts until the last frame arrives.

    Raises
    ------
    InvalidValueError
        If `written` and `read` differ in length, `starts` does not ascend from 0, or a frame is read before its write
        or before the frame written before it.

    Examples
    --------
    Ten frames a second, of which the sixth to the eighth arrive together at 1 s:

    >>> written = np.arange(10) / 10
    >>> read = written + 0.05
    >>> read[5:8] = 1.0
    >>> read[8:] = [1.01, 1.02]
    >>> played = play(written, read, Player(startup=0.2))
    >>> played.startup_delays.round(3).tolist(), played.stall_before.round(3).tolist()
    ([0.25], [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0])
    """
    starts = np.zeros(1, np.int64) if starts is None else np.ascontiguousarray(starts, np.int64)
    written, read = np.ascontiguousarray(written, np.float64), np.ascontiguousarray(read, np.float64)
    if written.shape != read.shape or written.ndim != 1 or not written.size:
        raise InvalidValueError("read", read.shape, f"have one time for each of the {written.size} frames written")
    if np.any(read < written) or np.any(np.diff(read) < -RESOLUTION):
        raise InvalidValueError("read", "times", "be in order, and not before the frames are written")
    if not starts.size or starts[0] != 0 or np.any(np.diff(starts) <= 0) or starts[-1] >= written.size:
        raise InvalidValueError("starts", starts, "ascend from 0 to below the number of frames")
    startup_delays = np.empty(starts.size)
    stall_before, behind = np.zeros(written.size), np.empty(written.size)
    ends = np.append(starts[1:], written.size)
    # In 1 s of display the player shows 1 + catch_up seconds of media time. So for each second of media time, its delay
    # falls by catch_up / (1 + catch_up) seconds.
    regained = player.catch_up / (1 + player.catch_up)
    setting = (float(player.startup), float(player.resumes_at), float(regained))
    _play(written, read, starts, ends, setting, startup_delays, stall_before, behind)
    return Playback(startup_delays, stall_before, behind)


@kernel()
def _buffered(written: NDArray[np.float64], first: int, end: int, media_time: float) -> int:
    """Return the first frame whose media time is `media_time` or more after frame `first`; else the last frame."""
    number = first
    while number + 1 < end and written[number] - written[first] < media_time - RESOLUTION:
        number += 1
    return number


@kernel()
def _play(
    written: NDArray[np.float64],
    read: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    setting: tuple[float, float, float],
    startup_delays: NDArray[np.float64],
    stall_before: NDArray[np.float64],
    behind: NDArray[np.float64],
) -> None:
    """Play all sessions.

    `setting` has three numbers: the media times at which the player starts and resumes after a stall [s], and the time
    by which its delay falls per second of media time while it catches up.
    """
    startup, resumes_at, regained = setting
    for session in range(starts.size):
        first, end = starts[session], ends[session]
        at_start = read[_buffered(written, first, end, startup)] - written[first]
        startup_delays[session] = at_start
        distance = at_start
        for frame in range(first, end):
            if frame > first:
                distance = max(distance - regained * (written[frame] - written[frame - 1]), min(distance, at_start))
            due = written[frame] + distance
            if read[frame] > due + RESOLUTION:
                resumed = read[_buffered(written, frame, end, resumes_at)]
                stall_before[frame] = resumed - due
                distance = resumed - written[frame]
            behind[frame] = distance
