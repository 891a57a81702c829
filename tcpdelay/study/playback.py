"""Questions about players: stalls of a video, gaps of speech, and audio that cannot be stopped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tcpdelay.declare import SEED, InvalidValueError, is_number
from tcpdelay.delays import UNKNOWN_ERROR, ExpectedError
from tcpdelay.models.predict import simulate_messages
from tcpdelay.quality.player import RESOLUTION, Player, play
from tcpdelay.quality.voice import play_bursts, require_buffer
from tcpdelay.scenario.media import Speech, Utterances
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, checked_arguments, source_of
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import Stack, StackName, checked_profile
from tcpdelay.statistics import (
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

# The scenario and the expected error, which the answers to all questions about players have.

MOST_MESSAGES = 20_000_000
"""Largest number of messages in the simulation of a question about players."""


@dataclass(frozen=True, kw_only=True)
class PlayerAnswer:
    """The scenario of a question about players, and the expected error of its simulation."""

    scenario: Scenario = field(repr=False)  # Source, path and stack
    expected_error: ExpectedError = field(repr=False)  # Expected error of the simulated delays

    @property
    def source(self) -> Source:
        """The source."""
        return self.scenario.source

    @property
    def path(self) -> Path:
        """The path."""
        return self.scenario.path

    @property
    def stack(self) -> Stack:
        """The TCP implementation."""
        return self.scenario.stack


# How often a video stalls with a given start-up buffer, and the smallest start-up buffer with few enough stalls.

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


@checked_arguments
def video_stalls(
    source: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
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
    >>> from tcpdelay.scenario.media import Video
    >>> found = video_stalls(Video(1e6), Path(rtt=0.100, loss=0.01), player=Player(0.2), session=60, hours=1)
    >>> found.sessions, found.stalls_per_hour.low < found.stalls_per_hour.value < found.stalls_per_hour.high
    (60, True)
    """
    return _Viewing(source, path, stack, session, hours, seed, on_progress).stalls(player)


