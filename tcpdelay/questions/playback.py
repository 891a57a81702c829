"""How often a video stalls with a given start-up buffer, and the smallest start-up buffer with few enough stalls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import (
    BATCHES,
    FEWEST_BLOCKS,
    Interval,
    count_interval,
    independent_block,
    merged,
    quantile_interval,
    share_interval,
    student,
)
from tcpdelay.distribution import UNKNOWN_ERROR
from tcpdelay.models.predict import simulate_messages
from tcpdelay.quality.player import Player, play
from tcpdelay.questions.player_answer import MOST_MESSAGES, PlayerAnswer
from tcpdelay.scenario.applications import source_of
from tcpdelay.scenario.fields import InvalidValueError, is_number
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Stack, checked_profile

HOUR = 3600.0
HOURS = 20.0
"""Media time that is simulated by default [h]."""
SESSION = 600.0
"""Length of a session by default [s of media time]."""
LONGEST_STARTUP = 60.0
"""Largest start-up buffer that is tried [s of media time]."""
DEFAULT_PLAYER = Player(startup=2.0)


@dataclass(frozen=True)
class VideoStalls(PlayerAnswer):
    """The stalls of a video over many sessions.

    All intervals are 95 % intervals of the simulation's statistical error. `PlayerAnswer` has the scenario.

    Attributes
    ----------
    player : Player
        The player.
    session : float
        Length of a session [s of media time].
    sessions : int
        Number of sessions.
    startup_delay : Interval
        Mean time from the write of the first frame to its display [s].
    stalls_per_hour : Interval
        Number of stalls per hour of viewing time. The viewing time includes the stalls.
    stalled_share : Interval
        Share of the viewing time in which the picture stands still.
    undisturbed : Interval
        Share of the sessions without a stall.
    stall_lengths : ndarray
        Lengths of all stalls [s], in the order of time.
    """

    player: Player
    session: float
    sessions: int
    startup_delay: Interval
    stalls_per_hour: Interval
    stalled_share: Interval
    undisturbed: Interval
    stall_lengths: NDArray[np.float64] = field(repr=False, compare=False)
    method: str = "simulation"

    def stall_quantile(self, probability: float) -> Interval:
        """Return a quantile of the length of a stall [s]; NaN without stalls.

        The ends of its interval are NaN if there are fewer than 20 stalls.
        """
        if self.stall_lengths.size >= BATCHES:
            return quantile_interval([self.stall_lengths], probability)
        if not self.stall_lengths.size:
            return Interval(np.nan, np.nan, np.nan)
        return Interval(float(np.quantile(self.stall_lengths, probability, method="inverted_cdf")), np.nan, np.nan)


@dataclass(frozen=True)
class StartupBuffer:
    """The smallest start-up buffer with which a video has at most a given number of stalls per hour.

    Attributes
    ----------
    value : float
        The buffer [s of media time], a multiple of the mean frame interval.
    value_range : tuple of float
        Smallest buffers with which the lower end, and the upper end, of the 95 % interval of the stalls per hour is at
        most the demand. The second is infinite if the simulation is too short to find such a buffer.
    stalls_per_hour : float
        The demand: largest number of stalls per hour.
    stalls : VideoStalls
        The stalls with a start-up buffer of `value`.
    """

    value: float
    value_range: tuple[float, float]
    stalls_per_hour: float
    stalls: VideoStalls
    method: str = "simulation"


def video_stalls(
    source: Source | str,
    path: Path,
    stack: Stack | None = None,
    player: Player = DEFAULT_PLAYER,
    *,
    session: float = SESSION,
    hours: float = HOURS,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> VideoStalls:
    """Return how often and how long a live video stalls.

    One long connection is simulated, without its start, and cut into sessions. In each session a new viewer joins.

    Parameters
    ----------
    source : Source or str
        The video, of which each message is a frame, or the name of an application.
    path, stack
        The path, and `Stack.linux(...)`.
    player : Player
        The player; by default it starts and resumes with 2 s of media time, and does not catch up.
    session : float
        Length of a session [s of media time], from 1 s to 1/16 of the simulated time. In a long session, a player that
        does not catch up stalls less and less often, because each stall leaves it more time for the next frames.
    hours : float
        Media time that is simulated [h], above 0, with at most 20 million frames.
    seed : int
        Seed of all random numbers, 0 or more.
    on_progress : callable, optional
        Called with the number of frames simulated, and the number of all frames.

    Raises
    ------
    ValueError
        If a value is out of its range, TCP cannot carry the source, or the delays do not settle.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.video import Video
    >>> found = video_stalls(Video(1e6), Path(rtt=0.100, loss=0.01), player=Player(0.2), session=60, hours=1)
    >>> found.sessions, found.stalls_per_hour.low < found.stalls_per_hour.value < found.stalls_per_hour.high
    (60, True)
    """
    return _Viewing(source, path, stack, session, hours, seed, on_progress).stalls(player)


def startup_for_stalls(
    source: Source | str,
    path: Path,
    stack: Stack | None = None,
    stalls_per_hour: float = 1.0,
    *,
    rebuffer: float | None = None,
    catch_up: float = 0.0,
    session: float = SESSION,
    hours: float = HOURS,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> StartupBuffer:
    """Return the smallest start-up buffer with which a live video has at most a given number of stalls per hour.

    All buffers are tried on the same simulated frames. The search is a bisection, which assumes that there are fewer
    stalls with a larger buffer.

    Parameters
    ----------
    source, path, stack, session, hours, seed, on_progress
        As for `video_stalls`.
    stalls_per_hour : float
        Largest number of stalls per hour of viewing, 0 or more.
    rebuffer, catch_up
        As for `Player`.

    Raises
    ------
    ValueError
        As `video_stalls`, and if no buffer up to 60 s suffices.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.video import Video
    >>> found = startup_for_stalls(Video(1e6), Path(rtt=0.100, loss=0.01), stalls_per_hour=10, session=60, hours=1)
    >>> found.stalls.stalls_per_hour.value <= 10, found.value_range[0] <= found.value <= found.value_range[1]
    (True, True)
    """
    if not is_number(stalls_per_hour) or not 0 <= stalls_per_hour < np.inf:
        raise InvalidValueError("stalls_per_hour", stalls_per_hour, "be a number from 0 on")
    player = Player(0.0, rebuffer, catch_up)
    viewing = _Viewing(source, path, stack, session, hours, seed, on_progress)
    buffers = np.arange(0.0, LONGEST_STARTUP, 1 / viewing.source.message_rate)

    @cache
    def with_buffer(number: int) -> VideoStalls:
        return viewing.stalls(replace(player, startup=float(buffers[number])))

    def smallest(figure: str) -> int:
        return bisect_left(
            range(buffers.size),
            True,
            key=lambda number: getattr(with_buffer(number).stalls_per_hour, figure) <= stalls_per_hour,
        )

    found, optimistic, safe = smallest("value"), smallest("low"), smallest("high")
    if found == buffers.size:
        raise ValueError(
            f"no start-up buffer up to {LONGEST_STARTUP:g} s has {stalls_per_hour:g} stalls per hour or less: "
            f"with the largest there are {with_buffer(found - 1).stalls_per_hour.value:.3g}"
        )
    value_range = float(buffers[min(optimistic, found)]), float(np.append(buffers, np.inf)[max(safe, found)])
    return StartupBuffer(float(buffers[found]), value_range, stalls_per_hour, with_buffer(found))


class _Viewing:
    """The simulated frames of a video, cut into sessions of equal length."""

    def __init__(
        self,
        source: Source | str,
        path: Path,
        stack: Stack | None,
        session: float,
        hours: float,
        seed: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.source, self.session = source_of(source), session
        most = MOST_MESSAGES / self.source.message_rate / HOUR
        if not is_number(hours) or not 0 < hours <= most:
            raise InvalidValueError("hours", hours, f"lie above 0 and up to {most:.4g}, {MOST_MESSAGES} frames")
        fewest = FEWEST_BLOCKS * SESSION / HOUR
        if session == SESSION and hours < fewest:
            # The session is probably the default, so the hours are at fault.
            allowed = f"lie between {fewest:.3g} and {most:.4g}, {FEWEST_BLOCKS} sessions of {SESSION:g} s or more"
            raise InvalidValueError("hours", hours, allowed, "a shorter session needs fewer hours")
        longest = hours * HOUR / FEWEST_BLOCKS
        if not is_number(session) or not 1 <= session <= longest:
            allowed = f"lie between 1 s and {longest:.4g} s, a share 1/{FEWEST_BLOCKS} of the simulated time"
            raise InvalidValueError("session", session, allowed)
        self.scenario = Scenario(self.source, path, checked_profile(stack))
        # Half a session more than requested, so that the last session is whole.
        frames = round((hours * HOUR + session / 2) * self.source.message_rate)
        simulated = simulate_messages(self.scenario, frames, seed, on_progress)
        self.expected_error = simulated.expected_error or UNKNOWN_ERROR
        written = simulated.messages["time"]
        borders = np.searchsorted(written, session * np.arange(int(written[-1] / session) + 1))
        self.starts = np.unique(borders[:-1])
        self.written = np.ascontiguousarray(written[: borders[-1]])
        self.read = self.written + simulated.read_after[: borders[-1]]

    def stalls(self, player: Player) -> VideoStalls:
        """Return the stalls that a player has."""
        played = play(self.written, self.read, player, self.starts)
        stalled = np.add.reduceat(played.stall_before, self.starts)
        counts = np.add.reduceat(played.stall_before > 0, self.starts, dtype=np.int64)
        viewed = self.session + stalled
        happened = played.stall_before > 0
        count, hours = int(counts.sum()), float(viewed.sum()) / HOUR
        few = count_interval(count)
        many = _per_time(counts / viewed, viewed)
        # The spread over sessions is too small where few sessions have a stall, and the interval of a count is too
        # small where stalls come in clusters. So the wider of both applies.
        low, high = min(HOUR * many.low, few.low / hours), max(HOUR * many.high, few.high / hours)
        return VideoStalls(
            player,
            self.session,
            self.starts.size,
            _per_time(played.startup_delays, np.ones(self.starts.size)),
            Interval(count / hours, max(low, 0.0), high),
            _per_time(stalled / viewed, viewed),
            share_interval(int(np.count_nonzero(counts == 0)), self.starts.size),
            played.stall_before[happened],
            scenario=self.scenario,
            expected_error=self.expected_error,
        )


def _per_time(figures: NDArray[np.float64], weights: NDArray[np.float64]) -> Interval:
    """Return the weighted mean of a figure of all sessions, with its 95 % interval from blocks of sessions.

    The blocks are so long that they are independent.
    """
    block = independent_block(figures) or max(figures.size // FEWEST_BLOCKS, 1)
    totals, weight = merged(figures * weights, block), merged(weights, block)
    value = float(np.average(figures, weights=weights))
    _, half_width = student(weight, totals / weight)
    return Interval(value, max(value - half_width, 0.0), value + half_width)