@checked_arguments
def startup_for_stalls(
    source: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
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
    >>> from tcpdelay.scenario.media import Video
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
        stack: Stack | StackName | None,
        session: float,
        hours: float,
        seed: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.source, self.session = source_of(source, "source"), session
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


# Speech and a voice agent's replies: the buffer that plays them without a gap, and audio that cannot be stopped.

GAP_SHARE = 0.01
"""Default of the share of talk spurts or replies that may have a gap."""
BURSTS = 10_000
"""Default number of simulated talk spurts or replies."""
FEWEST_BURSTS, MOST_BURSTS = 1000, 1_000_000
INSTANTS = 200_000
"""Number of instants at which the audio that cannot be stopped is counted."""
FIRST_CHUNK = 1
"""Number of the kind of the first chunk of a burst, in `Speech.kinds` and `Utterances.kinds`."""
STAGES = ("held back", "unsent", "in flight", "at the reader", "not stoppable")
"""Places of the audio of a reply; "not stoppable" is the sum of "unsent", "in flight" and "at the reader"."""


_HINT = "on the command line, --silence makes packets speech, and --speed makes them replies"


@dataclass(frozen=True)
class GaplessPlayout(PlayerAnswer):
    """The smallest playout buffer that plays most talk spurts or replies without a gap.

    All intervals are 95 % intervals of the simulation's statistical error. `PlayerAnswer` has the scenario.

    Attributes
    ----------
    value : Interval
        The buffer: time from the arrival of the first chunk of a talk spurt or reply to its playout [s].
    gap_share : float
        The demand: largest share of the talk spurts or replies that may have a gap.
    first_delays, required : ndarray, shape (bursts,)
        For each burst, a talk spurt or a reply: the delay of its first chunk from write to read [s], and the smallest
        buffer that plays the burst without a gap [s].
    """

    value: Interval
    gap_share: float
    first_delays: NDArray[np.float64] = field(repr=False, compare=False)
    required: NDArray[np.float64] = field(repr=False, compare=False)
    method: str = "simulation"

    @property
    def bursts(self) -> int:
        """Number of talk spurts or replies."""
        return self.required.size

    def gaps(self, buffer: float) -> Interval:
        """Return the share of talk spurts or replies that have a gap with a given buffer [s].

        Examples
        --------
        >>> found = playout_without_gaps(Speech(174, 0.020), Path(rtt=0.100, loss=0.02), bursts=1000)
        >>> found.gaps(found.value.value).value <= 0.01 < found.gaps(0.0).value
        True
        """
        return share_interval(int(np.count_nonzero(self.required > buffer + RESOLUTION)), self.bursts)

    def start_quantile(self, probability: float, buffer: float = 0.0) -> Interval:
        """Return a quantile of the time [s] from the first write of a talk spurt or reply to its playout.

        `buffer` is the playout buffer [s], 0 or more.
        """
        _check_probability(probability)
        value, low, high = quantile_interval([self.first_delays], probability)
        return Interval(value + buffer, low + buffer, high + buffer)


@dataclass(frozen=True)
class UnstoppableAudio(PlayerAnswer):
    """The audio of a reply that the sender can no longer stop, at random instants from first write to end of playout.

    Attributes
    ----------
    buffer : float
        Playout buffer of the reader [s].
    notsent_lowat : int or None
        TCP_NOTSENT_LOWAT [bytes]; None if it is not set.
    chunks : mapping of str to ndarray, shape (instants,)
        Number of chunks in each of the `STAGES` at each instant, in the order of time. Chunks "held back" have been
        produced, but TCP_NOTSENT_LOWAT keeps the application from writing them. Chunks "unsent" are written and not yet
        sent. Chunks "in flight" are sent and not yet read: they are on the network, or wait for a retransmission.
        Chunks "at the reader" are read and have not begun to play. "not stoppable" is the sum of the last three.
    """

    buffer: float
    notsent_lowat: int | None
    chunks: Mapping[str, NDArray[np.int64]] = field(repr=False, compare=False)
    method: str = "simulation"

    def seconds(self, stage: str, probability: float) -> Interval:
        """Return a quantile of the amount of audio in a stage [s], with its 95 % interval.

        Examples
        --------
        >>> replies = Utterances(960, 0.020, speed=3)
        >>> found = audio_not_stoppable(replies, Path(rtt=0.100, loss=0.01), bursts=1000)
        >>> found.seconds("unsent", 0.5).value, found.seconds("at the reader", 0.5).value > 0.5
        (0.0, True)
        """
        return self._scaled(stage, probability, self.scenario.value("interval"))

    def bytes(self, stage: str, probability: float) -> Interval:
        """Return a quantile of the amount of audio in a stage [bytes], with its 95 % interval."""
        return self._scaled(stage, probability, self.scenario.value("packet_size"))

    def _scaled(self, stage: str, probability: float, factor: float) -> Interval:
        if stage not in self.chunks:
            raise InvalidValueError("stage", stage, f"be one of {', '.join(map(repr, self.chunks))}")
        _check_probability(probability)
        return Interval(
            *(factor * end for end in quantile_interval([self.chunks[stage].astype(np.float64)], probability))
        )


def _check_probability(probability: float) -> None:
    if not is_number(probability) or not 0 < probability < 1:
        raise InvalidValueError("probability", probability, "lie between 0 and 1")


@checked_arguments
def playout_without_gaps(
    source: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    gap_share: float = GAP_SHARE,
    *,
    bursts: int = BURSTS,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> GaplessPlayout:
    """Return the smallest playout buffer with which at most a given share of talk spurts or replies has a gap.

    The buffer is the time from the arrival of the first chunk of a talk spurt or a reply to its playout.

    Parameters
    ----------
    source : Speech or Utterances
        The talk spurts or the replies.
    path, stack
        The path, and `Stack.linux(...)`.
    gap_share : float
        Largest share of the talk spurts or replies with a gap, above 0 and below 1.
    bursts : int
        Number of talk spurts or replies that are simulated, 1000 to 1 000 000, with at most 20 million chunks.
    seed : int
        Seed of all random numbers, 0 or more.
    on_progress : callable, optional
        Called with the number of chunks simulated, and the number of all chunks.

    Raises
    ------
    ValueError
        If a value is out of its range, the source has another type, TCP cannot carry it, or the delays do not settle.

    Examples
    --------
    >>> found = playout_without_gaps(Speech(174, 0.020), Path(rtt=0.100, loss=0.02), bursts=1000)
    >>> 0.05 < found.value.value < 0.5, round(found.start_quantile(0.5).value, 3)
    (True, 0.05)
    """
    if not is_number(gap_share) or not 0 < gap_share < 1:
        raise InvalidValueError("gap_share", gap_share, "lie between 0 and 1")
    replies = _Replies(source, path, stack, bursts, seed, on_progress)
    played = play_bursts(replies.read, replies.starts, replies.source.interval)
    return GaplessPlayout(
        quantile_interval([played.required], 1 - gap_share),
        gap_share,
        replies.read[replies.starts] - replies.written[replies.starts],
        played.required,
        scenario=replies.scenario,
        expected_error=replies.expected_error,
    )


@checked_arguments
def audio_not_stoppable(
    source: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    *,
    buffer: float = 0.0,
    notsent_lowat: int | None = None,
    bursts: int = BURSTS,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> UnstoppableAudio:
    """Return how much audio a sender can no longer stop when the listener interrupts a reply.

    The interruption comes at a random instant between the first write of a reply and the end of its playout. The reader
    starts to play a reply `buffer` seconds after the arrival of its first chunk, and waits for chunks that are late.

    With TCP_NOTSENT_LOWAT, the application writes a chunk only while fewer bytes than this limit are unsent, and keeps
    the chunks that it has produced meanwhile. The application writes as soon as the socket accepts data. Therefore TCP
    sends each byte at the same time as without the limit: the limit moves audio from the socket to the application, and
    changes no delay.

    Parameters
    ----------
    source : Speech or Utterances
        The talk spurts or the replies.
    path, stack, bursts, seed, on_progress
        As for `playout_without_gaps`.
    buffer : float
        Playout buffer of the reader [s], 0 to 3600.
    notsent_lowat : int, optional
        TCP_NOTSENT_LOWAT [bytes], 1 or more; by default it is not set. The kernel reports the socket as writable only
        while less than half of this limit is unsent (`tcp_stream_memory_free`). So the unsent bytes given here are an
        upper bound.

    Raises
    ------
    ValueError
        As `playout_without_gaps`.

    Examples
    --------
    >>> replies, path = Utterances(960, 0.020, speed=20, length=10), Path(rtt=0.100, loss=0.01)
    >>> with_limit = audio_not_stoppable(replies, path, notsent_lowat=4096, bursts=1000)
    >>> float(with_limit.bytes("unsent", 0.999).value)
    4800.0
    """
    if notsent_lowat is not None and (not _is_whole(notsent_lowat) or notsent_lowat < 1):
        raise InvalidValueError("notsent_lowat", notsent_lowat, "be a whole number of bytes from 1 on")
    require_buffer(buffer)
    replies = _Replies(source, path, stack, bursts, seed, on_progress)
    interval, size = replies.source.interval, replies.source.packet_size
    played = play_bursts(replies.read, replies.starts, interval, buffer).played
    instants = _instants(replies.written[replies.starts], played[replies.ends - 1] + interval)

    def passed(times: NDArray[np.float64]) -> NDArray[np.int64]:
        # Replies whose playout overlaps the next reply play at the same time.
        return np.searchsorted(np.sort(times), instants, side="right")

    produced, sent, read = passed(replies.written), passed(replies.sent), passed(replies.read)
    unsent = produced - sent
    accepted = unsent if notsent_lowat is None else np.minimum(unsent, -(-notsent_lowat // size))
    in_flight, waiting = sent - read, read - passed(played)
    amounts = (unsent - accepted, accepted, in_flight, waiting, accepted + in_flight + waiting)
    return UnstoppableAudio(
        float(buffer),
        notsent_lowat,
        dict(zip(STAGES, amounts, strict=True)),
        scenario=replies.scenario,
        expected_error=replies.expected_error,
    )


def _is_whole(value: object) -> bool:
    """Return whether a value is a whole number."""
    return is_number(value) and value % 1 == 0


def _instants(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return instants at equal distances, as if all intervals were joined end to end."""
    passed = np.append(0.0, np.cumsum(ends - begins))
    within = (np.arange(INSTANTS) + 0.5) / INSTANTS * passed[-1]
    number = np.searchsorted(passed, within, side="right") - 1
    instants: NDArray[np.float64] = begins[number] + within - passed[number]
    return instants


class _Replies:
    """The simulated chunks of whole talk spurts or replies."""

    def __init__(
        self,
        source: Source | str,
        path: Path,
        stack: Stack | StackName | None,
        bursts: int,
        seed: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        bursty = source_of(source, "source")
        if not isinstance(bursty, Speech | Utterances):
            raise InvalidValueError("source", source, "be Speech or Utterances", _HINT)
        per_burst = bursty.packets_per_burst
        most = int(min(MOST_BURSTS, MOST_MESSAGES / per_burst))
        if not _is_whole(bursts) or not FEWEST_BURSTS <= bursts <= most:
            raise InvalidValueError("bursts", bursts, f"be a whole number between {FEWEST_BURSTS} and {most}")
        seed = SEED.require("seed", seed)
        self.source, self.scenario = bursty, Scenario(bursty, path, checked_profile(stack))
        simulated = simulate_messages(self.scenario, round(bursts * per_burst), seed, on_progress)
        self.expected_error = simulated.expected_error or UNKNOWN_ERROR
        # The first and the last burst may not be whole.
        borders = np.flatnonzero(simulated.messages["kind"] == FIRST_CHUNK)
        whole = slice(borders[0], borders[-1])
        self.starts, self.ends = borders[:-1] - borders[0], borders[1:] - borders[0]
        self.written = np.ascontiguousarray(simulated.messages["time"][whole])
        self.sent = self.written + simulated.sent_after[whole]
        self.read = self.written + simulated.read_after[whole]
